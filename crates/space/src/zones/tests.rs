use std::vec;
use std::vec::Vec;

use super::*;
use crate::testing::{Rng, index};
use crate::{Conditions, ErrorKind};

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
fn a_pool_of_64_buffers_serves_a_hundred_thousand_one_after_another() {
    // V1: addresses that were only ever counted up ran out after 64.
    let mut space = VaSpace::new(&[Zone::between("pool", 0, 65_536)]).unwrap();
    for _ in 0..100_000 {
        let span = space.carve("pool", 1024, 1, VaSpace::SHARED).unwrap();
        space.retire(span.start(), None);
        let stats = space.stats();
        let seen = (stats.live_bytes, stats.quarantined_bytes, stats.holes);
        assert_eq!(seen, (0, 0, 1));
    }
    assert_eq!(space.stats().largest_hole, 65_536);
}

#[test]
fn a_retired_range_is_not_handed_out_before_its_fence() {
    let mut space = VaSpace::new(&[Zone::between("z", 0, 100)]).unwrap();
    space.add_timeline(3).unwrap();
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
    space.add_timeline(0).unwrap();
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

#[test]
fn a_zone_that_is_used_up_differs_from_one_that_is_too_small() {
    let mut space = VaSpace::new(&[Zone::between("z", 4096, 8192)]).unwrap();
    let too_large = SpaceError::Invalid {
        argument: "size",
        value: 4097,
    };
    for generation in [VaSpace::SHARED, 3] {
        assert_eq!(space.carve("z", 4097, 1, generation), Err(too_large));
        let span = space.carve("z", 4096, 0, generation).unwrap();
        assert_eq!(space.carve("z", 4097, 1, generation), Err(too_large));
        let full = space.carve("z", 4096, 1, generation).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        space.retire(span.start(), None);
    }
}

#[test]
fn ten_thousand_small_imports_take_no_more_than_their_size() {
    // V3: each import of 2 MiB used to reserve more than the whole VRAM.
    let mut space = VaSpace::new(&[Zone::LOW, Zone::HIGH]).unwrap();
    for _ in 0..10_000 {
        space
            .carve("low", 2 << 20, 2 << 20, VaSpace::SHARED)
            .unwrap();
    }
    let stats = space.zone_stats("low").unwrap();
    assert_eq!(stats.live_bytes, 10_000 * (2 << 20));
    assert_eq!(stats.high_water, stats.live_bytes);
}

#[test]
fn a_reserved_window_and_address_zero_are_never_handed_out() {
    let mut space = VaSpace::new(&[Zone::LOW]).unwrap();
    let window = Span::new(1 << 20, 1 << 20).unwrap();
    space.reserve(window).unwrap();
    assert!(space.reserve(window).is_err());
    assert!(
        space.reserve(Span::new(0, 4096).unwrap()).is_err(),
        "page 0 is in no zone"
    );
    for _ in 0..1000 {
        let span = space.carve("low", 64 << 10, 4096, 1).unwrap();
        assert!(span.start() > 0 && !span.overlaps(window));
    }
}

#[test]
#[should_panic(expected = "no live range starts at")]
fn retiring_a_range_twice_is_a_bug() {
    let mut space = VaSpace::new(&[Zone::LOW]).unwrap();
    space.add_timeline(0).unwrap();
    let span = space.carve("low", 4096, 4096, VaSpace::SHARED).unwrap();
    let fence = Some(SpaceFence {
        timeline: 0,
        value: 1,
    });
    space.retire(span.start(), fence);
    space.retire(span.start(), fence);
}

/// Who may use an address next, by the rules alone.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Cell {
    Free,
    Live(u32),
    Waiting(u32, SpaceFence),
    Parked(u32),
}

struct Cells {
    cells: Vec<Cell>,
    reached: [u64; 2],
    closed: Vec<u32>,
    /// Carves that took free and parked cells.
    joined: u64,
}

impl Cells {
    /// Moves every cell on that no longer has a reason to wait.
    fn settle(&mut self) {
        for cell in &mut self.cells {
            if let Cell::Waiting(generation, fence) = *cell
                && self.reached[fence.timeline as usize] >= fence.value
            {
                *cell = if generation == 0 {
                    Cell::Free
                } else {
                    Cell::Parked(generation)
                };
            }
        }
        let closed = core::mem::take(&mut self.closed);
        for generation in closed {
            let busy = |cell: &Cell| match *cell {
                Cell::Live(of) | Cell::Waiting(of, _) => of == generation,
                Cell::Free | Cell::Parked(_) => false,
            };
            if self.cells.iter().any(busy) {
                self.closed.push(generation);
                continue;
            }
            for cell in self
                .cells
                .iter_mut()
                .filter(|cell| **cell == Cell::Parked(generation))
            {
                *cell = Cell::Free;
            }
        }
    }
}

impl Cells {
    /// The lowest aligned run of cells that are each one of `kinds`.
    fn run(&self, kinds: &[Cell], (lo, hi): (u64, u64), size: u64, align: u64) -> Option<u64> {
        (lo..hi).find(|&start| {
            start.is_multiple_of(align)
                && start + size <= hi
                && self.cells[index(start)..index(start + size)]
                    .iter()
                    .all(|cell| kinds.contains(cell))
        })
    }

    /// Cells of these kinds, and the length of their longest run.
    fn figures(&self, kinds: &[Cell], (lo, hi): (u64, u64)) -> (u64, u64) {
        let (mut count, mut run, mut largest) = (0, 0, 0);
        for cell in &self.cells[index(lo)..index(hi)] {
            run = if kinds.contains(cell) { run + 1 } else { 0 };
            count += u64::from(run > 0);
            largest = largest.max(run);
        }
        (count, largest)
    }

    fn fill(&mut self, span: Span, cell: Cell) {
        self.cells[index(span.start())..index(span.end())].fill(cell);
    }
}

/// A random carve, and what the cells say about it.
fn carve(space: &mut VaSpace, model: &mut Cells, rng: &mut Rng, seed: u64) -> Option<(Span, u32)> {
    let generation = u32::try_from(rng.below(4)).unwrap();
    let (name, bounds) = [("low", (0, 200)), ("high", (200, 256))][index(rng.below(2))];
    let (size, align) = (1 + rng.below(9), 1 + rng.below(4));
    let parked = Cell::Parked(generation);
    let usable = [&[parked][..], &[Cell::Free], &[Cell::Free, parked]];
    let place = |kinds: &&[Cell]| model.run(kinds, bounds, size, align);
    let expected = usable.iter().find_map(place);
    let (free, largest) = model.figures(&[Cell::Free, parked], bounds);
    match space.carve(name, size, align, generation) {
        Err(error) if model.closed.contains(&generation) => {
            assert_eq!(error.kind(), ErrorKind::Invalid, "seed {seed}");
            None
        }
        Ok(span) => {
            assert_eq!(Some(span.start()), expected, "seed {seed}");
            let place = &model.cells[index(span.start())..index(span.end())];
            model.joined += u64::from(place.contains(&parked) && place.contains(&Cell::Free));
            model.fill(span, Cell::Live(generation));
            Some((span, generation))
        }
        Err(error) => {
            let needed = size;
            let figures = SpaceError::NoSpace {
                needed,
                free,
                largest,
                conditions: Conditions::NONE.and(Conditions::ALIGN, align > 1),
            };
            assert_eq!((error, expected), (figures, None), "seed {seed}");
            None
        }
    }
}

#[test]
fn a_generation_uses_parked_and_free_space_that_lie_side_by_side_together() {
    let mut space = VaSpace::new(&[Zone::between("z", 0, 100)]).unwrap();
    // Parked twice, free, parked, somebody else's.
    let starts = [0, 20, 40, 60, 80].map(|_| space.carve("z", 20, 1, 1).unwrap().start());
    assert_eq!(starts, [0, 20, 40, 60, 80]);
    for start in starts {
        space.retire(start, None);
    }
    space.close_generation(1);
    for (start, generation) in [(0, 1), (20, 1), (40, 0), (60, 1), (80, 2)] {
        let span = space.carve("z", 20, 1, generation).unwrap();
        assert_eq!(span.start(), start);
    }
    for start in [0, 20, 40, 60] {
        space.retire(start, None);
    }
    let refused = SpaceError::NoSpace {
        needed: 81,
        free: 80,
        largest: 80,
        conditions: Conditions::NONE,
    };
    assert_eq!(space.carve("z", 81, 1, 1), Err(refused));
    // From inside what is parked to inside what is parked, at a multiple.
    assert_eq!(space.carve("z", 60, 7, 1).unwrap().start(), 0);
    space.retire(0, None);
    space.check();
    // All of it is parked now: the free part belongs to the generation until it is gone.
    assert!(space.carve("z", 1, 1, 3).is_err());
    assert_eq!(space.carve("z", 80, 1, 1).unwrap().start(), 0);
    space.retire(0, None);
    space.close_generation(1);
    assert_eq!(space.carve("z", 80, 1, 3).unwrap().start(), 0);
    space.check();
}

#[test]
fn no_address_passes_to_another_owner_before_its_time() {
    let mut joined = 0;
    for seed in 0..100 {
        let mut rng = Rng(seed);
        let zones = [
            Zone::between("low", 0, 200),
            Zone::between("high", 200, 256),
        ];
        let mut space = VaSpace::new(&zones).unwrap();
        space.add_timeline(0).unwrap();
        space.add_timeline(1).unwrap();
        let mut model = Cells {
            cells: vec![Cell::Free; 256],
            reached: [0; 2],
            closed: Vec::new(),
            joined: 0,
        };
        let mut live: Vec<(Span, u32)> = Vec::new();
        for step in 0..600 {
            // Fuller and emptier in turn: a full space is where parking matters.
            let carves = if step / 150 % 2 == 0 { 6 } else { 3 };
            match rng.below(9) {
                kind if kind < carves => live.extend(carve(&mut space, &mut model, &mut rng, seed)),
                6 | 7 if !live.is_empty() => {
                    let (span, generation) = live.swap_remove(index(rng.below(live.len() as u64)));
                    let timeline = u32::try_from(rng.below(2)).unwrap();
                    let value = model.reached[index(u64::from(timeline))] + rng.below(5);
                    let fence = SpaceFence { timeline, value };
                    assert_eq!(space.find(span.end() - 1), Some(span));
                    assert_eq!(space.retire(span.start(), Some(fence)), span);
                    assert_eq!(space.find(span.start()), None);
                    model.fill(span, Cell::Waiting(generation, fence));
                }
                8 if rng.below(4) == 0 => {
                    let generation = u32::try_from(1 + rng.below(3)).unwrap();
                    if !space.is_gone(generation) {
                        space.close_generation(generation);
                        model.closed.push(generation);
                    }
                }
                _ => {
                    let timeline = rng.below(2);
                    let reached = &mut model.reached[index(timeline)];
                    let value = (*reached + 3).saturating_sub(rng.below(5));
                    *reached = value.max(*reached);
                    let waits = |cell: &&Cell| match **cell {
                        Cell::Waiting(_, fence) => {
                            u64::from(fence.timeline) == timeline && fence.value <= value
                        }
                        Cell::Free | Cell::Live(_) | Cell::Parked(_) => false,
                    };
                    let waiting = model.cells.iter().filter(waits).count() as u64;
                    let signalled = space.signalled(u32::try_from(timeline).unwrap(), value);
                    assert_eq!(signalled, waiting, "seed {seed}");
                }
            }
            model.settle();
            space.check();
            let count = |cell: Cell| model.cells.iter().filter(|&&of| of == cell).count() as u64;
            assert_eq!(space.stats().free_bytes, count(Cell::Free), "seed {seed}");
            for generation in 1..4 {
                let mine = |cell: &Cell| match *cell {
                    Cell::Live(of) | Cell::Waiting(of, _) | Cell::Parked(of) => of == generation,
                    Cell::Free => false,
                };
                assert_eq!(space.is_gone(generation), !model.cells.iter().any(mine));
            }
        }
        joined += model.joined;
    }
    assert!(joined > 100, "{joined} carves of free and parked cells");
}

#[test]
fn a_removed_timeline_keeps_nothing_waiting() {
    let mut space = VaSpace::new(&[Zone::between("z", 0, 100)]).unwrap();
    let fence = |timeline| SpaceFence {
        timeline,
        value: u64::MAX,
    };
    space.add_timeline(1).unwrap();
    space.add_timeline(2).unwrap();
    for timeline in [1, 2] {
        let span = space.carve("z", 50, 1, VaSpace::SHARED).unwrap();
        space.retire(span.start(), Some(fence(timeline)));
    }
    assert_eq!(space.remove_timeline(1), 50);
    assert_eq!((space.remove_timeline(1), space.signalled(1, 1)), (0, 0));
    assert_eq!(space.stats().free_bytes, 50);
    space.check();
}

#[test]
#[should_panic(expected = "timeline 7 is not known")]
fn a_fence_of_an_unknown_timeline_is_a_bug() {
    let mut space = VaSpace::new(&[Zone::LOW]).unwrap();
    let span = space.carve("low", 4096, 4096, VaSpace::SHARED).unwrap();
    let fence = SpaceFence {
        timeline: 7,
        value: 1,
    };
    space.retire(span.start(), Some(fence));
}

#[test]
fn a_generation_parks_its_ranges_as_one_and_cuts_them_anew() {
    let mut space = VaSpace::new(&[Zone::between("z", 0, 1000)]).unwrap();
    let spans: Vec<_> = (0..100)
        .map(|_| space.carve("z", 10, 1, 5).unwrap())
        .collect();
    for span in &spans {
        space.retire(span.start(), None);
    }
    assert_eq!(space.stats().quarantined_bytes, 1000);
    let again: Vec<_> = (0..3).map(|_| space.carve("z", 333, 1, 5)).collect();
    let starts = again.iter().map(|span| span.map(Span::start));
    assert!(starts.eq([Ok(0), Ok(333), Ok(666)]));
    space.check();
    space.close_generation(5);
    for span in again {
        assert_eq!(space.stats().free_bytes, 0);
        space.retire(span.unwrap().start(), None);
    }
    assert_eq!((space.stats().holes, space.stats().free_bytes), (1, 1000));
    space.check();
}

#[test]
fn a_reserved_window_is_found_by_nobody_and_a_zone_may_be_empty() {
    let zones = [Zone::between("none", 50, 50), Zone::between("z", 100, 200)];
    let mut space = VaSpace::new(&zones).unwrap();
    space.reserve(Span::new(100, 60).unwrap()).unwrap();
    assert_eq!(space.find(120), None);
    assert!(space.carve("none", 1, 1, 3).is_err());
    assert!(space.is_gone(3), "a carve that failed leaves no generation");
    assert_eq!(space.carve("z", 1, 1, 3).map(Span::start), Ok(160));
    assert!(space.carve("y", 1, 1, 3).is_err());
    assert_eq!(space.find(99), None);
    space.check();
}

#[test]
fn a_zone_that_is_added_later_serves_old_and_new_generations() {
    let mut space = VaSpace::new(&[Zone::between("z", 0, 100)]).unwrap();
    let old = space.carve("z", 40, 1, 1).unwrap();
    space.retire(old.start(), None);
    assert!(space.carve("plugin", 1, 1, 1).is_err(), "not there yet");
    space.add_zone(Zone::between("plugin", 100, 300)).unwrap();
    let first = space.carve("plugin", 150, 1, 1).unwrap();
    assert_eq!(first.start(), 100);
    assert_eq!(
        space.carve("z", 40, 1, 1),
        Ok(old),
        "what was parked still is"
    );
    let second = space.carve("plugin", 50, 1, 2).unwrap();
    assert_eq!((second.start(), space.find(299)), (250, Some(second)));
    space.check();
    space.retire(first.start(), None);
    assert!(
        space.carve("plugin", 1, 1, 2).is_err(),
        "parked for generation 1"
    );
    space.retire(old.start(), None);
    space.close_generation(1);
    assert!(space.is_gone(1));
    assert_eq!(space.carve("plugin", 150, 1, 2), Ok(first));
    space.reserve(Span::new(0, 100).unwrap()).unwrap();
    space.check();
}

#[test]
fn a_zone_that_overlaps_or_has_a_name_twice_is_refused_and_changes_nothing() {
    let mut space = VaSpace::with_va_bits(10, &[Zone::between("z", 100, 200)]).unwrap();
    space.carve("z", 10, 1, 4).unwrap();
    let before = std::format!("{space:?}");
    let clash = SpaceError::Invalid {
        argument: "zone",
        value: 100,
    };
    for (name, start, end) in [("a", 150, 160), ("b", 0, 101), ("c", 199, 300)] {
        let zone = Zone::between(name, start, end);
        assert_eq!(space.add_zone(zone), Err(clash), "{name}");
    }
    let same = space.add_zone(Zone::between("z", 300, 400));
    assert_eq!(same, Err(SpaceError::DuplicateZone { name: "z" }));
    assert_eq!(space.carve("q", 1, 1, 4), Err(SpaceError::UnknownZone));
    let nothing = SpaceError::Invalid {
        argument: "span",
        value: 0,
    };
    assert_eq!(space.reserve(Span::new(150, 0).unwrap()), Err(nothing));
    let beyond = SpaceError::OutOfRange {
        start: 1000,
        len: 25,
    };
    assert_eq!(space.add_zone(Zone::between("d", 1000, 1025)), Err(beyond));
    assert_eq!(std::format!("{space:?}"), before);
    space.add_zone(Zone::between("d", 1000, 1024)).unwrap();
    space.add_zone(Zone::between("e", 0, 100)).unwrap();
    assert_eq!(space.stats().free_bytes, 100 + 90 + 24);
    space.check();
}
