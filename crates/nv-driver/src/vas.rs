//! GPU address spaces: which bytes of which memory a GPU address means.

use std::collections::BTreeMap;

use vrampager_addr::Span;

use crate::FileId;
use crate::rm::MemId;

/// Names an address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct VasId(pub(crate) u64);

/// What a GPU may do with mapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    ReadOnly,
    ReadWrite,
}

/// Who made a mapping, and so who takes it away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// `RM_MAP_MEMORY_DMA`: goes with either object.
    Rm,
    /// `UVM_MAP_EXTERNAL_ALLOCATION`: holds a reference to the memory.
    Uvm,
}

/// Memory mapped from some address on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) len: u64,
    pub(crate) mem: MemId,
    pub(crate) offset: u64,
    pub(crate) access: Access,
    pub(crate) origin: Origin,
}

impl Entry {
    /// The part that starts `skip` bytes later and has `len` bytes.
    fn part(self, skip: u64, len: u64) -> Self {
        Self {
            offset: self.offset + skip,
            len,
            ..self
        }
    }
}

/// An address space of one GPU.
#[derive(Debug)]
pub(crate) struct Vas {
    pub(crate) gpu: usize,
    /// Another driver owns the page tables: only UVM maps into it.
    pub(crate) external: bool,
    /// Faults can be replayed, which UVM demands.
    pub(crate) faulting: bool,
    /// The UVM file it is registered with.
    pub(crate) uvm: Option<FileId>,
    /// Objects and registrations that keep it.
    pub(crate) refs: u32,
    pub(crate) table: Table,
}

/// Mappings by start; they do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: BTreeMap<u64, Entry>,
}

/// What cutting a range out of a table did to references.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Carved {
    /// One per mapping of UVM that is gone.
    pub(crate) released: Vec<MemId>,
    /// One per mapping of UVM that was cut in two.
    pub(crate) retained: Vec<MemId>,
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Who made each mapping.
    pub(crate) fn origins(&self) -> impl Iterator<Item = Origin> + '_ {
        self.entries.values().map(|entry| entry.origin)
    }

    /// The mapping that has `address`, with its start.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, Entry)> {
        let (&start, entry) = self.entries.range(..=address).next_back()?;
        (address - start < entry.len).then_some((start, *entry))
    }

    /// The mapping that starts at `start`.
    pub(crate) fn starting_at(&self, start: u64) -> Option<Entry> {
        self.entries.get(&start).copied()
    }

    /// Mappings that share a byte with `span`, by start.
    pub(crate) fn overlapping(&self, span: Span) -> impl Iterator<Item = (u64, Entry)> + '_ {
        let first = self
            .find(span.start())
            .map_or(span.start(), |(start, _)| start);
        self.entries
            .range(first..span.end())
            .map(|(&start, entry)| (start, *entry))
    }

    /// Adds a mapping where there is none.
    pub(crate) fn insert(&mut self, start: u64, entry: Entry) {
        let span = Span::new(start, entry.len).expect("mappings end inside the address space");
        assert!(
            self.overlapping(span).next().is_none(),
            "mappings never overlap"
        );
        self.entries.insert(start, entry);
    }

    pub(crate) fn remove(&mut self, start: u64) -> Option<Entry> {
        self.entries.remove(&start)
    }

    /// Unmaps `span` in a table of UVM; mappings that stick out of it keep the part outside.
    pub(crate) fn carve(&mut self, span: Span) -> Carved {
        let mut carved = Carved::default();
        let hit: Vec<(u64, Entry)> = self.overlapping(span).collect();
        for (start, entry) in hit {
            assert_eq!(
                entry.origin,
                Origin::Uvm,
                "only UVM maps into the address spaces it owns"
            );
            self.entries.remove(&start);
            let end = start + entry.len;
            let head = span.start().saturating_sub(start);
            let tail = end.saturating_sub(span.end());
            if head > 0 {
                self.entries.insert(start, entry.part(0, head));
            }
            if tail > 0 {
                self.entries
                    .insert(span.end(), entry.part(entry.len - tail, tail));
            }
            match (head > 0, tail > 0) {
                (true, true) => carved.retained.push(entry.mem),
                (false, false) => carved.released.push(entry.mem),
                (true, false) | (false, true) => {}
            }
        }
        carved
    }

    /// Lowest free address in `within` for `len` bytes, a multiple of `align`.
    pub(crate) fn gap(&self, within: Span, len: u64, align: vrampager_addr::Align) -> Option<u64> {
        let mut at = align.up(within.start())?;
        for (start, entry) in self.overlapping(within) {
            if start >= at && start - at >= len {
                break;
            }
            at = at.max(align.up(start + entry.len)?);
        }
        let end = at.checked_add(len)?;
        (end <= within.end()).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(len: u64, offset: u64) -> Entry {
        Entry {
            len,
            mem: MemId(1),
            offset,
            access: Access::ReadWrite,
            origin: Origin::Uvm,
        }
    }

    fn span(start: u64, len: u64) -> Span {
        Span::new(start, len).unwrap()
    }

    #[test]
    fn cutting_the_middle_leaves_both_ends_with_their_bytes() {
        let mut table = Table::default();
        table.insert(100, entry(30, 1000));
        let carved = table.carve(span(110, 5));
        assert_eq!(
            carved,
            Carved {
                released: vec![],
                retained: vec![MemId(1)]
            }
        );
        assert_eq!(table.find(109), Some((100, entry(10, 1000))));
        assert_eq!(table.find(112), None);
        assert_eq!(table.find(115), Some((115, entry(15, 1015))));
    }

    #[test]
    fn every_cut_of_a_small_table_leaves_exactly_the_bytes_outside() {
        for (start, len) in (0..12).flat_map(|s| (1..12).map(move |l| (s, l))) {
            let mut table = Table::default();
            table.insert(2, entry(3, 50));
            table.insert(6, entry(4, 80));
            table.carve(span(start, len));
            for address in 0..14_u64 {
                let before = match address {
                    2..=4 => Some(50 + address - 2),
                    6..=9 => Some(80 + address - 6),
                    _ => None,
                };
                let cut = (start..start + len).contains(&address);
                let now = table.find(address).map(|(at, e)| e.offset + address - at);
                assert_eq!(
                    now,
                    before.filter(|_| !cut),
                    "{address} after {start}+{len}"
                );
            }
        }
    }

    #[test]
    fn the_lowest_gap_that_fits_is_found() {
        let mut table = Table::default();
        table.insert(0x1000, entry(0x1000, 0));
        table.insert(0x3000, entry(0x1000, 0));
        let page = vrampager_addr::PAGE;
        assert_eq!(table.gap(span(0x1000, 0x10000), 0x1000, page), Some(0x2000));
        assert_eq!(table.gap(span(0x1000, 0x10000), 0x2000, page), Some(0x4000));
        assert_eq!(table.gap(span(0x1000, 0x3000), 0x2000, page), None);
    }
}
