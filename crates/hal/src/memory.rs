use std::fmt;
use std::fmt::Debug;

use vrampager_addr::{Span, Va};

use crate::{CpuMapping, DeviceId, HalError, HostRange};

/// A physical object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MemId(pub u64);

/// A CPU mapping of a part of an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CpuMapId(pub u64);

/// Where a physical object lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Heap {
    /// Device memory. The CPU reaches it through the aperture only.
    Vram,
    /// Host memory that the device can reach once it is mapped there.
    Host,
}

impl fmt::Display for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vram => "VRAM",
            Self::Host => "host",
        })
    }
}

/// Direction of an access, or what a mapping permits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Access {
    /// Reads only.
    Read,
    /// Reads and writes.
    Write,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// A GPU mapping to be made: `len` bytes of `mem` from `offset` on appear at `va`.
///
/// All three quantities are multiples of [`vrampager_addr::PAGE_SIZE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuMap {
    /// First GPU address, inside one reserved range.
    pub va: Va,
    /// The object.
    pub mem: MemId,
    /// First byte of the object.
    pub offset: u64,
    /// Bytes; not zero.
    pub len: u64,
    /// What the device may do there.
    pub access: Access,
}

/// Second contract: address ranges, physical objects and mappings, as four separate steps that
/// can be staged and undone one by one (mission row A6).
///
/// Each method has its counterpart in [`Release`](crate::Release). A failed call changes nothing.
pub trait Memory: Send + Sync + Debug {
    /// Reserves GPU addresses. Nothing is mapped there yet. The span is page-aligned, not empty,
    /// and overlaps no other range that this device has reserved. It lies in one zone of the
    /// device; for foreign memory it may be exactly a range that another device of the discovery
    /// has reserved in a zone of its own, or the addresses of imported memory in no zone at all,
    /// so that one address means the same bytes to all.
    ///
    /// # Errors
    /// [`HalError::Driver`] when the driver refuses, [`HalError::Unsupported`] for host addresses
    /// that mean something else to the device, [`HalError::DeviceLost`].
    fn reserve_va(&self, span: Span) -> Result<(), HalError>;

    /// Makes a physical object of `size` bytes, a non-zero multiple of the page size. Host
    /// objects read as zeros; the content of VRAM objects is whatever was there before.
    ///
    /// # Errors
    /// [`HalError::OutOfMemory`] with the heap's numbers, [`HalError::DeviceLost`].
    fn create(&self, heap: Heap, size: u64) -> Result<MemId, HalError>;

    /// Makes an object of host memory that belongs to somebody else (mission rows A8, A9). The
    /// device sees the very bytes. They stay pinned, and the range with its owner is kept, until
    /// the object is destroyed, which frees none of them. Devices of one discovery that import the
    /// same memory pin it once.
    ///
    /// # Errors
    /// [`HalError::Unsupported`] unless a back end says otherwise, [`HalError::Driver`] when the
    /// pages cannot be pinned, [`HalError::OutOfMemory`], [`HalError::DeviceLost`].
    fn import(&self, _host: &HostRange) -> Result<MemId, HalError> {
        Err(HalError::Unsupported("importing host memory"))
    }

    /// Makes an object that shows an object of another device of the same discovery
    /// (mission row A8). Its memory goes with the last object that shows it. When the device that
    /// owns it is closed, its content is lost and accesses may fault.
    ///
    /// # Errors
    /// [`HalError::Unsupported`] unless a back end says otherwise, and for devices that cannot
    /// reach one another; [`HalError::NoDevice`] when the owner is not open;
    /// [`HalError::DeviceLost`].
    fn share(&self, _from: DeviceId, _mem: MemId) -> Result<MemId, HalError> {
        Err(HalError::Unsupported("sharing memory with another device"))
    }

    /// Maps part of an object for the CPU. The range is page-aligned and not empty.
    ///
    /// # Errors
    /// [`HalError::Unsupported`] for a share of another device's VRAM: its owner maps it.
    /// [`HalError::OutOfAperture`] when a VRAM object asks for more than the aperture has left,
    /// [`HalError::OutOfMemory`] when the host has no addresses, [`HalError::DeviceLost`].
    fn map_cpu(&self, mem: MemId, offset: u64, len: u64) -> Result<CpuMapping, HalError>;

    /// Maps part of an object for the GPU. The target range is reserved and unmapped.
    ///
    /// # Errors
    /// [`HalError::OutOfMemory`] when page tables cannot grow, [`HalError::NoDevice`] when the
    /// owner of a share has been closed, [`HalError::DeviceLost`].
    fn map_gpu(&self, map: GpuMap) -> Result<(), HalError>;
}
