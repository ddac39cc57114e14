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
/// As `fcntl(2)`: `argument` is what the command expects.
pub(crate) unsafe fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller vouches for the argument.
    narrow(unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) })
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
/// `fd` is not used afterwards.
pub(crate) unsafe fn close(fd: c_int) -> c_int {
    // SAFETY: the caller gives the descriptor up.
    narrow(unsafe { libc::syscall(libc::SYS_close, fd) })
}

pub(crate) fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: duplicating touches no memory; `to` is one of our descriptors, or the caller's wish.
    narrow(unsafe { libc::syscall(libc::SYS_dup3, from, to, flags) })
}

pub(crate) fn dup(fd: c_int) -> c_int {
    // SAFETY: duplicating touches no memory.
    narrow(unsafe { libc::syscall(libc::SYS_dup, fd) })
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

/// The flags that `dup3` takes to keep a descriptor's close-on-exec as it is.
pub(crate) fn descriptor_flags(fd: c_int) -> c_int {
    // SAFETY: the command takes no argument.
    let flags = unsafe { fcntl(fd, libc::F_GETFD, 0) };
    if flags & libc::FD_CLOEXEC == 0 {
        0
    } else {
        libc::O_CLOEXEC
    }
}
