//! Files to use where the real models cannot be had: the same three formats, the same sizes, and
//! about as many tensors.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use vrampager_models::{Format, generate};

struct StandIn {
    file: &'static str,
    format: Format,
    /// Tensors as runs of (how many, bytes of each).
    tensors: &'static [(usize, u64)],
}

/// The last one is fine-tuned, as the largest of the real models is. The runs of that one are
/// `MiniLM`'s; those of the others only sum up to their models.
const STAND_INS: [StandIn; 5] = [
    StandIn {
        file: "silero-vad.gguf",
        format: Format::Gguf,
        tensors: &[(4, 262_144), (4, 32_768), (6, 9_600), (1, 4)],
    },
    StandIn {
        file: "rapidocr-cls.onnx",
        format: Format::Onnx,
        tensors: &[(1, 160_000), (30, 13_824), (60, 64)],
    },
    StandIn {
        file: "rapidocr-det.onnx",
        format: Format::Onnx,
        tensors: &[(3, 589_824), (60, 49_152), (100, 128)],
    },
    StandIn {
        file: "rapidocr-rec.onnx",
        format: Format::Onnx,
        tensors: &[(1, 3_180_000), (2, 1_966_080), (60, 61_440), (100, 480)],
    },
    StandIn {
        file: "minilm.safetensors",
        format: Format::Safetensors,
        tensors: &[
            (1, 46_881_792),
            (12, 2_359_296),
            (1, 786_432),
            (25, 589_824),
            (6, 6_144),
            (1, 4_096),
            (1, 3_072),
            (57, 1_536),
        ],
    },
];

/// Writes the stand-ins into `folder`; the one to be fine-tuned comes last.
///
/// # Errors
///
/// When a file cannot be written.
pub(super) fn write(folder: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let mut files = Vec::with_capacity(STAND_INS.len());
    for (stand_in, seed) in STAND_INS.iter().zip(1..) {
        let path = folder.join(stand_in.file);
        generate::write(stand_in.format, &path, &sizes(stand_in.tensors), seed)
            .with_context(|| format!("generating {}", path.display()))?;
        files.push(path);
    }
    Ok(files)
}

fn sizes(runs: &[(usize, u64)]) -> Vec<u64> {
    runs.iter()
        .flat_map(|&(count, bytes)| std::iter::repeat_n(bytes, count))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::models::MODELS;
    use super::*;

    #[test]
    fn each_stand_in_is_as_large_as_its_model_within_five_percent() {
        for (stand_in, model) in STAND_INS.iter().zip(&MODELS) {
            let bytes: u64 = sizes(stand_in.tensors).iter().sum();
            let ratio = bytes * 100 / model.bytes;
            assert!((95..=105).contains(&ratio), "{}: {ratio} %", stand_in.file);
        }
    }

    #[test]
    fn the_stand_ins_cover_every_format() {
        for format in [Format::Safetensors, Format::Onnx, Format::Gguf] {
            assert!(
                STAND_INS.iter().any(|stand_in| stand_in.format == format),
                "{format:?}"
            );
        }
    }
}
