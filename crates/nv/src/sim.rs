//! The nodes of the simulated driver, in this process.
//!
//! There is no thread: the simulated GPUs run in the time of whoever waits for them, so that a
//! history of calls determines what they do.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::io::Errno;
use vrampager_nv_abi::Node;
use vrampager_nv_abi::escape::{self, RmAllocMemory};
use vrampager_nv_driver::{
    Config, Counted, Driver, Failure, FileId, Injection, Kind, Live, Place, Process, Store,
    StoreError, StoreId,
};

use crate::door::{Door, Fd, Part, Progress, put_address};
use crate::pages::Window;

/// The simulated driver as tests and reports see it: beside the contracts, and across several
/// opens of its devices.
#[derive(Debug)]
pub struct SimNodes {
    machine: Mutex<Machine>,
    /// Spares others the lock at each submission.
    strict_doorbell: bool,
    start: Instant,
}

#[derive(Debug)]
struct Machine {
    driver: Driver<PageStore>,
    files: BTreeMap<Fd, FileId>,
    next: i32,
    calls: u64,
    /// Calls to come that fail, by number.
    failing: BTreeMap<u64, Failure>,
}

impl SimNodes {
    pub(crate) fn new(config: Config) -> Self {
        let strict_doorbell = config.strict_doorbell;
        let machine = Machine {
            driver: Driver::new(config, PageStore::default()),
            files: BTreeMap::new(),
            next: 3,
            calls: 0,
            failing: BTreeMap::new(),
        };
        Self {
            machine: Mutex::new(machine),
            strict_doorbell,
            start: Instant::now(),
        }
    }

    /// What is alive in the driver: the oracle of leak tests.
    #[must_use]
    pub fn live(&self) -> Live {
        self.lock().driver.live()
    }

    /// What has happened in the driver.
    #[must_use]
    pub fn counted(&self) -> Counted {
        self.lock().driver.counted()
    }

    /// System calls made so far that can fail: opens, requests and mappings.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Makes a request to come fail, by its kind.
    pub fn inject(&self, injection: Injection) {
        self.lock().driver.inject(injection);
    }

    /// Makes system calls to come fail, counted from the next one, which is 1. A call without a
    /// packet status fails with `EINVAL` where a status is asked for.
    pub fn fail_calls(&self, calls: &[u64], failure: Failure) {
        let mut machine = self.lock();
        let made = machine.calls;
        let failing = calls.iter().map(|nth| (made + nth, failure));
        machine.failing.extend(failing);
    }

    /// Forgets all failures to come.
    pub fn clear_failures(&self) {
        let mut machine = self.lock();
        machine.failing.clear();
        machine.driver.clear_injections();
    }

    /// A caller that broke a contract has panicked while it held the lock; the driver checks
    /// requests before it changes anything, so its state is whole.
    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Machine {
    /// Counts a system call; the failure it gets, if its turn has come.
    fn count(&mut self) -> Option<Failure> {
        self.calls += 1;
        self.failing.remove(&self.calls)
    }

    /// Counts a system call without a packet.
    fn admit(&mut self) -> Result<(), Errno> {
        match self.count() {
            None => Ok(()),
            Some(Failure::Errno(errno)) => Err(of_driver(errno)),
            Some(Failure::Status(_)) => Err(Errno::INVAL),
        }
    }

    fn file(&self, fd: Fd) -> Result<FileId, Errno> {
        self.files.get(&fd).copied().ok_or(Errno::BADF)
    }

    fn send(
        &mut self,
        fd: Fd,
        request: u32,
        packet: &mut [u8],
        parts: &mut [Part<'_>],
    ) -> Result<(), Errno> {
        let file = self.file(fd)?;
        match self.count() {
            None => {}
            Some(Failure::Errno(errno)) => return Err(of_driver(errno)),
            Some(failure) => self.driver.inject(of_request(request, failure)),
        }
        let mut caller = Caller::new(&self.files, packet, parts);
        let done = self.driver.ioctl(&mut caller, file, request, packet);
        done.map(drop).map_err(of_driver)
    }
}

fn of_driver(errno: vrampager_nv_driver::Errno) -> Errno {
    Errno::from_raw_os_error(errno.number())
}

/// The failure of one request, as the driver counts requests.
fn of_request(request: u32, failure: Failure) -> Injection {
    let (kind, number) = match escape::split(request) {
        Some((nr, _)) => (Kind::Escape, nr.into()),
        None => (Kind::Uvm, request),
    };
    Injection {
        kind,
        number,
        nth: 1,
        failure,
    }
}

impl Door for SimNodes {
    fn open_once(&self, node: Node) -> Result<Fd, Errno> {
        let mut machine = self.lock();
        machine.admit()?;
        let file = machine.driver.open(node).map_err(of_driver)?;
        let fd = Fd(machine.next);
        machine.next += 1;
        machine.files.insert(fd, file);
        Ok(fd)
    }

    fn close(&self, fd: Fd) {
        let mut machine = self.lock();
        let file = machine.files.remove(&fd);
        machine
            .driver
            .close(file.expect("only open files are closed"));
    }

    fn ioctl_once(
        &self,
        fd: Fd,
        request: u32,
        packet: &mut [u8],
        parts: &mut [Part<'_>],
    ) -> Result<(), Errno> {
        self.lock().send(fd, request, packet, parts)
    }

    fn pin(&self, fd: Fd, request: u32, packet: &mut [u8], pages: &Window) -> Result<(), Errno> {
        put_address(packet, offset_of!(RmAllocMemory, memory), pages.expose());
        let mut machine = self.lock();
        machine.driver.store_mut().lent = Some(pages.clone());
        let sent = machine.send(fd, request, packet, &mut []);
        machine.driver.store_mut().lent = None;
        sent
    }

    fn mmap_once(&self, fd: Fd, len: u64) -> Result<Window, Errno> {
        let mut machine = self.lock();
        machine.admit()?;
        let file = machine.file(fd)?;
        let shown = machine.driver.mmap(file, len, 0).map_err(of_driver)?;
        let store = machine.driver.store();
        Ok(store
            .window(shown.place.id)
            .part(shown.place.offset, shown.len))
    }

    fn rung(&self) {
        if self.strict_doorbell {
            self.lock().driver.hear();
        }
    }

    fn run(&self) -> Progress {
        let now = self.start.elapsed().as_nanos();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        match self.lock().driver.run(now) {
            vrampager_nv_driver::Progress::Moved => Progress::Moved,
            vrampager_nv_driver::Progress::Waiting | vrampager_nv_driver::Progress::Idle => {
                Progress::Unknown
            }
        }
    }
}

/// The calling process during one request. Parts of the packet have made-up addresses, by which
/// the driver reaches nothing else.
struct Caller<'a, 'p> {
    files: &'a BTreeMap<Fd, FileId>,
    parts: &'a mut [Part<'p>],
}

/// Address of the first part of a packet; the others follow at this distance.
const PART: u64 = 1 << 32;

impl<'a, 'p> Caller<'a, 'p> {
    fn new(files: &'a BTreeMap<Fd, FileId>, packet: &mut [u8], parts: &'a mut [Part<'p>]) -> Self {
        let mut rest = &mut *parts;
        let (mut into, mut address) = (packet, PART);
        while let Some((part, more)) = rest.split_first_mut() {
            put_address(into, part.at, address);
            (into, rest) = (&mut *part.bytes, more);
            address += PART;
        }
        Self { files, parts }
    }

    /// The part at an address, and the range in it.
    fn find(&self, address: u64, len: usize) -> Option<(usize, std::ops::Range<usize>)> {
        let index = usize::try_from((address / PART).checked_sub(1)?).ok()?;
        let start = usize::try_from(address % PART).ok()?;
        let end = start.checked_add(len)?;
        (end <= self.parts.get(index)?.bytes.len()).then_some((index, start..end))
    }
}

impl Process for Caller<'_, '_> {
    fn file(&self, fd: i32) -> Option<FileId> {
        self.files.get(&Fd(fd)).copied()
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let found = self.find(address, into.len());
        let (index, range) = found.ok_or(StoreError::BadAddress)?;
        into.copy_from_slice(&self.parts[index].bytes[range]);
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), StoreError> {
        let found = self.find(address, from.len());
        let (index, range) = found.ok_or(StoreError::BadAddress)?;
        self.parts[index].bytes[range].copy_from_slice(from);
        Ok(())
    }
}

/// Memory of the simulated GPUs and the kernel as pages of this process: mapping a file is a
/// window onto them.
#[derive(Debug, Default)]
struct PageStore {
    pieces: BTreeMap<StoreId, Window>,
    next: u64,
    /// The pages that the present request may take: a pin keeps them, whoever lets go of them.
    lent: Option<Window>,
}

impl PageStore {
    fn window(&self, id: StoreId) -> &Window {
        let window = self.pieces.get(&id);
        window.expect("the driver uses only pieces it has not destroyed")
    }

    fn add(&mut self, window: Window) -> StoreId {
        self.next += 1;
        let id = StoreId(self.next);
        self.pieces.insert(id, window);
        id
    }
}

impl Store for PageStore {
    fn create(&mut self, bytes: u64) -> Result<StoreId, StoreError> {
        let window = Window::anonymous(bytes).map_err(|_| StoreError::Exhausted)?;
        Ok(self.add(window))
    }

    /// Whether the pages are mapped is not looked at, since nobody may name a [`HostRange`] that is
    /// not; a server of other processes cannot rely on that, and looks.
    ///
    /// [`HostRange`]: vrampager_hal::HostRange
    fn adopt(&mut self, address: u64, bytes: u64) -> Result<StoreId, StoreError> {
        let lent = self
            .lent
            .take()
            .filter(|pages| pages.expose() == address && pages.len() >= bytes);
        let window = lent.ok_or(StoreError::BadAddress)?.part(0, bytes);
        Ok(self.add(window))
    }

    fn destroy(&mut self, id: StoreId) {
        let window = self.pieces.remove(&id);
        drop(window.expect("the driver destroys a piece once"));
    }

    fn read(&self, from: Place, into: &mut [u8]) -> Result<(), StoreError> {
        self.window(from.id).read(from.offset, into);
        Ok(())
    }

    fn write(&mut self, to: Place, from: &[u8]) -> Result<(), StoreError> {
        self.window(to.id).write(to.offset, from);
        Ok(())
    }

    fn copy(&mut self, from: Place, to: Place, bytes: u64) -> Result<(), StoreError> {
        let (source, target) = (self.window(from.id), self.window(to.id));
        source.copy_to(from.offset, target, to.offset, bytes);
        Ok(())
    }
}
