//! Memory shared with programs: memory files for what the driver makes, their own pages for what
//! they pin.
#![expect(unsafe_code, reason = "memory is mapped and reached by address")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use vrampager_nv_driver::{Place, Store, StoreError, StoreId};

use crate::process::{Client, Memory};

/// Memory files and pages of programs.
#[derive(Debug, Default)]
pub(crate) struct SharedStore {
    pieces: BTreeMap<StoreId, Piece>,
    next: u64,
    /// Who makes the request that is being carried out.
    caller: Option<Arc<Client>>,
}

#[derive(Debug)]
enum Piece {
    /// A memory file, mapped here when first touched.
    File {
        fd: OwnedFd,
        bytes: usize,
        view: OnceLock<View>,
    },
    /// Pages of a program, from an address on.
    Pinned(Arc<Memory>, u64),
}

/// A mapping of ours. The back end `nv` has one like it: what drives a GPU and what plays one share
/// no code, lest a mistake in it hide itself.
#[derive(Debug)]
struct View {
    base: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is reached only through copies
// and atomics below.
unsafe impl Send for View {}
// SAFETY: as above; concurrent access is what shared memory is for.
unsafe impl Sync for View {}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by us, for this view alone.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr(), self.bytes) };
        unmapped.expect("a mapping of ours can be unmapped");
    }
}

impl View {
    fn at(&self, offset: u64) -> *mut u8 {
        let offset = usize::try_from(offset).expect("offsets are inside the mapping");
        assert!(offset < self.bytes, "the driver stays inside its memory");
        self.base.as_ptr().cast::<u8>().wrapping_add(offset)
    }

    fn check(&self, offset: u64, len: usize) -> *mut u8 {
        let room = self.bytes as u64 - offset;
        assert!(len as u64 <= room, "the driver stays inside its memory");
        self.at(offset)
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let from = self.check(offset, into.len());
        match into.len() {
            4 if from.addr().is_multiple_of(4) => {
                // SAFETY: in bounds and aligned; the memory lives as long as the view.
                let word = unsafe { AtomicU32::from_ptr(from.cast()) };
                into.copy_from_slice(&word.load(Ordering::Acquire).to_le_bytes());
            }
            8 if from.addr().is_multiple_of(8) => {
                // SAFETY: as above.
                let word = unsafe { AtomicU64::from_ptr(from.cast()) };
                into.copy_from_slice(&word.load(Ordering::Acquire).to_le_bytes());
            }
            len => {
                // SAFETY: both ranges are valid for `len`; `into` is ours alone. The program may
                // write the source meanwhile, as it may while a device reads: it gets what it gets.
                unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), len) }
            }
        }
    }

    fn write(&self, offset: u64, from: &[u8]) {
        let to = self.check(offset, from.len());
        match *from {
            [a, b, c, d] if to.addr().is_multiple_of(4) => {
                // SAFETY: in bounds and aligned; the memory lives as long as the view.
                let word = unsafe { AtomicU32::from_ptr(to.cast()) };
                word.store(u32::from_le_bytes([a, b, c, d]), Ordering::Release);
            }
            [a, b, c, d, e, f, g, h] if to.addr().is_multiple_of(8) => {
                // SAFETY: as above.
                let word = unsafe { AtomicU64::from_ptr(to.cast()) };
                word.store(
                    u64::from_le_bytes([a, b, c, d, e, f, g, h]),
                    Ordering::Release,
                );
            }
            _ => {
                // SAFETY: both ranges are valid for the length; the program may look meanwhile.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
            }
        }
    }
}

impl Piece {
    /// How the piece is reached: our mapping of it, or its address in a program.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`] when this process has no address space or mappings left. The
    /// next try may find some.
    fn reach(&self) -> Result<Reach<'_>, StoreError> {
        match self {
            Self::File { fd, bytes, view } => {
                if view.get().is_none() {
                    // Of two mappings made at once, one is kept and one unmapped.
                    let _lost = view.set(map(fd, *bytes)?);
                }
                let view = view.get().expect("it was set above");
                Ok(Reach::View(view))
            }
            Self::Pinned(memory, address) => Ok(Reach::Program(memory, *address)),
        }
    }
}

enum Reach<'a> {
    View(&'a View),
    Program(&'a Memory, u64),
}

fn map(fd: &OwnedFd, bytes: usize) -> Result<View, StoreError> {
    // SAFETY: a new mapping at an address the kernel chooses replaces nothing.
    let base = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            fd,
            0,
        )
    };
    let base = base.map_err(|_| StoreError::Exhausted)?;
    Ok(View {
        base: NonNull::new(base).expect("no mapping is at zero"),
        bytes,
    })
}

impl SharedStore {
    fn piece(&self, id: StoreId) -> &Piece {
        self.pieces
            .get(&id)
            .expect("the driver uses only pieces it has not destroyed")
    }

    fn add(&mut self, piece: Piece) -> StoreId {
        self.next += 1;
        let id = StoreId(self.next);
        self.pieces.insert(id, piece);
        id
    }

    /// Says who makes the next requests: pages are taken of that process.
    pub(crate) fn set_caller(&mut self, caller: &Arc<Client>) {
        self.caller = Some(Arc::clone(caller));
    }

    /// The memory file of a piece that the driver made.
    pub(crate) fn memory_file(&self, id: StoreId) -> Option<BorrowedFd<'_>> {
        match self.piece(id) {
            Piece::File { fd, .. } => Some(fd.as_fd()),
            Piece::Pinned(..) => None,
        }
    }
}

/// A memory file of `bytes` that nobody can resize.
fn memory_file(bytes: u64) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("vrampager-sim", flags)?;
    rustix::fs::ftruncate(&fd, bytes)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(fd)
}

impl Store for SharedStore {
    fn create(&mut self, bytes: u64) -> Result<StoreId, StoreError> {
        let len = usize::try_from(bytes).map_err(|_| StoreError::Exhausted)?;
        let fd = memory_file(bytes).map_err(|_| StoreError::Exhausted)?;
        Ok(self.add(Piece::File {
            fd,
            bytes: len,
            view: OnceLock::new(),
        }))
    }

    fn adopt(&mut self, address: u64, bytes: u64) -> Result<StoreId, StoreError> {
        let caller = self.caller.as_ref().ok_or(StoreError::BadAddress)?;
        if !caller.can_write(address, bytes) {
            return Err(StoreError::BadAddress);
        }
        let memory = Arc::clone(caller.memory());
        Ok(self.add(Piece::Pinned(memory, address)))
    }

    fn destroy(&mut self, id: StoreId) {
        self.pieces
            .remove(&id)
            .expect("the driver destroys a piece once");
    }

    fn read(&self, from: Place, into: &mut [u8]) -> Result<(), StoreError> {
        match self.piece(from.id).reach()? {
            Reach::Program(memory, address) => memory.read(address + from.offset, into),
            Reach::View(view) => {
                view.read(from.offset, into);
                Ok(())
            }
        }
    }

    fn write(&mut self, to: Place, from: &[u8]) -> Result<(), StoreError> {
        match self.piece(to.id).reach()? {
            Reach::Program(memory, address) => memory.write(address + to.offset, from),
            Reach::View(view) => {
                view.write(to.offset, from);
                Ok(())
            }
        }
    }

    fn copy(&mut self, from: Place, to: Place, bytes: u64) -> Result<(), StoreError> {
        let len = usize::try_from(bytes).map_err(|_| StoreError::Exhausted)?;
        match (self.piece(from.id).reach()?, self.piece(to.id).reach()?) {
            (Reach::View(source), Reach::View(target)) => {
                let source = source.check(from.offset, len);
                let target = target.check(to.offset, len);
                // SAFETY: both ranges are valid for `len`, and `copy` allows them to overlap.
                unsafe { std::ptr::copy(source, target, len) };
                Ok(())
            }
            (Reach::Program(memory, address), Reach::View(target)) => {
                let target = target.check(to.offset, len);
                // SAFETY: the range was checked, and the view lives as long as the call.
                unsafe { memory.read_to(address + from.offset, target, len) }
            }
            (Reach::View(source), Reach::Program(memory, address)) => {
                let source = source.check(from.offset, len);
                // SAFETY: as above.
                unsafe { memory.write_from(address + to.offset, source, len) }
            }
            (Reach::Program(source, read), Reach::Program(target, write)) => {
                let (read, write) = (read + from.offset, write + to.offset);
                copy_between((source, read), (target, write), bytes)
            }
        }
    }
}

/// Copies between programs through a buffer, part by part: from the end if the target is behind
/// the source, so that ranges of one program that overlap are copied right.
fn copy_between(
    (source, read): (&Memory, u64),
    (target, write): (&Memory, u64),
    bytes: u64,
) -> Result<(), StoreError> {
    const PART: usize = 1 << 20;
    let mut buffer = vec![0; usize::try_from(bytes).map_or(PART, |bytes| bytes.min(PART))];
    let mut done = 0;
    while done < bytes {
        let len = (bytes - done).min(PART as u64);
        let at = if write > read {
            bytes - done - len
        } else {
            done
        };
        let part = &mut buffer[..usize::try_from(len).expect("no more than a part")];
        source.read(read + at, part)?;
        target.write(write + at, part)?;
        done += len;
    }
    Ok(())
}

/// A memory file with a text, to be read from its start.
pub(crate) fn text_file(text: &str) -> rustix::io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("vrampager-text", MemfdFlags::CLOEXEC)?;
    let mut rest = text.as_bytes();
    let mut at = 0;
    while !rest.is_empty() {
        let written = rustix::io::pwrite(fd.as_fd(), rest, at)?;
        rest = &rest[written..];
        at += written as u64;
    }
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> SharedStore {
        let own = Client::new(rustix::process::getpid()).unwrap();
        let mut store = SharedStore::default();
        store.set_caller(&Arc::new(own));
        store
    }

    #[test]
    fn memory_that_cannot_be_mapped_is_an_error_and_the_rest_works() {
        let mut store = store();
        let at = |id| Place { id, offset: 0 };
        // More than there are addresses.
        let huge = at(store.create(1 << 60).unwrap());
        let small = at(store.create(4096).unwrap());
        let exhausted = Err(StoreError::Exhausted);
        assert_eq!(store.read(huge, &mut [0; 4]), exhausted);
        assert_eq!(store.write(huge, &[1; 4]), exhausted);
        assert_eq!(store.copy(huge, small, 4), exhausted);
        assert_eq!(store.copy(small, huge, 4), exhausted);
        store.write(small, &[7; 4]).unwrap();
        let mut seen = [0; 4];
        store.read(small, &mut seen).unwrap();
        assert_eq!(seen, [7; 4]);
        store.destroy(huge.id);
    }

    #[test]
    fn pinned_ranges_that_overlap_are_copied_as_through_a_buffer() {
        const BYTES: usize = 3 << 20;
        let mut pages = vec![0_u8; 2 * BYTES + 8192];
        let mut store = store();
        for (from, to) in [(4096, 0), (0, 4096), (0, 3 << 20), (1 << 20, 0)] {
            for (at, byte) in pages.iter_mut().enumerate() {
                *byte = u8::try_from((at / 4096 * 31 + at) % 251).expect("less than 251");
            }
            let mut expected = pages.clone();
            expected.copy_within(from..from + BYTES, to);
            let start = pages.as_mut_ptr().expose_provenance();
            let id = store.adopt(start as u64, pages.len() as u64).unwrap();
            let at = |offset: usize| Place {
                id,
                offset: offset as u64,
            };
            store.copy(at(from), at(to), BYTES as u64).unwrap();
            store.destroy(id);
            assert!(pages == expected, "{from} to {to}");
        }
    }
}
