//! Addresses, spans, alignments and sizes: the vocabulary every other crate speaks.
//!
//! All quantities are bytes in `u64` unless a name says otherwise. Arithmetic that could leave
//! 64 bits is checked here, once, so that nobody else has to align or add an address by hand.
//!
//! This crate is `no_std`, has no dependencies and no unsafe code.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod align;
mod size;
mod span;
mod va;

pub use align::Align;
pub use size::{ParseSizeError, Size, parse_size};
pub use span::Span;
pub use va::Va;

/// Granule of GPU page tables, page vectors and placements: 4 KiB.
pub const PAGE_SIZE: u64 = 4096;

/// [`PAGE_SIZE`] as an alignment.
pub const PAGE: Align = Align::PAGE;
