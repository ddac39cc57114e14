//! Random operations against the simplest possible models, shrunk to the shortest failure.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::collection::vec;
use proptest::prelude::*;
use vrampager_addr::Span;
use vrampager_space::{
    Block, Buddy, BuddyRequest, Content, Fit, Mode, RangeAllocator, RangeRequest, SubAllocator,
};

const COUNT: usize = 256;
const CELLS: u64 = COUNT as u64;

/// Which cells are taken.
struct Cells([bool; COUNT]);

impl Cells {
    fn set(&mut self, start: u64, len: u64, taken: bool) {
        for cell in start..start + len {
            let cell = &mut self.0[usize::try_from(cell).unwrap()];
            assert_ne!(*cell, taken, "a cell is taken twice, or given back twice");
            *cell = taken;
        }
    }

    fn starts(&self, size: u64, align: u64, window: Span) -> impl Iterator<Item = u64> + '_ {
        let free = |at: u64| !self.0[usize::try_from(at).unwrap()];
        (window.start()..=window.end().saturating_sub(size))
            .filter(move |start| start + size <= window.end() && start.is_multiple_of(align))
            .filter(move |&start| (start..start + size).all(free))
    }

    fn free(&self) -> u64 {
        self.0.iter().filter(|&&taken| !taken).count() as u64
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert {
        size: u64,
        align: u64,
        mode: Mode,
        window: Span,
    },
    Reserve(Span),
    /// Gives back a live range, by its number modulo how many there are.
    Remove(usize),
}

fn span() -> impl Strategy<Value = Span> {
    (0..CELLS).prop_flat_map(|start| {
        (1..=CELLS - start).prop_map(move |len| Span::new(start, len).unwrap())
    })
}

fn op() -> impl Strategy<Value = Op> {
    let mode = prop_oneof![
        Just(Mode::Best),
        Just(Mode::Low),
        Just(Mode::High),
        Just(Mode::Evict)
    ];
    let insert = (1..24_u64, 1..8_u64, mode, span());
    prop_oneof![
        4 => insert.prop_map(|(size, align, mode, window)| {
            Op::Insert { size, align, mode, window }
        }),
        1 => span().prop_map(Op::Reserve),
        3 => any::<usize>().prop_map(Op::Remove),
    ]
}

proptest! {
    #[test]
    fn a_range_is_found_exactly_when_a_table_of_cells_has_room(ops in vec(op(), 1..150)) {
        let mut space = RangeAllocator::new(Span::new(0, CELLS).unwrap());
        let mut cells = Cells([false; COUNT]);
        let mut live: Vec<Span> = Vec::new();
        for op in ops {
            match op {
                Op::Insert { size, align, mode, window } => {
                    let request = RangeRequest::new(size).align(align).mode(mode).within(window);
                    let got = space.insert(&request).ok().map(Span::start);
                    let starts: Vec<u64> = cells.starts(size, align, window).collect();
                    match mode {
                        Mode::Low => prop_assert_eq!(got, starts.first().copied()),
                        Mode::High => prop_assert_eq!(got, starts.last().copied()),
                        Mode::Best | Mode::Evict => {
                            prop_assert_eq!(got.is_some(), !starts.is_empty());
                            prop_assert!(got.is_none_or(|start| starts.contains(&start)));
                        }
                    }
                    if let Some(start) = got {
                        cells.set(start, size, true);
                        live.push(Span::new(start, size).unwrap());
                    }
                }
                Op::Reserve(span) => {
                    let fits = cells.starts(span.len(), 1, span).next().is_some();
                    prop_assert_eq!(space.reserve(span, 0).is_ok(), fits);
                    if fits {
                        cells.set(span.start(), span.len(), true);
                        live.push(span);
                    }
                }
                Op::Remove(_) if live.is_empty() => {}
                Op::Remove(pick) => {
                    let span = live.swap_remove(pick % live.len());
                    prop_assert_eq!(space.remove(span.start()), Some(span));
                    cells.set(span.start(), span.len(), false);
                }
            }
            prop_assert_eq!(space.free_bytes(), cells.free());
            space.check();
        }
    }

    #[test]
    fn an_aligned_sub_allocation_fails_only_where_no_cell_would_do(
        ops in vec((1..40_u64, 0..6_u32, any::<usize>()), 1..150),
        tight in any::<bool>(),
    ) {
        let fit = if tight { Fit::Tight } else { Fit::Fast };
        let mut space = SubAllocator::new(CELLS, 1, fit).unwrap();
        let mut cells = Cells([false; COUNT]);
        let mut live: Vec<(u64, u64)> = Vec::new();
        let all = Span::new(0, CELLS).unwrap();
        for (size, align, pick) in ops {
            if pick % 3 == 0 && !live.is_empty() {
                let (start, len) = live.swap_remove(pick % live.len());
                space.free(start, len);
                cells.set(start, len, false);
            } else if let Ok(start) = space.alloc(size, 1 << align) {
                prop_assert_eq!(start % (1 << align), 0);
                cells.set(start, size, true);
                live.push((start, size));
            } else {
                prop_assert_eq!(cells.starts(size, 1 << align, all).next(), None);
            }
            space.check();
        }
    }

    #[test]
    fn a_buddy_serves_scattered_requests_to_the_last_chunk(
        ops in vec((1..60_u64, any::<usize>(), any::<bool>()), 1..150),
    ) {
        let mut space = Buddy::new(CELLS - 56, 1).unwrap();
        let mut cells = Cells([false; COUNT]);
        let mut live: Vec<Block> = Vec::new();
        for (size, pick, clear) in ops {
            let content = if clear { Content::Cleared } else { Content::Dirty };
            if pick % 3 == 0 && !live.is_empty() {
                let block = live.swap_remove(pick % live.len());
                space.free(block, content);
                cells.set(block.offset, block.size, false);
            } else {
                let free = space.free_bytes();
                let got = space.alloc(&BuddyRequest::new(size).prefer(content));
                prop_assert_eq!(got.is_ok(), size <= free);
                for block in got.unwrap_or_default() {
                    cells.set(block.offset, block.size, true);
                    live.push(block);
                }
            }
            space.check();
        }
    }
}
