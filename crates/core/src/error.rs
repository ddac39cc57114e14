//! Errors that say what stood in the way (mission row E3).

use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use vrampager_addr::Size;
use vrampager_hal::{Counters, DeviceLossCause, HalError, HalErrorKind};

use crate::{EffectError, MemType, Space};

/// Why a request failed. Unless a variant says otherwise all buffers have the content they had.
/// The step that failed is undone; steps of the request that were complete stay: victims are where
/// they were evicted to, buffers named earlier are in their place, one on its way over a hop is at
/// the hop (TTM V8).
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// No place could be found, even by evicting everything that may be evicted.
    #[error("out of memory: {0}")]
    OutOfMemory(Box<Shortage>),
    /// The GPU's virtual addresses are used up.
    #[error(
        "out of GPU addresses: {} needed, {} free, largest hole {}",
        Size(*needed), Size(*free), Size(*largest)
    )]
    OutOfAddresses {
        /// Bytes asked for.
        needed: u64,
        /// Bytes free.
        free: u64,
        /// Largest hole in bytes.
        largest: u64,
    },
    /// The buffer was released, or belongs to another device.
    #[error("no such buffer")]
    NoSuchBuffer,
    /// An argument is out of range.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// The buffer would have to move but is pinned.
    #[error("buffer `{buffer}` is pinned in {mem_type} and would have to move")]
    Pinned {
        /// Its name.
        buffer: Arc<str>,
        /// Where it is.
        mem_type: MemType,
    },
    /// The device is gone. Content that was only in device memory is lost.
    #[error("device lost: {0}")]
    DeviceLost(DeviceLossCause),
    /// The device failed while it was being brought up.
    #[error(transparent)]
    Hal(#[from] HalError),
    /// A step outside the manager failed while `buffer` was being moved or filled.
    #[error("buffer `{buffer}`: {error}")]
    Effect {
        /// Its name.
        buffer: Arc<str>,
        /// What failed.
        error: EffectError,
    },
}

/// Why a device could not be taken into management. It is closed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{error}")]
pub struct OpenError {
    /// The stage that failed.
    pub error: Error,
    /// What the device would not take back afterwards; normally nothing.
    pub leftovers: Counters,
}

/// The small stable set that callers branch on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// Free something, or ask for less.
    OutOfMemory,
    /// Free addresses.
    OutOfAddresses,
    /// The request cannot ever succeed as it is.
    Invalid,
    /// Retry when others have made progress.
    Busy,
    /// Reopen the device.
    DeviceLost,
    /// The device or a file failed.
    Backend,
}

impl Error {
    /// The error's class.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::OutOfMemory(_) => ErrorKind::OutOfMemory,
            Self::OutOfAddresses { .. } => ErrorKind::OutOfAddresses,
            Self::NoSuchBuffer | Self::Invalid(_) => ErrorKind::Invalid,
            Self::Pinned { .. } => ErrorKind::Busy,
            Self::DeviceLost(_) => ErrorKind::DeviceLost,
            Self::Hal(error)
            | Self::Effect {
                error: EffectError::Hal(error),
                ..
            } => match error.kind() {
                HalErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
                HalErrorKind::Busy => ErrorKind::Busy,
                HalErrorKind::DeviceLost => ErrorKind::DeviceLost,
                HalErrorKind::Fault | HalErrorKind::Driver | HalErrorKind::Unsupported => {
                    ErrorKind::Backend
                }
            },
            Self::Effect {
                error: EffectError::Storage(_),
                ..
            } => ErrorKind::Backend,
        }
    }

    /// Whether the same request may succeed later without being changed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::OutOfMemory | ErrorKind::OutOfAddresses | ErrorKind::Busy
        )
    }
}

/// Where a request did not fit, and what filled the place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// The buffer that found no place.
    pub buffer: Arc<str>,
    /// Its bytes.
    pub needed: u64,
    /// Bytes of all buffers named in the same request.
    pub request: u64,
    /// Each domain that was tried.
    pub domains: Vec<DomainReport>,
    /// What failed while room was being made, if anything did.
    pub cause: Option<EffectError>,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer `{}` needs {}", self.buffer, Size(self.needed))?;
        if self.request != self.needed {
            write!(f, " as part of a request for {}", Size(self.request))?;
        }
        for domain in &self.domains {
            write!(f, "; {domain}")?;
        }
        match &self.cause {
            Some(cause) => write!(f, "; making room failed: {cause}"),
            None => Ok(()),
        }
    }
}

/// One bounded place for bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Domain {
    /// A resource manager's space.
    Memory(MemType),
    /// The pool of host pages behind SYSTEM and GTT.
    HostPages,
    /// The swap file.
    Swap,
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(mem_type) => fmt::Display::fmt(mem_type, f),
            Self::HostPages => f.write_str("host pages"),
            Self::Swap => f.write_str("swap"),
        }
    }
}

/// A domain's state at the moment a request failed, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DomainReport {
    /// Which.
    pub domain: Domain,
    /// Its space.
    pub space: Space,
    /// Held by pinned buffers.
    pub pinned: u64,
    /// Held by buffers of the failed request itself.
    pub own: u64,
    /// Held by other requests at work.
    pub reserved: u64,
    /// Released, but behind fences that are not over.
    pub pending: u64,
    /// Set aside because the device would not take it back.
    pub quarantined: u64,
}

impl DomainReport {
    pub(crate) fn new(domain: Domain, space: Space) -> Self {
        Self {
            domain,
            space,
            pinned: 0,
            own: 0,
            reserved: 0,
            pending: 0,
            quarantined: 0,
        }
    }
}

impl fmt::Display for DomainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Space {
            size,
            free,
            largest,
        } = self.space;
        write!(f, "{} {}: {} free", self.domain, Size(size), Size(free))?;
        write!(f, ", largest hole {}", Size(largest))?;
        let parts = [
            ("pinned", self.pinned),
            ("held by this request", self.own),
            ("reserved by others", self.reserved),
            ("pending behind fences", self.pending),
            ("quarantined", self.quarantined),
        ];
        for (what, bytes) in parts.into_iter().filter(|&(_, bytes)| bytes != 0) {
            write!(f, ", {} {what}", Size(bytes))?;
        }
        Ok(())
    }
}
