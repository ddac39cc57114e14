//! What happens when more is used than fits.

use crate::rig::{PAGE, Rig, gpu_read, pattern};
use vrampager_core::{Keep, MemType, Placement, Priority};

const VRAM: Option<MemType> = Some(MemType::VRAM);
const GTT: Option<MemType> = Some(MemType::GTT);
const SYSTEM: Option<MemType> = Some(MemType::SYSTEM);

#[test]
fn dirty_buffers_pass_through_every_tier_without_losing_a_byte() {
    // 8 buffers of 4 pages: VRAM holds two, the GTT two, host pages four, swap the rest.
    let mut rig = Rig::new(8, 8, 16, 64);
    let ids: Vec<_> = (0..8).map(|i| rig.dirty("b", 4, i)).collect();

    let totals = rig.device.snapshot().totals;
    let first: Vec<_> = ids.iter().map(|&id| rig.read(id).unwrap()).collect();
    for &id in &ids {
        rig.touch(&[id]).unwrap();
    }
    let second: Vec<_> = ids.iter().map(|&id| rig.read(id).unwrap()).collect();

    assert!(
        totals.swap_written > 0,
        "host pages are too few: {totals:?}"
    );
    let written: Vec<_> = (0..8).map(|i| pattern(i, 4)).collect();
    assert!(first == written && second == written);
    assert!(rig.close(&ids));
}

#[test]
fn the_least_recently_used_buffer_goes_first() {
    let mut rig = Rig::new(12, 16, 32, 0);
    let ids = [1, 2, 3].map(|seed| rig.dirty("b", 4, seed));
    rig.touch(&[ids[0]]).unwrap();

    let fourth = rig.dirty("fourth", 4, 4);

    let at: Vec<_> = ids.iter().map(|&id| rig.residency(id)).collect();
    assert_eq!(at, [VRAM, GTT, VRAM]);
    assert_eq!(rig.residency(fourth), VRAM);
    assert!(rig.close(&[ids[0], ids[1], ids[2], fourth]));
}

#[test]
fn a_lower_priority_goes_first_however_recently_used() {
    let mut rig = Rig::new(8, 16, 32, 0);
    let mut desc = Rig::desc("precious", 4, Placement::vram());
    desc.priority = Priority::HIGHEST;
    let precious = rig.create_desc(&desc).unwrap();
    rig.write(precious, &pattern(1, 4)).unwrap();
    rig.touch(&[precious]).unwrap();
    let recent = rig.dirty("recent", 4, 2);

    let third = rig.dirty("third", 4, 3);

    assert_eq!(rig.residency(precious), VRAM);
    assert_eq!(rig.residency(recent), GTT);
    assert!(rig.close(&[precious, recent, third]));
}

#[test]
fn a_clean_victim_is_dropped_without_a_copy() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let clean = rig.create("clean", 8, Placement::vram());
    rig.touch(&[clean]).unwrap();

    let next = rig.create("next", 8, Placement::vram());
    rig.touch(&[next]).unwrap();

    let totals = rig.device.snapshot().totals;
    assert_eq!(rig.residency(clean), None);
    assert_eq!((totals.dropped_clean, totals.device_to_host), (8 * PAGE, 0));
    assert_eq!(rig.read(clean).unwrap(), vec![0; 8 * 4096]);
    assert!(rig.close(&[clean, next]));
}

/// TTM `ttm_bo_validate_happy_evict`: only as many victims as it takes.
#[test]
fn no_more_is_evicted_than_the_request_needs() {
    let mut rig = Rig::new(256, 64, 512, 0);
    let ids = [(2, 1), (128, 2), (126, 3)].map(|(pages, seed)| rig.dirty("b", pages, seed));

    let small = rig.dirty("small", 1, 4);

    let at: Vec<_> = ids.iter().map(|&id| rig.residency(id)).collect();
    assert_eq!(at, [GTT, VRAM, VRAM]);
    assert_eq!(rig.residency(small), VRAM);
    assert_eq!(rig.device.snapshot().totals.device_to_host, 2 * PAGE);
    assert!(rig.close(&[ids[0], ids[1], ids[2], small]));
}

/// TTM `ttm_bo_validate_recrusive_evict`: the domain that victims go to is itself full.
#[test]
fn a_full_gtt_overflows_into_system_to_take_a_victim_from_vram() {
    let mut rig = Rig::new(4, 4, 16, 0);
    let oldest = rig.dirty("oldest", 4, 1);
    let middle = rig.dirty("middle", 4, 2);

    let newest = rig.dirty("newest", 4, 3);

    let at = [oldest, middle, newest].map(|id| rig.residency(id));
    assert_eq!(at, [SYSTEM, GTT, VRAM]);
    assert_eq!(rig.read(oldest).unwrap(), pattern(1, 4));
    assert!(rig.close(&[oldest, middle, newest]));
}

/// TTM `ttm_bo_validate_deleted_evict`: released memory is used before any victim is.
#[test]
fn room_comes_from_released_buffers_before_live_ones() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let live = rig.dirty("live", 4, 1);
    let released = rig.dirty("released", 4, 2);
    rig.device.release(released).unwrap();

    let next = rig.dirty("next", 4, 3);

    assert_eq!(rig.residency(live), VRAM);
    assert_eq!(rig.residency(next), VRAM);
    assert_eq!(rig.device.snapshot().totals.evictions, 0);
    assert!(rig.close(&[live, next]));
}

/// A victim that nothing can take is passed over (TTM E4), and one that fits is found behind it.
#[test]
fn a_victim_too_large_for_the_next_tier_does_not_hide_a_smaller_one() {
    let mut rig = Rig::new(8, 2, 16, 0);
    let large = rig.dirty("large", 6, 1);
    let small = rig.dirty("small", 2, 2);

    let next = rig.dirty("next", 2, 3);

    let at = [large, small, next].map(|id| rig.residency(id));
    assert_eq!(at, [VRAM, GTT, VRAM]);
    assert!(rig.close(&[large, small, next]));
}

#[test]
fn a_buffer_in_use_by_a_granted_request_is_not_evicted() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let used = rig.dirty("used", 4, 1);
    let idle = rig.dirty("idle", 4, 2);
    let (task, _) = rig.exec(&[gpu_read(used)]).unwrap();

    let next = rig.dirty("next", 4, 3);

    assert_eq!(rig.residency(used), VRAM);
    assert_eq!(rig.residency(idle), GTT);
    rig.device.finish(task, None, Keep::Evictable);
    assert!(rig.close(&[used, idle, next]));
}
