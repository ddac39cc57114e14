//! The calls a program makes, under their C names.
//!
//! Each looks whether it is about one of our paths or descriptors, and otherwise goes on to the
//! kernel unchanged. Variadic calls are written with the arguments they can have: on the calling
//! conventions of x86-64 and aarch64 Linux the two are the same.
#![expect(unsafe_code, reason = "C functions are exported and take raw pointers")]

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use vrampager_nv_driver::Errno;

use crate::paths::{Special, special};
use crate::raw;
use crate::state::{self, is_ours};

/// Runs a call of ours: its error goes to `errno`, and so does a panic, as an I/O error.
fn guarded(call: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(result)) => result,
        Ok(Err(errno)) => raw::fail(errno.number()),
        Err(_) => raw::fail(Errno::Io.number()),
    }
}

fn open_special(special: Special, flags: c_int) -> c_int {
    guarded(|| {
        let mut state = state::lock().ok_or(Errno::NoDev)?;
        match special {
            Special::Node(node) => state.open(node, flags),
            Special::Counters => state.counters(flags),
            Special::Version => state.version(flags),
        }
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
    if let Some(special) = unsafe { special(path) } {
        return open_special(special, flags);
    }
    // SAFETY: passed on as it came.
    unsafe { raw::openat(dir, path, flags, mode) }
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
/// As `ioctl(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(fd: c_int, request: u64, argument: *mut c_void) -> c_int {
    if !is_ours(fd) {
        // SAFETY: passed on as it came.
        return unsafe { raw::ioctl(fd, request, argument) };
    }
    guarded(|| {
        let mut state = state::lock_existing().ok_or(Errno::BadF)?;
        // The kernel looks at 32 bits of a request; programs may sign-extend them.
        #[expect(clippy::cast_possible_truncation, reason = "the kernel drops them too")]
        let request = request as u32;
        state
            .ioctl(fd, request, argument.expose_provenance() as u64)
            .map(|()| 0)
    })
}

/// # Safety
///
/// As `close(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close(fd: c_int) -> c_int {
    if is_ours(fd) {
        forget(fd);
    }
    // SAFETY: the caller gives the descriptor up.
    unsafe { raw::close(fd) }
}

fn forget(fd: c_int) {
    guarded(|| {
        if let Some(mut state) = state::lock_existing() {
            state.close(fd);
        }
        Ok(0)
    });
}

fn alias(from: c_int, to: c_int) {
    guarded(|| {
        if let Some(mut state) = state::lock_existing() {
            state.alias(from, to);
        }
        Ok(0)
    });
}

/// # Safety
///
/// As `dup(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dup(fd: c_int) -> c_int {
    let new = raw::dup(fd);
    if new >= 0 && is_ours(fd) {
        alias(fd, new);
    }
    new
}

/// # Safety
///
/// As `dup3(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if from != to && is_ours(to) {
        forget(to);
    }
    let new = raw::dup3(from, to, flags);
    if new >= 0 && is_ours(from) {
        alias(from, new);
    }
    new
}

/// # Safety
///
/// As `dup2(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if from == to {
        // SAFETY: the command takes no argument.
        let valid = unsafe { raw::fcntl(from, libc::F_GETFD, 0) };
        return if valid < 0 { -1 } else { to };
    }
    // SAFETY: as `dup3` without flags.
    unsafe { dup3(from, to, 0) }
}

/// # Safety
///
/// As `fcntl(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: passed on as it came.
    let result = unsafe { raw::fcntl(fd, command, argument) };
    let duplicates = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
    if result >= 0 && duplicates && is_ours(fd) {
        alias(fd, result);
    }
    result
}

/// # Safety
///
/// As `fcntl(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { fcntl(fd, command, argument) }
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
    let mut from = offset;
    if flags & libc::MAP_ANONYMOUS == 0 && is_ours(fd) {
        let checked = guarded(|| {
            let state = state::lock_existing().ok_or(Errno::BadF)?;
            let offset = u64::try_from(offset).map_err(|_| Errno::Inval)?;
            let map = state.mmap(fd, len as u64, offset)?;
            from = i64::try_from(map.place.offset).map_err(|_| Errno::Inval)?;
            Ok(0)
        });
        if checked < 0 {
            return libc::MAP_FAILED;
        }
    }
    // SAFETY: passed on as it came; our own files only get their offset.
    unsafe { raw::mmap(address, len, (prot, flags), fd, from) }
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
/// `path` is null or a zero-terminated string.
unsafe fn seen(path: *const c_char) -> *const c_char {
    // SAFETY: as the caller promises.
    if unsafe { special(path) }.is_some() {
        STAND_IN
    } else {
        path
    }
}

/// # Safety
///
/// As `access(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller gives a zero-terminated path.
    let path = unsafe { seen(path) };
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
    let path = unsafe { seen(path) };
    // SAFETY: passed on, possibly for the stand-in.
    unsafe { raw::fstatat(dir, path, buffer, flags) }
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
    let path = unsafe { seen(path) };
    // SAFETY: passed on, possibly for the stand-in.
    unsafe { raw::statx(dir, path, flags, mask, buffer) }
}

/// Writes the report when the process ends, while its files are still open.
extern "C" fn report() {
    let Ok(path) = std::env::var("VRAMPAGER_SIM_REPORT") else {
        return;
    };
    guarded(|| {
        if let Some(text) = state::lock_existing().map(|state| state.report()) {
            std::fs::write(path, text).map_err(|_| Errno::Io)?;
        }
        Ok(0)
    });
}

/// The dynamic linker runs this when the process ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = report;
