use std::fmt;
use std::time::Duration;

use thiserror::Error;
use vrampager_addr::{Size, Va};

use crate::{ChannelId, DeviceId, Heap};

/// What a contract method could not do, for reasons its caller could not foresee.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum HalError {
    /// A heap cannot hold the object.
    #[error("{heap} heap has {}, at {stage}{}", shortage(*free, *needed), said(*answer))]
    OutOfMemory {
        /// The step that failed, such as `gpu map`.
        stage: &'static str,
        /// Where.
        heap: Heap,
        /// Bytes asked for; `None` for what the driver needs and does not tell.
        needed: Option<u64>,
        /// Bytes free in total, contiguous or not; `None` when nobody can tell.
        free: Option<u64>,
        /// The driver's name for its answer, by which a system call that found no memory is told
        /// from a packet that did (mission row A5); `None` when no driver was asked.
        answer: Option<&'static str>,
    },
    /// The CPU-visible aperture has no window of that size left.
    #[error(
        "aperture of {} has {}, at {stage}",
        Size(*size),
        shortage(Some(*free), Some(*needed))
    )]
    OutOfAperture {
        /// The step that failed.
        stage: &'static str,
        /// Bytes asked for.
        needed: u64,
        /// Bytes free.
        free: u64,
        /// Bytes in all.
        size: u64,
    },
    /// The channel's ring has no room; entries leave as the engine proceeds.
    #[error("{channel:?} is full with {capacity} entries")]
    QueueFull {
        /// Which.
        channel: ChannelId,
        /// Entries it holds.
        capacity: u32,
    },
    /// The deadline passed first. The operation waited for goes on.
    #[error("not finished after {waited:?}")]
    Timeout {
        /// Time waited.
        waited: Duration,
    },
    /// The channel stopped at a fault: nothing behind the faulting operation has run or will.
    #[error("channel stopped: {0}")]
    Fault(Fault),
    /// The device is gone; nothing but [`Release`](crate::Release) works any more.
    #[error("device lost: {0}")]
    DeviceLost(DeviceLossCause),
    /// There is no such device.
    #[error("no device {}", .0.0)]
    NoDevice(DeviceId),
    /// Someone else has it open.
    #[error("device {} is already open", .0.0)]
    Busy(DeviceId),
    /// The driver refused, by system call or by the status in its answer (mission row A5).
    #[error("{stage} failed with {status_name} ({status:#x})")]
    Driver {
        /// The step that failed, such as `gpu map`.
        stage: &'static str,
        /// The driver's number.
        status: u32,
        /// The driver's name for it.
        status_name: &'static str,
    },
    /// A node of the kernel driver cannot be opened: the driver is not there, or not for this user.
    #[error("{node} cannot be opened: {}", std::io::Error::from_raw_os_error(*errno))]
    NoDriver {
        /// The node's path.
        node: String,
        /// The error of the system call.
        errno: i32,
    },
    /// The driver is of a release whose interface this back end does not know.
    #[error("driver release {release:?} is not supported, only {known}")]
    UnknownRelease {
        /// What the driver says it is.
        release: String,
        /// What is known.
        known: &'static str,
    },
    /// This back end cannot do it, ever.
    #[error("{0} is not supported by this device")]
    Unsupported(&'static str),
}

fn said(answer: Option<&'static str>) -> String {
    answer.map_or(String::new(), |name| format!(" ({name})"))
}

fn shortage(free: Option<u64>, needed: Option<u64>) -> String {
    let free = free.map_or("too little".to_owned(), |free| Size(free).to_string());
    let needed = needed.map(|needed| format!(", {} needed", Size(needed)));
    format!("{free} free{}", needed.unwrap_or_default())
}

/// The small stable set that callers branch on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HalErrorKind {
    /// Memory or aperture is exhausted; release something and retry.
    OutOfMemory,
    /// Retry after the engine or another owner has moved on.
    Busy,
    /// The channel has to be replaced.
    Fault,
    /// The device has to be reopened.
    DeviceLost,
    /// The driver refused for another reason.
    Driver,
    /// Not available here.
    Unsupported,
}

impl HalError {
    /// The error's class.
    #[must_use]
    pub fn kind(&self) -> HalErrorKind {
        match self {
            Self::OutOfMemory { .. } | Self::OutOfAperture { .. } => HalErrorKind::OutOfMemory,
            Self::QueueFull { .. } | Self::Timeout { .. } | Self::Busy(_) => HalErrorKind::Busy,
            Self::Fault(_) => HalErrorKind::Fault,
            Self::DeviceLost(_) => HalErrorKind::DeviceLost,
            Self::Driver { .. } | Self::NoDriver { .. } | Self::NoDevice(_) => HalErrorKind::Driver,
            Self::UnknownRelease { .. } | Self::Unsupported(_) => HalErrorKind::Unsupported,
        }
    }
}

/// Why a channel stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub struct Fault {
    /// The channel that stopped.
    pub channel: ChannelId,
    /// What happened.
    pub kind: FaultKind,
    /// First address that could not be accessed, and how; `None` when nobody can tell.
    pub at: Option<(Va, crate::Access)>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { channel, kind, at } = self;
        match at {
            Some((va, access)) => write!(f, "{kind} on {channel:?} at {va}, access {access}"),
            None => write!(f, "{kind} on {channel:?} at an unknown address"),
        }
    }
}

/// Kinds of [`Fault`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// No page table entry.
    #[error("unmapped access")]
    Unmapped,
    /// The page is mapped read-only.
    #[error("write to a read-only mapping")]
    ReadOnly,
    /// The copy engine gave up part-way; the bytes before the address have been copied.
    #[error("copy error")]
    CopyEngine,
    /// The driver stopped the channel and does not explain why.
    #[error("channel error {number}")]
    Unexplained {
        /// The driver's number for it.
        number: u32,
    },
}

/// Why a device was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum DeviceLossCause {
    /// Removed, or reset by its driver.
    #[error("removed")]
    Removed,
    /// It no longer makes progress.
    #[error("hung")]
    Hung,
    /// Copies kept faulting after the channel had been replaced.
    #[error("repeated faults")]
    RepeatedFaults,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhaustion_names_its_stage_and_only_the_numbers_that_are_known() {
        let text = |needed, free, answer| {
            let (stage, heap) = ("gpu map", Heap::Host);
            let error = HalError::OutOfMemory {
                stage,
                heap,
                needed,
                free,
                answer,
            };
            error.to_string()
        };
        let all = text(Some(8192), Some(4096), None);
        assert_eq!(all, "host heap has 4 KiB free, 8 KiB needed, at gpu map");
        let some = text(Some(8192), None, Some("NO_MEMORY"));
        assert_eq!(
            some,
            "host heap has too little free, 8 KiB needed, at gpu map (NO_MEMORY)"
        );
        assert_eq!(
            text(None, None, None),
            "host heap has too little free, at gpu map"
        );
        let aperture = HalError::OutOfAperture {
            stage: "cpu map",
            needed: 8192,
            free: 0,
            size: 4096,
        };
        let wanted = "aperture of 4 KiB has 0 B free, 8 KiB needed, at cpu map";
        assert_eq!(aperture.to_string(), wanted);
    }
}
