//! Bad inputs and what the driver says to them.

use vrampager_nv_abi::escape::{self, os02, os33, os46};
use vrampager_nv_abi::neutral::ChannelAlloc;
use vrampager_nv_abi::{Status, class, ctrl, uvm};
use vrampager_nv_driver::{Errno, Node};
use zerocopy::{FromZeros, IntoBytes};

use super::client::{Client, Gpu, NOWHERE, Queue, channel_params, memory_params, status};

const VA: u64 = 0x20_0000_0000;
const DATA: u64 = VA + (64 << 20);
const MIB: u64 = 1 << 20;
const UNKNOWN: u32 = 0xDEAD;

/// Two GPUs without peer access; a queue and a mapped buffer on the first.
struct Machine {
    client: Client,
    one: Gpu,
    two: Gpu,
    queue: Queue,
    memory: u32,
}

fn machine() -> Machine {
    let mut client = Client::new("gpus=2,vram=64M");
    let (one, two) = (client.gpu(0), client.gpu(1));
    let queue = client.queue(one, VA);
    let (memory, _) = client.buffer(one, DATA, MIB);
    Machine {
        client,
        one,
        two,
        queue,
        memory,
    }
}

type Try = fn(&mut Machine) -> Result<(), Status>;

/// Runs each try on a machine of its own: it must be refused so, and change nothing.
fn refused(table: &[(&str, Status, Try)]) {
    for (what, expected, attempt) in table {
        let mut machine = machine();
        let before = machine.client.driver.live();
        assert_eq!(attempt(&mut machine), Err(*expected), "{what}");
        let mut after = machine.client.driver.live();
        // Files that a try opened are its own business.
        after.files = before.files;
        assert_eq!(after, before, "{what} changed something");
    }
}

fn memory_with(m: &mut Machine, set: fn(&mut class::MemoryAlloc)) -> Result<(), Status> {
    let mut params = memory_params(m.client.root, MIB);
    set(&mut params);
    let device = m.one.device;
    m.client
        .alloc(device, class::NV01_MEMORY_LOCAL_USER, &mut params)
        .map(|_| ())
}

fn pin_with(m: &mut Machine, set: fn(&mut escape::RmAllocMemory)) -> Result<(), Status> {
    let mut packet = escape::RmAllocMemory::new_zeroed();
    packet.root = m.client.root;
    packet.parent = m.one.device;
    packet.object = 0x1001;
    packet.class = class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR;
    packet.flags = os02::MAPPING_NO_MAP << os02::MAPPING_SHIFT
        | os02::COHERENCY_CACHED << os02::COHERENCY_SHIFT;
    packet.memory = 0x7000_0000;
    packet.limit = MIB - 1;
    set(&mut packet);
    let fd = m.one.fd;
    m.client
        .escape(fd, escape::RM_ALLOC_MEMORY, &mut packet)
        .expect("the test sets this up right");
    status(packet.status)
}

fn map_with(m: &mut Machine, node: Node, set: fn(&mut escape::RmMapMemory)) -> Result<(), Status> {
    let fd = match node {
        Node::Gpu(minor) => m.client.linked(minor),
        Node::Control | Node::Uvm => m.client.open(node),
    };
    let mut packet = m.client.map_packet(m.one, m.memory, MIB, fd);
    set(&mut packet);
    let ctl = m.client.ctl;
    m.client
        .escape(ctl, escape::RM_MAP_MEMORY, &mut packet)
        .expect("the test sets this up right");
    status(packet.status)
}

fn dma_with(
    m: &mut Machine,
    set: fn(&mut vrampager_nv_abi::neutral::MapMemoryDma),
) -> Result<(), Status> {
    let mut packet = m.client.dma_packet(m.one, m.memory, DATA, MIB);
    set(&mut packet);
    m.client.dma(packet).map(|_| ())
}

fn unmap_dma_with(m: &mut Machine, set: fn(&mut escape::RmUnmapMemoryDma)) -> Result<(), Status> {
    let mut packet = escape::RmUnmapMemoryDma::new_zeroed();
    packet.client = m.client.root;
    packet.device = m.one.device;
    packet.dma = m.one.virt;
    packet.memory = m.memory;
    packet.dma_offset = DATA;
    set(&mut packet);
    let ctl = m.client.ctl;
    m.client
        .escape(ctl, escape::RM_UNMAP_MEMORY_DMA, &mut packet)
        .expect("the test sets this up right");
    status(packet.status)
}

fn uvm_map_with(m: &mut Machine, set: fn(&mut uvm::MapExternalAllocation)) -> Result<(), Status> {
    let mut packet = m.client.uvm_map_packet(m.one, m.memory, DATA, MIB);
    set(&mut packet);
    m.client.uvm(uvm::MAP_EXTERNAL_ALLOCATION, &mut packet)
}

fn register_with(m: &mut Machine, set: fn(&mut uvm::RegisterChannel)) -> Result<(), Status> {
    let mut params = channel_params(VA, m.queue.share, m.memory, 0);
    params.userd_offset[0] = 0x2000;
    let channel = m
        .client
        .channel(m.queue.group, &params)
        .expect("the test sets this up right");
    let mut packet = m.client.register_packet(m.one, channel, VA + (32 << 20));
    set(&mut packet);
    let result = m.client.uvm(uvm::REGISTER_CHANNEL, &mut packet);
    m.client.free(channel).expect("the test sets this up right");
    result
}

fn channel_with(
    m: &mut Machine,
    parent: fn(&Machine) -> u32,
    set: fn(&mut ChannelAlloc),
) -> Result<(), Status> {
    let mut params = channel_params(VA, m.queue.share, m.memory, 0);
    set(&mut params);
    let parent = parent(m);
    m.client.channel(parent, &params).map(|_| ())
}

fn unmap_with(m: &mut Machine, base: u64, length: u64) -> Result<(), Status> {
    let mut packet = uvm::UnmapExternal::new_zeroed();
    packet.base = base;
    packet.length = length;
    packet.uuid = m.one.uuid;
    m.client.uvm(uvm::UNMAP_EXTERNAL, &mut packet)
}

fn raw_alloc(m: &mut Machine, set: fn(&mut escape::RmAlloc)) -> Result<(), Status> {
    let mut packet = escape::RmAlloc::new_zeroed();
    packet.root = m.client.root;
    packet.parent = m.one.device;
    packet.class = class::NV01_MEMORY_LOCAL_USER;
    let params = memory_params(m.client.root, MIB);
    packet.params = m.client.memory.put(params.as_bytes());
    set(&mut packet);
    let ctl = m.client.ctl;
    m.client
        .escape(ctl, escape::RM_ALLOC, &mut packet)
        .expect("the test sets this up right");
    status(packet.status)
}

#[test]
fn objects_are_refused_with_the_drivers_statuses() {
    refused(&[
        ("an unknown class", Status::INVALID_CLASS, |m| {
            raw_alloc(m, |p| p.class = 0x9999)
        }),
        ("no parameters", Status::INVALID_ARGUMENT, |m| {
            raw_alloc(m, |p| p.params = 0)
        }),
        ("bad parameters", Status::INVALID_ADDRESS, |m| {
            raw_alloc(m, |p| p.params = NOWHERE)
        }),
        ("an unknown client", Status::INVALID_CLIENT, |m| {
            raw_alloc(m, |p| p.root = UNKNOWN)
        }),
        ("an unknown parent", Status::OBJECT_NOT_FOUND, |m| {
            raw_alloc(m, |p| p.parent = UNKNOWN)
        }),
        (
            "memory under the client",
            Status::INVALID_OBJECT_PARENT,
            |m| raw_alloc(m, |p| p.parent = p.root),
        ),
        (
            "the client's own handle",
            Status::INVALID_OBJECT_HANDLE,
            |m| raw_alloc(m, |p| p.object = p.root),
        ),
        (
            "a handle that is taken",
            Status::INSERT_DUPLICATE_NAME,
            |m| raw_alloc(m, |p| p.object = p.parent),
        ),
        ("a client that exists", Status::INSERT_DUPLICATE_NAME, |m| {
            raw_alloc(m, |p| p.class = class::NV01_ROOT_CLIENT)
        }),
    ]);
}

#[test]
fn classes_are_refused_with_the_drivers_statuses() {
    refused(&[
        (
            "a class of another generation",
            Status::NOT_SUPPORTED,
            |m| {
                let channel = m.queue.channel;
                m.client
                    .alloc_bytes(channel, class::BLACKWELL_DMA_COPY_B, None)
                    .map(|_| ())
            },
        ),
        (
            "a doorbell under the device",
            Status::INVALID_OBJECT_PARENT,
            |m| {
                let device = m.one.device;
                m.client
                    .alloc_bytes(device, class::TURING_USERMODE_A, None)
                    .map(|_| ())
            },
        ),
        (
            "an engine under the device",
            Status::INVALID_OBJECT_PARENT,
            |m| {
                let device = m.one.device;
                m.client
                    .alloc_bytes(device, class::AMPERE_DMA_COPY_B, None)
                    .map(|_| ())
            },
        ),
        ("a second subdevice", Status::STATE_IN_USE, |m| {
            let device = m.one.device;
            let mut params = class::SubdeviceAlloc::new_zeroed();
            m.client
                .alloc(device, class::NV20_SUBDEVICE_0, &mut params)
                .map(|_| ())
        }),
        ("device 32", Status::INVALID_ARGUMENT, |m| device(m, 32)),
        ("device 2 of 2", Status::INVALID_STATE, |m| device(m, 2)),
        (
            "virtual memory beyond 49 bits",
            Status::INVALID_LIMIT,
            |m| virt(m, 0, 1 << 49),
        ),
        (
            "virtual memory that ends first",
            Status::INVALID_OFFSET,
            |m| virt(m, 0x2000, 0x1000),
        ),
    ]);
}

#[test]
fn controls_are_refused_with_the_drivers_statuses() {
    refused(&[
        (
            "a control on an unknown object",
            Status::OBJECT_NOT_FOUND,
            |m| {
                m.client.control(
                    UNKNOWN,
                    ctrl::GPU_GET_GID_INFO,
                    &mut ctrl::GidInfo::new_zeroed(),
                )
            },
        ),
        ("a control of another class", Status::NOT_SUPPORTED, |m| {
            let device = m.one.device;
            m.client.control(
                device,
                ctrl::GPU_GET_GID_INFO,
                &mut ctrl::GidInfo::new_zeroed(),
            )
        }),
        ("a control of another size", Status::INVALID_ARGUMENT, |m| {
            let subdevice = m.one.subdevice;
            m.client
                .control(subdevice, ctrl::GPU_GET_GID_INFO, &mut [0_u32; 4])
        }),
        ("an unknown GPU", Status::INVALID_ARGUMENT, |m| {
            let root = m.client.root;
            let mut info = ctrl::GpuIdInfo::new_zeroed();
            m.client.control(root, ctrl::GPU_GET_ID_INFO_V2, &mut info)
        }),
        (
            "a class list that is too short",
            Status::INVALID_ARGUMENT,
            |m| {
                let device = m.one.device;
                let mut list = ctrl::ClassList {
                    count: 1,
                    pad: 0,
                    list: NOWHERE,
                };
                m.client.control(device, ctrl::GPU_GET_CLASSLIST, &mut list)
            },
        ),
    ]);
}

fn device(m: &mut Machine, device_id: u32) -> Result<(), Status> {
    let mut params = class::DeviceAlloc::new_zeroed();
    params.device_id = device_id;
    let root = m.client.root;
    m.client
        .alloc(root, class::NV01_DEVICE_0, &mut params)
        .map(|_| ())
}

fn virt(m: &mut Machine, offset: u64, limit: u64) -> Result<(), Status> {
    let mut params = class::VirtualAlloc {
        offset,
        limit,
        vaspace: 0,
        pad: 0,
    };
    let device = m.one.device;
    m.client
        .alloc(device, class::NV01_MEMORY_VIRTUAL, &mut params)
        .map(|_| ())
}

#[test]
fn memory_is_refused_with_the_drivers_statuses() {
    refused(&[
        ("no bytes", Status::INVALID_ARGUMENT, |m| {
            memory_with(m, |p| p.size = 0)
        }),
        ("owner 0", Status::INVALID_OWNER, |m| {
            memory_with(m, |p| p.owner = 0)
        }),
        ("owner -1", Status::INVALID_OWNER, |m| {
            memory_with(m, |p| p.owner = u32::MAX)
        }),
        ("internal flags", Status::INVALID_ARGUMENT, |m| {
            memory_with(m, |p| p.internal_flags = 1)
        }),
        ("a range not asked for", Status::INVALID_ARGUMENT, |m| {
            memory_with(m, |p| p.range_hi = 1)
        }),
        ("more than there is", Status::NO_MEMORY, |m| {
            memory_with(m, |p| p.size = 64 << 20)
        }),
        ("a size that wraps", Status::INVALID_ARGUMENT, |m| {
            memory_with(m, |p| p.size = u64::MAX)
        }),
        ("pages in device memory", Status::INVALID_FLAGS, |m| {
            pin_with(m, |p| p.flags |= 2 << 8)
        }),
        ("pages that the kernel maps", Status::INVALID_FLAGS, |m| {
            pin_with(m, |p| p.flags &= !(3 << os02::MAPPING_SHIFT))
        }),
        ("write-combined pages", Status::INVALID_FLAGS, |m| {
            pin_with(m, |p| p.flags ^= 3 << os02::COHERENCY_SHIFT)
        }),
        ("pages off their boundary", Status::NOT_SUPPORTED, |m| {
            pin_with(m, |p| p.memory += 1)
        }),
        ("all addresses", Status::INVALID_LIMIT, |m| {
            pin_with(m, |p| p.limit = u64::MAX)
        }),
        ("pages of an unknown client", Status::INVALID_CLIENT, |m| {
            pin_with(m, |p| p.root = UNKNOWN)
        }),
        (
            "pages under a taken handle",
            Status::INSERT_DUPLICATE_NAME,
            |m| pin_with(m, |p| p.object = p.parent),
        ),
    ]);
}

#[test]
fn cpu_mappings_are_refused_with_the_drivers_statuses() {
    refused(&[
        ("unknown memory", Status::OBJECT_NOT_FOUND, |m| {
            map_with(m, Node::Gpu(0), |p| p.memory = UNKNOWN)
        }),
        ("an unknown device", Status::OBJECT_NOT_FOUND, |m| {
            map_with(m, Node::Gpu(0), |p| p.device = UNKNOWN)
        }),
        (
            "a device that is none",
            Status::INVALID_OBJECT_PARENT,
            |m| map_with(m, Node::Gpu(0), |p| p.device = p.memory),
        ),
        ("a lasting mapping", Status::INVALID_FLAGS, |m| {
            map_with(m, Node::Gpu(0), |p| p.flags = os33::PERSISTENT)
        }),
        ("undefined access", Status::INVALID_FLAGS, |m| {
            map_with(m, Node::Gpu(0), |p| p.flags = os33::ACCESS_MASK)
        }),
        ("a start at the end", Status::INVALID_BASE, |m| {
            map_with(m, Node::Gpu(0), |p| p.offset = MIB)
        }),
        ("no bytes", Status::INVALID_LIMIT, |m| {
            map_with(m, Node::Gpu(0), |p| p.length = 0)
        }),
        ("a byte too many", Status::INVALID_LIMIT, |m| {
            map_with(m, Node::Gpu(0), |p| p.length = MIB + 1)
        }),
        ("the wrong GPU's file", Status::INVALID_ARGUMENT, |m| {
            map_with(m, Node::Gpu(1), |_| ())
        }),
        ("a control file", Status::INVALID_ARGUMENT, |m| {
            map_with(m, Node::Control, |_| ())
        }),
        ("no file", Status::INVALID_ARGUMENT, |m| {
            map_with(m, Node::Gpu(0), |p| p.fd = 999)
        }),
        ("another client's", Status::INVALID_CLIENT, |m| {
            map_with(m, Node::Gpu(0), |p| p.client = UNKNOWN)
        }),
        ("a cookie that is none", Status::OBJECT_NOT_FOUND, |m| {
            let mut packet = escape::RmUnmapMemory::new_zeroed();
            packet.client = m.client.root;
            packet.memory = m.memory;
            packet.linear = 0x1234;
            let ctl = m.client.ctl;
            m.client
                .escape(ctl, escape::RM_UNMAP_MEMORY, &mut packet)
                .unwrap();
            status(packet.status)
        }),
    ]);
}

#[test]
fn a_file_carries_one_mapping_and_pinned_pages_none() {
    let mut m = machine();
    let (_, _, fd) = m
        .client
        .map_cpu(m.one, m.memory, MIB, Node::Gpu(0))
        .unwrap();
    let mut packet = m.client.map_packet(m.one, m.memory, MIB, fd);
    let ctl = m.client.ctl;
    m.client
        .escape(ctl, escape::RM_MAP_MEMORY, &mut packet)
        .unwrap();
    assert_eq!(Status(packet.status), Status::STATE_IN_USE);
    let pages = m.client.pin(m.one, MIB, 0x1001).unwrap();
    let result = m.client.map_cpu(m.one, pages, MIB, Node::Control);
    assert_eq!(result.unwrap_err(), Status::NOT_SUPPORTED);
}

#[test]
fn dma_mappings_are_refused_with_the_drivers_statuses() {
    refused(&[
        ("no bytes", Status::INVALID_LIMIT, |m| {
            dma_with(m, |p| p.length = 0)
        }),
        ("a byte too many", Status::INVALID_LIMIT, |m| {
            dma_with(m, |p| p.length = MIB + 1)
        }),
        ("an offset too far", Status::INVALID_LIMIT, |m| {
            dma_with(m, |p| p.offset = 0x1000)
        }),
        ("a range that wraps", Status::INVALID_LIMIT, |m| {
            dma_with(m, |p| p.offset = u64::MAX)
        }),
        ("an unknown client", Status::INVALID_CLIENT, |m| {
            dma_with(m, |p| p.client = UNKNOWN)
        }),
        ("unknown memory", Status::OBJECT_NOT_FOUND, |m| {
            dma_with(m, |p| p.memory = UNKNOWN)
        }),
        ("unknown addresses", Status::OBJECT_NOT_FOUND, |m| {
            dma_with(m, |p| p.dma = UNKNOWN)
        }),
        ("a device that is none", Status::INVALID_OBJECT, |m| {
            dma_with(m, |p| p.device = p.memory)
        }),
        ("an address beyond 49 bits", Status::INVALID_ARGUMENT, |m| {
            dma_with(m, |p| p.dma_offset = 1 << 49)
        }),
        ("nothing mapped there", Status::OBJECT_NOT_FOUND, |m| {
            unmap_dma_with(m, |_| ())
        }),
        ("an unknown client's mapping", Status::INVALID_CLIENT, |m| {
            unmap_dma_with(m, |p| p.client = UNKNOWN)
        }),
    ]);
}

#[test]
fn unmapping_a_range_without_mappings_is_no_error_but_cutting_one_is() {
    let mut m = machine();
    assert_eq!(unmap_dma_with(&mut m, |p| p.size = MIB), Ok(()));
    dma_with(&mut m, |_| ()).unwrap();
    assert_eq!(
        unmap_dma_with(&mut m, |p| p.size = 0x1000),
        Err(Status::INVALID_ARGUMENT)
    );
    assert_eq!(unmap_dma_with(&mut m, |p| p.size = 2 * MIB), Ok(()));
    assert_eq!(m.client.driver.live().dma_maps, 0);
}

#[test]
fn an_address_not_fixed_is_chosen_free_and_within_the_object() {
    let mut m = machine();
    let mut packet = m.client.dma_packet(m.one, m.memory, 0, MIB);
    packet.flags = os46::CACHE_SNOOP;
    let first = m.client.dma(packet).unwrap();
    let second = m.client.dma(packet).unwrap();
    assert!(
        first != 0 && second >= first + MIB,
        "{first:#x} {second:#x}"
    );
}

#[test]
fn channels_are_refused_with_the_drivers_statuses() {
    refused(&[
        ("subcontext and VA space", Status::INVALID_ARGUMENT, |m| {
            channel_with(m, |m| m.queue.group, |p| p.vaspace = 1)
        }),
        (
            "a subcontext without a group",
            Status::INVALID_ARGUMENT,
            |m| channel_with(m, |m| m.one.device, |_| ()),
        ),
        ("memory as a parent", Status::INVALID_OBJECT_PARENT, |m| {
            channel_with(m, |m| m.memory, |_| ())
        }),
        ("a ring of 3 entries", Status::INVALID_ARGUMENT, |m| {
            channel_with(m, |m| m.queue.group, |p| p.gpfifo_entries = 3)
        }),
        ("no control page", Status::OBJECT_NOT_FOUND, |m| {
            channel_with(m, |m| m.queue.group, |p| p.userd[0] = 0)
        }),
        (
            "a control page outside its memory",
            Status::INVALID_ARGUMENT,
            |m| channel_with(m, |m| m.queue.group, |p| p.userd_offset[0] = MIB),
        ),
        ("a channel registered twice", Status::INVALID_CHANNEL, |m| {
            let mut packet = m
                .client
                .register_packet(m.one, m.queue.channel, VA + (32 << 20));
            m.client.uvm(uvm::REGISTER_CHANNEL, &mut packet)
        }),
        ("a channel of an unknown GPU", Status::INVALID_DEVICE, |m| {
            register_with(m, |p| p.uuid[0] ^= 1)
        }),
        (
            "an object that is no channel",
            Status::INVALID_CHANNEL,
            |m| {
                let mut packet = m.client.register_packet(m.one, m.memory, VA + (32 << 20));
                m.client.uvm(uvm::REGISTER_CHANNEL, &mut packet)
            },
        ),
        (
            "channel addresses beyond 40 bits",
            Status::OUT_OF_RANGE,
            |m| register_with(m, |p| p.base = (1 << 40) - MIB),
        ),
        (
            "no room for a channel's resources",
            Status::INVALID_ADDRESS,
            |m| register_with(m, |p| p.length = MIB),
        ),
        ("an unknown channel", Status::INVALID_CHANNEL, |m| {
            let mut packet = vrampager_nv_abi::v570::UnregisterChannel::new_zeroed();
            m.client.uvm(uvm::UNREGISTER_CHANNEL, &mut packet)
        }),
    ]);
}

#[test]
fn external_ranges_are_refused_with_the_drivers_statuses() {
    refused(&[
        ("address 0", Status::INVALID_ADDRESS, |m| {
            m.client.range(0, MIB)
        }),
        ("no bytes", Status::INVALID_ADDRESS, |m| {
            m.client.range(VA + (32 << 20), 0)
        }),
        ("half a page", Status::INVALID_ADDRESS, |m| {
            m.client.range(VA + (32 << 20), 0x800)
        }),
        ("off a page", Status::INVALID_ADDRESS, |m| {
            m.client.range(VA + 0x800, MIB)
        }),
        ("wrapping", Status::INVALID_ADDRESS, |m| {
            m.client.range(u64::MAX - 0xFFF, 0x2000)
        }),
        ("an overlap at the end", Status::UVM_ADDRESS_IN_USE, |m| {
            m.client.range(DATA - 0x1000, 0x2000)
        }),
        ("an overlap inside", Status::UVM_ADDRESS_IN_USE, |m| {
            m.client.range(DATA + 0x1000, 0x1000)
        }),
        ("an overlap all around", Status::UVM_ADDRESS_IN_USE, |m| {
            m.client.range(DATA - 0x1000, MIB + 0x2000)
        }),
        ("freeing inside a range", Status::INVALID_ADDRESS, |m| {
            m.client.uvm_free(DATA + 0x1000, MIB - 0x1000)
        }),
        (
            "freeing with another length",
            Status::INVALID_ADDRESS,
            |m| m.client.uvm_free(DATA, MIB / 2),
        ),
        ("freeing channel resources", Status::INVALID_ADDRESS, |m| {
            m.client.uvm_free(VA + (4 << 20), 2 << 20)
        }),
        ("validating half a range", Status::INVALID_ADDRESS, |m| {
            let mut packet = uvm::Range {
                base: DATA,
                length: MIB / 2,
                status: 0,
                pad: 0,
            };
            m.client.uvm(uvm::VALIDATE_VA_RANGE, &mut packet)
        }),
        ("unmapping off a page", Status::INVALID_ADDRESS, |m| {
            unmap_with(m, DATA + 1, 0x1000)
        }),
        ("unmapping outside a range", Status::INVALID_ADDRESS, |m| {
            unmap_with(m, DATA, 2 * MIB)
        }),
    ]);
}

#[test]
fn external_mappings_are_refused_with_the_drivers_statuses() {
    refused(&[
        ("off a page", Status::INVALID_ADDRESS, |m| {
            uvm_map_with(m, |p| p.base += 1)
        }),
        ("an offset off a page", Status::INVALID_ADDRESS, |m| {
            uvm_map_with(m, |p| p.offset = 1)
        }),
        ("no GPU", Status::INVALID_ARGUMENT, |m| {
            uvm_map_with(m, |p| p.count = 0)
        }),
        ("257 GPUs", Status::INVALID_ARGUMENT, |m| {
            uvm_map_with(m, |p| p.count = 257)
        }),
        ("outside a range", Status::INVALID_ADDRESS, |m| {
            uvm_map_with(m, |p| p.length *= 2)
        }),
        ("unknown access", Status::INVALID_ARGUMENT, |m| {
            uvm_map_with(m, |p| p.attributes[0].mapping = 9)
        }),
        ("an unknown GPU", Status::INVALID_DEVICE, |m| {
            uvm_map_with(m, |p| p.attributes[0].uuid[0] ^= 1)
        }),
        ("an unknown client", Status::INVALID_CLIENT, |m| {
            uvm_map_with(m, |p| p.client = UNKNOWN)
        }),
        ("unknown memory", Status::OBJECT_NOT_FOUND, |m| {
            uvm_map_with(m, |p| p.memory = UNKNOWN)
        }),
        ("beyond the allocation", Status::INVALID_OFFSET, |m| {
            uvm_map_with(m, |p| p.offset = 0x1000)
        }),
        ("a GPU that is no peer", Status::INVALID_DEVICE, |m| {
            m.client.map_uvm(m.two, m.memory, DATA, MIB)
        }),
        (
            "one GPU of two that is no peer",
            Status::INVALID_DEVICE,
            |m| {
                let mut packet = m.client.uvm_map_packet(m.one, m.memory, DATA, MIB);
                packet.attributes[1] = packet.attributes[0];
                packet.attributes[1].uuid = m.two.uuid;
                packet.count = 2;
                m.client.uvm(uvm::MAP_EXTERNAL_ALLOCATION, &mut packet)
            },
        ),
        ("addresses beyond 47 bits", Status::OUT_OF_RANGE, |m| {
            m.client.range(1 << 47, MIB).unwrap();
            let result = m.client.map_uvm(m.one, m.memory, 1 << 47, MIB);
            m.client.uvm_free(1 << 47, MIB).unwrap();
            result
        }),
    ]);
}

#[test]
fn registrations_are_refused_with_the_drivers_statuses() {
    refused(&[
        ("an unknown UUID", Status::GPU_UUID_NOT_FOUND, |m| {
            m.client
                .uvm(uvm::REGISTER_GPU, &mut uvm::RegisterGpu::new_zeroed())
        }),
        ("a GPU registered twice", Status::INVALID_DEVICE, |m| {
            let mut packet = uvm::RegisterGpu::new_zeroed();
            packet.uuid = m.one.uuid;
            m.client.uvm(uvm::REGISTER_GPU, &mut packet)
        }),
        ("a GPU not registered", Status::INVALID_DEVICE, |m| {
            m.client
                .uvm(uvm::UNREGISTER_GPU, &mut uvm::UnregisterGpu::new_zeroed())
        }),
        ("a VA space registered twice", Status::INVALID_DEVICE, |m| {
            let mut packet = uvm::RegisterGpuVaspace::new_zeroed();
            packet.uuid = m.one.uuid;
            packet.rm_ctrl_fd = m.client.ctl;
            packet.client = m.client.root;
            packet.vaspace = m.one.vaspace;
            m.client.uvm(uvm::REGISTER_GPU_VASPACE, &mut packet)
        }),
        ("a GPU as its own peer", Status::INVALID_DEVICE, |m| {
            m.client.peers(m.one, m.one)
        }),
        ("peers that are none", Status::INVALID_DEVICE, |m| {
            let (uuid_a, uuid_b) = (m.one.uuid, m.two.uuid);
            let mut packet = uvm::PeerAccess {
                uuid_a,
                uuid_b,
                status: 0,
            };
            m.client.uvm(uvm::DISABLE_PEER_ACCESS, &mut packet)
        }),
        ("a file without a VA space", Status::ILLEGAL_ACTION, |m| {
            let fd = m.client.open(Node::Uvm);
            let mut packet = uvm::Range::new_zeroed();
            m.client
                .uvm_bytes(fd, uvm::CREATE_EXTERNAL_RANGE, packet.as_mut_bytes())
        }),
        (
            "other flags for the same VA space",
            Status::INVALID_ARGUMENT,
            |m| {
                let mut packet = uvm::Initialize {
                    flags: 1,
                    status: 0,
                    pad: 0,
                };
                m.client.uvm(uvm::INITIALIZE, &mut packet)
            },
        ),
        ("a file tied to itself", Status::IN_USE, |m| {
            let mut packet = uvm::MmInitialize {
                uvm_fd: m.client.uvm,
                status: 0,
            };
            m.client.uvm(uvm::MM_INITIALIZE, &mut packet)
        }),
        ("a file tied to none", Status::INVALID_ARGUMENT, |m| {
            let fd = m.client.open(Node::Uvm);
            let mut packet = uvm::MmInitialize {
                uvm_fd: 999,
                status: 0,
            };
            m.client
                .uvm_bytes(fd, uvm::MM_INITIALIZE, packet.as_mut_bytes())
        }),
    ]);
}

#[test]
fn a_va_space_that_uvm_cannot_own_is_refused() {
    let mut client = Client::new("");
    let fd = client.linked(0);
    let mut params = class::DeviceAlloc::new_zeroed();
    let root = client.root;
    let device = client
        .alloc(root, class::NV01_DEVICE_0, &mut params)
        .unwrap();
    let mut params = vrampager_nv_abi::v570::VaspaceAlloc::new_zeroed();
    let vaspace = client
        .alloc(device, class::FERMI_VASPACE_A, &mut params)
        .unwrap();
    let mut request = uvm::RegisterGpu::new_zeroed();
    request.uuid = *b"vrampager-gpu-\0\0";
    client.uvm(uvm::REGISTER_GPU, &mut request).unwrap();
    let mut packet = uvm::RegisterGpuVaspace::new_zeroed();
    packet.uuid = request.uuid;
    packet.rm_ctrl_fd = client.ctl;
    packet.client = root;
    packet.vaspace = vaspace;
    let result = client.uvm(uvm::REGISTER_GPU_VASPACE, &mut packet);
    assert_eq!(result, Err(Status::INVALID_FLAGS));
    client.close(fd);
}

#[test]
fn requests_are_refused_by_the_system_call_itself() {
    let mut m = machine();
    let (ctl, dev, uvm_fd) = (m.client.ctl, m.one.fd, m.client.uvm);
    let alloc = size_of::<escape::RmAlloc>();
    let pin = size_of::<escape::RmAllocMemory>();
    let cases = [
        ("an unknown escape", ctl, escape::request(0x77, 8), 8),
        (
            "an escape of another size",
            ctl,
            escape::request(escape::RM_ALLOC, 40),
            40,
        ),
        (
            "an allocation on a GPU file",
            dev,
            escape::request(escape::RM_ALLOC, alloc),
            alloc,
        ),
        (
            "pinning on the control file",
            ctl,
            escape::request(escape::RM_ALLOC_MEMORY, pin),
            pin,
        ),
        ("a plain number on a control file", ctl, 37, 40),
        ("an unknown UVM command", uvm_fd, 999, 8),
        (
            "no room for the cards",
            ctl,
            escape::request(escape::CARD_INFO, 72),
            72,
        ),
        (
            "half a card",
            ctl,
            escape::request(escape::CARD_INFO, 100),
            100,
        ),
        (
            "a file linked twice",
            dev,
            escape::request(escape::REGISTER_FD, 4),
            4,
        ),
    ];
    for (what, fd, request, size) in cases {
        let mut packet = vec![0; size];
        if what == "a file linked twice" {
            packet.copy_from_slice(&ctl.to_le_bytes());
        }
        assert_eq!(
            m.client.raw(fd, request, &mut packet),
            Err(Errno::Inval),
            "{what}"
        );
    }
}

#[test]
fn system_parameters_are_set_once() {
    let mut m = machine();
    let ctl = m.client.ctl;
    let mut set = |memblock_size| {
        let mut packet = escape::SysParams { memblock_size };
        m.client
            .escape(ctl, escape::SYS_PARAMS, &mut packet)
            .map(|_| ())
    };
    assert_eq!(set(128 << 20), Ok(()));
    assert_eq!(set(128 << 20), Ok(()));
    assert_eq!(set(64 << 20), Err(Errno::Busy));
}

#[test]
fn mmap_wants_the_whole_of_a_gpu_mapping_and_at_most_all_of_a_host_mapping() {
    let mut m = machine();
    let (_, _, fd) = m
        .client
        .map_cpu(m.one, m.memory, MIB, Node::Gpu(0))
        .unwrap();
    let gpu_file = m.client.file(fd);
    let host = m.client.sysmem(m.one, MIB).unwrap();
    let (_, _, fd) = m.client.map_cpu(m.one, host, MIB, Node::Control).unwrap();
    let host_file = m.client.file(fd);
    let bare = m.client.open(Node::Gpu(0));
    let driver = &m.client.driver;
    assert!(driver.mmap(gpu_file, MIB, 0).is_ok());
    assert_eq!(driver.mmap(gpu_file, MIB / 2, 0).unwrap_err(), Errno::NxIo);
    assert_eq!(
        driver.mmap(gpu_file, MIB, 0x1000).unwrap_err(),
        Errno::Inval
    );
    assert!(driver.mmap(host_file, MIB / 2, 0).is_ok());
    assert_eq!(
        driver.mmap(host_file, 2 * MIB, 0).unwrap_err(),
        Errno::Range
    );
    assert_eq!(
        driver.mmap(m.client.file(bare), MIB, 0).unwrap_err(),
        Errno::Inval
    );
}
