//! Workloads W1 to W7 and FILL, with the peers in the same process.
//!
//! `cargo bench -p vrampager-space` runs everything in a few minutes; `-- full` runs longer
//! traces and more rounds; `-- W5` runs what starts with that name; `--features vma` adds the
//! Vulkan Memory Allocator, which is C++. `-- count W1/10k PEER` runs one trace once, for
//! `callgrind.sh`.
#![expect(
    unsafe_code,
    reason = "the time stamp counter, mallinfo2 and the C++ peer have no safe interface"
)]
#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a report of rounded figures on standard output is the purpose"
)]

mod fixed;
mod measure;
mod peers;
mod threads;
mod traces;
mod va;

use measure::{Run, Shadow};
#[cfg(feature = "vma")]
use peers::vma::Vma;
use peers::{
    BTreeBest, BTreeFirst, BuddySystem, Null, Offset, OurBuddy, Peer, RangeAlloc, RangeBest,
    RangeEvict, RangeLow, SubFast, SubTight,
};
use traces::Trace;

const ROUNDS: usize = 3;

/// An allocator and the ways to run it.
struct Entry {
    name: &'static str,
    run: fn(&Trace) -> Run,
    latencies: fn(&Trace) -> Vec<u32>,
    shadow: fn(&Trace) -> Shadow,
}

fn entry<P: Peer>() -> Entry {
    Entry {
        name: P::NAME,
        run: measure::run::<P>,
        latencies: measure::latencies::<P>,
        shadow: measure::shadow::<P>,
    }
}

/// A claim about one of ours: at most `target` times what a peer needs.
pub(crate) struct Target {
    ours: &'static str,
    peer: &'static str,
    /// What the peer stands for: itself, or an allocator it was measured against elsewhere.
    scale: f64,
    label: &'static str,
    target: f64,
}

fn target(ours: &'static str, peer: &'static str, target: f64) -> Target {
    Target {
        ours,
        peer,
        scale: 1.0,
        label: peer,
        target,
    }
}

/// The kernel's allocators can't be run here: they took `scale` times as long as `peer` when both
/// were measured in one process.
fn kernel(
    ours: &'static str,
    label: &'static str,
    (peer, scale): (&'static str, f64),
    target: f64,
) -> Target {
    Target {
        ours,
        peer,
        scale,
        label,
        target,
    }
}

pub(crate) fn print_ratio(name: &str, label: &str, ratio: f64, target: f64) {
    let verdict = if ratio <= target { "ok" } else { "MISS" };
    println!("ratio {name} vs {label} {ratio:.3} target {target} {verdict}");
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Mean over batches of the least time any round needed for the batch.
fn best_of(rounds: &[Run]) -> f64 {
    let batches = rounds[0].batches.len();
    let least = |batch: usize| {
        rounds
            .iter()
            .map(|run| run.batches[batch])
            .fold(f64::MAX, f64::min)
    };
    mean(&(0..batches).map(least).collect::<Vec<_>>())
}

struct Bench {
    full: bool,
    filter: String,
    tick: f64,
}

impl Bench {
    fn wants(&self, name: &str) -> bool {
        name.starts_with(&self.filter)
    }

    fn compare(&self, trace: &Trace, entries: &[Entry], targets: &[Target]) {
        let mut rounds: Vec<Vec<Run>> = entries.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for (entry, runs) in entries.iter().zip(&mut rounds) {
                runs.push((entry.run)(trace));
            }
        }
        let harness = best_of(&rounds[0]);
        let mut results = Vec::new();
        for (entry, runs) in entries.iter().zip(&rounds).skip(1) {
            let ns = best_of(runs) - harness;
            results.push((entry.name, ns));
            self.print(trace, entry, ns, &runs[0]);
        }
        let of = |name: &str| results.iter().find(|(n, _)| *n == name).map(|&(_, ns)| ns);
        for target in targets {
            if let (Some(ours), Some(peer)) = (of(target.ours), of(target.peer)) {
                let name = format!("{} {}", trace.name, target.ours);
                print_ratio(
                    &name,
                    target.label,
                    ours / (peer * target.scale),
                    target.target,
                );
            }
        }
    }

    fn print(&self, trace: &Trace, entry: &Entry, ns: f64, run: &Run) {
        let mut least = (entry.latencies)(trace);
        let more = if self.full { ROUNDS - 1 } else { 1 };
        for _ in 0..more {
            for (one, again) in least.iter_mut().zip((entry.latencies)(trace)) {
                *one = again.min(*one);
            }
        }
        least.sort_unstable();
        let at = |part: f64| {
            let index = ((least.len() - 1) as f64 * part) as usize;
            f64::from(least[index]) * self.tick
        };
        print!(
            "{:<12} {:<24} ns/op {ns:>7.1} p50 {:>6.0} p99 {:>6.0} p99.9 {:>6.0} \
             worst {:>8.0} B/live {:>6.1} fail {}",
            trace.name,
            entry.name,
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0),
            run.bytes as f64 / run.live.max(1) as f64,
            run.failures,
        );
        if self.full || trace.slots <= 100_000 {
            let shadow = (entry.shadow)(trace);
            print!(
                " frag {:.2} hiwat {:.3}",
                shadow.fragmentation, shadow.high_water
            );
            if shadow.errors > 0 {
                print!(" ERRORS {}", shadow.errors);
            }
        }
        println!();
    }

    fn pairs(&self, most: usize) -> usize {
        if self.full { most } else { most / 10 }
    }

    fn w1(&self) {
        let sizes: [(usize, [f64; 5]); 3] = [
            (10_000, [0.75, 0.08, 0.17, 167.0 / 16.5, 231.0 / 16.5]),
            (100_000, [0.60, 0.06, 0.17, 231.0 / 24.2, 506.0 / 24.2]),
            (1_000_000, [0.18, 0.03, 0.12, 604.0 / 123.0, 1343.0 / 123.0]),
        ];
        for (live, [offset, best, low, best_scale, low_scale]) in sizes {
            let trace = traces::w1(
                live,
                self.pairs(if live == 1_000_000 {
                    1_000_000
                } else {
                    500_000
                }),
            );
            if !self.wants(&trace.name) {
                continue;
            }
            let mut entries = vec![
                entry::<Null>(),
                entry::<SubFast>(),
                entry::<SubTight>(),
                entry::<RangeLow>(),
                entry::<RangeBest>(),
                entry::<Offset>(),
                entry::<BTreeBest>(),
            ];
            #[cfg(feature = "vma")]
            entries.push(entry::<Vma>());
            if live == 10_000 {
                entries.push(entry::<RangeAlloc>());
            }
            let targets = [
                target(SubFast::NAME, Offset::NAME, offset),
                kernel(
                    SubFast::NAME,
                    "drm_mm BEST (by ratio)",
                    (Offset::NAME, best_scale),
                    best,
                ),
                kernel(
                    RangeLow::NAME,
                    "drm_mm LOW (by ratio)",
                    (Offset::NAME, low_scale),
                    low,
                ),
                target(RangeBest::NAME, BTreeBest::NAME, 1.0),
            ];
            self.compare(&trace, &entries, &targets);
        }
    }

    /// Without VMA's virtual block, which needs half a minute for each warm-up.
    fn w2(&self) {
        for tight in [false, true] {
            let trace = traces::w2(tight, self.pairs(500_000));
            if !self.wants(&trace.name) {
                continue;
            }
            let entries = [
                entry::<Null>(),
                entry::<SubFast>(),
                entry::<SubTight>(),
                entry::<RangeLow>(),
                entry::<Offset>(),
            ];
            let targets = [target(SubFast::NAME, Offset::NAME, 1.0)];
            self.compare(&trace, &entries, &targets);
        }
    }

    fn w3(&self) {
        let trace = traces::w3(1.3, self.pairs(1_000_000));
        if self.wants("W3") {
            let entries = [
                entry::<Null>(),
                entry::<SubFast>(),
                entry::<SubTight>(),
                entry::<RangeLow>(),
                entry::<RangeEvict>(),
                entry::<Offset>(),
                #[cfg(feature = "vma")]
                entry::<Vma>(),
                entry::<BTreeBest>(),
                entry::<RangeAlloc>(),
            ];
            self.compare(
                &trace,
                &entries,
                &[target(SubFast::NAME, Offset::NAME, 0.85)],
            );
            self.w3_tight();
        }
    }

    fn w3_tight(&self) {
        let entries = [
            entry::<SubFast>(),
            entry::<SubTight>(),
            entry::<RangeLow>(),
            entry::<RangeBest>(),
            entry::<RangeEvict>(),
            entry::<Offset>(),
        ];
        let ratios = [1.02, 1.05, 1.08, 1.10, 1.15, 1.2, 1.3];
        let traces: Vec<Trace> = ratios
            .iter()
            .map(|&ratio| traces::w3(ratio, if self.full { 1_000_000 } else { 500_000 }))
            .collect();
        for entry in &entries {
            let failures: Vec<u64> = traces
                .iter()
                .map(|trace| (entry.run)(trace).failures)
                .collect();
            println!(
                "W3-tight     {:<24} failures at {ratios:?}: {failures:?}",
                entry.name
            );
        }
    }

    fn w4(&self) {
        let trace = traces::w4(self.pairs(500_000));
        if !self.wants(&trace.name) {
            return;
        }
        let entries = [entry::<Null>(), entry::<RangeLow>(), entry::<Offset>()];
        let targets = [kernel(
            RangeLow::NAME,
            "drm_mm LOW+HIGH (by ratio)",
            (Offset::NAME, 468.0 / 24.2),
            0.12,
        )];
        self.compare(&trace, &entries, &targets);
        if self.full {
            let short = traces::w4(5_000);
            self.compare(
                &short,
                &[entry::<Null>(), entry::<RangeLow>(), entry::<BTreeFirst>()],
                &[],
            );
        }
    }

    fn w5(&self) {
        let pairs = self.pairs(500_000);
        let rows = [
            (traces::w5_pow2(pairs), Some((47.0 / 22.0, 0.22, 0.5))),
            (
                traces::w5_mixed(20_000, pairs),
                Some((148.0 / 21.5, 0.09, 0.6)),
            ),
            (traces::w5_mixed(28_000, pairs), None),
            (traces::w5_order0(10_000, pairs), None),
            (traces::w5_order0(100_000, pairs), None),
            (
                traces::w5_order0(1_000_000, pairs),
                Some((121.0 / 21.0, 0.06, 0.35)),
            ),
        ];
        for (trace, goals) in rows {
            if !self.wants(&trace.name) {
                continue;
            }
            let entries = [
                entry::<Null>(),
                entry::<OurBuddy>(),
                entry::<SubFast>(),
                entry::<BuddySystem>(),
                entry::<Offset>(),
            ];
            let targets = goals.map(|(scale, drm, peer)| {
                [
                    target(OurBuddy::NAME, BuddySystem::NAME, peer),
                    kernel(
                        OurBuddy::NAME,
                        "drm_buddy (by ratio)",
                        (BuddySystem::NAME, scale),
                        drm,
                    ),
                ]
            });
            self.compare(
                &trace,
                &entries,
                targets.as_ref().map_or(&[], |targets| targets),
            );
        }
    }

    fn fill(&self) {
        if !self.wants("FILL") {
            return;
        }
        let seeds = if self.full { 5 } else { 2 };
        fill_row::<SubFast>(seeds, None);
        fill_row::<SubTight>(seeds, Some(0.918));
        fill_row::<RangeLow>(seeds, None);
        fill_row::<RangeBest>(seeds, Some(0.918));
        fill_row::<OurBuddy>(seeds, None);
        fill_row::<BTreeBest>(seeds, None);
        fill_row::<Offset>(seeds, None);
        #[cfg(feature = "vma")]
        fill_row::<Vma>(seeds, None);
        fill_row::<BuddySystem>(seeds, None);
    }
}

fn fill_row<P: Peer>(seeds: u64, least: Option<f64>) {
    let one = |seed| {
        let mut sizes = traces::Rng(seed);
        let mut picks = traces::Rng(seed ^ 0xf111);
        measure::fill::<P>(1 << 22, || sizes.lognormal(2.0), |limit| picks.below(limit))
    };
    let level = mean(&(1..=seeds).map(one).collect::<Vec<_>>());
    let verdict = match least {
        Some(least) if level >= least => format!(" target {least} ok"),
        Some(least) => format!(" target {least} MISS"),
        None => String::new(),
    };
    println!(
        "FILL         {:<24} first failure at {level:.3}{verdict}",
        P::NAME
    );
}

/// Runs one trace through one peer, for an instruction counter outside.
fn count(workload: &str, peer: &str) {
    let trace = match workload {
        "W1/10k" => traces::w1(10_000, 50_000),
        "W1/100k" => traces::w1(100_000, 50_000),
        "W1/1M" => traces::w1(1_000_000, 50_000),
        "W2/1T" => traces::w2(false, 50_000),
        "W3" => traces::w3(1.3, 100_000),
        "W4" => traces::w4(50_000),
        "W5/pow2" => traces::w5_pow2(50_000),
        "W5/mixed70" => traces::w5_mixed(20_000, 50_000),
        _ => panic!("unknown workload {workload}"),
    };
    let entries = [
        entry::<Null>(),
        entry::<SubFast>(),
        entry::<SubTight>(),
        entry::<RangeLow>(),
        entry::<RangeBest>(),
        entry::<OurBuddy>(),
        entry::<Offset>(),
        #[cfg(feature = "vma")]
        entry::<Vma>(),
        entry::<BTreeBest>(),
        entry::<BuddySystem>(),
    ];
    let entry = entries
        .iter()
        .find(|entry| entry.name == peer)
        .expect("a peer of that name");
    (entry.run)(&trace);
    println!("operations {}", trace.ops.len());
}

fn main() {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    if let [first, workload, peer] = &args[..]
        && first == "count"
    {
        return count(workload, peer);
    }
    let full = args.iter().any(|arg| arg == "full");
    let filter = args
        .into_iter()
        .find(|arg| arg != "full")
        .unwrap_or_default();
    let bench = Bench {
        full,
        filter,
        tick: measure::tick_length(),
    };
    bench.w1();
    bench.w2();
    bench.w3();
    bench.w4();
    bench.w5();
    if bench.wants("W6") {
        fixed::w6(full);
    }
    if bench.wants("W7") {
        threads::w7(full);
    }
    bench.fill();
    if bench.wants("VA") {
        va::consumption(full);
    }
}
