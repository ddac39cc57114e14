//! The driver's two levels of refusal (mission row A5), and what they mean to the layers above.

use rustix::io::Errno;
use vrampager_hal::{HalError, Heap};
use vrampager_nv_abi::Status;

/// Where a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    /// The system call.
    System(Errno),
    /// The packet, although the system call succeeded.
    Packet(Status),
}

/// A request that the driver refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    stage: &'static str,
    level: Level,
}

impl Refusal {
    pub(crate) fn system(stage: &'static str, errno: Errno) -> Self {
        Self {
            stage,
            level: Level::System(errno),
        }
    }

    /// Turns a packet's status into a result.
    pub(crate) fn check(stage: &'static str, status: u32) -> Result<(), Self> {
        let status = Status(status);
        let level = Level::Packet(status);
        status.is_ok().then_some(()).ok_or(Self { stage, level })
    }

    /// Whether something ran out, at whatever stage.
    pub(crate) fn is_no_memory(self) -> bool {
        matches!(
            self.level,
            Level::System(Errno::NOMEM) | Level::Packet(Status::NO_MEMORY)
        )
    }

    /// Whether the packet says that the hardware cannot.
    pub(crate) fn is_unsupported(self) -> bool {
        self.level == Level::Packet(Status::NOT_SUPPORTED)
    }

    /// Whether the packet says that there was nothing to do.
    pub(crate) fn is_needless(self) -> bool {
        self.level == Level::Packet(Status::WARN_NOTHING_TO_DO)
    }

    /// The error for a request that needed `needed` bytes of a heap with `free` bytes left.
    pub(crate) fn at(self, heap: Heap, needed: u64, free: u64) -> HalError {
        if self.is_no_memory() {
            return HalError::OutOfMemory { heap, needed, free };
        }
        let (status, status_name) = match self.level {
            Level::System(errno) => (errno.raw_os_error().unsigned_abs(), errno_name(errno)),
            Level::Packet(status) => (status.0, status.name().unwrap_or("status unknown here")),
        };
        HalError::Driver {
            stage: self.stage,
            status,
            status_name,
        }
    }
}

impl From<Refusal> for HalError {
    /// For requests whose need of memory is the driver's own: a page, none of which is left.
    fn from(refusal: Refusal) -> Self {
        refusal.at(Heap::Host, vrampager_addr::PAGE_SIZE, 0)
    }
}

/// Names of the errors that the driver's system calls are known to return.
fn errno_name(errno: Errno) -> &'static str {
    const NAMES: [(Errno, &str); 14] = [
        (Errno::PERM, "EPERM"),
        (Errno::NOENT, "ENOENT"),
        (Errno::IO, "EIO"),
        (Errno::NXIO, "ENXIO"),
        (Errno::BADF, "EBADF"),
        (Errno::AGAIN, "EAGAIN"),
        (Errno::ACCESS, "EACCES"),
        (Errno::FAULT, "EFAULT"),
        (Errno::BUSY, "EBUSY"),
        (Errno::NODEV, "ENODEV"),
        (Errno::INVAL, "EINVAL"),
        (Errno::MFILE, "EMFILE"),
        (Errno::RANGE, "ERANGE"),
        (Errno::NOTTY, "ENOTTY"),
    ];
    let found = NAMES.iter().find(|(known, _)| *known == errno);
    found.map_or("system call failed", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_memory_is_one_error_at_both_levels_and_others_name_stage_and_status() {
        let packet = Refusal::check("gpu map", 0x51).unwrap_err();
        let system = Refusal::system("gpu map", Errno::NOMEM);
        for refusal in [packet, system] {
            let out = HalError::OutOfMemory {
                heap: Heap::Vram,
                needed: 2,
                free: 1,
            };
            assert_eq!(refusal.at(Heap::Vram, 2, 1), out);
        }
        let other = HalError::from(Refusal::check("gpu map", 0x1E).unwrap_err());
        let text = "gpu map failed with INVALID_ADDRESS (0x1e)";
        assert_eq!(other.to_string(), text);
        let system = HalError::from(Refusal::system("open control node", Errno::ACCESS));
        let text = "open control node failed with EACCES (0xd)";
        assert_eq!(system.to_string(), text);
    }
}
