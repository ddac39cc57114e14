//! Performing effects through the contracts. Holds no decision and no state of any buffer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use vrampager_addr::{Span, Va};
use vrampager_hal::{
    ChannelKind, Counters, CpuMapping, Fault, Fence, Gpu, HalError, Op, Storage, StorageError,
    TimelineId,
};

use crate::effect::{Effect, EffectError, FileId, Performed, Stored, copies};
use crate::open::Undo;
use crate::staging::{Piece, Staging};
use crate::stream::{DEADLINE, OnFault, Stream, wait};

/// Carries out what [`Device`](crate::Device) decides.
///
/// Shared by all threads of a device; none of its methods is called with the device locked.
#[derive(Debug)]
pub struct Runner {
    pub(crate) gpu: Gpu,
    pub(crate) host: CpuMapping,
    pub(crate) staging: Staging,
    /// The manager's own copies, then users' streams.
    streams: RwLock<Vec<Arc<Stream>>>,
    moves: Arc<Stream>,
    /// Timelines of streams that were closed.
    closed: RwLock<Vec<TimelineId>>,
    /// How far each timeline had come when the device was closed.
    ends: Mutex<BTreeMap<TimelineId, u64>>,
    swap: Option<Arc<dyn Storage>>,
    files: RwLock<BTreeMap<FileId, Arc<dyn Storage>>>,
    pub(crate) undo: Mutex<Vec<Undo>>,
}

impl Runner {
    pub(crate) fn new(
        gpu: Gpu,
        host: CpuMapping,
        staging: Staging,
        swap: Option<Arc<dyn Storage>>,
    ) -> Result<Self, HalError> {
        let moves = Arc::new(Stream::open(&gpu, ChannelKind::Copy, OnFault::Replay)?);
        let streams = RwLock::new(vec![moves.clone()]);
        let files = RwLock::default();
        Ok(Self {
            gpu,
            host,
            staging,
            streams,
            moves,
            closed: RwLock::default(),
            ends: Mutex::default(),
            swap,
            files,
            undo: Mutex::default(),
        })
    }

    /// Makes `storage` known as `file`.
    ///
    /// # Panics
    /// When the id is in use: ids are used once.
    pub fn add_file(&self, file: FileId, storage: Arc<dyn Storage>) {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let replaced = files.insert(file, storage);
        assert!(replaced.is_none(), "ids of files are used once");
    }

    /// Forgets a file that no buffer is backed by any more.
    pub fn remove_file(&self, file: FileId) {
        self.files
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&file);
    }

    /// Opens a stream for a user's submissions; its fences are on the returned timeline. It has a
    /// channel from its first submission on.
    ///
    /// # Errors
    /// What the device says; nothing is left behind.
    pub fn open_stream(&self, kind: ChannelKind) -> Result<TimelineId, HalError> {
        let stream = Arc::new(Stream::open(&self.gpu, kind, OnFault::Drop)?);
        let timeline = stream.timeline;
        self.streams
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(stream);
        Ok(timeline)
    }

    /// Closes a user's stream, idle or not: what has not run is given up, its fences count as
    /// reached. The timeline stays until the device is closed, because buffers and other streams
    /// may still name its fences.
    ///
    /// # Errors
    /// What the device says; the stream is then still open.
    pub fn close_stream(&self, timeline: TimelineId) -> Result<(), HalError> {
        let mut streams = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        let mut users = streams.iter().skip(1);
        let at = users.position(|stream| stream.timeline == timeline);
        let Some(at) = at.map(|at| at + 1) else {
            return Ok(());
        };
        streams[at].close(&self.gpu)?;
        streams.remove(at);
        self.closed
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(timeline);
        Ok(())
    }

    fn streams(&self) -> Vec<Arc<Stream>> {
        self.streams
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn stream(&self, timeline: TimelineId) -> Option<Arc<Stream>> {
        self.streams()
            .into_iter()
            .find(|stream| stream.timeline == timeline)
    }

    /// Where each timeline stands, to be reported to the device.
    #[must_use]
    pub fn progress(&self) -> Vec<(TimelineId, u64)> {
        let at = |stream: Arc<Stream>| (stream.timeline, self.gpu.queue.completed(stream.timeline));
        self.streams().into_iter().map(at).collect()
    }

    /// Submits a user's operations behind `waits`.
    ///
    /// # Errors
    /// What the device says; [`HalError::Unsupported`] for a timeline that is not a user's.
    pub fn submit(
        &self,
        timeline: TimelineId,
        waits: &[Fence],
        ops: &[Op],
    ) -> Result<Fence, HalError> {
        let stream = self
            .stream(timeline)
            .filter(|stream| !Arc::ptr_eq(stream, &self.moves));
        let stream = stream.ok_or(HalError::Unsupported("a closed stream"))?;
        let mut all: Vec<Op> = waits.iter().copied().map(Op::Wait).collect();
        all.extend_from_slice(ops);
        stream.submit(&self.gpu, &self.streams(), &all)
    }

    /// Waits until `fence` is reached, recovering stopped channels meanwhile.
    ///
    /// # Errors
    /// [`HalError::Timeout`] after 15 seconds, [`HalError::DeviceLost`].
    pub fn wait(&self, fence: Fence) -> Result<(), HalError> {
        self.wait_at_most(fence, DEADLINE)
    }

    /// The same with another deadline, rounded up to tenths of a second.
    ///
    /// # Errors
    /// [`HalError::Timeout`], [`HalError::DeviceLost`].
    pub fn wait_at_most(&self, fence: Fence, at_most: Duration) -> Result<(), HalError> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if ends
            .get(&fence.timeline)
            .is_some_and(|&end| end >= fence.value)
        {
            return Ok(());
        }
        drop(ends);
        wait(&self.gpu, &self.streams(), fence, at_most)
    }

    /// The fault that kept the submission behind `fence` from running, if one did.
    #[must_use]
    pub fn failure(&self, fence: Fence) -> Option<Fault> {
        self.stream(fence.timeline)?.failure(fence.value)
    }

    /// Performs effects in order up to the first failure.
    pub fn perform(&self, effects: &[Effect]) -> Performed {
        let mut fence = None;
        for (index, effect) in effects.iter().enumerate() {
            match self.perform_one(effect) {
                Ok(None) => {}
                Ok(newer) => fence = newer,
                Err(error) => {
                    return Performed {
                        fence,
                        failed: Some((index, error)),
                    };
                }
            }
        }
        Performed {
            fence,
            failed: None,
        }
    }

    fn perform_one(&self, effect: &Effect) -> Result<Option<Fence>, EffectError> {
        match effect {
            Effect::Wait(fences) => fences.iter().try_for_each(|&fence| self.wait(fence))?,
            Effect::ReserveVa(span) => self.gpu.memory.reserve_va(*span)?,
            Effect::ReleaseVa(span) => self.gpu.release.release_va(*span)?,
            Effect::Map(map) => self.gpu.memory.map_gpu(*map)?,
            Effect::Unmap(span) => self.gpu.release.unmap_gpu(*span)?,
            Effect::Copy(ops) => return Ok(Some(self.moves.submit(&self.gpu, &[], ops)?)),
            Effect::Clear(spans) => {
                for span in spans {
                    self.host.fill(span.start(), span.len(), 0);
                }
            }
            Effect::Load {
                from,
                offset,
                len,
                to,
            } => {
                self.load(&*self.stored(*from)?, *offset, *len, to)?;
            }
            Effect::Upload {
                from,
                offset,
                len,
                to,
            } => {
                return Ok(Some(self.upload(
                    &*self.stored(*from)?,
                    *offset,
                    *len,
                    to,
                )?));
            }
            Effect::Store { from, offset } => {
                let swap = self.stored(Stored::Swap)?;
                let mut at = *offset;
                for span in from {
                    swap.write(at, &self.host, span.start(), span.len())?;
                    at += span.len();
                }
            }
        }
        Ok(None)
    }

    fn stored(&self, from: Stored) -> Result<Arc<dyn Storage>, StorageError> {
        let storage = match from {
            Stored::Swap => self.swap.clone(),
            Stored::File(file) => self
                .files
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .get(&file)
                .cloned(),
        };
        storage.ok_or(StorageError::Unknown)
    }

    fn load(
        &self,
        from: &dyn Storage,
        offset: u64,
        len: u64,
        to: &[Span],
    ) -> Result<(), StorageError> {
        let mut done = 0;
        for span in to {
            let part = span.len().min(len - done);
            from.read(offset + done, &self.host, span.start(), part)?;
            self.host.fill(span.start() + part, span.len() - part, 0);
            done += part;
        }
        Ok(())
    }

    /// Reads into one staging piece while the engine copies out of the others.
    fn upload(
        &self,
        from: &dyn Storage,
        offset: u64,
        len: u64,
        to: &[Span],
    ) -> Result<Fence, EffectError> {
        let total: u64 = to.iter().map(|span| span.len()).sum();
        let (mut done, mut last) = (0, None);
        while done < total {
            let (piece, fence) = self.staging.take();
            let step = piece.len.min(total - done);
            let file = step.min(len.saturating_sub(done));
            let filled = self.fill_piece(piece, fence, |piece| {
                from.read(offset + done, &self.host, piece.offset, file)?;
                self.host.fill(piece.offset + file, step - file, 0);
                Ok(copies(&[span_at(piece.va, step)], &cut(to, done, step)))
            });
            last = Some(filled?);
            done += step;
        }
        Ok(last.expect("a buffer is not empty"))
    }

    /// Waits for a piece, lets `prepare` fill it, submits, and gives the piece back in any case.
    fn fill_piece(
        &self,
        piece: Piece,
        busy: Option<Fence>,
        prepare: impl FnOnce(Piece) -> Result<Vec<Op>, EffectError>,
    ) -> Result<Fence, EffectError> {
        if let Some(Err(error)) = busy.map(|fence| self.wait(fence)) {
            self.staging.put(piece, busy);
            return Err(error.into());
        }
        let submitted =
            prepare(piece).and_then(|ops| Ok(self.moves.submit(&self.gpu, &[], &ops)?));
        self.staging.put(piece, submitted.as_ref().ok().copied());
        submitted
    }

    /// Reads host pages.
    pub fn read_host(&self, spans: &[Span], offset: u64, into: &mut [u8]) {
        let mut rest = into;
        for part in cut(spans, offset, rest.len() as u64) {
            let (now, later) = rest.split_at_mut(index(part.len()));
            self.host.read(part.start(), now);
            rest = later;
        }
    }

    /// Writes host pages.
    pub fn write_host(&self, spans: &[Span], offset: u64, from: &[u8]) {
        let mut rest = from;
        for part in cut(spans, offset, rest.len() as u64) {
            let (now, later) = rest.split_at(index(part.len()));
            self.host.write(part.start(), now);
            rest = later;
        }
    }

    /// Reads device memory at GPU addresses `window` from `offset` on, through staging.
    ///
    /// # Errors
    /// What the device says; `into` is then partly filled.
    pub fn read_device(
        &self,
        window: &[Span],
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), EffectError> {
        let mut done = 0;
        while done < into.len() {
            let (piece, busy) = self.staging.take();
            let step = piece.len.min((into.len() - done) as u64);
            let ops = copies(
                &cut(window, offset + done as u64, step),
                &[span_at(piece.va, step)],
            );
            let end = done + index(step);
            let submitted = busy
                .map_or(Ok(()), |fence| self.wait(fence))
                .and_then(|()| self.moves.submit(&self.gpu, &[], &ops));
            // The piece stays ours until it has been read.
            let fetched = submitted.clone().and_then(|fence| self.wait(fence));
            if fetched.is_ok() {
                self.host.read(piece.offset, &mut into[done..end]);
            }
            self.staging.put(piece, submitted.ok().or(busy));
            fetched?;
            done = end;
        }
        Ok(())
    }

    /// Writes device memory at GPU addresses `window` from `offset` on, through staging; the
    /// bytes are there when it returns.
    ///
    /// # Errors
    /// What the device says; the range is then partly written.
    pub fn write_device(
        &self,
        window: &[Span],
        offset: u64,
        from: &[u8],
    ) -> Result<(), EffectError> {
        let mut last = None;
        let mut done = 0;
        while done < from.len() {
            let (piece, busy) = self.staging.take();
            let step = piece.len.min((from.len() - done) as u64);
            let end = done + index(step);
            let to = cut(window, offset + done as u64, step);
            let filled = self.fill_piece(piece, busy, |piece| {
                self.host.write(piece.offset, &from[done..end]);
                Ok(copies(&[span_at(piece.va, step)], &to))
            });
            if let (Err(_), Some(fence)) = (&filled, last) {
                // No copy of a failed write may land after its caller has gone on.
                self.wait(fence)?;
            }
            last = Some(filled?);
            done = end;
        }
        Ok(last.map_or(Ok(()), |fence| self.wait(fence))?)
    }

    /// What the device holds for this manager.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.gpu.release.counters()
    }

    /// Undoes bring-up and closes the device; returns what was left, all zero after every buffer
    /// has been released and reaped. A second call returns zeros.
    pub fn close(&self) -> Counters {
        // Work that was over stays over when the device is gone.
        let reached = self.progress();
        self.ends
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(reached);
        let mut streams = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        let mut timelines = self.closed.write().unwrap_or_else(PoisonError::into_inner);
        // What cannot be destroyed shows in the counters below.
        let close = |stream: &&Arc<Stream>| stream.close(&self.gpu).is_err();
        let left = streams.iter().filter(close).count();
        timelines.extend(streams.drain(..).map(|stream| stream.timeline));
        // A channel that is left may yet use any of them.
        if left == 0 {
            for timeline in timelines.drain(..) {
                drop(self.gpu.release.destroy_timeline(timeline));
            }
        }
        let undo = std::mem::take(&mut *self.undo.lock().unwrap_or_else(PoisonError::into_inner));
        crate::open::undo_all(&self.gpu, undo);
        self.gpu.release.close()
    }
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a slice's length fits in usize")
}

fn span_at(va: Va, len: u64) -> Span {
    Span::new(va.0, len).expect("inside the staging window")
}

/// The parts of `spans` that hold `len` bytes from byte `offset` on.
fn cut(spans: &[Span], offset: u64, len: u64) -> Vec<Span> {
    let mut parts = Vec::new();
    let (mut skip, mut left) = (offset, len);
    for span in spans {
        if left == 0 {
            break;
        }
        if skip >= span.len() {
            skip -= span.len();
            continue;
        }
        let take = left.min(span.len() - skip);
        parts.push(
            span.slice(skip, take)
                .expect("bounded by the span's length"),
        );
        (skip, left) = (0, left - take);
    }
    assert_eq!(left, 0, "the range lies inside the buffer");
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, len: u64) -> Span {
        Span::new(start, len).unwrap()
    }

    #[test]
    fn a_cut_takes_exactly_the_bytes_asked_for() {
        let spans = [span(0, 4), span(100, 4), span(50, 4)];
        assert_eq!(cut(&spans, 0, 12), spans);
        assert_eq!(cut(&spans, 3, 2), [span(3, 1), span(100, 1)]);
        assert_eq!(cut(&spans, 4, 4), [span(100, 4)]);
        assert_eq!(cut(&spans, 12, 0), []);
    }

    #[test]
    #[should_panic(expected = "inside the buffer")]
    fn a_cut_past_the_end_is_a_bug() {
        cut(&[span(0, 4)], 2, 3);
    }
}
