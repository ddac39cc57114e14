use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use vrampager_hal::{ChannelId, Counters, DeviceInfo, DeviceLossCause, Op};

use crate::aperture::Aperture;
use crate::channel::Queues;
use crate::clock::{Clock, EventHash};
use crate::engine::EngineStats;
use crate::fault::{Call, Fate, FaultPlan};
use crate::heap::Heaps;
use crate::mmu::AddressSpace;
use crate::prng::Prng;
use crate::{Mode, SimConfig};

/// Virtual time of one contract call.
const CALL_NS: u64 = 500;
/// Virtual time of one operation, without its bytes.
const OP_NS: u64 = 1_000;
/// Virtual speed of the engines: 20 GB/s.
const BYTES_PER_NS: u64 = 20;

/// A device in its slot: what outlives an open.
#[derive(Debug)]
pub(crate) struct Card {
    pub(crate) config: SimConfig,
    pub(crate) info: DeviceInfo,
    /// A leaf: nothing else is locked while it is held.
    control: Mutex<Control>,
}

/// What the tests of the layers above steer and observe.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) open: bool,
    /// Set by a planted defect only.
    pub(crate) stuck: bool,
    pub(crate) plan: FaultPlan,
    pub(crate) hash: EventHash,
    pub(crate) clock: Clock,
    pub(crate) prng: Prng,
    pub(crate) stats: EngineStats,
    /// The open device, for others to share its memory.
    pub(crate) session: Weak<Shared>,
}

impl Card {
    pub(crate) fn new(config: SimConfig, info: DeviceInfo) -> Self {
        let control = Control {
            open: false,
            stuck: false,
            plan: FaultPlan::new(config.faults.clone()),
            hash: EventHash::new(),
            clock: Clock::new(config.mode),
            prng: Prng::stream(config.seed, u64::from(info.id.0)),
            stats: EngineStats::default(),
            session: Weak::new(),
        };
        Self {
            config,
            info,
            control: Mutex::new(control),
        }
    }

    /// The device, if it is open.
    pub(crate) fn session(&self) -> Option<Arc<Shared>> {
        self.control().session.upgrade()
    }

    pub(crate) fn control(&self) -> MutexGuard<'_, Control> {
        unpoisoned(self.control.lock())
    }
}

impl Control {
    /// Counts and records a call; whether it has to fail.
    pub(crate) fn call(&mut self, call: Call, words: &[u64]) -> bool {
        self.clock.advance(CALL_NS);
        let fails = self.plan.call_fails(call);
        self.record(call as u64, u64::from(fails), words);
        fails
    }

    /// Counts and records an operation about to start.
    pub(crate) fn op_starts(&mut self, channel: ChannelId, op: &Op) -> Fate {
        self.clock.advance(OP_NS);
        self.stats.ops += 1;
        let (kind, words, is_copy) = match *op {
            Op::Wait(fence) => (100, [fence.timeline.0.into(), fence.value, 0], false),
            Op::Copy { src, dst, len } => (101, [src.0, dst.0, len], true),
            Op::Fill { dst, len, byte } => (102, [dst.0, len, byte.into()], false),
            Op::Signal(fence) => (103, [fence.timeline.0.into(), fence.value, 0], false),
        };
        self.record(kind, channel.0.into(), &words);
        self.plan.op_starts(is_copy)
    }

    /// Lets the virtual time of a transfer pass.
    pub(crate) fn transferred(&mut self, bytes: u64) -> u64 {
        let ns = bytes / BYTES_PER_NS;
        self.clock.advance(ns);
        ns
    }

    pub(crate) fn record(&mut self, kind: u64, detail: u64, words: &[u64]) {
        self.hash.fold(&[self.clock.now_ns(), kind, detail]);
        self.hash.fold(words);
    }
}

/// The state of an open device, shared between its callers and its engines.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) card: Arc<Card>,
    state: Mutex<State>,
    /// Something that an engine or a waiter may be waiting for has changed.
    pub(crate) changed: Condvar,
}

#[derive(Debug)]
pub(crate) struct State {
    /// `None` once closed.
    pub(crate) live: Option<Live>,
    pub(crate) queues: Queues,
    pub(crate) lost: Option<DeviceLossCause>,
    /// Tells the engine threads to end.
    pub(crate) closing: bool,
}

/// What only an open device has.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) heaps: Heaps,
    pub(crate) aperture: Aperture,
    pub(crate) space: AddressSpace,
    /// Objects that a planted defect goes on counting.
    pub(crate) ghosts: u64,
}

impl Shared {
    pub(crate) fn new(card: Arc<Card>, heaps: Heaps) -> Self {
        let live = Live {
            heaps,
            aperture: Aperture::new(card.config.bar),
            space: AddressSpace::new(card.info.zones.clone()),
            ghosts: 0,
        };
        let state = State {
            live: Some(live),
            queues: Queues::new(card.config.ring),
            lost: None,
            closing: false,
        };
        Self {
            card,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// The state, after whatever the engines of a deterministic device do in the meantime.
    pub(crate) fn enter(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        match self.card.config.mode {
            Mode::Threaded => {}
            Mode::Deterministic => self.let_time_pass(&mut state),
        }
        state
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }

    pub(crate) fn until_changed<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        unpoisoned(self.changed.wait(state))
    }
}

impl State {
    /// Why nothing but release works any more, if so.
    pub(crate) fn gone(&self) -> Option<DeviceLossCause> {
        match self.live {
            Some(_) => self.lost,
            None => Some(DeviceLossCause::Removed),
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        let Some(live) = &self.live else {
            return Counters::default();
        };
        Counters {
            objects: live.heaps.object_count() + live.ghosts,
            mappings: live.aperture.window_count() + live.space.mapping_count(),
            ranges: live.space.range_count(),
            va_bytes: live.space.va_bytes(),
            pages: live.heaps.page_count(),
            pinned: live.heaps.pinned_count(),
            channels: self.queues.channel_count(),
            timelines: self.queues.timeline_count(),
        }
    }
}

/// A caller that broke the contract has panicked while it held the lock. Requests are checked
/// before they change anything, so the state is whole, and the other users go on.
fn unpoisoned<G>(lock: Result<G, PoisonError<G>>) -> G {
    lock.unwrap_or_else(PoisonError::into_inner)
}
