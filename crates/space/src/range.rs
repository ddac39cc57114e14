//! Address-ordered allocation of ranges.

use core::fmt;

use vrampager_addr::Span;

use crate::{Conditions, SpaceError};
pub use evict::{Eviction, EvictionScan};
use index::HoleIndex;
use leaf::{Segment, Side};
use tree::{Path, Tree};

mod evict;
mod index;
mod inner;
mod lanes;
mod leaf;
mod slots;
mod tags;
mod tree;

#[cfg(test)]
mod tests;

/// Which hole a range is taken from.
///
/// Each mode says how many holes a search looks at. In address order that takes a descent of the
/// tree for each, which is logarithmic in the number of live ranges, and less in the other modes.
/// Taking the range is one descent more. A request that is refused although a hole is long enough
/// has looked at every such hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// A small hole that fits. Packs random lifetimes best.
    ///
    /// Holes are in size classes of a 64th of an octave. Of the four newest of a class the smallest
    /// is taken, the lowest of equals. Up to twelve that are long enough and yet do not serve, for
    /// their place or their neighbours, are passed over before the four. If none serves it is the
    /// next class's turn. After 32 classes, only those follow whose holes suit any alignment; only
    /// if they have none are all holes looked at, so that a refusal means that nothing fits.
    ///
    /// As a rule that is four holes of each of two classes, or up to sixteen of each of 34 with an
    /// alignment. It is all of the classes that may serve when limits or a gap rule leave those too
    /// short, and when no hole is of a longer class than the request and the four newest of its own
    /// are too short.
    #[default]
    Best,
    /// The lowest address that fits.
    ///
    /// This is exact without an alignment, whatever the space, and with one for as long as one of
    /// the 64 lowest holes that are long enough (for the size, not counting the alignment) serves.
    /// If none of them does, the range goes to the lowest hole in which it fits wherever that
    /// starts, which one of `size + align - 1` bytes is. A lower one that happens to be aligned is
    /// overlooked then: finding it could mean looking at every hole of the space. Only if there is
    /// no such hole are all the others looked at, so that a refusal means that nothing fits.
    ///
    /// With limits the counting begins at the limit. A hole that the limits, or a gap rule, leave
    /// too short is counted, but never taken.
    ///
    /// Holes that are too short are passed over at no cost: without an alignment and a gap rule
    /// one descent finds the place, or with limits two. With an alignment up to 128 holes are
    /// looked at, and with a gap rule as many as it leaves too short.
    Low,
    /// The highest address that fits; the range lies at the top of its hole. Aligned requests as
    /// for [`Mode::Low`], from the other end.
    High,
    /// The hole that was made last; what is left of a hole counts as made anew, and its upper part
    /// as later than its lower. Ages are known from the first request for [`Mode::Best`] or this
    /// one on that is served: holes that were there by then count as made in address order.
    ///
    /// Holes are looked at from the latest on until one serves, those that are too short as well:
    /// as many as were made since, which can be all.
    Evict,
}

/// What to insert into a [`RangeAllocator`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeRequest {
    pub(crate) size: u64,
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

    /// Start at a multiple of `align`, which need not be a power of two. 0 counts as 1.
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
    /// doesn't serve. For [`Mode::Evict`] that still passes over all later ones that are too short.
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

    /// Where in this hole the range would be.
    pub(crate) fn place_in(&self, hole: Span) -> Option<Span> {
        let start = place(hole.start(), hole.end(), self)?;
        Span::new(start, self.size)
    }

    pub(crate) fn conditions(&self) -> Conditions {
        Conditions::NONE
            .and(Conditions::ALIGN, self.align > 1)
            .and(Conditions::WITHIN, self.within.is_some())
            .and(Conditions::ONCE, self.once)
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

/// Holes looked at in address order before an aligned request prefers one that is long enough
/// for any alignment.
const ALIGNED_TRIES: usize = 64;

/// How many bytes must stay free between a range of the first colour and one of the second that
/// follows it.
///
/// A plain function that captures nothing, and so the same for as long as the space is there: what
/// it is to know of the neighbours stands in their colours.
pub type GapRule = fn(u32, u32) -> u64;

/// An allocator of ranges of a 64-bit space, kept in address order.
///
/// # Examples
/// ```
/// use vrampager_space::{Mode, RangeAllocator, RangeRequest, Span};
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
    gap: Option<GapRule>,
    /// Absent until the first insertion, and for good when the span is empty.
    tree: Option<Tree>,
    /// Made by the first request that needs it.
    index: Option<HoleIndex>,
    len: usize,
    free: u64,
}

impl RangeAllocator {
    /// An empty space. The span may start anywhere and be empty. Takes no host memory before the
    /// first insertion.
    #[must_use]
    pub const fn new(span: Span) -> Self {
        Self {
            span,
            gap: None,
            tree: None,
            index: None,
            len: 0,
            free: span.len(),
        }
    }

    /// A space with a rule about neighbours. The ends of the space are no neighbours.
    #[must_use]
    pub fn with_gap(span: Span, gap: GapRule) -> Self {
        Self {
            gap: Some(gap),
            ..Self::new(span)
        }
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
        self.tree.as_ref().map_or(self.span.len(), Tree::longest)
    }

    /// Number of live ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no range is live.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of host memory held for records: at most 16 KiB, and 256 per range of the most that
    /// were ever live at once; once [`Mode::Best`] or [`Mode::Evict`] was asked for, 16 KiB and 128
    /// per range more; where colours differ, 64 per range more. Where ranges or holes are longer
    /// than 2 GiB it can be 1 KiB per range instead, and 512 more for each of the other two.
    /// Records are kept for later use, and go with the allocator.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        self.tree.as_ref().map_or(0, Tree::bytes) + self.index.as_ref().map_or(0, HoleIndex::bytes)
    }

    /// Tree nodes in use: what the records need, where
    /// [`metadata_bytes`](Self::metadata_bytes) also counts what is kept for later.
    #[must_use]
    pub fn metadata_nodes(&self) -> usize {
        self.tree.as_ref().map_or(0, Tree::nodes)
    }

    /// Live ranges and holes in address order, with their numbers.
    fn segments(&self) -> impl Iterator<Item = (Segment, u32)> + '_ {
        let tree = self.tree.as_ref();
        let mut next = tree.map(|tree| tree.seek(self.span.start()));
        let untouched = (tree.is_none() && !self.span.is_empty()).then(|| self.one_hole());
        let inside = core::iter::from_fn(move || {
            let (tree, path) = (tree?, next.take()?);
            next = tree.next(&path);
            Some((tree.segment(&path), tree.tag(&path)))
        });
        untouched.into_iter().chain(inside)
    }

    /// What a space without a tree consists of.
    fn one_hole(&self) -> (Segment, u32) {
        let hole = Segment {
            start: self.span.start(),
            end: self.span.end(),
            hole: true,
        };
        (hole, 0)
    }

    /// Holes in address order.
    pub fn holes(&self) -> impl Iterator<Item = Span> + '_ {
        self.segments()
            .filter(|(segment, _)| segment.hole)
            .map(|(hole, _)| span(hole.start, hole.end))
    }

    /// Live ranges in address order.
    pub fn ranges(&self) -> impl Iterator<Item = Range> + '_ {
        self.segments()
            .filter(|(segment, _)| !segment.hole)
            .map(range)
    }

    /// The live range that holds `address`.
    #[inline]
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Range> {
        self.lookup(address)
            .filter(|(segment, _)| !segment.hole)
            .map(range)
    }

    /// The live range with the lowest start at or above `address`.
    #[must_use]
    pub fn first_at_or_after(&self, address: u64) -> Option<Range> {
        let tree = self.tree.as_ref()?;
        let mut path = tree.seek(self.span.start().max(address).min(self.span.end() - 1));
        for _ in 0..3 {
            let segment = tree.segment(&path);
            if !segment.hole && segment.start >= address {
                return Some(range((segment, tree.tag(&path))));
            }
            path = tree.next(&path)?;
        }
        None
    }

    /// Takes a range out of a hole.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`] for size 0, and for a request that would not fit even if no range
    /// were live; [`SpaceError::OutOfRange`] when the request is limited to a span that is not all
    /// inside the space; [`SpaceError::NoSpace`]; [`SpaceError::MetadataExhausted`].
    pub fn insert(&mut self, request: &RangeRequest) -> Result<Span, SpaceError> {
        if request.size == 0 {
            return Err(SpaceError::Invalid {
                argument: "size",
                value: 0,
            });
        }
        let window = self.window(request.within)?;
        let indexed = self.index.is_some();
        let mut path = Path::default();
        let start = match self.find_room(&mut path, request, window) {
            Ok(start) => start,
            Err(error) => {
                if !indexed {
                    // Holes would age from a request on that is to have changed nothing.
                    self.index = None;
                }
                return Err(error);
            }
        };
        let end = start + request.size;
        self.occupy(&path, (start, end), request.color);
        Ok(span(start, end))
    }

    /// Takes exactly `span`, for a range of this colour.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`] when it is empty, [`SpaceError::OutOfRange`] when it is not all
    /// inside the space, [`SpaceError::NoSpace`] when a part is taken or too near a neighbour,
    /// [`SpaceError::MetadataExhausted`].
    pub fn reserve(&mut self, span: Span, color: u32) -> Result<(), SpaceError> {
        if span.is_empty() {
            return Err(SpaceError::Invalid {
                argument: "span",
                value: 0,
            });
        }
        self.window(Some(span))?;
        self.prepare(&RangeRequest::new(span.len()).mode(Mode::Low).color(color))?;
        let tree = self
            .tree
            .as_ref()
            .ok_or_else(|| self.no_space(span.len(), Conditions::PLACE))?;
        let mut path = Path::default();
        tree.seek_into(&mut path, span.start());
        let hole = tree.segment(&path);
        // The gap rule is asked about neighbours of a hole only: those are live.
        let usable = hole
            .hole
            .then(|| self.usable(tree, &path, hole, color))
            .flatten();
        if usable.is_none_or(|(lo, hi)| span.start() < lo || span.end() > hi) {
            return Err(self.no_space(span.len(), Conditions::PLACE));
        }
        self.occupy(&path, (span.start(), span.end()), color);
        Ok(())
    }

    /// Gives back the live range that starts at `start`; `None` if there is none. Needs no
    /// memory and never fails.
    pub fn remove(&mut self, start: u64) -> Option<Span> {
        if !self.span.contains(start) {
            return None;
        }
        let tree = self.tree.as_mut()?;
        let mut path = Path::default();
        tree.seek_into(&mut path, start);
        let segment = tree.segment(&path);
        if segment.hole || segment.start != start {
            return None;
        }
        let val = match &mut self.index {
            None => 0,
            Some(index) => {
                let (mut lo, mut hi) = (start, segment.end);
                let hole = |path: Option<Path>| {
                    let path = path?;
                    let segment = tree.segment(&path);
                    segment.hole.then(|| (segment, tree.tag(&path)))
                };
                if let Some((left, id)) = hole(tree.prev(&path)) {
                    index.remove(id);
                    lo = left.start;
                }
                if let Some((right, id)) = hole(tree.next(&path)) {
                    index.remove(id);
                    hi = right.end;
                }
                index.add(lo, hi - lo)
            }
        };
        tree.vacate(&path, val);
        self.len -= 1;
        self.free += segment.end - start;
        Some(span(start, segment.end))
    }

    /// Gives back every live range that lies inside `span`. A range that reaches out of it stays.
    pub(crate) fn vacate(&mut self, span: Span) {
        while let Some(range) = self.first_at_or_after(span.start())
            && span.covers(range.span)
        {
            self.remove(range.span.start());
        }
    }

    /// Makes `span` a hole, or a part of one. Live ranges that reach out of it keep the rest. The
    /// caller has reserved.
    pub(crate) fn clear(&mut self, span: Span) {
        let range_at = |mm: &Self, at| mm.find(at).or_else(|| mm.first_at_or_after(at));
        while let Some(range) = range_at(self, span.start())
            && let Some(part) = range.span.intersection(span)
        {
            self.isolate(part, range.color);
            self.remove(part.start());
        }
    }

    /// Makes sure that the next [`isolate`](Self::isolate) needs no memory.
    pub(crate) fn reserve_isolation(&mut self) -> Result<(), SpaceError> {
        self.tree
            .as_mut()
            .map_or(Ok(()), |tree| tree.reserve_cuts(0))
    }

    /// Makes sure that the next [`clear`](Self::clear), and a reservation of what was cleared, need
    /// no memory.
    pub(crate) fn reserve_clearing(&mut self) -> Result<(), SpaceError> {
        self.tree
            .as_mut()
            .map_or(Ok(()), |tree| tree.reserve_cuts(1))
    }

    /// Makes `span`, which lies inside one live range, a live range of its own. What lies in
    /// front and behind keeps its colour. The caller has reserved.
    pub(crate) fn isolate(&mut self, span: Span, color: u32) {
        let tree = self.tree.as_mut().expect("a live range is in the tree");
        let path = tree.seek(span.start());
        let (whole, old) = (tree.segment(&path), tree.tag(&path));
        assert!(
            !whole.hole && span.end() <= whole.end,
            "{span:?} is not inside one live range"
        );
        if span.start() > whole.start {
            tree.cut(&path, span.start(), color);
            self.len += 1;
        } else {
            tree.set_tag(&path, color);
        }
        if span.end() < whole.end {
            let path = tree.seek(span.start());
            tree.cut(&path, span.end(), old);
            self.len += 1;
        }
    }

    /// Gives a live range another colour, in its place. Returns the old colour, `None` if no live
    /// range starts at `start`. The gap rule is not asked: neighbours may be too near to a range of
    /// the new colour.
    ///
    /// # Errors
    /// [`SpaceError::MetadataExhausted`]: the first colour that is not the one of all other ranges
    /// needs memory.
    pub fn replace(&mut self, start: u64, color: u32) -> Result<Option<u32>, SpaceError> {
        let Some(tree) = self.tree.as_mut().filter(|_| self.span.contains(start)) else {
            return Ok(None);
        };
        let path = tree.seek(start);
        let segment = tree.segment(&path);
        if segment.hole || segment.start != start {
            return Ok(None);
        }
        tree.reserve(color)?;
        let old = tree.tag(&path);
        tree.set_tag(&path, color);
        Ok(Some(old))
    }

    /// Begins a search for the candidates whose removal makes room for `request`.
    ///
    /// # Errors
    /// As [`insert`](Self::insert) for size 0 and the limits. A request that the empty space could
    /// not serve is scanned for, as in `drm_mm`: no candidates make room for it.
    pub fn eviction_scan(&self, request: &RangeRequest) -> Result<EvictionScan<'_>, SpaceError> {
        if request.size == 0 {
            return Err(SpaceError::Invalid {
                argument: "size",
                value: 0,
            });
        }
        let window = self.window(request.within)?;
        Ok(EvictionScan::new(self, request, window))
    }

    /// Compares all records with one another; for tests, O(n).
    ///
    /// # Panics
    /// When they disagree.
    pub fn check(&self) {
        let Some(tree) = &self.tree else {
            return;
        };
        tree.check(self.span.start(), self.span.end());
        let (mut free, mut holes, mut live, mut last_hole) = (0, 0, 0, false);
        for (segment, tag) in self.segments() {
            assert!(!(segment.hole && last_hole), "two holes touch");
            last_hole = segment.hole;
            if !segment.hole {
                live += 1;
                continue;
            }
            let len = segment.end - segment.start;
            (free, holes) = (free + len, holes + 1);
            if let Some(index) = &self.index {
                assert!(index.describes(tag, segment.start, len), "{segment:?}");
            }
        }
        assert_eq!((free, live), (self.free, self.len), "counters");
        if let Some(index) = &self.index {
            assert_eq!(index.count(), holes, "holes in the index that are gone");
        }
    }

    #[inline]
    fn lookup(&self, address: u64) -> Option<(Segment, u32)> {
        if !self.span.contains(address) {
            return None;
        }
        let tree = self.tree.as_ref();
        Some(tree.map_or_else(|| self.one_hole(), |tree| tree.lookup(address)))
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

    /// Tells a lack of space from a request that the space could not serve if it were empty.
    #[cold]
    fn refuse(&self, request: &RangeRequest, window: Span) -> SpaceError {
        let fits = |span: Span| place(span.start(), span.end(), request).is_some();
        let (argument, value) = if fits(window) {
            return self.no_space(request.size, request.conditions());
        } else if fits(self.span) {
            ("within", window.len())
        } else if request.size > self.span.len() {
            ("size", request.size)
        } else {
            ("align", request.align)
        };
        SpaceError::Invalid { argument, value }
    }

    #[cold]
    fn no_space(&self, needed: u64, conditions: Conditions) -> SpaceError {
        SpaceError::NoSpace {
            needed,
            free: self.free,
            largest: self.largest_hole(),
            conditions: conditions.and(Conditions::GAP, self.gap.is_some()),
        }
    }

    /// Gets the memory that an insertion, and the removal of what it inserts, may need.
    #[inline]
    fn prepare(&mut self, request: &RangeRequest) -> Result<(), SpaceError> {
        let RangeRequest { mode, color, .. } = *request;
        match &mut self.tree {
            Some(tree) => tree.reserve(color)?,
            None if self.span.is_empty() => {}
            None => {
                let mut tree = Tree::new(self.span.start(), self.span.end())?;
                tree.reserve(color)?;
                self.tree = Some(tree);
            }
        }
        // n ranges have at most n + 1 holes around them, and this makes one range more.
        let holes = self.len + 3;
        match &mut self.index {
            Some(index) => index.reserve(holes)?,
            None if mode == Mode::Best || mode == Mode::Evict => {
                self.build_index(holes, request.size)?;
            }
            None => {}
        }
        match &mut self.index {
            Some(index) if mode == Mode::Evict => index.list_by_age(),
            _ => Ok(()),
        }
    }

    /// Gets the memory that a request needs, and finds where it goes.
    #[inline]
    fn find_room(
        &mut self,
        path: &mut Path,
        request: &RangeRequest,
        window: Span,
    ) -> Result<u64, SpaceError> {
        self.prepare(request)?;
        self.first_fit(path, request)
            .or_else(|| self.search(path, request, window))
            .ok_or_else(|| self.refuse(request, window))
    }

    #[cold]
    fn build_index(&mut self, holes: usize, least: u64) -> Result<(), SpaceError> {
        if self.largest_hole() < least {
            // The request will be refused, and an index made for it would be dropped again.
            return Ok(());
        }
        let mut index = HoleIndex::new(holes)?;
        if let Some(tree) = &mut self.tree {
            tree.list_tags()?;
            let mut next = Some(tree.seek(self.span.start()));
            while let Some(path) = next {
                let segment = tree.segment(&path);
                if segment.hole {
                    let id = index.add(segment.start, segment.end - segment.start);
                    tree.set_tag(&path, id);
                }
                next = tree.next(&path);
            }
        }
        self.index = Some(index);
        Ok(())
    }

    /// What [`search`](Self::search) comes to nearly always: the first hole in address order that
    /// is long enough serves.
    #[inline]
    fn first_fit(&self, path: &mut Path, request: &RangeRequest) -> Option<u64> {
        let side = match request.mode {
            Mode::Low => Side::Low,
            Mode::High => Side::High,
            Mode::Best | Mode::Evict => return None,
        };
        if request.within.is_some() || self.gap.is_some() {
            return None;
        }
        let tree = self.tree.as_ref()?;
        if !tree.first_hole(path, request.size, side) {
            return None;
        }
        let hole = tree.segment(path);
        place(hole.start, hole.end, request)
    }

    /// Finds the hole to take from, and where the range will start.
    #[inline(never)]
    fn search(&self, path: &mut Path, request: &RangeRequest, window: Span) -> Option<u64> {
        let tree = self.tree.as_ref()?;
        if tree.longest() < request.size {
            return None;
        }
        let found = match (request.mode, &self.index) {
            (Mode::Low, _) => self.walk(tree, request, window, Side::Low),
            (Mode::High, _) => self.walk(tree, request, window, Side::High),
            (Mode::Best | Mode::Evict, None) => None,
            (Mode::Best | Mode::Evict, Some(index)) => {
                let (hole, start) = self.look_up(tree, index, request, window)?;
                tree.seek_into(path, hole);
                return Some(start);
            }
        };
        let (found, start) = found?;
        *path = found;
        Some(start)
    }

    /// The start of the hole to take from by the index, and where the range will start.
    fn look_up(
        &self,
        tree: &Tree,
        index: &HoleIndex,
        request: &RangeRequest,
        window: Span,
    ) -> Option<(u64, u64)> {
        let at = |hole: u64, len: u64| {
            // Only neighbours have to be looked up in the tree.
            let start = if self.gap.is_none() {
                let (lo, hi) = (hole.max(window.start()), (hole + len).min(window.end()));
                place(lo, hi, request)
            } else {
                self.fit(tree, &tree.seek(hole), window, request)
            };
            start.map(|start| (hole, start))
        };
        let sure = request.size.saturating_add(request.align - 1);
        match (request.mode, request.once) {
            (Mode::Evict, once) => {
                let tries = if once { 1 } else { usize::MAX };
                let mut holes = index.newest(request.size).take(tries);
                holes.find_map(|(hole, len)| at(hole, len))
            }
            (_, true) => {
                let (hole, len) = index.first_best(request.size)?;
                at(hole, len)
            }
            (_, false) => index.best((request.size, sure), at),
        }
    }

    /// Searches in address order.
    #[inline]
    fn walk(
        &self,
        tree: &Tree,
        request: &RangeRequest,
        window: Span,
        side: Side,
    ) -> Option<(Path, u64)> {
        let size = request.size;
        if request.once {
            return self.walk_holes(tree, request, window, (side, size, 1));
        }
        if request.align == 1 {
            return self.walk_holes(tree, request, window, (side, size, usize::MAX));
        }
        // A coarse alignment makes most holes useless. Rather than look at each, try those in
        // which the range fits wherever they start, and the rest only if there are none.
        let sure = size.saturating_add(request.align - 1);
        self.walk_holes(tree, request, window, (side, size, ALIGNED_TRIES))
            .or_else(|| self.walk_holes(tree, request, window, (side, sure, ALIGNED_TRIES)))
            .or_else(|| self.walk_holes(tree, request, window, (side, size, usize::MAX)))
    }

    /// Looks at up to `tries` holes of at least `least` bytes from one side.
    #[inline]
    fn walk_holes(
        &self,
        tree: &Tree,
        request: &RangeRequest,
        window: Span,
        (side, least, tries): (Side, u64, usize),
    ) -> Option<(Path, u64)> {
        let mut path = self.first_candidate(tree, least, window, side)?;
        for _ in 0..tries {
            if let Some(start) = self.fit(tree, &path, window, request) {
                return Some((path, start));
            }
            if !tree.next_hole(&mut path, least, side) {
                return None;
            }
            let hole = tree.segment(&path);
            let beyond = match side {
                Side::Low => hole.start >= window.end(),
                Side::High => hole.end <= window.start(),
            };
            if beyond {
                return None;
            }
        }
        None
    }

    /// The first hole that is long enough and touches the window.
    #[inline]
    fn first_candidate(&self, tree: &Tree, size: u64, window: Span, side: Side) -> Option<Path> {
        let edge = match side {
            Side::Low if window.start() > self.span.start() => window.start(),
            Side::High if window.end() < self.span.end() => window.end().checked_sub(1)?,
            Side::Low | Side::High => {
                let mut path = Path::default();
                return tree.first_hole(&mut path, size, side).then_some(path);
            }
        };
        if !self.span.contains(edge) {
            return None;
        }
        let mut path = tree.seek(edge);
        let segment = tree.segment(&path);
        let serves = segment.hole && segment.end - segment.start >= size;
        (serves || tree.next_hole(&mut path, size, side)).then_some(path)
    }

    /// The part of a hole that keeps its distance from the neighbours.
    #[inline]
    fn usable(&self, tree: &Tree, path: &Path, hole: Segment, color: u32) -> Option<(u64, u64)> {
        let Some(gap) = self.gap else {
            return Some((hole.start, hole.end));
        };
        let left = tree
            .prev(path)
            .map_or(0, |left| gap(tree.tag(&left), color));
        let right = tree
            .next(path)
            .map_or(0, |right| gap(color, tree.tag(&right)));
        Some((hole.start.checked_add(left)?, hole.end.checked_sub(right)?))
    }

    /// Where in the hole at `path` the request can start.
    #[inline]
    fn fit(&self, tree: &Tree, path: &Path, window: Span, request: &RangeRequest) -> Option<u64> {
        let (lo, hi) = self.usable(tree, path, tree.segment(path), request.color)?;
        place(lo.max(window.start()), hi.min(window.end()), request)
    }

    #[inline]
    fn occupy(&mut self, path: &Path, (start, end): (u64, u64), color: u32) {
        let tree = self.tree.as_mut().expect("the path leads through it");
        let mut rest = 0;
        if let Some(index) = &mut self.index {
            let (hole, id) = (tree.segment(path), tree.tag(path));
            match (start > hole.start, end < hole.end) {
                (false, false) => index.remove(id),
                (true, false) => index.change(id, hole.start, start - hole.start),
                (false, true) => {
                    rest = id;
                    index.change(rest, end, hole.end - end);
                }
                (true, true) => {
                    index.change(id, hole.start, start - hole.start);
                    rest = index.add(end, hole.end - end);
                }
            }
        }
        tree.occupy(path, (start, end), color, rest);
        self.len += 1;
        self.free -= end - start;
    }
}

/// The start of an aligned part of `[lo, hi)`, at the end the mode asks for.
#[inline]
fn place(lo: u64, hi: u64, request: &RangeRequest) -> Option<u64> {
    let last = hi.checked_sub(request.size)?;
    // Powers of two are the rule, and a division would cost more than the rest of the search.
    let over = |value: u64| match request.align.is_power_of_two() {
        true => value & (request.align - 1),
        false => value % request.align,
    };
    let start = match request.mode {
        Mode::High => last - over(last),
        Mode::Best | Mode::Low | Mode::Evict => match over(lo) {
            0 => lo,
            over => lo.checked_add(request.align - over)?,
        },
    };
    (start >= lo && start <= last).then_some(start)
}

fn span(start: u64, end: u64) -> Span {
    Span::from_bounds(start, end).expect("bounds are ordered")
}

fn range((segment, color): (Segment, u32)) -> Range {
    Range {
        span: span(segment.start, segment.end),
        color,
    }
}

impl fmt::Debug for RangeAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = f.debug_map();
        for (segment, color) in self.segments() {
            let bounds = span(segment.start, segment.end);
            if segment.hole {
                parts.entry(&bounds, &"free");
            } else {
                parts.entry(&bounds, &color);
            }
        }
        parts.finish()
    }
}
