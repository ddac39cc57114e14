//! The nodes of a simulated driver, in this process.

use std::collections::BTreeMap;
use std::ops::Range;

use vrampager_nv_abi::Node;
use vrampager_nv_driver::{Config, Driver, Errno, FileId, HeapStore, Live, Process, StoreError};

use crate::nodes::{Answer, MEMORY_BYTES, Nodes};

/// A simulated driver with one process, this one.
#[derive(Debug)]
pub struct SimNodes {
    driver: Driver<HeapStore>,
    caller: Caller,
    next: i32,
}

/// Memory and descriptors of the process.
#[derive(Debug)]
struct Caller {
    memory: Vec<u8>,
    files: BTreeMap<i32, FileId>,
}

/// Where the process has its memory.
const ADDRESS: u64 = 0x7000_0000;

impl SimNodes {
    /// The nodes of a fresh machine.
    #[must_use]
    pub fn new(machine: Config) -> Self {
        let mut store = HeapStore::new();
        store.lend(ADDRESS..ADDRESS + MEMORY_BYTES as u64);
        Self {
            driver: Driver::new(machine, store),
            caller: Caller {
                memory: vec![0; MEMORY_BYTES],
                files: BTreeMap::new(),
            },
            next: 3,
        }
    }

    /// The driver itself: to let its channels run, and to look inside.
    pub fn driver(&mut self) -> &mut Driver<HeapStore> {
        &mut self.driver
    }

    /// The driver's file behind a descriptor.
    #[must_use]
    pub fn file(&self, fd: i32) -> Option<FileId> {
        self.caller.file(fd)
    }
}

impl Nodes for SimNodes {
    fn open(&mut self, node: Node) -> Result<i32, Answer> {
        let file = self.driver.open(node)?;
        let fd = self.next;
        self.next += 1;
        self.caller.files.insert(fd, file);
        Ok(fd)
    }

    fn close(&mut self, fd: i32) {
        let file = self.caller.files.remove(&fd);
        self.driver
            .close(file.expect("a descriptor is closed once"));
    }

    fn ioctl(&mut self, fd: i32, request: u32, packet: &mut [u8]) -> Result<(), Answer> {
        let file = self.caller.file(fd).ok_or(Errno::BadF)?;
        self.driver.ioctl(&mut self.caller, file, request, packet)?;
        Ok(())
    }

    fn mmap(&mut self, fd: i32, len: u64, offset: u64) -> Result<(), Answer> {
        let file = self.caller.file(fd).ok_or(Errno::BadF)?;
        self.driver.mmap(file, len, offset)?;
        Ok(())
    }

    fn memory(&mut self) -> &mut [u8] {
        &mut self.caller.memory
    }

    fn address(&self) -> u64 {
        ADDRESS
    }

    fn live(&self) -> Option<Live> {
        Some(self.driver.live())
    }
}

impl Caller {
    fn range(&self, address: u64, len: usize) -> Result<Range<usize>, StoreError> {
        let start = address.checked_sub(ADDRESS).ok_or(StoreError::BadAddress)?;
        let start = usize::try_from(start).map_err(|_| StoreError::BadAddress)?;
        let end = start.checked_add(len);
        let end = end.filter(|&end| end <= self.memory.len());
        Ok(start..end.ok_or(StoreError::BadAddress)?)
    }
}

impl Process for Caller {
    fn file(&self, fd: i32) -> Option<FileId> {
        self.files.get(&fd).copied()
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), StoreError> {
        into.copy_from_slice(&self.memory[self.range(address, into.len())?]);
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), StoreError> {
        let range = self.range(address, from.len())?;
        self.memory[range].copy_from_slice(from);
        Ok(())
    }
}
