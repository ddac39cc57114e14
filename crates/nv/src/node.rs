//! One open file of a device node.
//!
//! The calls go through the C library, unlike all others of this crate: that is where a preload
//! library, such as the one of `vrampager-nv-shim`, stands in for a driver. A program that makes
//! system calls itself passes it by.
#![expect(
    unsafe_code,
    reason = "ioctl and mmap of the C library take raw pointers"
)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use vrampager_nv_driver::Node;

/// An open file of `/dev/nvidiactl`, `/dev/nvidiaN` or `/dev/nvidia-uvm`, closed on drop.
#[derive(Debug)]
pub struct NodeFile(File);

impl NodeFile {
    /// Opens a node of the machine, for reading and writing and not for children.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn open(node: Node) -> Result<Self, Errno> {
        let path = match node {
            Node::Control => "/dev/nvidiactl".to_owned(),
            Node::Gpu(minor) => format!("/dev/nvidia{minor}"),
            Node::Uvm => "/dev/nvidia-uvm".to_owned(),
        };
        let opened = File::options().read(true).write(true).open(path);
        opened.map(Self).map_err(|error| errno(&error))
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
        if done < 0 {
            return Err(errno(&io::Error::last_os_error()));
        }
        Ok(())
    }

    /// Maps what the file shows, readable, writable and shared; whoever asks unmaps it.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn map(&self, len: usize, offset: u64) -> Result<NonNull<u8>, Errno> {
        let offset = libc::off_t::try_from(offset).map_err(|_| Errno::INVAL)?;
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, self.0.as_raw_fd());
        // SAFETY: a new mapping where the kernel chooses replaces nothing.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, fd, offset) };
        if at == libc::MAP_FAILED {
            return Err(errno(&io::Error::last_os_error()));
        }
        NonNull::new(at.cast()).ok_or(Errno::NOMEM)
    }
}

impl AsRawFd for NodeFile {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A system call's error by number; errors that the standard library makes up have none.
fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_driver_is_an_error_of_the_system_call() {
        match NodeFile::open(Node::Gpu(250)) {
            Err(errno) => assert!(matches!(errno, Errno::NOENT | Errno::ACCESS | Errno::NXIO)),
            Ok(_) => panic!("there is no GPU of that number"),
        }
    }
}
