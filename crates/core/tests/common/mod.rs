//! One simulated device under management, driven one task at a time.
#![expect(
    clippy::unwrap_used,
    reason = "a test's setup either works or ends the test"
)]

use std::sync::Arc;

use vrampager_core::{
    BufferDesc, BufferId, Bytes, Device, Done, Error, Grant, Keep, Limits, Performed, Placement,
    Priority, Runner, Source, Step, Target, TaskId, Use,
};
use vrampager_hal::{Access, ChannelKind, DeviceId, Discovery, Fence, Op, TimelineId};
use vrampager_sim::{SimConfig, SimStorage, Simulator};

pub(crate) const PAGE: u64 = 4096;

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
        let config: SimConfig = format!("vram=64M,mode=deterministic,seed={}", vram + gtt)
            .parse()
            .unwrap();
        Self::on(config, vram, gtt, host, swap)
    }

    pub(crate) fn on(config: SimConfig, vram: u64, gtt: u64, host: u64, swap: u64) -> Self {
        let sim = Simulator::new(config).unwrap();
        let gpu = sim.open(DeviceId(0)).unwrap();
        let storage = Arc::new(SimStorage::new(swap * PAGE));
        let limits = Limits {
            vram: vram * PAGE,
            gtt: gtt * PAGE,
            host: host * PAGE,
            swap: swap * PAGE,
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

    /// Steps a task until it is granted or over.
    pub(crate) fn run(&mut self, task: TaskId) -> Result<Result<Done, Grant>, Error> {
        for _ in 0..100_000 {
            for (timeline, value) in self.runner.progress() {
                self.device.observe(timeline, value);
            }
            let mut step = Some(self.device.step(task));
            while let Some(now) = step.take() {
                match now {
                    Step::Perform(effects) => {
                        let outcome: Performed = self.runner.perform(&effects);
                        step = self.device.performed(task, &outcome);
                        self.device.check();
                    }
                    Step::Blocked => panic!("a lone task is never blocked"),
                    Step::Granted(grant) => return Ok(Err(grant)),
                    Step::Done(result) => return result.map(Ok),
                }
            }
        }
        panic!("a task ends after a bounded number of steps");
    }

    pub(crate) fn create(&mut self, name: &str, pages: u64, placement: Placement) -> BufferId {
        self.create_from(name, pages * PAGE, placement, Source::Zero)
    }

    pub(crate) fn create_from(
        &mut self,
        name: &str,
        len: u64,
        placement: Placement,
        content: Source,
    ) -> BufferId {
        let priority = Priority::default();
        let desc = BufferDesc {
            name: name.into(),
            len,
            placement,
            priority,
            content,
        };
        let task = self.device.create(&desc).unwrap();
        match self.run(task).unwrap() {
            Ok(Done::Created(id)) => id,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn exec(
        &mut self,
        uses: &[(BufferId, Access, Target)],
    ) -> Result<(TaskId, Grant), Error> {
        let uses: Vec<Use> = uses
            .iter()
            .map(|(buffer, access, target)| Use {
                buffer: *buffer,
                access: *access,
                target: target.clone(),
            })
            .collect();
        let task = self.device.exec(&uses)?;
        match self.run(task)? {
            Err(grant) => Ok((task, grant)),
            Ok(done) => panic!("{done:?}"),
        }
    }

    /// Brings buffers to their placement and fills each with a byte, on the GPU.
    pub(crate) fn gpu_fill(&mut self, fills: &[(BufferId, u8)]) -> Result<Fence, Error> {
        let uses: Vec<_> = fills
            .iter()
            .map(|&(id, _)| (id, Access::Write, Target::Gpu))
            .collect();
        let (task, grant) = self.exec(&uses)?;
        let ops: Vec<Op> = grant
            .views
            .iter()
            .zip(fills)
            .map(|(view, &(_, byte))| Op::Fill {
                dst: view.va,
                len: view.len,
                byte,
            })
            .collect();
        let fence = self.runner.submit(self.stream, &grant.waits, &ops).unwrap();
        self.device.finish(task, Some(fence), Keep::Evictable);
        self.device.check();
        Ok(fence)
    }

    /// Brings buffers to their placement without doing anything there.
    pub(crate) fn touch(&mut self, ids: &[BufferId]) -> Result<(), Error> {
        let uses: Vec<_> = ids
            .iter()
            .map(|&id| (id, Access::Read, Target::Gpu))
            .collect();
        let (task, _) = self.exec(&uses)?;
        self.device.finish(task, None, Keep::Evictable);
        self.device.check();
        Ok(())
    }

    pub(crate) fn write(&mut self, id: BufferId, bytes: &[u8]) -> Result<(), Error> {
        let (task, grant) = self.exec(&[(id, Access::Write, Target::Cpu)])?;
        for fence in &grant.waits {
            self.runner.wait(*fence).unwrap();
        }
        match &grant.views[0].bytes {
            Bytes::Host(spans) => self.runner.write_host(spans, 0, bytes),
            Bytes::Device(window) => self.runner.write_device(window, 0, bytes).unwrap(),
        }
        self.device.finish(task, None, Keep::Evictable);
        Ok(())
    }

    pub(crate) fn read(&mut self, id: BufferId) -> Result<Vec<u8>, Error> {
        let (task, grant) = self.exec(&[(id, Access::Read, Target::Cpu)])?;
        for fence in &grant.waits {
            self.runner.wait(*fence).unwrap();
        }
        let mut bytes = vec![0; usize::try_from(grant.views[0].len).unwrap()];
        match &grant.views[0].bytes {
            Bytes::Host(spans) => self.runner.read_host(spans, 0, &mut bytes),
            Bytes::Device(window) => self.runner.read_device(window, 0, &mut bytes).unwrap(),
        }
        self.device.finish(task, None, Keep::Evictable);
        Ok(bytes)
    }

    /// Reaps everything, closes, and returns whether nothing at all is left.
    pub(crate) fn close(mut self, buffers: &[BufferId]) -> bool {
        for &id in buffers {
            self.device.release(id).unwrap();
        }
        while self.device.next_ghost().is_some() {
            let task = self.device.reap();
            self.run(task).unwrap().unwrap();
        }
        self.device.check_drained();
        self.runner.close_stream(self.stream).unwrap();
        self.runner.close().is_zero()
    }
}
