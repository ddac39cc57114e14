//! Inner nodes of the tiling tree: two steps of eight, each one or two cache lines.
#![expect(
    clippy::cast_possible_truncation,
    reason = "children number at most 64, and codes of lengths have 31 bits"
)]

use super::lanes::{LANES, at_least, greatest, greatest_but};
use super::leaf::{Side, nearest};

/// Children of an inner node.
pub(super) const FANOUT: usize = BLOCK * BLOCK;
const BLOCK: usize = LANES;

/// Significant bits of a length in its code.
const EXACT_BITS: u32 = 25;

/// A length in 31 bits, in the same order: a binary exponent, 25 bits, and a last bit that is
/// set when bits were lost. So only codes that are equal and odd leave a question open.
#[inline]
pub(super) fn code_of(len: u64) -> i32 {
    let shift = (u64::BITS - EXACT_BITS).saturating_sub(len.leading_zeros());
    let kept = len >> shift;
    let lost = kept << shift != len;
    let code = (shift << (EXACT_BITS - 1)) + kept as u32;
    (code << 1 | u32::from(lost)).cast_signed()
}

/// The number of the last of eight ascending keys at or below `address`; the first is taken to be.
///
/// Three comparisons that don't wait for one another, then one: as fast as vector registers, which
/// few processors can fill with 64-bit comparisons.
#[inline]
fn rank(keys: &[u64; BLOCK], address: u64) -> usize {
    let below = |at: usize| usize::from(keys[at] <= address);
    let at = 2 * (below(2) + below(4) + below(6));
    at + below(at + 1)
}

/// The length that `code` stands for, if the code lost nothing.
#[inline]
fn len_of(code: i32) -> Option<u64> {
    let bits = code.cast_unsigned() >> 1;
    let shift = (bits >> (EXACT_BITS - 1)).max(1) - 1;
    let kept = u64::from(bits - (shift << (EXACT_BITS - 1)));
    (code & 1 == 0).then_some(kept << shift)
}

/// A length to search for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) size: u64,
    code: i32,
}

impl Wanted {
    #[inline]
    pub(super) fn new(size: u64) -> Self {
        Self {
            size,
            code: code_of(size),
        }
    }
}

/// # Invariants
/// Child `i` holds the segments from key `i` on; key 0 is the least of all whatever the child
/// starts with, keys from `len` on are the greatest. `longest[i]` is the longest hole under child
/// `i`, and 0 from `len` on, `codes` the same as codes. `coarse` and `best` have the first key
/// and the greatest code of each block of eight.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Inner {
    coarse: [u64; BLOCK],
    best: [i32; BLOCK],
    len: u32,
    keys: [[u64; BLOCK]; BLOCK],
    codes: [[i32; BLOCK]; BLOCK],
    children: [u32; FANOUT],
    longest: [u64; FANOUT],
}

impl Inner {
    pub(super) const EMPTY: Self = Self {
        coarse: [u64::MAX; BLOCK],
        best: [0; BLOCK],
        len: 0,
        keys: [[u64::MAX; BLOCK]; BLOCK],
        codes: [[0; BLOCK]; BLOCK],
        children: [0; FANOUT],
        longest: [0; FANOUT],
    };

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(super) fn child(&self, at: usize) -> u32 {
        #[cfg(test)]
        crate::testing::step();
        self.children[at % FANOUT]
    }

    /// The longest hole under child `at`.
    #[inline]
    pub(super) fn longest_of(&self, at: usize) -> u64 {
        self.longest[at % FANOUT]
    }

    /// The child that holds `address`.
    #[inline]
    pub(super) fn rank(&self, address: u64) -> usize {
        #[cfg(test)]
        crate::testing::step();
        let block = rank(&self.coarse, address);
        block * BLOCK + rank(&self.keys[block], address)
    }

    /// The longest hole under all children.
    pub(super) fn longest(&self) -> u64 {
        self.longest_with(greatest(&self.best))
    }

    /// The longest of the holes whose code is `code`, the greatest there is.
    #[inline]
    pub(super) fn longest_with(&self, code: i32) -> u64 {
        len_of(code).unwrap_or_else(|| self.longest_alike(code))
    }

    fn longest_alike(&self, code: i32) -> u64 {
        let mut longest = 0;
        let mut blocks = at_least(&self.best, code);
        while let Some(block) = nearest(blocks, Side::Low) {
            blocks &= blocks - 1;
            let mut lanes = at_least(&self.codes[block % BLOCK], code);
            while let Some(lane) = nearest(lanes, Side::Low) {
                lanes &= lanes - 1;
                longest = longest.max(self.longest_of(block * BLOCK + lane));
            }
        }
        longest
    }

    /// Notes the longest hole under child `at`. Returns the greatest code of all.
    ///
    /// It is found among those that stay, and not read back with the new one: a load of eight
    /// lanes would have to wait for the store to one of them.
    #[inline]
    pub(super) fn set_longest(&mut self, at: usize, len: u64) -> i32 {
        let (at, code) = (at % FANOUT, code_of(len));
        let (block, lane) = (at / BLOCK, at % BLOCK);
        let of_block = greatest_but(&self.codes[block], lane).max(code);
        let of_all = greatest_but(&self.best, block).max(of_block);
        self.longest[at] = len;
        self.codes[block][lane] = code;
        self.best[block] = of_block;
        of_all
    }

    /// The first child with a hole that is long enough, from the side the search comes from.
    #[inline]
    pub(super) fn pick(&self, wanted: Wanted, from: Side) -> Option<usize> {
        self.pick_within((0, FANOUT), wanted, from)
    }

    /// As [`pick`](Self::pick), of children `lo..hi`.
    #[inline]
    pub(super) fn pick_within(
        &self,
        (lo, hi): (usize, usize),
        wanted: Wanted,
        from: Side,
    ) -> Option<usize> {
        #[cfg(test)]
        crate::testing::step();
        let mut blocks = at_least(&self.best, wanted.code);
        while let Some(block) = nearest(blocks, from) {
            blocks &= !(1 << block);
            let mut lanes = at_least(&self.codes[block % BLOCK], wanted.code);
            while let Some(lane) = nearest(lanes, from) {
                lanes &= !(1 << lane);
                let at = block * BLOCK + lane;
                let fits = wanted.code & 1 == 0 || self.longest_of(at) >= wanted.size;
                if fits && lo <= at && at < hi {
                    return Some(at);
                }
            }
        }
        None
    }

    /// Makes `coarse` and `best` agree with the rest.
    fn refresh(&mut self) {
        for block in 0..BLOCK {
            self.coarse[block] = self.keys[block][0];
            self.best[block] = greatest(&self.codes[block]);
        }
    }

    fn put(&mut self, at: usize, key: u64, longest: u64, child: u32) {
        self.keys.as_flattened_mut()[at] = key;
        self.codes.as_flattened_mut()[at] = code_of(longest);
        (self.longest[at], self.children[at]) = (longest, child);
    }

    /// Adds a child as number `at`; there is room.
    pub(super) fn open(&mut self, at: usize, key: u64, longest: u64, child: u32) {
        let len = self.len();
        self.keys.as_flattened_mut().copy_within(at..len, at + 1);
        self.codes.as_flattened_mut().copy_within(at..len, at + 1);
        self.longest.copy_within(at..len, at + 1);
        self.children.copy_within(at..len, at + 1);
        self.put(at, key, longest, child);
        self.len += 1;
        self.refresh();
    }

    /// Drops child `at`.
    pub(super) fn close(&mut self, at: usize) {
        let len = self.len();
        self.keys.as_flattened_mut().copy_within(at + 1..len, at);
        self.codes.as_flattened_mut().copy_within(at + 1..len, at);
        self.longest.copy_within(at + 1..len, at);
        self.children.copy_within(at + 1..len, at);
        self.put(len - 1, u64::MAX, 0, 0);
        self.len -= 1;
        if self.len > 0 {
            self.keys[0][0] = 0;
        }
        self.refresh();
    }

    /// The boundary in front of child `at`, which is not the first.
    pub(super) fn key(&self, at: usize) -> u64 {
        self.keys.as_flattened()[at]
    }

    /// Moves the boundary in front of child `at`, which is not the first.
    pub(super) fn set_key(&mut self, at: usize, key: u64) {
        self.keys.as_flattened_mut()[at] = key;
        self.coarse[at / BLOCK] = self.keys[at / BLOCK][0];
    }

    /// Moves children from `cut` on to a new node, and returns the key it starts with.
    pub(super) fn split(&mut self, cut: usize) -> (u64, Self) {
        let mut upper = Self::EMPTY;
        let key = self.key(cut);
        for at in cut..self.len() {
            let lower_key = self.key(at);
            upper.put(at - cut, lower_key, self.longest[at], self.children[at]);
            self.put(at, u64::MAX, 0, 0);
        }
        upper.keys[0][0] = 0;
        upper.len = self.len - cut as u32;
        self.len = cut as u32;
        self.refresh();
        upper.refresh();
        (key, upper)
    }

    /// Takes over all children of the node that follows, which begins at `key`; there is room.
    pub(super) fn append(&mut self, key: u64, upper: &Self) {
        let len = self.len();
        for at in 0..upper.len() {
            let key = if at == 0 { key } else { upper.key(at) };
            self.put(len + at, key, upper.longest[at], upper.children[at]);
        }
        self.len += upper.len;
        self.refresh();
    }

    /// Compares what the node says with itself.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub(super) fn check(&self) {
        let (keys, codes) = (self.keys.as_flattened(), self.codes.as_flattened());
        assert!(self.len > 0 && keys[0] == 0);
        assert_eq!(
            self.longest(),
            self.longest.iter().copied().fold(0, u64::max)
        );
        assert!(keys[self.len()..].iter().all(|&key| key == u64::MAX));
        assert!(
            self.longest[self.len()..]
                .iter()
                .all(|&longest| longest == 0)
        );
        for (&code, &longest) in codes.iter().zip(&self.longest) {
            assert_eq!(code, code_of(longest));
        }
        let mut fresh = self.clone();
        fresh.refresh();
        assert_eq!((fresh.coarse, fresh.best), (self.coarse, self.best));
    }
}
