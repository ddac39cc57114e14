//! Every system call of every kind of allocation and of its release, refused once: by errno and
//! by packet status, alone and together with every call that follows. A table says which calls
//! they are, and an error must name its call and carry what it was refused with.

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

const FAILURES: [Failure; 4] = [
    Failure::Errno(Errno::Io),
    Failure::Errno(Errno::NoMem),
    Failure::Status(Status::INSUFFICIENT_RESOURCES),
    Failure::Status(Status::NO_MEMORY),
];

/// A system call: the stage that its error names, whether its packet has a status, and whether
/// memory that runs out there is the aperture.
#[derive(Clone, Copy, Debug)]
struct Call {
    stage: &'static str,
    has_status: bool,
    takes_aperture: bool,
}

const fn packet(stage: &'static str) -> Call {
    Call {
        stage,
        has_status: true,
        takes_aperture: false,
    }
}

/// An open, a mapping, or an ioctl whose packet has no status.
const fn bare(stage: &'static str) -> Call {
    Call {
        stage,
        has_status: false,
        takes_aperture: false,
    }
}

const FREE: Call = packet("free object");
const RESERVE: Call = packet("reserve range");
const RELEASE: Call = packet("release range");
const GPU_MAP: Call = packet("gpu map");
const GPU_UNMAP: Call = packet("gpu unmap");
const PIN: Call = packet("pin host memory");
const OPEN_GPU: Call = bare("open GPU node");
const OPEN_CONTROL: Call = bare("open control node");
const OPEN_UVM: Call = bare("open unified memory node");
const LINK: Call = bare("link GPU file");
const CPU_MAP: Call = packet("cpu map");
const CPU_MMAP: Call = bare("cpu mmap");
const CPU_UNMAP: Call = packet("cpu unmap");
const LIST_CLASSES: Call = packet("list classes");

/// A file for the doorbell, and the mapping through it.
const WINDOW: [Call; 4] = [OPEN_GPU, LINK, CPU_MAP, CPU_MMAP];
/// The same for a part of device memory, which is seen through the aperture.
const APERTURE: [Call; 4] = [
    OPEN_GPU,
    LINK,
    Call {
        takes_aperture: true,
        ..CPU_MAP
    },
    CPU_MMAP,
];
/// Memory that the GPU and the CPU share.
const BLOCK: [Call; 6] = [
    packet("new host memory"),
    OPEN_CONTROL,
    CPU_MAP,
    CPU_MMAP,
    RESERVE,
    GPU_MAP,
];
const DROP_BLOCK: [Call; 4] = [GPU_UNMAP, RELEASE, CPU_UNMAP, FREE];
const CHANNEL: [Call; 8] = [
    packet("new channel group"),
    packet("new context share"),
    packet("new channel"),
    packet("new compute engine"),
    packet("new copy engine"),
    packet("register channel"),
    packet("ask for the token"),
    packet("schedule channel"),
];
/// The objects of a channel below its registration: engines, channel, share, group.
const DROP_CHANNEL: [Call; 6] = [packet("unregister channel"), FREE, FREE, FREE, FREE, FREE];
const LIST_GPUS: [Call; 2] = [OPEN_CONTROL, bare("list GPUs")];
/// What the devices of one discovery share.
const JOIN: [Call; 7] = [
    OPEN_CONTROL,
    packet("new client"),
    packet("ask for the release"),
    OPEN_UVM,
    packet("initialise unified memory"),
    OPEN_UVM,
    packet("tie to the process"),
];
const ATTACH: [Call; 8] = [
    OPEN_GPU,
    LINK,
    packet("identify GPU"),
    packet("new device"),
    packet("new subdevice"),
    LIST_CLASSES,
    LIST_CLASSES,
    packet("new doorbell"),
];
const REGISTER: [Call; 4] = [
    packet("new VA space"),
    packet("ask for the UUID"),
    packet("register GPU"),
    packet("register VA space"),
];
const PEER: [Call; 1] = [packet("enable peer access")];
const DESCRIBE: [Call; 5] = [
    packet("ask for multiprocessors"),
    LIST_CLASSES,
    LIST_CLASSES,
    packet("ask for memory sizes"),
    packet("ask for memory sizes"),
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
    /// Calls that taking makes, and giving back.
    calls: fn() -> (Vec<Call>, Vec<Call>),
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
        calls: || (vec![packet("new device memory")], vec![FREE]),
    },
    Case {
        name: "host memory",
        prepare: |_| vec![],
        take: |rig| object(rig, Heap::Host),
        calls: || (vec![PIN], vec![FREE]),
    },
    Case {
        name: "range",
        prepare: |_| vec![],
        take: range,
        calls: || (vec![RESERVE], vec![RELEASE]),
    },
    Case {
        name: "CPU mapping of device memory",
        prepare: |rig| vec![object(rig, Heap::Vram).unwrap()],
        take: cpu_map,
        calls: || (APERTURE.to_vec(), vec![CPU_UNMAP]),
    },
    Case {
        name: "CPU mapping of host memory",
        prepare: |rig| vec![object(rig, Heap::Host).unwrap()],
        take: cpu_map,
        calls: || (vec![], vec![]),
    },
    Case {
        name: "GPU mapping of device memory",
        prepare: |rig| vec![object(rig, Heap::Vram).unwrap(), range(rig).unwrap()],
        take: gpu_map,
        calls: || (vec![GPU_MAP], vec![GPU_UNMAP]),
    },
    Case {
        name: "GPU mapping of host memory",
        prepare: |rig| vec![object(rig, Heap::Host).unwrap(), range(rig).unwrap()],
        take: gpu_map,
        calls: || (vec![GPU_MAP], vec![GPU_UNMAP]),
    },
    Case {
        name: "channel",
        prepare: |_| vec![],
        take: |rig| {
            let channel = rig.gpu.queue.create_channel(ChannelKind::Copy)?;
            Ok(Box::new(move || rig.gpu.release.destroy_channel(channel)))
        },
        calls: || {
            (
                [&BLOCK[..], &CHANNEL].concat(),
                [&DROP_CHANNEL[..], &DROP_BLOCK].concat(),
            )
        },
    },
    Case {
        name: "imported memory",
        prepare: |_| vec![],
        take: import,
        calls: || (vec![PIN], vec![FREE]),
    },
    Case {
        name: "range of imported memory",
        prepare: |rig| vec![import(rig).unwrap()],
        take: |rig| range_at(rig, rig.host.span()),
        calls: || (vec![RESERVE], vec![RELEASE]),
    },
    Case {
        name: "GPU mapping of imported memory",
        prepare: |rig| {
            let range = range_at(rig, rig.host.span());
            vec![import(rig).unwrap(), range.unwrap()]
        },
        take: |rig| gpu_map_at(rig, rig.host.span()),
        calls: || (vec![GPU_MAP], vec![GPU_UNMAP]),
    },
    Case {
        name: "GPU mapping of another device's memory",
        prepare: |rig| {
            let (other, object) = (other(rig), share(rig).unwrap());
            vec![other, object, range_at(rig, rig.there).unwrap()]
        },
        take: |rig| gpu_map_at(rig, rig.there),
        calls: || (vec![GPU_MAP], vec![GPU_UNMAP]),
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

/// Checks that an error names its call, and carries what the call was refused with.
fn check_error(error: &HalError, call: Call, failure: Failure, what: &str) {
    let short = |stage: &str| {
        assert_eq!(error.kind(), HalErrorKind::OutOfMemory, "{what}: {error}");
        assert_eq!(stage, call.stage, "{what}: {error}");
    };
    let wanted = match (failure, error) {
        (
            Failure::Errno(Errno::NoMem),
            &HalError::OutOfMemory {
                stage,
                heap,
                answer,
                ..
            },
        ) => {
            assert_eq!(
                heap,
                Heap::Host,
                "{what}: the kernel lacks memory of the host's"
            );
            assert_eq!(answer, Some("ENOMEM"), "{what}");
            return short(stage);
        }
        (Failure::Status(Status::NO_MEMORY), &HalError::OutOfAperture { stage, .. })
            if call.takes_aperture =>
        {
            return short(stage);
        }
        (Failure::Status(Status::NO_MEMORY), &HalError::OutOfMemory { stage, answer, .. })
            if call.has_status && !call.takes_aperture =>
        {
            assert_eq!(answer, Some("NO_MEMORY"), "{what}");
            return short(stage);
        }
        (Failure::Errno(errno), _) => (errno.number().unsigned_abs(), errno.to_string()),
        (Failure::Status(status), _) if call.has_status => {
            (status.0, status.name().unwrap().to_owned())
        }
        // Refused by the only means there is.
        (Failure::Status(_), _) => (0x16, "EINVAL".to_owned()),
    };
    let &HalError::Driver {
        stage,
        status,
        status_name,
    } = error
    else {
        panic!("{what}: {error}");
    };
    let carried = (status, status_name.to_owned());
    assert_eq!((stage, carried), (call.stage, wanted), "{what}");
}

/// Fails the calls `failing` of one allocation, the first of which is `call`, then tries again and
/// gives everything back. Gives the number of calls that the failed try made.
fn fail_taking(case: &Case, (failing, call): (&[u64], Call), failure: Failure) -> u64 {
    let what = format!("{} with calls {failing:?} {failure:?}", case.name);
    let rig = Rig::new();
    let mut needed = (case.prepare)(&rig);
    let before = rig.held();

    rig.sim().fail_calls(failing, failure);
    let mut first = None;
    let made = calls(rig.sim(), || first = (case.take)(&rig).err());
    rig.sim().clear_failures();
    let error = first.unwrap_or_else(|| panic!("{what}: succeeded"));
    check_error(&error, call, failure, &what);
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
    made
}

/// Pairs the calls of a list with their numbers, from 1.
fn numbered(calls: Vec<Call>) -> impl Iterator<Item = (u64, Call)> {
    (1..).zip(calls)
}

#[test]
fn the_table_has_every_call_of_every_allocation_and_of_its_release() {
    for case in &CASES {
        let (taking, giving) = (case.calls)();
        let rig = Rig::new();
        let needed = (case.prepare)(&rig);
        let mut undo: Option<Undo<'_>> = None;
        let taken = calls(rig.sim(), || undo = Some((case.take)(&rig).unwrap()));
        let mut undo = undo.unwrap();
        let given = calls(rig.sim(), || undo().unwrap());
        let listed = (taking.len() as u64, giving.len() as u64);
        assert_eq!((taken, given), listed, "{}", case.name);
        drop((undo, needed));
    }
}

#[test]
fn an_allocation_that_fails_at_any_call_leaves_nothing_and_succeeds_the_second_time() {
    for case in &CASES {
        for failure in FAILURES {
            for (number, call) in numbered((case.calls)().0) {
                fail_taking(case, (&[number], call), failure);
            }
        }
    }
}

/// Requests to unified memory.
const UNIFIED: [&str; 12] = [
    "initialise unified memory",
    "tie to the process",
    "register GPU",
    "register VA space",
    "enable peer access",
    "register channel",
    "unregister channel",
    "reserve range",
    "release range",
    "gpu map",
    "gpu unmap",
    "unregister GPU",
];

/// Whether a call that fails so has done nothing for certain, and is made again.
fn is_made_again(call: Call, errno: Errno) -> bool {
    let opening = call.stage.starts_with("open ");
    let other = if errno == Errno::Intr {
        call.stage == "cpu mmap"
    } else {
        UNIFIED.contains(&call.stage)
    };
    opening || other
}

/// Opens, mappings and requests alike: those that have done nothing are made again, and of all
/// others, a second one might do twice what the first one did.
#[test]
fn a_call_that_is_interrupted_or_put_off_is_made_again_only_if_it_has_done_nothing() {
    for errno in [Errno::Intr, Errno::Again] {
        let failure = Failure::Errno(errno);
        for case in &CASES {
            for (number, call) in numbered((case.calls)().0) {
                if !is_made_again(call, errno) {
                    fail_taking(case, (&[number], call), failure);
                    continue;
                }
                let rig = Rig::new();
                let needed = (case.prepare)(&rig);
                rig.sim().fail_calls(&[number], failure);
                let mut undo = None;
                let made = calls(rig.sim(), || undo = Some((case.take)(&rig).unwrap()));
                let listed = (case.calls)().0.len() as u64;
                assert_eq!(made, listed + 1, "{} {errno} {call:?}", case.name);
                drop((undo, needed));
            }
        }
        for other in [None, Some(DeviceId(1))] {
            for (number, call) in numbered(opening(other)) {
                if !is_made_again(call, errno) {
                    fail_opening(other, (number, call), failure);
                    continue;
                }
                let rig = Rig::new();
                rig.gpu.release.close();
                let kept = other.map(|id| rig.nv.open(id).unwrap());
                rig.sim().fail_calls(&[number], failure);
                let mut gpu = None;
                let made = calls(rig.sim(), || gpu = Some(rig.nv.open(DeviceId(0)).unwrap()));
                let listed = opening(other).len() as u64;
                assert_eq!(made, listed + 1, "beside {other:?} {errno} {call:?}");
                drop((gpu, kept));
            }
        }
    }
}

#[test]
fn a_call_that_stays_interrupted_or_put_off_fails_in_the_end() {
    let rig = Rig::new();
    rig.gpu.release.close();
    let often: Vec<u64> = (1..=1000).collect();
    for errno in [Errno::Intr, Errno::Again] {
        let failure = Failure::Errno(errno);
        rig.sim().fail_calls(&often, failure);
        let mut opened = None;
        let made = calls(rig.sim(), || opened = Some(rig.nv.open(DeviceId(0))));
        rig.sim().clear_failures();
        assert_eq!(made, 64, "{errno}");
        let error = opened.unwrap().unwrap_err();
        check_error(&error, OPEN_CONTROL, failure, "an open");
        assert_eq!(rig.sim().live(), Live::default());
    }
}

/// A node that is missing is named; one that cannot be opened while the driver is in use is not
/// taken for a driver that is missing.
#[test]
fn a_node_that_is_missing_is_named_at_bring_up_and_is_an_error_like_others_later() {
    let failure = Failure::Errno(Errno::NoDev);
    for (number, call) in numbered(opening(None)) {
        let rig = Rig::new();
        rig.gpu.release.close();
        rig.sim().fail_calls(&[number], failure);
        let error = rig.nv.open(DeviceId(0)).unwrap_err();
        let node = match (number, call.stage) {
            (_, "open unified memory node") => "/dev/nvidia-uvm",
            // For the list of GPUs, and for the client.
            (1 | 3, "open control node") => "/dev/nvidiactl",
            // Files that carry mappings come later.
            (10, "open GPU node") => "/dev/nvidia0",
            _ => {
                check_error(&error, call, failure, &format!("call {number}"));
                continue;
            }
        };
        let text = format!("{node} cannot be opened: No such device (os error 19)");
        assert_eq!(error.to_string(), text, "call {number}");
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
                        answer: Some("ENOMEM"),
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
        for failure in FAILURES {
            for (number, call) in numbered((case.calls)().0) {
                let what = format!("{} at call {number} by {failure:?}", case.name);
                let made = fail_taking(case, (&[number], call), failure);
                assert!(made <= 2 * number, "{what}: undoing took more than doing");
                for later in number + 1..=made {
                    let made = fail_taking(case, (&[number, later], call), failure);
                    assert!(made >= later, "{what}: {later} was not made any more");
                }
            }
        }
    }
}

#[test]
fn a_release_that_fails_at_any_call_stays_counted_and_succeeds_the_second_time() {
    for case in &CASES {
        for failure in FAILURES {
            for numbered in numbered((case.calls)().1) {
                fail_giving(case, numbered, failure);
            }
        }
    }
}

/// Fails one call of a release.
fn fail_giving(case: &Case, (number, call): (u64, Call), failure: Failure) {
    let what = format!("release of {} at call {number} by {failure:?}", case.name);
    let rig = Rig::new();
    let mut needed = (case.prepare)(&rig);
    let before = rig.held();
    let mut undo = (case.take)(&rig).unwrap();
    let counted = rig.gpu.release.counters();
    rig.sim().fail_calls(&[number], failure);
    let first = undo();
    rig.sim().clear_failures();
    let error = first.expect_err(&what);
    check_error(&error, call, failure, &what);
    assert_eq!(rig.gpu.release.counters(), counted, "{what}: forgotten");
    undo().unwrap_or_else(|error| panic!("{what}: second: {error}"));
    drop(undo);
    assert_eq!(rig.held(), before, "{what}: held at the end");
    while let Some(mut undo) = needed.pop() {
        undo().unwrap();
    }
    drop(needed);
    rig.close(&what);
}

/// Fails one call of an open of the first device.
fn fail_opening(other: Option<DeviceId>, (number, call): (u64, Call), failure: Failure) {
    let what = format!("open beside {other:?} at call {number} by {failure:?}");
    let Rig { nv, gpu, .. } = Rig::new();
    let sim = nv.simulated().unwrap();
    gpu.release.close();
    let other = other.map(|id| nv.open(id).unwrap());
    let before = sim.live();
    sim.fail_calls(&[number], failure);
    let first = nv.open(DeviceId(0));
    sim.clear_failures();
    check_error(&first.expect_err(&what), call, failure, &what);
    assert_eq!(sim.live(), before, "{what}");
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
}

/// Calls of an open of the first device, alone or joining another one.
fn opening(other: Option<DeviceId>) -> Vec<Call> {
    let (join, peer) = match other {
        None => (&JOIN[..], &[][..]),
        Some(_) => (&[][..], &PEER[..]),
    };
    let own = [&LIST_GPUS[..], join, &ATTACH, &WINDOW, &REGISTER, peer];
    [&own.concat()[..], &BLOCK, &DESCRIBE].concat()
}

#[test]
fn an_open_that_fails_at_any_call_leaves_nothing_and_succeeds_the_second_time() {
    // Mission rows A3, A4: alone, and joining another device with which it becomes a peer.
    for other in [None, Some(DeviceId(1))] {
        let rig = Rig::new();
        rig.gpu.release.close();
        let kept = other.map(|id| rig.nv.open(id).unwrap());
        let mut opened = None;
        let made = calls(rig.sim(), || {
            opened = Some(rig.nv.open(DeviceId(0)).unwrap())
        });
        assert_eq!(made, opening(other).len() as u64, "beside {other:?}");
        drop((opened, kept));
        for failure in FAILURES {
            for call in numbered(opening(other)) {
                fail_opening(other, call, failure);
            }
        }
    }
}

#[test]
fn a_close_that_is_refused_anything_says_so_and_the_kernel_takes_the_rest() {
    for failure in FAILURES {
        for (number, call) in numbered(closing()) {
            let refused = close_with(&[number], failure);
            let [error] = &refused[..] else {
                panic!("call {number} was refused, and only that: {refused:?}");
            };
            check_error(error, call, failure, &format!("close at call {number}"));
        }
        let beyond = closing().len() as u64 + 1;
        assert_eq!(
            close_with(&[beyond], failure),
            [],
            "the table has all calls"
        );
    }
}

/// Calls of a close of the only open device with two objects and a channel.
fn closing() -> Vec<Call> {
    let objects = [FREE; 2];
    let registered = [packet("unregister VA space"), packet("unregister GPU")];
    // VA space, doorbell with its window, subdevice, device, client.
    let tree = [FREE, CPU_UNMAP, FREE, FREE, FREE, FREE];
    let handed_out = [&DROP_CHANNEL[..], &DROP_BLOCK, &objects].concat();
    [&handed_out[..], &DROP_BLOCK, &registered, &tree].concat()
}

/// Closes such a device with some calls refused; what the close reports.
fn close_with(failing: &[u64], failure: Failure) -> Vec<HalError> {
    let rig = Rig::new();
    let (sim, gpu) = (rig.sim(), &rig.gpu);
    gpu.memory.create(Heap::Vram, LEN).unwrap();
    gpu.memory.import(&rig.host).unwrap();
    gpu.queue.create_channel(ChannelKind::Compute).unwrap();
    sim.fail_calls(failing, failure);
    let left = gpu.release.close();
    let counted = (left.objects, left.pinned, left.channels);
    assert_eq!(counted, (2, LEN / 4096, 1));
    assert_eq!(sim.live(), Live::default(), "{failing:?} {failure:?}");
    rig.nv.refused(DeviceId(0))
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
    let known = fault_with(&[], FAILURES[0]);
    assert_eq!(known.kind, FaultKind::Unmapped);
    let (va, access) = known.at.unwrap();
    assert_eq!((va.0, access), (128 << 30, Access::Write));
    for failure in FAILURES {
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
