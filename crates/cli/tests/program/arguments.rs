//! Arguments that cannot be used, help, and completions.

use std::fs;
use std::process::{Command, Stdio};

use crate::{code, folder, json, program, run, stderr, stdout};

#[test]
fn what_cannot_be_used_is_named_and_ends_in_2() {
    let folder = folder();
    let at = |name| folder.path().join(name);
    fs::create_dir(at("dir.onnx")).unwrap();
    let made = Command::new("mkfifo").arg(at("pipe.gguf")).status();
    assert!(made.unwrap().success());
    fs::write(at("text.txt"), "no model at all").unwrap();
    fs::write(at("short.gguf"), "GGUF").unwrap();
    fs::hard_link(at("a.safetensors"), at("link.safetensors")).unwrap();
    fs::write(at("empty.csv"), "TIMESTAMP,ContextTokens,GeneratedTokens\n").unwrap();
    fs::write(at("bad.csv"), "a,b\n1,2\n").unwrap();
    let cases = [
        ("", "Usage: vrampager"),
        ("swap", "<FILE>"),
        ("swop a.safetensors", "swap"),
        ("swap a.safetensors --frobnicate", "--frobnicate"),
        ("swap gone.onnx", "gone.onnx"),
        (
            "swap dir.onnx",
            "dir.onnx: not a regular file but a directory",
        ),
        ("swap pipe.gguf", "pipe.gguf: not a regular file but a pipe"),
        ("swap text.txt", "text.txt"),
        ("swap short.gguf", "short.gguf"),
        (
            "swap a.safetensors b.onnx a.safetensors",
            "are the same file",
        ),
        ("swap a.safetensors link.safetensors", "are the same file"),
        ("swap a.safetensors --requests 0", "--requests"),
        ("swap a.safetensors --requests many", "many"),
        ("swap a.safetensors --host 12Q", "unknown unit"),
        ("swap a.safetensors --host 0", "at least one page"),
        ("swap a.safetensors --device gpu", "gpu"),
        (
            "swap a.safetensors --device sim:vrom=1M",
            "unknown key `vrom`",
        ),
        ("swap a.safetensors --swap 1M --swap-dir nowhere", "nowhere"),
        ("swap a.safetensors --trace gone.csv", "gone.csv"),
        ("swap a.safetensors --trace bad.csv", "TIMESTAMP"),
        ("swap a.safetensors --trace empty.csv", "no requests"),
        ("swap a.safetensors --speed 3", "--trace"),
        ("info --device sim:gpus=0", "`gpus`"),
        ("accept --device x", "sim:"),
        ("completions cobol", "cobol"),
    ];
    for (line, part) in cases {
        let output = run(folder.path(), line);
        let message = stderr(&output);
        assert_eq!(code(&output), 2, "{line}: {message}");
        assert!(message.contains(part), "{line}: {message}");
        assert_eq!(stdout(&output), "", "{line}");
    }
}

#[test]
fn with_json_every_error_is_one_object_on_standard_output() {
    let folder = folder();
    let cases = [
        ("swap gone.onnx --json", 2, "usage"),
        ("swap a.safetensors --json --requests 0", 2, "usage"),
        (
            "swap a.safetensors --json --device sim:vram=1M",
            3,
            "out-of-memory",
        ),
        (
            "swap a.safetensors --json --device sim:fault=lose:40",
            1,
            "failed",
        ),
        (
            "swap a.safetensors --json --device sim:fault=open:1",
            1,
            "failed",
        ),
        ("info --json --device sim:vram=x", 2, "usage"),
    ];
    for (line, exit, kind) in cases {
        let output = run(folder.path(), line);
        assert_eq!(code(&output), exit, "{line}: {}", stderr(&output));
        let object = json(&output);
        assert_eq!(object["kind"], kind, "{line}");
        assert!(!object["error"].as_str().unwrap().is_empty(), "{line}");
    }
}

#[test]
fn help_has_examples_and_the_exit_codes() {
    let output = run(folder().path(), "swap --help");
    assert_eq!(code(&output), 0);
    let help = stdout(&output);
    for part in [
        "Examples:",
        "--swap-dir <DIR>",
        "copy_ratio",
        "3  out of memory",
    ] {
        assert!(help.contains(part), "{part} is missing in {help}");
    }
}

#[test]
fn completions_know_the_options() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(folder().path(), &format!("completions {shell}"));
        assert_eq!(code(&output), 0);
        assert!(stdout(&output).contains("swap-dir"), "{shell}");
    }
}

#[test]
fn a_reader_that_has_gone_away_is_no_error() {
    let lines = [
        "completions bash",
        "info --json",
        "--help",
        "swap a.safetensors --requests 1 --device sim:vram=8M",
    ];
    let folder = folder();
    for line in lines {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = program();
        command.args(line.split(' ')).current_dir(folder.path());
        let child = command.stdout(writer).stderr(Stdio::piped()).spawn();
        let output = child.unwrap().wait_with_output().unwrap();
        assert_eq!(
            (code(&output), stderr(&output)),
            (0, String::new()),
            "{line}"
        );
    }
}
