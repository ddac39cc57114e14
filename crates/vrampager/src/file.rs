//! Files as storage: the swap file, and files that clean buffers are read from again.
#![expect(
    unsafe_code,
    reason = "the kernel reads into and writes from mapped host memory"
)]

use std::fs::{File, Metadata, metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use vrampager_addr::PAGE_SIZE;
use vrampager_core::FileId;
use vrampager_hal::{CpuMapping, Storage, StorageError};

use crate::error::Error;
use crate::shell::Shell;

/// A swap file without a name: it is gone with its process, however that ends.
#[derive(Debug)]
pub struct SwapFile {
    file: File,
    len: u64,
}

impl SwapFile {
    /// Makes a file of `len` bytes in `dir` and allocates all its blocks, so that writing to it
    /// can't run out of space later. Transfers bypass the page cache where the file system
    /// allows it.
    ///
    /// # Errors
    /// [`Error::File`] when the directory does not take such a file or has too little space.
    pub fn create(dir: &Path, len: u64) -> Result<Self, Error> {
        let failed = |action| {
            move |source: io::Error| Error::File {
                path: dir.to_path_buf(),
                action,
                source,
            }
        };
        let file = tempfile::tempfile_in(dir).map_err(failed("make a swap file"))?;
        if len > 0 {
            fallocate(&file, FallocateFlags::empty(), 0, len)
                .map_err(|errno| failed("allocate the swap file")(errno.into()))?;
        }
        // A file system without direct I/O, such as tmpfs, says so here; plain transfers do too.
        if let Ok(flags) = fcntl_getfl(&file) {
            let direct = fcntl_setfl(&file, flags | OFlags::DIRECT);
            debug_assert!(direct.is_ok() || direct == Err(Errno::INVAL));
        }
        Ok(Self { file, len })
    }

    /// Bytes it holds.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Storage for SwapFile {
    fn read(&self, offset: u64, into: &CpuMapping, at: u64, len: u64) -> Result<(), StorageError> {
        read_all(&self.file, offset, into, at, len)
    }

    fn write(&self, offset: u64, from: &CpuMapping, at: u64, len: u64) -> Result<(), StorageError> {
        assert_eq!(offset % PAGE_SIZE, 0, "slots are whole pages");
        transfer(len, |done| {
            let rest = len - done;
            let start = from.at(at + done, rest);
            let (bytes, position) = extent(rest, offset + done);
            // SAFETY: `at` has checked `rest` bytes from `start`, which stay mapped while `from`
            // is borrowed; the kernel reads them without a Rust reference to them.
            unsafe {
                libc::pwrite(
                    self.file.as_raw_fd(),
                    start.as_ptr().cast(),
                    bytes,
                    position,
                )
            }
        })
        .map_err(|stopped| match stopped {
            None => StorageError::NoSpace { offset, len },
            Some(error) if is_full(&error) => StorageError::NoSpace { offset, len },
            Some(error) => StorageError::Io {
                offset,
                len,
                errno: error.kind(),
            },
        })
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Identity of a file's content, as far as its attributes tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    len: u64,
    mtime_ns: i128,
    inode: u64,
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        let mtime_ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
        Self {
            len: meta.len(),
            mtime_ns,
            inode: meta.ino(),
        }
    }

    fn difference(&self, now: &Self) -> Option<StorageError> {
        let attributes = [
            ("size", i128::from(self.len), i128::from(now.len)),
            ("mtime", self.mtime_ns, now.mtime_ns),
            ("inode", i128::from(self.inode), i128::from(now.inode)),
        ];
        let changed = attributes.into_iter().find(|(_, was, is)| was != is);
        changed.map(|(attribute, was, is)| StorageError::Changed { attribute, was, is })
    }
}

/// A file that buffers can be read from again.
///
/// The file's size, modification time and inode are remembered; every later read compares them,
/// with the open file and with what its path leads to, and fails rather than return bytes of
/// another content (mission row E1).
#[derive(Debug)]
pub struct FileBacking {
    pub(crate) shell: Arc<Shell>,
    pub(crate) id: FileId,
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
}

impl FileBacking {
    /// Bytes of the file when it was taken as backing.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file was empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for FileBacking {
    fn drop(&mut self) {
        self.shell.runner.remove_file(self.id);
    }
}

/// The storage behind a [`FileBacking`].
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    stamp: Stamp,
    path: PathBuf,
}

impl Source {
    pub(crate) fn new(file: File, path: &Path) -> Result<(Self, u64), Error> {
        let failed = |source| Error::File {
            path: path.to_path_buf(),
            action: "serve as backing",
            source,
        };
        let kind = file.metadata().map_err(failed)?.file_type();
        if !kind.is_file() {
            let special = kind.is_fifo() || kind.is_socket() || kind.is_char_device();
            let what = if special {
                "not seekable"
            } else {
                "not a regular file"
            };
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        let stamp = Stamp::of(&file.metadata().map_err(failed)?);
        let len = stamp.len;
        let path = path.to_path_buf();
        Ok((Self { file, stamp, path }, len))
    }
}

impl Storage for Source {
    fn read(&self, offset: u64, into: &CpuMapping, at: u64, len: u64) -> Result<(), StorageError> {
        read_all(&self.file, offset, into, at, len)?;
        // Compared after reading: bytes read before the change are good, later ones are not used.
        let opened = self.file.metadata().map_err(|error| StorageError::Io {
            offset,
            len,
            errno: error.kind(),
        })?;
        // A file that was only unlinked still has its content; one replaced at its path has not.
        let found = metadata(&self.path).unwrap_or_else(|_| opened.clone());
        let changed = [opened, found]
            .iter()
            .find_map(|now| self.stamp.difference(&Stamp::of(now)));
        changed.map_or(Ok(()), Err)
    }

    fn write(&self, _: u64, _: &CpuMapping, _: u64, _: u64) -> Result<(), StorageError> {
        Err(StorageError::ReadOnly)
    }
}

fn read_all(
    file: &File,
    offset: u64,
    into: &CpuMapping,
    at: u64,
    len: u64,
) -> Result<(), StorageError> {
    transfer(len, |done| {
        let rest = len - done;
        let start = into.at(at + done, rest);
        let (bytes, position) = extent(rest, offset + done);
        // SAFETY: `at` has checked `rest` bytes from `start`, which stay mapped while `into` is
        // borrowed; the kernel writes them without a Rust reference to them.
        unsafe { libc::pread(file.as_raw_fd(), start.as_ptr().cast(), bytes, position) }
    })
    .map_err(|stopped| match stopped {
        None => StorageError::Truncated { offset, len },
        Some(error) => StorageError::Io {
            offset,
            len,
            errno: error.kind(),
        },
    })
}

/// Repeats a system call until `len` bytes are done. `Err(None)` when one moves nothing.
fn transfer(len: u64, mut call: impl FnMut(u64) -> isize) -> Result<(), Option<io::Error>> {
    let mut done = 0;
    while done < len {
        match u64::try_from(call(done)) {
            Ok(0) => return Err(None),
            Ok(count) => done += count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(Some(error));
                }
            }
        }
    }
    Ok(())
}

fn extent(len: u64, offset: u64) -> (usize, libc::off_t) {
    let len = usize::try_from(len).expect("a mapped length fits in usize");
    let offset = libc::off_t::try_from(offset).expect("a file's offset fits in off_t");
    (len, offset)
}
