use std::fmt::Debug;

use vrampager_addr::Span;

use crate::{ChannelId, Counters, CpuMapId, HalError, MemId, TimelineId};

/// Fourth contract: giving back, layer by layer, what [`Memory`](crate::Memory) and
/// [`Queue`](crate::Queue) handed out.
///
/// # Guarantees
/// * Every method releases its own layer and no other (mission row A7).
/// * Releasing works on a lost device too.
/// * An error means that the driver would not take the thing back; it stays in the
///   [`counters`](Self::counters), and the caller sets it aside (mission row A6).
/// * The caller has made sure that no pending operation uses the thing.
pub trait Release: Send + Sync + Debug {
    /// Removes the GPU mappings inside `span`, which was mapped as a whole by one or several
    /// [`map_gpu`](crate::Memory::map_gpu). Later accesses fault.
    ///
    /// # Errors
    /// [`HalError::Driver`].
    fn unmap_gpu(&self, span: Span) -> Result<(), HalError>;

    /// Removes a CPU mapping. What the caller still does with a clone of the
    /// [`CpuMapping`](crate::CpuMapping) reaches memory that is no longer the object's.
    ///
    /// # Errors
    /// [`HalError::Driver`].
    fn unmap_cpu(&self, map: CpuMapId) -> Result<(), HalError>;

    /// Destroys an object without mappings. Its memory goes with the last object that shows it;
    /// memory that was imported is unpinned then, and stays its owner's.
    ///
    /// # Errors
    /// [`HalError::Driver`].
    fn destroy(&self, mem: MemId) -> Result<(), HalError>;

    /// Gives back exactly one range that [`reserve_va`](crate::Memory::reserve_va) reserved; it
    /// contains no mapping.
    ///
    /// # Errors
    /// [`HalError::Driver`].
    fn release_va(&self, span: Span) -> Result<(), HalError>;

    /// Destroys a channel, stopped or idle, and drops what it has not run yet. The one operation
    /// that it may be running is over when this returns.
    ///
    /// # Errors
    /// [`HalError::Driver`].
    fn destroy_channel(&self, channel: ChannelId) -> Result<(), HalError>;

    /// Destroys a timeline that no channel will signal any more.
    ///
    /// # Errors
    /// [`HalError::Driver`].
    fn destroy_timeline(&self, timeline: TimelineId) -> Result<(), HalError>;

    /// What is held at this moment.
    fn counters(&self) -> Counters;

    /// Closes the device and returns what was never released, all zero in a correct program. The
    /// back end then drops the remains itself. The other contracts answer
    /// [`HalError::DeviceLost`] from here on; a second close returns zeros.
    fn close(&self) -> Counters;
}
