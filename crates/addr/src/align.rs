use core::fmt;

/// A power-of-two alignment in bytes.
///
/// # Invariants
/// The value is a power of two, hence never zero.
///
/// # Examples
/// ```
/// use vrampager_addr::Align;
/// let align = Align::new(65536).unwrap();
/// assert_eq!(align.up(1), Some(65536));
/// assert_eq!(align.down(65537), 65536);
/// assert_eq!(align.up(u64::MAX), None, "there is no aligned address above");
/// assert!(Align::new(3).is_none());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Align(u64);

impl Align {
    /// No constraint: every address is aligned to one byte.
    pub const ONE: Self = Self(1);

    /// The page granule, 4 KiB.
    pub const PAGE: Self = Self(4096);

    /// `None` unless `bytes` is a power of two.
    #[must_use]
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_power_of_two() {
            Some(Self(bytes))
        } else {
            None
        }
    }

    /// The alignment in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Base-two logarithm of the alignment.
    #[must_use]
    pub const fn log2(self) -> u32 {
        self.0.trailing_zeros()
    }

    /// The smallest multiple at or above `value`, or `None` past `u64::MAX`.
    #[must_use]
    pub const fn up(self, value: u64) -> Option<u64> {
        match value.checked_add(self.0 - 1) {
            Some(sum) => Some(sum & !(self.0 - 1)),
            None => None,
        }
    }

    /// The greatest multiple at or below `value`.
    #[must_use]
    pub const fn down(self, value: u64) -> u64 {
        value & !(self.0 - 1)
    }

    /// Whether `value` is a multiple.
    #[must_use]
    pub const fn divides(self, value: u64) -> bool {
        value & (self.0 - 1) == 0
    }
}

impl fmt::Display for Align {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::Size(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_agrees_with_division_for_every_small_value() {
        for shift in 0..6 {
            let align = Align::new(1 << shift).unwrap();
            for value in 0..300_u64 {
                let up = value.div_ceil(1 << shift) << shift;
                assert_eq!(align.up(value), Some(up));
                assert_eq!(align.down(value), (value >> shift) << shift);
                assert_eq!(align.divides(value), up == value);
            }
        }
    }

    #[test]
    fn rounding_up_at_the_end_of_the_space_reports_instead_of_wrapping() {
        let top = Align::new(1 << 63).unwrap();
        assert_eq!(top.up(1 << 63), Some(1 << 63));
        assert_eq!(top.up((1 << 63) + 1), None);
        assert_eq!(Align::ONE.up(u64::MAX), Some(u64::MAX));
    }

    #[test]
    fn only_powers_of_two_are_alignments() {
        assert!(Align::new(0).is_none());
        assert!(Align::new(6).is_none());
        assert_eq!(Align::new(1 << 63).map(Align::log2), Some(63));
    }
}
