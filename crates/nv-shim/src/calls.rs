//! The calls a program makes, under their C names.
//!
//! Each looks whether it is about one of our paths or descriptors, and otherwise goes on to the
//! kernel unchanged. Variadic calls are written with the arguments they can have: on the calling
//! conventions of x86-64 and aarch64 Linux the two are the same.
#![expect(unsafe_code, reason = "C functions are exported and take raw pointers")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;
use vrampager_nv_server::wire::Request;

use crate::paths::{numbers, special};
use crate::{driver, raw};

/// Runs a call of ours: its error goes to `errno`, and so does a panic, as an I/O error.
fn guarded(call: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(result)) => result,
        Ok(Err(errno)) => raw::fail(errno.raw_os_error()),
        Err(_) => raw::fail(Errno::IO.raw_os_error()),
    }
}

/// What is at a path, if it is one of ours.
///
/// # Safety
///
/// As [`special`].
unsafe fn look(dir: c_int, path: *const c_char) -> Result<Option<Request>, Errno> {
    // SAFETY: as the caller promises.
    catch_unwind(|| unsafe { special(dir, path) }).unwrap_or(Err(Errno::IO))
}

fn open_special(request: Request, flags: c_int) -> c_int {
    guarded(|| {
        let answer = driver::ask(request, flags & libc::O_CLOEXEC != 0)?;
        answer
            .file
            .map(|file| file.into_raw_fd())
            .ok_or(Errno::PROTO)
    })
}

/// # Safety
///
/// As `openat(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn openat(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: the caller gives a zero-terminated path.
    match unsafe { look(dir, path) } {
        Ok(Some(request)) => open_special(request, flags),
        // SAFETY: passed on as it came.
        Ok(None) => unsafe { raw::openat(dir, path, flags, mode) },
        Err(errno) => raw::fail(errno.raw_os_error()),
    }
}

/// # Safety
///
/// As `open(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { openat(libc::AT_FDCWD, path, flags, mode) }
}

/// # Safety
///
/// As `open(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { openat(libc::AT_FDCWD, path, flags, mode) }
}

/// # Safety
///
/// As `openat(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn openat64(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { openat(dir, path, flags, mode) }
}

/// # Safety
///
/// As `open(2)` without a mode; what fortified programs call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { openat(libc::AT_FDCWD, path, flags, 0) }
}

/// # Safety
///
/// As `open(2)` without a mode; what fortified programs call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { openat(libc::AT_FDCWD, path, flags, 0) }
}

/// # Safety
///
/// As `openat(2)` without a mode; what fortified programs call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { openat(dir, path, flags, 0) }
}

/// # Safety
///
/// As `openat(2)` without a mode; what fortified programs call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __openat64_2(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { openat(dir, path, flags, 0) }
}

/// Whether the kernel answers a request for every file before its driver sees it.
fn of_any_file(request: u32) -> bool {
    let all = [libc::FIOCLEX, libc::FIONCLEX, libc::FIONBIO, libc::FIOASYNC];
    all.into_iter().any(|known| u64::from(request) == known)
}

/// # Safety
///
/// As `ioctl(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(fd: c_int, request: u64, argument: *mut c_void) -> c_int {
    // The kernel looks at 32 bits of a request; programs may sign-extend them.
    #[expect(clippy::cast_possible_truncation, reason = "the kernel drops them too")]
    let number = request as u32;
    let file = if of_any_file(number) {
        None
    } else {
        driver::file(fd)
    };
    let Some(file) = file else {
        // SAFETY: passed on as it came.
        return unsafe { raw::ioctl(fd, request, argument) };
    };
    guarded(|| {
        let argument = argument.expose_provenance() as u64;
        let request = Request::Ioctl {
            file,
            request: number,
            argument,
        };
        driver::ask(request, true).map(|_| 0)
    })
}

/// # Safety
///
/// As `mmap(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let file = if flags & libc::MAP_ANONYMOUS == 0 {
        driver::file(fd)
    } else {
        None
    };
    let Some(file) = file else {
        // SAFETY: passed on as it came.
        return unsafe { raw::mmap(address, len, (prot, flags), fd, offset) };
    };
    let mut at = libc::MAP_FAILED;
    guarded(|| {
        let offset = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
        let request = Request::Map {
            file,
            len: len as u64,
            offset,
        };
        let answer = driver::ask(request, true)?;
        let (memory, from) = (answer.file.ok_or(Errno::PROTO)?, answer.number);
        let from = i64::try_from(from).map_err(|_| Errno::INVAL)?;
        // SAFETY: what the program asked for, of the memory that the file shows.
        at = unsafe { raw::mmap(address, len, (prot, flags), memory.as_raw_fd(), from) };
        Ok(0)
    });
    at
}

/// # Safety
///
/// As `mmap(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap64(
    address: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: passed on as it came.
    unsafe { mmap(address, len, prot, flags, fd, offset) }
}

/// A character device that everybody has: our nodes look like it to those who only look.
const STAND_IN: *const c_char = c"/dev/null".as_ptr();

/// # Safety
///
/// As `access(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller gives a zero-terminated path.
    let path = match unsafe { look(libc::AT_FDCWD, path) } {
        Ok(Some(_)) => STAND_IN,
        Ok(None) => path,
        Err(errno) => return raw::fail(errno.raw_os_error()),
    };
    // SAFETY: passed on, possibly for the stand-in.
    unsafe { raw::faccessat(libc::AT_FDCWD, path, mode) }
}

/// # Safety
///
/// As `fstatat(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fstatat64(
    dir: c_int,
    path: *const c_char,
    buffer: *mut c_void,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller gives a zero-terminated path.
    let ours = match unsafe { look(dir, path) } {
        Ok(Some(ours)) => ours,
        // SAFETY: passed on as it came.
        Ok(None) => return unsafe { raw::fstatat(dir, path, buffer, flags) },
        Err(errno) => return raw::fail(errno.raw_os_error()),
    };
    // SAFETY: the caller gives room for the answer.
    let done = unsafe { raw::fstatat(dir, STAND_IN, buffer, flags) };
    if done == 0
        && let Request::Open(node) = ours
    {
        let (major, minor) = numbers(node);
        // SAFETY: the kernel has filled it.
        unsafe { (*buffer.cast::<libc::stat>()).st_rdev = libc::makedev(major, minor) };
    }
    done
}

/// # Safety
///
/// As `fstatat(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fstatat(
    dir: c_int,
    path: *const c_char,
    buffer: *mut c_void,
    flags: c_int,
) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { fstatat64(dir, path, buffer, flags) }
}

/// # Safety
///
/// As `stat(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stat(path: *const c_char, buffer: *mut c_void) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { fstatat64(libc::AT_FDCWD, path, buffer, 0) }
}

/// # Safety
///
/// As `stat(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stat64(path: *const c_char, buffer: *mut c_void) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { fstatat64(libc::AT_FDCWD, path, buffer, 0) }
}

/// # Safety
///
/// As `lstat(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lstat(path: *const c_char, buffer: *mut c_void) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { fstatat64(libc::AT_FDCWD, path, buffer, libc::AT_SYMLINK_NOFOLLOW) }
}

/// # Safety
///
/// As `lstat(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lstat64(path: *const c_char, buffer: *mut c_void) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { fstatat64(libc::AT_FDCWD, path, buffer, libc::AT_SYMLINK_NOFOLLOW) }
}

/// # Safety
///
/// As `statx(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    buffer: *mut c_void,
) -> c_int {
    // SAFETY: the caller gives a zero-terminated path.
    let ours = match unsafe { look(dir, path) } {
        Ok(Some(ours)) => ours,
        // SAFETY: passed on as it came.
        Ok(None) => return unsafe { raw::statx(dir, path, flags, mask, buffer) },
        Err(errno) => return raw::fail(errno.raw_os_error()),
    };
    // SAFETY: the caller gives room for the answer.
    let done = unsafe { raw::statx(dir, STAND_IN, flags, mask, buffer) };
    if done == 0
        && let Request::Open(node) = ours
    {
        let answer = buffer.cast::<libc::statx>();
        let (major, minor) = numbers(node);
        // SAFETY: the kernel has filled it.
        unsafe { (*answer).stx_rdev_major = major };
        // SAFETY: as above.
        unsafe { (*answer).stx_rdev_minor = minor };
    }
    done
}
