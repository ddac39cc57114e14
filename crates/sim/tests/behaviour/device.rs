//! What a simulated device does beyond the contracts, in both modes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::bench::{Bench, PAGE, TIMEOUT, bytes, copy};
use vrampager_addr::Span;
use vrampager_hal::{
    Access, ChannelKind, Counters, DeviceId, DeviceLossCause, Discovery, Fault, FaultKind,
    HalError, Heap, HostPage, HostRange, Op, Storage, StorageError,
};
use vrampager_sim::{Call, Injection, POISON, SimStorage, Simulator, StorageFault};

const MODES: [&str; 2] = ["mode=threaded", "mode=deterministic"];

#[test]
fn bytes_travel_from_host_to_device_and_back() {
    for mode in MODES {
        let mut bench = Bench::new(&format!("vram=4M,bar=4M,{mode}"));
        let host = bench.buffer(Heap::Host, 1 << 20);
        let device = bench.buffer(Heap::Vram, 1 << 20);
        let back = bench.buffer(Heap::Host, 1 << 20);
        host.cpu.fill(0, 1 << 20, 0x5a);
        let fence = bench.submit(&[copy(&host, &device, 1 << 20), copy(&device, &back, 1 << 20)]);
        bench.gpu.queue.wait(fence, TIMEOUT).unwrap();
        assert!(
            bytes(&back, 0, 1 << 20).iter().all(|&b| b == 0x5a),
            "{mode}"
        );
        assert!(
            bytes(&device, 0, 1 << 20).iter().all(|&b| b == 0x5a),
            "{mode}"
        );
        assert_eq!(bench.device().stats().bulk_bytes, 2 << 20);
    }
}

#[test]
fn scattered_device_memory_looks_contiguous_from_both_sides() {
    for mode in MODES {
        let mut bench = Bench::new(&format!("vram=64K,bar=64K,{mode}"));
        let memory = &bench.gpu.memory;
        let pages: Vec<_> = (0..16)
            .map(|_| memory.create(Heap::Vram, PAGE).unwrap())
            .collect();
        for mem in pages.iter().step_by(2) {
            bench.gpu.release.destroy(*mem).unwrap();
        }
        let scattered = bench.buffer(Heap::Vram, 8 * PAGE);
        let source = bench.buffer(Heap::Host, 8 * PAGE);
        for page in 0..8 {
            source
                .cpu
                .fill(page * PAGE, PAGE, u8::try_from(page + 1).unwrap());
        }
        let fence = bench.submit(&[copy(&source, &scattered, 8 * PAGE)]);
        bench.gpu.queue.wait(fence, TIMEOUT).unwrap();
        assert_eq!(
            bytes(&scattered, 0, 8 * PAGE),
            bytes(&source, 0, 8 * PAGE),
            "{mode}"
        );
    }
}

#[test]
fn the_nth_call_of_each_kind_fails_and_changes_nothing() {
    for call in Call::ALL {
        let mut bench = Bench::new("vram=1M,bar=1M,mode=deterministic");
        let buffer = bench.buffer(Heap::Vram, PAGE);
        let spare = Span::new(1 << 20, PAGE).unwrap();
        bench.gpu.memory.reserve_va(spare).unwrap();
        let before = bench.gpu.release.counters();
        bench.device().inject(Injection::FailCall { call, nth: 1 });
        let (memory, queue, release) = (&bench.gpu.memory, &bench.gpu.queue, &bench.gpu.release);
        let failed = match call {
            Call::Open => continue,
            Call::ReserveVa => memory.reserve_va(Span::new(1 << 24, PAGE).unwrap()),
            Call::Create => memory.create(Heap::Host, PAGE).map(drop),
            Call::MapCpu => memory.map_cpu(buffer.mem, 0, PAGE).map(drop),
            Call::MapGpu => memory.map_gpu(vrampager_hal::GpuMap {
                va: vrampager_addr::Va(spare.start()),
                mem: buffer.mem,
                offset: 0,
                len: PAGE,
                access: Access::Read,
            }),
            Call::CreateTimeline => queue.create_timeline().map(drop),
            Call::CreateChannel => queue.create_channel(ChannelKind::Compute).map(drop),
            Call::Submit => queue.submit(bench.channel, &[]),
            Call::UnmapGpu => release.unmap_gpu(buffer.span),
            Call::UnmapCpu => release.unmap_cpu(buffer.cpu.id()),
            Call::Destroy => release.destroy(buffer.mem),
            Call::ReleaseVa => release.release_va(spare),
            Call::DestroyChannel => release.destroy_channel(bench.channel),
            Call::DestroyTimeline => release.destroy_timeline(bench.timeline),
            Call::Import => {
                let host = HostRange::of(HostPage::zeroed(1)).unwrap();
                memory.import(&host).map(drop)
            }
            Call::Share => memory.share(DeviceId(0), buffer.mem).map(drop),
        };
        assert!(failed.is_err(), "{call:?}");
        assert_eq!(bench.gpu.release.counters(), before, "{call:?}");
    }
}

#[test]
fn a_failed_open_leaves_the_device_free_to_be_opened() {
    let sim = Simulator::new("vram=1M,fault=open:1".parse().unwrap()).unwrap();
    assert!(matches!(
        sim.open(DeviceId(0)),
        Err(HalError::Driver { .. })
    ));
    assert!(sim.open(DeviceId(0)).is_ok());
}

#[test]
fn a_dropped_device_is_closed() {
    let sim = Simulator::new("vram=1M".parse().unwrap()).unwrap();
    drop(sim.open(DeviceId(0)).unwrap());
    assert!(sim.open(DeviceId(0)).is_ok());
}

#[test]
fn a_copy_stopped_in_the_middle_has_copied_exactly_the_bytes_before() {
    for mode in MODES {
        let mut bench = Bench::new(&format!("vram=1M,bar=1M,{mode}"));
        let (src, dst) = (
            bench.buffer(Heap::Host, PAGE),
            bench.buffer(Heap::Vram, PAGE),
        );
        src.cpu.fill(0, PAGE, 1);
        dst.cpu.fill(0, PAGE, 2);
        bench.device().inject(Injection::StopCopy {
            nth: 1,
            after_bytes: 100,
        });
        let fence = bench.submit(&[copy(&src, &dst, PAGE)]);
        let fault = Fault {
            channel: bench.channel,
            kind: FaultKind::CopyEngine,
            at: Some((dst.va.offset(100), Access::Write)),
        };
        let waited = bench.gpu.queue.wait(fence, TIMEOUT);
        assert_eq!(waited, Err(HalError::Fault(fault)), "{mode}");
        assert_eq!(bench.gpu.queue.take_faults(), [fault]);
        assert_eq!(bytes(&dst, 99, 2), [1, 2]);
    }
}

#[test]
fn a_lost_device_refuses_everything_but_release_and_can_be_reopened() {
    for mode in MODES {
        let mut bench = Bench::new(&format!("vram=1M,bar=1M,{mode}"));
        let buffer = bench.buffer(Heap::Vram, PAGE);
        let cause = DeviceLossCause::Hung;
        bench
            .device()
            .inject(Injection::LoseDevice { nth: 2, cause });
        let fill = Op::Fill {
            dst: buffer.va,
            len: PAGE,
            byte: 1,
        };
        let fence = bench.submit(&[fill, fill]);
        let lost = Err(HalError::DeviceLost(cause));
        assert_eq!(bench.gpu.queue.wait(fence, TIMEOUT), lost, "{mode}");
        assert_eq!(bench.gpu.queue.completed(bench.timeline), 0);
        assert_eq!(bench.gpu.memory.create(Heap::Host, PAGE).map(drop), lost);
        bench.free(&buffer);
        bench.gpu.release.destroy_channel(bench.channel).unwrap();
        bench.gpu.release.destroy_timeline(bench.timeline).unwrap();
        assert_eq!(bench.gpu.release.close(), Counters::default());
        assert!(bench.sim.open(DeviceId(0)).is_ok());
    }
}

#[test]
fn freed_device_memory_is_poisoned_in_deterministic_mode() {
    let mut bench = Bench::new("vram=4K,bar=4K,mode=deterministic");
    let old = bench.buffer(Heap::Vram, PAGE);
    old.cpu.fill(0, PAGE, 7);
    bench.free(&old);
    let reused = bench.buffer(Heap::Vram, PAGE);
    assert_eq!(bytes(&reused, 0, 2), [POISON; 2]);
}

#[test]
fn a_wait_that_nothing_can_end_jumps_to_its_deadline() {
    let mut bench = Bench::new("vram=1M,mode=deterministic");
    let fence = bench.submit(&[Op::Wait(vrampager_hal::Fence {
        timeline: bench.timeline,
        value: 9,
    })]);
    let before = bench.device().now_ns();
    let waited = bench.gpu.queue.wait(fence, Duration::from_secs(3600));
    assert!(matches!(waited, Err(HalError::Timeout { .. })));
    assert!(bench.device().now_ns() - before >= 3_600_000_000_000);
}

#[test]
fn a_deterministic_device_gets_on_with_its_work_while_it_is_polled() {
    let mut bench = Bench::new("vram=1M,mode=deterministic");
    let fence = bench.submit(&[]);
    let done = (0..1_000).any(|_| bench.gpu.queue.completed(fence.timeline) == fence.value);
    assert!(done);
}

#[test]
fn two_channels_of_one_kind_do_not_block_each_other() {
    for mode in MODES {
        let mut bench = Bench::new(&format!("vram=1M,bar=1M,{mode}"));
        let gate = vrampager_hal::Fence {
            timeline: bench.gpu.queue.create_timeline().unwrap(),
            value: 1,
        };
        let held = bench.submit(&[Op::Wait(gate)]);
        let other = bench.gpu.queue.create_channel(ChannelKind::Copy).unwrap();
        bench.gpu.queue.submit(other, &[Op::Signal(gate)]).unwrap();
        assert_eq!(bench.gpu.queue.wait(held, TIMEOUT), Ok(()), "{mode}");
    }
}

#[test]
fn a_bar_smaller_than_device_memory_limits_cpu_mappings_of_device_memory_only() {
    let bench = Bench::new("vram=64K,bar=8K");
    let mem = bench.gpu.memory.create(Heap::Vram, 64 << 10).unwrap();
    let first = bench.gpu.memory.map_cpu(mem, 0, 8192).unwrap();
    assert_eq!(
        bench.gpu.memory.map_cpu(mem, 8192, PAGE).map(drop),
        Err(HalError::OutOfAperture {
            stage: "map-cpu",
            needed: PAGE,
            free: 0,
            size: 8192
        })
    );
    let host = bench.gpu.memory.create(Heap::Host, 1 << 20).unwrap();
    assert!(bench.gpu.memory.map_cpu(host, 0, 1 << 20).is_ok());
    bench.gpu.release.unmap_cpu(first.id()).unwrap();
    assert!(bench.gpu.memory.map_cpu(mem, 8192, 8192).is_ok());
}

#[test]
fn a_broken_request_panics_and_harms_nobody_else() {
    for mode in MODES {
        let mut bench = Bench::new(&format!("vram=1M,bar=1M,{mode}"));
        let buffer = bench.buffer(Heap::Vram, PAGE);
        let before = bench.gpu.release.counters();
        let release = bench.gpu.release.clone();
        let broken = catch_unwind(AssertUnwindSafe(|| release.destroy(buffer.mem)));
        assert!(broken.is_err(), "a mapped object was destroyed");
        let broken = catch_unwind(AssertUnwindSafe(|| release.release_va(buffer.span)));
        assert!(broken.is_err(), "a range was released under its mapping");
        assert_eq!(bench.gpu.release.counters(), before);
        let fill = Op::Fill {
            dst: buffer.va,
            len: PAGE,
            byte: 1,
        };
        let fence = bench.submit(&[fill]);
        assert_eq!(bench.gpu.queue.wait(fence, TIMEOUT), Ok(()), "{mode}");
        bench.free(&buffer);
    }
}

#[test]
fn threads_with_channels_of_their_own_do_not_disturb_each_other() {
    const LEN: u64 = 256 << 10;
    let mut bench = Bench::new("vram=8M,bar=8M,ring=4");
    let buffers: Vec<_> = (0..8)
        .map(|_| (bench.buffer(Heap::Host, LEN), bench.buffer(Heap::Vram, LEN)))
        .collect();
    let queue = &bench.gpu.queue;
    std::thread::scope(|scope| {
        for (n, (host, device)) in (1_u8..).zip(&buffers) {
            scope.spawn(move || {
                let kind = [ChannelKind::Copy, ChannelKind::Compute][usize::from(n % 2)];
                let channel = queue.create_channel(kind).unwrap();
                let timeline = queue.create_timeline().unwrap();
                for value in 1..=50 {
                    let fence = vrampager_hal::Fence { timeline, value };
                    let fill = Op::Fill {
                        dst: host.va,
                        len: LEN,
                        byte: n.wrapping_mul(17),
                    };
                    let ops = [fill, copy(host, device, LEN), Op::Signal(fence)];
                    queue.submit(channel, &ops).unwrap();
                    queue.wait(fence, TIMEOUT).unwrap();
                }
                assert!(
                    bytes(device, 0, LEN)
                        .iter()
                        .all(|&b| b == n.wrapping_mul(17))
                );
            });
        }
    });
}

#[test]
fn destroying_a_channel_waits_for_the_operation_that_runs() {
    const LEN: u64 = 32 << 20;
    let mut bench = Bench::new("vram=64M,bar=64M");
    let (src, dst) = (bench.buffer(Heap::Vram, LEN), bench.buffer(Heap::Host, LEN));
    for byte in 1..=4 {
        src.cpu.fill(0, LEN, byte);
        let channel = bench.gpu.queue.create_channel(ChannelKind::Copy).unwrap();
        let before = bench.device().stats();
        bench
            .gpu
            .queue
            .submit(channel, &[copy(&src, &dst, LEN)])
            .unwrap();
        while bench.device().stats().ops == before.ops {
            std::thread::yield_now();
        }
        bench.gpu.release.destroy_channel(channel).unwrap();
        let copied = bench.device().stats().copied_bytes - before.copied_bytes;
        assert_eq!(copied, LEN);
        assert_eq!(bytes(&dst, LEN - 1, 1), [byte]);
    }
}

#[test]
fn storage_keeps_what_was_written_and_fails_as_ordered() {
    let mut bench = Bench::new("vram=1M,mode=deterministic");
    let buffer = bench.buffer(Heap::Host, 2 * PAGE);
    let file = SimStorage::new(3 * PAGE);
    buffer.cpu.fill(0, PAGE, 0x11);
    assert_eq!(file.write(100, &buffer.cpu, 0, PAGE), Ok(()));
    assert_eq!(file.read(99, &buffer.cpu, PAGE, PAGE), Ok(()));
    assert_eq!(bytes(&buffer, PAGE, 2), [0, 0x11]);

    file.fail_write(1, StorageFault::NoSpace);
    let (offset, len) = (0, PAGE);
    let full = Err(StorageError::NoSpace { offset, len });
    assert_eq!(file.write(offset, &buffer.cpu, 0, len), full);
    assert_eq!(file.read(offset, &buffer.cpu, PAGE, len), Ok(()));
    assert_eq!(bytes(&buffer, 2 * PAGE - 1, 1), [POISON]);
    assert_eq!(file.write(offset, &buffer.cpu, 0, len), Ok(()));

    file.fail_read(2, StorageFault::Io(std::io::ErrorKind::Other));
    assert_eq!(file.read(offset, &buffer.cpu, 0, len), Ok(()));
    let failed = file.read(offset, &buffer.cpu, 0, len);
    assert!(matches!(failed, Err(StorageError::Io { .. })));

    let (offset, len) = (2 * PAGE, 2 * PAGE);
    let past = Err(StorageError::NoSpace { offset, len });
    assert_eq!(file.write(offset, &buffer.cpu, 0, len), past);
    let truncated = Err(StorageError::Truncated { offset, len });
    assert_eq!(file.read(offset, &buffer.cpu, 0, len), truncated);
}

#[test]
fn read_only_storage_gives_its_content_and_takes_nothing() {
    let mut bench = Bench::new("vram=1M,mode=deterministic");
    let buffer = bench.buffer(Heap::Host, PAGE);
    let file = SimStorage::read_only(b"content");
    assert_eq!(file.read(3, &buffer.cpu, 0, 4), Ok(()));
    assert_eq!(bytes(&buffer, 0, 4), b"tent");
    assert_eq!(
        file.write(0, &buffer.cpu, 0, 1),
        Err(StorageError::ReadOnly)
    );
}
