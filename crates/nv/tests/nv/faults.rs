//! Every system call of every kind of allocation and of its release, refused once: by errno and
//! by packet status, alone and together with every call that follows.

use std::sync::Arc;
use std::time::Duration;

use vrampager_addr::{Span, Va};
use vrampager_hal::{
    Access, ChannelKind, Counters, DeviceId, Discovery, Fault, FaultKind, Fence, Gpu, GpuMap,
    HalError, HalErrorKind, Heap, HostPage, HostRange, MemId, Op,
};
use vrampager_nv::{Nv, Planes, SimNodes};
use vrampager_nv_abi::Status;
use vrampager_nv_driver::{Errno, Failure, Live};

const LEN: u64 = 8 << 20;

/// Each failure, and how an error that it causes ends.
const FAILURES: [(Failure, &str); 3] = [
    (Failure::Errno(Errno::Io), "EIO (0x5)"),
    (
        Failure::Status(Status::INSUFFICIENT_RESOURCES),
        "INSUFFICIENT_RESOURCES (0x1a)",
    ),
    (Failure::Status(Status::NO_MEMORY), ""),
];

/// A machine of two GPUs, the first of them open, and host memory to import.
struct Rig {
    nv: Arc<Nv>,
    gpu: Gpu,
    host: HostRange,
    /// Addresses of the other device's object.
    there: Span,
}

impl Rig {
    fn new() -> Self {
        let config = "sim,vram=64M,bar1=64M,gpus=2,doorbell=strict"
            .parse()
            .unwrap();
        let nv = Nv::new(config, &Planes::default()).unwrap();
        let gpu = nv.open(DeviceId(0)).unwrap();
        let pages = HostPage::zeroed(usize::try_from(LEN / 4096).unwrap());
        let host = HostRange::of(pages).unwrap();
        let there = nv.devices().unwrap()[1].zones[0].span;
        Self {
            nv,
            gpu,
            host,
            there: there.slice(0, LEN).unwrap(),
        }
    }

    fn sim(&self) -> &SimNodes {
        self.nv.simulated().unwrap()
    }

    /// What the driver and the books hold.
    fn held(&self) -> Held {
        Held {
            driver: self.sim().live(),
            books: self.gpu.release.counters(),
        }
    }

    fn close(&self, what: &str) {
        assert!(self.gpu.release.close().is_zero(), "{what}: left at close");
        assert_eq!(self.nv.refused(DeviceId(0)), [], "{what}: refused at close");
        let left = self.sim().live();
        assert_eq!(left, Live::default(), "{what}: left in the driver");
    }
}

/// Addresses of a device's own.
fn span(gpu: &Gpu) -> Span {
    let zone = gpu.info.zones[0].span;
    zone.slice(0, LEN).unwrap()
}

type Undo<'a> = Box<dyn FnMut() -> Result<(), HalError> + 'a>;

/// A kind of allocation: what it needs beforehand, itself, and the way back of each.
struct Case {
    name: &'static str,
    prepare: fn(&Rig) -> Vec<Undo<'_>>,
    take: fn(&Rig) -> Result<Undo<'_>, HalError>,
}

/// Objects are numbered from 1.
const FIRST: MemId = MemId(1);

fn object(rig: &Rig, heap: Heap) -> Result<Undo<'_>, HalError> {
    let mem = rig.gpu.memory.create(heap, LEN)?;
    Ok(Box::new(move || rig.gpu.release.destroy(mem)))
}

fn import(rig: &Rig) -> Result<Undo<'_>, HalError> {
    let mem = rig.gpu.memory.import(&rig.host)?;
    Ok(Box::new(move || rig.gpu.release.destroy(mem)))
}

/// Opens the other device, which reserves addresses and makes an object.
fn other(rig: &Rig) -> Undo<'_> {
    let gpu = rig.nv.open(DeviceId(1)).unwrap();
    let mem = gpu.memory.create(Heap::Vram, LEN).unwrap();
    gpu.memory.reserve_va(span(&gpu)).unwrap();
    Box::new(move || {
        gpu.release.release_va(span(&gpu))?;
        gpu.release.destroy(mem)?;
        assert!(gpu.release.close().is_zero());
        Ok(())
    })
}

fn share(rig: &Rig) -> Result<Undo<'_>, HalError> {
    let mem = rig.gpu.memory.share(DeviceId(1), FIRST)?;
    Ok(Box::new(move || rig.gpu.release.destroy(mem)))
}

fn range_at(rig: &Rig, span: Span) -> Result<Undo<'_>, HalError> {
    rig.gpu.memory.reserve_va(span)?;
    Ok(Box::new(move || rig.gpu.release.release_va(span)))
}

fn range(rig: &Rig) -> Result<Undo<'_>, HalError> {
    range_at(rig, span(&rig.gpu))
}

fn cpu_map(rig: &Rig) -> Result<Undo<'_>, HalError> {
    let map = rig.gpu.memory.map_cpu(FIRST, LEN / 2, LEN / 4)?;
    map.write(0, b"mapped");
    Ok(Box::new(move || rig.gpu.release.unmap_cpu(map.id())))
}

fn gpu_map_at(rig: &Rig, span: Span) -> Result<Undo<'_>, HalError> {
    rig.gpu.memory.map_gpu(GpuMap {
        va: Va(span.start()),
        mem: FIRST,
        offset: 0,
        len: LEN,
        access: Access::Write,
    })?;
    Ok(Box::new(move || rig.gpu.release.unmap_gpu(span)))
}

fn gpu_map(rig: &Rig) -> Result<Undo<'_>, HalError> {
    gpu_map_at(rig, span(&rig.gpu))
}

const CASES: [Case; 12] = [
    Case {
        name: "device memory",
        prepare: |_| vec![],
        take: |rig| object(rig, Heap::Vram),
    },
    Case {
        name: "host memory",
        prepare: |_| vec![],
        take: |rig| object(rig, Heap::Host),
    },
    Case {
        name: "range",
        prepare: |_| vec![],
        take: range,
    },
    Case {
        name: "CPU mapping of device memory",
        prepare: |rig| vec![object(rig, Heap::Vram).unwrap()],
        take: cpu_map,
    },
    Case {
        name: "CPU mapping of host memory",
        prepare: |rig| vec![object(rig, Heap::Host).unwrap()],
        take: cpu_map,
    },
    Case {
        name: "GPU mapping of device memory",
        prepare: |rig| vec![object(rig, Heap::Vram).unwrap(), range(rig).unwrap()],
        take: gpu_map,
    },
    Case {
        name: "GPU mapping of host memory",
        prepare: |rig| vec![object(rig, Heap::Host).unwrap(), range(rig).unwrap()],
        take: gpu_map,
    },
    Case {
        name: "channel",
        prepare: |_| vec![],
        take: |rig| {
            let channel = rig.gpu.queue.create_channel(ChannelKind::Copy)?;
            Ok(Box::new(move || rig.gpu.release.destroy_channel(channel)))
        },
    },
    Case {
        name: "imported memory",
        prepare: |_| vec![],
        take: import,
    },
    Case {
        name: "range of imported memory",
        prepare: |rig| vec![import(rig).unwrap()],
        take: |rig| range_at(rig, rig.host.span()),
    },
    Case {
        name: "GPU mapping of imported memory",
        prepare: |rig| {
            let range = range_at(rig, rig.host.span());
            vec![import(rig).unwrap(), range.unwrap()]
        },
        take: |rig| gpu_map_at(rig, rig.host.span()),
    },
    Case {
        name: "GPU mapping of another device's memory",
        prepare: |rig| {
            let (other, object) = (other(rig), share(rig).unwrap());
            vec![other, object, range_at(rig, rig.there).unwrap()]
        },
        take: |rig| gpu_map_at(rig, rig.there),
    },
];

/// What the driver and the books held at one moment.
#[derive(PartialEq, Eq, Debug)]
struct Held {
    driver: Live,
    books: Counters,
}

/// Calls that a step makes.
fn calls(sim: &SimNodes, step: impl FnOnce()) -> u64 {
    let before = sim.calls();
    step();
    sim.calls() - before
}

fn check_error(error: &HalError, ending: &str, what: &str) {
    if let HalError::Driver { stage, .. } = error {
        assert!(!stage.is_empty());
        // A call whose packet has no status fails with an error of the system call.
        let ends = |ending: &str| !ending.is_empty() && error.to_string().ends_with(ending);
        assert!(ends(ending) || ends("EINVAL (0x16)"), "{what}: {error}");
        return;
    }
    let short = error.kind() == HalErrorKind::OutOfMemory;
    assert!(short && ending.is_empty(), "{what}: {error}");
}

/// Fails the calls `failing` of one allocation, then tries again and gives everything back.
fn fail_taking(case: &Case, failing: &[u64], (failure, ending): (Failure, &str)) {
    let what = format!("{} with calls {failing:?} {failure:?}", case.name);
    let rig = Rig::new();
    let mut needed = (case.prepare)(&rig);
    let before = rig.held();

    rig.sim().fail_calls(failing, failure);
    let first = (case.take)(&rig);
    rig.sim().clear_failures();
    let error = first.err().unwrap_or_else(|| panic!("{what}: succeeded"));
    check_error(&error, ending, &what);
    if let [_] = failing {
        assert_eq!(rig.held(), before, "{what}: held after the failure");
    }
    assert_eq!(rig.gpu.release.counters(), before.books, "{what}");

    let mut undo = (case.take)(&rig).unwrap_or_else(|error| panic!("{what}: second: {error}"));
    undo().unwrap();
    drop(undo);
    assert_eq!(rig.held(), before, "{what}: held after the second try");
    while let Some(mut undo) = needed.pop() {
        undo().unwrap();
    }
    drop(needed);
    rig.close(&what);
}

/// System calls that the first try of an allocation makes.
fn length(case: &Case) -> u64 {
    let rig = Rig::new();
    let needed = (case.prepare)(&rig);
    let made = calls(rig.sim(), || {
        drop((case.take)(&rig).unwrap());
    });
    drop(needed);
    made
}

#[test]
fn an_allocation_that_fails_at_any_call_leaves_nothing_and_succeeds_the_second_time() {
    for case in &CASES {
        for failure in FAILURES {
            for call in 1..=length(case) {
                fail_taking(case, &[call], failure);
            }
        }
    }
}

#[test]
fn only_the_drivers_word_on_the_aperture_is_exhaustion_of_the_aperture() {
    let failures = [
        Failure::Errno(Errno::NoMem),
        Failure::Status(Status::NO_MEMORY),
    ];
    let mut stages = Vec::new();
    for failure in failures {
        for call in 1.. {
            let rig = Rig::new();
            rig.gpu.memory.create(Heap::Vram, LEN).unwrap();
            rig.sim().fail_calls(&[call], failure);
            let mapped = rig.gpu.memory.map_cpu(FIRST, 0, LEN);
            rig.sim().clear_failures();
            match (mapped, failure) {
                (Ok(_), _) => break,
                (
                    Err(HalError::OutOfMemory {
                        stage,
                        heap: Heap::Host,
                        needed: None,
                        free: None,
                    }),
                    Failure::Errno(_),
                ) => stages.push(stage),
                (Err(HalError::OutOfAperture { stage, needed, .. }), Failure::Status(_)) => {
                    assert_eq!((stage, needed), ("cpu map", LEN));
                    stages.push("aperture");
                }
                (Err(HalError::Driver { status, .. }), Failure::Status(_)) => {
                    // A call without a packet.
                    assert_eq!(status, 0x16);
                }
                (Err(other), _) => panic!("call {call} {failure:?}: {other}"),
            }
        }
    }
    let wanted = [
        "open GPU node",
        "link GPU file",
        "cpu map",
        "cpu mmap",
        "aperture",
    ];
    assert_eq!(stages, wanted);
}

#[test]
fn a_failure_while_undoing_is_made_good_by_the_next_try() {
    for case in &CASES {
        let length = length(case);
        for failure in FAILURES {
            for call in 1..=length {
                // Undoing makes no more calls than doing did.
                for later in call + 1..=2 * length {
                    fail_taking(case, &[call, later], failure);
                }
            }
        }
    }
}

#[test]
fn a_release_that_fails_at_any_call_stays_counted_and_succeeds_the_second_time() {
    for case in &CASES {
        for failure in FAILURES {
            for call in 1.. {
                if !fail_giving(case, call, failure) {
                    break;
                }
            }
        }
    }
}

/// Fails one call of a release; false when the release makes fewer calls.
fn fail_giving(case: &Case, call: u64, (failure, ending): (Failure, &str)) -> bool {
    let what = format!("release of {} at call {call} by {failure:?}", case.name);
    let rig = Rig::new();
    let mut needed = (case.prepare)(&rig);
    let before = rig.held();
    let mut undo = (case.take)(&rig).unwrap();
    let counted = rig.gpu.release.counters();
    rig.sim().fail_calls(&[call], failure);
    let first = undo();
    rig.sim().clear_failures();
    let failed = first.is_err();
    if let Err(error) = first {
        check_error(&error, ending, &what);
        assert_eq!(rig.gpu.release.counters(), counted, "{what}: forgotten");
        undo().unwrap_or_else(|error| panic!("{what}: second: {error}"));
    }
    drop(undo);
    assert_eq!(rig.held(), before, "{what}: held at the end");
    while let Some(mut undo) = needed.pop() {
        undo().unwrap();
    }
    drop(needed);
    rig.close(&what);
    failed
}

/// Fails one call of an open of the first device; whether the open failed.
fn fail_opening(other: Option<DeviceId>, call: u64, (failure, ending): (Failure, &str)) -> bool {
    let what = format!("open beside {other:?} at call {call} by {failure:?}");
    let Rig { nv, gpu, .. } = Rig::new();
    let sim = nv.simulated().unwrap();
    gpu.release.close();
    let other = other.map(|id| nv.open(id).unwrap());
    let before = sim.live();
    sim.fail_calls(&[call], failure);
    let first = nv.open(DeviceId(0));
    sim.clear_failures();
    let failed = first.is_err();
    // Calls past the last one of opening belong to closing.
    match first {
        Err(error) => {
            check_error(&error, ending, &what);
            assert_eq!(sim.live(), before, "{what}");
        }
        Ok(gpu) => drop(gpu.release.close()),
    }
    let gpu = nv.open(DeviceId(0)).unwrap();
    gpu.queue.create_channel(ChannelKind::Copy).unwrap();
    gpu.release.close();
    assert_eq!(nv.refused(DeviceId(0)), [], "{what}");
    assert_eq!(sim.live(), before, "{what}: left by the second one");
    if let Some(other) = other {
        other.queue.create_channel(ChannelKind::Copy).unwrap();
        other.release.close();
    }
    assert_eq!(sim.live(), Live::default(), "{what}: left at the end");
    failed
}

#[test]
fn an_open_that_fails_at_any_call_leaves_nothing_and_succeeds_the_second_time() {
    // Mission rows A3, A4: alone, and joining another device with which it becomes a peer.
    for other in [None, Some(DeviceId(1))] {
        let mut failures = 0;
        for failure in FAILURES {
            let failed = (1..60).filter(|&call| fail_opening(other, call, failure));
            failures += failed.count();
        }
        assert!(failures > 3 * 16, "{failures} failures beside {other:?}");
    }
}

#[test]
fn a_close_that_is_refused_anything_says_so_and_the_kernel_takes_the_rest() {
    for call in 1.. {
        let rig = Rig::new();
        let Rig { nv, gpu, .. } = &rig;
        let sim = rig.sim();
        gpu.memory.create(Heap::Vram, LEN).unwrap();
        gpu.memory.import(&rig.host).unwrap();
        gpu.queue.create_channel(ChannelKind::Compute).unwrap();
        sim.fail_calls(&[call], FAILURES[0].0);
        let left = gpu.release.close();
        let refused = nv.refused(DeviceId(0));
        assert_eq!(
            (left.objects, left.pinned, left.channels),
            (2, LEN / 4096, 1)
        );
        assert_eq!(sim.live(), Live::default(), "call {call}");
        match &refused[..] {
            [] => {
                assert!(call > 15, "closing makes {call} calls");
                break;
            }
            [error] => check_error(error, FAILURES[0].1, "close"),
            more => panic!("one call was refused, not {}: {more:?}", more.len()),
        }
    }
}

/// Runs a write to nowhere on a channel, with calls of the question why it stopped refused.
fn fault_with(failing: &[u64], failure: Failure) -> Fault {
    let rig = Rig::new();
    let (sim, gpu) = (rig.sim(), &rig.gpu);
    let before = rig.held();
    let channel = gpu.queue.create_channel(ChannelKind::Copy).unwrap();
    let fence = Fence {
        timeline: gpu.queue.create_timeline().unwrap(),
        value: 1,
    };
    let nowhere = Op::Fill {
        dst: Va(span(gpu).start()),
        len: 1,
        byte: 0,
    };
    let ops = [nowhere, Op::Signal(fence)];
    gpu.queue.submit(channel, &ops).unwrap();
    sim.fail_calls(failing, failure);
    let waited = gpu.queue.wait(fence, Duration::from_secs(10));
    sim.clear_failures();
    let Err(HalError::Fault(fault)) = waited else {
        panic!("{failing:?} {failure:?}: {waited:?}");
    };
    assert_eq!(gpu.queue.take_faults(), [fault]);
    gpu.release.destroy_channel(channel).unwrap();
    gpu.release.destroy_timeline(fence.timeline).unwrap();
    assert_eq!(rig.held(), before, "{failing:?} {failure:?}");
    rig.close("after a fault");
    fault
}

#[test]
fn a_fault_stops_its_channel_even_when_the_driver_will_not_say_why() {
    let known = fault_with(&[], FAILURES[0].0);
    assert_eq!(known.kind, FaultKind::Unmapped);
    let (va, access) = known.at.unwrap();
    assert_eq!((va.0, access), (128 << 30, Access::Write));
    for (failure, _) in FAILURES {
        // Making the session and asking; what is refused when it is freed has been answered.
        for call in 1..=2 {
            let fault = fault_with(&[call], failure);
            // The number of a memory fault is all there is to know.
            assert_eq!(fault.kind, FaultKind::Unexplained { number: 31 });
            assert_eq!(fault.at, None);
            let text = "channel error 31 on ChannelId(1) at an unknown address";
            assert_eq!(fault.to_string(), text);
        }
        assert_eq!(fault_with(&[3], failure), known);
    }
}
