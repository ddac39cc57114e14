//! Named zones of virtual addresses, with quarantine and generations.

mod records;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use vrampager_addr::Span;

use crate::error::fragmentation_permille;
use crate::ordered::OrderedMap;
use crate::{Mode, RangeAllocator, RangeRequest, SpaceError};
use records::{Record, Records};

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

/// Owner of the ranges that belong to no generation.
const SHARED_OWNER: u32 = u32::MAX;

/// Colour, in the tree of a zone, of what a generation owns; with its number. Ranges of no
/// generation bear the number of their record instead.
const OWNED: u32 = 1 << 31;

/// Colour of what is never handed out: windows in a zone, and, to a generation, all that it does
/// not own.
const BLOCKED: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Pool {
    zone: Zone,
    ranges: RangeAllocator,
    live: u64,
    quarantined: u64,
    high_water: u64,
}

impl Pool {
    fn new(zone: Zone) -> Self {
        Self {
            zone,
            ranges: RangeAllocator::new(zone.span),
            live: 0,
            quarantined: 0,
            high_water: 0,
        }
    }

    /// What a generation that owns nothing sees of the zone.
    fn view(&self) -> Result<RangeAllocator, SpaceError> {
        let mut view = RangeAllocator::new(self.zone.span);
        if !self.zone.span.is_empty() {
            view.reserve(self.zone.span, BLOCKED)?;
        }
        Ok(view)
    }

    /// The lowest place in what is free or a hole of `view`, taken together. The figures of the
    /// error are of both. Walks all holes.
    fn joined_fit(
        &self,
        view: &RangeAllocator,
        request: &RangeRequest,
    ) -> Result<Span, SpaceError> {
        let (mut free, mut largest) = (0, 0);
        for run in joined(self.ranges.holes(), view.holes()) {
            if let Some(fit) = request.place_in(run) {
                return Ok(fit);
            }
            free += run.len();
            largest = largest.max(run.len());
        }
        Err(SpaceError::NoSpace {
            needed: request.size,
            free,
            largest,
            conditions: request.conditions(),
        })
    }

    /// Makes what is free in `span` one range with what surrounds it, all of which has this colour.
    /// What was parked there is live now.
    fn take_joined(&mut self, span: Span, color: u32) {
        let around = |address| self.ranges.find(address).map_or(span, |range| range.span);
        let (start, end) = (around(span.start()).start(), around(span.end() - 1).end());
        let whole = Span::from_bounds(start, end).expect("it starts before it ends");
        let free = self.ranges.free_bytes();
        self.ranges.vacate(whole);
        let taken = self.ranges.reserve(whole, color);
        taken.expect("all of it is a hole, and the refused insertion reserved memory");
        self.quarantined -= span.len() - (free - self.ranges.free_bytes());
    }

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

/// Holes of two trees, disjoint and in address order, as the longest spans that they make up.
fn joined(
    one: impl Iterator<Item = Span>,
    other: impl Iterator<Item = Span>,
) -> impl Iterator<Item = Span> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    let mut holes = core::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(left), Some(right)) if left.start() < right.start() => one.next(),
        (_, Some(_)) => other.next(),
        (_, None) => one.next(),
    })
    .peekable();
    core::iter::from_fn(move || {
        let mut run = holes.next()?;
        while let Some(next) = holes.next_if(|next| next.start() == run.end()) {
            run = Span::from_bounds(run.start(), next.end())?;
        }
        Some(run)
    })
}

/// A plugin generation, while it holds addresses.
#[derive(Clone, Debug)]
struct Owner {
    generation: u32,
    /// Ranges live or waiting for a fence.
    busy: usize,
    closed: bool,
    /// One view of each zone, in which the holes are what the generation has parked. What it
    /// owns and uses is live there, and so is everything else.
    views: Vec<RangeAllocator>,
}

impl Owner {
    fn holds_nothing(&self) -> bool {
        self.busy == 0 && self.views.iter().all(|view| view.free_bytes() == 0)
    }
}

/// How far a timeline has come, and the heap of the ranges that wait for it.
#[derive(Clone, Copy, Debug, Default)]
struct Timeline {
    reached: u64,
    waiting: u32,
}

/// Virtual addresses in zones.
///
/// A range passes from free to live ([`carve`](Self::carve)) to quarantined
/// ([`retire`](Self::retire)) and, once its fence has signalled, back to free. A range that
/// served a plugin generation is then parked: that generation may use it again, any other only
/// when the generation is closed and its last range is past its fence.
///
/// Retiring, signalling and closing need no host memory: carving takes what they will need.
///
/// # Examples
/// ```
/// use vrampager_space::{SpaceFence, VaSpace, Zone};
/// let mut space = VaSpace::new(&[Zone::LOW, Zone::HIGH]).unwrap();
/// space.add_timeline(0).unwrap();
/// let span = space.carve("low", 1 << 30, 1 << 21, VaSpace::SHARED).unwrap();
/// space.retire(span.start(), Some(SpaceFence { timeline: 0, value: 7 }));
/// assert_eq!(space.stats().quarantined_bytes, 1 << 30);
/// assert_eq!(space.signalled(0, 7), 1 << 30);
/// ```
#[derive(Clone, Debug)]
pub struct VaSpace {
    /// Addresses from here on are not the device's.
    limit: u64,
    pools: Vec<Pool>,
    records: Records,
    timelines: OrderedMap<u32, Timeline>,
    owners: Vec<Option<Owner>>,
    /// Numbers of the owners.
    by_generation: OrderedMap<u32, u32>,
    /// Records of no generation.
    shared: usize,
}

impl VaSpace {
    /// The generation of ranges that belong to no plugin: past their fence they are free for all.
    pub const SHARED: u32 = 0;

    /// A space of these zones.
    ///
    /// # Errors
    /// As [`add_zone`](Self::add_zone) of each, except for the device's addresses.
    pub fn new(zones: &[Zone]) -> Result<Self, SpaceError> {
        Self::with_limit(u64::MAX, zones)
    }

    /// As [`new`](Self::new) for a device that decodes `bits` address bits.
    ///
    /// # Errors
    /// As [`add_zone`](Self::add_zone) of each.
    pub fn with_va_bits(bits: u32, zones: &[Zone]) -> Result<Self, SpaceError> {
        Self::with_limit(1_u64.checked_shl(bits).unwrap_or(u64::MAX), zones)
    }

    fn with_limit(limit: u64, zones: &[Zone]) -> Result<Self, SpaceError> {
        let mut space = Self {
            limit,
            pools: Vec::new(),
            records: Records::default(),
            timelines: OrderedMap::new(),
            owners: Vec::new(),
            by_generation: OrderedMap::new(),
            shared: 0,
        };
        zones.iter().try_for_each(|&zone| space.add_zone(zone))?;
        Ok(space)
    }

    /// Adds a zone, as of a plugin that is loaded later. It is there for good: all generations may
    /// carve from it from now on.
    ///
    /// # Errors
    /// [`SpaceError::OutOfRange`] when it reaches past the device's addresses,
    /// [`SpaceError::Invalid`] when a zone overlaps it, whose start it names,
    /// [`SpaceError::DuplicateZone`] and [`SpaceError::MetadataExhausted`].
    pub fn add_zone(&mut self, zone: Zone) -> Result<(), SpaceError> {
        if zone.span.end() > self.limit {
            return Err(SpaceError::OutOfRange {
                start: zone.span.start(),
                len: zone.span.len(),
            });
        }
        if self.pools.iter().any(|other| other.zone.name == zone.name) {
            return Err(SpaceError::DuplicateZone { name: zone.name });
        }
        let overlaps = |other: &&Pool| other.zone.span.overlaps(zone.span);
        if let Some(other) = self.pools.iter().find(overlaps) {
            return Err(SpaceError::Invalid {
                argument: "zone",
                value: other.zone.span.start(),
            });
        }
        let out = |_| SpaceError::MetadataExhausted;
        let pool = Pool::new(zone);
        let mut views = Vec::new();
        let owners = self.owners.iter_mut().flatten();
        for owner in owners {
            owner.views.try_reserve(1).map_err(out)?;
            views.try_reserve(1).map_err(out)?;
            views.push(pool.view()?);
        }
        self.pools.try_reserve(1).map_err(out)?;
        self.pools.push(pool);
        for (owner, view) in self.owners.iter_mut().flatten().zip(views) {
            owner.views.push(view);
        }
        Ok(())
    }

    /// Takes `span` out of circulation for good, as for a shader window.
    ///
    /// # Errors
    /// [`SpaceError::OutOfRange`] when it is not inside one zone, [`SpaceError::NoSpace`] when a
    /// part is in use, [`SpaceError::Invalid`] when it is empty,
    /// [`SpaceError::MetadataExhausted`].
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
        pool.ranges.reserve(span, BLOCKED)
    }

    /// Makes `timeline` known, with the value 0, so that ranges may wait for its fences. One that
    /// is known keeps its value.
    ///
    /// # Errors
    /// [`SpaceError::MetadataExhausted`].
    pub fn add_timeline(&mut self, timeline: u32) -> Result<(), SpaceError> {
        if !self.timelines.contains(timeline) {
            self.timelines.reserve(1)?;
            self.timelines.insert(timeline, Timeline::default());
        }
        Ok(())
    }

    /// Forgets `timeline`, as when its channel is gone and can't reach any memory. Returns the
    /// bytes that waited for it, which wait no longer.
    pub fn remove_timeline(&mut self, timeline: u32) -> u64 {
        let bytes = self.signalled(timeline, u64::MAX);
        self.timelines.remove(timeline);
        bytes
    }

    /// Hands out `size` bytes at a multiple of `align`, of which 0 counts as 1, from the zone: at
    /// the lowest address that `generation` has parked; if nothing parked is long enough, at the
    /// lowest that is free; if nothing free is either, at the lowest where free and parked parts
    /// together are. The last takes a step for each segment of the zone. With an alignment each of
    /// these is as [`Mode::Low`] says.
    ///
    /// # Errors
    /// [`SpaceError::UnknownZone`], [`SpaceError::Invalid`] for size 0, one or an alignment that
    /// the zone can't serve, or a generation that was closed and is not gone,
    /// [`SpaceError::NoSpace`], whose figures count what is free and what this generation has
    /// parked, but no range that waits for a fence or is another generation's, and
    /// [`SpaceError::MetadataExhausted`].
    pub fn carve(
        &mut self,
        zone: &str,
        size: u64,
        align: u64,
        generation: u32,
    ) -> Result<Span, SpaceError> {
        let zone = self.zone_index(zone)?;
        let record = Record::live(zone, SHARED_OWNER);
        let id = self.records.add(record, OWNED)?;
        let request = RangeRequest::new(size)
            .align(align)
            .mode(Mode::Low)
            .color(id);
        let carved = if generation == Self::SHARED {
            let span = self.pools[zone].ranges.insert(&request);
            self.shared += usize::from(span.is_ok());
            span
        } else {
            self.carve_owned(id, &request, generation)
        };
        match carved {
            Ok(span) => {
                self.records.get_mut(id).start = span.start();
                self.pools[zone].now_live(size);
            }
            Err(_) => {
                self.records.remove(id);
            }
        }
        carved
    }

    /// Ends the life of the range that starts at `start`. Its addresses stay out of use until
    /// `fence` has signalled; without a fence they do not wait.
    ///
    /// # Panics
    /// When no live range starts there, or the fence is of a timeline that is not known.
    pub fn retire(&mut self, start: u64, fence: Option<SpaceFence>) -> Span {
        let found = self.record_at(start);
        let live = found.filter(|&(id, span)| self.records.get(id).live && span.start() == start);
        let (id, span) = live.unwrap_or_else(|| panic!("no live range starts at {start:#x}"));
        let due = fence.filter(|fence| fence.value > self.timeline(fence.timeline).reached);
        let record = self.records.get_mut(id);
        record.live = false;
        let pool = &mut self.pools[record.zone];
        pool.live -= span.len();
        pool.quarantined += span.len();
        match due {
            Some(SpaceFence { timeline, value }) => {
                let root = self.timeline(timeline).waiting;
                let root = self.records.wait(root, id, value);
                self.timeline(timeline).waiting = root;
            }
            None => {
                self.settle(id);
            }
        }
        span
    }

    /// Notes that `timeline` has reached `value`. Returns the bytes that waited for this: none
    /// when the timeline is not known.
    pub fn signalled(&mut self, timeline: u32, value: u64) -> u64 {
        let Some(known) = self.timelines.get_mut(timeline) else {
            return 0;
        };
        known.reached = known.reached.max(value);
        let (mut root, mut bytes) = (known.waiting, 0);
        while let Some((id, rest)) = self.records.next_due(root, value) {
            root = rest;
            bytes += self.settle(id);
        }
        self.timeline(timeline).waiting = root;
        bytes
    }

    /// Declares that `generation` will carve no more. What it parked, and what it still holds,
    /// becomes free for all once its last range is past its fence; then the generation is gone,
    /// and its number may serve another. A generation that holds nothing is gone already, and
    /// [`SHARED`](Self::SHARED) can't be closed.
    pub fn close_generation(&mut self, generation: u32) {
        if let Some(number) = self.by_generation.get(generation) {
            self.owner(number).closed = true;
            self.release_if_gone(number);
        }
    }

    /// Whether no range of `generation` is live or quarantined.
    #[must_use]
    pub fn is_gone(&self, generation: u32) -> bool {
        if generation == Self::SHARED {
            return self.shared == 0;
        }
        !self.by_generation.contains(generation)
    }

    /// The live range that holds `address`.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Span> {
        let (id, span) = self.record_at(address)?;
        self.records.get(id).live.then_some(span)
    }

    /// Bytes of host memory held for records: at most 640 per range of the most that were ever
    /// live or quarantined at once, 8 KiB per zone, and as much again per zone for each generation
    /// that is not gone; 80 per timeline of the most that there ever were.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        let pools = self.pools.iter().map(|pool| &pool.ranges);
        let owners = self.owners.iter().flatten();
        let views = owners.clone().flat_map(|owner| &owner.views);
        let trees = pools.chain(views).map(RangeAllocator::metadata_bytes);
        let lists = owners.map(|owner| owner.views.capacity() * size_of::<RangeAllocator>());
        trees.chain(lists).sum::<usize>()
            + self.pools.capacity() * size_of::<Pool>()
            + self.owners.capacity() * size_of::<Option<Owner>>()
            + self.records.bytes()
            + self.timelines.bytes()
            + self.by_generation.bytes()
    }

    /// Figures over all zones. `largest_hole` and `high_water` are of the zone where they are
    /// greatest and the sum over zones, in that order.
    ///
    /// Counting the holes takes a step for each live range and hole of the zones. Nothing else
    /// does: the other figures are kept, but for a step per zone.
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

    /// Figures of one zone, at the cost of a step for each live range and hole in it.
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
        let mut busy = 0;
        for (zone, pool) in self.pools.iter().enumerate() {
            pool.ranges.check();
            let (mut live, mut quarantined) = (0, 0);
            let mut count = |id: u32, span: Span, owner: u32| {
                let record = self.records.get(id);
                let seen = (record.start, record.zone, record.owner);
                assert_eq!(seen, (span.start(), zone, owner), "record {id}");
                *if record.live {
                    &mut live
                } else {
                    &mut quarantined
                } += span.len();
                busy += 1;
            };
            let (mut owned, mut parked) = (0, 0);
            for range in pool.ranges.ranges().filter(|range| range.color != BLOCKED) {
                if range.color & OWNED == 0 {
                    count(range.color, range.span, SHARED_OWNER);
                } else {
                    owned += range.span.len();
                }
            }
            for (number, owner) in (0_u32..).zip(&self.owners) {
                let Some(view) = owner.as_ref().map(|owner| &owner.views[zone]) else {
                    continue;
                };
                view.check();
                let mine = || view.ranges().filter(|range| range.color != BLOCKED);
                for span in mine().map(|range| range.span).chain(view.holes()) {
                    let range = pool.ranges.find(span.start());
                    assert_eq!(range.map(|range| range.color), Some(OWNED | number));
                    owned -= span.len();
                }
                mine().for_each(|range| count(range.color, range.span, number));
                parked += view.free_bytes();
            }
            assert_eq!(owned, 0, "bytes that have no owner in {}", pool.zone.name);
            let counted = (pool.live, pool.quarantined);
            assert_eq!(
                (live, quarantined + parked),
                counted,
                "bytes of {}",
                pool.zone.name
            );
        }
        assert_eq!(self.records.len(), busy, "records of ranges that are gone");
        let held = self.owners.iter().flatten().map(|owner| owner.busy);
        assert_eq!(held.sum::<usize>() + self.shared, busy, "ranges held");
    }

    fn zone_index(&self, name: &str) -> Result<usize, SpaceError> {
        let index = self.pools.iter().position(|pool| pool.zone.name == name);
        index.ok_or(SpaceError::UnknownZone)
    }

    /// The record of the range, not settled yet, that holds `address`.
    fn record_at(&self, address: u64) -> Option<(u32, Span)> {
        let in_zone = |pool: &Pool| pool.zone.span.contains(address);
        let zone = self.pools.iter().position(in_zone)?;
        let mut range = self.pools[zone].ranges.find(address)?;
        if range.color == BLOCKED {
            return None;
        }
        if range.color & OWNED != 0 {
            let owner = self.owners[(range.color & !OWNED) as usize].as_ref()?;
            range = owner.views[zone].find(address)?;
        }
        Some((range.color, range.span))
    }

    fn timeline(&mut self, timeline: u32) -> &mut Timeline {
        let known = self.timelines.get_mut(timeline);
        known.unwrap_or_else(|| panic!("timeline {timeline} is not known"))
    }

    fn owner(&mut self, number: u32) -> &mut Owner {
        let owner = self.owners[number as usize].as_mut();
        owner.expect("a generation is known while it holds ranges")
    }

    fn carve_owned(
        &mut self,
        id: u32,
        request: &RangeRequest,
        generation: u32,
    ) -> Result<Span, SpaceError> {
        let number = match self.by_generation.get(generation) {
            Some(number) => number,
            None => self.add_owner(generation)?,
        };
        if self.owner(number).closed {
            return Err(SpaceError::Invalid {
                argument: "generation",
                value: u64::from(generation),
            });
        }
        self.records.get_mut(id).owner = number;
        let carved = self.carve_from(number, id, request);
        let owner = self.owner(number);
        match carved {
            Ok(_) => owner.busy += 1,
            Err(_) if owner.holds_nothing() => {
                self.owners[number as usize] = None;
                self.by_generation.remove(generation);
            }
            Err(_) => {}
        }
        carved
    }

    /// Takes from what the generation has parked, else from what is free, else from where parked
    /// and free space meet.
    fn carve_from(
        &mut self,
        number: u32,
        id: u32,
        request: &RangeRequest,
    ) -> Result<Span, SpaceError> {
        let zone = self.records.get(id).zone;
        let owner = self.owners[number as usize].as_mut();
        let view = &mut owner.expect("the caller knows it").views[zone];
        let pool = &mut self.pools[zone];
        match view.insert(request) {
            Ok(span) => {
                pool.quarantined -= span.len();
                return Ok(span);
            }
            Err(SpaceError::NoSpace { .. }) => view.reserve_isolation()?,
            Err(other) => return Err(other),
        }
        match pool.ranges.insert(&request.color(OWNED | number)) {
            Ok(span) => {
                view.isolate(span, id);
                Ok(span)
            }
            Err(SpaceError::NoSpace { .. }) => {
                let span = pool.joined_fit(view, request)?;
                view.reserve_clearing()?;
                pool.take_joined(span, OWNED | number);
                view.clear(span);
                let taken = view.reserve(span, id);
                taken.expect("all of it is a hole, and memory is reserved");
                Ok(span)
            }
            Err(other) => Err(other),
        }
    }

    /// Makes a record of a generation, which owns nothing yet.
    fn add_owner(&mut self, generation: u32) -> Result<u32, SpaceError> {
        let out = |_| SpaceError::MetadataExhausted;
        let mut views = Vec::new();
        views.try_reserve_exact(self.pools.len()).map_err(out)?;
        for pool in &self.pools {
            views.push(pool.view()?);
        }
        self.by_generation.reserve(1)?;
        let unused = self.owners.iter().position(Option::is_none);
        let at = unused.unwrap_or(self.owners.len());
        let number = u32::try_from(at).ok().filter(|&number| number < !OWNED);
        let number = number.ok_or(SpaceError::MetadataExhausted)?;
        if unused.is_none() {
            self.owners.try_reserve(1).map_err(out)?;
            self.owners.push(None);
        }
        self.owners[at] = Some(Owner {
            generation,
            busy: 0,
            closed: false,
            views,
        });
        self.by_generation.insert(generation, number);
        Ok(number)
    }

    /// A retired range is past its fence. Returns its length.
    fn settle(&mut self, id: u32) -> u64 {
        let Record {
            start, zone, owner, ..
        } = self.records.remove(id);
        let gone = if owner == SHARED_OWNER {
            let pool = &mut self.pools[zone];
            let gone = pool.ranges.remove(start);
            pool.quarantined -= gone.map_or(0, Span::len);
            self.shared -= 1;
            gone
        } else {
            let known = self.owner(owner);
            known.busy -= 1;
            let parked = known.views[zone].remove(start);
            self.release_if_gone(owner);
            parked
        };
        gone.expect("a recorded range is in its tree").len()
    }

    /// Frees all that a closed generation has parked, if it has nothing else.
    fn release_if_gone(&mut self, number: u32) {
        let gone = |owner: &mut Owner| owner.closed && owner.busy == 0;
        let Some(owner) = self.owners[number as usize].take_if(gone) else {
            return;
        };
        self.by_generation.remove(owner.generation);
        for (pool, view) in self.pools.iter_mut().zip(&owner.views) {
            for parked in view.holes() {
                pool.quarantined -= parked.len();
                pool.ranges.vacate(parked);
            }
        }
    }
}
