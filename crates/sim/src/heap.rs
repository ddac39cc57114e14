use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use vrampager_addr::PAGE_SIZE;
use vrampager_hal::{Heap, MemId};

use crate::copy::Place;
use crate::region::{FileRun, Region};
use crate::{Mode, SimConfig};

/// What freed device memory is filled with in deterministic mode.
pub const POISON: u8 = 0xdd;

/// Device memory is touched at open up to this size; what lies above is touched by its first use.
const TOUCHED_AT_OPEN: u64 = 1 << 30;
/// From this size on, host objects ask for large pages.
const LARGE_PAGE: u64 = 2 << 20;

/// Where the bytes of an object are.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// Runs of device memory, in the object's order.
    Vram(Vec<FileRun>),
    /// Own memory.
    Host(Arc<Region>),
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
    holes: Holes,
    host_limit: u64,
    host_used: u64,
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
            holes: Holes::new(config.vram),
            host_limit: config.host,
            host_used: 0,
            objects: BTreeMap::new(),
            next_id: 1,
            mode: config.mode,
        })
    }

    /// Bytes free, contiguous or not.
    pub(crate) fn free(&self, heap: Heap) -> u64 {
        match heap {
            Heap::Vram => self.holes.free,
            Heap::Host => self.host_limit - self.host_used,
        }
    }

    /// `None` when the heap or the host has no room.
    pub(crate) fn create(&mut self, heap: Heap, size: u64) -> Option<MemId> {
        let backing = match heap {
            Heap::Vram => Backing::Vram(self.holes.take(size)?),
            Heap::Host if size > self.free(heap) => return None,
            Heap::Host => {
                let region = Region::anonymous(size).ok()?;
                if size >= LARGE_PAGE {
                    region.prefer_large_pages();
                }
                self.host_used += size;
                Backing::Host(Arc::new(region))
            }
        };
        let id = MemId(self.next_id);
        self.next_id += 1;
        let object = Object {
            size,
            backing,
            mappings: 0,
        };
        self.objects.insert(id, object);
        Some(id)
    }

    /// # Panics
    /// When there is no such object, or it is still mapped.
    pub(crate) fn destroy(&mut self, id: MemId) {
        let mappings = self.object_mut(id).mappings;
        assert_eq!(mappings, 0, "{id:?} is still mapped");
        let object = self.objects.remove(&id).expect("looked up above");
        match object.backing {
            Backing::Host(_) => self.host_used -= object.size,
            Backing::Vram(runs) => {
                for run in runs {
                    match self.mode {
                        Mode::Threaded => {}
                        Mode::Deterministic => {
                            Place::new(&self.vram, run.offset).fill(run.len, POISON);
                        }
                    }
                    self.holes.give(run);
                }
            }
        }
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
            Backing::Host(region) => vec![run(0, region, offset, len)],
            Backing::Vram(runs) => {
                let mut at = 0;
                let mut parts = Vec::new();
                for part in cut(runs, offset, len) {
                    parts.push(run(at, &self.vram, part.offset, part.len));
                    at += part.len;
                }
                parts
            }
        }
    }

    /// Contiguous process memory that shows a part of an object, and the part's offset in it.
    ///
    /// # Panics
    /// When there is no such part.
    pub(crate) fn view(&self, id: MemId, offset: u64, len: u64) -> Result<View, Errno> {
        match &self.part(id, offset, len).backing {
            Backing::Host(region) => Ok(View {
                region: Arc::clone(region),
                offset,
            }),
            Backing::Vram(runs) => Ok(View {
                region: Arc::new(Region::of_file(self.file.as_fd(), &cut(runs, offset, len))?),
                offset: 0,
            }),
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
