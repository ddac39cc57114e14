//! Suite of the [`Release`](crate::Release) contract.

use vrampager_addr::{PAGE, PAGE_SIZE, Span, Va};

use super::bench::{
    Bench, Buffer, DeviceCheck, PAGE_BYTES, PATIENCE, Verdict, all_bytes, check_each, fail, same,
};
use super::{Check, Report};
use crate::{
    Access, Counters, CpuMapping, DeviceId, DeviceLossCause, Discovery, FaultKind, HalError, Heap,
    Op,
};

const CHECKS: [DeviceCheck; 11] = [
    (
        "counters rise and fall with exactly what is taken and given back",
        counted,
    ),
    ("each layer is given back on its own", layers),
    (
        "an access after unmapping faults, in the first page and in the last",
        unmapped,
    ),
    (
        "a view stays readable when its mapping and its object are gone",
        view_after_unmapping,
    ),
    (
        "a view stays readable when its device is closed",
        view_after_close,
    ),
    ("several mappings are unmapped as one span", one_span),
    (
        "a released range can be reserved again, for another object",
        reserve_again,
    ),
    (
        "a destroyed channel drops what it has not run",
        dropped_work,
    ),
    ("a stopped channel can be destroyed", stopped_channel),
    ("a thousand rounds leave nothing behind", rounds),
    (
        "closing returns what is left, and then nothing works but release",
        close,
    ),
];

const REOPENED: &str = "what a close found left is free after it";

/// Runs the suite on one device, which has to be closed.
pub fn run(discovery: &dyn Discovery, device: DeviceId) -> Report {
    let mut checks = check_each(discovery, device, &CHECKS);
    checks.push(leftovers_are_freed(discovery, device));
    Report {
        contract: "release",
        checks,
    }
}

fn counted(bench: &mut Bench) -> Verdict {
    let gpu = bench.gpu.clone();
    let mut wanted = Counters::default();
    let counters = |wanted, step| same(step, gpu.release.counters(), wanted);
    counters(wanted, "at open")?;

    let mem = gpu.memory.create(Heap::Vram, 2 * PAGE_SIZE)?;
    let host = gpu.memory.create(Heap::Host, PAGE_SIZE)?;
    (wanted.objects, wanted.pages) = (2, 3);
    counters(wanted, "after two objects")?;
    let span = bench.reserve(4 * PAGE_SIZE)?;
    (wanted.ranges, wanted.va_bytes) = (1, span.len());
    counters(wanted, "after a range")?;
    let part = Span::new(span.start(), 2 * PAGE_SIZE).expect("inside the range");
    bench.map(mem, 0, part, Access::Write)?;
    let cpu = gpu.memory.map_cpu(host, 0, PAGE_SIZE)?;
    wanted.mappings = 2;
    counters(wanted, "after a GPU and a CPU mapping")?;
    let channel = bench.channel()?;
    let fence = bench.fence()?;
    (wanted.channels, wanted.timelines) = (1, 1);
    counters(wanted, "after a channel and a timeline")?;

    gpu.release.destroy_channel(channel)?;
    gpu.release.destroy_timeline(fence.timeline)?;
    (wanted.channels, wanted.timelines) = (0, 0);
    counters(wanted, "without channel and timeline")?;
    gpu.release.unmap_cpu(cpu.id())?;
    wanted.mappings = 1;
    counters(wanted, "without CPU mapping")?;
    gpu.release.unmap_gpu(part)?;
    wanted.mappings = 0;
    counters(wanted, "without GPU mapping")?;
    gpu.release.destroy(mem)?;
    (wanted.objects, wanted.pages) = (1, 1);
    counters(wanted, "without the VRAM object")?;
    gpu.release.release_va(span)?;
    gpu.release.destroy(host)?;
    counters(Counters::default(), "at the end")
}

fn layers(bench: &mut Bench) -> Verdict {
    let gpu = bench.gpu.clone();
    let buffer = bench.buffer(Heap::Vram, PAGE_SIZE)?;
    let cpu = gpu.memory.map_cpu(buffer.mem, 0, PAGE_SIZE)?;
    gpu.release.unmap_cpu(cpu.id())?;
    bench.run(&[buffer.fill(4)])?;

    let cpu = gpu.memory.map_cpu(buffer.mem, 0, PAGE_SIZE)?;
    gpu.release.unmap_gpu(buffer.span)?;
    let mut seen = [0; PAGE_BYTES];
    cpu.read(0, &mut seen);
    all_bytes("CPU mapping without the GPU's", &seen, 4)?;

    // The range outlives its mapping, and the object both.
    bench.map(buffer.mem, 0, buffer.span, Access::Read)?;
    gpu.release.unmap_gpu(buffer.span)?;
    gpu.release.release_va(buffer.span)?;
    gpu.release.unmap_cpu(cpu.id())?;
    all_bytes(
        "object without mappings",
        &bench.read(buffer.mem, 0, PAGE_SIZE)?,
        4,
    )
}

/// Expects that reading a page faults.
fn faults(bench: &mut Bench, page: Va) -> Verdict {
    let target = bench.buffer(Heap::Host, PAGE_SIZE)?;
    let (channel, fence) = (bench.channel()?, bench.fence()?);
    let copy = Op::Copy {
        src: page,
        dst: target.va(),
        len: PAGE_SIZE,
    };
    bench
        .gpu
        .queue
        .submit(channel, &[copy, Op::Signal(fence)])?;
    match bench.gpu.queue.wait(fence, PATIENCE) {
        Err(HalError::Fault(fault)) => {
            let found = (fault.kind, fault.at);
            same(
                "fault",
                found,
                (FaultKind::Unmapped, Some((page, Access::Read))),
            )
        }
        other => fail(format!("a read of {page} gave {other:?}")),
    }
}

fn unmapped(bench: &mut Bench) -> Verdict {
    for heap in [Heap::Vram, Heap::Host] {
        let buffer = bench.buffer(heap, 8 * PAGE_SIZE)?;
        bench.run(&[buffer.fill(1)])?;
        bench.gpu.release.unmap_gpu(buffer.span)?;
        faults(bench, buffer.va())?;
        faults(bench, Va(buffer.span.end() - PAGE_SIZE))?;
    }
    Ok(())
}

/// Reads both ends of a view; what they show is nobody's business any more.
fn touch(view: &CpuMapping) {
    for offset in [0, view.len() - PAGE_SIZE] {
        view.read(offset, &mut [0; PAGE_BYTES]);
    }
}

fn view_after_unmapping(bench: &mut Bench) -> Verdict {
    for heap in [Heap::Vram, Heap::Host] {
        let mem = bench.gpu.memory.create(heap, 4 * PAGE_SIZE)?;
        let map = bench.gpu.memory.map_cpu(mem, 0, 4 * PAGE_SIZE)?;
        let clone = map.clone();
        let part = map.slice(PAGE_SIZE, 2 * PAGE_SIZE);
        bench.gpu.release.unmap_cpu(map.id())?;
        drop(map);
        bench.gpu.release.destroy(mem)?;
        touch(&clone);
        drop(clone);
        touch(&part);
    }
    same("held", bench.gpu.release.counters(), Counters::default())
}

fn view_after_close(bench: &mut Bench) -> Verdict {
    let mut views = Vec::new();
    for heap in [Heap::Vram, Heap::Host] {
        let mem = bench.gpu.memory.create(heap, PAGE_SIZE)?;
        views.push(bench.gpu.memory.map_cpu(mem, 0, PAGE_SIZE)?.clone());
    }
    bench.gpu.release.close();
    views.iter().for_each(touch);
    Ok(())
}

fn one_span(bench: &mut Bench) -> Verdict {
    let mem = bench.gpu.memory.create(Heap::Vram, 2 * PAGE_SIZE)?;
    let other = bench.gpu.memory.create(Heap::Host, PAGE_SIZE)?;
    let span = bench.reserve(3 * PAGE_SIZE)?;
    let part = |n: u64, pages: u64| {
        let part = span.slice(n * PAGE_SIZE, pages * PAGE_SIZE);
        part.expect("the span has three pages")
    };
    bench.map(mem, 0, part(0, 1), Access::Write)?;
    bench.map(other, 0, part(1, 1), Access::Write)?;
    bench.map(mem, PAGE_SIZE, part(2, 1), Access::Write)?;
    bench.gpu.release.unmap_gpu(part(0, 2))?;
    same("mappings left", bench.gpu.release.counters().mappings, 1)?;
    bench.run(&[Op::Fill {
        dst: Va(part(2, 1).start()),
        len: PAGE_SIZE,
        byte: 1,
    }])?;
    faults(bench, Va(part(1, 1).start()))
}

fn reserve_again(bench: &mut Bench) -> Verdict {
    let old = bench.buffer(Heap::Vram, PAGE_SIZE)?;
    bench.run(&[old.fill(1)])?;
    bench.gpu.release.unmap_gpu(old.span)?;
    bench.gpu.release.release_va(old.span)?;
    bench.gpu.memory.reserve_va(old.span)?;
    let mem = bench.gpu.memory.create(Heap::Vram, PAGE_SIZE)?;
    bench.map(mem, 0, old.span, Access::Write)?;
    let new = Buffer {
        mem,
        span: old.span,
    };
    bench.run(&[new.fill(2)])?;
    all_bytes("old object", &bench.read(old.mem, 0, PAGE_SIZE)?, 1)?;
    all_bytes("new object", &bench.read(new.mem, 0, PAGE_SIZE)?, 2)
}

fn dropped_work(bench: &mut Bench) -> Verdict {
    let buffer = bench.buffer(Heap::Host, PAGE_SIZE)?;
    let gate = bench.fence()?;
    let channel = bench.channel()?;
    bench
        .gpu
        .queue
        .submit(channel, &[Op::Wait(gate), buffer.fill(1)])?;
    bench.gpu.release.destroy_channel(channel)?;
    bench.gpu.queue.signal(gate);
    let other = bench.buffer(Heap::Host, PAGE_SIZE)?;
    bench.run(&[other.fill(1)])?;
    all_bytes(
        "target of dropped work",
        &bench.read(buffer.mem, 0, PAGE_SIZE)?,
        0,
    )
}

fn stopped_channel(bench: &mut Bench) -> Verdict {
    let hole = bench.reserve(PAGE_SIZE)?;
    faults(bench, Va(hole.start()))?;
    let fault = bench.gpu.queue.take_faults();
    let Some(fault) = fault.first() else {
        return fail("the fault was not reported");
    };
    let before = bench.gpu.release.counters().channels;
    bench.gpu.release.destroy_channel(fault.channel)?;
    same(
        "channels",
        bench.gpu.release.counters().channels,
        before - 1,
    )
}

fn rounds(bench: &mut Bench) -> Verdict {
    let before = bench.gpu.release.counters();
    let span = bench.addresses(4 * PAGE_SIZE)?;
    for _ in 0..500 {
        for heap in [Heap::Vram, Heap::Host] {
            let mem = bench.gpu.memory.create(heap, span.len())?;
            bench.gpu.memory.reserve_va(span)?;
            bench.map(mem, 0, span, Access::Write)?;
            let cpu = bench.gpu.memory.map_cpu(mem, 0, PAGE_SIZE)?;
            bench.gpu.release.unmap_cpu(cpu.id())?;
            bench.free(&Buffer { mem, span })?;
        }
    }
    same(
        "held after the rounds",
        bench.gpu.release.counters(),
        before,
    )
}

fn close(bench: &mut Bench) -> Verdict {
    let gpu = bench.gpu.clone();
    let buffer = bench.buffer(Heap::Vram, PAGE_SIZE)?;
    let (channel, fence) = (bench.channel()?, bench.fence()?);
    gpu.queue
        .submit(channel, &[Op::Wait(fence), buffer.fill(1)])?;
    let held = gpu.release.counters();
    same("first close", gpu.release.close(), held)?;
    same("second close", gpu.release.close(), Counters::default())?;
    same("counters", gpu.release.counters(), Counters::default())?;
    let lost = Some(HalError::DeviceLost(DeviceLossCause::Removed));
    same(
        "create",
        gpu.memory.create(Heap::Host, PAGE_SIZE).err(),
        lost.clone(),
    )?;
    same("submit", gpu.queue.submit(channel, &[]).err(), lost.clone())?;
    same("wait", gpu.queue.wait(fence, PATIENCE).err(), lost)
}

fn leftovers_are_freed(discovery: &dyn Discovery, device: DeviceId) -> Check {
    // More than half of VRAM: a second one fits only where the first has gone.
    let body: DeviceCheck = (REOPENED, |bench| {
        let size = PAGE.down(bench.gpu.info.vram_bytes / 8 * 5).max(PAGE_SIZE);
        bench.gpu.memory.create(Heap::Vram, size)?;
        Ok(())
    });
    let mut runs = check_each(discovery, device, &[body, body]).into_iter();
    let (first, second) = (runs.next(), runs.next());
    let [first, second] = [first, second].map(|run| run.expect("two checks give two results"));
    match &first.outcome {
        super::Outcome::Pass => second,
        super::Outcome::Fail { .. } | super::Outcome::NotSupported { .. } => first,
    }
}
