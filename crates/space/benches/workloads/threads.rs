//! W7: two threads, over one lock or over two shards.

use std::sync::{Barrier, Mutex};
use std::time::Instant;

use crate::peers::{Offset, Peer, SubFast};
use crate::traces::{self, Op, Trace};

/// Keeps the shards of two threads off each other's cache lines.
#[repr(align(256))]
struct Shard<P>(Mutex<P>);

/// Millions of operations per second of `threads` threads over `shards`.
fn rate<P: Peer + Send>(trace: &Trace, threads: usize, shards: usize) -> f64
where
    P::Live: Send,
{
    let shards: Vec<Shard<P>> = (0..shards)
        .map(|_| Shard(Mutex::new(P::new(trace))))
        .collect();
    let barrier = Barrier::new(threads);
    let work = |id: usize| {
        let shard = &shards[id % shards.len()].0;
        let mut slots: Vec<Option<(P::Live, u32)>> = vec![None; trace.slots];
        let mut apply = |op: Op| {
            let slot = &mut slots[op.slot as usize];
            let mut peer = shard.lock().expect("no peer panics");
            match (op.pages, slot.take()) {
                (0, Some((live, pages))) => peer.free(live, pages),
                (0, None) => {}
                (pages, _) => *slot = peer.alloc(op).map(|live| (live, pages)),
            }
        };
        trace.warm.iter().for_each(|&op| apply(op));
        barrier.wait();
        let start = Instant::now();
        trace.ops.iter().for_each(|&op| apply(op));
        start.elapsed().as_secs_f64()
    };
    let slowest = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|id| scope.spawn(move || work(id)))
            .collect();
        let seconds = handles
            .into_iter()
            .map(|handle| handle.join().expect("no panic"));
        seconds.fold(0.0, f64::max)
    });
    (trace.ops.len() * threads) as f64 / slowest / 1e6
}

fn row<P: Peer + Send>(trace: &Trace) -> f64
where
    P::Live: Send,
{
    let best = |threads, shards| {
        (0..3)
            .map(|_| rate::<P>(trace, threads, shards))
            .fold(0.0, f64::max)
    };
    let (one, shared, sharded) = (best(1, 1), best(2, 1), best(2, 2));
    println!(
        "W7           {:<24} Mops/s 1 thread {one:.1}, 2 threads 1 lock {shared:.1}, \
         2 shards {sharded:.1}",
        P::NAME
    );
    sharded / one
}

pub(crate) fn w7(pairs: usize) {
    let trace = Trace {
        slots: 50_000,
        ..traces::w1(50_000, pairs)
    };
    let scaling = row::<SubFast>(&trace);
    row::<Offset>(&trace);
    let verdict = if scaling >= 1.9 { "ok" } else { "MISS" };
    println!("scaling W7 2 shards vs 1 thread {scaling:.2} target 1.9 {verdict}");
}
