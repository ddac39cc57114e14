use std::vec;
use std::vec::Vec;

use super::*;
use crate::testing::Rng;

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
    let mut space = SubAllocator::with_capacity(1 << 20, 1, Fit::Fast, 500).unwrap();
    let before = space.metadata_bytes();
    let all: Vec<_> = (0..500).map(|_| space.alloc(100, 64).unwrap()).collect();
    for &offset in all.iter().step_by(2) {
        space.free(offset, 100);
    }
    space.check();
    assert_eq!(space.metadata_bytes(), before);
}

#[test]
#[should_panic(expected = "is free already")]
fn freeing_the_start_of_a_hole_is_a_bug() {
    let mut space = SubAllocator::new(1 << 20, 1, Fit::Fast).unwrap();
    let offset = space.alloc(100, 1).unwrap();
    let _behind = space.alloc(100, 1).unwrap();
    space.free(offset, 100);
    space.free(offset, 100);
}

#[test]
fn requests_that_can_never_be_served_say_why() {
    let mut space = SubAllocator::new(1 << 20, 4096, Fit::Fast).unwrap();
    let invalid = |argument, value| Err(SpaceError::Invalid { argument, value });
    assert_eq!(space.alloc(0, 1), invalid("size", 0));
    assert_eq!(space.alloc(1, 12288), invalid("align", 12288));
    let error = space.alloc(u64::MAX, 1).unwrap_err();
    assert_eq!(error.fragmentation_permille(), Some(0));
    assert!(SubAllocator::new(1 << 50, 1, Fit::Fast).is_err());
}

#[test]
fn a_pool_of_a_kilobyte_serves_a_request_of_all_of_it() {
    // F1: an initial size far below the request must not matter.
    let mut space = SubAllocator::new(1024, 256, Fit::Fast).unwrap();
    assert_eq!(space.alloc(1024, 256), Ok(0));
}
