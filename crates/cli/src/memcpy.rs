//! The speed of the engine's large copies beside that of plain memcpy.

use std::fs;
use std::hint::black_box;
use std::time::Instant;

use vrampager::Pager;
use vrampager_addr::parse_size;

use crate::report::CopySpeed;

/// Requests whose copies are measured against memcpy.
const SAMPLES: u64 = 64;
/// As large as the pieces in which the pager stages what it uploads.
const PIECE: usize = 2 << 20;
const PIECES_PER_SAMPLE: usize = 8;
/// Both buffers are at least this large; more than the caches of most machines.
const BUFFER_MIN: usize = 64 << 20;
/// And not larger, for machines with giant caches and little memory.
const BUFFER_MAX: usize = 256 << 20;

/// Two buffers that are larger than the last-level cache, all their pages touched.
#[derive(Debug)]
struct Memcpy {
    from: Vec<u8>,
    to: Vec<u8>,
    at: usize,
}

impl Memcpy {
    fn new() -> Self {
        let cache = fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size");
        let cache = cache.ok().and_then(|text| parse_size(&text).ok());
        let cache = cache.and_then(|bytes| usize::try_from(bytes).ok());
        let len = cache.unwrap_or(0).clamp(BUFFER_MIN, BUFFER_MAX);
        let len = len.next_multiple_of(PIECE * PIECES_PER_SAMPLE);
        // Not zero: a zeroed allocation may be one shared page, read from the cache.
        Self {
            from: vec![1; len],
            to: vec![2; len],
            at: 0,
        }
    }

    /// Copies some pieces; the median of their bytes per second, so that a piece during which
    /// another process was running does not count.
    fn sample(&mut self) -> f64 {
        let parts = self.at..self.at + PIECE * PIECES_PER_SAMPLE;
        self.at = parts.end % self.from.len();
        let (from, to) = (&self.from[parts.clone()], &mut self.to[parts]);
        let pieces = from.chunks_exact(PIECE).zip(to.chunks_exact_mut(PIECE));
        let mut speeds: Vec<f64> = pieces
            .map(|(from, to)| {
                let start = Instant::now();
                black_box(&mut *to).copy_from_slice(black_box(from));
                bandwidth(from.len() as u64, start.elapsed().as_nanos())
            })
            .collect();
        median(&mut speeds).expect("a sample has pieces")
    }
}

/// Bytes per second; a clock that has not moved counts as one nanosecond.
#[expect(
    clippy::cast_precision_loss,
    reason = "a measurement needs no more than 52 bits"
)]
fn bandwidth(bytes: u64, ns: u128) -> f64 {
    bytes as f64 * 1e9 / ns.max(1) as f64
}

/// The middle value, or the upper one of the two in the middle; `None` of nothing.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The engine's large copies beside memcpy.
#[derive(Debug)]
pub(crate) struct Copies {
    /// Made when it is first needed.
    memcpy: Option<Memcpy>,
    /// The time that a deterministic device takes is its model's, not the machine's.
    virtual_time: bool,
    /// Every how many requests with large copies one is measured.
    every: u64,
    seen: u64,
    engine: Vec<f64>,
    plain: Vec<f64>,
}

impl Copies {
    pub(crate) fn new(pager: &Pager, requests: u64) -> Self {
        Self {
            memcpy: None,
            virtual_time: pager.info().name.contains("mode=deterministic"),
            every: requests.div_ceil(SAMPLES),
            seen: 0,
            engine: Vec::new(),
            plain: Vec::new(),
        }
    }

    /// Takes the large copies of one request, and measures memcpy if it is its turn.
    pub(crate) fn measure(&mut self, bytes: u64, ns: u64) {
        if bytes == 0 || self.virtual_time {
            return;
        }
        if self.seen.is_multiple_of(self.every) {
            self.engine.push(bandwidth(bytes, ns.into()));
            let memcpy = self.memcpy.get_or_insert_with(Memcpy::new);
            self.plain.push(memcpy.sample());
        }
        self.seen += 1;
    }

    pub(crate) fn report(mut self) -> (Option<f64>, Option<CopySpeed>) {
        let pairs = self.engine.iter().zip(&self.plain);
        let mut ratios: Vec<f64> = pairs.map(|(engine, plain)| engine / plain).collect();
        let medians = (median(&mut self.engine), median(&mut self.plain));
        let speed = match medians {
            (Some(engine), Some(memcpy)) => Some(CopySpeed { engine, memcpy }),
            _ => None,
        };
        (median(&mut ratios), speed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_copies_and_the_next_one_goes_on_behind_it() {
        let mut memcpy = Memcpy::new();
        assert!(memcpy.sample() > 0.0);
        let sample = PIECE * PIECES_PER_SAMPLE;
        assert_eq!(memcpy.to[..sample], memcpy.from[..sample]);
        assert_eq!(memcpy.to[sample], 2);
        while memcpy.at != 0 {
            memcpy.sample();
        }
        assert_eq!(memcpy.to.last(), Some(&1));
    }

    #[test]
    fn the_median_of_none_is_none() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
    }
}
