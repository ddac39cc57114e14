//! A client that makes system calls with plain numbers, as any program does.

use std::collections::BTreeMap;

use vrampager_nv_abi::escape::{self, RmAlloc, RmControl, RmFree, RmMapMemory};
use vrampager_nv_abi::neutral::{ChannelAlloc, MapMemoryDma, Schedule, UvmFree, VaspaceAlloc};
use vrampager_nv_abi::{AbiVersion, Handle, Status, Uuid, class, ctrl, uvm};
use vrampager_nv_driver::{
    Arch, Config, Driver, Effect, Errno, FileId, HeapStore, MapContext, Node, Place, Process,
    Store, StoreError,
};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// The memory and descriptors of the calling process.
pub(crate) struct Memory {
    bytes: Vec<u8>,
    used: usize,
    fds: BTreeMap<i32, FileId>,
}

/// Addresses below are not mapped.
const BASE: u64 = 0x1_0000;
/// An address that is never mapped.
pub(crate) const NOWHERE: u64 = 0x10;

impl Memory {
    fn range(&self, address: u64, len: usize) -> Result<std::ops::Range<usize>, StoreError> {
        let start = address.checked_sub(BASE).ok_or(StoreError::BadAddress)?;
        let start = usize::try_from(start).map_err(|_| StoreError::BadAddress)?;
        let end = start
            .checked_add(len)
            .filter(|&end| end <= self.bytes.len());
        Ok(start..end.ok_or(StoreError::BadAddress)?)
    }

    /// Puts bytes over what the last call put there.
    pub(crate) fn put_at_start(&mut self, bytes: &[u8]) -> u64 {
        self.used = 0;
        self.put(bytes)
    }

    /// Puts bytes somewhere.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = BASE + self.used as u64;
        self.bytes[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used = (self.used + bytes.len()).next_multiple_of(8);
        at
    }
}

impl Process for Memory {
    fn file(&self, fd: i32) -> Option<FileId> {
        self.fds.get(&fd).copied()
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), StoreError> {
        into.copy_from_slice(&self.bytes[self.range(address, into.len())?]);
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), StoreError> {
        let range = self.range(address, from.len())?;
        self.bytes[range].copy_from_slice(from);
        Ok(())
    }
}

/// One process on one machine, with a client and a VA space.
pub(crate) struct Client {
    pub(crate) driver: Driver<HeapStore>,
    pub(crate) memory: Memory,
    pub(crate) abi: AbiVersion,
    channel_class: u32,
    pub(crate) ctl: i32,
    pub(crate) uvm: i32,
    pub(crate) root: Handle,
    next_fd: i32,
}

/// A GPU brought up as clients do it.
#[derive(Clone, Copy)]
pub(crate) struct Gpu {
    pub(crate) minor: usize,
    pub(crate) fd: i32,
    pub(crate) device: Handle,
    pub(crate) subdevice: Handle,
    pub(crate) virt: Handle,
    pub(crate) vaspace: Handle,
    pub(crate) uuid: Uuid,
}

/// A channel with the memory it needs.
#[derive(Clone, Copy)]
pub(crate) struct Queue {
    pub(crate) group: Handle,
    pub(crate) share: Handle,
    pub(crate) channel: Handle,
    pub(crate) token: u32,
    /// CPU view of ring and control page.
    pub(crate) ring: Place,
    /// CPU view of the pushbuffer, which follows in the same memory.
    pub(crate) error: Place,
    pub(crate) put: u32,
}

/// Layout of a queue's memory: ring, control page, pushbuffers.
pub(crate) const ENTRIES: u32 = 16;
pub(crate) const USERD: u64 = 0x1000;
pub(crate) const PUSH: u64 = 0x2000;
const QUEUE_BYTES: u64 = 0x10_0000;

impl Client {
    /// Opens the nodes, makes a client and a UVM VA space.
    pub(crate) fn new(machine: &str) -> Self {
        let config = Config::parse(machine).expect("a machine the test made up");
        let abi = config.abi();
        let channel_class = match config.arch {
            Arch::Ampere | Arch::Ada => class::AMPERE_CHANNEL_GPFIFO_A,
            Arch::Blackwell => class::BLACKWELL_CHANNEL_GPFIFO_A,
        };
        let mut client = Self {
            driver: Driver::new(config, HeapStore::new()),
            memory: Memory {
                bytes: vec![0; 1 << 20],
                used: 0,
                fds: BTreeMap::new(),
            },
            abi,
            channel_class,
            ctl: 0,
            uvm: 0,
            root: 0,
            next_fd: 3,
        };
        client.ctl = client.open(Node::Control);
        client.uvm = client.open(Node::Uvm);
        client.root = client.new_client().expect("a first client");
        client
            .uvm(uvm::INITIALIZE, &mut uvm::Initialize::new_zeroed())
            .expect("a fresh file");
        client
    }

    pub(crate) fn open(&mut self, node: Node) -> i32 {
        let file = self.driver.open(node).expect("the node exists");
        let fd = self.next_fd;
        self.next_fd += 1;
        self.memory.fds.insert(fd, file);
        fd
    }

    pub(crate) fn close(&mut self, fd: i32) {
        let file = self.memory.fds.remove(&fd).expect("an open descriptor");
        self.driver.close(file);
    }

    /// What the kernel does when the process is gone, whatever it was doing.
    pub(crate) fn die(&mut self) {
        let fds: Vec<i32> = self.memory.fds.keys().copied().collect();
        for fd in fds {
            self.close(fd);
        }
    }

    pub(crate) fn file(&self, fd: i32) -> FileId {
        self.memory.file(fd).expect("an open descriptor")
    }

    pub(crate) fn raw(
        &mut self,
        fd: i32,
        request: u32,
        packet: &mut [u8],
    ) -> Result<Effect, Errno> {
        let file = self.file(fd);
        self.driver.ioctl(&mut self.memory, file, request, packet)
    }

    /// An escape ioctl with a packet of its own size.
    pub(crate) fn escape<T>(&mut self, fd: i32, nr: u8, packet: &mut T) -> Result<Effect, Errno>
    where
        T: FromBytes + IntoBytes + Immutable,
    {
        let mut bytes = packet.as_bytes().to_vec();
        let result = self.raw(fd, escape::request(nr, bytes.len()), &mut bytes);
        *packet = T::read_from_bytes(&bytes).expect("same size");
        result
    }

    fn new_client(&mut self) -> Result<Handle, Status> {
        let mut packet = RmAlloc::new_zeroed();
        packet.class = class::NV01_ROOT_CLIENT;
        let fd = self.ctl;
        self.escape(fd, escape::RM_ALLOC, &mut packet)
            .expect("a valid packet");
        status(packet.status).map(|()| packet.object)
    }

    /// Allocates an object; its parameters come back changed.
    pub(crate) fn alloc<P>(
        &mut self,
        parent: Handle,
        class: u32,
        params: &mut P,
    ) -> Result<Handle, Status>
    where
        P: FromBytes + IntoBytes + Immutable,
    {
        let mut bytes = params.as_bytes().to_vec();
        let result = self.alloc_bytes(parent, class, Some(&mut bytes));
        *params = P::read_from_bytes(&bytes).expect("same size");
        result
    }

    pub(crate) fn alloc_bytes(
        &mut self,
        parent: Handle,
        class: u32,
        params: Option<&mut [u8]>,
    ) -> Result<Handle, Status> {
        self.memory.used = 0;
        let address = params.as_ref().map_or(0, |params| self.memory.put(params));
        let mut packet = RmAlloc::new_zeroed();
        packet.root = self.root;
        packet.parent = parent;
        packet.class = class;
        packet.params = address;
        let fd = self.ctl;
        self.escape(fd, escape::RM_ALLOC, &mut packet)
            .map_err(|_| Status::GENERIC)?;
        if let Some(params) = params {
            self.memory.read(address, params).expect("its own memory");
        }
        status(packet.status).map(|()| packet.object)
    }

    pub(crate) fn free(&mut self, object: Handle) -> Result<(), Status> {
        let mut packet = RmFree::new_zeroed();
        packet.root = self.root;
        packet.object = object;
        let fd = self.ctl;
        self.escape(fd, escape::RM_FREE, &mut packet)
            .map_err(|_| Status::GENERIC)?;
        status(packet.status)
    }

    /// A control; its parameters come back changed.
    pub(crate) fn control<P>(
        &mut self,
        object: Handle,
        cmd: u32,
        params: &mut P,
    ) -> Result<(), Status>
    where
        P: FromBytes + IntoBytes + Immutable,
    {
        self.memory.used = 0;
        let address = self.memory.put(params.as_bytes());
        let mut packet = RmControl::new_zeroed();
        packet.client = self.root;
        packet.object = object;
        packet.cmd = cmd;
        packet.params = address;
        packet.params_size = u32::try_from(size_of::<P>()).expect("small");
        let fd = self.ctl;
        self.escape(fd, escape::RM_CONTROL, &mut packet)
            .map_err(|_| Status::GENERIC)?;
        let mut bytes = params.as_bytes().to_vec();
        self.memory
            .read(address, &mut bytes)
            .expect("its own memory");
        *params = P::read_from_bytes(&bytes).expect("same size");
        status(packet.status)
    }

    /// A UVM command whose packet does not depend on the version.
    pub(crate) fn uvm<T>(&mut self, command: u32, packet: &mut T) -> Result<(), Status>
    where
        T: FromBytes + IntoBytes + Immutable,
    {
        let mut bytes = packet.as_bytes().to_vec();
        let result = self.uvm_bytes(self.uvm, command, &mut bytes);
        *packet = T::read_from_bytes(&bytes).expect("same size");
        result
    }

    pub(crate) fn uvm_bytes(
        &mut self,
        fd: i32,
        command: u32,
        packet: &mut [u8],
    ) -> Result<(), Status> {
        self.raw(fd, command, packet).map_err(|_| Status::GENERIC)?;
        let (_, at) = uvm::params_size(self.abi, command).expect("a known command");
        let word = packet[at..at + 4].try_into().expect("four bytes");
        status(u32::from_le_bytes(word))
    }

    /// Device, VA space and registration of a GPU.
    pub(crate) fn gpu(&mut self, minor: usize) -> Gpu {
        let fd = self.linked(minor);
        let mut params = class::DeviceAlloc::new_zeroed();
        params.device_id = u32::try_from(minor).expect("small");
        let root = self.root;
        let device = self
            .alloc(root, class::NV01_DEVICE_0, &mut params)
            .expect("a device");
        let mut params = class::SubdeviceAlloc::new_zeroed();
        let subdevice = self
            .alloc(device, class::NV20_SUBDEVICE_0, &mut params)
            .expect("one");
        let mut params = class::VirtualAlloc::new_zeroed();
        params.limit = (1 << 49) - 1;
        let virt = self
            .alloc(device, class::NV01_MEMORY_VIRTUAL, &mut params)
            .expect("one");
        let vaspace = self.vaspace(device);
        let mut gid = ctrl::GidInfo::new_zeroed();
        gid.flags = ctrl::GID_FORMAT_BINARY;
        self.control(subdevice, ctrl::GPU_GET_GID_INFO, &mut gid)
            .expect("a UUID");
        let uuid: Uuid = gid.data[..16].try_into().expect("16 bytes");
        let mut request = uvm::RegisterGpu::new_zeroed();
        request.uuid = uuid;
        self.uvm(uvm::REGISTER_GPU, &mut request)
            .expect("a new GPU");
        let mut request = uvm::RegisterGpuVaspace::new_zeroed();
        request.uuid = uuid;
        request.rm_ctrl_fd = self.ctl;
        request.client = self.root;
        request.vaspace = vaspace;
        self.uvm(uvm::REGISTER_GPU_VASPACE, &mut request)
            .expect("a new VA space");
        Gpu {
            minor,
            fd,
            device,
            subdevice,
            virt,
            vaspace,
            uuid,
        }
    }

    /// A GPU file that speaks for the control file.
    pub(crate) fn linked(&mut self, minor: usize) -> i32 {
        let fd = self.open(Node::Gpu(minor));
        let mut packet = escape::RegisterFd { ctl_fd: self.ctl };
        self.escape(fd, escape::REGISTER_FD, &mut packet)
            .expect("a fresh file");
        fd
    }

    pub(crate) fn vaspace(&mut self, device: Handle) -> Handle {
        let params = VaspaceAlloc {
            flags: class::vaspace::IS_EXTERNALLY_OWNED | class::vaspace::ENABLE_PAGE_FAULTING,
            va_size: 0x1_FFFF_FB00_0000,
            va_base: 0x1000,
            ..VaspaceAlloc::default()
        };
        let mut bytes = vec![0; VaspaceAlloc::size(self.abi)];
        params.encode(self.abi, &mut bytes);
        self.alloc_bytes(device, class::FERMI_VASPACE_A, Some(&mut bytes))
            .expect("a VA space")
    }

    /// Device memory.
    pub(crate) fn vidmem(&mut self, gpu: Gpu, size: u64) -> Result<Handle, Status> {
        let mut params = memory_params(self.root, size);
        self.alloc(gpu.device, class::NV01_MEMORY_LOCAL_USER, &mut params)
    }

    /// Host memory of the driver.
    pub(crate) fn sysmem(&mut self, gpu: Gpu, size: u64) -> Result<Handle, Status> {
        let mut params = memory_params(self.root, size);
        self.alloc(gpu.device, class::NV01_MEMORY_SYSTEM, &mut params)
    }

    /// Pages of the process.
    pub(crate) fn pin(&mut self, gpu: Gpu, size: u64, handle: Handle) -> Result<Handle, Status> {
        let mut packet = escape::RmAllocMemory::new_zeroed();
        packet.root = self.root;
        packet.parent = gpu.device;
        packet.object = handle;
        packet.class = class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR;
        packet.flags = escape::os02::MAPPING_NO_MAP << escape::os02::MAPPING_SHIFT
            | escape::os02::COHERENCY_CACHED << escape::os02::COHERENCY_SHIFT;
        packet.memory = 0x7000_0000;
        packet.limit = size - 1;
        packet.fd = -1;
        self.escape(gpu.fd, escape::RM_ALLOC_MEMORY, &mut packet)
            .map_err(|_| Status::GENERIC)?;
        status(packet.status).map(|()| packet.object)
    }

    /// The CPU's view of memory: what a mapping through a fresh file shows.
    pub(crate) fn map_cpu(
        &mut self,
        gpu: Gpu,
        memory: Handle,
        len: u64,
        node: Node,
    ) -> Result<(Place, u64, i32), Status> {
        let fd = match node {
            Node::Gpu(minor) => self.linked(minor),
            Node::Control | Node::Uvm => self.open(node),
        };
        let mut packet = self.map_packet(gpu, memory, len, fd);
        let ctl = self.ctl;
        let effect = self.escape(ctl, escape::RM_MAP_MEMORY, &mut packet);
        match effect.map_err(|_| Status::GENERIC)? {
            Effect::Mappable {
                map: MapContext { place, .. },
                ..
            } => Ok((place, packet.linear, fd)),
            Effect::None => Err(Status(packet.status)),
        }
    }

    pub(crate) fn map_packet(&self, gpu: Gpu, memory: Handle, len: u64, fd: i32) -> RmMapMemory {
        let mut packet = RmMapMemory::new_zeroed();
        packet.client = self.root;
        packet.device = gpu.device;
        packet.memory = memory;
        packet.length = len;
        packet.fd = fd;
        packet
    }

    pub(crate) fn map_dma(
        &mut self,
        gpu: Gpu,
        memory: Handle,
        address: u64,
        len: u64,
    ) -> Result<u64, Status> {
        let packet = self.dma_packet(gpu, memory, address, len);
        self.dma(packet)
    }

    pub(crate) fn dma_packet(
        &self,
        gpu: Gpu,
        memory: Handle,
        address: u64,
        len: u64,
    ) -> MapMemoryDma {
        MapMemoryDma {
            client: self.root,
            device: gpu.device,
            dma: gpu.virt,
            memory,
            length: len,
            flags: escape::os46::DMA_OFFSET_FIXED,
            dma_offset: address,
            ..MapMemoryDma::default()
        }
    }

    pub(crate) fn dma(&mut self, packet: MapMemoryDma) -> Result<u64, Status> {
        let mut bytes = vec![0; MapMemoryDma::size(self.abi)];
        packet.encode(self.abi, &mut bytes);
        let request = escape::request(escape::RM_MAP_MEMORY_DMA, bytes.len());
        self.raw(self.ctl, request, &mut bytes)
            .map_err(|_| Status::GENERIC)?;
        let answer = MapMemoryDma::decode(self.abi, &bytes).expect("same size");
        status(answer.status).map(|()| answer.dma_offset)
    }

    pub(crate) fn range(&mut self, base: u64, len: u64) -> Result<(), Status> {
        let mut packet = uvm::Range {
            base,
            length: len,
            status: 0,
            pad: 0,
        };
        self.uvm(uvm::CREATE_EXTERNAL_RANGE, &mut packet)
    }

    pub(crate) fn map_uvm(
        &mut self,
        gpu: Gpu,
        memory: Handle,
        base: u64,
        len: u64,
    ) -> Result<(), Status> {
        let mut packet = self.uvm_map_packet(gpu, memory, base, len);
        self.uvm(uvm::MAP_EXTERNAL_ALLOCATION, &mut packet)
    }

    pub(crate) fn uvm_map_packet(
        &self,
        gpu: Gpu,
        memory: Handle,
        base: u64,
        len: u64,
    ) -> uvm::MapExternalAllocation {
        let mut packet = uvm::MapExternalAllocation::new_zeroed();
        packet.base = base;
        packet.length = len;
        packet.attributes[0].uuid = gpu.uuid;
        packet.attributes[0].mapping = uvm::access::READ_WRITE_ATOMIC;
        packet.count = 1;
        packet.rm_ctrl_fd = self.ctl;
        packet.client = self.root;
        packet.memory = memory;
        packet
    }

    pub(crate) fn uvm_free(&mut self, base: u64, len: u64) -> Result<(), Status> {
        let mut bytes = vec![0; UvmFree::size(self.abi)];
        UvmFree {
            base,
            length: len,
            status: 0,
        }
        .encode(self.abi, &mut bytes);
        self.uvm_bytes(self.uvm, uvm::FREE, &mut bytes)
    }

    pub(crate) fn peers(&mut self, a: Gpu, b: Gpu) -> Result<(), Status> {
        let mut packet = uvm::PeerAccess {
            uuid_a: a.uuid,
            uuid_b: b.uuid,
            status: 0,
        };
        self.uvm(uvm::ENABLE_PEER_ACCESS, &mut packet)
    }

    /// Device memory mapped for one GPU at `base`, with its bytes as the CPU would see them.
    pub(crate) fn buffer(&mut self, gpu: Gpu, base: u64, size: u64) -> (Handle, Place) {
        let memory = self.vidmem(gpu, size).expect("device memory");
        let (place, _, fd) = self
            .map_cpu(gpu, memory, size, Node::Gpu(gpu.minor))
            .expect("a CPU mapping");
        self.close(fd);
        self.range(base, size).expect("a free range");
        self.map_uvm(gpu, memory, base, size)
            .expect("a GPU mapping");
        (memory, place)
    }

    /// A scheduled channel whose memory is at `base`; channel resources go to `base + 4 MiB`.
    pub(crate) fn queue(&mut self, gpu: Gpu, base: u64) -> Queue {
        let (memory, ring) = self.buffer(gpu, base, QUEUE_BYTES);
        let notifier = self.sysmem(gpu, 0x1000).expect("host memory");
        let (error, _, _) = self
            .map_cpu(gpu, notifier, 0x1000, Node::Control)
            .expect("a CPU mapping");
        let mut params = class::ChannelGroupAlloc::new_zeroed();
        params.engine_type = class::engine::GRAPHICS;
        let group = self.alloc(gpu.device, class::KEPLER_CHANNEL_GROUP_A, &mut params);
        let group = group.expect("a group");
        let mut params = class::ContextShareAlloc::new_zeroed();
        params.vaspace = gpu.vaspace;
        let share = self.alloc(group, class::FERMI_CONTEXT_SHARE_A, &mut params);
        let share = share.expect("a subcontext");
        let params = channel_params(base, share, memory, notifier);
        let channel = self.channel(group, &params).expect("a channel");
        let mut packet = self.register_packet(gpu, channel, base + (4 << 20));
        self.uvm(uvm::REGISTER_CHANNEL, &mut packet)
            .expect("a new channel");
        let mut token = ctrl::WorkSubmitToken::new_zeroed();
        self.control(channel, ctrl::GET_WORK_SUBMIT_TOKEN, &mut token)
            .expect("a token");
        self.schedule(group, 1).expect("a group to schedule");
        Queue {
            group,
            share,
            channel,
            token: token.token,
            ring,
            error,
            put: 0,
        }
    }

    pub(crate) fn channel(
        &mut self,
        parent: Handle,
        params: &ChannelAlloc,
    ) -> Result<Handle, Status> {
        let mut bytes = vec![0; ChannelAlloc::size(self.abi)];
        params.encode(self.abi, &mut bytes);
        let class = self.channel_class;
        self.alloc_bytes(parent, class, Some(&mut bytes))
    }

    pub(crate) fn register_packet(
        &self,
        gpu: Gpu,
        channel: Handle,
        base: u64,
    ) -> uvm::RegisterChannel {
        let mut packet = uvm::RegisterChannel::new_zeroed();
        packet.uuid = gpu.uuid;
        packet.rm_ctrl_fd = self.ctl;
        packet.client = self.root;
        packet.channel = channel;
        packet.base = base;
        packet.length = 4 << 20;
        packet
    }

    pub(crate) fn schedule(&mut self, group: Handle, enable: u8) -> Result<(), Status> {
        match self.abi {
            AbiVersion::V570 => {
                let mut params = vrampager_nv_abi::v570::Schedule {
                    enable,
                    skip_submit: 0,
                };
                self.control(group, ctrl::GROUP_SCHEDULE, &mut params)
            }
            AbiVersion::V580 | AbiVersion::V610 => {
                assert_eq!(Schedule::size(self.abi), 3);
                let mut params = vrampager_nv_abi::v580::Schedule {
                    enable,
                    skip_submit: 0,
                    skip_enable: 0,
                };
                self.control(group, ctrl::GROUP_SCHEDULE, &mut params)
            }
        }
    }

    pub(crate) fn write(&mut self, place: Place, offset: u64, bytes: &[u8]) {
        let place = Place {
            offset: place.offset + offset,
            ..place
        };
        self.driver
            .store_mut()
            .write(place, bytes)
            .expect("heap memory");
    }

    pub(crate) fn read<const N: usize>(&self, place: Place, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        let place = Place {
            offset: place.offset + offset,
            ..place
        };
        self.driver
            .store()
            .read(place, &mut bytes)
            .expect("heap memory");
        bytes
    }
}

/// Parameters of plain memory.
pub(crate) fn memory_params(owner: Handle, size: u64) -> class::MemoryAlloc {
    let mut params = class::MemoryAlloc::new_zeroed();
    params.owner = owner;
    params.size = size;
    params
}

/// Parameters of a channel with its ring and control page in one memory.
pub(crate) fn channel_params(
    base: u64,
    share: Handle,
    memory: Handle,
    error: Handle,
) -> ChannelAlloc {
    let mut params = ChannelAlloc {
        error,
        buffer: memory,
        gpfifo_offset: base,
        gpfifo_entries: ENTRIES,
        context_share: share,
        ..ChannelAlloc::default()
    };
    params.userd[0] = memory;
    params.userd_offset[0] = USERD;
    params
}

pub(crate) fn status(code: u32) -> Result<(), Status> {
    match Status(code) {
        Status::OK => Ok(()),
        status => Err(status),
    }
}
