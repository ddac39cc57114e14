//! A program and the processes that it leaves behind.
#![expect(
    unsafe_code,
    reason = "signals are set through libc, and in a child before it becomes the program"
)]

use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};

use rustix::io::Errno;
use rustix::process::{
    Resource, Rlimit, Signal, WaitOptions, getpid, getrlimit, set_child_subreaper,
    set_parent_process_death_signal, setrlimit, wait,
};

/// Runs a program, and waits until it and every process that it left running have ended: whatever
/// they share is needed no longer. Gives the program's own status.
///
/// It is for a process that is there for nothing else: it waits for all its children, and lets
/// interrupts from the terminal pass by. They reach the program too, which may want to put things
/// in order. If this process is killed, the program is asked to end (`SIGTERM`).
///
/// # Errors
/// When the program cannot be started, or something else waits for the children of this process.
pub fn run_family(command: &mut Command) -> io::Result<ExitStatus> {
    set_child_subreaper(Some(getpid()))?;
    let end_with_us = || Ok(set_parent_process_death_signal(Some(Signal::TERM))?);
    // SAFETY: between fork and exec only calls that are safe in a signal handler may be made, and
    // this is a single system call.
    unsafe { command.pre_exec(end_with_us) };
    let child = command.spawn()?;
    raise_descriptor_limit();
    // Ignored from here on, but not by the program.
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: ignoring a signal runs no code and touches no memory.
        let before = unsafe { libc::signal(signal, libc::SIG_IGN) };
        assert!(before != libc::SIG_ERR, "both signals can be ignored");
    }
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
