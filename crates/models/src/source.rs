//! Bounded reads of a file's header parts. Nothing here allocates by a length from the file
//! before that length was compared with the file's size and a limit.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{At, ModelError};

/// Longest accepted tensor or key name, in bytes, with the path of enclosing subgraphs.
pub(crate) const MAX_NAME_BYTES: u64 = 1024;
/// Most dimensions of one tensor.
pub(crate) const MAX_RANK: u64 = 32;
/// Most tensors of one file. With the two limits above it bounds the memory of a [`crate::Layout`].
pub(crate) const MAX_TENSORS: u64 = 1 << 18;

/// Read ahead of this many bytes serves the many small fields of a header.
const WINDOW_BYTES: usize = 32 << 10;

#[derive(Clone, Copy)]
pub(crate) enum Origin<'a> {
    File(&'a File),
    Bytes(&'a [u8]),
}

/// A file of fixed length, read by position.
pub(crate) struct Source<'a> {
    path: &'a Path,
    origin: Origin<'a>,
    len: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl<'a> Source<'a> {
    pub(crate) fn new(path: &'a Path, origin: Origin<'a>, len: u64) -> Self {
        Self {
            path,
            origin,
            len,
            window: Vec::new(),
            window_at: 0,
        }
    }

    pub(crate) fn path(&self) -> &'a Path {
        self.path
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn at(&self, offset: u64) -> At {
        At {
            file: self.path.to_owned(),
            tensor: None,
            offset,
        }
    }

    pub(crate) fn at_tensor(&self, tensor: &str, offset: u64) -> At {
        At {
            tensor: Some(tensor.to_owned()),
            ..self.at(offset)
        }
    }

    pub(crate) fn malformed(&self, offset: u64, what: &'static str) -> ModelError {
        ModelError::Malformed {
            at: self.at(offset),
            what,
        }
    }

    /// Fails unless `len` bytes from `offset` on end at or before `end`.
    pub(crate) fn require(&self, offset: u64, len: u64, end: u64) -> Result<(), ModelError> {
        let available = end.saturating_sub(offset);
        if len > available {
            return Err(ModelError::Truncated {
                at: self.at(offset),
                needed: len,
                available,
            });
        }
        Ok(())
    }

    /// Fails if `value`, read at `offset`, is over `limit`.
    pub(crate) fn limit(
        &self,
        offset: u64,
        what: &'static str,
        value: u64,
        limit: u64,
    ) -> Result<(), ModelError> {
        if value > limit {
            return Err(ModelError::LimitExceeded {
                at: self.at(offset),
                what,
                value,
                limit,
            });
        }
        Ok(())
    }

    /// The bytes from `offset` on, as many as `want` unless the file ends before.
    pub(crate) fn up_to(&mut self, offset: u64, want: usize) -> Result<&[u8], ModelError> {
        let have = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let want = want.min(have).min(WINDOW_BYTES);
        let inside = offset.checked_sub(self.window_at).and_then(|skip| {
            let skip = usize::try_from(skip).ok()?;
            (skip.checked_add(want)? <= self.window.len()).then_some(skip)
        });
        let skip = match inside {
            Some(skip) => skip,
            None => {
                let filled = self.read(offset, have.min(WINDOW_BYTES))?;
                self.window = filled;
                self.window_at = offset;
                0
            }
        };
        Ok(&self.window[skip..skip + want])
    }

    /// `len` bytes as an own vector, `what` naming them if there are more than `limit`.
    pub(crate) fn vec(
        &mut self,
        offset: u64,
        len: u64,
        (what, limit): (&'static str, u64),
    ) -> Result<Vec<u8>, ModelError> {
        self.limit(offset, what, len, limit)?;
        self.require(offset, len, self.len)?;
        self.read(
            offset,
            usize::try_from(len).expect("limits fit an address space"),
        )
    }

    /// A name of `len` bytes at `offset`.
    pub(crate) fn name(&mut self, offset: u64, len: u64) -> Result<String, ModelError> {
        let bytes = self.vec(offset, len, ("name length", MAX_NAME_BYTES))?;
        String::from_utf8(bytes).map_err(|_| self.malformed(offset, "a name is not UTF-8"))
    }

    /// Exactly `len` bytes, which the caller knows to lie in the file.
    fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, ModelError> {
        let mut bytes = vec![0; len];
        match self.origin {
            Origin::File(file) => {
                file.read_exact_at(&mut bytes, offset)
                    .map_err(|source| ModelError::Io {
                        file: self.path.to_owned(),
                        source,
                    })?
            }
            Origin::Bytes(all) => {
                let start = usize::try_from(offset).expect("the offset lies in the slice");
                bytes.copy_from_slice(&all[start..start + len]);
            }
        }
        Ok(bytes)
    }
}
