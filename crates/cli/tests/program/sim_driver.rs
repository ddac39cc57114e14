//! The command line of `sim-driver`: what it refuses, how it ends, and what it says.

use std::path::Path;

use crate::{code, run, stderr};

fn here(line: &str) -> std::process::Output {
    run(Path::new("."), line)
}

#[test]
fn programs_that_end_at_once_are_not_worth_a_message() {
    for _ in 0..20 {
        let output = here("sim-driver -- true");
        assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    }
}
