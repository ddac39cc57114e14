//! What the devices of one discovery share (mission rows A3, A4, A8): a client of the resource
//! manager, a VA space of unified memory with the ranges in it, and which devices are peers.
//!
//! It is there as long as a device is open. Unified memory knows one range at an address, whatever
//! the number of GPUs that map into it: ranges are counted by the devices that reserved them, and
//! the zones that devices carve from do not overlap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use vrampager_addr::Span;
use vrampager_hal::{DeviceId, HalError, HostRange};
use vrampager_nv_abi::neutral::UnregisterChannel;
use vrampager_nv_abi::{AbiVersion, Handle, Node, Status, Uuid, ctrl, uvm};
use zerocopy::{FromZeros, IntoBytes};

use crate::books::{Physical, Pins};
use crate::door::{Door, Fd};
use crate::error::Refusal;
use crate::own::{Holder, Own};
use crate::rm::{self, Client, Uvm};
use crate::session::Session;

/// One stage to be undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Undo {
    Close(Fd),
    Free(Handle),
    /// What the driver keeps of a CPU mapping.
    Detach {
        device: Handle,
        memory: Handle,
        cookie: u64,
    },
    UnregisterGpu(DeviceId, Uuid),
    UnregisterVaspace(Uuid),
    UnregisterChannel {
        uuid: Uuid,
        channel: Handle,
        /// Start of the addresses for its resources.
        resources: u64,
    },
    /// Peer access between a device and all others.
    Part(DeviceId),
    ReleaseRange(Span),
    UnmapGpu(Uuid, Span),
    /// Addresses of the back end's own zone; what the driver keeps there has them until it goes.
    Vacate(u64),
}

impl Undo {
    /// Whether a refusal means that there is nothing to undo: no such registration, no such range.
    fn is_moot(self, refusal: Refusal) -> bool {
        let unknown_gpu = refusal.has(Status::INVALID_DEVICE);
        let no_range = refusal.has(Status::INVALID_ADDRESS);
        matches!(self, Self::UnregisterGpu(..)) && unknown_gpu
            || matches!(self, Self::ReleaseRange(_)) && no_range
    }
}

/// Stages that have succeeded, in order.
pub(crate) type Stages = Vec<Undo>;

/// The files through which requests go.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) uvm: Uvm,
}

impl Link {
    /// No file is open yet.
    pub(crate) fn closed(door: &Arc<dyn Door>) -> Self {
        let (none, abi) = (Fd(-1), AbiVersion::V570);
        Self {
            client: Client {
                door: Arc::clone(door),
                control: none,
                root: 0,
                abi,
            },
            uvm: Uvm {
                door: Arc::clone(door),
                fd: none,
                abi,
            },
        }
    }

    pub(crate) fn door(&self) -> &dyn Door {
        &*self.client.door
    }

    /// Opens a node to bring something up.
    pub(crate) fn open(&self, node: Node, stages: &mut Stages) -> Result<Fd, Refusal> {
        let fd = rm::open_first(self.door(), node)?;
        stages.push(Undo::Close(fd));
        Ok(fd)
    }

    /// Makes a client of the resource manager, and learns which layouts it speaks.
    pub(crate) fn make_client(&mut self, stages: &mut Stages) -> Result<(), HalError> {
        self.client.control = self.open(Node::Control, stages)?;
        self.client.root = rm::new_root(self.door(), self.client.control)?;
        stages.push(Undo::Free(self.client.root));
        let mut version = ctrl::BuildVersion::new_zeroed();
        let to = (self.client.root, ctrl::SYSTEM_GET_BUILD_VERSION_V2);
        self.client
            .control("ask for the release", to, version.as_mut_bytes(), None)?;
        let text = version.driver_version.split(|&byte| byte == 0).next();
        let release = String::from_utf8_lossy(text.unwrap_or_default());
        let abi = AbiVersion::of_release(&release).ok_or_else(|| HalError::UnknownRelease {
            release: release.into_owned(),
            known: "570 to 610",
        })?;
        (self.client.abi, self.uvm.abi) = (abi, abi);
        Ok(())
    }

    /// Makes a VA space of unified memory.
    fn make_space(&mut self, stages: &mut Stages) -> Result<(), Refusal> {
        self.uvm.fd = self.open(Node::Uvm, stages)?;
        let mut packet = uvm::Initialize::new_zeroed();
        self.uvm
            .send("initialise unified memory", uvm::INITIALIZE, &mut packet)?;
        // Ties the VA space to this process's memory where the kernel needs that: a second file
        // of the node, open as long as the space is.
        let file = self.open(Node::Uvm, stages)?;
        let mut packet = uvm::MmInitialize::new_zeroed();
        packet.uvm_fd = self.uvm.fd.0;
        let to = (file, uvm::MM_INITIALIZE);
        let tied = self
            .uvm
            .send_bytes("tie to the process", to, packet.as_mut_bytes());
        match tied {
            Err(refusal) if !refusal.is_needless() => Err(refusal),
            _ => Ok(()),
        }
    }

    fn unregister(&self, stage: &'static str, command: u32, uuid: Uuid) -> Result<(), Refusal> {
        let mut packet = uvm::UnregisterGpu::new_zeroed();
        packet.uuid = uuid;
        self.uvm.send(stage, command, &mut packet)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) door: Arc<dyn Door>,
    /// Locked after the state of a device, never before.
    shared: Mutex<Shared>,
}

/// The shared state, locked.
#[derive(Debug)]
pub(crate) struct Shared {
    /// `None` while no device is open.
    base: Option<Base>,
    opens: u64,
    members: BTreeMap<DeviceId, Member>,
    peers: BTreeSet<(DeviceId, DeviceId)>,
    /// Ranges of unified memory by start.
    ranges: BTreeMap<u64, Range>,
    pub(crate) own: Own,
    pub(crate) pins: Pins,
    imports: Vec<Weak<Physical>>,
    /// What closed devices could not undo, tried again now and then.
    leftovers: Stages,
}

#[derive(Debug)]
struct Base {
    link: Link,
    stages: Stages,
    devices: u32,
}

/// A range of unified memory.
#[derive(Debug)]
struct Range {
    span: Span,
    /// Devices that reserved it.
    users: u32,
}

/// An open device.
#[derive(Debug)]
struct Member {
    uuid: Uuid,
    open: u64,
    session: Weak<Session>,
}

impl Context {
    pub(crate) fn new(door: Arc<dyn Door>) -> Self {
        Self {
            door,
            shared: Mutex::new(Shared::new()),
        }
    }

    /// Requests are checked before they change anything, so a panic leaves the state whole.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to use what is shared, which the first device makes; the files, and the number of
    /// this open. [`leave`](Self::leave) is the way back.
    pub(crate) fn join(&self) -> Result<(Link, u64), HalError> {
        let mut shared = self.lock();
        if shared.base.is_none() {
            let (mut link, mut stages) = (Link::closed(&self.door), Stages::new());
            let made = link.make_client(&mut stages);
            if let Err(error) = made.and_then(|()| Ok(link.make_space(&mut stages)?)) {
                // The first error is the one to report; closing the files takes the rest.
                drop(shared.undo_all(&link, stages));
                return Err(error);
            }
            shared.base = Some(Base {
                link,
                stages,
                devices: 0,
            });
        }
        shared.opens += 1;
        let open = shared.opens;
        let base = shared.base.as_mut().expect("made if it was not there");
        base.devices += 1;
        let link = base.link.clone();
        shared.retry(&link);
        Ok((link, open))
    }

    /// Ends the use by one device, which leaves behind what it could not undo. The last one takes
    /// everything down; what was refused then.
    pub(crate) fn leave(&self, leftovers: Stages) -> Vec<Refusal> {
        let mut shared = self.lock();
        shared.leftovers.extend(leftovers);
        let base = shared
            .base
            .as_mut()
            .expect("a device that leaves has joined");
        base.devices -= 1;
        if base.devices > 0 {
            return Vec::new();
        }
        let Base { link, stages, .. } = shared.base.take().expect("looked at above");
        shared.retry(&link);
        let refused = shared.undo_all(&link, stages);
        *shared = Shared {
            opens: shared.opens,
            ..Shared::new()
        };
        refused.into_iter().map(|(_, refusal)| refusal).collect()
    }

    /// Takes a registered device in, with access to all others that the hardware allows. The
    /// stage is pushed first: it undoes any part of this.
    pub(crate) fn admit(
        &self,
        link: &Link,
        (id, open): (DeviceId, u64),
        uuid: Uuid,
        stages: &mut Stages,
    ) -> Result<(), Refusal> {
        let mut shared = self.lock();
        stages.push(Undo::Part(id));
        let others: Vec<(DeviceId, Uuid)> = shared
            .members
            .iter()
            .map(|(&other, member)| (other, member.uuid))
            .collect();
        let session = Weak::new();
        let member = Member {
            uuid,
            open,
            session,
        };
        shared.members.insert(id, member);
        for (other, uuid_b) in others {
            let mut packet = uvm::PeerAccess::new_zeroed();
            (packet.uuid_a, packet.uuid_b) = (uuid, uuid_b);
            let asked = link
                .uvm
                .send("enable peer access", uvm::ENABLE_PEER_ACCESS, &mut packet);
            match asked {
                Ok(()) => {
                    shared.peers.insert(ordered(id, other));
                }
                // Not every pair of slots is connected; sharing memory says so.
                Err(refusal) if refusal.is_unsupported() => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// Lets others find an open device.
    pub(crate) fn publish(&self, id: DeviceId, session: &Arc<Session>) {
        if let Some(member) = self.lock().members.get_mut(&id) {
            member.session = Arc::downgrade(session);
        }
    }

    /// An open device.
    pub(crate) fn session(&self, id: DeviceId) -> Option<Arc<Session>> {
        self.lock().members.get(&id)?.session.upgrade()
    }

    /// Addresses in the back end's own zone.
    pub(crate) fn vacancy(&self, len: u64, stages: &mut Stages) -> Result<Span, Refusal> {
        let taken = self.lock().own.take(len);
        // Addresses are memory like any other: running out of them is what the caller learns.
        let full = Refusal::system("reserve own addresses", rustix::io::Errno::NOMEM);
        let span = taken.ok_or(full)?;
        stages.push(Undo::Vacate(span.start()));
        Ok(span)
    }
}

fn ordered(a: DeviceId, b: DeviceId) -> (DeviceId, DeviceId) {
    (a.min(b), a.max(b))
}

impl Shared {
    fn new() -> Self {
        Self {
            base: None,
            opens: 0,
            members: BTreeMap::new(),
            peers: BTreeSet::new(),
            ranges: BTreeMap::new(),
            own: Own::new(),
            pins: Pins::default(),
            imports: Vec::new(),
            leftovers: Stages::new(),
        }
    }

    /// Undoes what closed devices left, as far as the driver lets. A request that failed may have
    /// been carried out all the same: then there is nothing left to undo.
    pub(crate) fn retry(&mut self, link: &Link) {
        let leftovers = std::mem::take(&mut self.leftovers);
        let mut left = Stages::new();
        for stage in leftovers.into_iter().rev() {
            match self.request(link, stage) {
                Err(refusal) if !stage.is_moot(refusal) => left.push(stage),
                _ => self.note(stage),
            }
        }
        left.reverse();
        self.leftovers = left;
    }

    /// Undoes stages in reverse, up to the first that the driver refuses: that one and those
    /// below it stay, since what they hold may still be in use.
    pub(crate) fn unwind(&mut self, link: &Link, stages: &mut Stages) -> Result<(), Refusal> {
        while let Some(&stage) = stages.last() {
            self.undo(link, stage)?;
            stages.pop();
        }
        Ok(())
    }

    /// Undoes all stages in reverse, whatever is refused on the way; what was.
    pub(crate) fn undo_all(&mut self, link: &Link, stages: Stages) -> Vec<(Undo, Refusal)> {
        let undo = |stage| Some((stage, self.undo(link, stage).err()?));
        stages.into_iter().rev().filter_map(undo).collect()
    }

    fn undo(&mut self, link: &Link, stage: Undo) -> Result<(), Refusal> {
        self.request(link, stage)?;
        self.note(stage);
        Ok(())
    }

    /// Asks the driver to undo a stage.
    fn request(&mut self, link: &Link, stage: Undo) -> Result<(), Refusal> {
        match stage {
            Undo::Close(fd) => {
                link.door().close(fd);
                Ok(())
            }
            Undo::Free(handle) => link.client.free(handle),
            Undo::Detach {
                device,
                memory,
                cookie,
            } => link.client.detach((device, memory), cookie),
            Undo::UnregisterGpu(_, uuid) => {
                link.unregister("unregister GPU", uvm::UNREGISTER_GPU, uuid)
            }
            Undo::UnregisterVaspace(uuid) => {
                link.unregister("unregister VA space", uvm::UNREGISTER_GPU_VASPACE, uuid)
            }
            Undo::UnregisterChannel { uuid, channel, .. } => {
                link.uvm.unregister_channel(&UnregisterChannel {
                    uuid,
                    client: link.client.root,
                    channel,
                    status: 0,
                })
            }
            Undo::Part(id) => self.part(link, id),
            Undo::ReleaseRange(span) if self.range_mut(span).users > 1 => Ok(()),
            Undo::ReleaseRange(span) => link.uvm.free(span.start(), span.len()),
            Undo::UnmapGpu(uuid, span) => unmap_gpu(link, uuid, span),
            Undo::Vacate(_) => Ok(()),
        }
    }

    /// A stage is undone: that and what went with it.
    fn note(&mut self, stage: Undo) {
        match stage {
            Undo::UnregisterGpu(id, uuid) => {
                // It takes its VA space and its peers along, should they still be there.
                self.own.let_go_channels(uuid);
                self.forget(id);
            }
            Undo::UnregisterVaspace(uuid) => self.own.let_go_channels(uuid),
            Undo::UnregisterChannel { resources, .. } => self.own.let_go(resources),
            Undo::Part(id) => self.forget(id),
            Undo::ReleaseRange(span) => {
                let range = self.range_mut(span);
                range.users -= 1;
                if range.users == 0 {
                    self.ranges.remove(&span.start());
                    self.own.let_go(span.start());
                }
            }
            Undo::Vacate(start) => self.own.vacate(start),
            // Unified memory keeps what it has of a channel, whatever is freed below it.
            Undo::Close(_) | Undo::Free(_) | Undo::Detach { .. } | Undo::UnmapGpu(..) => {}
        }
    }

    fn range_mut(&mut self, span: Span) -> &mut Range {
        let range = self.ranges.get_mut(&span.start());
        range.expect("it was reserved")
    }

    fn part(&mut self, link: &Link, id: DeviceId) -> Result<(), Refusal> {
        while let Some(&(a, b)) = self.peers.iter().find(|&&(a, b)| a == id || b == id) {
            let mut packet = uvm::PeerAccess::new_zeroed();
            packet.uuid_a = self.members[&a].uuid;
            packet.uuid_b = self.members[&b].uuid;
            let stage = "disable peer access";
            link.uvm
                .send(stage, uvm::DISABLE_PEER_ACCESS, &mut packet)?;
            self.peers.remove(&(a, b));
        }
        Ok(())
    }

    fn forget(&mut self, id: DeviceId) {
        self.peers.retain(|&(a, b)| a != id && b != id);
        self.members.remove(&id);
    }

    /// Whether a device reaches memory of another one.
    pub(crate) fn reaches(&self, id: DeviceId, owner: DeviceId) -> bool {
        id == owner || self.peers.contains(&ordered(id, owner))
    }

    /// Creates a range of addresses to map into, unless another device has: then both have it.
    pub(crate) fn reserve(&mut self, link: &Link, span: Span) -> Result<(), Refusal> {
        match self.ranges.get_mut(&span.start()) {
            Some(known) if known.span == span => known.users += 1,
            _ => {
                let mut packet = uvm::Range::new_zeroed();
                (packet.base, packet.length) = (span.start(), span.len());
                link.uvm
                    .send("reserve range", uvm::CREATE_EXTERNAL_RANGE, &mut packet)?;
                self.ranges.insert(span.start(), Range { span, users: 1 });
                self.own.hold(span.start(), Holder::Range);
            }
        }
        Ok(())
    }

    /// Gives up one device's share of a range; the last one frees it.
    pub(crate) fn release_range(&mut self, link: &Link, span: Span) -> Result<(), Refusal> {
        self.undo(link, Undo::ReleaseRange(span))
    }

    /// Whether the driver still has the object: it goes with the device that made it.
    pub(crate) fn has(&self, physical: &Physical) -> bool {
        let (home, open) = physical.home;
        let member = self.members.get(&home);
        member.is_some_and(|member| member.open == open)
    }

    /// The object by which memory has been imported already.
    pub(crate) fn imported(&self, host: &HostRange) -> Option<Arc<Physical>> {
        let known = self.imports.iter().filter_map(Weak::upgrade);
        let mut same = known.filter(|physical| {
            let pages = physical.pages.as_ref();
            pages.is_some_and(|pages| pages.shows(host)) && self.has(physical)
        });
        same.next()
    }

    pub(crate) fn remember_import(&mut self, physical: &Arc<Physical>) {
        self.imports.retain(|import| import.strong_count() > 0);
        self.imports.push(Arc::downgrade(physical));
    }

    /// Frees memory if nobody shows it besides the caller, who lets go of it before this is
    /// unlocked.
    pub(crate) fn free_last(
        &mut self,
        link: &Link,
        physical: &Arc<Physical>,
    ) -> Result<(), Refusal> {
        if Arc::strong_count(physical) > 1 {
            return Ok(());
        }
        if self.has(physical) {
            link.client.free(physical.handle)?;
        }
        self.pins.put(physical.handle);
        Ok(())
    }
}

/// Removes the mappings of one GPU in a span.
pub(crate) fn unmap_gpu(link: &Link, uuid: Uuid, span: Span) -> Result<(), Refusal> {
    let mut packet = uvm::UnmapExternal::new_zeroed();
    (packet.base, packet.length) = (span.start(), span.len());
    packet.uuid = uuid;
    link.uvm.send("gpu unmap", uvm::UNMAP_EXTERNAL, &mut packet)
}

#[cfg(test)]
mod tests {
    use vrampager_nv_driver::{Config, Failure, Injection, Kind};

    use super::*;
    use crate::sim::SimNodes;

    #[test]
    fn addresses_of_a_range_that_the_driver_keeps_are_given_out_again_only_after_it_has_gone() {
        let sim = Arc::new(SimNodes::new(Config::parse("vram=64M").unwrap()));
        let context = Context::new(Arc::clone(&sim) as Arc<dyn Door>);
        let (link, _) = context.join().unwrap();
        let vacancy = || context.vacancy(4096, &mut Stages::new()).unwrap();
        let refuse_release = || {
            sim.inject(Injection {
                kind: Kind::Uvm,
                number: uvm::FREE,
                nth: 1,
                failure: Failure::Status(Status::INVALID_STATE),
            });
        };
        let mut stages = Stages::new();
        let span = context.vacancy(4096, &mut stages).unwrap();
        context.lock().reserve(&link, span).unwrap();
        stages.push(Undo::ReleaseRange(span));

        refuse_release();
        let refused = context.lock().undo_all(&link, stages);
        let [(release, _)] = refused[..] else {
            panic!("one stage was refused: {refused:?}");
        };
        assert_eq!(release, Undo::ReleaseRange(span));
        assert_ne!(vacancy(), span);
        context.lock().leftovers.push(release);
        refuse_release();
        context.lock().retry(&link);
        assert_ne!(vacancy(), span, "refused again");
        context.lock().retry(&link);
        assert_eq!(vacancy(), span);
    }

    #[test]
    fn what_is_left_of_a_close_is_undone_when_the_driver_does_not_know_it() {
        let sim = Arc::new(SimNodes::new(Config::parse("vram=64M").unwrap()));
        let context = Context::new(sim);
        let (link, _) = context.join().unwrap();
        let span = context.vacancy(4096, &mut Stages::new()).unwrap();
        let mut shared = context.lock();
        shared.reserve(&link, span).unwrap();
        link.uvm.free(span.start(), span.len()).unwrap();
        let gone = Undo::UnregisterGpu(DeviceId(0), [7; 16]);
        shared.leftovers = vec![gone, Undo::Vacate(span.start()), Undo::ReleaseRange(span)];
        shared.retry(&link);
        assert_eq!(shared.leftovers, []);
        assert!(shared.ranges.is_empty());
        assert_eq!(shared.own.take(4096), Some(span));
    }
}
