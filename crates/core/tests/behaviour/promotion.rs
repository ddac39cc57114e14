//! Demoted buffers come back (case D12).

use crate::rig::{Rig, pattern};
use vrampager_core::{MemType, Placement};

const VRAM: Option<MemType> = Some(MemType::VRAM);

#[test]
fn a_hot_set_is_back_in_vram_with_its_next_use_after_all_was_evicted() {
    let mut rig = Rig::new(64, 64, 128, 0);
    let hot = [1, 2, 3].map(|seed| rig.dirty("hot", 16, seed));
    for id in hot {
        rig.move_to(id, MemType::SYSTEM).unwrap();
    }

    rig.touch(&hot).unwrap();

    assert_eq!(hot.map(|id| rig.residency(id)), [VRAM; 3]);
    let contents = hot.map(|id| rig.read(id).unwrap());
    assert_eq!(contents, [1, 2, 3].map(|seed| pattern(seed, 16)));
    assert!(rig.close(&hot));
}

#[test]
fn a_buffer_that_had_to_fall_back_is_promoted_once_there_is_room() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let wall = rig.dirty("wall", 8, 1);
    rig.pin(wall).unwrap();
    let id = rig.create("b", 4, Placement::vram_or_gtt());
    rig.write(id, &pattern(2, 4)).unwrap();
    rig.touch(&[id]).unwrap();
    let fallen_back = rig.residency(id);
    rig.device.release(wall).unwrap();
    rig.reap_all();

    rig.touch(&[id]).unwrap();

    assert_eq!(fallen_back, Some(MemType::GTT));
    assert_eq!(rig.residency(id), VRAM);
    assert_eq!(rig.read(id).unwrap(), pattern(2, 4));
    assert!(rig.close(&[id]));
}

/// Promotion is for room that is free: it evicts nobody.
#[test]
fn a_buffer_in_its_fallback_stays_there_rather_than_evict() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let wall = rig.dirty("wall", 8, 1);
    rig.pin(wall).unwrap();
    let id = rig.create("b", 4, Placement::vram_or_gtt());
    rig.touch(&[id]).unwrap();
    rig.device.unpin(wall).unwrap();

    rig.touch(&[id]).unwrap();

    assert_eq!(rig.residency(wall), VRAM);
    assert_eq!(rig.residency(id), Some(MemType::GTT));
    assert!(rig.close(&[wall, id]));
}
