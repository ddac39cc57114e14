//! A simulated NVIDIA kernel driver and the GPUs behind it, as a state machine.
//!
//! It takes what a process hands to the real driver (a node, a request, a packet) and gives back
//! what the real one would: an error of the system call, a status in the packet, and side effects.
//! It makes no system call, starts no thread and reads no clock. Memory and the calling process
//! are behind two traits, [`Store`] and [`Process`], so that the same driver serves programs
//! through a preload library and tests in one process.
//!
//! * [`Driver::open`], [`Driver::ioctl`], [`Driver::mmap`] and [`Driver::close`] are the nodes.
//! * [`Driver::run`] lets the simulated channels run, [`Driver::hear`] looks who has rung.
//! * [`Driver::live`] counts what is alive, [`Driver::inject`] makes a request fail.
//!
//! What it checks, it refuses with the status the real driver gives (open kernel modules; layouts
//! of releases 570, 580 and 595 by the release configured). What it deliberately leaves out:
//! privileges, power, partitions, tiled surfaces, and computing: launches complete at once. Time
//! slices are one ring entry, or what a pass may do of it. A doorbell is not needed to be noticed,
//! unless the machine is configured with `doorbell=strict`.
//!
//! Requests that the real driver has and this one refuses, each as if it did not exist:
//!
//! * `EINVAL` for the escapes of events (0xCE, 0xCF), status codes (0xD1), device interrupts (0xD5)
//!   and DMA buffers (0xD9);
//! * `INVALID_ARGUMENT` for every function of the video heap (0x4A), as for an unknown one;
//! * `NOT_SUPPORTED` for controls that are not in [`vrampager_nv_abi::ctrl`], `INVALID_CLASS` for
//!   classes that are not in [`vrampager_nv_abi::class`].
//!
//! Refusals of the real driver that cannot happen here: for want of privileges
//! (`INSUFFICIENT_PERMISSIONS`), of a page size that fits a mapping of UVM (any mapping that is
//! aligned fits 4 KiB), and while another thread initialises the same file (`BUSY_RETRY`).
//!
//! ```
//! use vrampager_nv_abi::Node;
//! use vrampager_nv_driver::{Config, Driver, HeapStore};
//!
//! let mut driver = Driver::new(Config::default(), HeapStore::new());
//! let control = driver.open(Node::Control)?;
//! assert_eq!(driver.live().files, 1);
//! driver.close(control);
//! # Ok::<(), vrampager_nv_driver::Errno>(())
//! ```
#![forbid(unsafe_code)]

mod channel;
mod config;
mod counters;
mod driver;
mod engine;
mod errno;
mod file;
mod inject;
mod rm;
mod store;
mod uvm;
mod vas;

pub use config::{Arch, Config, ConfigError};
pub use counters::{Counted, Live};
pub use driver::Driver;
pub use engine::Progress;
pub use errno::Errno;
pub use file::{Effect, FileId, MapContext};
pub use inject::{Failure, Injection, InjectionError, Kind};
pub use store::{HeapStore, Place, Process, Store, StoreError, StoreId};
