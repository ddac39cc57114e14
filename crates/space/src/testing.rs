//! What tests of several modules need.

mod rng;

pub(crate) use rng::Rng;

/// A number from a generator as an index.
pub(crate) fn index(number: u64) -> usize {
    usize::try_from(number).expect("test spaces are small")
}
