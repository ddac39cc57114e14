//! The hardware contracts of vrampager.
//!
//! A device is four independent contracts (mission row A15), each a small object-safe trait with
//! its own acceptance suite in [`accept`]:
//!
//! | contract | owns | suite |
//! |---|---|---|
//! | [`Discovery`] | finding and opening devices | [`accept::discovery`] |
//! | [`Memory`] | address ranges, physical objects, CPU and GPU mappings | [`accept::memory`] |
//! | [`Queue`] | channels, timelines, copies, faults | [`accept::queue`] |
//! | [`Release`] | giving back each of those, counting what is left | [`accept::release`] |
//!
//! [`Storage`] is a fifth contract, on the host's side: files that hold swapped-out pages or the
//! content of clean buffers.
//!
//! # Rules of the contracts
//! * Ids are plain data; owners with `Drop` live in the layers above.
//! * Validation lives above, once. A back end may assume a valid request: an id that is live, a
//!   range inside its object, page-aligned addresses. It panics on a request that breaks this,
//!   because such a request is a bug of the caller and not a state of the device.
//! * Errors ([`HalError`]) therefore say only what the caller could not foresee. After an error
//!   nothing has changed, unless the method says otherwise.
//! * Every step is undone by its own method of [`Release`]: undoing one layer never undoes
//!   another (mission rows A6, A7).
//! * No method blocks except [`Queue::wait`], which has a deadline, and
//!   [`Release::destroy_channel`], which lets one running operation end.
//!
//! What is not here: address assignment, eviction, reservations, ordering between users of a
//! buffer. Those are decisions, and the back ends make none.

pub mod accept;
mod counters;
mod discovery;
mod error;
mod mapping;
mod memory;
mod queue;
mod release;
mod storage;

pub use counters::Counters;
pub use discovery::{DeviceId, DeviceInfo, Discovery, Gpu, VaZone};
pub use error::{DeviceLossCause, Fault, FaultKind, HalError, HalErrorKind};
pub use mapping::{CpuMapping, HostPage, HostRange, Misaligned, Owner};
pub use memory::{Access, CpuMapId, GpuMap, Heap, MemId, Memory};
pub use queue::{ChannelId, ChannelKind, Fence, Op, Queue, TimelineId};
pub use release::Release;
pub use storage::{Storage, StorageError};
