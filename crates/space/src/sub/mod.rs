//! Constant-time allocation with sized frees.

mod aside;
mod bins;
mod bytes;
mod edges;
mod holes;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use vrampager_addr::Span;

use crate::{Conditions, SpaceError};
use aside::Aside;
use bins::{Hole, NONE, bin_of};
use edges::Side;
use holes::{Borders, Holes};

/// How much a [`SubAllocator`] looks around before it takes a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fit {
    /// A short range of the same length that was freed lately, as it is; failing that, a recent
    /// hole of the right size class; failing that, the hole that was last cut or grew; failing
    /// that, a recent one of the next class that has any.
    #[default]
    Fast,
    /// The smallest, then lowest, of up to sixteen holes of the class: packs as well as exact
    /// best fit.
    Tight,
}

/// Candidates looked at in a size class before going to the next.
const FAST_TRIES: usize = 2;
const TIGHT_TRIES: usize = 16;
/// Size classes that an aligned request looks through before it takes a hole that is long enough
/// wherever it is, and candidates in each.
const ALIGNED_BINS: usize = 4;
const ALIGNED_TRIES: usize = 4;

/// Ranges that are set aside after one another. More are a whole that goes, and had better be
/// joined: what comes in its place will be taken out of it in a row.
const MOST_FREED: u32 = 2;

/// An allocator that keeps records of holes only.
///
/// The caller remembers the length of what it was given and says it when freeing; in return a
/// live range costs no memory and no cache misses. Both operations take constant time, as a hash
/// table does, but for three: a request looks at all holes that could serve it before it fails, a
/// failed one at all of the highest size class for the longest, and more ranges than were
/// reserved for move the records.
///
/// With [`Fit::Fast`] short ranges that are not freed one after the other are joined to the holes
/// around them only when more of their length are freed, or a request would fail otherwise: see
/// [`coalesce`](Self::coalesce).
///
/// Freeing something that is not live is caught when it was freed lately and is still as it was, or
/// is joined to holes and overlaps one at its edges; with debug assertions, always when it does the
/// latter. What is not caught may make a later call panic, any that joins.
///
/// # Examples
/// ```
/// use vrampager_space::{Fit, SubAllocator};
/// let mut heap = SubAllocator::new(1 << 30, 256, Fit::Fast).unwrap();
/// let offset = heap.alloc(1000, 4096).unwrap();
/// assert_eq!(offset % 4096, 0);
/// heap.free(offset, 1000);
/// assert_eq!(heap.free_bytes(), 1 << 30);
/// ```
#[derive(Clone, Debug)]
pub struct SubAllocator {
    holes: Holes,
    /// `[start, end)` of one more hole, or nothing: the one that was last cut or grew. Neighbours
    /// in space tend to come and go one after the other; here that costs an addition.
    active: (u32, u32),
    /// The hole whose bounds were changed last, or none.
    recent: u32,
    aside: Aside,
    /// How many ranges were freed since the last was taken.
    freed: u32,
    /// Units that are not live.
    free: u32,
    /// Ranges that are no part of a hole: live ones, and those aside.
    apart: usize,
    /// Such ranges and holes together up to which no operation needs memory.
    room: usize,
    units: u32,
    /// A unit is `1 << shift` bytes, and `mask + 1`.
    shift: u32,
    mask: u64,
    fit: Fit,
}

impl SubAllocator {
    /// A space of `size` bytes, rounded down to whole units, handed out in multiples of `unit`.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`] when `unit` is not a power of two or the space has no, or more
    /// than `u32::MAX`, units; [`SpaceError::MetadataExhausted`].
    pub fn new(size: u64, unit: u64, fit: Fit) -> Result<Self, SpaceError> {
        Self::with_capacity(size, unit, fit, 16)
    }

    /// As [`new`](Self::new), with memory for `ranges` ranges, live ones and holes together: until
    /// there are more, no operation asks for any.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_capacity(
        size: u64,
        unit: u64,
        fit: Fit,
        ranges: usize,
    ) -> Result<Self, SpaceError> {
        if !unit.is_power_of_two() {
            return Err(SpaceError::Invalid {
                argument: "unit",
                value: unit,
            });
        }
        let shift = unit.trailing_zeros();
        let units = u32::try_from(size >> shift).ok().filter(|&units| units > 0);
        let units = units.ok_or(SpaceError::Invalid {
            argument: "size",
            value: size,
        })?;
        let mut space = Self {
            holes: Holes::new(),
            active: (0, 0),
            recent: NONE,
            aside: Aside::new(),
            freed: 0,
            free: units,
            apart: 0,
            room: 0,
            units,
            shift,
            mask: unit - 1,
            fit,
        };
        space.reserve(ranges)?;
        space.holes.add(0, units);
        Ok(space)
    }

    /// Gets the memory for `ranges` ranges, live ones and holes together, in advance.
    ///
    /// # Errors
    /// [`SpaceError::MetadataExhausted`].
    pub fn reserve(&mut self, ranges: usize) -> Result<(), SpaceError> {
        // A free adds at most one hole and takes one live range, and n live ranges have at most
        // n + 1 holes. So frees alone can't make more holes than half of both kinds there are
        // now; an allocation may add one.
        let holes = ranges / 2 + 3;
        self.holes.reserve(holes)?;
        self.room = 2 * (self.holes.room() - 3);
        Ok(())
    }

    /// Bytes managed.
    #[must_use]
    pub fn size(&self) -> u64 {
        u64::from(self.units) << self.shift
    }

    /// Bytes in no live range.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        u64::from(self.free) << self.shift
    }

    /// Length of the longest hole, after [`coalesce`](Self::coalesce), which may change where later
    /// ranges lie.
    #[must_use]
    pub fn largest_hole(&mut self) -> u64 {
        self.coalesce();
        let active = self.active.1 - self.active.0;
        u64::from(self.holes.bins.largest().max(active)) << self.shift
    }

    /// Number of live ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.apart - self.aside.len()
    }

    /// Whether no range is live.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.free == self.units
    }

    /// Bytes of host memory held for records: at most 48 per range of the most that were ever
    /// live, or reserved for, at once, and 16 KiB, most of which are in the value itself.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        self.holes.bytes() + size_of::<Self>()
    }

    /// Takes `size` bytes, rounded up to units, at a multiple of `align`, a power of two. Alignment
    /// 0 counts as 1.
    ///
    /// # Errors
    /// [`SpaceError::NoSpace`], [`SpaceError::Invalid`] for size 0, one beyond the whole space or a
    /// bad alignment, [`SpaceError::MetadataExhausted`].
    #[inline]
    pub fn alloc(&mut self, size: u64, align: u64) -> Result<u64, SpaceError> {
        let units = self.units_of(size);
        // No bit or one, and that no higher than a unit.
        let is_plain = align & align.wrapping_sub(1) == 0 && align <= self.mask + 1;
        if is_plain
            && let Ok(len) = u32::try_from(units)
            && let Some(start) = self.aside.pop(len)
        {
            self.freed = 0;
            self.free -= len;
            return Ok(u64::from(start) << self.shift);
        }
        self.alloc_searching(units, size, align)
    }

    /// Does what [`alloc`](Self::alloc) does, when that has no range at hand.
    #[inline(never)]
    fn alloc_searching(&mut self, units: u64, size: u64, align: u64) -> Result<u64, SpaceError> {
        let is_power = align & align.wrapping_sub(1) == 0;
        let len = u32::try_from(units).ok().filter(|&len| len <= self.free);
        let Some(len @ 1..) = len.filter(|_| is_power) else {
            return Err(self.refuse(size, align));
        };
        let align_units = align >> self.shift;
        let mut start = None;
        if align_units > 1 {
            start = self.aside.take_aligned(len, align_units);
        }
        if start.is_none() {
            if self.apart + self.holes.len() >= self.room {
                self.make_room()?;
            }
            start = self.take(len, align_units);
            if start.is_none() {
                start = self.take_after_all(len, align_units);
            }
            self.apart += usize::from(start.is_some());
        }
        let Some(start) = start else {
            return Err(self.refuse(size, align));
        };
        self.freed = 0;
        self.free -= len;
        Ok(u64::from(start) << self.shift)
    }

    #[cold]
    fn make_room(&mut self) -> Result<(), SpaceError> {
        self.coalesce();
        let ranges = self.apart + self.holes.len();
        if ranges >= self.room {
            self.reserve(ranges + ranges / 2 + 16)?;
        }
        Ok(())
    }

    #[cold]
    fn take_after_all(&mut self, len: u32, align: u64) -> Option<u32> {
        self.coalesce();
        self.take(len, align)
    }

    /// Gives back a live range: its offset, and the size it was asked for.
    ///
    /// # Panics
    /// When the range leaves the space, was freed lately and is still as it was, or overlaps a hole
    /// at one of its edges and is joined to it. Nothing has changed then.
    #[inline]
    pub fn free(&mut self, offset: u64, size: u64) {
        let (start, end) = self.bounds(offset, size);
        let len = end - start;
        let is_put_aside = self.puts_aside(start, end);
        if cfg!(debug_assertions) && is_put_aside {
            // Reads two lines of the table that nothing else here needs.
            self.holes.borders(start, end);
        }
        let is_plausible = len <= self.units - self.free;
        if is_put_aside && is_plausible && self.aside.has_room_for(start, len) {
            self.aside.push(start, len);
            self.free += len;
            self.freed += 1;
        } else {
            self.free_joining(start, end);
        }
    }

    /// Whether a range that is freed is part of no hole at first.
    #[inline]
    fn puts_aside(&self, start: u32, end: u32) -> bool {
        let (from, to) = self.active;
        let is_apart = end < from || to < start;
        // The length last: chance decides it, and mostly nothing depends on it.
        self.freed < MOST_FREED && self.fit == Fit::Fast && is_apart && Aside::takes(end - start)
    }

    #[inline(never)]
    fn free_joining(&mut self, start: u32, end: u32) {
        let (from, to) = self.active;
        let len = end - start;
        assert!(
            end <= from || to <= start,
            "units {start} to {end} are partly free already"
        );
        assert!(
            len <= self.units - self.free && !self.aside.contains(start, len),
            "units {start} to {end} are free already"
        );
        let mut joined = Some((start, end));
        if self.puts_aside(start, end) {
            let oldest = self.aside.push(start, len);
            joined = oldest.map(|oldest| (oldest, oldest + len));
        }
        if let Some((start, end)) = joined {
            self.join(start, end);
        }
        self.free += len;
        self.freed = self.freed.saturating_add(1);
    }

    /// Joins every range that was freed to the holes it touches: what [`Fit::Fast`] puts off, and
    /// does by itself before a request fails.
    pub fn coalesce(&mut self) {
        while let Some((start, len)) = self.aside.pop_any() {
            self.join(start, start + len);
        }
    }

    /// Every hole, in no order, after [`coalesce`](Self::coalesce), which may change where later
    /// ranges lie.
    pub fn holes(&mut self) -> impl Iterator<Item = Span> + '_ {
        self.coalesce();
        self.bounds_of_holes().map(|(start, end)| {
            let (start, len) = (u64::from(start), u64::from(end - start));
            Span::new(start << self.shift, len << self.shift).expect("inside the space")
        })
    }

    fn bounds_of_holes(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let others = self.holes.bins.all();
        let others = others.map(|(_, _, hole)| (hole.start, hole.end()));
        others.chain(Some(self.active).filter(|&(from, to)| from < to))
    }

    /// Compares all records with one another; for tests, O(n log n).
    ///
    /// # Panics
    /// When they disagree.
    pub fn check(&self) {
        self.holes.check();
        let mut holes: Vec<_> = self.bounds_of_holes().collect();
        holes.sort_unstable();
        let apart = holes.windows(2).all(|pair| pair[0].1 < pair[1].0);
        assert!(apart, "two holes touch or overlap");
        let end = holes.last().map_or(0, |hole| hole.1);
        assert!(end <= self.units, "a hole leaves the space");
        let free = holes.iter().copied().chain(self.aside.bounds());
        let free: u32 = free.map(|(from, to)| to - from).sum();
        assert_eq!(free, self.free, "free bytes are miscounted");
        assert!(
            holes.len() <= self.apart + 1,
            "more holes than gaps between ranges"
        );
        self.check_aside(&holes);
    }

    /// Compares what is aside with all holes, which are in order.
    fn check_aside(&self, holes: &[(u32, u32)]) {
        self.aside.check();
        let mut free: Vec<_> = self.aside.bounds().chain(holes.iter().copied()).collect();
        free.sort_unstable();
        let apart = free.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        assert!(apart, "two free ranges overlap");
    }

    #[inline]
    fn units_of(&self, size: u64) -> u64 {
        (size >> self.shift) + u64::from(size & self.mask != 0)
    }

    #[cold]
    fn refuse(&mut self, size: u64, align: u64) -> SpaceError {
        let invalid = |argument, value| SpaceError::Invalid { argument, value };
        if !align.is_power_of_two() && align != 0 {
            return invalid("align", align);
        }
        if size == 0 || size > self.size() {
            return invalid("size", size);
        }
        SpaceError::NoSpace {
            needed: size,
            free: self.free_bytes(),
            largest: self.largest_hole(),
            conditions: Conditions::NONE.and(Conditions::ALIGN, align >> self.shift > 1),
        }
    }

    #[inline]
    fn bounds(&self, offset: u64, size: u64) -> (u32, u32) {
        let units = self.units_of(size);
        let start = offset >> self.shift;
        let end = start.saturating_add(units);
        if units == 0 || end > u64::from(self.units) || offset & self.mask != 0 {
            refuse_free(offset, size);
        }
        #[expect(clippy::cast_possible_truncation, reason = "compared with a u32 above")]
        {
            (start as u32, end as u32)
        }
    }

    /// Makes a range that is apart part of a hole.
    #[inline(always)]
    fn join(&mut self, start: u32, end: u32) {
        let (from, to) = self.active;
        if from < to && start == to {
            let right = self.holes.take_beside(end, Side::Start);
            self.active.1 = right.map_or(end, Hole::end);
        } else if from < to && end == from {
            let left = self.holes.take_beside(start, Side::End);
            self.active.0 = left.map_or(start, |hole| hole.start);
        } else {
            self.join_others(start, end);
        }
        // All that can panic is over.
        self.apart -= 1;
    }

    #[inline(never)]
    fn join_others(&mut self, start: u32, end: u32) {
        let borders = self.holes.borders(start, end);
        if borders.left.is_none() && borders.right.is_none() {
            self.holes.add_between(borders, start, end);
        } else {
            self.extend(borders, start, end);
        }
    }

    /// Joins a range to one or two holes.
    #[inline(never)]
    fn extend(&mut self, borders: Borders, start: u32, end: u32) {
        let (mut id, mut bounds) = (NONE, (start, end));
        if let Some(right) = borders.right {
            id = right;
            bounds.1 = self.holes.bins.get(right).end();
        }
        if let Some(left) = borders.left {
            if id != NONE {
                self.holes.remove(id);
            }
            id = left;
            bounds.0 = self.holes.bins.get(left).start;
        }
        self.reshape(id, bounds);
    }

    /// Changes the bounds of a hole. One that this happens to twice in a row becomes the active
    /// one.
    #[inline(never)]
    fn reshape(&mut self, id: u32, (start, end): (u32, u32)) {
        if id == self.recent {
            self.holes.remove(id);
            self.put_back_active();
            self.active = (start, end);
            self.recent = NONE;
        } else {
            self.holes.reshape(id, start, end);
            self.recent = id;
        }
    }

    /// Makes the active hole one like all others.
    #[inline]
    fn put_back_active(&mut self) {
        let (from, to) = self.active;
        if from < to {
            self.holes.add(from, to);
            self.active = (0, 0);
        }
    }

    /// Takes `len` units out of a hole, at a multiple of `align` units.
    #[inline(always)]
    fn take(&mut self, len: u32, align: u64) -> Option<u32> {
        match self.fit {
            _ if align > 1 => self.take_aligned(len, align),
            Fit::Fast => self.take_fast(len),
            Fit::Tight => self.take_tight(len),
        }
    }

    #[inline(always)]
    fn take_fast(&mut self, len: u32) -> Option<u32> {
        let (from, to) = self.active;
        let floor = bin_of(len);
        let mut near = None;
        if to - from != len {
            near = self.near(floor, len, FAST_TRIES);
        }
        let id = match near {
            Some(id) => id,
            None if to - from >= len => {
                self.active = if from + len < to {
                    (from + len, to)
                } else {
                    (0, 0)
                };
                return Some(from);
            }
            None => match self.holes.bins.next_bin(floor + 1) {
                Some(bin) => self.holes.bins.head(bin),
                None => self.last_resort(floor, len)?,
            },
        };
        Some(self.cut(id, len))
    }

    /// One of the newest holes in the bin of a length that is long enough.
    #[inline]
    fn near(&self, floor: u32, len: u32, tries: usize) -> Option<u32> {
        let mut near = self.holes.bins.list(floor).take(tries);
        near.find(|(_, hole)| hole.len >= len).map(|(id, _)| id)
    }

    /// A hole of all in the bin of a length, when there is none in higher bins.
    #[cold]
    fn last_resort(&self, floor: u32, len: u32) -> Option<u32> {
        self.near(floor, len, usize::MAX)
    }

    fn take_tight(&mut self, len: u32) -> Option<u32> {
        self.put_back_active();
        let floor = bin_of(len);
        let mut bin = floor;
        loop {
            let Some(next) = self.holes.bins.next_bin(bin) else {
                let id = self.last_resort(floor, len)?;
                return Some(self.cut(id, len));
            };
            bin = next;
            let best = self
                .holes
                .bins
                .list(bin)
                .take(TIGHT_TRIES)
                .filter(|(_, hole)| hole.len >= len)
                .min_by_key(|(_, hole)| u64::from(hole.len) << 32 | u64::from(hole.start));
            if let Some((id, _)) = best {
                return Some(self.cut(id, len));
            }
            bin += 1;
        }
    }

    /// Takes the first `len` units of the hole `id`, and says where they are.
    #[inline(always)]
    fn cut(&mut self, id: u32, len: u32) -> u32 {
        let hole = self.holes.bins.get(id);
        if hole.len == len {
            self.holes.remove(id);
        } else {
            self.reshape(id, (hole.start + len, hole.end()));
        }
        hole.start
    }

    fn take_aligned(&mut self, len: u32, align: u64) -> Option<u32> {
        self.put_back_active();
        let (id, start) = self.find_aligned(len, align)?;
        let hole = self.holes.remove(id);
        if hole.start < start {
            self.holes.add(hole.start, start);
        }
        if start + len < hole.end() {
            self.holes.add(start + len, hole.end());
        }
        Some(start)
    }

    /// A hole with an aligned part of `len` units, and where that starts.
    fn find_aligned(&self, len: u32, align: u64) -> Option<(u32, u32)> {
        let mut bin = bin_of(len);
        for _ in 0..ALIGNED_BINS {
            let Some(next) = self.holes.bins.next_bin(bin) else {
                break;
            };
            let near = self.holes.bins.list(next).take(ALIGNED_TRIES);
            if let Some(found) = first_aligned(near, len, align) {
                return Some(found);
            }
            bin = next + 1;
        }
        // In a hole this long any start will do.
        let padded = u32::try_from(u64::from(len) + (align - 1)).ok();
        let sure = padded.map(|padded| bin_of(padded) + 1);
        if let Some(bin) = sure.and_then(|bin| self.holes.bins.next_bin(bin)) {
            return first_aligned(self.holes.bins.list(bin), len, align);
        }
        let mut rest = bin_of(len);
        while let Some(bin) = self.holes.bins.next_bin(rest) {
            let found = first_aligned(self.holes.bins.list(bin), len, align);
            if found.is_some() {
                return found;
            }
            rest = bin + 1;
        }
        None
    }
}

#[cold]
#[inline(never)]
fn refuse_free(offset: u64, size: u64) -> ! {
    panic!("{size:#x} bytes at {offset:#x} were never handed out")
}

/// The first of some holes that has an aligned part of `len` units, and where that starts.
#[inline]
fn first_aligned(
    mut holes: impl Iterator<Item = (u32, Hole)>,
    len: u32,
    align: u64,
) -> Option<(u32, u32)> {
    holes.find_map(|(id, hole)| {
        let start = u64::from(hole.start).next_multiple_of(align);
        let fits = start + u64::from(len) <= u64::from(hole.end());
        fits.then(|| {
            (
                id,
                u32::try_from(start).expect("in front of the hole's end"),
            )
        })
    })
}
