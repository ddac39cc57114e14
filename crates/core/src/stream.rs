//! A channel with its timeline, and what to do when it stops at a fault.
//!
//! A channel stops *at* the faulting operation: what is in front of it is complete, what is behind
//! it has not run. For the manager's own copies that makes recovery exact: every operation still
//! in the log is submitted again on a new channel, its source untouched (mission row A14, case R6).
//! For a user's work it is not ours to repeat: its fences are raised so that nobody waits for ever,
//! and remembered as failed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vrampager_hal::{
    ChannelId, ChannelKind, DeviceLossCause, Fault, Fence, Gpu, HalError, Op, TimelineId,
};

/// Longest wait for any fence (TTM C6).
pub(crate) const DEADLINE: Duration = Duration::from_secs(15);
/// How often a waiting thread looks after channels that others depend on.
const SLICE: Duration = Duration::from_millis(100);
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
    channel: ChannelId,
    next: u64,
    /// Submissions that may not have run yet, oldest first.
    log: VecDeque<(u64, Vec<Op>)>,
    failed: BTreeMap<u64, Fault>,
    replays: u32,
    /// Progress at the last replay.
    replayed_at: u64,
}

impl Stream {
    pub(crate) fn open(gpu: &Gpu, kind: ChannelKind, on_fault: OnFault) -> Result<Self, HalError> {
        let timeline = gpu.queue.create_timeline()?;
        let channel = match gpu.queue.create_channel(kind) {
            Ok(channel) => channel,
            Err(error) => {
                gpu.release.destroy_timeline(timeline)?;
                return Err(error);
            }
        };
        let state = State {
            channel,
            next: 1,
            log: VecDeque::new(),
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

    pub(crate) fn close(&self, gpu: &Gpu) -> Result<(), HalError> {
        let channel = self.lock().channel;
        gpu.release.destroy_channel(channel)?;
        gpu.release.destroy_timeline(self.timeline)
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

    /// Submits operations and returns the fence behind them. Waits while the ring is full.
    pub(crate) fn submit(&self, gpu: &Gpu, ops: &[Op]) -> Result<Fence, HalError> {
        let mut state = self.lock();
        loop {
            self.prune(gpu, &mut state);
            let value = state.next;
            match submit_signalled(gpu, state.channel, ops, self.fence(value)) {
                Ok(()) => {
                    state.next += 1;
                    state.log.push_back((value, ops.to_vec()));
                    return Ok(self.fence(value));
                }
                Err(HalError::Fault(_)) => self.recover(gpu, &mut state)?,
                Err(HalError::QueueFull { channel, capacity }) => {
                    let Some(&(oldest, _)) = state.log.front() else {
                        drop(state);
                        return self.submit_halves(
                            gpu,
                            ops,
                            HalError::QueueFull { channel, capacity },
                        );
                    };
                    match gpu.queue.wait(self.fence(oldest), DEADLINE) {
                        Ok(()) => {}
                        Err(HalError::Fault(_)) => self.recover(gpu, &mut state)?,
                        Err(error) => return Err(error),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// For more operations than an empty ring holds.
    fn submit_halves(&self, gpu: &Gpu, ops: &[Op], full: HalError) -> Result<Fence, HalError> {
        if ops.len() < 2 {
            return Err(full);
        }
        let (first, second) = ops.split_at(ops.len() / 2);
        self.submit(gpu, first)?;
        self.submit(gpu, second)
    }

    fn prune(&self, gpu: &Gpu, state: &mut State) {
        let done = gpu.queue.completed(self.timeline);
        while state.log.front().is_some_and(|&(value, _)| value <= done) {
            state.log.pop_front();
        }
    }

    /// Looks after a channel that has stopped; does nothing for one that runs.
    pub(crate) fn look_after(&self, gpu: &Gpu) -> Result<(), HalError> {
        let mut state = self.lock();
        match gpu.queue.submit(state.channel, &[]) {
            Err(HalError::Fault(_)) => self.recover(gpu, &mut state),
            Ok(()) | Err(HalError::QueueFull { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn recover(&self, gpu: &Gpu, state: &mut State) -> Result<(), HalError> {
        let fault = match gpu.queue.submit(state.channel, &[]) {
            Err(HalError::Fault(fault)) => fault,
            // Another thread has replaced the channel in between.
            Ok(()) | Err(HalError::QueueFull { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        self.prune(gpu, state);
        gpu.release.destroy_channel(state.channel)?;
        state.channel = gpu.queue.create_channel(self.kind)?;
        match self.on_fault {
            OnFault::Drop => {
                for (value, _) in std::mem::take(&mut state.log) {
                    if state.failed.len() == FAILED_MAX {
                        state.failed.pop_first();
                    }
                    state.failed.insert(value, fault);
                    gpu.queue.signal(self.fence(value));
                }
                Ok(())
            }
            OnFault::Replay => self.replay(gpu, state),
        }
    }

    fn replay(&self, gpu: &Gpu, state: &mut State) -> Result<(), HalError> {
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
        for (value, ops) in &state.log {
            submit_signalled(gpu, state.channel, ops, self.fence(*value))?;
        }
        Ok(())
    }

    /// The fault that kept the submission behind `fence` from running, if one did.
    pub(crate) fn failure(&self, value: u64) -> Option<Fault> {
        self.lock().failed.get(&value).copied()
    }
}

fn submit_signalled(
    gpu: &Gpu,
    channel: ChannelId,
    ops: &[Op],
    fence: Fence,
) -> Result<(), HalError> {
    let mut all = Vec::with_capacity(ops.len() + 1);
    all.extend_from_slice(ops);
    all.push(Op::Signal(fence));
    gpu.queue.submit(channel, &all)
}

/// Waits for `fence`, meanwhile looking after every stream that work may depend on.
pub(crate) fn wait(
    gpu: &Gpu,
    streams: &[std::sync::Arc<Stream>],
    fence: Fence,
) -> Result<(), HalError> {
    let mut waited = Duration::ZERO;
    loop {
        match gpu.queue.wait(fence, SLICE) {
            Ok(()) => return Ok(()),
            Err(HalError::Fault(_)) => {}
            Err(HalError::Timeout { .. }) => {
                waited += SLICE;
                if waited >= DEADLINE {
                    return Err(HalError::Timeout { waited });
                }
            }
            Err(error) => return Err(error),
        }
        for stream in streams {
            stream.look_after(gpu)?;
        }
    }
}
