//! One GPU brought up as a client of the driver: objects, address space, doorbell (mission rows
//! A3, A4), and the way back stage by stage (A6, A12).

use std::mem::offset_of;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vrampager_addr::{PAGE_SIZE, Span};
use vrampager_hal::{Access, HalError};
use vrampager_nv_abi::escape::{self, CardInfo, RegisterFd};
use vrampager_nv_abi::neutral::{UnregisterChannel, VaspaceAlloc};
use vrampager_nv_abi::{AbiVersion, Handle, Uuid, class, ctrl, method, uvm};
use vrampager_nv_driver::Node;
use vrampager_space::{Mode, RangeAllocator, RangeRequest};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::door::{Door, Fd, Part};
use crate::error::Refusal;
use crate::pages::Window;
use crate::rm::{self, Client, Site, Uvm};
use crate::timeline::{self, Timelines};

/// One stage to be undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Undo {
    Close(Fd),
    Free(Handle),
    /// What the driver keeps of a CPU mapping.
    Detach {
        memory: Handle,
        cookie: u64,
    },
    UnregisterGpu,
    UnregisterVaspace,
    UnregisterChannel(Handle),
    ReleaseRange(Span),
    UnmapGpu(Span),
    /// Addresses of the back end's own zone.
    Vacate(u64),
}

/// Stages that have succeeded, in order.
pub(crate) type Stages = Vec<Undo>;

/// Engine classes that a GPU offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Classes {
    pub(crate) usermode: u32,
    pub(crate) channel: u32,
    pub(crate) compute: u32,
    pub(crate) copy: u32,
}

/// An object of the back end's own that GPU and CPU share: rings, semaphores.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) memory: Handle,
    pub(crate) window: Window,
    pub(crate) va: u64,
}

/// Addresses that the back end takes for itself: channels reach only what is below 2^40. The
/// callers' zones begin above, and address 0 stays free of everything.
const OWN: (u64, u64) = (4 << 30, 128 << 30);

/// A GPU as far as it has been brought up; handles not made yet are 0.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) client: Client,
    pub(crate) uvm: Uvm,
    pub(crate) minor: usize,
    pub(crate) node: Fd,
    pub(crate) device: Handle,
    pub(crate) subdevice: Handle,
    pub(crate) vaspace: Handle,
    pub(crate) uuid: Uuid,
    pub(crate) classes: Classes,
    pub(crate) doorbell: Option<Window>,
    own: Mutex<RangeAllocator>,
}

/// All GPUs of the machine.
pub(crate) fn cards(door: &dyn Door) -> Result<Vec<CardInfo>, Refusal> {
    /// Entries that the driver's own tools ask for.
    const CARDS: usize = 64;
    let control = rm::open(door, Node::Control)?;
    let mut cards = [CardInfo::new_zeroed(); CARDS];
    let to = (control, escape::CARD_INFO);
    let listed = rm::plain_escape(door, "list GPUs", to, cards.as_mut_bytes());
    door.close(control);
    listed?;
    let mut cards: Vec<CardInfo> = cards.into_iter().filter(|card| card.valid != 0).collect();
    cards.sort_unstable_by_key(|card| card.minor);
    Ok(cards)
}

impl Device {
    /// Nothing yet.
    pub(crate) fn closed(door: &Arc<dyn Door>) -> Self {
        let (none, abi) = (Fd(-1), AbiVersion::V570);
        let own = Span::from_bounds(OWN.0, OWN.1).expect("ordered bounds");
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
            minor: 0,
            node: none,
            device: 0,
            subdevice: 0,
            vaspace: 0,
            uuid: Uuid::default(),
            classes: Classes::default(),
            doorbell: None,
            own: Mutex::new(RangeAllocator::new(own)),
        }
    }

    pub(crate) fn door(&self) -> &dyn Door {
        &*self.client.door
    }

    fn open(&self, node: Node, stages: &mut Stages) -> Result<Fd, Refusal> {
        let fd = rm::open(self.door(), node)?;
        stages.push(Undo::Close(fd));
        Ok(fd)
    }

    fn alloc<P: FromBytes + IntoBytes>(
        &self,
        site: Site,
        params: &mut P,
        stages: &mut Stages,
    ) -> Result<Handle, Refusal> {
        self.alloc_bytes(site, params.as_mut_bytes(), stages)
    }

    pub(crate) fn alloc_bytes(
        &self,
        site: Site,
        params: &mut [u8],
        stages: &mut Stages,
    ) -> Result<Handle, Refusal> {
        let handle = self.client.alloc(site, params)?;
        stages.push(Undo::Free(handle));
        Ok(handle)
    }

    /// First half of bring-up: enough to ask what the GPU is.
    pub(crate) fn attach(&mut self, card: &CardInfo, stages: &mut Stages) -> Result<(), HalError> {
        self.client.control = self.open(Node::Control, stages)?;
        self.client.root = rm::new_root(self.door(), self.client.control)?;
        stages.push(Undo::Free(self.client.root));
        self.choose_layouts()?;
        self.minor = usize::try_from(card.minor).expect("32 bits fit");
        self.node = self.open(Node::Gpu(self.minor), stages)?;
        self.link(self.node)?;
        let mut id = ctrl::GpuIdInfo::new_zeroed();
        id.gpu_id = card.gpu_id;
        let to = (self.client.root, ctrl::GPU_GET_ID_INFO_V2);
        self.client
            .control("identify GPU", to, id.as_mut_bytes(), None)?;
        let mut params = class::DeviceAlloc::new_zeroed();
        params.device_id = id.device_instance;
        params.client_share = self.client.root;
        let site = Site {
            stage: "new device",
            parent: self.client.root,
            class: class::NV01_DEVICE_0,
        };
        self.device = self.alloc(site, &mut params, stages)?;
        let site = Site {
            stage: "new subdevice",
            parent: self.device,
            class: class::NV20_SUBDEVICE_0,
        };
        let mut params = class::SubdeviceAlloc::new_zeroed();
        self.subdevice = self.alloc(site, &mut params, stages)?;
        Ok(())
    }

    /// Second half: classes, doorbell, address space, unified memory, timelines.
    pub(crate) fn bring_up(&mut self, stages: &mut Stages) -> Result<Timelines, HalError> {
        self.classes = self.query_classes()?;
        let site = Site {
            stage: "new doorbell",
            parent: self.subdevice,
            class: self.classes.usermode,
        };
        let usermode = self.alloc_bytes(site, &mut [], stages)?;
        let node = Node::Gpu(self.minor);
        let doorbell = self.map_cpu(usermode, node, (0, method::USERMODE_SIZE), stages)?;
        self.doorbell = Some(doorbell.0);
        self.make_vaspace(stages)?;
        self.register(stages)?;
        Ok(Timelines::new(self.block(timeline::BLOCK, stages)?))
    }

    fn choose_layouts(&mut self) -> Result<(), HalError> {
        let mut version = ctrl::BuildVersion::new_zeroed();
        let to = (self.client.root, ctrl::SYSTEM_GET_BUILD_VERSION_V2);
        self.client
            .control("ask for the release", to, version.as_mut_bytes(), None)?;
        let text = version.driver_version.split(|&byte| byte == 0).next();
        let text = std::str::from_utf8(text.unwrap_or_default()).unwrap_or_default();
        let unknown = HalError::Unsupported("a driver release before 570");
        let abi = AbiVersion::of_release(text).ok_or(unknown)?;
        (self.client.abi, self.uvm.abi) = (abi, abi);
        Ok(())
    }

    /// Makes a GPU's file speak for our control file.
    fn link(&self, file: Fd) -> Result<(), Refusal> {
        let mut packet = RegisterFd {
            ctl_fd: self.client.control.0,
        };
        let to = (file, escape::REGISTER_FD);
        rm::plain_escape(self.door(), "link GPU file", to, packet.as_mut_bytes())
    }

    fn query_classes(&self) -> Result<Classes, HalError> {
        const STAGE: &str = "list classes";
        let to = (self.device, ctrl::GPU_GET_CLASSLIST);
        let mut params = ctrl::ClassList::new_zeroed();
        self.client
            .control(STAGE, to, params.as_mut_bytes(), None)?;
        // The list grows only with the driver, which stays loaded meanwhile; bounded all the same.
        let mut list = vec![0_u32; usize::try_from(params.count.min(1 << 12)).expect("bounded")];
        params.count = params.count.min(1 << 12);
        let part = Part::new(offset_of!(ctrl::ClassList, list), list.as_mut_bytes());
        self.client
            .control(STAGE, to, params.as_mut_bytes(), Some(part))?;
        let find = |wanted: &dyn Fn(u32) -> bool, what| {
            let newest = list.iter().copied().filter(|&class| wanted(class)).max();
            newest.ok_or(HalError::Unsupported(what))
        };
        let usermode = |class| matches!(class, class::TURING_USERMODE_A | class::HOPPER_USERMODE_A);
        Ok(Classes {
            usermode: find(&usermode, "a GPU without a known doorbell class")?,
            channel: find(&class::is_channel, "a GPU without a known channel class")?,
            compute: find(&class::is_compute, "a GPU without a known compute class")?,
            copy: find(&class::is_copy, "a GPU without a known copy class")?,
        })
    }

    fn make_vaspace(&mut self, stages: &mut Stages) -> Result<(), Refusal> {
        let params = VaspaceAlloc {
            flags: class::vaspace::IS_EXTERNALLY_OWNED | class::vaspace::ENABLE_PAGE_FAULTING,
            va_size: crate::zones::LIMIT - PAGE_SIZE,
            va_base: PAGE_SIZE,
            ..VaspaceAlloc::default()
        };
        let mut bytes = vec![0; VaspaceAlloc::size(self.client.abi)];
        params.encode(self.client.abi, &mut bytes);
        let site = Site {
            stage: "new VA space",
            parent: self.device,
            class: class::FERMI_VASPACE_A,
        };
        self.vaspace = self.alloc_bytes(site, &mut bytes, stages)?;
        Ok(())
    }

    fn register(&mut self, stages: &mut Stages) -> Result<(), Refusal> {
        let mut gid = ctrl::GidInfo::new_zeroed();
        gid.flags = ctrl::GID_FORMAT_BINARY;
        gid.length = 16;
        let to = (self.subdevice, ctrl::GPU_GET_GID_INFO);
        self.client
            .control("ask for the UUID", to, gid.as_mut_bytes(), None)?;
        self.uuid.copy_from_slice(&gid.data[..16]);
        self.uvm.fd = self.open(Node::Uvm, stages)?;
        let mut packet = uvm::Initialize::new_zeroed();
        self.uvm
            .send("initialise unified memory", uvm::INITIALIZE, &mut packet)?;
        self.tie_to_process(stages)?;
        let mut packet = uvm::RegisterGpu::new_zeroed();
        packet.uuid = self.uuid;
        packet.rm_ctrl_fd = -1;
        self.uvm
            .send("register GPU", uvm::REGISTER_GPU, &mut packet)?;
        stages.push(Undo::UnregisterGpu);
        let mut packet = uvm::RegisterGpuVaspace::new_zeroed();
        packet.uuid = self.uuid;
        packet.rm_ctrl_fd = self.client.control.0;
        packet.client = self.client.root;
        packet.vaspace = self.vaspace;
        self.uvm
            .send("register VA space", uvm::REGISTER_GPU_VASPACE, &mut packet)?;
        stages.push(Undo::UnregisterVaspace);
        Ok(())
    }

    /// Ties the VA space to this process's memory where the kernel needs that: a second file of
    /// the node, open as long as the device is.
    fn tie_to_process(&self, stages: &mut Stages) -> Result<(), Refusal> {
        let file = self.open(Node::Uvm, stages)?;
        let mut packet = uvm::MmInitialize::new_zeroed();
        packet.uvm_fd = self.uvm.fd.0;
        let to = (file, uvm::MM_INITIALIZE);
        match self
            .uvm
            .send_bytes("tie to the process", to, packet.as_mut_bytes())
        {
            Err(refusal) if !refusal.is_needless() => Err(refusal),
            _ => Ok(()),
        }
    }

    /// Maps a part of a memory object for the CPU, through a file of the node that has it. Gives
    /// the window and the driver's cookie.
    pub(crate) fn map_cpu(
        &self,
        memory: Handle,
        node: Node,
        (offset, len): (u64, u64),
        stages: &mut Stages,
    ) -> Result<(Window, u64), Refusal> {
        let carrier = rm::open(self.door(), node)?;
        let mapped = self.map_through(carrier, (memory, node), (offset, len), stages);
        self.door().close(carrier);
        mapped
    }

    fn map_through(
        &self,
        carrier: Fd,
        (memory, node): (Handle, Node),
        part: (u64, u64),
        stages: &mut Stages,
    ) -> Result<(Window, u64), Refusal> {
        if node != Node::Control {
            self.link(carrier)?;
        }
        let object = (self.device, memory);
        let cookie = self.client.attach(object, carrier, part)?;
        stages.push(Undo::Detach { memory, cookie });
        let window = self.door().mmap(carrier, part.1);
        let window = window.map_err(|errno| Refusal::system("cpu map", errno))?;
        Ok((window, cookie))
    }

    /// Creates a range of addresses to map into.
    pub(crate) fn reserve(&self, span: Span) -> Result<(), Refusal> {
        let mut packet = uvm::Range::new_zeroed();
        packet.base = span.start();
        packet.length = span.len();
        self.uvm
            .send("reserve range", uvm::CREATE_EXTERNAL_RANGE, &mut packet)
    }

    /// Maps memory from `offset` on into a range.
    pub(crate) fn map_gpu(
        &self,
        span: Span,
        (memory, offset): (Handle, u64),
        access: Access,
    ) -> Result<(), Refusal> {
        let mut packet = uvm::MapExternalAllocation::new_zeroed();
        packet.base = span.start();
        packet.length = span.len();
        packet.offset = offset;
        packet.count = 1;
        packet.attributes[0].uuid = self.uuid;
        packet.attributes[0].mapping = match access {
            Access::Read => uvm::access::READ_ONLY,
            Access::Write => uvm::access::READ_WRITE_ATOMIC,
        };
        packet.rm_ctrl_fd = self.client.control.0;
        packet.client = self.client.root;
        packet.memory = memory;
        self.uvm
            .send("gpu map", uvm::MAP_EXTERNAL_ALLOCATION, &mut packet)
    }

    /// Removes the mappings in a span.
    pub(crate) fn unmap_gpu(&self, span: Span) -> Result<(), Refusal> {
        let mut packet = uvm::UnmapExternal::new_zeroed();
        packet.base = span.start();
        packet.length = span.len();
        packet.uuid = self.uuid;
        self.uvm.send("gpu unmap", uvm::UNMAP_EXTERNAL, &mut packet)
    }

    /// Host memory of the driver's, mapped for GPU and CPU at addresses that channels reach.
    pub(crate) fn block(&self, len: u64, stages: &mut Stages) -> Result<Block, Refusal> {
        use class::mem;
        let span = self.vacancy(len, stages)?;
        let mut params = class::MemoryAlloc::new_zeroed();
        params.owner = self.client.root;
        params.kind = mem::TYPE_NOTIFIER;
        params.flags = mem::IGNORE_BANK_PLACEMENT | mem::ALIGNMENT_FORCE | mem::MAP_NOT_REQUIRED;
        params.attr = mem::ATTR_LOCATION_PCI << mem::ATTR_LOCATION_SHIFT
            | mem::ATTR_ALLOW_NONCONTIGUOUS << mem::ATTR_PHYSICALITY_SHIFT;
        // Not cached by the GPU: the CPU writes rings and semaphores behind its back.
        params.attr2 = 2 << mem::ATTR2_GPU_CACHEABLE_SHIFT;
        params.size = len;
        params.alignment = PAGE_SIZE;
        let site = Site {
            stage: "new host memory",
            parent: self.device,
            class: class::NV01_MEMORY_SYSTEM,
        };
        let memory = self.alloc(site, &mut params, stages)?;
        let (window, _) = self.map_cpu(memory, Node::Control, (0, len), stages)?;
        self.reserve(span)?;
        stages.push(Undo::ReleaseRange(span));
        self.map_gpu(span, (memory, 0), Access::Write)?;
        stages.push(Undo::UnmapGpu(span));
        let va = span.start();
        Ok(Block { memory, window, va })
    }

    fn own(&self) -> MutexGuard<'_, RangeAllocator> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Addresses in the back end's own zone.
    pub(crate) fn vacancy(&self, len: u64, stages: &mut Stages) -> Result<Span, Refusal> {
        let request = RangeRequest::new(len).align(2 << 20).mode(Mode::Low);
        let span = self.own().insert(&request).map_err(|_| {
            // Addresses are memory like any other: running out of them is what the caller learns.
            Refusal::system("reserve own addresses", rustix::io::Errno::NOMEM)
        })?;
        stages.push(Undo::Vacate(span.start()));
        Ok(span)
    }

    /// A value of the framebuffer's, in bytes.
    pub(crate) fn memory_info(&self, index: u32) -> Result<u64, Refusal> {
        let mut params = vec![0; ctrl::fb_info_size(self.client.abi)];
        params[..4].copy_from_slice(&1_u32.to_le_bytes());
        params[4..8].copy_from_slice(&index.to_le_bytes());
        let to = (self.subdevice, ctrl::FB_GET_INFO_V2);
        self.client
            .control("ask for memory sizes", to, &mut params, None)?;
        let kib = u32::from_le_bytes(*params[8..].first_chunk().expect("an entry has 8 bytes"));
        Ok(u64::from(kib) << 10)
    }

    fn undo(&self, stage: Undo) -> Result<(), Refusal> {
        match stage {
            Undo::Close(fd) => {
                self.door().close(fd);
                Ok(())
            }
            Undo::Free(handle) => self.client.free(handle),
            Undo::Detach { memory, cookie } => self.client.detach((self.device, memory), cookie),
            Undo::UnregisterGpu => self.unregister("unregister GPU", uvm::UNREGISTER_GPU),
            Undo::UnregisterVaspace => {
                self.unregister("unregister VA space", uvm::UNREGISTER_GPU_VASPACE)
            }
            Undo::UnregisterChannel(channel) => self.uvm.unregister_channel(&UnregisterChannel {
                uuid: self.uuid,
                client: self.client.root,
                channel,
                status: 0,
            }),
            Undo::ReleaseRange(span) => self.uvm.free(span.start(), span.len()),
            Undo::UnmapGpu(span) => self.unmap_gpu(span),
            Undo::Vacate(start) => {
                let span = self.own().remove(start);
                span.expect("a stage is undone once");
                Ok(())
            }
        }
    }

    fn unregister(&self, stage: &'static str, command: u32) -> Result<(), Refusal> {
        let mut packet = uvm::UnregisterGpu::new_zeroed();
        packet.uuid = self.uuid;
        self.uvm.send(stage, command, &mut packet)
    }

    /// Undoes stages in reverse, up to the first that the driver refuses: that one and those
    /// below it stay, since what they hold may still be in use.
    pub(crate) fn unwind(&self, stages: &mut Stages) -> Result<(), Refusal> {
        while let Some(&stage) = stages.last() {
            self.undo(stage)?;
            stages.pop();
        }
        Ok(())
    }

    /// Undoes all stages in reverse, whatever is refused on the way; what was.
    pub(crate) fn unwind_all(&self, stages: Stages) -> Vec<Refusal> {
        let undone = stages.into_iter().rev().map(|stage| self.undo(stage));
        undone.filter_map(Result::err).collect()
    }
}
