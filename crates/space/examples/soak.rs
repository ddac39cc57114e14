//! Runs allocators for a very long time and fails if their records grow.
//!
//! `cargo run --release -p vrampager-space --example soak [OPERATIONS]`, 10^8 by default.
#![expect(
    clippy::print_stdout,
    reason = "progress on standard output is the purpose"
)]

use vrampager_addr::Span;
use vrampager_space::{Fit, Mode, RangeAllocator, RangeRequest, SubAllocator};

const LIVE: u64 = 20_000;
const UNITS: u64 = 1 << 24;

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

/// What the allocators need to remember, and how cut up their spaces are.
#[derive(Debug)]
struct Size {
    nodes: usize,
    range_holes: usize,
    sub_bytes: usize,
    sub_holes: usize,
}

/// Two allocators under the same trace, and for each live range its places and its length.
struct Pair {
    ranges: RangeAllocator,
    sub: SubAllocator,
    live: Vec<(u64, u64, u64)>,
}

impl Pair {
    fn size(&self) -> Size {
        Size {
            nodes: self.ranges.metadata_nodes(),
            range_holes: self.ranges.holes().count(),
            sub_bytes: self.sub.metadata_bytes(),
            sub_holes: self.sub.holes().count(),
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        if self.live.len() as u64 >= LIVE {
            let index = usize::try_from(rng.below(LIVE)).expect("few");
            let (start, offset, size) = self.live.swap_remove(index);
            assert!(self.ranges.remove(start).is_some());
            self.sub.free(offset, size);
        }
        let size = rng.size();
        let mode = if rng.below(2) == 0 {
            Mode::Low
        } else {
            Mode::High
        };
        let range = self
            .ranges
            .insert(&RangeRequest::new(size).mode(mode))
            .expect("half empty");
        let offset = self.sub.alloc(size, 1).expect("half empty");
        self.live.push((range.start(), offset, size));
    }
}

fn main() {
    let operations: u64 = std::env::args().nth(1).map_or(100_000_000, |text| {
        text.parse()
            .expect("the argument is a number of operations")
    });
    let mut rng = Rng(1);
    let mut pair = Pair {
        ranges: RangeAllocator::new(Span::new(0, UNITS).expect("small")),
        sub: SubAllocator::new(UNITS, 1, Fit::Fast).expect("small"),
        live: Vec::new(),
    };
    // Each step is two operations: one range goes, one comes.
    let tenth = operations / 20;
    (0..tenth).for_each(|_| pair.step(&mut rng));
    let settled = pair.size();
    println!("after a tenth: {settled:?}");
    for part in 2..=10 {
        (0..tenth).for_each(|_| pair.step(&mut rng));
        pair.ranges.check();
        pair.sub.check();
        let size = pair.size();
        println!("after {part} tenths: {size:?}");
        assert!(size.nodes <= settled.nodes * 5 / 4, "tree nodes grow");
        assert!(
            size.range_holes <= settled.range_holes * 5 / 4,
            "holes grow"
        );
        assert!(size.sub_holes <= settled.sub_holes * 5 / 4, "holes grow");
        assert_eq!(size.sub_bytes, settled.sub_bytes, "records grow");
    }
}
