//! SYSTEM and device memory have no direct way: the GTT is between (TTM V8).

use crate::rig::{PAGE, Rig, pattern};
use vrampager_core::{ErrorKind, MemType, Placement};

/// TTM `ttm_bo_validate_multihop`.
#[test]
fn a_buffer_goes_from_vram_to_system_over_the_gtt() {
    let mut rig = Rig::new(4, 4, 8, 0);
    let id = rig.dirty("b", 4, 1);
    let before = rig.device.snapshot().totals.device_to_host;

    rig.move_to(id, MemType::SYSTEM).unwrap();

    assert_eq!(rig.residency(id), Some(MemType::SYSTEM));
    let copied = rig.device.snapshot().totals.device_to_host - before;
    assert_eq!(copied, 4 * PAGE, "bytes cross the bus once");
    assert_eq!(rig.read(id).unwrap(), pattern(1, 4));
    assert!(rig.close(&[id]));
}

#[test]
fn a_buffer_goes_from_system_to_vram_over_the_gtt() {
    let mut rig = Rig::new(4, 4, 8, 0);
    let id = rig.create("b", 4, Placement::vram());
    rig.write(id, &pattern(1, 4)).unwrap();
    let start = rig.residency(id);

    rig.touch(&[id]).unwrap();

    assert_eq!(start, Some(MemType::SYSTEM));
    assert_eq!(rig.residency(id), Some(MemType::VRAM));
    assert_eq!(rig.device.snapshot().totals.host_to_device, 4 * PAGE);
    assert_eq!(rig.read(id).unwrap(), pattern(1, 4));
    assert!(rig.close(&[id]));
}

#[test]
fn a_hop_makes_its_own_room_in_the_gtt() {
    let mut rig = Rig::new(4, 4, 16, 0);
    let id = rig.dirty("b", 4, 1);
    let squatter = rig.create("squatter", 4, Placement::gtt());
    rig.write(squatter, &pattern(2, 4)).unwrap();
    rig.touch(&[squatter]).unwrap();

    rig.move_to(id, MemType::SYSTEM).unwrap();

    assert_eq!(rig.residency(id), Some(MemType::SYSTEM));
    assert_eq!(rig.residency(squatter), Some(MemType::SYSTEM));
    assert_eq!(rig.read(squatter).unwrap(), pattern(2, 4));
    assert!(rig.close(&[id, squatter]));
}

/// The buffer to be placed and the victim that has to leave want the GTT at the same time
/// (found by the simulation, seed 5094).
#[test]
fn a_buffer_in_the_gtt_steps_aside_for_the_victim_that_makes_room_for_it() {
    let mut rig = Rig::new(7, 8, 32, 0);
    let victim = rig.dirty("victim", 6, 1);
    let id = rig.create("b", 4, Placement::vram());
    rig.write(id, &pattern(2, 4)).unwrap();
    rig.move_to(id, MemType::GTT).unwrap();

    rig.touch(&[id]).unwrap();

    assert_eq!(rig.residency(id), Some(MemType::VRAM));
    assert_eq!(rig.read(id).unwrap(), pattern(2, 4));
    assert_eq!(rig.read(victim).unwrap(), pattern(1, 6));
    assert!(rig.close(&[victim, id]));
}

#[test]
fn a_buffer_without_a_hop_stays_where_it_was() {
    let mut rig = Rig::new(4, 4, 16, 0);
    let id = rig.dirty("b", 4, 1);
    let wall = rig.create("wall", 4, Placement::gtt());
    rig.pin(wall).unwrap();

    let refused = rig.move_to(id, MemType::SYSTEM).unwrap_err();

    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    let text = refused.to_string();
    assert!(text.contains("GTT 16 KiB: 0 B free"), "{text}");
    assert!(text.contains("16 KiB pinned"), "{text}");
    assert_eq!(rig.residency(id), Some(MemType::VRAM));
    assert_eq!(rig.read(id).unwrap(), pattern(1, 4));
    assert!(rig.close(&[id, wall]));
}
