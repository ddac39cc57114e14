//! A process that calls: its memory, and which of its descriptors are files of the driver.
#![expect(
    unsafe_code,
    reason = "its memory is copied to and from mappings by address"
)]

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::Pid;
use vrampager_nv_driver::StoreError;

/// A process, as the kernel shows it. All of it belongs to this process and no later one of the
/// same number.
#[derive(Debug)]
pub(crate) struct Client {
    pid: Pid,
    /// `/proc/PID`.
    folder: OwnedFd,
    memory: Arc<Memory>,
}

/// The address space of a process. It outlives neither the process nor `exec`: then nothing in it
/// can be reached any more.
#[derive(Debug)]
pub(crate) struct Memory(OwnedFd);

impl Client {
    /// # Errors
    /// `EACCES` or `EPERM` when the process may not be traced by this one.
    pub(crate) fn new(pid: Pid) -> Result<Self, Errno> {
        let path = format!("/proc/{}", pid.as_raw_nonzero());
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let memory = openat(&folder, "mem", flags, Mode::empty())?;
        Ok(Self {
            pid,
            folder,
            memory: Arc::new(Memory(memory)),
        })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Copies into the process as a kernel does that answers it: not into pages that the process
    /// may not write itself. Where the kernel lets nobody do that, protection is not looked at.
    pub(crate) fn answer(&self, address: u64, from: &[u8]) -> Result<(), StoreError> {
        // A process that is gone has no folder any more; its number may be another's some day.
        readlinkat(&self.folder, "exe", Vec::new()).map_err(|_| StoreError::BadAddress)?;
        let address = usize::try_from(address).map_err(|_| StoreError::BadAddress)?;
        let local = libc::iovec {
            iov_base: from.as_ptr().cast_mut().cast(),
            iov_len: from.len(),
        };
        let remote = libc::iovec {
            iov_base: ptr::without_provenance_mut(address),
            iov_len: from.len(),
        };
        let pid = self.pid.as_raw_nonzero().get();
        // SAFETY: the local range is a slice that is only read. The other one is an address of the
        // other process, and a bad one an error of the call.
        let moved =
            unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) };
        match usize::try_from(moved) {
            Ok(moved) if moved == from.len() => Ok(()),
            Ok(_) => Err(StoreError::BadAddress),
            Err(_) => match Errno::from_io_error(&io::Error::last_os_error()) {
                Some(Errno::PERM | Errno::NOSYS) => self.memory.write(address as u64, from),
                _ => Err(StoreError::BadAddress),
            },
        }
    }

    /// The inode of the socket that a descriptor is, if it is one.
    pub(crate) fn socket(&self, fd: i32) -> Option<u64> {
        let link = readlinkat(&self.folder, format!("fd/{fd}"), Vec::new()).ok()?;
        let link = link.to_str().ok()?;
        let digits = link.strip_prefix("socket:[")?.strip_suffix(']')?;
        digits.parse().ok()
    }

    /// Whether every page of a range is mapped and may be read and written.
    pub(crate) fn can_write(&self, address: u64, len: u64) -> bool {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let Ok(maps) = openat(&self.folder, "maps", flags, Mode::empty()) else {
            return false;
        };
        let mut text = String::new();
        let read = File::from(maps).read_to_string(&mut text);
        let end = address.checked_add(len);
        read.is_ok() && end.is_some_and(|end| covers(&text, address, end))
    }
}

/// Whether mappings that may be read and written, listed as in `/proc/PID/maps`, leave no gap
/// between two addresses.
fn covers(maps: &str, start: u64, end: u64) -> bool {
    let mut next = start;
    for line in maps.lines() {
        let Some((from, to)) = bounds(line) else {
            return false;
        };
        if to <= next {
            continue;
        }
        if from > next || !may_write(line) {
            return false;
        }
        next = to;
        if next >= end {
            return true;
        }
    }
    false
}

fn may_write(line: &str) -> bool {
    let access = line.split_whitespace().nth(1);
    access.is_some_and(|access| access.starts_with("rw"))
}

fn bounds(line: &str) -> Option<(u64, u64)> {
    let (range, _) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(from)?, number(to)?))
}

impl Memory {
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), StoreError> {
        // SAFETY: the slice is valid for its length.
        unsafe { self.read_to(address, into.as_mut_ptr(), into.len()) }
    }

    pub(crate) fn write(&self, address: u64, from: &[u8]) -> Result<(), StoreError> {
        // SAFETY: the slice is valid for its length.
        unsafe { self.write_from(address, from.as_ptr(), from.len()) }
    }

    /// Copies out of the process.
    ///
    /// # Safety
    /// `into` is valid for writes of `len` bytes.
    pub(crate) unsafe fn read_to(
        &self,
        address: u64,
        into: *mut u8,
        len: usize,
    ) -> Result<(), StoreError> {
        self.whole(address, len, |done, at| {
            let rest = into.wrapping_add(done);
            // SAFETY: `done` is less than `len`, for which the caller vouches. The address in the
            // other process is an offset in a file, and a bad one an error of the call.
            unsafe { libc::pread(self.0.as_raw_fd(), rest.cast(), len - done, at) }
        })
    }

    /// Copies into the process.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes.
    pub(crate) unsafe fn write_from(
        &self,
        address: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), StoreError> {
        self.whole(address, len, |done, at| {
            let rest = from.wrapping_add(done);
            // SAFETY: as for `read_to`, with the roles swapped.
            unsafe { libc::pwrite(self.0.as_raw_fd(), rest.cast(), len - done, at) }
        })
    }

    /// Repeats a transfer until all is moved: the kernel moves less where a mapping ends, and no
    /// more than 2 GiB at once.
    fn whole(
        &self,
        address: u64,
        len: usize,
        transfer: impl Fn(usize, libc::off_t) -> isize,
    ) -> Result<(), StoreError> {
        let mut done = 0;
        while done < len {
            let at = address.checked_add(done as u64);
            let at = at.and_then(|at| libc::off_t::try_from(at).ok());
            let moved = transfer(done, at.ok_or(StoreError::BadAddress)?);
            match usize::try_from(moved) {
                Ok(moved @ 1..) => done += moved,
                Ok(0) | Err(_) => return Err(StoreError::BadAddress),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Client {
        Client::new(rustix::process::getpid()).unwrap()
    }

    #[test]
    fn memory_is_read_and_written_and_bad_addresses_are_errors() {
        let (client, mut bytes) = (own(), vec![1_u8; 9000]);
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        client.memory().write(address + 4000, &[7; 200]).unwrap();
        let mut seen = [0; 300];
        client.memory().read(address + 4000, &mut seen).unwrap();
        assert_eq!((seen[199], seen[200]), (7, 1));
        let memory = client.memory();
        assert_eq!(memory.read(16, &mut seen), Err(StoreError::BadAddress));
        assert_eq!(memory.write(u64::MAX, &[0]), Err(StoreError::BadAddress));
    }

    #[test]
    fn an_answer_reaches_only_pages_that_the_process_may_write() {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
        const PAGE: usize = 4096;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so nothing is replaced.
        let pages = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), 2 * PAGE, access, MapFlags::PRIVATE)
        };
        let pages = pages.unwrap();
        // SAFETY: the page is ours, and nobody has a reference to it.
        unsafe { rustix::mm::mprotect(pages.wrapping_byte_add(PAGE), PAGE, MprotectFlags::READ) }
            .unwrap();
        let (client, start) = (own(), pages.expose_provenance() as u64);
        let page = PAGE as u64;
        client.answer(start, &[7; 16]).unwrap();
        client.answer(start, &[]).unwrap();
        let refused = Err(StoreError::BadAddress);
        assert_eq!(client.answer(start + page, &[7; 16]), refused);
        assert_eq!(client.answer(start + page - 8, &[7; 16]), refused);
        assert_eq!(client.answer(16, &[7; 16]), refused);
        let mut seen = [1; 16];
        client.memory().read(start, &mut seen).unwrap();
        assert_eq!(seen, [7; 16]);
        client.memory().read(start + page, &mut seen).unwrap();
        assert_eq!(seen, [0; 16], "untouched");
        // SAFETY: both pages are ours, and nobody has a reference to them.
        unsafe { rustix::mm::munmap(pages, 2 * PAGE) }.unwrap();
    }

    #[test]
    fn ranges_that_may_be_written_have_no_gap_and_no_protected_page() {
        let maps = "1000-3000 rw-p 0 00:00 0\n3000-4000 rw-s 0 00:00 0 x y\n6000-7000 rwxp 0 0 0\n\
            8000-9000 r--p 0 0 0\n9000-a000 ---p 0 0 0\n\
            a000-b000 -w-p 0 0 0\nb000-c000 rw-p 0 0 0\n";
        for (start, end, mapped) in [
            (0x1000, 0x4000, true),
            (0x2000, 0x3800, true),
            (0x0, 0x2000, false),
            (0x3000, 0x4001, false),
            (0x3000, 0x6800, false),
            (0x6000, 0x7000, true),
            (0x7000, 0x8000, false),
            (0x8000, 0x9000, false),
            (0x9000, 0xa000, false),
            (0xa000, 0xb000, false),
            (0xb000, 0xc000, true),
            (0xa800, 0xc000, false),
        ] {
            assert_eq!(covers(maps, start, end), mapped, "{start:#x}-{end:#x}");
        }
        let bytes = [0_u8];
        let page = |bytes: &[u8]| bytes.as_ptr().expose_provenance() as u64 & !4095;
        assert!(own().can_write(page(&bytes), 4096));
        assert!(!own().can_write(0, 4096));
        let constant = "text of this program, which it may only read";
        assert!(!own().can_write(page(constant.as_bytes()), 4096));
    }
}
