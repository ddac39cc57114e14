//! A simulated GPU behind the contracts of [`vrampager_hal`].
//!
//! It has device memory (a memfd), a CPU-visible aperture that may be smaller, page tables that
//! its engines walk, channels with rings of bounded size, a copy engine that really copies, and
//! exact [`Counters`](vrampager_hal::Counters). An access that its page tables do not permit is a
//! GPU fault; it never touches memory of the host.
//!
//! # Modes
//! * [`Mode::Threaded`]: one thread per engine kind, for speed and for races. Device memory is
//!   touched when the device is opened, so that no page fault of the host is measured later.
//! * [`Mode::Deterministic`]: no threads and a virtual clock. Operations run inside the calls of
//!   the user, in an order drawn from the seed; the same calls give the same
//!   [`event_hash`](SimDevice::event_hash). Freed device memory is filled with
//!   [`POISON`], so a stale read is seen.
//!
//! # Faults
//! A [`SimConfig`] or [`SimDevice::inject`] makes the n-th call of a kind fail, stops a copy in
//! the middle, or loses the device; see [`Injection`].
//!
//! # What it does not do
//! It decides nothing: addresses are chosen above. It depends on none of the crates that it
//! serves, so that it cannot share their mistakes.
//!
//! # Examples
//! ```
//! use std::sync::Arc;
//! use vrampager_hal::{DeviceId, Discovery, Heap};
//! use vrampager_sim::Simulator;
//!
//! let sim = Simulator::new("vram=16M,bar=4M,mode=deterministic".parse()?)?;
//! let gpu = sim.open(DeviceId(0))?;
//! let mem = gpu.memory.create(Heap::Vram, 1 << 20)?;
//! assert_eq!(gpu.release.counters().objects, 1);
//! gpu.release.destroy(mem)?;
//! assert!(gpu.release.close().is_zero());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod aperture;
mod channel;
mod clock;
mod config;
mod copy;
mod device;
mod engine;
mod fault;
mod heap;
mod mmu;
mod planted;
mod prng;
mod region;
mod session;
mod storage;

pub use config::{ConfigError, Mode, SimConfig};
pub use device::{SimDevice, SimError, Simulator};
pub use engine::EngineStats;
pub use fault::{Call, Injection};
pub use heap::POISON;
#[cfg(feature = "planted-bugs")]
pub use planted::PlantedBug;
pub use storage::{SimStorage, StorageFault};
