//! Open files of the three kinds of node, and their escape ioctls.

use vrampager_nv_abi::escape::{self, CardInfo, RegisterFd, Xfer};
use vrampager_nv_abi::neutral::MapMemoryDma;
use vrampager_nv_abi::{Node, Status, uvm};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::inject::{Failure, Kind};
use crate::rm::{AllocRequest, bus, gpu_id, is_root};
use crate::store::{Place, Process, Store};
use crate::uvm::UvmFile;
use crate::{Driver, Errno};

/// Names an open file of the driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u64);

/// What `mmap` of a file shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapContext {
    /// First byte.
    pub place: Place,
    /// Bytes that may be mapped.
    pub len: u64,
    /// Only the whole of it may be mapped.
    pub(crate) exact: bool,
}

/// What a file carries for `mmap`: one mapping in its life.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Carried {
    Nothing,
    Mapping(MapContext),
    /// A mapping that was taken back, itself or with its memory.
    Gone,
}

/// An open file.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) node: Node,
    pub(crate) carried: Carried,
    pub(crate) uvm: UvmFile,
    /// The control file that a GPU file speaks for.
    link: Option<FileId>,
    /// GPU files that keep a control file alive.
    linked: u32,
    closed: bool,
}

/// What a system call did besides filling its packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing.
    None,
    /// A file can be mapped from now on.
    Mappable {
        /// Which file.
        file: FileId,
        /// What it shows.
        map: MapContext,
    },
}

/// The status that a packet gets, and where.
struct Reply {
    status: Status,
    offset: usize,
    effect: Effect,
}

impl<S: Store> Driver<S> {
    /// Opens a node.
    ///
    /// # Errors
    ///
    /// [`Errno::NoDev`] for a GPU that the machine does not have.
    pub fn open(&mut self, node: Node) -> Result<FileId, Errno> {
        if matches!(node, Node::Gpu(index) if index >= self.gpus.len()) {
            return Err(Errno::NoDev);
        }
        self.next_file += 1;
        let id = FileId(self.next_file);
        let file = File {
            node,
            carried: Carried::Nothing,
            uvm: UvmFile::Fresh,
            link: None,
            linked: 0,
            closed: false,
        };
        self.files.insert(id, file);
        Ok(id)
    }

    /// Closes a file: a control file takes its clients along, a UVM file its VA space. A control
    /// file lives on until the last GPU file linked to it is closed.
    ///
    /// # Panics
    ///
    /// If the file is not open.
    pub fn close(&mut self, id: FileId) {
        let file = self.files.get_mut(&id).expect("only open files are closed");
        assert!(!file.closed, "a file is closed once");
        file.closed = true;
        if file.linked == 0 {
            self.finish_close(id);
        }
    }

    fn finish_close(&mut self, id: FileId) {
        self.close_uvm(id);
        let file = self.files.remove(&id).expect("closed by the caller");
        if file.node == Node::Control {
            let clients: Vec<_> = self
                .rm
                .clients
                .iter()
                .filter(|(_, client)| client.file == id)
                .map(|(&handle, _)| handle)
                .collect();
            for client in clients {
                self.free_client(client);
            }
        }
        if let Some(control) = file.link {
            let control_file = self
                .files
                .get_mut(&control)
                .expect("links keep files alive");
            control_file.linked -= 1;
            if control_file.linked == 0 && control_file.closed {
                self.finish_close(control);
            }
        }
    }

    /// The control file that a file speaks for: the one linked, or itself.
    pub(crate) fn control_file_of(&self, id: FileId) -> FileId {
        self.files.get(&id).and_then(|file| file.link).unwrap_or(id)
    }

    /// What `mmap` with these arguments shows.
    ///
    /// # Errors
    ///
    /// [`Errno::Inval`] without a mapping context, also after it was taken back or its memory
    /// object freed, or with an offset; [`Errno::NxIo`] if a GPU file is not mapped exactly as
    /// long as the context is; [`Errno::Range`] if a control file is mapped longer than that.
    pub fn mmap(&self, id: FileId, len: u64, offset: u64) -> Result<MapContext, Errno> {
        let file = self.files.get(&id).ok_or(Errno::BadF)?;
        let Carried::Mapping(map) = file.carried else {
            return Err(Errno::Inval);
        };
        if offset != 0 || len == 0 {
            return Err(Errno::Inval);
        }
        match (map.exact, len) {
            (true, len) if len != map.len => Err(Errno::NxIo),
            (false, len) if len > map.len => Err(Errno::Range),
            _ => Ok(MapContext { len, ..map }),
        }
    }

    /// Bytes of the packet that a request of this file carries; `None` if the driver would refuse
    /// it unseen.
    #[must_use]
    pub fn packet_size(&self, id: FileId, request: u32) -> Option<usize> {
        match self.files.get(&id)?.node {
            Node::Uvm => uvm::params_size(self.abi, request).map(|(size, _)| size),
            Node::Control | Node::Gpu(_) => escape::split(request).map(|(_, size)| size),
        }
    }

    /// Carries out an ioctl: `packet` is what the caller's argument points to.
    ///
    /// # Errors
    ///
    /// The system call's own error. `Ok` proves nothing: the status is in the packet.
    pub fn ioctl(
        &mut self,
        process: &mut dyn Process,
        id: FileId,
        request: u32,
        packet: &mut [u8],
    ) -> Result<Effect, Errno> {
        self.counted.ioctls += 1;
        match self.files.get(&id).ok_or(Errno::BadF)?.node {
            Node::Uvm => self
                .uvm_ioctl(process, id, request, packet)
                .map(|()| Effect::None),
            Node::Control | Node::Gpu(_) => {
                let (nr, size) = escape::split(request).ok_or(Errno::Inval)?;
                if size != packet.len() {
                    return Err(Errno::Inval);
                }
                if nr == escape::XFER_CMD {
                    return self.transfer(process, id, packet);
                }
                self.escape(process, id, nr, packet)
            }
        }
    }

    /// An escape whose packet is elsewhere in the caller's memory.
    fn transfer(
        &mut self,
        process: &mut dyn Process,
        id: FileId,
        packet: &[u8],
    ) -> Result<Effect, Errno> {
        /// Bound on packets of any escape (`NV_ABSOLUTE_MAX_IOCTL_SIZE`).
        const PACKET_MAX: u32 = 16384;
        let xfer = Xfer::read_from_bytes(packet).map_err(|_| Errno::Inval)?;
        let nr = u8::try_from(xfer.cmd).map_err(|_| Errno::Inval)?;
        if xfer.size > PACKET_MAX || nr == escape::XFER_CMD {
            return Err(Errno::Inval);
        }
        let mut inner = vec![0; xfer.size as usize];
        process
            .read(xfer.ptr, &mut inner)
            .map_err(|_| Errno::Fault)?;
        let result = self.escape(process, id, nr, &mut inner);
        process.write(xfer.ptr, &inner).map_err(|_| Errno::Fault)?;
        result
    }

    fn escape(
        &mut self,
        process: &mut dyn Process,
        id: FileId,
        nr: u8,
        packet: &mut [u8],
    ) -> Result<Effect, Errno> {
        self.check_node(id, nr)?;
        match self.injector.count(Kind::Escape, nr.into()) {
            Some(Failure::Errno(errno)) => return Err(errno),
            Some(Failure::Status(status)) => {
                let offset = status_offset(nr, packet.len(), self.abi).ok_or(Errno::Inval)?;
                packet[offset..offset + 4].copy_from_slice(&status.0.to_le_bytes());
                return Ok(Effect::None);
            }
            None => {}
        }
        if let Some(reply) = self.resource_escape(process, id, nr, packet)? {
            let bytes = reply.status.0.to_le_bytes();
            packet[reply.offset..reply.offset + 4].copy_from_slice(&bytes);
            return Ok(reply.effect);
        }
        self.node_escape(process, id, nr, packet)
            .map(|()| Effect::None)
    }

    /// Each escape belongs to one kind of node; a few to both.
    fn check_node(&self, id: FileId, nr: u8) -> Result<(), Errno> {
        let node = self.files.get(&id).ok_or(Errno::BadF)?.node;
        let fits = match nr {
            escape::RM_ALLOC_MEMORY => matches!(node, Node::Gpu(_)),
            escape::REGISTER_FD | escape::WAIT_OPEN_COMPLETE => true,
            _ => node == Node::Control,
        };
        fits.then_some(()).ok_or(Errno::Inval)
    }

    /// Escapes of the resource manager: all with a status in their packet.
    fn resource_escape(
        &mut self,
        process: &mut dyn Process,
        id: FileId,
        nr: u8,
        packet: &mut [u8],
    ) -> Result<Option<Reply>, Errno> {
        let Some(offset) = status_offset(nr, packet.len(), self.abi) else {
            return Ok(None);
        };
        let mut effect = Effect::None;
        let result = match nr {
            escape::RM_ALLOC => self.escape_alloc(process, id, packet)?,
            escape::RM_FREE => {
                let request: escape::RmFree = read(packet)?;
                self.client(id, request.root).map(|_| ()).map(|()| {
                    self.rm_free(request.root, request.object);
                })
            }
            escape::RM_CONTROL => self.escape_control(process, id, packet)?,
            escape::RM_ALLOC_MEMORY => {
                let mut request: escape::RmAllocMemory = read(packet)?;
                self.rm_alloc_memory(id, &request).map(|handle| {
                    request.object = handle;
                    packet.copy_from_slice(request.as_bytes());
                })
            }
            escape::RM_MAP_MEMORY => {
                let mut request: escape::RmMapMemory = read(packet)?;
                self.rm_map_memory(process, id, &request)
                    .map(|(cookie, file, map)| {
                        request.linear = cookie;
                        packet.copy_from_slice(request.as_bytes());
                        effect = Effect::Mappable { file, map };
                    })
            }
            escape::RM_UNMAP_MEMORY => self.rm_unmap_memory(id, &read(packet)?),
            escape::RM_MAP_MEMORY_DMA => {
                let mut request = MapMemoryDma::decode(self.abi, packet).ok_or(Errno::Inval)?;
                self.rm_map_dma(id, &request).map(|address| {
                    request.dma_offset = address;
                    request.encode(self.abi, packet);
                })
            }
            escape::RM_UNMAP_MEMORY_DMA => self.rm_unmap_dma(id, &read(packet)?),
            // Memory is allocated by class: none of the heap's functions is known.
            escape::RM_VID_HEAP_CONTROL => Err(Status::INVALID_ARGUMENT),
            _ => {
                let mut request: escape::RmDupObject = read(packet)?;
                self.rm_dup(id, &request).map(|handle| {
                    request.object = handle;
                    packet.copy_from_slice(request.as_bytes());
                })
            }
        };
        let status = result.err().unwrap_or(Status::OK);
        Ok(Some(Reply {
            status,
            offset,
            effect,
        }))
    }

    fn escape_alloc(
        &mut self,
        process: &mut dyn Process,
        id: FileId,
        packet: &mut [u8],
    ) -> Result<Result<(), Status>, Errno> {
        // Both packets begin alike, up to the address of the parameters.
        let (head, _) = escape::RmAlloc::read_from_prefix(packet).map_err(|_| Errno::Inval)?;
        let request = AllocRequest {
            root: head.root,
            parent: head.parent,
            object: head.object,
            class: head.class,
            params: head.params,
        };
        match self.injector.count(Kind::Alloc, head.class) {
            Some(Failure::Errno(errno)) => return Err(errno),
            Some(Failure::Status(status)) => return Ok(Err(status)),
            None => {}
        }
        Ok(self.rm_alloc(process, id, request).map(|handle| {
            let object = std::mem::offset_of!(escape::RmAlloc, object);
            packet[object..object + 4].copy_from_slice(&handle.to_le_bytes());
            if is_root(request.class) {
                packet[..4].copy_from_slice(&handle.to_le_bytes());
            }
        }))
    }

    fn escape_control(
        &mut self,
        process: &mut dyn Process,
        id: FileId,
        packet: &[u8],
    ) -> Result<Result<(), Status>, Errno> {
        let request: escape::RmControl = read(packet)?;
        match self.injector.count(Kind::Control, request.cmd) {
            Some(Failure::Errno(errno)) => Err(errno),
            Some(Failure::Status(status)) => Ok(Err(status)),
            None => Ok(self.rm_control(process, id, &request)),
        }
    }

    /// Escapes of the nodes themselves, which have no status.
    fn node_escape(
        &mut self,
        process: &dyn Process,
        id: FileId,
        nr: u8,
        packet: &mut [u8],
    ) -> Result<(), Errno> {
        match nr {
            escape::CARD_INFO => self.card_info(packet),
            escape::REGISTER_FD => self.register_fd(process, id, packet),
            escape::CHECK_VERSION_STR => self.check_version(packet),
            escape::SYS_PARAMS => self.sys_params(packet),
            escape::WAIT_OPEN_COMPLETE => {
                read::<escape::WaitOpenComplete>(packet)?;
                packet.fill(0);
                Ok(())
            }
            escape::ATTACH_GPUS_TO_FD => {
                let whole = !packet.is_empty() && packet.len().is_multiple_of(4);
                whole.then_some(()).ok_or(Errno::Inval)
            }
            _ => Err(Errno::Inval),
        }
    }

    fn card_info(&self, packet: &mut [u8]) -> Result<(), Errno> {
        let size = size_of::<CardInfo>();
        if packet.is_empty() || !packet.len().is_multiple_of(size) {
            return Err(Errno::Inval);
        }
        packet.fill(0);
        if packet.len() / size < self.gpus.len() {
            return Err(Errno::Inval);
        }
        for (index, entry) in packet
            .chunks_exact_mut(size)
            .take(self.gpus.len())
            .enumerate()
        {
            entry.copy_from_slice(self.card(index).as_bytes());
        }
        Ok(())
    }

    fn card(&self, index: usize) -> CardInfo {
        let mut card = CardInfo::new_zeroed();
        let slot = index as u64;
        card.valid = 1;
        card.bus = bus(index);
        card.vendor_id = 0x10DE;
        card.device_id = self.config.arch.device_id();
        card.gpu_id = gpu_id(index);
        card.interrupt_line = 16;
        card.reg_address = 0xF000_0000 + (slot << 24);
        card.reg_size = 16 << 20;
        card.fb_address = (1 << 40) * (slot + 1);
        card.fb_size = self.config.bar1;
        card.minor = u32::try_from(index).expect("at most 32 GPUs");
        card.name[..6].copy_from_slice(b"nvidia");
        card
    }

    fn register_fd(
        &mut self,
        process: &dyn Process,
        id: FileId,
        packet: &[u8],
    ) -> Result<(), Errno> {
        let request: RegisterFd = read(packet)?;
        let control = process.file(request.ctl_fd).ok_or(Errno::Inval)?;
        let target = self.files.get(&control).ok_or(Errno::Inval)?;
        let own = self.files.get(&id).ok_or(Errno::BadF)?;
        let possible = own.link.is_none()
            && own.linked == 0
            && control != id
            && target.node == Node::Control
            && target.link.is_none();
        if !possible {
            return Err(Errno::Inval);
        }
        self.files.get_mut(&id).expect("found above").link = Some(control);
        self.files.get_mut(&control).expect("found above").linked += 1;
        Ok(())
    }

    fn check_version(&self, packet: &mut [u8]) -> Result<(), Errno> {
        let mut request: escape::CheckVersion = read(packet)?;
        let end = request
            .version
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(64);
        let same = request.version[..end] == *self.config.release.as_bytes();
        request.reply = u32::from(same);
        packet.copy_from_slice(request.as_bytes());
        same.then_some(()).ok_or(Errno::Inval)
    }

    fn sys_params(&mut self, packet: &[u8]) -> Result<(), Errno> {
        let request: escape::SysParams = read(packet)?;
        let set = *self.memblock_size.get_or_insert(request.memblock_size);
        (set == request.memblock_size)
            .then_some(())
            .ok_or(Errno::Busy)
    }
}

/// Reads a packet; one of another size is refused before anything looks at it.
fn read<T: FromBytes>(packet: &[u8]) -> Result<T, Errno> {
    T::read_from_bytes(packet).map_err(|_| Errno::Inval)
}

/// Where the status of a resource manager's escape is, if it is one and the size is right.
fn status_offset(nr: u8, len: usize, abi: vrampager_nv_abi::AbiVersion) -> Option<usize> {
    use std::mem::offset_of;
    macro_rules! of {
        ($ty:ty) => {
            (size_of::<$ty>(), offset_of!($ty, status))
        };
    }
    let (size, offset) = match nr {
        escape::RM_ALLOC if len == size_of::<escape::RmAlloc64>() => of!(escape::RmAlloc64),
        escape::RM_ALLOC => of!(escape::RmAlloc),
        escape::RM_FREE => of!(escape::RmFree),
        escape::RM_CONTROL => of!(escape::RmControl),
        escape::RM_ALLOC_MEMORY => of!(escape::RmAllocMemory),
        escape::RM_MAP_MEMORY => of!(escape::RmMapMemory),
        escape::RM_UNMAP_MEMORY => of!(escape::RmUnmapMemory),
        escape::RM_MAP_MEMORY_DMA => match abi {
            vrampager_nv_abi::AbiVersion::V570 => of!(vrampager_nv_abi::v570::MapMemoryDma),
            vrampager_nv_abi::AbiVersion::V580 | vrampager_nv_abi::AbiVersion::V610 => {
                of!(vrampager_nv_abi::v580::MapMemoryDma)
            }
        },
        escape::RM_UNMAP_MEMORY_DMA => of!(escape::RmUnmapMemoryDma),
        escape::RM_DUP_OBJECT => of!(escape::RmDupObject),
        escape::RM_VID_HEAP_CONTROL => of!(escape::RmVidHeapControl),
        _ => return None,
    };
    (size == len).then_some(offset)
}
