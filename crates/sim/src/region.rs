//! Mapped memory of the simulator's process: device memory, windows onto it, host objects.
//!
//! A [`Region`] is never a Rust slice, because the engine and the users of CPU mappings write to
//! it at any time.
#![expect(
    unsafe_code,
    reason = "maps and unmaps memory that a device and the CPU share"
)]

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use vrampager_hal::HostRange;

/// Readable and writable memory, unmapped on drop unless it was lent.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    len: usize,
    /// Whose memory it is, if not ours.
    lender: Option<HostRange>,
}

// SAFETY: a region owns its mapping like a box, or keeps the lender that does, and hands out raw
// pointers only.
unsafe impl Send for Region {}
// SAFETY: as for `Send`; whoever uses the pointers answers for what they do concurrently.
unsafe impl Sync for Region {}

/// Part of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileRun {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Region {
    /// Zeroed memory that becomes resident when touched.
    pub(crate) fn anonymous(len: u64) -> Result<Self, Errno> {
        let len = to_usize(len)?;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, READ_WRITE, MapFlags::PRIVATE) }?;
        Self::adopt(base, len)
    }

    /// A shared mapping of `runs` of a file, one behind the other.
    pub(crate) fn of_file(file: BorrowedFd<'_>, runs: &[FileRun]) -> Result<Self, Errno> {
        let len = to_usize(runs.iter().map(|run| run.len).sum())?;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let base = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let region = Self::adopt(base, len)?;
        let mut at = 0;
        for run in runs {
            let target = region.at(at, run.len).as_ptr().cast();
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            // SAFETY: `at` has checked that the target lies inside the address range reserved
            // above, which `region` owns and nobody else knows yet; it may be replaced.
            unsafe {
                mmap(
                    target,
                    to_usize(run.len)?,
                    READ_WRITE,
                    flags,
                    file,
                    run.offset,
                )
            }?;
            at += run.len;
        }
        Ok(region)
    }

    fn adopt(base: *mut core::ffi::c_void, len: usize) -> Result<Self, Errno> {
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self {
            base,
            len,
            lender: None,
        })
    }

    /// Memory of somebody else, kept as long as the region.
    pub(crate) fn lent(host: &HostRange) -> Self {
        Self {
            base: host.base(),
            len: usize::try_from(host.len()).expect("checked when it was named"),
            lender: Some(host.clone()),
        }
    }

    /// Asks for large pages where the kernel gives them. Advice: a refusal changes speed only.
    pub(crate) fn prefer_large_pages(&self) {
        self.advise(self.len, Advice::LinuxHugepage).ok();
    }

    /// Touches the first `len` bytes for writing.
    ///
    /// Kernels before 5.14 do not know the request; there, pages are touched by their first use.
    pub(crate) fn populate(&self, len: u64) -> Result<(), Errno> {
        match self.advise(to_usize(len)?.min(self.len), Advice::LinuxPopulateWrite) {
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn advise(&self, len: usize, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the range is owned by this region, and both kinds of advice used in this module
        // keep its content.
        unsafe { madvise(self.base.as_ptr().cast(), len, advice) }
    }

    /// Address of a checked range.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub(crate) fn at(&self, offset: u64, len: u64) -> NonNull<u8> {
        let end = offset
            .checked_add(len)
            .and_then(|end| usize::try_from(end).ok());
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{offset}+{len} leaves a region of {}",
            self.len
        );
        let offset = usize::try_from(offset).expect("an offset inside a region fits in usize");
        // SAFETY: `offset` is at most `self.len`, and the region is one mapping, or one range that
        // its lender answers for.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.lender.is_some() {
            return;
        }
        // SAFETY: the region owns the mapping, and this is its last use. Users of CPU mappings
        // have promised to be done before they release them.
        let result = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        // It fails only where the process is at its limit of mappings and would have to split one.
        debug_assert!(result.is_ok(), "munmap: {result:?}");
    }
}

fn to_usize(len: u64) -> Result<usize, Errno> {
    usize::try_from(len).map_err(|_| Errno::NOMEM)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::copy::Place;
    use std::sync::Arc;

    #[test]
    fn scattered_runs_of_a_file_appear_in_the_order_given() {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 3 * 4096).unwrap();
        let page = |n: u64| FileRun {
            offset: n * 4096,
            len: 4096,
        };
        let whole = Arc::new(Region::of_file(file.as_fd(), &[page(0), page(1), page(2)]).unwrap());
        Place::new(&whole, 2 * 4096).fill(4096, 2);
        Place::new(&whole, 0).fill(4096, 1);
        let view = Arc::new(Region::of_file(file.as_fd(), &[page(2), page(0)]).unwrap());
        assert_eq!(Place::new(&view, 4095).bytes(2), [2, 1]);
    }

    #[test]
    #[should_panic(expected = "leaves a region")]
    fn an_address_outside_is_refused() {
        Region::anonymous(4096).unwrap().at(4096, 1);
    }
}
