//! What a long life leaves behind.

use std::sync::Arc;
use std::time::Instant;

use vrampager_addr::{Span, Va};
use vrampager_hal::{
    Access, ChannelKind, Counters, DeviceId, Discovery, Fence, Gpu, GpuMap, HalError, Heap, Op,
};
use vrampager_nv::{Nv, Planes};
use vrampager_space::{Mode, RangeAllocator, RangeRequest};

fn nv(text: &str) -> Arc<Nv> {
    Nv::new(text.parse().unwrap(), &Planes::default()).unwrap()
}

/// One buffer of 1 GiB that CPU and GPU see, and back.
fn round(gpu: &Gpu, space: &mut RangeAllocator) -> Result<(), HalError> {
    const LEN: u64 = 1 << 30;
    let request = RangeRequest::new(LEN).mode(Mode::Low);
    let span = space.insert(&request).expect("the space is empty");
    let mem = gpu.memory.create(Heap::Vram, LEN)?;
    let map = gpu.memory.map_cpu(mem, 0, LEN)?;
    gpu.memory.reserve_va(span)?;
    gpu.memory.map_gpu(GpuMap {
        va: Va(span.start()),
        mem,
        offset: 0,
        len: LEN,
        access: Access::Write,
    })?;
    gpu.release.unmap_cpu(map.id())?;
    gpu.release.unmap_gpu(span)?;
    gpu.release.release_va(span)?;
    gpu.release.destroy(mem)?;
    space.remove(span.start());
    Ok(())
}

#[test]
fn a_hundred_thousand_rounds_of_a_gibibyte_leave_one_hole_and_nothing_in_the_driver() {
    const ROUNDS: u32 = 100_000;
    let nv = nv("sim,vram=2G,bar1=2G");
    let sim = nv.simulated().unwrap();
    let gpu = nv.open(DeviceId(0)).unwrap();
    let before = (sim.live(), sim.counted().ioctls);
    // Twenty-eight times the buffer: what one that never gives back exhausts in as many rounds.
    let zone = gpu.info.zones[0].span;
    let mut space = RangeAllocator::new(zone);
    let start = Instant::now();
    for n in 0..ROUNDS {
        round(&gpu, &mut space).unwrap_or_else(|error| panic!("round {n}: {error}"));
    }
    // Shown with --nocapture.
    let elapsed = start.elapsed();
    assert_eq!(space.holes().collect::<Vec<_>>(), [zone]);
    assert_eq!(sim.live(), before.0);
    let requests = (sim.counted().ioctls - before.1) / u64::from(ROUNDS);
    assert!(requests <= 9, "{requests} requests for each round");
    eprintln!("{ROUNDS} rounds in {elapsed:?}, {requests} requests each");
    assert!(gpu.release.close().is_zero());
}

#[test]
fn a_thousand_host_buffers_leave_no_handle_pin_or_mapping() {
    let nv = nv("sim,vram=64M");
    let sim = nv.simulated().unwrap();
    let gpu = nv.open(DeviceId(0)).unwrap();
    let before = sim.live();
    for _ in 0..1000 {
        let mem = gpu.memory.create(Heap::Host, 1 << 20).unwrap();
        let map = gpu.memory.map_cpu(mem, 0, 1 << 20).unwrap();
        gpu.release.unmap_cpu(map.id()).unwrap();
        gpu.release.destroy(mem).unwrap();
    }
    assert_eq!(sim.live(), before);
}

#[test]
fn devices_share_no_addresses_and_closing_one_leaves_the_other() {
    let nv = nv("sim,gpus=2,vram=64M");
    let gpus = [0, 1].map(|n| nv.open(DeviceId(n)).unwrap());
    let buffers = gpus.clone().map(|gpu| {
        let mem = gpu.memory.create(Heap::Vram, 4096).unwrap();
        let span = gpu.info.zones[0].span.slice(0, 4096).unwrap();
        gpu.memory.reserve_va(span).unwrap();
        gpu.memory.map_gpu(map(span, mem)).unwrap();
        (mem, span)
    });
    assert!(!buffers[0].1.overlaps(buffers[1].1));
    for (byte, gpu, (_, span)) in [(1, &gpus[0], buffers[0]), (2, &gpus[1], buffers[1])] {
        fill(gpu, span, byte);
    }
    gpus[0].release.close();
    let (mem, span) = buffers[1];
    let seen = gpus[1].memory.map_cpu(mem, 0, 4096).unwrap();
    let mut bytes = [0; 4096];
    seen.read(0, &mut bytes);
    assert_eq!(bytes, [2; 4096]);
    fill(&gpus[1], span, 3);
}

fn map(span: Span, mem: vrampager_hal::MemId) -> GpuMap {
    GpuMap {
        va: Va(span.start()),
        mem,
        offset: 0,
        len: span.len(),
        access: Access::Write,
    }
}

fn fill(gpu: &Gpu, span: Span, byte: u8) {
    run(
        gpu,
        Op::Fill {
            dst: Va(span.start()),
            len: span.len(),
            byte,
        },
    );
}

/// Runs one operation on a channel of its own.
fn run(gpu: &Gpu, op: Op) {
    let channel = gpu.queue.create_channel(ChannelKind::Copy).unwrap();
    let fence = Fence {
        timeline: gpu.queue.create_timeline().unwrap(),
        value: 1,
    };
    let ops = [op, Op::Signal(fence)];
    gpu.queue.submit(channel, &ops).unwrap();
    gpu.queue
        .wait(fence, std::time::Duration::from_secs(10))
        .unwrap();
    gpu.release.destroy_channel(channel).unwrap();
    gpu.release.destroy_timeline(fence.timeline).unwrap();
}

#[test]
fn each_channel_rings_with_its_own_token_and_is_heard_though_another_rings_at_once() {
    let nv = nv("sim,vram=64M,doorbell=strict");
    let gpu = nv.open(DeviceId(0)).unwrap();
    let channels = [0; 3].map(|_| gpu.queue.create_channel(ChannelKind::Copy).unwrap());
    let submit = |channel| {
        let timeline = gpu.queue.create_timeline().unwrap();
        let fence = Fence { timeline, value: 1 };
        gpu.queue.submit(channel, &[Op::Signal(fence)]).unwrap();
        fence
    };
    let wait = |fence| gpu.queue.wait(fence, std::time::Duration::from_secs(1));
    assert_eq!(wait(submit(channels[0])), Ok(()), "alone");
    let waited = [channels[1], channels[2]].map(submit).map(wait);
    assert_eq!(waited, [Ok(()), Ok(())]);
}

#[test]
fn a_device_dropped_without_closing_leaves_nothing_in_the_driver() {
    let nv = nv("sim,vram=64M");
    let sim = nv.simulated().unwrap();
    let before = sim.live();
    let gpu = nv.open(DeviceId(0)).unwrap();
    gpu.memory.create(Heap::Vram, 4096).unwrap();
    gpu.queue.create_channel(ChannelKind::Copy).unwrap();
    drop(gpu);
    assert_eq!(sim.live(), before);
    let gpu = nv.open(DeviceId(0)).unwrap();
    assert_eq!(gpu.release.counters(), Counters::default());
}

/// Mission row A14: `LINE_LENGTH_IN` has 32 bits, and one launch carries a GiB.
#[test]
fn a_copy_longer_than_one_launch_arrives_whole() {
    const PIECE: u64 = 64 << 20;
    const PIECES: u64 = 17;
    let nv = nv("sim,vram=512M");
    let gpu = nv.open(DeviceId(0)).unwrap();
    // Few bytes of memory, mapped again and again: only the ends are memory of their own.
    let side = |start: u64, marks: [u8; 2]| {
        let zone = gpu.info.zones[0].span;
        let span = zone.slice(start, PIECES * PIECE).unwrap();
        gpu.memory.reserve_va(span).unwrap();
        let middle = gpu.memory.create(Heap::Vram, PIECE).unwrap();
        let ends = marks.map(|_| gpu.memory.create(Heap::Vram, PIECE).unwrap());
        for n in 0..PIECES {
            let mem = match n {
                0 => ends[0],
                n if n == PIECES - 1 => ends[1],
                _ => middle,
            };
            let piece = span.slice(n * PIECE, PIECE).unwrap();
            gpu.memory.map_gpu(map(piece, mem)).unwrap();
        }
        for (end, byte) in ends.into_iter().zip(marks) {
            let shown = gpu.memory.map_cpu(end, 0, PIECE).unwrap();
            shown.fill(0, PIECE, byte);
            gpu.release.unmap_cpu(shown.id()).unwrap();
        }
        (span, ends)
    };
    let (from, _) = side(0, [1, 2]);
    let (to, ends) = side(2 << 30, [0, 0]);
    let before = nv.simulated().unwrap().counted().copies;
    run(
        &gpu,
        Op::Copy {
            src: Va(from.start()),
            dst: Va(to.start()),
            len: to.len(),
        },
    );
    assert_eq!(nv.simulated().unwrap().counted().copies - before, 2);
    for (end, byte) in ends.into_iter().zip([1, 2]) {
        let shown = gpu.memory.map_cpu(end, 0, PIECE).unwrap();
        let mut bytes = vec![0; usize::try_from(PIECE).unwrap()];
        shown.read(0, &mut bytes);
        assert!(bytes.iter().all(|&each| each == byte), "{byte}");
        gpu.release.unmap_cpu(shown.id()).unwrap();
    }
}
