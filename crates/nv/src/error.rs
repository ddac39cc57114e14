//! The driver's two levels of refusal (mission row A5), and what they mean to the layers above.

use rustix::io::Errno;
use vrampager_hal::{HalError, Heap};
use vrampager_nv_abi::{Node, Status};

/// Where a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    /// The system call.
    System(Errno),
    /// The open of a node by which a device is brought up: there is no driver, or none for this
    /// user.
    NoDriver(Node, Errno),
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

    /// An open of a node by which a device is brought up.
    pub(crate) fn bring_up(stage: &'static str, node: Node, errno: Errno) -> Self {
        match Node::is_missing(errno.raw_os_error()) {
            true => Self {
                stage,
                level: Level::NoDriver(node, errno),
            },
            false => Self::system(stage, errno),
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

    /// Whether the packet has this status.
    pub(crate) fn has(self, status: Status) -> bool {
        self.level == Level::Packet(status)
    }

    /// Whether the packet says that the hardware cannot.
    pub(crate) fn is_unsupported(self) -> bool {
        self.has(Status::NOT_SUPPORTED)
    }

    /// Whether the packet says that there was nothing to do.
    pub(crate) fn is_needless(self) -> bool {
        self.has(Status::WARN_NOTHING_TO_DO)
    }

    /// Whether the driver said that the aperture is full, and not that something else ran out on
    /// the way to a CPU mapping.
    pub(crate) fn is_no_aperture(self) -> bool {
        self.stage == crate::rm::CPU_MAP && self.has(Status::NO_MEMORY)
    }

    /// The error for a request that needed `needed` bytes of a heap with `free` bytes left, as far
    /// as that is known. A system call that finds no memory lacks the host's, whatever it is for.
    pub(crate) fn at(self, heap: Heap, needed: Option<u64>, free: Option<u64>) -> HalError {
        let stage = self.stage;
        let (status, status_name) = match self.level {
            Level::NoDriver(node, errno) => {
                return HalError::NoDriver {
                    node: node.path(),
                    errno: errno.raw_os_error(),
                };
            }
            Level::System(errno) => (errno.raw_os_error().unsigned_abs(), errno_name(errno)),
            Level::Packet(status) => (status.0, status.name().unwrap_or("status unknown here")),
        };
        if self.is_no_memory() {
            let kernel = matches!(self.level, Level::System(_)) && heap != Heap::Host;
            let (heap, needed, free) = match kernel {
                true => (Heap::Host, None, None),
                false => (heap, needed, free),
            };
            return HalError::OutOfMemory {
                stage,
                heap,
                needed,
                free,
                answer: Some(status_name),
            };
        }
        HalError::Driver {
            stage,
            status,
            status_name,
        }
    }
}

impl From<Refusal> for HalError {
    /// For requests whose need of memory is the driver's own, which it does not tell.
    fn from(refusal: Refusal) -> Self {
        refusal.at(Heap::Host, None, None)
    }
}

/// Names of the errors that the driver's system calls are known to return.
fn errno_name(errno: Errno) -> &'static str {
    const NAMES: [(Errno, &str); 16] = [
        (Errno::PERM, "EPERM"),
        (Errno::NOENT, "ENOENT"),
        (Errno::INTR, "EINTR"),
        (Errno::IO, "EIO"),
        (Errno::NXIO, "ENXIO"),
        (Errno::BADF, "EBADF"),
        (Errno::AGAIN, "EAGAIN"),
        (Errno::NOMEM, "ENOMEM"),
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
    fn no_memory_is_the_heaps_or_the_kernels_and_others_name_stage_and_status() {
        let packet = Refusal::check("gpu map", 0x51).unwrap_err();
        let system = Refusal::system("gpu map", Errno::NOMEM);
        let out = |heap, (needed, free), answer| HalError::OutOfMemory {
            stage: "gpu map",
            heap,
            needed,
            free,
            answer: Some(answer),
        };
        let known = (Some(2), Some(1));
        let full = |refusal: Refusal, heap| refusal.at(heap, known.0, known.1);
        for heap in [Heap::Vram, Heap::Host] {
            assert_eq!(full(packet, heap), out(heap, known, "NO_MEMORY"));
        }
        assert_eq!(full(system, Heap::Host), out(Heap::Host, known, "ENOMEM"));
        let kernels = full(system, Heap::Vram);
        assert_eq!(kernels, out(Heap::Host, (None, None), "ENOMEM"));
        let text = "host heap has too little free, at gpu map (ENOMEM)";
        assert_eq!(kernels.to_string(), text);
        let other = HalError::from(Refusal::check("gpu map", 0x1E).unwrap_err());
        let text = "gpu map failed with INVALID_ADDRESS (0x1e)";
        assert_eq!(other.to_string(), text);
        let system = HalError::from(Refusal::system("link GPU file", Errno::ACCESS));
        let text = "link GPU file failed with EACCES (0xd)";
        assert_eq!(system.to_string(), text);
    }

    #[test]
    fn a_driver_that_is_missing_is_told_from_one_that_refuses_and_only_when_it_is_looked_for() {
        for node in [Node::Control, Node::Uvm, Node::Gpu(0)] {
            let error = |errno| HalError::from(Refusal::bring_up("open it", node, errno));
            for errno in [
                Errno::NOENT,
                Errno::NXIO,
                Errno::NODEV,
                Errno::ACCESS,
                Errno::PERM,
            ] {
                let missing = HalError::NoDriver {
                    node: node.path(),
                    errno: errno.raw_os_error(),
                };
                assert_eq!(error(errno), missing);
                let later = HalError::from(Refusal::system("open it", errno));
                assert!(matches!(later, HalError::Driver { .. }), "{later}");
            }
            for (errno, name) in [
                (Errno::BUSY, "EBUSY (0x10)"),
                (Errno::MFILE, "EMFILE (0x18)"),
            ] {
                let refused = error(errno).to_string();
                assert_eq!(refused, format!("open it failed with {name}"));
            }
        }
    }
}
