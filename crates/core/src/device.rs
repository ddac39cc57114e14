//! The device: one state machine over all buffers and domains.

use std::collections::VecDeque;

use slotmap::SlotMap;
use vrampager_addr::{PAGE, PAGE_SIZE, Span, Va};
use vrampager_hal::{DeviceLossCause, Fence, GpuMap, MemId, TimelineId};
use vrampager_space::{BuddyRequest, RangeAllocator, RangeRequest};

use crate::buffer::{Buffer, BufferDesc, BufferId, Pages, Resource, State, Target, Use};
use crate::error::Error;
use crate::fence::{FenceSet, Reached};
use crate::lru::{ListId, Lru};
use crate::manager::{Blocks, Fit, ResourceManager, Space, SystemManager};
use crate::moves::Ghost;
use crate::placement::{MemType, Place};
use crate::stats::Totals;
use crate::task::{Kind, Locks, Task, TaskId, Ticket};

/// What the device consists of, constant while it is open.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The host object that all host pages are part of.
    pub host: MemId,
    /// The part of it that makes up the page pool.
    pub pages: Span,
    /// GPU addresses for buffers.
    pub addresses: Span,
    /// Bytes of the swap file; 0 for none.
    pub swap: u64,
}

/// How the copy engine and GPU mappings reach a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// The domain has memory of its own: all of `mem` is mapped at `base` for the copy engine.
    Own {
        /// The object.
        mem: MemId,
        /// Its window.
        base: Va,
    },
    /// The domain is a window onto host pages; a resource binds its pages there.
    Window {
        /// First address of the window.
        base: Va,
    },
    /// Host pages that the device does not see.
    Unreachable,
}

/// One slot of the table of managers (mission row D1).
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) manager: Box<dyn ResourceManager>,
    pub(crate) reach: Reach,
    /// Where victims go, first choice first (TTM `evict_flags`).
    pub(crate) evict_to: Vec<Place>,
    /// Bytes of all its resources, ghosts and moves included.
    pub(crate) usage: u64,
}

/// Host pages behind SYSTEM and GTT, bounded by the pool's size (mission row D2).
#[derive(Debug)]
pub(crate) struct Pool(pub(crate) Blocks);

impl Pool {
    pub(crate) fn carve(&mut self, size: u64) -> Option<Vec<Span>> {
        self.0.carve(&BuddyRequest::new(size))
    }

    pub(crate) fn free(&mut self, pages: &[Span]) {
        self.0.free(pages);
    }
}

/// The swap file's space; `None` without a swap file.
#[derive(Debug)]
pub(crate) struct Swap(pub(crate) Option<RangeAllocator>, pub(crate) u64);

impl Swap {
    pub(crate) fn carve(&mut self, size: u64) -> Option<Span> {
        self.0
            .as_mut()?
            .insert(&RangeRequest::new(size).align(PAGE_SIZE))
            .ok()
    }

    pub(crate) fn free(&mut self, slot: Span) {
        let removed = self.0.as_mut().and_then(|space| space.remove(slot.start()));
        assert_eq!(removed, Some(slot), "a freed slot is live");
    }

    pub(crate) fn space(&self) -> Space {
        let Some(ranges) = &self.0 else {
            return Space::default();
        };
        Space {
            size: self.1,
            free: ranges.free_bytes(),
            largest: ranges.largest_hole(),
        }
    }
}

/// A GPU's memory as a state machine: no threads, no clock, no calls to the outside.
///
/// A request becomes a task ([`create`](Self::create), [`exec`](Self::exec),
/// [`reap`](Self::reap)), and [`step`](Self::step) says what it needs next. Effects are performed
/// by the caller with the device unlocked while the buffer concerned is reserved, and reported to
/// [`performed`](Self::performed), which commits or undoes. The same calls in the same order give
/// the same steps, always.
#[derive(Debug)]
pub struct Device {
    pub(crate) config: Config,
    pub(crate) slots: [Option<Slot>; MemType::COUNT],
    pub(crate) pool: Pool,
    pub(crate) swap: Swap,
    pub(crate) va: RangeAllocator,
    pub(crate) buffers: SlotMap<BufferId, Buffer>,
    pub(crate) tasks: SlotMap<TaskId, Task>,
    pub(crate) locks: Locks,
    pub(crate) lru: Lru,
    pub(crate) ghosts: VecDeque<Ghost>,
    pub(crate) quarantined: Vec<Ghost>,
    pub(crate) reached: Reached,
    pub(crate) totals: Totals,
    pub(crate) lost: Option<DeviceLossCause>,
    next_ticket: u64,
    epoch: u64,
    #[cfg(feature = "planted-bugs")]
    planted: Option<PlantedBug>,
}

/// Defects that can be switched on to see that the checks find them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "for tests only")
)]
pub enum PlantedBug {
    /// A moved buffer's GPU mapping is not removed.
    StaleMapping,
    /// Host pages are reused while a copy still reads them.
    EarlyPageReuse,
    /// A dirty victim is dropped as if it were clean.
    DirtyDropped,
    /// A failed move's space stays counted.
    LostUncharge,
}

impl Device {
    /// A device with the SYSTEM domain registered (TTM D5).
    ///
    /// # Panics
    /// When `config` holds an empty or unaligned page pool or address range.
    #[must_use]
    pub fn new(config: Config) -> Self {
        assert!(!config.addresses.is_empty(), "buffers need addresses");
        let swap = Span::new(0, config.swap).filter(|span| !span.is_empty());
        let mut device = Self {
            config,
            slots: Default::default(),
            pool: Pool(Blocks::new(config.pages.len())),
            swap: Swap(swap.map(RangeAllocator::new), config.swap),
            va: RangeAllocator::new(config.addresses),
            buffers: SlotMap::with_key(),
            tasks: SlotMap::with_key(),
            locks: Locks::default(),
            lru: Lru::default(),
            ghosts: VecDeque::new(),
            quarantined: Vec::new(),
            reached: Reached::default(),
            totals: Totals::default(),
            lost: None,
            next_ticket: 0,
            epoch: 0,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        };
        device.register(
            MemType::SYSTEM,
            Box::new(SystemManager),
            Reach::Unreachable,
            &[],
        );
        device
    }

    /// Registers a domain; `evict_to` are the places its victims may go to, first choice first.
    ///
    /// # Panics
    /// When the slot is taken.
    pub fn register(
        &mut self,
        mem_type: MemType,
        manager: Box<dyn ResourceManager>,
        reach: Reach,
        evict_to: &[Place],
    ) {
        let slot = &mut self.slots[mem_type.slot()];
        assert!(slot.is_none(), "{mem_type} is registered once");
        *slot = Some(Slot {
            manager,
            reach,
            evict_to: evict_to.to_vec(),
            usage: 0,
        });
    }

    /// Switches a defect on.
    #[cfg(feature = "planted-bugs")]
    pub fn plant(&mut self, bug: PlantedBug) {
        self.planted = Some(bug);
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn is_planted(&self, bug: PlantedBug) -> bool {
        self.planted == Some(bug)
    }

    #[cfg(not(feature = "planted-bugs"))]
    #[expect(clippy::unused_self, reason = "same shape as with the feature")]
    pub(crate) const fn is_planted(&self, _bug: PlantedBug) -> bool {
        false
    }

    /// Reports how far a timeline has come.
    pub fn observe(&mut self, timeline: TimelineId, value: u64) {
        self.reached.observe(timeline, value);
    }

    /// Changes whenever a blocked task may be able to go on.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn bump_epoch(&mut self) {
        self.epoch += 1;
    }

    /// Begins to create a buffer.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty buffer or one larger than the address space,
    /// [`Error::DeviceLost`].
    pub fn create(&mut self, desc: &BufferDesc) -> Result<TaskId, Error> {
        self.alive()?;
        let size = PAGE
            .up(desc.len)
            .filter(|&size| size <= self.config.addresses.len());
        let size = size.ok_or(Error::Invalid("buffer is larger than the address space"))?;
        if size == 0 {
            return Err(Error::Invalid("buffer is empty"));
        }
        self.usable(&desc.placement)?;
        let buffer = Buffer {
            name: desc.name.clone(),
            len: desc.len,
            va: Span::new(0, size).expect("bounded by the address space"),
            placement: desc.placement.clone(),
            priority: desc.priority,
            state: State::Clean(desc.content),
            resource: None,
            pages: Pages::Absent,
            mapped: false,
            stuck: None,
            fences: FenceSet::default(),
            pins: 0,
            holder: None,
            deleted: false,
            position: None,
        };
        Ok(self.add_task(Kind::Create(Box::new(buffer))))
    }

    /// Begins to reserve and place buffers; each is named once or more, and used by the strongest
    /// access asked for. A grant shows each once, in the order in which they are first named.
    ///
    /// # Errors
    /// [`Error::NoSuchBuffer`], [`Error::Invalid`] when a use names a domain that the device lacks
    /// or two uses want a buffer in different places, [`Error::DeviceLost`].
    pub fn exec(&mut self, uses: &[Use]) -> Result<TaskId, Error> {
        self.alive()?;
        let mut merged: Vec<Use> = Vec::with_capacity(uses.len());
        let mut index = std::collections::BTreeMap::new();
        for each in uses {
            self.live(each.buffer)?;
            if let Target::Places(placement) = &each.target {
                self.registered(placement)?;
            }
            match index.get(&each.buffer) {
                None => {
                    index.insert(each.buffer, merged.len());
                    merged.push(each.clone());
                }
                Some(&at) => merge(&mut merged[at], each)?,
            }
        }
        Ok(self.add_task(Kind::Exec { uses: merged }))
    }

    /// Begins to bring back one piece of released memory.
    pub fn reap(&mut self) -> TaskId {
        self.add_task(Kind::Reap)
    }

    /// Releases a buffer. Never blocks and never fails: its memory and addresses come back when
    /// its fences are over and somebody reaps (TTM X1, mission row D7). Pins end with it.
    ///
    /// # Errors
    /// [`Error::NoSuchBuffer`].
    pub fn release(&mut self, id: BufferId) -> Result<(), Error> {
        self.live(id)?;
        let buffer = &mut self.buffers[id];
        buffer.deleted = true;
        if buffer.holder.is_none() {
            self.dispose(id);
        }
        Ok(())
    }

    /// Undoes one pin.
    ///
    /// # Errors
    /// [`Error::NoSuchBuffer`]; [`Error::Invalid`] when it is not pinned (TTM K6).
    pub fn unpin(&mut self, id: BufferId) -> Result<(), Error> {
        self.live(id)?;
        let buffer = &mut self.buffers[id];
        buffer.pins = buffer
            .pins
            .checked_sub(1)
            .ok_or(Error::Invalid("buffer is not pinned"))?;
        if buffer.pins == 0 {
            self.relocate(id);
            self.bump_epoch();
        }
        Ok(())
    }

    /// How a pinned buffer's addresses are mapped, for another device to map them alike (mission
    /// row A8).
    ///
    /// # Errors
    /// [`Error::NoSuchBuffer`]; [`Error::Invalid`] when it is not pinned where the device sees it.
    pub fn mappings(&self, id: BufferId) -> Result<Vec<GpuMap>, Error> {
        self.live(id)?;
        let buffer = &self.buffers[id];
        if buffer.pins == 0 || !buffer.mapped {
            return Err(Error::Invalid("buffer is not pinned"));
        }
        Ok(self.maps(id))
    }

    /// Where a buffer's bytes are at present; `None` while they are only in its source.
    ///
    /// # Errors
    /// [`Error::NoSuchBuffer`].
    pub fn residency(&self, id: BufferId) -> Result<Option<MemType>, Error> {
        self.live(id)?;
        Ok(self.buffers[id].mem_type())
    }

    /// Fences of released memory that wait for the device, oldest piece first.
    #[must_use]
    pub fn next_ghost(&self) -> Option<&[Fence]> {
        self.ghosts.front().map(|ghost| ghost.fences.as_slice())
    }

    fn add_task(&mut self, kind: Kind) -> TaskId {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.tasks.insert(Task::new(ticket, kind))
    }

    pub(crate) fn alive(&self) -> Result<(), Error> {
        self.lost
            .map_or(Ok(()), |cause| Err(Error::DeviceLost(cause)))
    }

    fn live(&self, id: BufferId) -> Result<(), Error> {
        let live = self.buffers.get(id).is_some_and(|buffer| !buffer.deleted);
        live.then_some(()).ok_or(Error::NoSuchBuffer)
    }

    fn registered(&self, placement: &crate::Placement) -> Result<(), Error> {
        let known = |place: &Place| self.slots[place.mem_type.slot()].is_some();
        let all = placement.places().iter().all(known);
        all.then_some(())
            .ok_or(Error::Invalid("placement names a domain the device lacks"))
    }

    fn usable(&self, placement: &crate::Placement) -> Result<(), Error> {
        self.registered(placement)?;
        let reached = |place: &Place| self.reach(place.mem_type) != Some(Reach::Unreachable);
        let all = placement.places().iter().all(reached);
        all.then_some(()).ok_or(Error::Invalid(
            "placement names a domain the device cannot reach",
        ))
    }

    pub(crate) fn reach(&self, mem_type: MemType) -> Option<Reach> {
        self.slots[mem_type.slot()].as_ref().map(|slot| slot.reach)
    }

    pub(crate) fn registered_slots(&self) -> impl Iterator<Item = (MemType, &Slot)> {
        let slots = (0..).map(MemType).zip(&self.slots);
        slots.filter_map(|(mem_type, slot)| Some((mem_type, slot.as_ref()?)))
    }

    pub(crate) fn slot_mut(&mut self, mem_type: MemType) -> &mut Slot {
        self.slots[mem_type.slot()]
            .as_mut()
            .expect("a resource's domain is registered")
    }

    pub(crate) fn carve(&mut self, place: &Place, size: u64) -> Option<Resource> {
        let slot = self.slots[place.mem_type.slot()].as_mut()?;
        let Fit::Placed(extents) = slot.manager.alloc(size, place) else {
            return None;
        };
        assert!(
            slot.manager.compatible(&extents, place),
            "a manager carves what its place asks for"
        );
        slot.usage += size;
        Some(Resource {
            mem_type: place.mem_type,
            extents,
        })
    }

    pub(crate) fn uncarve(&mut self, resource: &Resource, size: u64) {
        let slot = self.slot_mut(resource.mem_type);
        slot.manager.free(&resource.extents);
        slot.usage -= size;
    }

    pub(crate) fn va_free(&mut self, va: Span) {
        let removed = self.va.remove(va.start());
        assert_eq!(removed, Some(va), "freed addresses are live");
    }

    /// Puts a buffer at the tail of the list it belongs on now (TTM L1, D15).
    pub(crate) fn relocate(&mut self, id: BufferId) {
        let buffer = &mut self.buffers[id];
        if let Some(position) = buffer.position.take() {
            self.lru.remove(position);
        }
        let Some(mem_type) = buffer.mem_type() else {
            return;
        };
        let fixed = buffer.pins > 0 || buffer.stuck.is_some() || buffer.is_swapped();
        let list = if fixed {
            ListId::Unevictable
        } else {
            ListId::Evictable(mem_type, buffer.priority)
        };
        buffer.position = Some(self.lru.push(list, id));
    }

    /// Turns a released buffer into a ghost.
    pub(crate) fn dispose(&mut self, id: BufferId) {
        let mut buffer = self.buffers.remove(id).expect("a released buffer exists");
        assert!(
            buffer.holder.is_none(),
            "a reserved buffer is disposed of when unreserved"
        );
        if let Some(position) = buffer.position.take() {
            self.lru.remove(position);
        }
        let mut unmap = Vec::new();
        unmap.extend(buffer.mapped.then_some(buffer.va));
        let windowed = buffer.mem_type().and_then(|mem_type| self.reach(mem_type));
        if let (Some(Reach::Window { base }), Some(resource)) = (windowed, &buffer.resource) {
            unmap.extend(crate::moves::gpu_spans(base, &resource.extents));
        }
        let size = buffer.size();
        let fences = buffer.fences.pending(&self.reached);
        let pages = match buffer.pages {
            Pages::Populated(pages) => pages,
            Pages::Absent => Vec::new(),
            Pages::Swapped(slot) => {
                self.swap.free(slot);
                Vec::new()
            }
        };
        let va = Some(buffer.va);
        let ghost = Ghost {
            fences,
            unmap,
            va,
            resource: buffer.resource,
            pages,
            size,
        };
        if buffer.stuck.is_some() {
            self.quarantine(ghost);
        } else {
            self.ghosts.push_back(ghost);
        }
        self.bump_epoch();
    }

    pub(crate) fn entomb(&mut self, mut ghost: Ghost) {
        if self.is_planted(PlantedBug::EarlyPageReuse) {
            ghost.fences.clear();
        }
        self.ghosts.push_back(ghost);
    }

    pub(crate) fn quarantine(&mut self, ghost: Ghost) {
        self.quarantined.push(ghost);
    }

    /// Gives a ghost's space back to its domains.
    pub(crate) fn bury(&mut self, ghost: Ghost) {
        if let Some(resource) = &ghost.resource {
            self.uncarve(resource, ghost.size);
        }
        self.pool.free(&ghost.pages);
        if let Some(va) = ghost.va {
            self.va_free(va);
        }
        self.bump_epoch();
    }
}

/// Adds a second use of the same buffer to the first. The CPU takes the bytes wherever they are.
fn merge(first: &mut Use, each: &Use) -> Result<(), Error> {
    first.access = first.access.max(each.access);
    if first.target == Target::Cpu {
        first.target = each.target.clone();
    } else if each.target != Target::Cpu && each.target != first.target {
        return Err(Error::Invalid("a buffer is wanted in two places at once"));
    }
    Ok(())
}
