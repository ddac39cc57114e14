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

/// What a `RangeAllocator` holds besides what its ranges cost: without an index of holes, and with.
const CONSTANT: usize = 16_384;
const CONSTANT_INDEXED: usize = 2 * CONSTANT;

/// Fills a part of the space and thins it out to a quarter, again and again, so that nodes are
/// left with as little in them as they ever are.
fn thin_out(mm: &mut RangeAllocator, mode: Option<Mode>, color: fn(u64) -> u32) {
    let mut at = 0;
    let mut live = Vec::new();
    for _ in 0..6 {
        let mut added = Vec::new();
        while mm.len() < MOST {
            let span = Span::new(at, 2).unwrap();
            match mode {
                None => mm.reserve(span, color(at)).unwrap(),
                Some(mode) => {
                    let window = Span::new(at, 3).unwrap();
                    let request = RangeRequest::new(2).within(window).mode(mode);
                    mm.insert(&request.color(color(at))).unwrap();
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
fn a_range_costs_at_most_256_bytes_and_more_with_an_index_and_with_colors() {
    let plain: fn(u64) -> u32 = |_| 7;
    let own: fn(u64) -> u32 = |at| u32::try_from(at & 0xffff_ffff).unwrap();
    for (mode, color, most) in [
        (None, plain, 256 * MOST + CONSTANT),
        (
            Some(Mode::Best),
            plain,
            (256 + 128) * MOST + CONSTANT_INDEXED,
        ),
        (None, own, (256 + 64) * MOST + CONSTANT),
        (
            Some(Mode::Best),
            own,
            (256 + 128 + 64) * MOST + CONSTANT_INDEXED,
        ),
    ] {
        let mut mm = RangeAllocator::new(Span::new(0, 1 << 40).unwrap());
        thin_out(&mut mm, mode, color);
        let bytes = mm.metadata_bytes();
        assert!(bytes <= most, "{mode:?}: {bytes} bytes");
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
            let request = request.color(color(rng.below(1 << 20)));
            live.push(mm.insert(&request).unwrap().start());
        }
        let bytes = mm.metadata_bytes();
        assert!(bytes <= most, "{mode:?}: {bytes} bytes");
    }
}

#[test]
fn few_ranges_cost_at_most_a_constant_and_their_share() {
    for (mode, constant) in [
        (Mode::Low, CONSTANT),
        (Mode::High, CONSTANT),
        (Mode::Best, CONSTANT_INDEXED),
        (Mode::Evict, CONSTANT_INDEXED),
    ] {
        for (size, each) in [
            (1, 256 + 128 + 64),
            (1 << 20, 256 + 128 + 64),
            (1 << 40, 1024),
        ] {
            let mut mm = RangeAllocator::new(Span::new(0, u64::MAX).unwrap());
            for count in 1..200 {
                let request = RangeRequest::new(size).mode(mode);
                let color = u32::try_from(count).unwrap();
                mm.insert(&request.color(color)).unwrap();
                let bytes = mm.metadata_bytes();
                let most = each * count + constant;
                assert!(bytes <= most, "{mode:?}, {count} of {size}: {bytes} bytes");
            }
        }
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
        assert!(
            bytes <= 1024 * 2 * MOST + CONSTANT,
            "{mode:?}: {bytes} bytes"
        );
    }
}

#[test]
fn a_range_among_long_holes_costs_half_a_kilobyte_more_for_colors_and_for_an_index() {
    for (mode, colors, most) in [
        (Mode::Low, 1, 1024),
        (Mode::Low, 5, 1536),
        (Mode::Best, 1, 1536),
        (Mode::Best, 5, 2048),
    ] {
        let mut mm = RangeAllocator::new(Span::new(0, u64::MAX).unwrap());
        mm.insert(&RangeRequest::new(1).mode(mode)).unwrap();
        for count in 1..2100_u32 {
            let place = Span::new(u64::from(count) * (7 << 30), 3 << 30).unwrap();
            mm.reserve(place, count % colors).unwrap();
            let bytes = mm.metadata_bytes();
            let bound = most * (count as usize + 1) + 2 * CONSTANT;
            assert!(bytes <= bound, "{mode:?}, {colors}, {count}: {bytes} bytes");
        }
    }
}

#[test]
fn a_sub_allocation_costs_at_most_48_bytes() {
    let mut heap = SubAllocator::new(1 << 30, 16, Fit::Fast).unwrap();
    for most in [10, 100, 1000, MOST] {
        let live: Vec<u64> = (0..most).map(|_| heap.alloc(100, 64).unwrap()).collect();
        let bytes = heap.metadata_bytes();
        assert!(bytes <= 48 * most + 16384, "{most}: {bytes} bytes");
        for offset in live {
            heap.free(offset, 100);
        }
        assert_eq!(heap.metadata_bytes(), bytes, "a free changes nothing");
    }
}

#[test]
fn a_buddy_of_any_size_costs_11_bits_per_chunk_and_12_kib() {
    for chunks in (1..3000).chain([10_000, 16_383, 16_384, 1 << 20, (1 << 20) + 1]) {
        let bytes = Buddy::new(chunks, 1).unwrap().metadata_bytes();
        assert!(bytes as u64 <= 11 * chunks / 8 + 12288, "{chunks}: {bytes}");
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
                    mm.free(block.span(), Content::Cleared);
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
    // Nor do the first ones.
    for size in [1 << 29, 1 << 62, u64::MAX] {
        let mut mm = Buddy::new(size, 1).unwrap();
        for live in 1..20 {
            mm.alloc_one(&BuddyRequest::new(1)).unwrap();
            let bytes = mm.metadata_bytes();
            assert!(bytes <= 8192 * live + 32_768, "{live} of {size}: {bytes}");
        }
    }
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
    // Two zones, and two of each of two generations.
    assert!(bytes <= 640 * MOST * 6 / 5 + 6 * 8192, "{bytes} bytes");
}

#[test]
fn a_zone_costs_at_most_8_kib_and_as_much_for_each_generation() {
    let names = ["a", "b", "c", "d"];
    for zones in 1..=names.len() {
        for generations in [1, 2, 50] {
            let mut space = VaSpace::new(&[]).unwrap();
            for (start, name) in (0..).step_by(1 << 40).zip(&names[..zones]) {
                let zone = Zone::between(name, start, start + (1 << 40));
                space.add_zone(zone).unwrap();
            }
            let mut ranges = 0;
            for generation in (1..).take(generations) {
                for name in &names[..zones] {
                    space.carve(name, 4096, 4096, generation).unwrap();
                    ranges += 1;
                    let bytes = space.metadata_bytes();
                    let most = 640 * ranges + 8192 * zones * (1 + generation as usize);
                    assert!(bytes <= most, "{zones} zones, {ranges} ranges: {bytes}");
                }
            }
        }
    }
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
