//! Holes by length, in segregated lists.

use super::edges::{Edge, Side};
use crate::store::Store;

/// No hole: the number 0 stands for none, and its record is never read for content.
pub(super) const NONE: u32 = 0;

/// Sub-bins per octave, and bits that tell them apart.
const SUB: u32 = 32;
const SUB_BITS: u32 = 5;
/// 28 are used; a power of two lets masks stand in for bounds checks.
const OCTAVES: usize = 32;
const BINS: usize = OCTAVES * SUB as usize;

/// A hole.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hole {
    pub(super) start: u32,
    pub(super) len: u32,
    next: u32,
    prev: u32,
}

impl Hole {
    #[inline]
    pub(super) fn end(self) -> u32 {
        self.start + self.len
    }
}

/// The bin of holes of `len` units: one length up to 63, then 32 bins per octave.
#[inline]
pub(super) fn bin_of(len: u32) -> u32 {
    let shift = (len | SUB).ilog2() - SUB_BITS;
    (shift << SUB_BITS) + (len >> shift)
}

/// # Invariants
/// Every hole is on the list of its length's bin, the newest first. A bit of `map` is set when
/// the bin's list is not empty, a bit of `top` when a word of `map` is not 0.
#[derive(Clone, Debug)]
pub(super) struct Bins {
    holes: Store<Hole>,
    /// First of the unused records, chained by `next`.
    spare: u32,
    heads: [u32; BINS],
    map: [u32; OCTAVES],
    top: u32,
}

impl Bins {
    pub(super) fn new() -> Self {
        Self {
            holes: Store::new(),
            spare: NONE,
            heads: [NONE; BINS],
            map: [0; OCTAVES],
            top: 0,
        }
    }

    /// Makes sure that `count` holes can exist without further memory.
    pub(super) fn reserve(&mut self, count: usize) -> Result<(), crate::SpaceError> {
        let missing = (count + 1).saturating_sub(self.holes.len());
        self.holes
            .try_reserve_exact(missing)
            .map_err(|_| crate::SpaceError::MetadataExhausted)?;
        if self.holes.is_empty() {
            self.holes.push(Hole::default());
        }
        Ok(())
    }

    pub(super) fn room(&self) -> usize {
        self.holes.capacity().saturating_sub(1)
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> Hole {
        self.holes[id as usize]
    }

    /// Where an edge of a hole is.
    #[inline]
    pub(super) fn address(&self, edge: Edge) -> u32 {
        let hole = self.get(edge.hole());
        hole.start
            + if edge.side() == Side::Start {
                0
            } else {
                hole.len
            }
    }

    /// Records a hole.
    #[inline]
    pub(super) fn add(&mut self, start: u32, len: u32) -> u32 {
        let mut id = self.spare;
        if id == NONE {
            id = u32::try_from(self.holes.len()).expect("fewer holes than units");
            self.holes.push(Hole {
                start,
                len,
                ..Hole::default()
            });
        } else {
            let hole = &mut self.holes[id as usize];
            self.spare = hole.next;
            hole.start = start;
            hole.len = len;
        }
        self.link(id, bin_of(len));
        id
    }

    /// Forgets a hole.
    #[inline]
    pub(super) fn delete(&mut self, id: u32) -> Hole {
        let hole = self.holes[id as usize];
        self.unlink(hole, bin_of(hole.len));
        self.holes[id as usize].next = self.spare;
        self.spare = id;
        hole
    }

    /// Changes the bounds of a hole.
    #[inline]
    pub(super) fn resize(&mut self, id: u32, start: u32, len: u32) {
        let hole = self.holes[id as usize];
        let (old, new) = (bin_of(hole.len), bin_of(len));
        if old != new {
            self.unlink(hole, old);
            self.link(id, new);
        }
        let hole = &mut self.holes[id as usize];
        hole.start = start;
        hole.len = len;
    }

    #[inline]
    fn link(&mut self, id: u32, bin: u32) {
        let head = &mut self.heads[bin as usize % BINS];
        let next = core::mem::replace(head, id);
        self.holes[next as usize].prev = id;
        let hole = &mut self.holes[id as usize];
        hole.next = next;
        hole.prev = NONE;
        let octave = bin >> SUB_BITS;
        self.map[octave as usize % OCTAVES] |= 1 << (bin & (SUB - 1));
        self.top |= 1 << octave;
    }

    #[inline]
    fn unlink(&mut self, hole: Hole, bin: u32) {
        self.holes[hole.next as usize].prev = hole.prev;
        if hole.prev != NONE {
            self.holes[hole.prev as usize].next = hole.next;
            return;
        }
        self.heads[bin as usize % BINS] = hole.next;
        if hole.next == NONE {
            let octave = bin >> SUB_BITS;
            let word = &mut self.map[octave as usize % OCTAVES];
            *word &= !(1 << (bin & (SUB - 1)));
            if *word == 0 {
                self.top &= !(1 << octave);
            }
        }
    }

    /// The first non-empty bin at or above `bin`.
    #[inline]
    pub(super) fn next_bin(&self, bin: u32) -> Option<u32> {
        let octave = bin >> SUB_BITS;
        let word = self.map[octave as usize % OCTAVES] & (u32::MAX << (bin & (SUB - 1)));
        if word != 0 {
            return Some(octave << SUB_BITS | word.trailing_zeros());
        }
        let rest = self.top & (u32::MAX << octave) & !(1 << octave);
        if rest == 0 {
            return None;
        }
        let octave = rest.trailing_zeros();
        Some(octave << SUB_BITS | self.map[octave as usize % OCTAVES].trailing_zeros())
    }

    #[inline]
    pub(super) fn head(&self, bin: u32) -> u32 {
        self.heads[bin as usize % BINS]
    }

    /// The holes of a bin, the newest first.
    #[inline]
    pub(super) fn list(&self, bin: u32) -> impl Iterator<Item = (u32, Hole)> + '_ {
        let mut id = self.heads[bin as usize % BINS];
        core::iter::from_fn(move || {
            let hole = *self.holes.get(id as usize).filter(|_| id != NONE)?;
            let item = (id, hole);
            id = hole.next;
            Some(item)
        })
    }

    /// Length of the longest hole: exact, by looking through the highest bin.
    pub(super) fn largest(&self) -> u32 {
        let Some(octave) = self.top.checked_ilog2() else {
            return 0;
        };
        let bin = octave << SUB_BITS | self.map[octave as usize % OCTAVES].ilog2();
        self.list(bin).map(|(_, hole)| hole.len).max().unwrap_or(0)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u32, u32, Hole)> + '_ {
        (0..u32::try_from(BINS).expect("few bins"))
            .flat_map(|bin| self.list(bin).map(move |(id, hole)| (bin, id, hole)))
    }

    pub(super) fn bytes(&self) -> usize {
        self.holes.capacity() * size_of::<Hole>()
    }
}
