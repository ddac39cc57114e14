//! Shared by the integration tests.

#[path = "../../src/testing/rng.rs"]
mod rng;

pub(crate) use rng::Rng;

impl Rng {
    pub(crate) fn shuffled(&mut self, count: u64) -> Vec<u64> {
        let mut all: Vec<u64> = (0..count).collect();
        for last in (1..all.len()).rev() {
            let other = usize::try_from(self.below(last as u64 + 1)).unwrap();
            all.swap(last, other);
        }
        all
    }
}
