//! The memory manager's core: a state machine over buffers and domains, after the kernel's TTM.
//!
//! [`Device`] decides and never acts. A request becomes a task; [`Device::step`] says which
//! [`Effect`]s it needs, [`Runner`] performs them through the contracts of `vrampager-hal`, and
//! [`Device::performed`] commits or undoes:
//!
//! ```text
//! decide (device locked) -> effects (unlocked, buffer reserved) -> commit (device locked)
//! ```
//!
//! The device holds no thread, clock, lock or hash map: the same calls in the same order give the
//! same steps. Statement numbers such as `V2` or `K2` cite the behaviour of the kernel's memory
//! manager as collected in the project's design papers.
//!
//! What is not here: which allocator a domain uses (`vrampager-space`), threads and waiting (the
//! facade `vrampager`), and what a device is (`vrampager-hal`).
#![forbid(unsafe_code)]

mod buffer;
mod check;
mod device;
mod effect;
mod error;
mod exec;
mod fence;
mod lru;
mod manager;
mod moves;
mod open;
mod placement;
mod room;
mod runner;
mod staging;
mod stats;
mod stream;
mod task;

pub use buffer::{BufferDesc, BufferId, Source, Target, Use};
#[cfg(feature = "planted-bugs")]
pub use device::PlantedBug;
pub use device::{Config, Device, Reach};
pub use effect::{Effect, EffectError, Effects, FileId, Performed, Stored};
pub use error::{Domain, DomainReport, Error, ErrorKind, OpenError, Shortage};
pub use lru::Priority;
pub use manager::{Fit, RangeManager, ResourceManager, Space, SystemManager, VramManager};
pub use open::{Limits, open};
pub use placement::{End, Layout, MemType, Place, Placement, Preference};
pub use runner::Runner;
pub use stats::{Snapshot, Totals};
pub use task::{Bytes, Done, Grant, Keep, Step, TaskId, View};
