//! Making objects: classes, their parameters and the parents they go under.

use vrampager_addr::Span;
use vrampager_nv_abi::method::{CHANNEL_VA_LIMIT, GP_ENTRY_BYTES};
use vrampager_nv_abi::neutral::{ChannelAlloc, VaspaceAlloc};
use vrampager_nv_abi::{Handle, Status, class};
use zerocopy::{FromBytes, IntoBytes};

use super::{CLIENT_BASE, Client, HANDLES, Kind, Object};
use crate::channel::{Channel, Exec};
use crate::config::Arch;
use crate::store::{Process, Store};
use crate::vas::{Table, Vas, VasId};
use crate::{Driver, FileId};

/// The fields that both packets of `RM_ALLOC` have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocRequest {
    pub(crate) root: Handle,
    pub(crate) parent: Handle,
    pub(crate) object: Handle,
    pub(crate) class: u32,
    pub(crate) params: u64,
}

/// Where a new object goes.
#[derive(Clone, Copy)]
pub(super) struct Site {
    pub(super) client: Handle,
    pub(super) parent: Handle,
}

/// What the driver knows of a class before it makes one.
struct ClassSpec {
    /// Bytes of its parameters.
    params: usize,
    required: bool,
}

impl<S: Store> Driver<S> {
    /// Makes an object and gives its handle; nothing is left of one that could not be made.
    pub(crate) fn rm_alloc(
        &mut self,
        process: &mut dyn Process,
        file: FileId,
        request: AllocRequest,
    ) -> Result<Handle, Status> {
        if is_root(request.class) {
            return self.alloc_client(file, request.root);
        }
        let spec = self
            .class_spec(request.class)
            .ok_or(Status::INVALID_CLASS)?;
        if spec.required && request.params == 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let mut params = vec![0; spec.params];
        if request.params != 0 {
            process
                .read(request.params, &mut params)
                .map_err(|_| Status::INVALID_ADDRESS)?;
        }
        self.check_site(file, request)?;
        let client = self.client_mut(request.root);
        let handle = client.handle(request.root, request.object)?;
        let site = Site {
            client: request.root,
            parent: request.parent,
        };
        let kind = self.construct(site, handle, request.class, &mut params)?;
        self.plant(
            site,
            handle,
            Object::new(request.class, request.parent, kind),
        );
        if request.params != 0 && process.write(request.params, &params).is_err() {
            self.rm_free(request.root, handle);
            return Err(Status::INVALID_ADDRESS);
        }
        Ok(handle)
    }

    /// Hangs a finished object into its client's tree.
    pub(super) fn plant(&mut self, site: Site, handle: Handle, object: Object) {
        self.client_mut(site.client)
            .insert(site.client, handle, object);
    }

    /// A handle for a new object of the client.
    pub(super) fn new_handle(&mut self, client: Handle, wanted: Handle) -> Result<Handle, Status> {
        self.client_mut(client).handle(client, wanted)
    }

    fn alloc_client(&mut self, file: FileId, wanted: Handle) -> Result<Handle, Status> {
        let owner = self.control_file_of(file);
        let handle = if wanted == 0 {
            self.free_client_handle()?
        } else {
            wanted
        };
        if self.rm.clients.contains_key(&handle) {
            return Err(Status::INSERT_DUPLICATE_NAME);
        }
        self.rm.clients.insert(handle, Client::new(owner));
        Ok(handle)
    }

    fn free_client_handle(&mut self) -> Result<Handle, Status> {
        for _ in 0..HANDLES {
            let handle = CLIENT_BASE + self.rm.next_client;
            self.rm.next_client = (self.rm.next_client + 1) % HANDLES;
            if !self.rm.clients.contains_key(&handle) {
                return Ok(handle);
            }
        }
        Err(Status::INSUFFICIENT_RESOURCES)
    }

    fn class_spec(&self, class: u32) -> Option<ClassSpec> {
        let required = |params| {
            Some(ClassSpec {
                params,
                required: true,
            })
        };
        let optional = |params| {
            Some(ClassSpec {
                params,
                required: false,
            })
        };
        match class {
            class::NV01_DEVICE_0 => optional(size_of::<class::DeviceAlloc>()),
            class::NV20_SUBDEVICE_0 => optional(size_of::<class::SubdeviceAlloc>()),
            class::NV01_MEMORY_VIRTUAL => required(size_of::<class::VirtualAlloc>()),
            class::NV01_MEMORY_LOCAL_USER | class::NV01_MEMORY_SYSTEM => {
                required(size_of::<class::MemoryAlloc>())
            }
            class::FERMI_VASPACE_A => required(VaspaceAlloc::size(self.abi)),
            class::KEPLER_CHANNEL_GROUP_A => required(size_of::<class::ChannelGroupAlloc>()),
            class::FERMI_CONTEXT_SHARE_A => required(size_of::<class::ContextShareAlloc>()),
            class::GT200_DEBUGGER => required(size_of::<class::DebuggerAlloc>()),
            class::TURING_USERMODE_A | class::HOPPER_USERMODE_A => optional(0),
            _ if class::is_channel(class) => required(ChannelAlloc::size(self.abi)),
            _ if class::is_compute(class) || class::is_copy(class) => optional(0),
            _ => None,
        }
    }

    /// Client and parent exist, and the class goes under the parent.
    fn check_site(&self, file: FileId, request: AllocRequest) -> Result<(), Status> {
        let client = self.client(file, request.root)?;
        if request.parent == request.root {
            return match request.class {
                class::NV01_DEVICE_0 => Ok(()),
                _ => Err(Status::INVALID_OBJECT_PARENT),
            };
        }
        let parent = client.object(request.parent)?;
        let fits = match request.class {
            class::NV01_DEVICE_0 => false,
            class::TURING_USERMODE_A | class::HOPPER_USERMODE_A => {
                matches!(parent.kind, Kind::Subdevice { .. })
            }
            class::FERMI_CONTEXT_SHARE_A => matches!(parent.kind, Kind::Group { .. }),
            class if class::is_channel(class) => {
                matches!(parent.kind, Kind::Device { .. } | Kind::Group { .. })
            }
            class if class::is_compute(class) || class::is_copy(class) => {
                matches!(parent.kind, Kind::Channel(_))
            }
            _ => matches!(parent.kind, Kind::Device { .. }),
        };
        if fits {
            Ok(())
        } else {
            Err(Status::INVALID_OBJECT_PARENT)
        }
    }

    fn construct(
        &mut self,
        site: Site,
        handle: Handle,
        class: u32,
        params: &mut [u8],
    ) -> Result<Kind, Status> {
        match class {
            class::NV01_DEVICE_0 => self.new_device(params),
            class::NV20_SUBDEVICE_0 => self.new_subdevice(site, params),
            class::NV01_MEMORY_VIRTUAL => self.new_virtual(site, params),
            class::NV01_MEMORY_LOCAL_USER | class::NV01_MEMORY_SYSTEM => {
                self.new_memory(site, class, params).map(Kind::Memory)
            }
            class::FERMI_VASPACE_A => self.new_vaspace_object(site, params),
            class::KEPLER_CHANNEL_GROUP_A => self.new_group(site, params),
            class::FERMI_CONTEXT_SHARE_A => self.new_context_share(site, params),
            class::GT200_DEBUGGER => self.new_debugger(params),
            _ => self.new_engine_object(site, handle, class, params),
        }
    }

    /// Classes that exist only on GPUs of some generation.
    fn new_engine_object(
        &mut self,
        site: Site,
        handle: Handle,
        class: u32,
        params: &[u8],
    ) -> Result<Kind, Status> {
        if !self.classes().contains(&class) {
            return Err(Status::NOT_SUPPORTED);
        }
        match class {
            class::TURING_USERMODE_A | class::HOPPER_USERMODE_A => self
                .new_doorbell(self.device_gpu(site)?)
                .map(Kind::Usermode),
            _ if class::is_channel(class) => self.new_channel(site, handle, params),
            _ => Ok(Kind::Engine),
        }
    }

    /// Engine and doorbell classes of the simulated GPUs.
    pub(crate) fn classes(&self) -> [u32; 4] {
        match self.config.arch {
            Arch::Ampere => [
                class::TURING_USERMODE_A,
                class::AMPERE_CHANNEL_GPFIFO_A,
                class::AMPERE_COMPUTE_B,
                class::AMPERE_DMA_COPY_B,
            ],
            Arch::Ada => [
                class::TURING_USERMODE_A,
                class::AMPERE_CHANNEL_GPFIFO_A,
                class::ADA_COMPUTE_A,
                class::AMPERE_DMA_COPY_B,
            ],
            Arch::Blackwell => [
                class::HOPPER_USERMODE_A,
                class::BLACKWELL_CHANNEL_GPFIFO_A,
                class::BLACKWELL_COMPUTE_B,
                class::BLACKWELL_DMA_COPY_B,
            ],
        }
    }

    fn new_device(&mut self, params: &[u8]) -> Result<Kind, Status> {
        let params: class::DeviceAlloc = parse(params);
        let gpu = params.device_id as usize;
        if gpu >= 32 {
            return Err(Status::INVALID_ARGUMENT);
        }
        if gpu >= self.gpus.len() {
            return Err(Status::INVALID_STATE);
        }
        let vas = self.new_vas(Vas {
            gpu,
            external: false,
            faulting: false,
            uvm: None,
            refs: 1,
            table: Table::default(),
        });
        Ok(Kind::Device { gpu, vas })
    }

    fn new_subdevice(&mut self, site: Site, params: &[u8]) -> Result<Kind, Status> {
        let params: class::SubdeviceAlloc = parse(params);
        if params.subdevice_id != 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let client = &self.rm.clients[&site.client];
        let device = client.object(site.parent)?;
        let twice = device
            .children
            .iter()
            .any(|child| matches!(client.objects[child].kind, Kind::Subdevice { .. }));
        if twice {
            return Err(Status::STATE_IN_USE);
        }
        Ok(Kind::Subdevice {
            gpu: self.device_gpu(site)?,
        })
    }

    /// Addresses that a GPU of the generation can translate.
    fn va_limit(&self) -> u64 {
        match self.config.arch {
            Arch::Ampere | Arch::Ada => 1 << 49,
            Arch::Blackwell => 1 << 57,
        }
    }

    fn new_virtual(&mut self, site: Site, params: &[u8]) -> Result<Kind, Status> {
        let params: class::VirtualAlloc = parse(params);
        let limit = if params.limit == 0 {
            self.va_limit() - 1
        } else {
            params.limit
        };
        if limit >= self.va_limit() {
            return Err(Status::INVALID_LIMIT);
        }
        if params.offset >= limit {
            return Err(Status::INVALID_OFFSET);
        }
        let vas = self.vas_or_default(site, params.vaspace)?;
        self.retain_vas(vas);
        Ok(Kind::Virtual {
            vas,
            base: params.offset,
            limit,
        })
    }

    fn new_vaspace_object(&mut self, site: Site, params: &mut [u8]) -> Result<Kind, Status> {
        let decoded = VaspaceAlloc::decode(self.abi, params).expect("sized by its class");
        let mut answer = decoded;
        if decoded.va_size == 0 {
            let left = self.va_limit().checked_sub(decoded.va_base);
            answer.va_size = left.ok_or(Status::INVALID_ARGUMENT)?;
        }
        let span = Span::new(decoded.va_base, answer.va_size).ok_or(Status::INVALID_ARGUMENT)?;
        if span.end() > self.va_limit() {
            return Err(Status::INVALID_ARGUMENT);
        }
        let gpu = self.device_gpu(site)?;
        answer.encode(self.abi, params);
        let flags = decoded.flags;
        Ok(Kind::Vaspace(self.new_vas(Vas {
            gpu,
            external: flags & class::vaspace::IS_EXTERNALLY_OWNED != 0,
            faulting: flags & class::vaspace::ENABLE_PAGE_FAULTING != 0,
            uvm: None,
            refs: 1,
            table: Table::default(),
        })))
    }

    fn new_group(&mut self, site: Site, params: &[u8]) -> Result<Kind, Status> {
        let params: class::ChannelGroupAlloc = parse(params);
        let gpu = self.device_gpu(site)?;
        let runlist = runlist(params.engine_type).ok_or(Status::INVALID_ARGUMENT)?;
        let vas = self.vas_or_default(site, params.vaspace)?;
        self.retain_vas(vas);
        Ok(Kind::Group {
            gpu,
            runlist,
            scheduled: false,
            vas,
        })
    }

    fn new_context_share(&mut self, site: Site, params: &mut [u8]) -> Result<Kind, Status> {
        let mut decoded: class::ContextShareAlloc = parse(params);
        let vas = self.vas_or_default(site, decoded.vaspace)?;
        self.retain_vas(vas);
        // Identifiers start at 1: 0 is the subcontext that a group has of itself.
        decoded.subctx_id = 1;
        params.copy_from_slice(decoded.as_bytes());
        Ok(Kind::ContextShare { vas })
    }

    /// A debugger looks at the channel of the compute object that it is given.
    fn new_debugger(&mut self, params: &[u8]) -> Result<Kind, Status> {
        let params: class::DebuggerAlloc = parse(params);
        let app = self.rm.clients.get(&params.app_client);
        let app = app.ok_or(Status::INVALID_CLIENT)?;
        let object = app.object(params.compute_object)?;
        if !class::is_compute(object.class) {
            return Err(Status::INVALID_OBJECT);
        }
        let Kind::Channel(channel) = app.object(object.parent)?.kind else {
            return Err(Status::INVALID_OBJECT);
        };
        Ok(Kind::Debugger(channel))
    }

    fn new_channel(&mut self, site: Site, handle: Handle, params: &[u8]) -> Result<Kind, Status> {
        let params = ChannelAlloc::decode(self.abi, params).expect("sized by its class");
        if params.context_share != 0 && params.vaspace != 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let client = &self.rm.clients[&site.client];
        let parent = &client.object(site.parent)?.kind;
        let (gpu, group, runlist) = if let Kind::Group { gpu, runlist, .. } = *parent {
            (gpu, Some(site.parent), Some(runlist))
        } else if params.context_share == 0 {
            (self.device_gpu(site)?, None, None)
        } else {
            return Err(Status::INVALID_ARGUMENT);
        };
        let vas = self.channel_vas(site, &params)?;
        let entries = params.gpfifo_entries;
        let ring = Span::new(params.gpfifo_offset, u64::from(entries) * GP_ENTRY_BYTES);
        let reachable = ring.is_some_and(|ring| ring.end() <= CHANNEL_VA_LIMIT);
        if !entries.is_power_of_two()
            || entries < 2
            || !params.gpfifo_offset.is_multiple_of(GP_ENTRY_BYTES)
            || !reachable
        {
            return Err(Status::INVALID_ARGUMENT);
        }
        let userd = self.channel_userd(site.client, &params)?;
        let error = match params.error {
            0 => None,
            handle => {
                let object = client.object(handle)?;
                Some(object.mem().ok_or(Status::INVALID_OBJECT)?)
            }
        };
        let number = self
            .free_channel_number(gpu)
            .ok_or(Status::INSUFFICIENT_RESOURCES)?;
        Ok(Kind::Channel(self.add_channel(Channel {
            gpu,
            client: site.client,
            handle,
            group,
            share: Some(params.context_share).filter(|&share| share != 0),
            vas,
            ring: params.gpfifo_offset,
            entries,
            userd,
            error,
            number,
            runlist,
            scheduled: false,
            uvm: None,
            dead: None,
            exec: Exec::default(),
        })))
    }

    fn channel_vas(&self, site: Site, params: &ChannelAlloc) -> Result<VasId, Status> {
        if params.context_share == 0 {
            return self.vas_or_default(site, params.vaspace);
        }
        let client = &self.rm.clients[&site.client];
        let Kind::ContextShare { vas } = client.object(params.context_share)?.kind else {
            return Err(Status::INVALID_OBJECT);
        };
        Ok(vas)
    }

    fn channel_userd(
        &self,
        client: Handle,
        params: &ChannelAlloc,
    ) -> Result<(super::MemId, u64), Status> {
        use vrampager_nv_abi::method::userd;
        let object = self.rm.clients[&client].object(params.userd[0])?;
        let mem = object.mem().ok_or(Status::INVALID_OBJECT)?;
        let offset = params.userd_offset[0];
        let fits = Span::new(offset, userd::SIZE).is_some_and(|span| {
            span.end() <= self.mem(mem).size && offset.is_multiple_of(userd::SIZE)
        });
        fits.then_some((mem, offset))
            .ok_or(Status::INVALID_ARGUMENT)
    }

    /// The GPU of the device or subdevice that a new object goes under.
    pub(super) fn device_gpu(&self, site: Site) -> Result<usize, Status> {
        let parent = self.rm.clients[&site.client].object(site.parent)?;
        parent.gpu().ok_or(Status::INVALID_OBJECT_PARENT)
    }

    /// The address space behind a handle of the client.
    pub(crate) fn vas_object(&self, client: Handle, handle: Handle) -> Result<VasId, Status> {
        let Kind::Vaspace(vas) = self.rm.clients[&client].object(handle)?.kind else {
            return Err(Status::INVALID_OBJECT);
        };
        Ok(vas)
    }

    /// The address space named, or the one of the device or group above.
    fn vas_or_default(&self, site: Site, handle: Handle) -> Result<VasId, Status> {
        if handle != 0 {
            return self.vas_object(site.client, handle);
        }
        let parent = self.rm.clients[&site.client].object(site.parent)?;
        parent.default_vas().ok_or(Status::INVALID_OBJECT_PARENT)
    }

    fn new_vas(&mut self, vas: Vas) -> VasId {
        self.next_vas += 1;
        let id = VasId(self.next_vas);
        self.vas.insert(id, vas);
        id
    }

    pub(crate) fn retain_vas(&mut self, id: VasId) {
        let vas = self
            .vas
            .get_mut(&id)
            .expect("a retained address space is alive");
        vas.refs += 1;
    }
}

/// Whether allocating this class makes a client.
pub(crate) fn is_root(class: u32) -> bool {
    matches!(
        class,
        class::NV01_ROOT | class::NV01_ROOT_NON_PRIV | class::NV01_ROOT_CLIENT
    )
}

/// Runlist of an engine: graphics has the first, each copy engine one of its own.
pub(super) fn runlist(engine: u32) -> Option<u32> {
    match engine {
        class::engine::GRAPHICS => Some(0),
        class::engine::COPY0..=12 => Some(engine - class::engine::COPY0 + 1),
        _ => None,
    }
}

/// Reads parameters whose buffer was sized by their class.
pub(super) fn parse<T: FromBytes>(params: &[u8]) -> T {
    let parsed = T::read_from_bytes(params);
    parsed.expect("the buffer was sized for the parameters")
}
