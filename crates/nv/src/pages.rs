//! Mapped memory that the CPU shares with GPUs: the host's pages and windows onto device memory.
//!
//! Nothing here is ever a Rust slice, because a device writes to it at any time.
#![expect(
    unsafe_code,
    reason = "maps memory that a device shares, and reaches it by address"
)]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use vrampager_hal::{CpuMapId, CpuMapping, HostRange};

use crate::node::NodeFile;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A mapping of this process, unmapped on drop unless it was lent.
#[derive(Debug)]
struct Pages {
    base: NonNull<u8>,
    len: usize,
    /// Whose memory it is, if not ours.
    lender: Option<HostRange>,
}

// SAFETY: the mapping belongs to the process and not to a thread; it is reached only through
// bounds-checked copies and atomics.
unsafe impl Send for Pages {}
// SAFETY: as for `Send`; concurrent access is what shared memory is for.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.lender.is_some() {
            return;
        }
        // SAFETY: the mapping is owned, and every window onto it keeps it alive.
        let result = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        // It fails only where the process is at its limit of mappings and would have to split one.
        debug_assert!(result.is_ok(), "munmap: {result:?}");
    }
}

/// A part of a mapping, which it keeps alive.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pages: Arc<Pages>,
    offset: usize,
    len: usize,
}

impl Window {
    /// Zeroed pages that a driver can pin; they become resident when touched.
    pub(crate) fn anonymous(len: u64) -> Result<Self, Errno> {
        let len = to_usize(len)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, READ_WRITE, flags) }?;
        Self::adopt(base, len)
    }

    /// What a file shows, from its start.
    pub(crate) fn of_file(file: &NodeFile, len: u64) -> Result<Self, Errno> {
        let len = to_usize(len)?;
        Self::adopt(file.map(len, 0)?.as_ptr().cast(), len)
    }

    /// Memory of somebody else, kept as long as the window.
    pub(crate) fn lent(host: &HostRange) -> Self {
        let len = usize::try_from(host.len()).expect("checked when it was named");
        let pages = Arc::new(Pages {
            base: host.base(),
            len,
            lender: Some(host.clone()),
        });
        Self {
            pages,
            offset: 0,
            len,
        }
    }

    /// Whether the window is all of that memory.
    pub(crate) fn shows(&self, host: &HostRange) -> bool {
        self.at(0, 0) == host.base() && self.len as u64 == host.len()
    }

    fn adopt(base: *mut c_void, len: usize) -> Result<Self, Errno> {
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let lender = None;
        let pages = Arc::new(Pages { base, len, lender });
        Ok(Self {
            pages,
            offset: 0,
            len,
        })
    }

    /// The part of `len` bytes from `offset` on.
    ///
    /// # Panics
    /// When it leaves the window.
    pub(crate) fn part(&self, offset: u64, len: u64) -> Self {
        self.at(offset, len);
        let index = |bytes| usize::try_from(bytes).expect("inside a mapping");
        Self {
            pages: Arc::clone(&self.pages),
            offset: self.offset + index(offset),
            len: index(len),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Its address, for a driver to reach the pages by.
    pub(crate) fn expose(&self) -> u64 {
        self.at(0, 0).as_ptr().expose_provenance() as u64
    }

    /// The view that the layers above get: it keeps the memory mapped, whatever the books let go.
    pub(crate) fn mapping(&self, id: CpuMapId) -> CpuMapping {
        let owner = Arc::new(self.clone());
        // SAFETY: the memory is mapped readable and writable, and its only references are those to
        // atomics. The owner shares the pages, which are unmapped, or let go to their lender, when
        // the last share goes; the view and its clones keep the owner.
        unsafe { CpuMapping::new(id, self.at(0, 0), self.len as u64) }.owned_by(owner)
    }

    fn at(&self, offset: u64, len: u64) -> NonNull<u8> {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len as u64),
            "{offset}+{len} leaves a window of {}",
            self.len
        );
        let offset = self.offset + usize::try_from(offset).expect("checked to be inside");
        // SAFETY: windows lie inside their mapping, which is one allocation or one range that its
        // lender answers for, and the offset is at most the window's end.
        unsafe { self.pages.base.add(offset) }
    }

    fn aligned<T>(&self, offset: u64) -> *mut T {
        let at = self.at(offset, size_of::<T>() as u64).cast::<T>();
        assert!(at.is_aligned(), "{offset:#x} is not aligned");
        at.as_ptr()
    }

    fn u16(&self, offset: u64) -> &AtomicU16 {
        // SAFETY: `aligned` has checked bounds and alignment, and the mapping outlives `self`.
        // Memory shared with a device is accessed by it as atomics are.
        unsafe { AtomicU16::from_ptr(self.aligned(offset)) }
    }

    fn u32(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: as for `u16`.
        unsafe { AtomicU32::from_ptr(self.aligned(offset)) }
    }

    fn u64(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: as for `u16`.
        unsafe { AtomicU64::from_ptr(self.aligned(offset)) }
    }

    pub(crate) fn load_u16(&self, offset: u64) -> u16 {
        self.u16(offset).load(Ordering::Acquire)
    }

    pub(crate) fn load_u32(&self, offset: u64) -> u32 {
        self.u32(offset).load(Ordering::Acquire)
    }

    pub(crate) fn load_u64(&self, offset: u64) -> u64 {
        self.u64(offset).load(Ordering::Acquire)
    }

    pub(crate) fn store_u32(&self, offset: u64, value: u32) {
        self.u32(offset).store(value, Ordering::Release);
    }

    pub(crate) fn store_u64(&self, offset: u64, value: u64) {
        self.u64(offset).store(value, Ordering::Release);
    }

    /// Raises a number; one that is higher already stays.
    pub(crate) fn raise_u64(&self, offset: u64, value: u64) {
        self.u64(offset).fetch_max(value, Ordering::AcqRel);
    }

    /// Copies out. Words of 4 and 8 bytes at their alignment are not torn.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        let from = self.at(offset, into.len() as u64);
        match into.len() {
            4 if from.cast::<u32>().is_aligned() => {
                into.copy_from_slice(&self.load_u32(offset).to_le_bytes());
            }
            8 if from.cast::<u64>().is_aligned() => {
                into.copy_from_slice(&self.load_u64(offset).to_le_bytes());
            }
            // SAFETY: `at` has checked the source; `into` is a Rust slice and so disjoint from
            // the mapping. Somebody may write the source meanwhile, as devices do.
            len => unsafe { from.as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), len) },
        }
    }

    /// Copies in. Words of 4 and 8 bytes at their alignment are not torn.
    pub(crate) fn write(&self, offset: u64, from: &[u8]) {
        let to = self.at(offset, from.len() as u64);
        match *from {
            [a, b, c, d] if to.cast::<u32>().is_aligned() => {
                self.store_u32(offset, u32::from_le_bytes([a, b, c, d]));
            }
            [a, b, c, d, e, f, g, h] if to.cast::<u64>().is_aligned() => {
                self.store_u64(offset, u64::from_le_bytes([a, b, c, d, e, f, g, h]));
            }
            // SAFETY: as for `read`, with the roles swapped.
            _ => unsafe {
                to.as_ptr()
                    .copy_from_nonoverlapping(from.as_ptr(), from.len())
            },
        }
    }

    /// Copies between windows, which may overlap.
    pub(crate) fn copy_to(&self, offset: u64, target: &Self, to: u64, len: u64) {
        let (from, to) = (self.at(offset, len), target.at(to, len));
        let len = usize::try_from(len).expect("checked to be inside");
        // SAFETY: `at` has checked both ranges, and `copy_to` allows them to overlap.
        unsafe { from.as_ptr().copy_to(to.as_ptr(), len) }
    }
}

fn to_usize(len: u64) -> Result<usize, Errno> {
    usize::try_from(len).map_err(|_| Errno::NOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "leaves a window")]
    fn a_part_ends_where_it_was_cut() {
        let part = Window::anonymous(8192).unwrap().part(0, 4096);
        part.read(4095, &mut [0; 2]);
    }
}
