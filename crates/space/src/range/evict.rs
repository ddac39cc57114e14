//! What to evict so that a request fits.

use alloc::vec::Vec;

use vrampager_addr::Span;

use super::{Mode, Path, Range, RangeAllocator, RangeRequest, place, span};
use crate::SpaceError;
use crate::ordered::OrderedMap;

/// What makes room for a request: the ranges to remove, and where the request fits then.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Eviction {
    /// Where the request fits. A [reservation](RangeAllocator::reserve) takes it.
    pub place: Span,
    /// Ranges to remove, the last added first. No part of them is needless.
    pub victims: Vec<Span>,
    /// What the victims cost together.
    pub cost: u128,
}

#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    end: u64,
    color: u32,
    cost: u64,
    /// Place in the roster.
    number: usize,
}

/// A search for ranges to evict, over a roster of candidates: the most expendable first.
///
/// It borrows the space and changes nothing there, so that giving up needs no undo. There are two
/// answers:
///
/// * [`first`](Self::first) is the first room that evicting whole neighbourhoods of candidates, in
///   the order of the roster, makes: the answer of `drm_mm`. It is known as soon as
///   [`add`](Self::add) says so.
/// * [`cheapest`](Self::cheapest) compares all windows that the roster can make. More candidates
///   may be added for it than `first` needs; how many bounds its time and memory.
#[derive(Debug)]
pub struct EvictionScan<'a> {
    space: &'a RangeAllocator,
    request: RangeRequest,
    window: Span,
    /// By start.
    roster: OrderedMap<u64, Candidate>,
    /// Rooms as they would be without the candidates, by start, where candidates make them.
    rooms: OrderedMap<u64, u64>,
    /// The first place found, and the room around it.
    hit: Option<(Span, (u64, u64))>,
}

/// A run of neighbouring candidates, and what it costs to evict it.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: u64,
    last: u64,
    count: usize,
    cost: u128,
}

impl<'a> EvictionScan<'a> {
    pub(super) fn new(space: &'a RangeAllocator, request: &RangeRequest, window: Span) -> Self {
        Self {
            space,
            request: *request,
            window,
            roster: OrderedMap::new(),
            rooms: OrderedMap::new(),
            hit: None,
        }
    }

    /// Adds the live range that starts at `start`, which costs `cost` to evict: its bytes, or
    /// what the caller makes of its age. Returns whether the candidates so far make room. A
    /// candidate that was added before counts as it was then.
    ///
    /// # Errors
    /// [`SpaceError::MetadataExhausted`]; the candidate is not added then.
    ///
    /// # Panics
    /// When no live range starts there.
    pub fn add(&mut self, start: u64, cost: u64) -> Result<bool, SpaceError> {
        let range = self
            .space
            .find(start)
            .filter(|range| range.span.start() == start);
        let range = range.unwrap_or_else(|| panic!("no live range starts at {start:#x}"));
        let Range { span, color } = range;
        if self.roster.contains(start) {
            return Ok(self.hit.is_some());
        }
        self.roster.reserve(1)?;
        self.rooms.reserve(1)?;
        let candidate = Candidate {
            end: span.end(),
            color,
            cost,
            number: self.roster.len(),
        };
        self.roster.insert(start, candidate);
        if self.hit.is_none() {
            let room = self.merge_room(span);
            self.hit = self.fit(room).map(|place| (place, room));
        }
        Ok(self.hit.is_some())
    }

    /// Notes the room around an added candidate, joined with those it touches.
    fn merge_room(&mut self, candidate: Span) -> (u64, u64) {
        let (mut lo, mut hi) = (candidate.start(), candidate.end());
        let before = self.rooms.prev(lo).filter(|&(_, end)| end == lo);
        if let Some((start, _)) = before {
            self.rooms.remove(start);
            lo = start;
        } else if let Some(hole) = self.hole_before(lo) {
            lo = hole.start();
        }
        if let Some(hole) = self.hole_at(hi) {
            hi = hole.end();
            // The hole may already belong to the candidate behind it.
            if let Some(end) = self.rooms.remove(hole.start()) {
                hi = end;
            }
        }
        if let Some(end) = self.rooms.remove(hi) {
            hi = end;
        }
        self.rooms.insert(lo, hi);
        (lo, hi)
    }

    /// The first room that the candidates made in the order they were added, and of them those
    /// in its way. `None` if all of them make no room.
    ///
    /// # Errors
    /// [`SpaceError::MetadataExhausted`].
    pub fn first(&self) -> Result<Option<Eviction>, SpaceError> {
        self.hit
            .map(|(place, room)| self.evict_for(place, room))
            .transpose()
    }

    /// The room whose victims cost the least together, of all that the candidates can make; of
    /// equals the one with the fewest victims, then the lowest, or highest for [`Mode::High`].
    /// Room that is there already costs nothing. `None` if all candidates don't make room.
    ///
    /// Takes a few tree lookups per candidate. With a gap rule, which may make a larger run of
    /// victims serve worse than a smaller one, it takes that for each candidate and each victim of
    /// the window that begins with it.
    ///
    /// # Errors
    /// [`SpaceError::MetadataExhausted`].
    pub fn cheapest(&self) -> Result<Option<Eviction>, SpaceError> {
        if let Some(place) = self.room_now() {
            return Ok(Some(Eviction {
                place,
                victims: Vec::new(),
                cost: 0,
            }));
        }
        let mut best: Option<(Run, Span)> = None;
        let mut next = self.roster.iter().next().map(|(start, _)| start);
        let mut run: Option<Run> = None;
        while let Some(first) = next {
            let kept = run.filter(|_| self.space.gap.is_none());
            let mut tried = kept.unwrap_or_else(|| self.run_of_one(first));
            if let Some(place) = self.extend(&mut tried, best.map(|(run, _)| run)) {
                let key = |run: &Run| (run.cost, run.count);
                let better = best.is_none_or(|(best, _)| {
                    // Runs come in ascending order.
                    key(&tried) < key(&best)
                        || key(&tried) == key(&best) && self.request.mode == Mode::High
                });
                if better {
                    best = Some((tried, place));
                }
            }
            next = self.roster.after(first).map(|(start, _)| start);
            run = next.and_then(|next| self.shorten(tried, next));
        }
        best.map(|(run, place)| self.evict_for(place, (run.first, run.last + 1)))
            .transpose()
    }

    fn candidate(&self, start: u64) -> Candidate {
        self.roster.get(start).expect("a run is of candidates")
    }

    fn run_of_one(&self, start: u64) -> Run {
        Run {
            first: start,
            last: start,
            count: 1,
            cost: u128::from(self.candidate(start).cost),
        }
    }

    /// The run without its first candidate; `next` is the candidate behind that.
    fn shorten(&self, run: Run, next: u64) -> Option<Run> {
        (run.first != run.last).then(|| Run {
            first: next,
            count: run.count - 1,
            cost: run.cost - u128::from(self.candidate(run.first).cost),
            ..run
        })
    }

    /// Extends a run at its end until the request fits where it was. `None` when it can't be, or
    /// not without costing more than `best`.
    fn extend(&self, run: &mut Run, best: Option<Run>) -> Option<Span> {
        loop {
            if best.is_some_and(|best| run.cost > best.cost) {
                return None;
            }
            let end = self.candidate(run.last).end;
            let lo = self.hole_before(run.first);
            let hi = self.hole_at(end);
            let lo = lo.map_or(run.first, Span::start);
            let hi = hi.map_or(end, Span::end);
            if let Some(place) = self.fit((lo, hi)) {
                return Some(place);
            }
            let next = self.roster.get(hi)?;
            (run.last, run.count) = (hi, run.count + 1);
            run.cost += u128::from(next.cost);
        }
    }

    /// Where the request fits without any eviction.
    fn room_now(&self) -> Option<Span> {
        let mode = match self.request.mode {
            Mode::High => Mode::High,
            Mode::Best | Mode::Low | Mode::Evict => Mode::Low,
        };
        let request = RangeRequest {
            mode,
            once: false,
            ..self.request
        };
        if self.space.tree.is_none() {
            return self.fit((self.space.span.start(), self.space.span.end()));
        }
        let mut path = Path::default();
        let start = self.space.search(&mut path, &request, self.window)?;
        Some(span(start, start + request.size))
    }

    /// What to evict from a room so that a place in it is free: the candidates that overlap the
    /// place, and on each side those that follow for as long as they stand too near.
    fn evict_for(&self, place: Span, (lo, hi): (u64, u64)) -> Result<Eviction, SpaceError> {
        let out = |_| SpaceError::MetadataExhausted;
        let (mut numbers, mut cost) = (Vec::new(), 0);
        let mut take = |start, candidate: Candidate| {
            cost += u128::from(candidate.cost);
            numbers.try_reserve(1).map_err(out)?;
            numbers.push((candidate.number, start));
            Ok(())
        };
        let mut at = self.roster.prev(place.start());
        while let Some((start, candidate)) = at.filter(|&(start, _)| start >= lo)
            && self.is_too_near(start, &candidate, place)
        {
            take(start, candidate)?;
            at = start.checked_sub(1).and_then(|at| self.roster.prev(at));
        }
        let mut at = self.roster.after(place.start());
        while let Some((start, candidate)) = at.filter(|&(start, _)| start < hi)
            && self.is_too_near(start, &candidate, place)
        {
            take(start, candidate)?;
            at = self.roster.after(start);
        }
        numbers.sort_unstable_by_key(|&(number, _)| core::cmp::Reverse(number));
        let mut victims = Vec::new();
        victims.try_reserve_exact(numbers.len()).map_err(out)?;
        let candidate = |(_, start)| span(start, self.candidate(start).end);
        victims.extend(numbers.into_iter().map(candidate));
        Ok(Eviction {
            place,
            victims,
            cost,
        })
    }

    fn is_too_near(&self, start: u64, candidate: &Candidate, place: Span) -> bool {
        let gap = |left, right| self.space.gap.map_or(0, |gap| gap(left, right));
        let color = self.request.color;
        let end = candidate.end.saturating_add(gap(candidate.color, color));
        let begin = start.saturating_sub(gap(color, candidate.color));
        end > place.start() && begin < place.end()
    }

    fn hole_at(&self, address: u64) -> Option<Span> {
        let (segment, _) = self.space.lookup(address)?;
        segment.hole.then(|| span(segment.start, segment.end))
    }

    fn hole_before(&self, address: u64) -> Option<Span> {
        address.checked_sub(1).and_then(|at| self.hole_at(at))
    }

    /// Where in the room between two live neighbours the request fits.
    fn fit(&self, (mut lo, mut hi): (u64, u64)) -> Option<Span> {
        if let Some(gap) = self.space.gap {
            let color = self.request.color;
            let left = lo.checked_sub(1).and_then(|at| self.space.find(at));
            lo = lo.checked_add(left.map_or(0, |left| gap(left.color, color)))?;
            let right = self.space.find(hi);
            hi = hi.checked_sub(right.map_or(0, |right| gap(color, right.color)))?;
        }
        let (lo, hi) = (lo.max(self.window.start()), hi.min(self.window.end()));
        let start = place(lo, hi, &self.request)?;
        Some(span(start, start + self.request.size))
    }
}
