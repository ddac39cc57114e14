use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vrampager_addr::PAGE_SIZE;
use vrampager_hal::{CpuMapping, Storage, StorageError};

use crate::heap::POISON;

/// How an injected transfer fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StorageFault {
    /// [`StorageError::NoSpace`].
    NoSpace,
    /// [`StorageError::Io`] with this kind.
    Io(io::ErrorKind),
    /// [`StorageError::Changed`] of the size.
    Changed,
}

/// A file in memory: sparse, of fixed length, with faults to order.
///
/// A failed write leaves half of the data and rubbish behind it, a failed read leaves rubbish:
/// the contract calls both undefined, and nobody shall rely on anything kinder.
///
/// # Examples
/// ```
/// use vrampager_hal::{DeviceId, Discovery, Heap, Storage, StorageError};
/// use vrampager_sim::{SimStorage, Simulator, StorageFault};
///
/// let gpu = Simulator::new("vram=1M".parse()?)?.open(DeviceId(0))?;
/// let mem = gpu.memory.create(Heap::Host, 4096)?;
/// let map = gpu.memory.map_cpu(mem, 0, 4096)?;
///
/// let file = SimStorage::new(8192);
/// file.fail_write(2, StorageFault::NoSpace);
/// assert_eq!(file.write(0, &map, 0, 4096), Ok(()));
/// assert!(matches!(file.write(0, &map, 0, 4096), Err(StorageError::NoSpace { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SimStorage {
    len: u64,
    writable: Writable,
    file: Mutex<File>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writable {
    Yes,
    No,
}

#[derive(Debug, Default)]
struct File {
    /// Pages that have been written, by number. All others read as zeros.
    pages: BTreeMap<u64, Vec<u8>>,
    faults: Vec<Planned>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Read,
    Write,
}

#[derive(Debug)]
struct Planned {
    direction: Direction,
    nth: u64,
    fault: StorageFault,
}

impl SimStorage {
    /// A preallocated file of `len` zeros.
    #[must_use]
    pub fn new(len: u64) -> Self {
        Self {
            len,
            writable: Writable::Yes,
            file: Mutex::default(),
        }
    }

    /// A file that holds `content` and cannot be written.
    #[must_use]
    pub fn read_only(content: &[u8]) -> Self {
        let mut file = File::default();
        file.write(0, content);
        Self {
            len: content.len() as u64,
            writable: Writable::No,
            file: Mutex::new(file),
        }
    }

    /// Makes the `nth` read from now on fail, once.
    pub fn fail_read(&self, nth: u64, fault: StorageFault) {
        self.plan(Direction::Read, nth, fault);
    }

    /// Makes the `nth` write from now on fail, once.
    pub fn fail_write(&self, nth: u64, fault: StorageFault) {
        self.plan(Direction::Write, nth, fault);
    }

    fn plan(&self, direction: Direction, nth: u64, fault: StorageFault) {
        self.file().faults.push(Planned {
            direction,
            nth,
            fault,
        });
    }

    fn file(&self) -> MutexGuard<'_, File> {
        // Pages are replaced one by one, so a panic elsewhere leaves a well-formed file.
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, fault: StorageFault, offset: u64, len: u64) -> StorageError {
        match fault {
            StorageFault::NoSpace => StorageError::NoSpace { offset, len },
            StorageFault::Io(errno) => StorageError::Io { offset, len, errno },
            StorageFault::Changed => StorageError::Changed {
                attribute: "size",
                was: self.len.into(),
                is: i128::from(self.len) - 1,
            },
        }
    }

    fn holds(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }
}

impl File {
    /// Counts a transfer; how it has to fail, if so.
    fn transfer(&mut self, direction: Direction) -> Option<StorageFault> {
        for planned in self.faults.iter_mut().filter(|p| p.direction == direction) {
            // Ordinals start at 1; one that came due together with another stays due.
            planned.nth = planned.nth.saturating_sub(1);
        }
        let due = |p: &Planned| p.direction == direction && p.nth == 0;
        let due = self.faults.iter().position(due)?;
        Some(self.faults.remove(due).fault)
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        for (at, page, within) in pieces(offset, into.len()) {
            let part = &mut into[at];
            match self.pages.get(&page) {
                Some(bytes) => part.copy_from_slice(&bytes[within]),
                None => part.fill(0),
            }
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for (at, page, within) in pieces(offset, data.len()) {
            let bytes = self.pages.entry(page).or_insert_with(|| vec![0; PAGE]);
            bytes[within].copy_from_slice(&data[at]);
        }
    }
}

const PAGE: usize = 4096;
const _: () = assert!(PAGE as u64 == PAGE_SIZE);

type Range = std::ops::Range<usize>;

/// The pages that `len` bytes from `offset` on touch: where in the buffer, which page, where in it.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (Range, u64, Range)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= len {
            return None;
        }
        let position = offset + at as u64;
        let start = usize::try_from(position % PAGE_SIZE).expect("below a page");
        let size = (PAGE - start).min(len - at);
        let piece = (at..at + size, position / PAGE_SIZE, start..start + size);
        at += size;
        Some(piece)
    })
}

fn buffer(len: u64) -> Vec<u8> {
    vec![0; usize::try_from(len).expect("a mapped length fits in usize")]
}

impl Storage for SimStorage {
    fn read(&self, offset: u64, into: &CpuMapping, at: u64, len: u64) -> Result<(), StorageError> {
        let mut file = self.file();
        if let Some(fault) = file.transfer(Direction::Read) {
            into.fill(at, len, POISON);
            return Err(self.error(fault, offset, len));
        }
        if !self.holds(offset, len) {
            return Err(StorageError::Truncated { offset, len });
        }
        let mut data = buffer(len);
        file.read(offset, &mut data);
        into.write(at, &data);
        Ok(())
    }

    fn write(&self, offset: u64, from: &CpuMapping, at: u64, len: u64) -> Result<(), StorageError> {
        if self.writable == Writable::No {
            return Err(StorageError::ReadOnly);
        }
        let mut file = self.file();
        if !self.holds(offset, len) {
            return Err(StorageError::NoSpace { offset, len });
        }
        let mut data = buffer(len);
        from.read(at, &mut data);
        let fault = file.transfer(Direction::Write);
        if fault.is_some() {
            let half = data.len() / 2;
            data[half..].fill(POISON);
        }
        file.write(offset, &data);
        match fault {
            Some(fault) => Err(self.error(fault, offset, len)),
            None => Ok(()),
        }
    }
}
