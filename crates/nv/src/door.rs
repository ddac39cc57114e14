//! The driver's front door: device nodes, whoever is behind them.

use std::fmt::Debug;
use std::mem::offset_of;

use rustix::io::Errno;
use vrampager_nv_abi::Node;
use vrampager_nv_abi::escape::RmAllocMemory;

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
/// nodes of the machine and the simulated driver.
pub(crate) trait Door: Send + Sync + Debug {
    /// Opens a node.
    fn open(&self, node: Node) -> Result<Fd, Errno>;

    /// Closes a file. Mappings of it stay.
    fn close(&self, fd: Fd);

    /// Sends a packet with what it points to. `Ok` proves nothing: the status is in the packet.
    fn ioctl(
        &self,
        fd: Fd,
        request: u32,
        packet: &mut [u8],
        parts: &mut [Part<'_>],
    ) -> Result<(), Errno>;

    /// Sends the packet that pins pages, with their address in it.
    fn pin(&self, fd: Fd, request: u32, packet: &mut [u8], pages: &Window) -> Result<(), Errno> {
        put_address(packet, offset_of!(RmAllocMemory, memory), pages.expose());
        self.ioctl(fd, request, packet, &mut [])
    }

    /// Maps what a file shows, all `len` bytes of it.
    fn mmap(&self, fd: Fd, len: u64) -> Result<Window, Errno>;

    /// Called after a token has been stored to a doorbell: simulated GPUs look, real ones hear the
    /// store itself.
    fn rung(&self) {}

    /// Lets simulated GPUs run for a moment, in the caller's time.
    fn run(&self) -> Progress;
}

/// Writes a part's address where it belongs.
pub(crate) fn put_address(into: &mut [u8], at: usize, address: u64) {
    into[at..at + 8].copy_from_slice(&address.to_le_bytes());
}
