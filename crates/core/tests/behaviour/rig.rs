//! One simulated device under management, driven one task at a time.

use std::sync::Arc;

use vrampager_core::{
    BufferDesc, BufferId, Bytes, Device, Domain, DomainReport, Done, EffectError, Error, FileId,
    Grant, Keep, Limits, MemType, Place, Placement, Priority, Runner, Source, Step, Target, TaskId,
    Use,
};
use vrampager_hal::{Access, ChannelKind, DeviceId, Discovery, Fence, Op, TimelineId};
use vrampager_sim::{Injection, SimConfig, SimStorage, Simulator};

pub(crate) const PAGE: u64 = 4096;
/// Steps after which a task counts as stuck.
const STEPS_MAX: u32 = 100_000;

/// Bytes that differ from page to page and from seed to seed.
pub(crate) fn pattern(seed: u8, pages: u64) -> Vec<u8> {
    let byte = |i: u64| seed.wrapping_add((i % 251).to_le_bytes()[0]);
    (0..pages * PAGE).map(byte).collect()
}

pub(crate) fn only(mem_type: MemType) -> Placement {
    Placement::new(&[Place::new(mem_type)]).expect("one place")
}

pub(crate) fn gpu_read(buffer: BufferId) -> Use {
    Use {
        buffer,
        access: Access::Read,
        target: Target::Gpu,
    }
}

pub(crate) struct Rig {
    pub(crate) sim: Arc<Simulator>,
    pub(crate) device: Device,
    pub(crate) runner: Runner,
    pub(crate) swap: Arc<SimStorage>,
    pub(crate) stream: TimelineId,
}

impl Rig {
    /// Sizes in pages.
    pub(crate) fn new(vram: u64, gtt: u64, host: u64, swap: u64) -> Self {
        Self::with_ring(1024, [vram, gtt, host, swap])
    }

    /// Sizes in pages: VRAM, GTT, host pages, swap.
    pub(crate) fn with_ring(ring: u32, pages: [u64; 4]) -> Self {
        let [vram, gtt, host, swap] = pages.map(|pages| pages * PAGE);
        let config = format!("vram=64M,mode=deterministic,seed=7,ring={ring}");
        let config: SimConfig = config.parse().unwrap();
        let sim = Simulator::new(config).unwrap();
        let gpu = sim.open(DeviceId(0)).unwrap();
        let storage = Arc::new(SimStorage::new(swap));
        let limits = Limits {
            vram,
            gtt,
            host,
            swap,
        };
        let (device, runner) = vrampager_core::open(gpu, limits, Some(storage.clone())).unwrap();
        let stream = runner.open_stream(ChannelKind::Compute).unwrap();
        Self {
            sim,
            device,
            runner,
            swap: storage,
            stream,
        }
    }

    pub(crate) fn inject(&self, fault: Injection) {
        self.sim.device(DeviceId(0)).unwrap().inject(fault);
    }

    /// Makes `content` a file that clean buffers can be read from.
    pub(crate) fn add_file(&self, content: &[u8]) -> (FileId, Arc<SimStorage>) {
        let storage = Arc::new(SimStorage::read_only(content));
        self.runner.add_file(FileId(0), storage.clone());
        (FileId(0), storage)
    }

    /// One step of a task, with its effects and their undoing.
    pub(crate) fn step(&mut self, task: TaskId) -> Option<Step> {
        for (timeline, value) in self.runner.progress() {
            self.device.observe(timeline, value);
        }
        let mut step = self.device.step(task);
        while let Step::Perform(effects) = step {
            let outcome = self.runner.perform(&effects);
            let undo = self.device.performed(task, &outcome);
            self.device.check();
            step = undo?;
        }
        Some(step)
    }

    /// Steps a task until it is granted or over.
    pub(crate) fn run(&mut self, task: TaskId) -> Result<Result<Done, Grant>, Error> {
        for _ in 0..STEPS_MAX {
            match self.step(task) {
                None => {}
                Some(Step::Granted(grant)) => return Ok(Err(grant)),
                Some(Step::Done(result)) => return result.map(Ok),
                Some(Step::Perform(_) | Step::Blocked) => panic!("a lone task is never blocked"),
            }
        }
        panic!("a task ends after a bounded number of steps");
    }

    pub(crate) fn create(&mut self, name: &str, pages: u64, placement: Placement) -> BufferId {
        let desc = Self::desc(name, pages, placement);
        self.create_desc(&desc).unwrap()
    }

    pub(crate) fn desc(name: &str, pages: u64, placement: Placement) -> BufferDesc {
        BufferDesc {
            name: name.into(),
            len: pages * PAGE,
            placement,
            priority: Priority::default(),
            content: Source::Zero,
        }
    }

    pub(crate) fn create_desc(&mut self, desc: &BufferDesc) -> Result<BufferId, Error> {
        let task = self.device.create(desc)?;
        match self.run(task)? {
            Ok(Done::Created(id)) => Ok(id),
            other => panic!("{other:?}"),
        }
    }

    /// A written buffer that is in VRAM.
    pub(crate) fn dirty(&mut self, name: &str, pages: u64, seed: u8) -> BufferId {
        let id = self.create(name, pages, Placement::vram());
        self.touch(&[id]).unwrap();
        self.write(id, &pattern(seed, pages)).unwrap();
        id
    }

    pub(crate) fn exec(&mut self, uses: &[Use]) -> Result<(TaskId, Grant), Error> {
        let task = self.device.exec(uses)?;
        match self.run(task)? {
            Err(grant) => Ok((task, grant)),
            Ok(done) => panic!("{done:?}"),
        }
    }

    /// Brings buffers to their placement and fills each with a byte, on the GPU.
    pub(crate) fn gpu_fill(&mut self, fills: &[(BufferId, u8)]) -> Result<Fence, Error> {
        self.gpu_fill_behind(&[], fills)
    }

    /// The same, behind fences.
    pub(crate) fn gpu_fill_behind(
        &mut self,
        waits: &[Fence],
        fills: &[(BufferId, u8)],
    ) -> Result<Fence, Error> {
        let write = |&(buffer, _): &(BufferId, u8)| Use {
            buffer,
            access: Access::Write,
            target: Target::Gpu,
        };
        let uses: Vec<Use> = fills.iter().map(write).collect();
        let (task, grant) = self.exec(&uses)?;
        let views = grant.views.iter().zip(fills);
        let fill = views.map(|(view, &(_, byte))| Op::Fill {
            dst: view.va,
            len: view.len,
            byte,
        });
        let ops: Vec<Op> = fill.collect();
        let waits = [waits, &grant.waits].concat();
        let fence = self.runner.submit(self.stream, &waits, &ops).unwrap();
        self.device.finish(task, Some(fence), Keep::Evictable);
        self.device.check();
        Ok(fence)
    }

    /// Brings buffers to their placement without doing anything there.
    pub(crate) fn touch(&mut self, ids: &[BufferId]) -> Result<(), Error> {
        self.place(ids, &Target::Gpu, Keep::Evictable)
    }

    pub(crate) fn pin(&mut self, id: BufferId) -> Result<(), Error> {
        self.place(&[id], &Target::Gpu, Keep::Pinned)
    }

    pub(crate) fn move_to(&mut self, id: BufferId, mem_type: MemType) -> Result<(), Error> {
        let target = Target::Places(only(mem_type));
        self.place(&[id], &target, Keep::Evictable)
    }

    pub(crate) fn place(
        &mut self,
        ids: &[BufferId],
        target: &Target,
        keep: Keep,
    ) -> Result<(), Error> {
        let read = |&buffer: &BufferId| Use {
            buffer,
            access: Access::Read,
            target: target.clone(),
        };
        let uses: Vec<Use> = ids.iter().map(read).collect();
        let (task, _) = self.exec(&uses)?;
        self.device.finish(task, None, keep);
        self.device.check();
        Ok(())
    }

    pub(crate) fn write(&mut self, id: BufferId, bytes: &[u8]) -> Result<(), Error> {
        let (task, grant) = self.exec(&[Use {
            buffer: id,
            access: Access::Write,
            target: Target::Cpu,
        }])?;
        self.wait_all(task, &grant.waits)?;
        let written = match &grant.views[0].bytes {
            Bytes::Host(spans) => {
                self.runner.write_host(spans, 0, bytes);
                Ok(())
            }
            Bytes::Device(window) => self.runner.write_device(window, 0, bytes),
        };
        self.device.finish(task, None, Keep::Evictable);
        written.map_err(|error| failed("write", error))
    }

    pub(crate) fn read(&mut self, id: BufferId) -> Result<Vec<u8>, Error> {
        let (task, grant) = self.exec(&[Use {
            buffer: id,
            access: Access::Read,
            target: Target::Cpu,
        }])?;
        self.wait_all(task, &grant.waits)?;
        let mut bytes = vec![0; usize::try_from(grant.views[0].len).unwrap()];
        let read = match &grant.views[0].bytes {
            Bytes::Host(spans) => {
                self.runner.read_host(spans, 0, &mut bytes);
                Ok(())
            }
            Bytes::Device(window) => self.runner.read_device(window, 0, &mut bytes),
        };
        self.device.finish(task, None, Keep::Evictable);
        read.map(|()| bytes).map_err(|error| failed("read", error))
    }

    /// Waits before the CPU touches a granted buffer; a failure ends the task.
    fn wait_all(&mut self, task: TaskId, fences: &[Fence]) -> Result<(), Error> {
        let waited = fences.iter().try_for_each(|&fence| self.runner.wait(fence));
        waited.map_err(|error| {
            self.device.abort(task);
            failed("wait", error.into())
        })
    }

    pub(crate) fn residency(&self, id: BufferId) -> Option<MemType> {
        self.device.residency(id).unwrap()
    }

    pub(crate) fn report(&self, domain: Domain) -> DomainReport {
        let domains = self.device.snapshot().domains;
        let found = domains.into_iter().find(|report| report.domain == domain);
        found.expect("a domain of the device")
    }

    pub(crate) fn reap_all(&mut self) {
        while self.device.next_ghost().is_some() {
            let task = self.device.reap();
            let reaped = self.run(task);
            assert_eq!(reaped, Ok(Ok(Done::Reaped)), "every piece comes back");
        }
    }

    /// Reaps everything, closes, and returns whether nothing at all is left.
    pub(crate) fn close(mut self, buffers: &[BufferId]) -> bool {
        for &id in buffers {
            self.device.release(id).unwrap();
        }
        self.reap_all();
        self.device.check_drained();
        self.runner.close_stream(self.stream).unwrap();
        self.runner.close().is_zero()
    }
}

fn failed(what: &str, error: EffectError) -> Error {
    Error::Effect {
        buffer: what.into(),
        error,
    }
}
