use std::fmt;
use std::io;
use std::path::PathBuf;

use ::safetensors::SafeTensorError;

use crate::stamp::StampField;

/// Where in which file something is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct At {
    /// The file as it was named by the caller.
    pub file: PathBuf,
    /// The tensor concerned, if the trouble belongs to one.
    pub tensor: Option<String>,
    /// Byte offset from the start of the file.
    pub offset: u64,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        if let Some(tensor) = &self.tensor {
            // Escaped: a name from a hostile file must not reach a terminal raw.
            write!(f, "tensor {tensor:?} ")?;
        }
        write!(f, "at byte {}", self.offset)
    }
}

/// Why a file is not usable as a model. Nothing was changed, and the file is closed again.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum ModelError {
    /// The operating system refused to open, read or write.
    #[error("{}: the operating system refused", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// A directory, pipe, socket or device was named.
    #[error("{}: not a regular file but a {found}", file.display())]
    NotRegular {
        /// The path.
        file: PathBuf,
        /// What lies there.
        found: &'static str,
    },
    /// Neither the content nor the extension is that of a known format.
    #[error(
        "{}: neither the first bytes \"{}\" nor the extension {extension:?} belong to \
         safetensors, ONNX or GGUF", file.display(), first_bytes.escape_ascii()
    )]
    UnknownFormat {
        /// The file.
        file: PathBuf,
        /// The first bytes, at most eight.
        first_bytes: Vec<u8>,
        /// The extension, empty if there is none.
        extension: String,
    },
    /// The file or the enclosing part of it ends before something it announces.
    #[error("{at}: {needed} bytes announced, {available} there")]
    Truncated {
        /// Where the announced bytes start.
        at: At,
        /// Bytes announced.
        needed: u64,
        /// Bytes there are from `at` on.
        available: u64,
    },
    /// Two tensors claim the same bytes.
    #[error("{at}: overlaps tensor {other:?}, which ends at byte {other_end}")]
    Overlap {
        /// The later tensor.
        at: At,
        /// The earlier tensor.
        other: String,
        /// Where the earlier tensor ends.
        other_end: u64,
    },
    /// Two tensors have one name.
    #[error("{at}: the name occurs twice")]
    DuplicateName {
        /// The second of the two.
        at: At,
    },
    /// A tensor does not start where the format demands it.
    #[error("{at}: not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The tensor.
        at: At,
        /// The demanded alignment in bytes.
        alignment: u64,
    },
    /// Shape and element type promise another size than the file holds.
    #[error("{at}: shape and type need {expected} bytes, the file gives {found}")]
    LengthMismatch {
        /// The tensor.
        at: At,
        /// Bytes that shape and type need.
        expected: u64,
        /// Bytes that the file gives it.
        found: u64,
    },
    /// Bytes that belong to no tensor, in a format that forbids them.
    #[error("{at}: {bytes} bytes belong to no tensor")]
    Uncovered {
        /// Where they start.
        at: At,
        /// How many there are.
        bytes: u64,
    },
    /// A count, length or depth beyond what this reader accepts.
    #[error("{at}: {what} {value} is over the limit {limit}")]
    LimitExceeded {
        /// Where it was read.
        at: At,
        /// What was counted.
        what: &'static str,
        /// The value in the file.
        value: u64,
        /// The largest accepted value.
        limit: u64,
    },
    /// The bytes break a rule of the format.
    #[error("{at}: {what}")]
    Malformed {
        /// Where.
        at: At,
        /// The broken rule.
        what: &'static str,
    },
    /// The JSON header of a safetensors file does not follow the format.
    #[error("{at}: bad safetensors header")]
    Header {
        /// Where the header starts.
        at: At,
        /// What is wrong with it.
        source: SafeTensorError,
    },
    /// Legal, but not something this reader can present as one range of bytes.
    #[error("{at}: {what} {value} is not supported")]
    Unsupported {
        /// Where.
        at: At,
        /// What it is.
        what: &'static str,
        /// Its number in the file.
        value: u64,
    },
    /// The file is not the one that was opened.
    #[error("{}: changed since it was opened: {field} was {old}, is {new}", file.display())]
    Changed {
        /// The file.
        file: PathBuf,
        /// The first attribute that differs.
        field: StampField,
        /// Its value when the file was opened.
        old: i128,
        /// Its value at the check.
        new: i128,
    },
}
