//! Snapshots for people and tests.

use crate::buffer::{Buffer, BufferId, Pages};
use crate::device::{Device, Reach};
use crate::error::{Domain, DomainReport, Error, Shortage};
use crate::moves::Ghost;
use crate::placement::{MemType, Place, Placement};
use crate::task::TaskId;

/// Bytes moved and events counted since the device was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Read from files that back clean buffers.
    pub file_read: u64,
    /// Moved from host memory or files to a domain of the device. Reads and writes by the CPU are
    /// not moves.
    pub host_to_device: u64,
    /// Moved from a domain of the device to host memory.
    pub device_to_host: u64,
    /// Clean content dropped instead of being copied.
    pub dropped_clean: u64,
    /// Written to the swap file.
    pub swap_written: u64,
    /// Read from the swap file.
    pub swap_read: u64,
    /// Buffers evicted from a domain to make room.
    pub evictions: u64,
    /// Requests that gave up their reservations to an older one and started over.
    pub backoffs: u64,
    /// Steps that failed and were undone.
    pub rollbacks: u64,
}

/// The device at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Every registered domain, then host pages and swap.
    pub domains: Vec<DomainReport>,
    /// Live buffers.
    pub buffers: usize,
    /// Requests at work or waiting.
    pub tasks: usize,
    /// Released memory that has not come back yet, in pieces.
    pub ghosts: usize,
    /// Pieces that the device would not take back.
    pub quarantined: usize,
    /// GPU address bytes of live buffers and ghosts.
    pub va_bytes: u64,
    /// Sums since opening.
    pub totals: Totals,
}

impl Device {
    /// The device at this moment.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut domains = Vec::new();
        for (mem_type, slot) in self.registered_slots() {
            if slot.reach != Reach::Unreachable {
                domains.push(self.report(Domain::Memory(mem_type), None));
            }
        }
        domains.push(self.report(Domain::HostPages, None));
        domains.push(self.report(Domain::Swap, None));
        let va_bytes = self.config.addresses.len() - self.va.free_bytes();
        Snapshot {
            domains,
            buffers: self.buffers.len(),
            tasks: self.tasks.len(),
            ghosts: self.ghosts.len(),
            quarantined: self.quarantined.len(),
            va_bytes,
            totals: self.totals,
        }
    }

    /// What fills `domain`, as seen by the request `own`.
    fn report(&self, domain: Domain, own: Option<TaskId>) -> DomainReport {
        let space = match domain {
            Domain::Memory(mem_type) => {
                let slot = self.slots[mem_type.slot()].as_ref();
                slot.map(|slot| slot.manager.space()).unwrap_or_default()
            }
            Domain::HostPages => self.pool.0.space(),
            Domain::Swap => self.swap.space(),
        };
        let mut report = DomainReport::new(domain, space);
        for buffer in self
            .buffers
            .values()
            .filter(|buffer| buffer.occupies(domain))
        {
            let size = buffer.size();
            match buffer.holder {
                _ if buffer.pins > 0 || buffer.stuck.is_some() => report.pinned += size,
                Some(holder) if Some(holder) == own => report.own += size,
                Some(_) => report.reserved += size,
                None => {}
            }
        }
        let of = |ghosts: &mut dyn Iterator<Item = &Ghost>| -> u64 {
            ghosts
                .filter(|ghost| ghost.occupies(domain))
                .map(|ghost| ghost.size)
                .sum()
        };
        report.pending = of(&mut self.ghosts.iter());
        report.quarantined = of(&mut self.quarantined.iter());
        report
    }

    /// Explains why `id` found no place in `placement`.
    pub(crate) fn out_of_memory(&self, task: TaskId, id: BufferId, placement: &Placement) -> Error {
        let buffer = &self.buffers[id];
        let uses = self.tasks[task].buffers();
        let request = uses
            .map(|used| self.buffers.get(used).map_or(0, Buffer::size))
            .sum();
        let mut domains: Vec<Domain> = placement
            .places()
            .iter()
            .map(|place| Domain::Memory(place.mem_type))
            .collect();
        domains.retain(|&domain| domain != Domain::Memory(MemType::SYSTEM));
        let hops = |place: &Place| self.needs_hop(id, place.mem_type);
        if placement.places().iter().any(hops) {
            domains.push(Domain::Memory(MemType::GTT));
        }
        domains.push(Domain::HostPages);
        if self.config.swap > 0 {
            domains.push(Domain::Swap);
        }
        Error::OutOfMemory(Box::new(Shortage {
            buffer: buffer.name.clone(),
            needed: buffer.size(),
            request,
            domains: domains
                .into_iter()
                .map(|each| self.report(each, Some(task)))
                .collect(),
            cause: self.tasks[task].cause.clone(),
        }))
    }
}

impl Buffer {
    fn occupies(&self, domain: Domain) -> bool {
        match domain {
            Domain::Memory(mem_type) => self.mem_type() == Some(mem_type),
            Domain::HostPages => matches!(self.pages, Pages::Populated(_)),
            Domain::Swap => self.is_swapped(),
        }
    }
}

impl Ghost {
    fn occupies(&self, domain: Domain) -> bool {
        match domain {
            Domain::Memory(mem_type) => self
                .resource
                .as_ref()
                .is_some_and(|resource| resource.mem_type == mem_type),
            Domain::HostPages => !self.pages.is_empty(),
            Domain::Swap => false,
        }
    }
}
