use std::fmt::Debug;
use std::io;

use thiserror::Error;

use crate::CpuMapping;

/// The host-side contract: a file that holds swapped-out pages, or that a clean buffer's content
/// can be read from again.
///
/// # Guarantees
/// * A read or write is complete or an error; short transfers are continued inside.
/// * After a failed write the range's content is undefined, the rest of the file untouched.
pub trait Storage: Send + Sync + Debug {
    /// Reads `len` bytes at `offset` of the file into `into` at `at`.
    ///
    /// # Errors
    /// [`StorageError`]; what was at `into` is then undefined.
    fn read(&self, offset: u64, into: &CpuMapping, at: u64, len: u64) -> Result<(), StorageError>;

    /// Writes `len` bytes of `from` starting at `at` to `offset` of the file.
    ///
    /// # Errors
    /// [`StorageError`]; [`StorageError::ReadOnly`] for a storage that holds clean content.
    fn write(&self, offset: u64, from: &CpuMapping, at: u64, len: u64) -> Result<(), StorageError>;
}

/// Why a [`Storage`] could not transfer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The file system or quota is full.
    #[error("no space left for {len} bytes at offset {offset}")]
    NoSpace {
        /// Byte offset of the transfer.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The file ends inside the range.
    #[error("file ends before {len} bytes at offset {offset}")]
    Truncated {
        /// Byte offset of the transfer.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Any other failure of the system call.
    #[error("transfer of {len} bytes at offset {offset} failed: {errno}")]
    Io {
        /// Byte offset of the transfer.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Kind of the operating system's error.
        errno: io::ErrorKind,
    },
    /// The file is not the one that was opened: someone has changed it since.
    #[error("file changed underneath: {attribute} was {was}, is {is}")]
    Changed {
        /// Which attribute differs: `size`, `mtime`, `inode`.
        attribute: &'static str,
        /// Value when the file was taken as backing.
        was: i128,
        /// Value found.
        is: i128,
    },
    /// The file a buffer was backed by is no longer known.
    #[error("file is no longer registered")]
    Unknown,
    /// Clean content is never written back.
    #[error("storage is read-only")]
    ReadOnly,
}
