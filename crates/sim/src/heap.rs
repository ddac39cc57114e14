use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use vrampager_addr::PAGE_SIZE;
use vrampager_hal::{Heap, HostRange, MemId};

use crate::copy::Place;
use crate::region::{FileRun, Region};
use crate::{Mode, SimConfig};

/// What freed device memory is filled with in deterministic mode.
pub const POISON: u8 = 0xdd;

/// Device memory is touched at open up to this size; what lies above is touched by its first use.
const TOUCHED_AT_OPEN: u64 = 1 << 30;
/// From this size on, host objects ask for large pages.
const LARGE_PAGE: u64 = 2 << 20;

/// Where the bytes of an object are. They are free when the last object that shows them is gone.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// Device memory.
    Vram(Arc<Allocation>),
    /// Host memory of this device or of another one.
    Host {
        region: Arc<Region>,
        _charge: Arc<Charge>,
    },
    /// Host memory of the caller.
    Imported(Arc<Region>),
    /// Device memory of another device.
    Peer(Arc<Allocation>),
}

/// Runs of device memory, in the order of the object that they were taken for.
#[derive(Debug)]
pub(crate) struct Allocation {
    runs: Vec<FileRun>,
    vram: Arc<Region>,
    holes: Arc<Mutex<Holes>>,
    mode: Mode,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        for run in self.runs.drain(..) {
            match self.mode {
                Mode::Threaded => {}
                Mode::Deterministic => {
                    Place::new(&self.vram, run.offset).fill(run.len, POISON);
                }
            }
            lock(&self.holes).give(run);
        }
    }
}

/// Bytes of the host heap.
#[derive(Debug)]
pub(crate) struct Charge {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A panic elsewhere leaves the holes whole: requests are checked before they change anything.
fn lock(holes: &Mutex<Holes>) -> MutexGuard<'_, Holes> {
    holes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A physical object.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) size: u64,
    pub(crate) backing: Backing,
    /// CPU and GPU mappings that exist.
    pub(crate) mappings: u64,
}

/// Contiguous bytes of an object.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Offset in the part that was asked for.
    pub(crate) at: u64,
    pub(crate) place: Place,
    pub(crate) len: u64,
}

/// The two heaps of a device and the objects made of them.
#[derive(Debug)]
pub(crate) struct Heaps {
    file: OwnedFd,
    vram: Arc<Region>,
    /// A leaf: nothing else is locked while it is held.
    holes: Arc<Mutex<Holes>>,
    host_limit: u64,
    host_used: Arc<AtomicU64>,
    objects: BTreeMap<MemId, Object>,
    next_id: u64,
    mode: Mode,
}

impl Heaps {
    pub(crate) fn new(config: &SimConfig) -> Result<Self, Errno> {
        let file = memfd_create("vrampager-sim", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, config.vram)?;
        let all = FileRun {
            offset: 0,
            len: config.vram,
        };
        let vram = Region::of_file(file.as_fd(), &[all])?;
        match config.mode {
            Mode::Threaded => {
                vram.prefer_large_pages();
                vram.populate(config.vram.min(TOUCHED_AT_OPEN))?;
            }
            Mode::Deterministic => {}
        }
        Ok(Self {
            file,
            vram: Arc::new(vram),
            holes: Arc::new(Mutex::new(Holes::new(config.vram))),
            host_limit: config.host,
            host_used: Arc::default(),
            objects: BTreeMap::new(),
            next_id: 1,
            mode: config.mode,
        })
    }

    /// Bytes free, contiguous or not.
    pub(crate) fn free(&self, heap: Heap) -> u64 {
        match heap {
            Heap::Vram => lock(&self.holes).free,
            Heap::Host => self.host_limit - self.host_used.load(Ordering::Relaxed),
        }
    }

    /// `None` when the heap or the host has no room.
    pub(crate) fn create(&mut self, heap: Heap, size: u64) -> Option<MemId> {
        let backing = match heap {
            Heap::Vram => Backing::Vram(Arc::new(Allocation {
                runs: lock(&self.holes).take(size)?,
                vram: Arc::clone(&self.vram),
                holes: Arc::clone(&self.holes),
                mode: self.mode,
            })),
            Heap::Host if size > self.free(heap) => return None,
            Heap::Host => {
                let region = Region::anonymous(size).ok()?;
                if size >= LARGE_PAGE {
                    region.prefer_large_pages();
                }
                self.host_used.fetch_add(size, Ordering::Relaxed);
                let charge = Charge {
                    used: Arc::clone(&self.host_used),
                    bytes: size,
                };
                Backing::Host {
                    region: Arc::new(region),
                    _charge: Arc::new(charge),
                }
            }
        };
        Some(self.add(size, backing))
    }

    /// An object of the caller's memory.
    pub(crate) fn import(&mut self, host: &HostRange) -> MemId {
        let region = Arc::new(Region::lent(host));
        self.add(host.len(), Backing::Imported(region))
    }

    /// What another device needs to show an object.
    ///
    /// # Panics
    /// When there is no such object.
    pub(crate) fn show(&mut self, id: MemId) -> (u64, Backing) {
        let object = self.object_mut(id);
        (object.size, object.backing.clone())
    }

    /// An object of memory that another device has.
    pub(crate) fn share(&mut self, size: u64, backing: Backing) -> MemId {
        let backing = match backing {
            Backing::Vram(allocation) => Backing::Peer(allocation),
            host @ (Backing::Host { .. } | Backing::Imported(_)) => host,
            peer @ Backing::Peer(_) => peer,
        };
        self.add(size, backing)
    }

    fn add(&mut self, size: u64, backing: Backing) -> MemId {
        let id = MemId(self.next_id);
        self.next_id += 1;
        let object = Object {
            size,
            backing,
            mappings: 0,
        };
        self.objects.insert(id, object);
        id
    }

    /// # Panics
    /// When there is no such object, or it is still mapped.
    pub(crate) fn destroy(&mut self, id: MemId) {
        let mappings = self.object_mut(id).mappings;
        assert_eq!(mappings, 0, "{id:?} is still mapped");
        self.objects.remove(&id);
    }

    /// # Panics
    /// When there is no such object.
    pub(crate) fn object_mut(&mut self, id: MemId) -> &mut Object {
        let object = self.objects.get_mut(&id);
        object.unwrap_or_else(|| panic!("{id:?} does not exist"))
    }

    /// The memory behind a part of an object, in order.
    ///
    /// # Panics
    /// When there is no such part.
    pub(crate) fn runs(&self, id: MemId, offset: u64, len: u64) -> Vec<Run> {
        let run = |at, region, offset, len| Run {
            at,
            place: Place::new(region, offset),
            len,
        };
        match &self.part(id, offset, len).backing {
            Backing::Host { region, .. } | Backing::Imported(region) => {
                vec![run(0, region, offset, len)]
            }
            Backing::Vram(allocation) | Backing::Peer(allocation) => {
                let mut at = 0;
                let mut parts = Vec::new();
                for part in cut(&allocation.runs, offset, len) {
                    parts.push(run(at, &allocation.vram, part.offset, part.len));
                    at += part.len;
                }
                parts
            }
        }
    }

    /// Contiguous process memory that shows a part of an object, and the part's offset in it.
    ///
    /// # Panics
    /// When there is no such part, or it is another device's.
    pub(crate) fn view(&self, id: MemId, offset: u64, len: u64) -> Result<View, Errno> {
        match &self.part(id, offset, len).backing {
            Backing::Host { region, .. } | Backing::Imported(region) => Ok(View {
                region: Arc::clone(region),
                offset,
            }),
            Backing::Vram(allocation) => {
                let runs = cut(&allocation.runs, offset, len);
                Ok(View {
                    region: Arc::new(Region::of_file(self.file.as_fd(), &runs)?),
                    offset: 0,
                })
            }
            Backing::Peer(_) => panic!("{id:?} is mapped by the device that owns it"),
        }
    }

    fn part(&self, id: MemId, offset: u64, len: u64) -> &Object {
        let object = self.objects.get(&id);
        let object = object.unwrap_or_else(|| panic!("{id:?} does not exist"));
        assert!(
            len > 0
                && offset
                    .checked_add(len)
                    .is_some_and(|end| end <= object.size),
            "{offset}+{len} is no part of {id:?} with {} bytes",
            object.size
        );
        object
    }

    pub(crate) fn object_count(&self) -> u64 {
        self.objects.len() as u64
    }

    pub(crate) fn page_count(&self) -> u64 {
        let bytes: u64 = self.objects.values().map(|object| object.size).sum();
        bytes / PAGE_SIZE
    }

    pub(crate) fn pinned_count(&self) -> u64 {
        let objects = self.objects.values();
        let pinned = objects.filter(|object| matches!(object.backing, Backing::Imported(_)));
        pinned.map(|object| object.size).sum::<u64>() / PAGE_SIZE
    }
}

/// See [`Heaps::view`].
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) region: Arc<Region>,
    pub(crate) offset: u64,
}

/// The part of a list of runs that starts `offset` bytes into it.
fn cut(runs: &[FileRun], offset: u64, len: u64) -> Vec<FileRun> {
    let mut skip = offset;
    let mut left = len;
    let mut part = Vec::new();
    for run in runs {
        if skip >= run.len {
            skip -= run.len;
            continue;
        }
        let len = (run.len - skip).min(left);
        if len == 0 {
            break;
        }
        part.push(FileRun {
            offset: run.offset + skip,
            len,
        });
        skip = 0;
        left -= len;
    }
    part
}

/// Free device memory: first fit, lowest first, scattered only when no hole is large enough.
///
/// Simple on purpose, and independent of the allocators that the layers above are made of.
#[derive(Debug)]
struct Holes {
    /// Length of each hole by its offset. Holes neither touch nor overlap.
    holes: BTreeMap<u64, u64>,
    free: u64,
}

impl Holes {
    fn new(len: u64) -> Self {
        Self {
            holes: BTreeMap::from([(0, len)]),
            free: len,
        }
    }

    /// `None` when less than `size` is free.
    fn take(&mut self, size: u64) -> Option<Vec<FileRun>> {
        if size > self.free {
            return None;
        }
        let fitting = self.holes.iter().find(|&(_, &len)| len >= size);
        let mut next = fitting.map(|(&offset, _)| offset);
        let mut left = size;
        let mut runs = Vec::new();
        while left > 0 {
            let offset = next.take().or_else(|| self.holes.keys().next().copied());
            let offset = offset.expect("the holes sum up to `free`");
            let hole = self.holes.remove(&offset).expect("just found");
            let len = hole.min(left);
            if hole > len {
                self.holes.insert(offset + len, hole - len);
            }
            runs.push(FileRun { offset, len });
            left -= len;
        }
        self.free -= size;
        Some(runs)
    }

    fn give(&mut self, run: FileRun) {
        self.free += run.len;
        let mut hole = run;
        if let Some((&offset, &len)) = self.holes.range(..hole.offset).next_back()
            && offset + len == hole.offset
        {
            self.holes.remove(&offset);
            hole.offset = offset;
            hole.len += len;
        }
        if let Some(len) = self.holes.remove(&(hole.offset + hole.len)) {
            hole.len += len;
        }
        self.holes.insert(hole.offset, hole.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    #[test]
    fn random_takes_and_gives_never_overlap_and_end_in_one_hole() {
        const PAGES: usize = 64;
        let mut prng = Prng::stream(5, 0);
        let mut holes = Holes::new(PAGES as u64);
        let mut used = [false; PAGES];
        let mut live: Vec<Vec<FileRun>> = Vec::new();
        let pages = |run: &FileRun| {
            let start = usize::try_from(run.offset).unwrap();
            start..start + usize::try_from(run.len).unwrap()
        };
        for _ in 0..5_000 {
            let size = 1 + prng.next() % 12;
            let free = used.iter().filter(|&&page| !page).count() as u64;
            assert_eq!(holes.free, free);
            if prng.index(2) == 0 {
                let Some(runs) = holes.take(size) else {
                    assert!(free < size, "room for {size} in {free} was not found");
                    continue;
                };
                assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), size);
                for page in runs.iter().flat_map(pages) {
                    assert!(!std::mem::replace(&mut used[page], true), "{page} twice");
                }
                live.push(runs);
            } else if !live.is_empty() {
                for run in live.swap_remove(prng.index(live.len())) {
                    used[pages(&run)].fill(false);
                    holes.give(run);
                }
            }
        }
        live.into_iter().flatten().for_each(|run| holes.give(run));
        assert_eq!(holes.holes, BTreeMap::from([(0, PAGES as u64)]));
    }

    #[test]
    fn a_cut_keeps_order_and_length() {
        let run = |offset, len| FileRun { offset, len };
        let runs = [run(10, 4), run(0, 2), run(30, 5)];
        assert_eq!(cut(&runs, 3, 4), [run(13, 1), run(0, 2), run(30, 1)]);
        assert_eq!(cut(&runs, 4, 2), [run(0, 2)]);
    }
}
