use std::io;
use std::path::PathBuf;

use thiserror::Error as ThisError;
use vrampager_addr::Span;
use vrampager_core::OpenError;
use vrampager_hal::{Fault, HalError, HalErrorKind, Misaligned};
use vrampager_sim::SimError;

pub use vrampager_core::ErrorKind;

/// Why a call failed. Unless a variant says otherwise nothing has changed.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The manager could not satisfy the request.
    #[error(transparent)]
    Manager(#[from] vrampager_core::Error),
    /// The device string names no known kind of device.
    #[error("device `{given}` is of no known kind; use {known}")]
    UnknownDevice {
        /// What was written.
        given: String,
        /// What could have been.
        known: &'static str,
    },
    /// The rest of the device string is wrong.
    #[error(transparent)]
    Configuration(#[from] SimError),
    /// The same, for NVIDIA's driver.
    #[error(transparent)]
    NvConfiguration(#[from] vrampager_nv::ConfigError),
    /// This process reaches real GPUs another way at the moment.
    #[error(transparent)]
    Planes(#[from] vrampager_nv::PlanesError),
    /// The device could not be opened, or does not take work.
    #[error(transparent)]
    Device(#[from] HalError),
    /// The device was opened but could not be taken into management.
    #[error(transparent)]
    Open(#[from] Box<OpenError>),
    /// A file cannot serve as swap or backing.
    #[error("{path}: cannot {action}")]
    File {
        /// Which file or directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A worker thread could not be started.
    #[error("cannot start a worker thread")]
    Worker(#[source] io::Error),
    /// Work ran into a fault on the device. What it was to write is undefined.
    #[error("submitted work did not finish: {0}")]
    Fault(Fault),
    /// Waiting or accessing memory failed on the device.
    #[error(transparent)]
    Access(#[from] vrampager_core::EffectError),
    /// A range leaves its buffer or file.
    #[error("{len} bytes at offset {offset} leave `{what}` of {size} bytes")]
    Range {
        /// Name of the buffer or path of the file.
        what: String,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes there are.
        size: u64,
    },
    /// A copy within one buffer or import has overlapping ranges.
    #[error("copy of {len} bytes within `{buffer}` overlaps itself")]
    Overlap {
        /// Its name.
        buffer: String,
        /// Bytes.
        len: u64,
    },
    /// A buffer or import of another pager was named, or one of another context shared.
    #[error("`{buffer}` belongs to another pager")]
    Foreign {
        /// Its name.
        buffer: String,
    },
    /// Memory cannot be imported at its address, where the device has something else.
    #[error("memory at {span} overlaps {used}, which the device uses otherwise")]
    AddressesInUse {
        /// The memory.
        span: Span,
        /// Addresses of buffers, or another import.
        used: Span,
    },
    /// Memory cannot be imported at its address yet: another import has it, which nobody holds any
    /// more, but which the device may still use or has not given back.
    #[error("memory at {span} overlaps {used}, an import that is being released")]
    Releasing {
        /// The memory.
        span: Span,
        /// Addresses of the other import.
        used: Span,
    },
    /// Host memory is not made of whole pages.
    #[error(transparent)]
    Misaligned(#[from] Misaligned),
    /// The pager cannot be closed yet; it has been left open for them.
    #[error("{buffers} buffers and {imports} imports are still alive")]
    InUse {
        /// How many buffers.
        buffers: usize,
        /// How many imports.
        imports: usize,
    },
}

impl Error {
    /// The error's class.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Manager(error) => error.kind(),
            Self::Open(error) => error.error.kind(),
            Self::UnknownDevice { .. }
            | Self::Configuration(_)
            | Self::NvConfiguration(_)
            | Self::Range { .. }
            | Self::Overlap { .. }
            | Self::AddressesInUse { .. }
            | Self::Misaligned(_)
            | Self::Foreign { .. } => ErrorKind::Invalid,
            Self::InUse { .. } | Self::Releasing { .. } | Self::Planes(_) => ErrorKind::Busy,
            Self::Device(error) | Self::Access(vrampager_core::EffectError::Hal(error)) => {
                device_kind(error)
            }
            Self::File { .. } | Self::Worker(_) | Self::Fault(_) | Self::Access(_) => {
                ErrorKind::Backend
            }
        }
    }
}

fn device_kind(error: &HalError) -> ErrorKind {
    match error.kind() {
        HalErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
        HalErrorKind::Busy => ErrorKind::Busy,
        HalErrorKind::DeviceLost => ErrorKind::DeviceLost,
        HalErrorKind::Fault | HalErrorKind::Driver | HalErrorKind::Unsupported => {
            ErrorKind::Backend
        }
    }
}
