//! `probe` and `sim-driver`, as their users start them.

use std::process::Command;

use serde_json::Value;

fn vrampager(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrampager"));
    command.args(words);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_simulated_driver_passes_the_probe() {
    let output = vrampager(&["probe", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["passed"], true);
    let tried = report["tried"].as_u64().unwrap();
    assert!(tried >= 60, "{tried} rows");
}

#[test]
fn a_bring_up_that_is_refused_is_an_error_with_its_stage() {
    let device = "nv:sim,gpus=2,fail=uvm:73:3:0x40";
    let output = vrampager(&["probe", "--device", device]).output().unwrap();
    let report = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert!(
        text(&output.stderr).contains("create range failed with INVALID_STATE (0x40)"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_driver_that_is_not_there_is_an_error() {
    let output = vrampager(&["probe", "--device", "nv:250", "--json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["kind"], "failed");
    let error = report["error"].as_str().unwrap();
    assert!(
        error.starts_with("the GPU cannot be brought up: "),
        "{error}"
    );
}

#[test]
fn a_program_gets_the_simulated_driver_and_its_own_exit_code() {
    let version = "/proc/driver/nvidia/version";
    let output = vrampager(&["sim-driver", "--sim", "release=580.82.07", "--"])
        .args(["cat", version])
        .output()
        .unwrap();
    assert!(
        text(&output.stdout).contains("580.82.07"),
        "{}",
        text(&output.stderr)
    );
    let output = vrampager(&["sim-driver", "sh", "-c", "exit 7"]).output();
    assert_eq!(output.unwrap().status.code(), Some(7));
}

#[test]
fn the_report_says_what_a_program_left() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let output = vrampager(&["sim-driver", "--report"])
        .arg(&report)
        .args(["--", "cat", "/dev/nvidiactl"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = std::fs::read_to_string(report).unwrap();
    assert!(report.starts_with("files 0\nclients 0\n"), "{report}");
}

#[test]
fn a_machine_that_cannot_be_read_is_a_wrong_argument() {
    let output = vrampager(&["sim-driver", "--sim", "gpus=0", "true"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("bad value \"0\" for gpus"), "{error}");
}
