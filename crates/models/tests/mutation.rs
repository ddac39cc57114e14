//! Whatever happens to a file's bytes, its reader neither panics nor returns a range outside it.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::path::Path;

use proptest::prelude::*;
use vrampager_models::{Format, Layout, generate};

fn valid(format: Format) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    generate::write(format, &path, &[64, 0, 5, 32], 7).unwrap();
    std::fs::read(&path).unwrap()
}

/// The promise of [`Layout::tensors`], checked the slow way.
fn check(bytes: &[u8]) {
    let Ok(layout) = Layout::of_bytes(Path::new("mutant"), bytes) else {
        return;
    };
    let len = bytes.len() as u64;
    for (index, tensor) in layout.tensors.iter().enumerate() {
        let end = tensor.offset.checked_add(tensor.len).unwrap();
        assert!(end <= len, "{tensor:?} ends outside {len} bytes");
        for other in &layout.tensors[..index] {
            assert_ne!(tensor.name, other.name);
            let apart = other.offset + other.len <= tensor.offset;
            assert!(
                apart || tensor.len == 0 || other.len == 0,
                "{tensor:?} overlaps {other:?}"
            );
        }
    }
}

fn formats() -> impl Strategy<Value = Format> {
    prop_oneof![
        Just(Format::Safetensors),
        Just(Format::Onnx),
        Just(Format::Gguf)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn changed_bytes_do_no_harm(
        format in formats(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        keep in any::<Option<prop::sample::Index>>(),
    ) {
        let mut bytes = valid(format);
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if let Some(keep) = keep {
            bytes.truncate(keep.index(bytes.len()));
        }
        check(&bytes);
    }

    #[test]
    fn a_shortened_or_doubled_part_does_no_harm(
        format in formats(),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        doubled in any::<bool>(),
    ) {
        let bytes = valid(format);
        let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
        let (from, to) = (from.min(to), from.max(to));
        let resume = if doubled { from } else { to };
        check(&[&bytes[..to.min(resume.max(from))], &bytes[resume..]].concat());
    }

    #[test]
    fn we_accept_exactly_the_safetensors_headers_that_the_safetensors_crate_accepts(
        begin in 0_usize..12, end in 0_usize..12, extent in 0_usize..4, file in 0_usize..12,
    ) {
        let header = format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},
                "b":{{"dtype":"U16","shape":[{extent}],"data_offsets":[{begin},{end}]}}}}"#
        );
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + file, 0);
        let ours = Layout::of_bytes(Path::new("a.safetensors"), &bytes).is_ok();
        let theirs = safetensors::SafeTensors::deserialize(&bytes).is_ok();
        prop_assert_eq!(ours, theirs);
    }
}

#[test]
fn every_truncation_of_every_format_is_refused_or_loses_no_tensor() {
    for format in [Format::Safetensors, Format::Onnx, Format::Gguf] {
        let bytes = valid(format);
        for len in 0..bytes.len() {
            let layout = Layout::of_bytes(Path::new("short"), &bytes[..len]);
            // Only the padding behind the last tensor of a GGUF file can be missed.
            let complete = layout.is_ok_and(|layout| layout.tensors.len() == 4);
            assert!(!complete || (format == Format::Gguf && bytes[len..].iter().all(|&b| b == 0)));
            check(&bytes[..len]);
        }
    }
}
