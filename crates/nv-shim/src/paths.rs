//! Which paths are ours.
#![expect(unsafe_code, reason = "paths come as C strings")]

use std::ffi::{CStr, c_char};

use vrampager_nv_abi::Node;
use vrampager_nv_server::wire::Request;

/// How to open a path, if it is ours: a device node, the driver's release as the real driver shows
/// it, or the simulated driver's counters.
///
/// # Safety
///
/// `path` is null or a zero-terminated string.
pub(crate) unsafe fn special(path: *const c_char) -> Option<Request> {
    if path.is_null() {
        return None;
    }
    // SAFETY: not null, and zero-terminated as the caller promises.
    let path = unsafe { CStr::from_ptr(path) };
    match path.to_str().ok()? {
        "/proc/driver/vrampager/counters" => Some(Request::Counters),
        "/proc/driver/nvidia/version" => Some(Request::Version),
        path => Node::at(path).map(Request::Open),
    }
}
