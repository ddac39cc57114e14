//! What has been handed out: the back end's own books, from which its counters are read.

use std::collections::{BTreeMap, BTreeSet};

use std::sync::Arc;

use vrampager_addr::{PAGE_SIZE, Span};
use vrampager_hal::{ChannelId, Counters, CpuMapId, DeviceId, Fault, HostRange, MemId};
use vrampager_nv_abi::Handle;

use crate::channel::Channel;
use crate::context::Stages;
use crate::pages::Window;

/// Memory that objects of one or several devices show.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) size: u64,
    pub(crate) handle: Handle,
    /// The pinned pages of host memory.
    pub(crate) pages: Option<Window>,
    /// The device below which the driver has it, and by which of its opens.
    pub(crate) home: (DeviceId, u64),
    /// Whether the pages are somebody else's.
    pub(crate) imported: bool,
}

/// A physical object of one device.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) physical: Arc<Physical>,
    /// Keeps the owner by whom this device imported it; the one before may be another.
    pub(crate) _owner: Option<HostRange>,
}

/// A CPU mapping.
#[derive(Debug)]
pub(crate) struct CpuMap {
    /// Keeps the memory mapped, as views of it do; gone when only the driver's part is left.
    pub(crate) window: Option<Window>,
    /// Bytes of the aperture.
    pub(crate) aperture: u64,
    /// What the driver keeps of it.
    pub(crate) stages: Stages,
}

/// Everything handed out by one open device, except timelines.
#[derive(Debug, Default)]
pub(crate) struct Books {
    next: u64,
    next_channel: u32,
    pub(crate) objects: BTreeMap<MemId, Object>,
    pub(crate) cpu_maps: BTreeMap<CpuMapId, CpuMap>,
    /// Reserved ranges by start.
    pub(crate) ranges: BTreeMap<u64, Span>,
    /// GPU mappings by start.
    pub(crate) gpu_maps: BTreeMap<u64, Span>,
    pub(crate) channels: BTreeMap<ChannelId, Channel>,
    pub(crate) faults: Vec<Fault>,
    /// What failed to be undone when a call failed: held by nobody, tried again later.
    pub(crate) quarantine: Vec<Stages>,
}

/// Handles in use below the ones that the driver makes up.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    used: BTreeSet<Handle>,
    next: Handle,
}

impl Pins {
    const FIRST: Handle = 0x1_0000;
    const COUNT: Handle = 1 << 28;

    pub(crate) fn take(&mut self) -> Handle {
        loop {
            let handle = Self::FIRST + self.next;
            self.next = (self.next + 1) % Self::COUNT;
            if self.used.insert(handle) {
                return handle;
            }
        }
    }

    pub(crate) fn put(&mut self, handle: Handle) {
        self.used.remove(&handle);
    }
}

impl Books {
    /// A number that no other thing of this device has had.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Takes memory in as an object.
    pub(crate) fn add(&mut self, physical: Arc<Physical>, owner: Option<HostRange>) -> MemId {
        let id = MemId(self.number());
        let object = Object {
            physical,
            _owner: owner,
        };
        self.objects.insert(id, object);
        id
    }

    /// An id for a channel; no program makes 2^32 of them.
    pub(crate) fn channel_id(&mut self) -> ChannelId {
        self.next_channel += 1;
        ChannelId(self.next_channel)
    }

    /// # Panics
    /// When there is no such object.
    pub(crate) fn object(&self, id: MemId) -> &Object {
        let object = self.objects.get(&id);
        object.unwrap_or_else(|| panic!("{id:?} does not exist"))
    }

    /// # Panics
    /// When there is no such channel.
    pub(crate) fn channel_mut(&mut self, id: ChannelId) -> &mut Channel {
        let channel = self.channels.get_mut(&id);
        channel.unwrap_or_else(|| panic!("{id:?} does not exist"))
    }

    /// Bytes of the aperture that mappings take.
    pub(crate) fn aperture(&self) -> u64 {
        self.cpu_maps.values().map(|map| map.aperture).sum()
    }

    /// # Panics
    /// When the span overlaps a reserved range.
    pub(crate) fn check_unreserved(&self, span: Span) {
        let below = self.ranges.range(..span.end()).next_back();
        assert!(
            below.is_none_or(|(_, range)| !range.overlaps(span)),
            "{span} is already reserved"
        );
    }

    /// # Panics
    /// When the span is not inside one reserved range, or partly mapped: the driver would replace
    /// what is there.
    pub(crate) fn check_mappable(&self, span: Span) {
        let range = self.ranges.range(..=span.start()).next_back();
        assert!(
            range.is_some_and(|(_, range)| range.covers(span)),
            "{span} is not inside one reserved range"
        );
        assert!(self.is_unmapped(span), "{span} is already mapped");
    }

    /// # Panics
    /// When the span is not exactly one reserved range without mappings.
    pub(crate) fn check_releasable(&self, span: Span) {
        let range = self.ranges.get(&span.start());
        assert_eq!(range, Some(&span), "{span} is no reserved range");
        assert!(self.is_unmapped(span), "{span} still contains a mapping");
    }

    /// Starts of the mappings that tile the span.
    ///
    /// # Panics
    /// When they do not.
    pub(crate) fn tiles(&self, span: Span) -> Vec<u64> {
        let (mut at, mut starts) = (span.start(), Vec::new());
        while at < span.end() {
            let mapping = self.gpu_maps.get(&at);
            let mapping = mapping.unwrap_or_else(|| panic!("no mapping starts at {at:#x}"));
            starts.push(at);
            at = mapping.end();
        }
        assert_eq!(at, span.end(), "{span} ends inside a mapping");
        starts
    }

    fn is_unmapped(&self, span: Span) -> bool {
        let below = self.gpu_maps.range(..span.end()).next_back();
        below.is_none_or(|(_, mapping)| !mapping.overlaps(span))
    }

    /// What is held, with this many timelines.
    pub(crate) fn counters(&self, timelines: u64) -> Counters {
        let objects = || self.objects.values().map(|object| &object.physical);
        let bytes: u64 = objects().map(|physical| physical.size).sum();
        let imported = objects().filter(|physical| physical.imported);
        let pinned: u64 = imported.map(|physical| physical.size).sum();
        Counters {
            objects: self.objects.len() as u64,
            mappings: (self.cpu_maps.len() + self.gpu_maps.len()) as u64,
            ranges: self.ranges.len() as u64,
            va_bytes: self.ranges.values().map(|range| range.len()).sum(),
            pages: bytes / PAGE_SIZE,
            pinned: pinned / PAGE_SIZE,
            channels: self.channels.len() as u64,
            timelines,
        }
    }
}
