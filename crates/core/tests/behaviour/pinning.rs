//! A pinned buffer stays where it is.

use crate::rig::{PAGE, Rig, pattern};
use vrampager_core::{Error, ErrorKind, MemType, Placement};

const VRAM: Option<MemType> = Some(MemType::VRAM);
const GTT: Option<MemType> = Some(MemType::GTT);

/// TTM `ttm_bo_validate_all_pinned_evict`.
#[test]
fn nothing_is_evicted_when_all_is_pinned() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let pinned = rig.dirty("pinned", 8, 1);
    rig.pin(pinned).unwrap();
    let next = rig.create("next", 1, Placement::vram());

    let refused = rig.touch(&[next]).unwrap_err();

    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    assert_eq!(rig.residency(pinned), VRAM);
    assert_eq!(rig.residency(next), None);
    assert!(rig.close(&[pinned, next]));
}

/// TTM `ttm_bo_validate_allowed_only_evict`.
#[test]
fn a_pinned_buffer_survives_pressure_and_its_neighbour_goes() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let pinned = rig.dirty("pinned", 4, 1);
    rig.pin(pinned).unwrap();
    let evictable = rig.dirty("evictable", 4, 2);

    let next = rig.dirty("next", 1, 3);

    let at = [pinned, evictable, next].map(|id| rig.residency(id));
    assert_eq!(at, [VRAM, GTT, VRAM]);
    assert!(rig.close(&[pinned, evictable, next]));
}

/// TTM `ttm_bo_validate_pinned`: an error of its own, where the kernel says `-EINVAL`.
#[test]
fn moving_a_pinned_buffer_is_refused_by_name() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let pinned = rig.dirty("weights", 4, 1);
    rig.pin(pinned).unwrap();

    let refused = rig.move_to(pinned, MemType::GTT).unwrap_err();

    let expected = Error::Pinned {
        buffer: "weights".into(),
        mem_type: MemType::VRAM,
    };
    assert_eq!(refused, expected);
    assert_eq!(rig.read(pinned).unwrap(), pattern(1, 4));
    assert!(rig.close(&[pinned]));
}

/// TTM `ttm_bo_multiple_pin_one_unpin`.
#[test]
fn a_buffer_pinned_twice_is_still_pinned_after_one_unpin() {
    let mut rig = Rig::new(4, 8, 16, 0);
    let pinned = rig.dirty("pinned", 4, 1);
    rig.pin(pinned).unwrap();
    rig.pin(pinned).unwrap();
    rig.device.unpin(pinned).unwrap();
    let next = rig.create("next", 4, Placement::vram());

    let while_pinned = rig.touch(&[next]);
    rig.device.unpin(pinned).unwrap();
    let after = rig.touch(&[next]);

    assert!(while_pinned.is_err());
    assert_eq!(after, Ok(()));
    assert_eq!(rig.residency(pinned), GTT);
    assert!(rig.close(&[pinned, next]));
}

#[test]
fn an_unpin_too_many_is_refused() {
    let mut rig = Rig::new(4, 4, 8, 0);
    let id = rig.create("b", 1, Placement::vram());

    let refused = rig.device.unpin(id);

    assert_eq!(refused, Err(Error::Invalid("buffer is not pinned")));
    assert!(rig.close(&[id]));
}

#[test]
fn a_pinned_buffer_may_be_released() {
    let mut rig = Rig::new(4, 4, 8, 0);
    let pinned = rig.dirty("pinned", 4, 1);
    rig.pin(pinned).unwrap();
    rig.device.release(pinned).unwrap();

    let next = rig.dirty("next", 4, 2);

    assert_eq!(rig.residency(next), VRAM);
    assert!(rig.close(&[next]));
}

/// Mission row A8: what another device needs to map a buffer alike.
#[test]
fn a_pinned_buffer_tells_how_all_its_addresses_are_mapped_and_no_other_does() {
    let mut rig = Rig::new(16, 4, 32, 0);
    let id = rig.dirty("a", 3, 1);
    let unpinned = rig.device.mappings(id);
    rig.pin(id).unwrap();

    let maps = rig.device.mappings(id).unwrap();

    assert!(matches!(unpinned, Err(Error::Invalid(_))), "{unpinned:?}");
    let mut next = maps[0].va;
    for map in &maps {
        assert_eq!(map.va, next);
        next = next.offset(map.len);
    }
    assert_eq!(next.0 - maps[0].va.0, 3 * PAGE);
    rig.device.unpin(id).unwrap();
    assert!(rig.close(&[id]));
}
