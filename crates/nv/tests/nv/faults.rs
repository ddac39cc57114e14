//! Every system call of every kind of allocation and of its release, refused once: by errno and
//! by packet status, alone and together with every call that follows.

use std::sync::Arc;
use std::time::Duration;

use vrampager_addr::{Span, Va};
use vrampager_hal::{
    Access, ChannelKind, Counters, DeviceId, Discovery, Fault, FaultKind, Fence, Gpu, GpuMap,
    HalError, HalErrorKind, Heap, Op,
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

fn nv() -> Arc<Nv> {
    let config = "sim,vram=64M,bar1=64M".parse().unwrap();
    Nv::new(config, &Planes::default()).unwrap()
}

fn span(gpu: &Gpu) -> Span {
    let zone = gpu.info.zones[0].span;
    zone.slice(0, LEN).unwrap()
}

type Undo<'a> = Box<dyn FnMut() -> Result<(), HalError> + 'a>;

/// A kind of allocation: what it needs beforehand, itself, and the way back of each.
struct Case {
    name: &'static str,
    prepare: fn(&Gpu) -> Vec<Undo<'_>>,
    take: fn(&Gpu) -> Result<Undo<'_>, HalError>,
}

fn object(gpu: &Gpu, heap: Heap) -> Result<Undo<'_>, HalError> {
    let mem = gpu.memory.create(heap, LEN)?;
    Ok(Box::new(move || gpu.release.destroy(mem)))
}

fn range(gpu: &Gpu) -> Result<Undo<'_>, HalError> {
    gpu.memory.reserve_va(span(gpu))?;
    Ok(Box::new(move || gpu.release.release_va(span(gpu))))
}

fn cpu_map(gpu: &Gpu) -> Result<Undo<'_>, HalError> {
    // Objects are numbered from 1.
    let mem = vrampager_hal::MemId(1);
    let map = gpu.memory.map_cpu(mem, LEN / 2, LEN / 4)?;
    map.write(0, b"mapped");
    Ok(Box::new(move || gpu.release.unmap_cpu(map.id())))
}

fn gpu_map(gpu: &Gpu) -> Result<Undo<'_>, HalError> {
    gpu.memory.map_gpu(GpuMap {
        va: Va(span(gpu).start()),
        mem: vrampager_hal::MemId(1),
        offset: 0,
        len: LEN,
        access: Access::Write,
    })?;
    Ok(Box::new(move || gpu.release.unmap_gpu(span(gpu))))
}

const CASES: [Case; 8] = [
    Case {
        name: "device memory",
        prepare: |_| vec![],
        take: |gpu| object(gpu, Heap::Vram),
    },
    Case {
        name: "host memory",
        prepare: |_| vec![],
        take: |gpu| object(gpu, Heap::Host),
    },
    Case {
        name: "range",
        prepare: |_| vec![],
        take: range,
    },
    Case {
        name: "CPU mapping of device memory",
        prepare: |gpu| vec![object(gpu, Heap::Vram).unwrap()],
        take: cpu_map,
    },
    Case {
        name: "CPU mapping of host memory",
        prepare: |gpu| vec![object(gpu, Heap::Host).unwrap()],
        take: cpu_map,
    },
    Case {
        name: "GPU mapping of device memory",
        prepare: |gpu| vec![object(gpu, Heap::Vram).unwrap(), range(gpu).unwrap()],
        take: gpu_map,
    },
    Case {
        name: "GPU mapping of host memory",
        prepare: |gpu| vec![object(gpu, Heap::Host).unwrap(), range(gpu).unwrap()],
        take: gpu_map,
    },
    Case {
        name: "channel",
        prepare: |_| vec![],
        take: |gpu| {
            let channel = gpu.queue.create_channel(ChannelKind::Copy)?;
            Ok(Box::new(move || gpu.release.destroy_channel(channel)))
        },
    },
];

/// What the driver and the books held before.
#[derive(PartialEq, Eq, Debug)]
struct Held {
    driver: Live,
    books: Counters,
}

fn held(sim: &SimNodes, gpu: &Gpu) -> Held {
    Held {
        driver: sim.live(),
        books: gpu.release.counters(),
    }
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

fn closed(nv: &Nv, gpu: &Gpu, what: &str) {
    assert!(gpu.release.close().is_zero(), "{what}: left at close");
    assert_eq!(nv.refused(DeviceId(0)), [], "{what}: refused at close");
    let left = nv.simulated().unwrap().live();
    assert_eq!(left, Live::default(), "{what}: left in the driver");
}

/// Fails the calls `failing` of one allocation, then tries again and gives everything back.
fn fail_taking(case: &Case, failing: &[u64], (failure, ending): (Failure, &str)) {
    let what = format!("{} with calls {failing:?} {failure:?}", case.name);
    let nv = nv();
    let sim = nv.simulated().unwrap();
    let gpu = nv.open(DeviceId(0)).unwrap();
    let mut needed = (case.prepare)(&gpu);
    let before = held(sim, &gpu);

    sim.fail_calls(failing, failure);
    let first = (case.take)(&gpu);
    sim.clear_failures();
    let error = first.err().unwrap_or_else(|| panic!("{what}: succeeded"));
    check_error(&error, ending, &what);
    if let [_] = failing {
        assert_eq!(held(sim, &gpu), before, "{what}: held after the failure");
    }
    assert_eq!(gpu.release.counters(), before.books, "{what}");

    let mut undo = (case.take)(&gpu).unwrap_or_else(|error| panic!("{what}: second: {error}"));
    undo().unwrap();
    drop(undo);
    assert_eq!(held(sim, &gpu), before, "{what}: held after the second try");
    while let Some(mut undo) = needed.pop() {
        undo().unwrap();
    }
    drop(needed);
    closed(&nv, &gpu, &what);
}

/// System calls that the first try of an allocation makes.
fn length(case: &Case) -> u64 {
    let nv = nv();
    let gpu = nv.open(DeviceId(0)).unwrap();
    let needed = (case.prepare)(&gpu);
    let made = calls(nv.simulated().unwrap(), || {
        drop((case.take)(&gpu).unwrap());
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
    let nv = nv();
    let sim = nv.simulated().unwrap();
    let gpu = nv.open(DeviceId(0)).unwrap();
    let mut needed = (case.prepare)(&gpu);
    let before = held(sim, &gpu);
    let mut undo = (case.take)(&gpu).unwrap();
    let counted = gpu.release.counters();
    sim.fail_calls(&[call], failure);
    let first = undo();
    sim.clear_failures();
    let failed = first.is_err();
    if let Err(error) = first {
        check_error(&error, ending, &what);
        assert_eq!(gpu.release.counters(), counted, "{what}: forgotten");
        undo().unwrap_or_else(|error| panic!("{what}: second: {error}"));
    }
    drop(undo);
    assert_eq!(held(sim, &gpu), before, "{what}: held at the end");
    while let Some(mut undo) = needed.pop() {
        undo().unwrap();
    }
    drop(needed);
    closed(&nv, &gpu, &what);
    failed
}

#[test]
fn an_open_that_fails_at_any_call_leaves_nothing_and_succeeds_the_second_time() {
    let length = {
        let nv = nv();
        calls(nv.simulated().unwrap(), || {
            nv.open(DeviceId(0)).map(drop).unwrap();
        })
    };
    let mut failures = 0;
    for (failure, ending) in FAILURES {
        for call in 1..=length {
            let what = format!("open at call {call} by {failure:?}");
            let nv = nv();
            let sim = nv.simulated().unwrap();
            sim.fail_calls(&[call], failure);
            let first = nv.open(DeviceId(0));
            sim.clear_failures();
            // Calls past the last one of opening belong to closing.
            match first {
                Err(error) => {
                    failures += 1;
                    check_error(&error, ending, &what);
                    assert_eq!(sim.live(), Live::default(), "{what}");
                }
                Ok(gpu) => drop(gpu.release.close()),
            }
            let gpu = nv.open(DeviceId(0)).unwrap();
            closed(&nv, &gpu, &what);
        }
    }
    assert!(failures > 3 * 20, "{failures} failures of {length} calls");
}

#[test]
fn a_close_that_is_refused_anything_says_so_and_the_kernel_takes_the_rest() {
    for call in 1.. {
        let nv = nv();
        let sim = nv.simulated().unwrap();
        let gpu = nv.open(DeviceId(0)).unwrap();
        gpu.memory.create(Heap::Vram, LEN).unwrap();
        gpu.queue.create_channel(ChannelKind::Compute).unwrap();
        sim.fail_calls(&[call], FAILURES[0].0);
        let left = gpu.release.close();
        let refused = nv.refused(DeviceId(0));
        assert_eq!((left.objects, left.channels), (1, 1));
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
    let nv = nv();
    let sim = nv.simulated().unwrap();
    let gpu = nv.open(DeviceId(0)).unwrap();
    let before = held(sim, &gpu);
    let channel = gpu.queue.create_channel(ChannelKind::Copy).unwrap();
    let fence = Fence {
        timeline: gpu.queue.create_timeline().unwrap(),
        value: 1,
    };
    let nowhere = Op::Fill {
        dst: Va(span(&gpu).start()),
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
    assert_eq!(held(sim, &gpu), before, "{failing:?} {failure:?}");
    closed(&nv, &gpu, "after a fault");
    fault
}

#[test]
fn a_fault_stops_its_channel_even_when_the_driver_will_not_say_why() {
    let known = fault_with(&[], FAILURES[0].0);
    assert_eq!(known.kind, FaultKind::Unmapped);
    for (failure, _) in FAILURES {
        // Making the session and asking; what is refused when it is freed has been answered.
        for call in 1..=2 {
            let fault = fault_with(&[call], failure);
            assert_eq!(fault.kind, FaultKind::CopyEngine);
        }
        assert_eq!(fault_with(&[3], failure), known);
    }
}
