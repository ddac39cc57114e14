//! The command line of `sim-driver`: what it refuses, how it ends, and what it says.

use std::path::Path;

use crate::{code, run, stderr, stdout};

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

#[test]
fn an_option_that_there_is_not_is_no_program_but_a_mistake_with_the_nearest_one() {
    for (line, nearest) in [
        ("sim-driver --killat 5 -- true", "'--kill-at'"),
        ("sim-driver --sims gpus=2 -- true", "'--sim'"),
        ("sim-driver --reprot left true", "'--report'"),
        ("sim-driver -x true", "Usage: vrampager sim-driver"),
    ] {
        let output = here(line);
        let message = stderr(&output);
        assert_eq!(code(&output), 2, "{line}: {message}");
        assert!(message.contains(nearest), "{line}: {message}");
        assert!(message.contains("Usage:"), "{line}: {message}");
    }
}

#[test]
fn what_follows_the_program_is_its_own_and_a_hyphen_may_begin_its_name_behind_two_of_them() {
    let output = here("sim-driver echo --sim -x -- --report");
    assert_eq!(stdout(&output), "--sim -x -- --report\n");
    let output = here("sim-driver -- -no-such-program");
    let message = stderr(&output);
    assert_eq!(code(&output), 1, "{message}");
    assert!(message.contains("starting -no-such-program"), "{message}");
}
