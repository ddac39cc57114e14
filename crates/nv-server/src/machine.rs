//! The driver, its open files, and the requests of programs.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::Signal;
use vrampager_nv_abi::Node;
use vrampager_nv_driver::{
    Config, Counted, Driver, Errno, FileId, Live, Process, Progress, StoreError,
};

use crate::memory::{SharedStore, text_file};
use crate::process::Client;
use crate::wire::{self, Request};

/// One driver and all files of it that are open anywhere.
#[derive(Debug)]
pub(crate) struct Machine {
    name: String,
    driver: Driver<SharedStore>,
    files: BTreeMap<FileId, OpenFile>,
    /// The files by their programs' ends.
    inodes: BTreeMap<u64, FileId>,
    /// Reports files whose last descriptor is gone.
    hang_ups: OwnedFd,
    /// The request whose caller is killed.
    kill_at: Option<u64>,
}

/// A file that is open somewhere.
#[derive(Debug)]
struct OpenFile {
    /// Our end.
    end: OwnedFd,
    /// The inode of the program's end.
    inode: u64,
}

/// What a good answer carries.
enum Given<'a> {
    Nothing,
    Number(u64),
    File(OwnedFd),
    Memory(BorrowedFd<'a>, u64),
}

/// A process, seen from its request.
struct Caller<'a> {
    client: &'a Client,
    inodes: &'a BTreeMap<u64, FileId>,
}

impl Process for Caller<'_> {
    fn file(&self, fd: i32) -> Option<FileId> {
        let inode = self.client.socket(fd)?;
        self.inodes.get(&inode).copied()
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), StoreError> {
        self.client.memory().read(address, into)
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), StoreError> {
        self.client.answer(address, from)
    }
}

impl Machine {
    pub(crate) fn new(
        name: String,
        config: Config,
        kill_at: Option<u64>,
    ) -> rustix::io::Result<Self> {
        Ok(Self {
            name,
            driver: Driver::new(config, SharedStore::default()),
            files: BTreeMap::new(),
            inodes: BTreeMap::new(),
            hang_ups: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            kill_at,
        })
    }

    pub(crate) fn live(&mut self) -> Live {
        self.reap();
        self.driver.live()
    }

    pub(crate) fn counted(&self) -> Counted {
        self.driver.counted()
    }

    /// Lets the channels run once.
    pub(crate) fn run(&mut self, now: u64) -> Progress {
        self.reap();
        self.driver.run(now)
    }

    /// Closes files that nobody has any more, in the order in which that happened.
    fn reap(&mut self) {
        const AT_ONCE: usize = 64;
        const NO_WAIT: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        loop {
            let mut events = Vec::with_capacity(AT_ONCE);
            let spare = rustix::buffer::spare_capacity(&mut events);
            let found = epoll::wait(&self.hang_ups, spare, Some(&NO_WAIT));
            if !matches!(found, Ok(1..)) {
                return;
            }
            for event in events {
                let data = event.data;
                self.close(FileId(data.u64()));
            }
        }
    }

    fn close(&mut self, file: FileId) {
        let open = self.files.remove(&file);
        let open = open.expect("a file hangs up once: its end is closed then");
        // A child of this process that is being started may have our end for a moment longer.
        let forgotten = epoll::delete(&self.hang_ups, &open.end);
        forgotten.expect("it was added when the file was opened");
        self.inodes.remove(&open.inode);
        self.driver.close(file);
    }

    /// Carries out a request and answers it.
    pub(crate) fn serve(
        &mut self,
        client: &Arc<Client>,
        connection: BorrowedFd<'_>,
        request: Request,
    ) -> rustix::io::Result<()> {
        // What was closed before the request was made is closed.
        self.reap();
        let given = self.carry_out(client, request);
        let result = match &given {
            Ok(Given::Nothing) => Ok((0, None)),
            Ok(Given::Number(number)) => Ok((*number, None)),
            Ok(Given::File(file)) => Ok((0, Some(file.as_fd()))),
            Ok(Given::Memory(file, offset)) => Ok((*offset, Some(*file))),
            Err(errno) => Err(errno.number()),
        };
        wire::answer(connection, result)
    }

    fn carry_out(&mut self, client: &Arc<Client>, request: Request) -> Result<Given<'_>, Errno> {
        match request {
            Request::Open(node) => self.open(node).map(Given::File),
            Request::Version => {
                let release = &self.driver.config().release;
                text(&format!(
                    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {release}  \
                     simulated\n"
                ))
            }
            Request::Counters => {
                let (live, counted) = (self.live(), self.counted());
                text(&format!("{live}{counted}"))
            }
            Request::Gpus => Ok(Given::Number(self.driver.config().gpus as u64)),
            Request::Ioctl {
                file,
                request,
                argument,
            } => {
                self.ioctl(client, file, request, argument)?;
                Ok(Given::Nothing)
            }
            Request::Map { file, len, offset } => {
                let map = self.driver.mmap(file, len, offset)?;
                let memory = self.driver.store().memory_file(map.place.id);
                Ok(Given::Memory(memory.ok_or(Errno::Inval)?, map.place.offset))
            }
        }
    }

    /// Opens a node; gives the program's end of the file.
    fn open(&mut self, node: Node) -> Result<OwnedFd, Errno> {
        let file = self.driver.open(node)?;
        self.connect(file).map_err(|_| {
            self.driver.close(file);
            Errno::NoMem
        })
    }

    fn connect(&mut self, file: FileId) -> rustix::io::Result<OwnedFd> {
        let (ours, theirs) = wire::file(&self.name, file)?;
        let inode = rustix::fs::fstat(&theirs)?.st_ino;
        let data = EventData::new_u64(file.0);
        epoll::add(&self.hang_ups, &ours, data, EventFlags::empty())?;
        let open = OpenFile { end: ours, inode };
        self.files.insert(file, open);
        self.inodes.insert(inode, file);
        Ok(theirs)
    }

    fn ioctl(
        &mut self,
        client: &Arc<Client>,
        file: FileId,
        request: u32,
        argument: u64,
    ) -> Result<(), Errno> {
        let size = self.driver.packet_size(file, request).unwrap_or(0);
        let mut packet = vec![0; size];
        client
            .memory()
            .read(argument, &mut packet)
            .map_err(|_| Errno::Fault)?;
        self.driver.store_mut().set_caller(client);
        let mut caller = Caller {
            client,
            inodes: &self.inodes,
        };
        let result = self.driver.ioctl(&mut caller, file, request, &mut packet);
        if self.kill_at == Some(self.driver.counted().ioctls) {
            // The request is done, and the program never learns of it.
            let killed = rustix::process::kill_process(client.pid(), Signal::KILL);
            return killed.map_err(|_| Errno::Io);
        }
        client.answer(argument, &packet).map_err(|_| Errno::Fault)?;
        result.map(drop)
    }
}

fn text(text: &str) -> Result<Given<'static>, Errno> {
    text_file(text).map(Given::File).map_err(|_| Errno::NoMem)
}
