//! Buddy allocator for physical memory.

mod blocks;
mod live;
mod map;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::fmt;

use vrampager_addr::Span;

use crate::bitset::DENSE_LIMIT;
use crate::quick::QuickLists;
use crate::{Conditions, SpaceError};
use blocks::{Blocks, Class, Node};
use live::Live;
use map::{End, Found, FreeMap, SLACK, Search};

/// What a block's bytes hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Anything; the block must be cleared before another owner sees it.
    Dirty,
    /// Zeroes.
    Cleared,
}

/// Space handed out by a [`Buddy`], which knows it by its span: free it once, and as it is after
/// the last [trim](Buddy::trim).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Block {
    /// First byte, from the start of the space.
    pub offset: u64,
    /// Length in bytes. A power of two, except for what was trimmed, asked for exactly, or put
    /// together from neighbouring blocks.
    pub size: u64,
    /// What the block holds when it is handed out.
    pub content: Content,
}

impl Block {
    /// The bytes it covers.
    #[must_use]
    pub fn span(&self) -> Span {
        Span::new(self.offset, self.size).expect("a block ends inside its space")
    }
}

/// What to allocate from a [`Buddy`].
///
/// # Examples
/// ```
/// use vrampager_space::{Buddy, BuddyRequest, SpaceError};
/// let mut vram = Buddy::new(1 << 20, 4096).unwrap();
/// let run = vram.alloc(&BuddyRequest::new(12288).contiguous()).unwrap();
/// assert_eq!((run.len(), run[0].size), (1, 12288));
/// let error = vram.alloc(&BuddyRequest::new(1 << 20)).unwrap_err();
/// assert!(matches!(error, SpaceError::NoSpace { .. }));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BuddyRequest {
    size: u64,
    min_block: Option<u64>,
    align: u64,
    within: Option<Span>,
    contiguous: bool,
    end: End,
    content: Content,
}

impl BuddyRequest {
    /// `size` bytes, which must be whole chunks, in as few blocks as possible, wherever they are
    /// found first, of any content.
    #[must_use]
    pub const fn new(size: u64) -> Self {
        Self {
            size,
            min_block: None,
            align: 1,
            within: None,
            contiguous: false,
            end: End::Low,
            content: Content::Dirty,
        }
    }

    /// Use no block smaller than `bytes`, a power of two. The last block is trimmed.
    #[must_use]
    pub const fn min_block(mut self, bytes: u64) -> Self {
        self.min_block = Some(bytes);
        self
    }

    /// Start every block at a multiple of `bytes`, a power of two, even a smaller block. 0 counts
    /// as 1.
    #[must_use]
    pub const fn align(mut self, bytes: u64) -> Self {
        self.align = if bytes == 0 { 1 } else { bytes };
        self
    }

    /// Answer with one block. A naturally aligned power of two is preferred and trimmed; failing
    /// that, and unless the request is limited by [`within`](Self::within), any run will do.
    #[must_use]
    pub const fn contiguous(mut self) -> Self {
        self.contiguous = true;
        self
    }

    /// Stay inside `span`, which begins and ends at chunks. One as long as the request asks for
    /// exactly these bytes, however they are made up of blocks.
    #[must_use]
    pub const fn within(mut self, span: Span) -> Self {
        self.within = Some(span);
        self
    }

    /// Take the highest blocks instead of the lowest. What a block is too long by is trimmed from
    /// its end, as in the kernel: three chunks lie at the bottom of the highest four.
    #[must_use]
    pub const fn top_down(mut self) -> Self {
        self.end = End::High;
        self
    }

    /// Prefer blocks of this content; the other kind is the fallback.
    #[must_use]
    pub const fn prefer(mut self, content: Content) -> Self {
        self.content = content;
        self
    }
}

/// Blocks of lower orders have quick lists, one for each.
const QUICK_ORDERS: usize = 10;

/// The quick list for blocks like this one. Only what a request for its size would be given when
/// there is plenty has one: a power of two at a multiple of itself.
#[inline]
fn quick_list((first, count): (u64, u64)) -> Option<(usize, u32)> {
    let order = count.trailing_zeros() as usize;
    let is_natural = count.is_power_of_two() && first & (count - 1) == 0;
    let start = u32::try_from(first)
        .ok()
        .filter(|&start| start < u32::MAX)?;
    (is_natural && order < QUICK_ORDERS).then_some((order, start))
}

/// The block that is on a quick list.
fn quick_node((order, start): (usize, u32)) -> Node {
    Node {
        order: u32::try_from(order).expect("a few orders"),
        index: u64::from(start) >> order,
    }
}

/// A validated request, in chunks.
struct Plan {
    count: u64,
    /// `count` rounded up to whole minimum blocks.
    padded: u64,
    min_order: u32,
    align_order: u32,
    contiguous: bool,
    search: Search,
}

impl Plan {
    /// Whether the request names the very chunks it wants.
    fn exact(&self) -> Option<u64> {
        self.search
            .window
            .filter(|(lo, hi)| hi - lo == self.count)
            .map(|(lo, _)| lo)
    }

    fn conditions(&self) -> Conditions {
        Conditions::NONE
            .and(Conditions::ALIGN, self.align_order > self.min_order)
            .and(Conditions::WITHIN, self.search.window.is_some())
            .and(Conditions::CONTIGUOUS, self.contiguous)
            .and(Conditions::MIN_BLOCK, self.min_order > 0)
    }

    /// The least order of which a request that is not exact takes whole blocks before it trims
    /// them, and how many it takes.
    fn whole_blocks(&self) -> (u32, u64) {
        if self.contiguous {
            return (natural_order(self.count).max(self.align_order), 1);
        }
        let rest = self.padded & ((1 << self.align_order) - 1);
        let blocks = (self.padded >> self.align_order) + u64::from(rest.count_ones());
        (self.align_order, blocks)
    }

    /// Whether an empty space of `chunks` chunks could serve the request.
    fn is_possible(&self, chunks: u64) -> bool {
        let any_run = self.contiguous && self.search.window.is_none();
        let (order, blocks) = self.whole_blocks();
        let window = self.search.window.unwrap_or((0, chunks));
        any_run || self.exact().is_some() || blocks_in(window, order) >= blocks
    }
}

/// Whole blocks of an order in some chunks of an empty space.
fn blocks_in((lo, hi): (u64, u64), order: u32) -> u64 {
    let first = 1_u64.checked_shl(order).map(|len| lo.div_ceil(len));
    first.map_or(0, |first| (hi >> order).saturating_sub(first))
}

/// The order of the smallest power of two that holds `count` chunks.
fn natural_order(count: u64) -> u32 {
    count
        .checked_next_power_of_two()
        .map_or(64, u64::trailing_zeros)
}

/// A buddy allocator over `[0, size)`.
///
/// Sizes that are not a power of two are covered by one root per set bit. Free buddies always
/// merge, whatever they hold: which parts of a merged block are cleared is kept beside it. Up to
/// seven dirty blocks of each of the lowest ten orders, those that were freed last, wait for it: a
/// request for one such block without conditions gets it as it is. They are merged before any
/// request with conditions, or for several blocks, or that finds no free block long enough.
///
/// Up to 2^28 chunks, a terabyte of pages, records are bitmaps of a fixed size. Larger spaces list
/// their blocks, so that host memory is held for what a live block may be made of when it is freed:
/// up to 8 KiB for each, see [`metadata_bytes`](Self::metadata_bytes).
///
/// # Invariants
/// Live blocks and free blocks tile the space. `cleared_bytes() <= free_bytes()`. A block on a
/// quick list is still recorded as live.
#[derive(Clone)]
pub struct Buddy {
    map: FreeMap,
    live: Live,
    quick: QuickLists<QUICK_ORDERS>,
    /// Blocks that may be listed, in a space that lists them, when all that is live is freed.
    held: usize,
    chunks: u64,
    shift: u32,
}

impl Buddy {
    /// An empty space of `size` bytes, rounded down to whole chunks, all of it dirty.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`] when `chunk` is not a power of two or `size` is smaller;
    /// [`SpaceError::MetadataExhausted`].
    pub fn new(size: u64, chunk: u64) -> Result<Self, SpaceError> {
        if !chunk.is_power_of_two() {
            return Err(SpaceError::Invalid {
                argument: "chunk",
                value: chunk,
            });
        }
        if size < chunk {
            return Err(SpaceError::Invalid {
                argument: "size",
                value: size,
            });
        }
        let shift = chunk.trailing_zeros();
        let chunks = size >> shift;
        if chunks > DENSE_LIMIT {
            return Self::with_lists(chunks, shift);
        }
        Ok(Self {
            map: FreeMap::new(chunks, Blocks::with_bitmaps(chunks)?)?,
            live: Live::with_bits(chunks)?,
            quick: QuickLists::new(),
            held: 0,
            chunks,
            shift,
        })
    }

    /// A space too large to have a bit for every block there could be.
    fn with_lists(chunks: u64, shift: u32) -> Result<Self, SpaceError> {
        Ok(Self {
            map: FreeMap::new(chunks, Blocks::with_lists())?,
            live: Live::with_list(),
            quick: QuickLists::new(),
            held: 0,
            chunks,
            shift,
        })
    }

    /// Bytes managed.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.chunks << self.shift
    }

    /// Bytes in the smallest block.
    #[must_use]
    pub fn chunk(&self) -> u64 {
        1 << self.shift
    }

    /// Bytes not handed out.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        let quick = self.quick.iter().map(|(order, _)| 1 << order);
        (self.map.free_chunks() + quick.sum::<u64>()) << self.shift
    }

    /// Free bytes known to be zero.
    #[must_use]
    pub fn cleared_bytes(&self) -> u64 {
        self.map.clear_chunks() << self.shift
    }

    /// Bytes in the largest free block. A run across blocks may be longer.
    #[must_use]
    pub fn largest_free(&self) -> u64 {
        let merged = self.quick.iter().map(|block| self.merged(block));
        merged.fold(self.map.largest(), u64::max) << self.shift
    }

    /// How many chunks the block has that a block on a quick list will be part of.
    fn merged(&self, block: (usize, u32)) -> u64 {
        let mut node = quick_node(block);
        while node.order < self.max_order() && self.is_free(node.buddy()) {
            node = node.parent();
        }
        1 << node.order
    }

    /// Whether every chunk of a block is free.
    fn is_free(&self, block: Node) -> bool {
        let (mut at, end) = (block.first(), block.end());
        if end > self.chunks {
            return false;
        }
        while at < end {
            let mut quick = self.quick.iter().map(quick_node);
            let joined = self.map.covering(at).map(|(_, node)| node);
            let Some(node) = joined.or_else(|| quick.find(|node| node.first() == at)) else {
                return false;
            };
            at = node.end();
        }
        true
    }

    /// Bytes of host memory held for records. They are fixed in spaces of up to 2^28 chunks, at
    /// most eleven bits per chunk and 12 KiB. In larger ones they are at most 8 KiB per block of
    /// the most that were ever live, and 32 KiB.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        self.map.bytes() + self.live.bytes()
    }

    /// Base-two logarithm of the largest possible block, in chunks.
    #[must_use]
    pub fn max_order(&self) -> u32 {
        self.map.max_order()
    }

    /// Takes the blocks that make up `request`, in the order they were found.
    ///
    /// # Errors
    /// [`SpaceError::NoSpace`] when the free blocks do not suffice; [`SpaceError::Invalid`] when
    /// `size`, `within` or the span of an exact request is not made of chunks, `min_block` or
    /// `align` is no power of two, or all of the space would not suffice;
    /// [`SpaceError::OutOfRange`] when `within` leaves the space;
    /// [`SpaceError::MetadataExhausted`].
    pub fn alloc(&mut self, request: &BuddyRequest) -> Result<Vec<Block>, SpaceError> {
        let mut blocks = Vec::new();
        blocks
            .try_reserve_exact(1)
            .map_err(|_| SpaceError::MetadataExhausted)?;
        if let Some(block) = self.alloc_quick(request) {
            blocks.push(block);
            return Ok(blocks);
        }
        let plan = self.plan(request)?;
        if plan.contiguous || plan.exact().is_some() {
            blocks.push(self.alloc_run(&plan)?);
            return Ok(blocks);
        }
        let mut clear_parts = Vec::new();
        let served = self.alloc_scattered(&plan, &mut blocks, &mut clear_parts);
        if served == Ok(true) {
            return Ok(blocks);
        }
        clear_parts.sort_unstable();
        for block in blocks {
            let taken = self.end_life(block.span());
            self.map
                .give_back(taken, class(block.content), &clear_parts);
        }
        served?;
        // Only now are the figures those of the space that is left.
        Err(self.no_space(&plan))
    }

    /// Takes the single block that `request` asks for, without a list to carry it: the request
    /// is treated as [`contiguous`](BuddyRequest::contiguous).
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[inline]
    pub fn alloc_one(&mut self, request: &BuddyRequest) -> Result<Block, SpaceError> {
        match self.alloc_quick(request) {
            Some(block) => Ok(block),
            None => self.alloc_merged(request),
        }
    }

    #[inline(never)]
    fn alloc_merged(&mut self, request: &BuddyRequest) -> Result<Block, SpaceError> {
        if let Some(block) = self.alloc_plain(request) {
            return Ok(block);
        }
        let plan = self.plan(&request.contiguous())?;
        self.alloc_run(&plan)
    }

    /// Gives the live block at a span back, with what it holds.
    ///
    /// # Panics
    /// When `block` is not exactly the span of a live one: it was freed before, is from before it
    /// was trimmed, or is not of this space. Nothing has changed then.
    #[inline]
    pub fn free(&mut self, block: Span, content: Content) {
        let list = self.live_chunks(block).and_then(quick_list);
        match list {
            Some((list, start)) if content == Content::Dirty && !self.quick.is_full(list) => {
                self.quick.push(list, start);
            }
            _ => self.free_merging(block, content),
        }
    }

    #[inline(never)]
    fn free_merging(&mut self, block: Span, content: Content) {
        let (first, count) = self.expect_live(block);
        match quick_list((first, count)) {
            Some((list, start)) if content == Content::Dirty => {
                if let Some(oldest) = self.quick.push(list, start) {
                    self.merge(u64::from(oldest), count, Class::Dirty);
                }
            }
            _ => self.merge(first, count, class(content)),
        }
    }

    /// Merges a block that is recorded as live with its free buddies.
    fn merge(&mut self, first: u64, count: u64, held: Class) {
        self.bury(first, count);
        self.map.give(first, count, held);
    }

    /// Merges all blocks that wait for it.
    fn coalesce(&mut self) {
        while let Some((order, start)) = self.quick.pop_any() {
            self.merge(u64::from(start), 1 << order, Class::Dirty);
        }
    }

    /// Shrinks the live block at a span to `keep`; the rest is free again and holds `content`.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`] when `keep` is empty, not made of chunks or not inside the block,
    /// [`SpaceError::MetadataExhausted`].
    ///
    /// # Panics
    /// As [`free`](Self::free).
    pub fn trim(&mut self, block: Span, keep: Span, content: Content) -> Result<(), SpaceError> {
        let mask = self.chunk() - 1;
        let invalid = |value| {
            let argument = "keep";
            Err(SpaceError::Invalid { argument, value })
        };
        if keep.start() & mask != 0 || !block.contains(keep.start()) {
            return invalid(keep.start());
        }
        if keep.is_empty() || keep.len() & mask != 0 || !block.covers(keep) {
            return invalid(keep.len());
        }
        let (start, end) = (keep.start() >> self.shift, keep.end() >> self.shift);
        self.prepare(0)?;
        let (first, count) = self.end_life(block);
        self.begin_life(start, end - start);
        if start > first {
            self.map.give(first, start - first, class(content));
        }
        if end < first + count {
            self.map.give(end, first + count - end, class(content));
        }
        Ok(())
    }

    /// Declares the content of all free space, as after a suspend that lost it.
    pub fn reset(&mut self, content: Content) {
        self.coalesce();
        self.map.reset(class(content));
    }

    /// Compares all records with one another; for tests, O(n).
    ///
    /// # Panics
    /// When they disagree.
    pub fn check(&self) {
        self.map.check();
        let free = self.map.nodes().map(|node| (node.first(), node.end()));
        let live = self
            .live
            .iter()
            .map(|(first, count)| (first, first + count));
        let mut tiles: Vec<_> = free.chain(live).collect();
        tiles.sort_unstable();
        let end = tiles.iter().fold(0, |at, &(first, end)| {
            assert_eq!(first, at, "blocks, live and free, do not tile the space");
            end
        });
        assert_eq!(end, self.chunks, "blocks do not reach to the end");
        for (order, start) in self.quick.iter() {
            let (first, count) = (u64::from(start), 1 << order);
            assert!(
                self.live.holds(first, count),
                "a block is on a list and not recorded"
            );
            assert_eq!(quick_list((first, count)), Some((order, start)));
        }
    }

    /// The chunks of a block, if it is live.
    #[inline]
    fn live_chunks(&self, block: Span) -> Option<(u64, u64)> {
        let chunks = (block.start() >> self.shift, block.len() >> self.shift);
        let (first, count) = chunks;
        let is_whole = (block.start() | block.len()) & (self.chunk() - 1) == 0;
        let is_inside = first < self.chunks && count <= self.chunks - first;
        let is_waiting = |(list, start)| self.quick.contains(list, start);
        let is_live = is_whole
            && is_inside
            && self.live.holds(first, count)
            && !quick_list(chunks).is_some_and(is_waiting);
        is_live.then_some(chunks)
    }

    fn expect_live(&self, block: Span) -> (u64, u64) {
        self.live_chunks(block)
            .unwrap_or_else(|| panic!("block {:#x}+{:#x} is not live", block.start(), block.len()))
    }

    /// Takes a block off the record of live ones. Returns its chunks.
    fn end_life(&mut self, block: Span) -> (u64, u64) {
        let (first, count) = self.expect_live(block);
        self.bury(first, count);
        (first, count)
    }

    #[inline]
    fn bury(&mut self, first: u64, count: u64) {
        self.live.remove(first, count);
        if self.map.is_listed() {
            self.held -= self.map.parts(first, count);
        }
    }

    #[inline]
    fn begin_life(&mut self, first: u64, count: u64) {
        self.live.insert(first, count);
        if self.map.is_listed() {
            self.held += self.map.parts(first, count);
        }
    }

    /// Gets the host memory that taking a block, and freeing all that is live, may need. `more`
    /// blocks may be listed besides.
    fn prepare(&mut self, more: usize) -> Result<(), SpaceError> {
        self.map.reserve(self.held + SLACK + more)?;
        self.live.reserve()
    }

    /// How many chunks a request without conditions asks for, whatever they hold.
    #[inline]
    fn plain(&self, request: &BuddyRequest) -> Option<u64> {
        let plain = request.min_block.is_none()
            && request.align == 1
            && request.within.is_none()
            && request.end == End::Low
            && request.content == Content::Dirty;
        let count = request.size >> self.shift;
        (plain && count << self.shift == request.size).then_some(count)
    }

    /// Serves a request with a block that was freed lately.
    #[inline]
    fn alloc_quick(&mut self, request: &BuddyRequest) -> Option<Block> {
        let count = self.plain(request)?;
        let order = count.trailing_zeros() as usize;
        if !count.is_power_of_two() {
            return None;
        }
        let first = self.quick.pop(order)?;
        Some(Block {
            offset: u64::from(first) << self.shift,
            size: request.size,
            content: Content::Dirty,
        })
    }

    /// Serves a request without conditions from space that is not known to be clear. Not finding
    /// a block that way says nothing: the general path looks further.
    #[inline]
    fn alloc_plain(&mut self, request: &BuddyRequest) -> Option<Block> {
        let count = self.plain(request)?;
        let order = natural_order(count);
        if count == 0 || order > self.max_order() {
            return None;
        }
        let first = self.map.take_dirty(order, count)?;
        Some(self.adopt(first, count, Class::Dirty))
    }

    fn no_space(&self, plan: &Plan) -> SpaceError {
        SpaceError::NoSpace {
            needed: plan.count << self.shift,
            free: self.free_bytes(),
            largest: self.largest_free(),
            conditions: plan.conditions(),
        }
    }

    fn order_of(&self, argument: &'static str, bytes: u64) -> Result<u32, SpaceError> {
        if !bytes.is_power_of_two() {
            return Err(SpaceError::Invalid {
                argument,
                value: bytes,
            });
        }
        Ok(bytes.trailing_zeros().saturating_sub(self.shift))
    }

    fn plan(&self, request: &BuddyRequest) -> Result<Plan, SpaceError> {
        let invalid = |argument, value| Err(SpaceError::Invalid { argument, value });
        let count = request.size >> self.shift;
        if count == 0 || count << self.shift != request.size || count > self.chunks {
            return invalid("size", request.size);
        }
        let smallest = request.min_block.unwrap_or(self.chunk());
        if smallest < self.chunk() {
            return invalid("min_block", smallest);
        }
        let min_order = self.order_of("min_block", smallest)?;
        let align_order = self.order_of("align", request.align)?.max(min_order);
        let plan = Plan {
            count,
            padded: count
                .checked_next_multiple_of(1 << min_order)
                .unwrap_or(u64::MAX),
            min_order,
            align_order,
            contiguous: request.contiguous,
            search: Search {
                window: self.window(request, smallest)?,
                end: request.end,
                clear: request.content == Content::Cleared,
            },
        };
        if plan.is_possible(self.chunks) {
            Ok(plan)
        } else {
            Err(self.blame(request, &plan))
        }
    }

    /// Names what a request that not even the empty space could serve would have to change.
    #[cold]
    fn blame(&self, request: &BuddyRequest, plan: &Plan) -> SpaceError {
        let all = (0, self.chunks);
        let (order, blocks) = plan.whole_blocks();
        let (argument, value) = if blocks_in(all, order) >= blocks {
            ("within", request.within.map_or(0, Span::len))
        } else if plan.contiguous && natural_order(plan.count) > self.max_order() {
            ("size", request.size)
        } else if blocks_in(all, plan.min_order) < plan.count.div_ceil(1 << plan.min_order) {
            ("min_block", request.min_block.unwrap_or(self.chunk()))
        } else {
            ("align", request.align)
        };
        SpaceError::Invalid { argument, value }
    }

    fn window(
        &self,
        request: &BuddyRequest,
        smallest: u64,
    ) -> Result<Option<(u64, u64)>, SpaceError> {
        let Some(span) = request.within else {
            return Ok(None);
        };
        if span.end() > self.size() {
            return Err(SpaceError::OutOfRange {
                start: span.start(),
                len: span.len(),
            });
        }
        let (mut start, mut end) = (self.chunk(), self.chunk());
        if span.len() == request.size {
            (start, end) = (smallest.max(request.align), smallest);
        }
        let value = if span.start() & (start.max(self.chunk()) - 1) != 0 {
            span.start()
        } else if span.end() & (end - 1) != 0 || span.len() < request.size {
            span.len()
        } else {
            return Ok(Some((span.start() >> self.shift, span.end() >> self.shift)));
        };
        Err(SpaceError::Invalid {
            argument: "within",
            value,
        })
    }

    #[inline]
    fn adopt(&mut self, first: u64, count: u64, held: Class) -> Block {
        self.begin_life(first, count);
        Block {
            offset: first << self.shift,
            size: count << self.shift,
            content: if held == Class::Clear {
                Content::Cleared
            } else {
                Content::Dirty
            },
        }
    }

    fn find(&self, order: u32, plan: &Plan) -> Option<Found> {
        self.map
            .find_block(&plan.search, order.max(plan.align_order))
    }

    fn take_at(&mut self, first: u64, count: u64) -> Block {
        let held = self.map.take_exact(first, count);
        self.adopt(first, count, held)
    }

    fn alloc_run(&mut self, plan: &Plan) -> Result<Block, SpaceError> {
        self.prepare(0)?;
        self.coalesce();
        if let Some(first) = plan.exact() {
            if !self.map.is_free(first, first + plan.count) {
                return Err(self.no_space(plan));
            }
            return Ok(self.take_at(first, plan.count));
        }
        if let Some(found) = self.find(natural_order(plan.count), plan) {
            let (first, held) = self.map.claim(found, plan.count);
            return Ok(self.adopt(first, plan.count, held));
        }
        if plan.search.window.is_some() || plan.count > self.map.free_chunks() {
            return Err(self.no_space(plan));
        }
        let align = 1 << plan.align_order;
        match self.map.find_run(plan.count, align, &self.live) {
            Some(first) => Ok(self.take_at(first, plan.count)),
            None => Err(self.no_space(plan)),
        }
    }

    /// Takes blocks until the request is served, and returns whether it is. If not, `blocks` and
    /// `clear_parts` say what is to be undone.
    fn alloc_scattered(
        &mut self,
        plan: &Plan,
        blocks: &mut Vec<Block>,
        clear_parts: &mut Vec<(u64, u64)>,
    ) -> Result<bool, SpaceError> {
        self.coalesce();
        if plan.padded > self.map.free_chunks() {
            return Ok(false);
        }
        let (mut wanted, mut padded) = (plan.count, plan.padded);
        let mut order = self.max_order();
        while padded > 0 {
            order = order.min(padded.ilog2());
            let Some(found) = self.find(order, plan) else {
                if order <= plan.min_order {
                    return Ok(false);
                }
                order -= 1;
                continue;
            };
            blocks
                .try_reserve(1)
                .map_err(|_| SpaceError::MetadataExhausted)?;
            let count = wanted.min(1 << order);
            self.map.note_clear(&found, count, clear_parts)?;
            self.prepare(clear_parts.len())?;
            let (first, held) = self.map.claim(found, count);
            blocks.push(self.adopt(first, count, held));
            padded -= 1 << order;
            wanted = wanted.saturating_sub(1 << order);
        }
        Ok(true)
    }
}

/// Figures, and how many free blocks there are of each order: a few lines however large the space.
impl fmt::Debug for Buddy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let orders = self.max_order() as usize + 1;
        f.debug_struct("Buddy")
            .field("size", &self.size())
            .field("chunk", &self.chunk())
            .field("free_bytes", &self.free_bytes())
            .field("cleared_bytes", &self.cleared_bytes())
            .field("waiting_blocks", &self.quick.len())
            .field("free_blocks", &&self.map.counts()[..orders])
            .finish()
    }
}

fn class(content: Content) -> Class {
    match content {
        Content::Dirty => Class::Dirty,
        Content::Cleared => Class::Clear,
    }
}
