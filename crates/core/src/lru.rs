//! Least-recently-used order of resources, per memory type and priority.
//!
//! Every list is ordered by a stamp that only grows. A walk remembers the last stamp it saw and
//! ends at the stamp that was newest when it began, so it survives any change in between, visits
//! nothing twice and always ends (TTM L7, L10; the endless walk of CVE-2026-52965 cannot happen).

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::{BufferId, MemType};

/// Eviction priority: 0 is evicted first, 3 last (TTM C2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Priority(u8);

impl Priority {
    /// Number of priorities.
    pub const COUNT: usize = 4;
    /// Evicted last.
    pub const HIGHEST: Self = Self(3);

    /// `None` above 3.
    #[must_use]
    pub fn new(level: u8) -> Option<Self> {
        (level <= Self::HIGHEST.0).then_some(Self(level))
    }
}

/// The list an entry is on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ListId {
    /// May be evicted.
    Evictable(MemType, Priority),
    /// Pinned, or swapped out: invisible to every walk (TTM D15, K6).
    Unevictable,
}

/// Position of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Position {
    pub(crate) list: ListId,
    stamp: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Lru {
    lists: BTreeMap<Position, BufferId>,
    next_stamp: u64,
}

impl Lru {
    /// Puts a buffer at the tail of `list`.
    pub(crate) fn push(&mut self, list: ListId, buffer: BufferId) -> Position {
        let position = Position {
            list,
            stamp: self.next_stamp,
        };
        self.next_stamp += 1;
        self.lists.insert(position, buffer);
        position
    }

    pub(crate) fn remove(&mut self, position: Position) {
        let removed = self.lists.remove(&position);
        assert!(removed.is_some(), "a buffer is where its position says");
    }

    /// The buffer of one type that is evicted first, or first after `cursor`.
    pub(crate) fn after(
        &self,
        mem_type: MemType,
        cursor: Option<Position>,
    ) -> Option<(Position, BufferId)> {
        let first = Position {
            list: ListId::Evictable(mem_type, Priority(0)),
            stamp: 0,
        };
        let last = Position {
            list: ListId::Evictable(mem_type, Priority::HIGHEST),
            stamp: u64::MAX,
        };
        let from = cursor.map_or(Bound::Included(first), Bound::Excluded);
        let next = self.lists.range((from, Bound::Included(last))).next();
        next.map(|(&position, &buffer)| (position, buffer))
    }

    pub(crate) fn get(&self, position: Position) -> Option<BufferId> {
        self.lists.get(&position).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.lists.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slotmap::SlotMap;

    #[test]
    fn a_walk_goes_by_priority_then_by_age() {
        let mut ids = SlotMap::<BufferId, ()>::with_key();
        let [old, young, precious, other] = [(); 4].map(|()| ids.insert(()));
        let mut lru = Lru::default();
        let vram = |level| ListId::Evictable(MemType::VRAM, Priority::new(level).unwrap());
        lru.push(vram(3), precious);
        lru.push(vram(0), old);
        lru.push(vram(0), young);
        lru.push(ListId::Evictable(MemType::GTT, Priority::default()), other);
        lru.push(ListId::Unevictable, other);
        let mut cursor = None;
        for expected in [old, young, precious] {
            let (position, found) = lru.after(MemType::VRAM, cursor).unwrap();
            assert_eq!(found, expected);
            cursor = Some(position);
        }
        assert_eq!(lru.after(MemType::VRAM, cursor), None);
    }

    #[test]
    fn a_walk_survives_the_removal_of_the_buffer_it_stands_on() {
        let mut ids = SlotMap::<BufferId, ()>::with_key();
        let mut lru = Lru::default();
        let list = ListId::Evictable(MemType::VRAM, Priority::default());
        let [first, second] = [(); 2].map(|()| ids.insert(()));
        lru.push(list, first);
        lru.push(list, second);
        let (position, _) = lru.after(MemType::VRAM, None).unwrap();
        lru.remove(position);
        let next = lru.after(MemType::VRAM, Some(position));
        assert_eq!(next.map(|(_, buffer)| buffer), Some(second));
    }

    #[test]
    fn priorities_end_at_three() {
        assert_eq!(Priority::new(3), Some(Priority::HIGHEST));
        assert_eq!(Priority::new(4), None);
    }
}
