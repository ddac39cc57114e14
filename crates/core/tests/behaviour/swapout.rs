//! The swap file: the last tier, and the one that fails (case R8).

use std::io::ErrorKind as Io;

use crate::rig::{PAGE, Rig, pattern};
use vrampager_core::{BufferId, Domain, Error, Placement};
use vrampager_hal::StorageError;
use vrampager_sim::StorageFault;

/// Host pages hold two buffers of four pages; everything else has to be swapped.
fn small_host(swap: u64) -> Rig {
    Rig::new(4, 8, 8, swap)
}

/// Dirty host buffers, as many as can be written; the error that ended it, if one did.
fn fill(rig: &mut Rig, count: u8) -> (Vec<BufferId>, Vec<Error>) {
    let mut errors = Vec::new();
    let ids = (0..count).map(|seed| {
        let id = rig.create("b", 4, Placement::gtt());
        let written = rig.write(id, &pattern(seed, 4));
        errors.extend(written.err());
        id
    });
    (ids.collect(), errors)
}

fn contents(rig: &mut Rig, ids: &[BufferId]) -> Vec<Vec<u8>> {
    ids.iter().map(|&id| rig.read(id).unwrap()).collect()
}

fn written(count: u8) -> Vec<Vec<u8>> {
    (0..count).map(|seed| pattern(seed, 4)).collect()
}

#[test]
fn buffers_come_back_from_swap_as_they_went() {
    let mut rig = small_host(64);

    let (ids, errors) = fill(&mut rig, 6);
    let swapped = rig.report(Domain::Swap).space;

    assert_eq!(errors, []);
    assert!(swapped.free < swapped.size);
    assert_eq!(contents(&mut rig, &ids), written(6));
    assert!(rig.close(&ids));
}

#[test]
fn a_write_that_fails_at_any_point_loses_nothing_and_another_victim_is_tried() {
    let faults = [StorageFault::NoSpace, StorageFault::Io(Io::Other)];
    // Four buffers are swapped out in the course of this, in one write or several each.
    for (nth, fault) in (1..=8).flat_map(|nth| faults.map(|fault| (nth, fault))) {
        let mut rig = small_host(64);
        rig.swap.fail_write(nth, fault);

        let (ids, errors) = fill(&mut rig, 6);

        assert_eq!(errors, [], "write {nth} fails with {fault:?}");
        assert_eq!(contents(&mut rig, &ids), written(6), "{nth} {fault:?}");
        assert!(rig.close(&ids), "{nth} {fault:?}");
    }
}

#[test]
fn a_swap_file_that_fails_for_every_victim_is_named_as_the_cause() {
    let mut rig = small_host(64);
    let (mut ids, _) = fill(&mut rig, 2);
    for nth in 1..=8 {
        rig.swap.fail_write(nth, StorageFault::NoSpace);
    }
    ids.push(rig.create("third", 4, Placement::gtt()));

    let refused = rig.write(ids[2], &pattern(2, 4)).unwrap_err();

    let Error::OutOfMemory(shortage) = &refused else {
        panic!("{refused}")
    };
    assert!(matches!(
        shortage.cause,
        Some(vrampager_core::EffectError::Storage(
            StorageError::NoSpace { .. }
        ))
    ));
    let text = refused.to_string();
    assert!(text.contains("swap 256 KiB: 256 KiB free"), "{text}");
    assert!(text.contains("making room failed: no space left"), "{text}");
    assert_eq!(contents(&mut rig, &ids[..2]), written(2));
}

#[test]
fn a_full_swap_file_is_reported_with_its_free_bytes() {
    let mut rig = small_host(4);
    let (mut ids, errors) = fill(&mut rig, 3);
    ids.push(rig.create("fourth", 4, Placement::gtt()));

    let refused = rig.write(ids[3], &pattern(3, 4)).unwrap_err();

    assert_eq!(errors, []);
    let text = refused.to_string();
    assert!(text.contains("swap 16 KiB: 0 B free"), "{text}");
    assert_eq!(contents(&mut rig, &ids[1..3]), written(3)[1..]);
    // The first is in swap, and comes back once something makes room.
    rig.device.release(ids[1]).unwrap();
    assert_eq!(rig.read(ids[0]).unwrap(), pattern(0, 4));
    assert!(rig.close(&[ids[0], ids[2], ids[3]]));
}

#[test]
fn a_swapped_buffer_goes_straight_to_vram() {
    let mut rig = Rig::new(4, 8, 8, 64);
    let first = rig.create("first", 4, Placement::vram());
    rig.write(first, &pattern(0, 4)).unwrap();
    let (mut ids, _) = fill(&mut rig, 4);
    let before = rig.device.snapshot().totals;

    rig.touch(&[first]).unwrap();

    let after = rig.device.snapshot().totals;
    assert_eq!(after.swap_read - before.swap_read, 4 * PAGE);
    assert_eq!(after.swap_written, before.swap_written);
    assert_eq!(rig.read(first).unwrap(), pattern(0, 4));
    ids.push(first);
    assert!(rig.close(&ids));
}

#[test]
fn a_read_error_of_the_swap_file_keeps_the_buffer_swapped_for_another_try() {
    let mut rig = small_host(64);
    let (ids, _) = fill(&mut rig, 4);
    rig.swap.fail_read(1, StorageFault::Io(Io::Other));

    let refused = rig.read(ids[0]).unwrap_err();

    assert!(refused.to_string().starts_with("buffer `b`: transfer of"));
    assert_eq!(contents(&mut rig, &ids), written(4));
    assert!(rig.close(&ids));
}
