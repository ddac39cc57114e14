#![expect(
    unsafe_code,
    reason = "vector instructions have no safe interface; they take a fifth off an operation"
)]

use core::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};

#[inline]
pub(in super::super) fn equal(bytes: &[u8; 16], byte: u8) -> u32 {
    // SAFETY: the whole program is compiled for processors with SSE2, and the function has no other
    // precondition.
    unsafe { equal_vectors(bytes, byte) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn equal_vectors(bytes: &[u8; 16], byte: u8) -> u32 {
    let [low, high] = super::words(bytes).map(u64::cast_signed);
    let equal = _mm_cmpeq_epi8(_mm_set_epi64x(high, low), _mm_set1_epi8(byte.cast_signed()));
    _mm_movemask_epi8(equal).cast_unsigned()
}
