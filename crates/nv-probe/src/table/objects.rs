//! Objects and controls of the resource manager.

use vrampager_nv_abi::escape::{self, RmAlloc, RmControl, RmDupObject, RmFree, RmVidHeapControl};
use vrampager_nv_abi::{Handle, Status, class, ctrl};
use zerocopy::{FromZeros, IntoBytes};

use super::{MIB, Machine, Needs, Row, UNKNOWN};
use crate::nodes::{Answer, NOWHERE};

pub(super) const OBJECTS: &[Row] = &[
    Row::status("an unknown class", Status::INVALID_CLASS, |m| {
        alloc_with(m, |p| p.class = 0x9999)
    }),
    Row::status("no parameters", Status::INVALID_ARGUMENT, |m| {
        alloc_with(m, |p| p.params = 0)
    }),
    Row::status("unmapped parameters", Status::INVALID_ADDRESS, |m| {
        alloc_with(m, |p| p.params = NOWHERE)
    }),
    Row::status("an unknown client", Status::INVALID_CLIENT, |m| {
        alloc_with(m, |p| p.root = UNKNOWN)
    }),
    Row::status("an unknown parent", Status::OBJECT_NOT_FOUND, |m| {
        alloc_with(m, |p| p.parent = UNKNOWN)
    }),
    Row::status(
        "memory under the client",
        Status::INVALID_OBJECT_PARENT,
        |m| alloc_with(m, |p| p.parent = p.root),
    ),
    Row::status(
        "the client's own handle",
        Status::INVALID_OBJECT_HANDLE,
        |m| alloc_with(m, |p| p.object = p.root),
    ),
    Row::status(
        "the firmware's first handle",
        Status::INVALID_OBJECT_HANDLE,
        |m| alloc_with(m, |p| p.object = 0xC9F0_0000),
    ),
    Row::status(
        "the firmware's last handle",
        Status::INVALID_OBJECT_HANDLE,
        |m| alloc_with(m, |p| p.object = 0xC9F7_FFFF),
    ),
    Row::status(
        "a handle that is taken",
        Status::INSERT_DUPLICATE_NAME,
        |m| alloc_with(m, |p| p.object = p.parent),
    ),
    Row::status("a client that exists", Status::INSERT_DUPLICATE_NAME, |m| {
        alloc_with(m, |p| p.class = class::NV01_ROOT_CLIENT)
    }),
    Row::status(
        "a class of another generation",
        Status::NOT_SUPPORTED,
        |m| bare(m, m.channel, m.classes.foreign),
    ),
    Row::status(
        "a doorbell under the device",
        Status::INVALID_OBJECT_PARENT,
        |m| bare(m, m.one.device, m.classes.doorbell),
    ),
    Row::status(
        "an engine under the device",
        Status::INVALID_OBJECT_PARENT,
        |m| bare(m, m.one.device, m.classes.copy),
    ),
    Row::status("a second subdevice", Status::STATE_IN_USE, |m| {
        let mut params = class::SubdeviceAlloc::new_zeroed();
        let parent = m.one.device;
        m.client
            .alloc(parent, class::NV20_SUBDEVICE_0, &mut params)
            .map(drop)
    }),
    Row::status("device 32", Status::INVALID_ARGUMENT, |m| device(m, 32)),
    Row::status("device 31 of fewer", Status::INVALID_STATE, |m| {
        device(m, 31)
    })
    .needing(&[Needs::Fewer]),
    Row::status(
        "virtual memory beyond 57 bits",
        Status::INVALID_LIMIT,
        |m| virtual_memory(m, 0, 1 << 57),
    ),
    Row::status(
        "virtual memory that ends first",
        Status::INVALID_OFFSET,
        |m| virtual_memory(m, 0x2000, 0x1000),
    ),
    Row::status(
        "freeing of an unknown client",
        Status::INVALID_CLIENT,
        |m| {
            let mut packet = RmFree::new_zeroed();
            (packet.root, packet.object) = (UNKNOWN, m.memory);
            m.client.manage(escape::RM_FREE, &mut packet, |p| p.status)
        },
    ),
    Row::status("freeing what is not there", Status::OK, |m| {
        m.client.free(UNKNOWN)
    }),
    Row::status("freeing twice", Status::OK, |m| {
        let mut params = m.client.memory_params(MIB);
        let parent = m.one.device;
        let memory = m
            .client
            .alloc(parent, class::NV01_MEMORY_LOCAL_USER, &mut params)?;
        m.client.free(memory)?;
        m.client.free(memory)
    }),
    Row::status("a duplicate under nothing", Status::OBJECT_NOT_FOUND, |m| {
        dup_with(m, |p| p.parent = UNKNOWN)
    }),
    Row::status(
        "a duplicate under the client",
        Status::INVALID_OBJECT_PARENT,
        |m| dup_with(m, |p| p.parent = p.client),
    ),
    Row::status(
        "a duplicate under memory",
        Status::INVALID_OBJECT_PARENT,
        |m| dup_with(m, |p| p.parent = p.source),
    ),
    Row::status("a duplicate of nothing", Status::OBJECT_NOT_FOUND, |m| {
        dup_with(m, |p| p.source = UNKNOWN)
    }),
    Row::status("a duplicate of nobody's", Status::INVALID_CLIENT, |m| {
        dup_with(m, |p| p.source_client = UNKNOWN)
    }),
    Row::status("a duplicate for nobody", Status::INVALID_CLIENT, |m| {
        dup_with(m, |p| p.client = UNKNOWN)
    }),
    Row::status("a duplicate of a device", Status::INVALID_ARGUMENT, |m| {
        dup_with(m, |p| p.source = p.parent)
    }),
    Row::status(
        "a duplicate with a taken handle",
        Status::INSERT_DUPLICATE_NAME,
        |m| dup_with(m, |p| p.object = p.parent),
    ),
    Row::status(
        "an unknown function of the heap",
        Status::INVALID_ARGUMENT,
        |m| {
            let mut packet = RmVidHeapControl::new_zeroed();
            packet.root = m.client.root;
            packet.parent = m.one.device;
            packet.function = 0xFFFF;
            m.client
                .manage(escape::RM_VID_HEAP_CONTROL, &mut packet, |p| p.status)
        },
    ),
];

pub(super) const CONTROLS: &[Row] = &[
    Row::status("an unknown client", Status::INVALID_CLIENT, |m| {
        control_with(m, |p| p.client = UNKNOWN)
    }),
    Row::status("an unknown object", Status::OBJECT_NOT_FOUND, |m| {
        control_with(m, |p| p.object = UNKNOWN)
    }),
    Row::status("an unknown command", Status::NOT_SUPPORTED, |m| {
        control_with(m, |p| p.cmd = 0x2080_0FFF)
    }),
    Row::status("the null command", Status::OK, |m| {
        control_with(m, |p| p.cmd = 0)
    }),
    Row::status("a size without parameters", Status::INVALID_ARGUMENT, |m| {
        control_with(m, |p| p.params = 0)
    }),
    Row::status("parameters without a size", Status::INVALID_ARGUMENT, |m| {
        control_with(m, |p| p.params_size = 0)
    }),
    Row::status(
        "parameters of another size",
        Status::INVALID_ARGUMENT,
        |m| control_with(m, |p| p.params_size -= 4),
    ),
    Row::status("an unknown GPU", Status::INVALID_ARGUMENT, |m| {
        let mut info = ctrl::GpuIdInfo::new_zeroed();
        info.gpu_id = 0xFFFF_FF00;
        let root = m.client.root;
        m.client.control(root, ctrl::GPU_GET_ID_INFO_V2, &mut info)
    }),
    Row::status("a token before a runlist", Status::INVALID_STATE, |m| {
        let params = super::channel_params(super::VA, 0, m.memory, 0);
        let params = vrampager_nv_abi::neutral::ChannelAlloc {
            vaspace: m.one.vaspace,
            ..params
        };
        let (device, class) = (m.one.device, m.classes.channel);
        let channel = m.client.channel(device, class, &params)?;
        let mut token = ctrl::WorkSubmitToken::new_zeroed();
        let result = m
            .client
            .control(channel, ctrl::GET_WORK_SUBMIT_TOKEN, &mut token);
        m.client.free(channel)?;
        result
    }),
];

/// An allocation of memory with something wrong.
fn alloc_with(m: &mut Machine<'_>, set: fn(&mut RmAlloc)) -> Result<(), Answer> {
    let params = m.client.memory_params(MIB);
    let mut packet = RmAlloc::new_zeroed();
    packet.root = m.client.root;
    packet.parent = m.one.device;
    packet.class = class::NV01_MEMORY_LOCAL_USER;
    packet.params = m.client.put(params.as_bytes());
    set(&mut packet);
    m.client.manage(escape::RM_ALLOC, &mut packet, |p| p.status)
}

/// An object without parameters.
fn bare(m: &mut Machine<'_>, parent: Handle, class: u32) -> Result<(), Answer> {
    m.client.alloc_bytes(parent, class, &mut []).map(drop)
}

fn device(m: &mut Machine<'_>, device_id: u32) -> Result<(), Answer> {
    let mut params = class::DeviceAlloc::new_zeroed();
    params.device_id = device_id;
    let root = m.client.root;
    m.client
        .alloc(root, class::NV01_DEVICE_0, &mut params)
        .map(drop)
}

fn virtual_memory(m: &mut Machine<'_>, offset: u64, limit: u64) -> Result<(), Answer> {
    let mut params = class::VirtualAlloc::new_zeroed();
    (params.offset, params.limit) = (offset, limit);
    let parent = m.one.device;
    m.client
        .alloc(parent, class::NV01_MEMORY_VIRTUAL, &mut params)
        .map(drop)
}

/// A second handle for memory with something wrong.
fn dup_with(m: &mut Machine<'_>, set: fn(&mut RmDupObject)) -> Result<(), Answer> {
    let mut packet = RmDupObject::new_zeroed();
    packet.client = m.client.root;
    packet.parent = m.one.device;
    packet.source_client = m.client.root;
    packet.source = m.memory;
    set(&mut packet);
    m.client
        .manage(escape::RM_DUP_OBJECT, &mut packet, |p| p.status)
}

/// The question for a UUID with something wrong.
fn control_with(m: &mut Machine<'_>, set: fn(&mut RmControl)) -> Result<(), Answer> {
    let params = ctrl::GidInfo::new_zeroed();
    let mut packet = RmControl::new_zeroed();
    packet.client = m.client.root;
    packet.object = m.one.subdevice;
    packet.cmd = ctrl::GPU_GET_GID_INFO;
    packet.params = m.client.put(params.as_bytes());
    packet.params_size = u32::try_from(size_of_val(&params)).expect("parameters are small");
    set(&mut packet);
    m.client
        .manage(escape::RM_CONTROL, &mut packet, |p| p.status)
}
