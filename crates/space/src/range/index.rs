//! Holes by length and by age, for the modes that ask for more than an address order.

use alloc::vec::Vec;

use crate::SpaceError;
use crate::store::Store;

/// No hole.
const NONE: u32 = 0;

const SUB_BITS: u32 = 6;
const SUB: u32 = 1 << SUB_BITS;
const OCTAVES: usize = 64 - SUB_BITS as usize + 1;

/// Holes of a size class looked at for one that serves, and how many are compared, not counting
/// those long enough that come before it. Each is a line to read: narrow classes make up for few.
const TRIES: usize = 16;
const COMPARED: usize = 4;

/// Size classes an aligned request looks at before it asks for more than its size.
const NEAR_BINS: usize = 32;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    start: u64,
    len: u64,
    /// Neighbours on the list of the size class.
    next: u32,
    prev: u32,
    /// Neighbours on the list of all holes by age, if there is one; else when it was made.
    older: u32,
    newer: u32,
}

impl Entry {
    fn made(&self) -> u64 {
        u64::from(self.newer) << 32 | u64::from(self.older)
    }
}

fn bin_of(len: u64) -> u32 {
    let octave = (len | u64::from(SUB - 1)).ilog2();
    let shift = octave.max(SUB_BITS) - SUB_BITS;
    let sub = u32::try_from(len >> shift & u64::from(SUB - 1)).expect("few bits");
    ((octave - (SUB_BITS - 1)) << SUB_BITS) + sub
}

/// # Invariants
/// Every hole of the space has one entry, on the list of its bin and, once somebody asked for it,
/// on the list by age. Entry 0 is no hole; its `newer` is the oldest and its `older` the newest
/// hole, if there is the list. Until then entries say when they were made, which costs no visit to
/// two other entries whenever a hole changes.
#[derive(Clone, Debug)]
pub(super) struct HoleIndex {
    entries: Store<Entry>,
    spare: u32,
    heads: Vec<u32>,
    map: [u64; OCTAVES],
    top: u64,
    /// Holes made so far; `None` when there is a list by age.
    made: Option<u64>,
}

impl HoleIndex {
    /// An index without holes, with room for `count`.
    pub(super) fn new(count: usize) -> Result<Self, SpaceError> {
        let mut heads = Vec::new();
        let bins = OCTAVES << SUB_BITS;
        heads
            .try_reserve_exact(bins)
            .map_err(|_| SpaceError::MetadataExhausted)?;
        heads.resize(bins, NONE);
        let mut index = Self {
            entries: Store::new(),
            spare: NONE,
            heads,
            map: [0; OCTAVES],
            top: 0,
            made: Some(0),
        };
        index.reserve(count)?;
        index.entries.push(Entry::default());
        Ok(index)
    }

    /// Makes sure that `count` holes can exist without further memory.
    #[inline]
    pub(super) fn reserve(&mut self, count: usize) -> Result<(), SpaceError> {
        let missing = (count + 1).saturating_sub(self.entries.len());
        self.entries
            .try_reserve(missing)
            .map_err(|_| SpaceError::MetadataExhausted)
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.heads.capacity() * size_of::<u32>()
    }

    fn entry(&mut self, id: u32) -> &mut Entry {
        &mut self.entries[id as usize]
    }

    /// Adds a hole as the newest.
    pub(super) fn add(&mut self, start: u64, len: u64) -> u32 {
        let mut id = self.spare;
        if id == NONE {
            id = u32::try_from(self.entries.len()).expect("fewer holes than u32 can number");
            self.entries.push(Entry::default());
        } else {
            self.spare = self.entry(id).next;
        }
        *self.entry(id) = Entry {
            start,
            len,
            ..Entry::default()
        };
        self.link(id);
        self.age(id);
        id
    }

    pub(super) fn remove(&mut self, id: u32) {
        self.unlink(id);
        self.forget_age(id);
        self.entry(id).next = self.spare;
        self.spare = id;
    }

    /// Gives a hole other bounds and makes it the newest.
    pub(super) fn change(&mut self, id: u32, start: u64, len: u64) {
        let old = *self.entry(id);
        if bin_of(old.len) == bin_of(len) {
            let entry = self.entry(id);
            (entry.start, entry.len) = (start, len);
        } else {
            self.unlink(id);
            let entry = self.entry(id);
            (entry.start, entry.len) = (start, len);
            self.link(id);
        }
        self.forget_age(id);
        self.age(id);
    }

    fn link(&mut self, id: u32) {
        let bin = bin_of(self.entry(id).len);
        let next = core::mem::replace(&mut self.heads[bin as usize], id);
        self.entry(next).prev = id;
        let entry = self.entry(id);
        (entry.next, entry.prev) = (next, NONE);
        let octave = bin >> SUB_BITS;
        self.map[octave as usize] |= 1 << (bin & (SUB - 1));
        self.top |= 1 << octave;
    }

    fn unlink(&mut self, id: u32) {
        let Entry {
            len, next, prev, ..
        } = *self.entry(id);
        self.entry(next).prev = prev;
        if prev != NONE {
            self.entry(prev).next = next;
            return;
        }
        let bin = bin_of(len);
        self.heads[bin as usize] = next;
        if next == NONE {
            let octave = bin >> SUB_BITS;
            self.map[octave as usize] &= !(1 << (bin & (SUB - 1)));
            if self.map[octave as usize] == 0 {
                self.top &= !(1 << octave);
            }
        }
    }

    /// Makes the list by age, unless there is one.
    pub(super) fn list_by_age(&mut self) -> Result<(), SpaceError> {
        if self.made.is_none() {
            return Ok(());
        }
        let mut ids = Vec::new();
        ids.try_reserve_exact(self.entries.len())
            .map_err(|_| SpaceError::MetadataExhausted)?;
        for bin in self.bins(0) {
            let mut id = self.heads[bin as usize];
            while id != NONE {
                ids.push(id);
                id = self.entries[id as usize].next;
            }
        }
        ids.sort_unstable_by_key(|&id| self.entries[id as usize].made());
        self.made = None;
        (self.entry(NONE).older, self.entry(NONE).newer) = (NONE, NONE);
        for id in ids {
            self.age(id);
        }
        Ok(())
    }

    /// Makes a hole the newest.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "two halves of a number are stored, each in 32 bits"
    )]
    fn age(&mut self, id: u32) {
        if let Some(made) = &mut self.made {
            *made += 1;
            let (older, newer) = (*made as u32, (*made >> 32) as u32);
            let entry = self.entry(id);
            (entry.older, entry.newer) = (older, newer);
            return;
        }
        let before = self.entries[NONE as usize].older;
        self.entry(before).newer = id;
        let entry = self.entry(id);
        (entry.older, entry.newer) = (before, NONE);
        self.entry(NONE).older = id;
    }

    fn forget_age(&mut self, id: u32) {
        if self.made.is_some() {
            return;
        }
        let Entry { older, newer, .. } = *self.entry(id);
        self.entry(older).newer = newer;
        self.entry(newer).older = older;
    }

    fn next_bin(&self, bin: u32) -> Option<u32> {
        let octave = bin >> SUB_BITS;
        let word = *self.map.get(octave as usize)? & (u64::MAX << (bin & (SUB - 1)));
        if word != 0 {
            return Some(octave << SUB_BITS | word.trailing_zeros());
        }
        let rest = self.top & (u64::MAX << octave) & !(1 << octave);
        if rest == 0 {
            return None;
        }
        let octave = rest.trailing_zeros();
        Some(octave << SUB_BITS | self.map[octave as usize].trailing_zeros())
    }

    fn list(&self, bin: u32) -> impl Iterator<Item = Entry> + '_ {
        let mut id = self.heads[bin as usize];
        core::iter::from_fn(move || {
            #[cfg(test)]
            crate::testing::step();
            let entry = *self.entries.get(id as usize).filter(|_| id != NONE)?;
            id = entry.next;
            Some(entry)
        })
    }

    fn bins(&self, from: u64) -> impl Iterator<Item = u32> + '_ {
        let first = self.next_bin(bin_of(from));
        core::iter::successors(first, |&bin| self.next_bin(bin + 1))
    }

    /// What `place` makes of the best hole of at least `size` that it accepts: the shortest, then
    /// lowest, of four of a size class. Few classes are looked at before holes of at least `sure`
    /// are, which suit any alignment.
    pub(super) fn best<T>(
        &self,
        (size, sure): (u64, u64),
        place: impl Fn(u64, u64) -> Option<T>,
    ) -> Option<T> {
        for bin in self.bins(size).take(NEAR_BINS).chain(self.bins(sure)) {
            let mut least: Option<(u64, u64, T)> = None;
            let mut compared = 0;
            for entry in self.list(bin).take(TRIES) {
                let (key, short) = ((entry.len, entry.start), entry.len < size);
                let better = least
                    .as_ref()
                    .is_none_or(|&(len, start, _)| key < (len, start));
                if better
                    && !short
                    && let Some(found) = place(entry.start, entry.len)
                {
                    least = Some((key.0, key.1, found));
                }
                compared += usize::from(short || least.is_some());
                if compared == COMPARED {
                    break;
                }
            }
            if let Some((_, _, found)) = least {
                return Some(found);
            }
        }
        // Everything near was refused: look at the rest too before giving up.
        let mut rest = self.bins(size).flat_map(|bin| self.list(bin));
        rest.find_map(|entry| {
            if entry.len >= size {
                place(entry.start, entry.len)
            } else {
                None
            }
        })
    }

    /// The best hole of at least `size`, whether it will serve or not: its start and length.
    pub(super) fn first_best(&self, size: u64) -> Option<(u64, u64)> {
        self.best((size, size), |start, len| Some((start, len)))
    }

    /// Starts and lengths of the holes of at least `size`, the newest first; there is a list by
    /// age.
    pub(super) fn newest(&self, size: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut id = self.entries[NONE as usize].older;
        core::iter::from_fn(move || {
            loop {
                #[cfg(test)]
                crate::testing::step();
                let entry = *self.entries.get(id as usize).filter(|_| id != NONE)?;
                id = entry.older;
                if entry.len >= size {
                    return Some((entry.start, entry.len));
                }
            }
        })
    }

    /// Whether entry `id` stands for this hole.
    pub(super) fn describes(&self, id: u32, start: u64, len: u64) -> bool {
        let entry = self.entries[id as usize];
        (entry.start, entry.len) == (start, len)
    }

    /// Number of holes.
    ///
    /// # Panics
    /// When a list by age and the lists by length disagree about it.
    pub(super) fn count(&self) -> usize {
        let by_len = self.bins(0).map(|bin| self.list(bin).count()).sum();
        if self.made.is_none() {
            let by_age = self.newest(0).count();
            assert_eq!(by_age, by_len, "a hole is missing from one of its lists");
        }
        by_len
    }
}
