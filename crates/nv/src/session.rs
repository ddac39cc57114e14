//! An open device: the three contracts behind [`Gpu`](vrampager_hal::Gpu).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use vrampager_addr::{PAGE, PAGE_SIZE, Span};
use vrampager_hal::{
    ChannelId, ChannelKind, Counters, CpuMapId, CpuMapping, DeviceId, DeviceInfo, DeviceLossCause,
    Fault, Fence, GpuMap, HalError, Heap, HostRange, MemId, Memory, Op, Queue, Release, TimelineId,
};
use vrampager_nv_abi::{Handle, Node, class, ctrl};
use zerocopy::{FromZeros, IntoBytes};

use crate::books::{Books, CpuMap, Physical};
use crate::channel;
use crate::context::{Shared, Stages, Undo};
use crate::device::Device;
use crate::discovery::Slot;
use crate::door::Progress;
use crate::error::Refusal;
use crate::pages::Window;
use crate::rm::{CPU_MAP, Site};
use crate::timeline::Timelines;

/// One open of a device. Dropping the last owner closes it.
#[derive(Debug)]
pub(crate) struct Session {
    device: Device,
    info: DeviceInfo,
    slot: Arc<Slot>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` once closed.
    timelines: Option<Timelines>,
    /// Stages of bring-up.
    stages: Stages,
    books: Books,
}

const CLOSED: HalError = HalError::DeviceLost(DeviceLossCause::Removed);
/// Objects from here on get large pages if they are made of whole ones.
const LARGE: u64 = 8 << 20;
const LARGE_PAGE: u64 = 2 << 20;

/// The largest object that `free` bytes can be made into without losing large pages.
pub(crate) fn whole_pages(free: u64) -> u64 {
    let page = if free >= LARGE { LARGE_PAGE } else { PAGE_SIZE };
    free / page * page
}

impl Session {
    /// Takes over a device that `stages` have brought up.
    pub(crate) fn new(
        device: Device,
        stages: Stages,
        timelines: Timelines,
        (info, slot): (DeviceInfo, Arc<Slot>),
    ) -> Self {
        let state = State {
            timelines: Some(timelines),
            stages,
            books: Books::default(),
        };
        Self {
            device,
            info,
            slot,
            state: Mutex::new(state),
        }
    }

    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// A caller that broke the contract has panicked while it held the lock. Requests are checked
    /// before they change anything, so the state is whole, and the other users go on.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of a device that is open.
    fn open(&self) -> Result<MutexGuard<'_, State>, HalError> {
        let state = self.lock();
        if state.timelines.is_none() {
            return Err(CLOSED);
        }
        Ok(state)
    }

    /// The same for a call that takes something: rid of what an earlier one could not undo.
    fn taking(&self) -> Result<MutexGuard<'_, State>, HalError> {
        let mut state = self.open()?;
        let mut shared = self.shared();
        shared.retry(&self.device.link);
        state.books.quarantine.retain_mut(|stages| {
            // What is refused again waits for the next call.
            shared.unwind(&self.device.link, stages).is_err()
        });
        drop(shared);
        Ok(state)
    }

    /// What this device shares with others; locked behind its own state.
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.device.context.lock()
    }

    /// Undoes the stages of a call that failed; what the driver will not undo is quarantined.
    fn abandon(&self, books: &mut Books, mut stages: Stages) {
        if self.device.unwind(&mut stages).is_err() {
            books.quarantine.push(stages);
        }
    }

    /// The state of a device that is open, for a call of the release contract; `None` when there
    /// is nothing left to give back.
    fn holding(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.lock();
        state.timelines.is_some().then_some(state)
    }

    fn new_vram(&self, size: u64) -> Result<Handle, Refusal> {
        use class::mem;
        let mut params = class::MemoryAlloc::new_zeroed();
        params.owner = self.device.link.client.root;
        params.kind = mem::TYPE_IMAGE;
        params.flags = mem::IGNORE_BANK_PLACEMENT
            | mem::ALIGNMENT_FORCE
            | mem::MAP_NOT_REQUIRED
            | mem::PERSISTENT_VIDMEM;
        params.attr = mem::ATTR_ALLOW_NONCONTIGUOUS << mem::ATTR_PHYSICALITY_SHIFT;
        params.attr2 = 1 << mem::ATTR2_GPU_CACHEABLE_SHIFT;
        params.size = size;
        params.alignment = PAGE_SIZE;
        if size >= LARGE && size.is_multiple_of(LARGE_PAGE) {
            params.attr |= mem::ATTR_PAGE_SIZE_HUGE << mem::ATTR_PAGE_SIZE_SHIFT;
            params.attr2 |= 1 << mem::ATTR2_PAGE_SIZE_HUGE_SHIFT;
            params.alignment = LARGE_PAGE;
        }
        let site = Site {
            stage: "new device memory",
            parent: self.device.device,
            class: class::NV01_MEMORY_LOCAL_USER,
        };
        self.device.link.client.alloc(site, params.as_mut_bytes())
    }

    fn vram(&self, size: u64) -> Result<Physical, HalError> {
        let made = self.new_vram(size).map_err(|refusal| {
            let asked = refusal
                .is_no_memory()
                .then(|| self.device.memory_info(ctrl::fb::HEAP_FREE));
            refusal.at(Heap::Vram, Some(size), asked.and_then(Result::ok))
        });
        Ok(Physical {
            size,
            handle: made?,
            pages: None,
            home: self.home(),
            imported: false,
        })
    }

    fn home(&self) -> (DeviceId, u64) {
        (self.device.id, self.device.open)
    }

    /// Pins pages, whoever has them.
    fn pin(&self, shared: &mut Shared, pages: Window, imported: bool) -> Result<Physical, Refusal> {
        let (device, size) = (&self.device, pages.len());
        let handle = shared.pins.take();
        let names = (device.device, handle);
        let pinned = device.link.client.pin(device.node, names, &pages, size);
        pinned.inspect_err(|_| shared.pins.put(handle))?;
        Ok(Physical {
            size,
            handle,
            pages: Some(pages),
            home: self.home(),
            imported,
        })
    }

    fn host(&self, size: u64) -> Result<Physical, HalError> {
        let full = |refusal: Refusal| refusal.at(Heap::Host, Some(size), None);
        let pages = Window::anonymous(size)
            .map_err(|errno| full(Refusal::system("map host pages", errno)))?;
        self.pin(&mut self.shared(), pages, false).map_err(full)
    }

    /// The memory behind an object, for another device to show.
    pub(crate) fn show(&self, mem: MemId) -> Result<Arc<Physical>, HalError> {
        Ok(Arc::clone(&self.open()?.books.object(mem).physical))
    }

    /// Lets go of memory, which is freed if nobody else shows it.
    fn let_go(&self, physical: Arc<Physical>) -> Result<(), Refusal> {
        let mut shared = self.shared();
        let freed = shared.free_last(&self.device.link, &physical);
        drop(physical);
        freed
    }

    fn window(
        &self,
        books: &mut Books,
        handle: Handle,
        part: (u64, u64),
    ) -> Result<CpuMap, HalError> {
        let mut stages = Stages::new();
        let node = Node::Gpu(self.device.minor);
        match self.device.map_cpu(handle, node, part, &mut stages) {
            Ok((window, _)) => Ok(CpuMap {
                window: Some(window),
                aperture: part.1,
                stages,
            }),
            Err(refusal) => {
                self.abandon(books, stages);
                let size = self.info.aperture_bytes;
                Err(if refusal.is_no_aperture() {
                    HalError::OutOfAperture {
                        stage: CPU_MAP,
                        needed: part.1,
                        free: size.saturating_sub(books.aperture()),
                        size,
                    }
                } else {
                    refusal.into()
                })
            }
        }
    }

    /// Looks at all channels for faults since the last look.
    fn look(&self, books: &mut Books) {
        let looks = books.channels.values_mut();
        let found = looks.filter_map(|channel| channel.look(&self.device));
        books.faults.extend(found.collect::<Vec<_>>());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

impl Memory for Session {
    fn reserve_va(&self, span: Span) -> Result<(), HalError> {
        let mut state = self.taking()?;
        let mut zones = self.info.zones.iter().map(|zone| zone.span);
        assert!(
            zones.all(|zone| zone.covers(span) || !zone.overlaps(span)),
            "{span} leaves a zone"
        );
        state.books.check_unreserved(span);
        if let Some(used) = crate::zones::unusable(span) {
            return Err(HalError::Unsupported(used));
        }
        self.shared().reserve(&self.device.link, span)?;
        state.books.ranges.insert(span.start(), span);
        Ok(())
    }

    fn create(&self, heap: Heap, size: u64) -> Result<MemId, HalError> {
        assert!(
            size > 0 && PAGE.divides(size),
            "{size} is no size of an object"
        );
        let mut state = self.taking()?;
        let physical = match heap {
            Heap::Vram => self.vram(size)?,
            Heap::Host => self.host(size)?,
        };
        Ok(state.books.add(Arc::new(physical), None))
    }

    fn import(&self, host: &HostRange) -> Result<MemId, HalError> {
        let mut state = self.taking()?;
        let mut shared = self.shared();
        let physical = if let Some(known) = shared.imported(host) {
            known
        } else {
            let pinned = self.pin(&mut shared, Window::lent(host), true);
            let pinned =
                pinned.map_err(|refusal| refusal.at(Heap::Host, Some(host.len()), None))?;
            let physical = Arc::new(pinned);
            shared.remember_import(&physical);
            physical
        };
        Ok(state.books.add(physical, Some(host.clone())))
    }

    fn share(&self, from: DeviceId, mem: MemId) -> Result<MemId, HalError> {
        drop(self.taking()?);
        // One device is locked at a time: two of them may share with each other.
        let source = self.device.context.session(from);
        let source = source.ok_or(HalError::NoDevice(from))?;
        let physical = source.show(mem).map_err(|_| HalError::NoDevice(from))?;
        let (id, (owner, _)) = (self.device.id, physical.home);
        let reached = physical.pages.is_some() || self.shared().reaches(id, owner);
        let state = self.open().and_then(|state| match reached {
            true => Ok(state),
            false => Err(HalError::Unsupported("peer access between these devices")),
        });
        match state {
            Ok(mut state) => Ok(state.books.add(physical, None)),
            Err(error) => {
                // Should it be the last and refused, it goes with the device that made it.
                self.let_go(physical).ok();
                Err(error)
            }
        }
    }

    fn map_cpu(&self, mem: MemId, offset: u64, len: u64) -> Result<CpuMapping, HalError> {
        assert!(
            PAGE.divides(offset | len) && len > 0,
            "{offset}+{len} is not made of whole pages"
        );
        let mut state = self.taking()?;
        let books = &mut state.books;
        let physical = Arc::clone(&books.object(mem).physical);
        let map = match &physical.pages {
            Some(pages) => CpuMap {
                window: Some(pages.part(offset, len)),
                aperture: 0,
                stages: Stages::new(),
            },
            None if physical.home == self.home() => {
                self.window(books, physical.handle, (offset, len))?
            }
            None => {
                return Err(HalError::Unsupported(
                    "a CPU mapping of another device's VRAM",
                ));
            }
        };
        let id = CpuMapId(books.number());
        let mapping = map.window.as_ref().expect("made just now").mapping(id);
        books.cpu_maps.insert(id, map);
        Ok(mapping)
    }

    fn map_gpu(&self, map: GpuMap) -> Result<(), HalError> {
        let mut state = self.taking()?;
        let span = Span::new(map.va.0, map.len).expect("a mapping stays inside its range");
        state.books.check_mappable(span);
        let physical = &state.books.object(map.mem).physical;
        let (shared, (owner, _)) = (self.shared(), physical.home);
        if !shared.has(physical) {
            return Err(HalError::NoDevice(owner));
        }
        let heap = match physical.pages {
            Some(_) => Heap::Host,
            None => Heap::Vram,
        };
        // Page tables are what runs out; nobody knows how many are needed.
        self.device
            .map_gpu(span, (physical.handle, map.offset), map.access)
            .map_err(|refusal| refusal.at(heap, None, None))?;
        drop(shared);
        state.books.gpu_maps.insert(span.start(), span);
        Ok(())
    }
}

impl Queue for Session {
    fn create_timeline(&self) -> Result<TimelineId, HalError> {
        let mut state = self.open()?;
        let timelines = state.timelines.as_mut().expect("checked to be open");
        let full = Refusal::system("new timeline", Errno::NOMEM);
        timelines.create().ok_or(full.into())
    }

    fn create_channel(&self, _: ChannelKind) -> Result<ChannelId, HalError> {
        let mut state = self.taking()?;
        let books = &mut state.books;
        // Both kinds are on the runlist of the graphics engine, which has a copy engine too.
        let id = books.channel_id();
        let mut stages = Stages::new();
        match channel::create(&self.device, id, &mut stages) {
            Ok(mut channel) => {
                channel.stages = stages;
                books.channels.insert(id, channel);
                Ok(id)
            }
            Err(refusal) => {
                self.abandon(books, stages);
                Err(refusal.into())
            }
        }
    }

    fn submit(&self, channel: ChannelId, ops: &[Op]) -> Result<(), HalError> {
        let mut state = self.open()?;
        let State {
            timelines, books, ..
        } = &mut *state;
        let timelines = timelines.as_ref().expect("checked to be open");
        let Books {
            channels, faults, ..
        } = books;
        let channel = channels.get_mut(&channel);
        let channel = channel.expect("the channel exists");
        faults.extend(channel.look(&self.device));
        channel.submit(&self.device, ops, |fence| timelines.address(fence))
    }

    fn completed(&self, timeline: TimelineId) -> u64 {
        self.device.door().run();
        let mut state = self.lock();
        let timelines = state.timelines.as_mut();
        timelines.map_or(0, |timelines| timelines.completed(timeline))
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> Result<(), HalError> {
        /// Looks without a pause, and the pause between looks after those.
        const EAGER: u32 = 64;
        const PAUSE: Duration = Duration::from_micros(20);
        let start = Instant::now();
        let mut idle = 0;
        loop {
            let progress = self.device.door().run();
            {
                let mut state = self.open()?;
                let timelines = state.timelines.as_mut().expect("checked to be open");
                if timelines.completed(fence.timeline) >= fence.value {
                    return Ok(());
                }
                self.look(&mut state.books);
                let mut channels = state.books.channels.values();
                let stopped =
                    channels.find(|channel| channel.stopped.is_some() && channel.owes(fence));
                if let Some(fault) = stopped.and_then(|channel| channel.stopped) {
                    return Err(HalError::Fault(fault));
                }
            }
            let waited = start.elapsed();
            if waited >= timeout {
                return Err(HalError::Timeout { waited });
            }
            match progress {
                Progress::Moved => idle = 0,
                Progress::Unknown => idle += 1,
            }
            if idle > EAGER {
                std::thread::sleep(PAUSE.min(timeout - waited));
            } else {
                std::thread::yield_now();
            }
        }
    }

    fn signal(&self, fence: Fence) {
        if let Some(timelines) = &mut self.lock().timelines {
            timelines.raise(fence);
        }
    }

    fn take_faults(&self) -> Vec<Fault> {
        let mut state = self.lock();
        if state.timelines.is_some() {
            self.look(&mut state.books);
        }
        std::mem::take(&mut state.books.faults)
    }
}

impl Release for Session {
    fn unmap_gpu(&self, span: Span) -> Result<(), HalError> {
        let Some(mut state) = self.holding() else {
            return Ok(());
        };
        let tiles = state.books.tiles(span);
        self.device.unmap_gpu(span)?;
        for start in tiles {
            state.books.gpu_maps.remove(&start);
        }
        Ok(())
    }

    fn unmap_cpu(&self, map: CpuMapId) -> Result<(), HalError> {
        let Some(mut state) = self.holding() else {
            return Ok(());
        };
        let entry = state.books.cpu_maps.get_mut(&map);
        let entry = entry.unwrap_or_else(|| panic!("{map:?} does not exist"));
        entry.window = None;
        self.device.unwind(&mut entry.stages)?;
        state.books.cpu_maps.remove(&map);
        Ok(())
    }

    fn destroy(&self, mem: MemId) -> Result<(), HalError> {
        let Some(mut state) = self.holding() else {
            return Ok(());
        };
        let mut shared = self.shared();
        let physical = &state.books.object(mem).physical;
        shared.free_last(&self.device.link, physical)?;
        // Before anybody else counts who shows the memory.
        let object = state.books.objects.remove(&mem);
        drop(object);
        Ok(())
    }

    fn release_va(&self, span: Span) -> Result<(), HalError> {
        let Some(mut state) = self.holding() else {
            return Ok(());
        };
        state.books.check_releasable(span);
        self.shared().release_range(&self.device.link, span)?;
        state.books.ranges.remove(&span.start());
        Ok(())
    }

    fn destroy_channel(&self, channel: ChannelId) -> Result<(), HalError> {
        let Some(mut state) = self.holding() else {
            return Ok(());
        };
        let entry = state.books.channel_mut(channel);
        self.device.unwind(&mut entry.stages)?;
        state.books.channels.remove(&channel);
        Ok(())
    }

    fn destroy_timeline(&self, timeline: TimelineId) -> Result<(), HalError> {
        if let Some(timelines) = &mut self.lock().timelines {
            timelines.destroy(timeline);
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        let state = self.lock();
        let timelines = state.timelines.as_ref();
        timelines.map_or(Counters::default(), |timelines| {
            state.books.counters(timelines.count())
        })
    }

    fn close(&self) -> Counters {
        let mut state = self.lock();
        let Some(timelines) = state.timelines.take() else {
            return Counters::default();
        };
        let left = state.books.counters(timelines.count());
        let books = std::mem::take(&mut state.books);
        let mut refused = self.give_up(books);
        refused.extend(self.device.undo_all(std::mem::take(&mut state.stages)));
        let below = self.device.context.leave(self.device.lasting(&refused));
        let refused = refused.into_iter().map(|(_, refusal)| refusal);
        self.slot
            .closed(refused.chain(below).map(HalError::from).collect());
        left
    }
}

impl Session {
    /// Drops what was never released: work first, then mappings, then what they show.
    fn give_up(&self, books: Books) -> Vec<(Undo, Refusal)> {
        let device = &self.device;
        let mut refused = Vec::new();
        for stages in books.quarantine {
            refused.extend(device.undo_all(stages));
        }
        for channel in books.channels.into_values() {
            refused.extend(device.undo_all(channel.stages));
        }
        for map in books.cpu_maps.into_values() {
            drop(map.window);
            refused.extend(device.undo_all(map.stages));
        }
        let unmap = |span| Undo::UnmapGpu(device.uuid, span);
        let unmap = books.gpu_maps.into_values().map(unmap);
        let release = books.ranges.into_values().map(Undo::ReleaseRange);
        // Undone in reverse.
        refused.extend(device.undo_all(release.chain(unmap).collect()));
        for object in books.objects.into_values() {
            let handle = object.physical.handle;
            let freed = self.let_go(object.physical);
            refused.extend(freed.err().map(|refusal| (Undo::Free(handle), refusal)));
        }
        refused
    }
}
