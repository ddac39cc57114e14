use std::vec::Vec;

use super::*;
use crate::testing::Rng;

#[test]
fn offsets_lie_above_four_gib_and_are_found_by_any_part() {
    let mut offsets = FakeOffsets::new();
    let span = offsets.add(7, 10_000).unwrap();
    assert!(span.start() >= 1 << 32 && span.len() == 12288);
    assert_eq!(offsets.add(7, 50), Ok(span), "adding again changes nothing");
    assert_eq!(offsets.lookup(span.start() + 4096, 8192), Some((7, span)));
    assert_eq!(offsets.lookup(span.start() + 4096, 8193), None);
    assert_eq!(offsets.lookup(u64::MAX, 2), None);
    assert_eq!(offsets.lookup_exact(span.start() + 4096, 4096), None);
    assert_eq!(offsets.lookup_exact(span.start(), 4096), Some(7));
    offsets.remove(7);
    offsets.remove(7);
    assert_eq!(offsets.lookup(span.start(), 1), None);
}

#[test]
fn grants_are_counted_per_client_and_outlive_offsets() {
    let mut offsets = FakeOffsets::new();
    assert_eq!(offsets.verify(1, 10), Err(AccessDenied));
    offsets.allow(1, 10).unwrap();
    offsets.allow(1, 10).unwrap();
    offsets.allow_once(1, 10).unwrap();
    offsets.allow_once(1, 11).unwrap();
    offsets.add(1, 4096).unwrap();
    offsets.remove(1);
    offsets.revoke(1, 10);
    assert!(offsets.is_allowed(1, 10));
    offsets.revoke(1, 10);
    assert!(!offsets.is_allowed(1, 10));
    offsets.revoke(1, 12);
    offsets.revoke(1, 11);
    assert!(!offsets.is_allowed(1, 11));
}

#[test]
fn a_client_that_closes_loses_all_its_grants_however_often_they_were_given() {
    let mut offsets = FakeOffsets::new();
    for object in [0, 1, 5, u64::MAX] {
        offsets.allow(object, 10).unwrap();
        offsets.allow(object, 10).unwrap();
        offsets.allow(object, 11).unwrap();
    }
    offsets.revoke_client(10);
    offsets.revoke_client(12);
    for object in [0, 1, 5, u64::MAX] {
        assert!(!offsets.is_allowed(object, 10) && offsets.is_allowed(object, 11));
    }
    offsets.check();
}

#[test]
fn the_first_offset_and_the_number_of_pages_are_those_of_drm() {
    let mut offsets = FakeOffsets::new();
    let pages = u64::from(u32::MAX >> 12) * 256;
    for value in [0, pages * PAGE_SIZE + 1, (pages + 1) * PAGE_SIZE, u64::MAX] {
        let argument = "size";
        let expected = Err(SpaceError::Invalid { argument, value });
        assert_eq!(offsets.add(1, value), expected);
    }
    let all = offsets.add(1, pages * PAGE_SIZE).unwrap();
    assert_eq!(all.start(), (u64::from(u32::MAX >> 12) + 1) * PAGE_SIZE);
    assert!(matches!(
        offsets.add(2, 1),
        Err(SpaceError::NoSpace { free: 0, .. })
    ));
    offsets.check();
}

#[test]
fn offsets_and_grants_agree_with_lists() {
    for seed in 0..20 {
        let mut rng = Rng(seed);
        let mut offsets = FakeOffsets::new();
        let mut spans: Vec<(u64, Span)> = Vec::new();
        let mut grants: Vec<(u64, u64)> = Vec::new();
        for _ in 0..500 {
            let (object, client) = (rng.below(20), rng.below(4));
            match rng.below(8) {
                0 | 1 => {
                    let span = offsets.add(object, 1 + rng.below(20_000)).unwrap();
                    let known = spans.iter().find(|(of, _)| *of == object);
                    assert!(known.is_none_or(|(_, old)| *old == span));
                    assert!(
                        !spans
                            .iter()
                            .any(|(of, s)| *of != object && s.overlaps(span))
                    );
                    if known.is_none() {
                        spans.push((object, span));
                    }
                }
                2 => {
                    offsets.remove(object);
                    spans.retain(|(of, _)| *of != object);
                }
                3 => {
                    offsets.allow(object, client).unwrap();
                    grants.push((object, client));
                }
                4 => {
                    offsets.allow_once(object, client).unwrap();
                    if !grants.contains(&(object, client)) {
                        grants.push((object, client));
                    }
                }
                5 => {
                    offsets.revoke(object, client);
                    if let Some(at) = grants.iter().position(|&g| g == (object, client)) {
                        grants.swap_remove(at);
                    }
                }
                6 if rng.below(4) == 0 => {
                    offsets.revoke_client(client);
                    grants.retain(|(_, of)| *of != client);
                }
                _ => {
                    offsets.revoke_all(object);
                    grants.retain(|(of, _)| *of != object);
                }
            }
            offsets.check();
            let mut known = grants.clone();
            known.sort_unstable();
            known.dedup();
            assert!(offsets.grants.iter().map(|(key, _)| key).eq(known));
            let allowed = grants.contains(&(object, client));
            assert_eq!(offsets.verify(object, client).is_ok(), allowed);
            let span = spans.iter().find(|(of, _)| *of == object).map(|(_, s)| *s);
            assert_eq!(offsets.offsets(object), span);
            if let Some(span) = span {
                let (at, len) = (span.start() + rng.below(span.len()), 1 + rng.below(9000));
                let found = (at + len <= span.end()).then_some((object, span));
                assert_eq!(offsets.lookup(at, len), found);
            }
        }
    }
}
