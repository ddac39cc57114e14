//! W6: reservations at fixed addresses, and lookups.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use rangemap::RangeMap;
use vrampager_addr::Span;
use vrampager_space::RangeAllocator;

use crate::claims::{Figure, Row, Yardstick, at_most, limit};
use crate::measure::{keep_least, malloc_bytes, sorted, ticks};
use crate::traces::Rng;
use crate::{Bench, ROUNDS};

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

const PHASES: [&str; 5] = ["reserve", "lookup", "chained", "pair", "free"];

/// Who watches the phases of W6.
trait Clock {
    /// Does `op` for each number below `count`.
    fn phase(&mut self, phase: usize, count: usize, op: impl FnMut(usize));
}

/// Times phases as a whole: the least of several rounds, in nanoseconds for an operation.
struct Whole([f64; 5]);

impl Clock for Whole {
    fn phase(&mut self, phase: usize, count: usize, op: impl FnMut(usize)) {
        let start = Instant::now();
        (0..count).for_each(op);
        let ns = start.elapsed().as_nanos() as f64 / count as f64;
        self.0[phase] = self.0[phase].min(ns);
    }
}

/// Times each operation: the least of several rounds, in ticks.
struct Each([Vec<u32>; 5]);

impl Clock for Each {
    fn phase(&mut self, phase: usize, count: usize, mut op: impl FnMut(usize)) {
        let time = |number| {
            let start = ticks();
            op(number);
            u32::try_from(ticks() - start).unwrap_or(u32::MAX)
        };
        keep_least(&mut self.0[phase], (0..count).map(time).collect());
    }
}

/// Shows one phase to an instruction counter outside.
struct Counted(usize);

impl Clock for Counted {
    fn phase(&mut self, phase: usize, count: usize, op: impl FnMut(usize)) {
        if phase == self.0 {
            measured_ops(count, op);
            println!("operations {count}");
        } else {
            (0..count).for_each(op);
        }
    }
}

/// The part that callgrind counts: keep the name in step with `callgrind.sh`.
#[inline(never)]
fn measured_ops(count: usize, op: impl FnMut(usize)) {
    (0..count).for_each(op);
}

/// Reserves all, looks up, gives one back and reserves it again, gives all back. Returns the bytes
/// for each range when all are reserved.
fn play<F: Fixed, C: Clock>(layout: &Layout, lookups: usize, clock: &mut C) -> f64 {
    let mut rng = Rng(67);
    let count = layout.ranges.len();
    let addresses: Vec<u64> = (0..lookups).map(|_| rng.below(layout.end)).collect();
    let picks: Vec<usize> = (0..lookups / 2)
        .map(|_| rng.below(count as u64) as usize)
        .collect();
    let before = malloc_bytes();
    let mut map = F::new(layout.end);
    clock.phase(0, count, |number| {
        let (lo, hi) = layout.ranges[number];
        map.reserve(lo, hi);
    });
    let bytes = malloc_bytes().saturating_sub(before) as f64 / count as f64;
    let mut sum = 0_u64;
    clock.phase(1, lookups, |number| {
        sum = sum.wrapping_add(map.lookup(addresses[number]));
    });
    clock.phase(2, lookups, |number| {
        // The next address depends on the last answer, if only in a bit that is always 0.
        sum = map.lookup(addresses[number] ^ (sum & 1));
    });
    black_box(sum);
    clock.phase(3, picks.len(), |number| {
        let (lo, hi) = layout.ranges[picks[number]];
        map.free(lo, hi);
        map.reserve(lo, hi);
    });
    clock.phase(4, count, |number| {
        let (lo, hi) = layout.ranges[number];
        map.free(lo, hi);
    });
    bytes
}

struct Contestant {
    name: &'static str,
    time: fn(&Layout, usize, &mut Whole) -> f64,
    time_each: fn(&Layout, usize, &mut Each) -> f64,
    count: fn(&Layout, usize, &mut Counted) -> f64,
}

fn contestant<F: Fixed>() -> Contestant {
    Contestant {
        name: F::NAME,
        time: play::<F, Whole>,
        time_each: play::<F, Each>,
        count: play::<F, Counted>,
    }
}

fn contestants() -> [Contestant; 3] {
    [
        contestant::<RangeAllocator>(),
        contestant::<BTreeMap<u64, (u64, u32)>>(),
        contestant::<RangeMap<u64, u32>>(),
    ]
}

pub(crate) fn w6(bench: &Bench) {
    for (count, label) in [(10_000, "10k"), (100_000, "100k"), (1_000_000, "1M")] {
        let workload = format!("W6/{label}");
        if bench.wants(&workload) {
            compare(&workload, &layout(count), bench);
        }
    }
}

/// All contestants in turn, for each round.
fn compare(workload: &str, layout: &Layout, bench: &Bench) {
    let lookups = bench.length(1_000_000);
    let contestants = contestants();
    let mut clocks = [(); 3].map(|()| (Whole([f64::MAX; 5]), Each(Default::default()), 0.0));
    for _ in 0..ROUNDS {
        for (contestant, (whole, each, bytes)) in contestants.iter().zip(&mut clocks) {
            *bytes = (contestant.time)(layout, lookups, whole);
            (contestant.time_each)(layout, lookups, each);
        }
    }
    let mut rows: [Vec<Row>; 5] = Default::default();
    for (contestant, (whole, each, bytes)) in contestants.iter().zip(clocks) {
        for (phase, ticks) in each.0.into_iter().enumerate() {
            let row = Row {
                name: contestant.name,
                ns: whole.0[phase],
                latencies: sorted(ticks, bench.tick),
                bytes,
                failures: 0,
            };
            row.print(&format!("{workload} {}", PHASES[phase]));
            println!();
            rows[phase].push(row);
        }
    }
    let [ours, map, rangemap] = contestants.map(|contestant| contestant.name);
    for (phase, claim) in [
        (0, at_most(0.30, ours, Yardstick::Peer(map))),
        (0, limit(40.0, ours, Figure::Bytes)),
        (1, at_most(0.25, ours, Yardstick::Peer(rangemap))),
    ] {
        claim.print(&format!("{workload} {}", PHASES[phase]), &rows[phase]);
    }
}

/// Runs one phase of W6 once, for an instruction counter outside: `W6/10k/lookup`.
pub(crate) fn count(workload: &str, peer: &str) {
    let (size, phase) = workload.split_once('/').expect("a size and a phase");
    let ranges = match size {
        "10k" => 10_000,
        "100k" => 100_000,
        _ => 1_000_000,
    };
    let phase = PHASES.iter().position(|&name| name == phase);
    let mut clock = Counted(phase.expect("a phase of that name"));
    let contestants = contestants();
    let contestant = contestants
        .iter()
        .find(|contestant| contestant.name == peer);
    (contestant.expect("a peer of that name").count)(&layout(ranges), 100_000, &mut clock);
}
