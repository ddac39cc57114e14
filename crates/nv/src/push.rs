//! Encoding operations as methods of host and copy engine (`clc56f.h`, `clc7b5.h`).
//!
//! Order is made of what is known to work alone: copies are not pipelined, so each one follows
//! the one before. Before a host semaphore tells anybody that copies are over, the copy engine
//! flushes and releases a word of the channel's own, for which the host waits.

use vrampager_addr::Va;
use vrampager_nv_abi::method::{Header, copy, host, launch, reduction, remap, sem, subchannel};

/// Bytes or elements that one launch moves at most; the length has 32 bits.
const LAUNCH_MAX: u64 = 1 << 30;

/// Words of one submission in the making.
#[derive(Debug)]
pub(crate) struct Push {
    pub(crate) words: Vec<u32>,
    /// GPU address of the word that the copy engine releases.
    drained_at: u64,
    /// Its last value asked for, modulo 2^32.
    drained: u32,
    /// Whether copies have been launched since.
    dirty: bool,
}

fn low(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).expect("masked")
}

fn high(value: u64) -> u32 {
    u32::try_from(value >> 32).expect("shifted")
}

impl Push {
    /// An empty submission. `drained` goes on from the submission before.
    pub(crate) fn new(drained_at: u64, drained: u32) -> Self {
        Self {
            words: Vec::new(),
            drained_at,
            drained,
            dirty: false,
        }
    }

    /// What the next submission starts from.
    pub(crate) fn drained(&self) -> u32 {
        self.drained
    }

    fn methods(&mut self, subchannel: u32, first: u32, data: &[u32]) {
        let count = u32::try_from(data.len()).expect("a handful of words");
        self.words
            .push(Header::increasing(subchannel, first, count));
        self.words.extend_from_slice(data);
    }

    /// Binds an engine class to a subchannel.
    pub(crate) fn bind(&mut self, subchannel: u32, class: u32) {
        self.methods(subchannel, host::SET_OBJECT, &[class]);
    }

    fn semaphore(&mut self, address: u64, payload: u64, execute: u32) {
        let data = [
            low(address),
            high(address),
            low(payload),
            high(payload),
            execute,
        ];
        self.methods(subchannel::HOST, host::SEM_ADDR_LO, &data);
    }

    /// Holds the channel until the number at `address` is at least `value`.
    pub(crate) fn acquire(&mut self, address: u64, value: u64) {
        let execute = sem::ACQ_STRICT_GEQ | sem::PAYLOAD_64BIT | sem::ACQUIRE_SWITCH_TSG;
        self.semaphore(address, value, execute);
    }

    /// Raises the number at `address` to `value`, behind all copies; a higher one stays.
    pub(crate) fn raise(&mut self, address: u64, value: u64) {
        self.drain();
        let how = reduction::MAX << sem::REDUCTION_SHIFT | sem::REDUCTION_UNSIGNED;
        self.semaphore(address, value, sem::REDUCTION | sem::PAYLOAD_64BIT | how);
    }

    /// Writes `value` to `address` once the words before have been taken, copies over or not.
    pub(crate) fn mark(&mut self, address: u64, value: u64) {
        self.semaphore(address, value, sem::RELEASE | sem::PAYLOAD_64BIT);
    }

    /// Waits until all copies so far are visible.
    fn drain(&mut self) {
        if !self.dirty {
            return;
        }
        self.dirty = false;
        self.drained = self.drained.wrapping_add(1);
        let (address, value) = (self.drained_at, self.drained);
        let data = [high(address), low(address), value];
        self.methods(subchannel::COPY, copy::SET_SEMAPHORE_A, &data);
        let release = launch::FLUSH | launch::SEMAPHORE_FOUR_WORD << launch::SEMAPHORE_SHIFT;
        self.methods(subchannel::COPY, copy::LAUNCH_DMA, &[release]);
        let execute = sem::ACQ_CIRC_GEQ | sem::ACQUIRE_SWITCH_TSG;
        self.semaphore(address, value.into(), execute);
    }

    fn launch(&mut self, len: u64, flags: u32) {
        self.methods(subchannel::COPY, copy::LINE_LENGTH_IN, &[low(len)]);
        let flags = flags | launch::NON_PIPELINED | launch::SRC_PITCH | launch::DST_PITCH;
        self.methods(subchannel::COPY, copy::LAUNCH_DMA, &[flags]);
        self.dirty = true;
    }

    /// Copies `len` bytes.
    pub(crate) fn copy(&mut self, src: Va, dst: Va, len: u64) {
        let mut done = 0;
        while done < len {
            let step = LAUNCH_MAX.min(len - done);
            let (from, to) = (src.0 + done, dst.0 + done);
            let data = [high(from), low(from), high(to), low(to)];
            self.methods(subchannel::COPY, copy::OFFSET_IN_UPPER, &data);
            self.launch(step, 0);
            done += step;
        }
    }

    /// Writes `byte` over `len` bytes: words where the address allows it, bytes around them.
    pub(crate) fn fill(&mut self, dst: Va, len: u64, byte: u8) {
        let head = (dst.0.wrapping_neg() % 4).min(len);
        let body = (len - head) / 4 * 4;
        let parts = [
            (0, head, 1),
            (head, body, 4),
            (head + body, len - head - body, 1),
        ];
        for (start, len, size) in parts {
            self.fill_elements(dst.0 + start, len, size, byte);
        }
    }

    fn fill_elements(&mut self, dst: u64, len: u64, size: u32, byte: u8) {
        let step_max = LAUNCH_MAX * u64::from(size);
        let mut done = 0;
        while done < len {
            let step = step_max.min(len - done);
            // One constant component made of nothing else.
            let components = remap::CONST_A | (size - 1) << remap::SIZE_SHIFT;
            let constant = u32::from_le_bytes([byte; 4]);
            let data = [constant, 0, components];
            self.methods(subchannel::COPY, copy::SET_REMAP_CONST_A, &data);
            let to = dst + done;
            let data = [high(to), low(to)];
            self.methods(subchannel::COPY, copy::OFFSET_OUT_UPPER, &data);
            self.launch(step / u64::from(size), launch::REMAP);
            done += step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push() -> Push {
        Push::new(0x10_0000_1000, 7)
    }

    #[test]
    fn a_copy_and_its_release_are_the_words_that_a_known_client_submits() {
        let mut push = push();
        push.copy(Va(0x12_3456_7000), Va(0x9A_BCDE_F000), 65536);
        let copy = [
            0x2004_8100,
            0x12,
            0x3456_7000,
            0x9A,
            0xBCDE_F000,
            0x2001_8106,
            65536,
            0x2001_80C0,
            0x182,
        ];
        assert_eq!(push.words, copy);
        push.words.clear();
        push.drain();
        let release = [0x2003_8090, 0x10, 0x1000, 8, 0x2001_80C0, 0x14];
        assert_eq!(push.words[..6], release);
        assert_eq!(push.drained(), 8);
    }

    #[test]
    fn nothing_is_drained_twice() {
        let mut push = push();
        push.copy(Va(0), Va(1 << 20), 1);
        push.drain();
        let len = push.words.len();
        push.drain();
        assert_eq!(push.words.len(), len);
    }

    #[test]
    fn a_long_copy_is_cut_into_launches_that_cover_it() {
        let mut push = push();
        push.copy(Va(0), Va(1 << 40), 3 * LAUNCH_MAX + 5);
        let lengths = push.words.chunks_exact(9).map(|launch| launch[6]);
        let max = low(LAUNCH_MAX);
        assert_eq!(lengths.collect::<Vec<_>>(), [max, max, max, 5]);
    }

    #[test]
    fn a_long_fill_is_cut_into_launches_that_cover_it() {
        let mut push = push();
        let max = 4 * LAUNCH_MAX;
        push.fill(Va(0x1000), 2 * max + 6, 1);
        let launches = push.words.chunks_exact(11);
        let elements: Vec<u32> = launches.map(|launch| launch[8]).collect();
        assert_eq!(elements, [low(LAUNCH_MAX), low(LAUNCH_MAX), 1, 2]);
        let last = push.words.chunks_exact(11).next_back().unwrap();
        let to = u64::from(last[5]) << 32 | u64::from(last[6]);
        assert_eq!(to, 0x1000 + 2 * max + 4, "the bytes behind the last word");
    }

    #[test]
    fn a_fill_covers_its_bytes_whatever_their_alignment() {
        for (start, len) in (0..5).flat_map(|start| (0..12).map(move |len| (start, len))) {
            let mut push = push();
            push.fill(Va(0x1000 + start), len, 1);
            let mut at = 0x1000 + start;
            for launch in push.words.chunks_exact(11) {
                let size = (launch[3] >> remap::SIZE_SHIFT & 3) + 1;
                assert_eq!(u64::from(launch[6]), at);
                assert_eq!(at % u64::from(size), 0, "an element is aligned");
                at += u64::from(launch[8] * size);
            }
            assert_eq!(at, 0x1000 + start + len);
        }
    }
}
