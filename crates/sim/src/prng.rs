/// `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
///
/// Own code, so that no upgrade of a crate changes what a seed means.
#[derive(Clone, Debug)]
pub(crate) struct Prng {
    state: u64,
}

impl Prng {
    /// An independent stream of `seed` for one purpose.
    pub(crate) fn stream(seed: u64, purpose: u64) -> Self {
        let mut outer = Self { state: seed };
        let start = outer.next();
        Self {
            state: start ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    /// The next 64 bits. Wrapping is the algorithm.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An index below `bound`. The bias of the modulo is irrelevant at these sizes.
    pub(crate) fn index(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("usize has at most 64 bits");
        usize::try_from(self.next() % bound).expect("smaller than a usize")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_numbers_for_ever() {
        let mut prng = Prng { state: 1_234_567 };
        // Test vector of the reference implementation.
        assert_eq!(prng.next(), 6_457_827_717_110_365_317);
        assert_eq!(prng.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn streams_of_one_seed_differ() {
        assert_ne!(Prng::stream(7, 0).next(), Prng::stream(7, 1).next());
    }
}
