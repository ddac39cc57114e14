//! The command line of `sim-driver`: what it refuses, how it ends, and what it says.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::{code, program, run, stderr, stdout};

fn here(line: &str) -> std::process::Output {
    run(Path::new("."), line)
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

#[test]
fn machines_that_cannot_be_are_refused_with_what_can_be_on_every_way_in() {
    for (machine, part) in [
        ("gpus=33", "key `gpus` cannot be `33`; allowed is 1 to 32"),
        ("arch=hopper", "allowed is ampere, ada or blackwell"),
        ("vram=0", "allowed is a size from 4M to 1T"),
        ("bar1=0", "allowed is a size from 64K to 1T"),
        ("host=0", "allowed is a size from 4M to 64T"),
        ("release=999", "allowed is a release of 570 to 610"),
        ("latency=5", "allowed is a whole number of ns, us or ms"),
        ("fail=uvm:73:1", "(kinds: esc, alloc, ctrl, uvm, any)"),
    ] {
        for line in [
            format!("sim-driver --sim {machine} -- true"),
            format!("probe --device nv:sim,{machine}"),
            format!("accept --device nv:sim,{machine}"),
            format!("info --device nv:sim,{machine}"),
        ] {
            let output = here(&line);
            let message = stderr(&output);
            assert_eq!(code(&output), 2, "{line}: {message}");
            assert!(message.contains(part), "{line}: {message}");
        }
    }
}

#[test]
fn the_smallest_and_the_largest_machine_keep_the_promises_of_the_contracts() {
    for machine in [
        "vram=4M,bar1=64K,host=4M",
        "gpus=2,vram=1T,bar1=1T,host=64T",
    ] {
        for command in ["accept", "probe"] {
            let output = here(&format!("{command} --device nv:sim,{machine}"));
            let report = stdout(&output);
            assert_eq!(code(&output), 0, "{machine}: {report}{}", stderr(&output));
        }
    }
}

#[test]
fn devices_too_small_for_the_suites_fail_and_break_nothing() {
    for vram in ["4K", "8K", "64K"] {
        let output = here(&format!("accept --device sim:vram={vram}"));
        assert_eq!(code(&output), 6, "{vram}: {}", stdout(&output));
        assert_eq!(stderr(&output), "", "{vram}");
    }
}

#[test]
fn the_help_says_what_the_exit_codes_mean() {
    let help = stdout(&here("sim-driver --help"));
    for part in ["Exit codes:", "128", "--kill-at", "  6  "] {
        assert!(help.contains(part), "{part} is missing in {help}");
    }
}

/// `sim-driver` with a shell script, and what the script says.
fn script(script: &str) -> (Child, BufReader<ChildStdout>) {
    // Signals may be ignored where tests run, and shells do not trap those.
    let program = [
        "--",
        "env",
        "--default-signal=INT,QUIT,TERM",
        "sh",
        "-c",
        script,
    ];
    let mut child = crate::program()
        .arg("sim-driver")
        .args(program)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

fn line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line
}

fn send(signal: &str, to: &Child) {
    let sent = Command::new("kill")
        .args(["-s", signal, &to.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
}

fn end_of(mut child: Child) -> ExitStatus {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("it goes on");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_signal_to_the_driver_alone_reaches_the_program_which_decides_how_it_ends() {
    for signal in ["TERM", "INT"] {
        let (child, mut output) = script(&format!(
            "trap 'echo told; exit 9' {signal}; echo running; while :; do sleep 0.05; done"
        ));
        assert_eq!(line(&mut output), "running\n");
        send(signal, &child);
        assert_eq!(line(&mut output), "told\n", "{signal}");
        assert_eq!(end_of(child).code(), Some(9), "{signal}");
    }
}

#[test]
fn a_program_that_ends_by_a_signal_passed_on_is_128_and_its_number() {
    for (signal, number) in [("TERM", 15), ("INT", 2), ("QUIT", 3)].repeat(7) {
        let (child, mut output) = script("ulimit -c 0; echo running; exec sleep 30");
        assert_eq!(line(&mut output), "running\n");
        send(signal, &child);
        assert_eq!(end_of(child).code(), Some(128 + number), "{signal}");
    }
}

#[test]
fn a_signal_after_the_program_has_ended_ends_the_driver() {
    // Says so when the shell has ended and was waited for: before that a signal is the shell's.
    let (child, mut output) =
        script("(while kill -0 $$ 2>&-; do sleep 0.01; done; echo left; exec sleep 5) & exit 0");
    assert_eq!(line(&mut output), "left\n");
    let begun = Instant::now();
    send("TERM", &child);
    assert_eq!(end_of(child).signal(), Some(15));
    assert!(begun.elapsed() < Duration::from_secs(4));
}

#[test]
fn a_driver_that_is_missing_is_named_by_its_node_with_what_to_do() {
    // Whatever this machine has: a preloaded driver that is not there either.
    let own = std::env::current_exe().unwrap();
    for words in [
        ["accept", "--device", "nv:0"],
        ["info", "--device", "nv"],
        ["probe", "--device", "nv:0"],
    ] {
        let output = program()
            .args(words)
            .env("LD_PRELOAD", own.with_file_name("libvrampager_nv_shim.so"))
            .env("VRAMPAGER_SIM_DRIVER", "vrampager-of-nobody")
            .output()
            .unwrap();
        let message = stderr(&output);
        assert_eq!(code(&output), 1, "{words:?}: {message}");
        for part in [
            "/dev/nvidiactl",
            "No such device",
            "nvidia-modprobe",
            "nv:sim",
        ] {
            assert!(message.contains(part), "{words:?}: {message}");
        }
    }
}
