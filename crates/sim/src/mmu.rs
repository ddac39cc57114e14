use std::collections::BTreeMap;

use vrampager_addr::{PAGE, Span, Va};
use vrampager_hal::{Access, MemId, VaZone};

use crate::copy::Place;
use crate::heap::Run;

/// The zones of device `n` of `count`, lowest first: its part of what all devices share.
///
/// The first 64 KiB stay free, so that a small offset from a null address faults. So do the
/// addresses where programs and their libraries are loaded: there, imported host memory is seen
/// where the CPU has it.
pub(crate) fn zones(n: u32, count: u32) -> Vec<VaZone> {
    let zone = |name, start: u64, end: u64| {
        let part = PAGE.down((end - start) / u64::from(count));
        let start = start + part * u64::from(n);
        let span = Span::new(start, part).expect("the bounds are constants in order");
        VaZone { name, span }
    };
    vec![
        zone("low", 64 << 10, 1 << 40),
        zone("high", 1 << 40, 1 << 46),
    ]
}

/// A GPU mapping as one call made it.
#[derive(Debug)]
struct Mapping {
    span: Span,
    mem: MemId,
    access: Access,
    runs: Vec<Run>,
}

/// Contiguous memory behind an address.
#[derive(Clone, Debug)]
pub(crate) struct Translation {
    pub(crate) place: Place,
    /// Bytes from there to the end of the run.
    pub(crate) len: u64,
    pub(crate) access: Access,
}

/// The device's address space: reserved ranges and the page tables.
///
/// Page tables point to physical memory, not to objects: what has been mapped and not unmapped is
/// reached by the engine whatever became of the object.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    zones: Vec<VaZone>,
    /// Reserved ranges by start.
    ranges: BTreeMap<u64, Span>,
    /// Mappings by start. Disjoint; each inside one reserved range.
    mappings: BTreeMap<u64, Mapping>,
}

fn assert_pages(span: Span) {
    assert!(
        !span.is_empty() && PAGE.divides(span.start()) && PAGE.divides(span.len()),
        "{span} is not made of whole pages"
    );
}

impl AddressSpace {
    pub(crate) fn new(zones: Vec<VaZone>) -> Self {
        Self {
            zones,
            ranges: BTreeMap::new(),
            mappings: BTreeMap::new(),
        }
    }

    /// # Panics
    /// When the span is malformed, only partly in a zone, or overlaps a reserved range.
    pub(crate) fn reserve(&mut self, span: Span) {
        assert_pages(span);
        let mut zones = self.zones.iter().map(|zone| zone.span);
        assert!(
            zones.all(|zone| zone.covers(span) || !zone.overlaps(span)),
            "{span} leaves a zone"
        );
        let below = self.ranges.range(..span.end()).next_back();
        assert!(
            below.is_none_or(|(_, range)| !range.overlaps(span)),
            "{span} is already reserved"
        );
        self.ranges.insert(span.start(), span);
    }

    /// # Panics
    /// When the span is not exactly one reserved range, or something is mapped there.
    pub(crate) fn release(&mut self, span: Span) {
        assert_eq!(
            self.ranges.get(&span.start()),
            Some(&span),
            "{span} is no reserved range"
        );
        assert!(self.is_unmapped(span), "{span} still contains a mapping");
        self.ranges.remove(&span.start());
    }

    fn is_unmapped(&self, span: Span) -> bool {
        let below = self.mappings.range(..span.end()).next_back();
        below.is_none_or(|(_, mapping)| !mapping.span.overlaps(span))
    }

    /// # Panics
    /// When the span is malformed, not reserved, or partly mapped.
    pub(crate) fn map(&mut self, span: Span, mem: MemId, access: Access, runs: Vec<Run>) {
        assert_pages(span);
        let range = self.ranges.range(..=span.start()).next_back();
        assert!(
            range.is_some_and(|(_, range)| range.covers(span)),
            "{span} is not inside one reserved range"
        );
        assert!(self.is_unmapped(span), "{span} is already mapped");
        let mapping = Mapping {
            span,
            mem,
            access,
            runs,
        };
        self.mappings.insert(span.start(), mapping);
    }

    /// Removes the mappings that `span` consists of; the object of each.
    ///
    /// # Panics
    /// When the span is not tiled by whole mappings.
    pub(crate) fn unmap(&mut self, span: Span) -> Vec<MemId> {
        let mut at = span.start();
        while at < span.end() {
            let mapping = self.mappings.get(&at);
            let mapping = mapping.unwrap_or_else(|| panic!("no mapping starts at {at:#x}"));
            at = mapping.span.end();
        }
        assert_eq!(at, span.end(), "{span} ends inside a mapping");
        let starts = self.mappings.range(span.start()..span.end());
        let starts: Vec<u64> = starts.map(|(&start, _)| start).collect();
        starts
            .iter()
            .filter_map(|start| self.mappings.remove(start))
            .map(|mapping| mapping.mem)
            .collect()
    }

    /// The last page of a mapped span as a mapping of its own, for a planted defect.
    pub(crate) fn last_page(&self, span: Span) -> Option<(Span, MemId, Access, Vec<Run>)> {
        let last = Span::from_bounds(span.end().checked_sub(PAGE.bytes())?, span.end())?;
        let (_, mapping) = self.mappings.range(..=last.start()).next_back()?;
        let run = Run {
            at: 0,
            place: self.translate(Va(last.start()))?.place,
            len: last.len(),
        };
        Some((last, mapping.mem, mapping.access, vec![run]))
    }

    /// What the engine finds at `va`; `None` when no page is mapped there.
    pub(crate) fn translate(&self, va: Va) -> Option<Translation> {
        let (_, mapping) = self.mappings.range(..=va.0).next_back()?;
        if !mapping.span.contains(va.0) {
            return None;
        }
        let offset = va.0 - mapping.span.start();
        let next = mapping.runs.partition_point(|run| run.at <= offset);
        // INVARIANT: runs tile the mapping from 0 on, so one starts at or below any offset.
        let run = &mapping.runs[next - 1];
        let skip = offset - run.at;
        Some(Translation {
            place: run.place.offset(skip),
            len: run.len - skip,
            access: mapping.access,
        })
    }

    pub(crate) fn mapping_count(&self) -> u64 {
        self.mappings.len() as u64
    }

    pub(crate) fn range_count(&self) -> u64 {
        self.ranges.len() as u64
    }

    pub(crate) fn va_bytes(&self) -> u64 {
        self.ranges.values().map(|range| range.len()).sum()
    }
}
