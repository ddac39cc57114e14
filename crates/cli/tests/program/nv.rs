//! `probe` and `sim-driver`, as their users start them.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::{code, folder, json, program, stderr, stdout};

fn vrampager(words: &[&str]) -> Command {
    let mut command = program();
    command.args(words);
    command
}

/// Runs the program under the simulated driver of a machine, with the words of `line`.
fn simulated(folder: &Path, machine: &str, line: &str) -> Output {
    vrampager(&["sim-driver", "--sim", machine, "--"])
        .arg(env!("CARGO_BIN_EXE_vrampager"))
        .args(line.split_whitespace())
        .current_dir(folder)
        .output()
        .unwrap()
}

#[test]
fn the_probe_finds_behind_the_nodes_what_it_finds_in_the_process() {
    let inside = vrampager(&["probe", "--device", "nv:sim,gpus=2", "--json"]).output();
    let inside = inside.unwrap();
    let outside = simulated(Path::new("."), "gpus=2", "probe --device nv:0 --json");
    assert_eq!(code(&outside), 0, "{}", stderr(&outside));
    assert_eq!(json(&outside), json(&inside));
    assert!(json(&outside)["tried"].as_u64().unwrap() >= 60);
}

#[test]
fn the_device_behind_the_nodes_keeps_the_promises_of_the_contracts() {
    let machine = "gpus=2,vram=16M,bar1=1M";
    let output = simulated(Path::new("."), machine, "accept --device nv: --json");
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let report = json(&output);
    assert_eq!(report["accepted"], true);
    assert_eq!(report["devices"].as_array().unwrap().len(), 2);
    let untried = stdout(&output).matches("not-supported").count();
    assert_eq!(untried, 0, "{report}");
}

#[test]
fn models_are_swapped_on_the_device_behind_the_nodes() {
    let folder = folder();
    let line = "swap a.safetensors b.onnx c.gguf --device nv:0 --requests 30 --json";
    let output = simulated(folder.path(), "vram=7M", line);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let report = json(&output);
    assert_eq!(report["verified"], true, "{report}");
    assert_eq!(report["mismatches"], 0);
    assert_ne!(report["bytes"]["dropped_clean"], 0, "{report}");
    assert!(
        report["leaks"]
            .as_object()
            .unwrap()
            .values()
            .all(|left| left == 0),
        "{}",
        report["leaks"]
    );
}

#[test]
fn two_swaps_share_a_device_of_which_the_second_takes_what_is_free() {
    let folder = folder();
    let program = env!("CARGO_BIN_EXE_vrampager");
    let script = format!(
        "{program} swap a.safetensors --device nv:0 --vram 30M --requests 1000000 --json & first=$!
         for i in $(seq 1000); do
           grep -q '^vram_bytes 3' /proc/driver/vrampager/counters && break; sleep 0.01
         done
         {program} info --device nv:0
         {program} swap a.safetensors --device nv:0 --vram 60M; echo more: $?
         {program} swap b.onnx --device nv:0 --requests 20; echo rest: $?
         kill $first"
    );
    let output = vrampager(&["sim-driver", "--sim", "vram=64M", "--", "sh", "-c", &script])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let (said, errors) = (stdout(&output), stderr(&output));
    assert!(
        said.contains("VRAM       64 MiB, 34 MiB free"),
        "{said}{errors}"
    );
    assert!(said.contains("more: 3"), "{said}{errors}");
    assert!(said.contains("rest: 0"), "{said}{errors}");
    assert!(errors.contains("34 MiB free, 60 MiB needed"), "{errors}");
}

#[test]
fn the_simulated_driver_passes_the_probe() {
    let output = vrampager(&["probe", "--json"]).output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report = json(&output);
    assert_eq!(report["passed"], true);
    let tried = report["tried"].as_u64().unwrap();
    assert!(tried >= 60, "{tried} rows");
}

#[test]
fn rows_that_a_machine_cannot_be_asked_are_skipped_with_the_reason_and_counted() {
    for (machine, skipped, why) in [
        ("gpus=32", 1, "needs fewer than 32 GPUs"),
        ("gpus=2,bar1=64K", 7, "needs a CPU-visible window of 2 MiB"),
        ("gpus=1", 5, "needs a second GPU"),
    ] {
        let device = format!("nv:sim,{machine}");
        let output = vrampager(&["probe", "--json", "--device", &device]).output();
        let output = output.unwrap();
        assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
        let report = json(&output);
        assert_eq!(report["skipped"], skipped, "{machine}");
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(report["tried"], rows.len() - skipped, "{machine}");
        let without = rows.iter().filter(|row| row["outcome"] == "skipped");
        let reasons: Vec<_> = without.map(|row| row["why"].as_str().unwrap()).collect();
        assert_eq!(reasons, vec![why; skipped], "{machine}");
        let text = stdout(&vrampager(&["probe", "--device", &device]).output().unwrap());
        assert!(text.ends_with(&format!(", {skipped} skipped\n")), "{text}");
    }
}

#[test]
fn a_bring_up_that_is_refused_is_an_error_with_its_stage() {
    let device = "nv:sim,gpus=2,fail=uvm:73:3:0x40";
    let output = vrampager(&["probe", "--device", device]).output().unwrap();
    let report = stdout(&output);
    assert_eq!(code(&output), 1, "{report}");
    assert!(
        stderr(&output).contains("create range failed with INVALID_STATE (0x40)"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_driver_that_is_not_there_is_an_error() {
    let output = vrampager(&["probe", "--device", "nv:250", "--json"])
        .output()
        .unwrap();
    assert_eq!(code(&output), 1);
    let report = json(&output);
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
    assert!(stdout(&output).contains("580.82.07"), "{}", stderr(&output));
    let output = vrampager(&["sim-driver", "sh", "-c", "exit 7"]).output();
    assert_eq!(output.unwrap().status.code(), Some(7));
}

#[test]
fn two_programs_share_the_gpus_of_one_driver() {
    let folder = tempfile::tempdir().unwrap();
    let own = env!("CARGO_BIN_EXE_vrampager");
    let probe = |name| format!("{own} probe --device nv:0 --json >{name} || exit 9");
    let script = format!("({}) & {}\nwait $!", probe("one"), probe("two"));
    let output = vrampager(&["sim-driver", "--sim", "gpus=2", "--report", "left"])
        .args(["--", "sh", "-c", &script])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report = |name| fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(
        report("one").contains("\"passed\":true"),
        "{}",
        report("one")
    );
    assert_eq!(report("one"), report("two"));
    assert_nothing_is_left(&folder.path().join("left"));
}

fn assert_nothing_is_left(report: &Path) {
    let report = fs::read_to_string(report).unwrap();
    let live = report
        .lines()
        .take_while(|line| !line.starts_with("ioctls "));
    let live: Vec<&str> = live.collect();
    assert_eq!(live.len(), 14, "{report}");
    for line in live {
        assert!(line.ends_with(" 0"), "{line}");
    }
}

#[test]
fn a_program_killed_at_any_point_of_its_work_leaves_nothing_in_the_driver() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("left");
    let early = (1..100).step_by(9);
    for nth in early.chain([150, 400, 1000, 3000, 6000, 9000]) {
        let output = vrampager(&["sim-driver", "--kill-at", &nth.to_string(), "--report"])
            .arg(&report)
            .args(["--", env!("CARGO_BIN_EXE_vrampager")])
            .args(["accept", "--device", "nv:0"])
            .output()
            .unwrap();
        // 128 and the signal's number.
        assert_eq!(code(&output), 137, "{nth}: {}", stderr(&output));
        assert_nothing_is_left(&report);
        let text = fs::read_to_string(&report).unwrap();
        assert!(text.contains(&format!("\nioctls {nth}\n")), "{text}");
    }
}

#[test]
fn a_request_to_kill_at_that_is_never_made_is_an_error() {
    let output = vrampager(&["sim-driver", "--kill-at", "9", "sh", "-c", "exit 7"]).output();
    let output = output.unwrap();
    assert_eq!(code(&output), 1);
    let errors = stderr(&output);
    assert!(errors.contains("there were only 0 ioctls"), "{errors}");
}

#[test]
fn what_the_user_preloads_stays_preloaded_behind_the_driver() {
    let output = vrampager(&["sim-driver", "sh", "-c", "echo $LD_PRELOAD"])
        .env("LD_PRELOAD", "libc.so.6")
        .output()
        .unwrap();
    let preloads = stdout(&output);
    assert!(
        preloads.ends_with("/libvrampager_nv_shim.so:libc.so.6\n"),
        "{preloads}{}",
        stderr(&output)
    );
}

#[test]
fn a_program_in_the_background_keeps_its_driver() {
    let folder = tempfile::tempdir().unwrap();
    let script = "(while kill -0 $$ 2>/dev/null; do :; done
        cat /proc/driver/vrampager/counters >seen) 3</dev/nvidiactl &";
    let output = vrampager(&["sim-driver", "sh", "-c", script])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let seen = fs::read_to_string(folder.path().join("seen")).unwrap();
    assert!(seen.starts_with("files 1\n"), "{seen}");
}

#[test]
fn a_program_ends_when_its_driver_is_killed() {
    let begun = Instant::now();
    let mut child = vrampager(&["sim-driver", "sh", "-c", "echo running; exec sleep 100"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "running\n");
    child.kill().unwrap();
    child.wait().unwrap();
    // The end of its output is the end of the program.
    assert_eq!(output.read_line(&mut line).unwrap(), 0);
    assert!(begun.elapsed() < Duration::from_secs(90));
}

#[test]
fn a_machine_that_cannot_be_read_is_a_wrong_argument() {
    let output = vrampager(&["sim-driver", "--sim", "gpus=0", "true"]).output();
    let output = output.unwrap();
    assert_eq!(code(&output), 2);
    let error = stderr(&output);
    assert!(error.contains("key `gpus` cannot be `0`"), "{error}");
}
