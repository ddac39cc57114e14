//! Sets of integers with ordered search, in a 64-ary tree of summary words.

use alloc::vec::Vec;

use crate::SpaceError;
use crate::ordered::OrderedMap;

/// The largest dense universe: 2^28 members cost 32 MiB.
pub(crate) const DENSE_LIMIT: u64 = 1 << 28;
const DEPTH: usize = 5;

/// A dense set over `0..universe`.
///
/// # Invariants
/// Level 0 holds a bit per member; a bit of level `n + 1` is set when the word of level `n` it
/// stands for is not zero. Level `n` begins at `words[starts[n]]`; the top level is one word.
#[derive(Clone, Debug)]
pub(crate) struct BitTree {
    words: Vec<u64>,
    starts: [usize; DEPTH],
    depth: usize,
}

#[inline]
fn low_bit(word: u64) -> usize {
    word.trailing_zeros() as usize
}

#[inline]
fn high_bit(word: u64) -> usize {
    word.ilog2() as usize
}

impl BitTree {
    /// An empty set over `0..universe`.
    pub(crate) fn new(universe: u64) -> Result<Self, SpaceError> {
        let mut starts = [0; DEPTH];
        let (mut total, mut depth, mut words) = (0, 0, dense(universe).div_ceil(64).max(1));
        loop {
            starts[depth] = total;
            total += words;
            depth += 1;
            if words == 1 {
                break;
            }
            words = words.div_ceil(64);
        }
        Ok(Self {
            words: zeroes(total)?,
            starts,
            depth,
        })
    }

    #[inline]
    pub(crate) fn contains(&self, index: u64) -> bool {
        self.words[dense(index >> 6)] >> (index & 63) & 1 != 0
    }

    #[inline]
    pub(crate) fn insert(&mut self, index: u64) {
        let mut index = dense(index);
        for &start in &self.starts[..self.depth] {
            let word = &mut self.words[start + (index >> 6)];
            let old = *word;
            *word = old | 1 << (index & 63);
            if old != 0 {
                return;
            }
            index >>= 6;
        }
    }

    /// Removes a member. Returns whether the set is empty afterwards.
    #[inline]
    pub(crate) fn remove(&mut self, index: u64) -> bool {
        let mut index = dense(index);
        for &start in &self.starts[..self.depth] {
            let word = &mut self.words[start + (index >> 6)];
            *word &= !(1 << (index & 63));
            if *word != 0 {
                return false;
            }
            index >>= 6;
        }
        true
    }

    #[inline]
    fn descend_low(&self, mut level: usize, mut index: usize) -> u64 {
        while level > 0 {
            level -= 1;
            index = index << 6 | low_bit(self.words[self.starts[level] + index]);
        }
        wide(index)
    }

    fn descend_high(&self, mut level: usize, mut index: usize) -> u64 {
        while level > 0 {
            level -= 1;
            index = index << 6 | high_bit(self.words[self.starts[level] + index]);
        }
        wide(index)
    }

    /// The smallest member of a set that is not empty; any number of one that is.
    #[inline]
    pub(crate) fn first(&self) -> u64 {
        self.descend_low(self.depth, 0)
    }

    /// The smallest member at or above `from`.
    pub(crate) fn next(&self, from: u64) -> Option<u64> {
        let mut from = usize::try_from(from).ok()?;
        for level in 0..self.depth {
            let at = from >> 6;
            if at >= self.level_len(level) {
                return None;
            }
            let rest = self.words[self.starts[level] + at] & (u64::MAX << (from & 63));
            if rest != 0 {
                return Some(self.descend_low(level, at << 6 | low_bit(rest)));
            }
            from = at + 1;
        }
        None
    }

    /// The greatest member at or below `from`.
    pub(crate) fn prev(&self, from: u64) -> Option<u64> {
        let last = (self.level_len(0) << 6) - 1;
        let mut from = usize::try_from(from).map_or(last, |from| from.min(last));
        for level in 0..self.depth {
            let at = from >> 6;
            let rest = self.words[self.starts[level] + at] & (u64::MAX >> (63 - (from & 63)));
            if rest != 0 {
                return Some(self.descend_high(level, at << 6 | high_bit(rest)));
            }
            from = at.checked_sub(1)?;
        }
        None
    }

    pub(crate) fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    fn level_len(&self, level: usize) -> usize {
        let end = if level + 1 < self.depth {
            self.starts[level + 1]
        } else {
            self.words.len()
        };
        end - self.starts[level]
    }
}

fn zeroes(count: usize) -> Result<Vec<u64>, SpaceError> {
    let mut words = Vec::new();
    words
        .try_reserve_exact(count)
        .map_err(|_| SpaceError::MetadataExhausted)?;
    words.resize(count, 0);
    Ok(words)
}

#[inline]
fn dense(index: u64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a dense universe has few members"
    )]
    {
        index as usize
    }
}

fn wide(index: usize) -> u64 {
    index as u64
}

/// One bit per number, without order: where a search is not needed.
#[derive(Clone, Debug)]
pub(crate) enum Flags {
    Dense(Vec<u64>),
    Listed(OrderedMap<u64, ()>),
}

impl Flags {
    /// All clear over `0..universe`.
    pub(crate) fn with_bits(universe: u64) -> Result<Self, SpaceError> {
        zeroes(dense(universe).div_ceil(64)).map(Self::Dense)
    }

    /// All clear, without memory for those that could be set.
    pub(crate) const fn with_list() -> Self {
        Self::Listed(OrderedMap::new())
    }

    /// Makes sure that one more flag can be set.
    pub(crate) fn reserve(&mut self) -> Result<(), SpaceError> {
        match self {
            Self::Dense(_) => Ok(()),
            Self::Listed(set) => set.reserve(1),
        }
    }

    #[inline]
    pub(crate) fn set(&mut self, index: u64) {
        match self {
            Self::Dense(words) => words[dense(index >> 6)] |= 1 << (index & 63),
            Self::Listed(set) => set.insert(index, ()),
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: u64) -> bool {
        match self {
            Self::Dense(words) => words[dense(index >> 6)] >> (index & 63) & 1 != 0,
            Self::Listed(set) => set.contains(index),
        }
    }

    /// Clears a flag. Returns whether it was set.
    #[inline]
    pub(crate) fn take(&mut self, index: u64) -> bool {
        match self {
            Self::Dense(words) => {
                let word = &mut words[dense(index >> 6)];
                let old = *word;
                *word = old & !(1 << (index & 63));
                old != *word
            }
            Self::Listed(set) => set.remove(index).is_some(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let (words, set) = match self {
            Self::Dense(words) => (words.as_slice(), None),
            Self::Listed(set) => ([].as_slice(), Some(set)),
        };
        let bits = words.iter().enumerate().flat_map(|(at, &word)| {
            (0..64)
                .filter(move |bit| word >> bit & 1 != 0)
                .map(move |bit| wide(at) << 6 | bit)
        });
        let listed = set.into_iter().flat_map(OrderedMap::iter);
        bits.chain(listed.map(|(index, ())| index))
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Dense(words) => words.capacity() * size_of::<u64>(),
            Self::Listed(set) => set.bytes(),
        }
    }
}
