//! Unmodified programs on the simulated driver.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The library, which cargo puts beside this test.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its file");
    own.with_file_name("libvrampager_nv_shim.so")
}

fn example() -> PathBuf {
    let deps = library();
    let target = deps.ancestors().nth(2).expect("the library is in a folder");
    target.join("examples").join("first_bytes")
}

/// A program with the library in front of it.
fn preloaded(machine: &str, program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", library())
        .env("LIBC_PATH", library())
        .env("VRAMPAGER_SIM", machine);
    command
}

fn run(machine: &str, program: &Path, arguments: &[&str]) -> Output {
    let output = preloaded(machine, program).args(arguments).output();
    output.expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_plain_client_sees_its_bytes_through_two_mappings() {
    let output = run("gpus=3", &example(), &[]);
    let expected = "3 GPUs\nwritten 0xc0ffee00, seen 0xc0ffee00\n";
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    assert!(output.status.success());
}

#[test]
fn an_injected_failure_reaches_the_program() {
    let output = run("fail=alloc:0x40:1:0x51", &example(), &[]);
    assert!(!output.status.success());
    assert!(
        text(&output.stderr).contains("NO_MEMORY (0x51)"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_machine_that_cannot_be_read_is_no_device() {
    let output = run("gpus=none", &example(), &[]);
    let errors = text(&output.stderr);
    assert!(errors.contains("bad value \"none\" for gpus"), "{errors}");
    assert!(!output.status.success());
}

#[test]
fn the_report_at_exit_counts_what_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let status = preloaded("", &example())
        .env("VRAMPAGER_SIM_REPORT", &report)
        .output()
        .unwrap()
        .status;
    assert!(status.success());
    let report = std::fs::read_to_string(report).unwrap();
    for line in [
        "clients 0",
        "memories 0",
        "cpu_maps 0",
        "vram_bytes 0",
        "channel_errors 0",
    ] {
        assert!(
            report.lines().any(|found| found == line),
            "{line} not in\n{report}"
        );
    }
}

#[test]
fn programs_without_gpus_are_left_alone() {
    let output = run("gpus=1", Path::new("/bin/cat"), &["/proc/self/comm"]);
    assert_eq!(text(&output.stdout), "cat\n");
    let output = run(
        "gpus=1",
        Path::new("/bin/cat"),
        &["/proc/driver/nvidia/version"],
    );
    assert!(
        text(&output.stdout).contains("570.144"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn the_counters_are_a_file_that_any_program_can_read() {
    let output = run(
        "gpus=1",
        Path::new("/bin/cat"),
        &["/proc/driver/vrampager/counters"],
    );
    let counters = text(&output.stdout);
    for line in ["clients 0", "vram_bytes 0", "ioctls 0"] {
        assert!(
            counters.lines().any(|found| found == line),
            "{line} not in\n{counters}"
        );
    }
}

#[test]
fn nodes_that_the_machine_has_can_be_seen_and_others_cannot_be_opened() {
    let exists = run(
        "gpus=1",
        Path::new("/usr/bin/test"),
        &["-c", "/dev/nvidia0"],
    );
    assert!(exists.status.success());
    let output = run("gpus=1", Path::new("/bin/cat"), &["/dev/nvidia7"]);
    let errors = text(&output.stderr);
    assert!(errors.contains("No such device"), "{errors}");
}

/// A Python with tinygrad from the registry; without it there is nothing to run.
fn tinygrad() -> Option<PathBuf> {
    let python = std::env::var_os("VRAMPAGER_TINYGRAD_PYTHON").map(PathBuf::from);
    if python.is_none() {
        eprintln!("skipped: VRAMPAGER_TINYGRAD_PYTHON names no Python with tinygrad");
    }
    python
}

#[test]
fn tinygrad_allocates_copies_runs_out_and_frees_on_two_gpus() {
    let Some(python) = tinygrad() else {
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/tinygrad-smoke.py");
    let script = script.to_str().expect("a path of this repository");
    for release in ["570.144", "580.82.07", "610.10"] {
        let machine = format!("gpus=2,vram=2G,release={release}");
        let output = run(
            &machine,
            &python,
            &[script, "--stress", "2", "--host-rounds", "10"],
        );
        let (result, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{machine}: {errors}");
        assert!(result.contains("\"interface\": \"NVKIface\""), "{result}");
        assert!(result.contains("\"mismatches\": 0"), "{result}");
        assert!(
            result.contains("\"leaks\": {\"objects\": 10, \"pins\": 10"),
            "{result}"
        );
    }
}
