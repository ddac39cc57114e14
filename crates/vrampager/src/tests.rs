//! What the driver holds for pagers, seen from below: the simulated NVIDIA driver counts it, and
//! refuses any one of the system calls that users' requests come to.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;
use vrampager_hal::{Counters, HostPage, HostRange};
use vrampager_nv::{Config, Machine as NvMachine, Nv, Planes, SimNodes};

use crate::machine::Machine;
use crate::{Buffer, Error, ErrorKind, FileBacking, Import, Pager, Submitted};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// Whether something that a worker does comes about in time.
fn becomes(so: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !so() {
        if start.elapsed() > Duration::from_secs(10) {
            return false;
        }
        sleep(Duration::from_millis(1));
    }
    true
}

/// A driver of two GPUs, each with its pager.
struct Rig {
    nv: Arc<Nv>,
    pagers: [Pager; 2],
}

impl Rig {
    fn new(keys: &str) -> Self {
        let config = format!("sim,vram=8M,gpus=2{keys}").parse().unwrap();
        let nv = Nv::new(config, &Planes::default()).unwrap();
        let builders = Pager::builders_of(&Machine::Nv(nv.clone())).unwrap();
        let open = |builder: crate::PagerBuilder| builder.host(4 * MIB).open().unwrap();
        let pagers: Vec<_> = builders.into_iter().map(open).collect();
        Self {
            nv,
            pagers: pagers.try_into().unwrap(),
        }
    }

    fn sim(&self) -> &SimNodes {
        self.nv.simulated().unwrap()
    }

    /// What is alive in the driver, in its own words.
    fn held(&self) -> String {
        format!("{:?}", self.sim().live())
    }

    /// Waits until the driver holds just that: workers give back behind the caller's back.
    fn settles_at(&self, held: &str, what: &str) {
        let settled = becomes(|| self.held() == held);
        assert!(settled, "{what}: {} held, not {held}", self.held());
    }

    fn channels(&self) -> usize {
        usize::try_from(self.pagers[0].stats().device.channels).unwrap()
    }

    fn close(self, what: &str) {
        self.close_with(false, what);
    }

    /// Closes both, the first perhaps with something that it could not give back. The driver takes
    /// that with the device's files.
    fn close_with(self, lost: bool, what: &str) {
        for (pager, lost) in self.pagers.into_iter().zip([lost, false]) {
            pager.check();
            let left = pager.close().unwrap();
            assert_eq!(left.is_zero(), !lost, "{what}: {left:?}");
        }
        nothing_held(&self.nv, what);
    }
}

fn nothing_held(nv: &Nv, what: &str) {
    assert_eq!(nv.simulated().unwrap().live(), Default::default(), "{what}");
}

/// Has a system call to come fail in the way that a device string would write.
fn fail_call(nv: &Nv, call: u64, failure: &str) {
    let config: Config = format!("sim,fail=uvm:1:1:{failure}").parse().unwrap();
    let NvMachine::Simulated(machine) = config.machine else {
        unreachable!("it was asked for");
    };
    let failure = machine.injections[0].failure;
    nv.simulated().unwrap().fail_calls(&[call], failure);
}

fn fill(pager: &Pager, buffer: &Buffer, byte: u8) -> Result<Submitted, Error> {
    let mut work = pager.submission();
    work.fill(buffer, 0, buffer.len(), byte)?.submit()
}

fn use_import(pager: &Pager, import: &Import, byte: u8) -> Submitted {
    let mut work = pager.submission();
    work.fill(import, 0, import.len(), byte).unwrap();
    work.submit().unwrap()
}

/// Each device uses a buffer of the other that nobody else holds, with work under way.
fn share_mutually(rig: &Rig) -> [Import; 2] {
    let imports = [(0, 1), (1, 0)].map(|(user, owner)| {
        let [user, owner] = [user, owner].map(|n: usize| &rig.pagers[n]);
        let buffer = Arc::new(owner.buffer("shared", MIB).create().unwrap());
        user.share(&buffer).unwrap()
    });
    for (pager, import) in rig.pagers.iter().zip(&imports) {
        use_import(pager, import, 1);
    }
    imports
}

/// The longer one is over after a worker has been told to stop and has.
const LATENCIES: [&str; 2] = ["", ",latency=400ms"];

#[test]
fn devices_that_share_with_each_other_close_when_their_pagers_go_before_the_imports() {
    for keys in LATENCIES {
        for order in [[0, 1], [1, 0]] {
            let rig = Rig::new(keys);
            let mut imports = share_mutually(&rig).map(Some);
            let Rig { nv, pagers } = rig;
            drop(pagers);
            assert!(nv.simulated().unwrap().live().memories > 0);
            for n in order {
                drop(imports[n].take());
            }
            nothing_held(&nv, &format!("`{keys}` {order:?}"));
        }
    }
}

#[test]
fn devices_that_share_with_each_other_close_when_the_imports_go_before_their_pagers() {
    for keys in LATENCIES {
        let rig = Rig::new(keys);
        drop(share_mutually(&rig));
        let Rig { nv, pagers } = rig;
        drop(pagers);
        nothing_held(&nv, keys);
    }
}

#[test]
fn devices_that_could_not_close_for_each_other_close_with_their_last_imports() {
    for keys in LATENCIES {
        let rig = Rig::new(keys);
        let imports = share_mutually(&rig);
        let Rig { nv, pagers } = rig;
        for pager in pagers {
            let error = pager.close().unwrap_err();
            let text = "1 buffers and 1 imports are still alive";
            assert_eq!(error.to_string(), text);
        }
        drop(imports);
        nothing_held(&nv, keys);
    }
}

/// What a user may keep of a pager that he has dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "held")]
enum Kept {
    Work(Submitted),
    File(Arc<FileBacking>),
}

type Keep = fn(&Pager, Submitted, &NamedTempFile) -> Kept;

#[test]
fn what_is_kept_of_a_dropped_pager_keeps_no_import_pinned() {
    let file = || NamedTempFile::new().unwrap();
    let keeps: [(_, Keep); 2] = [
        ("work", |_, work, _| Kept::Work(work)),
        ("file", |pager, _, file| {
            Kept::File(pager.file(file.reopen().unwrap(), file.path()).unwrap())
        }),
    ];
    // The first device's memory for what does not fit in VRAM.
    let own = 1;
    for (name, keep) in keeps {
        for pager_first in [false, true] {
            let (rig, file) = (Rig::new(",latency=50ms"), file());
            let pages = HostPage::zeroed(2);
            let pager = &rig.pagers[0];
            let import = pager.import(&HostRange::of(pages.clone()).unwrap());
            let import = import.unwrap();
            let kept = keep(pager, use_import(pager, &import, 7), &file);
            let Rig { nv, pagers } = rig;
            if pager_first {
                drop(pagers);
                drop(import);
            } else {
                drop(import);
                drop(pagers);
            }
            assert_eq!(Arc::strong_count(&pages), 1, "{name}");
            let pins = nv.simulated().unwrap().live().pins;
            assert_eq!(pins, own, "{name}");
            let byte = pages[1].bytes()[4095].load(Ordering::Relaxed);
            assert_eq!(byte, 7, "the work was over");
            drop(kept);
            nothing_held(&nv, name);
        }
    }
}

/// An import that lives long, and one for each request beside it.
#[test]
fn a_thousand_imports_of_a_range_hold_no_more_than_the_first() {
    let rig = Rig::new("");
    let [owner, other] = &rig.pagers;
    let pages = HostPage::zeroed(1);
    let range = || HostRange::of(pages.clone()).unwrap();
    let buffer = Arc::new(owner.buffer("shared", PAGE).create().unwrap());
    let first = (
        other.import(&range()).unwrap(),
        other.share(&buffer).unwrap(),
    );
    let held = rig.held();
    let counts = || (Arc::strong_count(&pages), Arc::strong_count(&buffer));
    let counted = counts();
    for _ in 0..1000 {
        let each = (
            other.import(&range()).unwrap(),
            other.share(&buffer).unwrap(),
        );
        assert_eq!(each.0.gpu_address(), first.0.gpu_address());
        assert_eq!(counts(), counted);
    }
    assert_eq!(rig.held(), held);
    use_import(other, &first.0, 3).wait().unwrap();
    assert_eq!(pages[0].bytes()[0].load(Ordering::Relaxed), 3);

    // Pinned once by all of them: it can move as soon as the first is gone.
    drop(first);
    assert!(becomes(|| Arc::strong_count(&buffer) == 1), "still held");
    let crowd = owner.buffer("crowd", 8 * MIB).create().unwrap();
    fill(owner, &crowd, 1).unwrap().wait().unwrap();
    drop((buffer, crowd));
    rig.close("a thousand imports");
    assert_eq!(Arc::strong_count(&pages), 1);
}

/// Each failure, and how the text of an error that it causes ends; nothing for a shortage, which
/// is an error of its own.
const FAILURES: [(&str, &str); 3] = [
    ("EIO", "EIO (0x5)"),
    ("0x1a", "INSUFFICIENT_RESOURCES (0x1a)"),
    ("0x51", ""),
];

/// A request of the first device's pager.
struct Case {
    name: &'static str,
    take: fn(&Rig, &Given) -> Result<Taken, Error>,
    /// Whether the device has worked before, so that it has its channels.
    worked: bool,
    /// System calls of the request, and of its release.
    calls: (u64, u64),
}

/// What requests are about.
struct Given {
    pages: Arc<[HostPage]>,
    theirs: Arc<Buffer>,
}

/// What a request leaves the user with; dropping it releases.
#[derive(Debug)]
#[expect(dead_code, reason = "held")]
enum Taken {
    Buffer(Buffer),
    Import(Import),
}

fn work(rig: &Rig, _: &Given) -> Result<Taken, Error> {
    let pager = &rig.pagers[0];
    let buffer = pager.buffer("new", MIB).create()?;
    fill(pager, &buffer, 5)?.wait()?;
    let mut byte = [0];
    buffer.read(MIB - 1, &mut byte)?;
    assert_eq!(byte, [5]);
    Ok(Taken::Buffer(buffer))
}

const CASES: [Case; 4] = [
    Case {
        name: "first buffer and its work",
        take: work,
        worked: false,
        calls: (30, 2),
    },
    Case {
        name: "buffer and its work",
        take: work,
        worked: true,
        calls: (2, 2),
    },
    Case {
        name: "import",
        take: |rig, given| {
            let range = HostRange::of(given.pages.clone()).unwrap();
            let import = rig.pagers[0].import(&range)?;
            use_import(&rig.pagers[0], &import, 8).wait()?;
            assert_eq!(given.pages[1].bytes()[0].load(Ordering::Relaxed), 8);
            Ok(Taken::Import(import))
        },
        worked: true,
        calls: (3, 3),
    },
    Case {
        name: "share",
        take: |rig, given| {
            let import = rig.pagers[0].share(&given.theirs)?;
            use_import(&rig.pagers[0], &import, 9).wait()?;
            let mut byte = [0];
            given.theirs.read(MIB - 1, &mut byte)?;
            assert_eq!(byte, [9]);
            Ok(Taken::Import(import))
        },
        worked: true,
        calls: (1, 1),
    },
];

/// Two devices, of which the second has worked.
fn prepared() -> (Rig, Given) {
    let rig = Rig::new("");
    let theirs = Arc::new(rig.pagers[1].buffer("theirs", MIB).create().unwrap());
    fill(&rig.pagers[1], &theirs, 1).unwrap().wait().unwrap();
    let pages = HostPage::zeroed(2);
    (rig, Given { pages, theirs })
}

/// Has the first device do its first work; what the driver holds between requests when it has none,
/// one and both of its channels.
fn make_channels(rig: &Rig) -> [String; 3] {
    let pager = &rig.pagers[0];
    let before = pager.stats().device;
    let between_requests = || {
        let channels = pager.stats().device.channels;
        let done = Counters { channels, ..before };
        assert!(becomes(|| pager.stats().device == done), "{done:?}");
        rig.held()
    };
    let buffer = || pager.buffer("first", MIB).create().unwrap();
    [
        between_requests(),
        {
            // It is cleared by a copy.
            drop(buffer().pin().unwrap());
            between_requests()
        },
        {
            fill(pager, &buffer(), 1).unwrap().wait().unwrap();
            between_requests()
        },
    ]
}

impl Case {
    /// What the driver holds when nothing of the request is left, by number of channels: one that
    /// has been made for a request stays for the next.
    fn prepared(&self) -> (Rig, Given, [String; 3]) {
        let (rig, given) = prepared();
        let states = if self.worked {
            make_channels(&rig)
        } else {
            make_channels(&prepared().0)
        };
        (rig, given, states)
    }

    fn fail_taking(&self, call: u64, (failure, ending): (&str, &str)) {
        let what = format!("{} with call {call} {failure}", self.name);
        let (rig, given, states) = self.prepared();
        fail_call(&rig.nv, call, failure);
        let first = (self.take)(&rig, &given);
        rig.sim().clear_failures();
        check_error(&first.expect_err(&what), ending, &what);
        rig.settles_at(&states[rig.channels()], &what);

        let second = (self.take)(&rig, &given);
        drop(second.unwrap_or_else(|error| panic!("{what}: second: {error}")));
        rig.settles_at(&states[2], &what);
        drop(given);
        rig.close(&what);
    }

    /// What remains is an import's memory until it is tried again, but a buffer's for good.
    fn fail_giving(&self, call: u64, failure: &str) {
        let what = format!("release of {} with call {call} {failure}", self.name);
        let (rig, given, states) = self.prepared();
        let taken = (self.take)(&rig, &given).unwrap();
        let made = rig.sim().calls();
        fail_call(&rig.nv, call, failure);
        let is_buffer = matches!(taken, Taken::Buffer(_));
        drop(taken);
        assert!(becomes(|| rig.sim().calls() >= made + call), "{what}");
        rig.sim().clear_failures();
        if !is_buffer {
            rig.settles_at(&states[2], &what);
        }
        let quarantined = || rig.pagers[0].stats().manager.quarantined;
        let left = usize::from(is_buffer);
        assert!(becomes(|| quarantined() == left), "{what}");
        drop((self.take)(&rig, &given).unwrap());
        assert_eq!(quarantined(), left, "{what}");
        drop(given);
        rig.close_with(is_buffer, &what);
    }
}

fn check_error(error: &Error, ending: &str, what: &str) {
    let text = error.to_string();
    if error.kind() == ErrorKind::OutOfMemory {
        assert!(ending.is_empty(), "{what}: {text}");
        return;
    }
    assert_eq!(error.kind(), ErrorKind::Backend, "{what}: {text}");
    // A call whose packet has no status fails with an error of the system call.
    let ends = |ending: &str| !ending.is_empty() && text.ends_with(ending);
    assert!(ends(ending) || ends("EINVAL (0x16)"), "{what}: {text}");
}

#[test]
fn a_request_makes_the_calls_that_the_tests_of_its_failures_go_through() {
    for case in &CASES {
        let (rig, given, states) = case.prepared();
        let start = rig.sim().calls();
        let taken = (case.take)(&rig, &given).unwrap();
        let made = rig.sim().calls();
        drop(taken);
        rig.settles_at(&states[2], case.name);
        let calls = (made - start, rig.sim().calls() - made);
        assert_eq!(calls, case.calls, "{}", case.name);
        drop(given);
        rig.close(case.name);
    }
}

/// Mission row A6, down to the driver.
#[test]
fn a_request_that_fails_at_any_call_leaves_nothing_and_succeeds_the_second_time() {
    for case in &CASES {
        for failure in FAILURES {
            for call in 1..=case.calls.0 {
                case.fail_taking(call, failure);
            }
        }
    }
}

#[test]
fn a_release_that_fails_at_any_call_is_tried_again_or_counted_as_lost() {
    for case in &CASES {
        for (failure, _) in FAILURES {
            for call in 1..=case.calls.1 {
                case.fail_giving(call, failure);
            }
        }
    }
}

#[test]
fn a_machine_without_the_driver_says_which_node_is_missing() {
    let nv = Nv::new("sim".parse().unwrap(), &Planes::default()).unwrap();
    fail_call(&nv, 1, "ENODEV");
    let error = Pager::builders_of(&Machine::Nv(nv)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    let text = error.to_string();
    assert!(
        text.starts_with("/dev/nvidiactl cannot be opened: No such device"),
        "{text}"
    );
}
