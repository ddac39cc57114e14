//! The resource manager's state: clients, their objects, memory and address spaces.
//!
//! Objects form one tree per client. Freeing one frees what is below it and what depends on it;
//! memory outlives its object while UVM or a channel holds a reference.

mod alloc;
mod control;
mod map;
mod memory;

pub(crate) use alloc::{AllocRequest, is_root};
pub(crate) use control::{bus, gpu_id};

use std::collections::{BTreeMap, BTreeSet};

use vrampager_nv_abi::{Handle, Status, class};

use crate::channel::{Channel, ChannelId};
use crate::file::Carried;
use crate::store::{Store, StoreId};
use crate::vas::VasId;
use crate::{Driver, FileId};

/// Names a piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct MemId(pub(crate) u64);

/// Where memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Aperture {
    /// On this GPU.
    Vidmem(usize),
    /// In the host, made by the driver.
    Sysmem,
    /// In the host, pinned pages of a process.
    Pinned,
    /// The doorbell window of this GPU.
    Registers(usize),
}

/// Memory with its users counted.
#[derive(Debug)]
pub(crate) struct Mem {
    pub(crate) aperture: Aperture,
    pub(crate) store: StoreId,
    pub(crate) size: u64,
    /// Page size of the allocation.
    pub(crate) page: u64,
    /// Device or host memory it takes.
    pub(crate) charged: u64,
    pub(crate) user_read_only: bool,
    pub(crate) device_read_only: bool,
    refs: u32,
}

/// A CPU mapping, by its cookie.
#[derive(Debug)]
pub(crate) struct CpuMap {
    client: Handle,
    memory: Handle,
    /// The file that shows it.
    carrier: FileId,
    /// Part of the GPU's window it takes.
    bar: Option<(usize, u64)>,
}

/// What an object is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Device {
        gpu: usize,
        vas: VasId,
    },
    Subdevice {
        gpu: usize,
    },
    Usermode(MemId),
    Vaspace(VasId),
    Virtual {
        vas: VasId,
        base: u64,
        limit: u64,
    },
    Memory(MemId),
    Group {
        gpu: usize,
        runlist: u32,
        scheduled: bool,
        vas: VasId,
    },
    ContextShare {
        vas: VasId,
    },
    Channel(ChannelId),
    Engine,
    Debugger(ChannelId),
}

/// A node of a client's tree.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) class: u32,
    pub(crate) kind: Kind,
    parent: Handle,
    children: BTreeSet<Handle>,
    /// Cookies of its CPU mappings.
    cpu_maps: BTreeSet<u64>,
    /// Its mappings in address spaces of the resource manager, as either partner.
    dma_maps: BTreeSet<(VasId, u64)>,
}

/// A client: the root of a tree.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) file: FileId,
    pub(crate) objects: BTreeMap<Handle, Object>,
    roots: BTreeSet<Handle>,
    next: u32,
}

/// All clients and what they share.
#[derive(Debug, Default)]
pub(crate) struct Rm {
    pub(crate) clients: BTreeMap<Handle, Client>,
    pub(crate) mems: BTreeMap<MemId, Mem>,
    pub(crate) cpu_maps: BTreeMap<u64, CpuMap>,
    /// Partners of each mapping made by `RM_MAP_MEMORY_DMA`: client, virtual object, memory.
    dma_maps: BTreeMap<(VasId, u64), (Handle, Handle, Handle)>,
    next_client: u32,
    next_mem: u64,
    next_cookie: u64,
}

/// Handles the driver makes: of clients, and of objects inside one.
const CLIENT_BASE: Handle = 0xC1D0_0000;
const OBJECT_BASE: Handle = 0xCAF0_0000;
const HANDLES: u32 = 0x8_0000;
/// First of the [`HANDLES`] that the firmware makes: no client may ask for one.
const FIRMWARE_BASE: Handle = 0xC9F0_0000;

impl Client {
    fn new(file: FileId) -> Self {
        Self {
            file,
            objects: BTreeMap::new(),
            roots: BTreeSet::new(),
            next: 0,
        }
    }

    /// The object, or why it cannot be used.
    pub(crate) fn object(&self, handle: Handle) -> Result<&Object, Status> {
        self.objects.get(&handle).ok_or(Status::OBJECT_NOT_FOUND)
    }

    /// A handle for a new object: the one wanted, or the next free one.
    fn handle(&mut self, own: Handle, wanted: Handle) -> Result<Handle, Status> {
        let firmware = FIRMWARE_BASE..FIRMWARE_BASE + HANDLES;
        if wanted == own || firmware.contains(&wanted) {
            return Err(Status::INVALID_OBJECT_HANDLE);
        }
        if wanted != 0 {
            let free = !self.objects.contains_key(&wanted);
            return free.then_some(wanted).ok_or(Status::INSERT_DUPLICATE_NAME);
        }
        for _ in 0..HANDLES {
            let handle = OBJECT_BASE + self.next;
            self.next = (self.next + 1) % HANDLES;
            if !self.objects.contains_key(&handle) && handle != own {
                return Ok(handle);
            }
        }
        Err(Status::INSUFFICIENT_RESOURCES)
    }

    fn insert(&mut self, own: Handle, handle: Handle, object: Object) {
        let siblings = match object.parent {
            parent if parent == own => &mut self.roots,
            parent => {
                let parent = self.objects.get_mut(&parent);
                &mut parent.expect("the parent was looked up before").children
            }
        };
        siblings.insert(handle);
        self.objects.insert(handle, object);
    }
}

impl Object {
    fn new(class: u32, parent: Handle, kind: Kind) -> Self {
        Self {
            class,
            kind,
            parent,
            children: BTreeSet::new(),
            cpu_maps: BTreeSet::new(),
            dma_maps: BTreeSet::new(),
        }
    }

    /// The GPU that a device or subdevice is.
    fn gpu(&self) -> Option<usize> {
        if let Kind::Device { gpu, .. } | Kind::Subdevice { gpu } = self.kind {
            return Some(gpu);
        }
        None
    }

    /// The memory behind a memory object or a register window.
    pub(crate) fn mem(&self) -> Option<MemId> {
        if let Kind::Memory(mem) | Kind::Usermode(mem) = self.kind {
            return Some(mem);
        }
        None
    }

    /// The address space that what goes under a device or group has if it names none.
    fn default_vas(&self) -> Option<VasId> {
        if let Kind::Device { vas, .. } | Kind::Group { vas, .. } = self.kind {
            return Some(vas);
        }
        None
    }
}

impl<S: Store> Driver<S> {
    /// The client, if `file` may speak for it: its control file, or a GPU file linked to that.
    pub(crate) fn client(&self, file: FileId, client: Handle) -> Result<&Client, Status> {
        let speaker = self.control_file_of(file);
        let found = self.rm.clients.get(&client).ok_or(Status::INVALID_CLIENT)?;
        if found.file == speaker {
            Ok(found)
        } else {
            Err(Status::INVALID_CLIENT)
        }
    }

    fn client_mut(&mut self, client: Handle) -> &mut Client {
        self.rm
            .clients
            .get_mut(&client)
            .expect("the client was looked up in this call")
    }

    pub(crate) fn mem(&self, id: MemId) -> &Mem {
        self.rm
            .mems
            .get(&id)
            .expect("an object, a mapping or a channel holds the memory")
    }

    /// One more user of the memory.
    pub(crate) fn retain(&mut self, id: MemId) {
        let mem = self.rm.mems.get_mut(&id).expect("retained memory is alive");
        mem.refs += 1;
    }

    /// One user of the memory less; the last one frees it.
    pub(crate) fn release(&mut self, id: MemId) {
        let mem = self.rm.mems.get_mut(&id).expect("released memory is alive");
        mem.refs -= 1;
        if mem.refs > 0 {
            return;
        }
        let mem = self.rm.mems.remove(&id).expect("it was just there");
        match mem.aperture {
            Aperture::Vidmem(gpu) => self.gpus[gpu].vram_used -= mem.charged,
            Aperture::Sysmem => self.host_used -= mem.charged,
            Aperture::Pinned | Aperture::Registers(_) => {}
        }
        self.store.destroy(mem.store);
    }

    /// One user of the address space less; the last one takes its mappings along.
    pub(crate) fn release_vas(&mut self, id: VasId) {
        let vas = self
            .vas
            .get_mut(&id)
            .expect("a released address space is alive");
        vas.refs -= 1;
        if vas.refs == 0 {
            assert_eq!(vas.table.len(), 0, "mappings go before their address space");
            self.vas.remove(&id);
        }
    }

    /// Frees an object with all below it and all that depends on it. An unknown handle is no
    /// error: the driver is built in its compatibility mode.
    pub(crate) fn rm_free(&mut self, client: Handle, handle: Handle) {
        if client == handle {
            self.free_client(client);
            return;
        }
        if self.client_mut(client).objects.contains_key(&handle) {
            self.free_tree(client, handle);
        }
    }

    /// Frees a client with everything it has; channels first, so that nothing runs on memory
    /// that is going.
    pub(crate) fn free_client(&mut self, client: Handle) {
        let channels: Vec<Handle> = self.handles(client, |object| {
            class::is_channel(object.class) || object.class == class::KEPLER_CHANNEL_GROUP_A
        });
        for handle in channels {
            self.rm_free(client, handle);
        }
        let roots: Vec<Handle> = self.client_mut(client).roots.iter().copied().collect();
        for handle in roots {
            self.rm_free(client, handle);
        }
        let gone = self
            .rm
            .clients
            .remove(&client)
            .expect("freed by the caller only once");
        assert!(gone.objects.is_empty(), "every object hangs below a root");
    }

    fn handles(&self, client: Handle, wanted: impl Fn(&Object) -> bool) -> Vec<Handle> {
        let client = &self.rm.clients[&client];
        let found = client.objects.iter().filter(|(_, object)| wanted(object));
        found.map(|(&handle, _)| handle).collect()
    }

    /// Post-order over children and dependants; the tree is at most six deep.
    fn free_tree(&mut self, client: Handle, handle: Handle) {
        let Some(object) = self.client_mut(client).objects.get(&handle) else {
            return;
        };
        let mut below: Vec<Handle> = object.children.iter().copied().collect();
        let kind = object.kind.clone();
        below.extend(self.dependants(client, handle, &kind));
        for child in below {
            self.free_tree(client, child);
        }
        self.free_one(client, handle);
    }

    /// Objects of the client that cannot live without an address space or a subcontext.
    fn dependants(&self, client: Handle, handle: Handle, kind: &Kind) -> Vec<Handle> {
        let (gone, share) = match *kind {
            Kind::Vaspace(vas) => (Some(vas), None),
            Kind::ContextShare { .. } => (None, Some(handle)),
            Kind::Virtual { .. }
            | Kind::Channel(_)
            | Kind::Group { .. }
            | Kind::Device { .. }
            | Kind::Subdevice { .. }
            | Kind::Usermode(_)
            | Kind::Memory(_)
            | Kind::Engine
            | Kind::Debugger(_) => return Vec::new(),
        };
        let depends = |channel: &Channel| {
            gone == Some(channel.vas) || (share.is_some() && channel.share == share)
        };
        self.handles(client, |object| match object.kind {
            Kind::Virtual { vas, .. } | Kind::ContextShare { vas } => gone == Some(vas),
            Kind::Channel(id) => self.channels.get(&id).is_some_and(depends),
            Kind::Group { .. }
            | Kind::Device { .. }
            | Kind::Subdevice { .. }
            | Kind::Usermode(_)
            | Kind::Vaspace(_)
            | Kind::Memory(_)
            | Kind::Engine
            | Kind::Debugger(_) => false,
        })
    }

    fn free_one(&mut self, client: Handle, handle: Handle) {
        let owner = self.client_mut(client);
        let object = owner.objects.remove(&handle).expect("the caller found it");
        match owner.objects.get_mut(&object.parent) {
            Some(parent) => parent.children.remove(&handle),
            None => owner.roots.remove(&handle),
        };
        for cookie in object.cpu_maps {
            self.forget_cpu_map(cookie);
        }
        for (vas, start) in object.dma_maps {
            self.forget_dma_map(vas, start);
        }
        match object.kind {
            Kind::Memory(mem) | Kind::Usermode(mem) => self.release(mem),
            Kind::Vaspace(vas) | Kind::Device { vas, .. } | Kind::Group { vas, .. } => {
                self.release_vas(vas);
            }
            Kind::Virtual { vas, .. } | Kind::ContextShare { vas } => self.release_vas(vas),
            Kind::Channel(id) => self.free_channel(id),
            Kind::Subdevice { .. } | Kind::Engine | Kind::Debugger(_) => {}
        }
    }

    /// Forgets a CPU mapping whose object forgets it too. What programs have mapped stays; the
    /// file shows nothing any more.
    fn forget_cpu_map(&mut self, cookie: u64) {
        let map = self
            .rm
            .cpu_maps
            .remove(&cookie)
            .expect("objects and mappings agree");
        if let Some((gpu, bytes)) = map.bar {
            self.gpus[gpu].bar1_used -= bytes;
        }
        if let Some(file) = self.files.get_mut(&map.carrier) {
            file.carried = Carried::Gone;
        }
    }

    /// Removes a mapping of the resource manager and both partners' notes of it.
    fn forget_dma_map(&mut self, vas: VasId, start: u64) {
        let key = (vas, start);
        let Some((client, dma, memory)) = self.rm.dma_maps.remove(&key) else {
            return;
        };
        for handle in [dma, memory] {
            // One of the two is being freed and has left the tree already.
            if let Some(object) = self.client_mut(client).objects.get_mut(&handle) {
                object.dma_maps.remove(&key);
            }
        }
        let vas = self
            .vas
            .get_mut(&vas)
            .expect("a mapping keeps no address space waiting");
        vas.table.remove(start).expect("mappings and table agree");
    }
}
