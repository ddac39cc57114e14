//! Where a buffer may be, and what is looked at first (TTM V2, V14).

use vrampager_addr::Span;

use crate::rig::{PAGE, Rig, gpu_read, only};
use vrampager_core::{
    BufferId, Bytes, End, Keep, Layout, MemType, Place, Placement, Preference, Target,
};

const VRAM: Option<MemType> = Some(MemType::VRAM);
const GTT: Option<MemType> = Some(MemType::GTT);

/// Where the bytes are in the copy engine's view of VRAM.
fn extents(rig: &mut Rig, id: BufferId) -> Vec<Span> {
    let (task, grant) = rig.exec(&[gpu_read(id)]).unwrap();
    rig.device.finish(task, None, Keep::Evictable);
    match grant.views[0].bytes.clone() {
        Bytes::Device(window) => window,
        Bytes::Host(pages) => panic!("in host pages {pages:?}"),
    }
}

fn vram(change: impl FnOnce(&mut Place)) -> Placement {
    let mut place = Place::new(MemType::VRAM);
    change(&mut place);
    Placement::new(&[place]).unwrap()
}

/// TTM `ttm_bo_validate_same_placement`.
#[test]
fn a_buffer_that_is_where_it_should_be_is_not_moved() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let id = rig.dirty("b", 4, 1);
    let before = rig.device.snapshot().totals;
    let ops = rig.sim.device(vrampager_hal::DeviceId(0)).unwrap().stats();

    rig.touch(&[id]).unwrap();
    rig.move_to(id, MemType::VRAM).unwrap();

    let after = rig.sim.device(vrampager_hal::DeviceId(0)).unwrap().stats();
    assert_eq!(rig.device.snapshot().totals, before);
    assert_eq!(after.copied_bytes, ops.copied_bytes);
    assert!(rig.close(&[id]));
}

/// V14: with plain places all are tried for free room before anything is evicted.
#[test]
fn a_free_second_choice_comes_before_evicting_from_the_first() {
    let mut rig = Rig::new(4, 8, 16, 0);
    let first = rig.dirty("first", 4, 1);
    let places = [MemType::VRAM, MemType::GTT].map(Place::new);
    let id = rig.create("b", 4, Placement::new(&places).unwrap());

    rig.touch(&[id]).unwrap();

    assert_eq!(rig.residency(first), VRAM);
    assert_eq!(rig.residency(id), GTT);
    assert!(rig.close(&[first, id]));
}

/// V14: {VRAM DESIRED, GTT FALLBACK} never evicts from VRAM.
#[test]
fn a_desired_place_is_given_up_quietly() {
    let mut rig = Rig::new(4, 8, 16, 0);
    let first = rig.dirty("first", 4, 1);
    let desired = Place::new(MemType::VRAM).with(Preference::Desired);
    let fallback = Place::new(MemType::GTT).with(Preference::Fallback);
    let id = rig.create("b", 4, Placement::new(&[desired, fallback]).unwrap());

    rig.touch(&[id]).unwrap();

    assert_eq!(rig.residency(first), VRAM);
    assert_eq!(rig.residency(id), GTT);
    assert!(rig.close(&[first, id]));
}

/// V2, V4: a fallback does not count while the first choice has room.
#[test]
fn a_buffer_in_its_fallback_moves_when_the_desired_place_has_room() {
    let mut rig = Rig::new(4, 8, 16, 0);
    let desired = Place::new(MemType::VRAM).with(Preference::Desired);
    let fallback = Place::new(MemType::GTT).with(Preference::Fallback);
    let id = rig.create("b", 4, Placement::new(&[desired, fallback]).unwrap());
    rig.move_to(id, MemType::GTT).unwrap();

    rig.touch(&[id]).unwrap();

    assert_eq!(rig.residency(id), VRAM);
    assert!(rig.close(&[id]));
}

/// TTM `ttm_bo_validate_basic` with `TOPDOWN`.
#[test]
fn the_top_end_is_carved_from_the_top() {
    let mut rig = Rig::new(16, 8, 16, 0);
    let low = rig.create("low", 1, Placement::vram());
    let high = rig.create("high", 1, vram(|place| place.end = End::Top));

    rig.touch(&[low, high]).unwrap();

    let distance = extents(&mut rig, high)[0].start() - extents(&mut rig, low)[0].start();
    assert_eq!(distance, 15 * PAGE);
    assert!(rig.close(&[low, high]));
}

#[test]
fn a_contiguous_place_is_one_extent_and_a_scattered_buffer_moves_for_it() {
    let mut rig = Rig::new(16, 16, 32, 0);
    // Every second page is taken, so four pages are four extents.
    let ids: Vec<_> = (0..16).map(|seed| rig.dirty("b", 1, seed)).collect();
    let (even, odd): (Vec<_>, Vec<_>) = ids.iter().enumerate().partition(|(i, _)| i % 2 == 0);
    for (_, &id) in even {
        rig.device.release(id).unwrap();
    }
    rig.reap_all();
    let id = rig.create("scattered", 4, Placement::vram());
    rig.write(id, &crate::rig::pattern(9, 4)).unwrap();
    let scattered = extents(&mut rig, id).len();

    let target = Target::Places(vram(|place| place.layout = Layout::Contiguous));
    rig.place(&[id], &target, Keep::Evictable).unwrap();

    assert_eq!(scattered, 4);
    assert_eq!(extents(&mut rig, id).len(), 1);
    assert_eq!(rig.read(id).unwrap(), crate::rig::pattern(9, 4));
    let mut all: Vec<_> = odd.into_iter().map(|(_, &id)| id).collect();
    all.push(id);
    assert!(rig.close(&all));
}

#[test]
fn a_place_within_bounds_evicts_only_what_is_inside_them() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let low = rig.dirty("low", 4, 1);
    let high = rig.dirty("high", 4, 2);
    let upper = Span::new(4 * PAGE, 4 * PAGE).unwrap();
    let inside: Vec<_> = [low, high]
        .into_iter()
        .map(|id| extents(&mut rig, id)[0].start())
        .collect();

    let id = rig.create("b", 1, vram(|place| place.within = Some(upper)));
    rig.touch(&[id]).unwrap();

    assert!(inside[0] < inside[1]);
    assert_eq!(rig.residency(low), VRAM);
    assert_eq!(rig.residency(high), GTT);
    assert!(rig.close(&[low, high, id]));
}

#[test]
fn a_request_may_keep_a_buffer_out_of_vram() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let id = rig.create("b", 4, only(MemType::GTT));

    rig.gpu_fill(&[(id, 3)]).unwrap();

    assert_eq!(rig.residency(id), GTT);
    assert_eq!(rig.read(id).unwrap(), vec![3; 4 * 4096]);
    assert!(rig.close(&[id]));
}

/// TTM `ttm_resource_init_basic`, `ttm_resource_fini_basic`: usage in bytes, up and down.
#[test]
fn a_domain_is_charged_for_its_resources_and_for_nothing_else() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let used = |rig: &Rig, mem_type| {
        let space = rig.report(vrampager_core::Domain::Memory(mem_type)).space;
        (space.size - space.free) / PAGE
    };
    let id = rig.dirty("b", 4, 1);
    rig.reap_all();
    let in_vram = (used(&rig, MemType::VRAM), used(&rig, MemType::GTT));

    rig.move_to(id, MemType::GTT).unwrap();
    let in_gtt = (used(&rig, MemType::VRAM), used(&rig, MemType::GTT));

    assert_eq!((in_vram, in_gtt), ((4, 0), (0, 4)));
    assert!(rig.close(&[id]));
}
