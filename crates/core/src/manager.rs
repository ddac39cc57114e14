//! Resource managers: how each domain carves its space (mission row D1).
//!
//! Core knows a domain only through [`ResourceManager`]; which allocator stands behind it is the
//! domain's own business.

use std::fmt::Debug;

use vrampager_addr::{PAGE_SIZE, Span};
use vrampager_space::{Block, Buddy, BuddyRequest, Content, RangeAllocator, RangeRequest};

use crate::placement::{End, Layout, Place};

/// Outcome of looking for room. No room is an expected turn, not an error (TTM R4).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fit {
    /// Carved: extents of the domain, in the order of the buffer's bytes.
    Placed(Vec<Span>),
    /// No room at present.
    NoSpace,
}

/// A domain's space in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// All of it; 0 for a domain without a limit of its own.
    pub size: u64,
    /// Not carved.
    pub free: u64,
    /// Largest contiguous part of that.
    pub largest: u64,
}

/// One domain's allocator (the kernel's `ttm_resource_manager_func`).
///
/// Called with the device locked: it neither blocks nor calls back.
pub trait ResourceManager: Send + Debug {
    /// Carves `size` bytes, a multiple of the page size, as `place` asks.
    fn alloc(&mut self, size: u64, place: &Place) -> Fit;

    /// Gives back extents that [`alloc`](Self::alloc) returned. Never fails.
    ///
    /// # Panics
    /// When an extent is not live.
    fn free(&mut self, extents: &[Span]);

    /// Whether freeing these extents could help a request for `place` (TTM R4, E5).
    fn intersects(&self, extents: &[Span], place: &Place) -> bool {
        place
            .within
            .is_none_or(|range| extents.iter().any(|extent| extent.overlaps(range)))
    }

    /// Whether these extents satisfy `place` (TTM R5, R6). Those that [`alloc`](Self::alloc)
    /// returned for it do.
    fn compatible(&self, extents: &[Span], place: &Place) -> bool {
        let inside = |range: Span| extents.iter().all(|&extent| range.covers(extent));
        (place.layout == Layout::Scattered || extents.len() == 1) && place.within.is_none_or(inside)
    }

    /// What is left.
    fn space(&self) -> Space;

    /// Verifies the allocator's own structure; for tests.
    ///
    /// # Panics
    /// When it is broken.
    fn check(&self);
}

/// Pages by the block. Nothing is known to be clear.
#[derive(Debug)]
pub(crate) struct Blocks(Buddy);

impl Blocks {
    /// Pages of `[0, size)`.
    pub(crate) fn new(size: u64) -> Self {
        Self(Buddy::new(size, PAGE_SIZE).expect("a page-aligned size of at least one page"))
    }

    pub(crate) fn carve(&mut self, request: &BuddyRequest) -> Option<Vec<Span>> {
        let blocks = self.0.alloc(request).ok()?;
        Some(blocks.iter().map(Block::span).collect())
    }

    pub(crate) fn free(&mut self, spans: &[Span]) {
        for &span in spans {
            self.0.free(span, Content::Dirty);
        }
    }

    pub(crate) fn space(&self) -> Space {
        Space {
            size: self.0.size(),
            free: self.0.free_bytes(),
            largest: self.0.largest_free(),
        }
    }

    pub(crate) fn check(&self) {
        self.0.check();
    }
}

/// Device memory: buddy blocks, scattered unless asked otherwise.
#[derive(Debug)]
pub struct VramManager(Blocks);

impl VramManager {
    /// Manages `[0, size)` of device memory.
    ///
    /// # Panics
    /// When `size` is not a positive multiple of the page size.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self(Blocks::new(size))
    }
}

impl ResourceManager for VramManager {
    fn alloc(&mut self, size: u64, place: &Place) -> Fit {
        let mut request = BuddyRequest::new(size);
        if place.layout == Layout::Contiguous {
            request = request.contiguous();
        }
        if place.end == End::Top {
            request = request.top_down();
        }
        if let Some(range) = place.within {
            request = request.within(range);
        }
        self.0.carve(&request).map_or(Fit::NoSpace, Fit::Placed)
    }

    fn free(&mut self, extents: &[Span]) {
        self.0.free(extents);
    }

    fn space(&self) -> Space {
        self.0.space()
    }

    fn check(&self) {
        self.0.check();
    }
}

/// A window of addresses, such as the GTT: one range for each resource.
#[derive(Debug)]
pub struct RangeManager {
    size: u64,
    ranges: RangeAllocator,
}

impl RangeManager {
    /// Manages `[0, size)` of a window.
    ///
    /// # Panics
    /// When `size` is zero.
    #[must_use]
    pub fn new(size: u64) -> Self {
        let span = Span::new(0, size).expect("a span from zero never wraps");
        Self {
            size,
            ranges: RangeAllocator::new(span),
        }
    }
}

impl ResourceManager for RangeManager {
    fn alloc(&mut self, size: u64, place: &Place) -> Fit {
        let mode = match place.end {
            End::Any => vrampager_space::Mode::Best,
            End::Top => vrampager_space::Mode::High,
        };
        let mut request = RangeRequest::new(size).align(PAGE_SIZE).mode(mode);
        if let Some(range) = place.within {
            request = request.within(range);
        }
        self.ranges
            .insert(&request)
            .map_or(Fit::NoSpace, |span| Fit::Placed(vec![span]))
    }

    fn free(&mut self, extents: &[Span]) {
        for extent in extents {
            let removed = self.ranges.remove(extent.start());
            assert_eq!(removed, Some(*extent), "a freed extent is live");
        }
    }

    fn space(&self) -> Space {
        let (free, largest) = (self.ranges.free_bytes(), self.ranges.largest_hole());
        Space {
            size: self.size,
            free,
            largest,
        }
    }

    fn check(&self) {
        self.ranges.check();
    }
}

/// Host pages without a window of their own: nothing to carve, never full (TTM R7).
#[derive(Debug, Default)]
pub struct SystemManager;

impl ResourceManager for SystemManager {
    fn alloc(&mut self, _size: u64, _place: &Place) -> Fit {
        Fit::Placed(Vec::new())
    }

    fn free(&mut self, _extents: &[Span]) {}

    fn compatible(&self, _extents: &[Span], _place: &Place) -> bool {
        true
    }

    fn space(&self) -> Space {
        Space::default()
    }

    fn check(&self) {}
}
