//! Suite of the [`Queue`](crate::Queue) contract.

use std::time::Duration;

use vrampager_addr::{PAGE_SIZE, Va};

use super::Report;
use super::bench::{
    Bench, Buffer, DeviceCheck, PAGE_BYTES, PATIENCE, Stop, Verdict, all_bytes, check_each, fail,
    same,
};
use crate::{
    Access, ChannelId, ChannelKind, DeviceId, Discovery, Fault, FaultKind, Fence, HalError, Heap,
    Op,
};

const CHECKS: [DeviceCheck; 17] = [
    ("a timeline starts at zero and never decreases", monotonic),
    (
        "both kinds of channel run all operations in order",
        in_order,
    ),
    ("bytes are copied between all pairs of heaps", all_pairs),
    (
        "copies and fills of any size and offset touch only their bytes",
        exact_bytes,
    ),
    (
        "a signal is seen only after the bytes in front of it",
        signal_after_bytes,
    ),
    (
        "a channel holds at a fence and others go on meanwhile",
        holds,
    ),
    (
        "a fence signalled by the CPU lets a channel go on",
        cpu_signal,
    ),
    (
        "a wait ends at its deadline and what it waited for goes on",
        deadline,
    ),
    (
        "page tables are read when an operation runs",
        late_translation,
    ),
    (
        "a full channel takes all or nothing, and takes more once it has drained",
        full,
    ),
    (
        "an unmapped access is reported once, at its first address",
        unmapped,
    ),
    (
        "operations in front of a fault are complete, those behind have not run",
        around_fault,
    ),
    ("a fault leaves other channels running", isolation),
    (
        "a stopped channel takes no more operations",
        stopped_refuses,
    ),
    (
        "a wait for a channel that has stopped ends at once",
        stopped_wait,
    ),
    (
        "recovery can signal what a stopped channel will not",
        recovery,
    ),
    ("an empty submission is accepted", empty),
];

/// Runs the suite on one device, which has to be closed.
pub fn run(discovery: &dyn Discovery, device: DeviceId) -> Report {
    Report {
        contract: "queue",
        checks: check_each(discovery, device, &CHECKS),
    }
}

/// Long enough to see that nothing comes, short enough to wait for.
const MOMENT: Duration = Duration::from_millis(20);
/// No ring holds more.
const MOST_ENTRIES: u32 = 1 << 20;

fn monotonic(bench: &mut Bench) -> Verdict {
    let queue = bench.gpu.queue.clone();
    let timeline = queue.create_timeline()?;
    let at = |value| Fence { timeline, value };
    same("at first", queue.completed(timeline), 0)?;
    queue.signal(at(5));
    queue.signal(at(3));
    same("after 5 and 3 from the CPU", queue.completed(timeline), 5)?;
    bench.run(&[Op::Signal(at(9)), Op::Signal(at(7))])?;
    same("after 9 and 7 from a channel", queue.completed(timeline), 9)
}

fn in_order(bench: &mut Bench) -> Verdict {
    for kind in [ChannelKind::Copy, ChannelKind::Compute] {
        let channel = bench.gpu.queue.create_channel(kind)?;
        let (a, b) = (
            bench.buffer(Heap::Vram, 65536)?,
            bench.buffer(Heap::Vram, 65536)?,
        );
        let gate = bench.fence()?;
        let ops = [
            a.fill(1),
            Op::Signal(gate),
            Op::Wait(gate),
            a.copy_to(&b),
            a.fill(2),
        ];
        bench.run_on(channel, &ops)?;
        all_bytes(
            "copied before the second fill",
            &bench.read(b.mem, 0, 65536)?,
            1,
        )?;
        all_bytes("filled twice", &bench.read(a.mem, 0, 65536)?, 2)?;
    }
    Ok(())
}

fn all_pairs(bench: &mut Bench) -> Verdict {
    const LEN: u64 = 1 << 20;
    let mut byte = 0;
    for (from, to) in [
        (Heap::Host, Heap::Host),
        (Heap::Host, Heap::Vram),
        (Heap::Vram, Heap::Vram),
        (Heap::Vram, Heap::Host),
    ] {
        byte += 1;
        let (src, dst) = (bench.buffer(from, LEN)?, bench.buffer(to, LEN)?);
        let seen = bench.buffer(Heap::Host, LEN)?;
        bench.run(&[src.fill(byte), src.copy_to(&dst), dst.copy_to(&seen)])?;
        let what = format!("{from} to {to}");
        all_bytes(&what, &bench.read(seen.mem, 0, LEN)?, byte)?;
        for buffer in [src, dst, seen] {
            bench.free(&buffer)?;
        }
    }
    Ok(())
}

fn exact_bytes(bench: &mut Bench) -> Verdict {
    const LEN: u64 = 1 << 20;
    let (src, dst) = (
        bench.buffer(Heap::Host, LEN)?,
        bench.buffer(Heap::Host, LEN)?,
    );
    for (from, to, len) in [(0, 1, 1), (3, 4093, 6), (1, 2, 65_537), (5, 3, LEN - 8)] {
        let copy = Op::Copy {
            src: src.va().offset(from),
            dst: dst.va().offset(to),
            len,
        };
        bench.run(&[src.fill(1), dst.fill(2), copy])?;
        edges(bench, &dst, to, len, "copy")?;
        let fill = Op::Fill {
            dst: dst.va().offset(to),
            len,
            byte: 1,
        };
        bench.run(&[dst.fill(2), fill])?;
        edges(bench, &dst, to, len, "fill")?;
    }
    Ok(())
}

/// Expects ones in the range and twos around it.
fn edges(bench: &Bench, buffer: &Buffer, start: u64, len: u64, what: &str) -> Verdict {
    let bytes = bench.read(buffer.mem, 0, buffer.span.len())?;
    let index = |at: u64| usize::try_from(at).expect("buffers of the suites are small");
    let (before, rest) = bytes.split_at(index(start));
    let (inside, behind) = rest.split_at(index(len));
    all_bytes(&format!("in front of the {what}"), before, 2)?;
    all_bytes(what, inside, 1)?;
    all_bytes(&format!("behind the {what}"), behind, 2)
}

fn signal_after_bytes(bench: &mut Bench) -> Verdict {
    const LEN: u64 = 1 << 20;
    let (src, dst) = (
        bench.buffer(Heap::Host, LEN)?,
        bench.buffer(Heap::Host, LEN)?,
    );
    let view = bench
        .gpu
        .memory
        .map_cpu(dst.mem, LEN - PAGE_SIZE, PAGE_SIZE)?;
    let channel = bench.channel()?;
    for byte in 1..=16 {
        bench.run(&[src.fill(byte)])?;
        let fence = bench.fence()?;
        bench
            .gpu
            .queue
            .submit(channel, &[src.copy_to(&dst), Op::Signal(fence)])?;
        bench.reached(fence)?;
        let mut seen = [0; PAGE_BYTES];
        view.read(0, &mut seen);
        all_bytes("last page at the signal", &seen, byte)?;
    }
    Ok(())
}

fn holds(bench: &mut Bench) -> Verdict {
    let (gate, done) = (bench.fence()?, bench.fence()?);
    let held = bench.channel()?;
    bench
        .gpu
        .queue
        .submit(held, &[Op::Wait(gate), Op::Signal(done)])?;
    for _ in 0..4 {
        let other = bench.buffer(Heap::Vram, PAGE_SIZE)?;
        bench.run(&[other.fill(1)])?;
    }
    same("held back", bench.gpu.queue.completed(done.timeline), 0)?;
    // The gate is opened from another channel.
    bench.run(&[Op::Signal(gate)])?;
    bench.reached(done)
}

fn cpu_signal(bench: &mut Bench) -> Verdict {
    let (gate, done) = (bench.fence()?, bench.fence()?);
    let channel = bench.channel()?;
    bench
        .gpu
        .queue
        .submit(channel, &[Op::Wait(gate), Op::Signal(done)])?;
    bench.gpu.queue.signal(gate);
    bench.reached(done)
}

fn deadline(bench: &mut Bench) -> Verdict {
    let (gate, done) = (bench.fence()?, bench.fence()?);
    let channel = bench.channel()?;
    bench
        .gpu
        .queue
        .submit(channel, &[Op::Wait(gate), Op::Signal(done)])?;
    for timeout in [Duration::ZERO, MOMENT] {
        match bench.gpu.queue.wait(done, timeout) {
            Err(HalError::Timeout { waited }) if waited >= timeout => {}
            other => return fail(format!("a wait of {timeout:?} for nothing gave {other:?}")),
        }
    }
    bench.gpu.queue.signal(gate);
    bench.reached(done)?;
    match bench.gpu.queue.wait(done, Duration::ZERO) {
        Ok(()) => Ok(()),
        Err(error) => fail(format!("a fence that is reached gave: {error}")),
    }
}

fn late_translation(bench: &mut Bench) -> Verdict {
    let source = bench.buffer(Heap::Vram, PAGE_SIZE)?;
    let mem = bench.gpu.memory.create(Heap::Host, PAGE_SIZE)?;
    let span = bench.reserve(PAGE_SIZE)?;
    let (gate, done) = (bench.fence()?, bench.fence()?);
    let copy = Op::Copy {
        src: source.va(),
        dst: Va(span.start()),
        len: PAGE_SIZE,
    };
    let channel = bench.channel()?;
    let ops = [source.fill(3), Op::Wait(gate), copy, Op::Signal(done)];
    bench.gpu.queue.submit(channel, &ops)?;
    bench.map(mem, 0, span, Access::Write)?;
    bench.gpu.queue.signal(gate);
    bench.reached(done)?;
    all_bytes(
        "mapped after submission",
        &bench.read(mem, 0, PAGE_SIZE)?,
        3,
    )
}

fn full(bench: &mut Bench) -> Verdict {
    let (gate, counted, extra) = (bench.fence()?, bench.fence()?, bench.fence()?);
    let channel = bench.channel()?;
    let queue = bench.gpu.queue.clone();
    queue.submit(channel, &[Op::Wait(gate)])?;
    let mut accepted = 0;
    let capacity = loop {
        let value = accepted + 1;
        match queue.submit(channel, &[Op::Signal(Fence { value, ..counted })]) {
            Ok(()) => accepted = value,
            Err(HalError::QueueFull { capacity, .. }) => break capacity,
            Err(other) => return Err(other.into()),
        }
        if accepted > MOST_ENTRIES.into() {
            let why = format!("{accepted} entries do not fill a channel");
            return Err(Stop::NotSupported(why));
        }
    };
    match queue.submit(channel, &[Op::Signal(extra), Op::Signal(extra)]) {
        Err(HalError::QueueFull { .. }) => {}
        other => return fail(format!("a channel full with {capacity} gave {other:?}")),
    }
    queue.signal(gate);
    bench.counted_up(Fence {
        value: accepted,
        ..counted
    })?;
    same(
        "accepted entries run",
        queue.completed(counted.timeline),
        accepted,
    )?;
    same("refused entries run", queue.completed(extra.timeline), 0)?;
    bench.run_on(channel, &[Op::Signal(extra)])
}

/// A channel that has stopped at an unmapped read of `va`, and the fence it will not signal.
struct Stopped {
    channel: ChannelId,
    fence: Fence,
    fault: Fault,
}

/// Submits operations that fault at `va` and waits for the fault.
fn stop_at(bench: &mut Bench, va: Va, access: Access, ops: &[Op]) -> Result<Stopped, Stop> {
    let (channel, fence) = (bench.channel()?, bench.fence()?);
    let mut ops = ops.to_vec();
    ops.push(Op::Signal(fence));
    bench.gpu.queue.submit(channel, &ops)?;
    let wanted = Fault {
        channel,
        kind: FaultKind::Unmapped,
        at: Some((va, access)),
    };
    match bench.gpu.queue.wait(fence, PATIENCE) {
        Err(HalError::Fault(fault)) => {
            same("fault", fault, wanted)?;
            Ok(Stopped {
                channel,
                fence,
                fault,
            })
        }
        other => fail(format!("an unmapped {access} at {va} gave {other:?}")),
    }
}

/// The first address of a reserved page that nothing is mapped to.
fn nowhere(bench: &mut Bench) -> Result<Va, Stop> {
    Ok(Va(bench.reserve(PAGE_SIZE)?.start()))
}

fn unmapped(bench: &mut Bench) -> Verdict {
    let buffer = bench.buffer(Heap::Vram, 2 * PAGE_SIZE)?;
    let behind = Va(buffer.span.end());
    // The last page is mapped, the next one is not.
    let across = Op::Fill {
        dst: Va(buffer.span.end() - 10),
        len: 20,
        byte: 1,
    };
    let write = stop_at(bench, behind, Access::Write, &[across])?;
    let hole = nowhere(bench)?;
    let copy = Op::Copy {
        src: hole,
        dst: buffer.va(),
        len: PAGE_SIZE,
    };
    let read = stop_at(bench, hole, Access::Read, &[copy])?;
    let reported = bench.gpu.queue.take_faults();
    same(
        "reports, oldest first",
        reported,
        vec![write.fault, read.fault],
    )?;
    same("reports later on", bench.gpu.queue.take_faults(), vec![])
}

fn around_fault(bench: &mut Bench) -> Verdict {
    let front = bench.buffer(Heap::Host, PAGE_SIZE)?;
    let behind = bench.buffer(Heap::Host, PAGE_SIZE)?;
    let hole = nowhere(bench)?;
    let faulting = Op::Fill {
        dst: hole,
        len: 1,
        byte: 1,
    };
    let ops = [front.fill(1), faulting, behind.fill(1)];
    let stopped = stop_at(bench, hole, Access::Write, &ops)?;
    // Gives operations behind the fault the time to run, should they.
    bench.run(&[Op::Signal(bench.fence()?)])?;
    all_bytes("in front", &bench.read(front.mem, 0, PAGE_SIZE)?, 1)?;
    all_bytes("behind", &bench.read(behind.mem, 0, PAGE_SIZE)?, 0)?;
    let value = bench.gpu.queue.completed(stopped.fence.timeline);
    same("timeline signalled behind the fault", value, 0)
}

fn isolation(bench: &mut Bench) -> Verdict {
    let buffer = bench.buffer(Heap::Host, PAGE_SIZE)?;
    let other = bench.channel()?;
    bench.run_on(other, &[buffer.fill(1)])?;
    let hole = nowhere(bench)?;
    let faulting = Op::Fill {
        dst: hole,
        len: 1,
        byte: 1,
    };
    stop_at(bench, hole, Access::Write, &[faulting])?;
    bench.run_on(other, &[buffer.fill(2)])?;
    bench.run(&[buffer.fill(3)])?;
    all_bytes(
        "filled after the fault",
        &bench.read(buffer.mem, 0, PAGE_SIZE)?,
        3,
    )
}

fn stopped_refuses(bench: &mut Bench) -> Verdict {
    let stopped = stopped(bench)?;
    let result = bench
        .gpu
        .queue
        .submit(stopped.channel, &[Op::Signal(stopped.fence)]);
    same("submit", result, Err(HalError::Fault(stopped.fault)))
}

/// A channel that has stopped for a plain reason.
fn stopped(bench: &mut Bench) -> Result<Stopped, Stop> {
    let hole = nowhere(bench)?;
    let faulting = Op::Fill {
        dst: hole,
        len: 1,
        byte: 1,
    };
    stop_at(bench, hole, Access::Write, &[faulting])
}

fn stopped_wait(bench: &mut Bench) -> Verdict {
    let stopped = stopped(bench)?;
    // A second wait has nothing to wait for: only one that returns at once makes its deadline.
    let result = bench.gpu.queue.wait(stopped.fence, Duration::ZERO);
    same("wait", result, Err(HalError::Fault(stopped.fault)))
}

fn recovery(bench: &mut Bench) -> Verdict {
    let stopped = stopped(bench)?;
    bench.gpu.queue.signal(stopped.fence);
    bench.reached(stopped.fence)?;
    bench.gpu.release.destroy_channel(stopped.channel)?;
    let buffer = bench.buffer(Heap::Vram, PAGE_SIZE)?;
    bench.run(&[buffer.fill(1)])
}

fn empty(bench: &mut Bench) -> Verdict {
    let channel = bench.channel()?;
    bench.gpu.queue.submit(channel, &[])?;
    bench.run_on(channel, &[])
}
