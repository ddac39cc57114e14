//! Constant-time allocation with sized frees.

mod bins;
mod edges;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use vrampager_addr::Span;

use crate::SpaceError;
use bins::{Bins, bin_of};
use edges::{Edge, Edges};

/// How much a [`SubAllocator`] looks around before it takes a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fit {
    /// The most recent hole of the right size class.
    #[default]
    Fast,
    /// The smallest, then lowest, of up to sixteen holes of the class: packs as well as exact
    /// best fit.
    Tight,
}

/// Candidates looked at in a size class before going to the next.
const FAST_TRIES: usize = 8;
const TIGHT_TRIES: usize = 16;

/// An allocator that keeps records of holes only.
///
/// The caller remembers the length of what it was given and says it when freeing; in return a
/// live range costs no memory and no cache misses, and both operations take constant time.
/// Freeing something that is not live is caught only when it overlaps a hole at its edges.
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
    bins: Bins,
    edges: Edges,
    free: u32,
    live: usize,
    /// Live ranges for which a hole each could be recorded without memory.
    room: usize,
    units: u32,
    shift: u32,
    fit: Fit,
}

impl SubAllocator {
    /// A space of `size` bytes, handed out in multiples of `unit`.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`] when `unit` is not a power of two or the space has no, or more
    /// than `u32::MAX`, units; [`SpaceError::MetadataExhausted`].
    pub fn new(size: u64, unit: u64, fit: Fit) -> Result<Self, SpaceError> {
        Self::with_capacity(size, unit, fit, 16)
    }

    /// As [`new`](Self::new), with records for `ranges` live ranges made in advance: until there
    /// are more, no operation asks for memory.
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
            bins: Bins::new(),
            edges: Edges::with_room(0)?,
            free: units,
            live: 0,
            room: 0,
            units,
            shift,
            fit,
        };
        space.reserve(ranges)?;
        let id = space.bins.add(0, units);
        space.edges.insert(0, id, Edge::Start);
        space.edges.insert(units, id, Edge::End);
        Ok(space)
    }

    /// Makes records for `ranges` live ranges in advance.
    ///
    /// # Errors
    /// [`SpaceError::MetadataExhausted`].
    pub fn reserve(&mut self, ranges: usize) -> Result<(), SpaceError> {
        // n ranges leave at most n + 1 holes between and around them; a split adds one more.
        let holes = ranges.checked_add(2).ok_or(SpaceError::MetadataExhausted)?;
        self.bins.reserve(holes)?;
        if self.edges.room() < 2 * holes {
            self.edges.grow(2 * holes)?;
        }
        self.room = (self.bins.room() - 2).min(self.edges.room() / 2 - 2);
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

    /// Length of the longest hole.
    #[must_use]
    pub fn largest_hole(&self) -> u64 {
        u64::from(self.bins.largest()) << self.shift
    }

    /// Number of live ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether no range is live.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Bytes of host memory held for records: at most 160 per range of the most that were ever
    /// live, or reserved for, at once, and 8 KiB.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        self.bins.bytes() + self.edges.bytes()
    }

    /// Takes `size` bytes, rounded up to units, at a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// [`SpaceError::NoSpace`], [`SpaceError::Invalid`] for size 0 or a bad alignment,
    /// [`SpaceError::MetadataExhausted`].
    #[inline]
    pub fn alloc(&mut self, size: u64, align: u64) -> Result<u64, SpaceError> {
        let units = self.units_of(size);
        let Some(len) = u32::try_from(units).ok().filter(|&len| len > 0) else {
            return Err(self.refuse(size));
        };
        if self.live >= self.room {
            self.reserve(self.live * 2 + 16)?;
        }
        let start = if align >> self.shift <= 1 {
            self.take(len)
        } else {
            self.take_aligned(len, align)?
        };
        match start {
            Some(start) => {
                self.live += 1;
                self.free -= len;
                Ok(u64::from(start) << self.shift)
            }
            None => Err(self.refuse(size)),
        }
    }

    /// Gives back a live range: its offset, and the size it was asked for.
    ///
    /// # Panics
    /// When the range leaves the space or overlaps a hole at one of its edges.
    #[inline]
    pub fn free(&mut self, offset: u64, size: u64) {
        let (start, end) = self.bounds(offset, size);
        let (left, left_slot) = self.edges.find(start);
        let left = left.map(|(id, edge)| {
            assert!(edge == Edge::End, "{offset:#x} is free already");
            id
        });
        // The left slot is used before the right one is looked up: an entry may move.
        match left {
            Some(left) => {
                self.edges.clear(left_slot);
                self.join_right(left, start, end);
            }
            None => {
                let (right, right_slot) = self.edges.find(end);
                self.free_behind_live(start, end, right, right_slot);
            }
        }
        self.live -= 1;
        self.free += end - start;
    }

    /// Offset and length of every hole, by size class.
    pub fn holes(&self) -> impl Iterator<Item = Span> + '_ {
        self.bins.all().map(|(_, _, hole)| {
            let (start, len) = (u64::from(hole.start), u64::from(hole.len));
            Span::new(start << self.shift, len << self.shift).expect("inside the space")
        })
    }

    /// Compares all records with one another; for tests, O(n log n).
    ///
    /// # Panics
    /// When they disagree.
    pub fn check(&self) {
        let mut holes: Vec<_> = self.bins.all().collect();
        holes.sort_unstable_by_key(|(_, _, hole)| hole.start);
        let mut at = None;
        for &(bin, id, hole) in &holes {
            assert_eq!(bin, bin_of(hole.len), "a hole is in the wrong bin");
            assert!(
                at.is_none_or(|end| hole.start > end),
                "two holes touch or overlap"
            );
            let end = hole.start + hole.len;
            assert_eq!(self.edges.find(hole.start).0, Some((id, Edge::Start)));
            assert_eq!(self.edges.find(end).0, Some((id, Edge::End)));
            at = Some(end);
        }
        assert!(
            at.is_none_or(|end| end <= self.units),
            "a hole leaves the space"
        );
        assert_eq!(
            self.edges.len(),
            2 * holes.len(),
            "edges of holes that are gone"
        );
        let free: u32 = holes.iter().map(|(_, _, hole)| hole.len).sum();
        assert_eq!(free, self.free, "free bytes are miscounted");
        assert!(
            holes.len() <= self.live + 1,
            "more holes than gaps between ranges"
        );
    }

    #[inline]
    fn units_of(&self, size: u64) -> u64 {
        let mask = (1 << self.shift) - 1;
        (size >> self.shift) + u64::from(size & mask != 0)
    }

    #[cold]
    fn refuse(&self, size: u64) -> SpaceError {
        if size == 0 {
            return SpaceError::Invalid {
                argument: "size",
                value: size,
            };
        }
        SpaceError::NoSpace {
            needed: size,
            free: self.free_bytes(),
            largest: self.largest_hole(),
        }
    }

    #[inline]
    fn bounds(&self, offset: u64, size: u64) -> (u32, u32) {
        let units = self.units_of(size);
        let start = offset >> self.shift;
        let end = start.saturating_add(units);
        assert!(
            units > 0 && end <= u64::from(self.units) && offset == start << self.shift,
            "{size:#x} bytes at {offset:#x} were never handed out"
        );
        #[expect(clippy::cast_possible_truncation, reason = "compared with a u32 above")]
        {
            (start as u32, end as u32)
        }
    }

    /// Extends the hole `left` over `[start, end)`, and over the hole behind it.
    #[inline]
    fn join_right(&mut self, left: u32, start: u32, end: u32) {
        let hole = self.bins.get(left);
        debug_assert_eq!(hole.start + hole.len, start);
        let (right, slot) = self.edges.find(end);
        let mut new_end = end;
        match right {
            Some((right, edge)) => {
                assert!(edge == Edge::Start, "the range ends inside a hole");
                new_end += self.bins.get(right).len;
                self.edges.clear(slot);
                self.bins.delete(right);
                self.edges.insert(new_end, left, Edge::End);
            }
            None => self.edges.set(slot, end, left, Edge::End),
        }
        self.bins.resize(left, hole.start, new_end - hole.start);
    }

    #[inline]
    fn free_behind_live(
        &mut self,
        start: u32,
        end: u32,
        right: Option<(u32, Edge)>,
        slot: edges::Slot,
    ) {
        match right {
            Some((right, edge)) => {
                assert!(edge == Edge::Start, "the range ends inside a hole");
                let hole = self.bins.get(right);
                self.edges.clear(slot);
                self.edges.insert(start, right, Edge::Start);
                self.bins.resize(right, start, hole.len + (end - start));
            }
            None => {
                let id = self.bins.add(start, end - start);
                self.edges.set(slot, end, id, Edge::End);
                self.edges.insert(start, id, Edge::Start);
            }
        }
    }

    #[inline]
    fn take(&mut self, len: u32) -> Option<u32> {
        let id = match self.fit {
            Fit::Fast => self.find_fast(len)?,
            Fit::Tight => self.find_tight(len)?,
        };
        let hole = self.bins.get(id);
        self.cut(id, hole.start, hole.len, len);
        Some(hole.start)
    }

    #[inline]
    fn find_fast(&self, len: u32) -> Option<u32> {
        let floor = bin_of(len);
        if floor < 64 {
            // One length per bin: the first hole serves.
            return self.bins.next_bin(floor).map(|bin| self.bins.head(bin));
        }
        let near = self
            .bins
            .list(floor)
            .take(FAST_TRIES)
            .find(|(_, hole)| hole.len >= len);
        match near {
            Some((id, _)) => Some(id),
            None => self.bins.next_bin(floor + 1).map(|bin| self.bins.head(bin)),
        }
    }

    #[inline]
    fn find_tight(&self, len: u32) -> Option<u32> {
        let mut bin = bin_of(len);
        loop {
            bin = self.bins.next_bin(bin)?;
            let best = self
                .bins
                .list(bin)
                .take(TIGHT_TRIES)
                .filter(|(_, hole)| hole.len >= len)
                .min_by_key(|(_, hole)| u64::from(hole.len) << 32 | u64::from(hole.start));
            if let Some((id, _)) = best {
                return Some(id);
            }
            bin += 1;
        }
    }

    /// Takes the first `len` units of the hole `id`.
    #[inline]
    fn cut(&mut self, id: u32, start: u32, old: u32, len: u32) {
        self.edges.remove(start);
        if old == len {
            self.edges.remove(start + old);
            self.bins.delete(id);
        } else {
            self.edges.insert(start + len, id, Edge::Start);
            self.bins.resize(id, start + len, old - len);
        }
    }

    fn take_aligned(&mut self, len: u32, align: u64) -> Result<Option<u32>, SpaceError> {
        if !align.is_power_of_two() {
            return Err(SpaceError::Invalid {
                argument: "align",
                value: align,
            });
        }
        let Ok(align) = u32::try_from(align >> self.shift) else {
            return Ok(None);
        };
        let Some((id, start)) = self.find_aligned(len, align) else {
            return Ok(None);
        };
        let hole = self.bins.get(id);
        let slack = start - hole.start;
        if slack == 0 {
            self.cut(id, start, hole.len, len);
            return Ok(Some(start));
        }
        // The slack in front keeps the hole's record; the rest behind gets one of its own.
        let end = hole.start + hole.len;
        self.bins.resize(id, hole.start, slack);
        if start + len < end {
            let rest = self.bins.add(start + len, end - start - len);
            self.edges.remove(end);
            self.edges.insert(end, rest, Edge::End);
            self.edges.insert(start + len, rest, Edge::Start);
        } else {
            self.edges.remove(end);
        }
        self.edges.insert(start, id, Edge::End);
        Ok(Some(start))
    }

    /// A hole with an aligned part of `len` units, and where that starts.
    fn find_aligned(&self, len: u32, align: u32) -> Option<(u32, u32)> {
        let fits = |hole: bins::Hole| {
            let start = hole.start.checked_next_multiple_of(align)?;
            let end = hole.start + hole.len;
            (start.checked_add(len)? <= end).then_some(start)
        };
        let mut bin = bin_of(len);
        for _ in 0..ALIGNED_BINS {
            let Some(next) = self.bins.next_bin(bin) else {
                break;
            };
            bin = next;
            let near = self.bins.list(bin).take(ALIGNED_TRIES);
            if let Some(found) = near
                .into_iter()
                .find_map(|(id, hole)| Some((id, fits(hole)?)))
            {
                return Some(found);
            }
            bin += 1;
        }
        // In a hole this long any start will do.
        let sure = len.checked_add(align - 1).map(|padded| bin_of(padded) + 1);
        if let Some(bin) = sure.and_then(|bin| self.bins.next_bin(bin)) {
            let id = self.bins.head(bin);
            return Some((id, fits(self.bins.get(id))?));
        }
        let mut rest = bin_of(len);
        while let Some(bin) = self.bins.next_bin(rest) {
            if let Some(found) = self
                .bins
                .list(bin)
                .find_map(|(id, hole)| Some((id, fits(hole)?)))
            {
                return Some(found);
            }
            rest = bin + 1;
        }
        None
    }
}

/// Size classes, and holes in each, that an aligned request looks at before it takes one that
/// is long enough for any alignment.
const ALIGNED_BINS: usize = 4;
const ALIGNED_TRIES: usize = 4;
