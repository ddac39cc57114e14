//! Errors explain themselves (mission row E3).

use crate::rig::{Rig, gpu_read};
use vrampager_core::{
    BufferId, Domain, Error, ErrorKind, Keep, MemType, Placement, Priority, Shortage, Target, Use,
};
use vrampager_hal::Access;

const PAGE: u64 = 4096;

fn shortage(result: Result<(), Error>) -> Shortage {
    match result {
        Err(Error::OutOfMemory(shortage)) => *shortage,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_that_cannot_fit_says_what_is_in_the_way() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let big = rig.create("big", 9, Placement::vram());

    let refused = shortage(rig.touch(&[big]));

    assert_eq!(
        refused.to_string(),
        "buffer `big` needs 36 KiB; VRAM 32 KiB: 32 KiB free, largest hole 32 KiB; \
         host pages 64 KiB: 64 KiB free, largest hole 64 KiB"
    );
    assert!(rig.close(&[big]));
}

#[test]
fn pinned_bytes_and_those_of_the_request_itself_are_told_apart() {
    let mut rig = Rig::new(8, 8, 32, 0);
    let pinned = rig.dirty("pinned", 3, 1);
    rig.pin(pinned).unwrap();
    let [first, second] = ["first", "second"].map(|name| rig.create(name, 3, Placement::vram()));

    let refused = shortage(rig.touch(&[first, second]));

    let vram = refused.domains[0];
    assert_eq!((&*refused.buffer, refused.needed), ("second", 3 * PAGE));
    assert_eq!(refused.request, 6 * PAGE);
    assert_eq!(vram.domain, Domain::Memory(MemType::VRAM));
    assert_eq!((vram.pinned, vram.own), (3 * PAGE, 3 * PAGE));
    assert_eq!((vram.space.free, vram.reserved), (2 * PAGE, 0));
    assert!(rig.close(&[pinned, first, second]));
}

#[test]
fn bytes_reserved_by_others_are_counted() {
    let mut rig = Rig::new(8, 8, 32, 0);
    let used = rig.dirty("used", 5, 1);
    let (task, _) = rig.exec(&[gpu_read(used)]).unwrap();

    let report = rig.report(Domain::Memory(MemType::VRAM));
    let reserved_by_nobody = report.reserved;
    let big = rig.create("big", 9, Placement::vram());
    let request = rig.device.exec(&[gpu_read(big)]).unwrap();
    let step = rig.step(request);
    rig.device.abort(request);

    // The holder may let go, so the younger request waits rather than fail.
    assert!(matches!(step, Some(vrampager_core::Step::Blocked)));
    assert_eq!(reserved_by_nobody, 5 * PAGE);
    rig.device.finish(task, None, Keep::Evictable);
    assert!(rig.close(&[used, big]));
}

#[test]
fn bytes_pending_behind_fences_are_counted() {
    let mut rig = Rig::new(8, 8, 32, 0);
    let id = rig.create("b", 5, Placement::vram());
    rig.gpu_fill(&[(id, 1)]).unwrap();
    rig.device.release(id).unwrap();

    let report = rig.report(Domain::Memory(MemType::VRAM));

    assert_eq!((report.pending, report.space.free), (5 * PAGE, 3 * PAGE));
    assert!(rig.close(&[]));
}

#[test]
fn an_out_of_memory_may_be_retried_and_an_invalid_request_may_not() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let big = rig.create("big", 9, Placement::vram());
    let empty = rig.device.create(&Rig::desc("empty", 0, Placement::vram()));
    let full = rig.touch(&[big]).unwrap_err();
    let invalid = empty.unwrap_err();

    assert_eq!(full.kind(), ErrorKind::OutOfMemory);
    assert!(full.is_retryable());
    assert_eq!(invalid, Error::Invalid("buffer is empty"));
    assert!(!invalid.is_retryable());
    assert!(rig.close(&[big]));
}

#[test]
fn ids_of_released_buffers_are_refused_everywhere() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let id = rig.create("b", 1, Placement::vram());
    rig.device.release(id).unwrap();

    let gone: Vec<Option<Error>> = vec![
        rig.device.release(id).err(),
        rig.device.unpin(id).err(),
        rig.device.residency(id).err(),
        rig.device.exec(&[gpu_read(id)]).err(),
        rig.device.exec(&[gpu_read(BufferId::default())]).err(),
    ];

    assert_eq!(gone, vec![Some(Error::NoSuchBuffer); 5]);
    assert!(rig.close(&[]));
}

/// TTM `ttm_bo_validate_invalid_placement` gives `-ENOMEM`; here it is told from a full domain.
#[test]
fn a_domain_that_the_device_lacks_is_an_invalid_request() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let id = rig.create("b", 1, Placement::vram());
    let missing = crate::rig::only(MemType::private(0).unwrap());
    let mut desc = Rig::desc("b", 1, missing.clone());
    desc.priority = Priority::HIGHEST;

    let created = rig.device.create(&desc);
    let placed = rig.device.exec(&[Use {
        buffer: id,
        access: Access::Read,
        target: Target::Places(missing),
    }]);

    let expected = Error::Invalid("placement names a domain the device lacks");
    assert_eq!(created, Err(expected.clone()));
    assert_eq!(placed, Err(expected));
    assert!(rig.close(&[id]));
}
