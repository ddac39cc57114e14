//! A program and the processes that it leaves behind.
#![expect(
    unsafe_code,
    reason = "signals are handled through libc, and set in a child before it becomes the program"
)]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions,
    getpid, getrlimit, pidfd_open, pidfd_send_signal, set_child_subreaper,
    set_parent_process_death_signal, setrlimit, wait, waitid,
};

/// Runs a program, and waits until it and every process that it left running have ended: whatever
/// they share is needed no longer. Gives the program's own status.
///
/// It is for a process that is there for nothing else: it waits for all its children, and handles
/// `SIGINT`, `SIGQUIT` and `SIGTERM` until it returns. Those of the terminal pass by: they reach
/// the program too, which may want to put things in order. Those that a process sends are passed on
/// to the program, and so are all that come before it runs. When it has ended, they are to this
/// process what they were before. If this process is killed, the program is asked to end
/// (`SIGTERM`).
///
/// # Errors
/// When the program cannot be started or watched, in which case it is killed, or something else
/// waits for the children of this process. Signals do then what they did before, also those that
/// came meanwhile.
pub fn run_family(command: &mut Command) -> io::Result<ExitStatus> {
    set_child_subreaper(Some(getpid()))?;
    let signals = Signals::handle()?;
    let number = spawn(command, &signals)?;
    status_of(number, wait_for_one)
}

/// Waits for a child. Signals that came while the program was to be waited for are passed on then.
fn wait_for_one() -> Result<(Pid, ExitStatus), Errno> {
    let ended = rustix::io::retry_on_intr(|| wait(WaitOptions::empty()))?;
    let (ended, how) = ended.expect("it waits until there is something to tell");
    pass_signals();
    Ok((ended, ExitStatus::from_raw(how.as_raw())))
}

/// The status of a program, when it and all others have ended. A later process may have its number.
fn status_of(
    program: Pid,
    mut next: impl FnMut() -> Result<(Pid, ExitStatus), Errno>,
) -> io::Result<ExitStatus> {
    let mut status = None;
    loop {
        match next() {
            Ok((ended, how)) if ended == program => status = status.or(Some(how)),
            Ok(_) => {}
            Err(Errno::CHILD) => return status.ok_or_else(|| Errno::CHILD.into()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Starts a program to which signals are what they were; gives its number.
fn spawn(command: &mut Command, signals: &Signals) -> io::Result<Pid> {
    let (before, mask) = (signals.before, signals.mask);
    let prepare = move || {
        for (signal, action) in SIGNALS.into_iter().zip(&before) {
            set_action(signal, action)?;
        }
        set_parent_process_death_signal(Some(Signal::TERM))?;
        set_mask(&mask);
        Ok(())
    };
    // SAFETY: between fork and exec only calls that are safe in a signal handler may be made:
    // these are single system calls.
    unsafe { command.pre_exec(prepare) };
    let mut child = command.spawn()?;
    raise_descriptor_limit();
    let number = Pid::from_child(&child);
    let handle = match pidfd_open(number, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(errno) => {
            // What is told is why, whatever becomes of the child.
            if child.kill().is_ok() {
                drop(child.wait());
            }
            return Err(errno.into());
        }
    };
    // Those that have waited may be from before the child, so they are passed on wherever they
    // come from.
    signals.unblock();
    // A handler may look at it at any time, so it stays.
    let program = Box::leak(Box::new(Program { handle, before }));
    PROGRAM.store(program, Ordering::SeqCst);
    pass_signals();
    Ok(number)
}

/// Signals that are passed on.
const SIGNALS: [c_int; 3] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

type Actions = [libc::sigaction; SIGNALS.len()];

/// The program, which is null before it runs, and then never freed.
static PROGRAM: AtomicPtr<Program> = AtomicPtr::new(ptr::null_mut());

/// Signals that have come and are not passed on yet, by the bits of their numbers.
static CAME: AtomicI32 = AtomicI32::new(0);

/// A program, by a descriptor: no later process of its number gets the signals meant for it.
#[derive(Debug)]
struct Program {
    handle: OwnedFd,
    /// What signals did before.
    before: Actions,
}

impl Program {
    fn started() -> Option<&'static Self> {
        let program = PROGRAM.load(Ordering::SeqCst);
        // SAFETY: null, or one that is never freed and never changed.
        unsafe { program.as_ref() }
    }

    fn state(&self) -> State {
        match look_at(WaitId::PidFd(self.handle.as_fd())) {
            Ok(None) => State::Runs,
            Ok(Some(_)) => State::Ended,
            Err(_) => match look_at(WaitId::All) {
                Err(Errno::CHILD) => State::Alone,
                _ => State::LeftOthers,
            },
        }
    }

    fn send(&self, signal: c_int) -> Result<(), Errno> {
        let signal = Signal::from_named_raw(signal).ok_or(Errno::INVAL)?;
        pidfd_send_signal(&self.handle, signal)
    }
}

/// What has become of a program.
#[derive(Debug)]
enum State {
    Runs,
    /// It is to be waited for. Signals to it are taken and lost.
    Ended,
    /// It has been waited for, and others of its family have not.
    LeftOthers,
    /// It has been waited for, and so has its family.
    Alone,
}

fn look_at(whom: WaitId<'_>) -> Result<Option<WaitIdStatus>, Errno> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    waitid(whom, options)
}

/// The signals that are passed on, as they were before. They are so again when this is dropped.
#[derive(Debug)]
struct Signals {
    before: Actions,
    /// Of this thread.
    mask: libc::sigset_t,
}

impl Signals {
    /// Handles the signals, and blocks them in this thread: a child that it starts has none of them
    /// come before they do what they are to do there.
    fn handle() -> io::Result<Self> {
        PROGRAM.store(ptr::null_mut(), Ordering::SeqCst);
        CAME.store(0, Ordering::SeqCst);
        // SAFETY: all zeroes are a valid `sigaction`, of no flags and no other signals blocked.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = pass_on;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        let mut before = [action; SIGNALS.len()];
        for (signal, before) in SIGNALS.into_iter().zip(&mut before) {
            *before = action_of(signal)?;
        }
        let signals = Self {
            before,
            mask: block(),
        };
        for signal in SIGNALS {
            set_action(signal, &action)?;
        }
        Ok(signals)
    }

    fn unblock(&self) {
        set_mask(&self.mask);
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, action) in SIGNALS.into_iter().zip(&self.before) {
            // It has been set before, so it can be.
            drop(set_action(signal, action));
        }
        if Program::started().is_none() {
            raise_all(CAME.swap(0, Ordering::SeqCst));
        }
        self.unblock();
    }
}

fn action_of(signal: c_int) -> io::Result<libc::sigaction> {
    // SAFETY: all zeroes are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action, the old one is written to where there is room for it.
    match unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } {
        0 => Ok(action),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Its only actions are [`pass_on`] and those that were there.
fn set_action(signal: c_int, action: &libc::sigaction) -> io::Result<()> {
    // SAFETY: the action is valid. Our handler has the arguments that `SA_SIGINFO` gives it, makes
    // only calls that are safe in a handler, and touches no memory but what it is given, atomics,
    // and what is never freed nor changed.
    match unsafe { libc::sigaction(signal, action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Blocks the signals in this thread; gives what it blocked before.
fn block() -> libc::sigset_t {
    // SAFETY: all zeroes are a valid set, and an empty one.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = set;
    for signal in SIGNALS {
        // SAFETY: a valid set, and a signal that there is.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    // SAFETY: both sets are valid; nothing else can be wrong with it.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
    before
}

fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: the set is valid; nothing else can be wrong with it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}

fn raise_all(came: c_int) {
    for signal in SIGNALS {
        if came & 1 << signal != 0 {
            // SAFETY: safe in a handler too; there, it comes when the handler has returned.
            unsafe { libc::raise(signal) };
        }
    }
}

/// Handles a signal in whatever thread it interrupts, which may be about to look at its `errno`.
extern "C" fn pass_on(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: it has no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` of this thread.
    let kept = unsafe { errno.read() };
    // SAFETY: a handler with `SA_SIGINFO` gets a valid pointer.
    let code = unsafe { (*info).si_code };
    let terminal = code == libc::SI_KERNEL;
    // From the terminal, it has been sent to a program that runs as well.
    let told = terminal
        && Program::started().is_some_and(|program| matches!(program.state(), State::Runs));
    if !told {
        CAME.fetch_or(1 << signal, Ordering::SeqCst);
        pass_signals();
    }
    // SAFETY: `errno` of this thread.
    unsafe { errno.write(kept) };
}

/// Passes signals on that have come, as soon as there is a program. When it has ended and has left
/// others, they are for this process; when nobody is left, it is about to end anyway.
fn pass_signals() {
    let Some(program) = Program::started() else {
        return;
    };
    let runs = match program.state() {
        State::Runs => true,
        State::LeftOthers => false,
        // After `Ended` it is decided when the program has been waited for.
        State::Ended | State::Alone => return,
    };
    let came = CAME.swap(0, Ordering::SeqCst);
    for (signal, before) in SIGNALS.into_iter().zip(&program.before) {
        if came & 1 << signal == 0 || runs && program.send(signal).is_ok() {
            continue;
        }
        // It has been set before, so it can be.
        drop(set_action(signal, before));
        raise_all(1 << signal);
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufReader, Read as _, Write as _};
    use std::os::fd::FromRawFd as _;
    use std::thread::JoinHandle;

    use rustix::process::{ioctl_tiocsctty, kill_process, setsid};

    use super::*;
    use crate::again::{again, end_of, role};

    /// Says `left` when the shell that started it has ended and been waited for.
    const LEFT: &str = "(while kill -0 $$ 2>&-; do sleep 0.01; done; echo left; sleep 20) & exit 3";

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    /// A shell, and a thread that hears what the script says.
    fn heard<T: Send + 'static>(
        script: &str,
        hear: impl FnOnce(BufReader<io::PipeReader>) -> T + Send + 'static,
    ) -> (Command, JoinHandle<T>) {
        let (output, input) = io::pipe().unwrap();
        let mut command = shell(script);
        command.stdout(input);
        let ear = std::thread::spawn(move || hear(BufReader::new(output)));
        (command, ear)
    }

    fn line(output: &mut impl io::BufRead) -> String {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line
    }

    /// Gives this process a terminal of its own, and the end of it where keys are pressed.
    /// It is never hung up.
    fn terminal() -> &'static File {
        let (mut keys, mut screen) = (-1, -1);
        // SAFETY: both numbers are written to; there is no name and there are no settings.
        let opened = unsafe {
            libc::openpty(
                &raw mut keys,
                &raw mut screen,
                ptr::null_mut(),
                ptr::null(),
                ptr::null(),
            )
        };
        assert_eq!(opened, 0);
        // SAFETY: it has just been opened, and has no other owner.
        let keys = unsafe { File::from_raw_fd(keys) };
        // SAFETY: as above.
        let screen = unsafe { OwnedFd::from_raw_fd(screen) };
        setsid().unwrap();
        ioctl_tiocsctty(&screen).unwrap();
        let (keys, _) = Box::leak(Box::new((keys, screen)));
        keys
    }

    fn own(signal: Signal) {
        kill_process(getpid(), signal).unwrap();
    }

    /// Something that is done in the child before it becomes the program.
    fn at_start(
        command: &mut Command,
        act: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
    ) {
        // SAFETY: the acts below are single system calls.
        unsafe { command.pre_exec(act) };
    }

    fn parent(signal: Signal) -> io::Result<()> {
        let parent = rustix::process::getppid().expect("it waits");
        Ok(kill_process(parent, signal)?)
    }

    fn default_actions() -> bool {
        // SAFETY: all zeroes are a valid set.
        let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: without a new set, the old one is written to where there is room for it.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &raw mut mask) };
        SIGNALS.into_iter().all(|signal| {
            // SAFETY: the set has been filled.
            let blocked = unsafe { libc::sigismember(&raw const mask, signal) };
            blocked == 0 && action_of(signal).unwrap().sa_sigaction == libc::SIG_DFL
        })
    }

    #[test]
    fn signals_that_come_while_the_program_starts_reach_it() {
        let Some(role) = role() else {
            for role in ["child", "driver", "terminal"] {
                let end = end_of(&mut again(role).spawn().unwrap());
                assert!(end.success(), "{role}: {end}");
            }
            return;
        };
        let mut command = shell("exec sleep 20");
        match role.as_str() {
            "child" => at_start(&mut command, || Ok(kill_process(getpid(), Signal::TERM)?)),
            "driver" => at_start(&mut command, || parent(Signal::TERM)),
            _ => {
                let mut keys = terminal();
                at_start(&mut command, move || keys.write_all(b"\x03"));
            }
        }
        let signal = if role == "terminal" { 2 } else { 15 };
        let status = run_family(&mut command).unwrap();
        assert_eq!(status.signal(), Some(signal), "{role}");
        assert!(default_actions(), "{role}");
    }

    #[test]
    fn control_c_reaches_the_program_once_and_its_end_is_its_own() {
        if role().is_none() {
            assert!(end_of(&mut again("").spawn().unwrap()).success());
            return;
        }
        let mut keys = terminal();
        let script = "trap 'echo told' INT; trap 'exit 9' TERM; echo running; \
            while :; do sleep 0.01; done";
        let (mut command, ear) = heard(script, move |mut output| {
            assert_eq!(line(&mut output), "running\n");
            keys.write_all(b"\x03").unwrap();
            assert_eq!(line(&mut output), "told\n");
            own(Signal::TERM);
            let mut rest = String::new();
            output.read_to_string(&mut rest).unwrap();
            rest
        });
        let status = run_family(&mut command).unwrap();
        drop(command);
        assert_eq!(status.code(), Some(9));
        assert_eq!(ear.join().unwrap(), "");
    }

    #[test]
    fn when_the_program_has_ended_control_c_and_signals_end_the_process() {
        let Some(role) = role() else {
            for (role, signal) in [("terminal", 2), ("process", 15), ("ignored", 15)] {
                let end = end_of(&mut again(role).spawn().unwrap());
                assert_eq!(end.signal(), Some(signal), "{role}: {end}");
            }
            return;
        };
        let keys = (role == "terminal").then(terminal);
        if role == "ignored" {
            // SAFETY: it sets no handler.
            unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        }
        let (mut command, _ear) = heard(LEFT, move |mut output| {
            assert_eq!(line(&mut output), "left\n");
            match keys {
                Some(mut keys) => keys.write_all(b"\x03").unwrap(),
                None if role == "ignored" => {
                    own(Signal::INT);
                    own(Signal::TERM);
                }
                None => own(Signal::TERM),
            }
        });
        let status = run_family(&mut command);
        panic!("it goes on until {status:?}");
    }

    #[test]
    fn a_signal_before_the_program_is_waited_for_ends_the_process_if_others_are_left() {
        let Some(role) = role() else {
            assert!(end_of(&mut again("exit 3").spawn().unwrap()).success());
            let end = end_of(&mut again("sleep 5 & exit 3").spawn().unwrap());
            assert_eq!(end.signal(), Some(15), "{end}");
            return;
        };
        set_child_subreaper(Some(getpid())).unwrap();
        let signals = Signals::handle().unwrap();
        let program = spawn(&mut shell(&role), &signals).unwrap();
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(program), options).unwrap();
        // In this thread, so it is handled by now.
        raise_all(1 << libc::SIGTERM);
        let status = status_of(program, wait_for_one);
        drop(signals);
        assert_eq!((status.unwrap().code(), role.as_str()), (Some(3), "exit 3"));
    }

    #[test]
    fn a_program_that_cannot_be_started_leaves_signals_as_they_were_and_those_that_came_come() {
        let Some(role) = role() else {
            assert!(end_of(&mut again("none").spawn().unwrap()).success());
            let end = end_of(&mut again("signal").spawn().unwrap());
            assert_eq!(end.signal(), Some(15), "{end}");
            return;
        };
        let mut command = Command::new("/no/such/program");
        if role == "signal" {
            at_start(&mut command, || parent(Signal::TERM));
        }
        let error = run_family(&mut command).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(default_actions());
    }

    #[test]
    fn a_later_process_of_the_same_number_does_not_change_the_status() {
        let (program, other) = (Pid::from_raw(7).unwrap(), Pid::from_raw(8).unwrap());
        let mut ends = vec![(program, 0), (other, 256), (program, 3 << 8), (other, 0)];
        let status = status_of(program, || {
            let (ended, how) = ends.pop().ok_or(Errno::CHILD)?;
            Ok((ended, ExitStatus::from_raw(how)))
        });
        assert_eq!(status.unwrap().code(), Some(3));
        let nobody = status_of(program, || Err(Errno::CHILD)).unwrap_err();
        assert_eq!(nobody.raw_os_error(), Some(Errno::CHILD.raw_os_error()));
    }
}
