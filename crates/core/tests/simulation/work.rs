//! What clients ask for, and what they do with what they are granted.

use std::fmt;
use std::ops::Range;

use vrampager_addr::Va;
use vrampager_core::{
    BufferDesc, BufferId, Bytes, Error, FileId, Grant, Keep, MemType, Place, Placement, Preference,
    Priority, Target, TaskId, Use,
};
use vrampager_hal::{Access, ChannelKind, Op};

use crate::scenario::PAGE;
use crate::world::World;

/// A file that clean buffers are read from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) file: FileId,
    pub(crate) bytes: Vec<u8>,
}

/// One operation of a client.
#[derive(Clone)]
pub(crate) enum Work {
    Create {
        content: Vec<u8>,
    },
    Read {
        id: BufferId,
        at: usize,
        len: usize,
    },
    Write {
        id: BufferId,
        at: usize,
        bytes: Vec<u8>,
    },
    /// Operations of the GPU; buffers are named by their position in `uses`.
    Submit {
        uses: Vec<BufferId>,
        stream: usize,
        ops: Vec<GpuOp>,
    },
    /// Bring buffers to a place, and perhaps keep them there.
    Place {
        uses: Vec<BufferId>,
        keep: Keep,
    },
    Reap,
}

#[derive(Clone, Debug)]
pub(crate) enum GpuOp {
    Fill {
        dst: usize,
        range: Range<usize>,
        byte: u8,
    },
    Copy {
        src: usize,
        from: Range<usize>,
        dst: usize,
        to: usize,
    },
}

impl Work {
    /// The buffers it names.
    pub(crate) fn buffers(&self) -> Vec<BufferId> {
        match self {
            Self::Create { .. } | Self::Reap => Vec::new(),
            Self::Read { id, .. } | Self::Write { id, .. } => vec![*id],
            Self::Submit { uses, .. } | Self::Place { uses, .. } => uses.clone(),
        }
    }
}

impl fmt::Debug for Work {
    /// Without bytes, of which there are too many to read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Create { .. } => "create",
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Submit { .. } => "submit",
            Self::Place { .. } => "place",
            Self::Reap => "reap",
        };
        write!(f, "{kind} {:?}", self.buffers())
    }
}

pub(crate) fn cpu_read(buffer: BufferId) -> Use {
    Use {
        buffer,
        access: Access::Read,
        target: Target::Cpu,
    }
}

pub(crate) fn gpu_read(buffer: BufferId) -> Use {
    Use {
        buffer,
        access: Access::Read,
        target: Target::Gpu,
    }
}

fn index(value: u64) -> usize {
    usize::try_from(value).expect("small")
}

impl World {
    /// Draws the next operation; no task when it is over at once.
    pub(crate) fn next_work(&mut self) -> (Work, Option<TaskId>) {
        let live = self.model.live();
        let draw = self.choices.below(100);
        if live.is_empty() || draw < 18 && live.len() < 12 {
            return self.create();
        }
        let id = *self.choices.pick(&live);
        match draw {
            0..35 => self.read(id),
            35..53 => self.write(id),
            53..78 => self.submit(&live),
            78..88 => self.place(&live),
            88..91 => {
                self.unpin(id);
                (Work::Reap, None)
            }
            91..95 => {
                self.device.release(id).unwrap();
                self.model.get_mut(id).released = true;
                (Work::Reap, None)
            }
            95..97 => {
                self.replace_stream();
                (Work::Reap, None)
            }
            _ => (Work::Reap, Some(self.device.reap())),
        }
    }

    fn begin_exec(&mut self, work: Work, uses: &[Use]) -> (Work, Option<TaskId>) {
        match self.device.exec(uses) {
            Ok(task) => (work, Some(task)),
            Err(Error::DeviceLost(_)) if self.scenario.loss => (work, None),
            Err(error) => panic!("{error} at the start of {work:?}"),
        }
    }

    fn create(&mut self) -> (Work, Option<TaskId>) {
        let pages = self.choices.between(1, self.scenario.largest);
        let len = pages * PAGE - self.choices.below(2) * self.choices.below(PAGE);
        let (content, source) = if self.choices.percent(50) {
            (vec![0; index(len)], vrampager_core::Source::Zero)
        } else {
            let Source { file, bytes } = self.choices.pick(&self.files).clone();
            let start = index(self.choices.below(bytes.len() as u64 - len + 1));
            let offset = start as u64;
            let source = vrampager_core::Source::File { file, offset };
            (bytes[start..start + index(len)].to_vec(), source)
        };
        let gtt = Place::new(MemType::GTT).with(Preference::Fallback);
        let desired = Place::new(MemType::VRAM).with(Preference::Desired);
        let placements = [
            Placement::vram(),
            Placement::vram(),
            Placement::vram_or_gtt(),
            Placement::gtt(),
            Placement::new(&[desired, gtt]).unwrap(),
        ];
        let level = u8::try_from(self.choices.below(4)).unwrap();
        let desc = BufferDesc {
            name: format!("b{}", self.choices.below(1000)).into(),
            len,
            placement: self.choices.pick(&placements).clone(),
            priority: Priority::new(level).unwrap(),
            content: source,
        };
        match self.device.create(&desc) {
            Ok(task) => (Work::Create { content }, Some(task)),
            Err(Error::DeviceLost(_)) if self.scenario.loss => (Work::Reap, None),
            Err(error) => panic!("{error} at the start of {desc:?}"),
        }
    }

    /// A part of a buffer, not empty.
    fn part(&mut self, id: BufferId) -> Range<usize> {
        let len = self.model.len(id) as u64;
        if self.choices.percent(40) {
            return 0..index(len);
        }
        let at = self.choices.below(len);
        index(at)..index(at + self.choices.between(1, len - at))
    }

    fn read(&mut self, id: BufferId) -> (Work, Option<TaskId>) {
        let range = self.part(id);
        let (at, len) = (range.start, range.len());
        self.begin_exec(Work::Read { id, at, len }, &[cpu_read(id)])
    }

    fn write(&mut self, id: BufferId) -> (Work, Option<TaskId>) {
        let range = self.part(id);
        let (at, bytes) = (range.start, self.choices.bytes(range.len()));
        let each = Use {
            buffer: id,
            access: Access::Write,
            target: Target::Cpu,
        };
        self.begin_exec(Work::Write { id, at, bytes }, &[each])
    }

    /// One to five buffers that together fit.
    fn some_buffers(&mut self, live: &[BufferId]) -> Vec<BufferId> {
        let mut uses = Vec::new();
        for _ in 0..self.choices.between(1, 5) {
            let id = *self.choices.pick(live);
            if !uses.contains(&id) {
                uses.push(id);
            }
        }
        uses
    }

    fn submit(&mut self, live: &[BufferId]) -> (Work, Option<TaskId>) {
        let uses = self.some_buffers(live);
        let mut access = vec![Access::Read; uses.len()];
        let mut ops = Vec::new();
        for _ in 0..self.choices.below(4) {
            let dst = index(self.choices.below(uses.len() as u64));
            let src = index(self.choices.below(uses.len() as u64));
            let to = self.part(uses[dst]);
            access[dst] = Access::Write;
            if src == dst || self.choices.percent(50) {
                let (range, byte) = (to, self.choices.byte());
                ops.push(GpuOp::Fill { dst, range, byte });
            } else {
                let from = self.part(uses[src]);
                let from = from.start..from.start + from.len().min(to.len());
                let to = to.start;
                ops.push(GpuOp::Copy { src, from, dst, to });
            }
        }
        let stream = index(self.choices.below(self.streams.len() as u64));
        let gpu = |(&buffer, &access): (&BufferId, &Access)| Use {
            buffer,
            access,
            target: Target::Gpu,
        };
        let mut named: Vec<Use> = uses.iter().zip(&access).map(gpu).collect();
        if self.choices.percent(20) {
            // Naming a buffer again with less access changes nothing.
            named.push(gpu((&uses[0], &Access::Read)));
        }
        self.begin_exec(Work::Submit { uses, stream, ops }, &named)
    }

    fn place(&mut self, live: &[BufferId]) -> (Work, Option<TaskId>) {
        let uses = self.some_buffers(live);
        let targets = [
            Target::Gpu,
            Target::Places(Placement::vram()),
            Target::Places(Placement::gtt()),
            Target::Places(Placement::system()),
        ];
        let target = self.choices.pick(&targets).clone();
        let keep = match self.choices.percent(15) {
            true => Keep::Pinned,
            false => Keep::Evictable,
        };
        let each = |&buffer: &BufferId| Use {
            buffer,
            access: Access::Read,
            target: target.clone(),
        };
        let named: Vec<Use> = uses.iter().map(each).collect();
        self.begin_exec(Work::Place { uses, keep }, &named)
    }

    /// Closes a stream whatever it is doing, and opens another.
    fn replace_stream(&mut self) {
        let at = index(self.choices.below(self.streams.len() as u64));
        let kind = *self
            .choices
            .pick(&[ChannelKind::Copy, ChannelKind::Compute]);
        match self.runner.open_stream(kind) {
            Ok(stream) => self.streams.push(stream),
            Err(error) => return self.expect_fault(&error.to_string()),
        }
        match self.runner.close_stream(self.streams[at]) {
            Ok(()) => self.model.close(self.streams.swap_remove(at)),
            Err(error) => self.expect_fault(&error.to_string()),
        }
    }

    fn unpin(&mut self, id: BufferId) {
        let pins = &mut self.model.get_mut(id).pins;
        if *pins > 0 {
            *pins -= 1;
            self.device.unpin(id).unwrap();
        }
    }

    /// Does what the task was granted for, and ends it.
    pub(crate) fn carry_out(&mut self, task: TaskId, grant: &Grant, work: &Work) {
        match work {
            Work::Read { id, at, len } => {
                let got = self.fetch(grant, 0, *at as u64, *len);
                self.device.finish(task, None, Keep::Evictable);
                match got {
                    Ok(got) => self.model.verify(&self.runner, *id, *at, &got),
                    Err(error) => self.expect_fault(&error.to_string()),
                }
            }
            Work::Write { id, at, bytes } => self.write_bytes(task, grant, (*id, *at), bytes),
            Work::Submit { uses, stream, ops } => {
                self.submit_ops(task, grant, (uses, *stream), ops);
            }
            Work::Place { uses, keep } => {
                self.device.finish(task, None, *keep);
                if *keep == Keep::Pinned {
                    for &id in uses {
                        self.model.get_mut(id).pins += 1;
                    }
                }
            }
            Work::Create { .. } | Work::Reap => unreachable!("these are not granted"),
        }
    }

    fn expect_fault(&self, error: &str) {
        assert!(self.scenario.faults() > 0, "{error} without a cause");
    }

    fn write_bytes(&mut self, task: TaskId, grant: &Grant, to: (BufferId, usize), bytes: &[u8]) {
        let (id, at) = to;
        for &fence in &grant.waits {
            if let Err(error) = self.runner.wait(fence) {
                self.expect_fault(&error.to_string());
                self.device.abort(task);
                return;
            }
        }
        let written = match &grant.views[0].bytes {
            Bytes::Host(spans) => {
                self.runner.write_host(spans, at as u64, bytes);
                Ok(())
            }
            Bytes::Device(window) => self.runner.write_device(window, at as u64, bytes),
        };
        self.device.finish(task, None, Keep::Evictable);
        match written {
            Ok(()) => self.model.write(&self.runner, id, at, bytes),
            Err(error) => {
                self.expect_fault(&error.to_string());
                self.model.forget(id, at..at + bytes.len());
            }
        }
    }

    fn submit_ops(&mut self, task: TaskId, grant: &Grant, on: (&[BufferId], usize), ops: &[GpuOp]) {
        let (uses, stream) = on;
        assert_eq!(grant.views.len(), uses.len(), "a view for each buffer");
        let va = |buffer: usize, at: usize| Va(grant.views[buffer].va.0 + at as u64);
        let lower = |op: &GpuOp| match op {
            GpuOp::Fill { dst, range, byte } => Op::Fill {
                dst: va(*dst, range.start),
                len: range.len() as u64,
                byte: *byte,
            },
            GpuOp::Copy { src, from, dst, to } => Op::Copy {
                src: va(*src, from.start),
                dst: va(*dst, *to),
                len: from.len() as u64,
            },
        };
        let lowered: Vec<Op> = ops.iter().map(lower).collect();
        let submitted = self
            .runner
            .submit(self.streams[stream], &grant.waits, &lowered);
        let fence = match submitted {
            Ok(fence) => fence,
            Err(error) => {
                self.expect_fault(&error.to_string());
                self.device.abort(task);
                for op in ops {
                    let (dst, range) = match op {
                        GpuOp::Fill { dst, range, .. } => (*dst, range.clone()),
                        GpuOp::Copy { dst, from, to, .. } => (*dst, *to..*to + from.len()),
                    };
                    self.model.forget(uses[dst], range);
                }
                return;
            }
        };
        self.device.finish(task, Some(fence), Keep::Evictable);
        for op in ops {
            match op {
                GpuOp::Fill { dst, range, byte } => {
                    self.model.fill(uses[*dst], range.clone(), *byte, fence);
                }
                GpuOp::Copy { src, from, dst, to } => {
                    let from = (uses[*src], from.clone());
                    self.model.copy(from, (uses[*dst], *to), fence);
                }
            }
        }
    }
}
