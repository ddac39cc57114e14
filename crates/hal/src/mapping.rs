//! CPU views of device and host memory.
//!
//! Memory that a device writes is never a Rust slice: no reference to it may exist, because its
//! content can change between two reads. [`CpuMapping`] therefore only copies in and out.
#![expect(
    unsafe_code,
    reason = "raw memory shared with a device; see the SAFETY comments"
)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use thiserror::Error;
use vrampager_addr::{PAGE, PAGE_SIZE, Span};

use crate::CpuMapId;

/// A bounds-checked view of mapped memory.
///
/// Clones view the same bytes, and keep them mapped: after
/// [`Release::unmap_cpu`](crate::Release::unmap_cpu) the back end counts the mapping as gone, but
/// the memory goes with the last clone. What it then shows is nobody's business any more.
#[derive(Clone, Debug)]
pub struct CpuMapping {
    id: CpuMapId,
    base: NonNull<u8>,
    len: u64,
    owner: Option<Arc<dyn Owner>>,
}

/// Whatever keeps mapped memory mapped while it lives.
pub trait Owner: Send + Sync + fmt::Debug {}

impl<T: Send + Sync + fmt::Debug> Owner for T {}

// SAFETY: the view owns nothing thread-bound; every access is a bounds-checked raw copy, and the
// memory behind it is shared with another agent (the device) in any case.
unsafe impl Send for CpuMapping {}
// SAFETY: as for `Send`; concurrent copies are the caller's business exactly as with the device.
unsafe impl Sync for CpuMapping {}

impl CpuMapping {
    /// Wraps a mapping that a back end has just made.
    ///
    /// # Safety
    /// `base..base + len` is readable and writable memory that no Rust reference points into, and
    /// stays so while the view or a clone of it lives: for as long as the owner does that
    /// [`owned_by`](Self::owned_by) adds.
    #[must_use]
    pub const unsafe fn new(id: CpuMapId, base: NonNull<u8>, len: u64) -> Self {
        Self {
            id,
            base,
            len,
            owner: None,
        }
    }

    /// The same view, with something that keeps its memory mapped.
    #[must_use]
    pub fn owned_by(mut self, owner: Arc<dyn Owner>) -> Self {
        self.owner = Some(owner);
        self
    }

    /// The id to release it by.
    #[must_use]
    pub const fn id(&self) -> CpuMapId {
        self.id
    }

    /// Bytes in view.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing is in view.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A view of `len` bytes from `offset` on, with the same id.
    ///
    /// # Panics
    /// When the part is not inside the view.
    #[must_use]
    pub fn slice(&self, offset: u64, len: u64) -> Self {
        let base = self.at(offset, len);
        Self {
            id: self.id,
            base,
            len,
            owner: self.owner.clone(),
        }
    }

    /// Copies from the mapping at `offset` into `dst`.
    ///
    /// # Panics
    /// When the range is not inside the view.
    pub fn read(&self, offset: u64, dst: &mut [u8]) {
        let src = self.at(offset, dst.len() as u64);
        // SAFETY: `at` has checked `dst.len()` bytes from `src`; `dst` is a Rust slice and so
        // disjoint from the mapping, into which no reference exists.
        unsafe {
            src.as_ptr()
                .copy_to_nonoverlapping(dst.as_mut_ptr(), dst.len())
        }
    }

    /// Copies `src` into the mapping at `offset`.
    ///
    /// # Panics
    /// When the range is not inside the view.
    pub fn write(&self, offset: u64, src: &[u8]) {
        let dst = self.at(offset, src.len() as u64);
        // SAFETY: as for `read`, with the roles swapped.
        unsafe {
            dst.as_ptr()
                .copy_from_nonoverlapping(src.as_ptr(), src.len())
        }
    }

    /// Writes one byte value over a range.
    ///
    /// # Panics
    /// When the range is not inside the view.
    pub fn fill(&self, offset: u64, len: u64, byte: u8) {
        let dst = self.at(offset, len);
        let len = usize::try_from(len).expect("a mapped length fits in usize");
        // SAFETY: `at` has checked `len` bytes from `dst`.
        unsafe { dst.as_ptr().write_bytes(byte, len) }
    }

    /// Address of a checked range, for system calls that fill or drain memory directly.
    ///
    /// # Panics
    /// When the range is not inside the view.
    #[must_use]
    pub fn at(&self, offset: u64, len: u64) -> NonNull<u8> {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{offset}+{len} leaves {}",
            self.len
        );
        let offset = usize::try_from(offset).expect("a mapped offset fits in usize");
        // SAFETY: `offset` is at most `self.len`, and the whole view is one allocation (`new`).
        unsafe { self.base.add(offset) }
    }
}

/// [`PAGE_SIZE`] as the length of an array.
const PAGE_BYTES: usize = 4096;
const _: () = assert!(PAGE_BYTES as u64 == PAGE_SIZE);

/// A page of host memory of which a device may change any byte at any time.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct HostPage([AtomicU8; PAGE_BYTES]);

impl HostPage {
    /// `count` pages of zeros.
    #[must_use]
    pub fn zeroed(count: usize) -> Arc<[Self]> {
        let page = |_| Self([const { AtomicU8::new(0) }; PAGE_BYTES]);
        (0..count).map(page).collect()
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[AtomicU8; PAGE_BYTES] {
        &self.0
    }
}

/// Host memory that belongs to somebody else and that a device is to use (mission rows A8, A9).
///
/// Clones name the same memory. It is never freed through this, only pinned; who owns it learns
/// that nobody names it any more when the owner added by [`owned_by`](Self::owned_by) is dropped.
///
/// # Examples
/// ```
/// use vrampager_hal::{HostPage, HostRange};
///
/// let pages = HostPage::zeroed(4);
/// let range = HostRange::of(pages.clone())?;
/// assert_eq!((range.len(), range.address() % 4096), (16384, 0));
///
/// let none = HostRange::of(HostPage::zeroed(0)).unwrap_err();
/// assert_eq!(none.len, 0);
/// # Ok::<(), vrampager_hal::Misaligned>(())
/// ```
#[derive(Clone, Debug)]
pub struct HostRange {
    base: NonNull<u8>,
    len: u64,
    owner: Option<Arc<dyn Owner>>,
}

/// Memory that a device cannot take in as it is, because devices map whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("host memory at {address:#x} with {len} bytes is not made of whole pages of 4096 bytes")]
pub struct Misaligned {
    /// Where it starts.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

// SAFETY: the range is only named here; whoever accesses it does so by raw copies, which the
// memory's owner has allowed from any thread (`new`).
unsafe impl Send for HostRange {}
// SAFETY: as for `Send`.
unsafe impl Sync for HostRange {}

impl HostRange {
    /// Names memory by its address.
    ///
    /// # Errors
    /// [`Misaligned`] unless address and length are multiples of 4 KiB and there is a page.
    ///
    /// # Safety
    /// Until all clones are gone, or the owner that is added right after, `base..base + len` is
    /// readable and writable memory whose bytes may be read and changed at any time, from any
    /// thread and by devices: no Rust reference points into it, except to atomics.
    pub unsafe fn new(base: NonNull<u8>, len: u64) -> Result<Self, Misaligned> {
        let address = base.as_ptr().expose_provenance() as u64;
        let fits = Span::new(address, len).is_some() && usize::try_from(len).is_ok();
        if len == 0 || !fits || !PAGE.divides(address | len) {
            return Err(Misaligned { address, len });
        }
        Ok(Self {
            base,
            len,
            owner: None,
        })
    }

    /// Names pages that are the owner themselves.
    ///
    /// # Errors
    /// [`Misaligned`] when there is none.
    pub fn of(pages: Arc<[HostPage]>) -> Result<Self, Misaligned> {
        let len = pages.len() as u64 * PAGE_SIZE;
        let base = NonNull::from(&*pages).cast();
        // SAFETY: the slice consists of atomics and lives as long as the owner added here; being
        // `repr(C)`, a page is nothing but its bytes.
        let range = unsafe { Self::new(base, len) }?;
        Ok(range.owned_by(Arc::new(pages)))
    }

    /// The same memory, with something that keeps it there. It may be dropped by any thread and
    /// from within a back end, so its `Drop` calls no device.
    #[must_use]
    pub fn owned_by(mut self, owner: Arc<dyn Owner>) -> Self {
        self.owner = Some(owner);
        self
    }

    /// First byte.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its address, a multiple of 4 KiB.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    /// Its addresses.
    #[must_use]
    pub fn span(&self) -> Span {
        Span::new(self.address(), self.len).expect("checked when it was named")
    }

    /// Bytes, a multiple of 4 KiB.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Always false: there is at least a page.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_whole_pages_is_refused_with_its_numbers() {
        let pages = HostPage::zeroed(2);
        let start = pages.as_ptr().cast::<u8>().cast_mut();
        for (offset, len) in [
            (1, 4096),
            (0, 100),
            (0, 0),
            (4096, 4095),
            (0, u64::MAX - 4095),
        ] {
            let base = NonNull::new(start.wrapping_add(offset)).unwrap();
            // SAFETY: what is refused is never accessed.
            let range = unsafe { HostRange::new(base, len) };
            let address = base.as_ptr().expose_provenance() as u64;
            assert_eq!(range.unwrap_err(), Misaligned { address, len });
        }
    }

    #[test]
    fn pages_live_as_long_as_somebody_names_them() {
        let pages = HostPage::zeroed(1);
        let gone = Arc::downgrade(&pages);
        let range = HostRange::of(pages).unwrap();
        let clone = range.clone();
        drop(range);
        assert!(gone.upgrade().is_some());
        drop(clone);
        assert!(gone.upgrade().is_none());
    }

    fn over(memory: &mut [u8]) -> CpuMapping {
        let base = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: the tests touch `memory` again only after the mapping's last use.
        unsafe { CpuMapping::new(CpuMapId(1), base, memory.len() as u64) }
    }

    #[test]
    fn bytes_written_are_the_bytes_read() {
        let mut memory = [0_u8; 32];
        let map = over(&mut memory);
        map.write(4, b"abcd");
        map.fill(8, 2, b'z');
        let mut back = [0; 8];
        map.slice(3, 8).read(0, &mut back);
        assert_eq!(&back, b"\0abcdzz\0");
    }

    #[test]
    #[should_panic(expected = "leaves")]
    fn a_read_past_the_end_is_refused() {
        let mut memory = [0_u8; 8];
        over(&mut memory).read(7, &mut [0; 2]);
    }

    #[test]
    #[should_panic(expected = "leaves")]
    fn an_offset_that_wraps_is_refused() {
        let mut memory = [0_u8; 8];
        over(&mut memory).fill(u64::MAX, 2, 0);
    }
}
