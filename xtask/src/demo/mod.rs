//! The demo: eight real models swapped on a simulated GPU that holds 40 % of their bytes.

mod models;
mod stand_ins;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use vrampager_models::generate;

/// How many fine-tunes of the largest model are made: same shapes, other values.
const FINE_TUNES: u64 = 3;
const MIB: u64 = 1 << 20;

/// Obtains the models, builds the program in release, and runs its main job on them with `args`
/// appended. The program's exit code is passed on; only the program writes to standard output.
///
/// # Errors
///
/// When a model is damaged, a file cannot be written, or the program cannot be started. Lack of a
/// network is no error: generated files stand in.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitCode> {
    let folder = root.join("target/demo");
    let files = obtain(&folder)?;
    let vram = vram_for(&files)?;
    eprintln!(
        "demo: {} models in {}, VRAM of {vram} MiB",
        files.len(),
        folder.display()
    );

    let status = crate::cargo()
        .args([
            "run",
            "--release",
            "--package",
            "vrampager-cli",
            "--bin",
            "vrampager",
            "--",
            "swap",
        ])
        .args(&files)
        .arg("--device")
        .arg(format!("sim:vram={vram}M"))
        .args(["--requests", "200", "--seed", "7"])
        .args(args)
        .current_dir(root)
        .status()
        .context("starting cargo")?;
    // Without a code the program was killed; every byte of a code fits.
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The eight files, in `folder`: downloaded if possible, generated otherwise.
fn obtain(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = match models::fetch(folder)? {
        models::Fetched::Real(files) => files,
        models::Fetched::Unreachable(reason) => {
            eprintln!("demo: the models cannot be downloaded: {reason}");
            eprintln!("demo: going on with GENERATED files of the same sizes in their place");
            stand_ins::write(&folder.join("generated"))?
        }
    };
    let base = files.last().context("the list of models is empty")?.clone();
    for seed in 1..=FINE_TUNES {
        files.push(fine_tune(&base, seed)?);
    }
    Ok(files)
}

/// A fine-tune of `base` beside it. One that an earlier run has made is used again; it is whole,
/// because the generator never leaves half a file.
fn fine_tune(base: &Path, seed: u64) -> Result<PathBuf> {
    let tuned = base.with_extension(format!("tuned{seed}.safetensors"));
    if !tuned.is_file() {
        generate::fine_tune(base, &tuned, seed)
            .with_context(|| format!("making fine-tune {seed} of {}", base.display()))?;
    }
    Ok(tuned)
}

/// MiB that hold 40 % of the files' bytes: each of them alone, not all together.
fn vram_for(files: &[PathBuf]) -> Result<u64> {
    let mut sizes = Vec::with_capacity(files.len());
    for file in files {
        let found = fs::metadata(file).with_context(|| format!("reading {}", file.display()))?;
        sizes.push(found.len());
    }
    Ok((sizes.iter().sum::<u64>() * 2).div_ceil(5 * MIB))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vram_holds_two_fifths_of_the_files_rounded_up_to_mib() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, len: u64| {
            let path = folder.path().join(name);
            fs::File::create(&path).unwrap().set_len(len).unwrap();
            path
        };
        let files = [write("a", 5 * MIB), write("b", 5 * MIB + 1)];
        assert_eq!(vram_for(&files).unwrap(), 5);
        assert_eq!(vram_for(&files[..1]).unwrap(), 2);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = vram_for(&[PathBuf::from("nowhere.onnx")]).unwrap_err();
        assert!(error.to_string().contains("nowhere.onnx"));
    }
}
