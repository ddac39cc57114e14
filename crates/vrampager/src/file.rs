//! Files as storage: the swap file, and files that clean buffers are read from again.
#![expect(
    unsafe_code,
    reason = "the kernel reads into and writes from mapped host memory"
)]

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::slice;
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
        let file = unnamed(dir).map_err(failed("make a swap file"))?;
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

/// A file in `dir` without a directory entry.
fn unnamed(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let tmpfile = i32::try_from(OFlags::TMPFILE.bits()).expect("open flags fit in an int");
    match options.clone().custom_flags(tmpfile).open(dir) {
        Err(error) if is_unsupported(&error) => {}
        opened => return opened,
    }
    // Not every file system knows O_TMPFILE. The name exists for a moment only.
    let mut name = OsString::from(".vrampager-swap-");
    name.push(std::process::id().to_string());
    let path = dir.join(name);
    let file = options.create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

fn is_unsupported(error: &io::Error) -> bool {
    let unsupported = [Errno::OPNOTSUPP, Errno::ISDIR, Errno::INVAL];
    unsupported
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

impl Storage for SwapFile {
    fn read(&self, offset: u64, into: &CpuMapping, at: u64, len: u64) -> Result<(), StorageError> {
        read_all(&self.file, offset, into, at, len)
    }

    fn write(&self, offset: u64, from: &CpuMapping, at: u64, len: u64) -> Result<(), StorageError> {
        assert_eq!(offset % PAGE_SIZE, 0, "slots are whole pages");
        let mut done = 0;
        while done < len {
            let part = bytes_of(from, at + done, len - done);
            match rustix::io::pwrite(&self.file, part, offset + done) {
                Ok(0) => return Err(StorageError::NoSpace { offset, len }),
                Ok(count) => done += count as u64,
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::DQUOT) => {
                    return Err(StorageError::NoSpace { offset, len });
                }
                Err(errno) => return Err(io_error(errno, offset, len)),
            }
        }
        Ok(())
    }
}

/// Identity of a file's content, as far as its attributes tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    len: u64,
    mtime_ns: i128,
    inode: u64,
}

impl Stamp {
    fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        let mtime_ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
        Ok(Self {
            len: meta.len(),
            mtime_ns,
            inode: meta.ino(),
        })
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
/// The file's size, modification time and inode are remembered; every later read compares them
/// and fails rather than return bytes of another content (mission row E1).
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
        let stamp = Stamp::of(&file).map_err(failed)?;
        let len = stamp.len;
        Ok((Self { file, stamp }, len))
    }
}

impl Storage for Source {
    fn read(&self, offset: u64, into: &CpuMapping, at: u64, len: u64) -> Result<(), StorageError> {
        read_all(&self.file, offset, into, at, len)?;
        // Compared after reading: bytes read before the change are good, later ones are not used.
        let now = Stamp::of(&self.file).map_err(|error| StorageError::Io {
            offset,
            len,
            errno: error.kind(),
        })?;
        self.stamp.difference(&now).map_or(Ok(()), Err)
    }

    fn write(&self, _: u64, _: &CpuMapping, _: u64, _: u64) -> Result<(), StorageError> {
        Err(StorageError::ReadOnly)
    }
}

fn read_all(
    file: impl AsFd,
    offset: u64,
    into: &CpuMapping,
    at: u64,
    len: u64,
) -> Result<(), StorageError> {
    let mut done = 0;
    while done < len {
        let part = bytes_of_mut(into, at + done, len - done);
        match rustix::io::pread(&file, part, offset + done) {
            Ok(0) => return Err(StorageError::Truncated { offset, len }),
            Ok(count) => done += count as u64,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(io_error(errno, offset, len)),
        }
    }
    Ok(())
}

fn io_error(errno: Errno, offset: u64, len: u64) -> StorageError {
    StorageError::Io {
        offset,
        len,
        errno: io::Error::from(errno).kind(),
    }
}

fn bytes_of(map: &CpuMapping, at: u64, len: u64) -> &[u8] {
    let start = map.at(at, len);
    let len = usize::try_from(len).expect("a mapped length fits in usize");
    // SAFETY: `at` has checked the range. The pages belong to a buffer that is reserved for this
    // very transfer, so that nobody, CPU or device, writes them while the slice lives; it lives
    // for one system call.
    unsafe { slice::from_raw_parts(start.as_ptr(), len) }
}

#[expect(
    clippy::mut_from_ref,
    reason = "the memory is not the mapping's own; see SAFETY"
)]
fn bytes_of_mut(map: &CpuMapping, at: u64, len: u64) -> &mut [u8] {
    let start = map.at(at, len);
    let len = usize::try_from(len).expect("a mapped length fits in usize");
    // SAFETY: as for `bytes_of`: pages under transfer are reached by nobody else, and the slice
    // lives for one system call.
    unsafe { slice::from_raw_parts_mut(start.as_ptr(), len) }
}
