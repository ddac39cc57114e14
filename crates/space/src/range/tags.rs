//! A number for each segment: the colour of a live range, the place in the index of a hole.

use super::slots::{PARTS, SLOTS, Slots, shift_down, shift_up};
use crate::SpaceError;
use crate::store::Store;

/// The numbers of the segments of all leaves.
///
/// Most spaces have no index and one colour, which is then kept once: leaves stay small, and no
/// operation has a second array to shift. The first number that differs makes the lists, one for
/// each leaf, and they stay.
#[derive(Clone, Debug)]
pub(super) struct Tags {
    common: u32,
    /// By leaf; empty as long as everything has the common number.
    lists: Store<Slots>,
}

impl Tags {
    pub(super) const fn new() -> Self {
        Self {
            common: 0,
            lists: Store::new(),
        }
    }

    #[inline]
    pub(super) fn is_listed(&self) -> bool {
        !self.lists.is_empty()
    }

    /// Whether a segment can have the number `tag` without lists.
    #[inline]
    pub(super) fn allows(&self, tag: u32) -> bool {
        tag == self.common || self.is_listed()
    }

    /// Makes `tag` the number of everything; there are no lists.
    pub(super) fn set_common(&mut self, tag: u32) {
        self.common = tag;
    }

    pub(super) fn bytes(&self) -> usize {
        self.lists.capacity() * size_of::<Slots>()
    }

    /// Makes room for the lists of `capacity` leaves.
    pub(super) fn reserve(&mut self, capacity: usize) -> Result<(), SpaceError> {
        let missing = capacity.saturating_sub(self.lists.len());
        self.lists
            .try_reserve_exact(missing)
            .map_err(|_| SpaceError::MetadataExhausted)
    }

    /// Makes lists for `count` leaves.
    pub(super) fn list(&mut self, count: usize, capacity: usize) -> Result<(), SpaceError> {
        self.reserve(capacity)?;
        let all = [self.common.cast_signed(); SLOTS + PARTS];
        self.lists.resize(count, all);
        Ok(())
    }

    /// Notes that there is a leaf `leaf`; its numbers are to be set.
    pub(super) fn add_leaf(&mut self, leaf: u32) {
        if self.is_listed() && self.lists.len() <= leaf as usize {
            self.lists.push([0; SLOTS + PARTS]);
        }
    }

    #[inline]
    fn slots(&mut self, leaf: u32) -> Option<&mut Slots> {
        self.lists.get_mut(leaf as usize)
    }

    #[inline]
    pub(super) fn get(&self, leaf: u32, at: usize) -> u32 {
        self.lists
            .get(leaf as usize)
            .map_or(self.common, |slots| slots[at].cast_unsigned())
    }

    #[inline]
    pub(super) fn set(&mut self, leaf: u32, at: usize, tag: u32) {
        if let Some(slots) = self.slots(leaf) {
            slots[at] = tag.cast_signed();
        }
    }

    /// Makes `by` slots in front of slot `at`.
    #[inline]
    pub(super) fn open(&mut self, leaf: u32, at: usize, by: usize) {
        if let Some(slots) = self.slots(leaf) {
            shift_up(slots, at, by);
        }
    }

    /// Drops `by` slots from slot `at` on.
    #[inline]
    pub(super) fn close(&mut self, leaf: u32, at: usize, by: usize) {
        if let Some(slots) = self.slots(leaf) {
            shift_down(slots, at, by);
        }
    }

    /// Copies `count` slots of leaf `from`, from `at` on, to leaf `to`, from `to_at` on.
    pub(super) fn copy(
        &mut self,
        (from, at): (u32, usize),
        (to, to_at): (u32, usize),
        count: usize,
    ) {
        if self.is_listed() {
            let source = self.lists[from as usize];
            let target = &mut self.lists[to as usize];
            target[to_at..to_at + count].copy_from_slice(&source[at..at + count]);
        }
    }
}
