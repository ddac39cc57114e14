use std::time::{Duration, Instant};

use crate::Mode;

/// Time as the device sees it, in nanoseconds since the device was made.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The host's monotonic clock.
    Wall { start: Instant },
    /// Moves only when told to.
    Virtual { now_ns: u64 },
}

impl Clock {
    pub(crate) fn new(mode: Mode) -> Self {
        match mode {
            Mode::Threaded => Self::Wall {
                start: Instant::now(),
            },
            Mode::Deterministic => Self::Virtual { now_ns: 0 },
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        match self {
            Self::Wall { start } => saturating_ns(start.elapsed()),
            Self::Virtual { now_ns } => *now_ns,
        }
    }

    /// Lets virtual time pass; wall time passes by itself.
    pub(crate) fn advance(&mut self, ns: u64) {
        match self {
            Self::Wall { .. } => {}
            // Saturating: a wait "for ever" may jump to the end of time.
            Self::Virtual { now_ns } => *now_ns = now_ns.saturating_add(ns),
        }
    }
}

/// Nanoseconds of a duration; 584 years and more are one value.
pub(crate) fn saturating_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// FNV-1a over everything that happens, each event with its time.
///
/// The hash function is fixed by its published constants, so hashes can be compared between
/// builds; it is no protection against anything but chance.
#[derive(Debug)]
pub(crate) struct EventHash(u64);

impl EventHash {
    pub(crate) const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn fold(&mut self, words: &[u64]) {
        for byte in words.iter().flat_map(|word| word.to_le_bytes()) {
            // Wrapping is the algorithm.
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub(crate) const fn value(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_stands_still_until_advanced() {
        let mut clock = Clock::new(Mode::Deterministic);
        assert_eq!(clock.now_ns(), 0);
        clock.advance(5);
        assert_eq!(clock.now_ns(), 5);
        clock.advance(u64::MAX);
        assert_eq!(clock.now_ns(), u64::MAX);
    }

    #[test]
    fn the_hash_depends_on_order() {
        let (mut a, mut b) = (EventHash::new(), EventHash::new());
        a.fold(&[1, 2]);
        b.fold(&[2, 1]);
        assert_ne!(a.value(), b.value());
    }
}
