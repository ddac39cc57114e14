//! Eight numbers at once.
//!
//! The search for the first of many numbers that is large enough, and for the greatest of those
//! that a bit mask names, are what an insertion spends most on. Processors have instructions that
//! go between lanes and bit masks; compilers don't find them in loops.
#![cfg_attr(
    target_feature = "sse2",
    expect(
        unsafe_code,
        reason = "functions that need a target feature are called from ones that don't name it"
    )
)]

pub(super) const LANES: usize = 8;

pub(super) type Lanes = [i32; LANES];

/// A bit for each lane, the lowest for the first: whether it is `least` or more.
#[inline(always)]
pub(super) fn at_least(lanes: &Lanes, least: i32) -> u32 {
    #[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
    // SAFETY: the whole program is compiled for processors that have AVX2, and the function has
    // no other precondition.
    let less = unsafe { avx2::less(*lanes, least) };
    #[cfg(all(target_feature = "sse2", not(target_feature = "avx2")))]
    // SAFETY: the whole program is compiled for processors that have SSE2, and the function has
    // no other precondition.
    let less = unsafe { sse2::less(*lanes, least) };
    #[cfg(not(target_feature = "sse2"))]
    let less = plain::less(*lanes, least);
    less ^ 0xff
}

/// The greatest of those lanes whose bit is set, none of which is negative; 0 if there are none.
/// The lowest bits stand for the lanes of the first block, and so on.
#[inline(always)]
pub(super) fn greatest_kept<const BLOCKS: usize>(blocks: &[Lanes; BLOCKS], bits: u32) -> i32 {
    #[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
    // SAFETY: the whole program is compiled for processors that have AVX2, and the function has
    // no other precondition.
    let greatest = unsafe { avx2::greatest_kept(blocks, bits) };
    #[cfg(all(target_feature = "sse2", not(target_feature = "avx2")))]
    // SAFETY: the whole program is compiled for processors that have SSE2, and the function has
    // no other precondition.
    let greatest = unsafe { sse2::greatest_kept(blocks, bits) };
    #[cfg(not(target_feature = "sse2"))]
    let greatest = plain::greatest_kept(blocks, bits);
    greatest
}

/// The greatest lane; none is negative.
#[inline(always)]
pub(super) fn greatest(lanes: &Lanes) -> i32 {
    greatest_kept(&[*lanes], u32::MAX)
}

/// The greatest lane but one; none is negative.
#[inline(always)]
pub(super) fn greatest_but(lanes: &Lanes, but: usize) -> i32 {
    greatest_kept(&[*lanes], !(1 << (but % LANES)))
}

/// For processors that are not known here, and what the others are to do.
#[cfg(any(test, not(target_feature = "sse2")))]
mod plain {
    use super::Lanes;

    #[inline]
    pub(super) fn less(lanes: Lanes, than: i32) -> u32 {
        let bits = lanes.iter().map(|&lane| u32::from(lane < than));
        bits.rev().fold(0, |mask, bit| mask << 1 | bit)
    }

    #[inline]
    pub(super) fn greatest_kept<const BLOCKS: usize>(blocks: &[Lanes; BLOCKS], bits: u32) -> i32 {
        let lanes = blocks.as_flattened().iter().enumerate();
        let kept = lanes.filter(|(at, _)| bits >> at & 1 != 0);
        kept.map(|(_, &lane)| lane).max().unwrap_or(0)
    }
}

#[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
mod avx2 {
    use super::{LANES, Lanes};
    use core::arch::x86_64 as arch;
    use core::arch::x86_64::__m256i;

    #[target_feature(enable = "avx2")]
    #[inline]
    fn load([a, b, c, d, e, f, g, h]: Lanes) -> __m256i {
        arch::_mm256_setr_epi32(a, b, c, d, e, f, g, h)
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) fn less(lanes: Lanes, than: i32) -> u32 {
        let less = arch::_mm256_cmpgt_epi32(arch::_mm256_set1_epi32(than), load(lanes));
        arch::_mm256_movemask_ps(arch::_mm256_castsi256_ps(less)).cast_unsigned()
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) fn greatest_kept<const BLOCKS: usize>(blocks: &[Lanes; BLOCKS], bits: u32) -> i32 {
        let each = load([1, 2, 4, 8, 16, 32, 64, 128]);
        let mut most = arch::_mm256_setzero_si256();
        for (block, &lanes) in blocks.iter().enumerate() {
            let bits = (bits >> (block * LANES)).cast_signed();
            let kept = arch::_mm256_and_si256(arch::_mm256_set1_epi32(bits), each);
            let kept = arch::_mm256_cmpeq_epi32(kept, each);
            most = arch::_mm256_max_epi32(most, arch::_mm256_and_si256(load(lanes), kept));
        }
        let high = arch::_mm256_extracti128_si256(most, 1);
        let most = arch::_mm_max_epi32(arch::_mm256_castsi256_si128(most), high);
        let most = arch::_mm_max_epi32(most, arch::_mm_shuffle_epi32(most, 0b1110));
        let most = arch::_mm_max_epi32(most, arch::_mm_shuffle_epi32(most, 0b01));
        arch::_mm_cvtsi128_si32(most)
    }
}

#[cfg(all(target_feature = "sse2", any(test, not(target_feature = "avx2"))))]
mod sse2 {
    use super::{LANES, Lanes};
    use core::arch::x86_64 as arch;
    use core::arch::x86_64::__m128i;

    #[target_feature(enable = "sse2")]
    #[inline]
    fn load([a, b, c, d, e, f, g, h]: Lanes) -> [__m128i; 2] {
        [
            arch::_mm_setr_epi32(a, b, c, d),
            arch::_mm_setr_epi32(e, f, g, h),
        ]
    }

    #[target_feature(enable = "sse2")]
    #[inline]
    pub(super) fn less(lanes: Lanes, than: i32) -> u32 {
        let (than, [low, high]) = (arch::_mm_set1_epi32(than), load(lanes));
        let (low, high) = (
            arch::_mm_cmpgt_epi32(than, low),
            arch::_mm_cmpgt_epi32(than, high),
        );
        let words = arch::_mm_packs_epi32(low, high);
        let bytes = arch::_mm_packs_epi16(words, arch::_mm_setzero_si128());
        arch::_mm_movemask_epi8(bytes).cast_unsigned()
    }

    /// The instruction for it came later.
    #[target_feature(enable = "sse2")]
    #[inline]
    fn max(a: __m128i, b: __m128i) -> __m128i {
        let more = arch::_mm_cmpgt_epi32(a, b);
        arch::_mm_or_si128(
            arch::_mm_and_si128(more, a),
            arch::_mm_andnot_si128(more, b),
        )
    }

    #[target_feature(enable = "sse2")]
    #[inline]
    pub(super) fn greatest_kept<const BLOCKS: usize>(blocks: &[Lanes; BLOCKS], bits: u32) -> i32 {
        let each = load([1, 2, 4, 8, 16, 32, 64, 128]);
        let mut most = arch::_mm_setzero_si128();
        for (block, &lanes) in blocks.iter().enumerate() {
            let bits = arch::_mm_set1_epi32((bits >> (block * LANES)).cast_signed());
            for (lanes, each) in load(lanes).into_iter().zip(each) {
                let kept = arch::_mm_cmpeq_epi32(arch::_mm_and_si128(bits, each), each);
                most = max(most, arch::_mm_and_si128(lanes, kept));
            }
        }
        let most = max(most, arch::_mm_shuffle_epi32(most, 0b1110));
        let most = max(most, arch::_mm_shuffle_epi32(most, 0b01));
        arch::_mm_cvtsi128_si32(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGES: [i32; 7] = [i32::MIN, -1, 0, 1, 2, i32::MAX - 1, i32::MAX];

    #[test]
    fn every_lane_is_compared_as_a_signed_number_and_gets_its_own_bit() {
        for (base, other) in EDGES.into_iter().flat_map(|a| EDGES.map(|b| (a, b))) {
            for (lane, least) in (0..LANES).flat_map(|lane| EDGES.map(|least| (lane, least))) {
                let mut lanes = [base; LANES];
                lanes[lane] = other;
                let expected = plain::less(lanes, least) ^ 0xff;
                assert_eq!(at_least(&lanes, least), expected, "{lanes:?} {least}");
                #[cfg(target_arch = "x86_64")]
                // SAFETY: every x86-64 processor has SSE2.
                let portable = unsafe { sse2::less(lanes, least) };
                #[cfg(target_arch = "x86_64")]
                assert_eq!(portable ^ 0xff, expected, "{lanes:?} {least}");
            }
        }
    }

    #[test]
    fn the_greatest_is_found_in_every_lane_and_only_where_the_bit_is_set() {
        for (lane, other) in (0..32).flat_map(|lane| EDGES[2..].iter().map(move |&o| (lane, o))) {
            let mut blocks = [[1; LANES]; 4];
            blocks.as_flattened_mut()[lane] = other;
            for bits in [
                0,
                1 << lane,
                !(1 << lane),
                u32::MAX,
                0x8000_0001,
                0x00ff_ff00,
            ] {
                let expected = plain::greatest_kept(&blocks, bits);
                assert_eq!(
                    greatest_kept(&blocks, bits),
                    expected,
                    "{lane} {other} {bits:#x}"
                );
                #[cfg(target_arch = "x86_64")]
                // SAFETY: every x86-64 processor has SSE2.
                let portable = unsafe { sse2::greatest_kept(&blocks, bits) };
                #[cfg(target_arch = "x86_64")]
                assert_eq!(portable, expected, "{lane} {other} {bits:#x}");
            }
        }
    }
}
