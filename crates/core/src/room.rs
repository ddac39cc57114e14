//! Making room: what is in the way, and which victim goes first.

use vrampager_hal::{DeviceLossCause, Fence};

use crate::buffer::{BufferId, State};
use crate::device::{Device, PlantedBug};
use crate::effect::Effect;
use crate::moves::{Ghost, Obstacle, Plan};
use crate::placement::{MemType, Place};
use crate::task::{Job, Lock, TaskId};

/// How room can be made.
pub(crate) enum Room {
    /// By doing this.
    Job(Box<Job>),
    /// Only once this lock is free.
    Await(Lock),
    /// Perhaps once work under way for others is over.
    Linger,
    /// Not at all.
    None,
}

/// What stood in the way of the victims looked at.
#[derive(Default)]
struct Hindrance {
    busy: Option<Vec<Fence>>,
    reserved: Option<Lock>,
    /// Bytes of the smallest dirty victim that had nowhere to go; no larger one has.
    homeless: Option<u64>,
}

impl Device {
    /// Finds the next thing to do about `obstacle`, cheapest first: memory already released, an
    /// idle victim, then whatever is worth waiting for. `depth` counts domains that overflow into
    /// one another, and never exceeds their number (TTM `recrusive_evict`).
    pub(crate) fn make_room(&mut self, id: TaskId, obstacle: &Obstacle, depth: usize) -> Room {
        if let Some(at) =
            self.find_ghost(|device, ghost| helps(ghost, obstacle) && device.is_ripe(ghost))
        {
            return Room::Job(Box::new(self.reap_job(at)));
        }
        let mut hindrance = Hindrance::default();
        if depth < MemType::COUNT
            && let Some(job) = self.find_victim(id, obstacle, depth, &mut hindrance)
        {
            return Room::Job(Box::new(job));
        }
        if let Some(at) = self.find_ghost(|_, ghost| helps(ghost, obstacle)) {
            return Room::Job(Box::new(self.reap_job(at)));
        }
        if let Some(fences) = hindrance.busy {
            let wait = Job::new(Plan::Wait, vec![Effect::Wait(fences)]);
            return Room::Job(Box::new(wait));
        }
        if let Some(lock) = hindrance.reserved {
            return Room::Await(lock);
        }
        if self.others_at_work(id) {
            Room::Linger
        } else {
            Room::None
        }
    }

    fn find_victim(
        &mut self,
        id: TaskId,
        obstacle: &Obstacle,
        depth: usize,
        hindrance: &mut Hindrance,
    ) -> Option<Job> {
        let types: &[MemType] = match obstacle {
            Obstacle::Unusable => &[],
            Obstacle::Space(place) => &[place.mem_type],
            Obstacle::Pages => &MemType::WITH_PAGES,
        };
        for &mem_type in types {
            let mut cursor = None;
            while let Some((position, victim)) = self.lru.after(mem_type, cursor) {
                cursor = Some(position);
                if self.may_evict(id, victim, obstacle, hindrance)
                    && let Some(job) = self.expel(id, victim, obstacle, depth, hindrance)
                {
                    return Some(job);
                }
            }
        }
        None
    }

    /// First of the three questions: is this victim worth it, and free to go (TTM E2, S1)?
    fn may_evict(
        &self,
        id: TaskId,
        victim: BufferId,
        obstacle: &Obstacle,
        hindrance: &mut Hindrance,
    ) -> bool {
        let task = &self.tasks[id];
        let buffer = &self.buffers[victim];
        if buffer.holder == Some(id) || task.spared.contains(&victim) {
            return false;
        }
        if !self.is_valuable(victim, obstacle) {
            return false;
        }
        if self.rival(id, Lock::Buffer(victim)).is_some() {
            hindrance.reserved.get_or_insert(Lock::Buffer(victim));
            return false;
        }
        let users = buffer.fences.pending_users(&self.reached);
        if !users.is_empty() {
            hindrance.busy.get_or_insert(users);
            return false;
        }
        true
    }

    fn is_valuable(&self, victim: BufferId, obstacle: &Obstacle) -> bool {
        let resource = self.buffers[victim]
            .resource
            .as_ref()
            .expect("it is on an LRU list");
        match obstacle {
            Obstacle::Unusable => false,
            Obstacle::Pages => true,
            Obstacle::Space(place) => self.slots[place.mem_type.slot()]
                .as_ref()
                .is_some_and(|slot| slot.manager.intersects(&resource.extents, place)),
        }
    }

    /// Second and third question: where to, and how? Clean content goes nowhere (mission row E1).
    fn expel(
        &mut self,
        id: TaskId,
        victim: BufferId,
        obstacle: &Obstacle,
        depth: usize,
        hindrance: &mut Hindrance,
    ) -> Option<Job> {
        let buffer = &self.buffers[victim];
        let mem_type = buffer.mem_type().expect("it is on an LRU list");
        if matches!(buffer.state, State::Clean(_)) {
            return Some(self.prepare_drop(victim));
        }
        if self.is_planted(PlantedBug::DirtyDropped) && mem_type == MemType::VRAM {
            let zero = crate::Source::Zero;
            self.buffers[victim].state = State::Clean(zero);
            return Some(self.prepare_drop(victim));
        }
        let size = buffer.size();
        if hindrance.homeless.is_some_and(|limit| size >= limit) {
            return None;
        }
        if *obstacle == Obstacle::Pages && mem_type == MemType::SYSTEM {
            return self.prepare_swap_out(victim);
        }
        if *obstacle == Obstacle::Pages && self.swap.space().largest < size {
            return None;
        }
        let slot = self.slots[mem_type.slot()]
            .as_ref()
            .expect("a used domain is registered");
        for place in slot.evict_to.clone() {
            let inner = match self.prepare_move(victim, &place) {
                Ok(job) => return Some(job),
                Err(inner) => inner,
            };
            match self.make_room(id, &inner, depth + 1) {
                Room::Job(job) => return Some(*job),
                Room::Await(lock) => hindrance.reserved = Some(lock),
                Room::Linger | Room::None => {}
            }
        }
        hindrance.homeless = Some(size);
        None
    }

    /// Whether another task is moving or releasing something at this moment.
    fn others_at_work(&self, id: TaskId) -> bool {
        self.tasks
            .iter()
            .any(|(other, task)| other != id && task.job.is_some())
    }

    fn find_ghost(&self, wanted: impl Fn(&Self, &Ghost) -> bool) -> Option<usize> {
        self.ghosts.iter().position(|ghost| wanted(self, ghost))
    }

    fn reap_job(&mut self, at: usize) -> Job {
        let ghost = self.ghosts.remove(at).expect("an index just found");
        let mut effects = Vec::new();
        let pending = ghost
            .fences
            .iter()
            .copied()
            .filter(|&fence| !self.is_over(fence));
        let pending: Vec<Fence> = pending.collect();
        if !pending.is_empty() {
            effects.push(Effect::Wait(pending));
        }
        effects.extend(ghost.unmap.iter().copied().map(Effect::Unmap));
        effects.extend(ghost.va.map(Effect::ReleaseVa));
        Job::new(Plan::Reap(ghost), effects)
    }

    /// Whether nothing of the device's will happen before `fence` any more. A lost device runs
    /// nothing; one whose copies kept faulting still runs what its users submitted.
    fn is_over(&self, fence: Fence) -> bool {
        let stopped = self
            .lost
            .is_some_and(|cause| cause != DeviceLossCause::RepeatedFaults);
        stopped || self.reached.contains(fence)
    }

    /// Whether a ghost can come back without waiting.
    fn is_ripe(&self, ghost: &Ghost) -> bool {
        ghost.fences.iter().all(|&fence| self.is_over(fence))
    }

    /// Whether some released memory can come back without waiting.
    #[must_use]
    pub fn has_ripe_ghost(&self) -> bool {
        self.ghosts.iter().any(|ghost| self.is_ripe(ghost))
    }

    /// Takes the oldest ghost that `wanted` accepts, those whose fences are over first.
    pub(crate) fn take_ghost(&mut self, wanted: impl Fn(&Ghost) -> bool) -> Option<Job> {
        let at = self
            .find_ghost(|device, ghost| wanted(ghost) && device.is_ripe(ghost))
            .or_else(|| self.find_ghost(|_, ghost| wanted(ghost)))?;
        Some(self.reap_job(at))
    }
}

/// Whether a ghost's memory is of the kind that is missing.
fn helps(ghost: &Ghost, obstacle: &Obstacle) -> bool {
    match obstacle {
        Obstacle::Unusable => false,
        Obstacle::Pages => !ghost.pages.is_empty(),
        Obstacle::Space(Place { mem_type, .. }) => ghost
            .resource
            .as_ref()
            .is_some_and(|resource| resource.mem_type == *mem_type),
    }
}
