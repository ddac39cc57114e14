//! Moving bytes between places, at the speed of the memory.
//!
//! Large copies bypass the cache with streaming stores: they would evict everything else, and
//! they spare the read of each line that is about to be overwritten. Small ones go through the
//! cache, where the reader probably wants them.
#![expect(unsafe_code, reason = "raw copies between shared memory")]

use std::ptr::NonNull;
use std::sync::Arc;

use crate::region::Region;

/// A position in mapped memory.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    region: Arc<Region>,
    offset: u64,
}

/// From this size on, copies bypass the cache.
const STREAM_FROM: usize = 256 << 10;

impl Place {
    pub(crate) fn new(region: &Arc<Region>, offset: u64) -> Self {
        Self {
            region: Arc::clone(region),
            offset,
        }
    }

    /// The position `bytes` further on in the same memory.
    pub(crate) fn offset(&self, bytes: u64) -> Self {
        Self::new(&self.region, self.offset + bytes)
    }

    /// Copies `len` bytes from here to `target`.
    ///
    /// Two virtual ranges may be the same memory (a device address space can map an object
    /// twice); then the result is unspecified, but nothing else happens.
    ///
    /// # Panics
    /// When either range leaves its region.
    pub(crate) fn copy_to(&self, target: &Self, len: u64) {
        let src = self.region.at(self.offset, len);
        let dst = target.region.at(target.offset, len);
        let len = usize::try_from(len).expect("checked against a region");
        if len >= STREAM_FROM && stream(src, dst, len) {
            return;
        }
        // SAFETY: both ranges were checked above and stay mapped while their regions are
        // borrowed; `copy_to` allows overlap.
        unsafe { src.as_ptr().copy_to(dst.as_ptr(), len) }
    }

    /// Writes one value over `len` bytes from here on.
    ///
    /// # Panics
    /// When the range leaves the region.
    pub(crate) fn fill(&self, len: u64, byte: u8) {
        let dst = self.region.at(self.offset, len);
        let len = usize::try_from(len).expect("checked against a region");
        // SAFETY: the range was checked above and stays mapped while the region is borrowed.
        unsafe { dst.as_ptr().write_bytes(byte, len) }
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self, len: u64) -> Vec<u8> {
        let src = self.region.at(self.offset, len);
        let len = usize::try_from(len).unwrap();
        let mut bytes = vec![0; len];
        // SAFETY: the range was checked above; the vector is `len` bytes of other memory.
        unsafe { src.as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }
}

/// Copies with streaming stores, or says that this processor has none.
#[cfg(target_arch = "x86_64")]
fn stream(src: NonNull<u8>, dst: NonNull<u8>, len: usize) -> bool {
    if !std::arch::is_x86_feature_detected!("avx2") {
        return false;
    }
    // SAFETY: AVX2 is there; the caller has checked both ranges.
    unsafe { avx2::copy(src.as_ptr(), dst.as_ptr(), len) };
    true
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(_src: NonNull<u8>, _dst: NonNull<u8>, _len: usize) -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm_sfence, _mm256_loadu_si256, _mm256_setzero_si256, _mm256_stream_si256,
    };

    const VECTOR: usize = size_of::<__m256i>();
    /// Vectors per round: two cache lines, so that a line is always written as a whole.
    const ROUND: usize = 4;

    /// # Safety
    /// `src..src + len` is readable and `dst..dst + len` writable.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        let head = dst.align_offset(VECTOR).min(len);
        let body = (len - head) / (VECTOR * ROUND) * (VECTOR * ROUND);
        // SAFETY: `head <= len`.
        unsafe { src.copy_to(dst, head) };
        let mut at = head;
        while at < head + body {
            let mut round = [_mm256_setzero_si256(); ROUND];
            for (n, vector) in round.iter_mut().enumerate() {
                let from = src.wrapping_add(at + n * VECTOR).cast();
                // SAFETY: `at + ROUND * VECTOR <= head + body <= len`; no alignment needed.
                *vector = unsafe { _mm256_loadu_si256(from) };
            }
            for (n, vector) in round.into_iter().enumerate() {
                let to = dst.wrapping_add(at + n * VECTOR).cast();
                // SAFETY: in range as above; `dst + head` is aligned, and so are all steps of
                // whole vectors from it.
                unsafe { _mm256_stream_si256(to, vector) };
            }
            at += VECTOR * ROUND;
        }
        // ORDER: streaming stores are weakly ordered; the signal behind this copy must not be
        // seen before them.
        _mm_sfence();
        // SAFETY: `at <= len`, so the rest is in range.
        unsafe { src.wrapping_add(at).copy_to(dst.wrapping_add(at), len - at) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_moves_exactly_its_bytes_whatever_the_alignment() {
        let region = |len| Arc::new(Region::anonymous(len).unwrap());
        let (src, dst) = (region(4 << 20), region(4 << 20));
        for n in 0..4096 {
            let byte = u8::try_from(n % 251).unwrap();
            Place::new(&src, n << 10).fill(1 << 10, byte);
        }
        let large = STREAM_FROM as u64;
        for (from, to, len) in [
            (0, 0, 1 << 20),
            (1, 0, large + 3),
            (7, 33, large),
            (5, 3, 77),
        ] {
            Place::new(&dst, 0).fill(4 << 20, 0xee);
            Place::new(&src, from).copy_to(&Place::new(&dst, to), len);
            let copied = Place::new(&dst, to).bytes(len);
            assert!(
                copied == Place::new(&src, from).bytes(len),
                "{from} {to} {len}"
            );
            assert!(Place::new(&dst, 0).bytes(to).iter().all(|&b| b == 0xee));
            assert_eq!(Place::new(&dst, to + len).bytes(1), [0xee]);
        }
    }
}
