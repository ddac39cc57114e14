//! Address-ordered allocation of ranges.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use vrampager_addr::Span;

use crate::SpaceError;

#[cfg(test)]
mod tests;

/// Which hole a range is taken from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// The smallest hole that fits, the lowest of equals. Packs random lifetimes best.
    #[default]
    Best,
    /// The lowest address that fits.
    Low,
    /// The highest address that fits; the range lies at the top of its hole.
    High,
    /// The hole that was made last.
    Evict,
}

/// What to insert into a [`RangeAllocator`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeRequest {
    size: u64,
    align: u64,
    mode: Mode,
    once: bool,
    within: Option<Span>,
    color: u32,
}

impl RangeRequest {
    /// `size` bytes, unaligned, best fit, anywhere, colour 0.
    #[must_use]
    pub const fn new(size: u64) -> Self {
        Self {
            size,
            align: 1,
            mode: Mode::Best,
            once: false,
            within: None,
            color: 0,
        }
    }

    /// Start at a multiple of `align`, which need not be a power of two. 0 is taken as 1.
    #[must_use]
    pub const fn align(mut self, align: u64) -> Self {
        self.align = if align == 0 { 1 } else { align };
        self
    }

    /// Choose the hole by `mode`.
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Look only at the first hole in the order of the mode that is long enough, and fail if it
    /// doesn't serve.
    #[must_use]
    pub const fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// Stay inside `span`.
    #[must_use]
    pub const fn within(mut self, span: Span) -> Self {
        self.within = Some(span);
        self
    }

    /// Tag the range with a colour, which the gap rule of the space sees.
    #[must_use]
    pub const fn color(mut self, color: u32) -> Self {
        self.color = color;
        self
    }
}

/// A live range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The addresses it covers.
    pub span: Span,
    /// The tag it was made with.
    pub color: u32,
}

/// How many bytes must stay free between a range of the first colour and one of the second that
/// follows it.
pub type GapRule = fn(u32, u32) -> u64;

fn no_gap(_: u32, _: u32) -> u64 {
    0
}

#[derive(Clone, Copy, Debug)]
struct Node {
    end: u64,
    color: u32,
}

#[derive(Clone, Copy, Debug)]
struct Hole {
    end: u64,
    made: u64,
}

/// An allocator of ranges of a 64-bit space, kept in address order.
///
/// # Examples
/// ```
/// use vrampager_addr::Span;
/// use vrampager_space::{Mode, RangeAllocator, RangeRequest};
/// let mut space = RangeAllocator::new(Span::new(0x1000, 0x10000).unwrap());
/// let low = space.insert(&RangeRequest::new(0x800).mode(Mode::Low)).unwrap();
/// assert_eq!(low.start(), 0x1000);
/// space.reserve(Span::new(0x8000, 0x1000).unwrap(), 0).unwrap();
/// assert!(space.insert(&RangeRequest::new(0x9000)).is_err());
/// assert_eq!(space.remove(0x8000).map(|span| span.len()), Some(0x1000));
/// ```
#[derive(Clone)]
pub struct RangeAllocator {
    span: Span,
    gap: GapRule,
    live: BTreeMap<u64, Node>,
    holes: BTreeMap<u64, Hole>,
    clock: u64,
    free: u64,
}

impl RangeAllocator {
    /// An empty space. The span may start anywhere and be empty.
    #[must_use]
    pub fn new(span: Span) -> Self {
        Self::with_gap(span, no_gap)
    }

    /// A space with a rule about neighbours. The ends of the space are no neighbours.
    #[must_use]
    pub fn with_gap(span: Span, gap: GapRule) -> Self {
        let mut space = Self {
            span,
            gap,
            live: BTreeMap::new(),
            holes: BTreeMap::new(),
            clock: 0,
            free: span.len(),
        };
        space.add_hole(span.start(), span.end());
        space
    }

    /// The space managed.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// Bytes in no range.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free
    }

    /// Length of the longest hole.
    #[must_use]
    pub fn largest_hole(&self) -> u64 {
        self.holes
            .iter()
            .map(|(&start, hole)| hole.end - start)
            .max()
            .unwrap_or(0)
    }

    /// Number of live ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether no range is live.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Holes in address order.
    pub fn holes(&self) -> impl Iterator<Item = Span> + '_ {
        self.holes
            .iter()
            .map(|(&start, hole)| span(start, hole.end))
    }

    /// Live ranges in address order.
    pub fn ranges(&self) -> impl Iterator<Item = Range> + '_ {
        self.live.iter().map(|(&start, node)| range(start, *node))
    }

    /// The live range that holds `address`.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Range> {
        let (&start, node) = self.live.range(..=address).next_back()?;
        (address < node.end).then(|| range(start, *node))
    }

    /// The live range with the lowest start at or above `address`.
    #[must_use]
    pub fn first_at_or_after(&self, address: u64) -> Option<Range> {
        let (&start, node) = self.live.range(address..).next()?;
        Some(range(start, *node))
    }

    /// Takes a range out of a hole.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`] for size 0, [`SpaceError::OutOfRange`] when the request is limited
    /// to a span that is not all inside the space, else [`SpaceError::NoSpace`].
    pub fn insert(&mut self, request: &RangeRequest) -> Result<Span, SpaceError> {
        if request.size == 0 {
            return Err(SpaceError::Invalid {
                argument: "size",
                value: 0,
            });
        }
        let window = self.window(request.within)?;
        let mut holes: Vec<(u64, Hole)> = self
            .holes
            .iter()
            .map(|(&start, &hole)| (start, hole))
            .filter(|(start, hole)| hole.end - start >= request.size)
            .filter(|&(start, hole)| start < window.end() && hole.end > window.start())
            .collect();
        match request.mode {
            Mode::Best => holes.sort_by_key(|&(start, hole)| (hole.end - start, start)),
            Mode::Low => {}
            Mode::High => holes.reverse(),
            Mode::Evict => holes.sort_by_key(|&(_, hole)| u64::MAX - hole.made),
        }
        let tries = if request.once { 1 } else { usize::MAX };
        let found = holes
            .into_iter()
            .take(tries)
            .find_map(|(start, hole)| self.fit(span(start, hole.end), window, request));
        let start = found.ok_or_else(|| self.no_space(request.size))?;
        let taken = span(start, start + request.size);
        self.occupy(taken, request.color);
        Ok(taken)
    }

    /// Takes exactly `span`.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`] when it is empty, [`SpaceError::OutOfRange`] when it is not all
    /// inside the space, [`SpaceError::NoSpace`] when a part is taken or too near a neighbour.
    pub fn reserve(&mut self, span: Span, color: u32) -> Result<(), SpaceError> {
        if span.is_empty() {
            return Err(SpaceError::Invalid {
                argument: "size",
                value: 0,
            });
        }
        self.window(Some(span))?;
        let exact = RangeRequest::new(span.len()).color(color);
        let fits = self
            .hole_at(span.start())
            .is_some_and(|hole| self.fit(hole, span, &exact) == Some(span.start()));
        if !fits {
            return Err(self.no_space(span.len()));
        }
        self.occupy(span, color);
        Ok(())
    }

    /// Gives back the live range that starts at `start`; `None` if there is none.
    pub fn remove(&mut self, start: u64) -> Option<Span> {
        let node = self.live.remove(&start)?;
        self.free += node.end - start;
        let (mut lo, mut hi) = (start, node.end);
        if let Some((&before, hole)) = self.holes.range(..start).next_back()
            && hole.end == start
        {
            lo = before;
            self.holes.remove(&before);
        }
        if let Some(after) = self.holes.remove(&node.end) {
            hi = after.end;
        }
        self.add_hole(lo, hi);
        Some(span(start, node.end))
    }

    /// Gives back every live range that lies inside `span`. A range that reaches out of it stays.
    pub fn vacate(&mut self, span: Span) {
        while let Some(range) = self.first_at_or_after(span.start())
            && span.covers(range.span)
        {
            self.remove(range.span.start());
        }
    }

    /// Gives a live range another colour, in its place. Returns the old colour.
    pub fn replace(&mut self, start: u64, color: u32) -> Option<u32> {
        let node = self.live.get_mut(&start)?;
        Some(core::mem::replace(&mut node.color, color))
    }

    /// Begins a search for the candidates whose removal makes room for `request`.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), except for space.
    pub fn eviction_scan(&self, request: &RangeRequest) -> Result<EvictionScan<'_>, SpaceError> {
        if request.size == 0 {
            return Err(SpaceError::Invalid {
                argument: "size",
                value: 0,
            });
        }
        Ok(EvictionScan {
            space: self,
            request: *request,
            window: self.window(request.within)?,
            added: Vec::new(),
            merged: BTreeMap::new(),
            hit: None,
        })
    }

    /// Compares all records with one another; for tests, O(n).
    ///
    /// # Panics
    /// When they disagree.
    pub fn check(&self) {
        let mut parts: Vec<(Span, bool)> = self.ranges().map(|range| (range.span, true)).collect();
        parts.extend(self.holes().map(|hole| (hole, false)));
        parts.sort_unstable_by_key(|(span, _)| span.start());
        let mut at = self.span.start();
        let mut last_live = true;
        for (part, live) in parts {
            assert_eq!(part.start(), at, "ranges and holes do not tile the space");
            assert!(live || last_live, "two holes touch");
            (at, last_live) = (part.end(), live);
        }
        assert_eq!(at, self.span.end(), "the end of the space is lost");
        assert_eq!(self.holes().map(Span::len).sum::<u64>(), self.free);
    }

    fn add_hole(&mut self, start: u64, end: u64) {
        if start < end {
            self.clock += 1;
            self.holes.insert(
                start,
                Hole {
                    end,
                    made: self.clock,
                },
            );
        }
    }

    fn hole_at(&self, address: u64) -> Option<Span> {
        let (&start, hole) = self.holes.range(..=address).next_back()?;
        (address < hole.end).then(|| span(start, hole.end))
    }

    fn window(&self, within: Option<Span>) -> Result<Span, SpaceError> {
        let window = within.unwrap_or(self.span);
        if self.span.covers(window) {
            Ok(window)
        } else {
            Err(SpaceError::OutOfRange {
                start: window.start(),
                len: window.len(),
            })
        }
    }

    fn no_space(&self, needed: u64) -> SpaceError {
        SpaceError::NoSpace {
            needed,
            free: self.free,
            largest: self.largest_hole(),
        }
    }

    /// Where in `hole` the request can start, inside `window` and away from the neighbours.
    fn fit(&self, hole: Span, window: Span, request: &RangeRequest) -> Option<u64> {
        let (mut lo, mut hi) = (hole.start(), hole.end());
        if let Some((_, left)) = self.live.range(..lo).next_back()
            && left.end == lo
        {
            lo = lo.checked_add((self.gap)(left.color, request.color))?;
        }
        if let Some((&right, node)) = self.live.range(hi..).next()
            && right == hi
        {
            hi = hi.checked_sub((self.gap)(request.color, node.color))?;
        }
        place(lo.max(window.start()), hi.min(window.end()), request)
    }

    fn occupy(&mut self, taken: Span, color: u32) {
        let hole = self.hole_at(taken.start()).expect("the range fits a hole");
        let old = self
            .holes
            .remove(&hole.start())
            .expect("the hole is listed");
        for (start, end) in [(hole.start(), taken.start()), (taken.end(), hole.end())] {
            if start < end {
                self.holes.insert(start, Hole { end, ..old });
            }
        }
        self.free -= taken.len();
        self.live.insert(
            taken.start(),
            Node {
                end: taken.end(),
                color,
            },
        );
    }
}

/// The start of an aligned part of `[lo, hi)`, at the end the mode asks for.
fn place(lo: u64, hi: u64, request: &RangeRequest) -> Option<u64> {
    let last = hi.checked_sub(request.size)?;
    let start = match request.mode {
        Mode::High => last - last % request.align,
        Mode::Best | Mode::Low | Mode::Evict => lo.checked_next_multiple_of(request.align)?,
    };
    (start >= lo && start <= last).then_some(start)
}

fn span(start: u64, end: u64) -> Span {
    Span::from_bounds(start, end).expect("bounds are ordered")
}

fn range(start: u64, node: Node) -> Range {
    Range {
        span: span(start, node.end),
        color: node.color,
    }
}

/// A search for ranges to evict, fed with candidates, the most expendable first.
///
/// It borrows the space and changes nothing there, so that giving up needs no undo.
#[derive(Debug)]
pub struct EvictionScan<'a> {
    space: &'a RangeAllocator,
    request: RangeRequest,
    window: Span,
    added: Vec<u64>,
    /// Free space as it would be without the candidates, where it differs.
    merged: BTreeMap<u64, u64>,
    hit: Option<Span>,
}

impl EvictionScan<'_> {
    /// Adds the live range that starts at `start`. Returns the place the request would get once
    /// the victims are gone, as soon as there is one; later candidates change nothing.
    ///
    /// # Panics
    /// When no live range starts there.
    pub fn add(&mut self, start: u64) -> Option<Span> {
        if self.hit.is_some() {
            return self.hit;
        }
        let node = self.space.live.get(&start).expect("a candidate is live");
        self.added.push(start);
        let (mut lo, mut hi) = (start, node.end);
        if let Some((&before, &end)) = self.merged.range(..start).next_back()
            && end == start
        {
            self.merged.remove(&before);
            lo = before;
        } else if let Some(hole) = start.checked_sub(1).and_then(|at| self.space.hole_at(at)) {
            lo = hole.start();
        }
        if let Some(end) = self.merged.remove(&hi) {
            hi = end;
        } else if let Some(hole) = self.space.hole_at(hi) {
            hi = hole.end();
            // The hole may already belong to the candidate behind it.
            if let Some(end) = self.merged.remove(&hole.start()) {
                hi = end;
            }
        }
        self.merged.insert(lo, hi);
        self.hit = self
            .space
            .fit(span(lo, hi), self.window, &self.request)
            .map(|start| span(start, start + self.request.size));
        self.hit
    }

    /// The candidates to evict, the last added first: those that overlap the place
    /// found or stand too near to it. Empty
    /// when there is none.
    #[must_use]
    pub fn victims(&self) -> Vec<Span> {
        let Some(hit) = self.hit else {
            return Vec::new();
        };
        let too_near = |start: u64| {
            let node = self.space.live[&start];
            let color = self.request.color;
            let end = node.end.saturating_add((self.space.gap)(node.color, color));
            let begin = start.saturating_sub((self.space.gap)(color, node.color));
            end > hit.start() && begin < hit.end()
        };
        self.added
            .iter()
            .rev()
            .copied()
            .filter(|&start| too_near(start))
            .map(|start| span(start, self.space.live[&start].end))
            .collect()
    }
}

impl fmt::Debug for RangeAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = f.debug_map();
        let mut at = self.span.start();
        for range in self.ranges() {
            if at < range.span.start() {
                parts.entry(&span(at, range.span.start()), &"free");
            }
            parts.entry(&range.span, &range.color);
            at = range.span.end();
        }
        if at < self.span.end() {
            parts.entry(&span(at, self.span.end()), &"free");
        }
        parts.finish()
    }
}
