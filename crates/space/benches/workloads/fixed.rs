//! W6: reservations at fixed addresses, and lookups.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use rangemap::RangeMap;
use vrampager_addr::Span;
use vrampager_space::RangeAllocator;

use crate::print_ratio;
use crate::traces::Rng;

/// A map of disjoint ranges.
trait Fixed {
    const NAME: &'static str;
    fn new(end: u64) -> Self;
    fn reserve(&mut self, start: u64, end: u64);
    fn lookup(&self, address: u64) -> u64;
    fn free(&mut self, start: u64, end: u64);
}

impl Fixed for RangeAllocator {
    const NAME: &'static str = "vrampager range";
    fn new(end: u64) -> Self {
        Self::new(Span::new(0, end).expect("small"))
    }
    fn reserve(&mut self, start: u64, end: u64) {
        self.reserve(Span::from_bounds(start, end).expect("ordered"), 1)
            .expect("free");
    }
    fn lookup(&self, address: u64) -> u64 {
        self.find(address).map_or(0, |range| range.span.start())
    }
    fn free(&mut self, start: u64, _: u64) {
        self.remove(start).expect("live");
    }
}

impl Fixed for BTreeMap<u64, (u64, u32)> {
    const NAME: &'static str = "BTreeMap";
    fn new(_: u64) -> Self {
        Self::new()
    }
    fn reserve(&mut self, start: u64, end: u64) {
        let before = self.range(..end).next_back();
        assert!(before.is_none_or(|(_, &(e, _))| e <= start), "free");
        self.insert(start, (end, 1));
    }
    fn lookup(&self, address: u64) -> u64 {
        let found = self.range(..=address).next_back();
        found
            .filter(|(_, (end, _))| address < *end)
            .map_or(0, |(&start, _)| start)
    }
    fn free(&mut self, start: u64, _: u64) {
        self.remove(&start).expect("live");
    }
}

impl Fixed for RangeMap<u64, u32> {
    const NAME: &'static str = "rangemap";
    fn new(_: u64) -> Self {
        Self::new()
    }
    fn reserve(&mut self, start: u64, end: u64) {
        // Neighbours of one value would be joined.
        self.insert(start..end, (start >> 12) as u32);
    }
    fn lookup(&self, address: u64) -> u64 {
        self.get_key_value(&address)
            .map_or(0, |(range, _)| range.start)
    }
    fn free(&mut self, start: u64, end: u64) {
        self.remove(start..end);
    }
}

struct Layout {
    ranges: Vec<(u64, u64)>,
    end: u64,
}

fn layout(count: usize) -> Layout {
    let mut rng = Rng(66);
    let mut at = 0;
    let mut ranges = Vec::new();
    for _ in 0..count {
        if rng.below(2) == 1 {
            at += 1 + rng.below(16);
        }
        let len = u64::from(rng.lognormal(1.5));
        ranges.push((at * 4096, (at + len) * 4096));
        at += len;
    }
    for last in (1..count).rev() {
        let other = rng.below(last as u64 + 1) as usize;
        ranges.swap(last, other);
    }
    Layout {
        ranges,
        end: (at + 1) * 4096,
    }
}

/// Nanoseconds for reserve, lookup, dependent lookup, free and reserve again, free.
fn once<F: Fixed>(layout: &Layout, lookups: usize) -> [f64; 5] {
    let mut rng = Rng(67);
    let mut map = F::new(layout.end);
    let count = layout.ranges.len();
    let time = |ops: usize, start: Instant| start.elapsed().as_nanos() as f64 / ops as f64;
    let start = Instant::now();
    for &(lo, hi) in &layout.ranges {
        map.reserve(lo, hi);
    }
    let reserve = time(count, start);
    let addresses: Vec<u64> = (0..lookups).map(|_| rng.below(layout.end)).collect();
    let start = Instant::now();
    let mut sum = 0_u64;
    for &address in &addresses {
        sum = sum.wrapping_add(map.lookup(address));
    }
    let independent = time(lookups, start);
    let start = Instant::now();
    for &address in &addresses {
        // The next address depends on the last answer, if only in a bit that is always 0.
        sum = map.lookup(address ^ (sum & 1));
    }
    let dependent = time(lookups, start);
    black_box(sum);
    let picks: Vec<usize> = (0..lookups / 2)
        .map(|_| rng.below(count as u64) as usize)
        .collect();
    let start = Instant::now();
    for &pick in &picks {
        let (lo, hi) = layout.ranges[pick];
        map.free(lo, hi);
        map.reserve(lo, hi);
    }
    let pair = time(picks.len(), start);
    let start = Instant::now();
    for &(lo, hi) in &layout.ranges {
        map.free(lo, hi);
    }
    [reserve, independent, dependent, pair, time(count, start)]
}

fn best<F: Fixed>(layout: &Layout, lookups: usize, rounds: usize) -> [f64; 5] {
    let mut least = [f64::MAX; 5];
    for _ in 0..rounds {
        for (old, new) in least.iter_mut().zip(once::<F>(layout, lookups)) {
            *old = old.min(new);
        }
    }
    least
}

pub(crate) fn w6(full: bool) {
    for (count, label) in [(10_000, "10k"), (100_000, "100k"), (1_000_000, "1M")] {
        let layout = layout(count);
        let lookups = if full { 1_000_000 } else { 200_000 };
        let rounds = if count == 1_000_000 && !full { 1 } else { 3 };
        let ours = best::<RangeAllocator>(&layout, lookups, rounds);
        let btree = best::<BTreeMap<u64, (u64, u32)>>(&layout, lookups, rounds);
        let rangemap = best::<RangeMap<u64, u32>>(&layout, lookups, rounds);
        let names = [RangeAllocator::NAME, BTreeMap::NAME, RangeMap::NAME];
        for (name, [reserve, lookup, chain, pair, free]) in
            names.into_iter().zip([ours, btree, rangemap])
        {
            println!(
                "W6/{label:<9} {name:<24} ns reserve {reserve:.0} lookup {lookup:.0} \
                 chained {chain:.0} pair {pair:.0} free {free:.0}"
            );
        }
        print_ratio(
            &format!("W6/{label} reserve"),
            "BTreeMap",
            ours[0] / btree[0],
            0.30,
        );
        print_ratio(
            &format!("W6/{label} lookup"),
            "rangemap",
            ours[1] / rangemap[1],
            0.25,
        );
    }
}
