//! The window in host memory through which the engine shows what buffers hold.

use vrampager::{Buffer, Error, Pager, Placement, Submitted};

/// Most bytes that one submission copies.
const SLOT_MAX: u64 = 8 << 20;
const SLOT_MIN: u64 = 64 << 10;
/// Most bytes read at a time: they stay in the cache until they have been looked at.
const BLOCK: usize = 256 << 10;

/// A part of one buffer, and where in the slot it is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Slice {
    /// Index of the buffer.
    item: usize,
    offset: u64,
    len: u64,
    at: u64,
}

/// Packs buffers of these sizes into slots of `capacity` bytes, cutting them where a slot ends.
fn plan(lens: impl IntoIterator<Item = u64>, capacity: u64) -> Vec<Vec<Slice>> {
    let mut slots: Vec<Vec<Slice>> = Vec::new();
    let mut at = capacity;
    for (item, end) in lens.into_iter().enumerate() {
        let mut offset = 0;
        while offset < end {
            if at == capacity {
                slots.push(Vec::new());
                at = 0;
            }
            let len = (end - offset).min(capacity - at);
            let slot = slots.last_mut().expect("pushed for the first byte");
            slot.push(Slice {
                item,
                offset,
                len,
                at,
            });
            (offset, at) = (offset + len, at + len);
        }
    }
    slots
}

/// Two slots: the engine fills one while the other is looked at.
#[derive(Debug)]
pub(crate) struct Window {
    slots: [Buffer; 2],
    block: Vec<u8>,
}

impl Window {
    /// A window that takes at most an eighth of `host` bytes of host memory, if that is enough.
    pub(crate) fn new(pager: &Pager, host: u64) -> Result<Self, Error> {
        let len = (host / 16).clamp(SLOT_MIN, SLOT_MAX);
        let slot = |name| {
            let buffer = pager.buffer(name, len);
            buffer.placement(Placement::gtt()).create()
        };
        Ok(Self {
            slots: [slot("window 0")?, slot("window 1")?],
            block: vec![0; BLOCK],
        })
    }

    /// Has the engine copy every byte of `buffers` into the window, and hands them to `look` with
    /// the index of their buffer and their offset in it.
    pub(crate) fn show<E: From<Error>>(
        &mut self,
        pager: &Pager,
        buffers: &[&Buffer],
        mut look: impl FnMut(usize, u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let plans = plan(buffers.iter().map(|b| b.len()), self.slots[0].len());
        let mut last: Option<(usize, Submitted)> = None;
        for (number, slices) in plans.iter().enumerate() {
            let slot = &self.slots[number % 2];
            let mut work = pager.submission();
            for slice in slices {
                let from = (buffers[slice.item], slice.offset);
                work.copy(from, (slot, slice.at), slice.len)?;
            }
            let running = work.submit()?;
            if let Some((number, done)) = last.replace((number, running)) {
                self.look(number, &done, &plans[number], &mut look)?;
            }
        }
        last.map_or(Ok(()), |(number, done)| {
            self.look(number, &done, &plans[number], &mut look)
        })
    }

    fn look<E: From<Error>>(
        &mut self,
        number: usize,
        done: &Submitted,
        slices: &[Slice],
        look: &mut impl FnMut(usize, u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        done.wait()?;
        let slot = &self.slots[number % 2];
        let end = slices.last().map_or(0, |last| last.at + last.len);
        for start in (0..end).step_by(BLOCK) {
            let len = usize::try_from(end - start).map_or(BLOCK, |len| len.min(BLOCK));
            let block = &mut self.block[..len];
            slot.read(start, block)?;
            let block_end = start + len as u64;
            let first = slices.partition_point(|slice| slice.at + slice.len <= start);
            let shown = slices[first..].iter();
            for slice in shown.take_while(|slice| slice.at < block_end) {
                let (from, to) = (slice.at.max(start), (slice.at + slice.len).min(block_end));
                let part = &block[index(from - start)..index(to - start)];
                look(slice.item, slice.offset + (from - slice.at), part)?;
            }
        }
        Ok(())
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset in a block")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_shows_every_byte_once_and_fills_the_slots_from_the_front() {
        let lens = [3, 10, 1, 4, 25, 7];
        let mut shown = lens.map(|_| 0);
        for slot in plan(lens, 10) {
            let mut at = 0;
            for slice in slot {
                assert_eq!((slice.at, slice.offset), (at, shown[slice.item]));
                shown[slice.item] += slice.len;
                at += slice.len;
            }
            assert!(at <= 10);
        }
        assert_eq!(shown, lens);
        assert_eq!(plan(lens, 10).len(), 5);
    }

    #[test]
    fn nothing_needs_no_slot() {
        assert!(plan([], 10).is_empty());
    }

    #[test]
    fn what_is_shown_is_what_the_buffers_hold() {
        // Slots of 1 MiB: tiny buffers side by side, one over several blocks, one over two slots.
        const LENS: [usize; 5] = [5, 300_000, 1, 600_000, 700_000];
        let pager = Pager::builder("sim:vram=4M").unwrap().host(16 << 20);
        let pager = pager.open().unwrap();
        let held = LENS.map(|len| {
            let bytes = (0..len).map(|at| (at * 31 + at / 251 + len).to_le_bytes()[0]);
            bytes.collect::<Vec<u8>>()
        });
        let buffers = held.each_ref().map(|bytes| {
            let buffer = pager.buffer("b", bytes.len() as u64).create().unwrap();
            buffer.write(0, bytes).unwrap();
            buffer
        });
        let mut window = Window::new(&pager, 16 << 20).unwrap();

        let mut shown = LENS.map(|_| Vec::new());
        let look = |item: usize, offset: u64, bytes: &[u8]| {
            assert_eq!(offset, shown[item].len() as u64);
            shown[item].extend_from_slice(bytes);
            Ok::<(), Error>(())
        };
        window.show(&pager, &buffers.each_ref(), look).unwrap();
        assert!(shown == held);
    }
}
