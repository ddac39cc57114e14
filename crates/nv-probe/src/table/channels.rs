//! Channels and their registration.

use vrampager_nv_abi::neutral::{ChannelAlloc, UnregisterChannel};
use vrampager_nv_abi::{Handle, Status, class, uvm};

use super::{FREE, MIB, Machine, Row, UNKNOWN, VA, channel_params};
use crate::nodes::Answer;

pub(super) const ROWS: &[Row] = &[
    Row::status(
        "a subcontext and a VA space",
        Status::INVALID_ARGUMENT,
        |m| {
            let vaspace = m.one.vaspace;
            channel_with(m, m.group, |p| p.vaspace = vaspace)
        },
    ),
    Row::status(
        "a subcontext without a group",
        Status::INVALID_ARGUMENT,
        |m| channel_with(m, m.one.device, |_| ()),
    ),
    Row::status("memory as a parent", Status::INVALID_OBJECT_PARENT, |m| {
        channel_with(m, m.memory, |_| ())
    }),
    Row::status("an unknown parent", Status::OBJECT_NOT_FOUND, |m| {
        channel_with(m, UNKNOWN, |_| ())
    }),
    Row::status("registering twice", Status::INVALID_CHANNEL, |m| {
        let mut packet = m.client.register_packet(m.one, m.channel, FREE);
        m.client.uvm(uvm::REGISTER_CHANNEL, &mut packet)
    }),
    Row::status(
        "registering on an unknown GPU",
        Status::INVALID_DEVICE,
        |m| register_with(m, |_, p| p.uuid[0] ^= 1),
    ),
    Row::status(
        "registering for an unknown client",
        Status::INVALID_CLIENT,
        |m| register_with(m, |_, p| p.client = UNKNOWN),
    ),
    Row::status(
        "addresses that channels cannot reach",
        Status::OUT_OF_RANGE,
        |m| register_with(m, |m, p| p.base = reach(m) - MIB),
    ),
    Row::status("no room for resources", Status::INVALID_ADDRESS, |m| {
        register_with(m, |_, p| p.length = 0)
    }),
    Row::status(
        "unregistering what is not registered",
        Status::INVALID_CHANNEL,
        |m| {
            let packet = UnregisterChannel {
                uuid: m.one.uuid,
                client: m.client.root,
                channel: m.memory,
                status: 0,
            };
            let mut bytes = vec![0; UnregisterChannel::size(m.client.abi)];
            packet.encode(m.client.abi, &mut bytes);
            let fd = m.client.uvm;
            m.client.uvm_bytes(fd, uvm::UNREGISTER_CHANNEL, &mut bytes)
        },
    ),
];

/// One beyond the addresses of channel resources.
fn reach(m: &Machine<'_>) -> u64 {
    if m.classes.channel == class::AMPERE_CHANNEL_GPFIFO_A {
        1 << 40
    } else {
        1 << 57
    }
}

fn channel_with(
    m: &mut Machine<'_>,
    parent: Handle,
    set: impl Fn(&mut ChannelAlloc),
) -> Result<(), Answer> {
    let mut params = channel_params(VA, m.share, m.memory, 0);
    set(&mut params);
    let class = m.classes.channel;
    m.client.channel(parent, class, &params).map(drop)
}

/// Registers a second channel with something wrong, and frees the channel.
fn register_with(
    m: &mut Machine<'_>,
    set: fn(&Machine<'_>, &mut uvm::RegisterChannel),
) -> Result<(), Answer> {
    let params = channel_params(VA, m.share, m.memory, 0);
    let class = m.classes.channel;
    let channel = m.client.channel(m.group, class, &params)?;
    let mut packet = m.client.register_packet(m.one, channel, FREE);
    set(m, &mut packet);
    let result = m.client.uvm(uvm::REGISTER_CHANNEL, &mut packet);
    m.client.free(channel)?;
    result
}
