//! Addresses that the back end takes for itself, and who in the driver has them.

use std::collections::BTreeMap;

use vrampager_addr::Span;
use vrampager_nv_abi::Uuid;
use vrampager_space::{Mode, RangeAllocator, RangeRequest};

/// Channels reach only what is below 2^40. The callers' zones begin above, and address 0 stays
/// free of everything.
const ZONE: (u64, u64) = (4 << 30, crate::zones::OWN_END);

/// What keeps addresses in the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holder {
    /// A range, until it is freed.
    Range,
    /// The registration of a channel of this GPU, until that one is undone, the one of the GPU's
    /// VA space, or the one of the GPU.
    Channel(Uuid),
}

#[derive(Debug, Default)]
struct Taken {
    holder: Option<Holder>,
    /// Whether the back end is done with them: then they go with their holder.
    vacated: bool,
}

/// The zone. Addresses are given out again when the back end has vacated them and nothing in the
/// driver holds them, whichever comes last.
#[derive(Debug)]
pub(crate) struct Own {
    zone: RangeAllocator,
    /// By start.
    taken: BTreeMap<u64, Taken>,
}

impl Own {
    pub(crate) fn new() -> Self {
        let zone = Span::from_bounds(ZONE.0, ZONE.1).expect("ordered bounds");
        Self {
            zone: RangeAllocator::new(zone),
            taken: BTreeMap::new(),
        }
    }

    /// The lowest free addresses; `None` when there are none of that length.
    pub(crate) fn take(&mut self, len: u64) -> Option<Span> {
        let request = RangeRequest::new(len).align(2 << 20).mode(Mode::Low);
        let span = self.zone.insert(&request).ok()?;
        self.taken.insert(span.start(), Taken::default());
        Some(span)
    }

    /// Gives back what was taken at `start`.
    pub(crate) fn vacate(&mut self, start: u64) {
        let taken = self.taken.get_mut(&start);
        taken.expect("addresses are given back once").vacated = true;
        self.settle(start);
    }

    /// The driver has the addresses from `start` on now. Addresses of callers are none of these.
    pub(crate) fn hold(&mut self, start: u64, holder: Holder) {
        if let Some(taken) = self.taken.get_mut(&start) {
            taken.holder = Some(holder);
        }
    }

    /// The driver has let go of the addresses from `start` on.
    pub(crate) fn let_go(&mut self, start: u64) {
        if let Some(taken) = self.taken.get_mut(&start) {
            taken.holder = None;
            self.settle(start);
        }
    }

    /// The driver has let go of what channels of a GPU held.
    pub(crate) fn let_go_channels(&mut self, uuid: Uuid) {
        let held = |taken: &Taken| taken.holder == Some(Holder::Channel(uuid));
        let held = self.taken.iter().filter(|(_, taken)| held(taken));
        for start in held.map(|(&start, _)| start).collect::<Vec<_>>() {
            self.let_go(start);
        }
    }

    fn settle(&mut self, start: u64) {
        let over = |taken: &Taken| taken.vacated && taken.holder.is_none();
        if self.taken.get(&start).is_some_and(over) {
            self.taken.remove(&start);
            let span = self.zone.remove(start);
            span.expect("what is taken is in the zone");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 4 << 20;

    #[test]
    fn addresses_are_free_again_when_both_sides_are_done_with_them_in_either_order() {
        let gpu = [1; 16];
        for holder in [Holder::Range, Holder::Channel(gpu)] {
            let mut own = Own::new();
            let span = own.take(LEN).unwrap();
            own.hold(span.start(), holder);
            own.vacate(span.start());
            let other = own.take(LEN).unwrap();
            assert!(!other.overlaps(span), "{holder:?}");
            own.let_go(span.start());
            assert_eq!(own.take(LEN), Some(span), "{holder:?}");
            own.hold(span.start(), holder);
            own.let_go(span.start());
            assert!(own.take(LEN).unwrap().start() > other.start());
            own.vacate(span.start());
            assert_eq!(own.take(LEN), Some(span), "{holder:?}");
        }
    }

    #[test]
    fn a_gpu_takes_the_addresses_of_its_channels_along_and_no_others() {
        let (gpu, another) = ([1; 16], [2; 16]);
        let mut own = Own::new();
        let holders = [
            Holder::Channel(gpu),
            Holder::Range,
            Holder::Channel(another),
        ];
        let [gone, range, kept] = holders.map(|holder| {
            let span = own.take(LEN).unwrap();
            own.hold(span.start(), holder);
            own.vacate(span.start());
            span
        });
        own.let_go_channels(gpu);
        assert_eq!(own.take(LEN), Some(gone));
        let next = own.take(LEN).unwrap();
        assert!(!next.overlaps(range) && !next.overlaps(kept));
    }
}
