use std::vec;
use std::vec::Vec;

use super::*;
use crate::testing::{Rng, assert_subquadratic, index};

fn spaces(cells: &[Option<u32>]) -> Vec<(usize, usize)> {
    let mut holes = Vec::new();
    let mut at = 0;
    while at < cells.len() {
        let end = (at..cells.len())
            .find(|&i| cells[i].is_some())
            .unwrap_or(cells.len());
        if end > at {
            holes.push((at, end));
        }
        at = end + 1;
    }
    holes
}

/// The starts where a request may go, found by trying every address.
fn candidates(
    cells: &[Option<u32>],
    request: &RangeRequest,
    gap: GapRule,
) -> Vec<(usize, usize, u64)> {
    let mut all = Vec::new();
    for (lo, hi) in spaces(cells) {
        let left = lo.checked_sub(1).and_then(|i| cells[i]);
        let right = cells.get(hi).copied().flatten();
        for start in lo as u64..hi as u64 {
            let end = start + request.size;
            let near = |color: Option<u32>, f: &dyn Fn(u32) -> u64| color.map_or(0, f);
            let fits = end <= hi as u64
                && start % request.align == 0
                && request
                    .within
                    .is_none_or(|w| w.start() <= start && end <= w.end())
                && start >= lo as u64 + near(left, &|c| gap(c, request.color))
                && end + near(right, &|c| gap(request.color, c)) <= hi as u64;
            if fits {
                all.push((lo, hi, start));
            }
        }
    }
    all
}

/// Whether a mode may take this one of all candidates.
fn is_choice(all: &[(usize, usize, u64)], mode: Mode, start: u64) -> bool {
    let starts = || all.iter().map(|&(_, _, start)| start);
    let shortest = || all.iter().map(|&(lo, hi, _)| hi - lo).min();
    match mode {
        Mode::Low => starts().min() == Some(start),
        Mode::High => starts().max() == Some(start),
        Mode::Best => all
            .iter()
            .any(|&(lo, hi, at)| at == start && Some(hi - lo) == shortest()),
        Mode::Evict => starts().any(|at| at == start),
    }
}

fn two_apart(left: u32, right: u32) -> u64 {
    2 * u64::from(left != right)
}

fn no_gap(_: u32, _: u32) -> u64 {
    0
}

/// Where the cells of a model lie in the space under test.
#[derive(Clone, Copy)]
struct Scale {
    base: u64,
    unit: u64,
}

impl Scale {
    const PLAIN: Self = Self { base: 0, unit: 1 };

    fn span(self, cells: Span) -> Span {
        Span::new(
            self.base + cells.start() * self.unit,
            cells.len() * self.unit,
        )
        .unwrap()
    }

    fn request(self, request: &RangeRequest) -> RangeRequest {
        RangeRequest {
            size: request.size * self.unit,
            align: request.align * self.unit,
            within: request.within.map(|within| self.span(within)),
            ..*request
        }
    }

    /// In cells again; every bound is one of a cell.
    fn cells(self, span: Span) -> Span {
        let cell = |address: u64| {
            assert!((address - self.base).is_multiple_of(self.unit));
            (address - self.base) / self.unit
        };
        Span::from_bounds(cell(span.start()), cell(span.end())).unwrap()
    }
}

fn random_request(rng: &mut Rng, cells: u64, mode: Mode) -> RangeRequest {
    let most = 1 + rng.below(1 + cells / 8);
    let mut request = RangeRequest::new(1 + rng.below(most)).mode(mode);
    if rng.below(3) == 0 {
        request = request.align(1 + rng.below(9));
    }
    if rng.below(4) == 0 {
        let start = rng.below(cells);
        request = request.within(Span::new(start, rng.below(cells - start + 1)).unwrap());
    }
    request.color(u32::try_from(rng.below(3)).unwrap())
}

fn fill(cells: &mut [Option<u32>], span: Span, color: Option<u32>) {
    let (start, end) = (index(span.start()), index(span.end()));
    for cell in &mut cells[start..end] {
        assert!(
            cell.is_some() != color.is_some(),
            "a range covers one that is live"
        );
        *cell = color;
    }
}

fn churn(seed: u64, modes: &[Mode], gap: GapRule) {
    let count = 1 + Rng(seed).below(1200);
    let space = RangeAllocator::with_gap(Span::new(0, count).unwrap(), gap);
    churn_in(space, seed, modes, Scale::PLAIN);
}

/// Random operations on an empty space, compared with a table of cells.
fn churn_in(mut space: RangeAllocator, seed: u64, modes: &[Mode], scale: Scale) {
    let mut rng = Rng(seed);
    let count = 1 + rng.below(1200);
    let gap = space.gap.unwrap_or(no_gap);
    let mut cells: Vec<Option<u32>> = vec![None; index(count)];
    let mut live: Vec<Span> = Vec::new();
    // Long phases of growth and decay build and tear down levels of the tree.
    for step in 0..1500 {
        let growing = (step / 300) % 2 == 0;
        if rng.below(10) < if growing { 8 } else { 3 } {
            let mode = modes[index(rng.below(modes.len() as u64))];
            let request = random_request(&mut rng, count, mode);
            let all = candidates(&cells, &request, gap);
            let got = space.insert(&scale.request(&request));
            let got = got.map(|span| scale.cells(span));
            assert_eq!(
                got.is_ok(),
                !all.is_empty(),
                "seed {seed} step {step} {request:?}"
            );
            if let Ok(span) = got {
                assert!(
                    is_choice(&all, mode, span.start()),
                    "seed {seed} step {step} {request:?} at {span:?}"
                );
                fill(&mut cells, span, Some(request.color));
                live.push(span);
            }
        } else if !live.is_empty() {
            let pick = index(rng.below(live.len() as u64));
            let span = live.swap_remove(pick);
            let real = scale.span(span);
            assert_eq!(space.remove(real.start()), Some(real));
            fill(&mut cells, span, None);
        }
        if step % 16 == 0 {
            space.check();
        }
        let address = rng.below(count + 5);
        let within = if scale.unit > 1 {
            rng.below(scale.unit)
        } else {
            0
        };
        let found = space.find(scale.base + address * scale.unit + within);
        let found = found.map(|range| scale.cells(range.span));
        assert_eq!(
            found,
            live.iter().copied().find(|span| span.contains(address))
        );
        let after = space
            .first_at_or_after(scale.base + address * scale.unit)
            .map(|range| scale.cells(range.span).start());
        assert_eq!(
            after,
            live.iter()
                .map(|span| span.start())
                .filter(|&s| s >= address)
                .min()
        );
    }
    for span in live {
        space.remove(scale.span(span).start()).unwrap();
    }
    space.check();
    assert_eq!((space.holes().count(), space.metadata_nodes()), (1, 1));
}

#[test]
fn ranges_longer_and_farther_apart_than_a_leaf_reaches_are_placed_like_short_ones() {
    // A leaf reaches 2^31 - 2 addresses: from hundreds of cells in a leaf to one, and cells that
    // begin just inside or outside its reach.
    let reach = (1 << 31) - 2;
    let units = [
        1 << 24,
        1 << 28,
        reach / 2,
        reach / 2 + 1,
        reach,
        reach + 1,
        1 << 45,
    ];
    let all = [Mode::Low, Mode::High, Mode::Best, Mode::Evict];
    for unit in units {
        // Every alignment in use divides the base.
        for base in [0, 2520 * unit] {
            for (seed, modes) in [&all[..1], &all[1..2], &all[..2], &all]
                .into_iter()
                .enumerate()
            {
                let seed = 100 + seed as u64;
                let scale = Scale { base, unit };
                let count = 1 + Rng(seed).below(1200);
                let space = RangeAllocator::new(scale.span(Span::new(0, count).unwrap()));
                churn_in(space, seed, modes, scale);
            }
        }
    }
}

#[test]
fn every_mode_agrees_with_trying_every_address() {
    for seed in 0..12 {
        churn(seed, &[Mode::Low], no_gap);
        churn(seed, &[Mode::High], no_gap);
        churn(seed, &[Mode::Best], no_gap);
        churn(seed, &[Mode::Low, Mode::High], two_apart);
        churn(
            seed,
            &[Mode::Low, Mode::High, Mode::Best, Mode::Evict],
            two_apart,
        );
        churn(
            seed,
            &[Mode::Low, Mode::High, Mode::Best, Mode::Evict],
            no_gap,
        );
    }
}

#[test]
fn every_sequence_of_small_operations_keeps_the_records_right() {
    // All ways to reserve and remove cells of a space of four, three operations deep from every
    // reachable state: 2^4 states, each built by reservations in both directions.
    for state in 0..16_u64 {
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
            for (first, second, third) in
                (0..4).flat_map(|a| (0..4).flat_map(move |b| (0..4).map(move |c| (a, b, c))))
            {
                let mut space = RangeAllocator::new(Span::new(0, 4).unwrap());
                let mut bits = 0;
                for cell in order.into_iter().filter(|cell| state >> cell & 1 != 0) {
                    space.reserve(Span::new(cell, 1).unwrap(), 0).unwrap();
                    bits |= 1 << cell;
                }
                for cell in [first, second, third] {
                    if bits >> cell & 1 != 0 {
                        assert!(space.remove(cell).is_some());
                    } else {
                        assert_eq!(space.remove(cell), None);
                        assert!(space.reserve(Span::new(cell, 1).unwrap(), 0).is_ok());
                    }
                    bits ^= 1 << cell;
                    space.check();
                    let seen: u64 = space.ranges().map(|range| 1 << range.span.start()).sum();
                    assert_eq!(seen, bits);
                }
            }
        }
    }
}

#[test]
fn modes_choose_smallest_lowest_highest_and_latest_holes() {
    let mut mm = RangeAllocator::new(Span::new(0, 100).unwrap());
    for start in [10, 30, 45, 60, 90] {
        mm.reserve(Span::new(start, 5).unwrap(), 0).unwrap();
    }
    // Holes: [0,10) [15,30) [35,45) [50,60) [65,90) [95,100).
    let mut at = |mode, size| {
        let span = mm.insert(&RangeRequest::new(size).mode(mode)).unwrap();
        mm.remove(span.start());
        span.start()
    };
    assert_eq!(at(Mode::Low, 10), 0);
    assert_eq!(at(Mode::Best, 5), 95);
    assert_eq!(at(Mode::High, 10), 80);
    assert_eq!(at(Mode::Evict, 4), 65, "the hole made last");
    assert_eq!(at(Mode::Best, 9), 0, "the lowest of equals");
    assert_eq!(at(Mode::Evict, 4), 0);
}

#[test]
fn a_refused_request_does_not_begin_the_ages_of_holes() {
    let mut space = RangeAllocator::new(Span::new(0, 100).unwrap());
    let ten = |start| Span::new(start, 10).unwrap();
    (0..10).for_each(|n| space.reserve(ten(10 * n), 0).unwrap());
    space.remove(50).unwrap();
    let request = RangeRequest::new(10).mode(Mode::Evict);
    for mode in [Mode::Best, Mode::Evict] {
        let refused = RangeRequest::new(10).mode(mode);
        for refused in [
            refused.align(11),
            refused.within(ten(51)),
            RangeRequest::new(11),
        ] {
            let [mut asked, mut other] = [space.clone(), space.clone()];
            assert!(asked.insert(&refused).is_err());
            for space in [&mut asked, &mut other] {
                space.remove(20).unwrap();
            }
            assert_eq!(
                asked.insert(&request),
                other.insert(&request),
                "{refused:?}"
            );
            asked.check();
        }
    }
}

#[test]
fn removing_what_is_not_the_start_of_a_range_does_nothing() {
    let mut mm = RangeAllocator::new(Span::new(100, 100).unwrap());
    mm.reserve(Span::new(120, 10).unwrap(), 0).unwrap();
    for start in [0, 99, 100, 121, 130, 200, u64::MAX] {
        assert_eq!(mm.remove(start), None);
    }
    assert_eq!(mm.len(), 1);
    let mut empty = RangeAllocator::new(Span::new(5, 0).unwrap());
    assert_eq!(empty.remove(5), None);
    assert!(empty.insert(&RangeRequest::new(1)).is_err());
    assert_eq!(empty.first_at_or_after(0), None);
}

#[test]
fn filling_from_either_end_packs_the_leaves() {
    for (mode, end) in [Mode::Low, Mode::High]
        .into_iter()
        .flat_map(|mode| [(mode, 1 << 30), (mode, 1 << 50)])
    {
        let mut mm = RangeAllocator::new(Span::new(0, end).unwrap());
        for _ in 0..32_000 {
            mm.insert(&RangeRequest::new(1).mode(mode)).unwrap();
        }
        assert!(
            mm.metadata_nodes() < 1300,
            "{mode:?} below {end:#x}: {} nodes",
            mm.metadata_nodes()
        );
    }
}

#[test]
fn a_live_range_can_be_cut_at_any_places() {
    // A leaf reaches all cells, some, two or one.
    for (seed, unit) in
        (0..8).flat_map(|seed| [1, 1 << 28, (1 << 31) - 2, 1 << 45].map(|unit| (seed, unit)))
    {
        let scale = Scale { base: 0, unit };
        let mut rng = Rng(seed);
        let all = scale.span(Span::new(0, 20_000).unwrap());
        let mut mm = RangeAllocator::new(all);
        mm.reserve(all, 0).unwrap();
        let mut cells = vec![0; 20_000];
        for color in 1..1500 {
            let start = rng.below(20_000);
            let whole = scale.cells(mm.find(start * unit).unwrap().span);
            let len = 1 + rng.below(whole.end() - start);
            let part = Span::new(start, len.min(1 + rng.below(30))).unwrap();
            mm.reserve_isolation().unwrap();
            mm.isolate(scale.span(part), color);
            cells[index(part.start())..index(part.end())].fill(color);
            if color % 100 == 0 {
                mm.check();
            }
        }
        for range in mm.ranges() {
            let span = scale.cells(range.span);
            let part = &cells[index(span.start())..index(span.end())];
            assert!(part.iter().all(|&color| color == range.color));
        }
        // Back to one hole, in another order than it was cut.
        let mut starts: Vec<_> = mm.ranges().map(|range| range.span.start()).collect();
        starts.sort_unstable_by_key(|start| start.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        starts
            .iter()
            .for_each(|&start| assert!(mm.remove(start).is_some()));
        mm.check();
        assert_eq!((mm.len(), mm.metadata_nodes()), (0, 1));
    }
}

#[test]
fn an_untouched_space_is_one_hole_without_records() {
    let span = Span::new(7, 100).unwrap();
    let mm = RangeAllocator::new(span);
    assert_eq!((mm.metadata_bytes(), mm.largest_hole()), (0, 100));
    assert_eq!(mm.holes().collect::<Vec<_>>(), [span]);
    assert_eq!((mm.find(7), mm.first_at_or_after(0)), (None, None));
    let empty = RangeAllocator::new(Span::new(7, 0).unwrap());
    assert_eq!((empty.holes().count(), empty.largest_hole()), (0, 0));
}

/// `count` holes of a page, too short for two.
fn paged(count: u64, mode: Mode) -> RangeAllocator {
    let mut mm = RangeAllocator::new(Span::new(1, u64::MAX - 2).unwrap());
    let page = RangeRequest::new(4096).mode(mode);
    let starts: Vec<u64> = (0..2 * count)
        .map(|_| mm.insert(&page).unwrap().start())
        .collect();
    for start in starts.iter().step_by(2) {
        mm.remove(*start).unwrap();
    }
    mm
}

#[test]
fn an_insertion_does_not_look_at_all_holes_that_are_too_short() {
    for mode in [Mode::Low, Mode::High, Mode::Best] {
        let insert = |mm: &mut RangeAllocator, count| {
            let double = RangeRequest::new(8192).mode(mode);
            (0..count).for_each(|_| assert!(mm.insert(&double).is_ok()));
        };
        assert_subquadratic(1250, |holes| paged(holes, mode), insert);
        // However many more insertions there are than holes, and the other way around.
        assert_subquadratic(1250, |_| paged(5000, mode), insert);
        assert_subquadratic(640, |count| paged(16 * count, mode), insert);
    }
}

#[test]
fn an_insertion_does_not_look_at_all_holes_that_are_misaligned() {
    for mode in [Mode::Low, Mode::High, Mode::Best] {
        // 20 bytes, of which no 16 begin at a multiple of 64.
        let prepare = |holes: u64| {
            let (first, most) = (holes * 256, 1 << 40);
            let mut mm = RangeAllocator::new(Span::new(0, 2 * first + most).unwrap());
            for n in 0..holes {
                for at in [n * 256, first + most + n * 256] {
                    mm.reserve(Span::new(at, 10).unwrap(), 0).unwrap();
                    mm.reserve(Span::new(at + 30, 226).unwrap(), 0).unwrap();
                }
            }
            mm
        };
        assert_subquadratic(1000, prepare, |mm, count| {
            let request = RangeRequest::new(16).align(64).mode(mode);
            (0..count).for_each(|_| assert!(mm.insert(&request).is_ok()));
        });
    }
}

#[test]
fn the_cheapest_window_takes_one_pass_over_the_candidates() {
    // Windows of half of them: comparing each with each would be quadratic.
    let full = |count| {
        let mut space = RangeAllocator::new(Span::new(0, count).unwrap());
        for start in 0..count {
            space.reserve(Span::new(start, 1).unwrap(), 0).unwrap();
        }
        space
    };
    assert_subquadratic(2500, full, |space, count| {
        let mut scan = space.eviction_scan(&RangeRequest::new(count / 2)).unwrap();
        let middle = count * 3 / 5;
        let mut order: Vec<u64> = (0..count).collect();
        order.sort_unstable_by_key(|start| start.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for start in order {
            scan.add(start, start.abs_diff(middle)).unwrap();
        }
        let found = scan.cheapest().unwrap().unwrap();
        let nearest = middle - count / 4;
        assert_eq!(found.place.start(), nearest, "around the cheap middle");
        assert_eq!(found.victims.len() as u64, count / 2);
    });
}

#[test]
fn best_fit_takes_the_lowest_of_four_equal_holes() {
    for first in 0..4 {
        let mut mm = RangeAllocator::new(Span::new(0, 64).unwrap());
        for at in 0..8 {
            mm.reserve(Span::new(at * 8, 8).unwrap(), 0).unwrap();
        }
        for hole in 0..4 {
            mm.remove((first + hole) % 4 * 16).unwrap();
        }
        let got = mm.insert(&RangeRequest::new(5).mode(Mode::Best)).unwrap();
        assert_eq!(got.start(), 0, "holes made from {first} on");
    }
}
