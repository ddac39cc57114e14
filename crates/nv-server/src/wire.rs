//! What goes between a program and the server.
//!
//! Each request and its answer are one packet on a `SOCK_SEQPACKET` connection, in numbers of
//! 64 bits. An answer may carry a descriptor. Connections have no meaning beyond that: any may be
//! used for any file, by the process that made it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    getpeername, recvmsg, sendmsg,
};
use vrampager_nv_abi::Node;
use vrampager_nv_driver::FileId;

/// Names the server to the programs that it serves: a Unix socket in the abstract namespace.
pub const NAME_VARIABLE: &str = "VRAMPAGER_SIM_DRIVER";

/// What a program asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Open a node. The answer carries the file.
    Open(Node),
    /// The driver's release, as a text. The answer carries a file with it.
    Version,
    /// What is alive and what has happened. The answer carries a file with it.
    Counters,
    /// How many GPUs there are.
    Gpus,
    /// An ioctl.
    Ioctl {
        /// Which file.
        file: FileId,
        /// The number.
        request: u32,
        /// The address of its packet in the program.
        argument: u64,
    },
    /// A mapping. The answer carries the memory file, and where in it the mapping starts.
    Map {
        /// Which file.
        file: FileId,
        /// Bytes.
        len: u64,
        /// Where in what the file shows.
        offset: u64,
    },
}

const WORDS: usize = 4;
/// Bytes of a request.
const REQUEST: usize = 8 * WORDS;
/// Bytes of an answer.
const ANSWER: usize = 16;

impl Request {
    fn words(self) -> [u64; WORDS] {
        match self {
            Self::Open(Node::Control) => [0, 0, 0, 0],
            Self::Open(Node::Uvm) => [1, 0, 0, 0],
            Self::Open(Node::Gpu(minor)) => [2, minor as u64, 0, 0],
            Self::Version => [3, 0, 0, 0],
            Self::Counters => [4, 0, 0, 0],
            Self::Ioctl {
                file,
                request,
                argument,
            } => [5, file.0, request.into(), argument],
            Self::Map { file, len, offset } => [6, file.0, len, offset],
            Self::Gpus => [7, 0, 0, 0],
        }
    }

    fn of_words(words: [u64; WORDS]) -> Option<Self> {
        let [kind, first, second, third] = words;
        Some(match kind {
            0 => Self::Open(Node::Control),
            1 => Self::Open(Node::Uvm),
            2 => Self::Open(Node::Gpu(usize::try_from(first).ok()?)),
            3 => Self::Version,
            4 => Self::Counters,
            5 => Self::Ioctl {
                file: FileId(first),
                request: u32::try_from(second).ok()?,
                argument: third,
            },
            6 => Self::Map {
                file: FileId(first),
                len: second,
                offset: third,
            },
            7 => Self::Gpus,
            _ => return None,
        })
    }
}

/// What a successful request gives.
#[derive(Debug, Default)]
pub struct Answer {
    /// Where in the file a mapping starts, or how many GPUs there are; 0 otherwise.
    pub number: u64,
    /// The file, if the request gives one.
    pub file: Option<OwnedFd>,
}

pub(crate) fn name_of(server: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(server.as_bytes())
}

fn name_of_file(server: &str, file: FileId) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("{server}/{}", file.0).as_bytes())
}

pub(crate) fn socket() -> Result<OwnedFd, Errno> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)
}

/// The socket that programs connect to.
pub(crate) fn listen(server: &str) -> Result<OwnedFd, Errno> {
    const BACKLOG: i32 = 128;
    let listener = socket()?;
    rustix::net::bind(&listener, &name_of(server)?)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Connects to a server.
///
/// # Errors
/// The error of the system call; `ECONNREFUSED` if nobody has that name.
pub fn connect(server: &str) -> Result<OwnedFd, Errno> {
    let connection = socket()?;
    rustix::net::connect(&connection, &name_of(server)?)?;
    Ok(connection)
}

/// Both ends of an open file: the server's, which hangs up when the program's is gone, and the
/// program's, whose peer says which file of which server it is.
pub(crate) fn file(server: &str, file: FileId) -> Result<(OwnedFd, OwnedFd), Errno> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (ours, theirs) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&ours, &name_of_file(server, file)?)?;
    // Whoever reads a file finds its end instead of waiting for nobody.
    rustix::net::shutdown(&ours, rustix::net::Shutdown::Write)?;
    Ok((ours, theirs))
}

fn peer(fd: BorrowedFd<'_>) -> Option<SocketAddrUnix> {
    SocketAddrUnix::try_from(getpeername(fd).ok()??).ok()
}

/// Which file of the server a descriptor is, if it is one.
#[must_use]
pub fn file_behind(server: &str, fd: BorrowedFd<'_>) -> Option<FileId> {
    let peer = peer(fd)?;
    let name = peer.abstract_name()?.strip_prefix(server.as_bytes())?;
    let digits = std::str::from_utf8(name.strip_prefix(b"/")?).ok()?;
    digits.parse().ok().map(FileId)
}

/// Whether a descriptor is a connection to the server.
#[must_use]
pub fn is_connection(server: &str, fd: BorrowedFd<'_>) -> bool {
    peer(fd).is_some_and(|peer| peer.abstract_name() == Some(server.as_bytes()))
}

/// Asks the server and waits for its answer. A file in it is not inherited by programs that this
/// one becomes or starts if `private`.
///
/// # Errors
/// What the request failed with; `EMFILE` for a file when this process may have no more;
/// `EPIPE` or `ECONNRESET` when the server is gone.
pub fn ask(connection: BorrowedFd<'_>, request: Request, private: bool) -> Result<Answer, Errno> {
    /// Looks for an answer that is there at once, before going to sleep for it.
    const EAGER: usize = 100;
    send(connection, &request.words(), None, SendFlags::empty())?;
    let mut bytes = [0; ANSWER];
    let flags = if private {
        RecvFlags::CMSG_CLOEXEC
    } else {
        RecvFlags::empty()
    };
    let mut look = |_| {
        // Where processors are few, the server needs this one.
        std::thread::yield_now();
        receive(connection, &mut bytes, flags | RecvFlags::DONTWAIT)
    };
    let mut looks = (0..EAGER).map(&mut look);
    let soon = looks.find(|look| !matches!(look, Err(Errno::AGAIN)));
    let (received, file) = match soon {
        Some(answer) => answer?,
        None => receive(connection, &mut bytes, flags)?,
    };
    if received != ANSWER {
        return Err(Errno::CONNRESET);
    }
    let [failed, number] = words(&bytes);
    match i32::try_from(failed) {
        Ok(0) => Ok(Answer { number, file }),
        Ok(errno) => Err(Errno::from_raw_os_error(errno)),
        Err(_) => Err(Errno::PROTO),
    }
}

/// The next request of a program, which is there already; `None` when it has hung up.
pub(crate) fn take(connection: BorrowedFd<'_>) -> Result<Option<Request>, Errno> {
    let mut bytes = [0; REQUEST];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let (received, stray) = receive(connection, &mut bytes, flags)?;
    drop(stray);
    match received {
        0 => Ok(None),
        REQUEST => Request::of_words(words(&bytes))
            .ok_or(Errno::PROTO)
            .map(Some),
        _ => Err(Errno::PROTO),
    }
}

/// Answers a request; a good answer may take a file along. Nobody is waited for: a program that
/// does not take its answers is an error.
pub(crate) fn answer(
    connection: BorrowedFd<'_>,
    result: Result<(u64, Option<BorrowedFd<'_>>), i32>,
) -> Result<(), Errno> {
    match result {
        Ok((number, file)) => send(connection, &[0, number], file, SendFlags::DONTWAIT),
        Err(number) => {
            let words = [u64::from(number.unsigned_abs()), 0];
            send(connection, &words, None, SendFlags::DONTWAIT)
        }
    }
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    words
}

fn send(
    fd: BorrowedFd<'_>,
    words: &[u64],
    file: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> Result<(), Errno> {
    let flags = flags | SendFlags::NOSIGNAL;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file]);
    if let Some(files) = &files {
        let pushed = control.push(SendAncillaryMessage::ScmRights(files));
        assert!(pushed, "there is room for one descriptor");
    }
    let slices = [IoSlice::new(&bytes)];
    rustix::io::retry_on_intr(|| sendmsg(fd, &slices, &mut control, flags))?;
    Ok(())
}

fn receive(
    fd: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(bytes)];
    let received = rustix::io::retry_on_intr(|| recvmsg(fd, &mut slices, &mut control, flags))?;
    if received.flags.contains(ReturnFlags::CTRUNC) {
        // A file was sent, and this process may have no more.
        return Err(Errno::MFILE);
    }
    let mut file = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            file = files.last();
        }
    }
    Ok((received.bytes, file))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn every_request_is_read_as_it_was_written() {
        let file = FileId(7);
        for request in [
            Request::Open(Node::Control),
            Request::Open(Node::Uvm),
            Request::Open(Node::Gpu(31)),
            Request::Version,
            Request::Counters,
            Request::Gpus,
            Request::Ioctl {
                file,
                request: u32::MAX,
                argument: u64::MAX,
            },
            Request::Map {
                file,
                len: 1 << 40,
                offset: 4096,
            },
        ] {
            assert_eq!(Request::of_words(request.words()), Some(request));
        }
        assert_eq!(Request::of_words([8, 0, 0, 0]), None);
        assert_eq!(Request::of_words([5, 0, 1 << 32, 0]), None);
    }

    #[test]
    fn a_program_that_takes_no_answers_is_an_error_and_not_waited_for() {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let flags = SocketFlags::CLOEXEC;
        let (ours, _theirs) = rustix::net::socketpair(family, kind, flags, None).unwrap();
        let refused = (0..100_000).find_map(|_| answer(ours.as_fd(), Ok((0, None))).err());
        assert_eq!(refused, Some(Errno::AGAIN));
    }

    #[test]
    fn a_file_is_known_by_any_of_its_descriptors_and_others_are_not() {
        let server = format!("vrampager-test-{}", std::process::id());
        let (ours, theirs) = file(&server, FileId(12)).unwrap();
        let again = theirs.try_clone().unwrap();
        assert_eq!(file_behind(&server, again.as_fd()), Some(FileId(12)));
        assert_eq!(file_behind("vrampager-test", again.as_fd()), None);
        assert_eq!(file_behind(&server, ours.as_fd()), None);
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(file_behind(&server, null.as_fd()), None);
        assert!(!is_connection(&server, again.as_fd()));
    }
}
