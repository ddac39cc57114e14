//! The window in host memory through which the engine shows what buffers hold.

use vrampager::{Buffer, Error, Pager, Placement, Submitted};

/// Most bytes that one submission copies.
const SLOT_MAX: u64 = 8 << 20;
const SLOT_MIN: u64 = 64 << 10;
/// Bytes handed out at a time: they stay in the cache until they have been looked at.
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
        for slice in slices {
            let mut done = 0;
            while done < slice.len {
                let len = usize::try_from(slice.len - done).map_or(BLOCK, |len| len.min(BLOCK));
                let block = &mut self.block[..len];
                slot.read(slice.at + done, block)?;
                look(slice.item, slice.offset + done, block)?;
                done += len as u64;
            }
        }
        Ok(())
    }
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
        let pager = Pager::builder("sim:vram=1M").unwrap().host(2 << 20).open();
        let pager = pager.unwrap();
        let make = |name, len: u64, byte| {
            let buffer = pager.buffer(name, len).create().unwrap();
            let bytes = vec![byte; usize::try_from(len).unwrap()];
            buffer.write(0, &bytes).unwrap();
            buffer
        };
        let (small, large) = (make("small", 5, 1), make("large", 300_000, 2));
        let mut window = Window::new(&pager, 2 << 20).unwrap();

        let mut shown = [Vec::new(), Vec::new()];
        window
            .show(&pager, &[&small, &large], |item, offset, bytes| {
                assert_eq!(offset, shown[item].len() as u64);
                shown[item].extend_from_slice(bytes);
                Ok::<(), Error>(())
            })
            .unwrap();
        assert_eq!(shown, [vec![1; 5], vec![2; 300_000]]);
    }
}
