//! Channels: who may run, and what each has got to.

use std::collections::BTreeMap;

use vrampager_nv_abi::Handle;
use vrampager_nv_abi::ctrl::MmuFault;
use vrampager_nv_abi::method::{Header, Methods};

use crate::rm::{Kind, MemId};
use crate::store::Store;
use crate::vas::VasId;
use crate::{Driver, FileId};

/// Names a channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ChannelId(pub(crate) u64);

/// Channels of one GPU: what a work submit token can number.
const CHANNELS_MAX: u32 = 1 << 11;

/// Why a channel was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChannelError {
    /// It touched an address that is not mapped, or not so.
    Mmu(MmuFault),
    /// Its pushbuffer makes no sense or asks for what is not simulated.
    Pushbuffer,
    /// Another channel of its group was stopped.
    Group,
}

/// A channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) gpu: usize,
    pub(crate) client: Handle,
    pub(crate) handle: Handle,
    pub(crate) group: Option<Handle>,
    /// The subcontext it was made in.
    pub(crate) share: Option<Handle>,
    pub(crate) vas: VasId,
    /// GPU address of the ring.
    pub(crate) ring: u64,
    pub(crate) entries: u32,
    /// Memory and offset of the control page.
    pub(crate) userd: (MemId, u64),
    pub(crate) error: Option<MemId>,
    /// Number on its GPU.
    pub(crate) number: u32,
    pub(crate) runlist: Option<u32>,
    pub(crate) scheduled: bool,
    /// The UVM file it is registered with.
    pub(crate) uvm: Option<FileId>,
    pub(crate) dead: Option<ChannelError>,
    pub(crate) exec: Exec,
}

/// How far a channel has got.
#[derive(Debug, Default)]
pub(crate) struct Exec {
    /// Ring entries consumed, modulo their number.
    pub(crate) get: u32,
    /// When the current segment begins to run.
    pub(crate) begins: u64,
    /// Words of the current segment.
    pub(crate) words: Vec<u32>,
    /// The next of them.
    pub(crate) next: usize,
    /// Data words of the current header; they may be in the next segment.
    pub(crate) burst: Option<Burst>,
    /// What must be over before the next word.
    pub(crate) busy: Option<Busy>,
    /// What is left to do in this pass.
    pub(crate) budget: Budget,
    /// Its token has been seen at the doorbell.
    pub(crate) rung: bool,
    /// Class bound to each subchannel.
    pub(crate) bound: [u32; 8],
    /// Host methods' last data.
    pub(crate) host: Registers,
    /// The copy class's methods' last data.
    pub(crate) copy: Registers,
    /// The compute class's.
    pub(crate) compute: Registers,
}

/// Last data of each method, as engines keep it.
#[derive(Debug, Default)]
pub(crate) struct Registers(BTreeMap<u32, u32>);

impl Registers {
    pub(crate) fn set(&mut self, method: u32, data: u32) {
        self.0.insert(method, data);
    }

    pub(crate) fn get(&self, method: u32) -> u32 {
        self.0.get(&method).copied().unwrap_or(0)
    }

    /// Two methods as one number.
    pub(crate) fn wide(&self, upper: u32, lower: u32) -> u64 {
        u64::from(self.get(upper)) << 32 | u64::from(self.get(lower))
    }
}

/// Work of one method that a pass may leave unfinished.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Busy {
    /// A semaphore is not there yet.
    Acquire(Acquire),
    /// A copy launch has lines left.
    Copy(CopyAt),
    /// A launch has descriptors left.
    Launch(Chain),
}

/// How far a copy launch has got. Its registers stay as they are until it is over.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CopyAt {
    pub(crate) line: u32,
    /// Bytes of the line that are copied; elements if they are remapped.
    pub(crate) done: u64,
}

/// How far a chain of launch descriptors has got.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// GPU address of the next one.
    pub(crate) next: u64,
    /// Descriptors before it.
    pub(crate) before: usize,
}

/// What a channel may still do in a pass: whoever calls holds the whole machine meanwhile.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Budget {
    /// Bytes to copy.
    pub(crate) bytes: u64,
    /// Words, lines and launch descriptors.
    steps: u32,
}

impl Budget {
    /// That of a whole pass.
    pub(crate) const PASS: Self = Self {
        bytes: 16 << 20,
        steps: 1 << 14,
    };

    /// Takes a step; false if none is left.
    pub(crate) fn step(&mut self) -> bool {
        let left = self.steps.checked_sub(1);
        self.steps = left.unwrap_or(0);
        left.is_some()
    }
}

/// A wait for a semaphore.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acquire {
    pub(crate) address: u64,
    pub(crate) payload: u64,
    /// The method's data: operation and width.
    pub(crate) execute: u32,
}

/// Data words still to come for a header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst {
    pub(crate) subchannel: u32,
    pub(crate) method: u32,
    left: u32,
    /// Words after which the method goes on to the next one: 0 or 1 for all headers but the
    /// increasing one, which goes on after each.
    step: Step,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Each,
    Once,
    Never,
}

impl Burst {
    /// The burst that a header begins; immediate headers carry their word themselves.
    pub(crate) fn begin(header: Header) -> Option<Self> {
        let of = |methods: Methods, step| Self {
            subchannel: methods.subchannel,
            method: methods.method,
            left: methods.count,
            step,
        };
        match header {
            Header::Increasing(methods) => Some(of(methods, Step::Each)),
            Header::OneIncreasing(methods) => Some(of(methods, Step::Once)),
            Header::NonIncreasing(methods) => Some(of(methods, Step::Never)),
            Header::Nop | Header::Immediate(_) | Header::EndSegment | Header::Unknown => None,
        }
    }

    /// The method that the next word is for; `None` when all have come.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        let method = self.method;
        match self.step {
            Step::Each => self.method += 4,
            Step::Once => {
                self.method += 4;
                self.step = Step::Never;
            }
            Step::Never => {}
        }
        Some(method)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left == 0
    }
}

impl Channel {
    /// What is written to the doorbell; none before the channel is on a runlist.
    pub(crate) fn token(&self) -> Option<u32> {
        self.runlist.map(|runlist| runlist << 16 | self.number)
    }
}

impl<S: Store> Driver<S> {
    /// The lowest number that no channel of the GPU has.
    pub(crate) fn free_channel_number(&self, gpu: usize) -> Option<u32> {
        let mut taken: Vec<u32> = self
            .channels
            .values()
            .filter(|channel| channel.gpu == gpu)
            .map(|channel| channel.number)
            .collect();
        taken.sort_unstable();
        let mut free = 0;
        for number in taken {
            if number == free {
                free += 1;
            }
        }
        (free < CHANNELS_MAX).then_some(free)
    }

    /// Takes a channel in; it holds its memory and address space from now on.
    pub(crate) fn add_channel(&mut self, channel: Channel) -> ChannelId {
        self.retain(channel.userd.0);
        if let Some(error) = channel.error {
            self.retain(error);
        }
        self.retain_vas(channel.vas);
        self.next_channel += 1;
        let id = ChannelId(self.next_channel);
        self.channels.insert(id, channel);
        id
    }

    /// Lets go of a channel whose object is gone.
    pub(crate) fn free_channel(&mut self, id: ChannelId) {
        let channel = self.channels.remove(&id).expect("its object held it");
        if let Some(file) = channel.uvm {
            self.drop_channel(file, (channel.client, channel.handle));
        }
        self.release(channel.userd.0);
        if let Some(error) = channel.error {
            self.release(error);
        }
        self.release_vas(channel.vas);
    }

    /// Whether the channel is on its runlist and may run, and has rung if it must.
    pub(crate) fn is_runnable(&self, channel: &Channel) -> bool {
        let in_group = channel.group.is_some_and(|group| {
            let client = &self.rm.clients[&channel.client];
            let object = client.object(group).expect("a group outlives its channels");
            matches!(
                object.kind,
                Kind::Group {
                    scheduled: true,
                    ..
                }
            )
        });
        let heard = channel.exec.rung || !self.config.strict_doorbell;
        channel.dead.is_none() && (channel.scheduled || in_group) && heard
    }

    /// Stops a channel and its whole group, and tells their clients.
    pub(crate) fn stop_channel(&mut self, id: ChannelId, error: ChannelError, now: u64) {
        self.counted.channel_errors += 1;
        let stopped = &self.channels[&id];
        let (client, group) = (stopped.client, stopped.group);
        let same_group = |channel: &Channel| {
            group.is_some() && channel.client == client && channel.group == group
        };
        let ids: Vec<ChannelId> = self
            .channels
            .iter()
            .filter(|(_, c)| same_group(c))
            .map(|(&other, _)| other)
            .chain([id])
            .collect();
        for other in ids {
            let error = if other == id {
                error
            } else {
                ChannelError::Group
            };
            let channel = self.channels.get_mut(&other).expect("listed above");
            if channel.dead.is_none() || other == id {
                channel.dead = Some(error);
                let notifier = channel.error;
                self.notify(notifier, error, now);
            }
        }
    }

    /// The memory faults that stopped channels of this channel's group.
    pub(crate) fn group_faults(&self, id: ChannelId) -> Vec<MmuFault> {
        let Some(looked_at) = self.channels.get(&id) else {
            return Vec::new();
        };
        let same_group = |channel: &Channel| {
            channel.client == looked_at.client
                && (channel.handle == looked_at.handle
                    || (channel.group.is_some() && channel.group == looked_at.group))
        };
        let group = self.channels.values().filter(|channel| same_group(channel));
        group
            .filter_map(|channel| match channel.dead {
                Some(ChannelError::Mmu(fault)) => Some(fault),
                Some(ChannelError::Pushbuffer | ChannelError::Group) | None => None,
            })
            .collect()
    }

    fn notify(&mut self, notifier: Option<MemId>, error: ChannelError, now: u64) {
        use vrampager_nv_abi::method::notifier as layout;
        let Some(mem) = notifier else {
            return;
        };
        let number = match error {
            ChannelError::Mmu(_) | ChannelError::Group => layout::MMU_FAULT,
            ChannelError::Pushbuffer => layout::PBDMA_ERROR,
        };
        let mut words = [0; 16];
        words[..8].copy_from_slice(&now.to_le_bytes());
        words[8..12].copy_from_slice(&number.to_le_bytes());
        words[14..].copy_from_slice(&layout::STATUS_ERROR.to_le_bytes());
        let place = crate::store::Place {
            id: self.mem(mem).store,
            offset: 0,
        };
        // A notifier in pages that are gone tells nobody, which is nothing to stop for.
        if self.store.write(place, &words).is_err() {
            self.counted.lost_notifications += 1;
        }
    }
}
