//! A process that calls: its memory, and which of its descriptors are files of the driver.
#![expect(
    unsafe_code,
    reason = "its memory is copied to and from mappings by address"
)]

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use rustix::fs::{Dir, Mode, OFlags, openat, readlinkat};
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
    /// What is mapped in `memory`, and how. Bound to it as `memory` itself is.
    maps: File,
    memory: Arc<Memory>,
}

/// The address space of a process. It outlives neither the process nor `exec`: then nothing in it
/// can be reached any more.
#[derive(Debug)]
pub(crate) struct Memory(OwnedFd);

impl Client {
    /// Its first thread may have ended, if another one goes on.
    ///
    /// # Errors
    /// `ESRCH` or `ENOENT` when it has ended or is about to: no thread of it has memory. `EACCES`
    /// or `EPERM` when it may not be traced by this process.
    pub(crate) fn new(pid: Pid) -> Result<Self, Errno> {
        let path = format!("/proc/{}", pid.as_raw_nonzero());
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())?;
        let (memory, maps) = in_a_thread(&folder, |thread| {
            let open = |file: &str, access: OFlags| {
                let path = format!("{thread}/{file}");
                openat(&folder, path, access | OFlags::CLOEXEC, Mode::empty())
            };
            let memory = open("mem", OFlags::RDWR)?;
            let maps = File::from(open("maps", OFlags::RDONLY)?);
            // Kernels differ in whether a thread without memory has these files.
            match maps.read_at(&mut [0], 0) {
                Ok(1..) => Ok((memory, maps)),
                Ok(0) => Err(Errno::SRCH),
                Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            }
        })?;
        Ok(Self {
            pid,
            folder,
            maps,
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
    /// may not write itself, which the file of its memory would not mind. Protection that changes
    /// while the request is answered may be seen or not.
    ///
    /// # Errors
    /// [`StoreError::BadAddress`], also when the process has ended or runs another program.
    pub(crate) fn answer(&self, address: u64, from: &[u8]) -> Result<(), StoreError> {
        if !from.is_empty() && !self.can_write(address, from.len() as u64) {
            return Err(StoreError::BadAddress);
        }
        self.memory.write(address, from)
    }

    /// The inode of the socket that a descriptor is, if it is one.
    pub(crate) fn socket(&self, fd: i32) -> Option<u64> {
        let link = in_a_thread(&self.folder, |thread| {
            readlinkat(&self.folder, format!("{thread}/fd/{fd}"), Vec::new())
        });
        let link = link.ok()?;
        let link = link.to_str().ok()?;
        let digits = link.strip_prefix("socket:[")?.strip_suffix(']')?;
        digits.parse().ok()
    }

    /// Whether every page of a range is mapped and may be read and written.
    pub(crate) fn can_write(&self, address: u64, len: u64) -> bool {
        let maps = BufReader::new(FromStart(&self.maps, 0));
        let lines = maps.split(b'\n').map_while(Result::ok);
        // Names of mapped files are any bytes.
        let lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
        let end = address.checked_add(len);
        end.is_some_and(|end| covers(lines, address, end))
    }
}

/// What `look` finds in the folder of a thread, which it gets relative to that of the process. That
/// of the process shows its first thread, and so nothing when this one has ended.
fn in_a_thread<T>(folder: &OwnedFd, look: impl Fn(&str) -> Result<T, Errno>) -> Result<T, Errno> {
    let first = look(".");
    if !matches!(first, Err(Errno::SRCH | Errno::NOENT)) {
        return first;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let threads = Dir::new(openat(folder, "task", flags, Mode::empty())?)?;
    for thread in threads {
        let thread = thread?;
        let name = thread.file_name().to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        match look(&format!("task/{name}")) {
            Err(Errno::SRCH | Errno::NOENT) => {}
            found => return found,
        }
    }
    first
}

/// A file that others read at the same time, from its start on; the position so far.
struct FromStart<'a>(&'a File, u64);

impl Read for FromStart<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read_at(into, self.1)?;
        self.1 += read as u64;
        Ok(read)
    }
}

/// Whether mappings that may be read and written, listed as in `/proc/PID/maps`, leave no gap
/// between two addresses.
fn covers(maps: impl Iterator<Item = String>, start: u64, end: u64) -> bool {
    let mut next = start;
    for line in maps {
        let Some((from, to)) = bounds(&line) else {
            return false;
        };
        if to <= next {
            continue;
        }
        if from > next || !may_write(&line) {
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
pub(crate) mod forked {
    //! A child that is this process once more, for what a process may do that programs seldom do.

    use std::ffi::{CStr, c_int, c_void};

    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    use super::Client;
    use crate::engine::now;

    /// A child, which is stopped at first. It is killed when dropped.
    #[derive(Debug)]
    pub(crate) struct Forked(Pid);

    impl Forked {
        /// Makes a child with no descriptors of its own, which calls `first` and stops. When told
        /// to go on, it calls `then`. Both may only make calls that are safe in a signal handler.
        fn start(first: impl FnOnce(), then: impl FnOnce()) -> Self {
            // SAFETY: until it ends the child makes only calls that are safe in a signal handler.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: nothing of the child owns these descriptors.
                unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
                first();
                // SAFETY: stops this process, and nothing else.
                unsafe { libc::raise(libc::SIGSTOP) };
                then();
                // SAFETY: ends the child without running what its parent has registered.
                unsafe { libc::_exit(1) };
            }
            let child = Self(Pid::from_raw(child).expect("a process more"));
            child.until_stopped();
            child
        }

        /// One whose first thread ends when told to go on, while another one waits forever.
        pub(crate) fn without_leader(first: impl FnOnce()) -> Self {
            extern "C" fn wait(_: *mut c_void) -> c_int {
                loop {
                    // SAFETY: it has no preconditions.
                    unsafe { libc::pause() };
                }
            }
            const WORDS: usize = 1 << 13;
            let mut stack = vec![0_u128; WORDS];
            let top = stack.as_mut_ptr_range().end.cast();
            Self::start(first, move || {
                let flags = libc::CLONE_VM
                    | libc::CLONE_FS
                    | libc::CLONE_FILES
                    | libc::CLONE_SIGHAND
                    | libc::CLONE_THREAD;
                // SAFETY: the stack is there until the child ends, and nothing else is on it.
                let thread = unsafe { libc::clone(wait, top, flags, std::ptr::null_mut()) };
                if thread > 0 {
                    // SAFETY: ends this thread alone; nothing of it is used by the other one.
                    unsafe { libc::syscall(libc::SYS_exit, 0) };
                }
            })
        }

        /// One that becomes a shell when told to go on, and stops again.
        pub(crate) fn that_becomes_a_shell() -> Self {
            let words = [c"sh", c"-c", c"kill -STOP $$"].map(CStr::as_ptr);
            let arguments = [words[0], words[1], words[2], std::ptr::null()];
            let become_shell = move || {
                // SAFETY: strings that end, and a list of them that does.
                unsafe { libc::execv(c"/bin/sh".as_ptr(), arguments.as_ptr()) };
            };
            Self::start(|| {}, become_shell)
        }

        pub(crate) fn pid(&self) -> Pid {
            self.0
        }

        pub(crate) fn go_on(&self) {
            kill_process(self.0, Signal::CONT).unwrap();
        }

        pub(crate) fn until_stopped(&self) {
            let (_, status) = waitpid(Some(self.0), WaitOptions::UNTRACED)
                .unwrap()
                .unwrap();
            assert!(status.stopped(), "{status:?}");
        }

        /// Goes on, and waits until the first thread has ended.
        pub(crate) fn until_leader_ended(&self) {
            self.go_on();
            let (path, end) = (format!("/proc/{}/stat", self.0), now() + 10_000_000_000);
            while !std::fs::read_to_string(&path).unwrap().contains(") Z ") {
                assert!(now() < end, "its first thread goes on");
                std::thread::yield_now();
            }
            assert!(Client::new(self.0).is_ok(), "another one goes on");
        }
    }

    impl Drop for Forked {
        fn drop(&mut self) {
            kill_process(self.0, Signal::KILL).unwrap();
            while let Ok(Some((_, status))) = waitpid(Some(self.0), WaitOptions::empty()) {
                assert!(status.signaled(), "{status:?}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::forked::Forked;
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
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), 2 * PAGE, access, MapFlags::PRIVATE)
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
    fn a_process_is_reached_when_its_first_thread_has_ended_before_or_after_it_was_met() {
        static BYTES: [AtomicU8; 16] = [const { AtomicU8::new(1) }; 16];
        let child = Forked::without_leader(|| {
            let kept = crate::wire::socket().map(IntoRawFd::into_raw_fd);
            // The lowest number that is free.
            assert_eq!(kept, Ok(3));
        });
        let met_before = Client::new(child.pid()).unwrap();
        child.until_leader_ended();
        let met_after = Client::new(child.pid()).unwrap();
        let address = BYTES.as_ptr().expose_provenance() as u64;
        for (client, byte) in [(met_before, 7), (met_after, 8)] {
            client.answer(address, &[byte; 16]).unwrap();
            let mut seen = [0; 16];
            client.memory().read(address, &mut seen).unwrap();
            assert_eq!(seen, [byte; 16]);
            assert!(client.socket(3).is_some(), "its descriptors are seen");
            assert_eq!(client.socket(4), None);
            assert_eq!(client.answer(16, &[byte]), Err(StoreError::BadAddress));
        }
        assert_eq!(BYTES[0].load(Ordering::Relaxed), 1, "ours is another one");
    }

    #[test]
    fn a_program_that_the_process_becomes_is_not_reached() {
        let child = Forked::that_becomes_a_shell();
        let client = Client::new(child.pid()).unwrap();
        child.go_on();
        child.until_stopped();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.pid())).unwrap();
        let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
        let address = bounds(stack).unwrap().1 - 64;
        let (shell, mut before) = (Client::new(child.pid()).unwrap(), [0; 64]);
        shell.memory().read(address, &mut before).unwrap();
        let refused = Err(StoreError::BadAddress);
        assert_eq!(client.answer(address, &[0xa5; 64]), refused);
        assert_eq!(client.memory().write(address, &[0xa5; 64]), refused);
        assert_eq!(client.memory().read(address, &mut [0; 64]), refused);
        assert!(!client.can_write(address, 64));
        let mut after = [0; 64];
        shell.memory().read(address, &mut after).unwrap();
        assert_eq!(before, after);
    }

    #[test]
    fn mapped_files_may_have_names_that_are_no_text() {
        use rustix::mm::{MapFlags, ProtFlags};
        let file = rustix::fs::memfd_create(c"\xff", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let (none, shared) = (std::ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: the kernel chooses the address, so nothing is replaced.
        let page = unsafe { rustix::mm::mmap(none, 4096, access, shared, &file, 0) }.unwrap();
        let mapped = own().can_write(page.expose_provenance() as u64, 4096);
        // SAFETY: the page is ours, and nobody has a reference to it.
        unsafe { rustix::mm::munmap(page, 4096) }.unwrap();
        assert!(mapped);
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
            let lines = maps.lines().map(String::from);
            assert_eq!(covers(lines, start, end), mapped, "{start:#x}-{end:#x}");
        }
        let bytes = [0_u8];
        let page = |bytes: &[u8]| bytes.as_ptr().expose_provenance() as u64 & !4095;
        assert!(own().can_write(page(&bytes), 4096));
        assert!(!own().can_write(0, 4096));
        let constant = "text of this program, which it may only read";
        assert!(!own().can_write(page(constant.as_bytes()), 4096));
    }
}
