use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// What identifies the state of a file: compared before its bytes are trusted again.
///
/// A write that keeps the length within the granularity of the file system's clock (a few
/// milliseconds on most) leaves no trace here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileStamp {
    /// Length in bytes.
    pub len: u64,
    /// Time of the last modification, in nanoseconds since 1970.
    pub mtime_ns: i128,
    /// Inode number.
    pub inode: u64,
    /// Number of the device that holds the file system.
    pub device: u64,
}

/// An attribute of a [`FileStamp`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StampField {
    /// The length in bytes.
    Len,
    /// The time of modification in nanoseconds.
    Mtime,
    /// The inode number: the path leads to another file.
    Inode,
    /// The device number: the path leads to another file system.
    Device,
}

impl fmt::Display for StampField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Len => "length",
            Self::Mtime => "modification time (ns)",
            Self::Inode => "inode",
            Self::Device => "device",
        })
    }
}

impl FileStamp {
    /// The stamp in a file's metadata.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            len: metadata.len(),
            mtime_ns: i128::from(metadata.mtime()) * 1_000_000_000
                + i128::from(metadata.mtime_nsec()),
            inode: metadata.ino(),
            device: metadata.dev(),
        }
    }

    /// The first attribute in which `now` differs, with both values.
    #[must_use]
    pub fn difference(&self, now: &Self) -> Option<(StampField, i128, i128)> {
        [
            (
                StampField::Device,
                i128::from(self.device),
                i128::from(now.device),
            ),
            (
                StampField::Inode,
                i128::from(self.inode),
                i128::from(now.inode),
            ),
            (StampField::Len, i128::from(self.len), i128::from(now.len)),
            (StampField::Mtime, self.mtime_ns, now.mtime_ns),
        ]
        .into_iter()
        .find(|(_, old, new)| old != new)
    }
}
