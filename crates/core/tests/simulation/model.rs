//! What every buffer must contain, kept as plain bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use vrampager_core::{BufferId, Runner};
use vrampager_hal::{FaultKind, Fence, TimelineId};

/// One buffer as its users know it.
#[derive(Debug)]
pub(crate) struct Expected {
    bytes: Vec<u8>,
    /// Which bytes a failed write left undefined until they are next seen; empty for none.
    unknown: Vec<bool>,
    /// Submissions that are part of the content's history and may turn out to have failed.
    behind: BTreeSet<Fence>,
    pub(crate) pins: u32,
    pub(crate) released: bool,
}

/// All buffers ever created.
#[derive(Debug, Default)]
pub(crate) struct Model {
    buffers: BTreeMap<BufferId, Expected>,
    /// Timelines of streams that were closed, with or without having run what they had.
    closed: BTreeSet<TimelineId>,
}

impl Expected {
    fn forget(&mut self, range: Range<usize>) {
        self.unknown.resize(self.bytes.len(), false);
        self.unknown[range].fill(true);
    }

    fn learn(&mut self, range: Range<usize>) {
        if !self.unknown.is_empty() {
            self.unknown[range].fill(false);
        }
    }

    /// Takes note of submissions that have failed; all of them are over.
    fn settle(&mut self, runner: &Runner, closed: &BTreeSet<TimelineId>) {
        let behind = std::mem::take(&mut self.behind);
        let failed = |&fence: &Fence| {
            let fault = runner.failure(fence);
            let kind = fault.map(|fault| fault.kind);
            // No other fault is ever injected: anything else is a mapping gone too early.
            assert!(
                kind.is_none_or(|kind| kind == FaultKind::CopyEngine),
                "{fault:?}"
            );
            fault.is_some() || closed.contains(&fence.timeline)
        };
        if behind.iter().any(failed) {
            self.forget(0..self.bytes.len());
        }
    }
}

impl Model {
    pub(crate) fn add(&mut self, id: BufferId, bytes: Vec<u8>) {
        let expected = Expected {
            bytes,
            unknown: Vec::new(),
            behind: BTreeSet::new(),
            pins: 0,
            released: false,
        };
        let old = self.buffers.insert(id, expected);
        assert!(old.is_none(), "ids are used once");
    }

    pub(crate) fn get(&self, id: BufferId) -> &Expected {
        &self.buffers[&id]
    }

    pub(crate) fn get_mut(&mut self, id: BufferId) -> &mut Expected {
        self.buffers
            .get_mut(&id)
            .expect("a buffer that was created")
    }

    pub(crate) fn len(&self, id: BufferId) -> usize {
        self.buffers[&id].bytes.len()
    }

    pub(crate) fn live(&self) -> Vec<BufferId> {
        let live = self
            .buffers
            .iter()
            .filter(|(_, expected)| !expected.released);
        live.map(|(&id, _)| id).collect()
    }

    /// Compares what was read at `at`; bytes that were undefined are adopted, and have to stay.
    pub(crate) fn verify(&mut self, runner: &Runner, id: BufferId, at: usize, got: &[u8]) {
        let expected = self
            .buffers
            .get_mut(&id)
            .expect("a buffer that was created");
        expected.settle(runner, &self.closed);
        let range = at..at + got.len();
        if !expected.unknown.is_empty() {
            for (i, &byte) in range.clone().zip(got) {
                if std::mem::take(&mut expected.unknown[i]) {
                    expected.bytes[i] = byte;
                }
            }
        }
        let want = &expected.bytes[range];
        let wrong = want.iter().zip(got).position(|(want, got)| want != got);
        if let Some(wrong) = wrong {
            panic!(
                "{id:?} holds {:#04x} instead of {:#04x} at byte {}",
                got[wrong],
                want[wrong],
                at + wrong
            );
        }
    }

    /// The CPU has written; everything before has been waited for.
    pub(crate) fn write(&mut self, runner: &Runner, id: BufferId, at: usize, bytes: &[u8]) {
        let expected = self
            .buffers
            .get_mut(&id)
            .expect("a buffer that was created");
        expected.settle(runner, &self.closed);
        let range = at..at + bytes.len();
        expected.learn(range.clone());
        expected.bytes[range].copy_from_slice(bytes);
    }

    /// The GPU will have filled a range once `fence` is reached.
    pub(crate) fn fill(&mut self, id: BufferId, range: Range<usize>, byte: u8, fence: Fence) {
        let expected = self.get_mut(id);
        expected.behind.insert(fence);
        expected.learn(range.clone());
        expected.bytes[range].fill(byte);
    }

    /// The GPU will have copied a range once `fence` is reached.
    pub(crate) fn copy(
        &mut self,
        from: (BufferId, Range<usize>),
        to: (BufferId, usize),
        fence: Fence,
    ) {
        let (source, range) = from;
        let source = &self.buffers[&source];
        let bytes = source.bytes[range.clone()].to_vec();
        let unknown = source.unknown.get(range.clone()).map(<[bool]>::to_vec);
        let behind = source.behind.clone();
        let (target, at) = to;
        let target = self.get_mut(target);
        target.behind.extend(behind);
        target.behind.insert(fence);
        let range = at..at + bytes.len();
        target.bytes[range.clone()].copy_from_slice(&bytes);
        match unknown {
            None => target.learn(range),
            Some(unknown) => {
                target.unknown.resize(target.bytes.len(), false);
                target.unknown[range].copy_from_slice(&unknown);
            }
        }
    }

    /// A stream was closed, idle or not.
    pub(crate) fn close(&mut self, timeline: TimelineId) {
        self.closed.insert(timeline);
    }

    /// A write of this range failed part-way.
    pub(crate) fn forget(&mut self, id: BufferId, range: Range<usize>) {
        self.get_mut(id).forget(range);
    }
}
