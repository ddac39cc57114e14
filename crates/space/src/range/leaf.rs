//! Leaves of the tiling tree: runs of adjacent segments.
#![expect(
    clippy::cast_possible_truncation,
    reason = "slots number at most 32, and offsets are compared with the limit before they are cut"
)]

use core::array;

use super::lanes::{LANES, Lanes, at_least, greatest_kept};
use super::slots::{PARTS, SLOTS, Slots, shift_down, shift_up};

/// The farthest from the first that a segment of the same leaf may start.
const REACH: u64 = UNUSED as u64 - 1;
const UNUSED: i32 = i32::MAX;

/// A run of adjacent segments, live ranges and holes alike.
///
/// Starts are kept as offsets from the first: half the size of addresses, and compared twice as
/// many at a time. A segment that starts farther than [`REACH`] goes to a leaf of its own.
///
/// # Invariants
/// Segment `i` starts at `base + starts[i]` and ends where the next starts, the last at `end`.
/// `starts[0]` is 0, entries from `len` on are `UNUSED`, bits of `holes` from `len` on are 0.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    base: u64,
    end: u64,
    holes: u32,
    len: u32,
    starts: Slots,
}

/// What a slot of a leaf says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) hole: bool,
}

impl Segment {
    #[inline]
    pub(super) fn len(&self) -> u64 {
        self.end - self.start
    }
}

/// Where a search for holes starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Low,
    High,
}

/// The lowest `count` bits.
#[inline]
fn below(count: usize) -> u32 {
    ((1_u64 << count) - 1) as u32
}

impl Leaf {
    /// A leaf of one segment.
    pub(super) fn of(segment: Segment) -> Self {
        let mut leaf = Self {
            base: segment.start,
            end: segment.end,
            holes: u32::from(segment.hole),
            len: 1,
            starts: [UNUSED; SLOTS + PARTS],
        };
        leaf.starts[0] = 0;
        leaf
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(super) fn last(&self) -> usize {
        self.len() - 1
    }

    /// Where its first segment starts.
    pub(super) fn start(&self) -> u64 {
        self.base
    }

    /// Where its last segment ends.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn set_end(&mut self, end: u64) {
        self.end = end;
    }

    /// Whether a segment of this leaf can start at `address`.
    #[inline]
    pub(super) fn reaches(&self, address: u64) -> bool {
        address - self.base <= REACH
    }

    /// The slot of the segment that holds `address`, which is not in front of the leaf.
    ///
    /// Comparisons in three rounds (3, 3, 1), in each of which none waits for another.
    #[inline]
    pub(super) fn rank(&self, address: u64) -> usize {
        #[cfg(test)]
        crate::testing::step();
        let offset = (address - self.base).min(REACH) as i32;
        let below = |at: usize| usize::from(self.starts[at] <= offset);
        let at = 8 * (below(8) + below(16) + below(24));
        let at = at + 2 * (below(at + 2) + below(at + 4) + below(at + 6));
        at + below(at + 1)
    }

    #[inline]
    fn start_of(&self, at: usize) -> u64 {
        self.base + u64::from(self.starts[at].cast_unsigned())
    }

    #[inline]
    fn end_of(&self, at: usize) -> u64 {
        // Behind the last there is nothing, which may lie beyond the address space.
        let next = u64::from(self.starts[at + 1].cast_unsigned());
        let next = self.base.wrapping_add(next);
        if at < self.last() { next } else { self.end }
    }

    #[inline]
    pub(super) fn is_hole(&self, at: usize) -> bool {
        self.holes >> at & 1 != 0
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Segment {
        #[cfg(test)]
        crate::testing::step();
        let at = at % SLOTS;
        Segment {
            start: self.start_of(at),
            end: self.end_of(at),
            hole: self.is_hole(at),
        }
    }

    /// Turns a part of the hole at `at` into a live range; there is room for what is left in
    /// front and behind, as `front` and `back` count it.
    #[inline]
    pub(super) fn occupy(
        &mut self,
        at: usize,
        (start, end): (u64, u64),
        (front, back): (usize, usize),
    ) {
        let at = at % SLOTS;
        shift_up(&mut self.starts, at + 1, front + back);
        let live = at + front;
        // A part in front begins where the hole did, and is the hole as far as its bit goes.
        let high = self.holes & !below(at + 1);
        self.holes = self.holes & below(live) | high << (front + back);
        // Without a part in front or behind, what is stored is what is there.
        self.starts[live] = (start - self.base) as i32;
        let next = if back > 0 {
            (end - self.base) as i32
        } else {
            self.starts[live + 1]
        };
        self.starts[live + 1] = next;
        self.holes |= (back as u32) << live << 1;
        self.len += (front + back) as u32;
    }

    /// Turns the live range at `at`, which is neither the first nor the last slot, into a hole,
    /// joined with the holes beside it. Returns the slot of the hole and how many it took over.
    #[inline]
    pub(super) fn vacate(&mut self, at: usize) -> (usize, usize) {
        let at = at % SLOTS;
        let left = self.holes >> (at - 1) & 1;
        let right = self.holes >> (at + 1) & 1;
        let (first, by) = (at - left as usize, (left + right) as usize);
        self.drop_slots(first + 1, by);
        self.set_hole(first);
        (first, by)
    }

    /// Makes a slot of a live range in front of slot `at`, which takes over the end of the one
    /// before. There is room, and the leaf reaches so far.
    pub(super) fn open_live(&mut self, at: usize, start: u64) {
        shift_up(&mut self.starts, at, 1);
        self.starts[at] = (start - self.base) as i32;
        self.holes = self.holes & below(at) | (self.holes & !below(at)) << 1;
        self.len += 1;
    }

    /// Makes slot `at` a hole, where it begins and ends.
    #[inline]
    pub(super) fn set_hole(&mut self, at: usize) {
        self.holes |= 1 << at;
    }

    /// Drops up to two slots from `at` on; the segment before them grows over them.
    #[inline]
    pub(super) fn drop_slots(&mut self, at: usize, by: usize) {
        shift_down(&mut self.starts, at, by);
        self.holes = self.holes & below(at) | (self.holes >> by) & !below(at);
        self.len -= by as u32;
    }

    /// Drops the first slot.
    pub(super) fn drop_first(&mut self) {
        self.drop_slots(0, 1);
        if self.len > 0 {
            self.rebase(self.start_of(0));
        }
    }

    /// Whether a segment can be put in front that begins at `start`, and `more` slots besides.
    pub(super) fn can_prepend(&self, start: u64, more: usize) -> bool {
        self.len() + more < SLOTS && self.start_of(self.last()) - start <= REACH
    }

    /// Puts a hole in front, as [`can_prepend`](Self::can_prepend) allows.
    pub(super) fn prepend_hole(&mut self, start: u64) {
        let old = self.base;
        self.rebase(start);
        shift_up(&mut self.starts, 0, 1);
        self.starts[0] = 0;
        debug_assert!(old > start);
        self.holes = self.holes << 1 | 1;
        self.len += 1;
    }

    /// Counts offsets from another address.
    fn rebase(&mut self, base: u64) {
        let by = base.wrapping_sub(self.base) as i32;
        for start in &mut self.starts[..self.len as usize] {
            *start = start.wrapping_sub(by);
        }
        self.base = base;
    }

    /// Length of the last segment, the only one that may be longer than offsets can say.
    #[inline]
    fn last_len(&self) -> u64 {
        self.end - self.start_of(self.last() % SLOTS)
    }

    /// Lengths of the segments from `lo` on, except for the last of the leaf.
    #[inline(always)]
    fn lens(&self, lo: usize) -> Lanes {
        array::from_fn(|lane| self.starts[lo + lane + 1] - self.starts[lo + lane])
    }

    /// Length of the longest hole.
    pub(super) fn longest(&self) -> u64 {
        self.longest_of(self.holes)
    }

    /// Length of the longest hole but the one at `at`.
    #[inline]
    pub(super) fn longest_but(&self, at: usize) -> u64 {
        self.longest_of(self.holes & !(1 << (at % SLOTS)))
    }

    #[inline]
    fn longest_of(&self, holes: u32) -> u64 {
        let last = 1_u32 << self.last();
        let lens: [Lanes; SLOTS / LANES] = array::from_fn(|block| self.lens(block * LANES));
        let most = greatest_kept(&lens, holes & !last);
        let last_len = if holes & last == 0 {
            0
        } else {
            self.last_len()
        };
        last_len.max(u64::from(most.cast_unsigned()))
    }

    /// Slots of the holes of at least `size`.
    #[inline]
    fn fitting(&self, size: u64) -> u32 {
        #[cfg(test)]
        crate::testing::step();
        let wanted = size.min(UNUSED as u64) as i32;
        let mut fits = 0_u32;
        for block in 0..SLOTS / LANES {
            fits |= at_least(&self.lens(block * LANES), wanted) << (block * LANES);
        }
        let last = self.last();
        let last_fits = u32::from(self.last_len() >= size) << last;
        self.holes & (fits & !(1 << last) | last_fits)
    }

    /// The first hole of at least `size`, from the side the search comes from.
    #[inline]
    pub(super) fn pick(&self, size: u64, from: Side) -> Option<usize> {
        nearest(self.fitting(size), from)
    }

    /// As [`pick`](Self::pick), of slots `lo..hi`.
    pub(super) fn pick_within(
        &self,
        (lo, hi): (usize, usize),
        size: u64,
        from: Side,
    ) -> Option<usize> {
        nearest(self.fitting(size) & below(hi) & !below(lo), from)
    }

    /// Moves slots from `cut` on to a new leaf.
    pub(super) fn split(&mut self, cut: usize) -> Self {
        let count = self.len() - cut;
        let mut upper = Self {
            holes: self.holes >> cut,
            len: count as u32,
            starts: [UNUSED; SLOTS + PARTS],
            ..*self
        };
        upper.starts[..count].copy_from_slice(&self.starts[cut..cut + count]);
        upper.rebase(self.start_of(cut));
        self.end = upper.base;
        self.starts[cut..].fill(UNUSED);
        self.holes &= below(cut);
        self.len = cut as u32;
        upper
    }

    /// Ends the last segment at `address`. Returns what was cut off.
    pub(super) fn cut(&mut self, address: u64) -> Segment {
        let tail = Segment {
            start: address,
            ..self.get(self.last())
        };
        self.end = address;
        tail
    }

    /// Whether the leaf that follows can be taken over, and leaves no more than `most` slots used.
    pub(super) fn can_append(&self, upper: &Self, most: usize) -> bool {
        let last = upper.start_of(upper.last());
        self.len() + upper.len() <= most && self.reaches(last)
    }

    /// Takes over all slots of the leaf that follows, as [`can_append`](Self::can_append) allows.
    pub(super) fn append(&mut self, upper: &Self) {
        let (at, count) = (self.len(), upper.len());
        let by = (upper.base - self.base) as i32;
        for slot in 0..count {
            self.starts[at + slot] = upper.starts[slot] + by;
        }
        self.holes |= upper.holes << at;
        self.len += upper.len;
        self.end = upper.end;
    }

    /// Compares what the leaf says with itself.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub(super) fn check(&self) {
        assert!(self.len > 0 && self.starts[0] == 0, "a leaf is not empty");
        assert!(self.starts[self.len()..].iter().all(|&s| s == UNUSED));
        assert_eq!(self.holes & !below(self.len()), 0);
        for at in 0..self.len() {
            assert!(self.starts[at] < UNUSED);
            assert!(self.start_of(at) < self.end_of(at), "a segment is empty");
        }
    }
}

/// The bit nearest to the side a search comes from.
#[inline]
pub(super) fn nearest(mask: u32, from: Side) -> Option<usize> {
    match from {
        Side::Low => (mask != 0).then(|| mask.trailing_zeros() as usize),
        Side::High => mask.checked_ilog2().map(|at| at as usize),
    }
}
