//! What `cargo xtask compare-tinygrad` has tinygrad do, done by this back end: the same work on
//! the same driver, measured the same way. Prints one JSON object.
//!
//! ```text
//! side_by_side [DEVICE [ROUNDS [SECONDS]]]
//! ```
//!
//! DEVICE is what follows `nv:` in a device string: two GPUs or more. Real ones may be those of the
//! simulated driver in front of the program, as `vrampager sim-driver` puts it there. The program
//! fails if a byte is wrong after a copy between them, or if memory does not run out as it should.
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
/// Counters of what is alive, of which a failed allocation may leave nothing.
const ALIVE: [&str; 12] = [
    "clients",
    "objects",
    "memories",
    "pins",
    "cpu_maps",
    "dma_maps",
    "uvm_maps",
    "uvm_ranges",
    "vaspaces",
    "channels",
    "vram_bytes",
    "bar1_bytes",
];
const LONG: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let device = args
        .next()
        .unwrap_or_else(|| "sim,gpus=2,vram=4G".to_owned());
    let rounds = args.next().map_or(Ok(1000), |text| text.parse())?;
    let seconds = args.next().map_or(Ok(0.2), |text| text.parse())?;
    let nv = Nv::new(device.parse()?, &Planes::default())?;
    let mut user = User::new(&nv, DeviceId(0))?;
    let mut other = User::new(&nv, DeviceId(1))?;

    let between = user.copy_to_and_from(&mut other)?;
    let until_full = other.fill()?;
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
         \"mismatches\": {mismatches}}}, \"gib_until_full\": {until_full}, \
         \"bytes_between_gpus\": {between}, \"speed\": {{\"alloc_free_us\": {alloc_us:.3}, \
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
    fn new(nv: &'a Arc<Nv>, id: DeviceId) -> Result<Self, Box<dyn Error>> {
        let gpu = nv.open(id)?;
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
        free(&self.gpu, &mut self.space, buffer)
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

    /// Bytes from this device's memory to another's and back, each way by the engine of the source;
    /// how many were copied and came back right.
    fn copy_to_and_from(&mut self, other: &mut Self) -> Result<u64, Box<dyn Error>> {
        let (mut random, mut total) = (Random(2), 0);
        for len in [4 * KIB, 3 * MIB + 17, 16 * MIB] {
            let room = len.next_multiple_of(4 * KIB);
            let here = self.alloc(Heap::Vram, room)?;
            let there = other.alloc(Heap::Vram, room)?;
            let bytes = random.bytes(len);
            self.copy_in(&here, &bytes)?;
            self.copy_to_peer(&here, other, &there, len)?;
            let mut seen = vec![0; bytes.len()];
            other.copy_out(&there, &mut seen)?;
            // Other bytes, so that what was there before proves nothing.
            self.copy_in(&here, &random.bytes(len))?;
            self.wait(self.last)?;
            other.copy_to_peer(&there, self, &here, len)?;
            let mut back = vec![0; bytes.len()];
            self.copy_out(&here, &mut back)?;
            if seen != bytes || back != bytes {
                return Err(format!("{len} bytes between GPUs are wrong").into());
            }
            total += 2 * len;
            self.free(here)?;
            other.free(there)?;
        }
        Ok(total)
    }

    /// Copies to memory of a peer, which this device sees at the peer's own address meanwhile.
    fn copy_to_peer(
        &mut self,
        from: &Buffer,
        peer: &Self,
        to: &Buffer,
        len: u64,
    ) -> Result<(), HalError> {
        let shared = self.gpu.memory.share(peer.gpu.info.id, to.mem)?;
        let seen = map(&self.gpu, shared, to.span)?;
        let done = self.submit(from.span.start(), to.span.start(), len)?;
        self.wait(done)?;
        unmap(&self.gpu, seen)
    }

    /// Buffers of 1 GiB until memory is full: the error says so, everything can be freed, nothing
    /// is left of it, and the memory can be had again. How many there were.
    fn fill(&mut self) -> Result<usize, Box<dyn Error>> {
        let before = self.held()?;
        let zone = self.gpu.info.zones.last();
        let mut space = RangeAllocator::new(zone.ok_or("the device has no addresses")?.span);
        let most = self.gpu.info.vram_bytes / GIB + 1;
        let fill = |space: &mut RangeAllocator| {
            let mut held = Vec::new();
            for _ in 0..most {
                match allocate(&self.gpu, space, Heap::Vram, GIB) {
                    Ok(buffer) => held.push(buffer),
                    Err(error) => return Ok((held, error)),
                }
            }
            Err(format!("{most} GiB fit the memory of the device"))
        };
        let mut counts = [0; 2];
        for count in &mut counts {
            let (held, error) = fill(&mut space)?;
            *count = held.len();
            for buffer in held {
                free(&self.gpu, &mut space, buffer)?;
            }
            let HalError::OutOfMemory {
                heap: Heap::Vram,
                needed: Some(GIB),
                free: Some(..GIB),
                ..
            } = error
            else {
                return Err(format!("memory was to run out, not: {error}").into());
            };
            let after = self.held()?;
            if after != before || space.holes().count() != 1 {
                return Err(format!("{before:?} before memory ran out, {after:?} after").into());
            }
        }
        if counts[0] != counts[1] {
            return Err(format!("{counts:?} buffers until memory was full").into());
        }
        Ok(counts[0])
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

    /// What is alive in the driver, by name.
    fn held(&self) -> Result<BTreeMap<String, i64>, Box<dyn Error>> {
        let mut counters = self.counters()?;
        counters.retain(|name, _| ALIVE.contains(&name.as_str()));
        assert_eq!(
            counters.len(),
            ALIVE.len(),
            "the driver counts all of these"
        );
        Ok(counters)
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

/// Memory, mapped at addresses of its own; none of it if there is an error.
fn allocate(
    gpu: &Gpu,
    space: &mut RangeAllocator,
    heap: Heap,
    len: u64,
) -> Result<Buffer, HalError> {
    let mem = gpu.memory.create(heap, len)?;
    let span = space.insert(&RangeRequest::new(len).mode(Mode::Low));
    let span = span.expect("a device has more addresses than this program takes");
    map(gpu, mem, span).inspect_err(|_| {
        space.remove(span.start());
    })
}

/// Maps an object at addresses; it goes if there is an error.
fn map(gpu: &Gpu, mem: MemId, span: Span) -> Result<Buffer, HalError> {
    let request = GpuMap {
        va: Va(span.start()),
        mem,
        offset: 0,
        len: span.len(),
        access: Access::Write,
    };
    let mapped = gpu.memory.reserve_va(span).and_then(|()| {
        let mapped = gpu.memory.map_gpu(request);
        // The first error is the one to report; what is left of a failed undoing is counted.
        mapped.inspect_err(|_| drop(gpu.release.release_va(span)))
    });
    match mapped {
        Ok(()) => Ok(Buffer { mem, span }),
        Err(error) => {
            drop(gpu.release.destroy(mem));
            Err(error)
        }
    }
}

fn free(gpu: &Gpu, space: &mut RangeAllocator, buffer: Buffer) -> Result<(), HalError> {
    let start = buffer.span.start();
    unmap(gpu, buffer)?;
    space.remove(start);
    Ok(())
}

fn unmap(gpu: &Gpu, buffer: Buffer) -> Result<(), HalError> {
    gpu.release.unmap_gpu(buffer.span)?;
    gpu.release.release_va(buffer.span)?;
    gpu.release.destroy(buffer.mem)
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
