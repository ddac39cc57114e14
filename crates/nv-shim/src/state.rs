//! The one driver of this process and the descriptors of its files.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use vrampager_nv_driver::{
    Config, Driver, Effect, Errno, FileId, MapContext, Node, Process, StoreError,
};

use crate::memory::{SharedStore, memory_file, read_process, text_file, write_process};
use crate::{engine, raw};

/// The driver and which descriptors are its files.
pub(crate) struct State {
    pub(crate) driver: Driver<SharedStore>,
    fds: BTreeMap<c_int, FileId>,
}

/// The driver of a process, made when a node is first opened.
struct Instance {
    state: Mutex<State>,
    /// A child of a fork has the memory but not the thread: it has no driver.
    pid: i32,
}

static INSTANCE: OnceLock<Option<Instance>> = OnceLock::new();

/// One bit per descriptor that is ours, to be asked without the lock: our own files are closed
/// through the same `close` while it is held.
static OURS: [AtomicU64; FDS_MAX / 64] = [const { AtomicU64::new(0) }; FDS_MAX / 64];
const FDS_MAX: usize = 1 << 16;

fn bit(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OURS.get(fd / 64)?, 1 << (fd % 64)))
}

fn mark(fd: c_int) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_or(bit, Ordering::AcqRel);
    }
}

fn unmark(fd: c_int) {
    if let Some((word, bit)) = bit(fd) {
        word.fetch_and(!bit, Ordering::AcqRel);
    }
}

/// Whether a descriptor is one of our files, in the process that opened it.
pub(crate) fn is_ours(fd: c_int) -> bool {
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
        && INSTANCE.get().is_some_and(|instance| match instance {
            Some(instance) => instance.pid == own_pid(),
            None => false,
        })
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// The driver, made on first use; `None` if its description cannot be read or after a fork.
pub(crate) fn lock() -> Option<MutexGuard<'static, State>> {
    let instance = INSTANCE.get_or_init(start).as_ref()?;
    (instance.pid == own_pid()).then(|| guard(instance))
}

/// The driver, if there is one already.
pub(crate) fn lock_existing() -> Option<MutexGuard<'static, State>> {
    let instance = INSTANCE.get()?.as_ref()?;
    (instance.pid == own_pid()).then(|| guard(instance))
}

fn guard(instance: &Instance) -> MutexGuard<'_, State> {
    // A panic in one call is reported as that call's error; later calls may still clean up.
    instance
        .state
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

fn start() -> Option<Instance> {
    let description = std::env::var("VRAMPAGER_SIM").unwrap_or_default();
    let config = match Config::parse(&description) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("vrampager: VRAMPAGER_SIM: {error}");
            return None;
        }
    };
    raise_descriptor_limit();
    engine::start();
    let driver = Driver::new(config, SharedStore::default());
    let state = Mutex::new(State {
        driver,
        fds: BTreeMap::new(),
    });
    Some(Instance {
        state,
        pid: own_pid(),
    })
}

/// Every allocation has a descriptor of its own, so as many as allowed are wanted.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        eprintln!("vrampager: cannot raise the limit on descriptors: {error}");
    }
}

/// The calling process, seen from an ioctl.
struct Caller<'a> {
    fds: &'a BTreeMap<c_int, FileId>,
}

impl Process for Caller<'_> {
    fn file(&self, fd: i32) -> Option<FileId> {
        self.fds.get(&fd).copied()
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), StoreError> {
        read_process(address, into)
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), StoreError> {
        write_process(address, from)
    }
}

impl State {
    pub(crate) fn open(&mut self, node: Node, flags: c_int) -> Result<c_int, Errno> {
        let fd = memory_file(0).map_err(|_| Errno::NoMem)?;
        let file = self.driver.open(node)?;
        let fd = keep(fd, flags);
        self.fds.insert(fd, file);
        mark(fd);
        Ok(fd)
    }

    pub(crate) fn counters(&self, flags: c_int) -> Result<c_int, Errno> {
        self.text(&self.report(), flags)
    }

    pub(crate) fn version(&self, flags: c_int) -> Result<c_int, Errno> {
        let release = &self.driver.config().release;
        let text = format!(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {release}  simulated\n"
        );
        self.text(&text, flags)
    }

    fn text(&self, text: &str, flags: c_int) -> Result<c_int, Errno> {
        let fd = text_file(text).map_err(|_| Errno::NoMem)?;
        Ok(keep(fd, flags))
    }

    pub(crate) fn report(&self) -> String {
        format!("{}{}", self.driver.live(), self.driver.counted())
    }

    pub(crate) fn ioctl(&mut self, fd: c_int, request: u32, argument: u64) -> Result<(), Errno> {
        let file = *self.fds.get(&fd).ok_or(Errno::BadF)?;
        let size = self.driver.packet_size(file, request).unwrap_or(0);
        let mut packet = vec![0; size];
        read_process(argument, &mut packet).map_err(|_| Errno::Fault)?;
        let mut caller = Caller { fds: &self.fds };
        let result = self.driver.ioctl(&mut caller, file, request, &mut packet);
        write_process(argument, &packet).map_err(|_| Errno::Fault)?;
        if let Effect::Mappable { file, map } = result? {
            self.attach(file, map)?;
        }
        Ok(())
    }

    /// Puts the memory behind the descriptors of a file that carries a mapping.
    fn attach(&self, file: FileId, map: MapContext) -> Result<(), Errno> {
        let memory = self
            .driver
            .store()
            .memory_file(map.place.id)
            .ok_or(Errno::Inval)?;
        for (&fd, _) in self.fds.iter().filter(|(_, other)| **other == file) {
            let cloexec = raw::descriptor_flags(fd);
            if raw::dup3(memory, fd, cloexec) < 0 {
                return Err(Errno::NoMem);
            }
        }
        Ok(())
    }

    pub(crate) fn mmap(&self, fd: c_int, len: u64, offset: u64) -> Result<MapContext, Errno> {
        let file = *self.fds.get(&fd).ok_or(Errno::BadF)?;
        self.driver.mmap(file, len, offset)
    }

    /// Forgets a descriptor; the file is closed with its last one.
    pub(crate) fn close(&mut self, fd: c_int) {
        unmark(fd);
        let Some(file) = self.fds.remove(&fd) else {
            return;
        };
        if !self.fds.values().any(|&other| other == file) {
            self.driver.close(file);
        }
    }

    /// A second descriptor of a file.
    pub(crate) fn alias(&mut self, from: c_int, to: c_int) {
        if let Some(&file) = self.fds.get(&from) {
            self.fds.insert(to, file);
            mark(to);
        }
    }
}

/// Gives a descriptor to the program, inherited by its children only if it wants that.
fn keep(fd: OwnedFd, flags: c_int) -> c_int {
    if flags & libc::O_CLOEXEC == 0 {
        let cleared = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty());
        cleared.expect("flags of an open descriptor can be set");
    }
    fd.into_raw_fd()
}
