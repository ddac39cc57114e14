//! What a user of the library may ask for, and what he hears when it is wrong.
#![expect(clippy::unwrap_used, reason = "a step that fails ends the test")]

use std::fs::File;

use vrampager::{Error, ErrorKind, MemType, Pager, Placement};
use vrampager_core::Limits;
use vrampager_hal::{ChannelKind, DeviceId, Discovery};
use vrampager_nv::{Nv, Planes};

const MIB: u64 = 1 << 20;

fn pager() -> Pager {
    Pager::builder("sim:vram=8M,bar=1M")
        .unwrap()
        .host(8 * MIB)
        .open()
        .unwrap()
}

#[test]
fn an_unknown_kind_of_device_is_refused_with_the_known_ones() {
    let error = Pager::builder("cuda:0").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(
        error.to_string(),
        "device `cuda:0` is of no known kind; use `sim:KEY=VALUE,...`, `nv`, `nv:0` \
         or `nv:sim,KEY=VALUE,...`"
    );
}

#[test]
fn a_simulated_nvidia_gpu_pages_like_any_other() {
    let pager = Pager::builder("nv:sim,vram=8M").unwrap().host(32 * MIB);
    let pager = pager.open().unwrap();
    let buffers: Vec<_> = (0..6)
        .map(|n| pager.buffer(&format!("part {n}"), 4 * MIB).create())
        .collect::<Result<_, _>>()
        .unwrap();
    for (byte, buffer) in (1..).zip(&buffers) {
        let mut work = pager.submission();
        work.fill(buffer, 0, 4 * MIB, byte).unwrap();
        work.submit().unwrap();
    }
    for (byte, buffer) in (1..).zip(&buffers) {
        let mut seen = [0; 4096];
        buffer.read(4 * MIB - 4096, &mut seen).unwrap();
        assert_eq!(seen, [byte; 4096]);
    }
    pager.check();
    drop(buffers);
    assert!(pager.close().unwrap().is_zero());
}

#[test]
fn a_gpu_that_the_machine_lacks_is_refused_with_a_typed_error() {
    let error = Pager::builder("nv:4096").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    let text = error.to_string();
    let node = File::options()
        .read(true)
        .write(true)
        .open("/dev/nvidiactl");
    match node.map_err(|error| error.raw_os_error().unwrap()) {
        Ok(_) => assert_eq!(text, "no device 0"),
        Err(errno) => {
            let error = std::io::Error::from_raw_os_error(errno);
            assert_eq!(text, format!("/dev/nvidiactl cannot be opened: {error}"));
        }
    }
}

#[test]
fn a_wrong_key_in_a_device_string_is_named() {
    let error = Pager::builder("sim:vram=12Q").unwrap_err();
    assert!(error.to_string().contains("`vram`"), "{error}");
}

#[test]
fn a_device_string_without_keys_uses_the_defaults() {
    assert_eq!(Pager::builder("sim").unwrap().info().vram_bytes, 256 * MIB);
}

#[test]
fn work_submitted_before_a_buffer_is_dropped_still_finishes() {
    let pager = pager();
    let (kept, dropped) = (
        pager.buffer("kept", MIB).create().unwrap(),
        pager.buffer("dropped", MIB).create().unwrap(),
    );
    let mut job = pager.submission();
    job.fill(&dropped, 0, MIB, 7)
        .unwrap()
        .copy((&dropped, 0), (&kept, 0), MIB)
        .unwrap();
    let work = job.submit().unwrap();
    drop(dropped);
    work.wait().unwrap();
    let mut byte = [0];
    kept.read(MIB - 1, &mut byte).unwrap();
    assert_eq!(byte, [7]);
}

#[test]
fn a_pinned_buffer_keeps_its_address_while_others_pass_through() {
    let pager = pager();
    let pinned = pager.buffer("pinned", 4 * MIB).create().unwrap();
    pinned.write(0, &[9; 16]).unwrap();
    let pin = pinned.pin().unwrap();
    let address = pin.gpu_address();
    for i in 0..4 {
        let other = pager
            .buffer(&format!("other{i}"), 4 * MIB)
            .create()
            .unwrap();
        pager
            .submission()
            .fill(&other, 0, 1, 1)
            .unwrap()
            .submit()
            .unwrap()
            .wait()
            .unwrap();
    }
    assert_eq!(pinned.residency(), Some(MemType::VRAM));
    assert_eq!(pin.gpu_address(), address);
    let large = pager.buffer("large", 6 * MIB).create().unwrap();
    let error = pager
        .submission()
        .read(&large)
        .unwrap()
        .submit()
        .unwrap_err();
    assert!(error.to_string().contains("4 MiB pinned"), "{error}");
    drop(pin);
    pager
        .submission()
        .read(&large)
        .unwrap()
        .submit()
        .unwrap()
        .wait()
        .unwrap();
    let mut back = [0; 16];
    pinned.read(0, &mut back).unwrap();
    assert_eq!(back, [9; 16]);
}

#[test]
fn moving_a_buffer_on_request_keeps_its_bytes() {
    let pager = pager();
    let buffer = pager.buffer("wanderer", MIB + 1).create().unwrap();
    buffer.write(MIB, b"!").unwrap();
    let stations = [
        (Placement::vram(), MemType::VRAM),
        (Placement::system(), MemType::SYSTEM),
        (Placement::gtt(), MemType::GTT),
        (Placement::vram(), MemType::VRAM),
    ];
    for (placement, expected) in stations {
        buffer.move_to(placement).unwrap();
        assert_eq!(buffer.residency(), Some(expected));
        let mut byte = [0];
        buffer.read(MIB, &mut byte).unwrap();
        assert_eq!(&byte, b"!", "in {expected}");
    }
}

#[test]
fn ranges_outside_a_buffer_are_refused_with_its_name_and_size() {
    let pager = pager();
    let (a, b) = (
        pager.buffer("a", 10).create().unwrap(),
        pager.buffer("b", 10).create().unwrap(),
    );
    let wrong = [
        a.read(10, &mut [0]).unwrap_err(),
        a.write(u64::MAX, &[0]).unwrap_err(),
        pager.submission().fill(&a, 5, 6, 0).map(drop).unwrap_err(),
        pager
            .submission()
            .copy((&a, 0), (&b, 1), 10)
            .map(drop)
            .unwrap_err(),
    ];
    for error in wrong {
        assert!(matches!(error, Error::Range { size: 10, .. }), "{error}");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let error = pager
        .submission()
        .copy((&a, 0), (&a, 4), 5)
        .map(drop)
        .unwrap_err();
    assert!(matches!(error, Error::Overlap { len: 5, .. }), "{error}");
}

#[test]
fn a_buffer_of_another_pager_is_refused() {
    let (here, there) = (pager(), pager());
    let foreign = there.buffer("foreign", 1).create().unwrap();
    let error = here.submission().read(&foreign).map(drop).unwrap_err();
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
}

#[test]
fn an_empty_buffer_is_refused() {
    let error = pager().buffer("empty", 0).create().unwrap_err();
    assert_eq!(error.to_string(), "invalid request: buffer is empty");
}

#[test]
fn a_buffer_larger_than_the_address_space_is_refused() {
    let error = pager().buffer("huge", u64::MAX).create().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn closing_with_live_buffers_says_how_many() {
    let pager = pager();
    let _alive = pager.buffer("alive", 1).create().unwrap();
    let error = pager.close().unwrap_err();
    assert!(
        matches!(
            error,
            Error::InUse {
                buffers: 1,
                imports: 0
            }
        ),
        "{error}"
    );
}

#[test]
fn empty_work_is_done_at_once() {
    let pager = pager();
    pager.submission().submit().unwrap().wait().unwrap();
    let a = pager.buffer("a", 1).create().unwrap();
    pager
        .submission()
        .fill(&a, 1, 0, 3)
        .unwrap()
        .submit()
        .unwrap()
        .wait()
        .unwrap();
}

#[test]
fn limits_larger_than_the_device_are_refused_with_numbers() {
    let error = Pager::builder("sim:vram=8M")
        .unwrap()
        .vram(9 * MIB)
        .open()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(
        error
            .to_string()
            .contains("VRAM heap has 8 MiB free, 9 MiB needed"),
        "{error}"
    );
}

/// Case R6: the source of a move stays authoritative until the copy is over.
#[test]
fn a_copy_that_fails_midway_is_repeated_and_loses_nothing() {
    let device = "sim:vram=8M,fault=copy:2:100,fault=copy:5:0";
    let pager = Pager::builder(device)
        .unwrap()
        .host(16 * MIB)
        .open()
        .unwrap();
    let buffers: Vec<_> = (0..6)
        .map(|i| pager.buffer(&format!("b{i}"), 3 * MIB).create().unwrap())
        .collect();
    for (byte, buffer) in (0..).zip(&buffers) {
        buffer.write(0, &vec![byte; 3 << 20]).unwrap();
        buffer.move_to(Placement::vram()).unwrap();
    }
    for (byte, buffer) in (0..).zip(&buffers) {
        let mut back = vec![99; 3 << 20];
        buffer.read(0, &mut back).unwrap();
        assert!(back.iter().all(|&each| each == byte), "b{byte}");
    }
    drop(buffers);
    assert!(pager.close().unwrap().is_zero());
}

#[test]
fn a_channel_that_the_device_keeps_is_counted_when_the_pager_closes() {
    let pager = Pager::builder("sim:vram=8M,fault=destroy-channel:1");
    let pager = pager.unwrap().host(MIB).open().unwrap();
    pager.submission().submit().unwrap().wait().unwrap();
    let left = pager.close().unwrap();
    assert_eq!((left.channels, left.objects, left.va_bytes), (1, 0, 0));
}

#[test]
fn a_failure_is_told_once_however_its_causes_are_printed() {
    let pager = Pager::builder("sim:vram=8M,fault=create:1").unwrap();
    let error = pager.host(MIB).open().unwrap_err();
    assert!(error.to_string().starts_with("VRAM heap has "), "{error}");
    assert!(std::error::Error::source(&error).is_none());
}

/// A buffer pinned where it could be, not where it would rather be, stays usable.
#[test]
fn a_buffer_pinned_in_its_fallback_can_be_used_and_pinned_again() {
    let pager = pager();
    let full = pager.buffer("full", 8 * MIB).create().unwrap();
    let filled = full.pin().unwrap();
    let desc = pager
        .buffer("spilled", MIB)
        .placement(Placement::vram_or_gtt());
    let spilled = desc.create().unwrap();
    let first = spilled.pin().unwrap();
    assert_eq!(spilled.residency(), Some(MemType::GTT));
    drop(filled);
    let second = spilled.pin().unwrap();
    assert_eq!(second.gpu_address(), first.gpu_address());
    let mut work = pager.submission();
    work.fill(&spilled, 0, MIB, 5)
        .unwrap()
        .submit()
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(spilled.residency(), Some(MemType::GTT));
}

#[test]
fn a_lost_device_gives_its_memory_back_and_closes() {
    let pager = Pager::builder("sim:vram=8M,fault=lose:3")
        .unwrap()
        .host(8 * MIB)
        .open()
        .unwrap();
    let buffers: Vec<_> = (0..3)
        .map(|i| pager.buffer(&format!("b{i}"), MIB).create().unwrap())
        .collect();
    let errors = buffers.iter().filter_map(|buffer| {
        pager
            .submission()
            .fill(buffer, 0, MIB, 1)
            .unwrap()
            .submit()
            .and_then(|work| work.wait())
            .err()
    });
    assert!(
        errors
            .map(|error| error.kind())
            .any(|kind| kind == ErrorKind::DeviceLost)
    );
    drop(buffers);
    assert!(
        pager.close().unwrap().is_zero(),
        "releasing works on a lost device"
    );
}

#[test]
fn work_that_was_over_stays_over_when_the_pager_is_closed() {
    let pager = pager();
    let buffer = pager.buffer("b", MIB).create().unwrap();
    let work = pager
        .submission()
        .fill(&buffer, 0, MIB, 1)
        .unwrap()
        .submit()
        .unwrap();
    work.wait().unwrap();
    drop(buffer);
    pager.close().unwrap();
    work.wait().unwrap();
}

/// Mission row A4, down to the driver.
#[test]
fn an_open_device_has_no_channel_in_the_driver_before_its_first_work() {
    let nv = Nv::new("sim,vram=8M".parse().unwrap(), &Planes::default()).unwrap();
    let channels = || nv.simulated().unwrap().live().channels;
    let limits = Limits {
        vram: 4 * MIB,
        gtt: MIB,
        host: 2 * MIB,
        swap: 0,
    };
    let gpu = nv.open(DeviceId(0)).unwrap();
    let (_, runner) = vrampager_core::open(gpu, limits, None).unwrap();
    let stream = runner.open_stream(ChannelKind::Compute).unwrap();
    assert_eq!(channels(), 0);
    let fence = runner.submit(stream, &[], &[]).unwrap();
    assert_eq!(channels(), 1, "no copy has been asked for");
    runner.wait(fence).unwrap();
    assert!(runner.close().is_zero());
    assert_eq!(channels(), 0);
}

#[test]
fn each_engine_gets_its_channel_when_it_is_used_first() {
    let pager = pager();
    let channels = || pager.stats().device.channels;
    let buffers = ["a", "b"].map(|name| pager.buffer(name, 8 * MIB).create().unwrap());
    assert_eq!(channels(), 0);
    let mut work = pager.submission();
    work.fill(&buffers[0], 0, 1, 1).unwrap();
    work.submit().unwrap().wait().unwrap();
    // Clearing the buffer was the copy engine's.
    assert_eq!(channels(), 2);
    drop((work, buffers));
    assert!(pager.close().unwrap().is_zero());
}
