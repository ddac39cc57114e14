//! Which paths are ours.
#![expect(unsafe_code, reason = "paths come as C strings")]

use std::ffi::{CStr, c_char};

use vrampager_nv_driver::Node;

/// Something this library has behind a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Special {
    /// A device node.
    Node(Node),
    /// The simulated driver's counters.
    Counters,
    /// The driver's release, as the real driver shows it.
    Version,
}

/// What is behind a path, if it is ours.
///
/// # Safety
///
/// `path` is null or a zero-terminated string.
pub(crate) unsafe fn special(path: *const c_char) -> Option<Special> {
    if path.is_null() {
        return None;
    }
    // SAFETY: not null, and zero-terminated as the caller promises.
    let path = unsafe { CStr::from_ptr(path) };
    match path.to_str().ok()? {
        "/proc/driver/vrampager/counters" => Some(Special::Counters),
        "/proc/driver/nvidia/version" => Some(Special::Version),
        path => Node::at(path).map(Special::Node),
    }
}
