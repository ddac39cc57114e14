//! Requests at work, and the locks they hold as data.
//!
//! A reservation is an entry in this table, not an operating system lock, so that blocking can be
//! simulated. Conflicts are settled by wait-die (TTM K2): of two requests the one with the older
//! ticket waits; the younger gives up everything it holds and starts over, keeping its ticket.
//! Two kinds of lock obey the rule, buffers and the *turn*, which a request needs to evict others.
//! Every wait is therefore for a younger holder, or by a request that holds nothing: no cycle of
//! waits can form, and the oldest request always gets on.

use std::collections::{BTreeMap, BTreeSet};

use slotmap::new_key_type;

use crate::buffer::{Buffer, BufferId, Use};
use crate::effect::{EffectError, Effects};
use crate::error::Error;
use crate::moves::Plan;
use vrampager_addr::{Span, Va};
use vrampager_hal::Fence;

new_key_type! {
    /// A request being worked on.
    pub struct TaskId;
}

/// What a task does next.
#[derive(Debug)]
#[must_use = "a task stands still until its step is carried out"]
pub enum Step {
    /// Perform these effects with the device unlocked, then report to
    /// [`Device::performed`](crate::Device::performed).
    Perform(Effects),
    /// Someone else has to act first. Step again when [`Device::epoch`](crate::Device::epoch) has
    /// changed.
    Blocked,
    /// Everything is in place and stays so until [`Device::finish`](crate::Device::finish).
    Granted(Grant),
    /// The task is over and its id invalid.
    Done(Result<Done, Error>),
}

/// Result of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// A buffer was created.
    Created(BufferId),
    /// One piece of released memory has come back, or is in quarantine for good.
    Reaped,
    /// Nothing has come back: there was nothing, or its fences were not reached in time.
    Idle,
}

/// A granted request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// What the work has to wait for.
    pub waits: Vec<Fence>,
    /// Where each used buffer is, in the order in which the request first names them.
    pub views: Vec<View>,
}

/// Where a granted buffer's bytes are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// Its GPU address; mapped if the use asked for that.
    pub va: Va,
    /// Bytes as requested at creation.
    pub len: u64,
    /// The bytes themselves.
    pub bytes: Bytes,
}

/// Location of bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Bytes {
    /// Spans of the host object, which the CPU reaches.
    Host(Vec<Span>),
    /// GPU addresses in a domain's window, which the copy engine reaches.
    Device(Vec<Span>),
}

/// What to do with the buffers of a finished request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// They may be evicted again.
    Evictable,
    /// Each stays where it is until unpinned.
    Pinned,
}

/// Something a task can hold against others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Lock {
    /// One buffer.
    Buffer(BufferId),
    /// The right to evict.
    Turn,
}

/// Order of requests by age; smaller is older.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Ticket(pub(crate) u64);

#[derive(Debug)]
pub(crate) enum Kind {
    /// Reserve addresses for a new buffer, which nobody knows until that is done.
    Create(Box<Buffer>),
    /// A created buffer, its addresses being reserved.
    Created(BufferId),
    /// Reserve and place buffers.
    Exec { uses: Vec<Use> },
    /// Bring back one piece of released memory.
    Reap,
    /// That has been tried.
    Tried(Done),
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) ticket: Ticket,
    pub(crate) kind: Kind,
    pub(crate) held: Vec<BufferId>,
    /// The lock it last blocked on; younger requests leave that lock to it.
    pub(crate) waiting: Option<Lock>,
    pub(crate) job: Option<Job>,
    /// Uses already in place.
    pub(crate) settled: usize,
    pub(crate) granted: bool,
    /// Victims whose eviction failed; not tried again by this request.
    pub(crate) spared: BTreeSet<BufferId>,
    /// Why the last of them failed.
    pub(crate) cause: Option<EffectError>,
    /// Set when the task cannot go on.
    pub(crate) verdict: Option<Error>,
}

impl Task {
    /// Buffers the request names.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = BufferId> + '_ {
        let uses: &[Use] = match &self.kind {
            Kind::Exec { uses } => uses,
            Kind::Create(_) | Kind::Created(_) | Kind::Reap | Kind::Tried(_) => &[],
        };
        uses.iter().map(|each| each.buffer)
    }

    pub(crate) fn new(ticket: Ticket, kind: Kind) -> Self {
        Self {
            ticket,
            kind,
            held: Vec::new(),
            waiting: None,
            job: None,
            settled: 0,
            granted: false,
            spared: BTreeSet::new(),
            cause: None,
            verdict: None,
        }
    }
}

/// Effects under way for a task, and what they are for.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) plan: Plan,
    pub(crate) effects: Effects,
    /// The buffer it changes was reserved for it alone, as a victim.
    pub(crate) victim: bool,
    /// It failed at an [`Effect::Wait`](crate::Effect::Wait), before anything was changed.
    pub(crate) failed_waiting: bool,
    /// Set while the effects are those of undoing: what failed.
    pub(crate) undoing: Option<EffectError>,
}

impl Job {
    pub(crate) fn new(plan: Plan, effects: Vec<crate::Effect>) -> Self {
        Self {
            plan,
            effects: effects.into(),
            victim: false,
            failed_waiting: false,
            undoing: None,
        }
    }
}

/// Who waits for what.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    pub(crate) turn: Option<TaskId>,
    wants: BTreeMap<Lock, BTreeSet<Ticket>>,
}

impl Locks {
    pub(crate) fn want(&mut self, lock: Lock, ticket: Ticket) {
        self.wants.entry(lock).or_default().insert(ticket);
    }

    pub(crate) fn unwant(&mut self, lock: Lock, ticket: Ticket) {
        if let Some(tickets) = self.wants.get_mut(&lock) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.wants.remove(&lock);
            }
        }
    }

    /// The oldest request waiting for `lock`.
    pub(crate) fn oldest(&self, lock: Lock) -> Option<Ticket> {
        self.wants
            .get(&lock)
            .and_then(|tickets| tickets.first().copied())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.turn.is_none() && self.wants.is_empty()
    }
}
