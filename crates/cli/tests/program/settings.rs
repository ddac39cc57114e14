//! Settings of `sim-driver` that do not do what they seem to.

use std::path::Path;

use crate::{code, run, stderr, stdout};

#[test]
fn a_failure_of_a_status_that_is_none_is_refused_and_one_that_never_came_is_told() {
    let here = |line: &str| run(Path::new("."), line);
    let output = here("sim-driver --sim fail=alloc:0x80:1:0 -- true");
    let message = stderr(&output);
    assert_eq!(code(&output), 2, "{message}");
    assert!(message.contains("but for 0, which is none"), "{message}");

    let machine = "fail=esc:1:9:EIO,fail=any:0:1:EIO";
    let output = here(&format!("sim-driver --sim {machine} -- true"));
    let message = stderr(&output);
    assert_eq!(code(&output), 0, "{message}");
    assert!(message.contains("2 of 2 failures"), "{message}");

    let program =
        "vrampager info --device nv:0".replace("vrampager", env!("CARGO_BIN_EXE_vrampager"));
    let output = here(&format!(
        "sim-driver --report /dev/stdout --sim {machine} -- {program}"
    ));
    let (report, message) = (stdout(&output), stderr(&output));
    assert!(message.contains("1 of 2 failures"), "{message}");
    assert!(report.contains("\ninjected 1\n"), "{report}");
}

#[test]
fn a_report_that_cannot_be_written_is_told_before_the_program_starts() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(
        folder.path(),
        "sim-driver --report nowhere/left -- touch started",
    );
    let message = stderr(&output);
    assert_eq!(code(&output), 1, "{message}");
    assert!(message.contains("nowhere/left"), "{message}");
    assert!(!folder.path().join("started").exists());
}
