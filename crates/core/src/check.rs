//! The invariants of the house, verified in full. For tests: linear in the number of buffers.

use std::collections::BTreeMap;

use crate::buffer::{Buffer, Pages, State};
use crate::device::{Device, Reach};
use crate::lru::ListId;
use crate::moves::{Ghost, Plan};

impl Device {
    /// Verifies every structure and every sum.
    ///
    /// # Panics
    /// With the broken invariant's name.
    pub fn check(&self) {
        for (id, buffer) in &self.buffers {
            self.check_state(buffer);
            let listed = buffer.position.map(|position| self.lru.get(position));
            assert_eq!(
                listed.is_some(),
                buffer.resource.is_some(),
                "a resource is on one list"
            );
            assert!(
                listed.is_none_or(|at| at == Some(id)),
                "a list entry names its buffer"
            );
            if let Some(holder) = buffer.holder {
                assert!(
                    self.tasks.contains_key(holder),
                    "a reservation has a live owner"
                );
            }
        }
        let listed = self
            .buffers
            .values()
            .filter(|buffer| buffer.position.is_some())
            .count();
        assert_eq!(listed, self.lru.len(), "no list entry is without a buffer");
        self.check_sums();
        self.va.check();
    }

    fn check_state(&self, buffer: &Buffer) {
        let reach = buffer
            .mem_type()
            .map(|mem_type| self.reach(mem_type).expect("registered"));
        match reach {
            None => {
                assert_eq!(buffer.pages, Pages::Absent, "no resource, no pages");
                assert!(
                    matches!(buffer.state, State::Clean(_)),
                    "dirty bytes are somewhere"
                );
                assert!(!buffer.mapped, "nothing is mapped without a resource");
            }
            Some(Reach::Own { .. }) => {
                assert_eq!(
                    buffer.pages,
                    Pages::Absent,
                    "a domain's own memory needs no pages"
                );
            }
            Some(Reach::Window { .. }) => {
                assert!(
                    matches!(buffer.pages, Pages::Populated(_)),
                    "a window binds pages"
                );
            }
            Some(Reach::Unreachable) => {
                assert_ne!(
                    buffer.pages,
                    Pages::Absent,
                    "SYSTEM content is in pages or swapped"
                );
                assert!(!buffer.mapped, "the device does not see SYSTEM");
            }
        }
        let fixed = buffer.pins > 0 || buffer.stuck.is_some() || buffer.is_swapped();
        let unevictable = buffer
            .position
            .map(|position| position.list == ListId::Unevictable);
        assert!(
            unevictable.is_none_or(|unevictable| unevictable == fixed),
            "on the right list"
        );
    }

    fn check_sums(&self) {
        let mut usage = BTreeMap::new();
        let (mut pages, mut swap, mut addresses) = (0, 0, 0);
        for buffer in self.buffers.values() {
            if let Some(mem_type) = buffer.mem_type() {
                *usage.entry(mem_type).or_insert(0) += buffer.size();
            }
            match &buffer.pages {
                Pages::Absent => {}
                Pages::Populated(spans) => {
                    pages += spans.iter().map(|span| span.len()).sum::<u64>()
                }
                Pages::Swapped(slot) => swap += slot.len(),
            }
            addresses += buffer.size();
        }
        let moving = self.tasks.values().filter_map(|task| task.job.as_ref());
        let reaped = moving.clone().filter_map(|job| match &job.plan {
            Plan::Reap(ghost) => Some(ghost),
            Plan::Move(step) => {
                let size = self.buffers[step.buffer].size();
                *usage.entry(step.resource.mem_type).or_insert(0) += size;
                pages += step.fresh.as_ref().map_or(0, |_| size);
                None
            }
            Plan::SwapOut(_, slot) => {
                swap += slot.len();
                None
            }
            Plan::Wait | Plan::Reserve(_) | Plan::Drop(_) | Plan::MapVa(_) => None,
        });
        let reaped: Vec<&Ghost> = reaped.collect();
        for ghost in self.ghosts.iter().chain(&self.quarantined).chain(reaped) {
            if let Some(resource) = &ghost.resource {
                *usage.entry(resource.mem_type).or_insert(0) += ghost.size;
            }
            pages += ghost.pages.iter().map(|span| span.len()).sum::<u64>();
            addresses += ghost.va.map_or(0, |va| va.len());
        }
        for (mem_type, slot) in self.registered_slots() {
            let sum = usage.get(&mem_type).copied().unwrap_or(0);
            assert_eq!(
                slot.usage, sum,
                "usage of {mem_type} is the sum of its resources"
            );
            let space = slot.manager.space();
            assert!(
                space.size == 0 || space.size - space.free == sum,
                "{mem_type} carves as used"
            );
            slot.manager.check();
        }
        self.pool.0.check();
        let pool = self.pool.0.space();
        assert_eq!(
            pool.size - pool.free,
            pages,
            "pages in use are those of page vectors"
        );
        let space = self.swap.space();
        assert_eq!(
            space.size - space.free,
            swap,
            "slots in use are those of swapped buffers"
        );
        let carved = self.config.addresses.len() - self.va.free_bytes();
        assert_eq!(
            carved, addresses,
            "carved addresses are those of buffers and ghosts"
        );
    }

    /// Verifies that nothing is left once every buffer is released and reaped.
    ///
    /// # Panics
    /// With what is left.
    pub fn check_drained(&self) {
        self.check();
        assert!(self.buffers.is_empty(), "every buffer is gone");
        assert!(self.tasks.is_empty(), "every task is over");
        assert!(self.ghosts.is_empty(), "every ghost is buried");
        assert!(self.locks.is_idle(), "nobody holds or wants a lock");
    }
}
