//! Arbitrary operations on the address space allocators, checked against tables of owned cells.

#![no_main]

#[path = "../../crates/space/tests/common/cells.rs"]
mod cells;

use cells::{COLORS, GAPS, RULES, UNITS};
use libfuzzer_sys::fuzz_target;
use vrampager_addr::Span;
use vrampager_space::{
    Buddy, BuddyRequest, Content, FakeOffsets, Fit, Mode, RangeAllocator, RangeRequest, SpaceError,
    SpaceFence, SubAllocator, VaSpace, Zone,
};

/// Numbers taken from the fuzzer's bytes; zeroes once they are used up.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u64 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        u64::from(first)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.byte() << 8 | self.byte()) % limit
    }

    fn is_used_up(&self) -> bool {
        self.0.is_empty()
    }
}

/// Which cells of a small space are owned.
struct Table(Vec<bool>);

impl Table {
    fn new(cells: u64) -> Self {
        Self(vec![false; cells as usize])
    }

    fn set(&mut self, start: u64, len: u64, owned: bool) {
        for cell in &mut self.0[start as usize..(start + len) as usize] {
            assert_ne!(*cell, owned, "a cell has two owners, or none to lose");
            *cell = owned;
        }
    }

    fn free(&self) -> u64 {
        self.0.iter().filter(|&&owned| !owned).count() as u64
    }

    /// Whether an aligned free run of `len` cells begins in `[lo, hi - len]`.
    fn fits(&self, len: u64, align: u64, (lo, hi): (u64, u64)) -> bool {
        let run = |start: u64| {
            let (start, end) = (start as usize, (start + len) as usize);
            start.is_multiple_of(align as usize)
                && self
                    .0
                    .get(start..end)
                    .is_some_and(|cells| !cells.contains(&true))
        };
        (lo..=hi.saturating_sub(len)).any(|start| start + len <= hi && run(start))
    }
}

/// A space of ranges, and what it ought to be.
struct Ranges {
    space: RangeAllocator,
    unit: u64,
    gaps: bool,
    table: Table,
    /// In cells, with colours.
    live: Vec<(Span, u32)>,
}

impl Ranges {
    fn bytes(&self, cells: Span) -> Span {
        Span::new(cells.start() * self.unit, cells.len() * self.unit).unwrap()
    }

    /// The cells from `lo` to `hi` where a range of a colour, which fits there, may start.
    fn fits(&self, (len, align): (u64, u64), (lo, hi): (u64, u64), color: u32) -> Option<u64> {
        // Of the neighbours of the hole; in the range's own hole there is nothing else.
        let far_enough = |&start: &u64| {
            let end = start + len;
            let left = self.live.iter().filter(|(span, _)| span.end() <= start);
            let left = left.max_by_key(|(span, _)| span.start());
            let right = self.live.iter().filter(|(span, _)| span.start() >= end);
            let right = right.min_by_key(|(span, _)| span.start());
            let gap = |left: u32, right: u32| GAPS[left as usize][right as usize];
            !self.gaps
                || left.is_none_or(|&(span, left)| span.end() + gap(left, color) <= start)
                    && right.is_none_or(|&(span, right)| end + gap(color, right) <= span.start())
        };
        let serves = |&start: &u64| self.table.fits(len, align, (start, start + len));
        (lo..=hi.saturating_sub(len))
            .filter(|start| start + len <= hi && serves(start))
            .find(far_enough)
    }

    fn take(&mut self, span: Span, color: u32) {
        self.table.set(span.start(), span.len(), true);
        self.live.push((span, color));
    }

    fn insert(&mut self, source: &mut Source) {
        let modes = [Mode::Best, Mode::Low, Mode::High, Mode::Evict];
        let cells = self.table.0.len() as u64;
        let (size, align) = (source.below(40), 1 + source.below(9));
        let lo = source.below(cells);
        let within = Span::new(lo, source.below(cells - lo + 1)).unwrap();
        let flags = source.byte();
        let color = (flags >> 2) as u32 % COLORS;
        let mut request = RangeRequest::new(size * self.unit)
            .align(align * self.unit)
            .mode(modes[flags as usize % 4])
            .color(color);
        let mut window = (0, cells);
        if flags & 0x80 == 0 {
            request = request.within(self.bytes(within));
            window = (lo, within.end());
        }
        let once = flags & 0x70 == 0x70;
        if once {
            request = request.once();
        }
        let fits = size > 0 && self.fits((size, align), window, color).is_some();
        match self.space.insert(&request) {
            Ok(span) => {
                assert!(
                    fits && span.start().is_multiple_of(align * self.unit),
                    "{request:?}"
                );
                let start = span.start() / self.unit;
                assert!(window.0 <= start && start + size <= window.1);
                let span = Span::new(start, size).unwrap();
                assert_eq!(
                    self.fits((size, 1), (start, start + size), color),
                    Some(start)
                );
                self.take(span, color);
            }
            // It looked at one hole only.
            Err(_) => assert!(!fits || once, "{request:?}"),
        }
    }

    fn reserve(&mut self, source: &mut Source) {
        let cells = self.table.0.len() as u64;
        let start = source.below(cells);
        let span = Span::new(start, source.below(cells - start + 1)).unwrap();
        let color = source.byte() as u32 % COLORS;
        let fits = !span.is_empty()
            && self
                .fits((span.len(), 1), (start, span.end()), color)
                .is_some();
        assert_eq!(self.space.reserve(self.bytes(span), color).is_ok(), fits);
        if fits {
            self.take(span, color);
        }
    }

    fn replace_or_remove(&mut self, source: &mut Source) {
        let number = source.below(self.live.len() as u64) as usize;
        let (span, old) = self.live[number];
        let real = self.bytes(span);
        let action = source.byte();
        if action % 4 == 0 {
            let color = (action >> 2) as u32 % COLORS;
            assert_eq!(self.space.replace(real.start(), color), Ok(Some(old)));
            self.live[number].1 = color;
        } else {
            self.live.swap_remove(number);
            assert_eq!(self.space.remove(real.start()), Some(real));
            self.table.set(span.start(), span.len(), false);
        }
    }
}

fn ranges(source: &mut Source) {
    let cells = 1 + source.below(600);
    let (number, gaps) = (source.byte() as usize % 5, source.byte() % 2 == 1);
    let span = Span::new(0, cells * UNITS[number]).unwrap();
    let space = match gaps {
        true => RangeAllocator::with_gap(span, RULES[number]),
        false => RangeAllocator::new(span),
    };
    let mut all = Ranges {
        space,
        unit: UNITS[number],
        gaps,
        table: Table::new(cells),
        live: Vec::new(),
    };
    while !source.is_used_up() {
        match source.byte() % 5 {
            // The crate's own test tries all windows with gaps.
            4 if !gaps => evict(source, &all),
            0 | 1 => all.insert(source),
            2 => all.reserve(source),
            _ if all.live.is_empty() => {}
            _ => all.replace_or_remove(source),
        }
        assert_eq!(all.space.free_bytes(), all.table.free() * all.unit);
    }
    all.space.check();
    all.live.sort_unstable_by_key(|(span, _)| span.start());
    let seen = all.space.ranges().map(|range| (range.span, range.color));
    assert!(
        seen.eq(all
            .live
            .iter()
            .map(|&(span, color)| (all.bytes(span), color)))
    );
}

/// Scans some of the live ranges, and compares the cheapest window with all windows.
fn evict(source: &mut Source, all: &Ranges) {
    let Ranges {
        space,
        unit,
        table,
        live,
        ..
    } = all;
    let cells = table.0.len() as u64;
    let (size, align) = (1 + source.below(60), 1 + source.below(9));
    let request = RangeRequest::new(size * unit)
        .align(align * unit)
        .mode(Mode::Low);
    let mut scan = space.eviction_scan(&request).unwrap();
    let mut costs: Vec<Option<u64>> = vec![Some(0); cells as usize];
    for (span, _) in live {
        let cost = source.byte();
        for cell in &mut costs[span.start() as usize..span.end() as usize] {
            *cell = (cost % 4 != 0).then_some(cost);
        }
        if cost % 4 != 0 {
            scan.add(span.start() * unit, cost).unwrap();
        }
    }
    let window_cost = |start: u64| -> Option<u128> {
        let window = Span::new(start, size)?;
        if !costs[start as usize..window.end() as usize]
            .iter()
            .all(Option::is_some)
        {
            return None;
        }
        let victims = live.iter().filter(|(span, _)| span.overlaps(window));
        Some(
            victims
                .filter_map(|(span, _)| costs[span.start() as usize])
                .map(u128::from)
                .sum(),
        )
    };
    let starts = (0..(cells + 1).saturating_sub(size)).filter(|start| start.is_multiple_of(align));
    let cheapest = starts.filter_map(window_cost).min();
    let found = scan.cheapest().unwrap();
    assert_eq!(found.map(|found| found.cost), cheapest);
}

fn buddy(source: &mut Source) {
    const PAGE: u64 = 4096;
    let chunks = 1 + source.below(300);
    let mut space = Buddy::new(chunks * PAGE, PAGE).unwrap();
    let mut table = Table::new(chunks);
    let mut live: Vec<Span> = Vec::new();
    while !source.is_used_up() {
        let bits = source.byte();
        let content = if bits & 1 == 0 {
            Content::Dirty
        } else {
            Content::Cleared
        };
        if bits & 0x43 == 0x43 {
            space.reset(content);
        } else if bits & 0x82 == 0x80 && !live.is_empty() {
            let at = source.below(live.len() as u64) as usize;
            let block = live[at];
            let from = source.below(block.len() / PAGE);
            let keep = 1 + source.below(block.len() / PAGE - from);
            let keep = Span::new(block.start() + from * PAGE, keep * PAGE).unwrap();
            space.trim(block, keep, content).unwrap();
            live[at] = keep;
            table.set(block.start() / PAGE, block.len() / PAGE, false);
            table.set(keep.start() / PAGE, keep.len() / PAGE, true);
        } else if bits & 2 == 0 && !live.is_empty() {
            let block = live.swap_remove(source.below(live.len() as u64) as usize);
            space.free(block, content);
            table.set(block.start() / PAGE, block.len() / PAGE, false);
        } else {
            let mut request = BuddyRequest::new(source.below(40) * PAGE).prefer(content);
            if bits & 4 != 0 {
                request = request.contiguous();
            }
            if bits & 8 != 0 {
                request = request.top_down();
            }
            if bits & 16 != 0 {
                request = request.min_block(PAGE << source.below(4));
            }
            if bits & 32 != 0 {
                let lo = source.below(chunks);
                let len = source.below(chunks - lo + 1);
                request = request.within(Span::new(lo * PAGE, len * PAGE).unwrap());
            }
            let free = (space.free_bytes(), space.cleared_bytes());
            let one = bits & 4 != 0 && source.byte() & 1 == 0;
            let answer = if one {
                space.alloc_one(&request).map(|block| vec![block])
            } else {
                space.alloc(&request)
            };
            match answer {
                Ok(blocks) => {
                    for block in blocks {
                        table.set(block.offset / PAGE, block.size / PAGE, true);
                        live.push(block.span());
                    }
                }
                Err(_) => assert_eq!((space.free_bytes(), space.cleared_bytes()), free),
            }
        }
        assert_eq!(space.free_bytes(), table.free() * PAGE);
    }
    space.check();
}

fn sub(source: &mut Source) {
    let cells = 1 + source.below(2000);
    let fit = if source.byte() & 1 == 0 {
        Fit::Fast
    } else {
        Fit::Tight
    };
    let mut space = SubAllocator::new(cells, 1, fit).unwrap();
    let mut table = Table::new(cells);
    let mut live: Vec<(u64, u64)> = Vec::new();
    while !source.is_used_up() {
        if source.byte() & 1 == 0 && !live.is_empty() {
            let (start, len) = live.swap_remove(source.below(live.len() as u64) as usize);
            space.free(start, len);
            table.set(start, len, false);
            continue;
        }
        let (len, align) = (1 + source.below(200), 1 << source.below(8));
        match space.alloc(len, align) {
            Ok(start) => {
                assert_eq!(start % align, 0);
                table.set(start, len, true);
                live.push((start, len));
            }
            Err(SpaceError::NoSpace { .. }) => assert!(!table.fits(len, align, (0, cells))),
            Err(SpaceError::Invalid { .. }) => assert!(len > cells),
            Err(error) => panic!("{error}"),
        }
    }
    space.check();
    assert_eq!(space.free_bytes(), table.free());
}

/// Only who owns which cell is compared: the crate's own model says when.
fn zones(source: &mut Source) {
    let cells = 2 + source.below(300);
    let middle = 1 + source.below(cells - 1);
    let unit = UNITS[source.byte() as usize % UNITS.len()];
    let zones = [
        Zone::between("low", 0, middle * unit),
        Zone::between("high", middle * unit, cells * unit),
    ];
    let mut space = VaSpace::new(&zones).unwrap();
    let mut table = Table::new(cells);
    let mut live: Vec<Span> = Vec::new();
    space.add_timeline(0).unwrap();
    while !source.is_used_up() {
        let generation = source.byte() as u32 % 4;
        match source.byte() % 8 {
            0..=3 => {
                let zone = &zones[source.byte() as usize % 2];
                let (size, align) = (1 + source.below(20), 1 + source.below(5));
                if let Ok(span) = space.carve(zone.name, size * unit, align * unit, generation) {
                    assert!(zone.span.covers(span));
                    assert!(span.start().is_multiple_of(align * unit));
                    table.set(span.start() / unit, size, true);
                    live.push(span);
                }
            }
            4 | 5 if !live.is_empty() => {
                let span = live.swap_remove(source.below(live.len() as u64) as usize);
                let fence = SpaceFence {
                    timeline: 0,
                    value: source.byte(),
                };
                let fence = (generation > 0).then_some(fence);
                assert_eq!(space.retire(span.start(), fence), span);
                // The cells may come back from now on, when they do is another matter.
                table.set(span.start() / unit, span.len() / unit, false);
            }
            6 => space.close_generation(generation),
            _ => {
                space.signalled(0, source.byte());
            }
        }
        let stats = space.stats();
        assert_eq!(
            stats.free_bytes + stats.quarantined_bytes,
            table.free() * unit
        );
        assert_eq!(stats.live_bytes, (cells - table.free()) * unit);
    }
    space.check();
    for span in live {
        space.retire(span.start(), None);
    }
    space.remove_timeline(0);
    (1..4).for_each(|generation| space.close_generation(generation));
    space.check();
    assert_eq!(space.stats().free_bytes, cells * unit);
}

fn offsets(source: &mut Source) {
    let mut offsets = FakeOffsets::new();
    let mut grants = [[0_u32; 4]; 32];
    while !source.is_used_up() {
        let (object, client) = (source.byte() % 32, source.byte() % 4);
        let count = &mut grants[object as usize][client as usize];
        match source.byte() % 7 {
            0 | 1 => {
                let span = offsets.add(object, 1 + source.below(1 << 16)).unwrap();
                assert_eq!(offsets.lookup_exact(span.start(), span.len()), Some(object));
            }
            2 => {
                offsets.remove(object);
                assert_eq!(offsets.offsets(object), None);
            }
            3 => {
                offsets.allow(object, client).unwrap();
                *count += 1;
            }
            4 => {
                offsets.allow_once(object, client).unwrap();
                *count = (*count).max(1);
            }
            5 => {
                offsets.revoke(object, client);
                *count = count.saturating_sub(1);
            }
            _ => {
                offsets.revoke_all(object);
                grants[object as usize] = [0; 4];
            }
        }
        let allowed = grants[object as usize][client as usize] > 0;
        assert_eq!(offsets.verify(object, client).is_ok(), allowed);
    }
    offsets.check();
}

fuzz_target!(|bytes: &[u8]| {
    let mut source = Source(bytes);
    match source.byte() % 5 {
        0 => ranges(&mut source),
        1 => buddy(&mut source),
        2 => zones(&mut source),
        3 => offsets(&mut source),
        _ => sub(&mut source),
    }
});
