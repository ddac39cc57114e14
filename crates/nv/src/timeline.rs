//! Timelines: numbers in memory that channels and the CPU raise.

use std::collections::BTreeMap;

use vrampager_hal::{Fence, TimelineId};

use crate::device::Block;

/// Bytes of the block: as many timelines as a device has.
pub(crate) const BLOCK: u64 = 64 << 10;
/// A semaphore with room for a time behind its number.
const SEMAPHORE: u64 = 16;

/// The timelines of one device.
#[derive(Debug)]
pub(crate) struct Timelines {
    block: Block,
    live: BTreeMap<TimelineId, Timeline>,
    free: Vec<u64>,
    next: u32,
}

#[derive(Debug)]
struct Timeline {
    /// Offset of its number in the block.
    at: u64,
    /// The highest number that the CPU has seen there or put there. A GPU that raises the number
    /// at the same moment may write a lower one over it: atomic operations on host memory are
    /// not everywhere atomic towards the CPU.
    floor: u64,
}

impl Timelines {
    pub(crate) fn new(block: Block) -> Self {
        let slots = 0..BLOCK / SEMAPHORE;
        Self {
            block,
            live: BTreeMap::new(),
            free: slots.rev().map(|slot| slot * SEMAPHORE).collect(),
            next: 0,
        }
    }

    /// A timeline at 0; `None` when there are too many.
    pub(crate) fn create(&mut self) -> Option<TimelineId> {
        let at = self.free.pop()?;
        self.block.window.store_u64(at, 0);
        let id = TimelineId(self.next);
        self.next += 1;
        self.live.insert(id, Timeline { at, floor: 0 });
        Some(id)
    }

    /// # Panics
    /// When there is no such timeline, as the others.
    pub(crate) fn destroy(&mut self, id: TimelineId) {
        let gone = self.live.remove(&id);
        self.free
            .push(gone.unwrap_or_else(|| panic!("{id:?} does not exist")).at);
    }

    /// Where a fence's number is, for the GPU.
    pub(crate) fn address(&self, fence: Fence) -> u64 {
        let timeline = self.live.get(&fence.timeline);
        let timeline = timeline.unwrap_or_else(|| panic!("{:?} does not exist", fence.timeline));
        self.block.va + timeline.at
    }

    /// Raises a number from the CPU.
    pub(crate) fn raise(&mut self, fence: Fence) {
        let value = self.completed(fence.timeline).max(fence.value);
        let timeline = self.live.get_mut(&fence.timeline).expect("found just now");
        timeline.floor = value;
        self.block.window.raise_u64(timeline.at, value);
    }

    /// The present number.
    pub(crate) fn completed(&mut self, id: TimelineId) -> u64 {
        let timeline = self.live.get_mut(&id);
        let timeline = timeline.unwrap_or_else(|| panic!("{id:?} does not exist"));
        let found = self.block.window.load_u64(timeline.at);
        if found < timeline.floor {
            self.block.window.raise_u64(timeline.at, timeline.floor);
        }
        timeline.floor = timeline.floor.max(found);
        timeline.floor
    }

    pub(crate) fn count(&self) -> u64 {
        self.live.len() as u64
    }
}
