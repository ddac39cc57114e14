//! What the copy engine makes of the machine's memory: its throughput beside plain `memcpy`, and
//! the time to open a device. `cargo bench -p vrampager-sim`.
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use vrampager_addr::{Size, Span, Va};
use vrampager_hal::{
    Access, ChannelKind, DeviceId, Discovery, Fence, Gpu, GpuMap, HalError, Heap, Op,
};
use vrampager_sim::Simulator;

const ROUNDS: u64 = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let sim = Simulator::new("vram=256M,bar=64M".parse()?)?;
    let start = Instant::now();
    let gpu = sim.open(DeviceId(0))?;
    println!("open vram=256M: {:?}", start.elapsed());
    println!(
        "{:>10} {:>12} {:>12} {:>6}",
        "size", "memcpy GB/s", "engine GB/s", "ratio"
    );
    for len in [64 << 10, 1 << 20, 16 << 20, 64 << 20] {
        let plain = gigabytes_per_second(len, memcpy(len)?);
        let engine = gigabytes_per_second(len, engine(&gpu, len)?);
        let size = Size(len).to_string();
        println!(
            "{size:>10} {plain:>12.1} {engine:>12.1} {:>6.2}",
            engine / plain
        );
    }
    gpu.release.close();
    Ok(())
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a measured speed has few digits"
)]
fn gigabytes_per_second(len: u64, median: Duration) -> f64 {
    len as f64 / median.as_secs_f64() / 1e9
}

/// The median of several runs of `body`; the first, which touches memory, is not counted.
fn median(mut body: impl FnMut() -> Result<(), HalError>) -> Result<Duration, HalError> {
    let mut times = Vec::new();
    for _ in 0..=ROUNDS {
        let start = Instant::now();
        body()?;
        times.push(start.elapsed());
    }
    times.remove(0);
    times.sort();
    Ok(times[times.len() / 2])
}

fn memcpy(len: u64) -> Result<Duration, Box<dyn Error>> {
    let len = usize::try_from(len)?;
    let src = vec![1_u8; len];
    let mut dst = vec![0_u8; len];
    let time = median(|| {
        black_box(&mut dst).copy_from_slice(black_box(&src));
        Ok(())
    })?;
    Ok(time)
}

/// Host memory to device memory through a channel, submission and wait included.
fn engine(gpu: &Gpu, len: u64) -> Result<Duration, HalError> {
    let mut next = 1 << 30;
    let mut mapped = |heap| {
        let mem = gpu.memory.create(heap, len)?;
        let span = Span::new(next, len).expect("far below the end of the space");
        next = span.end();
        gpu.memory.reserve_va(span)?;
        let va = Va(span.start());
        let access = Access::Write;
        gpu.memory.map_gpu(GpuMap {
            va,
            mem,
            offset: 0,
            len,
            access,
        })?;
        Ok::<_, HalError>((mem, span))
    };
    let buffers = [mapped(Heap::Host)?, mapped(Heap::Vram)?];
    let [src, dst] = buffers.map(|(_, span)| Va(span.start()));
    let channel = gpu.queue.create_channel(ChannelKind::Copy)?;
    let timeline = gpu.queue.create_timeline()?;
    let fill = Op::Fill {
        dst: src,
        len,
        byte: 1,
    };
    let mut value = 0;
    let mut run = |op| {
        value += 1;
        let fence = Fence { timeline, value };
        gpu.queue.submit(channel, &[op, Op::Signal(fence)])?;
        gpu.queue.wait(fence, Duration::from_secs(10))
    };
    run(fill)?;
    let time = median(|| run(Op::Copy { src, dst, len }))?;
    for (mem, span) in buffers {
        gpu.release.unmap_gpu(span)?;
        gpu.release.release_va(span)?;
        gpu.release.destroy(mem)?;
    }
    gpu.release.destroy_channel(channel)?;
    gpu.release.destroy_timeline(timeline)?;
    Ok(time)
}
