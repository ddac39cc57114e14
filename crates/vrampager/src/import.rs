//! Memory that is not the pager's own: the caller's host memory, and buffers of other pagers
//! (mission rows A8, A9).
//!
//! An import never moves and is no buffer of the manager's: it takes no room in any domain, and
//! the device sees it at the address that it has for the CPU or for the other device. What is
//! dropped while the device may still use it is given back by the worker thread, layer by layer,
//! once its fence is over.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use vrampager_addr::{Span, Va};
use vrampager_hal::{Access, DeviceId, Fence, Gpu, GpuMap, HalError, HostRange, MemId, Owner};

use crate::buffer::Buffer;
use crate::error::Error;
use crate::machine::Machine;
use crate::shell::Shell;
use crate::submission::Submitted;

/// Memory of somebody else, for the device to use where its owner has it: host memory of the
/// caller's, or a buffer of another pager.
///
/// The pager never frees it. It stays pinned while this, a clone or a [`Submission`] that names it
/// is alive, and until the work that uses it is over; then the pager lets go of the [`HostRange`]
/// with its owner, or of the buffer. A range that is imported again is kept by the owner that came
/// first.
///
/// Dropping never blocks while the pager is there. Afterwards dropping the last use of a range
/// waits for the work that uses it, 15 seconds at most; memory that the device may still use then,
/// or that it refuses to give back, stays until another import of the pager's is dropped or its
/// device is closed. While the pager is there, what is refused is tried again ten times a second.
///
/// [`Submission`]: crate::Submission
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::Ordering;
/// use vrampager::{HostPage, HostRange, Pager};
///
/// let pager = Pager::builder("sim:vram=16M")?.host(16 << 20).open()?;
/// let buffer = pager.buffer("weights", 8192).create()?;
/// let pages = HostPage::zeroed(2);
/// pages[1].bytes()[5].store(7, Ordering::Relaxed);
///
/// let import = pager.import(&HostRange::of(pages.clone())?)?;
/// let mut work = pager.submission();
/// work.copy((&import, 0), (&buffer, 0), 8192)?;
/// work.submit()?;
/// import.last_access().expect("it has been used").wait()?;
///
/// let mut byte = [0];
/// buffer.read(4096 + 5, &mut byte)?;
/// assert_eq!(byte, [7]);
/// # drop((work, import, buffer));
/// # pager.close()?;
/// # assert_eq!(Arc::strong_count(&pages), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Import {
    shell: Arc<Shell>,
    span: Span,
}

impl Import {
    /// Where the device sees its first byte, which is where the owner has it.
    #[must_use]
    pub fn gpu_address(&self) -> Va {
        Va(self.span.start())
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.span.len()
    }

    /// Always false: there is at least a page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.span.is_empty()
    }

    /// The last work handed to the device that names this memory, to be waited for: once it is
    /// over, and while nothing else is submitted, the device does not touch the memory. `None`
    /// when no work has named it.
    #[must_use]
    pub fn last_access(&self) -> Option<Submitted> {
        let fence = self.shell.imports.lock()[&self.span.start()].last?;
        Some(Submitted::new(&self.shell, fence))
    }

    pub(crate) fn name(&self) -> String {
        format!("memory at {:#x}", self.span.start())
    }

    pub(crate) fn belongs_to(&self, shell: &Arc<Shell>) -> bool {
        Arc::ptr_eq(&self.shell, shell)
    }

    /// Notes that work behind `fence` uses it.
    pub(crate) fn used_by(&self, fence: Fence) {
        let mut table = self.shell.imports.lock();
        let entry = table.get_mut(&self.span.start()).expect("it is alive");
        // All work of a pager is on one timeline.
        let later = entry.last.filter(|last| last.value > fence.value);
        entry.last = later.or(Some(fence));
    }
}

impl Clone for Import {
    fn clone(&self) -> Self {
        let mut table = self.shell.imports.lock();
        let entry = table.get_mut(&self.span.start()).expect("it is alive");
        entry.users += 1;
        Self {
            shell: Arc::clone(&self.shell),
            span: self.span,
        }
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        self.shell.imports.let_go(self.span);
        wake(&self.shell);
        self.shell.give_back_unattended();
    }
}

/// Has the worker look for what is to be given back.
fn wake(shell: &Shell) {
    // Taking the lock once orders what was done before the worker's next look.
    drop(shell.lock_to_drop());
    shell.announce();
}

/// What is held for one range.
#[derive(Debug)]
struct Entry {
    span: Span,
    /// Of the import that came first, kept until the range is given back. While it is, its memory
    /// is there, so that no later owner can be another memory's.
    owner: Arc<dyn Owner>,
    users: usize,
    /// The last work that names it.
    last: Option<Fence>,
    held: Held,
}

impl Entry {
    /// Whether a range can be had by taking this once more.
    fn shows(&self, span: Span) -> bool {
        self.span == span && self.held.is_whole(span)
    }
}

/// Whose memory it is.
enum Source<'a> {
    Host(&'a HostRange),
    /// Another device's, which maps it like this.
    Device(DeviceId, &'a [GpuMap]),
}

/// The layers that are still there.
#[derive(Debug, Default)]
struct Held {
    /// Objects, each with what it is of another device's.
    mems: Vec<(MemId, Option<MemId>)>,
    reserved: bool,
    mapped: Vec<Span>,
}

/// A buffer that stays where it is as long as another device may use it.
#[derive(Debug)]
struct Kept(Arc<Buffer>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.unpin();
    }
}

type Table = BTreeMap<u64, Entry>;

/// The imports of one pager, by address.
#[derive(Debug)]
pub(crate) struct Imports {
    gpu: Gpu,
    machine: Machine,
    /// A leaf: the contracts are called with it locked, and nothing else is.
    table: Mutex<Table>,
    /// Entries without users, to be looked at without a lock.
    retired: AtomicUsize,
    /// Owners that are out of the table and not dropped yet.
    leaving: AtomicUsize,
    /// Pagers that have had buffers of this one. A leaf too.
    borrowers: Mutex<Vec<Weak<Shell>>>,
}

impl Imports {
    pub(crate) fn new(gpu: Gpu, machine: Machine) -> Self {
        Self {
            gpu,
            machine,
            table: Mutex::default(),
            retired: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            borrowers: Mutex::default(),
        }
    }

    /// Each entry is whole between two statements: a panic elsewhere leaves the table usable.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Imports that somebody holds.
    pub(crate) fn alive(&self) -> usize {
        let table = self.lock();
        table.values().filter(|entry| entry.users > 0).count()
    }

    /// Whether another thread is about to let go of what has been given back.
    pub(crate) fn any_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst) > 0
    }

    fn lend_to(&self, shell: &Arc<Shell>) {
        let borrower = Arc::downgrade(shell);
        let mut borrowers = self
            .borrowers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        borrowers.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&borrower));
        borrowers.push(borrower);
    }

    /// Pagers that have had buffers of this one and are still there.
    pub(crate) fn borrowers(&self) -> Vec<Arc<Shell>> {
        let borrowers = self
            .borrowers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        borrowers.iter().filter_map(Weak::upgrade).collect()
    }

    /// Whether anything waits to be given back.
    pub(crate) fn any_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst) > 0
    }

    fn let_go(&self, span: Span) {
        let mut table = self.lock();
        let entry = table.get_mut(&span.start()).expect("it is alive");
        entry.users -= 1;
        if entry.users == 0 {
            self.retired.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Takes a range once more, or for the first time. The owner is dropped unless it is the first.
    fn take(&self, span: Span, source: &Source<'_>, owner: Arc<dyn Owner>) -> Result<(), Error> {
        let mut table = self.lock_for(span);
        if let Some(entry) = table.get_mut(&span.start())
            && entry.shows(span)
        {
            if entry.users == 0 {
                self.retired.fetch_sub(1, Ordering::SeqCst);
            }
            entry.users += 1;
            // It is other code, which is not to run with the table locked.
            drop(table);
            drop(owner);
            return Ok(());
        }
        self.check_free(&table, span)?;
        let mut held = Held::default();
        let taken = held.take(&self.gpu, source, span);
        let undone = taken.is_err() && held.give_back(&self.gpu, span).is_ok();
        if !undone {
            let entry = Entry {
                span,
                owner,
                users: usize::from(taken.is_ok()),
                last: None,
                held,
            };
            let retired = usize::from(taken.is_err());
            self.retired.fetch_add(retired, Ordering::SeqCst);
            table.insert(span.start(), entry);
        }
        Ok(taken?)
    }

    /// Locks the table without what is over and in the way of a range: the worker may not have
    /// come to it yet.
    fn lock_for(&self, span: Span) -> MutexGuard<'_, Table> {
        let table = self.lock();
        let in_the_way =
            |entry: &Entry| entry.users == 0 && entry.span.overlaps(span) && !entry.shows(span);
        if !table.values().any(in_the_way) {
            return table;
        }
        drop(table);
        self.give_back_finished();
        self.lock()
    }

    /// The addresses have to be free of buffers and of other imports.
    fn check_free(&self, table: &Table, span: Span) -> Result<(), Error> {
        let zones = self.gpu.info.zones.iter().map(|zone| zone.span);
        let alive = table.values().filter(|entry| entry.users > 0);
        let mut taken = zones.chain(alive.map(|entry| entry.span));
        if let Some(used) = taken.find(|used| used.overlaps(span)) {
            return Err(Error::AddressesInUse { span, used });
        }
        let mut retired = table.values().map(|entry| entry.span);
        match retired.find(|used| used.overlaps(span)) {
            None => Ok(()),
            Some(used) => Err(Error::Releasing { span, used }),
        }
    }

    /// Gives back what is over, all of it if `over` says so of any fence; a fence that is not
    /// over, if there is one. What the device refuses stays, is counted by it, and tried again.
    pub(crate) fn give_back(&self, mut over: impl FnMut(Fence) -> bool) -> Option<Fence> {
        let mut pending = None;
        // Owners are dropped with the table unlocked: they are the caller's code.
        let mut free = Vec::new();
        self.lock().retain(|_, entry| {
            if entry.users > 0 {
                return true;
            }
            if let Some(fence) = entry.last.filter(|&fence| !over(fence)) {
                pending = Some(fence);
                return true;
            }
            if entry.held.give_back(&self.gpu, entry.span).is_err() {
                return true;
            }
            free.push(Arc::clone(&entry.owner));
            self.leaving.fetch_add(1, Ordering::SeqCst);
            self.retired.fetch_sub(1, Ordering::SeqCst);
            false
        });
        let left = free.len();
        drop(free);
        self.leaving.fetch_sub(left, Ordering::SeqCst);
        pending
    }

    /// The same for what the device has finished by itself.
    pub(crate) fn give_back_finished(&self) -> Option<Fence> {
        let queue = &self.gpu.queue;
        self.give_back(|fence| queue.completed(fence.timeline) >= fence.value)
    }
}

impl Held {
    /// Whether all of the range is mapped.
    fn is_whole(&self, span: Span) -> bool {
        self.mapped.iter().map(|part| part.len()).sum::<u64>() == span.len()
    }

    fn take(&mut self, gpu: &Gpu, source: &Source<'_>, span: Span) -> Result<(), HalError> {
        let maps = match *source {
            Source::Host(host) => {
                let mem = gpu.memory.import(host)?;
                self.mems.push((mem, None));
                vec![GpuMap {
                    va: Va(span.start()),
                    mem,
                    offset: 0,
                    len: span.len(),
                    access: Access::Write,
                }]
            }
            Source::Device(from, maps) => {
                let mut own = Vec::with_capacity(maps.len());
                for map in maps {
                    let mem = self.shared(gpu, from, map.mem)?;
                    own.push(GpuMap { mem, ..*map });
                }
                own
            }
        };
        gpu.memory.reserve_va(span)?;
        self.reserved = true;
        for map in maps {
            gpu.memory.map_gpu(map)?;
            let part = Span::new(map.va.0, map.len).expect("inside the range");
            self.mapped.push(part);
        }
        Ok(())
    }

    /// The object that shows one of another device, made if there is none.
    fn shared(&mut self, gpu: &Gpu, from: DeviceId, theirs: MemId) -> Result<MemId, HalError> {
        let known = self.mems.iter().find(|(_, of)| *of == Some(theirs));
        if let Some(&(mem, _)) = known {
            return Ok(mem);
        }
        let mem = gpu.memory.share(from, theirs)?;
        self.mems.push((mem, Some(theirs)));
        Ok(mem)
    }

    /// Undoes layer by layer, up to the first that is refused.
    fn give_back(&mut self, gpu: &Gpu, span: Span) -> Result<(), HalError> {
        while let Some(&part) = self.mapped.last() {
            gpu.release.unmap_gpu(part)?;
            self.mapped.pop();
        }
        if self.reserved {
            gpu.release.release_va(span)?;
            self.reserved = false;
        }
        while let Some(&(mem, _)) = self.mems.last() {
            gpu.release.destroy(mem)?;
            self.mems.pop();
        }
        Ok(())
    }
}

/// Lets a pager's device use host memory.
pub(crate) fn import(shell: &Arc<Shell>, host: &HostRange) -> Result<Import, Error> {
    let owner = Arc::new(host.clone());
    take(shell, host.span(), &Source::Host(host), owner)
}

/// Lets a pager's device use a buffer of another pager.
pub(crate) fn share(shell: &Arc<Shell>, buffer: &Arc<Buffer>) -> Result<Import, Error> {
    let theirs = &buffer.shell.imports;
    if !theirs.machine.is(&shell.imports.machine) || buffer.belongs_to(shell) {
        return Err(Error::Foreign {
            buffer: buffer.name().to_owned(),
        });
    }
    theirs.lend_to(shell);
    let start = buffer.pin_for(Access::Write)?;
    let owner = Arc::new(Kept(buffer.clone()));
    let maps = buffer.shell.lock().mappings(buffer.id)?;
    let len = maps.iter().map(|map| map.len).sum();
    let span = Span::new(start.0, len).expect("a buffer's addresses");
    let source = Source::Device(theirs.gpu.info.id, &maps);
    take(shell, span, &source, owner)
}

fn take(
    shell: &Arc<Shell>,
    span: Span,
    source: &Source<'_>,
    owner: Arc<dyn Owner>,
) -> Result<Import, Error> {
    if let Err(error) = shell.imports.take(span, source, owner) {
        wake(shell);
        return Err(error);
    }
    Ok(Import {
        shell: Arc::clone(shell),
        span,
    })
}
