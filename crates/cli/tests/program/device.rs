//! `info` and `accept`.

use crate::{code, json, run, stderr, stdout};

fn here(line: &str) -> std::process::Output {
    run(tempfile::tempdir().unwrap().path(), line)
}

#[test]
fn info_describes_every_device() {
    let output = here("info --device sim:vram=64M,bar=16M,gpus=2 --json");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let devices = &json(&output)["devices"];
    assert_eq!(devices.as_array().unwrap().len(), 2);
    assert_eq!(devices[1]["id"], 1);
    assert_eq!(devices[1]["vram_bytes"], 64 << 20);
    assert_eq!(devices[1]["vram_free_bytes"], 64 << 20);
    assert_eq!(devices[1]["aperture_bytes"], 16 << 20);
    assert!(devices[1]["zones"][0]["bytes"].as_u64().unwrap() > 0);

    let output = json(&here("info --device nv:sim,vram=64M --json"));
    let gpu = &output["devices"][0];
    assert_eq!(gpu["properties"]["SM version"], "8.9");
    assert_eq!(gpu["unsupported"], serde_json::json!([]));
    let text = stdout(&here("info --device nv:sim,vram=64M"));
    assert!(text.contains("  SM version 8.9\n"), "{text}");

    let text = stdout(&here("info --device sim:vram=64M,bar=16M"));
    assert!(text.contains("aperture   16 MiB"), "{text}");
}

#[test]
fn no_device_is_nothing_to_describe_or_accept() {
    for line in ["info", "accept", "accept --json"] {
        let output = here(&format!("{line} --device nv:sim,gpus=2,visible=9"));
        assert_eq!(code(&output), 1, "{line}");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("names no device that is there"), "{text}");
    }
}

#[test]
fn accept_runs_the_four_suites() {
    let output = here("accept --device sim:vram=64M --json");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report = json(&output);
    assert_eq!(report["accepted"], true);
    let suites = report["devices"][0]["suites"].as_array().unwrap();
    let contracts: Vec<_> = suites.iter().map(|suite| &suite["contract"]).collect();
    assert_eq!(contracts, ["discovery", "memory", "queue", "release"]);
    for suite in suites {
        assert!(!suite["checks"].as_array().unwrap().is_empty());
    }
}

/// Mission rows A8, A15: what takes a second device is tried when there is one, and said when not.
#[test]
fn accept_tries_sharing_between_devices_when_there_are_two() {
    let untried = |line: &str| {
        let output = here(line);
        assert_eq!(code(&output), 0, "{line}: {}", stderr(&output));
        let report = json(&output);
        let suites = report["devices"][0]["suites"].as_array().unwrap();
        let checks = suites.iter().flat_map(|s| s["checks"].as_array().unwrap());
        let untried = checks.filter(|check| check["outcome"] == "not-supported");
        untried.map(|c| c["why"].clone()).collect::<Vec<_>>()
    };
    let none = untried("accept --device nv:sim,vram=16M,bar1=1M,gpus=2 --json");
    assert_eq!(none, [""; 0]);
    let one = untried("accept --device nv:sim,vram=16M,bar1=1M --json");
    assert_eq!(one, ["there is no second device"; 3]);
}

#[test]
fn a_device_that_breaks_a_promise_ends_in_6() {
    let output = here("accept --device sim:vram=64M,fault=destroy:1");
    assert_eq!(code(&output), 6);
    assert!(stdout(&output).contains("FAIL"), "{}", stdout(&output));
}
