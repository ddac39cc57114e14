//! The way to the driver's process.
//!
//! Requests take no lock, and nothing is kept but numbers, so that a child of a fork finds all in
//! order whatever other threads were doing.
#![expect(
    unsafe_code,
    reason = "descriptors are kept as numbers and come as such"
)]

use std::ffi::c_int;
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::panic::catch_unwind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;
use vrampager_nv_driver::FileId;
use vrampager_nv_server::wire::{self, Answer, NAME_VARIABLE, Request};

/// The server's name, if this program has one.
fn server() -> Option<&'static str> {
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    NAME.get_or_init(|| std::env::var(NAME_VARIABLE).ok())
        .as_deref()
}

/// The connection that no thread uses, with the process that made it; 0 for none.
///
/// There is one from the start, so that a program that counts its descriptors before and after
/// its work finds as many. Threads that ask at the same time make their own and close them.
static IDLE: AtomicU64 = AtomicU64::new(0);

/// The dynamic linker runs this before the program begins.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = connect_early;

extern "C" fn connect_early() {
    let connected = catch_unwind(|| {
        let connection = server().and_then(|server| connect(server).ok());
        if let Some(connection) = connection {
            keep(connection);
        }
    });
    // Whatever went wrong is told when the program asks for something.
    drop(connected);
}

/// A connection out of the way of descriptors whose numbers programs choose.
fn connect(server: &str) -> Result<OwnedFd, Errno> {
    const LOWEST: c_int = 512;
    let connection = wire::connect(server)?;
    // A program with few descriptors allowed has it among its own.
    Ok(rustix::io::fcntl_dupfd_cloexec(&connection, LOWEST).unwrap_or(connection))
}

fn own_pid() -> u32 {
    rustix::process::getpid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs()
}

/// Takes the idle connection, if it is of this process. One that a fork copied is closed: the
/// server takes a connection's requests for those of the process that made it.
fn idle(server: &str) -> Option<OwnedFd> {
    let held = IDLE.swap(0, Ordering::AcqRel);
    let (pid, number) = (held >> 32, held & u64::from(u32::MAX));
    let number = c_int::try_from(number).ok().filter(|_| held != 0)?;
    // SAFETY: only looked at, and not -1. A program may have closed it with all it does not know.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    if !wire::is_connection(server, borrowed) {
        return None;
    }
    // SAFETY: it is a connection to the server, so it is the one kept here, and taking it out of
    // its place made it this thread's alone.
    let connection = unsafe { OwnedFd::from_raw_fd(number) };
    (pid == u64::from(own_pid())).then_some(connection)
}

/// Keeps a connection for the next request, or closes it if there is one.
fn keep(connection: OwnedFd) {
    let number = connection.into_raw_fd();
    let held = u64::from(own_pid()) << 32 | u64::from(number.unsigned_abs());
    let kept = IDLE.compare_exchange(0, held, Ordering::AcqRel, Ordering::Relaxed);
    if kept.is_err() {
        // SAFETY: it was given up above, and nobody has it.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }
}

/// Sends a request. A file in the answer is not inherited over `exec` if `private`.
///
/// # Errors
/// `ENODEV` without a server, or what the driver says.
pub(crate) fn ask(request: Request, private: bool) -> Result<Answer, Errno> {
    let server = server().ok_or(Errno::NODEV)?;
    let connection = match idle(server) {
        Some(connection) => connection,
        None => connect(server).map_err(|errno| gone(server, errno))?,
    };
    match wire::ask(connection.as_fd(), request, private) {
        Err(errno @ (Errno::PIPE | Errno::CONNRESET)) => Err(gone(server, errno)),
        answered => {
            keep(connection);
            answered
        }
    }
}

/// Tells once that the server does not answer.
fn gone(server: &str, errno: Errno) -> Errno {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        eprintln!("vrampager: the simulated driver {server} does not answer: {errno}");
    }
    Errno::NODEV
}

/// Which file of the driver a descriptor is, if it is one.
pub(crate) fn file(fd: c_int) -> Option<FileId> {
    let server = server()?;
    if fd < 0 {
        return None;
    }
    // SAFETY: only looked at, and not -1; a number that is no descriptor is an error.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    wire::file_behind(server, fd)
}
