//! How much host memory records take, at most: the figures of the documentation.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../src/testing/rng.rs"]
mod rng;

use rng::Rng;
use vrampager_addr::Span;
use vrampager_space::{
    Block, Buddy, BuddyRequest, Content, FakeOffsets, Fit, Mode, RangeAllocator, RangeRequest,
    SpaceFence, SubAllocator, VaSpace, Zone,
};

const MOST: usize = 10_000;

/// Fills a part of the space and thins it out to a quarter, again and again, so that nodes are
/// left with as little in them as they ever are.
fn thin_out(mm: &mut RangeAllocator, mode: Option<Mode>) {
    let mut at = 0;
    let mut live = Vec::new();
    for _ in 0..6 {
        let mut added = Vec::new();
        while mm.len() < MOST {
            let span = Span::new(at, 2).unwrap();
            match mode {
                None => mm.reserve(span, 0).unwrap(),
                Some(mode) => {
                    let window = Span::new(at, 3).unwrap();
                    let request = RangeRequest::new(2).within(window).mode(mode);
                    mm.insert(&request).unwrap();
                }
            }
            added.push(at);
            at += 3;
        }
        for (n, start) in added.into_iter().enumerate() {
            if n % 4 == 0 {
                live.push(start);
            } else {
                mm.remove(start).unwrap();
            }
        }
    }
    mm.check();
}

#[test]
fn a_range_costs_at_most_256_bytes_and_384_where_holes_are_indexed() {
    for (mode, most) in [(None, 256), (Some(Mode::Best), 384)] {
        let mut mm = RangeAllocator::new(Span::new(0, 1 << 40).unwrap());
        thin_out(&mut mm, mode);
        let bytes = mm.metadata_bytes();
        assert!(bytes <= most * MOST + 8192, "{mode:?}: {bytes} bytes");
        // And at random places.
        let mut rng = Rng(1);
        let mut mm = RangeAllocator::new(Span::new(0, 1 << 40).unwrap());
        let mut live = Vec::new();
        for _ in 0..10 * MOST {
            if live.len() == MOST {
                let pick = usize::try_from(rng.below(MOST as u64)).unwrap();
                mm.remove(live.swap_remove(pick)).unwrap();
            }
            let window = Span::new(rng.below(1 << 39), 1 << 39).unwrap();
            let mode = if mode.is_none() {
                Mode::Low
            } else {
                Mode::Evict
            };
            let request = RangeRequest::new(5).within(window).mode(mode);
            live.push(mm.insert(&request).unwrap().start());
        }
        let bytes = mm.metadata_bytes();
        assert!(bytes <= most * MOST + 8192, "{mode:?}: {bytes} bytes");
    }
}

#[test]
fn a_range_costs_at_most_a_kilobyte_where_segments_are_longer_than_a_leaf_reaches() {
    for mode in [Mode::Low, Mode::Best] {
        let mut mm = RangeAllocator::new(Span::new(0, 1 << 62).unwrap());
        let request = RangeRequest::new(1 << 33).mode(mode);
        let all: Vec<u64> = (0..2 * MOST)
            .map(|_| mm.insert(&request).unwrap().start())
            .collect();
        for &start in all.iter().step_by(2) {
            mm.remove(start).unwrap();
        }
        let bytes = mm.metadata_bytes();
        assert!(bytes <= 1024 * 2 * MOST + 8192, "{mode:?}: {bytes} bytes");
    }
}

#[test]
fn a_sub_allocation_costs_at_most_64_bytes() {
    let mut heap = SubAllocator::new(1 << 30, 16, Fit::Fast).unwrap();
    for most in [10, 100, 1000, MOST] {
        let live: Vec<u64> = (0..most).map(|_| heap.alloc(100, 64).unwrap()).collect();
        let bytes = heap.metadata_bytes();
        assert!(bytes <= 64 * most + 8192, "{most}: {bytes} bytes");
        for offset in live {
            heap.free(offset, 100);
        }
        assert_eq!(heap.metadata_bytes(), bytes, "a free changes nothing");
    }
}

#[test]
fn a_buddy_costs_a_fixed_11_bits_per_chunk() {
    let mut rng = Rng(2);
    let chunks = 100_000;
    let mut mm = Buddy::new(chunks, 1).unwrap();
    let bytes = mm.metadata_bytes();
    assert!(bytes as u64 * 8 <= 11 * chunks, "{bytes} bytes");
    let mut live: Vec<Block> = Vec::new();
    for _ in 0..20_000 {
        let request = BuddyRequest::new(1 + rng.below(50)).prefer(Content::Cleared);
        match mm.alloc_one(&request) {
            Ok(block) => live.push(block),
            Err(_) => {
                for block in live.drain(..).step_by(2) {
                    mm.free(block, Content::Cleared);
                }
            }
        }
    }
    assert_eq!(mm.metadata_bytes(), bytes);
}

#[test]
fn a_block_of_a_listed_space_costs_at_most_8_kib() {
    let mut mm = Buddy::new(1 << 62, 1).unwrap();
    let most = 500;
    for n in 0..most {
        // As far apart as they can be: every split leaves a sibling at each order.
        let at = (n as u64).reverse_bits() >> 2 | 1;
        let window = Span::new(at, 1).unwrap();
        mm.alloc_one(&BuddyRequest::new(1).within(window)).unwrap();
    }
    let bytes = mm.metadata_bytes();
    assert!(bytes <= 8192 * most + 32_768, "{bytes} bytes");
}

#[test]
fn an_address_range_costs_at_most_640_bytes() {
    let mut rng = Rng(3);
    let zones = [
        Zone::between("z", 0, 1 << 40),
        Zone::between("y", 1 << 40, 1 << 41),
    ];
    let mut space = VaSpace::new(&zones).unwrap();
    space.add_timeline(0).unwrap();
    let mut live = Vec::new();
    for step in 0..20 * MOST as u64 {
        if live.len() == MOST {
            let pick = usize::try_from(rng.below(MOST as u64)).unwrap();
            let start: u64 = live.swap_remove(pick);
            let fence = SpaceFence {
                timeline: 0,
                value: step,
            };
            space.retire(start, Some(fence));
            // A fifth more waits for fences.
            space.signalled(0, step.saturating_sub(MOST as u64 / 5));
        }
        let generation = u32::try_from(rng.below(3)).unwrap();
        let zone = ["z", "y"][usize::try_from(rng.below(2)).unwrap()];
        let span = space.carve(zone, 1 + rng.below(100), 1, generation);
        live.push(span.unwrap().start());
    }
    let bytes = space.metadata_bytes();
    assert!(bytes <= 640 * MOST * 6 / 5 + 2 * 4 * 2048, "{bytes} bytes");
}

#[test]
fn an_offset_costs_at_most_560_bytes_and_a_grant_80() {
    let mut offsets = FakeOffsets::new();
    for object in 0..MOST as u64 {
        offsets.add(object, 1 + object % 9 * 4096).unwrap();
        (0..3).for_each(|client| offsets.allow(object, client).unwrap());
    }
    let bytes = offsets.metadata_bytes();
    assert!(bytes <= (560 + 3 * 80) * MOST + 16_384, "{bytes} bytes");
}
