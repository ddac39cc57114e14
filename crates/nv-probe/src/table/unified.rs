//! Unified memory: ranges, mappings in them, registrations.

use vrampager_nv_abi::{Node, Status, Uuid, uvm};
use zerocopy::FromZeros;

use super::{DATA, FREE, MIB, Machine, Needs, Row, UNKNOWN, VA};
use crate::client::range_packet;
use crate::nodes::Answer;

pub(super) const RANGES: &[Row] = &[
    Row::status("a range at 0", Status::INVALID_ADDRESS, |m| {
        m.client.range(0, MIB)
    }),
    Row::status("an empty range", Status::INVALID_ADDRESS, |m| {
        m.client.range(FREE, 0)
    }),
    Row::status("a range of half a page", Status::INVALID_ADDRESS, |m| {
        m.client.range(FREE, 0x800)
    }),
    Row::status("a range off a page", Status::INVALID_ADDRESS, |m| {
        m.client.range(FREE + 0x800, MIB)
    }),
    Row::status("a range that wraps", Status::INVALID_ADDRESS, |m| {
        m.client.range(u64::MAX - 0xFFF, 0x2000)
    }),
    Row::status("an overlap at the end", Status::UVM_ADDRESS_IN_USE, |m| {
        m.client.range(DATA - 0x1000, 0x2000)
    }),
    Row::status("an overlap inside", Status::UVM_ADDRESS_IN_USE, |m| {
        m.client.range(DATA + 0x1000, 0x1000)
    }),
    Row::status("an overlap all around", Status::UVM_ADDRESS_IN_USE, |m| {
        m.client.range(DATA - 0x1000, MIB + 0x2000)
    }),
    Row::status("freeing inside a range", Status::INVALID_ADDRESS, |m| {
        m.client.uvm_free(DATA + 0x1000, MIB - 0x1000)
    }),
    Row::status(
        "freeing where there is none",
        Status::INVALID_ADDRESS,
        |m| m.client.uvm_free(FREE, MIB),
    ),
    Row::status(
        "freeing a channel's resources",
        Status::INVALID_ADDRESS,
        |m| m.client.uvm_free(VA + (4 << 20), 2 << 20),
    ),
    Row::status("validating half a range", Status::INVALID_ADDRESS, |m| {
        let mut packet = range_packet(DATA, MIB / 2);
        m.client.uvm(uvm::VALIDATE_VA_RANGE, &mut packet)
    }),
    Row::status("mapping off a page", Status::INVALID_ADDRESS, |m| {
        map_with(m, |p| p.base += 1)
    }),
    Row::status("mapping from half a page", Status::INVALID_ADDRESS, |m| {
        map_with(m, |p| p.offset = 0x800)
    }),
    Row::status("mapping outside a range", Status::INVALID_ADDRESS, |m| {
        map_with(m, |p| p.length *= 2)
    }),
    Row::status("mapping for no GPU", Status::INVALID_ARGUMENT, |m| {
        map_with(m, |p| p.count = 0)
    }),
    Row::status("mapping for 257 GPUs", Status::INVALID_ARGUMENT, |m| {
        map_with(m, |p| p.count = 257)
    }),
    Row::status(
        "mapping with unknown access",
        Status::INVALID_ARGUMENT,
        |m| map_with(m, |p| p.attributes[0].mapping = 9),
    ),
    Row::status("mapping for an unknown GPU", Status::INVALID_DEVICE, |m| {
        map_with(m, |p| p.attributes[0].uuid[0] ^= 1)
    }),
    Row::status(
        "mapping an unknown client's memory",
        Status::INVALID_CLIENT,
        |m| map_with(m, |p| p.client = UNKNOWN),
    ),
    Row::status("mapping unknown memory", Status::OBJECT_NOT_FOUND, |m| {
        map_with(m, |p| p.memory = UNKNOWN)
    }),
    Row::status(
        "mapping more than the memory has",
        Status::INVALID_OFFSET,
        |m| map_with(m, |p| p.offset = 0x1000),
    ),
    Row::status("mapping beyond 47 bits", Status::OUT_OF_RANGE, |m| {
        m.client.range(1 << 47, MIB)?;
        let result = map_with(m, |p| p.base = 1 << 47);
        m.client.uvm_free(1 << 47, MIB)?;
        result
    }),
    Row::status(
        "mapping for a GPU that is no peer",
        Status::INVALID_DEVICE,
        |m| {
            let mut packet = m.client.uvm_map_packet(m.two(), m.memory, DATA, MIB);
            m.client.uvm(uvm::MAP_EXTERNAL_ALLOCATION, &mut packet)
        },
    )
    .needing(&[Needs::Two]),
    Row::status(
        "one GPU of two that is no peer",
        Status::INVALID_DEVICE,
        |m| {
            let mut packet = m.client.uvm_map_packet(m.one, m.memory, DATA, MIB);
            packet.attributes[1] = packet.attributes[0];
            packet.attributes[1].uuid = m.two().uuid;
            packet.count = 2;
            m.client.uvm(uvm::MAP_EXTERNAL_ALLOCATION, &mut packet)
        },
    )
    .needing(&[Needs::Two]),
    Row::status(
        "mapping for a GPU without a VA space",
        Status::INVALID_DEVICE,
        |m| {
            let fd = space_with_gpu(m)?;
            m.client
                .uvm_on(fd, uvm::CREATE_EXTERNAL_RANGE, &mut range_packet(DATA, MIB))?;
            let mut packet = m.client.uvm_map_packet(m.one, m.memory, DATA, MIB);
            m.client
                .uvm_on(fd, uvm::MAP_EXTERNAL_ALLOCATION, &mut packet)
        },
    ),
    Row::status("unmapping off a page", Status::INVALID_ADDRESS, |m| {
        unmap_with(m, |p| p.base += 1)
    }),
    Row::status("unmapping outside a range", Status::INVALID_ADDRESS, |m| {
        unmap_with(m, |p| p.length *= 2)
    }),
    Row::status(
        "unmapping from an unknown GPU",
        Status::INVALID_DEVICE,
        |m| unmap_with(m, |p| p.uuid[0] ^= 1),
    ),
    Row::status("unmapping where nothing is mapped", Status::OK, |m| {
        m.client.range(FREE, MIB)?;
        let result = unmap_with(m, |p| p.base = FREE);
        m.client.uvm_free(FREE, MIB)?;
        result
    }),
];

pub(super) const REGISTRATIONS: &[Row] = &[
    Row::status("an unknown UUID", Status::GPU_UUID_NOT_FOUND, |m| {
        let fd = m.client.uvm;
        register_gpu(m, fd, Uuid::default())
    }),
    Row::status("a GPU twice", Status::INVALID_DEVICE, |m| {
        let (fd, uuid) = (m.client.uvm, m.one.uuid);
        register_gpu(m, fd, uuid)
    }),
    Row::status(
        "unregistering an unknown GPU",
        Status::INVALID_DEVICE,
        |m| {
            let mut packet = uvm::UnregisterGpu::new_zeroed();
            m.client.uvm(uvm::UNREGISTER_GPU, &mut packet)
        },
    ),
    Row::status("a VA space twice", Status::INVALID_DEVICE, |m| {
        m.client.register_vaspace(m.one.uuid, m.one.vaspace)
    }),
    Row::status(
        "a VA space of an unregistered GPU",
        Status::INVALID_DEVICE,
        |m| {
            let fd = fresh_space(m)?;
            register_vaspace(m, fd, 0x48)
        },
    ),
    Row::status(
        "a VA space that UVM does not own",
        Status::INVALID_FLAGS,
        |m| {
            let fd = space_with_gpu(m)?;
            register_vaspace(m, fd, 0x40)
        },
    ),
    Row::status("a VA space without faults", Status::INVALID_FLAGS, |m| {
        let fd = space_with_gpu(m)?;
        register_vaspace(m, fd, 0x8)
    }),
    Row::status("a GPU as its own peer", Status::INVALID_DEVICE, |m| {
        let (uuid, command) = (m.one.uuid, uvm::ENABLE_PEER_ACCESS);
        peers(m, command, uuid)
    }),
    Row::status("an unknown peer", Status::INVALID_DEVICE, |m| {
        peers(m, uvm::ENABLE_PEER_ACCESS, Uuid::default())
    }),
    Row::status(
        "parting those that are no peers",
        Status::INVALID_DEVICE,
        |m| {
            let uuid = m.two().uuid;
            peers(m, uvm::DISABLE_PEER_ACCESS, uuid)
        },
    )
    .needing(&[Needs::Two]),
    Row::status("a file without a VA space", Status::ILLEGAL_ACTION, |m| {
        let fd = m.client.open(Node::Uvm)?;
        m.client
            .uvm_on(fd, uvm::CREATE_EXTERNAL_RANGE, &mut range_packet(FREE, MIB))
    }),
    Row::status("the same flags again", Status::OK, |m| {
        let mut packet = uvm::Initialize::new_zeroed();
        m.client.uvm(uvm::INITIALIZE, &mut packet)
    }),
    Row::status(
        "other flags for the same VA space",
        Status::INVALID_ARGUMENT,
        |m| {
            let mut packet = uvm::Initialize::new_zeroed();
            packet.flags = 1;
            m.client.uvm(uvm::INITIALIZE, &mut packet)
        },
    ),
    Row::status(
        "a VA space on a file that ties one",
        Status::INVALID_ARGUMENT,
        |m| {
            let fd = m.client.tie.expect("rows that use it say so");
            let mut packet = uvm::Initialize::new_zeroed();
            m.client.uvm_on(fd, uvm::INITIALIZE, &mut packet)
        },
    )
    .needing(&[Needs::Tie]),
    Row::status("a VA space tied twice", Status::INVALID_STATE, |m| {
        let (fd, target) = (m.client.open(Node::Uvm)?, m.client.uvm);
        tie(m, fd, target)
    })
    .needing(&[Needs::Tie]),
    Row::status("a file tied to itself", Status::IN_USE, |m| {
        let fd = m.client.uvm;
        tie(m, fd, fd)
    }),
    Row::status("a file tied to no file", Status::INVALID_ARGUMENT, |m| {
        let fd = m.client.open(Node::Uvm)?;
        tie(m, fd, -1)
    }),
    Row::status(
        "a file tied to one without a VA space",
        Status::INVALID_ARGUMENT,
        |m| {
            let (fd, bare) = (m.client.open(Node::Uvm)?, m.client.open(Node::Uvm)?);
            tie(m, fd, bare)
        },
    ),
    Row::status(
        "a range after the tie is gone",
        Status::PAGE_TABLE_NOT_AVAIL,
        |m| {
            let fd = m.client.tie.expect("rows that use it say so");
            m.client.close(fd);
            m.client.range(FREE, MIB)
        },
    )
    .needing(&[Needs::Tie]),
];

fn map_with(m: &mut Machine<'_>, set: fn(&mut uvm::MapExternalAllocation)) -> Result<(), Answer> {
    let mut packet = m.client.uvm_map_packet(m.one, m.memory, DATA, MIB);
    set(&mut packet);
    m.client.uvm(uvm::MAP_EXTERNAL_ALLOCATION, &mut packet)
}

fn unmap_with(m: &mut Machine<'_>, set: fn(&mut uvm::UnmapExternal)) -> Result<(), Answer> {
    let mut packet = uvm::UnmapExternal::new_zeroed();
    packet.base = DATA;
    packet.length = MIB;
    packet.uuid = m.one.uuid;
    set(&mut packet);
    m.client.uvm(uvm::UNMAP_EXTERNAL, &mut packet)
}

/// A second VA space, without a GPU; it goes with its file.
fn fresh_space(m: &mut Machine<'_>) -> Result<i32, Answer> {
    let fd = m.client.open(Node::Uvm)?;
    let mut packet = uvm::Initialize::new_zeroed();
    m.client.uvm_on(fd, uvm::INITIALIZE, &mut packet)?;
    Ok(fd)
}

/// A second VA space with the GPU, but without a VA space of that.
fn space_with_gpu(m: &mut Machine<'_>) -> Result<i32, Answer> {
    let (fd, uuid) = (fresh_space(m)?, m.one.uuid);
    register_gpu(m, fd, uuid)?;
    Ok(fd)
}

fn register_gpu(m: &mut Machine<'_>, fd: i32, uuid: Uuid) -> Result<(), Answer> {
    let mut packet = uvm::RegisterGpu::new_zeroed();
    packet.uuid = uuid;
    packet.rm_ctrl_fd = -1;
    m.client.uvm_on(fd, uvm::REGISTER_GPU, &mut packet)
}

/// Registers a new VA space with these flags, and frees it.
fn register_vaspace(m: &mut Machine<'_>, fd: i32, flags: u32) -> Result<(), Answer> {
    let vaspace = m.client.vaspace(m.one.device, flags)?;
    let mut packet = uvm::RegisterGpuVaspace::new_zeroed();
    packet.uuid = m.one.uuid;
    packet.rm_ctrl_fd = m.client.ctl;
    packet.client = m.client.root;
    packet.vaspace = vaspace;
    let result = m.client.uvm_on(fd, uvm::REGISTER_GPU_VASPACE, &mut packet);
    m.client.free(vaspace)?;
    result
}

fn peers(m: &mut Machine<'_>, command: u32, other: Uuid) -> Result<(), Answer> {
    let mut packet = uvm::PeerAccess::new_zeroed();
    packet.uuid_a = m.one.uuid;
    packet.uuid_b = other;
    m.client.uvm(command, &mut packet)
}

fn tie(m: &mut Machine<'_>, fd: i32, target: i32) -> Result<(), Answer> {
    let mut packet = uvm::MmInitialize::new_zeroed();
    packet.uvm_fd = target;
    m.client.uvm_on(fd, uvm::MM_INITIALIZE, &mut packet)
}
