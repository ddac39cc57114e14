//! The command line of `sim-driver`: what it refuses, how it ends, and what it says.

use std::path::Path;

use crate::{code, program, run, stderr, stdout};

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
    for machine in ["vram=4M,bar1=64K,host=4M", "vram=1T,bar1=1T,host=64T"] {
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
