use core::fmt;

/// A GPU virtual address.
///
/// Kept apart from offsets into memory objects: mixing the two is the commonest mistake in a
/// memory manager, and this type makes it a compile error.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Va(pub u64);

impl Va {
    /// The address `offset` bytes further on.
    ///
    /// # Panics
    /// When the sum leaves the 64-bit space; ranges handed out by an address space never do.
    #[must_use]
    pub fn offset(self, offset: u64) -> Self {
        Self(
            self.0
                .checked_add(offset)
                .expect("an offset stays inside its range"),
        )
    }
}

impl fmt::Debug for Va {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "va:{:#x}", self.0)
    }
}

impl fmt::Display for Va {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
