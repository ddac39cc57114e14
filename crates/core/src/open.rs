//! Bringing a device up, and down again in reverse (mission rows A3, A6, A12).

use std::sync::Arc;

use vrampager_addr::{Align, PAGE, PAGE_SIZE, Span, Va};
use vrampager_hal::{Access, CpuMapId, Gpu, GpuMap, HalError, Heap, MemId, Memory, Storage};

use crate::device::{Config, Device, Reach};
use crate::error::{Error, OpenError};
use crate::manager::{RangeManager, VramManager};
use crate::placement::{MemType, Place};
use crate::runner::Runner;
use crate::staging::Staging;

/// How much of everything to use, in bytes; each is rounded up to pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Device memory.
    pub vram: u64,
    /// The window through which the device sees host pages.
    pub gtt: u64,
    /// Host pages behind GTT and SYSTEM together.
    pub host: u64,
    /// The swap file; 0 for none.
    pub swap: u64,
}

/// Staging memory: four pieces, so that reading, copying and waiting overlap.
const STAGING_PIECES: u64 = 4;
const STAGING_PIECE: u64 = 2 << 20;

/// One stage of bring-up, to be undone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Undo {
    ReleaseVa(Span),
    Unmap(Span),
    UnmapCpu(CpuMapId),
    Destroy(MemId),
}

/// Undoes stages in reverse, mappings first. What a driver refuses to take back is left to the
/// counters that closing returns: every other stage is still undone, except that nothing below a
/// mapping that stays may be taken away (the contract of [`vrampager_hal::Release`]).
pub(crate) fn undo_all(gpu: &Gpu, stages: Vec<Undo>) {
    let is_mapping = |stage: &Undo| matches!(stage, Undo::Unmap(_) | Undo::UnmapCpu(_));
    let (mappings, below): (Vec<Undo>, Vec<Undo>) = stages.into_iter().partition(is_mapping);
    mappings.into_iter().rev().for_each(|stage| stage.undo(gpu));
    if gpu.release.counters().mappings == 0 {
        below.into_iter().rev().for_each(|stage| stage.undo(gpu));
    }
}

impl Undo {
    fn undo(self, gpu: &Gpu) {
        let undone = match self {
            Self::ReleaseVa(span) => gpu.release.release_va(span),
            Self::Unmap(span) => gpu.release.unmap_gpu(span),
            Self::UnmapCpu(map) => gpu.release.unmap_cpu(map),
            Self::Destroy(mem) => gpu.release.destroy(mem),
        };
        drop(undone);
    }
}

struct Stages<'a> {
    memory: &'a dyn Memory,
    undo: &'a mut Vec<Undo>,
}

impl Stages<'_> {
    fn reserve(&mut self, span: Span) -> Result<(), HalError> {
        self.memory.reserve_va(span)?;
        self.undo.push(Undo::ReleaseVa(span));
        Ok(())
    }

    fn create(&mut self, heap: Heap, size: u64) -> Result<MemId, HalError> {
        let mem = self.memory.create(heap, size)?;
        self.undo.push(Undo::Destroy(mem));
        Ok(mem)
    }

    fn map(&mut self, at: Span, mem: MemId, offset: u64) -> Result<(), HalError> {
        let (va, len, access) = (Va(at.start()), at.len(), Access::Write);
        self.memory.map_gpu(GpuMap {
            va,
            mem,
            offset,
            len,
            access,
        })?;
        self.undo.push(Undo::Unmap(at));
        Ok(())
    }
}

/// Where everything is in the device's addresses.
struct Windows {
    vram: Span,
    gtt: Span,
    staging: Span,
    buffers: Span,
}

impl Windows {
    fn new(gpu: &Gpu, limits: &Limits) -> Option<Self> {
        let zone = gpu
            .info
            .zones
            .iter()
            .max_by_key(|zone| zone.span.len())?
            .span;
        let align = Align::new(2 << 20)?;
        let mut next = align.up(zone.start())?;
        let mut window = |len: u64| {
            let span = Span::new(next, len)?;
            next = align.up(span.end())?;
            zone.covers(span).then_some(span)
        };
        let (vram, gtt) = (window(limits.vram)?, window(limits.gtt)?);
        let staging = window(STAGING_PIECE * STAGING_PIECES)?;
        let buffers = Span::from_bounds(next, PAGE.down(zone.end()))?;
        (!buffers.is_empty()).then_some(Self {
            vram,
            gtt,
            staging,
            buffers,
        })
    }
}

/// Takes an open device into management: its memory, windows and copy channel.
///
/// # Errors
/// [`OpenError`]. Every stage that had succeeded is undone; the device is closed, and what it
/// would not take back is in the error.
pub fn open(
    gpu: Gpu,
    limits: Limits,
    swap: Option<Arc<dyn Storage>>,
) -> Result<(Device, Runner), Box<OpenError>> {
    let mut undo = Vec::new();
    match bring_up(&gpu, limits, swap, &mut undo) {
        Ok((device, mut runner)) => {
            runner.undo = undo.into();
            Ok((device, runner))
        }
        Err(error) => {
            undo_all(&gpu, undo);
            Err(Box::new(OpenError {
                error,
                leftovers: gpu.release.close(),
            }))
        }
    }
}

fn checked(limits: Limits) -> Result<Limits, Error> {
    let page = |bytes: u64, what| PAGE.up(bytes).ok_or(Error::Invalid(what));
    let limits = Limits {
        vram: page(limits.vram, "limit for VRAM is too large")?,
        gtt: page(limits.gtt, "limit for the GTT is too large")?,
        host: page(limits.host, "limit for host memory is too large")?,
        swap: limits.swap / PAGE_SIZE * PAGE_SIZE,
    };
    if limits.vram == 0 || limits.gtt == 0 || limits.host == 0 {
        return Err(Error::Invalid(
            "limits for VRAM, GTT and host memory are at least one page",
        ));
    }
    Ok(limits)
}

fn bring_up(
    gpu: &Gpu,
    limits: Limits,
    swap: Option<Arc<dyn Storage>>,
    undo: &mut Vec<Undo>,
) -> Result<(Device, Runner), Error> {
    let limits = checked(limits)?;
    let windows = Windows::new(gpu, &limits);
    let windows = windows.ok_or(Error::Invalid("limits exceed the device's address space"))?;
    let mut stages = Stages {
        memory: &*gpu.memory,
        undo,
    };
    stages.reserve(windows.vram)?;
    let vram = stages.create(Heap::Vram, limits.vram)?;
    stages.map(windows.vram, vram, 0)?;
    let staging_bytes = windows.staging.len();
    let host_bytes = staging_bytes.checked_add(limits.host);
    let host_bytes = host_bytes.ok_or(Error::Invalid("limit for host memory is too large"))?;
    let host = stages.create(Heap::Host, host_bytes)?;
    let host_map = gpu.memory.map_cpu(host, 0, host_bytes)?;
    stages.undo.push(Undo::UnmapCpu(host_map.id()));
    stages.reserve(windows.gtt)?;
    stages.reserve(windows.staging)?;
    stages.map(windows.staging, host, 0)?;
    let pages = Span::new(staging_bytes, limits.host).expect("its end is the object's size");
    let config = Config {
        host,
        pages,
        addresses: windows.buffers,
        swap: limits.swap,
    };
    let mut device = Device::new(config);
    let (gtt, system) = (Place::new(MemType::GTT), Place::new(MemType::SYSTEM));
    let window = Reach::Window {
        base: Va(windows.gtt.start()),
    };
    device.register(
        MemType::GTT,
        Box::new(RangeManager::new(limits.gtt)),
        window,
        &[system],
    );
    let own = Reach::Own {
        mem: vram,
        base: Va(windows.vram.start()),
    };
    device.register(
        MemType::VRAM,
        Box::new(VramManager::new(limits.vram)),
        own,
        &[gtt],
    );
    let staging_va = Va(windows.staging.start());
    let staging = Staging::new(0, staging_va, STAGING_PIECE, STAGING_PIECES);
    let runner = Runner::new(gpu.clone(), host_map, staging, swap)?;
    Ok((device, runner))
}
