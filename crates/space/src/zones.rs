//! Named zones of virtual addresses, with quarantine and generations.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use vrampager_addr::Span;

use crate::error::fragmentation_permille;
use crate::{Mode, RangeAllocator, RangeRequest, SpaceError};

/// A point on a timeline, which begins at 0: reached once the timeline's value is at least
/// `value`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SpaceFence {
    /// Which timeline.
    pub timeline: u32,
    /// The value to wait for.
    pub value: u64,
}

/// A part of the address space with a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zone {
    /// What callers ask for.
    pub name: &'static str,
    /// Where it lies; zones do not overlap.
    pub span: Span,
}

impl Zone {
    /// Addresses that fit in 40 bits, without the first page: address 0 stays invalid.
    pub const LOW: Self = Self::between("low", 4096, 1 << 40);
    /// Addresses from 40 up to 47 bits.
    pub const HIGH: Self = Self::between("high", 1 << 40, 1 << 47);

    /// The zone `[start, end)`.
    ///
    /// # Panics
    /// When `end < start`.
    #[must_use]
    pub const fn between(name: &'static str, start: u64, end: u64) -> Self {
        match Span::from_bounds(start, end) {
            Some(span) => Self { name, span },
            None => panic!("a zone ends after it starts"),
        }
    }
}

/// Figures of a zone or of a whole space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct VaStats {
    /// Bytes handed out and not retired.
    pub live_bytes: u64,
    /// Bytes retired that wait for a fence or for their generation.
    pub quarantined_bytes: u64,
    /// Bytes that can be carved.
    pub free_bytes: u64,
    /// Number of separate free parts.
    pub holes: u64,
    /// Length of the longest free part.
    pub largest_hole: u64,
    /// The most bytes that were ever live or quarantined together.
    pub high_water: u64,
}

impl VaStats {
    /// Share of the free bytes outside the longest hole, in thousandths.
    #[must_use]
    pub const fn fragmentation_permille(&self) -> u32 {
        fragmentation_permille(self.free_bytes, self.largest_hole)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Live,
    /// Waits for its fence.
    Retired,
    /// Past its fence; only its own generation may use it.
    Parked,
}

#[derive(Clone, Copy, Debug)]
struct Carved {
    len: u64,
    zone: usize,
    generation: u32,
    state: State,
}

#[derive(Clone, Debug)]
struct Pool {
    zone: Zone,
    ranges: RangeAllocator,
    live: u64,
    quarantined: u64,
    high_water: u64,
}

impl Pool {
    fn now_live(&mut self, len: u64) {
        self.live += len;
        self.high_water = self.high_water.max(self.live + self.quarantined);
    }

    fn stats(&self) -> VaStats {
        VaStats {
            live_bytes: self.live,
            quarantined_bytes: self.quarantined,
            free_bytes: self.ranges.free_bytes(),
            holes: self.ranges.holes().count() as u64,
            largest_hole: self.ranges.largest_hole(),
            high_water: self.high_water,
        }
    }
}

/// A plugin generation, while it holds addresses or may still ask for some.
#[derive(Clone, Debug, Default)]
struct Generation {
    /// Ranges live or waiting for a fence.
    busy: usize,
    closed: bool,
    /// Zone and start of its parked ranges.
    parked: BTreeSet<(usize, u64)>,
}

/// Virtual addresses in zones.
///
/// A range passes from free to live ([`carve`](Self::carve)) to quarantined
/// ([`retire`](Self::retire)) and, once its fence has signalled, back to free. A range that
/// served a plugin generation is then parked: that generation may use it again, any other only
/// when the generation is closed and its last range is past its fence.
///
/// # Examples
/// ```
/// use vrampager_space::{SpaceFence, VaSpace, Zone};
/// let mut space = VaSpace::new(&[Zone::LOW, Zone::HIGH]).unwrap();
/// let span = space.carve("low", 1 << 30, 1 << 21, VaSpace::SHARED).unwrap();
/// space.retire(span.start(), Some(SpaceFence { timeline: 0, value: 7 }));
/// assert_eq!(space.stats().quarantined_bytes, 1 << 30);
/// assert_eq!(space.signalled(0, 7), 1 << 30);
/// ```
#[derive(Clone, Debug)]
pub struct VaSpace {
    pools: Vec<Pool>,
    carved: BTreeMap<u64, Carved>,
    /// Timeline, value and start of the ranges that wait for a fence.
    waiting: BTreeSet<(u32, u64, u64)>,
    reached: BTreeMap<u32, u64>,
    generations: BTreeMap<u32, Generation>,
}

impl VaSpace {
    /// The generation of ranges that belong to no plugin: past their fence they are free for all.
    pub const SHARED: u32 = 0;

    /// A space of these zones.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`] when two zones overlap or bear the same name.
    pub fn new(zones: &[Zone]) -> Result<Self, SpaceError> {
        for (index, zone) in zones.iter().enumerate() {
            let clash = |other: &&Zone| other.span.overlaps(zone.span) || other.name == zone.name;
            if let Some(other) = zones[..index].iter().find(clash) {
                let value = other.span.start();
                return Err(SpaceError::Invalid {
                    argument: "zones",
                    value,
                });
            }
        }
        let pool = |&zone: &Zone| Pool {
            zone,
            ranges: RangeAllocator::new(zone.span),
            live: 0,
            quarantined: 0,
            high_water: 0,
        };
        Ok(Self {
            pools: zones.iter().map(pool).collect(),
            carved: BTreeMap::new(),
            waiting: BTreeSet::new(),
            reached: BTreeMap::new(),
            generations: BTreeMap::new(),
        })
    }

    /// As [`new`](Self::new) for a device that decodes `bits` address bits.
    ///
    /// # Errors
    /// Also [`SpaceError::OutOfRange`] when a zone reaches past the device's addresses.
    pub fn with_va_bits(bits: u32, zones: &[Zone]) -> Result<Self, SpaceError> {
        let limit = 1_u64.checked_shl(bits).unwrap_or(u64::MAX);
        match zones.iter().find(|zone| zone.span.end() > limit) {
            Some(Zone { span, .. }) => Err(SpaceError::OutOfRange {
                start: span.start(),
                len: span.len(),
            }),
            None => Self::new(zones),
        }
    }

    /// Takes `span` out of circulation for good, as for a shader window.
    ///
    /// # Errors
    /// [`SpaceError::OutOfRange`] when it is not inside one zone, [`SpaceError::NoSpace`] when a
    /// part is in use.
    pub fn reserve(&mut self, span: Span) -> Result<(), SpaceError> {
        let out = SpaceError::OutOfRange {
            start: span.start(),
            len: span.len(),
        };
        let pool = self
            .pools
            .iter_mut()
            .find(|pool| pool.zone.span.covers(span))
            .ok_or(out)?;
        pool.ranges.reserve(span, 0)
    }

    /// Hands out `size` bytes at a multiple of `align` from the zone, at the lowest address that
    /// is free for `generation`.
    ///
    /// # Errors
    /// [`SpaceError::Invalid`] for an unknown zone, size 0 or a generation that was closed, and
    /// [`SpaceError::NoSpace`], whose figures do not count quarantined ranges.
    pub fn carve(
        &mut self,
        zone: &str,
        size: u64,
        align: u64,
        generation: u32,
    ) -> Result<Span, SpaceError> {
        let zone = self.zone_index(zone)?;
        if self
            .generations
            .get(&generation)
            .is_some_and(|known| known.closed)
        {
            let value = u64::from(generation);
            return Err(SpaceError::Invalid {
                argument: "generation",
                value,
            });
        }
        let request = RangeRequest::new(size).align(align).mode(Mode::Low);
        let span = match self.unpark(zone, size, align.max(1), generation) {
            Some(span) => span,
            None => self.pools[zone].ranges.insert(&request)?,
        };
        self.pools[zone].now_live(size);
        let carved = Carved {
            len: size,
            zone,
            generation,
            state: State::Live,
        };
        self.carved.insert(span.start(), carved);
        if generation != Self::SHARED {
            self.generations.entry(generation).or_default().busy += 1;
        }
        Ok(span)
    }

    /// Ends the life of the range that starts at `start`. Its addresses stay out of use until
    /// `fence` has signalled; without a fence they do not wait.
    ///
    /// # Panics
    /// When no live range starts there.
    pub fn retire(&mut self, start: u64, fence: Option<SpaceFence>) -> Span {
        let carved = self
            .carved
            .get_mut(&start)
            .filter(|carved| carved.state == State::Live);
        let carved = carved.unwrap_or_else(|| panic!("no live range starts at {start:#x}"));
        carved.state = State::Retired;
        let len = carved.len;
        let pool = &mut self.pools[carved.zone];
        pool.live -= len;
        pool.quarantined += len;
        match fence.filter(|fence| !self.has_reached(*fence)) {
            Some(fence) => {
                self.waiting.insert((fence.timeline, fence.value, start));
            }
            None => self.settle(start),
        }
        Span::new(start, len).expect("a carved range lies inside its zone")
    }

    /// Notes that `timeline` has reached `value`. Returns the bytes that waited for this.
    pub fn signalled(&mut self, timeline: u32, value: u64) -> u64 {
        let reached = self.reached.entry(timeline).or_insert(value);
        *reached = (*reached).max(value);
        let mut bytes = 0;
        while let Some(&(of, wanted, start)) = self.waiting.range((timeline, 0, 0)..).next()
            && of == timeline
            && wanted <= value
        {
            self.waiting.remove(&(of, wanted, start));
            bytes += self.carved[&start].len;
            self.settle(start);
        }
        bytes
    }

    /// Declares that `generation` will carve no more. What it parked, and what it still holds,
    /// becomes free for all once its last range is past its fence.
    pub fn close_generation(&mut self, generation: u32) {
        if let Some(known) = self.generations.get_mut(&generation) {
            known.closed = true;
            self.release_if_gone(generation);
        }
    }

    /// Whether no range of `generation` is live or quarantined.
    #[must_use]
    pub fn is_gone(&self, generation: u32) -> bool {
        !self
            .carved
            .values()
            .any(|carved| carved.generation == generation)
    }

    /// The live range that holds `address`.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Span> {
        let (&start, carved) = self.carved.range(..=address).next_back()?;
        let span = Span::new(start, carved.len)?;
        (carved.state == State::Live && span.contains(address)).then_some(span)
    }

    /// Figures over all zones. `largest_hole` and `high_water` are of the zone where they are
    /// greatest and the sum over zones, in that order.
    #[must_use]
    pub fn stats(&self) -> VaStats {
        self.pools
            .iter()
            .map(Pool::stats)
            .fold(VaStats::default(), |sum, one| VaStats {
                live_bytes: sum.live_bytes + one.live_bytes,
                quarantined_bytes: sum.quarantined_bytes + one.quarantined_bytes,
                free_bytes: sum.free_bytes + one.free_bytes,
                holes: sum.holes + one.holes,
                largest_hole: sum.largest_hole.max(one.largest_hole),
                high_water: sum.high_water + one.high_water,
            })
    }

    /// Figures of one zone.
    #[must_use]
    pub fn zone_stats(&self, zone: &str) -> Option<VaStats> {
        self.zone_index(zone)
            .ok()
            .map(|index| self.pools[index].stats())
    }

    /// Compares all records with one another; for tests, O(n log n).
    ///
    /// # Panics
    /// When they disagree.
    pub fn check(&self) {
        for (index, pool) in self.pools.iter().enumerate() {
            pool.ranges.check();
            let sum = |live: bool| {
                self.carved
                    .values()
                    .filter(|carved| carved.zone == index && (carved.state == State::Live) == live)
                    .map(|carved| carved.len)
                    .sum::<u64>()
            };
            assert_eq!(sum(true), pool.live, "live bytes of {}", pool.zone.name);
            assert_eq!(
                sum(false),
                pool.quarantined,
                "quarantine of {}",
                pool.zone.name
            );
        }
        let busy: usize = self
            .generations
            .values()
            .map(|generation| generation.busy)
            .sum();
        let held = self
            .carved
            .values()
            .filter(|carved| carved.generation != Self::SHARED && carved.state != State::Parked);
        assert_eq!(held.count(), busy, "ranges held by generations");
    }

    fn zone_index(&self, name: &str) -> Result<usize, SpaceError> {
        let index = self.pools.iter().position(|pool| pool.zone.name == name);
        index.ok_or(SpaceError::Invalid {
            argument: "zone",
            value: self.pools.len() as u64,
        })
    }

    fn has_reached(&self, fence: SpaceFence) -> bool {
        // A timeline begins at 0.
        self.reached.get(&fence.timeline).copied().unwrap_or(0) >= fence.value
    }

    /// A retired range is past its fence.
    fn settle(&mut self, start: u64) {
        let carved = self.carved[&start];
        if carved.generation == Self::SHARED {
            self.release(start);
            return;
        }
        let generation = self
            .generations
            .get_mut(&carved.generation)
            .expect("a generation is known while it holds ranges");
        generation.busy -= 1;
        self.park(start, carved);
        self.release_if_gone(carved.generation);
    }

    /// Parks a range, joined with parked neighbours of its generation.
    fn park(&mut self, mut start: u64, mut carved: Carved) {
        let generation = carved.generation;
        let joins = |other: &Carved| other.generation == generation && other.state == State::Parked;
        let parked = &mut self.generations.entry(generation).or_default().parked;
        self.carved.remove(&start);
        let end = start + carved.len;
        if let Some(next) = self.carved.get(&end).copied().filter(joins)
            && next.zone == carved.zone
        {
            self.carved.remove(&end);
            parked.remove(&(carved.zone, end));
            carved.len += next.len;
        }
        if let Some((&before, &previous)) = self.carved.range(..start).next_back()
            && joins(&previous)
            && previous.zone == carved.zone
            && before + previous.len == start
        {
            parked.remove(&(carved.zone, before));
            start = before;
            carved.len += previous.len;
        }
        carved.state = State::Parked;
        parked.insert((carved.zone, start));
        self.carved.insert(start, carved);
    }

    /// Takes `size` bytes from what `generation` has parked in the zone.
    fn unpark(&mut self, zone: usize, size: u64, align: u64, generation: u32) -> Option<Span> {
        let parked = &mut self.generations.get_mut(&generation)?.parked;
        let fit = |&(_, start): &(usize, u64)| {
            let end = start + self.carved[&start].len;
            let at = start.checked_next_multiple_of(align)?;
            (end.checked_sub(at)? >= size).then_some((start, at, end))
        };
        let (start, at, end) = parked.range((zone, 0)..(zone + 1, 0)).find_map(fit)?;
        let old = self.carved.remove(&start)?;
        parked.remove(&(zone, start));
        for (lo, hi) in [(start, at), (at + size, end)] {
            if lo < hi {
                parked.insert((zone, lo));
                self.carved.insert(
                    lo,
                    Carved {
                        len: hi - lo,
                        ..old
                    },
                );
            }
        }
        self.pools[zone].quarantined -= size;
        Span::new(at, size)
    }

    fn release_if_gone(&mut self, generation: u32) {
        let gone = |known: &Generation| known.closed && known.busy == 0;
        if self.generations.get(&generation).is_some_and(gone)
            && let Some(known) = self.generations.remove(&generation)
        {
            for (_, start) in known.parked {
                self.release(start);
            }
        }
    }

    /// Returns a quarantined range, and all it was joined from, to the pool.
    fn release(&mut self, start: u64) {
        let carved = self
            .carved
            .remove(&start)
            .expect("a quarantined range is recorded");
        let pool = &mut self.pools[carved.zone];
        pool.quarantined -= carved.len;
        pool.ranges
            .vacate(Span::new(start, carved.len).expect("inside its zone"));
    }
}

#[cfg(test)]
mod tests;
