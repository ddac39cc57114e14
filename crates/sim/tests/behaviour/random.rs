//! Random histories with faults, against a model that is a list of byte vectors.

use vrampager_addr::{Span, Va};
use vrampager_hal::{
    Access, ChannelId, ChannelKind, Counters, CpuMapping, DeviceId, Discovery, Fence, Gpu, GpuMap,
    HalError, Heap, MemId, Op, TimelineId,
};
use vrampager_sim::{Call, Injection, SimDevice, Simulator};

use crate::bench::{PAGE, TIMEOUT};

const STEPS: u64 = 200;

/// xorshift64* (Vigna, 2016), independent of the simulator's generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }

    fn pick(&mut self, len: usize) -> usize {
        usize::try_from(self.roll(len as u64)).unwrap()
    }
}

/// An object mapped everywhere, and the bytes it has to hold.
struct Object {
    mem: MemId,
    heap: Heap,
    span: Span,
    cpu: CpuMapping,
    bytes: Vec<u8>,
}

struct World {
    device: SimDevice,
    gpu: Gpu,
    dice: Dice,
    channel: ChannelId,
    timeline: TimelineId,
    value: u64,
    next: u64,
    objects: Vec<Object>,
}

impl World {
    fn step(&mut self) {
        match self.dice.roll(12) {
            0..=3 => self.create(),
            4 => self.destroy(),
            5 => self.write(),
            6 => self.inject(),
            _ => self.submit(),
        }
        self.check_counters();
    }

    /// Makes an object layer by layer; a failure takes back the layers below.
    fn create(&mut self) {
        let heap = [Heap::Vram, Heap::Host][self.dice.pick(2)];
        let len = (1 + self.dice.roll(8)) * PAGE;
        let (memory, release) = (&self.gpu.memory, &self.gpu.release);
        let Ok(mem) = memory.create(heap, len) else {
            return;
        };
        let span = Span::new(self.next, len).unwrap();
        let map = GpuMap {
            va: Va(span.start()),
            mem,
            offset: 0,
            len,
            access: Access::Write,
        };
        // The model's undo: steps done so far are taken back, unless that is what fails.
        let mut done = 0;
        let cpu = (|| {
            memory.reserve_va(span)?;
            done = 1;
            memory.map_gpu(map)?;
            done = 2;
            memory.map_cpu(mem, 0, len)
        })();
        let Ok(cpu) = cpu else {
            if done == 2 {
                until_done(|| release.unmap_gpu(span));
            }
            if done >= 1 {
                until_done(|| release.release_va(span));
            }
            until_done(|| release.destroy(mem));
            return;
        };
        self.next += len + PAGE;
        let mut bytes = vec![0; usize::try_from(len).unwrap()];
        if heap == Heap::Vram {
            cpu.read(0, &mut bytes);
        }
        self.objects.push(Object {
            mem,
            heap,
            span,
            cpu,
            bytes,
        });
    }

    fn destroy(&mut self) {
        if self.objects.is_empty() {
            return;
        }
        let object = self.objects.swap_remove(self.dice.pick(self.objects.len()));
        let release = &self.gpu.release;
        until_done(|| release.unmap_cpu(object.cpu.id()));
        until_done(|| release.unmap_gpu(object.span));
        until_done(|| release.release_va(object.span));
        until_done(|| release.destroy(object.mem));
    }

    fn write(&mut self) {
        if self.objects.is_empty() {
            return;
        }
        let n = self.dice.pick(self.objects.len());
        let byte = u8::try_from(self.dice.roll(256)).unwrap();
        let object = &mut self.objects[n];
        let at = self.dice.pick(object.bytes.len());
        object.bytes[at..].fill(byte);
        object.cpu.write(at as u64, &object.bytes[at..]);
    }

    fn inject(&mut self) {
        let nth = 1 + self.dice.roll(4);
        self.device.inject(match self.dice.roll(4) {
            0 => Injection::StopCopy {
                nth,
                after_bytes: self.dice.roll(2 * PAGE),
            },
            _ => Injection::FailCall {
                call: Call::ALL[self.dice.pick(Call::ALL.len())],
                nth,
            },
        });
    }

    /// One copy or fill between random places; the model follows what the device reports.
    fn submit(&mut self) {
        if self.objects.len() < 2 {
            return;
        }
        let from = self.dice.pick(self.objects.len());
        let to = (from + 1 + self.dice.pick(self.objects.len() - 1)) % self.objects.len();
        let most = self.objects[from]
            .bytes
            .len()
            .min(self.objects[to].bytes.len());
        let len = 1 + self.dice.pick(most);
        let from_at = self.dice.pick(self.objects[from].bytes.len() - len + 1);
        let to_at = self.dice.pick(self.objects[to].bytes.len() - len + 1);
        let dst = Va(self.objects[to].span.start() + to_at as u64);
        let copy = Op::Copy {
            src: Va(self.objects[from].span.start() + from_at as u64),
            dst,
            len: len as u64,
        };
        self.value += 1;
        let fence = Fence {
            timeline: self.timeline,
            value: self.value,
        };
        let ops = [copy, Op::Signal(fence)];
        if self.gpu.queue.submit(self.channel, &ops).is_err() {
            return;
        }
        let copied = match self.gpu.queue.wait(fence, TIMEOUT) {
            Ok(()) => len,
            Err(HalError::Fault(fault)) => {
                self.replace_channel();
                let (va, _) = fault.at.unwrap();
                usize::try_from(va.0 - dst.0).unwrap()
            }
            Err(other) => panic!("{other}"),
        };
        let bytes = self.objects[from].bytes[from_at..from_at + copied].to_vec();
        self.objects[to].bytes[to_at..to_at + copied].copy_from_slice(&bytes);
        let target = &self.objects[to];
        let mut seen = vec![0; target.bytes.len()];
        target.cpu.read(0, &mut seen);
        assert!(seen == target.bytes, "bytes differ after {copy:?}");
    }

    fn replace_channel(&mut self) {
        let (queue, release) = (&self.gpu.queue, &self.gpu.release);
        until_done(|| release.destroy_channel(self.channel));
        self.channel = until_done(|| queue.create_channel(ChannelKind::Compute));
    }

    fn check_counters(&self) {
        let bytes = |heap: Option<Heap>| -> u64 {
            let objects = self
                .objects
                .iter()
                .filter(|o| heap.is_none_or(|h| h == o.heap));
            objects.map(|object| object.span.len()).sum()
        };
        let count = self.objects.len() as u64;
        let wanted = Counters {
            objects: count,
            mappings: 2 * count,
            ranges: count,
            va_bytes: bytes(None),
            pages: bytes(None) / PAGE,
            pinned: 0,
            channels: 1,
            timelines: 1,
        };
        assert_eq!(self.gpu.release.counters(), wanted);
        assert!(bytes(Some(Heap::Vram)) <= self.gpu.info.vram_bytes);
    }

    fn check_bytes(&self) {
        for object in &self.objects {
            let mut seen = vec![0; object.bytes.len()];
            object.cpu.read(0, &mut seen);
            assert!(seen == object.bytes, "{:?} has other bytes", object.mem);
        }
    }
}

/// Repeats a call that an injected fault may refuse. Each fault happens once, and there are fewer
/// than steps.
fn until_done<T>(call: impl Fn() -> Result<T, HalError>) -> T {
    let done = (0..STEPS).find_map(|_| call().ok());
    done.expect("injected faults come to an end")
}

/// Runs one history to its end; the hash of its events.
fn history(mode: &str, seed: u64) -> u64 {
    let config = format!("vram=256K,bar=128K,host=512K,mode={mode},seed={seed}");
    let sim = Simulator::new(config.parse().unwrap()).unwrap();
    let gpu = sim.open(DeviceId(0)).unwrap();
    let mut world = World {
        device: sim.device(DeviceId(0)).unwrap().clone(),
        dice: Dice(seed + 1),
        channel: gpu.queue.create_channel(ChannelKind::Copy).unwrap(),
        timeline: gpu.queue.create_timeline().unwrap(),
        value: 0,
        next: 1 << 20,
        objects: Vec::new(),
        gpu,
    };
    for _ in 0..STEPS {
        world.step();
    }
    world.check_bytes();
    while !world.objects.is_empty() {
        world.destroy();
    }
    let release = &world.gpu.release;
    until_done(|| release.destroy_channel(world.channel));
    until_done(|| release.destroy_timeline(world.timeline));
    assert_eq!(release.close(), Counters::default());
    world.device.event_hash()
}

#[test]
fn random_histories_with_faults_keep_every_byte_and_leak_nothing() {
    for seed in 0..200 {
        let hash = history("deterministic", seed);
        assert_eq!(
            hash,
            history("deterministic", seed),
            "seed {seed} does not repeat"
        );
    }
}

#[test]
fn random_histories_keep_every_byte_with_engine_threads_too() {
    for seed in 0..50 {
        history("threaded", seed);
    }
}
