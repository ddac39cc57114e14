//! Address space allocators for GPU memory.
//!
//! Nothing here touches memory: every type hands out numbers from a space that somebody else
//! owns. Pick by what the caller knows when it frees:
//!
//! | type | hands out | use it for |
//! |---|---|---|
//! | [`Buddy`] | power-of-two blocks, trimmed runs | physical VRAM |
//! | [`RangeAllocator`] | address-ordered ranges, exact places | virtual addresses, apertures |
//! | [`SubAllocator`] | ranges whose size the caller remembers | a heap inside one buffer |
//! | [`VaSpace`] | ranges in named zones, quarantined until a fence | GPU virtual addresses |
//! | [`FakeOffsets`] | mmap offsets with per-client grants | CPU mappings |
//!
//! All types are single-threaded data structures: locking is the owner's business. No operation
//! that gives space back can fail, because what it needs is held by what it frees. Every other
//! one reports the end of host memory as [`SpaceError::MetadataExhausted`], and changes nothing
//! then.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bitset;
mod buddy;
mod error;
mod offsets;
mod ordered;
mod quick;
mod range;
mod store;
mod sub;
#[cfg(test)]
mod testing;
mod zones;

pub use buddy::{Block, Buddy, BuddyRequest, Content};
pub use error::{Conditions, ErrorKind, SpaceError};
pub use offsets::{AccessDenied, FakeOffsets};
pub use range::{Eviction, EvictionScan, GapRule, Mode, Range, RangeAllocator, RangeRequest};
pub use sub::{Fit, SubAllocator};
/// What most of this crate's signatures are about, so that it is all one has to depend on.
pub use vrampager_addr::Span;
pub use zones::{SpaceFence, VaSpace, VaStats, Zone};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
