//! Results of system calls: the first of the two error levels.

use std::fmt;

/// Why a system call failed, before or instead of any status in its packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Errno {
    /// A signal came before anything was done. Only when asked to fail so.
    Intr,
    /// The driver has no device behind the file.
    Io,
    /// No mapping context, or one of another size.
    NxIo,
    /// The file is not open.
    BadF,
    /// The driver is busy, and nothing was done. Only when asked to fail so.
    Again,
    /// Kernel memory is short.
    NoMem,
    /// The packet's address is bad.
    Fault,
    /// The value was set differently before.
    Busy,
    /// No such node.
    NoDev,
    /// Unknown request, wrong size, or wrong kind of node.
    Inval,
    /// The mapping leaves the memory.
    Range,
}

impl Errno {
    const NAMES: [(Self, &'static str); 11] = [
        (Self::Intr, "EINTR"),
        (Self::Io, "EIO"),
        (Self::NxIo, "ENXIO"),
        (Self::BadF, "EBADF"),
        (Self::Again, "EAGAIN"),
        (Self::NoMem, "ENOMEM"),
        (Self::Fault, "EFAULT"),
        (Self::Busy, "EBUSY"),
        (Self::NoDev, "ENODEV"),
        (Self::Inval, "EINVAL"),
        (Self::Range, "ERANGE"),
    ];

    /// The number, as in `errno.h` of Linux.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Self::Intr => 4,
            Self::Io => 5,
            Self::NxIo => 6,
            Self::BadF => 9,
            Self::Again => 11,
            Self::NoMem => 12,
            Self::Fault => 14,
            Self::Busy => 16,
            Self::NoDev => 19,
            Self::Inval => 22,
            Self::Range => 34,
        }
    }

    /// The error of this number, if it is one of the driver's.
    #[must_use]
    pub fn numbered(number: i32) -> Option<Self> {
        let mut known = Self::NAMES.iter().map(|(errno, _)| *errno);
        known.find(|errno| errno.number() == number)
    }

    /// All of their names.
    pub(crate) fn names() -> String {
        Self::NAMES.map(|(_, name)| name).join(", ")
    }

    /// The error called `name`, such as `EINVAL`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(errno, _)| *errno)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = Self::NAMES.iter().find(|(errno, _)| errno == self);
        f.write_str(row.expect("every error has a row in the table").1)
    }
}

impl std::error::Error for Errno {}
