//! The thread that serves programs and runs the channels.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use thiserror::Error;
use vrampager_nv_driver::{Config, Counted, Live};

use crate::engine::{Pace, now};
use crate::machine::Machine;
use crate::process::Client;
use crate::wire;

/// The server could not be started.
#[derive(Debug, Error)]
#[error("the simulated driver cannot be started")]
pub struct StartError(#[source] std::io::Error);

impl From<Errno> for StartError {
    fn from(errno: Errno) -> Self {
        Self(errno.into())
    }
}

/// A simulated driver that programs can reach, until dropped. Programs that still use it then get
/// `ENODEV`.
#[derive(Debug)]
pub struct Server {
    name: String,
    machine: Arc<Mutex<Machine>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a driver for a machine. The program that makes request number `kill_at`, counted
    /// from 1 over all ioctls, is killed when it has been carried out: what is left of it then
    /// is for the driver to take back.
    ///
    /// # Errors
    /// [`StartError`] when there are no descriptors or threads left.
    pub fn start(config: Config, kill_at: Option<u64>) -> Result<Self, StartError> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let (process, nth) = (std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
        let name = format!("vrampager-nv-{process}-{nth}");
        let machine = Machine::new(name.clone(), config, kill_at)?;
        let machine = Arc::new(Mutex::new(machine));
        let calls = Calls::new(&name)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (served, stopped) = (Arc::clone(&machine), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("nv-server".into())
            .spawn(move || run(calls, &served, &stopped))
            .map_err(StartError)?;
        Ok(Self {
            name,
            machine,
            stop,
            thread: Some(thread),
        })
    }

    /// Its name, for [`wire::NAME_VARIABLE`].
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is alive in the driver. Files of processes that have ended are closed.
    #[must_use]
    pub fn live(&self) -> Live {
        lock(&self.machine).live()
    }

    /// What has happened in the driver.
    #[must_use]
    pub fn counted(&self) -> Counted {
        lock(&self.machine).counted()
    }

    /// Whether it still answers: a request that broke the driver itself has ended it.
    #[must_use]
    pub fn works(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported when it happened.
            drop(thread.join());
        }
    }
}

/// A thread that panicked leaves counters to be looked at, and no more requests.
fn lock(machine: &Mutex<Machine>) -> MutexGuard<'_, Machine> {
    machine.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The listener and the connections of programs.
#[derive(Debug)]
struct Calls {
    listener: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    ready: OwnedFd,
    next: u64,
    /// Why the last program could not be served: one that stays waiting is told of once.
    refused: Option<Errno>,
    /// When to look again for programs that wait, where nothing is left to serve them with.
    retry: Option<u64>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    client: Arc<Client>,
}

/// The listener among the sources of events; connections are numbered from 1.
const LISTENER: u64 = 0;

/// Nanoseconds for which programs wait when there is nothing to serve them with.
const PAUSE: u64 = 10_000_000;

impl Calls {
    fn new(name: &str) -> Result<Self, Errno> {
        let listener = wire::listen(name)?;
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &ready,
            &listener,
            EventData::new_u64(LISTENER),
            EventFlags::IN,
        )?;
        Ok(Self {
            listener,
            connections: BTreeMap::new(),
            ready,
            next: LISTENER + 1,
            refused: None,
            retry: None,
        })
    }

    /// Connections with something to take, after waiting from `now` for one no longer than `pause`.
    fn wait(&mut self, pause: Timespec, now: u64) -> Vec<u64> {
        const AT_ONCE: usize = 16;
        if self.retry.is_some_and(|retry| now >= retry) {
            self.retry = None;
            self.listen_for(EventFlags::IN);
        }
        // Of the two, only this one counts in less than milliseconds.
        let mut polled = [PollFd::new(&self.ready, PollFlags::IN)];
        if !matches!(rustix::event::poll(&mut polled, Some(&pause)), Ok(1..)) {
            return Vec::new();
        }
        let mut events = Vec::with_capacity(AT_ONCE);
        let spare = rustix::buffer::spare_capacity(&mut events);
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if epoll::wait(&self.ready, spare, Some(&none)).is_err() {
            return Vec::new();
        }
        let numbers = events.into_iter().map(|event| {
            let data = event.data;
            data.u64()
        });
        numbers.collect()
    }

    /// Programs that connect wait while there is nothing to serve them with. They would be
    /// reported without a pause, so the listener is left alone for a while: descriptors come back
    /// in many places, some of them in other processes.
    fn accept(&mut self, now: u64) {
        let refused = self.try_accept().err();
        if let Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) = refused {
            self.listen_for(EventFlags::empty());
            self.retry = Some(now + PAUSE);
        }
        if let Some(error) = refused
            && self.refused != refused
        {
            eprintln!("vrampager: a program cannot be served: {error}");
        }
        self.refused = refused;
    }

    fn listen_for(&self, events: EventFlags) {
        let listened = epoll::modify(
            &self.ready,
            &self.listener,
            EventData::new_u64(LISTENER),
            events,
        );
        listened.expect("the listener was added when it was made");
    }

    fn try_accept(&mut self) -> Result<(), Errno> {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        // Whoever is accepted can be served: there is room for the files of a `Client`.
        let room = (
            rustix::io::fcntl_dupfd_cloexec(&self.listener, 0)?,
            rustix::io::fcntl_dupfd_cloexec(&self.listener, 0)?,
            rustix::io::fcntl_dupfd_cloexec(&self.listener, 0)?,
        );
        let socket = rustix::net::accept_with(&self.listener, flags)?;
        drop(room);
        let peer = rustix::net::sockopt::socket_peercred(&socket)?;
        let client = match Client::new(peer.pid) {
            // All of its threads have ended: it asks for nothing any more.
            Err(Errno::SRCH | Errno::NOENT) => return Ok(()),
            client => Arc::new(client?),
        };
        let number = self.next;
        self.next += 1;
        let data = EventData::new_u64(number);
        epoll::add(&self.ready, &socket, data, EventFlags::IN)?;
        self.connections
            .insert(number, Connection { socket, client });
        Ok(())
    }

    /// Serves one request of a connection, or ends it.
    fn serve(&mut self, number: u64, machine: &Mutex<Machine>) {
        let Some(connection) = self.connections.get(&number) else {
            return;
        };
        let socket = connection.socket.as_fd();
        let served = wire::take(socket).and_then(|request| match request {
            Some(request) => lock(machine)
                .serve(&connection.client, socket, request)
                .map(|()| true),
            None => Ok(false),
        });
        if !matches!(served, Ok(true)) {
            let forgotten = epoll::delete(&self.ready, socket);
            forgotten.expect("it was added when the connection was made");
            self.connections.remove(&number);
        }
    }
}

fn run(mut calls: Calls, machine: &Mutex<Machine>, stop: &AtomicBool) {
    /// Timers are late by up to 50 us unless asked otherwise.
    const SLACK: std::num::NonZeroU64 = std::num::NonZeroU64::MIN;
    if let Err(error) = rustix::thread::set_current_timer_slack(Some(SLACK)) {
        eprintln!("vrampager: the simulated GPUs answer a little late: {error}");
    }
    let mut pace = Pace::default();
    while !stop.load(Ordering::Acquire) {
        let ready = calls.wait(pace.pause(), now());
        for &number in &ready {
            match number {
                LISTENER => calls.accept(now()),
                number => calls.serve(number, machine),
            }
        }
        if ready.is_empty() {
            // Where processors are few, programs need this one.
            std::thread::yield_now();
        }
        let now = now();
        let progress = lock(machine).run(now);
        pace.note(ready.len(), progress, now);
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{
        Pid, Resource, Rlimit, WaitId, WaitIdOptions, getrlimit, setrlimit, waitid,
    };
    use std::os::fd::{AsRawFd as _, IntoRawFd};

    use super::*;
    use crate::again::{again, end_of, role};
    use crate::process::forked::Forked;

    fn name() -> String {
        static TAKEN: AtomicU64 = AtomicU64::new(0);
        let nth = TAKEN.fetch_add(1, Ordering::Relaxed);
        format!("vrampager-test-calls-{}-{nth}", std::process::id())
    }

    const SECOND: u64 = 1_000_000_000;

    /// Waits for a program to connect, and accepts it.
    fn accept_one(calls: &mut Calls) {
        let long = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        assert_eq!(calls.wait(long, 0), [LISTENER], "nobody has connected");
        calls.accept(0);
    }

    #[test]
    fn a_program_that_has_ended_already_is_no_failure() {
        if let Some(server) = role() {
            drop(wire::connect(&server).unwrap());
            return;
        }
        for reaped in [false, true] {
            let name = name();
            let mut calls = Calls::new(&name).unwrap();
            let mut child = again(&name).spawn().unwrap();
            if reaped {
                assert!(end_of(&mut child).success());
            } else {
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
                waitid(WaitId::Pid(Pid::from_child(&child)), options).unwrap();
            }
            accept_one(&mut calls);
            assert_eq!(calls.refused, None, "reaped: {reaped}");
            assert!(calls.connections.is_empty(), "reaped: {reaped}");
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_program_whose_first_thread_has_ended_is_served() {
        let name = name();
        let mut calls = Calls::new(&name).unwrap();
        let child = Forked::without_leader(|| {
            let connection = wire::connect(&name).map(IntoRawFd::into_raw_fd);
            assert!(connection.is_ok());
        });
        child.until_leader_ended();
        accept_one(&mut calls);
        assert_eq!(calls.refused, None);
        assert_eq!(calls.connections.len(), 1);
    }

    #[test]
    fn without_descriptors_programs_wait_and_the_server_does_not_spin() {
        // The limit is of a whole process.
        let Some(name) = role() else {
            assert!(end_of(&mut again(&name()).spawn().unwrap()).success());
            return;
        };
        let mut calls = Calls::new(&name).unwrap();
        let before = getrlimit(Resource::Nofile);
        let waiting = wire::socket().unwrap();
        // One is left, which is too few for a connection with all it needs.
        let free = rustix::io::dup(&waiting).unwrap();
        let one = Rlimit {
            current: u64::try_from(free.as_raw_fd() + 1).ok(),
            maximum: before.maximum,
        };
        setrlimit(Resource::Nofile, one).unwrap();
        drop(free);
        rustix::net::connect(&waiting, &wire::name_of(&name).unwrap()).unwrap();
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        assert_eq!(calls.wait(zero, SECOND), [LISTENER]);
        calls.accept(SECOND);
        assert_eq!(calls.refused, Some(Errno::MFILE));
        assert_eq!(calls.retry, Some(SECOND + PAUSE));
        setrlimit(Resource::Nofile, before).unwrap();
        assert_eq!(
            calls.wait(zero, SECOND + PAUSE - 1),
            [],
            "it looks again at once"
        );
        assert_eq!(calls.wait(zero, SECOND + PAUSE), [LISTENER]);
        calls.accept(SECOND + PAUSE);
        assert_eq!(calls.connections.len(), 1);
        assert_eq!(calls.refused, None);
    }
}
