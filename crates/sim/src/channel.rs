use std::collections::{BTreeMap, VecDeque};

use vrampager_hal::{ChannelId, ChannelKind, Fault, Fence, HalError, Op, TimelineId};

/// A ring of operations; its front is the next to run or running.
#[derive(Debug)]
struct Channel {
    kind: ChannelKind,
    ring: VecDeque<Op>,
    /// An engine is executing the front without holding the device's lock.
    running: bool,
    /// Why it stopped. The faulting operation and those behind it stay in the ring.
    stopped: Option<Fault>,
}

/// What can be said about a fence at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The timeline is there.
    Reached,
    /// A channel that was to signal it has stopped.
    Stopped(Fault),
    /// Neither.
    Pending,
}

/// The channels and timelines of a device. Knows nothing of memory.
#[derive(Debug)]
pub(crate) struct Queues {
    ring_capacity: u32,
    channels: BTreeMap<ChannelId, Channel>,
    timelines: BTreeMap<TimelineId, u64>,
    faults: Vec<Fault>,
    next_channel: u32,
    next_timeline: u32,
}

impl Queues {
    pub(crate) fn new(ring_capacity: u32) -> Self {
        Self {
            ring_capacity,
            channels: BTreeMap::new(),
            timelines: BTreeMap::new(),
            faults: Vec::new(),
            next_channel: 1,
            next_timeline: 1,
        }
    }

    pub(crate) fn create_timeline(&mut self) -> TimelineId {
        let id = TimelineId(self.next_timeline);
        self.next_timeline += 1;
        self.timelines.insert(id, 0);
        id
    }

    pub(crate) fn create_channel(&mut self, kind: ChannelKind) -> ChannelId {
        let id = ChannelId(self.next_channel);
        self.next_channel += 1;
        let channel = Channel {
            kind,
            ring: VecDeque::new(),
            running: false,
            stopped: None,
        };
        self.channels.insert(id, channel);
        id
    }

    /// # Panics
    /// When there is no such channel, or it is running.
    pub(crate) fn destroy_channel(&mut self, id: ChannelId) {
        assert!(!self.is_running(id), "{id:?} is running");
        self.channels.remove(&id);
    }

    /// # Panics
    /// When there is no such timeline, or a channel still waits for it or is to signal it.
    pub(crate) fn destroy_timeline(&mut self, id: TimelineId) {
        let live = self.channels.values().filter(|c| c.stopped.is_none());
        let used = live.flat_map(|c| &c.ring).any(|op| match op {
            Op::Wait(fence) | Op::Signal(fence) => fence.timeline == id,
            Op::Copy { .. } | Op::Fill { .. } => false,
        });
        assert!(!used, "{id:?} is still used by a channel");
        assert!(
            self.timelines.remove(&id).is_some(),
            "{id:?} does not exist"
        );
    }

    /// The capacity, when operations were refused for lack of room.
    pub(crate) fn full(&self, channel: ChannelId) -> HalError {
        HalError::QueueFull {
            channel,
            capacity: self.ring_capacity,
        }
    }

    /// # Panics
    /// When there is no such channel, an operation names no timeline, or a copy overlaps itself.
    pub(crate) fn submit(&mut self, id: ChannelId, ops: &[Op]) -> Result<(), HalError> {
        for op in ops {
            self.check(op);
        }
        let full = self.full(id);
        let capacity = self.ring_capacity as usize;
        let channel = self.channel_mut(id);
        if let Some(fault) = channel.stopped {
            return Err(HalError::Fault(fault));
        }
        if ops.len() > capacity - channel.ring.len() {
            return Err(full);
        }
        channel.ring.extend(ops);
        Ok(())
    }

    fn check(&self, op: &Op) {
        match *op {
            Op::Wait(fence) | Op::Signal(fence) => {
                self.completed(fence.timeline);
            }
            Op::Copy { src, dst, len } => {
                let apart = src.0.abs_diff(dst.0) >= len;
                assert!(apart, "copy of {len} from {src} to {dst} overlaps itself");
            }
            Op::Fill { .. } => {}
        }
    }

    /// # Panics
    /// When there is no such timeline.
    pub(crate) fn completed(&self, id: TimelineId) -> u64 {
        let value = self.timelines.get(&id);
        *value.unwrap_or_else(|| panic!("{id:?} does not exist"))
    }

    /// # Panics
    /// When there is no such timeline.
    pub(crate) fn raise(&mut self, fence: Fence) {
        let value = self.completed(fence.timeline).max(fence.value);
        self.timelines.insert(fence.timeline, value);
    }

    /// # Panics
    /// When there is no such timeline.
    pub(crate) fn verdict(&self, fence: Fence) -> Verdict {
        if self.completed(fence.timeline) >= fence.value {
            return Verdict::Reached;
        }
        let was_to_signal = |op: &Op| match op {
            Op::Signal(f) => f.timeline == fence.timeline && f.value >= fence.value,
            Op::Wait(_) | Op::Copy { .. } | Op::Fill { .. } => false,
        };
        let mut stopped = self.channels.values().filter_map(|channel| {
            let fault = channel.stopped?;
            channel.ring.iter().any(was_to_signal).then_some(fault)
        });
        stopped.next().map_or(Verdict::Pending, Verdict::Stopped)
    }

    /// Channels whose front can run, or is running: only the engine that runs it asks.
    pub(crate) fn runnable(&self) -> Vec<ChannelId> {
        let runnable = |channel: &Channel| {
            channel.stopped.is_none()
                && match channel.ring.front() {
                    Some(Op::Wait(fence)) => self.completed(fence.timeline) >= fence.value,
                    Some(Op::Signal(_) | Op::Copy { .. } | Op::Fill { .. }) => true,
                    None => false,
                }
        };
        let channels = self.channels.iter().filter(|(_, c)| runnable(c));
        channels.map(|(&id, _)| id).collect()
    }

    /// The next runnable channel of a kind behind `last`, around the circle.
    pub(crate) fn next_of(&self, kind: ChannelKind, last: ChannelId) -> Option<ChannelId> {
        let mut mine = self.runnable();
        mine.retain(|id| self.channels[id].kind == kind);
        let behind = mine.iter().find(|&&id| id > last);
        behind.or(mine.first()).copied()
    }

    /// # Panics
    /// When the channel is not runnable.
    pub(crate) fn front(&self, id: ChannelId) -> Op {
        let front = self.channels.get(&id).and_then(|c| c.ring.front());
        *front.expect("a runnable channel has a front")
    }

    /// Exchanges a front with the signal behind it, for a planted defect.
    pub(crate) fn let_signal_overtake(&mut self, id: ChannelId) {
        let ring = &mut self.channel_mut(id).ring;
        if let Some(Op::Signal(_)) = ring.get(1) {
            ring.swap(0, 1);
        }
    }

    pub(crate) fn set_running(&mut self, id: ChannelId) {
        self.channel_mut(id).running = true;
    }

    /// # Panics
    /// When there is no such channel.
    pub(crate) fn is_running(&self, id: ChannelId) -> bool {
        let channel = self.channels.get(&id);
        channel
            .unwrap_or_else(|| panic!("{id:?} does not exist"))
            .running
    }

    /// Takes the finished front off the ring.
    pub(crate) fn retire(&mut self, id: ChannelId) {
        let channel = self.channel_mut(id);
        channel.running = false;
        channel.ring.pop_front();
    }

    /// Stops a channel at its front.
    pub(crate) fn stop(&mut self, fault: Fault) {
        let channel = self.channel_mut(fault.channel);
        channel.running = false;
        channel.stopped = Some(fault);
        self.report(fault);
    }

    pub(crate) fn report(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    pub(crate) fn take_faults(&mut self) -> Vec<Fault> {
        std::mem::take(&mut self.faults)
    }

    fn channel_mut(&mut self, id: ChannelId) -> &mut Channel {
        let channel = self.channels.get_mut(&id);
        channel.unwrap_or_else(|| panic!("{id:?} does not exist"))
    }

    pub(crate) fn channel_count(&self) -> u64 {
        self.channels.len() as u64
    }

    pub(crate) fn timeline_count(&self) -> u64 {
        self.timelines.len() as u64
    }

    /// Drops the channels; timelines keep their values, which never decrease.
    pub(crate) fn shut_down(&mut self) {
        self.channels.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_serve_their_channels_in_turn() {
        let mut queues = Queues::new(8);
        let timeline = queues.create_timeline();
        let signal = [Op::Signal(Fence { timeline, value: 1 }); 3];
        let busy = [(); 3].map(|()| queues.create_channel(ChannelKind::Copy));
        let idle = queues.create_channel(ChannelKind::Copy);
        let other = queues.create_channel(ChannelKind::Compute);
        for id in busy.into_iter().chain([other]) {
            queues.submit(id, &signal).unwrap();
        }
        let mut last = idle;
        let turns = [(); 6].map(|()| {
            last = queues.next_of(ChannelKind::Copy, last).unwrap();
            queues.retire(last);
            last
        });
        let [a, b, c] = busy;
        assert_eq!(turns, [a, b, c, a, b, c]);
    }
}
