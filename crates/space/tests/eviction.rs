//! The eviction scan against trying every window.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::Rng;
use vrampager_addr::Span;
use vrampager_space::{Eviction, GapRule, Mode, Range, RangeAllocator, RangeRequest};

/// A request and what a scan for it may evict: candidates with their costs.
struct Case<'a> {
    space: &'a RangeAllocator,
    gap: GapRule,
    size: u64,
    align: u64,
    color: u32,
    window: Span,
    roster: &'a [(Range, u64)],
}

impl Case<'_> {
    /// Whether the request fits at `start` once the victims, a set of bits, are gone.
    fn fits(&self, start: u64, victims: usize) -> bool {
        let end = start + self.size;
        let stays = |range: &Range| {
            let number = self.roster.iter().position(|(victim, _)| victim == range);
            number.is_none_or(|number| victims >> number & 1 == 0)
        };
        let (mut lo, mut hi) = (0, u64::MAX);
        for range in self.space.ranges().filter(stays) {
            if range.span.start() < end && start < range.span.end() {
                return false;
            }
            if range.span.end() <= start {
                lo = range.span.end() + (self.gap)(range.color, self.color);
            } else if hi == u64::MAX {
                hi = range
                    .span
                    .start()
                    .saturating_sub((self.gap)(self.color, range.color));
            }
        }
        start >= lo && end <= hi
    }

    fn cost(&self, victims: usize) -> (u128, u32) {
        let all = self.roster.iter().enumerate();
        let taken = all.filter(|(number, _)| victims >> number & 1 != 0);
        let cost = taken.map(|(_, &(_, cost))| u128::from(cost)).sum();
        (cost, victims.count_ones())
    }

    /// Cost and number of the victims of the cheapest window, found by trying all sets of victims
    /// at all places.
    fn cheapest(&self) -> Option<(u128, u32)> {
        let last = self.window.end().checked_sub(self.size)?;
        let starts = (self.window.start()..=last).filter(|start| start.is_multiple_of(self.align));
        let sets = || 0..1_usize << self.roster.len();
        starts
            .flat_map(|start| sets().filter(move |&set| self.fits(start, set)))
            .map(|set| self.cost(set))
            .min()
    }

    fn check(&self, mode: Mode) {
        let request = RangeRequest::new(self.size)
            .align(self.align)
            .color(self.color)
            .within(self.window)
            .mode(mode);
        let mut scan = self.space.eviction_scan(&request).unwrap();
        let mut first = None;
        for (number, &(range, cost)) in self.roster.iter().enumerate() {
            if scan.add(range.span.start(), cost).unwrap() && first.is_none() {
                first = Some(number);
            }
        }
        let text = || {
            format!(
                "{:?} size {} align {} in {} of {:?}, {:?}",
                mode, self.size, self.align, self.window, self.space, self.roster
            )
        };
        let found = scan.cheapest().unwrap();
        let got = found
            .as_ref()
            .map(|found| (found.cost, found.victims.len()));
        let expected = self.cheapest().map(|(cost, count)| (cost, count as usize));
        assert_eq!(got, expected, "{}", text());
        if let Some(found) = &found {
            self.check_answer(&request, found, mode);
        }
        let earliest = scan.first().unwrap();
        assert_eq!(earliest.is_some(), first.is_some());
        if let (Some(found), Some(number)) = (&earliest, first) {
            self.check_answer(&request, found, mode);
            let last = self.roster[number].0.span;
            // A gap towards what is left may be wider than the gap towards what went.
            let plain = (self.gap)(1, 0) == 0;
            let in_time = found.victims.first().is_none_or(|victim| *victim == last);
            assert!(in_time || !plain, "{}", text());
            assert!(got.unwrap().0 <= found.cost, "{}", text());
        }
    }

    /// Evicts, and puts the request where the scan said.
    fn check_answer(&self, request: &RangeRequest, found: &Eviction, mode: Mode) {
        let mut space = self.space.clone();
        let number = |victim: &Span| {
            let known = self
                .roster
                .iter()
                .position(|(range, _)| range.span == *victim);
            known.expect("a victim is a candidate")
        };
        let numbers: Vec<_> = found.victims.iter().map(number).collect();
        assert!(numbers.is_sorted_by(|a, b| a > b), "the last added first");
        for victim in &found.victims {
            assert_eq!(space.remove(victim.start()), Some(*victim));
        }
        assert!(self.window.covers(found.place));
        assert!(found.place.start().is_multiple_of(self.align));
        space.reserve(found.place, self.color).unwrap();
        space.check();
        // Nothing was evicted in vain.
        for victim in &found.victims {
            let mut space = self.space.clone();
            for other in found.victims.iter().filter(|other| *other != victim) {
                space.remove(other.start());
            }
            assert!(
                space.reserve(found.place, self.color).is_err(),
                "{request:?} {mode:?}"
            );
        }
    }
}

fn no_gap(_: u32, _: u32) -> u64 {
    0
}

/// Wider towards some colours than towards others, and not symmetric.
fn uneven_gap(left: u32, right: u32) -> u64 {
    [[0, 1, 3], [2, 0, 1], [0, 4, 1]][left as usize][right as usize]
}

/// All ways to tile `cells` cells with ranges, none where a part is negative.
fn tilings(cells: i64) -> Vec<Vec<i64>> {
    if cells == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for len in 1..=cells {
        for rest in tilings(cells - len) {
            let two_holes = rest.first().is_some_and(|&next| next < 0);
            for part in [len, -len] {
                if part > 0 || !two_holes {
                    all.push([&[part], rest.as_slice()].concat());
                }
            }
        }
    }
    all
}

#[test]
fn the_cheapest_window_is_found_in_every_space_of_six_cells() {
    const CELLS: i64 = 6;
    let cells = CELLS.unsigned_abs();
    let mut rng = Rng(1);
    for tiling in tilings(CELLS) {
        let mut space = RangeAllocator::new(Span::new(0, cells).unwrap());
        let mut at = 0;
        for part in tiling {
            let span = Span::new(at, part.unsigned_abs()).unwrap();
            if part > 0 {
                space.reserve(span, 0).unwrap();
            }
            at = span.end();
        }
        let live: Vec<Range> = space.ranges().collect();
        for set in 0..1_usize << live.len() {
            let mut roster = Vec::new();
            for number in rng.shuffled(live.len() as u64) {
                let number = usize::try_from(number).unwrap();
                if set >> number & 1 != 0 {
                    roster.push((live[number], rng.below(4)));
                }
            }
            for (size, align) in (1..=cells).flat_map(|size| [1, 2, 3].map(|align| (size, align))) {
                let case = Case {
                    space: &space,
                    gap: no_gap,
                    size,
                    align,
                    color: 0,
                    window: space.span(),
                    roster: &roster,
                };
                case.check(Mode::Low);
                case.check(Mode::High);
            }
        }
    }
}

#[test]
fn the_cheapest_window_respects_gaps_and_limits() {
    for seed in 0..600 {
        let mut rng = Rng(seed);
        let gap: GapRule = if rng.below(3) == 0 {
            no_gap
        } else {
            uneven_gap
        };
        let mut space = RangeAllocator::with_gap(Span::new(0, 40).unwrap(), gap);
        let color = |rng: &mut Rng| u32::try_from(rng.below(3)).unwrap();
        for _ in 0..rng.below(20) {
            let request = RangeRequest::new(1 + rng.below(5)).color(color(&mut rng));
            let window = rng.below(30);
            // A refusal only makes the space emptier.
            space
                .insert(&request.within(Span::new(window, 10).unwrap()))
                .ok();
        }
        let live: Vec<Range> = space.ranges().collect();
        let mut roster = Vec::new();
        for number in rng.shuffled(live.len() as u64) {
            if rng.below(4) > 0 && roster.len() < 6 {
                roster.push((live[usize::try_from(number).unwrap()], rng.below(6)));
            }
        }
        let start = rng.below(20);
        for size in 1..16 {
            let case = Case {
                space: &space,
                gap,
                size,
                align: 1 + rng.below(4),
                color: color(&mut rng),
                window: Span::new(start, 40 - start - rng.below(5)).unwrap(),
                roster: &roster,
            };
            case.check(Mode::Low);
            case.check(Mode::High);
        }
    }
}

#[test]
fn room_that_is_there_costs_nothing() {
    let mut space = RangeAllocator::new(Span::new(0, 100).unwrap());
    let request = RangeRequest::new(60);
    let free = space.eviction_scan(&request).unwrap().cheapest().unwrap();
    assert_eq!(free.unwrap().place.start(), 0);
    space.reserve(Span::new(0, 30).unwrap(), 0).unwrap();
    let mut scan = space.eviction_scan(&request).unwrap();
    scan.add(0, 7).unwrap();
    let found = scan.cheapest().unwrap().unwrap();
    assert_eq!(
        (found.cost, found.victims.len(), found.place.start()),
        (0, 0, 30)
    );
}

#[test]
fn a_candidate_added_twice_counts_once_and_costs_what_it_did_first() {
    let mut space = RangeAllocator::new(Span::new(0, 10).unwrap());
    space.reserve(Span::new(0, 10).unwrap(), 0).unwrap();
    let mut scan = space.eviction_scan(&RangeRequest::new(1)).unwrap();
    assert_eq!(scan.add(0, 5), Ok(true));
    assert_eq!(scan.add(0, 9), Ok(true));
    let found = scan.cheapest().unwrap().unwrap();
    assert_eq!((found.cost, found.victims.len()), (5, 1));
}

#[test]
#[should_panic(expected = "no live range starts at 0x8")]
fn a_candidate_that_is_not_live_is_a_bug() {
    let space = RangeAllocator::new(Span::new(0, 10).unwrap());
    let mut scan = space.eviction_scan(&RangeRequest::new(1)).unwrap();
    scan.add(8, 1).unwrap();
}

#[test]
fn costs_beyond_64_bits_add_up() {
    let mut space = RangeAllocator::new(Span::new(0, 2).unwrap());
    space.reserve(Span::new(0, 1).unwrap(), 0).unwrap();
    space.reserve(Span::new(1, 1).unwrap(), 0).unwrap();
    let mut scan = space.eviction_scan(&RangeRequest::new(2)).unwrap();
    scan.add(0, u64::MAX).unwrap();
    scan.add(1, u64::MAX).unwrap();
    let found = scan.cheapest().unwrap().unwrap();
    assert_eq!(found.cost, 2 * u128::from(u64::MAX));
}

#[test]
fn an_aperture_smaller_than_memory_serves_all_of_it_by_evicting_the_least_recent() {
    // 64 pages of aperture before buffers of 2000 pages. The colour is the buffer's number.
    let mut aperture = RangeAllocator::new(Span::new(1 << 32, 64).unwrap());
    let mut rng = Rng(5);
    let sizes: Vec<u64> = (0..250).map(|_| 1 + rng.below(15)).collect();
    let mut recent: Vec<(usize, u64)> = Vec::new();
    let (mut hits, mut evictions) = (0, 0);
    for _ in 0..20_000 {
        // Half of the accesses go to a few buffers.
        let few = if rng.below(2) == 0 { 4 } else { 250 };
        let buffer = usize::try_from(rng.below(few)).unwrap();
        if let Some(at) = recent.iter().position(|&(of, _)| of == buffer) {
            let entry = recent.remove(at);
            recent.push(entry);
            hits += 1;
        } else {
            let color = u32::try_from(buffer).unwrap();
            let request = RangeRequest::new(sizes[buffer])
                .color(color)
                .mode(Mode::Low);
            let mut scan = aperture.eviction_scan(&request).unwrap();
            for (age, &(_, start)) in (0_u64..).zip(&recent) {
                // Much cheaper than one more recent.
                scan.add(start, 1 << age.min(63)).unwrap();
            }
            let found = scan.cheapest().unwrap().expect("all may go");
            for victim in found.victims {
                aperture.remove(victim.start()).unwrap();
                recent.retain(|&(_, start)| start != victim.start());
                evictions += 1;
            }
            aperture.reserve(found.place, color).unwrap();
            recent.push((buffer, found.place.start()));
        }
        let &(of, start) = recent.last().unwrap();
        let page = start + rng.below(sizes[of]);
        let found = aperture.find(page).unwrap();
        assert_eq!((found.color as usize, found.span.start()), (of, start));
    }
    aperture.check();
    assert_eq!(aperture.len(), recent.len());
    assert!(
        hits > 7000 && evictions > 5000,
        "{hits} hits, {evictions} evictions"
    );
}
