//! One GPU brought up below the client of its context: objects, address space, doorbell (mission
//! rows A3, A4), and the way back stage by stage (A6, A12).

use std::mem::offset_of;
use std::sync::Arc;

use vrampager_addr::{PAGE_SIZE, Span};
use vrampager_hal::{Access, DeviceId, HalError};
use vrampager_nv_abi::escape::{self, CardInfo, RegisterFd};
use vrampager_nv_abi::neutral::VaspaceAlloc;
use vrampager_nv_abi::{Handle, Node, Uuid, class, ctrl, method, uvm};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::context::{Context, Link, Stages, Undo, unmap_gpu};
use crate::door::{Door, Fd, Part};
use crate::error::Refusal;
use crate::pages::Window;
use crate::rm::{self, Site};
use crate::timeline::{self, Timelines};

/// Engine classes that a GPU offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Classes {
    pub(crate) usermode: u32,
    pub(crate) channel: u32,
    pub(crate) compute: u32,
    pub(crate) copy: u32,
}

impl Classes {
    /// The newest of each kind in a GPU's list; 0 for a kind that has none known here.
    fn of(list: &[u32]) -> Self {
        let newest = |wanted: fn(u32) -> bool| {
            let known = list.iter().copied().filter(|&class| wanted(class));
            known.max().unwrap_or(0)
        };
        let usermode = |class| matches!(class, class::TURING_USERMODE_A | class::HOPPER_USERMODE_A);
        Self {
            usermode: newest(usermode),
            channel: newest(class::is_channel),
            compute: newest(class::is_compute),
            copy: newest(class::is_copy),
        }
    }

    /// The kinds without a known class.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let kinds = [
            (self.usermode, "a known doorbell class"),
            (self.channel, "a known channel class"),
            (self.compute, "a known compute class"),
            (self.copy, "a known copy class"),
        ];
        let missing = kinds.into_iter().filter(|&(class, _)| class == 0);
        missing.map(|(_, name)| name).collect()
    }
}

/// An object of the back end's own that GPU and CPU share: rings, semaphores.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) memory: Handle,
    pub(crate) window: Window,
    pub(crate) va: u64,
}

/// A GPU as far as it has been brought up; handles not made yet are 0.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) context: Arc<Context>,
    pub(crate) link: Link,
    pub(crate) id: DeviceId,
    /// Which of the context's opens this is.
    pub(crate) open: u64,
    pub(crate) minor: usize,
    pub(crate) node: Fd,
    pub(crate) device: Handle,
    pub(crate) subdevice: Handle,
    pub(crate) vaspace: Handle,
    pub(crate) uuid: Uuid,
    pub(crate) classes: Classes,
    pub(crate) doorbell: Option<Window>,
}

/// All GPUs of the machine.
pub(crate) fn cards(door: &dyn Door) -> Result<Vec<CardInfo>, Refusal> {
    /// Entries that the driver's own tools ask for.
    const CARDS: usize = 64;
    let control = rm::open_first(door, Node::Control)?;
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
    /// Nothing yet, reached through `link`.
    pub(crate) fn closed(context: &Arc<Context>, link: Link, (id, open): (DeviceId, u64)) -> Self {
        Self {
            context: Arc::clone(context),
            link,
            id,
            open,
            minor: 0,
            node: Fd(-1),
            device: 0,
            subdevice: 0,
            vaspace: 0,
            uuid: Uuid::default(),
            classes: Classes::default(),
            doorbell: None,
        }
    }

    pub(crate) fn door(&self) -> &dyn Door {
        self.link.door()
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
        let handle = self.link.client.alloc(site, params)?;
        stages.push(Undo::Free(handle));
        Ok(handle)
    }

    /// First half of bring-up: enough to ask what the GPU is.
    pub(crate) fn attach(&mut self, card: &CardInfo, stages: &mut Stages) -> Result<(), HalError> {
        self.minor = usize::try_from(card.minor).expect("32 bits fit");
        self.node = self.link.open(Node::Gpu(self.minor), stages)?;
        self.speak_for(self.node)?;
        let mut id = ctrl::GpuIdInfo::new_zeroed();
        id.gpu_id = card.gpu_id;
        let to = (self.link.client.root, ctrl::GPU_GET_ID_INFO_V2);
        self.link
            .client
            .control("identify GPU", to, id.as_mut_bytes(), None)?;
        let mut params = class::DeviceAlloc::new_zeroed();
        params.device_id = id.device_instance;
        params.client_share = self.link.client.root;
        let site = Site {
            stage: "new device",
            parent: self.link.client.root,
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
        if let Some(&missing) = self.classes.missing().first() {
            return Err(HalError::Unsupported(missing));
        }
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

    /// Makes a GPU's file speak for our control file.
    fn speak_for(&self, file: Fd) -> Result<(), Refusal> {
        let mut packet = RegisterFd {
            ctl_fd: self.link.client.control.0,
        };
        let to = (file, escape::REGISTER_FD);
        rm::plain_escape(self.door(), "link GPU file", to, packet.as_mut_bytes())
    }

    pub(crate) fn query_classes(&self) -> Result<Classes, HalError> {
        const STAGE: &str = "list classes";
        let to = (self.device, ctrl::GPU_GET_CLASSLIST);
        let mut params = ctrl::ClassList::new_zeroed();
        self.link
            .client
            .control(STAGE, to, params.as_mut_bytes(), None)?;
        // The list grows only with the driver, which stays loaded meanwhile; bounded all the same.
        let mut list = vec![0_u32; usize::try_from(params.count.min(1 << 12)).expect("bounded")];
        params.count = params.count.min(1 << 12);
        let part = Part::new(offset_of!(ctrl::ClassList, list), list.as_mut_bytes());
        self.link
            .client
            .control(STAGE, to, params.as_mut_bytes(), Some(part))?;
        Ok(Classes::of(&list))
    }

    /// What its multiprocessors are; nothing where the driver does not tell.
    pub(crate) fn properties(&self) -> Result<Vec<(&'static str, String)>, HalError> {
        use ctrl::gr;
        let mut entries = [
            gr::SM_VERSION,
            gr::MAX_WARPS_PER_SM,
            gr::NUM_GPCS,
            gr::NUM_TPC_PER_GPC,
            gr::NUM_SM_PER_TPC,
        ]
        .map(|index| ctrl::GrInfo { index, data: 0 });
        let mut params = ctrl::GrGetInfo::new_zeroed();
        params.count = u32::try_from(entries.len()).expect("a handful");
        let at = offset_of!(ctrl::GrGetInfo, list);
        let part = Part::new(at, entries.as_mut_bytes());
        let to = (self.subdevice, ctrl::GR_GET_INFO);
        let stage = "ask for multiprocessors";
        let asked = self
            .link
            .client
            .control(stage, to, params.as_mut_bytes(), Some(part));
        match asked {
            Err(refusal) if refusal.is_unsupported() => return Ok(Vec::new()),
            asked => asked?,
        }
        let [version, warps, gpcs, tpcs, sms] = entries.map(|entry| entry.data);
        let count = u64::from(gpcs) * u64::from(tpcs) * u64::from(sms);
        Ok(vec![
            ("SM version", format!("{}.{}", version >> 8, version & 0xFF)),
            ("SMs", format!("at most {count}")),
            ("warps", format!("{warps} for each SM")),
        ])
    }

    fn make_vaspace(&mut self, stages: &mut Stages) -> Result<(), Refusal> {
        let params = VaspaceAlloc {
            flags: class::vaspace::IS_EXTERNALLY_OWNED | class::vaspace::ENABLE_PAGE_FAULTING,
            va_size: crate::zones::LIMIT - PAGE_SIZE,
            va_base: PAGE_SIZE,
            ..VaspaceAlloc::default()
        };
        let mut bytes = vec![0; VaspaceAlloc::size(self.link.client.abi)];
        params.encode(self.link.client.abi, &mut bytes);
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
        self.link
            .client
            .control("ask for the UUID", to, gid.as_mut_bytes(), None)?;
        self.uuid.copy_from_slice(&gid.data[..16]);
        let mut packet = uvm::RegisterGpu::new_zeroed();
        packet.uuid = self.uuid;
        packet.rm_ctrl_fd = -1;
        self.link
            .uvm
            .send("register GPU", uvm::REGISTER_GPU, &mut packet)?;
        stages.push(Undo::UnregisterGpu(self.id, self.uuid));
        let mut packet = uvm::RegisterGpuVaspace::new_zeroed();
        packet.uuid = self.uuid;
        packet.rm_ctrl_fd = self.link.client.control.0;
        packet.client = self.link.client.root;
        packet.vaspace = self.vaspace;
        self.link
            .uvm
            .send("register VA space", uvm::REGISTER_GPU_VASPACE, &mut packet)?;
        stages.push(Undo::UnregisterVaspace(self.uuid));
        self.context
            .admit(&self.link, (self.id, self.open), self.uuid, stages)
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
            self.speak_for(carrier)?;
        }
        let object = (self.device, memory);
        let cookie = self.link.client.attach(object, carrier, part)?;
        let device = self.device;
        stages.push(Undo::Detach {
            device,
            memory,
            cookie,
        });
        let window = self.door().mmap(carrier, part.1);
        let window = window.map_err(|errno| Refusal::system("cpu mmap", errno))?;
        Ok((window, cookie))
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
        packet.rm_ctrl_fd = self.link.client.control.0;
        packet.client = self.link.client.root;
        packet.memory = memory;
        self.link
            .uvm
            .send("gpu map", uvm::MAP_EXTERNAL_ALLOCATION, &mut packet)
    }

    /// Removes the mappings in a span.
    pub(crate) fn unmap_gpu(&self, span: Span) -> Result<(), Refusal> {
        unmap_gpu(&self.link, self.uuid, span)
    }

    /// Host memory of the driver's, mapped for GPU and CPU at addresses that channels reach.
    pub(crate) fn block(&self, len: u64, stages: &mut Stages) -> Result<Block, Refusal> {
        use class::mem;
        let span = self.context.vacancy(len, stages)?;
        let mut params = class::MemoryAlloc::new_zeroed();
        params.owner = self.link.client.root;
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
        self.context.lock().reserve(&self.link, span)?;
        stages.push(Undo::ReleaseRange(span));
        self.map_gpu(span, (memory, 0), Access::Write)?;
        stages.push(Undo::UnmapGpu(self.uuid, span));
        let va = span.start();
        Ok(Block { memory, window, va })
    }

    /// A value of the framebuffer's, in bytes.
    pub(crate) fn memory_info(&self, index: u32) -> Result<u64, Refusal> {
        let mut params = vec![0; ctrl::fb_info_size(self.link.client.abi)];
        params[..4].copy_from_slice(&1_u32.to_le_bytes());
        params[4..8].copy_from_slice(&index.to_le_bytes());
        let to = (self.subdevice, ctrl::FB_GET_INFO_V2);
        self.link
            .client
            .control("ask for memory sizes", to, &mut params, None)?;
        let kib = u32::from_le_bytes(*params[8..].first_chunk().expect("an entry has 8 bytes"));
        Ok(u64::from(kib) << 10)
    }

    /// Undoes stages in reverse, up to the first that the driver refuses.
    pub(crate) fn unwind(&self, stages: &mut Stages) -> Result<(), Refusal> {
        self.context.lock().unwind(&self.link, stages)
    }

    /// Undoes all stages in reverse, whatever is refused on the way; what was.
    pub(crate) fn undo_all(&self, stages: Stages) -> Vec<(Undo, Refusal)> {
        self.context.lock().undo_all(&self.link, stages)
    }

    /// Of what a close could not undo, what outlives it: unregistering the GPU takes its VA space,
    /// with the channels there, and its peers along, and freeing the device's object all below it.
    pub(crate) fn lasting(&self, refused: &[(Undo, Refusal)]) -> Stages {
        let lasts = |stage: &Undo| match *stage {
            Undo::Free(handle) => handle == self.device,
            Undo::UnregisterGpu(..) | Undo::ReleaseRange(_) => true,
            Undo::Close(_)
            | Undo::Detach { .. }
            | Undo::UnregisterVaspace(_)
            | Undo::Part(_)
            | Undo::UnregisterChannel { .. }
            | Undo::UnmapGpu(..)
            | Undo::Vacate(_) => false,
        };
        let stages = refused.iter().rev().map(|&(stage, _)| stage);
        stages.filter(lasts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_class_of_each_kind_is_chosen_and_a_kind_without_one_is_named() {
        let list = [
            0xC461, 0xC661, 0xC46F, 0xC56F, 0x1234, 0xC7C0, 0xC7B5, 0xC6B5,
        ];
        let classes = Classes::of(&list);
        assert_eq!((classes.usermode, classes.channel), (0xC661, 0xC56F));
        assert_eq!((classes.copy, classes.missing()), (0xC7B5, vec![]));
        let bare = Classes::of(&[0xC661, 0xC56F]).missing();
        assert_eq!(bare, ["a known compute class", "a known copy class"]);
    }
}
