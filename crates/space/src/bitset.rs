//! Sets of integers with ordered search, in a 64-ary tree of summary words.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::SpaceError;

/// The largest dense universe: 2^28 members cost 32 MiB.
pub(crate) const DENSE_LIMIT: u64 = 1 << 28;
const DEPTH: usize = 5;

/// A dense set over `0..universe`.
///
/// # Invariants
/// Level 0 holds a bit per member; a bit of level `n + 1` is set when the word of level `n` it
/// stands for is not zero.
#[derive(Clone, Debug)]
pub(crate) struct BitTree {
    levels: [Vec<u64>; DEPTH],
    depth: usize,
}

/// Splits a member into its word and the bit inside it.
#[inline]
fn split(index: usize) -> (usize, u64) {
    (index >> 6, 1 << (index & 63))
}

#[inline]
fn low_bit(word: u64) -> usize {
    word.trailing_zeros() as usize
}

#[inline]
fn high_bit(word: u64) -> usize {
    63 - word.leading_zeros() as usize
}

impl BitTree {
    fn new(universe: usize) -> Result<Self, SpaceError> {
        let mut levels: [Vec<u64>; DEPTH] = Default::default();
        let mut words = universe.div_ceil(64).max(1);
        let mut depth = 0;
        loop {
            let level = &mut levels[depth];
            level
                .try_reserve_exact(words)
                .map_err(|_| SpaceError::MetadataExhausted)?;
            level.resize(words, 0);
            depth += 1;
            if words == 1 {
                return Ok(Self { levels, depth });
            }
            words = words.div_ceil(64);
        }
    }

    #[inline]
    fn contains(&self, index: usize) -> bool {
        let (word, bit) = split(index);
        self.levels[0][word] & bit != 0
    }

    #[inline]
    fn insert(&mut self, mut index: usize) {
        for level in &mut self.levels[..self.depth] {
            let (word, bit) = split(index);
            let old = level[word];
            level[word] = old | bit;
            if old != 0 {
                return;
            }
            index = word;
        }
    }

    #[inline]
    fn remove(&mut self, mut index: usize) {
        for level in &mut self.levels[..self.depth] {
            let (word, bit) = split(index);
            level[word] &= !bit;
            if level[word] != 0 {
                return;
            }
            index = word;
        }
    }

    #[inline]
    fn descend_low(&self, mut level: usize, mut index: usize) -> usize {
        while level > 0 {
            level -= 1;
            index = index << 6 | low_bit(self.levels[level][index]);
        }
        index
    }

    #[inline]
    fn descend_high(&self, mut level: usize, mut index: usize) -> usize {
        while level > 0 {
            level -= 1;
            index = index << 6 | high_bit(self.levels[level][index]);
        }
        index
    }

    fn next(&self, mut from: usize) -> Option<usize> {
        for level in 0..self.depth {
            let (word, bit) = split(from);
            let rest = *self.levels[level].get(word)? & !(bit - 1);
            if rest != 0 {
                return Some(self.descend_low(level, word << 6 | low_bit(rest)));
            }
            from = word + 1;
        }
        None
    }

    fn prev(&self, mut from: usize) -> Option<usize> {
        from = from.min((self.levels[0].len() << 6) - 1);
        for level in 0..self.depth {
            let (word, bit) = split(from);
            let rest = self.levels[level][word] & (bit | (bit - 1));
            if rest != 0 {
                return Some(self.descend_high(level, word << 6 | high_bit(rest)));
            }
            from = word.checked_sub(1)?;
        }
        None
    }

    fn clear(&mut self) {
        for level in &mut self.levels[..self.depth] {
            level.fill(0);
        }
    }
}

/// A set of `u64`, dense where its universe is small enough.
#[derive(Clone, Debug)]
pub(crate) enum BitSet {
    Dense(BitTree),
    Sparse(BTreeSet<u64>),
}

#[inline]
fn dense(index: u64) -> usize {
    usize::try_from(index).expect("a dense universe has at most 2^28 members")
}

fn wide(index: usize) -> u64 {
    index as u64
}

impl BitSet {
    /// An empty set over `0..universe`, dense up to `limit` members.
    pub(crate) fn new(universe: u64, limit: u64) -> Result<Self, SpaceError> {
        if universe > limit {
            return Ok(Self::Sparse(BTreeSet::new()));
        }
        BitTree::new(dense(universe)).map(Self::Dense)
    }

    #[inline]
    pub(crate) fn contains(&self, index: u64) -> bool {
        match self {
            Self::Dense(tree) => tree.contains(dense(index)),
            Self::Sparse(set) => set.contains(&index),
        }
    }

    #[inline]
    pub(crate) fn insert(&mut self, index: u64) {
        match self {
            Self::Dense(tree) => tree.insert(dense(index)),
            Self::Sparse(set) => {
                set.insert(index);
            }
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, index: u64) {
        match self {
            Self::Dense(tree) => tree.remove(dense(index)),
            Self::Sparse(set) => {
                set.remove(&index);
            }
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Dense(tree) => tree.levels[tree.depth - 1][0] == 0,
            Self::Sparse(set) => set.is_empty(),
        }
    }

    /// The smallest member at or above `from`.
    #[inline]
    pub(crate) fn next(&self, from: u64) -> Option<u64> {
        match self {
            Self::Dense(tree) => tree.next(usize::try_from(from).ok()?).map(wide),
            Self::Sparse(set) => set.range(from..).next().copied(),
        }
    }

    /// The greatest member at or below `from`.
    #[inline]
    pub(crate) fn prev(&self, from: u64) -> Option<u64> {
        match self {
            Self::Dense(tree) => tree
                .prev(usize::try_from(from).unwrap_or(usize::MAX))
                .map(wide),
            Self::Sparse(set) => set.range(..=from).next_back().copied(),
        }
    }

    pub(crate) fn clear(&mut self) {
        match self {
            Self::Dense(tree) => tree.clear(),
            Self::Sparse(set) => set.clear(),
        }
    }
}
