//! Written memory that goes with a model, as the cache of a language model does.

use vrampager::{Buffer, Error, Pager};
use vrampager_addr::PAGE_SIZE;

/// Bytes of one buffer: a cache has one for each layer, and small ones can be evicted where a
/// large one could not.
const PIECE: u64 = 256 << 10;

/// Buffers that the engine fills anew at each request. They are dirty: evicting them takes copies.
#[derive(Debug)]
pub(crate) struct State {
    pieces: Vec<Buffer>,
    seed: u64,
    /// How often they have been filled; before that they hold zeros.
    round: u64,
}

impl State {
    /// `len` bytes in all; none is a state without buffers.
    pub(crate) fn new(pager: &Pager, name: &str, len: u64, seed: u64) -> Result<Self, Error> {
        let pieces = (0..len.div_ceil(PIECE)).map(|number| {
            let len = PIECE.min(len - number * PIECE);
            pager.buffer(&format!("{name}.{number}"), len).create()
        });
        Ok(Self {
            pieces: pieces.collect::<Result<_, _>>()?,
            seed,
            round: 0,
        })
    }

    pub(crate) fn pieces(&self) -> &[Buffer] {
        &self.pieces
    }

    /// Has the engine fill the pieces with the next pattern, page by page. Each piece is work of
    /// its own: all of them together need not fit in VRAM.
    pub(crate) fn write(&mut self, pager: &Pager) -> Result<(), Error> {
        self.round += 1;
        for (number, piece) in (0..).zip(&self.pieces) {
            let mut work = pager.submission();
            for page in 0..piece.len().div_ceil(PAGE_SIZE) {
                let offset = page * PAGE_SIZE;
                let len = PAGE_SIZE.min(piece.len() - offset);
                let byte = self.byte(number * PIECE + offset);
                work.fill(piece, offset, len, byte)?;
            }
            work.submit()?;
        }
        Ok(())
    }

    /// What piece `number` should hold from `offset` on.
    pub(crate) fn expected<'a>(
        &self,
        number: u64,
        offset: u64,
        into: &'a mut Vec<u8>,
        len: usize,
    ) -> &'a [u8] {
        into.resize(len, 0);
        let mut rest = into.as_mut_slice();
        let mut at = number * PIECE + offset;
        while !rest.is_empty() {
            let left = usize::try_from(PAGE_SIZE - at % PAGE_SIZE).expect("at most a page");
            let (now, later) = rest.split_at_mut(left.min(rest.len()));
            now.fill(self.byte(at));
            at += now.len() as u64;
            rest = later;
        }
        into
    }

    /// The value of the page that byte `at` is on: another one for each seed, round and page.
    fn byte(&self, at: u64) -> u8 {
        if self.round == 0 {
            return 0;
        }
        let mut mixed = self.seed;
        for word in [self.round, at / PAGE_SIZE] {
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
        let pager = pager();
        let mut state = State::new(&pager, "s", 2 * PIECE + 4101, 7).unwrap();
        let last = &state.pieces[2];
        assert_eq!((last.name(), last.len()), ("s.2", 4101));
        let (mut found, mut expected) = (vec![9; 4101], Vec::new());
        let mut seen = Vec::new();
        for round in 0..3 {
            state.pieces[2].read(0, &mut found).unwrap();
            assert_eq!(found, state.expected(2, 0, &mut expected, 4101));
            assert_eq!(
                found[4000..4100],
                *state.expected(2, 4000, &mut expected, 100)
            );
            assert!(!seen.contains(&found), "round {round} repeats a pattern");
            seen.push(found.clone());
            state.write(&pager).unwrap();
        }
        assert!(seen[0].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn neighbouring_pages_differ_so_that_a_swap_of_two_is_noticed() {
        let mut state = State::new(&pager(), "s", 1, 1).unwrap();
        state.round = 1;
        let bytes: Vec<u8> = (0..256).map(|page| state.byte(page * PAGE_SIZE)).collect();
        let equal = bytes.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(equal < 8, "{equal} of 255 pairs are equal");
    }

    #[test]
    fn no_bytes_need_no_buffer() {
        assert!(State::new(&pager(), "s", 0, 1).unwrap().pieces().is_empty());
    }
}
