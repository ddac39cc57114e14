//! What paging costs, beside what plain memory costs, in one run.
//!
//! Each line is the median over rounds in which the two sides alternate, so that a noisy machine
//! slows both. Bandwidth ratios are ours over plain `memcpy` of the same bytes between warm
//! buffers larger than the last-level cache; 1.00 is a copy for free.
#![expect(clippy::print_stdout, reason = "a benchmark reports to its user")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use vrampager::{Buffer, Pager, Placement};

const MIB: u64 = 1 << 20;
const BYTES: usize = 128 << 20;
const ROUNDS: usize = 7;

struct Plain {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Plain {
    fn new() -> Self {
        Self {
            from: vec![1; BYTES],
            to: vec![2; BYTES],
        }
    }

    fn copy(&mut self) -> Duration {
        let start = Instant::now();
        self.to.copy_from_slice(&self.from);
        black_box(&self.to);
        start.elapsed()
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn bandwidth(name: &str, ours: Vec<Duration>, plain: Vec<Duration>) {
    let gbs = |time: Duration| BYTES as f64 / time.as_secs_f64() / 1e9;
    let (ours, plain) = (gbs(median(ours)), gbs(median(plain)));
    println!(
        "{name:<34} {ours:6.2} GB/s  memcpy {plain:6.2} GB/s  ratio {:.2}",
        ours / plain
    );
}

fn latency(
    name: &str,
    mut each: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    const OPS: u32 = 2_000;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..OPS {
            each()?;
        }
        times.push(start.elapsed() / OPS);
    }
    println!("{name:<34} {:6} ns", median(times).as_nanos());
    Ok(())
}

/// Brings buffers in, with the work on the device waited for.
fn bring_in(pager: &Pager, buffers: &[Buffer]) -> Result<Duration, vrampager::Error> {
    let start = Instant::now();
    let mut work = pager.submission();
    for buffer in buffers {
        work.read(buffer)?;
    }
    work.submit()?.wait()?;
    Ok(start.elapsed())
}

/// Two sets of dirty buffers, each as large as VRAM, displace one another: every round evicts one
/// set and brings the other in.
fn dirty(plain: &mut Plain) -> Result<(), Box<dyn Error>> {
    let total = BYTES as u64;
    let pager = Pager::builder(&format!("sim:vram={total}"))?
        .host(total * 2)
        .gtt(total)
        .open()?;
    let set = |name: &str| -> Result<Vec<Buffer>, vrampager::Error> {
        (0..total / (8 * MIB))
            .map(|i| {
                let buffer = pager.buffer(&format!("{name}{i}"), 8 * MIB).create()?;
                buffer.write(0, &vec![3; 8 << 20])?;
                Ok(buffer)
            })
            .collect()
    };
    let sets = [set("a")?, set("b")?];
    let (mut ours, mut base) = (Vec::new(), Vec::new());
    bring_in(&pager, &sets[0])?;
    bring_in(&pager, &sets[1])?;
    for round in 0..ROUNDS {
        // One set goes out and one comes in: two bytes are copied for each byte of the set.
        ours.push(bring_in(&pager, &sets[round % 2])? / 2);
        base.push(plain.copy());
    }
    bandwidth("evict dirty + bring in (per copy)", ours, base);
    Ok(())
}

/// The same with clean buffers: eviction drops, bringing in reads the file.
fn clean(plain: &mut Plain) -> Result<(), Box<dyn Error>> {
    let total = BYTES as u64;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("weights");
    let mut file = File::create(&path)?;
    for i in 0..2 * total / MIB {
        file.write_all(&vec![u8::try_from(i % 256)?; 1 << 20])?;
    }
    let pager = Pager::builder(&format!("sim:vram={total}"))?
        .host(64 * MIB)
        .open()?;
    let backing = pager.file(File::open(&path)?, Path::new("weights"))?;
    let set = |base: u64| -> Result<Vec<Buffer>, vrampager::Error> {
        (0..total / (8 * MIB))
            .map(|i| {
                let at = base + i * 8 * MIB;
                pager
                    .buffer(&format!("w{at}"), 8 * MIB)
                    .backed_by(&backing, at)
                    .create()
            })
            .collect()
    };
    let sets = [set(0)?, set(total)?];
    let (mut ours, mut base, mut read) = (Vec::new(), Vec::new(), Vec::new());
    bring_in(&pager, &sets[0])?;
    bring_in(&pager, &sets[1])?;
    let reader = File::open(&path)?;
    let mut warm = vec![0; BYTES];
    for round in 0..ROUNDS {
        ours.push(bring_in(&pager, &sets[round % 2])?);
        base.push(plain.copy());
        let start = Instant::now();
        reader.read_exact_at(&mut warm, 0)?;
        read.push(start.elapsed());
    }
    bandwidth("drop clean + read file in", ours, base.clone());
    bandwidth("  (plain pread of the same file)", read, base);
    Ok(())
}

fn small() -> Result<(), Box<dyn Error>> {
    let pager = Pager::builder("sim:vram=64M")?.host(64 * MIB).open()?;
    let resident = pager.buffer("resident", 4096).create()?;
    let (a, b) = (
        pager.buffer("a", 48 * MIB).create()?,
        pager.buffer("b", 48 * MIB).create()?,
    );
    latency("validate, resident 4 KiB, and wait", || {
        pager.submission().read(&resident)?.submit()?.wait()?;
        Ok(())
    })?;
    latency("create and drop a buffer", || {
        drop(pager.buffer("short", 4096).create()?);
        Ok(())
    })?;
    latency("write 4 KiB to host pages", || Ok(a.write(0, &[1; 4096])?))?;
    b.move_to(Placement::vram())?;
    latency("write 4 KiB to VRAM", || Ok(b.write(0, &[1; 4096])?))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut plain = Plain::new();
    plain.copy();
    dirty(&mut plain)?;
    clean(&mut plain)?;
    small()
}
