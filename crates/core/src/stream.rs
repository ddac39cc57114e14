//! A channel with its timeline, and what to do when it stops at a fault.
//!
//! The channel is made for the first submission, not before: a ring costs the device memory and
//! addresses, and many a device is opened whose copy or compute engine nobody uses (mission row
//! A4).
//!
//! A channel stops *at* the faulting operation: what is in front of it is complete, what is behind
//! it has not run. For the manager's own copies that makes recovery exact: every operation still
//! in the log is submitted again on a new channel, its source untouched (mission row A14, case R6).
//! For a user's work it is not ours to repeat: its fences are raised so that nobody waits for ever,
//! and remembered as failed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use vrampager_hal::{
    ChannelId, ChannelKind, DeviceLossCause, Fault, Fence, Gpu, HalError, Op, TimelineId,
};

/// Longest wait for any fence (TTM C6).
pub(crate) const DEADLINE: Duration = Duration::from_secs(15);
/// How often a waiting thread looks after channels that others depend on.
const SLICE: Duration = Duration::from_millis(100);
/// How often a submission looks for room in a full ring.
const ROOM_SLICE: Duration = Duration::from_millis(1);
/// Replays without progress before the device counts as lost.
const REPLAYS_MAX: u32 = 8;
/// Failed submissions remembered per stream.
const FAILED_MAX: usize = 1024;

/// What a fault means for the operations that have not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnFault {
    /// Submit them again.
    Replay,
    /// Give them up.
    Drop,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) timeline: TimelineId,
    kind: ChannelKind,
    on_fault: OnFault,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` before the first submission.
    channel: Option<ChannelId>,
    next: u64,
    /// Submissions that may not have run yet, oldest first, each ending with its signal.
    log: VecDeque<(u64, Vec<Op>)>,
    /// Where in the log the channel's part ends: whole submissions, and operations of the next.
    sent: usize,
    begun: usize,
    failed: BTreeMap<u64, Fault>,
    replays: u32,
    /// Progress at the last replay.
    replayed_at: u64,
}

impl State {
    /// Nothing of the log is on the channel.
    fn rewind(&mut self) {
        (self.sent, self.begun) = (0, 0);
    }

    /// Takes the newest submission back if nothing of it can run; `false` if something can.
    fn withdraw(&mut self, error: &HalError) -> bool {
        let Some(last) = self.log.len().checked_sub(1) else {
            return false;
        };
        let untouched = self.sent < last || self.sent == last && self.begun == 0;
        // Only behind a timeout is there a channel that still runs.
        let halted = self.sent == last && !matches!(error, HalError::Timeout { .. });
        if !untouched && !halted {
            return false;
        }
        self.log.pop_back();
        self.next -= 1;
        if self.sent == last {
            self.begun = 0;
        }
        true
    }
}

impl Stream {
    pub(crate) fn open(gpu: &Gpu, kind: ChannelKind, on_fault: OnFault) -> Result<Self, HalError> {
        let timeline = gpu.queue.create_timeline()?;
        let state = State {
            channel: None,
            next: 1,
            log: VecDeque::new(),
            sent: 0,
            begun: 0,
            failed: BTreeMap::new(),
            replays: 0,
            replayed_at: 0,
        };
        Ok(Self {
            timeline,
            kind,
            on_fault,
            state: Mutex::new(state),
        })
    }

    /// Destroys the channel; fences of what it has not run count as reached. The timeline stays.
    pub(crate) fn close(&self, gpu: &Gpu) -> Result<(), HalError> {
        let state = self.lock();
        if let Some(channel) = state.channel {
            gpu.release.destroy_channel(channel)?;
        }
        gpu.queue.signal(self.fence(state.next - 1));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves the log as it was: every change to it is a single call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fence(&self, value: u64) -> Fence {
        Fence {
            timeline: self.timeline,
            value,
        }
    }

    /// Submits operations and returns the fence behind them: all of them, or on error none. Waits
    /// while the ring is full, and looks after `peers` meanwhile, on which its work may depend.
    pub(crate) fn submit(
        &self,
        gpu: &Gpu,
        peers: &[Arc<Self>],
        ops: &[Op],
    ) -> Result<Fence, HalError> {
        let mut state = self.lock();
        self.prune(gpu, &mut state);
        let fence = self.fence(state.next);
        let mut all = Vec::with_capacity(ops.len() + 1);
        all.extend_from_slice(ops);
        all.push(Op::Signal(fence));
        state.next += 1;
        state.log.push_back((fence.value, all));
        match self.send_all(gpu, peers, &mut state) {
            Err(error) if state.withdraw(&error) => Err(error),
            Ok(()) | Err(_) => Ok(fence),
        }
    }

    fn send_all(&self, gpu: &Gpu, peers: &[Arc<Self>], state: &mut State) -> Result<(), HalError> {
        let mut waited = Duration::ZERO;
        loop {
            match self.send(gpu, state) {
                Ok(()) => return Ok(()),
                Err(HalError::Fault(_)) => self.recover(gpu, state)?,
                Err(HalError::QueueFull { .. }) => {
                    // Room comes operation by operation, which no fence tells.
                    let oldest = self.fence(state.log[0].0);
                    match gpu.queue.wait(oldest, ROOM_SLICE) {
                        Ok(()) => waited = Duration::ZERO,
                        Err(HalError::Fault(_)) => self.recover(gpu, state)?,
                        Err(HalError::Timeout { .. }) => waited += ROOM_SLICE,
                        Err(error) => return Err(error),
                    }
                    if waited >= DEADLINE {
                        return Err(HalError::Timeout { waited });
                    }
                    for peer in peers {
                        // What ails a peer shows in its own fences.
                        drop(peer.try_look_after(gpu));
                    }
                    self.prune(gpu, state);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Puts what the channel does not have yet onto it, as far as there is room.
    fn send(&self, gpu: &Gpu, state: &mut State) -> Result<(), HalError> {
        if state.log.len() == state.sent {
            return Ok(());
        }
        let channel = match state.channel {
            Some(channel) => channel,
            None => *state.channel.insert(gpu.queue.create_channel(self.kind)?),
        };
        while let Some((_, ops)) = state.log.get(state.sent) {
            let rest = &ops[state.begun..];
            let mut size = rest.len();
            while let Err(error) = gpu.queue.submit(channel, &rest[..size]) {
                if !matches!(error, HalError::QueueFull { .. }) || size == 1 {
                    return Err(error);
                }
                size /= 2;
            }
            state.begun += size;
            if state.begun == ops.len() {
                (state.sent, state.begun) = (state.sent + 1, 0);
            }
        }
        Ok(())
    }

    fn prune(&self, gpu: &Gpu, state: &mut State) {
        let done = gpu.queue.completed(self.timeline);
        while state.log.front().is_some_and(|&(value, _)| value <= done) {
            state.log.pop_front();
            state.sent -= 1;
        }
    }

    /// Replaces a channel that has stopped, and sends what could not be sent before.
    pub(crate) fn look_after(&self, gpu: &Gpu) -> Result<(), HalError> {
        self.tend(gpu, &mut self.lock())
    }

    /// The same, unless another thread is at it.
    fn try_look_after(&self, gpu: &Gpu) -> Result<(), HalError> {
        match self.state.try_lock() {
            Ok(mut state) => self.tend(gpu, &mut state),
            Err(TryLockError::Poisoned(state)) => self.tend(gpu, &mut state.into_inner()),
            Err(TryLockError::WouldBlock) => Ok(()),
        }
    }

    fn tend(&self, gpu: &Gpu, state: &mut State) -> Result<(), HalError> {
        let Some(channel) = state.channel else {
            return Ok(());
        };
        match gpu.queue.submit(channel, &[]) {
            Err(HalError::Fault(_)) => self.recover(gpu, state)?,
            Ok(()) | Err(HalError::QueueFull { .. }) => {}
            Err(error) => return Err(error),
        }
        match self.send(gpu, state) {
            // A channel that stops again is for the next visit.
            Ok(()) | Err(HalError::QueueFull { .. } | HalError::Fault(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Puts a new channel in the place of one that has stopped. On error the old one is still
    /// there, stopped.
    fn recover(&self, gpu: &Gpu, state: &mut State) -> Result<(), HalError> {
        let Some(stopped) = state.channel else {
            return Ok(());
        };
        let fault = match gpu.queue.submit(stopped, &[]) {
            Err(HalError::Fault(fault)) => fault,
            // Another thread has replaced the channel in between.
            Ok(()) | Err(HalError::QueueFull { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        self.prune(gpu, state);
        if self.on_fault == OnFault::Replay {
            self.count_replay(gpu, state)?;
        }
        let fresh = gpu.queue.create_channel(self.kind)?;
        if let Err(error) = gpu.release.destroy_channel(stopped) {
            gpu.release.destroy_channel(fresh)?;
            return Err(error);
        }
        state.channel = Some(fresh);
        if self.on_fault == OnFault::Drop {
            let lost = state.sent + usize::from(state.begun > 0);
            for (value, _) in state.log.drain(..lost) {
                if state.failed.len() == FAILED_MAX {
                    state.failed.pop_first();
                }
                state.failed.insert(value, fault);
                gpu.queue.signal(self.fence(value));
            }
        }
        state.rewind();
        Ok(())
    }

    fn count_replay(&self, gpu: &Gpu, state: &mut State) -> Result<(), HalError> {
        let done = gpu.queue.completed(self.timeline);
        state.replays = if done > state.replayed_at {
            1
        } else {
            state.replays + 1
        };
        state.replayed_at = done;
        if state.replays > REPLAYS_MAX {
            return Err(HalError::DeviceLost(DeviceLossCause::RepeatedFaults));
        }
        Ok(())
    }

    /// The fault that kept the submission behind `fence` from running, if one did.
    pub(crate) fn failure(&self, value: u64) -> Option<Fault> {
        self.lock().failed.get(&value).copied()
    }
}

/// Waits for `fence` no longer than `at_most`, meanwhile looking after every stream that work may
/// depend on.
pub(crate) fn wait(
    gpu: &Gpu,
    streams: &[Arc<Stream>],
    fence: Fence,
    at_most: Duration,
) -> Result<(), HalError> {
    let mut waited = Duration::ZERO;
    loop {
        match gpu.queue.wait(fence, SLICE.min(at_most)) {
            Ok(()) => return Ok(()),
            Err(HalError::Fault(_)) => {}
            Err(HalError::Timeout { .. }) => {
                waited += SLICE;
                if waited >= at_most {
                    return Err(HalError::Timeout { waited });
                }
            }
            Err(error) => return Err(error),
        }
        for stream in streams {
            let tended = stream.look_after(gpu);
            // What ails another stream shows to those who wait for it, unless it is the device.
            if stream.timeline == fence.timeline || is_lost(&tended) {
                tended?;
            }
        }
    }
}

fn is_lost(result: &Result<(), HalError>) -> bool {
    matches!(result, Err(HalError::DeviceLost(_)))
}
