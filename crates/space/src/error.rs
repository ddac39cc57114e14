use core::fmt;

/// Why a request was refused. Nothing has changed: the same request may be made again, and gets
/// the answer it would have got had it never been refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SpaceError {
    /// The request is valid, but no hole can hold it. Freeing may help: an empty space could serve
    /// it. What is never freed, as a reserved window, counts as if it could be.
    NoSpace {
        /// Bytes asked for.
        needed: u64,
        /// Bytes free in the whole space.
        free: u64,
        /// Length of the largest hole or block, whatever its alignment.
        largest: u64,
    },
    /// An argument can never be satisfied by this space, however empty: evicting for it would be in
    /// vain. Where the kernel's `drm_mm` says `ENOSPC` to both, its buddy allocator makes the same
    /// difference.
    Invalid {
        /// Name of the argument, as the method or the request calls it.
        argument: &'static str,
        /// The value it had; of a span, its start or its length, whichever is at fault.
        value: u64,
    },
    /// No zone has the name asked for.
    UnknownZone,
    /// There is a zone of that name.
    DuplicateZone {
        /// The name.
        name: &'static str,
    },
    /// A range, or the limits of a request, reach beyond the space.
    OutOfRange {
        /// First address asked for.
        start: u64,
        /// Bytes asked for.
        len: u64,
    },
    /// The host has no memory for the allocator's own records. Giving something back needs none,
    /// and makes room for records of what is asked for next.
    MetadataExhausted,
}

/// Coarse classes of [`SpaceError`] for layers that map errors of several crates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Freeing something may help.
    NoSpace,
    /// The request itself is wrong.
    Invalid,
    /// The host is out of memory.
    HostMemory,
}

impl SpaceError {
    /// The class of this error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSpace { .. } => ErrorKind::NoSpace,
            Self::Invalid { .. }
            | Self::OutOfRange { .. }
            | Self::UnknownZone
            | Self::DuplicateZone { .. } => ErrorKind::Invalid,
            Self::MetadataExhausted => ErrorKind::HostMemory,
        }
    }

    /// How much of the free space lies outside the largest hole, in thousandths. `None` for
    /// errors that are not about space.
    #[must_use]
    pub const fn fragmentation_permille(&self) -> Option<u32> {
        match *self {
            Self::NoSpace { free, largest, .. } => Some(fragmentation_permille(free, largest)),
            Self::Invalid { .. }
            | Self::OutOfRange { .. }
            | Self::UnknownZone
            | Self::DuplicateZone { .. }
            | Self::MetadataExhausted => None,
        }
    }
}

pub(crate) const fn fragmentation_permille(free: u64, largest: u64) -> u32 {
    if free == 0 {
        return 0;
    }
    let outside = (free - largest) as u128 * 1000 / free as u128;
    #[expect(clippy::cast_possible_truncation, reason = "a ratio of at most 1000")]
    {
        outside as u32
    }
}

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoSpace {
                needed,
                free,
                largest,
            } => write!(
                f,
                "no space for {needed} bytes: {free} free, largest hole {largest}"
            ),
            Self::Invalid { argument, value } => write!(f, "invalid {argument}: {value:#x}"),
            Self::OutOfRange { start, len } => {
                write!(f, "{len:#x} bytes at {start:#x} are outside the space")
            }
            Self::UnknownZone => f.write_str("no zone has that name"),
            Self::DuplicateZone { name } => write!(f, "there is a zone `{name}` already"),
            Self::MetadataExhausted => f.write_str("no host memory for allocator records"),
        }
    }
}

impl core::error::Error for SpaceError {}
