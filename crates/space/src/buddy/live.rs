//! Which blocks are live, and how long each is.

use alloc::vec::Vec;

use crate::SpaceError;
use crate::ordered::OrderedMap;

/// Live blocks, by their first chunk: nothing is taken off that is not exactly what was put on.
#[derive(Clone, Debug)]
pub(super) enum Live {
    Dense(Vec<Word>),
    Listed(OrderedMap<u64, u64>),
}

/// Chunks of a word.
const CHUNKS: u64 = 64;

/// Two bits for each of 64 chunks.
///
/// A block that ends in the word where it starts, or in the next, marks its last chunk in `sizes`.
/// A longer one has no mark in the first word. The next word is all its own: the first two chunks
/// are marked there, of which the second is no start, and the other bits are how many chunks
/// follow the first word.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Word {
    starts: u64,
    sizes: u64,
}

impl Word {
    /// Whether `sizes` is the length of the block before, whose own the word is.
    #[inline]
    fn is_length(self) -> bool {
        self.sizes & 0b11 == 0b11 && self.starts & 0b11 == 0
    }
}

/// What the first of the words that are all a block's own has in `sizes`, when `rest` chunks begin
/// there.
#[inline]
const fn mark(rest: u64) -> u64 {
    if rest <= CHUNKS {
        1 << (rest - 1)
    } else {
        rest << 2 | 0b11
    }
}

/// The word of a chunk, and its bit there.
#[inline]
const fn place(chunk: u64) -> (usize, u64) {
    ((chunk >> 6) as usize, chunk & 63)
}

impl Live {
    /// Nothing is live in `0..chunks`.
    pub(super) fn with_bits(chunks: u64) -> Result<Self, SpaceError> {
        // The marks of the last chunks are read with those of the next word.
        let count = place(chunks).0 + 2;
        let mut words = Vec::new();
        words
            .try_reserve_exact(count)
            .map_err(|_| SpaceError::MetadataExhausted)?;
        words.resize(count, Word::default());
        Ok(Self::Dense(words))
    }

    /// Nothing is live, without memory for what could be.
    pub(super) const fn with_list() -> Self {
        Self::Listed(OrderedMap::new())
    }

    /// Makes sure that one more block can be live.
    pub(super) fn reserve(&mut self) -> Result<(), SpaceError> {
        match self {
            Self::Dense(_) => Ok(()),
            Self::Listed(blocks) => blocks.reserve(1),
        }
    }

    /// Whether a live block starts at `chunk`.
    #[inline]
    pub(super) fn starts(&self, chunk: u64) -> bool {
        match self {
            Self::Dense(words) => {
                let (at, bit) = place(chunk);
                words[at].starts >> bit & 1 != 0
            }
            Self::Listed(blocks) => blocks.contains(chunk),
        }
    }

    /// Notes a block; nothing in it is live.
    #[inline]
    pub(super) fn insert(&mut self, first: u64, count: u64) {
        match self {
            Self::Dense(words) => flip(words, first, count),
            Self::Listed(blocks) => blocks.insert(first, count),
        }
    }

    /// Whether exactly this block is live.
    #[inline]
    pub(super) fn holds(&self, first: u64, count: u64) -> bool {
        match self {
            Self::Dense(words) => count != 0 && is_noted(words, first, count),
            Self::Listed(blocks) => blocks.get(first) == Some(count),
        }
    }

    /// Takes a live block off.
    #[inline]
    pub(super) fn remove(&mut self, first: u64, count: u64) {
        match self {
            Self::Dense(words) => flip(words, first, count),
            Self::Listed(blocks) => {
                blocks.remove(first);
            }
        }
    }

    /// First chunk and length of all blocks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let (words, blocks) = match self {
            Self::Dense(words) => (words.as_slice(), None),
            Self::Listed(blocks) => ([].as_slice(), Some(blocks)),
        };
        let bits = (0..).zip(words).flat_map(|(at, word)| {
            let is_set = move |bit: &u64| word.starts >> bit & 1 != 0;
            let first = (0..64).filter(is_set).map(move |bit| at << 6 | bit);
            first.map(|first| (first, noted_length(words, first)))
        });
        let listed = blocks.into_iter().flat_map(OrderedMap::iter);
        bits.chain(listed)
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Dense(words) => words.capacity() * size_of::<Word>(),
            Self::Listed(blocks) => blocks.bytes(),
        }
    }
}

/// Notes a block where none is, or takes the note of one away.
#[inline]
fn flip(words: &mut [Word], first: u64, count: u64) {
    let (at, bit) = place(first);
    words[at].starts ^= 1 << bit;
    match count.checked_sub(CHUNKS - bit) {
        None | Some(0) => words[at].sizes ^= 1 << (bit + count - 1),
        Some(rest) => words[at + 1].sizes ^= mark(rest),
    }
}

/// How long the block that starts at `first` is.
fn noted_length(words: &[Word], first: u64) -> u64 {
    let (at, bit) = place(first);
    let (word, next) = (words[at], words[at + 1]);
    let own = word.sizes >> bit;
    let others = word.starts >> bit & !1;
    if own != 0 && (others == 0 || own.trailing_zeros() < others.trailing_zeros()) {
        return u64::from(own.trailing_zeros()) + 1;
    }
    let rest = if next.is_length() {
        next.sizes >> 2
    } else {
        u64::from(next.sizes.trailing_zeros()) + 1
    };
    CHUNKS - bit + rest
}

/// Does what [`Live::holds`] does; `count` is not 0.
#[inline]
fn is_noted(words: &[Word], first: u64, count: u64) -> bool {
    let (at, bit) = place(first);
    let (start, word) = (1_u64 << bit, words[at]);
    let Some(rest @ 1..) = count.checked_sub(CHUNKS - bit) else {
        let last = start << (count - 1);
        let own = (last << 1).wrapping_sub(start);
        return word.starts & own == start && word.sizes & own == last;
    };
    // What ends in the next word, where nothing starts before, is this block.
    let starts_here = word.starts & u64::MAX << bit == start;
    let next = words[at + 1];
    if rest > CHUNKS {
        return starts_here && next.starts == 0 && next.sizes == mark(rest);
    }
    let own = u64::MAX >> (CHUNKS - rest);
    starts_here && next.starts & own == 0 && next.sizes & own == mark(rest) && !next.is_length()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::testing::Rng;

    /// Lengths on both sides of where another way to note them begins, and any.
    fn length(rng: &mut Rng) -> u64 {
        match rng.below(4) {
            0 => 1 + rng.below(3),
            1 => 1 + rng.below(64),
            2 => [62, 126][usize::from(rng.below(2) == 0)] + rng.below(6),
            _ => 1 + rng.below(700),
        }
    }

    #[test]
    fn only_what_was_put_on_is_taken_off() {
        for (seed, make) in [Live::with_bits, |_| Ok(Live::with_list())]
            .into_iter()
            .enumerate()
        {
            let mut rng = Rng(seed as u64);
            let chunks = 5000;
            let (mut live, mut model) = (make(chunks).unwrap(), BTreeMap::new());
            for _ in 0..100_000 {
                let first = rng.below(chunks);
                let count = length(&mut rng).min(chunks - first);
                let before = model.range(..first + count).next_back();
                if before.is_none_or(|(&start, &len)| start + len <= first) {
                    live.reserve().unwrap();
                    live.insert(first, count);
                    model.insert(first, count);
                }
                // Mostly of what is live, and often as long as it is.
                let first = rng.below(chunks);
                let near = model.range(first..).next();
                let (first, real) = near.map_or((first, 1), |(&first, &count)| (first, count));
                let count = [real, length(&mut rng)][usize::from(rng.below(4) > 0)];
                let expected = model.get(&first) == Some(&count);
                assert_eq!(live.holds(first, count), expected, "{count} from {first}");
                if expected {
                    live.remove(first, count);
                    model.remove(&first);
                }
                assert!(!live.holds(first, 0));
            }
            assert!(live.iter().eq(model.clone()));
            assert!((0..chunks).all(|chunk| live.starts(chunk) == model.contains_key(&chunk)));
        }
    }
}
