//! Written memory that goes with a model, as the cache of a language model does.

use vrampager::{Buffer, Error, Pager, Submission};
use vrampager_addr::PAGE_SIZE;

/// Most fills of one submission.
const FILLS_MAX: u64 = 512;

/// A buffer that the engine fills anew at each request. It is dirty: evicting it takes a copy.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) buffer: Buffer,
    /// Bytes filled with one value.
    block: u64,
    seed: u64,
    /// How often it has been filled; before that it holds zeros.
    round: u64,
}

impl State {
    pub(crate) fn new(pager: &Pager, name: &str, len: u64, seed: u64) -> Result<Self, Error> {
        let buffer = pager.buffer(name, len).create()?;
        let block = len.div_ceil(FILLS_MAX).next_multiple_of(PAGE_SIZE);
        Ok(Self {
            buffer,
            block,
            seed,
            round: 0,
        })
    }

    /// Adds to `work` what fills it with the next pattern.
    pub(crate) fn fill(&mut self, work: &mut Submission<'_>) -> Result<(), Error> {
        self.round += 1;
        let end = self.buffer.len();
        for number in 0..end.div_ceil(self.block) {
            let offset = number * self.block;
            let len = self.block.min(end - offset);
            work.fill(&self.buffer, offset, len, self.byte(number))?;
        }
        Ok(())
    }

    /// What it should hold from `offset` on.
    pub(crate) fn expected<'a>(&self, offset: u64, into: &'a mut Vec<u8>, len: usize) -> &'a [u8] {
        into.resize(len, 0);
        let mut rest = into.as_mut_slice();
        let mut at = offset;
        while !rest.is_empty() {
            let left = usize::try_from(self.block - at % self.block).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at_mut(left.min(rest.len()));
            now.fill(self.byte(at / self.block));
            at += now.len() as u64;
            rest = later;
        }
        into
    }

    /// The value of one block: another one for each seed, round and place.
    fn byte(&self, block: u64) -> u8 {
        if self.round == 0 {
            return 0;
        }
        let mut mixed = self.seed;
        for word in [self.round, block] {
            // Multiplying by an odd number and folding the high half down mixes all bits.
            mixed = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^= mixed >> 32;
        }
        mixed.to_le_bytes()[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pager() -> Pager {
        let builder = Pager::builder("sim:vram=8M").unwrap();
        builder.host(8 << 20).open().unwrap()
    }

    #[test]
    fn the_engine_writes_what_is_expected_in_every_round() {
        const LEN: u64 = (3 << 20) + 5;
        let pager = pager();
        let mut state = State::new(&pager, "s", LEN, 7).unwrap();
        let mut found = vec![9; usize::try_from(LEN).unwrap()];
        let mut expected = Vec::new();
        let mut seen = Vec::new();
        for round in 0..3 {
            state.buffer.read(0, &mut found).unwrap();
            assert_eq!(found, state.expected(0, &mut expected, found.len()));
            assert_eq!(
                found[4097..9000],
                *state.expected(4097, &mut expected, 4903)
            );
            assert!(!seen.contains(&found), "round {round} repeats a pattern");
            seen.push(found.clone());
            let mut work = pager.submission();
            state.fill(&mut work).unwrap();
            work.submit().unwrap().wait().unwrap();
        }
        assert!(seen[0].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn neighbouring_pages_differ_so_that_a_swap_of_two_is_noticed() {
        let mut state = State::new(&pager(), "s", 1 << 20, 1).unwrap();
        state.round = 1;
        let bytes: Vec<u8> = (0..256).map(|block| state.byte(block)).collect();
        let equal = bytes.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(equal < 8, "{equal} of 255 pairs are equal");
    }
}
