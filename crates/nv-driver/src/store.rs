//! The bytes behind memory objects, and the process that calls.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::FileId;

/// Names one piece of memory in a [`Store`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StoreId(pub u64);

/// A place in a piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Which piece.
    pub id: StoreId,
    /// Bytes from its start.
    pub offset: u64,
}

/// Memory could not be made, taken or reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// No memory, descriptors or address space left.
    #[error("no memory left")]
    Exhausted,
    /// The address is not mapped in the calling process, or no longer.
    #[error("bad address")]
    BadAddress,
}

/// Memory that GPU, kernel and processes share.
///
/// # Guarantees
///
/// New memory reads as zero. Accesses of 4 and 8 bytes to their natural alignment are not torn,
/// and are seen by a process in the order in which they were made. Offsets given by the driver
/// are inside the piece.
pub trait Store {
    /// Makes memory of `bytes`.
    ///
    /// # Errors
    ///
    /// [`StoreError::Exhausted`]; nothing was made.
    fn create(&mut self, bytes: u64) -> Result<StoreId, StoreError>;

    /// Takes the pages of the calling process at `address`, as pinning does: they stay readable
    /// and writable here whatever the process does with its mapping.
    ///
    /// # Errors
    ///
    /// [`StoreError`], also if the process itself may not read and write all of them; nothing was
    /// taken.
    fn adopt(&mut self, address: u64, bytes: u64) -> Result<StoreId, StoreError>;

    /// Lets go of a piece of memory.
    fn destroy(&mut self, id: StoreId);

    /// Reads.
    ///
    /// # Errors
    ///
    /// [`StoreError::BadAddress`] if adopted pages went away, [`StoreError::Exhausted`] if the
    /// memory cannot be reached for want of address space.
    fn read(&self, from: Place, into: &mut [u8]) -> Result<(), StoreError>;

    /// Writes.
    ///
    /// # Errors
    ///
    /// As [`Store::read`].
    fn write(&mut self, to: Place, from: &[u8]) -> Result<(), StoreError>;

    /// Copies `bytes`; the ranges may overlap only if both pieces are the same, and then the
    /// result is that of a copy through a buffer.
    ///
    /// # Errors
    ///
    /// As [`Store::read`]; part may have been copied.
    fn copy(&mut self, from: Place, to: Place, bytes: u64) -> Result<(), StoreError>;
}

/// What the driver needs to know of the process that makes a call.
pub trait Process {
    /// The driver's file behind a descriptor; `None` for other descriptors.
    fn file(&self, fd: i32) -> Option<FileId>;

    /// Reads the process's memory.
    ///
    /// # Errors
    ///
    /// [`StoreError::BadAddress`].
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), StoreError>;

    /// Writes the process's memory.
    ///
    /// # Errors
    ///
    /// [`StoreError::BadAddress`].
    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), StoreError>;
}

/// A store in the heap, without system calls: for tests and deterministic simulation.
///
/// Memory is made chunk by chunk on first write, so that a large simulated GPU costs nothing
/// until it is used. There is no process to share with; [`Store::adopt`] makes fresh memory that
/// a test reaches by its identifier, for addresses that have been [lent](HeapStore::lend).
#[derive(Debug, Default)]
pub struct HeapStore {
    pieces: BTreeMap<StoreId, Piece>,
    next: u64,
    lent: Range<u64>,
    full: bool,
}

#[derive(Debug, Default)]
struct Piece {
    chunks: BTreeMap<u64, Box<[u8]>>,
}

const CHUNK: u64 = 64 << 10;

/// Cuts `[offset, offset + len)` at multiples of [`CHUNK`]: chunk index, start in it, length.
fn chunks(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let start = at % CHUNK;
        let take = (CHUNK - start).min(end - at);
        let index = at / CHUNK;
        at += take;
        let small = |value: u64| usize::try_from(value).expect("at most a chunk");
        Some((index, small(start), small(take)))
    })
}

impl HeapStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Pieces alive.
    #[must_use]
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Says where the process has memory that can be adopted; nowhere at first.
    pub fn lend(&mut self, addresses: Range<u64>) {
        self.lent = addresses;
    }

    /// Says whether the host has no memory left: then what was never written cannot be.
    pub fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    fn piece(&self, id: StoreId) -> &Piece {
        self.pieces
            .get(&id)
            .expect("the driver uses only pieces it has not destroyed")
    }
}

impl Store for HeapStore {
    fn create(&mut self, _bytes: u64) -> Result<StoreId, StoreError> {
        self.next += 1;
        let id = StoreId(self.next);
        self.pieces.insert(id, Piece::default());
        Ok(id)
    }

    fn adopt(&mut self, address: u64, bytes: u64) -> Result<StoreId, StoreError> {
        let end = address.checked_add(bytes).ok_or(StoreError::BadAddress)?;
        if address < self.lent.start || end > self.lent.end {
            return Err(StoreError::BadAddress);
        }
        self.create(bytes)
    }

    fn destroy(&mut self, id: StoreId) {
        self.pieces
            .remove(&id)
            .expect("the driver destroys a piece once");
    }

    fn read(&self, from: Place, into: &mut [u8]) -> Result<(), StoreError> {
        let piece = self.piece(from.id);
        let mut done = 0;
        for (index, start, take) in chunks(from.offset, into.len()) {
            let part = &mut into[done..done + take];
            match piece.chunks.get(&index) {
                Some(chunk) => part.copy_from_slice(&chunk[start..start + take]),
                None => part.fill(0),
            }
            done += take;
        }
        Ok(())
    }

    fn write(&mut self, to: Place, from: &[u8]) -> Result<(), StoreError> {
        let piece = self
            .pieces
            .get_mut(&to.id)
            .expect("the driver writes only live pieces");
        let mut done = 0;
        for (index, start, take) in chunks(to.offset, from.len()) {
            if self.full && !piece.chunks.contains_key(&index) {
                return Err(StoreError::Exhausted);
            }
            let chunk = piece
                .chunks
                .entry(index)
                .or_insert_with(|| vec![0; usize::try_from(CHUNK).expect("64 KiB")].into());
            chunk[start..start + take].copy_from_slice(&from[done..done + take]);
            done += take;
        }
        Ok(())
    }

    fn copy(&mut self, from: Place, to: Place, bytes: u64) -> Result<(), StoreError> {
        let mut buffer = vec![0; usize::try_from(bytes.min(CHUNK)).expect("at most a chunk")];
        let mut done = 0;
        while done < bytes {
            let len = (bytes - done).min(CHUNK);
            // From the end where the source would be overwritten before it is read.
            let at = if to.offset > from.offset {
                bytes - done - len
            } else {
                done
            };
            let part = &mut buffer[..usize::try_from(len).expect("at most a chunk")];
            let place = |place: Place| Place {
                offset: place.offset + at,
                ..place
            };
            self.read(place(from), part)?;
            self.write(place(to), part)?;
            done += len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_written_across_chunks_are_read_back_and_the_rest_is_zero() {
        let mut store = HeapStore::new();
        let id = store.create(1 << 40).unwrap();
        let place = Place {
            id,
            offset: CHUNK - 3,
        };
        store.write(place, &[1, 2, 3, 4, 5]).unwrap();
        let mut bytes = [9; 9];
        store
            .read(
                Place {
                    id,
                    offset: CHUNK - 5,
                },
                &mut bytes,
            )
            .unwrap();
        assert_eq!(bytes, [0, 0, 1, 2, 3, 4, 5, 0, 0]);
    }

    #[test]
    fn ranges_that_overlap_are_copied_as_through_a_buffer() {
        let len = usize::try_from(3 * CHUNK + 5).unwrap();
        for (from, to) in [(0, 7), (7, 0), (0, CHUNK + 1), (2 * CHUNK, 1), (3, 3)] {
            let mut store = HeapStore::new();
            let id = store.create(1 << 20).unwrap();
            let at = |offset| Place { id, offset };
            let mut expected: Vec<u8> = (0..=250).cycle().take(6 * len).collect();
            store.write(at(0), &expected).unwrap();
            store.copy(at(from), at(to), len as u64).unwrap();
            let [from, to] = [from, to].map(|offset| usize::try_from(offset).unwrap());
            expected.copy_within(from..from + len, to);
            let mut seen = vec![0; expected.len()];
            store.read(at(0), &mut seen).unwrap();
            assert!(seen == expected, "{from} to {to}");
        }
    }

    #[test]
    fn only_what_the_process_lends_is_adopted() {
        let mut store = HeapStore::new();
        let bad = Err(StoreError::BadAddress);
        assert_eq!(store.adopt(0x1000, 4096), bad);
        store.lend(0x1000..0x3000);
        for (address, bytes) in [(0, 4096), (0x2000, 8192), (u64::MAX - 4095, 4096)] {
            assert_eq!(store.adopt(address, bytes), bad, "{address:#x}");
        }
        assert!(store.adopt(0x1000, 8192).is_ok());
    }
}
