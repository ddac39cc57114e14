use core::fmt;

/// A half-open interval `[start, end)` of a 64-bit space.
///
/// # Invariants
/// `start + len` does not exceed `u64::MAX`, so [`Span::end`] is always representable. A span may
/// be empty.
///
/// # Examples
/// ```
/// use vrampager_addr::Span;
/// let span = Span::new(0x1000, 0x2000).unwrap();
/// assert_eq!(span.end(), 0x3000);
/// assert!(span.contains(0x2fff) && !span.contains(0x3000));
/// assert!(Span::new(u64::MAX, 1).is_none(), "the end would wrap");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    start: u64,
    len: u64,
}

impl Span {
    /// `None` when `start + len` would wrap.
    #[must_use]
    pub const fn new(start: u64, len: u64) -> Option<Self> {
        match start.checked_add(len) {
            Some(_) => Some(Self { start, len }),
            None => None,
        }
    }

    /// The span `[start, end)`, or `None` when `end < start`.
    #[must_use]
    pub const fn from_bounds(start: u64, end: u64) -> Option<Self> {
        match end.checked_sub(start) {
            Some(len) => Some(Self { start, len }),
            None => None,
        }
    }

    /// First address.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.len
    }

    /// Whether the span covers nothing.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// One past the last address.
    #[must_use]
    pub const fn end(self) -> u64 {
        // OVERFLOW: excluded by the type's invariant.
        self.start + self.len
    }

    /// Whether `address` lies inside.
    #[must_use]
    pub const fn contains(self, address: u64) -> bool {
        address >= self.start && address < self.end()
    }

    /// Whether `other` lies wholly inside. An empty `other` does when its start is within bounds.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        other.start >= self.start && other.end() <= self.end()
    }

    /// Whether both share at least one address.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end() && self.len != 0 && other.len != 0
    }

    /// The common part, or `None` when it would be empty.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        let span = Self::from_bounds(self.start.max(other.start), self.end().min(other.end()))?;
        (!span.is_empty()).then_some(span)
    }

    /// `len` bytes starting `offset` bytes into this span, or `None` when they do not fit in it.
    #[must_use]
    pub fn slice(self, offset: u64, len: u64) -> Option<Self> {
        let part = Self::new(self.start.checked_add(offset)?, len)?;
        self.covers(part).then_some(part)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}, {:#x})", self.start, self.end())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive_overlap(a: Span, b: Span) -> bool {
        (0..16).any(|x| a.contains(x) && b.contains(x))
    }

    #[test]
    fn relations_agree_with_sets_of_addresses_over_a_small_universe() {
        for (a_start, a_len) in (0..8).flat_map(|s| (0..8).map(move |l| (s, l))) {
            let a = Span::new(a_start, a_len).unwrap();
            for (b_start, b_len) in (0..8).flat_map(|s| (0..8).map(move |l| (s, l))) {
                let b = Span::new(b_start, b_len).unwrap();
                assert_eq!(a.overlaps(b), naive_overlap(a, b), "{a} {b}");
                assert_eq!(a.intersection(b).is_some(), naive_overlap(a, b), "{a} {b}");
                if !b.is_empty() {
                    assert_eq!(
                        a.covers(b),
                        (b_start..b_start + b_len).all(|x| a.contains(x))
                    );
                }
            }
        }
    }

    #[test]
    fn the_whole_space_but_its_last_byte_is_a_span() {
        let all = Span::new(0, u64::MAX).unwrap();
        assert!(all.contains(u64::MAX - 1));
        assert!(!all.contains(u64::MAX));
        assert!(Span::new(1, u64::MAX).is_none());
    }

    #[test]
    fn a_slice_never_leaves_its_span() {
        let span = Span::new(100, 10).unwrap();
        assert_eq!(span.slice(4, 6), Span::new(104, 6));
        assert_eq!(span.slice(4, 7), None);
        assert_eq!(span.slice(u64::MAX, 1), None);
    }
}
