//! A client that brings a GPU up with plain system calls, as any program does: for the table, and
//! for tests of a driver that go on from there.
//!
//! Each method makes one request, or those that its comment names, and gives the driver's answer
//! to the first one refused. Files that were opened are closed with the client.

use thiserror::Error;
use vrampager_nv_abi::escape::{self, CardInfo, RmAlloc, RmAllocMemory, RmControl, RmMapMemory};
use vrampager_nv_abi::neutral::{ChannelAlloc, MapMemoryDma, UvmFree, VaspaceAlloc};
use vrampager_nv_abi::{AbiVersion, Handle, Node, Status, Uuid, class, ctrl, uvm};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::nodes::{Answer, Nodes, PAGES};

/// A driver refused what every client asks for, or has no such GPU: there is nothing to probe.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum SetupError {
    /// A good request was refused.
    #[error("{stage} failed with {answer}")]
    Refused {
        /// What was asked for.
        stage: &'static str,
        /// The driver's answer.
        answer: Answer,
    },
    /// The driver is of a release whose layouts are not known.
    #[error("driver release {release:?} is not supported, only 570 to 610")]
    Release {
        /// What the driver says it is.
        release: String,
    },
    /// A node cannot be opened.
    #[error("{} cannot be opened: {answer}", node.path())]
    Node {
        /// Which.
        node: Node,
        /// The error of the system call.
        answer: Answer,
    },
    /// There is no GPU of this number.
    #[error("there is no GPU {minor}")]
    NoGpu {
        /// The number asked for.
        minor: u32,
    },
    /// The GPU has none of the classes of this kind that are known here.
    #[error("the GPU has no {kind} class known here")]
    NoClass {
        /// The kind.
        kind: &'static str,
    },
}

/// Names the request that a setup failed with.
pub(crate) trait Stage<T> {
    fn stage(self, stage: &'static str) -> Result<T, SetupError>;
}

impl<T> Stage<T> for Result<T, Answer> {
    fn stage(self, stage: &'static str) -> Result<T, SetupError> {
        self.map_err(|answer| SetupError::Refused { stage, answer })
    }
}

impl SetupError {
    /// The node of a driver that is not there, or not for this user, by its path, with the error
    /// of the system call that opens it.
    #[must_use]
    pub fn no_driver(&self) -> Option<(String, i32)> {
        let Self::Node {
            node,
            answer: Answer::Errno(errno),
        } = *self
        else {
            return None;
        };
        Node::is_missing(errno).then(|| (node.path(), errno))
    }
}

/// One process with a client of the resource manager and a VA space of unified memory.
#[derive(Debug)]
pub struct Client<N: Nodes> {
    nodes: N,
    /// The interface version of the driver.
    pub abi: AbiVersion,
    /// The driver's release.
    pub release: String,
    /// The control file.
    pub ctl: i32,
    /// The file with the VA space of unified memory.
    pub uvm: i32,
    /// The file that ties the VA space to the process, where the driver wants one.
    pub tie: Option<i32>,
    /// The client of the resource manager.
    pub root: Handle,
    opened: Vec<i32>,
    used: usize,
}

/// A GPU brought up as clients do it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// Number of its node.
    pub minor: usize,
    /// A file of its node, linked to the control file.
    pub fd: i32,
    /// Its device object.
    pub device: Handle,
    /// Its subdevice object.
    pub subdevice: Handle,
    /// Virtual memory of the resource manager's own.
    pub virt: Handle,
    /// The VA space that is registered with unified memory.
    pub vaspace: Handle,
    /// Its UUID.
    pub uuid: Uuid,
}

/// Entries of a ring, and where the control page is behind it.
pub const ENTRIES: u32 = 16;
/// Where the control page is, from the start of the ring.
pub const USERD: u64 = 0x1000;

impl<N: Nodes> Client<N> {
    /// Opens the nodes, makes a client and a VA space.
    pub fn new(nodes: N) -> Result<Self, SetupError> {
        let mut client = Self {
            nodes,
            abi: AbiVersion::V570,
            release: String::new(),
            ctl: -1,
            uvm: -1,
            tie: None,
            root: 0,
            opened: Vec::new(),
            used: 0,
        };
        client.ctl = client.open_first(Node::Control)?;
        client.uvm = client.open_first(Node::Uvm)?;
        client.root = client.new_client().stage("allocate client")?;
        client.read_release()?;
        let mut packet = uvm::Initialize::new_zeroed();
        let done = client.uvm(uvm::INITIALIZE, &mut packet);
        done.stage("initialise UVM")?;
        client.tie_to_process()?;
        Ok(client)
    }

    fn read_release(&mut self) -> Result<(), SetupError> {
        let mut version = ctrl::BuildVersion::new_zeroed();
        let (root, cmd) = (self.root, ctrl::SYSTEM_GET_BUILD_VERSION_V2);
        let done = self.control(root, cmd, &mut version);
        done.stage("read driver release")?;
        let text = version.driver_version.split(|&byte| byte == 0).next();
        let release = String::from_utf8_lossy(text.unwrap_or_default()).into_owned();
        let Some(abi) = AbiVersion::of_release(&release) else {
            return Err(SetupError::Release { release });
        };
        (self.abi, self.release) = (abi, release);
        Ok(())
    }

    fn tie_to_process(&mut self) -> Result<(), SetupError> {
        let tie = self.open(Node::Uvm).stage("open UVM node")?;
        let mut packet = uvm::MmInitialize {
            uvm_fd: self.uvm,
            status: 0,
        };
        match self.uvm_on(tie, uvm::MM_INITIALIZE, &mut packet) {
            Ok(()) => self.tie = Some(tie),
            Err(Answer::Status(Status::WARN_NOTHING_TO_DO)) => {}
            Err(answer) => return Err(answer).stage("tie UVM to the process"),
        }
        Ok(())
    }

    /// Opens a node; the file is closed with the client at the latest.
    pub fn open(&mut self, node: Node) -> Result<i32, Answer> {
        let fd = self.nodes.open(node)?;
        self.opened.push(fd);
        Ok(fd)
    }

    /// Opens a node by which something is brought up.
    fn open_first(&mut self, node: Node) -> Result<i32, SetupError> {
        let opened = self.open(node);
        opened.map_err(|answer| SetupError::Node { node, answer })
    }

    /// Closes a file.
    pub fn close(&mut self, fd: i32) {
        self.opened.retain(|&open| open != fd);
        self.nodes.close(fd);
    }

    /// Descriptors opened so far, in order.
    pub(crate) fn opened(&self) -> usize {
        self.opened.len()
    }

    /// Closes what was opened after the first `keep` descriptors, last one first.
    pub fn close_after(&mut self, keep: usize) {
        let keep = keep.min(self.opened.len());
        for fd in self.opened.split_off(keep).into_iter().rev() {
            self.nodes.close(fd);
        }
    }

    /// The system calls themselves.
    pub fn nodes(&mut self) -> &mut N {
        &mut self.nodes
    }

    /// Puts bytes into the process's memory; they stay until the next object or control.
    pub fn put(&mut self, bytes: &[u8]) -> u64 {
        let at = self.used;
        self.nodes.memory()[at..at + bytes.len()].copy_from_slice(bytes);
        self.used = (at + bytes.len()).next_multiple_of(8);
        self.nodes.address() + at as u64
    }

    /// Puts bytes over what was there before.
    pub fn put_first(&mut self, bytes: &[u8]) -> u64 {
        self.used = 0;
        self.put(bytes)
    }

    fn take_back(&mut self, into: &mut [u8]) {
        into.copy_from_slice(&self.nodes.memory()[..into.len()]);
    }

    /// An escape ioctl with a packet of its own size.
    pub fn escape<T>(&mut self, fd: i32, nr: u8, packet: &mut T) -> Result<(), Answer>
    where
        T: FromBytes + IntoBytes + Immutable,
    {
        let request = escape::request(nr, size_of::<T>());
        self.nodes.ioctl(fd, request, packet.as_mut_bytes())
    }

    /// An escape on the control file whose status is at `status`.
    pub(crate) fn manage<T>(
        &mut self,
        nr: u8,
        packet: &mut T,
        status: fn(&T) -> u32,
    ) -> Result<(), Answer>
    where
        T: FromBytes + IntoBytes + Immutable,
    {
        self.escape(self.ctl, nr, packet)?;
        Answer::check(status(packet))
    }

    fn new_client(&mut self) -> Result<Handle, Answer> {
        let mut packet = RmAlloc::new_zeroed();
        packet.class = class::NV01_ROOT_CLIENT;
        self.manage(escape::RM_ALLOC, &mut packet, |p| p.status)?;
        Ok(packet.object)
    }

    /// Allocates an object; its parameters come back changed.
    pub fn alloc<P>(&mut self, parent: Handle, class: u32, params: &mut P) -> Result<Handle, Answer>
    where
        P: FromBytes + IntoBytes + Immutable,
    {
        self.alloc_bytes(parent, class, params.as_mut_bytes())
    }

    /// Allocates an object whose parameters depend on the version, or that has none.
    pub fn alloc_bytes(
        &mut self,
        parent: Handle,
        class: u32,
        params: &mut [u8],
    ) -> Result<Handle, Answer> {
        let mut packet = RmAlloc::new_zeroed();
        packet.root = self.root;
        packet.parent = parent;
        packet.class = class;
        if !params.is_empty() {
            packet.params = self.put_first(params);
        }
        let result = self.manage(escape::RM_ALLOC, &mut packet, |p| p.status);
        self.take_back(params);
        result.map(|()| packet.object)
    }

    /// Frees an object and all below it.
    pub fn free(&mut self, object: Handle) -> Result<(), Answer> {
        let mut packet = escape::RmFree::new_zeroed();
        packet.root = self.root;
        packet.object = object;
        self.manage(escape::RM_FREE, &mut packet, |p| p.status)
    }

    /// A control; its parameters come back changed.
    pub fn control<P>(&mut self, object: Handle, cmd: u32, params: &mut P) -> Result<(), Answer>
    where
        P: FromBytes + IntoBytes + Immutable,
    {
        self.control_bytes(object, cmd, params.as_mut_bytes())
    }

    /// A control whose parameters depend on the version.
    fn control_bytes(&mut self, object: Handle, cmd: u32, params: &mut [u8]) -> Result<(), Answer> {
        let mut packet = RmControl::new_zeroed();
        packet.client = self.root;
        packet.object = object;
        packet.cmd = cmd;
        packet.params = self.put_first(params);
        packet.params_size = u32::try_from(params.len()).expect("parameters are small");
        let result = self.manage(escape::RM_CONTROL, &mut packet, |p| p.status);
        self.take_back(params);
        result
    }

    /// Bytes of a GPU's CPU-visible window.
    pub(crate) fn bar1(&mut self, gpu: Gpu) -> Result<u64, SetupError> {
        let mut params = vec![0; ctrl::fb_info_size(self.abi)];
        params[..4].copy_from_slice(&1_u32.to_le_bytes());
        params[4..8].copy_from_slice(&ctrl::fb::BAR1_SIZE.to_le_bytes());
        let asked = self.control_bytes(gpu.subdevice, ctrl::FB_GET_INFO_V2, &mut params);
        asked.stage("ask for the size of BAR1")?;
        let kib = u32::from_le_bytes(*params[8..].first_chunk().expect("an entry has 8 bytes"));
        Ok(u64::from(kib) << 10)
    }

    /// A UVM command on the file with the VA space.
    pub fn uvm<T>(&mut self, command: u32, packet: &mut T) -> Result<(), Answer>
    where
        T: FromBytes + IntoBytes + Immutable,
    {
        self.uvm_on(self.uvm, command, packet)
    }

    pub(crate) fn uvm_on<T>(&mut self, fd: i32, command: u32, packet: &mut T) -> Result<(), Answer>
    where
        T: FromBytes + IntoBytes + Immutable,
    {
        self.uvm_bytes(fd, command, packet.as_mut_bytes())
    }

    /// A UVM command whose packet depends on the version.
    pub fn uvm_bytes(&mut self, fd: i32, command: u32, packet: &mut [u8]) -> Result<(), Answer> {
        self.nodes.ioctl(fd, command, packet)?;
        let (_, at) = uvm::params_size(self.abi, command).expect("a command of the table");
        let word = packet[at..at + 4].try_into().expect("four bytes");
        Answer::check(u32::from_le_bytes(word))
    }

    /// The cards of the machine by number.
    pub fn cards(&mut self) -> Result<Vec<CardInfo>, SetupError> {
        let mut cards = [CardInfo::new_zeroed(); 32];
        let done = self.escape(self.ctl, escape::CARD_INFO, &mut cards);
        done.stage("list GPUs")?;
        let mut cards: Vec<CardInfo> = cards.into_iter().filter(|card| card.valid != 0).collect();
        cards.sort_by_key(|card| card.minor);
        Ok(cards)
    }

    /// Device, VA space and registration of a GPU.
    pub fn gpu(&mut self, card: CardInfo) -> Result<Gpu, SetupError> {
        let minor = card.minor as usize;
        let fd = self.open_first(Node::Gpu(minor))?;
        self.link(fd).stage("link GPU node")?;
        let mut info = ctrl::GpuIdInfo::new_zeroed();
        info.gpu_id = card.gpu_id;
        let root = self.root;
        let done = self.control(root, ctrl::GPU_GET_ID_INFO_V2, &mut info);
        done.stage("find device instance")?;
        let mut params = class::DeviceAlloc::new_zeroed();
        params.device_id = info.device_instance;
        params.client_share = root;
        let device = self.alloc(root, class::NV01_DEVICE_0, &mut params);
        let device = device.stage("allocate device")?;
        let mut params = class::SubdeviceAlloc::new_zeroed();
        let subdevice = self.alloc(device, class::NV20_SUBDEVICE_0, &mut params);
        let subdevice = subdevice.stage("allocate subdevice")?;
        let mut params = class::VirtualAlloc::new_zeroed();
        params.limit = (1 << 49) - 1;
        let virt = self.alloc(device, class::NV01_MEMORY_VIRTUAL, &mut params);
        let virt = virt.stage("allocate virtual memory")?;
        let flags = class::vaspace::IS_EXTERNALLY_OWNED | class::vaspace::ENABLE_PAGE_FAULTING;
        let vaspace = self.vaspace(device, flags).stage("allocate VA space")?;
        let uuid = self.uuid(subdevice).stage("read UUID")?;
        let mut request = uvm::RegisterGpu::new_zeroed();
        request.uuid = uuid;
        request.rm_ctrl_fd = -1;
        self.uvm(uvm::REGISTER_GPU, &mut request)
            .stage("register GPU")?;
        self.register_vaspace(uuid, vaspace)
            .stage("register VA space")?;
        Ok(Gpu {
            minor,
            fd,
            device,
            subdevice,
            virt,
            vaspace,
            uuid,
        })
    }

    fn uuid(&mut self, subdevice: Handle) -> Result<Uuid, Answer> {
        let mut gid = ctrl::GidInfo::new_zeroed();
        gid.flags = ctrl::GID_FORMAT_BINARY;
        gid.length = 16;
        self.control(subdevice, ctrl::GPU_GET_GID_INFO, &mut gid)?;
        Ok(gid.data[..16].try_into().expect("sixteen bytes"))
    }

    pub(crate) fn register_vaspace(&mut self, uuid: Uuid, vaspace: Handle) -> Result<(), Answer> {
        let mut request = uvm::RegisterGpuVaspace::new_zeroed();
        request.uuid = uuid;
        request.rm_ctrl_fd = self.ctl;
        request.client = self.root;
        request.vaspace = vaspace;
        self.uvm(uvm::REGISTER_GPU_VASPACE, &mut request)
    }

    /// A GPU file that speaks for the control file.
    pub fn linked(&mut self, minor: usize) -> Result<i32, Answer> {
        let fd = self.open(Node::Gpu(minor))?;
        self.link(fd)?;
        Ok(fd)
    }

    fn link(&mut self, fd: i32) -> Result<(), Answer> {
        let mut packet = escape::RegisterFd { ctl_fd: self.ctl };
        self.escape(fd, escape::REGISTER_FD, &mut packet)
    }

    /// A VA space with these flags.
    pub fn vaspace(&mut self, device: Handle, flags: u32) -> Result<Handle, Answer> {
        let params = VaspaceAlloc {
            flags,
            va_size: 0x1_FFFF_FB00_0000,
            va_base: 0x1000,
            ..VaspaceAlloc::default()
        };
        let mut bytes = vec![0; VaspaceAlloc::size(self.abi)];
        params.encode(self.abi, &mut bytes);
        self.alloc_bytes(device, class::FERMI_VASPACE_A, &mut bytes)
    }

    /// Classes of the GPU.
    pub(crate) fn classes(&mut self, device: Handle) -> Result<Vec<u32>, SetupError> {
        /// Room for the list: real GPUs have a few hundred classes.
        const LIST_MAX: usize = 1024;
        let mut list = ctrl::ClassList::new_zeroed();
        let stage = "list classes";
        self.control(device, ctrl::GPU_GET_CLASSLIST, &mut list)
            .stage(stage)?;
        let count = (list.count as usize).min(LIST_MAX);
        // The control's own parameters come first in the process's memory.
        let at = size_of::<ctrl::ClassList>();
        list.list = self.nodes.address() + at as u64;
        self.control(device, ctrl::GPU_GET_CLASSLIST, &mut list)
            .stage(stage)?;
        let bytes = &self.nodes.memory()[at..at + 4 * count];
        let words = bytes.chunks_exact(4);
        let classes = words.map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
        Ok(classes.collect())
    }

    /// Parameters of plain memory.
    pub fn memory_params(&self, size: u64) -> class::MemoryAlloc {
        let mut params = class::MemoryAlloc::new_zeroed();
        params.owner = self.root;
        params.size = size;
        params
    }

    /// The packet that pins pages of the process.
    pub fn pin_packet(&self, gpu: Gpu, size: u64) -> RmAllocMemory {
        use escape::os02;
        let mut packet = RmAllocMemory::new_zeroed();
        packet.root = self.root;
        packet.parent = gpu.device;
        packet.object = 0x1001;
        packet.class = class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR;
        packet.flags = os02::MAPPING_NO_MAP << os02::MAPPING_SHIFT
            | os02::COHERENCY_CACHED << os02::COHERENCY_SHIFT
            | os02::PHYSICALITY_NONCONTIGUOUS;
        packet.memory = self.nodes.address() + PAGES as u64;
        packet.limit = size - 1;
        packet.fd = -1;
        packet
    }

    /// The packet that maps all of a memory for the CPU, through a file.
    pub fn map_packet(&self, gpu: Gpu, memory: Handle, len: u64, fd: i32) -> RmMapMemory {
        let mut packet = RmMapMemory::new_zeroed();
        packet.client = self.root;
        packet.device = gpu.device;
        packet.memory = memory;
        packet.length = len;
        packet.fd = fd;
        packet
    }

    /// Maps memory for the CPU; gives the cookie of the mapping.
    pub fn map_cpu(&mut self, mut packet: RmMapMemory) -> Result<u64, Answer> {
        self.manage(escape::RM_MAP_MEMORY, &mut packet, |p| p.status)?;
        Ok(packet.linear)
    }

    /// The packet that maps memory into the address space of the resource manager.
    pub fn dma_packet(&self, gpu: Gpu, memory: Handle, address: u64, len: u64) -> MapMemoryDma {
        MapMemoryDma {
            client: self.root,
            device: gpu.device,
            dma: gpu.virt,
            memory,
            length: len,
            flags: escape::os46::DMA_OFFSET_FIXED
                | escape::os46::CACHE_SNOOP
                | escape::os46::PAGE_SIZE_4KB,
            dma_offset: address,
            ..MapMemoryDma::default()
        }
    }

    /// Maps memory into the address space of the resource manager; gives the GPU address.
    pub fn map_dma(&mut self, packet: MapMemoryDma) -> Result<u64, Answer> {
        let mut bytes = vec![0; MapMemoryDma::size(self.abi)];
        packet.encode(self.abi, &mut bytes);
        let request = escape::request(escape::RM_MAP_MEMORY_DMA, bytes.len());
        self.nodes.ioctl(self.ctl, request, &mut bytes)?;
        let answer = MapMemoryDma::decode(self.abi, &bytes).expect("the size is the same");
        Answer::check(answer.status).map(|()| answer.dma_offset)
    }

    /// Makes an external range of unified memory.
    pub fn range(&mut self, base: u64, length: u64) -> Result<(), Answer> {
        let mut packet = range_packet(base, length);
        self.uvm(uvm::CREATE_EXTERNAL_RANGE, &mut packet)
    }

    /// The packet that maps memory into an external range, for one GPU.
    pub fn uvm_map_packet(
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

    /// Frees a range of unified memory.
    pub fn uvm_free(&mut self, base: u64, length: u64) -> Result<(), Answer> {
        let mut bytes = vec![0; UvmFree::size(self.abi)];
        let packet = UvmFree {
            base,
            length,
            status: 0,
        };
        packet.encode(self.abi, &mut bytes);
        self.uvm_bytes(self.uvm, uvm::FREE, &mut bytes)
    }

    /// Device memory mapped for the CPU and for one GPU at `base`.
    pub fn buffer(&mut self, gpu: Gpu, base: u64, size: u64) -> Result<Handle, SetupError> {
        let mut params = self.memory_params(size);
        let memory = self.alloc(gpu.device, class::NV01_MEMORY_LOCAL_USER, &mut params);
        let memory = memory.stage("allocate device memory")?;
        self.range(base, size).stage("create range")?;
        let mut packet = self.uvm_map_packet(gpu, memory, base, size);
        let done = self.uvm(uvm::MAP_EXTERNAL_ALLOCATION, &mut packet);
        done.stage("map device memory")?;
        Ok(memory)
    }

    /// Allocates a channel of this class.
    pub fn channel(
        &mut self,
        parent: Handle,
        class: u32,
        params: &ChannelAlloc,
    ) -> Result<Handle, Answer> {
        let mut bytes = vec![0; ChannelAlloc::size(self.abi)];
        params.encode(self.abi, &mut bytes);
        self.alloc_bytes(parent, class, &mut bytes)
    }

    /// The packet that registers a channel, with 4 MiB from `base` on for its resources.
    pub fn register_packet(&self, gpu: Gpu, channel: Handle, base: u64) -> uvm::RegisterChannel {
        let mut packet = uvm::RegisterChannel::new_zeroed();
        packet.uuid = gpu.uuid;
        packet.rm_ctrl_fd = self.ctl;
        packet.client = self.root;
        packet.channel = channel;
        packet.base = base;
        packet.length = 4 << 20;
        packet
    }
}

impl<N: Nodes> Drop for Client<N> {
    fn drop(&mut self) {
        self.close_after(0);
    }
}

pub(crate) fn range_packet(base: u64, length: u64) -> uvm::Range {
    uvm::Range {
        base,
        length,
        status: 0,
        pad: 0,
    }
}

/// Parameters of a channel with its ring and control page in one memory.
pub fn channel_params(base: u64, share: Handle, memory: Handle, error: Handle) -> ChannelAlloc {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_is_missing_is_told_from_one_that_cannot_be_opened_now() {
        let failed = |errno| SetupError::Node {
            node: Node::Gpu(3),
            answer: Answer::Errno(errno),
        };
        assert_eq!(failed(2).no_driver(), Some(("/dev/nvidia3".to_owned(), 2)));
        for errno in [16, 24] {
            let error = failed(errno);
            assert_eq!(error.no_driver(), None);
            let text = error.to_string();
            assert!(
                text.starts_with("/dev/nvidia3 cannot be opened: "),
                "{text}"
            );
        }
    }
}
