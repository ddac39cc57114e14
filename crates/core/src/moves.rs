//! Moving one buffer: what it takes, and what it means once done or failed.
//!
//! All copies of a device run on one channel in order. Space of a domain's own memory may thus be
//! given to a new owner while the old content is still being copied out: the new owner's fill is
//! behind that copy. The kernel's slots of pipelined eviction fences (TTM R11, R12) are therefore
//! not needed. Host pages are also touched by the CPU and do wait, as a [`Ghost`].

use vrampager_addr::{Span, Va};
use vrampager_hal::{Access, Fence, GpuMap, MemId, Op};

use crate::buffer::{Buffer, BufferId, Pages, Resource, Source, State};
use crate::device::{Device, PlantedBug, Reach};
use crate::effect::{Effect, EffectError, Stored, copies};
use crate::placement::{MemType, Place};
use crate::task::Job;

/// What effects under way are for.
#[derive(Debug)]
pub(crate) enum Plan {
    /// Waiting only.
    Wait,
    /// Addresses of a new buffer.
    Reserve(BufferId),
    /// A buffer into a carved resource.
    Move(Move),
    /// A clean buffer to nowhere.
    Drop(BufferId),
    /// A buffer's pages to the swap file.
    SwapOut(BufferId, Span),
    /// A buffer's addresses onto its resource.
    MapVa(BufferId),
    /// Released memory back to its domains.
    Reap(Ghost),
}

impl Plan {
    /// The live buffer that the plan changes.
    pub(crate) fn buffer(&self) -> Option<BufferId> {
        match self {
            Self::Move(Move { buffer, .. })
            | Self::Drop(buffer)
            | Self::SwapOut(buffer, _)
            | Self::MapVa(buffer) => Some(*buffer),
            Self::Wait | Self::Reserve(_) | Self::Reap(_) => None,
        }
    }
}

/// A move under way. `resource` and `fresh` are carved and belong to the move until it is over.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) buffer: BufferId,
    pub(crate) resource: Resource,
    pub(crate) fresh: Option<Vec<Span>>,
}

/// Released memory that the device may still touch (TTM M6, X2).
#[derive(Clone, Debug, Default)]
pub(crate) struct Ghost {
    /// All of them have to be over.
    pub(crate) fences: Vec<Fence>,
    /// Then these mappings go.
    pub(crate) unmap: Vec<Span>,
    /// And these addresses.
    pub(crate) va: Option<Span>,
    /// And this space.
    pub(crate) resource: Option<Resource>,
    pub(crate) pages: Vec<Span>,
    pub(crate) size: u64,
}

/// Why a buffer could not be moved to a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Obstacle {
    /// No such domain, or a request it can never satisfy.
    Unusable,
    /// The place's domain is full.
    Space(Place),
    /// The pool of host pages is empty.
    Pages,
}

pub(crate) fn gpu_spans(base: Va, extents: &[Span]) -> Vec<Span> {
    let shift = |extent: &Span| {
        Span::new(base.offset(extent.start()).0, extent.len()).expect("inside the window")
    };
    extents.iter().map(shift).collect()
}

/// Maps consecutive addresses from `va` on onto `spans` of `mem`.
fn map_all(va: u64, mem: MemId, spans: &[Span], base: u64) -> Vec<GpuMap> {
    let mut next = Va(va);
    let mut maps = Vec::with_capacity(spans.len());
    for span in spans {
        let (offset, len) = (base + span.start(), span.len());
        maps.push(GpuMap {
            va: next,
            mem,
            offset,
            len,
            access: Access::Write,
        });
        next = next.offset(len);
    }
    maps
}

impl Device {
    /// Plans to bring `id` to `place`, over a hop if there is no direct way (TTM V8, M1).
    pub(crate) fn prepare_move(&mut self, id: BufferId, place: &Place) -> Result<Job, Obstacle> {
        let size = self.buffers[id].size();
        if self.needs_hop(id, place.mem_type) {
            let probe = self.carve(place, size).ok_or(Obstacle::Space(*place))?;
            self.uncarve(&probe, size);
            return self.prepare_direct(id, &Place::new(MemType::GTT));
        }
        self.prepare_direct(id, place)
    }

    pub(crate) fn needs_hop(&self, id: BufferId, to: MemType) -> bool {
        let buffer = &self.buffers[id];
        let Some(from) = buffer.mem_type() else {
            return false;
        };
        match (self.reach(from), self.reach(to)) {
            (Some(Reach::Unreachable), Some(Reach::Own { .. })) => !buffer.is_swapped(),
            (Some(Reach::Own { .. }), Some(Reach::Unreachable)) => true,
            _ => false,
        }
    }

    fn prepare_direct(&mut self, id: BufferId, place: &Place) -> Result<Job, Obstacle> {
        let buffer = &self.buffers[id];
        let size = buffer.size();
        let reach = self.reach(place.mem_type).ok_or(Obstacle::Unusable)?;
        let populated = matches!(buffer.pages, Pages::Populated(_));
        let resource = self.carve(place, size).ok_or(Obstacle::Space(*place))?;
        let mut fresh = None;
        if !matches!(reach, Reach::Own { .. }) && !populated {
            fresh = self.pool.carve(size);
            if fresh.is_none() {
                self.uncarve(&resource, size);
                return Err(Obstacle::Pages);
            }
        }
        let effects = self.move_effects(&self.buffers[id], &resource, fresh.as_deref());
        Ok(Job::new(
            Plan::Move(Move {
                buffer: id,
                resource,
                fresh,
            }),
            effects,
        ))
    }

    /// Makes a buffer's addresses free of users and mappings.
    fn detach(&self, buffer: &Buffer) -> Vec<Effect> {
        let mut effects = Vec::new();
        let users = buffer.fences.pending_users(&self.reached);
        if !users.is_empty() {
            effects.push(Effect::Wait(users));
        }
        if buffer.mapped && !self.is_planted(PlantedBug::StaleMapping) {
            effects.push(Effect::Unmap(buffer.va));
        }
        effects
    }

    fn move_effects(&self, buffer: &Buffer, to: &Resource, fresh: Option<&[Span]>) -> Vec<Effect> {
        let mut effects = self.detach(buffer);
        match self
            .reach(to.mem_type)
            .expect("a carved resource has a domain")
        {
            Reach::Own { base, .. } => {
                effects.push(self.fill_device(buffer, gpu_spans(base, &to.extents)));
            }
            Reach::Window { base } => {
                let window = gpu_spans(base, &to.extents);
                let source = self.own_window(buffer);
                let pages = fresh.unwrap_or_else(|| populated(buffer));
                if fresh.is_some() && source.is_none() {
                    effects.push(self.fill_pages(buffer, pages.to_vec()));
                }
                let host = self.config.host;
                assert_eq!(window.len(), 1, "a window's resource is one range");
                let maps = map_all(window[0].start(), host, pages, self.config.pages.start());
                effects.extend(maps.into_iter().map(Effect::Map));
                effects.extend(source.map(|source| Effect::Copy(copies(&source, &window))));
            }
            Reach::Unreachable => match fresh {
                Some(pages) => effects.push(self.fill_pages(buffer, pages.to_vec())),
                None => effects.extend(self.unbind(buffer)),
            },
        }
        effects
    }

    /// Takes a buffer's pages out of their window.
    fn unbind(&self, buffer: &Buffer) -> Vec<Effect> {
        let Some(window) = self.page_window(buffer) else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        if let Some(fence) = buffer
            .fences
            .kernel()
            .filter(|&f| !self.reached.contains(f))
        {
            effects.push(Effect::Wait(vec![fence]));
        }
        effects.extend(window.into_iter().map(Effect::Unmap));
        effects
    }

    /// Addresses at which the copy engine sees a buffer in a domain with memory of its own.
    pub(crate) fn own_window(&self, buffer: &Buffer) -> Option<Vec<Span>> {
        let resource = buffer.resource.as_ref()?;
        match self.reach(resource.mem_type)? {
            Reach::Own { base, .. } => Some(gpu_spans(base, &resource.extents)),
            Reach::Window { .. } | Reach::Unreachable => None,
        }
    }

    /// Addresses at which the device sees a buffer's host pages.
    fn page_window(&self, buffer: &Buffer) -> Option<Vec<Span>> {
        let resource = buffer.resource.as_ref()?;
        match self.reach(resource.mem_type)? {
            Reach::Window { base } => Some(gpu_spans(base, &resource.extents)),
            Reach::Own { .. } | Reach::Unreachable => None,
        }
    }

    fn fill_device(&self, buffer: &Buffer, to: Vec<Span>) -> Effect {
        let source = self.own_window(buffer).or_else(|| self.page_window(buffer));
        match (source, &buffer.pages, buffer.state) {
            (Some(source), _, _) => Effect::Copy(copies(&source, &to)),
            (None, Pages::Swapped(slot), _) => Effect::Upload {
                from: Stored::Swap,
                offset: slot.start(),
                len: slot.len(),
                to,
            },
            (None, _, State::Clean(Source::File { file, offset })) => Effect::Upload {
                from: Stored::File(file),
                offset,
                len: buffer.len,
                to,
            },
            (None, _, State::Clean(Source::Zero)) => {
                let fill = |span: Span| Op::Fill {
                    dst: Va(span.start()),
                    len: span.len(),
                    byte: 0,
                };
                Effect::Copy(to.into_iter().map(fill).collect())
            }
            (None, _, State::Dirty) => unreachable!("dirty bytes are always somewhere"),
        }
    }

    fn fill_pages(&self, buffer: &Buffer, to: Vec<Span>) -> Effect {
        let to = self.host_spans(&to);
        match (&buffer.pages, buffer.state) {
            (Pages::Swapped(slot), _) => Effect::Load {
                from: Stored::Swap,
                offset: slot.start(),
                len: slot.len(),
                to,
            },
            (_, State::Clean(Source::File { file, offset })) => Effect::Load {
                from: Stored::File(file),
                offset,
                len: buffer.len,
                to,
            },
            (_, State::Clean(Source::Zero)) => Effect::Clear(to),
            (_, State::Dirty) => unreachable!("dirty bytes are always somewhere"),
        }
    }

    /// Page spans as spans of the host object.
    pub(crate) fn host_spans(&self, pages: &[Span]) -> Vec<Span> {
        let base = self.config.pages.start();
        let shift = |page: &Span| Span::new(base + page.start(), page.len()).expect("in the pool");
        pages.iter().map(shift).collect()
    }

    /// Plans to drop a clean buffer's resource.
    pub(crate) fn prepare_drop(&self, id: BufferId) -> Job {
        let buffer = &self.buffers[id];
        let mut effects = self.detach(buffer);
        effects.extend(self.unbind(buffer));
        Job::new(Plan::Drop(id), effects)
    }

    /// Plans to write a buffer's pages out (TTM T5); `None` when the swap file has no room.
    pub(crate) fn prepare_swap_out(&mut self, id: BufferId) -> Option<Job> {
        let buffer = &self.buffers[id];
        let pages = self.host_spans(populated(buffer));
        let slot = self.swap.carve(buffer.size())?;
        let store = Effect::Store {
            from: pages,
            offset: slot.start(),
        };
        Some(Job::new(Plan::SwapOut(id, slot), vec![store]))
    }

    /// Plans to map a buffer's addresses onto its resource.
    pub(crate) fn prepare_map(&self, id: BufferId) -> Job {
        let maps = self.maps(id).into_iter();
        Job::new(Plan::MapVa(id), maps.map(Effect::Map).collect())
    }

    /// The mappings of a placed buffer.
    pub(crate) fn maps(&self, id: BufferId) -> Vec<GpuMap> {
        let buffer = &self.buffers[id];
        let resource = buffer.resource.as_ref().expect("a placed buffer");
        match self
            .reach(resource.mem_type)
            .expect("a used domain is registered")
        {
            Reach::Own { mem, .. } => map_all(buffer.va.start(), mem, &resource.extents, 0),
            Reach::Window { .. } => {
                let base = self.config.pages.start();
                map_all(buffer.va.start(), self.config.host, populated(buffer), base)
            }
            Reach::Unreachable => unreachable!("checked when the request was made"),
        }
    }

    /// Effects that take back what the first `done` of a failed job's effects made, in reverse.
    pub(crate) fn undo_of(effects: &[Effect], done: usize) -> Vec<Effect> {
        let undo = |effect: &Effect| match effect {
            Effect::Map(map) => Some(Effect::Unmap(
                Span::new(map.va.0, map.len).expect("a mapped range"),
            )),
            Effect::ReserveVa(span) => Some(Effect::ReleaseVa(*span)),
            Effect::Wait(_)
            | Effect::ReleaseVa(_)
            | Effect::Unmap(_)
            | Effect::Copy(_)
            | Effect::Clear(_)
            | Effect::Load { .. }
            | Effect::Upload { .. }
            | Effect::Store { .. } => None,
        };
        effects[..done].iter().rev().filter_map(undo).collect()
    }

    /// Books what performed effects have changed whether or not the job as a whole succeeds.
    pub(crate) fn note_done(&mut self, job: &Job, done: usize) {
        for effect in &job.effects[..done] {
            match effect {
                Effect::Wait(fences) => {
                    for fence in fences {
                        self.reached.observe(fence.timeline, fence.value);
                    }
                }
                Effect::Unmap(span) => {
                    let id = job.plan.buffer();
                    if let Some(buffer) = id.map(|id| &mut self.buffers[id])
                        && buffer.va == *span
                    {
                        buffer.mapped = false;
                    }
                }
                Effect::Load { from, len, .. } => self.note_read(*from, *len),
                Effect::Upload { from, len, .. } => {
                    self.note_read(*from, *len);
                    self.totals.host_to_device += len;
                }
                Effect::Store { from, .. } => {
                    self.totals.swap_written += from.iter().map(|span| span.len()).sum::<u64>();
                }
                Effect::ReserveVa(_)
                | Effect::ReleaseVa(_)
                | Effect::Map(_)
                | Effect::Copy(_)
                | Effect::Clear(_) => {}
            }
        }
    }

    fn note_read(&mut self, from: Stored, len: u64) {
        match from {
            Stored::Swap => self.totals.swap_read += len,
            Stored::File(_) => self.totals.file_read += len,
        }
    }

    /// Makes a job's outcome the present state.
    pub(crate) fn commit(&mut self, job: Job, fence: Option<Fence>) {
        match job.plan {
            Plan::Wait | Plan::Reserve(_) => {}
            Plan::Move(step) => {
                self.totals.evictions += u64::from(job.victim);
                self.commit_move(step, fence);
            }
            Plan::Drop(buffer) => self.commit_drop(buffer),
            Plan::SwapOut(buffer, slot) => self.commit_swap_out(buffer, slot),
            Plan::MapVa(buffer) => self.buffers[buffer].mapped = true,
            Plan::Reap(ghost) => self.bury(ghost),
        }
    }

    fn commit_move(&mut self, step: Move, fence: Option<Fence>) {
        let Move {
            buffer: target,
            resource,
            fresh,
        } = step;
        let to = self
            .reach(resource.mem_type)
            .expect("a carved resource has a domain");
        let from_own = self.own_window(&self.buffers[target]).is_some();
        let window = self.page_window(&self.buffers[target]);
        let buffer = &mut self.buffers[target];
        let size = buffer.size();
        buffer.fences.prune(&self.reached);
        if let Some(fence) = fence {
            buffer.fences.set_kernel(fence);
        }
        let old = buffer.resource.replace(resource);
        let into_own = matches!(to, Reach::Own { .. });
        let keeps_pages = !into_own && fresh.is_none();
        let old_pages = if keeps_pages {
            Pages::Absent
        } else {
            let pages = fresh.map_or(Pages::Absent, Pages::Populated);
            std::mem::replace(&mut buffer.pages, pages)
        };
        if into_own && window.is_some() {
            self.totals.host_to_device += size;
        } else if from_own && !into_own {
            self.totals.device_to_host += size;
        }
        match old_pages {
            Pages::Swapped(slot) => self.swap.free(slot),
            Pages::Populated(pages) => {
                let unmap = window.expect("pages leave for the device through their window");
                let fences = fence.into_iter().collect();
                self.entomb(Ghost {
                    fences,
                    unmap,
                    va: None,
                    resource: old,
                    pages,
                    size,
                });
                self.relocate(target);
                return;
            }
            Pages::Absent => {}
        }
        if let Some(old) = old {
            self.uncarve(&old, size);
        }
        self.relocate(target);
    }

    fn commit_drop(&mut self, id: BufferId) {
        let buffer = &mut self.buffers[id];
        let size = buffer.size();
        buffer.fences.prune(&self.reached);
        let resource = buffer
            .resource
            .take()
            .expect("a dropped buffer had a resource");
        let pages = std::mem::replace(&mut buffer.pages, Pages::Absent);
        match pages {
            Pages::Populated(pages) => self.pool.free(&pages),
            Pages::Absent => {}
            Pages::Swapped(_) => unreachable!("only dirty buffers are swapped"),
        }
        self.uncarve(&resource, size);
        self.totals.dropped_clean += size;
        self.totals.evictions += 1;
        self.relocate(id);
    }

    fn commit_swap_out(&mut self, id: BufferId, slot: Span) {
        let pages = std::mem::replace(&mut self.buffers[id].pages, Pages::Swapped(slot));
        let Pages::Populated(pages) = pages else {
            unreachable!("swapped out from its pages")
        };
        self.pool.free(&pages);
        self.totals.evictions += 1;
        self.relocate(id);
    }

    /// Gives back what a failed job had carved; `stuck` is set when undoing failed too, and the
    /// device may still reach it.
    pub(crate) fn abandon(&mut self, job: Job, stuck: Option<&EffectError>) {
        match job.plan {
            Plan::Wait | Plan::Drop(_) => {}
            Plan::Reserve(id) => {
                let buffer = self.buffers.remove(id).expect("being created");
                match stuck {
                    None => self.va_free(buffer.va),
                    Some(_) => self.quarantine(Ghost {
                        va: Some(buffer.va),
                        ..Ghost::default()
                    }),
                }
            }
            Plan::Move(Move {
                buffer,
                resource,
                fresh,
            }) => {
                let size = self.buffers[buffer].size();
                let pages = fresh.unwrap_or_default();
                if stuck.is_some() {
                    let resource = Some(resource);
                    self.quarantine(Ghost {
                        resource,
                        pages,
                        size,
                        ..Ghost::default()
                    });
                } else {
                    self.uncarve(&resource, size);
                    self.pool.free(&pages);
                    if self.is_planted(PlantedBug::LostUncharge) {
                        self.slot_mut(resource.mem_type).usage += size;
                    }
                }
            }
            Plan::SwapOut(_, slot) => self.swap.free(slot),
            Plan::MapVa(id) => {
                if let Some(error) = stuck {
                    self.buffers[id].stuck = Some(error.clone());
                    self.relocate(id);
                }
            }
            // Its fences may yet be reached; whatever else failed is not tried again.
            Plan::Reap(ghost) if job.failed_waiting => self.ghosts.push_back(ghost),
            Plan::Reap(ghost) => self.quarantine(ghost),
        }
    }
}

/// Host pages of a buffer that has them.
pub(crate) fn populated(buffer: &Buffer) -> &[Span] {
    match &buffer.pages {
        Pages::Populated(pages) => pages,
        Pages::Absent | Pages::Swapped(_) => unreachable!("the caller has checked for pages"),
    }
}
