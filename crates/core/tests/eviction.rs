//! What happens when more is used than fits.

mod common;

use common::{PAGE, Rig};
use vrampager_core::{Error, MemType, Placement};

fn pattern(seed: u8, pages: u64) -> Vec<u8> {
    (0..pages * PAGE)
        .map(|i| seed.wrapping_add(u8::try_from(i % 251).unwrap()))
        .collect()
}

#[test]
fn dirty_buffers_pass_through_every_tier_without_losing_a_byte() {
    // 8 buffers of 4 pages: VRAM holds two, the GTT two, host pages four, swap the rest.
    let mut rig = Rig::new(8, 8, 16, 64);
    let ids: Vec<_> = (0..8)
        .map(|i| rig.create(&format!("b{i}"), 4, Placement::vram()))
        .collect();
    for (i, &id) in (0..).zip(&ids) {
        rig.write(id, &pattern(i, 4)).unwrap();
        rig.touch(&[id]).unwrap();
        assert_eq!(rig.device.residency(id), Ok(Some(MemType::VRAM)));
    }
    let totals = rig.device.snapshot().totals;
    assert!(
        totals.swap_written > 0,
        "host pages are too few for the rest: {totals:?}"
    );
    for (i, &id) in (0..).zip(&ids) {
        assert_eq!(rig.read(id).unwrap(), pattern(i, 4), "buffer {i}");
    }
    for (i, &id) in (0..).zip(&ids) {
        rig.touch(&[id]).unwrap();
        assert_eq!(
            rig.read(id).unwrap(),
            pattern(i, 4),
            "buffer {i} back in VRAM"
        );
    }
    assert!(rig.close(&ids));
}

#[test]
fn a_request_that_cannot_fit_says_what_is_in_the_way() {
    let mut rig = Rig::new(8, 8, 16, 0);
    let big = rig.create("big", 9, Placement::vram());
    let Err(Error::OutOfMemory(shortage)) = rig.touch(&[big]) else {
        panic!("9 pages in 8")
    };
    assert_eq!(
        shortage.to_string(),
        "buffer `big` needs 36 KiB; VRAM 32 KiB: 32 KiB free, largest hole 32 KiB; \
         host pages 64 KiB: 64 KiB free, largest hole 64 KiB"
    );
    assert!(rig.close(&[big]));
}
