use std::vec;
use std::vec::Vec;

use super::*;
use crate::testing::{Rng, index};

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

#[test]
fn no_address_passes_to_another_owner_before_its_time() {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let mut space = VaSpace::new(&[Zone::between("z", 0, 64)]).unwrap();
        let mut model = Cells {
            cells: vec![Cell::Free; 64],
            reached: [0; 2],
            closed: Vec::new(),
        };
        let mut live: Vec<(Span, u32)> = Vec::new();
        for _ in 0..400 {
            match rng.below(8) {
                0..=3 => {
                    let generation = u32::try_from(rng.below(4)).unwrap();
                    let Ok(span) = space.carve("z", 1 + rng.below(9), 1, generation) else {
                        continue;
                    };
                    for cell in &mut model.cells[index(span.start())..index(span.end())] {
                        let mine = generation != 0 && *cell == Cell::Parked(generation);
                        assert!(mine || *cell == Cell::Free, "seed {seed}: {cell:?}");
                        *cell = Cell::Live(generation);
                    }
                    live.push((span, generation));
                }
                4 | 5 if !live.is_empty() => {
                    let (span, generation) = live.swap_remove(index(rng.below(live.len() as u64)));
                    let timeline = u32::try_from(rng.below(2)).unwrap();
                    let fence = SpaceFence {
                        timeline,
                        value: rng.below(30),
                    };
                    assert_eq!(space.retire(span.start(), Some(fence)), span);
                    let waiting = Cell::Waiting(generation, fence);
                    model.cells[index(span.start())..index(span.end())].fill(waiting);
                }
                6 => {
                    let timeline = rng.below(2);
                    let value = rng.below(30);
                    space.signalled(u32::try_from(timeline).unwrap(), value);
                    let reached = &mut model.reached[index(timeline)];
                    *reached = value.max(*reached);
                }
                _ => {
                    let generation = u32::try_from(1 + rng.below(3)).unwrap();
                    let known = |cell: &Cell| match *cell {
                        Cell::Live(of) | Cell::Waiting(of, _) | Cell::Parked(of) => {
                            of == generation
                        }
                        Cell::Free => false,
                    };
                    if rng.below(4) == 0 && model.cells.iter().any(known) {
                        space.close_generation(generation);
                        model.closed.push(generation);
                    }
                }
            }
            model.settle();
            space.check();
            let free = model
                .cells
                .iter()
                .filter(|cell| **cell == Cell::Free)
                .count() as u64;
            assert_eq!(space.stats().free_bytes, free, "seed {seed}");
        }
    }
}
