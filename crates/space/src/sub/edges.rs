//! Where holes begin and end: a hash table from boundary addresses to holes.

use alloc::vec::Vec;

use crate::SpaceError;

/// Which boundary of a hole an address is. Two holes never touch, so an address is one boundary
/// of one hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Edge {
    Start,
    End,
}

/// A place in the table, valid until the next insertion or removal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot(usize);

/// Open addressing with linear probing; removal shifts back what would become unreachable, so
/// that lookups never wade through tombstones.
///
/// # Invariants
/// A slot is 0 when free, else `address << 32 | hole << 1 | edge`, with a hole number above 0.
/// There is always a free slot.
#[derive(Clone, Debug)]
pub(super) struct Edges {
    slots: Vec<u64>,
    shift: u32,
}

/// Fibonacci hashing: neighbouring addresses land far apart.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
fn address(entry: u64) -> u32 {
    (entry >> 32) as u32
}

impl Edges {
    /// Room for `edges` entries and a free slot.
    pub(super) fn with_room(edges: usize) -> Result<Self, SpaceError> {
        let len = (edges + 1).next_power_of_two().max(16);
        let mut slots = Vec::new();
        slots
            .try_reserve_exact(len)
            .map_err(|_| SpaceError::MetadataExhausted)?;
        slots.resize(len, 0);
        Ok(Self {
            slots,
            shift: 64 - len.trailing_zeros(),
        })
    }

    pub(super) fn room(&self) -> usize {
        self.slots.len() - 1
    }

    /// Makes room for `edges` entries in all.
    pub(super) fn grow(&mut self, edges: usize) -> Result<(), SpaceError> {
        let mut grown = Self::with_room(edges)?;
        for &entry in self.slots.iter().filter(|&&entry| entry != 0) {
            let (_, Slot(free)) = grown.probe(address(entry));
            grown.slots[free] = entry;
        }
        *self = grown;
        Ok(())
    }

    #[inline]
    fn home(&self, address: u32) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "below the number of slots")]
        {
            (u64::from(address).wrapping_mul(MULTIPLIER) >> self.shift) as usize
        }
    }

    /// The entry of `address`, or 0, and the slot where it is or would go.
    #[inline]
    fn probe(&self, wanted: u32) -> (u64, Slot) {
        let mask = self.slots.len() - 1;
        let mut at = self.home(wanted);
        loop {
            let entry = self.slots[at & mask];
            if entry == 0 || address(entry) == wanted {
                return (entry, Slot(at & mask));
            }
            at += 1;
        }
    }

    /// The hole that has a boundary at `address`, and the slot where it is or would go.
    #[inline]
    pub(super) fn find(&self, wanted: u32) -> (Option<(u32, Edge)>, Slot) {
        let (entry, slot) = self.probe(wanted);
        if entry == 0 {
            return (None, slot);
        }
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
        let value = entry as u32;
        let edge = if value & 1 == 0 {
            Edge::Start
        } else {
            Edge::End
        };
        (Some((value >> 1, edge)), slot)
    }

    /// Puts a boundary into the slot found for it.
    #[inline]
    pub(super) fn set(&mut self, Slot(slot): Slot, wanted: u32, hole: u32, edge: Edge) {
        let value = hole << 1 | u32::from(edge == Edge::End);
        self.slots[slot] = u64::from(wanted) << 32 | u64::from(value);
    }

    #[inline]
    pub(super) fn insert(&mut self, wanted: u32, hole: u32, edge: Edge) {
        let (_, slot) = self.probe(wanted);
        self.set(slot, wanted, hole, edge);
    }

    #[inline]
    pub(super) fn remove(&mut self, wanted: u32) {
        let (_, slot) = self.probe(wanted);
        self.clear(slot);
    }

    #[inline]
    pub(super) fn clear(&mut self, Slot(slot): Slot) {
        let mask = self.slots.len() - 1;
        let (mut hole, mut at) = (slot, slot);
        loop {
            at = (at + 1) & mask;
            let entry = self.slots[at];
            if entry == 0 {
                break;
            }
            // An entry may move back unless the gap lies before its home.
            let distance = at.wrapping_sub(self.home(address(entry))) & mask;
            if distance >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = entry;
                hole = at;
            }
        }
        self.slots[hole] = 0;
    }

    pub(super) fn len(&self) -> usize {
        self.slots.iter().filter(|&&entry| entry != 0).count()
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u64>()
    }
}
