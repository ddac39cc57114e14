//! One open file of a device node.
//!
//! A call that a signal interrupts, or that the driver is too busy for, has done nothing yet and is
//! made again: so often, and then its error is that of the last try, `EINTR` or `EAGAIN`.
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
use std::thread;
use std::time::Duration;

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
        // The standard library would try for ever.
        let fd = persist(|| {
            // SAFETY: the path ends with a zero.
            let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
            (fd >= 0).then_some(fd).ok_or_else(errno)
        })?;
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
        persist(|| {
            // SAFETY: the packet stays borrowed for the call; the caller vouches for its content.
            let done = unsafe { libc::ioctl(self.0.as_raw_fd(), request.into(), argument) };
            (done >= 0).then_some(()).ok_or_else(errno)
        })
    }

    /// Maps what the file shows, readable, writable and shared; whoever asks unmaps it.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn map(&self, len: usize, offset: u64) -> Result<NonNull<u8>, Errno> {
        let offset = libc::off_t::try_from(offset).map_err(|_| Errno::INVAL)?;
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, self.0.as_raw_fd());
        let at = persist(|| {
            let anywhere = ptr::null_mut();
            // SAFETY: a new mapping where the kernel chooses replaces nothing.
            let at = unsafe { libc::mmap(anywhere, len, access, libc::MAP_SHARED, fd, offset) };
            (at != libc::MAP_FAILED).then_some(at).ok_or_else(errno)
        })?;
        NonNull::new(at.cast()).ok_or(Errno::NOMEM)
    }
}

impl AsRawFd for NodeFile {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Times that a call is made in all.
const TRIES: u32 = 64;
/// How long a busy driver is left alone between two of them.
const PAUSE: Duration = Duration::from_millis(1);

/// Makes a system call until it is neither interrupted nor put off, or has been [`TRIES`] times.
fn persist<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..TRIES {
        match call() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => thread::sleep(PAUSE),
            done => return done,
        }
    }
    call()
}

/// Why the last system call failed.
fn errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).expect("it has a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_made_again_while_it_is_interrupted_or_put_off_and_so_often_at_most() {
        for again in [Errno::INTR, Errno::AGAIN] {
            for (failing, made, result) in [
                (0, 1, Ok(())),
                (TRIES - 1, TRIES, Ok(())),
                (TRIES, TRIES, Err(again)),
                (u32::MAX, TRIES, Err(again)),
            ] {
                let mut calls = 0;
                let persisted = persist(|| {
                    calls += 1;
                    if calls > failing { Ok(()) } else { Err(again) }
                });
                assert_eq!((calls, persisted), (made, result), "{failing} {again:?}");
            }
        }
        let mut calls = 0;
        let refused: Result<(), _> = persist(|| {
            calls += 1;
            Err(Errno::IO)
        });
        assert_eq!((calls, refused), (1, Err(Errno::IO)));
    }

    #[test]
    fn a_machine_without_the_driver_is_an_error_of_the_system_call() {
        match NodeFile::open(Node::Gpu(250)) {
            Err(errno) => assert!(matches!(errno, Errno::NOENT | Errno::ACCESS | Errno::NXIO)),
            Ok(_) => panic!("there is no GPU of that number"),
        }
    }
}
