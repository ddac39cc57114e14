//! What `cargo xtask compare-tinygrad` has tinygrad do, done by this back end: the same work on
//! the same driver, measured the same way. Prints one JSON object.
//!
//! ```text
//! side_by_side [DEVICE [ROUNDS [SECONDS]]]
//! ```
//!
//! DEVICE is what follows `nv:` in a device string. A real one may be the simulated driver in
//! front of the program, as `vrampager sim-driver` puts it there.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vrampager_addr::{Span, Va};
use vrampager_hal::{
    Access, ChannelId, ChannelKind, CpuMapping, DeviceId, Discovery, Fence, Gpu, GpuMap, HalError,
    Heap, MemId, Op,
};
use vrampager_nv::{Nv, Planes};
use vrampager_space::{Mode, RangeAllocator, RangeRequest};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// What goes to the device in one piece, and how many pieces may be on their way.
const PIECE: usize = 2 << 20;
const PIECES: usize = 8;
const LONG: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let device = args.next().unwrap_or_else(|| "sim,vram=4G".to_owned());
    let rounds = args.next().map_or(Ok(1000), |text| text.parse())?;
    let seconds = args.next().map_or(Ok(0.2), |text| text.parse())?;
    let nv = Nv::new(device.parse()?, &Planes::default())?;
    let mut user = User::new(&nv)?;

    let (ops, mismatches) = user.stress(Duration::from_secs_f64(seconds))?;
    let (alloc_us, ioctls) = user.measure_alloc()?;
    let latency_us = user.measure_copy(4 * KIB, 500)? * 1e6;
    let throughput = 64.0 * 1048576.0 / user.measure_copy(64 * MIB, 5)? / 1e9;
    let before = user.counters()?;
    user.host_rounds(1000)?;
    user.visible_rounds(rounds)?;
    let after = user.counters()?;

    let left = |names: &[&str]| -> i64 {
        let count = |from: &BTreeMap<String, i64>| -> i64 {
            names.iter().map(|name| from.get(*name).unwrap_or(&0)).sum()
        };
        count(&after) - count(&before)
    };
    let (handles, pins) = (left(&["objects"]), left(&["pins"]));
    let mappings = left(&["cpu_maps", "dma_maps", "uvm_maps", "uvm_ranges"]);
    let holes = user.space.holes().count();
    println!(
        "{{\"rounds\": {rounds}, \"holes\": {holes}, \"leaks\": {{\"objects\": {handles}, \
         \"pins\": {pins}, \"mappings\": {mappings}}}, \"stress\": {{\"ops\": {ops}, \
         \"mismatches\": {mismatches}}}, \"speed\": {{\"alloc_free_us\": {alloc_us:.3}, \
         \"ioctls_per_alloc_free\": {ioctls:.3}, \"copy_4k_us\": {latency_us:.3}, \
         \"copy_64m_gb_per_s\": {throughput:.3}}}}}"
    );
    Ok(())
}

/// Memory that the GPU sees.
struct Buffer {
    mem: MemId,
    span: Span,
}

/// A device with its addresses, a channel, and host memory that bytes go through.
struct User<'a> {
    nv: &'a Nv,
    gpu: Gpu,
    space: RangeAllocator,
    channel: ChannelId,
    /// The last point given to the channel.
    last: Fence,
    staging: Buffer,
    view: CpuMapping,
    /// When each piece of the staging memory is free again.
    pieces: [Fence; PIECES],
    next: usize,
}

impl<'a> User<'a> {
    fn new(nv: &'a Arc<Nv>) -> Result<Self, Box<dyn Error>> {
        let gpu = nv.open(DeviceId(0))?;
        let zone = gpu
            .info
            .zones
            .first()
            .ok_or("the device has no addresses")?;
        let mut space = RangeAllocator::new(zone.span);
        let channel = gpu.queue.create_channel(ChannelKind::Copy)?;
        let timeline = gpu.queue.create_timeline()?;
        let last = Fence { timeline, value: 0 };
        let bytes = (PIECE * PIECES) as u64;
        let staging = allocate(&gpu, &mut space, Heap::Host, bytes)?;
        let view = gpu.memory.map_cpu(staging.mem, 0, bytes)?;
        Ok(Self {
            nv,
            gpu,
            space,
            channel,
            last,
            staging,
            view,
            pieces: [last; PIECES],
            next: 0,
        })
    }

    fn alloc(&mut self, heap: Heap, bytes: u64) -> Result<Buffer, HalError> {
        allocate(&self.gpu, &mut self.space, heap, bytes)
    }

    fn free(&mut self, buffer: Buffer) -> Result<(), HalError> {
        let release = &self.gpu.release;
        release.unmap_gpu(buffer.span)?;
        release.release_va(buffer.span)?;
        release.destroy(buffer.mem)?;
        self.space.remove(buffer.span.start());
        Ok(())
    }

    /// Gives the channel a copy; the fence is reached when it is done.
    fn submit(&mut self, src: u64, dst: u64, len: u64) -> Result<Fence, HalError> {
        self.last.value += 1;
        let (src, dst) = (Va(src), Va(dst));
        let ops = [Op::Copy { src, dst, len }, Op::Signal(self.last)];
        self.gpu.queue.submit(self.channel, &ops)?;
        Ok(self.last)
    }

    fn wait(&self, fence: Fence) -> Result<(), HalError> {
        self.gpu.queue.wait(fence, LONG)
    }

    /// A piece of the staging memory that the device is done with.
    fn piece(&mut self) -> Result<(usize, u64), HalError> {
        let piece = self.next;
        self.next = (piece + 1) % PIECES;
        self.wait(self.pieces[piece])?;
        Ok((piece, (piece * PIECE) as u64))
    }

    /// Starts to copy bytes in; the device may still be at it afterwards.
    fn copy_in(&mut self, to: &Buffer, bytes: &[u8]) -> Result<(), HalError> {
        let mut at = to.span.start();
        for part in bytes.chunks(PIECE) {
            let (piece, offset) = self.piece()?;
            self.view.write(offset, part);
            let len = part.len() as u64;
            self.pieces[piece] = self.submit(self.staging.span.start() + offset, at, len)?;
            at += len;
        }
        Ok(())
    }

    fn copy_out(&mut self, from: &Buffer, bytes: &mut [u8]) -> Result<(), HalError> {
        let mut at = from.span.start();
        for part in bytes.chunks_mut(PIECE) {
            let (piece, offset) = self.piece()?;
            let len = part.len() as u64;
            let done = self.submit(at, self.staging.span.start() + offset, len)?;
            self.pieces[piece] = done;
            self.wait(done)?;
            self.view.read(offset, part);
            at += len;
        }
        Ok(())
    }

    /// Random allocations, copies and frees, each byte compared with what was written last.
    fn stress(&mut self, time: Duration) -> Result<(u64, u64), HalError> {
        let (mut random, mut held) = (Random(1), Vec::<(Buffer, Vec<u8>)>::new());
        let (mut ops, mut mismatches) = (0, 0);
        let end = Instant::now() + time;
        while Instant::now() < end {
            ops += 1;
            let action = random.below(10);
            if held.is_empty() || (action < 3 && held.len() < 24) {
                let heap = [Heap::Vram, Heap::Host][random.index(2)];
                let most = [64 * KIB, 4 * MIB, 8 * MIB][random.index(3)];
                let len = 1 + random.below(most);
                let buffer = self.alloc(heap, len.next_multiple_of(4 * KIB))?;
                let bytes = random.bytes(len);
                self.copy_in(&buffer, &bytes)?;
                held.push((buffer, bytes));
                continue;
            }
            let index = random.index(held.len());
            if action < 6 {
                let (buffer, bytes) = &mut held[index];
                *bytes = random.bytes(bytes.len() as u64);
                self.copy_in(buffer, bytes)?;
                continue;
            }
            let (buffer, bytes) = &held[index];
            let mut seen = vec![0; bytes.len()];
            self.copy_out(buffer, &mut seen)?;
            mismatches += u64::from(seen != *bytes);
            if action >= 8 {
                let (buffer, _) = held.swap_remove(index);
                self.free(buffer)?;
            }
        }
        self.wait(self.last)?;
        for (buffer, _) in held {
            self.free(buffer)?;
        }
        Ok((ops, mismatches))
    }

    /// Microseconds and requests of allocating 1 MiB of device memory and freeing it.
    fn measure_alloc(&mut self) -> Result<(f64, f64), Box<dyn Error>> {
        const TIMES: u16 = 200;
        let before = self.counters()?;
        let seconds = median(TIMES.into(), || {
            let buffer = self.alloc(Heap::Vram, MIB)?;
            self.free(buffer)
        })?;
        let after = self.counters()?;
        let requests = u32::try_from(after["ioctls"] - before["ioctls"])?;
        Ok((seconds * 1e6, f64::from(requests) / f64::from(TIMES)))
    }

    /// Seconds until bytes are in device memory.
    fn measure_copy(&mut self, bytes: u64, times: usize) -> Result<f64, HalError> {
        let buffer = self.alloc(Heap::Vram, bytes)?;
        let data = vec![1; usize::try_from(bytes).expect("64 MiB at most")];
        let seconds = median(times, || {
            self.copy_in(&buffer, &data)?;
            self.wait(self.last)
        })?;
        self.free(buffer)?;
        Ok(seconds)
    }

    fn host_rounds(&mut self, rounds: u32) -> Result<(), HalError> {
        for _ in 0..rounds {
            let buffer = self.alloc(Heap::Host, 4 * KIB)?;
            self.free(buffer)?;
        }
        Ok(())
    }

    /// Rounds of {allocate 1 GiB that the CPU sees too, free}.
    fn visible_rounds(&mut self, rounds: u32) -> Result<(), HalError> {
        for _ in 0..rounds {
            let buffer = self.alloc(Heap::Vram, GIB)?;
            let view = self.gpu.memory.map_cpu(buffer.mem, 0, GIB)?;
            self.gpu.release.unmap_cpu(view.id())?;
            self.free(buffer)?;
        }
        Ok(())
    }

    /// What is alive in the driver and has happened there, by name.
    fn counters(&self) -> Result<BTreeMap<String, i64>, Box<dyn Error>> {
        let text = match self.nv.simulated() {
            Some(driver) => format!("{}{}", driver.live(), driver.counted()),
            None => std::fs::read_to_string("/proc/driver/vrampager/counters")?,
        };
        let mut counters = BTreeMap::new();
        for line in text.lines() {
            let (name, value) = line.split_once(' ').ok_or("a line without a value")?;
            counters.insert(name.to_owned(), value.parse()?);
        }
        Ok(counters)
    }
}

fn allocate(
    gpu: &Gpu,
    space: &mut RangeAllocator,
    heap: Heap,
    len: u64,
) -> Result<Buffer, HalError> {
    let request = RangeRequest::new(len).mode(Mode::Low);
    let span = space.insert(&request);
    let span = span.expect("64 GiB of addresses are more than this takes");
    let mem = gpu.memory.create(heap, len)?;
    gpu.memory.reserve_va(span)?;
    gpu.memory.map_gpu(GpuMap {
        va: Va(span.start()),
        mem,
        offset: 0,
        len,
        access: Access::Write,
    })?;
    Ok(Buffer { mem, span })
}

/// Median time of an action, in seconds.
fn median(times: usize, mut action: impl FnMut() -> Result<(), HalError>) -> Result<f64, HalError> {
    let mut taken = Vec::with_capacity(times);
    for _ in 0..times {
        let start = Instant::now();
        action()?;
        taken.push(start.elapsed().as_secs_f64());
    }
    taken.sort_by(f64::total_cmp);
    Ok(taken[times / 2])
}

/// Xorshift: the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).expect("below a length")
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let words = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        let len = usize::try_from(len).expect("a few MiB");
        words.take(len).collect()
    }
}
