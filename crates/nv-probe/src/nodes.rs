//! System calls on device nodes, whoever is behind them.
//!
//! The back end `nv` has such a layer too, which cannot say what is said here: its packets point
//! to memory that is borrowed for the call, while half of the bad inputs are addresses.

use std::fmt;

use vrampager_nv_abi::{Node, Status};
use vrampager_nv_driver::{Errno, Live};

/// What a driver says to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// In the packet; the system call itself succeeds.
    Status(Status),
    /// The system call's own error, by number.
    Errno(i32),
}

impl Answer {
    /// A packet's status as a result.
    pub(crate) fn check(code: u32) -> Result<(), Self> {
        match Status(code) {
            Status::OK => Ok(()),
            status => Err(Self::Status(status)),
        }
    }
}

impl From<Errno> for Answer {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno.number())
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{status}"),
            Self::Errno(number) => match Errno::numbered(*number) {
                Some(errno) => write!(f, "{errno}"),
                None => write!(f, "{}", std::io::Error::from_raw_os_error(*number)),
            },
        }
    }
}

/// Bytes of the memory that a [`Nodes`] has for its caller: parameters, then pages to pin.
pub const MEMORY_BYTES: usize = PAGES + (1 << 20);
/// Where pages to be pinned start in that memory.
pub(crate) const PAGES: usize = 64 << 10;
/// An address that is not mapped in any process.
pub const NOWHERE: u64 = 0x10;

/// A process's view of a driver: its nodes, and the memory that packets point to.
pub trait Nodes {
    /// Opens a node and gives its descriptor.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    fn open(&mut self, node: Node) -> Result<i32, Answer>;

    /// Closes a descriptor that [`Nodes::open`] gave; mappings of it go too.
    fn close(&mut self, fd: i32);

    /// Sends a packet. `Ok` proves nothing: the status is in the packet.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    fn ioctl(&mut self, fd: i32, request: u32, packet: &mut [u8]) -> Result<(), Answer>;

    /// Maps a file, and unmaps it at once.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    fn mmap(&mut self, fd: i32, len: u64, offset: u64) -> Result<(), Answer>;

    /// Memory of the caller, [`MEMORY_BYTES`] long, that packets may point to.
    fn memory(&mut self) -> &mut [u8];

    /// Address of that memory, a multiple of 4 KiB.
    fn address(&self) -> u64;

    /// What is alive in the driver, if it tells.
    fn live(&self) -> Option<Live>;
}

impl<T: Nodes + ?Sized> Nodes for &mut T {
    fn open(&mut self, node: Node) -> Result<i32, Answer> {
        (**self).open(node)
    }

    fn close(&mut self, fd: i32) {
        (**self).close(fd);
    }

    fn ioctl(&mut self, fd: i32, request: u32, packet: &mut [u8]) -> Result<(), Answer> {
        (**self).ioctl(fd, request, packet)
    }

    fn mmap(&mut self, fd: i32, len: u64, offset: u64) -> Result<(), Answer> {
        (**self).mmap(fd, len, offset)
    }

    fn memory(&mut self) -> &mut [u8] {
        (**self).memory()
    }

    fn address(&self) -> u64 {
        (**self).address()
    }

    fn live(&self) -> Option<Live> {
        (**self).live()
    }
}
