//! A program and the processes that it leaves behind.
#![expect(
    unsafe_code,
    reason = "signals are handled through libc, and set in a child before it becomes the program"
)]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, getpid, getrlimit, pidfd_open,
    pidfd_send_signal, set_child_subreaper, set_parent_process_death_signal, setrlimit, wait,
};

/// Runs a program, and waits until it and every process that it left running have ended: whatever
/// they share is needed no longer. Gives the program's own status.
///
/// It is for a process that is there for nothing else, and whose other threads block no signals: it
/// waits for all its children, and has handlers for `SIGINT`, `SIGQUIT` and `SIGTERM` from then on.
/// Those of the terminal pass by: they reach the program too, which may want to put things in
/// order. Those that another process sends are passed on to the program; when that has ended, they
/// end this process. If this process is killed, the program is asked to end (`SIGTERM`).
///
/// # Errors
/// When the program cannot be started or watched, in which case it is killed, or something else
/// waits for the children of this process.
pub fn run_family(command: &mut Command) -> io::Result<ExitStatus> {
    set_child_subreaper(Some(getpid()))?;
    let before = handle_signals()?;
    let prepare = move || {
        for (signal, action) in SIGNALS.into_iter().zip(&before) {
            set_action(signal, action)?;
        }
        Ok(set_parent_process_death_signal(Some(Signal::TERM))?)
    };
    // SAFETY: between fork and exec only calls that are safe in a signal handler may be made:
    // these are single system calls.
    unsafe { command.pre_exec(prepare) };
    let mut child = command.spawn()?;
    raise_descriptor_limit();
    match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(program) => PROGRAM.store(program.into_raw_fd(), Ordering::SeqCst),
        Err(errno) => {
            child.kill()?;
            return Err(errno.into());
        }
    }
    pass_signals();
    let mut status = None;
    loop {
        match rustix::io::retry_on_intr(|| wait(WaitOptions::empty())) {
            Ok(Some((ended, how))) if ended.as_raw_nonzero().get().unsigned_abs() == child.id() => {
                status = Some(ExitStatus::from_raw(how.as_raw()));
            }
            Ok(_) => {}
            Err(Errno::CHILD) => return status.ok_or_else(|| Errno::CHILD.into()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Signals that are passed on.
const SIGNALS: [c_int; 3] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// The program, as a descriptor of it, which stays open: no later process of its number gets the
/// signals meant for it. Negative before it has been started.
static PROGRAM: AtomicI32 = AtomicI32::new(-1);

/// Signals that have come and are not passed on yet, by the bits of their numbers.
static CAME: AtomicI32 = AtomicI32::new(0);

/// Sets the handlers; gives what was there before, for the program.
fn handle_signals() -> io::Result<[libc::sigaction; SIGNALS.len()]> {
    // SAFETY: all zeroes are a valid `sigaction`, of no flags and no other signals blocked.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let mut before = [action; SIGNALS.len()];
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = pass_on;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    for (signal, before) in SIGNALS.into_iter().zip(&mut before) {
        *before = set_action(signal, &action)?;
    }
    Ok(before)
}

/// Gives what was set before. Its only actions are [`pass_on`] and those that were there.
fn set_action(signal: c_int, action: &libc::sigaction) -> io::Result<libc::sigaction> {
    // SAFETY: all zeroes are a valid `sigaction`.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid. Our handler has the arguments that `SA_SIGINFO` gives it, makes only
    // calls that are safe in a handler, and touches no memory but what it is given and atomics.
    match unsafe { libc::sigaction(signal, action, &raw mut before) } {
        0 => Ok(before),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Handles a signal in whatever thread it interrupts.
extern "C" fn pass_on(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: a handler with `SA_SIGINFO` gets a valid pointer.
    let code = unsafe { (*info).si_code };
    // From the terminal, it has been sent to the program as well.
    if code != libc::SI_KERNEL {
        CAME.fetch_or(1 << signal, Ordering::SeqCst);
        pass_signals();
    }
}

/// Passes signals on that have come, as soon as there is a program.
fn pass_signals() {
    let program = PROGRAM.load(Ordering::SeqCst);
    if program < 0 {
        return;
    }
    // SAFETY: a descriptor that is never closed.
    let program = unsafe { BorrowedFd::borrow_raw(program) };
    let came = CAME.swap(0, Ordering::SeqCst);
    for signal in SIGNALS {
        if came & 1 << signal == 0 {
            continue;
        }
        let sent = Signal::from_named_raw(signal).map(|signal| pidfd_send_signal(program, signal));
        if sent != Some(Ok(())) {
            // SAFETY: setting the default touches no memory, and is safe in a handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            // SAFETY: safe in a handler too; there, it comes when the handler has returned.
            unsafe { libc::raise(signal) };
        }
    }
}

/// To the server every open file and every allocation is a descriptor, so as many as allowed are
/// wanted; the program keeps its own limit.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        eprintln!("vrampager: cannot raise the limit on descriptors: {error}");
    }
}
