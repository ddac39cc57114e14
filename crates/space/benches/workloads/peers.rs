//! One face for every allocator that is measured.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use vrampager_addr::Span;
use vrampager_space::{
    Buddy, BuddyRequest, Content, Fit, Mode, RangeAllocator, RangeRequest, SubAllocator,
};

use crate::traces::{Op, TOP, Trace};

/// What is left to remember of an allocation: its first page, and whatever frees it.
pub(crate) trait Peer: Sized {
    const NAME: &'static str;
    type Live: Copy;
    fn new(trace: &Trace) -> Self;
    fn alloc(&mut self, op: Op) -> Option<Self::Live>;
    fn free(&mut self, live: Self::Live, pages: u32);
    fn start(live: &Self::Live) -> u64;
}

const PAGE: u64 = 4096;

fn bytes(pages: u32) -> u64 {
    u64::from(pages) * PAGE
}

/// Costs what the harness costs.
pub(crate) struct Null(u64);

impl Peer for Null {
    const NAME: &'static str = "null";
    type Live = u64;
    fn new(_: &Trace) -> Self {
        Self(0)
    }
    #[inline]
    fn alloc(&mut self, op: Op) -> Option<u64> {
        self.0 += u64::from(op.pages);
        Some(self.0)
    }
    #[inline]
    fn free(&mut self, live: u64, _: u32) {
        std::hint::black_box(live);
    }
    fn start(live: &u64) -> u64 {
        *live
    }
}

macro_rules! sub_peer {
    ($type:ident, $name:literal, $fit:expr) => {
        pub(crate) struct $type(SubAllocator);

        impl Peer for $type {
            const NAME: &'static str = $name;
            /// Number of the page behind: as small as the peers' handles.
            type Live = NonZeroU32;
            fn new(trace: &Trace) -> Self {
                // Live ranges, a hole for every four, and what quick lists keep apart.
                let ranges = trace.most_live() / 4 * 5 + 1792;
                let size = trace.pages * PAGE;
                let space = SubAllocator::with_capacity(size, PAGE, $fit, ranges);
                Self(space.expect("the space fits 32-bit pages"))
            }
            #[inline]
            fn alloc(&mut self, op: Op) -> Option<NonZeroU32> {
                let align = u64::from(op.align) * PAGE;
                let offset = self.0.alloc(bytes(op.pages), align).ok()?;
                NonZeroU32::new((offset / PAGE) as u32 + 1)
            }
            #[inline]
            fn free(&mut self, live: NonZeroU32, pages: u32) {
                self.0.free(bytes(live.get() - 1), bytes(pages));
            }
            fn start(live: &NonZeroU32) -> u64 {
                u64::from(live.get() - 1)
            }
        }
    };
}

sub_peer!(SubFast, "vrampager sub fast", Fit::Fast);
sub_peer!(SubTight, "vrampager sub tight", Fit::Tight);

macro_rules! range_peer {
    ($type:ident, $name:literal, $mode:expr) => {
        pub(crate) struct $type(RangeAllocator);

        impl Peer for $type {
            const NAME: &'static str = $name;
            type Live = u64;
            fn new(trace: &Trace) -> Self {
                Self(RangeAllocator::new(
                    Span::new(0, trace.pages * PAGE).expect("small"),
                ))
            }
            #[inline]
            fn alloc(&mut self, op: Op) -> Option<u64> {
                let mode = if op.flags & TOP != 0 {
                    Mode::High
                } else {
                    $mode
                };
                let request = RangeRequest::new(bytes(op.pages)).mode(mode);
                let align = u64::from(op.align) * PAGE;
                self.0.insert(&request.align(align)).ok().map(Span::start)
            }
            #[inline]
            fn free(&mut self, live: u64, _: u32) {
                self.0.remove(live).expect("live");
            }
            fn start(live: &u64) -> u64 {
                live / PAGE
            }
        }
    };
}

range_peer!(RangeLow, "vrampager range low", Mode::Low);
range_peer!(RangeBest, "vrampager range best", Mode::Best);
range_peer!(RangeEvict, "vrampager range evict", Mode::Evict);

pub(crate) struct OurBuddy(Buddy);

impl Peer for OurBuddy {
    const NAME: &'static str = "vrampager buddy";
    type Live = NonZeroU32;
    fn new(trace: &Trace) -> Self {
        Self(Buddy::new(trace.pages * PAGE, PAGE).expect("valid"))
    }
    #[inline]
    fn alloc(&mut self, op: Op) -> Option<NonZeroU32> {
        let block = self.0.alloc_one(&BuddyRequest::new(bytes(op.pages))).ok()?;
        NonZeroU32::new((block.offset / PAGE) as u32 + 1)
    }
    #[inline]
    fn free(&mut self, live: NonZeroU32, pages: u32) {
        let block = Span::new(bytes(live.get() - 1), bytes(pages)).expect("small");
        self.0.free(block, Content::Dirty);
    }
    fn start(live: &NonZeroU32) -> u64 {
        u64::from(live.get() - 1)
    }
}

pub(crate) struct Offset(offset_allocator::Allocator);

impl Peer for Offset {
    const NAME: &'static str = "offset-allocator";
    type Live = offset_allocator::Allocation;
    fn new(trace: &Trace) -> Self {
        let nodes = (trace.most_live() * 2 + 16) as u32;
        Self(offset_allocator::Allocator::with_max_allocs(
            trace.pages as u32,
            nodes,
        ))
    }
    #[inline]
    fn alloc(&mut self, op: Op) -> Option<Self::Live> {
        self.0.allocate(op.pages + op.align - 1)
    }
    #[inline]
    fn free(&mut self, live: Self::Live, _: u32) {
        self.0.free(live);
    }
    fn start(live: &Self::Live) -> u64 {
        u64::from(live.offset)
    }
}

pub(crate) struct BuddySystem(buddy_system_allocator::FrameAllocator<33>);

impl Peer for BuddySystem {
    const NAME: &'static str = "buddy_system_allocator";
    type Live = NonZeroU32;
    fn new(trace: &Trace) -> Self {
        let mut frames = buddy_system_allocator::FrameAllocator::new();
        frames.add_frame(0, trace.pages as usize);
        Self(frames)
    }
    #[inline]
    fn alloc(&mut self, op: Op) -> Option<NonZeroU32> {
        let page = self.0.alloc(op.pages as usize)?;
        NonZeroU32::new(page as u32 + 1)
    }
    #[inline]
    fn free(&mut self, live: NonZeroU32, pages: u32) {
        self.0.dealloc(live.get() as usize - 1, pages as usize);
    }
    fn start(live: &NonZeroU32) -> u64 {
        u64::from(live.get() - 1)
    }
}

pub(crate) struct RangeAlloc(range_alloc::RangeAllocator<u64>);

impl Peer for RangeAlloc {
    const NAME: &'static str = "range-alloc";
    type Live = u64;
    fn new(trace: &Trace) -> Self {
        Self(range_alloc::RangeAllocator::new(0..trace.pages))
    }
    fn alloc(&mut self, op: Op) -> Option<u64> {
        self.0
            .allocate_range(u64::from(op.pages))
            .ok()
            .map(|range| range.start)
    }
    fn free(&mut self, live: u64, pages: u32) {
        self.0.free_range(live..live + u64::from(pages));
    }
    fn start(live: &u64) -> u64 {
        *live
    }
}

/// Exact best fit over the two ordered maps of the standard library.
pub(crate) struct BTreeBest {
    by_start: BTreeMap<u32, u32>,
    by_len: BTreeSet<(u32, u32)>,
}

impl Peer for BTreeBest {
    const NAME: &'static str = "BTreeMap best fit";
    type Live = u32;
    fn new(trace: &Trace) -> Self {
        let pages = trace.pages as u32;
        Self {
            by_start: [(0, pages)].into(),
            by_len: [(pages, 0)].into(),
        }
    }
    fn alloc(&mut self, op: Op) -> Option<u32> {
        let &(len, start) = self.by_len.range((op.pages, 0)..).next()?;
        self.by_len.remove(&(len, start));
        self.by_start.remove(&start);
        if len > op.pages {
            self.by_len.insert((len - op.pages, start + op.pages));
            self.by_start.insert(start + op.pages, len - op.pages);
        }
        Some(start)
    }
    fn free(&mut self, live: u32, pages: u32) {
        let (mut start, mut len) = (live, pages);
        if let Some(after) = self.by_start.remove(&(start + len)) {
            self.by_len.remove(&(after, start + len));
            len += after;
        }
        if let Some((&before, &before_len)) = self.by_start.range(..start).next_back()
            && before + before_len == start
        {
            self.by_start.remove(&before);
            self.by_len.remove(&(before_len, before));
            (start, len) = (before, len + before_len);
        }
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
    }
    fn start(live: &u32) -> u64 {
        u64::from(*live)
    }
}

/// First fit by walking a map of holes, as virtual machine monitors do; top-down too.
pub(crate) struct BTreeFirst(BTreeMap<u32, u32>);

impl Peer for BTreeFirst {
    const NAME: &'static str = "BTreeMap first fit";
    type Live = u32;
    fn new(trace: &Trace) -> Self {
        Self([(0, trace.pages as u32)].into())
    }
    fn alloc(&mut self, op: Op) -> Option<u32> {
        let long = |&(_, &len): &(&u32, &u32)| len >= op.pages;
        let top = op.flags & TOP != 0;
        let found = if top {
            self.0.iter().rev().find(long)
        } else {
            self.0.iter().find(long)
        };
        let (&start, &len) = found?;
        if top {
            self.0.insert(start, len - op.pages);
            if len == op.pages {
                self.0.remove(&start);
            }
            return Some(start + len - op.pages);
        }
        self.0.remove(&start);
        if len > op.pages {
            self.0.insert(start + op.pages, len - op.pages);
        }
        Some(start)
    }
    fn free(&mut self, live: u32, pages: u32) {
        let (mut start, mut len) = (live, pages);
        len += self.0.remove(&(start + len)).unwrap_or(0);
        if let Some((&before, &before_len)) = self.0.range(..start).next_back()
            && before + before_len == start
        {
            (start, len) = (before, len + before_len);
        }
        self.0.insert(start, len);
    }
    fn start(live: &u32) -> u64 {
        u64::from(*live)
    }
}

/// A peer in C++, behind a feature because building it needs a compiler for that.
#[cfg(vma)]
pub(crate) mod vma {
    use super::{Op, Peer, Trace};

    /// The virtual block of the Vulkan Memory Allocator, in its default (TLSF) mode.
    pub(crate) struct Vma(vk_mem::VirtualBlock);

    /// A handle of a virtual block, which its crate does not let one copy.
    #[derive(Clone, Copy)]
    pub(crate) struct VmaLive {
        start: u64,
        handle: u64,
    }

    impl Peer for Vma {
        const NAME: &'static str = "VMA virtual block";
        type Live = VmaLive;
        fn new(trace: &Trace) -> Self {
            let info = vk_mem::VirtualBlockCreateInfo {
                size: trace.pages,
                flags: vk_mem::VirtualBlockCreateFlags::empty(),
                allocation_callbacks: None,
            };
            Self(vk_mem::VirtualBlock::new(info).expect("host memory"))
        }
        fn alloc(&mut self, op: Op) -> Option<VmaLive> {
            let info = vk_mem::VirtualAllocationCreateInfo {
                size: u64::from(op.pages),
                alignment: u64::from(op.align),
                flags: vk_mem::VirtualAllocationCreateFlags::empty(),
                user_data: 0,
            };
            // SAFETY: the size is not zero and the alignment a power of two.
            let (handle, start) = unsafe { self.0.allocate(info) }.ok()?;
            // SAFETY: the handle is a plain 64-bit number in a newtype without drop glue.
            let handle = unsafe { std::mem::transmute::<vk_mem::VirtualAllocation, u64>(handle) };
            Some(VmaLive { start, handle })
        }
        fn free(&mut self, live: VmaLive, _: u32) {
            // SAFETY: the inverse of the conversion in `alloc`.
            let mut handle =
                unsafe { std::mem::transmute::<u64, vk_mem::VirtualAllocation>(live.handle) };
            // SAFETY: the handle came from this block and is freed once.
            unsafe { self.0.free(&mut handle) };
        }
        fn start(live: &VmaLive) -> u64 {
            live.start
        }
    }

    impl Drop for Vma {
        fn drop(&mut self) {
            // SAFETY: no handle is used after this.
            unsafe { self.0.clear() };
        }
    }
}
