//! Comparing sixteen bytes at once.

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod sse2;

#[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
pub(super) use self::portable as equal;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub(super) use sse2::equal;

#[inline]
fn words(bytes: &[u8; 16]) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, high @ ..] = *bytes;
    [
        u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        u64::from_le_bytes(high),
    ]
}

/// One bit for each of the bytes that is equal to `byte`.
#[cfg(any(test, not(all(target_arch = "x86_64", target_feature = "sse2"))))]
#[inline]
pub(super) fn portable(bytes: &[u8; 16], byte: u8) -> u32 {
    const ONES: u64 = u64::MAX / 255;
    const LOW: u64 = 0x7f * ONES;
    let bits = words(bytes).map(|word| {
        let differing = word ^ (u64::from(byte) * ONES);
        // Bit 7 of each is set unless the byte is 0.
        let differing = ((differing & LOW) + LOW) | differing;
        let equal = !differing >> 7 & ONES;
        // Collects bit 0 of the bytes in the highest byte.
        equal.wrapping_mul(0x0102_0408_1020_4080) >> 56
    });
    u32::try_from(bits[0] | bits[1] << 8).expect("sixteen bits")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    #[test]
    fn equal_bytes_are_found_whatever_the_others_are() {
        let draw = |rng: &mut Rng| [0, 1, 0x7f, 0x80, 0xff][usize::try_from(rng.below(5)).unwrap()];
        let mut rng = Rng(1);
        for _ in 0..10_000 {
            let bytes: [u8; 16] = core::array::from_fn(|_| draw(&mut rng));
            let byte = draw(&mut rng);
            let bit = |(slot, &found): (usize, &u8)| u32::from(found == byte) << slot;
            let expected: u32 = bytes.iter().enumerate().map(bit).sum();
            assert_eq!(equal(&bytes, byte), expected, "{byte} in {bytes:?}");
            assert_eq!(portable(&bytes, byte), expected, "{byte} in {bytes:?}");
        }
    }
}
