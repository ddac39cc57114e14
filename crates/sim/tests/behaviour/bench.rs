//! A device with as much of it set up as the tests beside this file need.

use std::sync::Arc;
use std::time::Duration;

use vrampager_addr::{Span, Va};
use vrampager_hal::{
    Access, ChannelId, ChannelKind, CpuMapping, DeviceId, Discovery, Fence, Gpu, GpuMap, Heap,
    MemId, Op, TimelineId,
};
use vrampager_sim::{SimDevice, Simulator};

pub(crate) const PAGE: u64 = 4096;
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct Bench {
    pub(crate) sim: Arc<Simulator>,
    pub(crate) gpu: Gpu,
    pub(crate) channel: ChannelId,
    pub(crate) timeline: TimelineId,
    pub(crate) value: u64,
    next: u64,
}

#[derive(Clone)]
pub(crate) struct Buffer {
    pub(crate) mem: MemId,
    pub(crate) va: Va,
    pub(crate) span: Span,
    pub(crate) cpu: CpuMapping,
}

impl Bench {
    pub(crate) fn new(config: &str) -> Self {
        let sim = Simulator::new(config.parse().unwrap()).unwrap();
        let gpu = sim.open(DeviceId(0)).unwrap();
        let channel = gpu.queue.create_channel(ChannelKind::Copy).unwrap();
        let timeline = gpu.queue.create_timeline().unwrap();
        Self {
            sim,
            gpu,
            channel,
            timeline,
            value: 0,
            next: 1 << 30,
        }
    }

    pub(crate) fn device(&self) -> &SimDevice {
        self.sim.device(DeviceId(0)).unwrap()
    }

    pub(crate) fn buffer(&mut self, heap: Heap, len: u64) -> Buffer {
        let mem = self.gpu.memory.create(heap, len).unwrap();
        let span = Span::new(self.next, len).unwrap();
        self.next += len + PAGE;
        self.gpu.memory.reserve_va(span).unwrap();
        let va = Va(span.start());
        let map = GpuMap {
            va,
            mem,
            offset: 0,
            len,
            access: Access::Write,
        };
        self.gpu.memory.map_gpu(map).unwrap();
        let cpu = self.gpu.memory.map_cpu(mem, 0, len).unwrap();
        Buffer { mem, va, span, cpu }
    }

    pub(crate) fn free(&self, buffer: &Buffer) {
        let release = &self.gpu.release;
        release.unmap_cpu(buffer.cpu.id()).unwrap();
        release.unmap_gpu(buffer.span).unwrap();
        release.release_va(buffer.span).unwrap();
        release.destroy(buffer.mem).unwrap();
    }

    /// Submits with a signal behind.
    pub(crate) fn submit(&mut self, ops: &[Op]) -> Fence {
        self.value += 1;
        let fence = Fence {
            timeline: self.timeline,
            value: self.value,
        };
        let mut ops = ops.to_vec();
        ops.push(Op::Signal(fence));
        self.gpu.queue.submit(self.channel, &ops).unwrap();
        fence
    }
}

pub(crate) fn copy(src: &Buffer, dst: &Buffer, len: u64) -> Op {
    Op::Copy {
        src: src.va,
        dst: dst.va,
        len,
    }
}

pub(crate) fn bytes(buffer: &Buffer, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    buffer.cpu.read(offset, &mut bytes);
    bytes
}
