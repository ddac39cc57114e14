use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vrampager_addr::{Align, PAGE, PAGE_SIZE, Span, Va};

use super::{Check, Outcome};
use crate::{
    Access, ChannelId, ChannelKind, CpuMapping, DeviceId, Discovery, Fence, Gpu, GpuMap, HalError,
    Heap, HostPage, HostRange, MemId, Op,
};

/// Enough for any operation of the suites on a device that works.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// [`PAGE_SIZE`] as the length of an array.
pub(super) const PAGE_BYTES: usize = 4096;
const _: () = assert!(PAGE_BYTES as u64 == PAGE_SIZE);

/// Why a check ends early.
#[derive(Debug)]
pub(super) enum Stop {
    Failed(String),
    NotSupported(String),
}

pub(super) type Verdict = Result<(), Stop>;

impl From<HalError> for Stop {
    fn from(error: HalError) -> Self {
        match error {
            HalError::Unsupported(_) => Self::NotSupported(error.to_string()),
            HalError::OutOfMemory { .. }
            | HalError::OutOfAperture { .. }
            | HalError::QueueFull { .. }
            | HalError::Timeout { .. }
            | HalError::Fault(_)
            | HalError::DeviceLost(_)
            | HalError::NoDevice(_)
            | HalError::Busy(_)
            | HalError::Driver { .. }
            | HalError::NoDriver { .. }
            | HalError::UnknownRelease { .. } => Self::Failed(error.to_string()),
        }
    }
}

/// Ends the check unless both are equal.
pub(super) fn same<T: PartialEq + Debug>(what: &str, found: T, wanted: T) -> Verdict {
    if found == wanted {
        return Ok(());
    }
    fail(format!("{what}: found {found:?} instead of {wanted:?}"))
}

/// Ends the check unless all bytes have one value.
pub(super) fn all_bytes(what: &str, bytes: &[u8], wanted: u8) -> Verdict {
    match bytes.iter().position(|&byte| byte != wanted) {
        None => Ok(()),
        Some(at) => fail(format!(
            "{what}: byte {at} of {} is {:#x} instead of {wanted:#x}",
            bytes.len(),
            bytes[at]
        )),
    }
}

pub(super) fn fail<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Failed(why.into()))
}

/// Runs one check. A panic of the back end is a failure like any other.
pub(super) fn check(name: &'static str, body: impl FnOnce() -> Verdict) -> Check {
    let outcome = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Outcome::Pass,
        Ok(Err(Stop::Failed(why))) => Outcome::Fail { why },
        Ok(Err(Stop::NotSupported(why))) => Outcome::NotSupported { why },
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied());
            Outcome::Fail {
                why: format!("the back end panicked: {}", text.unwrap_or("no message")),
            }
        }
    };
    Check { name, outcome }
}

/// A check on an open device: its name and what it does.
pub(super) type DeviceCheck = (&'static str, fn(&mut Bench) -> Verdict);

/// Runs checks, each on a device opened for it and closed behind it whatever happens.
pub(super) fn check_each(
    discovery: &dyn Discovery,
    device: DeviceId,
    checks: &[DeviceCheck],
) -> Vec<Check> {
    let run = |&(name, body): &DeviceCheck| {
        let gpu = match discovery.open(device) {
            Ok(gpu) => gpu,
            Err(error) => return check(name, || Err(error.into())),
        };
        let mut bench = Bench::new(discovery, gpu.clone());
        let result = check(name, || body(&mut bench));
        drop(bench);
        let closed = check(name, || {
            gpu.release.close();
            Ok(())
        });
        match result.outcome {
            Outcome::Pass => closed,
            Outcome::Fail { .. } | Outcome::NotSupported { .. } => result,
        }
    };
    checks.iter().map(run).collect()
}

/// An open device with the next free address of each zone.
pub(super) struct Bench<'a> {
    discovery: &'a dyn Discovery,
    pub(super) gpu: Gpu,
    next: Vec<u64>,
}

/// Host memory of the suite's own.
pub(super) struct HostMemory {
    pub(super) pages: Arc<[HostPage]>,
    pub(super) range: HostRange,
}

impl HostMemory {
    pub(super) fn new(pages: usize) -> Self {
        let pages = HostPage::zeroed(pages);
        let range = HostRange::of(pages.clone()).expect("suites ask for at least a page");
        Self { pages, range }
    }

    pub(super) fn fill(&self, byte: u8) {
        for page in &*self.pages {
            for at in page.bytes() {
                at.store(byte, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let bytes = self.pages.iter().flat_map(HostPage::bytes);
        bytes.map(|at| at.load(Ordering::Relaxed)).collect()
    }
}

/// An object mapped for the GPU as a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    pub(super) mem: MemId,
    pub(super) span: Span,
}

impl Buffer {
    pub(super) fn va(&self) -> Va {
        Va(self.span.start())
    }

    pub(super) fn fill(&self, byte: u8) -> Op {
        Op::Fill {
            dst: self.va(),
            len: self.span.len(),
            byte,
        }
    }

    /// Copies as much as both hold.
    pub(super) fn copy_to(&self, target: &Self) -> Op {
        Op::Copy {
            src: self.va(),
            dst: target.va(),
            len: self.span.len().min(target.span.len()),
        }
    }
}

impl<'a> Bench<'a> {
    fn new(discovery: &'a dyn Discovery, gpu: Gpu) -> Self {
        let next = gpu.info.zones.iter().map(|zone| zone.span.start());
        Self {
            discovery,
            next: next.collect(),
            gpu,
        }
    }

    /// Lets `body` use another device of the discovery, and closes that in any case.
    pub(super) fn with_another(
        &mut self,
        body: impl FnOnce(&mut Self, &mut Self) -> Verdict,
    ) -> Verdict {
        let devices = self.discovery.devices()?;
        let mut others = devices.iter().filter(|info| info.id != self.gpu.info.id);
        let Some(other) = others.next() else {
            return Err(Stop::NotSupported("there is no second device".into()));
        };
        let gpu = self.discovery.open(other.id)?;
        let mut other = Self::new(self.discovery, gpu.clone());
        let result = catch_unwind(AssertUnwindSafe(|| body(self, &mut other)));
        drop(other);
        gpu.release.close();
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The addresses of host memory, reserved for the device to see it where the CPU does.
    pub(super) fn reserve_host(&self, range: &HostRange) -> Result<Span, Stop> {
        let (span, zones) = (range.span(), &self.gpu.info.zones);
        if let Some(zone) = zones.iter().find(|zone| zone.span.overlaps(span)) {
            let why = format!("the host has memory at {span}, in zone {}", zone.name);
            return Err(Stop::NotSupported(why));
        }
        self.gpu.memory.reserve_va(span)?;
        Ok(span)
    }

    /// Imports host memory and maps it where the CPU has it.
    pub(super) fn import(&self, range: &HostRange) -> Result<Buffer, Stop> {
        let mem = self.gpu.memory.import(range)?;
        let span = self.reserve_host(range)?;
        self.map(mem, 0, span, Access::Write)?;
        Ok(Buffer { mem, span })
    }

    /// Addresses that this check has not used, with a free page behind them, in the lowest zone
    /// that has room.
    pub(super) fn addresses(&mut self, len: u64) -> Result<Span, Stop> {
        const START: Align = match Align::new(64 << 10) {
            Some(align) => align,
            None => Align::PAGE,
        };
        for (zone, next) in self.gpu.info.zones.iter().zip(&mut self.next) {
            let span = START.up(*next).and_then(|start| Span::new(start, len));
            if let Some(span) = span.filter(|span| zone.span.covers(*span)) {
                *next = span.end() + PAGE_SIZE;
                return Ok(span);
            }
        }
        fail(format!("no zone has room for {len} bytes"))
    }

    /// Addresses like that, reserved.
    pub(super) fn reserve(&mut self, len: u64) -> Result<Span, Stop> {
        let span = self.addresses(len)?;
        self.gpu.memory.reserve_va(span)?;
        Ok(span)
    }

    /// Makes an object and maps it for the GPU to read and write.
    pub(super) fn buffer(&mut self, heap: Heap, len: u64) -> Result<Buffer, Stop> {
        let mem = self.gpu.memory.create(heap, len)?;
        let span = self.reserve(len)?;
        self.map(mem, 0, span, Access::Write)?;
        Ok(Buffer { mem, span })
    }

    pub(super) fn map(&self, mem: MemId, offset: u64, span: Span, access: Access) -> Verdict {
        self.gpu.memory.map_gpu(GpuMap {
            va: Va(span.start()),
            mem,
            offset,
            len: span.len(),
            access,
        })?;
        Ok(())
    }

    /// Gives a buffer back, layer by layer.
    pub(super) fn free(&self, buffer: &Buffer) -> Verdict {
        let release = &self.gpu.release;
        release.unmap_gpu(buffer.span)?;
        release.release_va(buffer.span)?;
        release.destroy(buffer.mem)?;
        Ok(())
    }

    pub(super) fn channel(&self) -> Result<ChannelId, Stop> {
        Ok(self.gpu.queue.create_channel(ChannelKind::Copy)?)
    }

    /// A point on a timeline of its own.
    pub(super) fn fence(&self) -> Result<Fence, Stop> {
        Ok(Fence {
            timeline: self.gpu.queue.create_timeline()?,
            value: 1,
        })
    }

    pub(super) fn reached(&self, fence: Fence) -> Verdict {
        self.gpu.queue.wait(fence, PATIENCE)?;
        Ok(())
    }

    /// Waits for the last of many operations that count a timeline up one by one: each of them has
    /// the time that another check has for all of its own.
    pub(super) fn counted_up(&self, last: Fence) -> Verdict {
        let queue = &self.gpu.queue;
        loop {
            let before = queue.completed(last.timeline);
            match queue.wait(last, PATIENCE) {
                Err(HalError::Timeout { .. }) if queue.completed(last.timeline) > before => {}
                waited => return Ok(waited?),
            }
        }
    }

    /// Runs operations on a channel and waits for them.
    pub(super) fn run_on(&self, channel: ChannelId, ops: &[Op]) -> Verdict {
        let fence = self.fence()?;
        let mut ops = ops.to_vec();
        ops.push(Op::Signal(fence));
        self.gpu.queue.submit(channel, &ops)?;
        self.reached(fence)?;
        self.gpu.release.destroy_timeline(fence.timeline)?;
        Ok(())
    }

    /// Runs operations on a channel of their own.
    pub(super) fn run(&self, ops: &[Op]) -> Verdict {
        let channel = self.channel()?;
        self.run_on(channel, ops)?;
        self.gpu.release.destroy_channel(channel)?;
        Ok(())
    }

    /// What the CPU sees in a part of an object.
    pub(super) fn read(&self, mem: MemId, offset: u64, len: u64) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; usize::try_from(len).expect("checks read little")];
        self.mapped(mem, offset, len, |map, at| map.read(at, &mut bytes))?;
        Ok(bytes)
    }

    pub(super) fn write(&self, mem: MemId, offset: u64, bytes: &[u8]) -> Verdict {
        let len = bytes.len() as u64;
        self.mapped(mem, offset, len, |map, at| map.write(at, bytes))
    }

    fn mapped(
        &self,
        mem: MemId,
        offset: u64,
        len: u64,
        access: impl FnOnce(&CpuMapping, u64),
    ) -> Verdict {
        let start = PAGE.down(offset);
        let end = PAGE.up(offset + len).expect("objects end below 2^64");
        let map = self.gpu.memory.map_cpu(mem, start, end - start)?;
        access(&map, offset - start);
        self.gpu.release.unmap_cpu(map.id())?;
        Ok(())
    }
}
