//! Suite of the [`Memory`](crate::Memory) contract.

use vrampager_addr::{PAGE, PAGE_SIZE, Span, Va};

use super::Report;
use super::bench::{
    Bench, Buffer, DeviceCheck, HostMemory, PAGE_BYTES, Stop, Verdict, all_bytes, check_each, fail,
    same,
};
use crate::{Access, CpuMapping, DeviceId, Discovery, FaultKind, HalError, Heap, Op};

const CHECKS: [DeviceCheck; 17] = [
    ("host objects read as zeros", zeroed),
    (
        "what one CPU mapping writes another one reads",
        cpu_coherent,
    ),
    ("a CPU mapping shows the part that was asked for", cpu_part),
    ("a GPU mapping shows the part that was asked for", gpu_part),
    ("every byte of a large object is its own", own_bytes),
    ("reserving addresses maps nothing", reserved_only),
    (
        "a read-only GPU mapping can be read and not written",
        read_only,
    ),
    (
        "the first and the last page of every zone can be mapped",
        zone_ends,
    ),
    (
        "an object that does not fit is refused with the heap's numbers",
        out_of_memory,
    ),
    ("destroyed objects make room for others", reuse),
    (
        "CPU mappings of VRAM end where the aperture does, those of host memory do not",
        aperture,
    ),
    (
        "imported memory is the caller's own, at the caller's addresses",
        imported,
    ),
    (
        "imported memory is kept until the object is destroyed",
        import_kept,
    ),
    (
        "a part of imported memory is mapped as any other object's",
        import_part,
    ),
    (
        "memory imported by two devices is one, at one address",
        import_twice,
    ),
    (
        "a device reaches memory of another one, at its address",
        shared,
    ),
    (
        "shared memory goes with the last object that shows it",
        shared_last,
    ),
];

/// Runs the suite on one device, which has to be closed.
pub fn run(discovery: &dyn Discovery, device: DeviceId) -> Report {
    Report {
        contract: "memory",
        checks: check_each(discovery, device, &CHECKS),
    }
}

const HEAPS: [Heap; 2] = [Heap::Vram, Heap::Host];
const SMALL: u64 = 4 * PAGE_SIZE;

fn zeroed(bench: &mut Bench) -> Verdict {
    // The second object gets the chance to be made of the dirty pages of the first.
    for _ in 0..2 {
        let mem = bench.gpu.memory.create(Heap::Host, SMALL)?;
        all_bytes("host object", &bench.read(mem, 0, SMALL)?, 0)?;
        bench.write(mem, 0, &[0xff; 4 * PAGE_BYTES])?;
        bench.gpu.release.destroy(mem)?;
    }
    Ok(())
}

fn cpu_coherent(bench: &mut Bench) -> Verdict {
    for heap in HEAPS {
        let mem = bench.gpu.memory.create(heap, SMALL)?;
        let one = bench.gpu.memory.map_cpu(mem, 0, SMALL)?;
        let two = bench.gpu.memory.map_cpu(mem, 0, SMALL)?;
        one.write(SMALL - 5, b"works");
        let mut seen = [0; 5];
        two.read(SMALL - 5, &mut seen);
        same("bytes read", &seen, b"works")?;
        bench.gpu.release.unmap_cpu(one.id())?;
        two.read(SMALL - 5, &mut seen);
        same(
            "bytes read after the first mapping is gone",
            &seen,
            b"works",
        )?;
    }
    Ok(())
}

/// Marks each page of an object with its number, starting with 1.
fn number_pages(bench: &Bench, mem: crate::MemId, pages: u8) -> Verdict {
    let mut offset = 0;
    for page in 1..=pages {
        bench.write(mem, offset, &[page; PAGE_BYTES])?;
        offset += PAGE_SIZE;
    }
    Ok(())
}

fn cpu_part(bench: &mut Bench) -> Verdict {
    for heap in HEAPS {
        let mem = bench.gpu.memory.create(heap, SMALL)?;
        number_pages(bench, mem, 4)?;
        let part = bench.gpu.memory.map_cpu(mem, 2 * PAGE_SIZE, PAGE_SIZE)?;
        same("length of the mapping", part.len(), PAGE_SIZE)?;
        let mut seen = [0; PAGE_BYTES];
        part.read(0, &mut seen);
        all_bytes("third page", &seen, 3)?;
    }
    Ok(())
}

fn gpu_part(bench: &mut Bench) -> Verdict {
    for heap in HEAPS {
        let mem = bench.gpu.memory.create(heap, SMALL)?;
        number_pages(bench, mem, 4)?;
        let part = bench.reserve(2 * PAGE_SIZE)?;
        bench.map(mem, 2 * PAGE_SIZE, part, Access::Read)?;
        let seen = bench.buffer(Heap::Host, 2 * PAGE_SIZE)?;
        bench.run(&[Op::Copy {
            src: Va(part.start()),
            dst: seen.va(),
            len: part.len(),
        }])?;
        let bytes = bench.read(seen.mem, 0, part.len())?;
        let (third, fourth) = bytes.split_at(PAGE_BYTES);
        all_bytes("third page", third, 3)?;
        all_bytes("fourth page", fourth, 4)?;
    }
    Ok(())
}

/// Numbers the 32-bit words of a buffer, so that no two places look alike.
fn numbered(len: u64) -> Vec<u8> {
    let words = u32::try_from(len / 4).expect("buffers of the suites are small");
    (0..words).flat_map(u32::to_le_bytes).collect()
}

fn own_bytes(bench: &mut Bench) -> Verdict {
    const LEN: u64 = 2 << 20;
    // Holes of one page each, in case the back end fills them first.
    let holes = 16;
    let mut pages = Vec::new();
    for _ in 0..2 * holes {
        pages.push(bench.gpu.memory.create(Heap::Vram, PAGE_SIZE)?);
    }
    for mem in pages.into_iter().step_by(2) {
        bench.gpu.release.destroy(mem)?;
    }
    let wanted = numbered(LEN);
    let source = bench.buffer(Heap::Host, LEN)?;
    let target = bench.buffer(Heap::Vram, LEN)?;
    let back = bench.buffer(Heap::Host, LEN)?;
    bench.write(source.mem, 0, &wanted)?;
    bench.run(&[source.copy_to(&target), target.copy_to(&back)])?;
    let found = bench.read(back.mem, 0, LEN)?;
    match found.iter().zip(&wanted).position(|(a, b)| a != b) {
        Some(at) => fail(format!("byte {at} of {LEN} is another one's")),
        None => Ok(()),
    }
}

/// Expects that a read or write of one page stops its channel with this fault.
fn faults(bench: &mut Bench, page: Va, access: Access, kind: FaultKind) -> Verdict {
    let other = bench.buffer(Heap::Host, PAGE_SIZE)?;
    let (src, dst) = match access {
        Access::Read => (page, other.va()),
        Access::Write => (other.va(), page),
    };
    let copy = Op::Copy {
        src,
        dst,
        len: PAGE_SIZE,
    };
    let (channel, fence) = (bench.channel()?, bench.fence()?);
    bench
        .gpu
        .queue
        .submit(channel, &[copy, Op::Signal(fence)])?;
    match bench.gpu.queue.wait(fence, super::bench::PATIENCE) {
        Err(HalError::Fault(fault)) => {
            let found = (fault.channel, fault.kind, fault.at);
            same("fault", found, (channel, kind, Some((page, access))))
        }
        other => fail(format!("{access} at {page} gave {other:?}")),
    }
}

fn reserved_only(bench: &mut Bench) -> Verdict {
    let span = bench.reserve(PAGE_SIZE)?;
    faults(bench, Va(span.start()), Access::Read, FaultKind::Unmapped)?;
    faults(bench, Va(span.start()), Access::Write, FaultKind::Unmapped)
}

fn read_only(bench: &mut Bench) -> Verdict {
    for heap in HEAPS {
        let mem = bench.gpu.memory.create(heap, PAGE_SIZE)?;
        bench.write(mem, 0, &[7; PAGE_BYTES])?;
        let span = bench.reserve(PAGE_SIZE)?;
        bench.map(mem, 0, span, Access::Read)?;
        faults(bench, Va(span.start()), Access::Write, FaultKind::ReadOnly)?;
        all_bytes(
            "content after the write",
            &bench.read(mem, 0, PAGE_SIZE)?,
            7,
        )?;
        let seen = bench.buffer(Heap::Host, PAGE_SIZE)?;
        bench.run(&[Op::Copy {
            src: Va(span.start()),
            dst: seen.va(),
            len: PAGE_SIZE,
        }])?;
        all_bytes("content read", &bench.read(seen.mem, 0, PAGE_SIZE)?, 7)?;
    }
    Ok(())
}

fn zone_ends(bench: &mut Bench) -> Verdict {
    for zone in bench.gpu.info.zones.clone() {
        let last = zone.span.len().checked_sub(PAGE_SIZE);
        let pages = [Some(0), last].map(|at| zone.span.slice(at?, PAGE_SIZE));
        for page in pages.into_iter().flatten() {
            let mem = bench.gpu.memory.create(Heap::Vram, PAGE_SIZE)?;
            bench.gpu.memory.reserve_va(page)?;
            bench.map(mem, 0, page, Access::Write)?;
            bench.run(&[Op::Fill {
                dst: Va(page.start()),
                len: PAGE_SIZE,
                byte: 9,
            }])?;
            all_bytes(zone.name, &bench.read(mem, 0, PAGE_SIZE)?, 9)?;
            // Makes room for the addresses that other steps take.
            bench.gpu.release.unmap_gpu(page)?;
            bench.gpu.release.release_va(page)?;
        }
    }
    Ok(())
}

fn out_of_memory(bench: &mut Bench) -> Verdict {
    let before = bench.gpu.release.counters();
    let size = PAGE.down(bench.gpu.info.vram_bytes) + PAGE_SIZE;
    match bench.gpu.memory.create(Heap::Vram, size) {
        Err(HalError::OutOfMemory {
            heap, needed, free, ..
        }) => {
            same("heap and need", (heap, needed), (Heap::Vram, Some(size)))?;
            if free.is_none_or(|free| free >= size) {
                return fail(format!("refused {size} bytes with {free:?} free"));
            }
        }
        other => return fail(format!("an object larger than VRAM gave {other:?}")),
    }
    same(
        "held after the failure",
        bench.gpu.release.counters(),
        before,
    )?;
    bench.gpu.memory.create(Heap::Vram, PAGE_SIZE)?;
    Ok(())
}

/// A device that is too small for what the suite needs fails for lack of memory.
fn half_of_vram(bench: &Bench) -> u64 {
    PAGE.down(bench.gpu.info.vram_bytes / 2).max(SMALL)
}

fn reuse(bench: &mut Bench) -> Verdict {
    // Half of VRAM at a time: what a driver keeps for itself leaves that much.
    let size = half_of_vram(bench);
    for _ in 0..8 {
        let mem = bench.gpu.memory.create(Heap::Vram, size)?;
        bench.gpu.release.destroy(mem)?;
    }
    Ok(())
}

fn aperture(bench: &mut Bench) -> Verdict {
    let (vram, aperture) = (bench.gpu.info.vram_bytes, bench.gpu.info.aperture_bytes);
    let size = PAGE.down(aperture) + PAGE_SIZE;
    if size > vram / 2 {
        let why = format!("an aperture of {aperture} bytes cannot be exhausted with {vram}");
        return Err(Stop::NotSupported(why));
    }
    let mem = bench.gpu.memory.create(Heap::Vram, size)?;
    refused_by_aperture(bench, mem, 0, size)?;
    let maps = exhaust(bench, mem, PAGE.down(aperture / 4).max(PAGE_SIZE))?;
    let host = bench.gpu.memory.create(Heap::Host, size)?;
    bench.gpu.memory.map_cpu(host, 0, size)?;
    let Some(last) = maps.last() else {
        return fail("not even a part of the aperture could be mapped");
    };
    bench.gpu.release.unmap_cpu(last.id())?;
    bench.gpu.memory.map_cpu(mem, 0, last.len())?;
    Ok(())
}

/// Maps pieces of an object until the aperture is full.
fn exhaust(bench: &Bench, mem: crate::MemId, piece: u64) -> Result<Vec<CpuMapping>, Stop> {
    let mut maps = Vec::new();
    let limit = bench.gpu.info.aperture_bytes / piece;
    for _ in 0..limit {
        match bench.gpu.memory.map_cpu(mem, 0, piece) {
            Ok(map) => maps.push(map),
            Err(HalError::OutOfAperture { .. }) => break,
            Err(other) => return Err(other.into()),
        }
    }
    refused_by_aperture(bench, mem, 0, piece)?;
    Ok(maps)
}

fn refused_by_aperture(bench: &Bench, mem: crate::MemId, offset: u64, len: u64) -> Verdict {
    match bench.gpu.memory.map_cpu(mem, offset, len) {
        Err(HalError::OutOfAperture {
            needed, free, size, ..
        }) => {
            same("need", needed, len)?;
            same("size of the aperture", size, bench.gpu.info.aperture_bytes)?;
            match Span::new(free, len) {
                Some(_) if free <= size => Ok(()),
                _ => fail(format!("{free} bytes free of {size}")),
            }
        }
        other => fail(format!("a mapping past the aperture gave {other:?}")),
    }
}

fn imported(bench: &mut Bench) -> Verdict {
    let host = HostMemory::new(2);
    let own = bench.import(&host.range)?;
    let other = bench.buffer(Heap::Vram, own.span.len())?;
    host.fill(5);
    bench.run(&[own.copy_to(&other), own.fill(6)])?;
    all_bytes("filled by the device", &host.bytes(), 6)?;
    bench.run(&[other.copy_to(&own)])?;
    all_bytes("filled by the caller and copied back", &host.bytes(), 5)
}

fn import_kept(bench: &mut Bench) -> Verdict {
    let before = bench.gpu.release.counters();
    let HostMemory { pages, range } = HostMemory::new(3);
    let gone = std::sync::Arc::downgrade(&pages);
    let own = bench.import(&range)?;
    let mut wanted = before;
    (wanted.objects, wanted.mappings, wanted.ranges) =
        (before.objects + 1, before.mappings + 1, before.ranges + 1);
    (wanted.pages, wanted.pinned) = (before.pages + 3, before.pinned + 3);
    wanted.va_bytes += own.span.len();
    same("held", bench.gpu.release.counters(), wanted)?;
    drop((pages, range));
    bench.run(&[own.fill(1)])?;
    let Some(pages) = gone.upgrade() else {
        return fail("memory went while it was imported");
    };
    bench.free(&own)?;
    same(
        "held after the import",
        bench.gpu.release.counters(),
        before,
    )?;
    let last = pages[2].bytes()[0].load(std::sync::atomic::Ordering::Relaxed);
    same("byte that the device wrote", last, 1)?;
    drop(pages);
    same("owners left", gone.strong_count(), 0)
}

fn import_part(bench: &mut Bench) -> Verdict {
    let host = HostMemory::new(4);
    let mem = bench.gpu.memory.import(&host.range)?;
    number_pages(bench, mem, 4)?;
    let third = host.pages[2].bytes()[7].load(std::sync::atomic::Ordering::Relaxed);
    same("byte that a CPU mapping wrote", third, 3)?;
    let span = bench.reserve(PAGE_SIZE)?;
    bench.map(mem, 2 * PAGE_SIZE, span, Access::Read)?;
    let seen = bench.buffer(Heap::Host, PAGE_SIZE)?;
    let part = Buffer { mem, span };
    bench.run(&[part.copy_to(&seen)])?;
    all_bytes("third page", &bench.read(seen.mem, 0, PAGE_SIZE)?, 3)?;
    faults(bench, Va(span.start()), Access::Write, FaultKind::ReadOnly)
}

fn import_twice(bench: &mut Bench) -> Verdict {
    bench.with_another(|bench, other| {
        let host = HostMemory::new(2);
        let (first, second) = (bench.import(&host.range)?, other.import(&host.range)?);
        same("address on the other device", second.span, first.span)?;
        bench.run(&[first.fill(1)])?;
        let copy = other.buffer(Heap::Vram, second.span.len())?;
        other.run(&[second.copy_to(&copy), second.fill(2)])?;
        let copied = other.read(copy.mem, 0, copy.span.len())?;
        all_bytes("as the other device saw it", &copied, 1)?;
        all_bytes("as the caller sees it", &host.bytes(), 2)?;
        // The one that came first leaves first, and comes again when both have left.
        bench.free(&first)?;
        other.run(&[second.fill(3)])?;
        all_bytes("written by the one that is left", &host.bytes(), 3)?;
        other.free(&second)?;
        let again = bench.import(&host.range)?;
        bench.run(&[again.fill(4)])?;
        all_bytes("imported again", &host.bytes(), 4)
    })
}

/// Shares a buffer of one device with another one, at the same address.
fn share(from: &Bench, with: &Bench, buffer: &Buffer) -> Result<Buffer, Stop> {
    let mem = with.gpu.memory.share(from.gpu.info.id, buffer.mem)?;
    with.gpu.memory.reserve_va(buffer.span)?;
    let shared = Buffer { mem, ..*buffer };
    with.map(mem, 0, buffer.span, Access::Write)?;
    Ok(shared)
}

fn shared(bench: &mut Bench) -> Verdict {
    bench.with_another(|bench, other| {
        for heap in HEAPS {
            let own = bench.buffer(heap, SMALL)?;
            let there = share(bench, other, &own)?;
            other.run(&[there.fill(3)])?;
            all_bytes("filled by the other", &bench.read(own.mem, 0, SMALL)?, 3)?;
            let copy = other.buffer(Heap::Vram, SMALL)?;
            bench.run(&[own.fill(4)])?;
            other.run(&[there.copy_to(&copy)])?;
            all_bytes("copied by the other", &other.read(copy.mem, 0, SMALL)?, 4)?;
            other.free(&there)?;
            bench.run(&[own.fill(5)])?;
            all_bytes("not shared any more", &bench.read(own.mem, 0, SMALL)?, 5)?;
        }
        Ok(())
    })
}

fn shared_last(bench: &mut Bench) -> Verdict {
    bench.with_another(|bench, other| {
        let size = half_of_vram(bench);
        let own = bench.buffer(Heap::Vram, size)?;
        // However much VRAM there is, only the two ends of its half are touched.
        let ends = [0, size - SMALL];
        let end = |of: &Buffer, at| Buffer {
            span: of.span.slice(at, SMALL).expect("inside the object"),
            ..*of
        };
        bench.run(&ends.map(|at| end(&own, at).fill(7)))?;
        let there = share(bench, other, &own)?;
        bench.free(&own)?;
        // What is given away now must not be the memory that is still shown there.
        let next = bench.buffer(Heap::Vram, PAGE_SIZE)?;
        bench.run(&[next.fill(9)])?;
        let seen = other.buffer(Heap::Host, SMALL)?;
        for at in ends {
            other.run(&[end(&there, at).copy_to(&seen)])?;
            let bytes = other.read(seen.mem, 0, SMALL)?;
            all_bytes("after its owner left it", &bytes, 7)?;
        }
        match bench.gpu.memory.create(Heap::Vram, size) {
            Err(HalError::OutOfMemory { .. }) => {}
            other => return fail(format!("memory that is shared was given away: {other:?}")),
        }
        other.free(&there)?;
        bench.gpu.memory.create(Heap::Vram, size)?;
        Ok(())
    })
}
