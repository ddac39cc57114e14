//! Several devices of one context: what they share, and how they part.

use std::sync::Arc;
use std::time::Duration;

use vrampager_addr::{Span, Va};
use vrampager_hal::{
    Access, ChannelKind, Counters, DeviceId, Discovery, Fence, Gpu, GpuMap, HalError, HalErrorKind,
    Heap, HostPage, HostRange, MemId, Op,
};
use vrampager_nv::{Config, Machine, Nv, Planes, SimNodes};
use vrampager_nv_abi::{Status, escape, uvm};
use vrampager_nv_driver::{Errno, Failure, Injection, Kind, Live};

const PAGE: u64 = 4096;

struct Rig {
    nv: Arc<Nv>,
    gpus: [Gpu; 2],
}

impl Rig {
    fn new() -> Self {
        let nv = nv();
        let gpus = [0, 1].map(|n| nv.open(DeviceId(n)).unwrap());
        Self { nv, gpus }
    }

    fn sim(&self) -> &SimNodes {
        self.nv.simulated().unwrap()
    }

    fn live(&self) -> Live {
        self.sim().live()
    }
}

fn nv() -> Arc<Nv> {
    let config = "sim,gpus=2,vram=64M,doorbell=strict".parse().unwrap();
    Nv::new(config, &Planes::default()).unwrap()
}

fn host() -> HostRange {
    HostRange::of(HostPage::zeroed(1)).unwrap()
}

/// The first page of a device's own addresses.
fn page(gpu: &Gpu) -> Span {
    gpu.info.zones[0].span.slice(0, PAGE).unwrap()
}

fn map(gpu: &Gpu, mem: MemId, span: Span) -> Result<(), HalError> {
    gpu.memory.map_gpu(GpuMap {
        va: Va(span.start()),
        mem,
        offset: 0,
        len: span.len(),
        access: Access::Write,
    })
}

/// Writes a page on a channel of its own.
fn fill(gpu: &Gpu, span: Span) -> Result<(), HalError> {
    let channel = gpu.queue.create_channel(ChannelKind::Copy)?;
    let timeline = gpu.queue.create_timeline()?;
    let fence = Fence { timeline, value: 1 };
    let fill = Op::Fill {
        dst: Va(span.start()),
        len: span.len(),
        byte: 1,
    };
    gpu.queue.submit(channel, &[fill, Op::Signal(fence)])?;
    let result = gpu.queue.wait(fence, Duration::from_secs(10));
    gpu.release.destroy_channel(channel)?;
    gpu.release.destroy_timeline(timeline)?;
    result
}

/// Makes the next request of a kind to unified memory fail.
fn refuse(sim: &SimNodes, number: u32, status: Status) {
    sim.inject(Injection {
        kind: Kind::Uvm,
        number,
        nth: 1,
        failure: Failure::Status(status),
    });
}

/// Mission rows A3, A4: the state is the context's.
#[test]
fn devices_of_one_context_are_one_client_and_the_last_to_close_takes_it_down() {
    let rig = Rig::new();
    assert_eq!((rig.live().clients, rig.live().uvm_gpus), (1, 2));
    let other = nv();
    let gpu = other.open(DeviceId(0)).unwrap();
    assert_eq!(rig.live().clients, 1, "another context is another client");
    gpu.release.close();
    rig.gpus[0].release.close();
    assert_eq!((rig.live().clients, rig.live().uvm_gpus), (1, 1));
    let again = rig.nv.open(DeviceId(0)).unwrap();
    again.release.close();
    rig.gpus[1].release.close();
    assert_eq!(rig.live(), Live::default());
}

/// Mission row A8: pins and ranges are counted by device and buffer.
#[test]
fn memory_imported_by_two_devices_is_pinned_once_and_returned_by_the_last() {
    let rig = Rig::new();
    let (before, host) = (rig.live(), host());
    let mems = rig.gpus.each_ref().map(|gpu| {
        let mem = gpu.memory.import(&host).unwrap();
        gpu.memory.reserve_va(host.span()).unwrap();
        map(gpu, mem, host.span()).unwrap();
        mem
    });
    let live = rig.live();
    assert_eq!(live.pins - before.pins, 1);
    assert_eq!(live.uvm_ranges - before.uvm_ranges, 1);
    assert_eq!(live.uvm_maps - before.uvm_maps, 2);
    for (gpu, mem) in rig.gpus.iter().zip(mems) {
        assert_ne!(rig.live(), before);
        fill(gpu, host.span()).unwrap();
        gpu.release.unmap_gpu(host.span()).unwrap();
        gpu.release.release_va(host.span()).unwrap();
        gpu.release.destroy(mem).unwrap();
        assert_eq!(gpu.release.counters(), Counters::default());
    }
    assert_eq!(rig.live(), before);
}

/// The driver has the pin below the device that imported first, which may go first.
#[test]
fn memory_stays_imported_when_the_device_that_pinned_it_is_closed() {
    let rig = Rig::new();
    let host = host();
    let mems = rig.gpus.each_ref().map(|gpu| {
        let mem = gpu.memory.import(&host).unwrap();
        gpu.memory.reserve_va(host.span()).unwrap();
        map(gpu, mem, host.span()).unwrap();
        mem
    });
    let [first, second] = &rig.gpus;
    first.release.close();
    assert_eq!(rig.nv.refused(DeviceId(0)), []);
    fill(second, host.span()).unwrap();
    assert_eq!(rig.live().pins, 1, "still mapped");
    let again = second.memory.import(&host).unwrap();
    assert_eq!(rig.live().pins, 2, "the first pin can be mapped no more");
    second.release.destroy(again).unwrap();
    second.release.unmap_gpu(host.span()).unwrap();
    second.release.release_va(host.span()).unwrap();
    second.release.destroy(mems[1]).unwrap();
    assert_eq!(rig.live().pins, 0);
    second.release.close();
    assert_eq!(rig.live(), Live::default());
}

/// Mission rows A4, A8: peers are parted before a device goes, and what was shared goes with it.
#[test]
fn closing_the_owner_of_shared_memory_takes_it_away_and_leaves_the_other_device_running() {
    let rig = Rig::new();
    let [owner, other] = &rig.gpus;
    let mem = owner.memory.create(Heap::Vram, PAGE).unwrap();
    owner.memory.reserve_va(page(owner)).unwrap();
    let shared = other.memory.share(DeviceId(0), mem).unwrap();
    other.memory.reserve_va(page(owner)).unwrap();
    map(other, shared, page(owner)).unwrap();
    fill(other, page(owner)).unwrap();

    owner.release.close();
    assert_eq!(rig.nv.refused(DeviceId(0)), []);
    let fault = fill(other, page(owner)).unwrap_err();
    assert!(matches!(fault, HalError::Fault(_)), "{fault}");
    other.release.unmap_gpu(page(owner)).unwrap();
    let gone = Err(HalError::NoDevice(DeviceId(0)));
    assert_eq!(map(other, shared, page(owner)), gone);
    assert_eq!(other.memory.share(DeviceId(0), mem).map(drop), gone);

    // The same numbers mean other things once the device is open again.
    let again = rig.nv.open(DeviceId(0)).unwrap();
    let new = again.memory.create(Heap::Vram, PAGE).unwrap();
    assert_eq!(map(other, shared, page(owner)), gone);
    other.release.release_va(page(owner)).unwrap();
    other.release.destroy(shared).unwrap();
    again.memory.reserve_va(page(owner)).unwrap();
    map(&again, new, page(owner)).unwrap();
    fill(&again, page(owner)).unwrap();
    other.memory.reserve_va(page(other)).unwrap();
    let own = other.memory.create(Heap::Vram, PAGE).unwrap();
    map(other, own, page(other)).unwrap();
    fill(other, page(other)).unwrap();
    again.release.close();
    other.release.close();
    assert_eq!(rig.live(), Live::default());
}

/// Mission row A4: what the hardware cannot do is said, and hinders nothing else.
#[test]
fn devices_that_are_no_peers_open_and_refuse_to_share_device_memory_only() {
    let nv = nv();
    let sim = nv.simulated().unwrap();
    refuse(sim, uvm::ENABLE_PEER_ACCESS, Status::NOT_SUPPORTED);
    let [owner, other] = [0, 1].map(|n| nv.open(DeviceId(n)).unwrap());
    let mem = owner.memory.create(Heap::Vram, PAGE).unwrap();
    let why = "peer access between these devices";
    let refused = other.memory.share(DeviceId(0), mem);
    assert_eq!(refused, Err(HalError::Unsupported(why)));
    let mem = owner.memory.create(Heap::Host, PAGE).unwrap();
    let shared = other.memory.share(DeviceId(0), mem).unwrap();
    other.memory.reserve_va(page(&other)).unwrap();
    map(&other, shared, page(&other)).unwrap();
    fill(&other, page(&other)).unwrap();
    owner.release.close();
    other.release.close();
    let refused = [0, 1].map(|n| nv.refused(DeviceId(n)));
    assert_eq!(
        refused,
        [vec![], vec![]],
        "no pair that is not there is parted"
    );
    assert_eq!(sim.live(), Live::default());
}

/// Mission rows A6, A12: what a close is refused outlives it while other devices are open.
#[test]
fn what_one_device_could_not_undo_is_undone_before_it_is_opened_again() {
    const UNDONE: [u32; 4] = [
        uvm::FREE,
        uvm::DISABLE_PEER_ACCESS,
        uvm::UNREGISTER_GPU_VASPACE,
        uvm::UNREGISTER_GPU,
    ];
    for number in UNDONE {
        let rig = Rig::new();
        let [gpu, other] = &rig.gpus;
        gpu.release.close();
        let alone = rig.live();
        let gpu = rig.nv.open(DeviceId(0)).unwrap();
        gpu.memory.reserve_va(page(&gpu)).unwrap();
        refuse(rig.sim(), number, Status::INVALID_STATE);
        gpu.release.close();
        assert_eq!(rig.nv.refused(DeviceId(0)).len(), 1, "{number}");
        fill(other, page(other)).expect_err("nothing is mapped there");

        let gpu = rig.nv.open(DeviceId(0)).unwrap();
        gpu.memory.reserve_va(page(&gpu)).unwrap();
        gpu.release.release_va(page(&gpu)).unwrap();
        gpu.release.close();
        assert_eq!(rig.nv.refused(DeviceId(0)), [], "{number}");
        assert_eq!(rig.live(), alone, "{number}");
        other.release.close();
        assert_eq!(rig.live(), Live::default(), "{number}");
    }
}

/// Mission row A12. The range is one of the back end's own, among whose addresses a channel of the
/// other device finds its place.
#[test]
fn a_range_that_a_close_could_not_release_is_reported_and_nothing_else_gets_its_addresses() {
    let rig = Rig::new();
    let [gpu, other] = &rig.gpus;
    let refuse = || refuse(rig.sim(), uvm::FREE, Status::INVALID_STATE);
    refuse();
    gpu.release.close();
    let refused = rig.nv.refused(DeviceId(0));
    let refused: Vec<String> = refused.iter().map(HalError::to_string).collect();
    let message = "release range failed with INVALID_STATE (0x40)";
    assert_eq!(refused, [message]);
    let kept = rig.live().uvm_ranges;
    for _ in 0..4 {
        // Each call tries again first.
        refuse();
        other.queue.create_channel(ChannelKind::Copy).unwrap();
    }
    // A block and the resources of each channel.
    assert_eq!(rig.live().uvm_ranges, kept + 8);
    other.release.close();
    assert_eq!(rig.live(), Live::default());
}

/// Mission row A12. Of all that a GPU off the bus keeps, the resources of its channel are no range
/// that anybody made: the registration of the channel has their addresses.
#[test]
fn a_close_that_is_refused_every_call_keeps_its_addresses_from_others_until_it_is_made_good() {
    let config = "sim,gpus=4,vram=64M,doorbell=strict".parse().unwrap();
    let nv = Nv::new(config, &Planes::default()).unwrap();
    let sim = nv.simulated().unwrap();
    let other = nv.open(DeviceId(1)).unwrap();
    let alone = sim.live();
    let lost = nv.open(DeviceId(0)).unwrap();
    lost.queue.create_channel(ChannelKind::Copy).unwrap();
    let (before, off) = (sim.calls(), Failure::Errno(Errno::Io));
    sim.fail_calls(&(1..=100).collect::<Vec<_>>(), off);
    lost.release.close();
    let (calls, refused) = (sim.calls() - before, nv.refused(DeviceId(0)));
    sim.clear_failures();
    assert_eq!(refused.len() as u64, calls, "every call: {refused:?}");

    let refuse_leftovers = || {
        for (kind, number, nth) in [
            (Kind::Uvm, uvm::FREE, 1),
            (Kind::Uvm, uvm::FREE, 2),
            (Kind::Uvm, uvm::UNREGISTER_GPU, 1),
            (Kind::Escape, escape::RM_FREE.into(), 1),
        ] {
            sim.inject(Injection {
                kind,
                number,
                nth,
                failure: off,
            });
        }
    };
    let healthy = [2, 3].map(|n| {
        refuse_leftovers();
        let gpu = nv.open(DeviceId(n)).unwrap();
        refuse_leftovers();
        gpu.queue.create_channel(ChannelKind::Copy).unwrap();
        gpu
    });
    assert_eq!(sim.live().uvm_gpus, 4, "the lost one is still registered");

    let again = nv.open(DeviceId(0)).unwrap();
    again.queue.create_channel(ChannelKind::Copy).unwrap();
    for gpu in [&again].into_iter().chain(&healthy) {
        gpu.release.close();
    }
    assert_eq!(
        [0, 2, 3].map(|n| nv.refused(DeviceId(n))),
        [const { vec![] }; 3]
    );
    assert_eq!(sim.live(), alone);
    other.release.close();
    assert_eq!(sim.live(), Live::default());
}

/// Two address spaces would take this; the one of a context says no.
#[test]
fn a_range_that_overlaps_one_of_another_device_is_refused_by_the_driver() {
    let rig = Rig::new();
    let [gpu, other] = &rig.gpus;
    let two = gpu.info.zones[0].span.slice(0, 2 * PAGE).unwrap();
    gpu.memory.reserve_va(two).unwrap();
    let error = other.memory.reserve_va(page(gpu)).unwrap_err();
    assert!(error.to_string().contains("UVM_ADDRESS_IN_USE"), "{error}");
    assert_eq!(other.release.counters(), Counters::default());
}

#[test]
fn a_driver_of_a_release_that_nobody_has_read_is_refused_by_its_name() {
    let machine = vrampager_nv_driver::Config {
        release: "611.5".to_owned(),
        ..vrampager_nv_driver::Config::default()
    };
    let config = Config {
        machine: Machine::Simulated(machine),
        visible: None,
    };
    let nv = Nv::new(config, &Planes::default()).unwrap();
    for error in [
        nv.open(DeviceId(0)).map(drop).unwrap_err(),
        nv.devices().map(drop).unwrap_err(),
    ] {
        let text = "driver release \"611.5\" is not supported, only 570 to 610";
        assert_eq!(error.to_string(), text);
        assert_eq!(error.kind(), HalErrorKind::Unsupported);
    }
    assert_eq!(nv.simulated().unwrap().live(), Live::default());
}

#[test]
fn host_memory_where_gpus_have_something_else_is_refused() {
    let rig = Rig::new();
    let low = Span::new(64 << 30, PAGE).unwrap();
    let error = rig.gpus[0].memory.reserve_va(low).unwrap_err();
    assert_eq!(error, HalError::Unsupported("host memory below 128 GiB"));
    assert_eq!(rig.gpus[0].release.counters(), Counters::default());
}
