//! What holds for every layout, however hostile the file.

use std::collections::BTreeSet;
use std::path::Path;

use vrampager_models::Layout;

/// Panics if a layout that was accepted breaks its promise. The name decides the format of bytes
/// that could be any.
pub fn check(name: &str, bytes: &[u8]) {
    let Ok(layout) = Layout::of_bytes(Path::new(name), bytes) else {
        return;
    };
    let mut names = BTreeSet::new();
    let mut end = 0;
    for tensor in &layout.tensors {
        assert!(names.insert(&tensor.name), "{} twice", tensor.name);
        assert!(tensor.offset.checked_add(tensor.len).unwrap() <= bytes.len() as u64);
        if tensor.len > 0 {
            assert!(tensor.offset >= end, "{} overlaps", tensor.name);
            end = tensor.offset + tensor.len;
        }
    }
}
