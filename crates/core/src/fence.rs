//! Fences of one buffer, and which timelines have reached what.

use std::collections::BTreeMap;

use vrampager_hal::{Access, Fence, TimelineId};

/// The values that timelines were last seen at.
///
/// Core never asks the device: the caller reports what it polled, so that a run can be repeated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reached(BTreeMap<TimelineId, u64>);

impl Reached {
    pub(crate) fn observe(&mut self, timeline: TimelineId, value: u64) {
        let seen = self.0.entry(timeline).or_default();
        *seen = value.max(*seen);
    }

    pub(crate) fn contains(&self, fence: Fence) -> bool {
        self.0
            .get(&fence.timeline)
            .is_some_and(|&seen| seen >= fence.value)
    }
}

/// Fences of one buffer, in the kernel's order of usage: moves by the manager, then accesses by
/// users.
///
/// # Invariants
/// At most one fence per timeline and kind: a newer one on the same timeline implies the older.
#[derive(Clone, Debug, Default)]
pub(crate) struct FenceSet {
    kernel: Option<Fence>,
    users: Vec<(Fence, Access)>,
}

impl FenceSet {
    /// The last move or clear by the manager.
    pub(crate) fn kernel(&self) -> Option<Fence> {
        self.kernel
    }

    pub(crate) fn set_kernel(&mut self, fence: Fence) {
        self.kernel = Some(fence);
    }

    pub(crate) fn add_user(&mut self, fence: Fence, access: Access) {
        let same = |&&mut (old, how): &&mut (Fence, Access)| {
            old.timeline == fence.timeline && how == access
        };
        match self.users.iter_mut().find(same) {
            Some((old, _)) => old.value = old.value.max(fence.value),
            None => self.users.push((fence, access)),
        }
    }

    /// Users' fences that are not over.
    pub(crate) fn pending_users(&self, reached: &Reached) -> Vec<Fence> {
        let pending = self.users.iter().map(|&(fence, _)| fence);
        pending.filter(|&fence| !reached.contains(fence)).collect()
    }

    /// Everything that is not over.
    pub(crate) fn pending(&self, reached: &Reached) -> Vec<Fence> {
        let mut pending = self.pending_users(reached);
        pending.extend(self.kernel.filter(|&fence| !reached.contains(fence)));
        pending
    }

    /// What an access has to wait for: moves always; a read for writes, a write for everything.
    pub(crate) fn before(&self, access: Access, reached: &Reached) -> Vec<Fence> {
        let conflicts = |how: Access| access == Access::Write || how == Access::Write;
        let users = self
            .users
            .iter()
            .filter(|&&(_, how)| conflicts(how))
            .map(|&(fence, _)| fence);
        let all = users.chain(self.kernel);
        all.filter(|&fence| !reached.contains(fence)).collect()
    }

    /// Drops what is over.
    pub(crate) fn prune(&mut self, reached: &Reached) {
        self.users.retain(|&(fence, _)| !reached.contains(fence));
        self.kernel = self.kernel.filter(|&fence| !reached.contains(fence));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(timeline: u32, value: u64) -> Fence {
        Fence {
            timeline: TimelineId(timeline),
            value,
        }
    }

    #[test]
    fn a_read_waits_for_writes_and_a_write_for_everything() {
        let mut set = FenceSet::default();
        set.add_user(fence(1, 5), Access::Read);
        set.add_user(fence(2, 7), Access::Write);
        set.set_kernel(fence(0, 3));
        let reached = Reached::default();
        assert_eq!(
            set.before(Access::Read, &reached),
            [fence(2, 7), fence(0, 3)]
        );
        assert_eq!(
            set.before(Access::Write, &reached),
            [fence(1, 5), fence(2, 7), fence(0, 3)]
        );
    }

    #[test]
    fn a_newer_fence_of_a_timeline_replaces_the_older() {
        let mut set = FenceSet::default();
        set.add_user(fence(1, 5), Access::Read);
        set.add_user(fence(1, 9), Access::Read);
        set.add_user(fence(1, 7), Access::Read);
        assert_eq!(set.pending_users(&Reached::default()), [fence(1, 9)]);
    }

    #[test]
    fn a_reached_fence_holds_nobody_up() {
        let mut set = FenceSet::default();
        set.add_user(fence(1, 5), Access::Write);
        let mut reached = Reached::default();
        reached.observe(TimelineId(1), 4);
        assert_eq!(set.before(Access::Read, &reached).len(), 1);
        reached.observe(TimelineId(1), 5);
        reached.observe(TimelineId(1), 2);
        assert!(
            set.before(Access::Read, &reached).is_empty(),
            "a timeline never goes back"
        );
    }
}
