//! Host memory of the caller's (mission rows A8, A9).
#![expect(clippy::unwrap_used, reason = "a step that fails ends the test")]
#![expect(unsafe_code, reason = "names memory by its address")]

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use vrampager::{Error, ErrorKind, HostPage, HostRange, MemType, Misaligned, Pager};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
const DEVICES: [&str; 2] = ["sim:vram=8M,bar=1M,gpus=2", "nv:sim,vram=8M,gpus=2"];

fn pager(device: &str) -> Pager {
    let builder = Pager::builder(device).unwrap();
    builder.host(8 * MIB).open().unwrap()
}

fn range(pages: &Arc<[HostPage]>) -> HostRange {
    HostRange::of(pages.clone()).unwrap()
}

/// The first `len` bytes.
fn part(pages: &Arc<[HostPage]>, len: u64) -> HostRange {
    let base = range(pages).base();
    // SAFETY: the pages are atomics, and owned by the range from here on.
    let part = unsafe { HostRange::new(base, len) };
    part.unwrap().owned_by(Arc::new(pages.clone()))
}

fn fill(pages: &[HostPage], byte: u8) {
    for at in pages.iter().flat_map(HostPage::bytes) {
        at.store(byte, Ordering::Relaxed);
    }
}

fn all(pages: &[HostPage], byte: u8) -> bool {
    let mut bytes = pages.iter().flat_map(HostPage::bytes);
    bytes.all(|at| at.load(Ordering::Relaxed) == byte)
}

/// Waits until nobody has the memory any more.
fn given_back(memory: &Weak<[HostPage]>) {
    let start = Instant::now();
    while memory.strong_count() > 0 {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "never given back"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_device_reads_and_writes_the_callers_own_bytes_at_the_callers_address() {
    for device in DEVICES {
        let pager = pager(device);
        let pages = HostPage::zeroed(64);
        let import = pager.import(&range(&pages)).unwrap();
        assert_eq!(import.gpu_address().0, pages.as_ptr().addr() as u64);
        assert!(
            import.last_access().is_none(),
            "{device}: nobody used it yet"
        );
        let buffer = pager.buffer("copy", import.len()).create().unwrap();

        fill(&pages, 3);
        let mut work = pager.submission();
        work.copy((&import, 0), (&buffer, 0), import.len()).unwrap();
        work.fill(&import, 0, import.len(), 4).unwrap();
        work.submit().unwrap();
        import.last_access().unwrap().wait().unwrap();
        assert!(all(&pages, 4), "{device}: filled by the device");
        let mut seen = [0; 4096];
        buffer.read(63 * PAGE, &mut seen).unwrap();
        assert_eq!(seen, [3; 4096], "{device}: copied by the device");

        drop((work, import, buffer));
        pager.check();
        assert!(pager.close().unwrap().is_zero(), "{device}");
        assert_eq!(Arc::strong_count(&pages), 1, "{device}: given back");
        assert!(all(&pages, 4), "{device}: not freed");
    }
}

#[test]
fn memory_that_is_dropped_under_way_stays_until_the_last_access_is_over() {
    const LATENCY: Duration = Duration::from_millis(300);
    let pager = pager("nv:sim,vram=8M,latency=300ms");
    let pages = HostPage::zeroed(4);
    let memory = Arc::downgrade(&pages);
    let import = pager.import(&range(&pages)).unwrap();
    drop(pages);
    let start = Instant::now();
    let mut work = pager.submission();
    work.fill(&import, 0, PAGE, 1).unwrap();
    let submitted = work.submit().unwrap();
    drop((work, import));
    assert!(memory.strong_count() > 0, "the device may still write it");
    given_back(&memory);
    assert!(start.elapsed() >= LATENCY, "given back before the work ran");
    submitted.wait().unwrap();
    assert!(pager.close().unwrap().is_zero());
}

#[test]
fn memory_that_is_not_whole_pages_is_refused_with_its_numbers() {
    let none = HostRange::of(HostPage::zeroed(0)).unwrap_err();
    let error = Error::from(Misaligned { len: 100, ..none });
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = format!(
        "host memory at {:#x} with 100 bytes is not made of whole pages of 4096 bytes",
        none.address
    );
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_range_imported_twice_is_pinned_once_and_returned_with_the_last() {
    for device in DEVICES {
        let pager = pager(device);
        let pages = HostPage::zeroed(3);
        let first = pager.import(&range(&pages)).unwrap();
        let second = pager.import(&range(&pages)).unwrap();
        let third = second.clone();
        assert_eq!(pager.stats().device.pinned, 3, "{device}");
        drop((first, second));
        let mut work = pager.submission();
        work.fill(&third, 0, third.len(), 9).unwrap();
        work.submit().unwrap().wait().unwrap();
        assert!(all(&pages, 9), "{device}");
        drop(third);
        assert!(Arc::strong_count(&pages) > 1, "{device}: the work names it");
        drop(work);
        let memory = Arc::downgrade(&pages);
        drop(pages);
        given_back(&memory);
        assert_eq!(pager.stats().device.pinned, 0, "{device}");
        assert!(pager.close().unwrap().is_zero(), "{device}");
    }
}

#[test]
fn memory_is_imported_again_in_another_length_as_soon_as_its_work_is_over() {
    for device in DEVICES {
        let pager = pager(device);
        let pages = HostPage::zeroed(4);
        for round in 0..500 {
            for len in [PAGE, 3 * PAGE] {
                let import = pager.import(&part(&pages, len));
                import.unwrap_or_else(|error| panic!("{device}, round {round}: {error}"));
            }
        }
        assert!(pager.close().unwrap().is_zero(), "{device}");
    }
}

#[test]
fn memory_whose_last_import_is_still_used_is_refused_until_that_is_over() {
    let pager = pager("nv:sim,vram=8M,latency=300ms");
    let pages = HostPage::zeroed(4);
    let import = pager.import(&part(&pages, PAGE)).unwrap();
    let mut work = pager.submission();
    work.fill(&import, 0, PAGE, 1).unwrap();
    let submitted = work.submit().unwrap();
    drop((work, import));
    let error = pager.import(&range(&pages)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(
        error
            .to_string()
            .ends_with("an import that is being released"),
        "{error}"
    );
    submitted.wait().unwrap();
    let again = pager.import(&range(&pages)).unwrap();
    drop(again);
    assert!(pager.close().unwrap().is_zero());
}

#[test]
fn two_devices_use_one_memory_at_one_address() {
    for device in DEVICES {
        let pagers: Vec<Pager> = Pager::builders(device)
            .unwrap()
            .into_iter()
            .map(|builder| builder.host(8 * MIB).open().unwrap())
            .collect();
        let pages = HostPage::zeroed(2);
        let imports = [0, 1].map(|n| pagers[n].import(&range(&pages)).unwrap());
        assert_eq!(imports[0].gpu_address(), imports[1].gpu_address());
        for (byte, (pager, import)) in (1..).zip(pagers.iter().zip(imports)) {
            let mut work = pager.submission();
            work.fill(&import, 0, import.len(), byte).unwrap();
            work.submit().unwrap().wait().unwrap();
            assert!(all(&pages, byte), "{device}");
        }
        for pager in pagers {
            assert!(pager.close().unwrap().is_zero(), "{device}");
        }
        assert_eq!(Arc::strong_count(&pages), 1, "{device}");
    }
}

#[test]
fn what_cannot_be_imported_or_used_is_said_and_changes_nothing() {
    let (pager, other) = (pager(DEVICES[0]), pager(DEVICES[0]));
    let pages = HostPage::zeroed(4);
    let import = pager.import(&range(&pages)).unwrap();
    let before = pager.stats().device;

    let half = part(&pages, 2 * PAGE);
    let error = pager.import(&half).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(matches!(error, Error::AddressesInUse { .. }), "{error}");

    let mut work = pager.submission();
    let error = work.fill(&import, 3 * PAGE, PAGE + 1, 0).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("4097 bytes at offset 12288 leave `memory at 0x")
    );
    let error = work.copy((&import, 0), (&import, 5), 6).unwrap_err();
    assert!(matches!(error, Error::Overlap { len: 6, .. }), "{error}");
    let error = other.submission().read(&import).map(drop).unwrap_err();
    assert!(matches!(error, Error::Foreign { .. }), "{error}");

    assert_eq!(pager.stats().device, before);
    drop(work);
    let error = pager.close().unwrap_err();
    let kept = matches!(
        error,
        Error::InUse {
            buffers: 0,
            imports: 1
        }
    );
    assert!(kept, "{error}");
    drop((import, half));
    assert_eq!(Arc::strong_count(&pages), 1, "closed with the last import");
}

/// Mission rows A6, A13: the calls of an import, each failing once.
#[test]
fn an_import_that_fails_at_any_stage_leaves_nothing_and_can_be_tried_again() {
    // Opening reserves three ranges and makes two mappings.
    for fault in ["import:1", "reserve-va:4", "map-gpu:3"] {
        let pager = pager(&format!("sim:vram=8M,bar=1M,fault={fault}"));
        let before = pager.stats().device;
        let pages = HostPage::zeroed(1);
        let error = pager.import(&range(&pages)).unwrap_err();
        assert!(matches!(error, Error::Device(_)), "{fault}: {error}");
        assert_eq!(pager.stats().device, before, "{fault}");
        assert_eq!(Arc::strong_count(&pages), 1, "{fault}");
        drop(pager.import(&range(&pages)).unwrap());
        assert!(pager.close().unwrap().is_zero(), "{fault}");
        assert_eq!(Arc::strong_count(&pages), 1, "{fault}");
    }
}

/// The same for the way back, also that of an import which failed.
#[test]
fn memory_that_the_device_will_not_give_back_is_kept_and_tried_again() {
    for (fault, refused) in [
        ("unmap-gpu:1", false),
        ("release-va:1", false),
        ("destroy:1", false),
        ("map-gpu:3,fault=release-va:1", true),
        ("map-gpu:3,fault=destroy:1", true),
        ("reserve-va:4,fault=destroy:1", true),
    ] {
        let pager = pager(&format!("sim:vram=8M,bar=1M,fault={fault}"));
        let pages = HostPage::zeroed(1);
        let imported = pager.import(&range(&pages));
        assert_eq!(imported.is_err(), refused, "{fault}");
        let memory = Arc::downgrade(&pages);
        drop((imported, pages));
        given_back(&memory);
        assert!(pager.close().unwrap().is_zero(), "{fault}");
    }
}

fn pagers(device: &str) -> [Pager; 2] {
    let builders = Pager::builders(device).unwrap().into_iter();
    let pagers = builders.map(|builder| builder.host(8 * MIB).open().unwrap());
    let pagers: Vec<Pager> = pagers.collect();
    pagers.try_into().unwrap()
}

/// Mission row A8: device to device, at the same address, counted by buffer and device.
#[test]
fn a_buffer_is_used_by_another_device_at_its_address_and_moves_again_afterwards() {
    for device in DEVICES {
        let [owner, other] = pagers(device);
        let buffer = Arc::new(owner.buffer("shared", 2 * MIB).create().unwrap());
        let copy = other.buffer("copy", 2 * MIB).create().unwrap();
        buffer.write(0, &vec![5; 2 << 20]).unwrap();
        let there = other.share(&buffer).unwrap();
        let again = other.share(&buffer).unwrap();
        assert_eq!(there.gpu_address(), again.gpu_address(), "{device}");
        assert_eq!(there.len(), 2 * MIB);
        let mut work = other.submission();
        work.copy((&there, 0), (&copy, 0), 2 * MIB).unwrap();
        work.fill(&again, MIB, MIB, 6).unwrap();
        drop((there, again));
        work.submit().unwrap().wait().unwrap();

        // Pinned in VRAM as long as it is shared.
        let rest = owner.buffer("rest", 7 * MIB).create().unwrap();
        let crowd = || owner.submission().fill(&rest, 0, 1, 0)?.submit();
        assert_eq!(
            crowd().unwrap_err().kind(),
            ErrorKind::OutOfMemory,
            "{device}"
        );
        drop(work);
        let start = Instant::now();
        while let Err(error) = crowd() {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "{device}: {error}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        // It was evicted with what the other device wrote.
        let mut seen = vec![0; 2 << 20];
        buffer.read(0, &mut seen).unwrap();
        assert!(seen[..1 << 20].iter().all(|&byte| byte == 5), "{device}");
        assert!(seen[1 << 20..].iter().all(|&byte| byte == 6), "{device}");
        copy.read(0, &mut seen).unwrap();
        assert!(seen.iter().all(|&byte| byte == 5), "{device}");
        drop((buffer, rest, copy));
        for pager in [owner, other] {
            pager.check();
            assert!(pager.close().unwrap().is_zero(), "{device}");
        }
    }
}

/// A clean buffer is dropped instead of copied when it has to leave: not one that was shared.
#[test]
fn what_another_device_wrote_into_a_clean_buffer_is_not_lost() {
    let [owner, other] = pagers(DEVICES[0]);
    let buffer = Arc::new(owner.buffer("zeros", PAGE).create().unwrap());
    let there = other.share(&buffer).unwrap();
    let mut work = other.submission();
    work.fill(&there, 0, PAGE, 6).unwrap();
    work.submit().unwrap().wait().unwrap();
    drop((work, there));
    while Arc::strong_count(&buffer) > 1 {
        std::thread::yield_now();
    }
    let crowd = owner.buffer("crowd", 8 * MIB).create().unwrap();
    let mut work = owner.submission();
    work.fill(&crowd, 0, 1, 0).unwrap();
    work.submit().unwrap();
    assert_ne!(buffer.residency(), Some(MemType::VRAM));
    let mut seen = [0; 4096];
    buffer.read(0, &mut seen).unwrap();
    assert_eq!(seen, [6; 4096]);
}

#[test]
fn a_buffer_that_is_dropped_while_shared_lives_until_the_other_device_is_done() {
    let [owner, other] = pagers(DEVICES[1]);
    let buffer = Arc::new(owner.buffer("shared", PAGE).create().unwrap());
    let there = other.share(&buffer).unwrap();
    let gone = Arc::downgrade(&buffer);
    drop(buffer);
    let error = owner.close().unwrap_err();
    assert!(matches!(error, Error::InUse { buffers: 1, .. }), "{error}");
    let mut work = other.submission();
    work.fill(&there, 0, PAGE, 1).unwrap();
    work.submit().unwrap().wait().unwrap();
    drop((work, there));
    let start = Instant::now();
    while gone.strong_count() > 0 {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "never given back"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(other.close().unwrap().is_zero());
}

#[test]
fn closing_waits_for_what_another_device_has_dropped_and_still_uses() {
    let [owner, other] = pagers("nv:sim,vram=8M,gpus=2,latency=100ms");
    let buffer = Arc::new(owner.buffer("shared", PAGE).create().unwrap());
    let there = other.share(&buffer).unwrap();
    let mut work = other.submission();
    work.fill(&there, 0, PAGE, 1).unwrap();
    let submitted = work.submit().unwrap();
    drop((work, there, buffer));
    assert!(owner.close().unwrap().is_zero());
    submitted.wait().unwrap();
    assert!(other.close().unwrap().is_zero());
}

#[test]
fn closing_does_not_count_what_a_worker_is_just_giving_back() {
    for round in 0..200 {
        let [owner, other] = pagers(DEVICES[1]);
        let buffer = Arc::new(owner.buffer("shared", PAGE).create().unwrap());
        drop(other.share(&buffer).unwrap());
        drop(buffer);
        let left = owner.close();
        let left = left.unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert!(left.is_zero(), "round {round}: {left:?}");
        assert!(other.close().unwrap().is_zero());
    }
}

#[test]
fn a_buffer_of_another_context_or_of_the_same_pager_cannot_be_shared() {
    let (one, other) = (pager(DEVICES[0]), pager(DEVICES[0]));
    let buffer = Arc::new(one.buffer("mine", PAGE).create().unwrap());
    for pager in [&one, &other] {
        let error = pager.share(&buffer).unwrap_err();
        assert!(matches!(error, Error::Foreign { .. }), "{error}");
    }
    drop(buffer);
    assert!(one.close().unwrap().is_zero());
}

/// Mission rows A6, A13, for a buffer of another device.
#[test]
fn sharing_that_fails_at_any_stage_leaves_the_buffer_unpinned_and_can_be_tried_again() {
    // Faults are for both devices: the owner makes none of these calls meanwhile.
    for fault in ["share:1", "reserve-va:5", "map-gpu:4"] {
        let [owner, other] = pagers(&format!("sim:vram=8M,bar=1M,gpus=2,fault={fault}"));
        let buffer = Arc::new(owner.buffer("shared", PAGE).create().unwrap());
        let unused = other.buffer("unused", PAGE).create().unwrap();
        other
            .submission()
            .fill(&unused, 0, 1, 0)
            .unwrap()
            .submit()
            .unwrap();
        let before = other.stats().device;
        let error = other.share(&buffer).unwrap_err();
        assert!(matches!(error, Error::Device(_)), "{fault}: {error}");
        assert_eq!(other.stats().device, before, "{fault}");
        assert_eq!(Arc::strong_count(&buffer), 1, "{fault}");
        drop(other.share(&buffer).unwrap());
        drop((buffer, unused));
        assert!(other.close().unwrap().is_zero(), "{fault}");
        assert!(owner.close().unwrap().is_zero(), "{fault}");
    }
}
