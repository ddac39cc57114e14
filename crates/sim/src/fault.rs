use std::fmt;

use vrampager_hal::DeviceLossCause;

/// A kind of contract call that can be made to fail, with the error its contract declares.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Call {
    /// [`Discovery::open`](vrampager_hal::Discovery::open): driver error.
    Open,
    /// [`Memory::reserve_va`](vrampager_hal::Memory::reserve_va): driver error.
    ReserveVa,
    /// [`Memory::create`](vrampager_hal::Memory::create): out of memory.
    Create,
    /// [`Memory::map_cpu`](vrampager_hal::Memory::map_cpu): out of aperture, or of host memory.
    MapCpu,
    /// [`Memory::map_gpu`](vrampager_hal::Memory::map_gpu): out of memory for page tables.
    MapGpu,
    /// [`Queue::create_timeline`](vrampager_hal::Queue::create_timeline): out of memory.
    CreateTimeline,
    /// [`Queue::create_channel`](vrampager_hal::Queue::create_channel): out of memory.
    CreateChannel,
    /// [`Queue::submit`](vrampager_hal::Queue::submit): queue full.
    Submit,
    /// [`Release::unmap_gpu`](vrampager_hal::Release::unmap_gpu): driver error.
    UnmapGpu,
    /// [`Release::unmap_cpu`](vrampager_hal::Release::unmap_cpu): driver error.
    UnmapCpu,
    /// [`Release::destroy`](vrampager_hal::Release::destroy): driver error.
    Destroy,
    /// [`Release::release_va`](vrampager_hal::Release::release_va): driver error.
    ReleaseVa,
    /// [`Release::destroy_channel`](vrampager_hal::Release::destroy_channel): driver error.
    DestroyChannel,
    /// [`Release::destroy_timeline`](vrampager_hal::Release::destroy_timeline): driver error.
    DestroyTimeline,
    /// [`Memory::import`](vrampager_hal::Memory::import): driver error.
    Import,
    /// [`Memory::share`](vrampager_hal::Memory::share): driver error.
    Share,
}

impl Call {
    /// Every kind, in declaration order.
    pub const ALL: [Self; 16] = [
        Self::Open,
        Self::ReserveVa,
        Self::Create,
        Self::MapCpu,
        Self::MapGpu,
        Self::CreateTimeline,
        Self::CreateChannel,
        Self::Submit,
        Self::UnmapGpu,
        Self::UnmapCpu,
        Self::Destroy,
        Self::ReleaseVa,
        Self::DestroyChannel,
        Self::DestroyTimeline,
        Self::Import,
        Self::Share,
    ];

    /// The name in device strings and driver errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::ReserveVa => "reserve-va",
            Self::Create => "create",
            Self::MapCpu => "map-cpu",
            Self::MapGpu => "map-gpu",
            Self::CreateTimeline => "create-timeline",
            Self::CreateChannel => "create-channel",
            Self::Submit => "submit",
            Self::UnmapGpu => "unmap-gpu",
            Self::UnmapCpu => "unmap-cpu",
            Self::Destroy => "destroy",
            Self::ReleaseVa => "release-va",
            Self::DestroyChannel => "destroy-channel",
            Self::DestroyTimeline => "destroy-timeline",
            Self::Import => "import",
            Self::Share => "share",
        }
    }
}

/// One fault to come. Ordinals count from the moment of injection, starting with 1; each fault
/// happens once.
///
/// In a device string: `fault=create:3`, `fault=copy:2:4096`, `fault=lose:10`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Injection {
    /// The `nth` call of a kind fails and changes nothing.
    FailCall {
        /// Which kind.
        call: Call,
        /// Which of them.
        nth: u64,
    },
    /// The `nth` copy operation stops with [`FaultKind::CopyEngine`] after some bytes.
    ///
    /// [`FaultKind::CopyEngine`]: vrampager_hal::FaultKind::CopyEngine
    StopCopy {
        /// Which copy.
        nth: u64,
        /// Bytes copied before it stops; all of them when the copy is not longer.
        after_bytes: u64,
    },
    /// The device is lost when it would start its `nth` operation of any kind.
    LoseDevice {
        /// Which operation.
        nth: u64,
        /// Why.
        cause: DeviceLossCause,
    },
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FailCall { call, nth } => write!(f, "{}:{nth}", call.name()),
            Self::StopCopy { nth, after_bytes } => write!(f, "copy:{nth}:{after_bytes}"),
            // The cause is not part of the text; `lose` means removal.
            Self::LoseDevice { nth, .. } => write!(f, "lose:{nth}"),
        }
    }
}

/// The value of a `fault` key, or `None` when it is none.
pub(crate) fn parse_injection(text: &str) -> Option<Injection> {
    let mut parts = text.split(':');
    let kind = parts.next()?;
    let nth: u64 = parts.next()?.parse().ok().filter(|&nth| nth > 0)?;
    let injection = match kind {
        "lose" => Injection::LoseDevice {
            nth,
            cause: DeviceLossCause::Removed,
        },
        "copy" => Injection::StopCopy {
            nth,
            after_bytes: parts.next()?.parse().ok()?,
        },
        name => Injection::FailCall {
            call: Call::ALL.into_iter().find(|call| call.name() == name)?,
            nth,
        },
    };
    parts.next().is_none().then_some(injection)
}

/// What is to become of an operation that the engine is about to start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// Nothing unusual.
    Run,
    /// A copy stops after this many bytes.
    StopAfter(u64),
    /// The device is lost instead.
    Lose(DeviceLossCause),
}

/// The injections that have not happened yet; their ordinals count down.
#[derive(Debug, Default)]
pub(crate) struct FaultPlan {
    pending: Vec<Injection>,
}

impl FaultPlan {
    pub(crate) fn new(pending: Vec<Injection>) -> Self {
        Self { pending }
    }

    pub(crate) fn add(&mut self, injection: Injection) {
        self.pending.push(injection);
    }

    /// Counts a call; whether it has to fail.
    pub(crate) fn call_fails(&mut self, call: Call) -> bool {
        let fired = self.count(|injection| match injection {
            Injection::FailCall { call: kind, nth } if *kind == call => Some(nth),
            Injection::FailCall { .. }
            | Injection::StopCopy { .. }
            | Injection::LoseDevice { .. } => None,
        });
        fired.is_some()
    }

    /// Counts an operation about to start.
    pub(crate) fn op_starts(&mut self, is_copy: bool) -> Fate {
        let lost = self.count(|injection| match injection {
            Injection::LoseDevice { nth, .. } => Some(nth),
            Injection::FailCall { .. } | Injection::StopCopy { .. } => None,
        });
        if let Some(Injection::LoseDevice { cause, .. }) = lost {
            return Fate::Lose(cause);
        }
        let stopped = self.count(|injection| match injection {
            Injection::StopCopy { nth, .. } if is_copy => Some(nth),
            Injection::StopCopy { .. }
            | Injection::FailCall { .. }
            | Injection::LoseDevice { .. } => None,
        });
        if let Some(Injection::StopCopy { after_bytes, .. }) = stopped {
            return Fate::StopAfter(after_bytes);
        }
        Fate::Run
    }

    /// Counts down the ordinals that `select` points at, and takes out the first that is due.
    fn count(&mut self, select: impl Fn(&mut Injection) -> Option<&mut u64>) -> Option<Injection> {
        for nth in self.pending.iter_mut().filter_map(&select) {
            // Ordinals start at 1, and one that is due already (two on the same event) stays due.
            *nth = nth.saturating_sub(1);
        }
        let due = self
            .pending
            .iter_mut()
            .position(|injection| select(injection).is_some_and(|nth| *nth == 0))?;
        Some(self.pending.remove(due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_nth_call_of_its_kind_fails() {
        let mut plan = FaultPlan::new(vec![Injection::FailCall {
            call: Call::Create,
            nth: 2,
        }]);
        assert!(!plan.call_fails(Call::Create));
        assert!(!plan.call_fails(Call::MapGpu));
        assert!(plan.call_fails(Call::Create));
        assert!(!plan.call_fails(Call::Create));
    }

    #[test]
    fn a_copy_fault_counts_copies_only() {
        let mut plan = FaultPlan::default();
        plan.add(Injection::StopCopy {
            nth: 2,
            after_bytes: 9,
        });
        assert_eq!(plan.op_starts(true), Fate::Run);
        assert_eq!(plan.op_starts(false), Fate::Run);
        assert_eq!(plan.op_starts(true), Fate::StopAfter(9));
        assert_eq!(plan.op_starts(true), Fate::Run);
    }

    #[test]
    fn every_injection_survives_its_text_form() {
        for text in ["create:3", "map-gpu:1", "copy:2:4096", "lose:10"] {
            assert_eq!(
                parse_injection(text).map(|i| i.to_string()),
                Some(text.into())
            );
        }
    }

    #[test]
    fn malformed_injections_are_none() {
        for text in [
            "",
            "create",
            "create:0",
            "create:1:2",
            "copy:1",
            "copy:1:2:3",
            "jump:1",
        ] {
            assert_eq!(parse_injection(text), None, "{text}");
        }
    }
}
