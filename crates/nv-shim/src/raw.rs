//! System calls passed on as they came, and the caller's `errno`.
#![expect(
    unsafe_code,
    reason = "system calls and the thread's errno are reached through libc"
)]

use std::ffi::{c_char, c_int, c_long, c_void};

/// Fails a call with an error number.
pub(crate) fn fail(errno: i32) -> c_int {
    // SAFETY: libc returns a valid pointer to this thread's errno.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the pointer is valid for this thread, and only this thread uses it.
    unsafe { *location = errno };
    -1
}

fn narrow(result: c_long) -> c_int {
    c_int::try_from(result).expect("descriptors and codes fit an int")
}

/// # Safety
///
/// As `openat(2)`: `path` is a zero-terminated string.
pub(crate) unsafe fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: u32) -> c_int {
    // SAFETY: the caller gives a valid path; the kernel checks the rest.
    narrow(unsafe { libc::syscall(libc::SYS_openat, dir, path, flags, mode) })
}

/// # Safety
///
/// As `ioctl(2)`: `argument` is what the request expects.
pub(crate) unsafe fn ioctl(fd: c_int, request: u64, argument: *mut c_void) -> c_int {
    // SAFETY: the caller vouches for the argument.
    narrow(unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) })
}

/// # Safety
///
/// As `mmap(2)`: with `MAP_FIXED`, nothing that is in use is replaced.
pub(crate) unsafe fn mmap(
    address: *mut c_void,
    len: usize,
    modes: (c_int, c_int),
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let (prot, flags) = modes;
    // SAFETY: the caller vouches for the address range.
    let at = unsafe { libc::syscall(libc::SYS_mmap, address, len, prot, flags, fd, offset) };
    std::ptr::with_exposed_provenance_mut(at.cast_unsigned().try_into().expect("64-bit pointers"))
}

/// # Safety
///
/// As `newfstatat(2)`.
pub(crate) unsafe fn fstatat(
    dir: c_int,
    path: *const c_char,
    buffer: *mut c_void,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller gives a valid path and room for the answer.
    narrow(unsafe { libc::syscall(libc::SYS_newfstatat, dir, path, buffer, flags) })
}

/// # Safety
///
/// As `statx(2)`.
pub(crate) unsafe fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: u32,
    buffer: *mut c_void,
) -> c_int {
    // SAFETY: the caller gives a valid path and room for the answer.
    narrow(unsafe { libc::syscall(libc::SYS_statx, dir, path, flags, mask, buffer) })
}

/// # Safety
///
/// As `faccessat(2)`.
pub(crate) unsafe fn faccessat(dir: c_int, path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller gives a valid path.
    narrow(unsafe { libc::syscall(libc::SYS_faccessat, dir, path, mode) })
}
