//! Runs allocators for a very long time and fails if their records or holes grow.
//!
//! `cargo run --release -p vrampager-space --example soak [OPERATIONS]`, 10^6 by default, on each
//! of the allocators. What they have settled to after a warm-up and a tenth of the run is the
//! measure for the rest.
#![expect(
    clippy::print_stdout,
    reason = "progress on standard output is the purpose"
)]

use std::process::ExitCode;
use std::time::Instant;

use vrampager_addr::Span;
use vrampager_space::{
    Block, Buddy, BuddyRequest, Content, FakeOffsets, Fit, Mode, RangeAllocator, RangeRequest,
    SpaceFence, SubAllocator, VaSpace, Zone,
};

const LIVE: u64 = 20_000;
const UNITS: u64 = 1 << 24;
/// Steps until everything that is live has been replaced several times, generations too.
const WARM_UP: u64 = 10 * LIVE;
const STEPS_PER_GENERATION: u64 = LIVE / 2;

/// xorshift64*.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let product = u128::from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)) * u128::from(limit);
        u64::try_from(product >> 64).expect("below a u64")
    }

    /// 1 to 1024, every octave equally often.
    fn size(&mut self) -> u64 {
        let octave = 1 << self.below(10);
        octave + self.below(octave)
    }
}

/// An allocator under a trace of random lifetimes.
trait Soaked {
    /// Something goes, once enough is live, and something comes: two operations.
    fn step(&mut self, rng: &mut Rng);

    /// Bytes of records, and number of holes.
    fn size(&mut self) -> (usize, usize);

    /// Compares all records.
    fn check(&self);
}

/// Takes a random element out of a full list.
fn leaving<T>(live: &mut Vec<T>, rng: &mut Rng) -> Option<T> {
    (live.len() as u64 >= LIVE).then(|| {
        let at = usize::try_from(rng.below(LIVE)).expect("few");
        live.swap_remove(at)
    })
}

struct Ranges {
    space: RangeAllocator,
    modes: [Mode; 2],
    live: Vec<u64>,
}

impl Ranges {
    fn new(modes: [Mode; 2]) -> Self {
        Self {
            space: RangeAllocator::new(Span::new(0, UNITS).expect("small")),
            modes,
            live: Vec::new(),
        }
    }
}

impl Soaked for Ranges {
    fn step(&mut self, rng: &mut Rng) {
        if let Some(start) = leaving(&mut self.live, rng) {
            assert!(self.space.remove(start).is_some());
        }
        let mode = self.modes[usize::from(rng.below(2) == 0)];
        let request = RangeRequest::new(rng.size()).mode(mode);
        let span = self.space.insert(&request).expect("half empty");
        self.live.push(span.start());
    }

    fn size(&mut self) -> (usize, usize) {
        (self.space.metadata_bytes(), self.space.holes().count())
    }

    fn check(&self) {
        self.space.check();
    }
}

struct Sub(SubAllocator, Vec<(u64, u64)>);

impl Soaked for Sub {
    fn step(&mut self, rng: &mut Rng) {
        if let Some((offset, size)) = leaving(&mut self.1, rng) {
            self.0.free(offset, size);
        }
        let size = rng.size();
        self.1
            .push((self.0.alloc(size, 1).expect("half empty"), size));
    }

    fn size(&mut self) -> (usize, usize) {
        (self.0.metadata_bytes(), self.0.holes().count())
    }

    fn check(&self) {
        self.0.check();
    }
}

/// Half of what comes back is cleared; a tenth of the requests are contiguous.
struct Pages(Buddy, Vec<Block>);

impl Soaked for Pages {
    fn step(&mut self, rng: &mut Rng) {
        let content = [Content::Dirty, Content::Cleared][usize::from(rng.below(2) == 0)];
        if let Some(block) = leaving(&mut self.1, rng) {
            self.0.free(block.span(), content);
        }
        let request = match rng.below(10) {
            0 => BuddyRequest::new(1 + rng.below(1000)).contiguous(),
            _ => BuddyRequest::new(1 << rng.below(10)).prefer(content),
        };
        self.1.push(self.0.alloc_one(&request).expect("half empty"));
    }

    fn size(&mut self) -> (usize, usize) {
        // There is no list of holes: count the gaps between what is live.
        let mut spans: Vec<Span> = self.1.iter().map(Block::span).collect();
        spans.sort_unstable();
        let gaps = spans
            .windows(2)
            .filter(|pair| pair[0].end() < pair[1].start());
        (self.0.metadata_bytes(), gaps.count())
    }

    fn check(&self) {
        self.0.check();
    }
}

/// Four plugin generations, of which one at a time is closed and followed by another; fences
/// signal a hundred steps late.
struct Addresses {
    space: VaSpace,
    live: Vec<(u64, u32)>,
    steps: u64,
    newest: u32,
}

impl Addresses {
    fn new() -> Self {
        let zones = [Zone::between("units", 1, UNITS)];
        let mut space = VaSpace::new(&zones).expect("one zone");
        space.add_timeline(0).expect("host memory");
        Self {
            space,
            live: Vec::new(),
            steps: 0,
            newest: 4,
        }
    }

    fn retire(&mut self, start: u64) {
        let fence = SpaceFence {
            timeline: 0,
            value: self.steps,
        };
        self.space.retire(start, Some(fence));
    }
}

impl Soaked for Addresses {
    fn step(&mut self, rng: &mut Rng) {
        self.steps += 1;
        self.space.signalled(0, self.steps.saturating_sub(100));
        if self.steps.is_multiple_of(STEPS_PER_GENERATION) {
            let oldest = self.newest - 3;
            let all = core::mem::take(&mut self.live);
            for (start, generation) in all {
                if generation == oldest {
                    self.retire(start);
                } else {
                    self.live.push((start, generation));
                }
            }
            self.space.close_generation(oldest);
            self.newest += 1;
        }
        if let Some((start, _)) = leaving(&mut self.live, rng) {
            self.retire(start);
        }
        let kind = u32::try_from(rng.below(5)).expect("small");
        let generation = if kind == 4 {
            VaSpace::SHARED
        } else {
            self.newest - kind
        };
        let span = self.space.carve("units", rng.size(), 1, generation);
        self.live
            .push((span.expect("half empty").start(), generation));
    }

    fn size(&mut self) -> (usize, usize) {
        let holes = self.space.stats().holes;
        (
            self.space.metadata_bytes(),
            usize::try_from(holes).expect("few"),
        )
    }

    fn check(&self) {
        self.space.check();
    }
}

/// Objects come and go, each with a grant.
struct Offsets(FakeOffsets, Vec<u64>, u64);

impl Soaked for Offsets {
    fn step(&mut self, rng: &mut Rng) {
        if let Some(object) = leaving(&mut self.1, rng) {
            self.0.remove(object);
            self.0.revoke_all(object);
        }
        self.2 += 1;
        self.0.add(self.2, rng.size() << 12).expect("half empty");
        self.0.allow(self.2, rng.below(10)).expect("host memory");
        self.1.push(self.2);
    }

    fn size(&mut self) -> (usize, usize) {
        (self.0.metadata_bytes(), 0)
    }

    fn check(&self) {
        self.0.check();
    }
}

fn soak(name: &str, subject: &mut dyn Soaked, operations: u64) {
    let (mut rng, begin) = (Rng(1), Instant::now());
    (0..WARM_UP).for_each(|_| subject.step(&mut rng));
    let mut settled = None;
    for part in 1..=10 {
        // Each step is two operations: something goes, something comes.
        (0..operations / 20).for_each(|_| subject.step(&mut rng));
        subject.check();
        let (bytes, holes) = subject.size();
        let settled = settled.get_or_insert((bytes, holes));
        assert!(bytes <= settled.0 * 5 / 4, "{name}: records grow: {bytes}");
        assert!(
            holes <= settled.1 * 5 / 4 + 8,
            "{name}: holes grow: {holes}"
        );
        println!("{name}: {part} tenths, {bytes} bytes of records, {holes} holes");
    }
    println!("{name}: {operations} operations in {:.1?}", begin.elapsed());
}

fn main() -> ExitCode {
    let text = std::env::args().nth(1);
    let text = text.as_deref().unwrap_or("1000000");
    let Ok(operations) = text.parse() else {
        eprintln!("soak: `{text}` is no number of operations");
        return ExitCode::from(2);
    };
    let sub = SubAllocator::new(UNITS, 1, Fit::Fast).expect("small");
    let buddy = Buddy::new(UNITS, 1).expect("small");
    let mut subjects: [(&str, Box<dyn Soaked>); 6] = [
        (
            "lowest, highest",
            Box::new(Ranges::new([Mode::Low, Mode::High])),
        ),
        (
            "best, latest",
            Box::new(Ranges::new([Mode::Best, Mode::Evict])),
        ),
        ("sub-allocator", Box::new(Sub(sub, Vec::new()))),
        ("buddy", Box::new(Pages(buddy, Vec::new()))),
        ("zones", Box::new(Addresses::new())),
        (
            "offsets",
            Box::new(Offsets(FakeOffsets::new(), Vec::new(), 0)),
        ),
    ];
    for (name, subject) in &mut subjects {
        soak(name, subject.as_mut(), operations);
    }
    ExitCode::SUCCESS
}
