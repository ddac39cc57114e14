//! What is written is found again, byte for byte, and the file underneath is watched.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use vrampager_models::{Format, Layout, ModelError, ModelFile, StampField, generate};

const FORMATS: [Format; 3] = [Format::Safetensors, Format::Onnx, Format::Gguf];
/// Empty, a single byte, an odd size, a float, and more than one internal buffer.
const SIZES: [u64; 6] = [0, 1, 4096, 33, 4, 200_000];

fn payload(seed: u64, index: u64, len: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    generate::payload(seed, index)
        .take(len)
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}

fn generated(folder: &tempfile::TempDir, format: Format) -> PathBuf {
    // No extension: the format is found by content.
    let path = folder.path().join("model");
    generate::write(format, &path, &SIZES, 7).unwrap();
    path
}

fn bytes_of(model: &ModelFile, index: usize) -> Vec<u8> {
    let tensor = &model.tensors()[index];
    let mut bytes = vec![0; usize::try_from(tensor.len).unwrap()];
    model
        .file()
        .read_exact_at(&mut bytes, tensor.offset)
        .unwrap();
    bytes
}

#[test]
fn every_format_is_found_by_content_and_its_ranges_hold_what_was_written() {
    for format in FORMATS {
        let folder = tempfile::tempdir().unwrap();
        let model = ModelFile::open(&generated(&folder, format)).unwrap();
        assert_eq!(model.format(), format);
        assert_eq!(model.tensors().len(), SIZES.len());
        for (tensor, index) in model.tensors().iter().zip(0..) {
            assert_eq!(tensor.name, format!("tensor.{index}"));
            assert_eq!(tensor.len, SIZES[index]);
            let seen = bytes_of(&model, index);
            assert_eq!(
                seen,
                payload(7, index as u64, tensor.len),
                "{format:?} {index}"
            );
        }
        assert_eq!(model.tensor_bytes(), SIZES.iter().sum::<u64>());
    }
}

#[test]
fn a_model_in_memory_has_the_layout_of_its_file() {
    for format in FORMATS {
        let folder = tempfile::tempdir().unwrap();
        let path = generated(&folder, format);
        let layout = Layout::of_bytes(&path, &fs::read(&path).unwrap()).unwrap();
        assert_eq!(layout.tensors, ModelFile::open(&path).unwrap().tensors());
    }
}

#[test]
fn a_model_without_tensors_is_legal() {
    for format in FORMATS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        generate::write(format, &path, &[], 7).unwrap();
        assert_eq!(ModelFile::open(&path).unwrap().tensors(), []);
    }
}

#[test]
fn the_safetensors_crate_sees_the_same_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let path = generated(&folder, Format::Safetensors);
    let bytes = fs::read(&path).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ours = ModelFile::open(&path).unwrap();
    for (index, tensor) in ours.tensors().iter().enumerate() {
        assert_eq!(
            theirs.tensor(&tensor.name).unwrap().data(),
            bytes_of(&ours, index)
        );
    }
}

#[test]
fn equal_seeds_write_equal_files_and_other_seeds_other_payloads() {
    let folder = tempfile::tempdir().unwrap();
    let write = |seed| {
        let path = folder.path().join("model");
        generate::write(Format::Gguf, &path, &[64], seed).unwrap();
        fs::read(&path).unwrap()
    };
    assert_eq!(write(1), write(1));
    assert_ne!(write(1), write(2));
}

#[test]
fn generated_floats_are_finite() {
    for float in payload(1, 0, 40_000).chunks_exact(4) {
        assert!(f32::from_le_bytes(float.try_into().unwrap()).is_finite());
    }
}

#[test]
fn a_fine_tune_keeps_the_header_and_changes_each_float_a_little() {
    let folder = tempfile::tempdir().unwrap();
    let base = generated(&folder, Format::Safetensors);
    let tuned = folder.path().join("tuned");
    generate::fine_tune(&base, &tuned, 1).unwrap();

    let base = ModelFile::open(&base).unwrap();
    let tuned = ModelFile::open(&tuned).unwrap();
    assert_eq!(base.tensors(), tuned.tensors());
    for (index, tensor) in base.tensors().iter().enumerate() {
        let (old, new) = (bytes_of(&base, index), bytes_of(&tuned, index));
        if tensor.dtype == "U8" {
            assert_eq!(old, new);
            continue;
        }
        for (old, new) in old.chunks_exact(4).zip(new.chunks_exact(4)) {
            let old = u32::from_le_bytes(old.try_into().unwrap());
            let new = u32::from_le_bytes(new.try_into().unwrap());
            assert_ne!(old, new);
            assert_eq!(old >> 8, new >> 8);
        }
    }
}

#[test]
fn fine_tunes_are_a_function_of_the_seed() {
    let folder = tempfile::tempdir().unwrap();
    let base = generated(&folder, Format::Safetensors);
    let tune = |seed| {
        let path = folder.path().join("tuned");
        generate::fine_tune(&base, &path, seed).unwrap();
        fs::read(&path).unwrap()
    };
    assert_eq!(tune(1), tune(1));
    assert_ne!(tune(1), tune(2));
}

#[test]
fn a_file_may_be_fine_tuned_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = generated(&folder, Format::Safetensors);
    let before = fs::read(&path).unwrap();
    generate::fine_tune(&path, &path, 1).unwrap();
    assert_ne!(fs::read(&path).unwrap(), before);
    assert_eq!(ModelFile::open(&path).unwrap().tensors().len(), SIZES.len());
}

#[test]
fn only_safetensors_files_are_fine_tuned_and_a_failure_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let base = generated(&folder, Format::Gguf);
    let refused = generate::fine_tune(&base, &folder.path().join("tuned"), 1);
    assert!(matches!(refused, Err(ModelError::Malformed { .. })));
    let missing = folder.path().join("no/such/folder");
    assert!(matches!(
        generate::write(Format::Onnx, &missing, &[1], 1),
        Err(ModelError::Io { .. })
    ));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

fn changed(error: Result<(), ModelError>) -> StampField {
    match error {
        Err(ModelError::Changed { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_grew_underneath_is_reported_with_both_lengths() {
    let folder = tempfile::tempdir().unwrap();
    let path = generated(&folder, Format::Gguf);
    let model = ModelFile::open(&path).unwrap();
    model.check().unwrap();
    OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(1_000_000)
        .unwrap();
    let error = model.check().unwrap_err();
    let expected = format!("length was {}, is 1000000", model.stamp().len);
    assert!(error.to_string().contains(&expected), "{error}");
}

#[test]
fn a_file_written_in_place_is_reported_by_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = generated(&folder, Format::Gguf);
    let model = ModelFile::open(&path).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(1);
    OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(later)
        .unwrap();
    assert_eq!(changed(model.check()), StampField::Mtime);
}

#[test]
fn a_file_replaced_by_another_is_reported_by_its_inode() {
    let folder = tempfile::tempdir().unwrap();
    let path = generated(&folder, Format::Gguf);
    let model = ModelFile::open(&path).unwrap();
    let other = folder.path().join("other");
    fs::copy(&path, &other).unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!(changed(model.check()), StampField::Inode);
}

#[test]
fn a_file_that_vanished_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = generated(&folder, Format::Gguf);
    let model = ModelFile::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(matches!(model.check(), Err(ModelError::Io { .. })));
}

#[test]
fn a_link_to_a_file_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = generated(&folder, Format::Gguf);
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    ModelFile::open(&link).unwrap().check().unwrap();
}

fn not_regular(path: &Path) -> &'static str {
    match ModelFile::open(path) {
        Err(ModelError::NotRegular { found, .. }) => found,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_not_a_regular_file_is_refused_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(not_regular(folder.path()), "directory");
    assert_eq!(not_regular(Path::new("/dev/zero")), "device");
    // Opening a pipe without a writer would wait for one.
    let pipe = folder.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from(0o600), 0).unwrap();
    assert_eq!(not_regular(&pipe), "pipe");
}

#[test]
fn what_cannot_be_opened_is_an_io_error() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    assert!(matches!(
        ModelFile::open(&socket),
        Err(ModelError::Io { .. })
    ));
    let missing = folder.path().join("missing");
    assert!(matches!(
        ModelFile::open(&missing),
        Err(ModelError::Io { .. })
    ));
}
