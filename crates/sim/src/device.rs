use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;
use vrampager_addr::{PAGE, Span};
use vrampager_hal::{
    ChannelId, ChannelKind, Counters, CpuMapId, CpuMapping, DeviceId, DeviceInfo, DeviceLossCause,
    Discovery, Fault, Fence, Gpu, GpuMap, HalError, Heap, HostRange, MemId, Memory, Op, Queue,
    Release, TimelineId,
};

use crate::config::ConfigError;
use crate::engine::EngineStats;
use crate::fault::{Call, Injection};
use crate::heap::{Backing, Heaps};
use crate::mmu::zones;
use crate::planted::PlantedBug;
use crate::session::{Card, Live, Shared, State};
use crate::{Mode, SimConfig};

/// A host with simulated devices: the discovery contract.
#[derive(Debug)]
pub struct Simulator {
    devices: Arc<[SimDevice]>,
}

/// Why there is no simulator.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SimError {
    /// The configuration is not allowed.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl Simulator {
    /// A host with the devices of `config`, all closed. Takes no memory yet.
    ///
    /// # Errors
    /// [`SimError::Config`] for values out of range.
    pub fn new(config: SimConfig) -> Result<Arc<Self>, SimError> {
        config.check()?;
        let devices = (0..config.gpus).map(|n| SimDevice::new(DeviceId(n), &config));
        Ok(Arc::new(Self {
            devices: devices.collect(),
        }))
    }

    /// The back door to a device, open or not.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> Option<&SimDevice> {
        find(&self.devices, id)
    }
}

fn find(devices: &[SimDevice], id: DeviceId) -> Option<&SimDevice> {
    devices.get(usize::try_from(id.0).ok()?)
}

impl Discovery for Simulator {
    fn devices(&self) -> Result<Vec<DeviceInfo>, HalError> {
        Ok(self.devices.iter().map(|d| d.card.info.clone()).collect())
    }

    fn free_vram(&self, id: DeviceId) -> Result<u64, HalError> {
        let device = self.device(id).ok_or(HalError::NoDevice(id))?;
        let session = device.card.control().session.upgrade();
        let free = session.and_then(|open| Some(open.lock().live.as_ref()?.heaps.free(Heap::Vram)));
        Ok(free.unwrap_or(device.card.info.vram_bytes))
    }

    fn open(&self, id: DeviceId) -> Result<Gpu, HalError> {
        let device = self.device(id).ok_or(HalError::NoDevice(id))?;
        device.open(&self.devices)
    }
}

/// One simulated device as the tests of higher layers see it: beside the contracts, and across
/// several opens.
#[derive(Clone, Debug)]
pub struct SimDevice {
    card: Arc<Card>,
}

impl SimDevice {
    fn new(id: DeviceId, config: &SimConfig) -> Self {
        let info = DeviceInfo {
            id,
            name: format!("sim:{config}"),
            vram_bytes: config.vram,
            aperture_bytes: config.bar,
            zones: zones(id.0, config.gpus),
            properties: Vec::new(),
            unsupported: Vec::new(),
        };
        Self {
            card: Arc::new(Card::new(config.clone(), info)),
        }
    }

    /// Adds a fault to come.
    pub fn inject(&self, injection: Injection) {
        self.card.control().plan.add(injection);
    }

    /// Hash over all calls, operations and faults so far, with their times. In deterministic mode
    /// equal for equal histories.
    #[must_use]
    pub fn event_hash(&self) -> u64 {
        self.card.control().hash.value()
    }

    /// Nanoseconds since the device was made, virtual in deterministic mode.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.card.control().clock.now_ns()
    }

    /// What its engines have done.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.card.control().stats
    }

    fn open(&self, devices: &Arc<[Self]>) -> Result<Gpu, HalError> {
        let config = &self.card.config;
        let busy = HalError::Busy(self.card.info.id);
        {
            let mut control = self.card.control();
            if control.call(Call::Open, &[]) {
                return Err(refusal(Call::Open));
            }
            if control.stuck || control.open && !config.has(PlantedBug::OpensTwice) {
                control.stuck = config.has(PlantedBug::RefusedOpenStaysBusy);
                return Err(busy);
            }
            control.open = true;
        }
        let session = Session::start(&self.card, devices).inspect_err(|_| {
            self.card.control().open = false;
        })?;
        self.card.control().session = Arc::downgrade(&session.shared);
        let session = Arc::new(session);
        Ok(Gpu {
            info: self.card.info.clone(),
            memory: Arc::clone(&session) as Arc<dyn Memory>,
            queue: Arc::clone(&session) as Arc<dyn Queue>,
            release: session,
        })
    }
}

/// The driver error of an injected fault.
fn refusal(call: Call) -> HalError {
    HalError::Driver {
        stage: call.name(),
        status: 1,
        status_name: "SIM_INJECTED",
    }
}

fn host_error(stage: &'static str, errno: Errno) -> HalError {
    HalError::Driver {
        stage,
        status: errno.raw_os_error().unsigned_abs(),
        status_name: "errno of the host",
    }
}

/// One open of a device: the three contracts behind [`Gpu`].
///
/// Dropping the last owner closes it, so that no thread is left behind.
#[derive(Debug)]
struct Session {
    shared: Arc<Shared>,
    /// All devices of the host, this one among them.
    devices: Arc<[SimDevice]>,
    /// Engine threads, until closed. Locked before the state.
    workers: Mutex<Vec<JoinHandle<()>>>,
}

impl Session {
    fn start(card: &Arc<Card>, devices: &Arc<[SimDevice]>) -> Result<Self, HalError> {
        let heaps = Heaps::new(&card.config).map_err(|errno| host_error("device memory", errno))?;
        let session = Self {
            shared: Arc::new(Shared::new(Arc::clone(card), heaps)),
            devices: Arc::clone(devices),
            workers: Mutex::new(Vec::new()),
        };
        let kinds = match card.config.mode {
            Mode::Threaded => &[ChannelKind::Copy, ChannelKind::Compute][..],
            Mode::Deterministic => &[],
        };
        for &kind in kinds {
            let shared = Arc::clone(&session.shared);
            let name = match kind {
                ChannelKind::Copy => "sim-copy",
                ChannelKind::Compute => "sim-compute",
            };
            let worker = Builder::new()
                .name(name.into())
                .spawn(move || shared.serve(kind));
            let worker = worker.map_err(|error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
                host_error("engine thread", errno)
            })?;
            session.workers().push(worker);
        }
        Ok(session)
    }

    fn workers(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts and records a call of the memory or queue contract; whether it has to fail.
    fn fails(&self, state: &State, call: Call, words: &[u64]) -> Result<bool, HalError> {
        match state.gone() {
            Some(cause) => Err(HalError::DeviceLost(cause)),
            None => Ok(self.shared.card.control().call(call, words)),
        }
    }

    /// A call of the release contract. After a close there is nothing left to give back.
    fn give_back(
        &self,
        call: Call,
        words: &[u64],
        undo: impl FnOnce(&mut State, &SimConfig),
    ) -> Result<(), HalError> {
        let card = &self.shared.card;
        let mut state = self.shared.enter();
        if state.live.is_none() {
            return Ok(());
        }
        if card.control().call(call, words) {
            return Err(refusal(call));
        }
        undo(&mut state, &card.config);
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

fn live(state: &mut State) -> &mut Live {
    let live = state.live.as_mut();
    live.expect("only called on a device that is open")
}

impl Memory for Session {
    fn reserve_va(&self, span: Span) -> Result<(), HalError> {
        let mut state = self.shared.enter();
        if self.fails(&state, Call::ReserveVa, &[span.start(), span.len()])? {
            return Err(refusal(Call::ReserveVa));
        }
        live(&mut state).space.reserve(span);
        Ok(())
    }

    fn create(&self, heap: Heap, size: u64) -> Result<MemId, HalError> {
        assert!(
            size > 0 && PAGE.divides(size),
            "{size} is no size of an object"
        );
        let mut state = self.shared.enter();
        let fails = self.fails(&state, Call::Create, &[heap as u64, size])?;
        let live = live(&mut state);
        let free = live.heaps.free(heap);
        let created = if fails {
            None
        } else {
            live.heaps.create(heap, size)
        };
        let id = created.ok_or(HalError::OutOfMemory {
            stage: Call::Create.name(),
            heap,
            needed: Some(size),
            free: Some(free),
            answer: None,
        })?;
        let poisoned = self.shared.card.config.has(PlantedBug::HostNotZeroed);
        if poisoned && heap == Heap::Host {
            for run in live.heaps.runs(id, 0, size) {
                run.place.fill(run.len, crate::POISON);
            }
        }
        Ok(id)
    }

    fn import(&self, host: &HostRange) -> Result<MemId, HalError> {
        let mut state = self.shared.enter();
        if self.fails(&state, Call::Import, &[host.len()])? {
            return Err(refusal(Call::Import));
        }
        let heaps = &mut live(&mut state).heaps;
        if self.shared.card.config.has(PlantedBug::ImportsACopy) {
            return heaps
                .create(Heap::Host, host.len())
                .ok_or(no_page(Call::Import));
        }
        Ok(heaps.import(host))
    }

    fn share(&self, from: DeviceId, mem: MemId) -> Result<MemId, HalError> {
        // One device is locked at a time: two of them may share with each other.
        let source = find(&self.devices, from).and_then(|device| device.card.session());
        let source = source.ok_or(HalError::NoDevice(from))?;
        let (size, backing) = match &mut source.lock().live {
            Some(live) => live.heaps.show(mem),
            None => return Err(HalError::NoDevice(from)),
        };
        let mut state = self.shared.enter();
        if self.fails(&state, Call::Share, &[from.0.into(), mem.0])? {
            return Err(refusal(Call::Share));
        }
        let heaps = &mut live(&mut state).heaps;
        if self.shared.card.config.has(PlantedBug::SharesACopy) {
            return heaps.create(Heap::Vram, size).ok_or(no_page(Call::Share));
        }
        Ok(heaps.share(size, backing))
    }

    fn map_cpu(&self, mem: MemId, offset: u64, len: u64) -> Result<CpuMapping, HalError> {
        let mut state = self.shared.enter();
        let fails = self.fails(&state, Call::MapCpu, &[mem.0, offset, len])?;
        assert!(
            PAGE.divides(offset | len),
            "{offset}+{len} is not made of whole pages"
        );
        let live = live(&mut state);
        let heap = match live.heaps.object_mut(mem).backing {
            Backing::Vram(_) => Heap::Vram,
            Backing::Host { .. } | Backing::Imported(_) => Heap::Host,
            Backing::Peer(_) => {
                return Err(HalError::Unsupported(
                    "a CPU mapping of another device's VRAM",
                ));
            }
        };
        let stage = Call::MapCpu.name();
        let host_full = HalError::OutOfMemory {
            stage,
            heap: Heap::Host,
            needed: Some(len),
            free: None,
            answer: None,
        };
        match heap {
            Heap::Host if fails => return Err(host_full),
            Heap::Vram if fails || !live.aperture.admits(heap, len) => {
                return Err(HalError::OutOfAperture {
                    stage,
                    needed: len,
                    free: live.aperture.free(),
                    size: live.aperture.size(),
                });
            }
            Heap::Host | Heap::Vram => {}
        }
        let view = live.heaps.view(mem, offset, len);
        let mapping = live
            .aperture
            .map(mem, heap, len, view)
            .map_err(|_| host_full)?;
        live.heaps.object_mut(mem).mappings += 1;
        Ok(mapping)
    }

    fn map_gpu(&self, map: GpuMap) -> Result<(), HalError> {
        let mut state = self.shared.enter();
        let words = [map.va.0, map.mem.0, map.offset, map.len, map.access as u64];
        if self.fails(&state, Call::MapGpu, &words)? {
            // Page tables, whose need is the device's own.
            return Err(HalError::OutOfMemory {
                stage: Call::MapGpu.name(),
                heap: Heap::Vram,
                needed: None,
                free: None,
                answer: None,
            });
        }
        assert!(PAGE.divides(map.offset), "{} is no page", map.offset);
        let span = Span::new(map.va.0, map.len).expect("a mapping stays inside its range");
        let off = self.shared.card.config.has(PlantedBug::MapsOnePageOff);
        let offset = match map.offset {
            offset if off && offset > 0 => offset - PAGE.bytes(),
            offset => offset,
        };
        let live = live(&mut state);
        let runs = live.heaps.runs(map.mem, offset, map.len);
        live.space.map(span, map.mem, map.access, runs);
        live.heaps.object_mut(map.mem).mappings += 1;
        Ok(())
    }
}

impl Queue for Session {
    fn create_timeline(&self) -> Result<TimelineId, HalError> {
        let mut state = self.shared.enter();
        if self.fails(&state, Call::CreateTimeline, &[])? {
            return Err(no_page(Call::CreateTimeline));
        }
        Ok(state.queues.create_timeline())
    }

    fn create_channel(&self, kind: ChannelKind) -> Result<ChannelId, HalError> {
        let mut state = self.shared.enter();
        if self.fails(&state, Call::CreateChannel, &[kind as u64])? {
            return Err(no_page(Call::CreateChannel));
        }
        Ok(state.queues.create_channel(kind))
    }

    fn submit(&self, channel: ChannelId, ops: &[Op]) -> Result<(), HalError> {
        let mut state = self.shared.enter();
        if self.fails(&state, Call::Submit, &[channel.0.into(), ops.len() as u64])? {
            return Err(state.queues.full(channel));
        }
        state.queues.submit(channel, ops)?;
        self.shared.changed.notify_all();
        Ok(())
    }

    fn completed(&self, timeline: TimelineId) -> u64 {
        self.shared.enter().queues.completed(timeline)
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> Result<(), HalError> {
        self.shared.wait(fence, timeout)
    }

    fn signal(&self, fence: Fence) {
        let mut state = self.shared.enter();
        state.queues.raise(fence);
        let words = [fence.timeline.0.into(), fence.value];
        self.shared.card.control().record(106, 0, &words);
        self.shared.changed.notify_all();
    }

    fn take_faults(&self) -> Vec<Fault> {
        self.shared.enter().queues.take_faults()
    }
}

/// The error of a channel or timeline whose page could not be had.
fn no_page(call: Call) -> HalError {
    HalError::OutOfMemory {
        stage: call.name(),
        heap: Heap::Host,
        needed: Some(PAGE.bytes()),
        free: None,
        answer: None,
    }
}

impl Release for Session {
    fn unmap_gpu(&self, span: Span) -> Result<(), HalError> {
        self.give_back(
            Call::UnmapGpu,
            &[span.start(), span.len()],
            |state, config| {
                let live = live(state);
                let kept = match config.has(PlantedBug::UnmapLeavesLastPage) {
                    true => live.space.last_page(span),
                    false => None,
                };
                for mem in live.space.unmap(span) {
                    live.heaps.object_mut(mem).mappings -= 1;
                }
                if let Some((page, mem, access, runs)) = kept {
                    live.space.map(page, mem, access, runs);
                    live.heaps.object_mut(mem).mappings += 1;
                }
            },
        )
    }

    fn unmap_cpu(&self, map: CpuMapId) -> Result<(), HalError> {
        self.give_back(Call::UnmapCpu, &[map.0], |state, _| {
            let live = live(state);
            let mem = live.aperture.unmap(map);
            live.heaps.object_mut(mem).mappings -= 1;
        })
    }

    fn destroy(&self, mem: MemId) -> Result<(), HalError> {
        self.give_back(Call::Destroy, &[mem.0], |state, config| {
            let live = live(state);
            live.heaps.destroy(mem);
            live.ghosts += u64::from(config.has(PlantedBug::DestroyKeepsCount));
        })
    }

    fn release_va(&self, span: Span) -> Result<(), HalError> {
        self.give_back(Call::ReleaseVa, &[span.start(), span.len()], |state, _| {
            live(state).space.release(span);
        })
    }

    /// Returns after the operation that is running, if one is: its bytes may belong to somebody
    /// else the moment after.
    fn destroy_channel(&self, channel: ChannelId) -> Result<(), HalError> {
        let card = &self.shared.card;
        let mut state = self.shared.enter();
        while state.live.is_some() && state.queues.is_running(channel) {
            state = self.shared.until_changed(state);
        }
        if state.live.is_none() {
            return Ok(());
        }
        if card
            .control()
            .call(Call::DestroyChannel, &[channel.0.into()])
        {
            return Err(refusal(Call::DestroyChannel));
        }
        state.queues.destroy_channel(channel);
        Ok(())
    }

    fn destroy_timeline(&self, timeline: TimelineId) -> Result<(), HalError> {
        let id = u64::from(timeline.0);
        self.give_back(Call::DestroyTimeline, &[id], |state, _| {
            state.queues.destroy_timeline(timeline);
        })
    }

    fn counters(&self) -> Counters {
        self.shared.enter().counters()
    }

    fn close(&self) -> Counters {
        let mut workers = self.workers();
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        let mut whole = true;
        for worker in workers.drain(..) {
            whole &= worker.join().is_ok();
        }
        assert!(
            whole || std::thread::panicking(),
            "an engine thread panicked"
        );
        let mut state = self.shared.lock();
        let left = state.counters();
        if state.live.take().is_some() {
            state.queues.shut_down();
            state.lost.get_or_insert(DeviceLossCause::Removed);
            self.shared.card.control().open = false;
        }
        self.shared.changed.notify_all();
        left
    }
}
