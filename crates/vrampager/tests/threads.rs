//! Many threads on one device that is too small for them.
//!
//! `VRAMPAGER_STRESS_SECONDS` makes the first test go on for at least that long.
#![expect(clippy::unwrap_used, reason = "a step that fails ends the test")]

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use vrampager::{Buffer, Error, Pager};

const MIB: u64 = 1 << 20;
const THREADS: u8 = 16;
/// Enough that every thread has been evicted by the others many times.
const ROUNDS: u32 = 40;

/// splitmix64 (Steele, Lea, Flood 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn is_all(buffer: &Buffer, byte: u8) -> Result<bool, Error> {
    let mut bytes = vec![0; usize::try_from(buffer.len()).unwrap()];
    buffer.read(0, &mut bytes)?;
    Ok(bytes.iter().all(|&each| each == byte))
}

/// One thread's share: fills, copies from a buffer all share, CPU writes; every result verified.
fn work(pager: &Pager, shared: &[Buffer], me: u8, until: Instant) -> Result<u64, Error> {
    let mine: Vec<Buffer> = (0..3)
        .map(|i| {
            pager
                .buffer(&format!("t{me}/{i}"), MIB + u64::from(me) * 100)
                .create()
        })
        .collect::<Result<_, _>>()?;
    let mut content = [0_u8; 3];
    let mut state = u64::from(me);
    let mut wrong = 0;
    let mut rounds = 0;
    while rounds < ROUNDS || Instant::now() < until {
        rounds += 1;
        let which = usize::try_from(next(&mut state) % 3).unwrap();
        let (buffer, byte) = (&mine[which], u8::try_from(next(&mut state) % 251).unwrap());
        match next(&mut state) % 3 {
            0 => {
                let mut job = pager.submission();
                job.fill(buffer, 0, buffer.len(), byte)?.submit()?.wait()?;
                content[which] = byte;
            }
            1 => {
                let from = usize::from(byte) % shared.len();
                let mut job = pager.submission();
                job.copy((&shared[from], 0), (buffer, 0), MIB)?;
                let rest = buffer.len() - MIB;
                job.fill(buffer, MIB, rest, u8::try_from(from).unwrap())?
                    .submit()?
                    .wait()?;
                content[which] = u8::try_from(from).unwrap();
            }
            _ => {
                buffer.write(0, &vec![byte; usize::try_from(buffer.len()).unwrap()])?;
                content[which] = byte;
            }
        }
        let check = usize::try_from(next(&mut state) % 3).unwrap();
        wrong += u64::from(!is_all(&mine[check], content[check])?);
    }
    Ok(wrong)
}

#[test]
fn sixteen_threads_oversubscribe_one_device_without_error_loss_or_leak() {
    // 48 buffers of a good MiB and 4 shared ones: three times VRAM, more than VRAM and host
    // memory together, so that the swap file is used too.
    let dir = tempfile::tempdir().unwrap();
    let builder = Pager::builder("sim:vram=16M,bar=4M").unwrap();
    let pager = builder
        .host(24 * MIB)
        .gtt(12 * MIB)
        .swap(dir.path(), 64 * MIB)
        .open()
        .unwrap();
    let shared: Vec<Buffer> = (0..4)
        .map(|i| pager.buffer(&format!("shared/{i}"), MIB).create().unwrap())
        .collect();
    for (byte, buffer) in (0..).zip(&shared) {
        buffer
            .write(0, &vec![byte; usize::try_from(MIB).unwrap()])
            .unwrap();
    }
    let seconds = std::env::var("VRAMPAGER_STRESS_SECONDS").map_or(0, |text| text.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(seconds);
    let start = Barrier::new(usize::from(THREADS));
    let wrong: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|me| {
                let (pager, shared, start) = (&pager, &shared, &start);
                scope.spawn(move || {
                    start.wait();
                    work(pager, shared, me, until).unwrap()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    pager.check();
    let totals = pager.stats().manager.totals;
    drop(shared);
    let left = pager.close().unwrap();
    assert_eq!(wrong, 0, "every byte read is the byte last written");
    assert!(
        totals.swap_written > 0,
        "the swap file was needed: {totals:?}"
    );
    assert!(left.is_zero(), "left on the device: {left}");
}

/// Each of two threads needs both buffers, named in opposite order, and only one fits at a time
/// beside the other thread's own (mission: no deadlock; TTM K2).
#[test]
fn opposite_orders_of_naming_buffers_never_deadlock() {
    let pager = Pager::builder("sim:vram=4M")
        .unwrap()
        .host(16 * MIB)
        .open()
        .unwrap();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|n| pager.buffer(n, MIB).create().unwrap());
    let [e, f] = ["e", "f"].map(|n| pager.buffer(n, MIB).create().unwrap());
    thread::scope(|scope| {
        for order in [
            [&a, &b, &e, &c],
            [&b, &a, &f, &d],
            [&c, &e, &d, &f],
            [&f, &d, &c, &a],
        ] {
            let pager = &pager;
            scope.spawn(move || {
                for _ in 0..200 {
                    let mut job = pager.submission();
                    for buffer in order {
                        job.write(buffer).unwrap();
                    }
                    job.submit().unwrap();
                }
            });
        }
    });
    pager.check();
}
