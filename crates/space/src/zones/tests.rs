use std::vec::Vec;

use super::*;

#[test]
fn a_hundred_thousand_rounds_of_a_gibibyte_leave_one_hole() {
    let mut space = VaSpace::new(&[Zone::LOW, Zone::HIGH]).unwrap();
    for round in 0..100_000 {
        let span = space.carve("low", 1 << 30, 1 << 21, 1 + round % 2).unwrap();
        space.retire(span.start(), None);
        assert_eq!(space.stats().live_bytes, 0);
    }
    space.close_generation(1);
    space.close_generation(2);
    let stats = space.zone_stats("low").unwrap();
    assert_eq!((stats.holes, stats.quarantined_bytes), (1, 0));
    space.check();
}

#[test]
fn a_retired_range_is_not_handed_out_before_its_fence() {
    let mut space = VaSpace::new(&[Zone::between("z", 0, 100)]).unwrap();
    let span = space.carve("z", 100, 1, VaSpace::SHARED).unwrap();
    space.retire(
        span.start(),
        Some(SpaceFence {
            timeline: 3,
            value: 5,
        }),
    );
    assert!(space.carve("z", 1, 1, VaSpace::SHARED).is_err());
    assert_eq!(space.signalled(2, 9), 0);
    assert_eq!(space.signalled(3, 4), 0);
    assert_eq!(space.signalled(3, 5), 100);
    assert_eq!(space.carve("z", 100, 1, VaSpace::SHARED), Ok(span));
    space.retire(
        span.start(),
        Some(SpaceFence {
            timeline: 3,
            value: 5,
        }),
    );
    assert_eq!(space.stats().free_bytes, 100, "the fence was over already");
}

#[test]
fn the_next_generation_gets_no_address_of_one_that_is_not_gone() {
    let mut space = VaSpace::new(&[Zone::between("z", 0, 100)]).unwrap();
    let first: Vec<_> = (0..2)
        .map(|_| space.carve("z", 40, 1, 1).unwrap())
        .collect();
    space.retire(first[0].start(), None);
    assert!(
        space.carve("z", 40, 1, 2).is_err(),
        "parked for generation 1"
    );
    assert_eq!(space.carve("z", 40, 1, 1), Ok(first[0]));
    space.close_generation(1);
    assert!(space.carve("z", 1, 1, 1).is_err(), "closed");
    space.retire(first[0].start(), None);
    assert!(
        space.carve("z", 40, 1, 2).is_err(),
        "one range of generation 1 is live"
    );
    space.retire(
        first[1].start(),
        Some(SpaceFence {
            timeline: 0,
            value: 1,
        }),
    );
    assert!(
        space.carve("z", 40, 1, 2).is_err(),
        "and now behind a fence"
    );
    space.signalled(0, 1);
    assert!(space.is_gone(1));
    assert_eq!(space.carve("z", 100, 1, 2).map(Span::start), Ok(0));
    space.check();
}

#[test]
fn a_zone_past_the_device_addresses_is_refused() {
    let zone = Zone::between("pool", 1 << 37, (1 << 37) + ((1 << 48) - 1));
    assert!(VaSpace::with_va_bits(48, &[zone]).is_err());
    assert!(VaSpace::with_va_bits(49, &[zone]).is_ok());
    assert!(VaSpace::new(&[Zone::LOW, Zone::between("x", 0, 8192)]).is_err());
}
