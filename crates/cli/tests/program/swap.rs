//! The main job on generated model files.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::{MIB, code, folder, json, run, stderr, stdout};

fn number(value: &Value) -> u64 {
    let number = value.as_u64();
    number.unwrap_or_else(|| panic!("{value} is no whole number"))
}

/// That every byte was right and nothing is left.
fn assert_clean(report: &Value) {
    assert_eq!(report["verified"], true, "{report}");
    assert_eq!(report["mismatches"], 0);
    for (what, count) in report["leaks"].as_object().unwrap() {
        assert_eq!(count, 0, "{what}");
    }
}

fn keys(value: &Value) -> BTreeSet<&str> {
    let object = value.as_object().unwrap();
    object.keys().map(String::as_str).collect()
}

#[test]
fn models_that_do_not_fit_together_take_turns_and_every_byte_is_right() {
    let folder = folder();
    let line = "swap a.safetensors b.onnx c.gguf --device sim:vram=4M --requests 60 --json";
    let output = run(folder.path(), line);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report = json(&output);
    assert_clean(&report);
    assert_eq!(report["requests"], 60);
    // Each request compares one whole model.
    assert_eq!(number(&report["verified_bytes"]), 60 * 3 * MIB);
    let misses = 60 - number(&report["hits"]);
    assert!((3..60).contains(&misses), "{misses} misses");
    let bytes = &report["bytes"];
    assert!(number(&bytes["dropped_clean"]) > 0);
    assert_eq!(bytes["d2h"], 0, "clean tensors are not copied out");
    assert_eq!(bytes["h2d"], bytes["file_read"]);
    let models = report["models"].as_array().unwrap();
    let sum = |key: &str| -> u64 { models.iter().map(|model| number(&model[key])).sum() };
    assert_eq!(sum("requests"), 60);
    assert_eq!(sum("hits"), number(&report["hits"]));
    assert_eq!(sum("file_read"), number(&bytes["file_read"]));
    assert_eq!(sum("dropped_clean"), number(&bytes["dropped_clean"]));
    assert!(report["copy_ratio"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_object_has_the_keys_that_scripts_rely_on() {
    let folder = folder();
    let output = run(folder.path(), "swap c.gguf --requests 2 --json");
    assert_eq!(stdout(&output).lines().count(), 1);
    let report = json(&output);
    let has = |value: &Value, expected: &[&str]| {
        let missing: Vec<_> = expected
            .iter()
            .filter(|key| !keys(value).contains(*key))
            .collect();
        assert!(missing.is_empty(), "{missing:?} of {value}");
    };
    let top = "version config verified mismatches requests models bytes copy_ratio leaks";
    has(&report, &top.split(' ').collect::<Vec<_>>());
    let bytes = "file_read h2d d2h dropped_clean swap_written swap_read";
    has(&report["bytes"], &bytes.split(' ').collect::<Vec<_>>());
    let leaks = "objects mappings ranges pages va_bytes fds";
    has(&report["leaks"], &leaks.split(' ').collect::<Vec<_>>());
    let model = "name bytes tensors requests hits file_read copied dropped_clean swap_in_ms";
    has(&report["models"][0], &model.split(' ').collect::<Vec<_>>());
    has(&report["models"][0]["swap_in_ms"], &["p50", "p99"]);
}

#[test]
fn a_model_that_does_not_fit_runs_tensor_by_tensor() {
    let folder = folder();
    let line = "swap a.safetensors b.onnx --device sim:vram=2500K --requests 6";
    let output = run(folder.path(), &format!("{line} --json"));
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report = json(&output);
    assert_clean(&report);
    assert_eq!(number(&report["verified_bytes"]), 6 * 3 * MIB);
    assert_eq!(report["hits"], 0);
    assert_eq!(report["models"][0]["tensor_by_tensor"], true);

    let text = stdout(&run(folder.path(), line));
    assert!(
        text.contains("* too large for VRAM, served tensor by tensor"),
        "{text}"
    );
}

#[test]
fn state_that_does_not_fit_in_vram_is_written_and_compared_piece_by_piece() {
    let folder = folder();
    let line = "swap c.gguf --device sim:vram=3M --state 4M --host 8M --requests 3 --json";
    let output = run(folder.path(), line);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report = json(&output);
    assert_clean(&report);
    assert_eq!(number(&report["verified_bytes"]), (3 * 7 + 4) * MIB);
}

#[test]
fn a_tensor_that_does_not_fit_ends_in_3_and_says_what_is_missing() {
    let folder = folder();
    let output = run(
        folder.path(),
        "swap b.onnx --device sim:vram=1M --requests 1",
    );
    assert_eq!(code(&output), 3);
    let message = stderr(&output);
    let expected = "out of memory: buffer `b.onnx/tensor.0` needs 2 MiB; VRAM 1 MiB: ";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn written_state_is_copied_out_swapped_and_comes_back_unchanged() {
    let folder = folder();
    let line = "swap a.safetensors b.onnx c.gguf --device sim:vram=6M --state 2M --host 5M \
                --swap 16M --swap-dir . --requests 40 --json";
    let output = run(folder.path(), line);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report = json(&output);
    assert_clean(&report);
    // The state is compared at each request and once more at the end for each model asked for.
    assert_eq!(number(&report["verified_bytes"]), (40 * 5 + 3 * 2) * MIB);
    for key in ["d2h", "swap_written", "swap_read"] {
        assert!(number(&report["bytes"][key]) > 0, "{key}");
    }
}

#[test]
fn the_same_seed_gives_the_same_report_apart_from_times() {
    let folder = folder();
    let report = |seed| {
        let line = format!(
            "swap a.safetensors b.onnx c.gguf --device sim:vram=6M --state 1M --requests 30 \
             --seed {seed} --json"
        );
        let mut report = json(&run(folder.path(), &line));
        for key in ["seconds", "copy_ratio", "copy_speed"] {
            report[key].take();
        }
        for model in report["models"].as_array_mut().unwrap() {
            model["swap_in_ms"].take();
        }
        report
    };
    assert_eq!(report(5), report(5));
    assert_ne!(report(5)["models"], report(6)["models"]);
}

#[test]
fn a_device_with_virtual_time_has_no_copy_ratio() {
    let folder = folder();
    let line = "swap a.safetensors --device sim:mode=deterministic --requests 2 --json";
    let report = json(&run(folder.path(), line));
    assert_clean(&report);
    assert_eq!(report["copy_ratio"], Value::Null);
}

#[test]
fn traces_are_merged_by_time_and_each_asks_for_its_model() {
    let folder = folder();
    let header = "TIMESTAMP,ContextTokens,GeneratedTokens";
    let write = |name, seconds: &[&str]| {
        let rows = seconds.iter().map(|s| format!("2023-11-16 18:00:{s},1,1"));
        let text = [header.to_owned()].into_iter().chain(rows);
        let text = text.collect::<Vec<_>>().join("\n");
        fs::write(folder.path().join(name), text).unwrap();
    };
    write("x.csv", &["00", "02", "04"]);
    write("y.csv", &["01", "03", "05"]);
    let line = "swap a.safetensors b.onnx c.gguf --trace x.csv,y.csv --requests 5 --speed 1000 \
                --json";
    let output = run(folder.path(), line);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let report = json(&output);
    assert_clean(&report);
    let requests = |model: usize| number(&report["models"][model]["requests"]);
    assert_eq!([0, 1, 2].map(requests), [3, 2, 0]);
    // The fifth request comes 4 seconds after the first, a thousand times as fast.
    assert!(report["seconds"].as_f64().unwrap() >= 0.004);
    assert_eq!(report["models"][2]["swap_in_ms"], Value::Null);
}

#[test]
fn the_table_has_a_line_for_each_model() {
    let folder = folder();
    let line = "swap a.safetensors c.gguf --device sim:vram=4M --requests 10";
    let text = stdout(&run(folder.path(), line));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("model"), "{text}");
    assert!(lines[1].starts_with("a.safetensors") && lines[2].starts_with("c.gguf"));
    assert!(text.contains("30 MiB compared, 0 bytes differ"), "{text}");
    assert!(text.ends_with("left behind: nothing\n"), "{text}");
}
