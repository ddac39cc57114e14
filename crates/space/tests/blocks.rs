//! What the kernel buddy allocator's unit tests promise, with the same inputs.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::VecDeque;

use common::Rng;
use vrampager_addr::Span;
use vrampager_space::{Block, Buddy, BuddyRequest, Conditions, Content, SpaceError};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn pages(count: u64) -> BuddyRequest {
    BuddyRequest::new(count * PAGE)
}

fn span(start: u64, len: u64) -> Span {
    Span::new(start, len).unwrap()
}

fn total(blocks: &[Block]) -> u64 {
    blocks.iter().map(|block| block.size).sum()
}

fn give(mm: &mut Buddy, blocks: impl IntoIterator<Item = Block>, content: Content) {
    for block in blocks {
        mm.free(block.span(), content);
    }
}

fn is_no_space(result: &Result<Vec<Block>, SpaceError>) -> bool {
    matches!(result, Err(SpaceError::NoSpace { .. }))
}

fn is_invalid(result: &Result<Vec<Block>, SpaceError>) -> bool {
    matches!(result, Err(SpaceError::Invalid { .. }))
}

#[test]
fn the_largest_space_has_order_51_and_gives_that_block() {
    let mut mm = Buddy::new(u64::MAX, PAGE).unwrap();
    assert_eq!(mm.max_order(), 51);
    let blocks = mm.alloc(&BuddyRequest::new(PAGE << 51)).unwrap();
    assert_eq!((blocks.len(), total(&blocks)), (1, PAGE << 51));
}

#[test]
fn one_block_of_each_order_fills_all_roots_of_an_odd_space() {
    let mut mm = Buddy::new(PAGE * ((1 << 17) - 1), PAGE).unwrap();
    assert_eq!(mm.max_order(), 16);
    for order in 0..=16 {
        assert_eq!(mm.alloc(&pages(1 << order)).unwrap().len(), 1);
    }
    assert!(is_no_space(&mm.alloc(&pages(1))));
}

#[test]
fn freeing_in_increasing_order_rebuilds_each_order_in_turn() {
    let mut mm = Buddy::new(PAGE << 16, PAGE).unwrap();
    let mut blocks: Vec<Block> = Vec::new();
    for order in 0..16 {
        blocks.extend(mm.alloc(&pages(1 << order)).unwrap());
    }
    let last = mm.alloc(&pages(1)).unwrap();
    for order in (0..16).rev() {
        assert!(
            is_no_space(&mm.alloc(&pages(1 << order))),
            "order {order} of a full space"
        );
    }
    give(&mut mm, last, Content::Dirty);
    for (order, block) in blocks.into_iter().enumerate() {
        mm.free(block.span(), Content::Dirty);
        let again = mm.alloc(&pages(2 << order)).unwrap();
        assert_eq!(
            again.len(),
            1,
            "two blocks of order {order} are one of the next"
        );
        give(&mut mm, again, Content::Dirty);
    }
    assert_eq!(mm.alloc(&pages(1 << 16)).unwrap().len(), 1);
}

#[test]
fn the_worst_pattern_leaves_holes_and_nothing_above_a_page() {
    let mut mm = Buddy::new(PAGE * 8, PAGE).unwrap();
    let block = |order: u32| pages(1 << order).min_block(PAGE << order);
    let mut blocks: VecDeque<Block> = VecDeque::new();
    let mut holes: Vec<Block> = Vec::new();
    for top in (1..=3).rev() {
        // The oldest block, of the order that was the top before, makes room for one of each order
        // below and a page.
        give(&mut mm, blocks.pop_front(), Content::Dirty);
        for order in (0..top).rev() {
            blocks.extend(mm.alloc(&block(order)).unwrap());
        }
        holes.extend(mm.alloc(&block(0)).unwrap());
        assert_eq!(mm.free_bytes(), 0);
        assert!(is_no_space(&mm.alloc(&block(top))), "order {top}");
    }
    give(&mut mm, holes, Content::Dirty);
    assert_eq!((mm.free_bytes(), mm.largest_free()), (3 * PAGE, PAGE));
    for order in 1..=3 {
        assert!(is_no_space(&mm.alloc(&block(order))), "order {order}");
        assert!(is_no_space(&mm.alloc(&block(order).contiguous())));
    }
    mm.check();
}

#[test]
fn a_contiguous_request_finds_a_run_that_is_no_single_block() {
    let mut mm = Buddy::new(PAGE * 48, PAGE).unwrap();
    let mut lists: [Vec<Block>; 3] = Default::default();
    for page in 0..48 {
        lists[page % 3].extend(mm.alloc(&pages(1)).unwrap());
    }
    let [left, middle, right] = lists;
    assert!(is_no_space(&mm.alloc(&pages(3).contiguous())));
    give(&mut mm, middle, Content::Dirty);
    assert!(is_no_space(&mm.alloc(&pages(3).contiguous())));
    assert!(is_no_space(&mm.alloc(&pages(2).contiguous())));
    give(&mut mm, right, Content::Dirty);
    assert!(is_no_space(&mm.alloc(&pages(3).contiguous())));
    let two = mm.alloc(&pages(2).contiguous()).unwrap();
    give(&mut mm, left, Content::Dirty);
    let three = mm.alloc(&pages(3).contiguous()).unwrap();
    assert_eq!(
        (two.len(), three.len(), total(&two) + total(&three)),
        (1, 1, 5 * PAGE)
    );
    mm.check();
}

#[test]
fn clear_and_dirty_requests_each_get_their_kind_while_it_lasts() {
    let mut mm = Buddy::new(PAGE << 12, PAGE).unwrap();
    let clear = BuddyRequest::new(PAGE).prefer(Content::Cleared);
    let five = mm.alloc(&pages(5).top_down()).unwrap();
    give(&mut mm, five, Content::Cleared);
    let (mut clean, mut dirty) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        dirty.extend(mm.alloc(&pages(1)).unwrap());
        clean.extend(mm.alloc(&clear).unwrap());
    }
    assert!(dirty.iter().all(|block| block.content == Content::Dirty));
    assert!(clean.iter().all(|block| block.content == Content::Cleared));
    give(&mut mm, clean, Content::Cleared);
    let over = mm.alloc(&pages(10).prefer(Content::Cleared)).unwrap();
    assert_eq!(total(&over), 10 * PAGE, "more than is clear is no error");
    give(&mut mm, over, Content::Dirty);
    give(&mut mm, dirty, Content::Dirty);
    mm.check();
    assert_eq!(mm.largest_free(), mm.size());
}

#[test]
fn clear_and_dirty_neighbours_merge_up_to_the_whole_space() {
    let mut mm = Buddy::new(PAGE << 12, PAGE).unwrap();
    let all: Vec<Block> = (0..1 << 12)
        .flat_map(|_| mm.alloc(&pages(1)).unwrap())
        .collect();
    let (even, odd): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|block| (block.offset / PAGE).is_multiple_of(2));
    give(&mut mm, even, Content::Cleared);
    give(&mut mm, odd, Content::Dirty);
    mm.check();
    for order in 1..=12 {
        let size = PAGE << order;
        let request = BuddyRequest::new(size)
            .min_block(size)
            .prefer(Content::Cleared);
        let got = mm.alloc(&request).unwrap();
        assert_eq!(
            (got.len(), total(&got), got[0].content),
            (1, size, Content::Dirty)
        );
        give(&mut mm, got, Content::Dirty);
        mm.check();
    }
}

#[test]
fn a_space_of_several_roots_ends_clean_after_cleared_frees() {
    let mut rng = Rng(8);
    for _ in 0..50 {
        let mut mm = Buddy::new(PAGE * 12, PAGE).unwrap();
        let count = 1 + rng.below(12);
        let got = mm.alloc(&pages(count).top_down()).unwrap();
        assert_eq!(total(&got), count * PAGE);
        give(&mut mm, got, Content::Cleared);
        mm.check();
        assert_eq!(
            (mm.free_bytes(), mm.cleared_bytes()),
            (12 * PAGE, count * PAGE)
        );
    }
}

#[test]
fn reset_declares_all_free_space_dirty_or_clear() {
    let mut mm = Buddy::new(PAGE * 12, PAGE).unwrap();
    let got = mm.alloc(&pages(5)).unwrap();
    give(&mut mm, got, Content::Cleared);
    mm.reset(Content::Dirty);
    assert_eq!(mm.cleared_bytes(), 0);
    mm.reset(Content::Cleared);
    assert_eq!(mm.cleared_bytes(), mm.size());
    mm.check();
}

/// A space of several roots, of the chunks that fit into less than 8 MiB: 4 KiB to 1 MiB long.
fn odd_space(rng: &mut Rng) -> Buddy {
    let chunk = PAGE << rng.below(9);
    let mm = Buddy::new(8 * MIB - 1, chunk).unwrap();
    assert_eq!(mm.size(), (8 * MIB - 1) / chunk * chunk);
    mm
}

#[test]
fn a_biased_request_stays_in_its_window_and_fills_it() {
    let mut rng = Rng(9);
    for round in 0..20 {
        let mut mm = odd_space(&mut rng);
        let ps = mm.chunk();
        for index in rng.shuffled(mm.size() / MIB) {
            let bias = span(index * MIB, MIB);
            let fit = |size: u64, min: u64| BuddyRequest::new(size).within(bias).min_block(min);
            assert!(mm.alloc(&fit(MIB + ps, MIB)).is_err());
            assert!(mm.alloc(&fit(MIB + ps, ps)).is_err());
            let late = Span::from_bounds(bias.start() + ps, bias.end()).unwrap();
            let late = BuddyRequest::new(MIB).within(late).min_block(MIB);
            assert!(
                mm.alloc(&late).is_err(),
                "round {round}: a late start leaves too little"
            );
            if let Some(inner) = Span::from_bounds(bias.start() + ps, bias.end() - ps) {
                let half = BuddyRequest::new(MIB / 2).within(inner).min_block(MIB / 2);
                assert!(mm.alloc(&half).is_err(), "no half lies between the ends");
            }
            let whole = mm.alloc(&fit(MIB, MIB)).unwrap();
            assert_eq!((whole.len(), whole[0].span()), (1, bias));
            give(&mut mm, whole, Content::Dirty);
            let trimmed = mm.alloc(&fit(ps, MIB)).unwrap();
            assert_eq!((trimmed.len(), total(&trimmed)), (1, ps));
            give(&mut mm, trimmed, Content::Dirty);
            let mut left = MIB;
            while left > 0 {
                assert!(
                    mm.alloc(&fit(left + ps, ps)).is_err(),
                    "more than the remainder"
                );
                let part = (1 + rng.below(left / ps)) * ps;
                let got = mm.alloc(&fit(part, ps)).unwrap();
                assert!(got.iter().all(|block| bias.covers(block.span())));
                left -= part;
            }
            assert!(is_no_space(&mm.alloc(&fit(ps, ps))));
        }
        mm.check();
    }
}

#[test]
fn a_growing_window_is_filled_to_the_last_chunk() {
    let mut rng = Rng(10);
    for _ in 0..20 {
        let mut mm = odd_space(&mut rng);
        let ps = mm.chunk();
        let first = rng.below(mm.size() / ps) * ps;
        let (mut lo, mut hi, mut left) = (first, first, 0);
        while mm.free_bytes() > 0 {
            let steps = |rng: &mut Rng, most: u64| rng.below(most / ps + 1) * ps;
            let (down, up) = (steps(&mut rng, lo), steps(&mut rng, mm.size() - hi));
            (lo, hi, left) = (lo - down, hi + up, left + down + up);
            let window = span(lo, hi - lo);
            while left > 0 {
                let part = (1 + rng.below(left / ps)) * ps;
                let got = mm.alloc(&BuddyRequest::new(part).within(window)).unwrap();
                assert!(got.iter().all(|block| window.covers(block.span())));
                left -= part;
            }
            mm.check();
        }
        assert!(is_no_space(&mm.alloc(&BuddyRequest::new(ps))));
    }
}

#[test]
fn a_clear_request_is_served_dirty_where_nothing_is_clear() {
    let mut rng = Rng(13);
    for _ in 0..20 {
        let mut mm = odd_space(&mut rng);
        let window = span(0, MIB);
        let request = BuddyRequest::new(mm.chunk()).within(window);
        let mut count = 0;
        while let Ok(got) = mm.alloc(&request.prefer(Content::Cleared)) {
            assert!(got.iter().all(|block| block.content == Content::Dirty));
            count += 1;
        }
        assert_eq!(count, MIB / mm.chunk());
    }
}

#[test]
fn exact_requests_get_exactly_their_bytes_or_say_why_not() {
    // 15 MiB: roots of 8, 4, 2 and 1 MiB.
    let mut mm = Buddy::new(15 * MIB, PAGE).unwrap();
    let exact = |start, len| BuddyRequest::new(len).within(span(start, len));
    let part = 15 * MIB / 4;
    for quarter in 0..4 {
        let got = mm.alloc(&exact(quarter * part, part)).unwrap();
        assert_eq!((got[0].offset, total(&got)), (quarter * part, part));
        let again = mm.alloc(&exact(quarter * part, part));
        assert!(is_no_space(&again), "occupied");
        give(&mut mm, got, Content::Dirty);
    }
    let across = mm.alloc(&exact(7 * MIB, 7 * MIB)).unwrap();
    assert_eq!((across[0].offset, total(&across)), (7 * MIB, 7 * MIB));
    give(&mut mm, across, Content::Dirty);
    assert!(is_invalid(&mm.alloc(&exact(PAGE / 2, PAGE))), "misaligned");
    assert!(is_invalid(&mm.alloc(&exact(PAGE, MIB).min_block(2 * PAGE))));
    for n in (0..15 * MIB / PAGE).step_by(2) {
        mm.alloc(&exact(n * PAGE, PAGE)).unwrap();
    }
    assert!(
        is_no_space(&mm.alloc(&exact(PAGE, 2 * PAGE))),
        "checkerboard"
    );
    for _ in 0..5 {
        let got = mm.alloc(&exact(PAGE, PAGE)).unwrap();
        give(&mut mm, got, Content::Dirty);
    }
    mm.check();
}

#[test]
fn random_exact_slices_cover_the_space_once() {
    let mut rng = Rng(11);
    let mut mm = Buddy::new(15 * MIB, PAGE).unwrap();
    let mut cuts = rng.shuffled(15 * MIB / PAGE - 1)[..15].to_vec();
    cuts.iter_mut().for_each(|cut| *cut += 1);
    cuts.extend([0, 15 * MIB / PAGE]);
    cuts.sort_unstable();
    let slices: Vec<_> = cuts
        .windows(2)
        .map(|pair| (pair[0], pair[1] - pair[0]))
        .collect();
    assert_eq!(slices.len(), 16);
    let order = rng.shuffled(16);
    let slices = order
        .into_iter()
        .map(|n| slices[usize::try_from(n).unwrap()]);
    for (start, count) in slices {
        let got = mm
            .alloc(&pages(count).within(span(start * PAGE, count * PAGE)))
            .unwrap();
        assert_eq!((got[0].offset, total(&got)), (start * PAGE, count * PAGE));
    }
    assert_eq!(mm.free_bytes(), 0);
    mm.check();
}

#[test]
fn requests_beyond_the_largest_order_need_a_run() {
    let mut mm = Buddy::new(10 * GIB, PAGE).unwrap();
    let run = mm.alloc(&BuddyRequest::new(9 * GIB).contiguous()).unwrap();
    assert_eq!((run.len(), total(&run)), (1, 9 * GIB));
    give(&mut mm, run, Content::Dirty);
    assert!(is_invalid(
        &mm.alloc(&BuddyRequest::new(9 * GIB).min_block(8 * GIB))
    ));
    let limited = BuddyRequest::new(9 * GIB)
        .contiguous()
        .within(span(0, 10 * GIB));
    assert!(is_invalid(&mm.alloc(&limited)));
    mm.check();
}

#[test]
fn small_blocks_can_be_spread_by_alignment() {
    let mut mm = Buddy::new(4 * MIB, PAGE).unwrap();
    let request = BuddyRequest::new(8192).align(256 << 10).contiguous();
    for _ in 0..16 {
        let got = mm.alloc(&request).unwrap();
        assert_eq!(
            (got.len(), got[0].size, got[0].offset % (256 << 10)),
            (1, 8192, 0)
        );
    }
    assert!(is_no_space(&mm.alloc(&request)));
    mm.check();
}

#[test]
fn mixed_alignments_leave_a_consistent_space() {
    let mut rng = Rng(12);
    let mut mm = Buddy::new(2 * MIB, PAGE).unwrap();
    let mut live: Vec<Block> = Vec::new();
    for _ in 0..4000 {
        let align = PAGE << rng.below(6);
        match mm.alloc(&pages(1 + rng.below(8)).contiguous().align(align)) {
            Ok(got) => {
                assert_eq!(got[0].offset % align, 0);
                live.extend(got);
            }
            Err(_) => {
                for _ in 0..live.len() / 2 {
                    let index = usize::try_from(rng.below(live.len() as u64)).unwrap();
                    mm.free(live.swap_remove(index).span(), Content::Dirty);
                }
            }
        }
        mm.check();
    }
}

#[test]
fn a_trimmed_block_gives_back_the_rest_and_nothing_else() {
    let mut mm = Buddy::new(MIB, PAGE).unwrap();
    let block = mm.alloc_one(&pages(64)).unwrap();
    let (block, at) = (block.span(), block.offset);
    for wrong in [span(at, 65 * PAGE), span(at, 0), span(at + 1, PAGE)] {
        assert!(mm.trim(block, wrong, Content::Dirty).is_err());
    }
    assert_eq!(
        mm.free_bytes(),
        MIB - 64 * PAGE,
        "a refused trim changes nothing"
    );
    mm.trim(block, block, Content::Dirty).unwrap();
    assert_eq!(mm.free_bytes(), MIB - 64 * PAGE, "keeping all is a no-op");
    let keep = span(at + 3 * PAGE, 5 * PAGE);
    mm.trim(block, keep, Content::Dirty).unwrap();
    assert_eq!(mm.free_bytes(), MIB - 5 * PAGE);
    mm.check();
    mm.free(keep, Content::Dirty);
    assert_eq!(mm.largest_free(), MIB);
}

#[test]
fn requests_no_space_could_serve_are_invalid() {
    let mut mm = Buddy::new(MIB, PAGE).unwrap();
    assert!(is_invalid(&mm.alloc(&BuddyRequest::new(0))));
    assert!(is_invalid(&mm.alloc(&BuddyRequest::new(PAGE + 1))));
    assert!(is_invalid(&mm.alloc(&BuddyRequest::new(2 * MIB))));
    assert!(is_invalid(&mm.alloc(&pages(1).min_block(PAGE / 2))));
    assert!(is_invalid(&mm.alloc(&pages(1).min_block(3 * PAGE))));
    let outside = mm.alloc(&pages(1).within(span(MIB, PAGE)));
    assert!(matches!(outside, Err(SpaceError::OutOfRange { .. })));
    assert!(Buddy::new(PAGE - 1, PAGE).is_err());
    assert!(Buddy::new(MIB, 3000).is_err());
}

#[test]
fn odd_sizes_do_not_cost_a_power_of_two() {
    // F8: 20.4 GiB pinned must not become 32 GiB.
    let mut mm = Buddy::new(24 * GIB, PAGE).unwrap();
    let size = (204 * GIB / 10).next_multiple_of(PAGE);
    let got = mm.alloc_one(&BuddyRequest::new(size)).unwrap();
    assert_eq!((got.size, mm.free_bytes()), (size, 24 * GIB - size));
    // F2: eight times 8 MiB fill 64 MiB.
    let mut mm = Buddy::new(64 * MIB, PAGE).unwrap();
    for _ in 0..8 {
        mm.alloc_one(&BuddyRequest::new(8 * MIB)).unwrap();
    }
    assert_eq!(mm.free_bytes(), 0);
}

#[test]
fn the_tensors_of_28_layers_take_their_sum() {
    // F8: they took 16.63 GB instead of 11.32.
    let sizes = [96_000_000_u64, 36_000_000, 9_000_000];
    let mut mm = Buddy::new(12 * GIB, PAGE).unwrap();
    let (mut wanted, mut count) = (0, 0);
    for size in (0..28).flat_map(|_| sizes) {
        mm.alloc_one(&BuddyRequest::new(size.next_multiple_of(PAGE)))
            .unwrap();
        (wanted, count) = (wanted + size, count + 1);
    }
    let taken = mm.size() - mm.free_bytes();
    assert!(taken <= wanted + count * PAGE && taken * 100 <= wanted * 103);
}

#[test]
fn a_checkerboard_is_reported_with_free_largest_and_fragmentation() {
    // F5: 64 x 1, every second one freed, then 32 wanted in one piece.
    let mut mm = Buddy::new(64 * PAGE, PAGE).unwrap();
    let all: Vec<Block> = (0..64).map(|_| mm.alloc_one(&pages(1)).unwrap()).collect();
    give(&mut mm, all.into_iter().step_by(2), Content::Dirty);
    let error = mm.alloc_one(&pages(32)).unwrap_err();
    let expected = SpaceError::NoSpace {
        needed: 32 * PAGE,
        free: 32 * PAGE,
        largest: PAGE,
        conditions: Conditions::CONTIGUOUS,
    };
    assert_eq!(error, expected);
    assert_eq!(error.fragmentation_permille(), Some(968));
}
