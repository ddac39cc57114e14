//! Device memory, and pages of the process.

use vrampager_nv_abi::class::MemoryAlloc;
use vrampager_nv_abi::escape::{self, RmAllocMemory, os02};
use vrampager_nv_abi::{Status, class};

use super::{MIB, Machine, Row, UNKNOWN};
use crate::nodes::Answer;

pub(super) const ROWS: &[Row] = &[
    Row::status("no bytes", Status::INVALID_ARGUMENT, |m| {
        memory_with(m, |p| p.size = 0)
    }),
    Row::status("owner 0", Status::INVALID_OWNER, |m| {
        memory_with(m, |p| p.owner = 0)
    }),
    Row::status("owner -1", Status::INVALID_OWNER, |m| {
        memory_with(m, |p| p.owner = u32::MAX)
    }),
    Row::status("internal flags", Status::INVALID_ARGUMENT, |m| {
        memory_with(m, |p| p.internal_flags = 1)
    }),
    Row::status(
        "a physical range not asked for",
        Status::INVALID_ARGUMENT,
        |m| memory_with(m, |p| p.range_hi = 1),
    ),
    Row::status("more than any GPU has", Status::NO_MEMORY, |m| {
        memory_with(m, |p| p.size = 1 << 42)
    }),
    Row::status("pages in device memory", Status::INVALID_FLAGS, |m| {
        pin_with(m, |p| p.flags |= 2 << 8)
    }),
    Row::status("pages that the kernel maps", Status::INVALID_FLAGS, |m| {
        pin_with(m, |p| p.flags &= !(3 << os02::MAPPING_SHIFT))
    }),
    Row::status("write-combined pages", Status::INVALID_FLAGS, |m| {
        pin_with(m, |p| p.flags ^= 3 << os02::COHERENCY_SHIFT)
    }),
    Row::status("pages off their boundary", Status::NOT_SUPPORTED, |m| {
        pin_with(m, |p| p.memory += 1)
    }),
    Row::status(
        "pages to the end of all addresses",
        Status::INVALID_LIMIT,
        |m| pin_with(m, |p| p.limit = u64::MAX),
    ),
    Row::status("pages that are not there", Status::INVALID_ADDRESS, |m| {
        // The kernel's half of all addresses, in which no process has any.
        pin_with(m, |p| p.memory = 1 << 63)
    }),
    Row::status("pages of an unknown client", Status::INVALID_CLIENT, |m| {
        pin_with(m, |p| p.root = UNKNOWN)
    }),
    Row::status("pages under nothing", Status::OBJECT_NOT_FOUND, |m| {
        pin_with(m, |p| p.parent = UNKNOWN)
    }),
    Row::status(
        "pages under a taken handle",
        Status::INSERT_DUPLICATE_NAME,
        |m| pin_with(m, |p| p.object = p.parent),
    ),
];

fn memory_with(m: &mut Machine<'_>, set: fn(&mut MemoryAlloc)) -> Result<(), Answer> {
    let mut params = m.client.memory_params(MIB);
    set(&mut params);
    let parent = m.one.device;
    m.client
        .alloc(parent, class::NV01_MEMORY_LOCAL_USER, &mut params)
        .map(drop)
}

fn pin_with(m: &mut Machine<'_>, set: fn(&mut RmAllocMemory)) -> Result<(), Answer> {
    let mut packet = m.client.pin_packet(m.one, MIB);
    set(&mut packet);
    let fd = m.one.fd;
    m.client.escape(fd, escape::RM_ALLOC_MEMORY, &mut packet)?;
    Answer::check(packet.status)
}
