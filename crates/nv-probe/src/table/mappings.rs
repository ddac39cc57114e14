//! Mappings of the resource manager: for the CPU, and into its own address space.

use vrampager_nv_abi::escape::{self, RmMapMemory, RmUnmapMemory, RmUnmapMemoryDma, os33, os46};
use vrampager_nv_abi::neutral::MapMemoryDma;
use vrampager_nv_abi::{Handle, Node, Status, class};
use zerocopy::FromZeros;

use super::{DATA, MIB, Machine, Needs, Row, UNKNOWN};
use crate::nodes::Answer;

pub(super) const CPU: &[Row] = &[
    Row::status("unknown memory", Status::OBJECT_NOT_FOUND, |m| {
        map_with(m, |p| p.memory = UNKNOWN)
    }),
    Row::status("an unknown device", Status::OBJECT_NOT_FOUND, |m| {
        map_with(m, |p| p.device = UNKNOWN)
    }),
    Row::status(
        "a device that is none",
        Status::INVALID_OBJECT_PARENT,
        |m| map_with(m, |p| p.device = p.memory),
    ),
    Row::status("an unknown client", Status::INVALID_CLIENT, |m| {
        map_with(m, |p| p.client = UNKNOWN)
    }),
    Row::status(
        "a mapping that outlives its object",
        Status::INVALID_FLAGS,
        |m| map_with(m, |p| p.flags = os33::PERSISTENT),
    ),
    Row::status("undefined access", Status::INVALID_FLAGS, |m| {
        map_with(m, |p| p.flags = os33::ACCESS_MASK)
    }),
    Row::status("a start at the end", Status::INVALID_BASE, |m| {
        map_with(m, |p| p.offset = MIB)
    }),
    Row::status("no bytes", Status::INVALID_LIMIT, |m| {
        map_with(m, |p| p.length = 0)
    }),
    Row::status("a byte too many", Status::INVALID_LIMIT, |m| {
        map_with(m, |p| p.length = MIB + 1)
    }),
    Row::status("a range that wraps", Status::INVALID_LIMIT, |m| {
        map_with(m, |p| (p.offset, p.length) = (0x1000, u64::MAX))
    }),
    Row::status("no file", Status::INVALID_ARGUMENT, |m| {
        map_with(m, |p| p.fd = -1)
    })
    .needing(&[Needs::Window]),
    Row::status(
        "a control file for device memory",
        Status::INVALID_ARGUMENT,
        |m| {
            let fd = m.client.open(Node::Control)?;
            map_on(m, m.memory, fd)
        },
    )
    .needing(&[Needs::Window]),
    Row::status("the other GPU's file", Status::INVALID_ARGUMENT, |m| {
        let fd = m.client.linked(m.two().minor)?;
        map_on(m, m.memory, fd)
    })
    .needing(&[Needs::Two, Needs::Window]),
    Row::status("a file that carries a mapping", Status::STATE_IN_USE, |m| {
        let fd = m.client.linked(m.one.minor)?;
        let packet = m.client.map_packet(m.one, m.memory, MIB, fd);
        let linear = m.client.map_cpu(packet)?;
        let result = map_on(m, m.memory, fd);
        unmap(m, linear)?;
        result
    })
    .needing(&[Needs::Window]),
    Row::status("pinned pages", Status::NOT_SUPPORTED, |m| {
        let mut packet = m.client.pin_packet(m.one, MIB);
        let fd = m.one.fd;
        m.client.escape(fd, escape::RM_ALLOC_MEMORY, &mut packet)?;
        Answer::check(packet.status)?;
        let fd = m.client.open(Node::Control)?;
        let result = map_on(m, packet.object, fd);
        m.client.free(packet.object)?;
        result
    }),
    Row::status(
        "writing what users may read",
        Status::INVALID_ARGUMENT,
        |m| {
            let memory = memory_with(m, class::mem::ATTR2_USER_READ_ONLY)?;
            let fd = m.client.linked(m.one.minor)?;
            let result = map_on(m, memory, fd);
            m.client.free(memory)?;
            result
        },
    ),
    Row::status(
        "unmapping what is not mapped",
        Status::OBJECT_NOT_FOUND,
        |m| unmap(m, 0x1234),
    ),
    Row::status("unmapping unknown memory", Status::OBJECT_NOT_FOUND, |m| {
        m.memory = UNKNOWN;
        unmap(m, 0x1234)
    }),
];

pub(super) const DMA: &[Row] = &[
    Row::status("no bytes", Status::INVALID_LIMIT, |m| {
        dma_with(m, |p| p.length = 0)
    }),
    Row::status("a byte too many", Status::INVALID_LIMIT, |m| {
        dma_with(m, |p| p.length = MIB + 1)
    }),
    Row::status("an offset too far", Status::INVALID_LIMIT, |m| {
        dma_with(m, |p| p.offset = 0x1000)
    }),
    Row::status("a range that wraps", Status::INVALID_LIMIT, |m| {
        dma_with(m, |p| p.offset = u64::MAX)
    }),
    Row::status("an unknown client", Status::INVALID_CLIENT, |m| {
        dma_with(m, |p| p.client = UNKNOWN)
    }),
    Row::status("unknown memory", Status::OBJECT_NOT_FOUND, |m| {
        dma_with(m, |p| p.memory = UNKNOWN)
    }),
    Row::status("an unknown address object", Status::OBJECT_NOT_FOUND, |m| {
        dma_with(m, |p| p.dma = UNKNOWN)
    }),
    Row::status("an unknown device", Status::OBJECT_NOT_FOUND, |m| {
        dma_with(m, |p| p.device = UNKNOWN)
    }),
    Row::status("a device that is none", Status::INVALID_OBJECT, |m| {
        dma_with(m, |p| p.device = p.memory)
    }),
    Row::status(
        "an address beyond the object",
        Status::INVALID_ARGUMENT,
        |m| dma_with(m, |p| p.dma_offset = 1 << 49),
    ),
    Row::status("an address that is taken", Status::NO_MEMORY, |m| {
        dma_with(m, |_| ())?;
        let result = dma_with(m, |p| p.dma_offset += 0x1000);
        unmap_dma_with(m, |_| ())?;
        result
    }),
    Row::status(
        "writing what devices may read",
        Status::INVALID_ARGUMENT,
        |m| {
            let memory = memory_with(m, class::mem::ATTR2_DEVICE_READ_ONLY)?;
            let packet = m.client.dma_packet(m.one, memory, DATA, MIB);
            let result = m.client.map_dma(packet);
            m.client.free(memory)?;
            result.map(drop)
        },
    ),
    Row::status(
        "unmapping where nothing is mapped",
        Status::OBJECT_NOT_FOUND,
        |m| unmap_dma_with(m, |_| ()),
    ),
    Row::status("unmapping a range with nothing in it", Status::OK, |m| {
        unmap_dma_with(m, |p| p.size = MIB)
    }),
    Row::status(
        "unmapping for an unknown client",
        Status::INVALID_CLIENT,
        |m| unmap_dma_with(m, |p| p.client = UNKNOWN),
    ),
];

/// A CPU mapping of the buffer, through a fresh file of the GPU, with something wrong.
fn map_with(m: &mut Machine<'_>, set: fn(&mut RmMapMemory)) -> Result<(), Answer> {
    let fd = m.client.linked(m.one.minor)?;
    let mut packet = m.client.map_packet(m.one, m.memory, MIB, fd);
    set(&mut packet);
    m.client.map_cpu(packet).map(drop)
}

fn map_on(m: &mut Machine<'_>, memory: Handle, fd: i32) -> Result<(), Answer> {
    let packet = m.client.map_packet(m.one, memory, MIB, fd);
    m.client.map_cpu(packet).map(drop)
}

fn unmap(m: &mut Machine<'_>, linear: u64) -> Result<(), Answer> {
    let mut packet = RmUnmapMemory::new_zeroed();
    packet.client = m.client.root;
    packet.device = m.one.device;
    packet.memory = m.memory;
    packet.linear = linear;
    m.client
        .manage(escape::RM_UNMAP_MEMORY, &mut packet, |p| p.status)
}

/// Device memory with a second attribute.
fn memory_with(m: &mut Machine<'_>, attr2: u32) -> Result<Handle, Answer> {
    let mut params = m.client.memory_params(MIB);
    params.attr2 = attr2;
    let parent = m.one.device;
    m.client
        .alloc(parent, class::NV01_MEMORY_LOCAL_USER, &mut params)
}

fn dma_with(m: &mut Machine<'_>, set: fn(&mut MapMemoryDma)) -> Result<(), Answer> {
    let mut packet = m.client.dma_packet(m.one, m.memory, DATA, MIB);
    set(&mut packet);
    m.client.map_dma(packet).map(drop)
}

fn unmap_dma_with(m: &mut Machine<'_>, set: fn(&mut RmUnmapMemoryDma)) -> Result<(), Answer> {
    let mut packet = RmUnmapMemoryDma::new_zeroed();
    packet.client = m.client.root;
    packet.device = m.one.device;
    packet.dma = m.one.virt;
    packet.memory = m.memory;
    packet.flags = os46::PAGE_SIZE_4KB;
    packet.dma_offset = DATA;
    set(&mut packet);
    m.client
        .manage(escape::RM_UNMAP_MEMORY_DMA, &mut packet, |p| p.status)
}
