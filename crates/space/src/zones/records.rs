//! Records of carved ranges, and which of the retired ones waits for the least.

use crate::SpaceError;
use crate::store::Store;

/// No record: number 0 stands for none, and its rank is 0.
pub(super) const NONE: u32 = 0;

/// A range that was carved and has not been settled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Record {
    pub(super) start: u64,
    pub(super) zone: usize,
    /// Number of the generation that owns it, or [`super::SHARED_OWNER`].
    pub(super) owner: u32,
    /// Not retired yet.
    pub(super) live: bool,
    /// Fence value it waits for once it is retired.
    value: u64,
    /// Children in the heap of the timeline; the chain of unused records.
    left: u32,
    right: u32,
    /// Length of the way to the nearest place without a child.
    rank: u32,
}

impl Record {
    /// Of a range to be carved from `zone`.
    pub(super) fn live(zone: usize, owner: u32) -> Self {
        Self {
            zone,
            owner,
            live: true,
            ..Self::default()
        }
    }
}

/// Records with stable numbers, some of them linked to leftist heaps by fence value: adding and
/// taking the least are logarithmic in the worst case, and need no memory.
///
/// # Invariants
/// A child waits for no less than its parent. The left child's rank is no less than the right's.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    items: Store<Record>,
    spare: u32,
    len: usize,
}

impl Records {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> usize {
        self.items.capacity() * size_of::<Record>()
    }

    /// Makes a record, with a number below `limit`.
    pub(super) fn add(&mut self, record: Record, limit: u32) -> Result<u32, SpaceError> {
        let id = if self.spare == NONE {
            let out = |_| SpaceError::MetadataExhausted;
            self.items.try_reserve(2).map_err(out)?;
            if self.items.is_empty() {
                self.items.push(Record::default());
            }
            let id = u32::try_from(self.items.len()).ok();
            let id = id.filter(|&id| id < limit);
            let id = id.ok_or(SpaceError::MetadataExhausted)?;
            self.items.push(record);
            id
        } else {
            let id = self.spare;
            self.spare = core::mem::replace(self.get_mut(id), record).left;
            id
        };
        self.len += 1;
        Ok(id)
    }

    pub(super) fn remove(&mut self, id: u32) -> Record {
        let spare = core::mem::replace(&mut self.spare, id);
        let unused = Record {
            left: spare,
            ..Record::default()
        };
        self.len -= 1;
        core::mem::replace(self.get_mut(id), unused)
    }

    pub(super) fn get(&self, id: u32) -> &Record {
        &self.items[id as usize]
    }

    pub(super) fn get_mut(&mut self, id: u32) -> &mut Record {
        &mut self.items[id as usize]
    }

    /// Adds a record that waits for `value` to a heap. Returns the new root.
    pub(super) fn wait(&mut self, root: u32, id: u32, value: u64) -> u32 {
        let record = self.get_mut(id);
        (record.value, record.rank) = (value, 1);
        self.merge(root, id)
    }

    /// Takes the record that waits for the least off its heap, if that is at most `value`.
    /// Returns the record and the new root.
    pub(super) fn next_due(&mut self, root: u32, value: u64) -> Option<(u32, u32)> {
        let Record { left, right, .. } = *self.items.get(root as usize)?;
        if root == NONE || self.get(root).value > value {
            return None;
        }
        Some((root, self.merge(left, right)))
    }

    /// Joins two heaps. Goes down their right sides only, which are logarithmic.
    fn merge(&mut self, one: u32, other: u32) -> u32 {
        if one == NONE || other == NONE {
            return one.max(other);
        }
        let (top, rest) = if self.get(one).value <= self.get(other).value {
            (one, other)
        } else {
            (other, one)
        };
        let right = self.merge(self.get(top).right, rest);
        let left = self.get(top).left;
        let (left, right) = if self.get(left).rank < self.get(right).rank {
            (right, left)
        } else {
            (left, right)
        };
        let rank = self.get(right).rank + 1;
        let record = self.get_mut(top);
        (record.left, record.right, record.rank) = (left, right, rank);
        top
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::testing::Rng;

    #[test]
    fn records_come_due_in_the_order_of_their_values() {
        let mut rng = Rng(1);
        let (mut records, mut root, mut waiting) = (Records::default(), NONE, Vec::new());
        for round in 0..3000 {
            if rng.below(2) == 0 || round < 500 {
                let value = rng.below(100);
                let id = records.add(Record::default(), 1000).unwrap();
                root = records.wait(root, id, value);
                waiting.push(value);
            } else {
                waiting.sort_unstable();
                let due = rng.below(100);
                let expected = waiting.iter().take_while(|&&value| value <= due).count();
                waiting.drain(..expected);
                let mut count = 0;
                while let Some((id, rest)) = records.next_due(root, due) {
                    (root, count) = (rest, count + 1);
                    assert!(records.remove(id).value <= due);
                }
                assert_eq!(count, expected);
            }
            assert_eq!(records.len(), waiting.len());
            let depth = core::iter::successors(Some(root), |&at| Some(records.get(at).right));
            let depth = depth.take_while(|&at| at != NONE).count();
            assert!(depth <= 10, "the right side is logarithmic");
        }
    }
}
