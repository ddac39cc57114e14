use std::fmt::Debug;
use std::sync::Arc;

use vrampager_addr::Span;

use crate::{HalError, Memory, Queue, Release};

/// Position of a device in its [`Discovery`], counted from 0 after any visible-device filter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceId(pub u32);

/// A part of the GPU's virtual address space that the caller may carve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VaZone {
    /// For reports, such as `low` for addresses below 2^40.
    pub name: &'static str,
    /// Page-aligned addresses; zones of one device do not overlap, and none contains address 0.
    pub span: Span,
}

/// What a device is, constant while it is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Position in its [`Discovery`].
    pub id: DeviceId,
    /// Marketing name or simulated configuration.
    pub name: String,
    /// Device memory that objects can be made of, in bytes.
    pub vram_bytes: u64,
    /// CPU-visible aperture onto device memory (BAR), in bytes; may be smaller than VRAM.
    pub aperture_bytes: u64,
    /// Address zones, lowest first, at least one. Those of different devices of one discovery do
    /// not overlap, so an address has one meaning for all of them.
    pub zones: Vec<VaZone>,
    /// What else there is to know of it, as name and value: for reports (mission row A4).
    pub properties: Vec<(&'static str, String)>,
    /// What its back end can use and the device lacks. Opening it may fail for this.
    pub unsupported: Vec<&'static str>,
}

/// First contract: finding devices and opening them.
///
/// # Guarantees
/// * [`devices`](Self::devices) has no side effect that a second call could see.
/// * An [`open`](Self::open) that fails leaves nothing behind and may be retried (mission row A3).
/// * A device is opened at most once at a time; a second open is [`HalError::Busy`] until the
///   first has been closed.
pub trait Discovery: Send + Sync + Debug {
    /// All visible devices, in [`DeviceId`] order.
    ///
    /// # Errors
    /// [`HalError::Driver`] when the control node answers with a failure.
    fn devices(&self) -> Result<Vec<DeviceInfo>, HalError>;

    /// Bytes of a device's memory that nobody has taken at this moment, whoever else uses it and
    /// whether it is open here or not: what a new object can have at most. What is too small a
    /// piece for the device's large pages may be left out.
    ///
    /// # Errors
    /// [`HalError::NoDevice`] for an id that [`devices`](Self::devices) does not list,
    /// [`HalError::Driver`] when the driver does not say.
    fn free_vram(&self, device: DeviceId) -> Result<u64, HalError>;

    /// Opens one device.
    ///
    /// # Errors
    /// [`HalError::NoDevice`] for an id that [`devices`](Self::devices) does not list,
    /// [`HalError::Busy`] while it is open, otherwise what bring-up met.
    fn open(&self, device: DeviceId) -> Result<Gpu, HalError>;
}

/// An open device: its three remaining contracts side by side.
///
/// The parts are independent so that each can be accepted, wrapped or refused on its own. Clones
/// share the device. Closing is explicit: [`Release::close`].
#[derive(Clone, Debug)]
pub struct Gpu {
    /// Constants of the device.
    pub info: DeviceInfo,
    /// Objects and mappings.
    pub memory: Arc<dyn Memory>,
    /// Channels and timelines.
    pub queue: Arc<dyn Queue>,
    /// The way back for everything the other two hand out.
    pub release: Arc<dyn Release>,
}
