//! Which paths are ours, and what is there.
#![expect(unsafe_code, reason = "paths come as C strings")]

use std::ffi::{CStr, c_char, c_int, c_uint};

use rustix::io::Errno;
use vrampager_nv_abi::Node;
use vrampager_nv_server::wire::Request;

use crate::driver;

/// How to open a path, relative ones from a folder on, if it is ours: a device node, the driver's
/// release as the real driver shows it, or the simulated driver's counters.
///
/// # Errors
///
/// `ENOENT` for the node of a GPU that the machine does not have; `ENODEV` when nobody knows.
///
/// # Safety
///
/// `path` is null or a zero-terminated string.
pub(crate) unsafe fn special(dir: c_int, path: *const c_char) -> Result<Option<Request>, Errno> {
    if path.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and zero-terminated as the caller promises.
    let path = unsafe { CStr::from_ptr(path) };
    let Ok(path) = path.to_str() else {
        return Ok(None);
    };
    let Some(path) = absolute(dir, path) else {
        return Ok(None);
    };
    match &*path {
        "/proc/driver/vrampager/counters" => Ok(Some(Request::Counters)),
        "/proc/driver/nvidia/version" => Ok(Some(Request::Version)),
        path => Node::at(path).map(present).transpose(),
    }
}

/// A path from the root on, without what changes nothing: repeated slashes and `.`. Only for the
/// names of our files; links and `..` are for the kernel to follow.
fn absolute(dir: c_int, path: &str) -> Option<String> {
    let name = path.rsplit('/').next()?;
    if !name.starts_with("nvidia") && !["version", "counters"].contains(&name) {
        return None;
    }
    let whole = if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("{}/{path}", folder(dir)?)
    };
    let parts = whole.split('/').filter(|part| !["", "."].contains(part));
    Some(parts.fold(String::new(), |path, part| path + "/" + part))
}

/// Where a descriptor of a folder is, or the working folder.
fn folder(dir: c_int) -> Option<String> {
    let link = match dir {
        libc::AT_FDCWD => "/proc/self/cwd".to_owned(),
        dir => format!("/proc/self/fd/{dir}"),
    };
    let folder = rustix::fs::readlink(link, Vec::new()).ok()?;
    folder.into_string().ok()
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
