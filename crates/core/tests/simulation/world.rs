//! One device, several clients, and a seeded scheduler that moves one of them by one step.

use std::sync::Arc;

use vrampager_core::{
    BufferId, Bytes, Device, Done, Effects, Error, ErrorKind, FileId, Grant, Keep, Limits,
    Performed, Runner, Snapshot, Step, TaskId,
};
use vrampager_hal::{ChannelKind, Counters, DeviceId, Discovery, TimelineId};
use vrampager_sim::{SimConfig, SimStorage, Simulator};

use crate::model::Model;
use crate::prng::Prng;
use crate::scenario::{PAGE, Scenario};
use crate::trace::Trace;
use crate::work::{Source, Work};

/// Steps that one operation may take; more is a livelock.
const STEPS_MAX: u32 = 20_000;
/// Bytes of each file.
const FILE_LEN: u64 = 24 * PAGE;

/// Where a client stands.
#[derive(Debug)]
enum Phase {
    Idle,
    Step(TaskId),
    Blocked(TaskId, u64),
    Perform(TaskId, Effects),
    Report(TaskId, Performed),
    Granted(TaskId, Grant),
}

#[derive(Debug)]
struct Client {
    phase: Phase,
    work: Work,
    steps: u32,
}

pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) sim: Arc<Simulator>,
    pub(crate) device: Device,
    pub(crate) runner: Runner,
    pub(crate) model: Model,
    pub(crate) streams: Vec<TimelineId>,
    pub(crate) files: Vec<Source>,
    pub(crate) choices: Prng,
    pub(crate) trace: Trace,
    /// What the device held when it had just been opened.
    start: Counters,
    clients: Vec<Client>,
    operations: u64,
}

impl World {
    pub(crate) fn new(scenario: Scenario) -> Self {
        let seed = scenario.seed;
        let pages = scenario.vram + 1;
        let text = format!(
            "vram={},bar=4K,mode=deterministic,ring={},seed={seed}",
            pages * PAGE,
            scenario.ring
        );
        let config: SimConfig = text.parse().unwrap();
        let sim = Simulator::new(config).unwrap();
        let swap = Arc::new(SimStorage::new(scenario.swap * PAGE));
        let limits = Limits {
            vram: scenario.vram * PAGE,
            gtt: scenario.gtt * PAGE,
            host: scenario.host * PAGE,
            swap: scenario.swap * PAGE,
        };
        let gpu = sim.open(DeviceId(0)).unwrap();
        let (device, runner) = vrampager_core::open(gpu, limits, Some(swap.clone())).unwrap();
        let kinds = [ChannelKind::Compute, ChannelKind::Copy];
        let streams = (0..scenario.streams).zip(kinds);
        let streams = streams.map(|(_, kind)| runner.open_stream(kind).unwrap());
        let streams = streams.collect();
        let mut contents = Prng::stream(seed, "files");
        let mut files = Vec::new();
        for file in (0..2).map(FileId) {
            let bytes = contents.bytes(usize::try_from(FILE_LEN).unwrap());
            let storage = Arc::new(SimStorage::read_only(&bytes));
            for &(nth, fault) in &scenario.read_faults {
                storage.fail_read(nth, fault);
            }
            runner.add_file(file, storage);
            files.push(Source { file, bytes });
        }
        for &fault in &scenario.device_faults {
            sim.device(DeviceId(0)).unwrap().inject(fault);
        }
        for &(nth, fault) in &scenario.swap_write_faults {
            swap.fail_write(nth, fault);
        }
        for &(nth, fault) in &scenario.read_faults {
            swap.fail_read(nth, fault);
        }
        let idle = || Client {
            phase: Phase::Idle,
            work: Work::Reap,
            steps: 0,
        };
        Self {
            choices: Prng::stream(seed, "choices"),
            clients: (0..scenario.clients).map(|_| idle()).collect(),
            operations: scenario.operations,
            scenario,
            start: runner.counters(),
            sim,
            device,
            runner,
            model: Model::default(),
            streams,
            files,
            trace: Trace::new(),
        }
    }

    /// Safety: random operations, interleaved step by step, until all are over.
    pub(crate) fn run(&mut self) {
        while let Some(who) = self.choose_client() {
            self.advance(who);
            self.device.check();
        }
    }

    fn choose_client(&mut self) -> Option<usize> {
        let epoch = self.device.epoch();
        let can_go = |client: &Client| match client.phase {
            Phase::Idle => self.operations > 0,
            Phase::Blocked(_, seen) => seen != epoch,
            Phase::Step(_) | Phase::Perform(..) | Phase::Report(..) | Phase::Granted(..) => true,
        };
        let ready: Vec<usize> = (0..self.clients.len())
            .filter(|&who| can_go(&self.clients[who]))
            .collect();
        let busy = |client: &Client| !matches!(client.phase, Phase::Idle);
        let works = ready.iter().any(|&who| busy(&self.clients[who]));
        assert!(
            works || !self.clients.iter().any(busy),
            "deadlock: everybody waits for somebody else"
        );
        (!ready.is_empty()).then(|| *self.choices.pick(&ready))
    }

    /// Moves one client by one step.
    fn advance(&mut self, who: usize) {
        let client = &mut self.clients[who];
        client.steps += 1;
        assert!(client.steps < STEPS_MAX, "livelock in {:?}", client.work);
        let phase = std::mem::replace(&mut client.phase, Phase::Idle);
        let kind = match &phase {
            Phase::Idle => 0,
            Phase::Step(_) => 1,
            Phase::Blocked(..) => 2,
            Phase::Perform(..) => 3,
            Phase::Report(..) => 4,
            Phase::Granted(..) => 5,
        };
        self.trace.fold(&[who as u64, kind, self.device.epoch()]);
        let next = match phase {
            Phase::Idle => self.begin(who),
            Phase::Step(task) | Phase::Blocked(task, _) if self.choices.percent(2) => {
                self.device.abort(task);
                Phase::Idle
            }
            Phase::Step(task) | Phase::Blocked(task, _) => {
                self.observe();
                let step = self.device.step(task);
                self.take(who, task, step)
            }
            Phase::Perform(task, effects) => Phase::Report(task, self.runner.perform(&effects)),
            Phase::Report(task, outcome) => match self.device.performed(task, &outcome) {
                Some(step) => self.take(who, task, step),
                None => Phase::Step(task),
            },
            Phase::Granted(task, grant) => {
                let work = std::mem::replace(&mut self.clients[who].work, Work::Reap);
                self.carry_out(task, &grant, &work);
                Phase::Idle
            }
        };
        self.clients[who].phase = next;
    }

    fn begin(&mut self, who: usize) -> Phase {
        self.operations -= 1;
        let (work, task) = self.next_work();
        let client = &mut self.clients[who];
        client.steps = 0;
        client.work = work;
        task.map_or(Phase::Idle, Phase::Step)
    }

    /// A poll sometimes comes late.
    fn observe(&mut self) {
        if self.choices.percent(60) {
            for (timeline, value) in self.runner.progress() {
                self.device.observe(timeline, value);
            }
        }
    }

    fn take(&mut self, who: usize, task: TaskId, step: Step) -> Phase {
        match step {
            Step::Perform(effects) => {
                self.trace.effects(&effects);
                Phase::Perform(task, effects)
            }
            Step::Blocked => Phase::Blocked(task, self.device.epoch()),
            Step::Granted(grant) => Phase::Granted(task, grant),
            Step::Done(result) => {
                self.trace.fold(&[7, u64::from(result.is_ok())]);
                let work = std::mem::replace(&mut self.clients[who].work, Work::Reap);
                self.over(&work, result);
                Phase::Idle
            }
        }
    }

    /// A task has ended without a grant.
    fn over(&mut self, work: &Work, result: Result<Done, Error>) {
        match (result, work) {
            (Ok(Done::Created(id)), Work::Create { content }) => {
                self.model.add(id, content.clone());
            }
            (Ok(Done::Idle | Done::Reaped), Work::Reap) => {}
            (Ok(done), work) => panic!("{done:?} from {work:?}"),
            (Err(error), work) => self.expect_error(&error, work),
        }
    }

    /// Only what the scenario contains may go wrong.
    fn expect_error(&self, error: &Error, work: &Work) {
        let full_or_pinned = matches!(error, Error::OutOfMemory(_) | Error::Pinned { .. });
        let released = |id: &BufferId| self.model.get(*id).released;
        let fine = match error.kind() {
            ErrorKind::OutOfMemory | ErrorKind::Backend | ErrorKind::Busy => {
                full_or_pinned || self.scenario.faults() > 0
            }
            ErrorKind::DeviceLost => self.scenario.loss,
            ErrorKind::Invalid => {
                *error == Error::NoSuchBuffer && work.buffers().iter().any(released)
            }
            ErrorKind::OutOfAddresses => false,
        };
        assert!(fine, "{error} in {work:?}");
        let full = matches!(error, Error::OutOfMemory(_));
        assert!(
            !full || !self.must_fit(work),
            "spurious: {error} in {work:?}"
        );
    }

    /// Whether the request has to find room however much the others are using: they let go again.
    fn must_fit(&self, work: &Work) -> bool {
        let pages = |id: BufferId| (self.model.len(id) as u64).div_ceil(PAGE);
        let needed: u64 = work.buffers().into_iter().map(pages).sum();
        let pinned = self.model.live().into_iter();
        let pinned = pinned.filter(|&id| self.model.get(id).pins > 0).count();
        let Scenario { swap, largest, .. } = self.scenario;
        needed <= largest && pinned == 0 && swap >= 256 && self.scenario.faults() == 0
    }

    /// Drives one task alone until it is granted or over.
    fn drive(&mut self, task: TaskId) -> Result<Option<Grant>, Error> {
        for _ in 0..STEPS_MAX {
            for (timeline, value) in self.runner.progress() {
                self.device.observe(timeline, value);
            }
            let mut step = Some(self.device.step(task));
            while let Some(now) = step.take() {
                match now {
                    Step::Perform(effects) => {
                        let outcome = self.runner.perform(&effects);
                        step = self.device.performed(task, &outcome);
                        self.device.check();
                    }
                    Step::Blocked => panic!("a lone task is never blocked"),
                    Step::Granted(grant) => return Ok(Some(grant)),
                    Step::Done(result) => return result.map(|_| None),
                }
            }
        }
        panic!("livelock of a lone task");
    }

    /// Liveness: with each fault striking at most once, every buffer is soon read back in full.
    pub(crate) fn settle(&mut self) {
        for id in self.model.live() {
            for _ in 0..std::mem::take(&mut self.model.get_mut(id).pins) {
                self.device.unpin(id).unwrap();
            }
        }
        for id in self.model.live() {
            let len = self.model.len(id);
            self.attempt(|world| world.read_alone(id, len));
            self.attempt(|world| world.touch_alone(id));
            self.attempt(|world| world.read_alone(id, len));
            self.device.release(id).unwrap();
            self.model.get_mut(id).released = true;
            self.device.check();
        }
        self.reap_all();
    }

    fn attempt(&mut self, mut once: impl FnMut(&mut Self) -> Result<(), Error>) {
        let mut last = None;
        for _ in 0..=self.scenario.faults() {
            match once(self) {
                Ok(()) => return,
                Err(error) => last = Some(error),
            }
        }
        let error = last.expect("at least one attempt");
        let lost = self.scenario.loss && error.kind() == ErrorKind::DeviceLost;
        let full = self.may_be_full() && error.kind() == ErrorKind::OutOfMemory;
        // A buffer whose mapping could not be undone says so for good.
        let stuck = self.scenario.may_leave();
        assert!(lost || full || stuck, "does not recover: {error}");
    }

    /// Whether all the tiers together may be too small for what the clients have created.
    fn may_be_full(&self) -> bool {
        self.scenario.swap < 256 || self.scenario.may_leave()
    }

    fn read_alone(&mut self, id: BufferId, len: usize) -> Result<(), Error> {
        let task = self.device.exec(&[crate::work::cpu_read(id)])?;
        let grant = self.drive(task)?.expect("granted");
        let got = self.fetch(&grant, 0, 0, len);
        self.device.finish(task, None, Keep::Evictable);
        let got = got.map_err(|error| Error::Effect {
            buffer: "read".into(),
            error,
        })?;
        self.model.verify(&self.runner, id, 0, &got);
        Ok(())
    }

    /// Reads bytes of one view on the CPU.
    pub(crate) fn fetch(
        &mut self,
        grant: &Grant,
        view: usize,
        at: u64,
        len: usize,
    ) -> Result<Vec<u8>, vrampager_core::EffectError> {
        for &fence in &grant.waits {
            self.runner.wait(fence)?;
        }
        let mut bytes = vec![0; len];
        match &grant.views[view].bytes {
            Bytes::Host(spans) => self.runner.read_host(spans, at, &mut bytes),
            Bytes::Device(window) => self.runner.read_device(window, at, &mut bytes)?,
        }
        Ok(bytes)
    }

    fn touch_alone(&mut self, id: BufferId) -> Result<(), Error> {
        let task = self.device.exec(&[crate::work::gpu_read(id)])?;
        self.drive(task)?;
        self.device.finish(task, None, Keep::Evictable);
        Ok(())
    }

    fn reap_all(&mut self) {
        let pieces = self.device.snapshot().ghosts + self.scenario.faults();
        for _ in 0..=pieces {
            let task = self.device.reap();
            assert_eq!(self.drive(task), Ok(None), "reaping never fails");
        }
        self.device.check_drained();
    }

    /// Closes everything; the hash of the run.
    pub(crate) fn close(mut self) -> Trace {
        let Snapshot {
            quarantined,
            va_bytes,
            ..
        } = self.device.snapshot();
        let now = self.runner.counters();
        assert_eq!(now.objects, self.start.objects);
        assert_eq!(
            now.va_bytes - self.start.va_bytes,
            va_bytes,
            "addresses in quarantine are exactly those left"
        );
        assert!(
            quarantined > 0 || now.mappings == self.start.mappings,
            "nothing is mapped but what quarantine holds: {now}"
        );
        let mut refused = 0;
        for &stream in &self.streams {
            refused += u32::from(self.runner.close_stream(stream).is_err());
        }
        let left = self.runner.close();
        let clean = !self.scenario.may_leave();
        assert!(!clean || quarantined == 0 && refused == 0);
        assert!(
            !clean || left.is_zero(),
            "everything is given back, but: {left}"
        );
        assert!(
            left.objects == 0 || left.mappings > 0,
            "an object outlives the close only under a mapping that stays: {left}"
        );
        let hash = self.sim.device(DeviceId(0)).unwrap().event_hash();
        self.trace.fold(&[hash]);
        self.trace
    }
}
