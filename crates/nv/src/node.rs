//! One open file of a device node.
//!
//! Each call is made once, whatever comes of it.
//!
//! The calls go through the C library, unlike all others of this crate: that is where a preload
//! library, such as the one of `vrampager-nv-shim`, stands in for a driver. A program that makes
//! system calls itself passes it by.
#![expect(
    unsafe_code,
    reason = "calls of the C library take raw pointers and give raw descriptors"
)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use vrampager_nv_abi::Node;

/// An open file of `/dev/nvidiactl`, `/dev/nvidiaN` or `/dev/nvidia-uvm`, closed on drop.
#[derive(Debug)]
pub struct NodeFile(OwnedFd);

impl NodeFile {
    /// Opens a node of the machine, for reading and writing and not for children.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn open(node: Node) -> Result<Self, Errno> {
        let path = CString::new(node.path()).expect("no zero is in it");
        // Not that of the standard library, which would try for ever when it is interrupted.
        // SAFETY: the path ends with a zero.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        let fd = (fd >= 0).then_some(fd).ok_or_else(last_error)?;
        // SAFETY: it was opened just now, and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a packet. `Ok` proves nothing: the status is in the packet.
    ///
    /// # Errors
    /// The error of the system call.
    ///
    /// # Safety
    /// The packet is as long as the request is for this kind of node, and each address in it is
    /// of memory that the driver may use as the request does, or of nothing at all.
    pub unsafe fn ioctl(&self, request: u32, packet: &mut [u8]) -> Result<(), Errno> {
        let argument = packet.as_mut_ptr();
        // SAFETY: the packet stays borrowed for the call; the caller vouches for its content.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), request.into(), argument) };
        (done >= 0).then_some(()).ok_or_else(last_error)
    }

    /// Maps what the file shows, readable, writable and shared; whoever asks unmaps it.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn map(&self, len: usize, offset: u64) -> Result<NonNull<u8>, Errno> {
        let offset = libc::off_t::try_from(offset).map_err(|_| Errno::INVAL)?;
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, self.0.as_raw_fd());
        let anywhere = ptr::null_mut();
        // SAFETY: a new mapping where the kernel chooses replaces nothing.
        let at = unsafe { libc::mmap(anywhere, len, access, libc::MAP_SHARED, fd, offset) };
        let at = (at != libc::MAP_FAILED)
            .then_some(at)
            .ok_or_else(last_error)?;
        NonNull::new(at.cast()).ok_or(Errno::NOMEM)
    }
}

impl AsRawFd for NodeFile {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Why the last system call failed.
fn last_error() -> Errno {
    of(&io::Error::last_os_error())
}

/// The number of an error. A preload library may fail without giving a valid one.
fn of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_a_number_is_one_of_input_and_output() {
        for number in [0, -1, i32::MIN, i32::MAX] {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(of(&error), Errno::IO, "{number}");
        }
        let error = io::Error::from_raw_os_error(4);
        assert_eq!(of(&error), Errno::INTR);
    }

    #[test]
    fn a_machine_without_the_driver_is_an_error_of_the_system_call() {
        match NodeFile::open(Node::Gpu(250)) {
            Err(errno) => assert!(matches!(errno, Errno::NOENT | Errno::ACCESS | Errno::NXIO)),
            Ok(_) => panic!("there is no GPU of that number"),
        }
    }
}
