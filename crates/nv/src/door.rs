//! The driver's front door: device nodes, whoever is behind them.

use std::fmt::Debug;
use std::mem::offset_of;

use rustix::io::Errno;
use vrampager_nv_abi::Node;
use vrampager_nv_abi::escape::{self, RmAllocMemory};

use crate::pages::Window;

/// An open file of the driver, by its descriptor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Fd(pub(crate) i32);

/// Memory that a packet points to. Its address goes to `at` in the packet, or in the part before
/// it for any but the first one.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub(crate) at: usize,
    pub(crate) bytes: &'a mut [u8],
}

impl<'a> Part<'a> {
    pub(crate) fn new(at: usize, bytes: &'a mut [u8]) -> Self {
        Self { at, bytes }
    }
}

/// Whether simulated GPUs have moved on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// They have; looking again at once is worth it.
    Moved,
    /// They have not, or are real and move by themselves.
    Unknown,
}

/// System calls on device nodes. What is on top of it is the same for both implementations: the
/// nodes of the machine and the simulated driver. Calls `..._once` are for the methods of the same
/// name without that, which make them again where that is safe.
pub(crate) trait Door: Send + Sync + Debug {
    /// Opens a node.
    fn open_once(&self, node: Node) -> Result<Fd, Errno>;

    /// Closes a file. Mappings of it stay.
    fn close(&self, fd: Fd);

    /// Sends a packet with what it points to. `Ok` proves nothing: the status is in the packet.
    fn ioctl_once(
        &self,
        fd: Fd,
        request: u32,
        packet: &mut [u8],
        parts: &mut [Part<'_>],
    ) -> Result<(), Errno>;

    /// Sends the packet that pins pages, with their address in it; once.
    fn pin(&self, fd: Fd, request: u32, packet: &mut [u8], pages: &Window) -> Result<(), Errno> {
        put_address(packet, offset_of!(RmAllocMemory, memory), pages.expose());
        self.ioctl_once(fd, request, packet, &mut [])
    }

    /// Maps what a file shows, all `len` bytes of it.
    fn mmap_once(&self, fd: Fd, len: u64) -> Result<Window, Errno>;

    /// Called after a token has been stored to a doorbell: simulated GPUs look, real ones hear the
    /// store itself.
    fn rung(&self) {}

    /// Lets simulated GPUs run for a moment, in the caller's time.
    fn run(&self) -> Progress;
}

/// Times that a call is made in all.
const TRIES: u32 = 64;

/// The calls as the back end makes them: again if they failed and have done nothing for certain, so
/// often at most, and without a pause, since whoever calls holds locks. Then the error is that of
/// the last try.
impl dyn Door + '_ {
    /// Opens a node. An open that fails has made no file.
    pub(crate) fn open(&self, node: Node) -> Result<Fd, Errno> {
        persist(&[Errno::INTR, Errno::AGAIN], || self.open_once(node))
    }

    /// Sends a packet with what it points to. Unified memory that is being suspended says `EAGAIN`
    /// before it looks at the packet (`uvm_ioctl` in `kernel-open/nvidia-uvm/uvm.c` of NVIDIA's
    /// open kernel modules). Of no other request that failed is it known that nothing was done.
    pub(crate) fn ioctl(
        &self,
        fd: Fd,
        request: u32,
        packet: &mut [u8],
        parts: &mut [Part<'_>],
    ) -> Result<(), Errno> {
        let passing: &[Errno] = match escape::split(request) {
            Some(_) => &[],
            None => &[Errno::AGAIN],
        };
        persist(passing, || {
            self.ioctl_once(fd, request, &mut *packet, &mut *parts)
        })
    }

    /// Maps what a file shows, all `len` bytes of it. A mapping that fails is none; `EAGAIN` is the
    /// limit of locked memory (`mmap(2)`), which stays.
    pub(crate) fn mmap(&self, fd: Fd, len: u64) -> Result<Window, Errno> {
        persist(&[Errno::INTR], || self.mmap_once(fd, len))
    }
}

/// Makes a system call until its error is none of the `passing` ones, or it has been made
/// [`TRIES`] times.
fn persist<T>(passing: &[Errno], mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..TRIES {
        match call() {
            Err(errno) if passing.contains(&errno) => std::thread::yield_now(),
            done => return done,
        }
    }
    call()
}

/// Writes a part's address where it belongs.
pub(crate) fn put_address(into: &mut [u8], at: usize, address: u64) {
    into[at..at + 8].copy_from_slice(&address.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_made_again_after_a_passing_error_and_so_often_at_most() {
        let made = |failing, errno| {
            let mut calls = 0;
            let result = persist(&[Errno::INTR], || {
                calls += 1;
                if calls > failing { Ok(()) } else { Err(errno) }
            });
            (calls, result)
        };
        assert_eq!(made(0, Errno::INTR), (1, Ok(())));
        assert_eq!(made(TRIES - 1, Errno::INTR), (TRIES, Ok(())));
        assert_eq!(made(TRIES, Errno::INTR), (TRIES, Err(Errno::INTR)));
        assert_eq!(made(1, Errno::AGAIN), (1, Err(Errno::AGAIN)));
    }
}
