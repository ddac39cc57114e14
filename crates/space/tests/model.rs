//! Random operations against the simplest possible models, shrunk to the shortest failure.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/cells.rs"]
mod cells;

use cells::{COLORS, GAPS, RULES, UNITS};
use proptest::collection::vec;
use proptest::prelude::*;
use vrampager_addr::Span;
use vrampager_space::{
    Block, Buddy, BuddyRequest, Content, Fit, Mode, RangeAllocator, RangeRequest, SpaceFence,
    SubAllocator, VaSpace, Zone,
};

const COUNT: usize = 256;
const CELLS: u64 = COUNT as u64;

fn scaled(cells: Span, unit: u64) -> Span {
    Span::new(cells.start() * unit, cells.len() * unit).unwrap()
}

/// The colours of the cells that are taken.
struct Cells([Option<u32>; COUNT]);

impl Cells {
    fn set(&mut self, span: Span, color: Option<u32>) {
        for cell in span.start()..span.end() {
            let cell = &mut self.0[usize::try_from(cell).unwrap()];
            let taken = color.is_some();
            assert_ne!(cell.is_some(), taken, "taken, or given back, twice");
            *cell = color;
        }
    }

    fn is_free(&self, cell: u64) -> bool {
        self.0[usize::try_from(cell).unwrap()].is_none()
    }

    fn free(&self) -> u64 {
        self.0.iter().filter(|cell| cell.is_none()).count() as u64
    }

    fn holes(&self) -> Vec<Span> {
        let mut holes = Vec::new();
        let mut start = 0;
        for end in 0..=CELLS {
            if end == CELLS || !self.is_free(end) {
                holes.extend(Span::from_bounds(start, end).filter(|hole| !hole.is_empty()));
                start = end + 1;
            }
        }
        holes
    }

    /// Where in a hole a request of a colour may start.
    fn starts_in(&self, hole: Span, wanted: &Wanted, gaps: bool) -> Vec<u64> {
        let color = |cell: Option<u64>| *self.0.get(usize::try_from(cell?).unwrap())?;
        let gap = |left: u32, right: u32| GAPS[left as usize][right as usize];
        let before = color(hole.start().checked_sub(1)).filter(|_| gaps);
        let behind = color(Some(hole.end())).filter(|_| gaps);
        let lo = hole.start() + before.map_or(0, |left| gap(left, wanted.color));
        let hi = hole
            .end()
            .saturating_sub(behind.map_or(0, |right| gap(wanted.color, right)));
        let (lo, hi) = (lo.max(wanted.window.start()), hi.min(wanted.window.end()));
        (lo..=hi.saturating_sub(wanted.size))
            .filter(|start| start + wanted.size <= hi && start.is_multiple_of(wanted.align))
            .collect()
    }
}

/// A request, in cells.
#[derive(Clone, Debug)]
struct Wanted {
    size: u64,
    align: u64,
    mode: Mode,
    window: Span,
    color: u32,
    once: bool,
}

impl Wanted {
    fn request(&self, unit: u64) -> RangeRequest {
        let mut request = RangeRequest::new(self.size * unit)
            .align(self.align * unit)
            .mode(self.mode)
            .color(self.color);
        if self.window.len() < CELLS {
            request = request.within(scaled(self.window, unit));
        }
        if self.once { request.once() } else { request }
    }

    /// Checks an answer against all holes.
    fn check(&self, cells: &Cells, gaps: bool, got: Option<u64>) {
        let long = |hole: &Span| hole.len() >= self.size;
        let holes: Vec<Span> = cells.holes().into_iter().filter(long).collect();
        let starts = |hole: &Span| cells.starts_in(*hole, self, gaps);
        let all: Vec<u64> = holes.iter().flat_map(starts).collect();
        assert!(got.is_none_or(|start| all.contains(&start)), "{got:?}");
        let touches = |hole: &&Span| hole.overlaps(self.window);
        let first = match self.mode {
            Mode::Low => holes.iter().find(touches),
            Mode::High => holes.iter().rfind(touches),
            // Which hole is the first depends on more than where holes are.
            Mode::Best | Mode::Evict => holes.first().filter(|_| holes.len() == 1),
        };
        let known = self.mode == Mode::Low || self.mode == Mode::High || holes.len() < 2;
        match (self.once, self.mode) {
            (true, _) if !known => {}
            (true, Mode::High) => {
                assert_eq!(got, first.and_then(|hole| starts(hole).last().copied()));
            }
            (true, _) => assert_eq!(got, first.and_then(|hole| starts(hole).first().copied())),
            (false, Mode::Low) => assert_eq!(got, all.first().copied()),
            (false, Mode::High) => assert_eq!(got, all.last().copied()),
            (false, _) => assert_eq!(got.is_some(), !all.is_empty()),
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(Wanted),
    Reserve(Span, u32),
    /// Gives a live range another colour, by its number modulo how many there are.
    Replace(usize, u32),
    /// Gives a live range back.
    Remove(usize),
}

fn span() -> impl Strategy<Value = Span> {
    (0..CELLS).prop_flat_map(|start| {
        (1..=CELLS - start).prop_map(move |len| Span::new(start, len).unwrap())
    })
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let mode = prop_oneof![
        Just(Mode::Best),
        Just(Mode::Low),
        Just(Mode::High),
        Just(Mode::Evict)
    ];
    let once = prop::bool::weighted(0.2);
    let window = prop_oneof![1 => Just(Span::new(0, CELLS).unwrap()), 2 => span()];
    (1..24_u64, 1..8_u64, mode, window, 0..COLORS, once).prop_map(
        |(size, align, mode, window, color, once)| Wanted {
            size,
            align,
            mode,
            window,
            color,
            once,
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => wanted().prop_map(Op::Insert),
        2 => (span(), 0..COLORS).prop_map(|(span, color)| Op::Reserve(span, color)),
        1 => (any::<usize>(), 0..COLORS).prop_map(|(pick, color)| Op::Replace(pick, color)),
        6 => any::<usize>().prop_map(Op::Remove),
    ]
}

/// A space, and what is in it: spans, in cells, and colours.
struct Ranges {
    space: RangeAllocator,
    unit: u64,
    gaps: bool,
    cells: Cells,
    live: Vec<(Span, u32)>,
}

impl Ranges {
    fn new(number: usize, gaps: bool) -> Self {
        let unit = UNITS[number];
        let span = Span::new(0, CELLS * unit).unwrap();
        let space = if gaps {
            RangeAllocator::with_gap(span, RULES[number])
        } else {
            RangeAllocator::new(span)
        };
        Self {
            space,
            unit,
            gaps,
            cells: Cells([None; COUNT]),
            live: Vec::new(),
        }
    }

    fn take(&mut self, span: Span, color: u32) {
        self.cells.set(span, Some(color));
        self.live.push((span, color));
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Insert(ref wanted) => {
                let got = self.space.insert(&wanted.request(self.unit)).ok();
                let got = got.map(|span| {
                    assert!(span.start().is_multiple_of(self.unit));
                    span.start() / self.unit
                });
                wanted.check(&self.cells, self.gaps, got);
                if let Some(start) = got {
                    self.take(Span::new(start, wanted.size).unwrap(), wanted.color);
                }
            }
            Op::Reserve(span, color) => {
                let exact = Wanted {
                    size: span.len(),
                    align: 1,
                    mode: Mode::Low,
                    window: span,
                    color,
                    once: false,
                };
                let holes = self.cells.holes();
                let mut starts = holes
                    .into_iter()
                    .flat_map(|hole| self.cells.starts_in(hole, &exact, self.gaps));
                let fits = starts.next().is_some();
                let got = self.space.reserve(scaled(span, self.unit), color);
                assert_eq!(got.is_ok(), fits, "{got:?}");
                if fits {
                    self.take(span, color);
                }
            }
            _ if self.live.is_empty() => {}
            Op::Replace(pick, color) => {
                let number = pick % self.live.len();
                let (span, old) = &mut self.live[number];
                let start = span.start() * self.unit;
                assert_eq!(self.space.replace(start, color), Ok(Some(*old)));
                *old = color;
                let span = *span;
                self.cells.set(span, None);
                self.cells.set(span, Some(color));
            }
            Op::Remove(pick) => {
                let number = pick % self.live.len();
                let (span, _) = self.live.swap_remove(number);
                let real = scaled(span, self.unit);
                assert_eq!(self.space.remove(real.start()), Some(real));
                self.cells.set(span, None);
            }
        }
        self.check();
    }

    fn check(&self) {
        self.space.check();
        assert_eq!(self.space.free_bytes(), self.cells.free() * self.unit);
        let mut live = self.live.clone();
        live.sort_unstable_by_key(|(span, _)| span.start());
        let seen = self.space.ranges().map(|range| (range.span, range.color));
        assert!(
            seen.eq(live
                .iter()
                .map(|&(span, color)| (scaled(span, self.unit), color)))
        );
        let holes = self.cells.holes().into_iter();
        assert!(
            self.space
                .holes()
                .eq(holes.map(|hole| scaled(hole, self.unit)))
        );
    }
}

proptest! {
    #[test]
    fn a_range_is_found_exactly_when_a_table_of_cells_has_room(
        ops in vec(op(), 1..150),
        unit in 0..UNITS.len(),
        gaps in any::<bool>(),
    ) {
        let mut ranges = Ranges::new(unit, gaps);
        ops.iter().for_each(|op| ranges.run(op));
    }

    #[test]
    fn zones_of_any_length_hand_out_no_cell_twice(
        ops in vec((0..8_u8, 1..24_u64, 1..6_u64, 0..4_u32, any::<usize>()), 1..150),
        unit in 0..UNITS.len(),
        middle in 1..CELLS,
    ) {
        let unit = UNITS[unit];
        let zones = [
            Zone::between("low", 0, middle * unit),
            Zone::between("high", middle * unit, CELLS * unit),
        ];
        let mut space = VaSpace::new(&zones).unwrap();
        space.add_timeline(0).unwrap();
        let mut cells = Cells([None; COUNT]);
        let mut live: Vec<Span> = Vec::new();
        for (kind, size, align, generation, pick) in ops {
            match kind {
                0..=3 => {
                    let zone = &zones[pick % 2];
                    let got = space.carve(zone.name, size * unit, align * unit, generation);
                    if let Ok(span) = got {
                        prop_assert!(zone.span.covers(span));
                        prop_assert!(span.start().is_multiple_of(align * unit));
                        let span = Span::new(span.start() / unit, size).unwrap();
                        cells.set(span, Some(0));
                        live.push(span);
                    }
                }
                4 => space.close_generation(generation),
                5 => {
                    space.signalled(0, size);
                }
                _ if live.is_empty() => {}
                _ => {
                    let span = live.swap_remove(pick % live.len());
                    let fence = SpaceFence { timeline: 0, value: size };
                    let fence = Some(fence).filter(|_| align % 2 == 0);
                    let real = scaled(span, unit);
                    prop_assert_eq!(space.retire(real.start(), fence), real);
                    // When the cells come back is another matter.
                    cells.set(span, None);
                }
            }
            space.check();
            prop_assert_eq!(space.stats().live_bytes, (CELLS - cells.free()) * unit);
        }
        for span in live {
            space.retire(span.start() * unit, None);
        }
        space.remove_timeline(0);
        (1..4).for_each(|generation| space.close_generation(generation));
        space.check();
        let stats = space.stats();
        let holes = (stats.holes, stats.free_bytes);
        prop_assert_eq!(holes, (2, CELLS * unit), "all is as it was");
    }

    #[test]
    fn an_aligned_sub_allocation_fails_only_where_no_cell_would_do(
        ops in vec((1..40_u64, 0..6_u32, any::<usize>()), 1..150),
        tight in any::<bool>(),
    ) {
        let fit = if tight { Fit::Tight } else { Fit::Fast };
        let mut space = SubAllocator::new(CELLS, 1, fit).unwrap();
        let mut cells = Cells([None; COUNT]);
        let mut live: Vec<Span> = Vec::new();
        for (size, align, pick) in ops {
            if pick % 3 == 0 && !live.is_empty() {
                let span = live.swap_remove(pick % live.len());
                space.free(span.start(), span.len());
                cells.set(span, None);
            } else if let Ok(start) = space.alloc(size, 1 << align) {
                prop_assert_eq!(start % (1 << align), 0);
                let span = Span::new(start, size).unwrap();
                cells.set(span, Some(0));
                live.push(span);
            } else {
                let end = |hole: &Span| hole.start().next_multiple_of(1 << align) + size;
                prop_assert!(!cells.holes().iter().any(|hole| end(hole) <= hole.end()));
            }
            space.check();
        }
    }

    #[test]
    fn a_buddy_serves_scattered_requests_to_the_last_chunk(
        ops in vec((1..60_u64, any::<usize>(), any::<bool>()), 1..150),
    ) {
        let mut space = Buddy::new(CELLS - 56, 1).unwrap();
        let mut cells = Cells([None; COUNT]);
        let mut live: Vec<Block> = Vec::new();
        for (size, pick, clear) in ops {
            let content = if clear { Content::Cleared } else { Content::Dirty };
            if pick % 3 == 0 && !live.is_empty() {
                let block = live.swap_remove(pick % live.len());
                space.free(block.span(), content);
                cells.set(block.span(), None);
            } else {
                let free = space.free_bytes();
                let got = space.alloc(&BuddyRequest::new(size).prefer(content));
                prop_assert_eq!(got.is_ok(), size <= free);
                for block in got.unwrap_or_default() {
                    cells.set(block.span(), Some(0));
                    live.push(block);
                }
            }
            space.check();
        }
    }
}
