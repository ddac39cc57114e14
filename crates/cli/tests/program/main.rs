//! The program as its users start it.
#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod arguments;
mod device;
mod disturbed;
mod nv;
mod settings;
mod sim_driver;
mod swap;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;
use vrampager_models::{Format, generate};

const MIB: u64 = 1 << 20;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_vrampager"))
}

/// Runs the program with the words of `line`, in `folder`.
fn run(folder: &Path, line: &str) -> Output {
    let words = line.split_whitespace();
    program().args(words).current_dir(folder).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> Value {
    let text = stdout(output);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

/// A folder with `a.safetensors`, `b.onnx` and `c.gguf`, each of 3 MiB in 9 tensors, the largest
/// of 2 MiB.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), "a.safetensors", 1);
    write_model(folder.path(), "b.onnx", 2);
    write_model(folder.path(), "c.gguf", 3);
    folder
}

fn write_model(folder: &Path, name: &str, seed: u64) -> PathBuf {
    let path = folder.join(name);
    let format = match path.extension().unwrap().to_str().unwrap() {
        "safetensors" => Format::Safetensors,
        "onnx" => Format::Onnx,
        _ => Format::Gguf,
    };
    let small = [4, 100, 4096, 5000, 40_000, 70_000, 200_000];
    let rest = MIB - small.iter().sum::<u64>();
    let sizes = [&[2 * MIB], &small[..], &[rest]].concat();
    generate::write(format, &path, &sizes, seed).unwrap();
    path
}
