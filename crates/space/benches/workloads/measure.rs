//! Running a trace and making numbers of it.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::peers::Peer;
use crate::traces::{Op, Trace};

/// Operations timed together. The design notes use 2000; a batch this short also fits between two
/// interruptions of a busy machine, so that one of the rounds is likely to be undisturbed.
const BATCH: usize = 200;

/// What one run of a trace costs, batch by batch.
pub(crate) struct Run {
    pub(crate) batches: Vec<f64>,
    pub(crate) failures: u64,
    pub(crate) bytes: usize,
    pub(crate) live: usize,
}

/// Handle and length of what is in each slot.
struct Slots<P: Peer> {
    live: Vec<Option<(P::Live, u32)>>,
}

impl<P: Peer> Slots<P> {
    fn new(trace: &Trace) -> Self {
        Self {
            live: vec![None; trace.slots],
        }
    }

    #[inline(always)]
    fn apply(&mut self, peer: &mut P, op: Op) -> bool {
        let slot = &mut self.live[op.slot as usize];
        if op.pages == 0 {
            if let Some((live, pages)) = slot.take() {
                peer.free(live, pages);
            }
            return true;
        }
        *slot = peer.alloc(op).map(|live| (live, op.pages));
        slot.is_some()
    }
}

/// The part that callgrind counts: keep the name in step with `callgrind.sh`.
#[inline(never)]
fn measured_ops<P: Peer>(slots: &mut Slots<P>, peer: &mut P, ops: &[Op]) -> u64 {
    ops.iter()
        .map(|&op| u64::from(!slots.apply(peer, op)))
        .sum()
}

pub(crate) fn run<P: Peer>(trace: &Trace) -> Run {
    let mut slots = Slots::<P>::new(trace);
    let before = malloc_bytes();
    let mut peer = P::new(trace);
    let mut failures = 0;
    for &op in &trace.warm {
        failures += u64::from(!slots.apply(&mut peer, op));
    }
    let mut batches = Vec::with_capacity(trace.ops.len() / BATCH + 1);
    for ops in trace.ops.chunks(BATCH) {
        let start = Instant::now();
        failures += measured_ops(&mut slots, &mut peer, ops);
        batches.push(start.elapsed().as_nanos() as f64 / ops.len() as f64);
    }
    let bytes = malloc_bytes().saturating_sub(before + batches.capacity() * 8);
    Run {
        batches,
        failures,
        bytes,
        live: slots.live.iter().flatten().count(),
    }
}

#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has a time stamp counter.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        u64::try_from(Instant::now().elapsed().as_nanos()).unwrap_or(0)
    }
}

/// Ticks of each operation by itself.
pub(crate) fn latencies<P: Peer>(trace: &Trace) -> Vec<u32> {
    let mut slots = Slots::<P>::new(trace);
    let mut peer = P::new(trace);
    for &op in &trace.warm {
        slots.apply(&mut peer, op);
    }
    let time = |&op: &Op| {
        let start = ticks();
        slots.apply(&mut peer, op);
        u32::try_from(ticks() - start).unwrap_or(u32::MAX)
    };
    trace.ops.iter().map(time).collect()
}

/// Keeps the least of several measurements of each operation.
pub(crate) fn keep_least(least: &mut Vec<u32>, again: Vec<u32>) {
    if least.is_empty() {
        *least = again;
        return;
    }
    for (old, new) in least.iter_mut().zip(again) {
        *old = new.min(*old);
    }
}

/// Ticks as nanoseconds, in order.
pub(crate) fn sorted(mut ticks: Vec<u32>, tick: f64) -> Vec<f64> {
    ticks.sort_unstable();
    ticks
        .into_iter()
        .map(|ticks| f64::from(ticks) * tick)
        .collect()
}

/// Nanoseconds per tick.
pub(crate) fn tick_length() -> f64 {
    let (start, from) = (Instant::now(), ticks());
    while start.elapsed().as_millis() < 20 {}
    start.elapsed().as_nanos() as f64 / (ticks() - from) as f64
}

/// What a run checked against a table of live ranges shows.
pub(crate) struct Shadow {
    errors: u64,
    fragmentation: f64,
    high_water: f64,
}

impl Shadow {
    /// The rest of a line.
    pub(crate) fn print(&self) {
        print!(
            " frag {:.2} hiwat {:.3}",
            self.fragmentation, self.high_water
        );
        if self.errors > 0 {
            print!(" ERRORS {}", self.errors);
        }
        println!();
    }
}

pub(crate) fn shadow<P: Peer>(trace: &Trace) -> Shadow {
    let mut slots = Slots::<P>::new(trace);
    let mut peer = P::new(trace);
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    let mut result = Shadow {
        errors: 0,
        fragmentation: 0.0,
        high_water: 0.0,
    };
    let mut highest = 0;
    let step = (trace.ops.len() / 20).max(1);
    for (index, &op) in trace.warm.iter().chain(&trace.ops).enumerate() {
        let slot = op.slot as usize;
        if let Some(old) = slots.live[slot].as_ref().filter(|_| op.pages == 0) {
            live.remove(&P::start(&old.0));
        }
        slots.apply(&mut peer, op);
        if let Some(new) = slots.live[slot].as_ref().filter(|_| op.pages > 0) {
            let (start, end) = (P::start(&new.0), P::start(&new.0) + u64::from(op.pages));
            let before = live
                .range(..end)
                .next_back()
                .is_some_and(|(_, &e)| e > start);
            result.errors += u64::from(before || end > trace.pages);
            highest = highest.max(end);
            live.insert(start, end);
        }
        if index >= trace.warm.len() && (index - trace.warm.len()) % step == step - 1 {
            result.fragmentation += fragmentation(&live, trace.pages) / 20.0;
        }
    }
    result.high_water = highest as f64 / trace.pages as f64;
    result
}

fn fragmentation(live: &BTreeMap<u64, u64>, pages: u64) -> f64 {
    let (mut at, mut largest, mut free) = (0, 0, 0);
    for (&start, &end) in live.iter().chain([(&pages, &pages)]) {
        let hole = start.saturating_sub(at);
        free += hole;
        largest = largest.max(hole);
        at = at.max(end);
    }
    if free == 0 {
        0.0
    } else {
        1.0 - largest as f64 / free as f64
    }
}

/// Utilisation at which the first allocation fails.
pub(crate) fn fill<P: Peer>(
    pages: u64,
    mut draw: impl FnMut() -> u32,
    mut pick: impl FnMut(u64) -> u64,
) -> f64 {
    let trace = Trace {
        name: String::new(),
        pages,
        slots: 1 << 20,
        warm: vec![],
        ops: vec![],
    };
    let mut peer = P::new(&trace);
    let mut live: Vec<(P::Live, u32)> = Vec::new();
    let mut used = 0;
    for level in 50..=100 {
        let limit = pages * level / 100;
        for _ in 0..20_000 {
            let size = draw();
            while used + u64::from(size) > limit && !live.is_empty() {
                let index = pick(live.len() as u64) as usize;
                let (old, old_pages) = live.swap_remove(index);
                peer.free(old, old_pages);
                used -= u64::from(old_pages);
            }
            let op = Op {
                slot: 0,
                pages: size,
                align: 1,
                flags: 0,
            };
            match peer.alloc(op) {
                Some(new) => live.push((new, size)),
                None => return used as f64 / pages as f64,
            }
            used += u64::from(size);
        }
    }
    1.0
}

#[repr(C)]
struct MallInfo {
    arena: usize,
    ordblks: usize,
    smblks: usize,
    hblks: usize,
    hblkhd: usize,
    usmblks: usize,
    fsmblks: usize,
    uordblks: usize,
    fordblks: usize,
    keepcost: usize,
}

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    fn mallinfo2() -> MallInfo;
}

/// Bytes handed out by the C allocator, to Rust and C++ peers alike.
pub(crate) fn malloc_bytes() -> usize {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the function takes nothing and returns a plain record by value.
        let info = unsafe { mallinfo2() };
        info.uordblks + info.hblkhd
    }
    #[cfg(not(target_env = "gnu"))]
    {
        0
    }
}
