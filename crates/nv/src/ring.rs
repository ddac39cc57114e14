//! Room in a channel: ring entries and the words they point to.

use std::collections::VecDeque;

/// Where one submission is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    /// Its ring entry.
    pub(crate) entry: u32,
    /// Its first word.
    pub(crate) start: u32,
    /// The word behind its last one.
    end: u32,
}

/// Submissions under way, oldest first, in a ring of entries and a ring of words. A submission's
/// words are in one piece.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    entries: u32,
    words: u32,
    next: u32,
    slots: VecDeque<(Slot, T)>,
}

impl<T> Ring<T> {
    pub(crate) fn new(entries: u32, words: u32) -> Self {
        Self {
            entries,
            words,
            next: 0,
            slots: VecDeque::new(),
        }
    }

    /// Submissions held at most: with one more, a full ring would look empty to the GPU.
    pub(crate) fn capacity(&self) -> u32 {
        self.entries - 1
    }

    /// Submissions under way, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().map(|(_, item)| item)
    }

    /// Room for `len` words, if there is some now.
    pub(crate) fn room(&self, len: usize) -> Option<Slot> {
        let len = u32::try_from(len).ok()?;
        let start = match (self.slots.front(), self.slots.back()) {
            (Some((oldest, _)), Some((newest, _))) => {
                if self.slots.len() >= self.capacity() as usize {
                    return None;
                }
                let (head, tail) = (oldest.start, newest.end);
                let wrapped = tail <= head;
                // Up to the oldest word but not onto it: full must not look like empty.
                if wrapped {
                    (len < head - tail).then_some(tail)?
                } else if len <= self.words - tail {
                    tail
                } else {
                    (len < head).then_some(0)?
                }
            }
            _ => (len <= self.words).then_some(0)?,
        };
        Some(Slot {
            entry: self.next,
            start,
            end: start + len,
        })
    }

    /// Takes a submission in at the room just found; the entry behind it.
    pub(crate) fn push(&mut self, slot: Slot, item: T) -> u32 {
        self.slots.push_back((slot, item));
        self.next = (slot.entry + 1) % self.entries;
        self.next
    }

    /// Forgets the oldest submissions as far as they are over.
    pub(crate) fn retire(&mut self, is_over: impl Fn(&T) -> bool) {
        while self.slots.front().is_some_and(|(_, item)| is_over(item)) {
            self.slots.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether no word belongs to two submissions and no entry to more than one.
    fn check(ring: &Ring<u32>) {
        let mut words = vec![false; ring.words as usize];
        for (slot, _) in &ring.slots {
            for word in slot.start..slot.end {
                let taken = &mut words[word as usize];
                assert!(!*taken, "word {word} is used twice");
                *taken = true;
            }
        }
        assert!(ring.slots.len() <= ring.capacity() as usize);
    }

    #[test]
    fn submissions_of_any_size_never_share_a_word_and_all_fit_when_it_is_empty() {
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        let mut ring = Ring::new(8, 64);
        let (mut number, mut refused) = (0_u32, 0);
        for _ in 0..20_000 {
            let len = usize::try_from(1 + random(64)).unwrap();
            match ring.room(len) {
                Some(slot) => {
                    let entry = ring.push(slot, number);
                    assert_eq!(entry, (number + 1) % 8, "entries go around in order");
                    number += 1;
                }
                None => {
                    refused += 1;
                    assert!(!ring.slots.is_empty(), "an empty ring takes {len}");
                    let over = number - u32::try_from(random(ring.slots.len() as u64)).unwrap();
                    ring.retire(|&item| item < over);
                }
            }
            check(&ring);
        }
        assert!(refused > 1000 && number > 1000);
    }

    #[test]
    fn what_is_longer_than_the_ring_never_fits() {
        let ring = Ring::<()>::new(8, 64);
        assert!(ring.room(64).is_some() && ring.room(65).is_none());
    }
}
