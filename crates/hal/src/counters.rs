use std::fmt;

/// What a back end holds for its caller at one moment: the leak oracle.
///
/// All fields are zero for a device on which everything created has been released (mission rows
/// A7, A12, A13).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Physical objects.
    pub objects: u64,
    /// CPU and GPU mappings together.
    pub mappings: u64,
    /// Reserved virtual address ranges.
    pub ranges: u64,
    /// Bytes of those ranges.
    pub va_bytes: u64,
    /// Pages of 4 KiB of those objects, whatever their heap and whoever owns them.
    pub pages: u64,
    /// Pages among them that are pinned because they were imported.
    pub pinned: u64,
    /// Channels.
    pub channels: u64,
    /// Timelines.
    pub timelines: u64,
}

impl Counters {
    /// Whether nothing is left.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            objects,
            mappings,
            ranges,
            va_bytes,
            pages,
            pinned,
            channels,
            timelines,
        } = self;
        write!(
            f,
            "{objects} objects, {mappings} mappings, {ranges} ranges ({va_bytes} bytes), \
             {pages} pages ({pinned} pinned), {channels} channels, {timelines} timelines"
        )
    }
}
