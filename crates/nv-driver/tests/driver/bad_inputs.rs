//! Bad inputs that the table of `vrampager-nv-probe` does not have: those for which no source says
//! what the real driver answers, and those where what follows counts.

use vrampager_nv_abi::escape::{self, os46};
use vrampager_nv_abi::neutral::{ChannelAlloc, VaspaceAlloc};
use vrampager_nv_abi::{Status, class, ctrl, uvm};
use vrampager_nv_driver::Errno;
use vrampager_nv_probe::{Answer, NOWHERE, Nodes as _};
use zerocopy::{FromZeros, IntoBytes as _};

use super::client::{Client, Gpu, Queue, channel_params};

const VA: u64 = 0x20_0000_0000;
const DATA: u64 = VA + (64 << 20);
const MIB: u64 = 1 << 20;

/// A GPU with a queue and a mapped buffer.
struct Machine {
    client: Client,
    one: Gpu,
    queue: Queue,
    memory: u32,
}

fn machine() -> Machine {
    machine_of("vram=64M")
}

fn machine_of(config: &str) -> Machine {
    let mut client = Client::new(config);
    let one = client.gpu(0);
    let queue = client.queue(one, VA);
    let (memory, _) = client.buffer(one, DATA, MIB);
    Machine {
        client,
        one,
        queue,
        memory,
    }
}

type Try = fn(&mut Machine) -> Result<(), Answer>;

/// Runs each try on a machine of its own: it must be refused so, and change nothing.
fn refused(table: &[(&str, Status, Try)]) {
    for (what, expected, attempt) in table {
        let mut machine = machine();
        let before = machine.client.driver().live();
        let expected = Err(Answer::Status(*expected));
        assert_eq!(attempt(&mut machine), expected, "{what}");
        let mut after = machine.client.driver().live();
        // Files that a try opened are its own business.
        after.files = before.files;
        assert_eq!(after, before, "{what} changed something");
    }
}

fn dma_with(
    m: &mut Machine,
    set: fn(&mut vrampager_nv_abi::neutral::MapMemoryDma),
) -> Result<(), Answer> {
    let mut packet = m.client.dma_packet(m.one, m.memory, DATA, MIB);
    set(&mut packet);
    m.client.dma(packet).map(|_| ())
}

fn unmap_dma_with(m: &mut Machine, set: fn(&mut escape::RmUnmapMemoryDma)) -> Result<(), Answer> {
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
    match Status(packet.status) {
        Status::OK => Ok(()),
        status => Err(Answer::Status(status)),
    }
}

/// A VA space from an address on.
fn vaspace(m: &mut Machine, va_base: u64, va_size: u64) -> Result<u64, Answer> {
    let params = VaspaceAlloc {
        va_base,
        va_size,
        ..VaspaceAlloc::default()
    };
    let abi = m.client.abi;
    let mut bytes = vec![0; VaspaceAlloc::size(abi)];
    params.encode(abi, &mut bytes);
    let device = m.one.device;
    let made = m
        .client
        .alloc_bytes(device, class::FERMI_VASPACE_A, &mut bytes);
    let given = VaspaceAlloc::decode(abi, &bytes).expect("the size is the same");
    made.map(|_| given.va_size)
}

#[test]
fn addresses_end_where_the_generation_of_the_gpu_ends_them() {
    for (arch, bits) in [("ampere", 49), ("ada", 49), ("blackwell", 57)] {
        let mut m = machine_of(&format!("vram=64M,arch={arch}"));
        let limit = 1_u64 << bits;
        assert_eq!(vaspace(&mut m, 0x1000, 0), Ok(limit - 0x1000), "{arch}");
        let refused = Err(Answer::Status(Status::INVALID_ARGUMENT));
        assert_eq!(vaspace(&mut m, 0x1000, limit), refused, "{arch}");
        let mut params = class::VirtualAlloc::new_zeroed();
        let device = m.one.device;
        params.limit = limit - 1;
        m.client
            .alloc(device, class::NV01_MEMORY_VIRTUAL, &mut params)
            .unwrap();
        params.limit = limit;
        let beyond = m
            .client
            .alloc(device, class::NV01_MEMORY_VIRTUAL, &mut params);
        assert_eq!(beyond, Err(Answer::Status(Status::INVALID_LIMIT)), "{arch}");
    }
}

#[test]
fn both_questions_for_classes_get_the_same_list() {
    let mut m = machine();
    let device = m.one.device;
    let mut list = ctrl::ClassListV2::new_zeroed();
    m.client
        .control(device, ctrl::GPU_GET_CLASSLIST_V2, &mut list)
        .unwrap();
    let mut old = ctrl::ClassList::new_zeroed();
    m.client
        .control(device, ctrl::GPU_GET_CLASSLIST, &mut old)
        .unwrap();
    // The list goes behind the control's own parameters.
    let at = size_of::<ctrl::ClassList>();
    old.list = m.client.nodes().address() + at as u64;
    m.client
        .control(device, ctrl::GPU_GET_CLASSLIST, &mut old)
        .unwrap();
    let count = list.count as usize;
    assert_eq!((old.count, count > 8), (list.count, true));
    let bytes = &m.client.nodes().memory()[at..at + 4 * count];
    assert_eq!(bytes, list.list[..count].as_bytes());
    assert!(list.list[..count].contains(&class::ADA_COMPUTE_A));
    assert_eq!(list.list[count..], vec![0; 100 - count]);
}

fn channel_with(m: &mut Machine, set: fn(&mut ChannelAlloc)) -> Result<(), Answer> {
    let mut params = channel_params(VA, m.queue.share, m.memory, 0);
    set(&mut params);
    m.client.channel(m.queue.group, &params).map(|_| ())
}

#[test]
fn what_the_simulated_driver_refuses_of_itself_changes_nothing() {
    refused(&[
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
        ("a size that wraps", Status::INVALID_ARGUMENT, |m| {
            let mut params = m.client.memory_params(u64::MAX);
            let device = m.one.device;
            m.client
                .alloc(device, class::NV01_MEMORY_LOCAL_USER, &mut params)
                .map(|_| ())
        }),
        ("a ring of 3 entries", Status::INVALID_ARGUMENT, |m| {
            channel_with(m, |p| p.gpfifo_entries = 3)
        }),
        ("no control page", Status::OBJECT_NOT_FOUND, |m| {
            channel_with(m, |p| p.userd[0] = 0)
        }),
        (
            "a control page outside its memory",
            Status::INVALID_ARGUMENT,
            |m| channel_with(m, |p| p.userd_offset[0] = MIB),
        ),
        (
            "registering what is no channel",
            Status::INVALID_CHANNEL,
            |m| {
                let mut packet = m.client.register_packet(m.one, m.memory, VA + (32 << 20));
                m.client.uvm(uvm::REGISTER_CHANNEL, &mut packet)
            },
        ),
        (
            "a VA space that begins behind its end",
            Status::INVALID_ARGUMENT,
            |m| vaspace(m, u64::MAX, 0).map(drop),
        ),
        (
            "freeing a range with another length",
            Status::INVALID_ADDRESS,
            |m| m.client.uvm_free(DATA, MIB / 2),
        ),
    ]);
}

#[test]
fn unmapping_a_range_without_mappings_is_no_error_but_cutting_one_is() {
    let mut m = machine();
    assert_eq!(unmap_dma_with(&mut m, |p| p.size = MIB), Ok(()));
    dma_with(&mut m, |_| ()).unwrap();
    assert_eq!(
        unmap_dma_with(&mut m, |p| p.size = 0x1000),
        Err(Answer::Status(Status::INVALID_ARGUMENT))
    );
    assert_eq!(unmap_dma_with(&mut m, |p| p.size = 2 * MIB), Ok(()));
    assert_eq!(m.client.driver().live().dma_maps, 0);
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
    assert_eq!(set(64 << 20), Err(Answer::from(Errno::Busy)));
}
