use core::fmt;

/// Why a request was refused. Nothing that is live or free has changed, nor whether any request can
/// be served. Host memory that was got for the request's records is kept for the next, within the
/// bounds of `metadata_bytes`; what was freed lately may be joined, so that later ranges lie
/// elsewhere.
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
        /// What else was asked for: why the largest hole may not have served although it is long
        /// enough.
        conditions: Conditions,
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

/// What a request asked for besides its size.
///
/// # Examples
/// ```
/// use vrampager_space::{Buddy, BuddyRequest, Conditions, SpaceError};
/// let mut vram = Buddy::new(1 << 20, 4096).unwrap();
/// vram.alloc(&BuddyRequest::new(4096)).unwrap();
/// let error = vram.alloc(&BuddyRequest::new(4096).align(1 << 20)).unwrap_err();
/// let SpaceError::NoSpace { conditions, .. } = error else { unreachable!() };
/// assert!(conditions.contains(Conditions::ALIGN) && !conditions.contains(Conditions::WITHIN));
/// assert_eq!(
///     error.to_string(),
///     "no space for 4096 bytes (align): 1044480 free, largest hole 524288, 49.8 % fragmented",
/// );
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Conditions(u8);

impl Conditions {
    /// Nothing: any hole that is long enough would have served.
    pub const NONE: Self = Self(0);
    /// A multiple to start at.
    pub const ALIGN: Self = Self(1);
    /// A span to stay inside.
    pub const WITHIN: Self = Self(1 << 1);
    /// The very place.
    pub const PLACE: Self = Self(1 << 2);
    /// The rule of the space about neighbours.
    pub const GAP: Self = Self(1 << 3);
    /// The first hole or none.
    pub const ONCE: Self = Self(1 << 4);
    /// One block, where blocks may have been enough together.
    pub const CONTIGUOUS: Self = Self(1 << 5);
    /// No small blocks.
    pub const MIN_BLOCK: Self = Self(1 << 6);

    const NAMES: [&str; 7] = [
        "align",
        "within",
        "place",
        "gap",
        "once",
        "contiguous",
        "min_block",
    ];

    /// These, and the others if `more`.
    #[must_use]
    pub(crate) const fn and(self, others: Self, more: bool) -> Self {
        if more { Self(self.0 | others.0) } else { self }
    }

    /// Whether all of `others` are among these.
    #[must_use]
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

/// The names of the conditions, as requests and methods call them.
impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = (0..)
            .zip(Self::NAMES)
            .filter(|(bit, _)| self.0 >> bit & 1 != 0);
        for (number, (_, name)) in names.enumerate() {
            f.write_str(if number == 0 { "" } else { ", " })?;
            f.write_str(name)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Conditions({self})")
    }
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
                conditions,
            } => {
                write!(f, "no space for {needed} bytes")?;
                if conditions != Conditions::NONE {
                    write!(f, " ({conditions})")?;
                }
                write!(f, ": {free} free, largest hole {largest}")?;
                let outside = fragmentation_permille(free, largest);
                write!(f, ", {}.{} % fragmented", outside / 10, outside % 10)
            }
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
