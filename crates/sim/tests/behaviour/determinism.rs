//! The same seed gives the same history; another seed another one.

use crate::bench::{Bench, PAGE, TIMEOUT, copy};
use vrampager_hal::{ChannelKind, Fence, Heap, Op};
use vrampager_sim::{Call, Injection};

/// Two channels racing on one buffer, with a fault on the way; the hash of what happened, and
/// who wrote last.
fn history(seed: u64) -> (u64, u8) {
    let mut bench = Bench::new(&format!("vram=1M,bar=1M,mode=deterministic,seed={seed}"));
    let call = Call::Create;
    bench.device().inject(Injection::FailCall { call, nth: 4 });
    let target = bench.buffer(Heap::Vram, PAGE);
    let source = bench.buffer(Heap::Host, PAGE);
    source.cpu.fill(0, PAGE, 1);
    let other = bench
        .gpu
        .queue
        .create_channel(ChannelKind::Compute)
        .unwrap();
    let timeline = bench.gpu.queue.create_timeline().unwrap();
    let second = Fence { timeline, value: 1 };
    let fill = Op::Fill {
        dst: target.va,
        len: PAGE,
        byte: 2,
    };
    let ops = [fill, Op::Signal(second)];
    bench.gpu.queue.submit(other, &ops).unwrap();
    let first = bench.submit(&[copy(&source, &target, PAGE)]);
    bench.gpu.queue.wait(first, TIMEOUT).unwrap();
    bench.gpu.queue.wait(second, TIMEOUT).unwrap();
    let mut last = [0];
    target.cpu.read(0, &mut last);
    (bench.device().event_hash(), last[0])
}

#[test]
fn a_seed_repeats_its_history() {
    for seed in 0..50 {
        assert_eq!(history(seed), history(seed), "seed {seed}");
    }
}

#[test]
fn calls_are_part_of_the_history() {
    let bench = Bench::new("vram=1M,mode=deterministic");
    let before = bench.device().event_hash();
    bench.gpu.memory.create(Heap::Host, PAGE).unwrap();
    assert_ne!(bench.device().event_hash(), before);
}

#[test]
fn seeds_differ_in_the_order_of_independent_work() {
    let winners: Vec<u8> = (0..50).map(|seed| history(seed).1).collect();
    assert!(winners.contains(&1) && winners.contains(&2), "{winners:?}");
}
