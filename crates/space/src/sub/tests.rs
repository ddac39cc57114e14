use std::vec;
use std::vec::Vec;

use super::*;
use crate::testing::{Rng, assert_subquadratic};

#[test]
fn bins_cover_all_lengths_without_gap_and_in_order() {
    let mut last = 0;
    for len in 1..100_000 {
        let bin = bin_of(len);
        assert!(bin == last || bin == last + 1, "length {len}");
        last = bin;
    }
    assert_eq!(bin_of(63), 63);
    assert_eq!(bin_of(u32::MAX), 28 * 32 - 1);
}

fn sorted_holes(space: &mut SubAllocator) -> Vec<Span> {
    let mut holes: Vec<_> = space.holes().collect();
    holes.sort_unstable_by_key(|hole| hole.start());
    holes
}

/// Maximal runs of cells that nobody owns.
fn free_runs(owned: &[bool], unit: u64) -> Vec<Span> {
    let mut at = 0;
    let runs = owned.chunk_by(|a, b| a == b).map(|run| {
        let start = at;
        at += run.len() as u64;
        (
            run[0],
            Span::new(start * unit, run.len() as u64 * unit).unwrap(),
        )
    });
    runs.filter(|(owned, _)| !owned)
        .map(|(_, run)| run)
        .collect()
}

fn churn(seed: u64, fit: Fit) {
    let mut rng = Rng(seed);
    let units = 1 + u32::try_from(rng.below(300)).unwrap();
    let unit = 16;
    let mut space = SubAllocator::new(u64::from(units) * unit, unit, fit).unwrap();
    let mut owned = vec![false; units as usize];
    let mut live: Vec<(u64, u64)> = Vec::new();
    let cells = |offset: u64, size: u64| {
        let first = usize::try_from(offset / unit).unwrap();
        first..first + usize::try_from(size.div_ceil(unit)).unwrap()
    };
    for _ in 0..600 {
        if rng.below(5) < 3 {
            let most = 1 + rng.below(u64::from(units) / 4 + 1);
            let size = 1 + rng.below(most) * unit;
            let align = 1 << rng.below(9);
            match space.alloc(size, align) {
                Ok(offset) => {
                    assert_eq!(offset % align, 0);
                    for cell in cells(offset, size) {
                        assert!(
                            !core::mem::replace(&mut owned[cell], true),
                            "handed out twice"
                        );
                    }
                    live.push((offset, size));
                }
                Err(error) => {
                    // No aligned run is free: a failure is never the allocator's own fault.
                    let need = usize::try_from(size.div_ceil(unit)).unwrap();
                    let step = usize::try_from(align.div_ceil(unit)).unwrap();
                    let fits = |first: usize| {
                        owned
                            .get(first..first + need)
                            .is_some_and(|run| !run.contains(&true))
                    };
                    assert!(
                        !(0..owned.len()).step_by(step).any(fits),
                        "{fit:?} {seed}: {size} by {align}: {error} {:?}",
                        space.holes().collect::<Vec<_>>()
                    );
                }
            }
        } else if !live.is_empty() {
            let pick = usize::try_from(rng.below(live.len() as u64)).unwrap();
            let (offset, size) = live.swap_remove(pick);
            space.free(offset, size);
            cells(offset, size).for_each(|cell| owned[cell] = false);
        }
        space.check();
        assert_eq!(sorted_holes(&mut space), free_runs(&owned, unit));
        let free = owned.iter().filter(|&&cell| !cell).count() as u64 * unit;
        assert_eq!(space.free_bytes(), free);
    }
    for (offset, size) in live {
        space.free(offset, size);
    }
    space.check();
    assert_eq!(space.holes().count(), 1);
}

#[test]
fn random_operations_agree_with_an_ownership_table() {
    for seed in 0..60 {
        churn(seed, Fit::Tight);
        churn(seed, Fit::Fast);
    }
}

#[test]
fn a_reserved_allocator_never_grows_its_records() {
    let mut space = SubAllocator::with_capacity(1 << 20, 1, Fit::Fast, 1000).unwrap();
    let before = space.metadata_bytes();
    let all: Vec<_> = (0..500).map(|_| space.alloc(100, 64).unwrap()).collect();
    for &offset in all.iter().step_by(2) {
        space.free(offset, 100);
    }
    space.check();
    assert_eq!(space.metadata_bytes(), before);
}

/// Frees a range of `len` units twice, with live ones around it, and `between` the frees.
fn free_twice(fit: Fit, len: u64, between: impl Fn(&mut SubAllocator)) {
    let mut space = SubAllocator::new(1 << 20, 1, fit).unwrap();
    let _before = space.alloc(len, 1).unwrap();
    let offset = space.alloc(len, 1).unwrap();
    let _behind = space.alloc(len, 1).unwrap();
    space.free(offset, len);
    between(&mut space);
    let before = (space.free_bytes(), space.len());
    let twice = std::panic::AssertUnwindSafe(|| space.free(offset, len));
    let panic = std::panic::catch_unwind(twice).unwrap_err();
    let message = panic.downcast_ref::<std::string::String>().unwrap();
    assert!(message.contains("free already"), "{message}");
    assert_eq!((space.free_bytes(), space.len()), before);
    space.check();
}

#[test]
fn freeing_twice_is_a_bug_and_changes_nothing() {
    for fit in [Fit::Fast, Fit::Tight] {
        free_twice(fit, 100, |_| {});
        free_twice(fit, 1000, |_| {});
    }
}

#[test]
fn ranges_freed_one_after_the_other_are_joined_at_once() {
    let mut space = full_of(5, 100, Fit::Fast);
    (40..60).for_each(|at| space.free(at * 5, 5));
    assert_eq!(space.aside.len(), 2, "only the first two wait");
    let error = space.alloc(101, 1).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::NoSpace);
    assert_eq!(space.alloc(100, 1), Ok(200));
    space.check();
}

#[test]
#[cfg(debug_assertions)]
fn freeing_what_was_joined_meanwhile_is_caught_with_debug_assertions() {
    free_twice(Fit::Fast, 100, SubAllocator::coalesce);
}

/// A space full of ranges of `len` units.
fn full_of(len: u64, count: u64, fit: Fit) -> SubAllocator {
    let mut space = SubAllocator::new(len * count, 1, fit).unwrap();
    (0..count).for_each(|at| assert_eq!(space.alloc(len, 1), Ok(at * len)));
    space
}

#[test]
fn a_short_range_that_was_freed_lately_is_handed_out_as_it_is() {
    let mut space = full_of(5, 100, Fit::Fast);
    for at in [61, 60] {
        space.free(at * 5, 5);
    }
    let again = [(); 2].map(|()| space.alloc(5, 1).unwrap() / 5);
    assert_eq!(again, [60, 61], "the newest first");
    assert!(space.alloc(5, 1).is_err());
    space.check();
}

#[test]
fn a_request_between_two_frees_begins_a_new_row() {
    let mut space = full_of(5, 100, Fit::Fast);
    let mut waiting = |at: Option<u64>| {
        match at {
            Some(at) => space.free(at * 5, 5),
            None => assert!(space.alloc(5, 1).is_ok()),
        }
        space.aside.len()
    };
    let row = [
        Some(10),
        Some(20),
        Some(30),
        None,
        Some(50),
        Some(60),
        Some(70),
    ];
    assert_eq!(row.map(&mut waiting), [1, 2, 2, 1, 2, 3, 3]);
    // As much when it is served from a hole.
    assert_eq!(space.alloc(4, 1).map(|start| start % 5), Ok(0));
    space.free(80 * 5, 5);
    assert_eq!(space.aside.len(), 4);
    // The hole that grew last takes what is beside it at once.
    let mut space = full_of(5, 100, Fit::Fast);
    (40..60).for_each(|at| space.free(at * 5, 5));
    space.alloc(1000, 1).unwrap_err();
    (40..45).for_each(|_| assert!(space.alloc(5, 1).is_ok()));
    space.free(60 * 5, 5);
    assert_eq!(space.aside.len(), 0);
    assert_eq!(space.largest_hole(), 16 * 5);
    space.check();
}

#[test]
#[should_panic(expected = "partly free already")]
fn freeing_more_than_a_range_up_to_the_end_of_a_hole_is_a_bug() {
    let mut space = full_of(200, 10, Fit::Tight);
    (0..3).for_each(|at| space.free(at * 200, 200));
    space.free(4 * 200, 200);
    // Range 3 lies between the hole that grew last and another, and is said to contain that.
    space.free(3 * 200, 400);
}

#[test]
#[should_panic(expected = "never handed out")]
fn freeing_at_a_part_of_a_unit_is_a_bug() {
    let mut space = SubAllocator::new(1 << 20, 16, Fit::Fast).unwrap();
    let offset = space.alloc(64, 16).unwrap();
    space.free(offset + 8, 48);
}

#[test]
fn ranges_of_every_length_come_back_as_they_were_freed() {
    for len in 1..128 {
        let mut space = full_of(len, 100, Fit::Fast);
        // All of these lie at multiples of their length, and most at no better place.
        let again = (0..100).filter(|&at| {
            space.free(at * len, len);
            let asides = space.aside.len();
            let start = space.alloc(len, 1).unwrap();
            assert_eq!(start, at * len);
            asides == 1 && space.aside.len() == 0
        });
        assert!(again.count() > 90, "{len}");
        space.check();
    }
}

#[test]
fn what_was_freed_is_joined_before_a_request_fails() {
    for fit in [Fit::Fast, Fit::Tight] {
        let mut space = full_of(4, 16, fit);
        (0..16).for_each(|at| space.free(at * 4, 4));
        assert_eq!(space.alloc(64, 1), Ok(0));
        space.free(0, 64);
        let mut space = full_of(4, 16, fit);
        for at in [3, 4, 9] {
            space.free(at * 4, 4);
        }
        let error = space.alloc(9, 1).unwrap_err();
        let SpaceError::NoSpace { free, largest, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((free, largest), (12, 8), "figures are of joined holes");
        space.check();
    }
}

#[test]
fn a_well_aligned_place_is_kept_for_requests_that_need_it() {
    let mut space = full_of(4, 1024, Fit::Fast);
    // Unit 512 is the only one of them that is a multiple of 16.
    space.free(512, 4);
    space.free(4, 4);
    assert_eq!(space.alloc(4, 1), Ok(4));
    space.free(4, 4);
    assert_eq!(space.alloc(4, 256), Ok(512));
    space.free(512, 4);
    assert_eq!(space.alloc(4, 1), Ok(4));
    assert_eq!(space.alloc(4, 1), Ok(512), "rather than fail");
    space.check();
}

#[test]
fn requests_that_can_never_be_served_say_why() {
    let mut space = SubAllocator::new(1 << 20, 4096, Fit::Fast).unwrap();
    let invalid = |argument, value| Err(SpaceError::Invalid { argument, value });
    assert_eq!(space.alloc(0, 1), invalid("size", 0));
    for align in [3, 4097, 6144, 12288] {
        for size in [1, (1 << 20) + 1, u64::MAX] {
            assert_eq!(space.alloc(size, align), invalid("align", align));
        }
    }
    for size in [(1 << 20) + 1, 1 << 44, u64::MAX] {
        assert_eq!(space.alloc(size, 1), invalid("size", size));
    }
    space.alloc(1, 0).unwrap();
    let error = space.alloc(1 << 20, 1).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::NoSpace);
    assert!(SubAllocator::new(1 << 50, 1, Fit::Fast).is_err());
    // As many units as there can be, and none too many.
    for fit in [Fit::Fast, Fit::Tight] {
        let most = u64::from(u32::MAX) << 8;
        let mut space = SubAllocator::new(most, 256, fit).unwrap();
        for size in [most + 1, 1 << 42, u64::MAX] {
            for align in [1, 1 << 63] {
                assert_eq!(space.alloc(size, align), invalid("size", size));
            }
        }
        assert_eq!(space.alloc(most, 1 << 63), Ok(0));
        space.free(0, most);
        space.check();
    }
}

#[test]
fn a_request_fails_only_if_no_hole_is_long_enough_however_many_of_its_class_are_too_short() {
    for fit in [Fit::Fast, Fit::Tight] {
        for short in [2, 40] {
            // 100 and 101 share a size class; the long hole is older than all short ones.
            let mut space = SubAllocator::new(101 + 101 * short, 1, fit).unwrap();
            assert_eq!(space.alloc(101, 1), Ok(0));
            let starts: Vec<u64> = (0..short)
                .map(|_| {
                    space.alloc(1, 1).unwrap();
                    space.alloc(100, 1).unwrap()
                })
                .collect();
            space.free(0, 101);
            starts.iter().for_each(|&start| space.free(start, 100));
            assert_eq!(space.alloc(101, 1), Ok(0), "{fit:?} {short}");
            assert!(space.alloc(101, 1).is_err());
            space.check();
        }
    }
}

#[test]
fn offset_zero_is_a_multiple_of_everything() {
    let mut space = SubAllocator::new(1 << 20, 1, Fit::Fast).unwrap();
    assert_eq!(space.alloc(5, 1 << 63), Ok(0));
    assert!(space.alloc(5, 1 << 63).is_err());
    space.free(0, 5);
    space.check();
}

#[test]
#[should_panic(expected = "are free already")]
fn freeing_the_inside_of_a_hole_of_all_there_is_is_a_bug() {
    let mut space = SubAllocator::new(1 << 20, 1, Fit::Fast).unwrap();
    space.free(1 << 19, 16);
}

#[test]
fn a_pool_of_a_kilobyte_serves_a_request_of_all_of_it() {
    // F1: an initial size far below the request must not matter, of memory or of records.
    let mut space = SubAllocator::with_capacity(1024, 1, Fit::Fast, 1).unwrap();
    assert_eq!(space.alloc(1024, 256), Ok(0));
    space.free(0, 1024);
    let all: Vec<u64> = (0..1024).map(|_| space.alloc(1, 1).unwrap()).collect();
    all.iter().step_by(2).for_each(|&unit| space.free(unit, 1));
    assert_eq!(space.free_bytes(), 512);
}

/// All of a space as ranges of one unit.
fn filled(units: u64) -> SubAllocator {
    let mut space = SubAllocator::new(units, 1, Fit::Fast).unwrap();
    (0..units).for_each(|unit| assert_eq!(space.alloc(1, 1), Ok(unit)));
    space
}

#[test]
fn every_other_unit_can_be_a_hole_and_all_of_them_be_found_again() {
    const UNITS: u64 = 1 << 15;
    let mut space = filled(UNITS);
    let held = space.metadata_bytes();
    let mut odd: Vec<u64> = (0..UNITS / 2).map(|half| 2 * half + 1).collect();
    let mut rng = Rng(7);
    for last in (1..odd.len()).rev() {
        odd.swap(last, usize::try_from(rng.below(last as u64 + 1)).unwrap());
    }
    for (count, &unit) in odd.iter().enumerate() {
        space.free(unit, 1);
        if count % 1024 == 0 {
            space.check();
        }
    }
    space.check();
    assert_eq!(space.holes().count(), odd.len());
    assert_eq!(space.metadata_bytes(), held, "a free has allocated");
    for &unit in &odd {
        // Each of these holes is joined on both sides.
        if unit + 1 < UNITS && unit % 4 == 1 {
            space.free(unit + 1, 1);
        }
    }
    space.check();
    while space.alloc(1, 1).is_ok() {}
    space.check();
    assert_eq!(space.free_bytes(), 0);
    (0..UNITS).for_each(|unit| space.free(unit, 1));
    space.check();
    assert_eq!(sorted_holes(&mut space), [Span::new(0, UNITS).unwrap()]);
}

#[test]
fn holes_whose_addresses_all_hash_alike_are_found() {
    // Far more than a bucket holds have one home, in small tables and in grown ones.
    let alike = |address: u32| edges::bucket_bits(address) >> 24 == 0;
    let mut space = filled(1 << 17);
    let starts: Vec<u64> = (1..1 << 17_u32)
        .filter(|&address| alike(address))
        .map(u64::from)
        .collect();
    assert!(starts.len() > 400, "{}", starts.len());
    assert!(
        starts.is_sorted_by(|a, b| a + 1 < *b),
        "no two are neighbours"
    );
    starts.iter().for_each(|&start| space.free(start, 1));
    space.check();
    assert_eq!(space.holes().count(), starts.len());
    let mut back: Vec<u64> = starts.iter().map(|_| space.alloc(1, 1).unwrap()).collect();
    space.check();
    back.sort_unstable();
    assert_eq!(back, starts);
    assert_eq!(space.free_bytes(), 0);
}

#[test]
fn ranges_freed_in_a_row_are_taken_again_in_a_row() {
    let mut space = filled(4096);
    (1000..1300).for_each(|unit| space.free(unit, 1));
    space.free(10, 2);
    assert_eq!(space.largest_hole(), 300);
    let again: Vec<u64> = (0..100).map(|_| space.alloc(3, 1).unwrap()).collect();
    assert!(again.is_sorted());
    assert_eq!(again.first(), Some(&1000));
    space.check();
    assert_eq!(sorted_holes(&mut space), [Span::new(10, 2).unwrap()]);
}

#[test]
fn freeing_inside_the_hole_that_grew_last_is_a_bug_and_changes_nothing() {
    let mut space = filled(64);
    (20..30).for_each(|unit| space.free(unit, 1));
    let before = space.free_bytes();
    let twice = std::panic::AssertUnwindSafe(|| space.free(24, 1));
    assert!(std::panic::catch_unwind(twice).is_err());
    assert_eq!(space.free_bytes(), before);
    space.check();
}

#[test]
fn operations_take_no_longer_for_there_being_many_holes() {
    // Each of these ranges leaves a hole behind it: as many holes as there can be.
    let spaced = |space: &mut SubAllocator, count: u64| {
        let mut rng = Rng(11);
        let mut live: Vec<u64> = (0..count).map(|_| space.alloc(20, 32).unwrap()).collect();
        for _ in 0..count {
            let at = usize::try_from(rng.below(count)).unwrap();
            space.free(live[at], 20);
            live[at] = space.alloc(20, 32).unwrap();
        }
    };
    for reserved in [0, 1, 2] {
        let make = |count: u64| {
            let ranges = usize::try_from(reserved * count).unwrap();
            SubAllocator::with_capacity(40 * count, 1, Fit::Tight, ranges).unwrap()
        };
        assert_subquadratic(1 << 10, make, spaced);
    }
}
