//! Which paths are ours, and what is there.
#![expect(unsafe_code, reason = "paths come as C strings")]

use std::ffi::{CStr, c_char, c_uint};

use rustix::io::Errno;
use vrampager_nv_abi::Node;
use vrampager_nv_server::wire::Request;

use crate::driver;

/// How to open a path, if it is ours: a device node, the driver's release as the real driver shows
/// it, or the simulated driver's counters.
///
/// # Errors
///
/// `ENOENT` for the node of a GPU that the machine does not have; `ENODEV` when nobody knows.
///
/// # Safety
///
/// `path` is null or a zero-terminated string.
pub(crate) unsafe fn special(path: *const c_char) -> Result<Option<Request>, Errno> {
    if path.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and zero-terminated as the caller promises.
    let path = unsafe { CStr::from_ptr(path) };
    let Ok(path) = path.to_str() else {
        return Ok(None);
    };
    match path {
        "/proc/driver/vrampager/counters" => Ok(Some(Request::Counters)),
        "/proc/driver/nvidia/version" => Ok(Some(Request::Version)),
        path => Node::at(path).map(present).transpose(),
    }
}

/// The request for a node, if it is there.
fn present(node: Node) -> Result<Request, Errno> {
    if let Node::Gpu(minor) = node
        && minor as u64 >= driver::ask(Request::Gpus, true)?.number
    {
        return Err(Errno::NOENT);
    }
    Ok(Request::Open(node))
}

/// Major and minor number of a node that is there.
pub(crate) fn numbers(node: Node) -> (c_uint, c_uint) {
    /// The one of `Documentation/admin-guide/devices.txt` of Linux.
    const NVIDIA: c_uint = 195;
    /// The first that Linux gives to drivers that have none of their own.
    const DYNAMIC: c_uint = 511;
    match node {
        Node::Control => (NVIDIA, 255),
        Node::Gpu(minor) => (NVIDIA, minor.try_into().expect("at most 32 GPUs")),
        Node::Uvm => (DYNAMIC, 0),
    }
}
