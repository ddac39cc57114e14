//! Nodes of the tiling tree: fixed arrays, searched without branches on their contents.
#![expect(
    clippy::cast_possible_truncation,
    reason = "slots and children of a node number at most 32"
)]

/// Segments in a leaf, and children of an inner node.
pub(super) const FANOUT: usize = 32;

/// The number of the last of the ascending `keys` at or below `address`. `keys[0]` is taken to
/// be below every address, unused keys are `u64::MAX` and above every address.
///
/// Counting in two rounds, of four and of eight, keeps the loads independent of each other: a
/// binary search would wait for each before it could start the next.
#[inline]
fn rank<const N: usize>(keys: &[u64; N], address: u64) -> usize {
    let coarse = [keys[8], keys[16], keys[24]];
    let block: usize = coarse.iter().map(|&key| usize::from(key <= address)).sum();
    let base = block * 8;
    let fine: usize = keys[base + 1..base + 8]
        .iter()
        .map(|&key| usize::from(key <= address))
        .sum();
    base + fine
}

/// A run of adjacent segments, live ranges and holes alike.
///
/// # Invariants
/// Segment `i` is `[starts[i], starts[i + 1])`, so `starts[len]` is the end of the last. Entries of
/// `starts` behind that are `u64::MAX`, bits of `holes` from `len` on are 0.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub(super) starts: [u64; FANOUT + 1],
    /// Colour of a live range, number in the index of a hole.
    pub(super) vals: [u32; FANOUT],
    pub(super) holes: u32,
    pub(super) len: u32,
}

/// What a slot of a leaf says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) val: u32,
    pub(super) hole: bool,
}

impl Leaf {
    const EMPTY: Self = Self {
        starts: [u64::MAX; FANOUT + 1],
        vals: [0; FANOUT],
        holes: 0,
        len: 0,
    };

    /// A leaf of one hole.
    pub(super) fn hole(start: u64, end: u64) -> Self {
        let mut leaf = Self {
            holes: 1,
            len: 1,
            ..Self::EMPTY
        };
        (leaf.starts[0], leaf.starts[1]) = (start, end);
        leaf
    }

    /// Where its last segment ends.
    pub(super) fn end(&self) -> u64 {
        self.starts[self.len as usize]
    }

    pub(super) fn set_end(&mut self, end: u64) {
        self.starts[self.len as usize] = end;
    }

    #[inline]
    pub(super) fn rank(&self, address: u64) -> usize {
        rank(&self.starts, address)
    }

    pub(super) fn last(&self) -> usize {
        self.len as usize - 1
    }

    #[inline]
    pub(super) fn end_of(&self, at: usize) -> u64 {
        self.starts[at + 1]
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Segment {
        Segment {
            start: self.starts[at],
            end: self.end_of(at),
            val: self.vals[at],
            hole: self.holes >> at & 1 != 0,
        }
    }

    /// Overwrites what a slot holds, not where it begins and ends.
    #[inline]
    pub(super) fn set(&mut self, at: usize, val: u32, hole: bool) {
        self.vals[at] = val;
        self.holes = self.holes & !(1 << at) | u32::from(hole) << at;
    }

    /// Makes a slot in front of slot `at`; there is room.
    #[inline]
    pub(super) fn open(&mut self, at: usize, start: u64, val: u32, hole: bool) {
        self.starts.copy_within(at..FANOUT, at + 1);
        self.vals.copy_within(at..FANOUT - 1, at + 1);
        self.starts[at] = start;
        let below = (1_u32 << at) - 1;
        self.holes = self.holes & below | (self.holes & !below) << 1;
        self.len += 1;
        self.set(at, val, hole);
    }

    /// Drops slot `at`; the segment before it grows over it.
    #[inline]
    pub(super) fn close(&mut self, at: usize) {
        self.starts.copy_within(at + 1.., at);
        self.vals.copy_within(at + 1.., at);
        self.starts[FANOUT] = u64::MAX;
        let below = (1_u32 << at) - 1;
        self.holes = self.holes & below | self.holes >> 1 & !below;
        self.len -= 1;
    }

    /// Length of the longest hole.
    pub(super) fn longest(&self) -> u64 {
        self.holes_in(0, FANOUT)
            .map(|at| self.end_of(at) - self.starts[at])
            .max()
            .unwrap_or(0)
    }

    #[inline]
    fn mask(&self, lo: usize, hi: usize) -> u32 {
        let below = |n: usize| {
            u32::MAX
                .checked_shl(n as u32)
                .map_or(u32::MAX, |above| !above)
        };
        self.holes & below(hi) & !below(lo)
    }

    /// Slots of the holes from slot `lo` up to slot `hi`.
    #[inline]
    fn holes_in(&self, lo: usize, hi: usize) -> impl Iterator<Item = usize> + use<> {
        let mut mask = self.mask(lo, hi);
        core::iter::from_fn(move || {
            let at = mask.trailing_zeros() as usize;
            mask &= mask.wrapping_sub(1);
            (at < FANOUT).then_some(at)
        })
    }

    /// The first hole of at least `size` in slots `lo..hi`, from the side the search comes from.
    #[inline]
    pub(super) fn pick(&self, (lo, hi): (usize, usize), size: u64, from: Side) -> Option<usize> {
        let fits = |&at: &usize| self.end_of(at) - self.starts[at] >= size;
        match from {
            Side::Low => self.holes_in(lo, hi).find(fits),
            Side::High => {
                let mut mask = self.mask(lo, hi);
                core::iter::from_fn(move || {
                    let at = mask.checked_ilog2()? as usize;
                    mask &= !(1 << at);
                    Some(at)
                })
                .find(fits)
            }
        }
    }

    /// Moves slots from `cut` on to a new leaf.
    pub(super) fn split(&mut self, cut: usize) -> Self {
        let mut upper = Self::EMPTY;
        let count = self.len as usize - cut;
        upper.starts[..=count].copy_from_slice(&self.starts[cut..=cut + count]);
        upper.vals[..count].copy_from_slice(&self.vals[cut..cut + count]);
        upper.holes = self.holes >> cut;
        upper.len = self.len - cut as u32;
        self.starts[cut + 1..].fill(u64::MAX);
        self.holes &= (1 << cut) - 1;
        self.len = cut as u32;
        upper
    }

    /// Takes over all slots of the leaf that follows; there is room.
    pub(super) fn append(&mut self, upper: &Self) {
        let (at, count) = (self.len as usize, upper.len as usize);
        self.starts[at..=at + count].copy_from_slice(&upper.starts[..=count]);
        self.vals[at..at + count].copy_from_slice(&upper.vals[..count]);
        self.holes |= upper.holes << at;
        self.len += upper.len;
    }
}

/// Where a search for holes starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Low,
    High,
}

/// # Invariants
/// Child `i` holds the segments from `keys[i]` on; `keys[0]` is 0 whatever the child starts with.
/// Keys from `len` on are `u64::MAX`. `longest[i]` is the longest hole under child `i`, and 0
/// from `len` on.
#[derive(Clone, Debug)]
pub(super) struct Inner {
    pub(super) keys: [u64; FANOUT],
    pub(super) longest: [u64; FANOUT],
    pub(super) children: [u32; FANOUT],
    pub(super) len: u32,
}

impl Inner {
    pub(super) const EMPTY: Self = Self {
        keys: [u64::MAX; FANOUT],
        longest: [0; FANOUT],
        children: [0; FANOUT],
        len: 0,
    };

    #[inline]
    pub(super) fn rank(&self, address: u64) -> usize {
        rank(&self.keys, address)
    }

    pub(super) fn longest(&self) -> u64 {
        self.longest.iter().copied().fold(0, u64::max)
    }

    #[inline]
    pub(super) fn pick(&self, (lo, hi): (usize, usize), size: u64, from: Side) -> Option<usize> {
        let fits = |at: &usize| self.longest[*at] >= size;
        match from {
            Side::Low => (lo..hi).find(fits),
            Side::High => (lo..hi).rev().find(fits),
        }
    }

    /// Adds a child as number `at`; there is room.
    pub(super) fn open(&mut self, at: usize, key: u64, longest: u64, child: u32) {
        self.keys.copy_within(at..FANOUT - 1, at + 1);
        self.longest.copy_within(at..FANOUT - 1, at + 1);
        self.children.copy_within(at..FANOUT - 1, at + 1);
        (self.keys[at], self.longest[at], self.children[at]) = (key, longest, child);
        self.len += 1;
    }

    /// Drops child `at`.
    pub(super) fn close(&mut self, at: usize) {
        self.keys.copy_within(at + 1.., at);
        self.longest.copy_within(at + 1.., at);
        self.children.copy_within(at + 1.., at);
        self.keys[FANOUT - 1] = u64::MAX;
        self.longest[FANOUT - 1] = 0;
        self.len -= 1;
        if self.len > 0 {
            self.keys[0] = 0;
        }
    }

    /// Moves the upper half to a new node, and returns the key it starts with.
    pub(super) fn split(&mut self) -> (u64, Self) {
        const HALF: usize = FANOUT / 2;
        let mut upper = Self::EMPTY;
        upper.keys[..HALF].copy_from_slice(&self.keys[HALF..]);
        upper.longest[..HALF].copy_from_slice(&self.longest[HALF..]);
        upper.children[..HALF].copy_from_slice(&self.children[HALF..]);
        self.keys[HALF..].fill(u64::MAX);
        self.longest[HALF..].fill(0);
        self.len = HALF as u32;
        upper.len = HALF as u32;
        (core::mem::replace(&mut upper.keys[0], 0), upper)
    }

    /// Takes over all children of the node that follows, which begins at `key`; there is room.
    pub(super) fn append(&mut self, key: u64, upper: &Self) {
        let (at, count) = (self.len as usize, upper.len as usize);
        self.keys[at..at + count].copy_from_slice(&upper.keys[..count]);
        self.longest[at..at + count].copy_from_slice(&upper.longest[..count]);
        self.children[at..at + count].copy_from_slice(&upper.children[..count]);
        self.keys[at] = key;
        self.len += upper.len;
    }
}
