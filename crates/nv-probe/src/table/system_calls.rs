//! Requests that the system call itself refuses.

use vrampager_nv_abi::escape::{self, CardInfo, CheckVersion, RegisterFd, RmAlloc, Xfer};
use vrampager_nv_abi::{Node, class};
use vrampager_nv_driver::Errno;
use zerocopy::FromZeros;

use super::{MIB, Machine, Needs, Row};
use crate::nodes::{Answer, NOWHERE};

pub(super) const ROWS: &[Row] = &[
    Row::errno("an unknown escape", Errno::Inval, |m| {
        blank(m, m.client.ctl, 0x77, 8)
    }),
    Row::errno("an escape of another size", Errno::Inval, |m| {
        blank(m, m.client.ctl, escape::RM_ALLOC, 40)
    }),
    Row::errno("an escape of no size", Errno::Inval, |m| {
        blank(m, m.client.ctl, escape::RM_FREE, 0)
    }),
    Row::errno("an object on a GPU file", Errno::Inval, |m| {
        blank(m, m.one.fd, escape::RM_ALLOC, size_of::<RmAlloc>())
    }),
    Row::errno("a control on a GPU file", Errno::Inval, |m| {
        let size = size_of::<escape::RmControl>();
        blank(m, m.one.fd, escape::RM_CONTROL, size)
    }),
    Row::errno("a mapping on a GPU file", Errno::Inval, |m| {
        let size = size_of::<escape::RmMapMemory>();
        blank(m, m.one.fd, escape::RM_MAP_MEMORY, size)
    }),
    Row::errno("pinning on the control file", Errno::Inval, |m| {
        let size = size_of::<escape::RmAllocMemory>();
        blank(m, m.client.ctl, escape::RM_ALLOC_MEMORY, size)
    }),
    Row::errno("a UVM command on the control file", Errno::Inval, |m| {
        let fd = m.client.ctl;
        m.client.nodes().ioctl(fd, 37, &mut [0; 40])
    }),
    Row::errno("an unknown UVM command", Errno::Inval, |m| {
        let fd = m.client.uvm;
        m.client.nodes().ioctl(fd, 999, &mut [0; 64])
    }),
    Row::errno("a list of no cards", Errno::Inval, |m| {
        blank(m, m.client.ctl, escape::CARD_INFO, 0)
    }),
    Row::errno("a list of half a card", Errno::Inval, |m| {
        let size = size_of::<CardInfo>() / 2;
        blank(m, m.client.ctl, escape::CARD_INFO, size)
    }),
    Row::errno("a list of fewer cards than there are", Errno::Inval, |m| {
        blank(m, m.client.ctl, escape::CARD_INFO, size_of::<CardInfo>())
    })
    .needing(&[Needs::Two]),
    Row::errno("a file linked twice", Errno::Inval, |m| {
        register(m, m.one.fd, m.client.ctl)
    }),
    Row::errno("a file linked to a GPU file", Errno::Inval, |m| {
        let fd = m.client.open(Node::Gpu(m.one.minor))?;
        register(m, fd, m.one.fd)
    }),
    Row::errno("a file linked to no file", Errno::Inval, |m| {
        let fd = m.client.open(Node::Gpu(m.one.minor))?;
        register(m, fd, -1)
    }),
    Row::errno("a file linked to itself", Errno::Inval, |m| {
        let fd = m.client.open(Node::Control)?;
        register(m, fd, fd)
    }),
    Row::errno("another version", Errno::Inval, |m| {
        let mut packet = CheckVersion::new_zeroed();
        packet.version[..3].copy_from_slice(b"1.0");
        let fd = m.client.ctl;
        m.client.escape(fd, escape::CHECK_VERSION_STR, &mut packet)
    }),
    Row::errno("a carried packet that is too large", Errno::Inval, |m| {
        xfer(m, escape::RM_ALLOC, 1 << 20, NOWHERE)
    }),
    Row::errno("a carried packet that is not mapped", Errno::Fault, |m| {
        xfer(m, escape::RM_ALLOC, 32, NOWHERE)
    }),
    Row::errno("mmap of a file without a mapping", Errno::Inval, |m| {
        let fd = m.client.linked(m.one.minor)?;
        m.client.nodes().mmap(fd, MIB, 0)
    }),
    Row::errno("mmap of half a GPU mapping", Errno::NxIo, |m| {
        mmap_device(m, MIB / 2, 0)
    })
    .needing(&[Needs::Window]),
    Row::errno("mmap of a GPU mapping and more", Errno::NxIo, |m| {
        mmap_device(m, 2 * MIB, 0)
    })
    .needing(&[Needs::Window]),
    Row::errno("mmap from inside a mapping", Errno::Inval, |m| {
        mmap_device(m, MIB, 0x1000)
    })
    .needing(&[Needs::Window]),
    Row::errno("mmap of host memory and more", Errno::Range, |m| {
        let mut params = m.client.memory_params(MIB);
        let parent = m.one.device;
        let memory = m
            .client
            .alloc(parent, class::NV01_MEMORY_SYSTEM, &mut params)?;
        let fd = m.client.open(Node::Control)?;
        let packet = m.client.map_packet(m.one, memory, MIB, fd);
        m.client.map_cpu(packet)?;
        let result = m.client.nodes().mmap(fd, 2 * MIB, 0);
        m.client.free(memory)?;
        result
    }),
];

/// An escape with a packet of `size` zeroes.
fn blank(m: &mut Machine<'_>, fd: i32, nr: u8, size: usize) -> Result<(), Answer> {
    let request = escape::request(nr, size);
    m.client.nodes().ioctl(fd, request, &mut vec![0; size])
}

fn register(m: &mut Machine<'_>, fd: i32, ctl_fd: i32) -> Result<(), Answer> {
    let mut packet = RegisterFd { ctl_fd };
    m.client.escape(fd, escape::REGISTER_FD, &mut packet)
}

fn xfer(m: &mut Machine<'_>, nr: u8, size: u32, ptr: u64) -> Result<(), Answer> {
    let cmd = nr.into();
    let mut packet = Xfer { cmd, size, ptr };
    let fd = m.client.ctl;
    m.client.escape(fd, escape::XFER_CMD, &mut packet)
}

/// `mmap` of a file that carries a mapping of device memory of 1 MiB.
fn mmap_device(m: &mut Machine<'_>, len: u64, offset: u64) -> Result<(), Answer> {
    let mut params = m.client.memory_params(MIB);
    let parent = m.one.device;
    let memory = m
        .client
        .alloc(parent, class::NV01_MEMORY_LOCAL_USER, &mut params)?;
    let fd = m.client.linked(m.one.minor)?;
    let packet = m.client.map_packet(m.one, memory, MIB, fd);
    m.client.map_cpu(packet)?;
    let result = m.client.nodes().mmap(fd, len, offset);
    m.client.free(memory)?;
    result
}
