//! Channels: each in a group of its own, so that a fault stops no other.

use vrampager_addr::{PAGE_SIZE, Va};
use vrampager_hal::{Access, ChannelId, Fault, FaultKind, Fence, HalError, Op};
use vrampager_nv_abi::ctrl::{self, MmuFault};
use vrampager_nv_abi::method::{self, GP_ENTRY_BYTES, GpEntry, notifier, subchannel, userd};
use vrampager_nv_abi::neutral::{ChannelAlloc, Schedule};
use vrampager_nv_abi::{Handle, class, uvm};
use zerocopy::{FromZeros, IntoBytes};

use crate::context::{Stages, Undo};
use crate::device::{Block, Device};
use crate::error::Refusal;
use crate::own::Holder;
use crate::push::Push;
use crate::ring::Ring;
use crate::rm::Site;

/// Ring entries; one submission takes one.
const ENTRIES: u32 = 1024;
/// Words of pushbuffer: enough for as many operations of any kind as there are entries.
const WORDS: u32 = 128 << 10;

/// Layout of a channel's block: error notifier, control page, the channel's own semaphores, ring,
/// pushbuffer.
const NOTIFIER: u64 = 0;
const USERD: u64 = PAGE_SIZE;
const MARK: u64 = USERD + 0x800;
const DRAINED: u64 = MARK + 0x10;
const RING: u64 = 2 * PAGE_SIZE;
const PUSH: u64 = RING + ENTRIES as u64 * GP_ENTRY_BYTES;
const BLOCK: u64 = PUSH + WORDS as u64 * 4;
const _: () = assert!(PUSH.is_multiple_of(PAGE_SIZE) && USERD + userd::SIZE <= MARK);

/// Addresses that unified memory may use for the resources of a channel.
const RESOURCES: u64 = 64 << 20;

/// A submission under way.
#[derive(Debug)]
struct Sent {
    number: u64,
    /// What it is to bring about.
    signals: Vec<Fence>,
}

/// A channel of one device.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) id: ChannelId,
    pub(crate) stages: Stages,
    pub(crate) stopped: Option<Fault>,
    block: Block,
    compute: Handle,
    token: u32,
    sent: u64,
    drained: u32,
    ring: Ring<Sent>,
}

/// Makes a channel.
pub(crate) fn create(
    device: &Device,
    id: ChannelId,
    stages: &mut Stages,
) -> Result<Channel, Refusal> {
    let resources = device.context.vacancy(RESOURCES, stages)?;
    let block = device.block(BLOCK, stages)?;
    let group = new_group(device, stages)?;
    let share = new_share(device, group, stages)?;
    let channel = new_channel(device, (group, share), &block, stages)?;
    let engine = |stage, class| Site {
        stage,
        parent: channel,
        class,
    };
    let site = engine("new compute engine", device.classes.compute);
    let compute = device.alloc_bytes(site, &mut [], stages)?;
    let site = engine("new copy engine", device.classes.copy);
    device.alloc_bytes(site, &mut [], stages)?;

    let mut packet = uvm::RegisterChannel::new_zeroed();
    packet.uuid = device.uuid;
    packet.rm_ctrl_fd = device.link.client.control.0;
    packet.client = device.link.client.root;
    packet.channel = channel;
    (packet.base, packet.length) = (resources.start(), resources.len());
    device
        .link
        .uvm
        .send("register channel", uvm::REGISTER_CHANNEL, &mut packet)?;
    stages.push(Undo::UnregisterChannel {
        uuid: device.uuid,
        channel,
        resources: resources.start(),
    });
    let held = (resources.start(), Holder::Channel(device.uuid));
    device.context.lock().own.hold(held.0, held.1);
    let token = schedule(device, group, channel)?;
    Ok(Channel {
        id,
        stages: Stages::new(),
        stopped: None,
        block,
        compute,
        token,
        sent: 0,
        drained: 0,
        ring: Ring::new(ENTRIES, WORDS),
    })
}

fn new_group(device: &Device, stages: &mut Stages) -> Result<Handle, Refusal> {
    let mut params = class::ChannelGroupAlloc::new_zeroed();
    params.engine_type = class::engine::GRAPHICS;
    let site = Site {
        stage: "new channel group",
        parent: device.device,
        class: class::KEPLER_CHANNEL_GROUP_A,
    };
    device.alloc_bytes(site, params.as_mut_bytes(), stages)
}

fn new_share(device: &Device, group: Handle, stages: &mut Stages) -> Result<Handle, Refusal> {
    /// Launches of the subcontext do not wait for those of another.
    const ASYNC: u32 = 1;
    let mut params = class::ContextShareAlloc::new_zeroed();
    params.vaspace = device.vaspace;
    params.flags = ASYNC;
    let site = Site {
        stage: "new context share",
        parent: group,
        class: class::FERMI_CONTEXT_SHARE_A,
    };
    device.alloc_bytes(site, params.as_mut_bytes(), stages)
}

fn new_channel(
    device: &Device,
    (group, share): (Handle, Handle),
    block: &Block,
    stages: &mut Stages,
) -> Result<Handle, Refusal> {
    let mut params = ChannelAlloc {
        error: block.memory,
        buffer: block.memory,
        gpfifo_offset: block.va + RING,
        gpfifo_entries: ENTRIES,
        context_share: share,
        engine_type: class::engine::GRAPHICS,
        ..ChannelAlloc::default()
    };
    params.userd[0] = block.memory;
    params.userd_offset[0] = USERD;
    let abi = device.link.client.abi;
    let mut bytes = vec![0; ChannelAlloc::size(abi)];
    params.encode(abi, &mut bytes);
    let site = Site {
        stage: "new channel",
        parent: group,
        class: device.classes.channel,
    };
    device.alloc_bytes(site, &mut bytes, stages)
}

/// Puts the group on its runlist; the channel's token.
fn schedule(device: &Device, group: Handle, channel: Handle) -> Result<u32, Refusal> {
    let client = &device.link.client;
    let mut token = ctrl::WorkSubmitToken::new_zeroed();
    let to = (channel, ctrl::GET_WORK_SUBMIT_TOKEN);
    client.control("ask for the token", to, token.as_mut_bytes(), None)?;
    let enable = Schedule {
        enable: 1,
        ..Schedule::default()
    };
    let mut bytes = vec![0; Schedule::size(client.abi)];
    enable.encode(client.abi, &mut bytes);
    let to = (group, ctrl::GROUP_SCHEDULE);
    client.control("schedule channel", to, &mut bytes, None)?;
    Ok(token.token)
}

impl Channel {
    /// Appends operations: all, or none. `address` is where a timeline's number is.
    pub(crate) fn submit(
        &mut self,
        device: &Device,
        ops: &[Op],
        address: impl Fn(Fence) -> u64,
    ) -> Result<(), HalError> {
        if let Some(fault) = self.stopped {
            return Err(HalError::Fault(fault));
        }
        if ops.is_empty() {
            return Ok(());
        }
        let mut push = Push::new(self.block.va + DRAINED, self.drained);
        if self.sent == 0 {
            push.bind(subchannel::COMPUTE, device.classes.compute);
            push.bind(subchannel::COPY, device.classes.copy);
        }
        for op in ops {
            match *op {
                Op::Wait(fence) => push.acquire(address(fence), fence.value),
                Op::Copy { src, dst, len } => push.copy(src, dst, len),
                Op::Fill { dst, len, byte } => push.fill(dst, len, byte),
                Op::Signal(fence) => push.raise(address(fence), fence.value),
            }
        }
        let number = self.sent + 1;
        push.mark(self.block.va + MARK, number);
        self.send(device, &push, ops)
    }

    fn send(&mut self, device: &Device, push: &Push, ops: &[Op]) -> Result<(), HalError> {
        self.retire();
        let full = HalError::QueueFull {
            channel: self.id,
            capacity: self.ring.capacity(),
        };
        let slot = self.ring.room(push.words.len()).ok_or(full)?;
        let at = PUSH + u64::from(slot.start) * 4;
        self.block.window.write(at, push.words.as_bytes());
        let entry = GpEntry {
            address: self.block.va + at,
            words: u32::try_from(push.words.len()).expect("they fit the ring of words"),
        };
        let entry_at = RING + u64::from(slot.entry) * GP_ENTRY_BYTES;
        self.block.window.store_u64(entry_at, entry.encode());
        (self.sent, self.drained) = (self.sent + 1, push.drained());
        let sent = Sent {
            number: self.sent,
            signals: ops.iter().filter_map(signalled).collect(),
        };
        let put = self.ring.push(slot, sent);
        self.block.window.store_u32(USERD + userd::GP_PUT, put);
        let doorbell = device.doorbell.as_ref();
        let doorbell = doorbell.expect("a device that is open has mapped its doorbell");
        doorbell.store_u32(method::DOORBELL, self.token);
        device.door().rung();
        Ok(())
    }

    /// Forgets submissions that the GPU has taken.
    fn retire(&mut self) {
        let taken = self.block.window.load_u64(MARK);
        self.ring.retire(|sent| sent.number <= taken);
    }

    /// Whether the channel was to bring a timeline to a fence and has not.
    pub(crate) fn owes(&self, fence: Fence) -> bool {
        let mut signals = self.ring.iter().flat_map(|sent| &sent.signals);
        signals.any(|f| f.timeline == fence.timeline && f.value >= fence.value)
    }

    /// Looks whether the GPU has stopped the channel; the fault, if it has since the last look.
    pub(crate) fn look(&mut self, device: &Device) -> Option<Fault> {
        let status = self.block.window.load_u16(NOTIFIER + notifier::STATUS);
        if self.stopped.is_some() || status != notifier::STATUS_ERROR {
            return None;
        }
        self.retire();
        let fault = self.explain(device);
        self.stopped = Some(fault);
        Some(fault)
    }

    fn explain(&mut self, device: &Device) -> Fault {
        let number = self.block.window.load_u32(NOTIFIER + notifier::INFO32);
        let records = match number {
            notifier::MMU_FAULT => self.recorded(device).unwrap_or_default(),
            _ => Vec::new(),
        };
        let Some(record) = records.first() else {
            return Fault {
                channel: self.id,
                kind: FaultKind::Unexplained { number },
                at: None,
            };
        };
        Fault {
            channel: self.id,
            kind: match record.fault_type {
                ctrl::fault::RO_VIOLATION => FaultKind::ReadOnly,
                _ => FaultKind::Unmapped,
            },
            at: Some((Va(record.address), access(record))),
        }
    }

    /// The last memory faults of the channel's group, newest first, through a debugger session
    /// made for the question. One that cannot be freed again goes with the channel.
    fn recorded(&mut self, device: &Device) -> Result<Vec<MmuFault>, Refusal> {
        let client = &device.link.client;
        let mut params = class::DebuggerAlloc::new_zeroed();
        params.app_client = client.root;
        params.compute_object = self.compute;
        let site = Site {
            stage: "new debugger",
            parent: device.device,
            class: class::GT200_DEBUGGER,
        };
        let debugger = device.alloc_bytes(site, params.as_mut_bytes(), &mut self.stages)?;
        let mut info = ctrl::MmuFaultInfo::new_zeroed();
        let to = (debugger, ctrl::DEBUG_READ_MMU_FAULT_INFO);
        let asked = client.control("read faults", to, info.as_mut_bytes(), None);
        if client.free(debugger).is_ok() {
            self.stages.pop();
        }
        asked?;
        let count = usize::try_from(info.count).unwrap_or(usize::MAX);
        Ok(info.list.into_iter().take(count).collect())
    }
}

fn signalled(op: &Op) -> Option<Fence> {
    match *op {
        Op::Signal(fence) => Some(fence),
        Op::Wait(_) | Op::Copy { .. } | Op::Fill { .. } => None,
    }
}

fn access(record: &MmuFault) -> Access {
    match record.access_type {
        ctrl::fault::ACCESS_READ => Access::Read,
        _ => Access::Write,
    }
}
