//! Arbitrary operations on the address space allocators, checked against tables of owned cells.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vrampager_addr::Span;
use vrampager_space::{
    Block, Buddy, BuddyRequest, Content, FakeOffsets, Fit, Mode, RangeAllocator, RangeRequest,
    SpaceError, SpaceFence, SubAllocator, VaSpace, Zone,
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
                && self.0.get(start..end).is_some_and(|cells| !cells.contains(&true))
        };
        (lo..=hi.saturating_sub(len)).any(|start| start + len <= hi && run(start))
    }
}

fn ranges(source: &mut Source) {
    let cells = 1 + source.below(600);
    let mut space = RangeAllocator::new(Span::new(0, cells).unwrap());
    let mut table = Table::new(cells);
    let mut live: Vec<Span> = Vec::new();
    while !source.is_used_up() {
        match source.byte() % 5 {
            4 => evict(source, &space, &live, &table),
            0 | 1 => {
                let modes = [Mode::Best, Mode::Low, Mode::High, Mode::Evict];
                let (size, align) = (source.below(40), 1 + source.below(9));
                let lo = source.below(cells);
                let within = Span::new(lo, source.below(cells - lo + 1)).unwrap();
                let mode = modes[source.byte() as usize % 4];
                let request = RangeRequest::new(size).align(align).within(within).mode(mode);
                let fits = size > 0 && table.fits(size, align, (lo, within.end()));
                let got = space.insert(&request);
                assert_eq!(got.is_ok(), fits, "{request:?}");
                if let Ok(span) = got {
                    assert!(within.covers(span));
                    table.set(span.start(), size, true);
                    live.push(span);
                }
            }
            2 => {
                let start = source.below(cells);
                let span = Span::new(start, source.below(cells - start + 1)).unwrap();
                let fits = !span.is_empty() && table.fits(span.len(), 1, (start, span.end()));
                assert_eq!(space.reserve(span, 0).is_ok(), fits);
                if fits {
                    table.set(start, span.len(), true);
                    live.push(span);
                }
            }
            _ if live.is_empty() => {}
            _ => {
                let span = live.swap_remove(source.below(live.len() as u64) as usize);
                assert_eq!(space.remove(span.start()), Some(span));
                table.set(span.start(), span.len(), false);
            }
        }
        assert_eq!(space.free_bytes(), table.free());
    }
    space.check();
}

/// Scans some of the live ranges, and compares the cheapest window with all windows.
fn evict(source: &mut Source, space: &RangeAllocator, live: &[Span], table: &Table) {
    let cells = table.0.len() as u64;
    let (size, align) = (1 + source.below(60), 1 + source.below(9));
    let mut scan = space
        .eviction_scan(&RangeRequest::new(size).align(align).mode(Mode::Low))
        .unwrap();
    let mut costs: Vec<Option<u64>> = vec![Some(0); cells as usize];
    for span in live {
        let cost = source.byte();
        for cell in &mut costs[span.start() as usize..span.end() as usize] {
            *cell = (cost % 4 != 0).then_some(cost);
        }
        if cost % 4 != 0 {
            scan.add(span.start(), cost).unwrap();
        }
    }
    let window_cost = |start: u64| -> Option<u128> {
        let window = Span::new(start, size)?;
        if !costs[start as usize..window.end() as usize].iter().all(Option::is_some) {
            return None;
        }
        let victims = live.iter().filter(|span| span.overlaps(window));
        Some(victims.filter_map(|span| costs[span.start() as usize]).map(u128::from).sum())
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
    let mut live: Vec<Block> = Vec::new();
    while !source.is_used_up() {
        let bits = source.byte();
        let content = if bits & 1 == 0 { Content::Dirty } else { Content::Cleared };
        if bits & 0x43 == 0x43 {
            space.reset(content);
        } else if bits & 0x82 == 0x80 && !live.is_empty() {
            let at = source.below(live.len() as u64) as usize;
            let block = live[at];
            let from = source.below(block.size / PAGE);
            let keep = 1 + source.below(block.size / PAGE - from);
            let keep = Span::new(block.offset + from * PAGE, keep * PAGE).unwrap();
            live[at] = space.trim(block, keep, content).unwrap();
            table.set(block.offset / PAGE, block.size / PAGE, false);
            table.set(keep.start() / PAGE, keep.len() / PAGE, true);
        } else if bits & 2 == 0 && !live.is_empty() {
            let block = live.swap_remove(source.below(live.len() as u64) as usize);
            space.free(block, content);
            table.set(block.offset / PAGE, block.size / PAGE, false);
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
            match space.alloc(&request) {
                Ok(blocks) => {
                    for block in blocks {
                        table.set(block.offset / PAGE, block.size / PAGE, true);
                        live.push(block);
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
    let fit = if source.byte() & 1 == 0 { Fit::Fast } else { Fit::Tight };
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
    let bounds = [(0, middle), (middle, cells)];
    let zones = [Zone::between("low", 0, middle), Zone::between("high", middle, cells)];
    let mut space = VaSpace::new(&zones).unwrap();
    let mut table = Table::new(cells);
    let mut live: Vec<Span> = Vec::new();
    space.add_timeline(0).unwrap();
    while !source.is_used_up() {
        let generation = source.byte() as u32 % 4;
        match source.byte() % 8 {
            0..=3 => {
                let zone = source.byte() as usize % 2;
                let (size, align) = (1 + source.below(20), 1 + source.below(5));
                let name = ["low", "high"][zone];
                if let Ok(span) = space.carve(name, size, align, generation) {
                    assert!(span.start() >= bounds[zone].0 && span.end() <= bounds[zone].1);
                    assert!(span.start().is_multiple_of(align));
                    table.set(span.start(), span.len(), true);
                    live.push(span);
                }
            }
            4 | 5 if !live.is_empty() => {
                let span = live.swap_remove(source.below(live.len() as u64) as usize);
                let fence = SpaceFence { timeline: 0, value: source.byte() };
                let fence = (generation > 0).then_some(fence);
                assert_eq!(space.retire(span.start(), fence), span);
                // The cells may come back from now on, when they do is another matter.
                table.set(span.start(), span.len(), false);
            }
            6 => space.close_generation(generation),
            _ => {
                space.signalled(0, source.byte());
            }
        }
        let stats = space.stats();
        assert_eq!(stats.free_bytes + stats.quarantined_bytes, table.free());
        assert_eq!(stats.live_bytes, cells - table.free());
    }
    space.check();
    for span in live {
        space.retire(span.start(), None);
    }
    space.remove_timeline(0);
    (1..4).for_each(|generation| space.close_generation(generation));
    space.check();
    assert_eq!(space.stats().free_bytes, cells);
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
