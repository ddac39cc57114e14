use std::sync::Arc;
use std::time::{Duration, Instant};

use vrampager_addr::Va;
use vrampager_hal::{Access, ChannelId, ChannelKind, Fault, FaultKind, Fence, HalError, Op};

use crate::channel::Verdict;
use crate::clock::saturating_ns;
use crate::copy::Place;
use crate::fault::Fate;
use crate::mmu::{AddressSpace, Translation};
use crate::planted::PlantedBug;
use crate::session::{Shared, State};
use crate::{Mode, SimConfig};

/// Transfers from this size on count as bulk.
const BULK_FROM: u64 = 1 << 20;

/// What the engines of a device have done since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EngineStats {
    /// Operations started, of any kind.
    pub ops: u64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Bytes filled.
    pub filled_bytes: u64,
    /// Bytes copied by copies of at least 1 MiB.
    pub bulk_bytes: u64,
    /// Nanoseconds spent in those: wall time in threaded mode, virtual time otherwise.
    pub bulk_ns: u64,
}

/// The bytes of one copy or fill, translated and ready to be moved.
#[derive(Debug)]
struct Transfer {
    pieces: Vec<Piece>,
    what: What,
    bytes: u64,
    /// What ends it early, after `bytes`.
    stop: Option<Stop>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Copy,
    Fill(u8),
}

#[derive(Debug)]
struct Piece {
    src: Option<Place>,
    dst: Place,
    len: u64,
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    kind: FaultKind,
    va: Va,
    access: Access,
}

/// The page tables as an engine sees them.
struct Walker<'a> {
    space: &'a AddressSpace,
    config: &'a SimConfig,
}

impl Walker<'_> {
    fn access(&self, va: Va, access: Access) -> Result<Translation, Stop> {
        let stop = |kind| Stop { kind, va, access };
        let found = self.space.translate(va);
        let found = found.ok_or_else(|| stop(FaultKind::Unmapped))?;
        let refused = access == Access::Write && found.access == Access::Read;
        if refused && !self.config.has(PlantedBug::ReadOnlyIsWritable) {
            return Err(stop(FaultKind::ReadOnly));
        }
        Ok(found)
    }

    /// Translates up to the end, the first access that is not permitted, or `limit` bytes.
    fn plan(&self, what: What, src: Va, dst: Va, len: u64, limit: Option<u64>) -> Transfer {
        let end = limit.map_or(len, |limit| limit.min(len));
        let mut transfer = Transfer {
            pieces: Vec::new(),
            what,
            bytes: 0,
            stop: None,
        };
        while transfer.bytes < end {
            match self.piece(what, src, dst, transfer.bytes..end) {
                Ok(piece) => {
                    transfer.bytes += piece.len;
                    transfer.pieces.push(piece);
                }
                Err(stop) => {
                    transfer.stop = Some(stop);
                    return transfer;
                }
            }
        }
        transfer.stop = limit.map(|_| Stop {
            kind: FaultKind::CopyEngine,
            va: dst.offset(end),
            access: Access::Write,
        });
        transfer
    }

    fn piece(
        &self,
        what: What,
        src: Va,
        dst: Va,
        part: std::ops::Range<u64>,
    ) -> Result<Piece, Stop> {
        let mut len = part.end - part.start;
        let from = match what {
            What::Copy => Some(self.access(src.offset(part.start), Access::Read)?),
            What::Fill(_) => None,
        };
        let to = self.access(dst.offset(part.start), Access::Write)?;
        len = len.min(to.len);
        if let Some(from) = &from {
            len = len.min(from.len);
        }
        Ok(Piece {
            src: from.map(|from| from.place),
            dst: to.place,
            len,
        })
    }
}

impl Transfer {
    fn run(&self) {
        for piece in &self.pieces {
            match (&piece.src, self.what) {
                (Some(src), What::Copy) => src.copy_to(&piece.dst, piece.len),
                (_, What::Fill(byte)) => piece.dst.fill(piece.len, byte),
                (None, What::Copy) => unreachable!("a copy is planned with a source"),
            }
        }
    }
}

impl Shared {
    /// Starts the front of a runnable channel. What touches no memory is done on return; a
    /// transfer has to be run and finished.
    fn begin(&self, state: &mut State, channel: ChannelId) -> Option<Transfer> {
        let config = &self.card.config;
        if config.has(PlantedBug::SignalsEarly) {
            state.queues.let_signal_overtake(channel);
        }
        let op = state.queues.front(channel);
        let limit = match self.card.control().op_starts(channel, &op) {
            Fate::Run => None,
            Fate::StopAfter(bytes) => Some(bytes),
            Fate::Lose(cause) => {
                state.lost = Some(cause);
                return None;
            }
        };
        let live = state
            .live
            .as_ref()
            .expect("engines end before the device closes");
        let walker = Walker {
            space: &live.space,
            config,
        };
        let transfer = match op {
            Op::Wait(_) => None,
            Op::Signal(fence) => {
                state.queues.raise(fence);
                None
            }
            Op::Copy { src, dst, len } => Some(walker.plan(What::Copy, src, dst, len, limit)),
            Op::Fill { dst, len, byte } => Some(walker.plan(What::Fill(byte), dst, dst, len, None)),
        };
        match transfer {
            None => state.queues.retire(channel),
            Some(_) => state.queues.set_running(channel),
        }
        transfer
    }

    /// Accounts for a transfer that has run, and lets its channel go on or stop.
    fn finish(&self, state: &mut State, channel: ChannelId, transfer: &Transfer, took: Duration) {
        let mut control = self.card.control();
        let virtual_ns = control.transferred(transfer.bytes);
        let ns = match self.card.config.mode {
            Mode::Threaded => saturating_ns(took),
            Mode::Deterministic => virtual_ns,
        };
        let stats = &mut control.stats;
        match transfer.what {
            What::Copy => stats.copied_bytes += transfer.bytes,
            What::Fill(_) => stats.filled_bytes += transfer.bytes,
        }
        if transfer.what == What::Copy && transfer.bytes >= BULK_FROM {
            stats.bulk_bytes += transfer.bytes;
            stats.bulk_ns += ns;
        }
        let Some(Stop { kind, va, access }) = transfer.stop else {
            state.queues.retire(channel);
            return;
        };
        let number = match kind {
            FaultKind::Unmapped => 0,
            FaultKind::ReadOnly => 1,
            FaultKind::CopyEngine => 2,
            FaultKind::Unexplained { .. } | _ => unreachable!("this engine explains its faults"),
        };
        control.record(104, channel.0.into(), &[number, va.0, access as u64]);
        let fault = Fault {
            channel,
            kind,
            at: Some((va, access)),
        };
        if self.card.config.has(PlantedBug::RunsPastFault) {
            state.queues.report(fault);
            state.queues.retire(channel);
        } else {
            state.queues.stop(fault);
        }
    }

    /// Runs one operation of a channel drawn from the runnable ones; `false` when there is none.
    fn step(&self, state: &mut State) -> bool {
        let runnable = match state.gone() {
            None => state.queues.runnable(),
            Some(_) => return false,
        };
        if runnable.is_empty() {
            return false;
        }
        let channel = runnable[self.card.control().prng.index(runnable.len())];
        if let Some(transfer) = self.begin(state, channel) {
            transfer.run();
            self.finish(state, channel, &transfer, Duration::ZERO);
        }
        true
    }

    /// What a deterministic device does on its own between two calls: often nothing, sometimes
    /// some operations, so that each seed shows other interleavings.
    pub(crate) fn let_time_pass(&self, state: &mut State) {
        let draw = self.card.control().prng.index(8);
        for _ in 0..draw.saturating_sub(4) {
            if !self.step(state) {
                return;
            }
        }
    }

    /// The life of one engine thread.
    pub(crate) fn serve(self: &Arc<Self>, kind: ChannelKind) {
        let mut last = ChannelId(0);
        let mut state = self.lock();
        while !state.closing {
            let next = match state.gone() {
                None => state.queues.next_of(kind, last),
                Some(_) => None,
            };
            let Some(channel) = next else {
                state = self.until_changed(state);
                continue;
            };
            last = channel;
            if let Some(transfer) = self.begin(&mut state, channel) {
                drop(state);
                let start = Instant::now();
                transfer.run();
                let took = start.elapsed();
                state = self.lock();
                self.finish(&mut state, channel, &transfer, took);
            }
            self.changed.notify_all();
        }
    }

    /// See [`Queue::wait`](vrampager_hal::Queue::wait).
    pub(crate) fn wait(&self, fence: Fence, timeout: Duration) -> Result<(), HalError> {
        let result = match self.card.config.mode {
            Mode::Threaded => self.wait_in_wall_time(fence, timeout),
            Mode::Deterministic => self.wait_in_virtual_time(fence, timeout),
        };
        let words = [fence.timeline.0.into(), fence.value];
        self.card
            .control()
            .record(105, u64::from(result.is_ok()), &words);
        match result {
            Err(HalError::Timeout { .. }) if self.card.config.has(PlantedBug::TimeoutIsSuccess) => {
                Ok(())
            }
            other => other,
        }
    }

    fn wait_in_wall_time(&self, fence: Fence, timeout: Duration) -> Result<(), HalError> {
        let start = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(result) = state.outcome(fence) {
                return result;
            }
            let waited = start.elapsed();
            let Some(left) = timeout.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return Err(HalError::Timeout { waited });
            };
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    fn wait_in_virtual_time(&self, fence: Fence, timeout: Duration) -> Result<(), HalError> {
        let mut state = self.enter();
        let now = || self.card.control().clock.now_ns();
        let start = now();
        // Saturating: an endless wait ends when nothing can run any more.
        let deadline = start.saturating_add(saturating_ns(timeout));
        loop {
            if let Some(result) = state.outcome(fence) {
                return result;
            }
            if now() < deadline && self.step(&mut state) {
                continue;
            }
            let mut control = self.card.control();
            let left = deadline.saturating_sub(control.clock.now_ns());
            control.clock.advance(left);
            let waited = Duration::from_nanos(control.clock.now_ns() - start);
            return Err(HalError::Timeout { waited });
        }
    }
}

impl State {
    /// What a wait for the fence has to report, if anything yet.
    fn outcome(&self, fence: Fence) -> Option<Result<(), HalError>> {
        if let Some(cause) = self.gone() {
            return Some(Err(HalError::DeviceLost(cause)));
        }
        match self.queues.verdict(fence) {
            Verdict::Reached => Some(Ok(())),
            Verdict::Stopped(fault) => Some(Err(HalError::Fault(fault))),
            Verdict::Pending => None,
        }
    }
}
