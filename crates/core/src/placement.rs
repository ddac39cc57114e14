//! Where a buffer may be: memory types, places and placements.

use std::fmt;

use vrampager_addr::Span;

/// A memory type: an index into the device's table of resource managers (TTM C1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemType(pub(crate) u8);

impl MemType {
    /// Host pages that the device cannot reach. Always present (TTM D5).
    pub const SYSTEM: Self = Self(0);
    /// Host pages mapped into the device's GTT window.
    pub const GTT: Self = Self(1);
    /// Device memory.
    pub const VRAM: Self = Self(2);

    /// Slots in the table of managers.
    pub const COUNT: usize = 9;

    /// Private domain `index` of the driver, counted from 0; `None` past the table (TTM C1).
    #[must_use]
    pub fn private(index: u8) -> Option<Self> {
        let slot = index.checked_add(3)?;
        (usize::from(slot) < Self::COUNT).then_some(Self(slot))
    }

    pub(crate) fn slot(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for MemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SYSTEM => f.write_str("SYSTEM"),
            Self::GTT => f.write_str("GTT"),
            Self::VRAM => f.write_str("VRAM"),
            Self(slot) => write!(f, "PRIV{}", slot - 3),
        }
    }
}

impl fmt::Debug for MemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// When a place is considered (TTM C3, V14).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Preference {
    /// In both passes: free room first, then by evicting others.
    #[default]
    Always,
    /// Only where there is room without evicting: the kernel's `DESIRED`.
    Desired,
    /// Only once eviction would be needed: the kernel's `FALLBACK`.
    Fallback,
}

/// From which end of a domain to carve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum End {
    /// Wherever it fits.
    #[default]
    Any,
    /// From the highest addresses down.
    Top,
}

/// Whether a resource may consist of several extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// As many extents as it takes.
    #[default]
    Scattered,
    /// One extent, as scan-out and sharing with other devices need it.
    Contiguous,
}

/// One place where a buffer may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The domain.
    pub mem_type: MemType,
    /// When to consider it.
    pub preference: Preference,
    /// One extent or many.
    pub layout: Layout,
    /// Which end to carve from.
    pub end: End,
    /// Bytes of the domain the resource must lie within; `None` is all of it.
    pub within: Option<Span>,
}

impl Place {
    /// Anywhere in `mem_type`, considered in both passes.
    #[must_use]
    pub const fn new(mem_type: MemType) -> Self {
        Self {
            mem_type,
            preference: Preference::Always,
            layout: Layout::Scattered,
            end: End::Any,
            within: None,
        }
    }

    /// The same place, considered only as `preference` says.
    #[must_use]
    pub const fn with(mut self, preference: Preference) -> Self {
        self.preference = preference;
        self
    }

    /// Whether pass `pass` looks at this place (TTM V4).
    pub(crate) fn in_pass(&self, pass: Pass) -> bool {
        match self.preference {
            Preference::Always => true,
            Preference::Desired => pass == Pass::Free,
            Preference::Fallback => pass == Pass::Evict,
        }
    }
}

/// The two passes of validate (TTM V2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// Look for free room only.
    Free,
    /// Make room by evicting.
    Evict,
}

/// Places in order of preference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement(Vec<Place>);

impl Placement {
    /// `None` when there is no place or more than there are memory types.
    #[must_use]
    pub fn new(places: &[Place]) -> Option<Self> {
        (!places.is_empty() && places.len() <= MemType::COUNT).then(|| Self(places.to_vec()))
    }

    /// Device memory, evicting others if need be.
    #[must_use]
    pub fn vram() -> Self {
        Self(vec![Place::new(MemType::VRAM)])
    }

    /// Device memory, evicting others if need be, and the GTT when even that does not help.
    #[must_use]
    pub fn vram_or_gtt() -> Self {
        let gtt = Place::new(MemType::GTT).with(Preference::Fallback);
        Self(vec![Place::new(MemType::VRAM), gtt])
    }

    /// Host memory that the device reaches.
    #[must_use]
    pub fn gtt() -> Self {
        Self(vec![Place::new(MemType::GTT)])
    }

    /// Host memory that the device does not reach.
    #[must_use]
    pub fn system() -> Self {
        Self(vec![Place::new(MemType::SYSTEM)])
    }

    /// The places, first choice first; never empty.
    #[must_use]
    pub fn places(&self) -> &[Place] {
        &self.0
    }
}
