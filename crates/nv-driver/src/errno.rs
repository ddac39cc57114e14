//! Results of system calls: the first of the two error levels.

use std::fmt;

/// Why a system call failed, before or instead of any status in its packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Errno {
    /// The driver has no device behind the file.
    Io,
    /// No mapping context, or one of another size.
    NxIo,
    /// The file is not open.
    BadF,
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
    const NAMES: [(Self, i32, &'static str); 9] = [
        (Self::Io, 5, "EIO"),
        (Self::NxIo, 6, "ENXIO"),
        (Self::BadF, 9, "EBADF"),
        (Self::NoMem, 12, "ENOMEM"),
        (Self::Fault, 14, "EFAULT"),
        (Self::Busy, 16, "EBUSY"),
        (Self::NoDev, 19, "ENODEV"),
        (Self::Inval, 22, "EINVAL"),
        (Self::Range, 34, "ERANGE"),
    ];

    /// The number, as in `errno.h` of Linux.
    #[must_use]
    pub fn number(self) -> i32 {
        self.row().1
    }

    /// The error called `name`, such as `EINVAL`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(_, _, known)| *known == name)
            .map(|(errno, _, _)| *errno)
    }

    fn row(self) -> (Self, i32, &'static str) {
        *Self::NAMES
            .iter()
            .find(|(errno, _, _)| *errno == self)
            .expect("every error has a row in the table")
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().2)
    }
}

impl std::error::Error for Errno {}
