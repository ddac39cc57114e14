use std::fmt::Debug;
use std::time::Duration;

use vrampager_addr::Va;

use crate::{Fault, HalError};

/// A channel: operations of one run in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChannelId(pub u32);

/// A monotonic 64-bit counter in memory that channels signal and wait for. It starts at 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TimelineId(pub u32);

/// A point on a timeline: reached once the timeline's value is at least `value`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fence {
    /// The timeline.
    pub timeline: TimelineId,
    /// The value to reach.
    pub value: u64,
}

/// The engine behind a channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ChannelKind {
    /// Copy engine: all of [`Op`].
    Copy,
    /// Compute engine: all of [`Op`].
    Compute,
}

/// One operation of a submission. Addresses are the device's virtual addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Hold the channel until the fence is reached.
    Wait(Fence),
    /// Copy `len` bytes; the ranges do not overlap.
    Copy {
        /// Read from here.
        src: Va,
        /// Write to here.
        dst: Va,
        /// Bytes.
        len: u64,
    },
    /// Write one byte value over a range.
    Fill {
        /// First address.
        dst: Va,
        /// Bytes.
        len: u64,
        /// The value.
        byte: u8,
    },
    /// Raise the timeline to the fence's value, after everything before it has become visible.
    Signal(Fence),
}

/// Third contract: submitting work, ordering it, hearing of faults.
///
/// # Guarantees
/// * Operations of one channel run one after the other in submission order; a [`Op::Signal`] is
///   seen only after all bytes of the operations before it.
/// * An access that the page tables do not permit is a [`Fault`]: it stops its channel *at that
///   operation*. Operations in front of it are complete, operations behind it have not run. The
///   rest of the device and the host go on.
/// * Page tables are read when an operation runs, not when it is submitted.
pub trait Queue: Send + Sync + Debug {
    /// Makes a timeline at value 0.
    ///
    /// # Errors
    /// [`HalError::OutOfMemory`], [`HalError::DeviceLost`].
    fn create_timeline(&self) -> Result<TimelineId, HalError>;

    /// Makes a channel.
    ///
    /// # Errors
    /// [`HalError::OutOfMemory`], [`HalError::DeviceLost`].
    fn create_channel(&self, kind: ChannelKind) -> Result<ChannelId, HalError>;

    /// Appends operations to a channel: all of them, or on error none.
    ///
    /// # Errors
    /// [`HalError::QueueFull`] when they do not fit now, [`HalError::Fault`] when the channel has
    /// stopped, [`HalError::DeviceLost`].
    fn submit(&self, channel: ChannelId, ops: &[Op]) -> Result<(), HalError>;

    /// The timeline's present value. It never decreases.
    fn completed(&self, timeline: TimelineId) -> u64;

    /// Waits until `fence` is reached or `timeout` has passed.
    ///
    /// # Errors
    /// [`HalError::Timeout`]. [`HalError::Fault`] as soon as a channel that was to signal this
    /// timeline up to the fence has stopped: waiting longer is pointless.
    /// [`HalError::DeviceLost`].
    fn wait(&self, fence: Fence, timeout: Duration) -> Result<(), HalError>;

    /// Raises a timeline from the CPU, as recovery does for work that will never run. Values at
    /// or below the present one change nothing.
    fn signal(&self, fence: Fence);

    /// Takes the faults reported since the last call, oldest first.
    fn take_faults(&self) -> Vec<Fault>;
}
