//! Sets of integers with ordered search, in a 64-ary tree of summary words.

use alloc::vec::Vec;

use crate::SpaceError;

/// The largest dense universe: 2^28 members cost 32 MiB.
pub(crate) const DENSE_LIMIT: u64 = 1 << 28;
const DEPTH: usize = 5;

/// A dense set over `0..universe`.
///
/// # Invariants
/// Level 0 holds a bit per member; a bit of level `n + 1` is set when the word of level `n` it
/// stands for is not zero. Level `n` begins at `words[starts[n]]`; the top level is one word. No
/// member is below `low`, which is [`NO_MEMBER`] when there is none.
#[derive(Clone, Debug)]
pub(crate) struct BitTree {
    words: Vec<u64>,
    starts: [usize; DEPTH],
    depth: usize,
    low: usize,
}

const NO_MEMBER: usize = usize::MAX;

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
            low: NO_MEMBER,
        })
    }

    #[inline]
    pub(crate) fn contains(&self, index: u64) -> bool {
        #[cfg(test)]
        crate::testing::step();
        self.words[dense(index >> 6)] >> (index & 63) & 1 != 0
    }

    #[inline]
    pub(crate) fn insert(&mut self, index: u64) {
        #[cfg(test)]
        crate::testing::step();
        let mut index = dense(index);
        self.low = self.low.min(index);
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
        #[cfg(test)]
        crate::testing::step();
        let mut index = dense(index);
        for &start in &self.starts[..self.depth] {
            let word = &mut self.words[start + (index >> 6)];
            *word &= !(1 << (index & 63));
            if *word != 0 {
                return false;
            }
            index >>= 6;
        }
        self.low = NO_MEMBER;
        true
    }

    /// Takes the smallest member out of a set that is not empty. Returns it, and whether the set
    /// is empty afterwards.
    #[inline]
    pub(crate) fn take_first(&mut self) -> (u64, bool) {
        // Mostly it is in the word it was in the last time: there is no need to come from the top.
        let rest = self.words[self.low >> 6];
        let first = if rest == 0 {
            dense(self.descend_low(self.depth, 0))
        } else {
            self.low & !63 | low_bit(rest)
        };
        self.low = first;
        (wide(first), self.remove(wide(first)))
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

    /// The smallest member at or above `from`.
    pub(crate) fn next(&self, from: u64) -> Option<u64> {
        #[cfg(test)]
        crate::testing::step();
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
        #[cfg(test)]
        crate::testing::step();
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::Rng;

    #[test]
    fn a_bit_tree_answers_as_the_standard_set() {
        for seed in 0..30 {
            let mut rng = Rng(seed);
            let universe = 1 + rng.below(20_000);
            let (mut ours, mut theirs) = (BitTree::new(universe).unwrap(), BTreeSet::new());
            for _ in 0..2000 {
                let index = rng.below(universe);
                // Often empty, often with a single member.
                match rng.below(5) {
                    0 | 1 => {
                        ours.insert(index);
                        theirs.insert(index);
                    }
                    2 if theirs.contains(&index) => {
                        theirs.remove(&index);
                        assert_eq!(ours.remove(index), theirs.is_empty());
                    }
                    _ if theirs.is_empty() => {}
                    3 => {
                        let first = theirs.pop_first().unwrap();
                        assert_eq!(ours.take_first(), (first, theirs.is_empty()));
                    }
                    _ => {
                        let last = theirs.pop_last().unwrap();
                        assert_eq!(ours.remove(last), theirs.is_empty());
                    }
                }
                assert_eq!(ours.contains(index), theirs.contains(&index));
                assert_eq!(ours.next(index), theirs.range(index..).next().copied());
                assert_eq!(
                    ours.prev(index),
                    theirs.range(..=index).next_back().copied()
                );
                assert_eq!(ours.next(u64::MAX), None);
                assert_eq!(ours.prev(u64::MAX), theirs.last().copied());
            }
        }
    }
}
