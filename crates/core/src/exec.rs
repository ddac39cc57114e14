//! Carrying tasks forward: reserve, validate, map, grant.

use std::sync::Arc;

use vrampager_addr::{PAGE_SIZE, Va};
use vrampager_hal::{Access, Fence, HalError};
use vrampager_space::RangeRequest;

use crate::buffer::{BufferId, Pages, State, Target, Use};
use crate::device::{Device, Reach};
use crate::effect::{Effect, EffectError, Performed};
use crate::error::Error;
use crate::moves::{Obstacle, Plan, populated};
use crate::placement::{MemType, Pass, Place, Placement};
use crate::room::Room;
use crate::task::{Bytes, Done, Grant, Job, Keep, Kind, Lock, Step, Task, TaskId, Ticket, View};

/// Outcome of looking at one use.
enum Next {
    /// It is as it should be.
    Settled,
    /// This has to be done first.
    Perform(Job),
    /// Someone holds this.
    Await(Lock),
    /// Someone else's work may yet make room.
    Linger,
    /// It cannot be done.
    Fail(Error),
}

/// Outcome of asking for a lock.
#[derive(PartialEq, Eq)]
enum Acquired {
    Yes,
    /// Wait, holding what is held.
    Wait,
    /// Give up everything held, then wait.
    Die,
}

impl Device {
    /// What `id` needs next.
    ///
    /// # Panics
    /// When the task is over, granted, or has effects under way.
    pub fn step(&mut self, id: TaskId) -> Step {
        let task = self.tasks.get_mut(id).expect("a task that is not over");
        assert!(
            task.job.is_none(),
            "effects under way are reported before the next step"
        );
        assert!(!task.granted, "a granted task is finished or aborted");
        if let Some(lock) = task.waiting.take() {
            let ticket = task.ticket;
            self.locks.unwant(lock, ticket);
        }
        if let Some(error) = self.tasks[id].verdict.take() {
            return self.end(id, Err(error));
        }
        match &self.tasks[id].kind {
            Kind::Create(_) => self.step_create(id),
            &Kind::Created(buffer) => self.end(id, Ok(Done::Created(buffer))),
            &Kind::Tried(done) => self.end(id, Ok(done)),
            Kind::Reap => match self.take_ghost(|_| true) {
                Some(job) => self.perform(id, job),
                None => self.end(id, Ok(Done::Idle)),
            },
            Kind::Exec { .. } => self.step_exec(id),
        }
    }

    fn step_create(&mut self, id: TaskId) -> Step {
        let Kind::Create(buffer) = &self.tasks[id].kind else {
            unreachable!("checked by step")
        };
        let needed = buffer.size();
        let Ok(va) = self.va.insert(&RangeRequest::new(needed).align(PAGE_SIZE)) else {
            if let Some(job) = self.take_ghost(|ghost| ghost.va.is_some()) {
                return self.perform(id, job);
            }
            let (free, largest) = (self.va.free_bytes(), self.va.largest_hole());
            return self.end(
                id,
                Err(Error::OutOfAddresses {
                    needed,
                    free,
                    largest,
                }),
            );
        };
        let Kind::Create(mut buffer) = std::mem::replace(&mut self.tasks[id].kind, Kind::Reap)
        else {
            unreachable!("checked by step")
        };
        buffer.va = va;
        let buffer = self.buffers.insert(*buffer);
        self.tasks[id].kind = Kind::Created(buffer);
        self.perform(
            id,
            Job::new(Plan::Reserve(buffer), vec![Effect::ReserveVa(va)]),
        )
    }

    fn step_exec(&mut self, id: TaskId) -> Step {
        if let Err(error) = self.alive() {
            return self.end(id, Err(error));
        }
        while let Some(buffer) = self.next_unreserved(id) {
            if self.buffers.get(buffer).is_none_or(|buffer| buffer.deleted) {
                return self.end(id, Err(Error::NoSuchBuffer));
            }
            if let Some(step) = self.blocked_on(id, Lock::Buffer(buffer)) {
                return step;
            }
        }
        while let Some(each) = self.unsettled(id) {
            match self.settle(id, &each) {
                Next::Settled => self.tasks[id].settled += 1,
                Next::Perform(job) => return self.perform(id, job),
                Next::Await(lock) => {
                    if let Some(step) = self.blocked_on(id, lock) {
                        return step;
                    }
                }
                Next::Linger => return Step::Blocked,
                Next::Fail(error) => return self.end(id, Err(error)),
            }
        }
        self.drop_turn(id);
        self.grant(id)
    }

    fn uses(&self, id: TaskId) -> &[Use] {
        match &self.tasks[id].kind {
            Kind::Exec { uses } => uses,
            Kind::Create(_) | Kind::Created(_) | Kind::Reap | Kind::Tried(_) => &[],
        }
    }

    fn next_unreserved(&self, id: TaskId) -> Option<BufferId> {
        self.uses(id)
            .get(self.tasks[id].held.len())
            .map(|each| each.buffer)
    }

    fn unsettled(&self, id: TaskId) -> Option<Use> {
        self.uses(id).get(self.tasks[id].settled).cloned()
    }

    fn settle(&mut self, id: TaskId, each: &Use) -> Next {
        let buffer = &self.buffers[each.buffer];
        if let (Some(error), Target::Gpu | Target::Places(_)) = (&buffer.stuck, &each.target) {
            return Next::Fail(Error::Effect {
                buffer: buffer.name.clone(),
                error: error.clone(),
            });
        }
        let placement = match &each.target {
            Target::Cpu if buffer.resource.is_some() && !buffer.is_swapped() => {
                return Next::Settled;
            }
            Target::Cpu => Placement::system(),
            Target::Gpu => buffer.placement.clone(),
            Target::Places(placement) => placement.clone(),
        };
        let next = self.validate(id, each, &placement);
        if !matches!(next, Next::Settled) {
            return next;
        }
        let buffer = &self.buffers[each.buffer];
        let reached = buffer.mem_type().and_then(|mem_type| self.reach(mem_type));
        let wants_map = each.target != Target::Cpu && reached != Some(Reach::Unreachable);
        if wants_map && !buffer.mapped {
            return Next::Perform(self.prepare_map(each.buffer));
        }
        Next::Settled
    }

    /// Brings a reserved buffer to an allowed place: free room first, eviction second (TTM V2).
    fn validate(&mut self, id: TaskId, each: &Use, placement: &Placement) -> Next {
        let pinned = self.buffers[each.buffer].pins > 0;
        if pinned && self.is_compatible(each, placement, Pass::Evict) {
            // It may not move, so that it need not be where it would rather be.
            return Next::Settled;
        }
        for pass in [Pass::Free, Pass::Evict] {
            if self.is_compatible(each, placement, pass) {
                return Next::Settled;
            }
            let buffer = &self.buffers[each.buffer];
            if let (1.., Some(mem_type)) = (buffer.pins, buffer.mem_type()) {
                return Next::Fail(Error::Pinned {
                    buffer: buffer.name.clone(),
                    mem_type,
                });
            }
            // Room that someone is evicting for is not taken from under him.
            if (pass == Pass::Evict || self.turn_is_taken(id))
                && self.acquire(id, Lock::Turn) != Acquired::Yes
            {
                return Next::Await(Lock::Turn);
            }
            for place in placement
                .places()
                .iter()
                .filter(|place| place.in_pass(pass))
            {
                let obstacle = match self.prepare_move(each.buffer, place) {
                    Ok(job) => return Next::Perform(job),
                    Err(Obstacle::Unusable) => continue,
                    Err(obstacle) => obstacle,
                };
                if pass == Pass::Free {
                    continue;
                }
                match self.make_room(id, &obstacle, 0) {
                    Room::Job(job) => return Next::Perform(*job),
                    Room::Await(lock) => return Next::Await(lock),
                    Room::Linger => return Next::Linger,
                    Room::None => {}
                }
            }
        }
        match self.step_aside(each.buffer) {
            Some(job) => Next::Perform(job),
            None => Next::Fail(self.out_of_memory(id, each.buffer, placement)),
        }
    }

    /// Plans to take a buffer out of the window that victims have to pass through: it may be what
    /// keeps them from making room for it. It comes back only when there is room behind the window.
    fn step_aside(&mut self, id: BufferId) -> Option<Job> {
        let reach = self.buffers[id].mem_type().and_then(|at| self.reach(at));
        let in_window = matches!(reach, Some(Reach::Window { .. }));
        let system = Place::new(MemType::SYSTEM);
        in_window.then(|| self.prepare_move(id, &system).ok())?
    }

    /// TTM R5.
    fn is_compatible(&self, each: &Use, placement: &Placement, pass: Pass) -> bool {
        let buffer = &self.buffers[each.buffer];
        let Some(resource) = &buffer.resource else {
            return false;
        };
        if each.target == Target::Cpu && buffer.is_swapped() {
            return false;
        }
        let fits = |place: &Place| {
            let slot = self.slots[place.mem_type.slot()].as_ref();
            place.mem_type == resource.mem_type
                && place.in_pass(pass)
                && slot.is_some_and(|slot| slot.manager.compatible(&resource.extents, place))
        };
        placement.places().iter().any(fits)
    }

    fn perform(&mut self, id: TaskId, mut job: Job) -> Step {
        if let Some(buffer) = job.plan.buffer() {
            let buffer = &mut self.buffers[buffer];
            job.victim = buffer.holder.is_none();
            buffer.holder = Some(id);
        }
        let effects = job.effects.clone();
        self.tasks[id].job = Some(job);
        Step::Perform(effects)
    }

    /// Reports what came of the effects of the last [`Step::Perform`]; `Some` when more has to be
    /// performed at once to undo them, else step again.
    ///
    /// # Panics
    /// When the task has no effects under way.
    pub fn performed(&mut self, id: TaskId, outcome: &Performed) -> Option<Step> {
        let mut job = self.tasks[id].job.take().expect("effects under way");
        if let Some(error) = job.undoing.take() {
            let stuck = outcome.failed.as_ref().map(|(_, error)| error.clone());
            self.fail(id, job, error, stuck.as_ref());
            return None;
        }
        let done = outcome
            .failed
            .as_ref()
            .map_or(job.effects.len(), |&(index, _)| index);
        self.note_done(&job, done);
        let Some((index, error)) = outcome.failed.clone() else {
            let victim = job.plan.buffer().filter(|_| job.victim);
            self.tried(id, Done::Reaped);
            self.commit(job, outcome.fence);
            self.let_go(victim);
            return None;
        };
        job.failed_waiting = matches!(job.effects[index], Effect::Wait(_));
        let undo = Self::undo_of(&job.effects, done);
        if undo.is_empty() {
            self.fail(id, job, error, None);
            return None;
        }
        job.effects = undo.into();
        job.undoing = Some(error);
        let effects = job.effects.clone();
        self.tasks[id].job = Some(job);
        Some(Step::Perform(effects))
    }

    /// A job is over for good: its victim, if it had one, is free again.
    fn let_go(&mut self, victim: Option<BufferId>) {
        if let Some(victim) = victim {
            self.unreserve(victim);
        }
        self.bump_epoch();
    }

    /// A job failed and has been undone (TTM E3: a failed victim stays where it is; V8: a failed
    /// move is not tried again).
    fn fail(&mut self, id: TaskId, job: Job, error: EffectError, stuck: Option<&EffectError>) {
        self.totals.rollbacks += 1;
        if let EffectError::Hal(HalError::DeviceLost(cause)) = &error {
            self.lost = Some(*cause);
        }
        let target = job.plan.buffer();
        let victim = target.filter(|_| job.victim);
        if let Some(victim) = victim {
            let task = &mut self.tasks[id];
            task.spared.insert(victim);
            task.cause = Some(error);
        } else if matches!(job.plan, Plan::Reap(_)) {
            self.fail_reap(id, job.failed_waiting, error);
        } else {
            let name = |buffer: BufferId| self.buffers[buffer].name.clone();
            let buffer = target.map(name).or_else(|| self.subject(id));
            let buffer = buffer.expect("a job is about some buffer");
            self.tasks[id].verdict = Some(Error::Effect { buffer, error });
        }
        self.abandon(job, stuck);
        self.let_go(victim);
    }

    /// A piece of released memory did not come back. Nobody waits for the same piece again at
    /// once: its deadline has passed, and something else has to happen first.
    fn fail_reap(&mut self, id: TaskId, failed_waiting: bool, error: EffectError) {
        // A lost device is not waited for a second time.
        let hung = failed_waiting && self.lost.is_none();
        match failed_waiting {
            true if hung => self.tried(id, Done::Idle),
            true => {}
            false => self.tried(id, Done::Reaped),
        }
        match self.subject(id) {
            Some(buffer) if hung => {
                self.tasks[id].verdict = Some(Error::Effect { buffer, error });
            }
            Some(_) | None => self.tasks[id].cause = Some(error),
        }
    }

    /// A task that only reaps has had its turn.
    fn tried(&mut self, id: TaskId, done: Done) {
        let task = &mut self.tasks[id];
        if matches!(task.kind, Kind::Reap) {
            task.kind = Kind::Tried(done);
        }
    }

    /// Name of the buffer a task is busy with.
    fn subject(&self, id: TaskId) -> Option<Arc<str>> {
        let name = |&buffer: &BufferId| self.buffers[buffer].name.clone();
        match &self.tasks[id].kind {
            Kind::Create(buffer) => Some(buffer.name.clone()),
            Kind::Created(buffer) => Some(name(buffer)),
            Kind::Exec { uses } => uses
                .get(self.tasks[id].settled)
                .map(|each| name(&each.buffer)),
            Kind::Reap | Kind::Tried(_) => None,
        }
    }

    fn grant(&mut self, id: TaskId) -> Step {
        let uses = self.uses(id).to_vec();
        let mut waits: Vec<Fence> = Vec::new();
        let mut views = Vec::with_capacity(uses.len());
        for each in &uses {
            let buffer = &mut self.buffers[each.buffer];
            waits.extend(buffer.fences.before(each.access, &self.reached));
            if each.access == Access::Write {
                buffer.state = State::Dirty;
            }
            views.push(self.view(each.buffer));
        }
        waits.sort_unstable();
        waits.dedup();
        self.tasks[id].granted = true;
        Step::Granted(Grant { waits, views })
    }

    fn view(&self, id: BufferId) -> View {
        let buffer = &self.buffers[id];
        let bytes = match (self.own_window(buffer), &buffer.pages) {
            (Some(window), _) => Bytes::Device(window),
            (None, Pages::Populated(_)) => Bytes::Host(self.host_spans(populated(buffer))),
            (None, Pages::Absent | Pages::Swapped(_)) => Bytes::Host(Vec::new()),
        };
        View {
            va: Va(buffer.va.start()),
            len: buffer.len,
            bytes,
        }
    }

    /// Ends a granted task whose work is submitted behind `fence`, or done when there is none.
    ///
    /// # Panics
    /// When the task is not granted.
    pub fn finish(&mut self, id: TaskId, fence: Option<Fence>, keep: Keep) {
        assert!(self.tasks[id].granted, "only granted work is finished");
        for each in self.uses(id).to_vec() {
            let buffer = &mut self.buffers[each.buffer];
            if let Some(fence) = fence {
                buffer.fences.add_user(fence, each.access);
            }
            if keep == Keep::Pinned {
                buffer.pins += 1;
            }
        }
        self.remove_task(id);
    }

    /// Ends a task at any point between steps; what it reserved is free again. A buffer used for
    /// writing stays dirty if the task had been granted.
    ///
    /// # Panics
    /// When the task has effects under way.
    pub fn abort(&mut self, id: TaskId) {
        assert!(
            self.tasks[id].job.is_none(),
            "effects under way are reported first"
        );
        // A buffer whose creation is given up has an owner no more.
        let unborn = match self.tasks[id].kind {
            Kind::Created(buffer) if self.buffers.contains_key(buffer) => Some(buffer),
            Kind::Create(_)
            | Kind::Created(_)
            | Kind::Exec { .. }
            | Kind::Reap
            | Kind::Tried(_) => None,
        };
        self.remove_task(id);
        if let Some(buffer) = unborn {
            self.dispose(buffer);
        }
    }

    fn end(&mut self, id: TaskId, result: Result<Done, Error>) -> Step {
        self.remove_task(id);
        Step::Done(result)
    }

    fn remove_task(&mut self, id: TaskId) {
        self.release_held(id);
        let task = self.tasks.remove(id).expect("ended once");
        if let Some(lock) = task.waiting {
            self.locks.unwant(lock, task.ticket);
        }
        self.bump_epoch();
    }

    fn release_held(&mut self, id: TaskId) {
        self.drop_turn(id);
        for buffer in std::mem::take(&mut self.tasks[id].held) {
            self.unreserve(buffer);
            if self.buffers.contains_key(buffer) {
                self.relocate(buffer);
            }
        }
        self.tasks[id].settled = 0;
        self.bump_epoch();
    }

    fn unreserve(&mut self, id: BufferId) {
        let buffer = &mut self.buffers[id];
        buffer.holder = None;
        if buffer.deleted {
            self.dispose(id);
        }
    }

    fn drop_turn(&mut self, id: TaskId) {
        if self.locks.turn == Some(id) {
            self.locks.turn = None;
            self.bump_epoch();
        }
    }

    fn owner(&self, lock: Lock) -> Option<TaskId> {
        match lock {
            Lock::Buffer(id) => self.buffers.get(id).and_then(|buffer| buffer.holder),
            Lock::Turn => self.locks.turn,
        }
    }

    fn turn_is_taken(&self, id: TaskId) -> bool {
        self.rival(id, Lock::Turn).is_some()
    }

    /// The oldest request that comes before `id` for `lock`: its owner, or an older one waiting.
    pub(crate) fn rival(&self, id: TaskId, lock: Lock) -> Option<Ticket> {
        let mine = self.tasks[id].ticket;
        let owner = self.owner(lock).filter(|&owner| owner != id);
        let owner = owner.map(|owner| self.tasks[owner].ticket);
        let waiting = self.locks.oldest(lock).filter(|&ticket| ticket < mine);
        owner.into_iter().chain(waiting).min()
    }

    fn acquire(&mut self, id: TaskId, lock: Lock) -> Acquired {
        if self.owner(lock) == Some(id) {
            return Acquired::Yes;
        }
        if let Some(rival) = self.rival(id, lock) {
            return self.yield_to(id, rival);
        }
        match lock {
            Lock::Turn => self.locks.turn = Some(id),
            Lock::Buffer(buffer) => {
                self.buffers[buffer].holder = Some(id);
                self.tasks[id].held.push(buffer);
                // A walk for victims meets reserved buffers last.
                self.relocate(buffer);
            }
        }
        Acquired::Yes
    }

    fn yield_to(&self, id: TaskId, rival: Ticket) -> Acquired {
        let task: &Task = &self.tasks[id];
        let empty = task.held.is_empty() && self.locks.turn != Some(id);
        if rival < task.ticket && !empty {
            Acquired::Die
        } else {
            Acquired::Wait
        }
    }

    /// Waits for `lock` if someone comes first, by wait-die; `None` when nobody does.
    fn blocked_on(&mut self, id: TaskId, lock: Lock) -> Option<Step> {
        match self.acquire(id, lock) {
            Acquired::Yes => return None,
            Acquired::Wait => {}
            Acquired::Die => {
                self.totals.backoffs += 1;
                self.release_held(id);
            }
        }
        let task = &mut self.tasks[id];
        task.waiting = Some(lock);
        self.locks.want(lock, task.ticket);
        Some(Step::Blocked)
    }
}

impl MemType {
    /// Types whose resources hold host pages, in the order they are asked for them (TTM D9).
    pub(crate) const WITH_PAGES: [Self; 2] = [Self::SYSTEM, Self::GTT];
}
