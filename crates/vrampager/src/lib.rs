//! Use more GPU memory than the card has.
//!
//! A [`Pager`] owns one GPU. Its [`Buffer`]s live in VRAM, in GPU-visible host memory, in plain
//! host memory or in a swap file; the pager brings them where a [`Submission`] needs them, moves
//! the least recently used out of the way, undoes every half-done step, and says why when it
//! can't.
//!
//! # Examples
//! Three buffers of 8 MiB on a card with 16 MiB:
//! ```
//! use vrampager::Pager;
//!
//! let pager = Pager::builder("sim:vram=16M,bar=4M")?.host(32 << 20).open()?;
//! let buffers: Vec<_> = (0..3)
//!     .map(|i| pager.buffer(&format!("b{i}"), 8 << 20).create())
//!     .collect::<Result<_, _>>()?;
//! for (byte, buffer) in (1..).zip(&buffers) {
//!     let mut work = pager.submission();
//!     work.fill(buffer, 0, buffer.len(), byte)?;
//!     work.submit()?.wait()?;
//! }
//! let mut last = [0];
//! buffers[0].read(buffers[0].len() - 1, &mut last)?;
//! assert_eq!(last, [1], "what was evicted is still there");
//! drop(buffers);
//! assert!(pager.close()?.is_zero(), "nothing is left on the device");
//! # Ok::<(), vrampager::Error>(())
//! ```
//! A request that cannot be satisfied says what stood in the way:
//! ```
//! use vrampager::{ErrorKind, Pager};
//!
//! let pager = Pager::builder("sim:vram=16M")?.host(16 << 20).open()?;
//! let big = pager.buffer("big", 20 << 20).create()?;
//! let error = pager.submission().fill(&big, 0, 1, 0)?.submit().unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::OutOfMemory);
//! assert!(error.to_string().contains("needs 20 MiB; VRAM 16 MiB: 16 MiB free"), "{error}");
//! # Ok::<(), vrampager::Error>(())
//! ```

mod buffer;
mod error;
mod file;
mod import;
mod machine;
mod pager;
mod shell;
mod submission;
#[cfg(test)]
mod tests;
mod worker;

pub use buffer::{Buffer, BufferBuilder, Pinned};
pub use error::{Error, ErrorKind};
pub use file::{FileBacking, SwapFile};
pub use import::Import;
pub use machine::planes;
pub use pager::{Pager, PagerBuilder, Stats, discover};
pub use submission::{Operand, Submission, Submitted};
pub use vrampager_addr::{Span, Va};
pub use vrampager_core::{
    Domain, DomainReport, MemType, Place, Placement, Preference, Priority, Shortage, Snapshot,
    Totals,
};
pub use vrampager_hal::{
    Access, Counters, DeviceInfo, Fault, HalError, HostPage, HostRange, Misaligned, Owner,
};
pub use vrampager_nv::{Plane, Planes, PlanesError};
pub use vrampager_sim::EngineStats;

/// Runs the README's example with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
