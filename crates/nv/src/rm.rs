//! Requests to the resource manager and to unified memory, with both error levels checked in one
//! place each.

use std::mem::offset_of;
use std::sync::Arc;

use rustix::io::Errno;
use vrampager_nv_abi::escape::{
    self, RmAlloc, RmAllocMemory, RmControl, RmFree, RmMapMemory, RmUnmapMemory,
};
use vrampager_nv_abi::neutral::{UnregisterChannel, UvmFree};
use vrampager_nv_abi::{AbiVersion, Handle, Node, class, uvm};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::door::{Door, Fd, Part};
use crate::error::Refusal;
use crate::pages::Window;

/// The stage at which the driver finds a part of the aperture for a CPU mapping.
pub(crate) const CPU_MAP: &str = "cpu map";

/// A packet with a status in it.
trait Packet: FromBytes + IntoBytes + Immutable {
    const NR: u8;
    fn status(&self) -> u32;
}

macro_rules! packets {
    ($($ty:ident = $nr:ident),+ $(,)?) => {
        $(impl Packet for $ty {
            const NR: u8 = escape::$nr;
            fn status(&self) -> u32 {
                self.status
            }
        })+
    };
}

packets!(
    RmAlloc = RM_ALLOC,
    RmAllocMemory = RM_ALLOC_MEMORY,
    RmControl = RM_CONTROL,
    RmFree = RM_FREE,
    RmMapMemory = RM_MAP_MEMORY,
    RmUnmapMemory = RM_UNMAP_MEMORY,
);

/// A client of the resource manager: an open control file and the root of an object tree.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) door: Arc<dyn Door>,
    pub(crate) control: Fd,
    pub(crate) root: Handle,
    pub(crate) abi: AbiVersion,
}

/// What a new object is, and below which one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    pub(crate) stage: &'static str,
    pub(crate) parent: Handle,
    pub(crate) class: u32,
}

/// Opens a node of a driver that is in use.
pub(crate) fn open(door: &dyn Door, node: Node) -> Result<Fd, Refusal> {
    door.open(node)
        .map_err(|errno| Refusal::system(opening(node), errno))
}

/// Opens a node to bring something up: the driver may not be there.
pub(crate) fn open_first(door: &dyn Door, node: Node) -> Result<Fd, Refusal> {
    door.open(node)
        .map_err(|errno| Refusal::bring_up(opening(node), node, errno))
}

fn opening(node: Node) -> &'static str {
    match node {
        Node::Control => "open control node",
        Node::Gpu(_) => "open GPU node",
        Node::Uvm => "open unified memory node",
    }
}

/// An escape without a status: only the system call can fail.
pub(crate) fn plain_escape(
    door: &dyn Door,
    stage: &'static str,
    (fd, nr): (Fd, u8),
    packet: &mut [u8],
) -> Result<(), Refusal> {
    door.ioctl(fd, escape::request(nr, packet.len()), packet, &mut [])
        .map_err(|errno| Refusal::system(stage, errno))
}

fn send<P: Packet>(
    door: &dyn Door,
    (stage, fd): (&'static str, Fd),
    packet: &mut P,
    parts: &mut [Part<'_>],
) -> Result<(), Refusal> {
    let mut bytes = packet.as_bytes().to_vec();
    let sent = door.ioctl(fd, escape::request(P::NR, bytes.len()), &mut bytes, parts);
    received(packet, stage, sent, &bytes)
}

/// Takes a packet back in, with both levels of refusal checked.
fn received<P: Packet>(
    packet: &mut P,
    stage: &'static str,
    sent: Result<(), Errno>,
    bytes: &[u8],
) -> Result<(), Refusal> {
    sent.map_err(|errno| Refusal::system(stage, errno))?;
    *packet = P::read_from_bytes(bytes).expect("as long as it was sent");
    Refusal::check(stage, packet.status())
}

/// Makes a client on an open control file.
pub(crate) fn new_root(door: &dyn Door, control: Fd) -> Result<Handle, Refusal> {
    let mut packet = RmAlloc::new_zeroed();
    packet.class = class::NV01_ROOT_CLIENT;
    send(door, ("new client", control), &mut packet, &mut [])?;
    Ok(packet.object)
}

impl Client {
    /// Allocates an object; its parameters come back changed.
    pub(crate) fn alloc(&self, site: Site, params: &mut [u8]) -> Result<Handle, Refusal> {
        let mut packet = RmAlloc::new_zeroed();
        packet.root = self.root;
        packet.parent = site.parent;
        packet.class = site.class;
        packet.params_size = u32::try_from(params.len()).expect("parameters are small");
        let mut parts = [Part::new(offset_of!(RmAlloc, params), params)];
        let used = usize::from(packet.params_size > 0);
        let to = (site.stage, self.control);
        send(&*self.door, to, &mut packet, &mut parts[..used])?;
        Ok(packet.object)
    }

    /// Frees an object with all below it.
    pub(crate) fn free(&self, object: Handle) -> Result<(), Refusal> {
        let mut packet = RmFree::new_zeroed();
        packet.root = self.root;
        packet.object = object;
        send(
            &*self.door,
            ("free object", self.control),
            &mut packet,
            &mut [],
        )
    }

    /// Sends a control; parameters, and a list that they point to, come back changed.
    pub(crate) fn control(
        &self,
        stage: &'static str,
        (object, cmd): (Handle, u32),
        params: &mut [u8],
        list: Option<Part<'_>>,
    ) -> Result<(), Refusal> {
        let mut packet = RmControl::new_zeroed();
        packet.client = self.root;
        packet.object = object;
        packet.cmd = cmd;
        packet.params_size = u32::try_from(params.len()).expect("parameters are small");
        let at = offset_of!(RmControl, params);
        let mut parts = vec![Part::new(at, params)];
        parts.extend(list);
        send(&*self.door, (stage, self.control), &mut packet, &mut parts)
    }

    /// Pins pages of this process as an object with the handle wanted: the driver makes none up.
    pub(crate) fn pin(
        &self,
        gpu: Fd,
        (device, wanted): (Handle, Handle),
        pages: &Window,
        len: u64,
    ) -> Result<(), Refusal> {
        use escape::os02;
        let mut packet = RmAllocMemory::new_zeroed();
        packet.root = self.root;
        packet.parent = device;
        packet.object = wanted;
        packet.class = class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR;
        packet.flags = os02::MAPPING_NO_MAP << os02::MAPPING_SHIFT
            | os02::COHERENCY_CACHED << os02::COHERENCY_SHIFT
            | os02::PHYSICALITY_NONCONTIGUOUS;
        packet.limit = len - 1;
        packet.fd = -1;
        let mut bytes = packet.as_bytes().to_vec();
        let request = escape::request(RmAllocMemory::NR, bytes.len());
        let sent = self.door.pin(gpu, request, &mut bytes, pages);
        received(&mut packet, "pin host memory", sent, &bytes)
    }

    /// Attaches a part of a memory object to a file opened for it, to be mapped: the driver
    /// attaches one part to a file, and a mapping of it outlives the file. Gives its cookie.
    pub(crate) fn attach(
        &self,
        (device, memory): (Handle, Handle),
        carrier: Fd,
        (offset, len): (u64, u64),
    ) -> Result<u64, Refusal> {
        let mut packet = RmMapMemory::new_zeroed();
        packet.client = self.root;
        packet.device = device;
        packet.memory = memory;
        packet.offset = offset;
        packet.length = len;
        packet.fd = carrier.0;
        send(&*self.door, (CPU_MAP, self.control), &mut packet, &mut [])?;
        Ok(packet.linear)
    }

    /// Takes back what the driver keeps of a CPU mapping.
    pub(crate) fn detach(
        &self,
        (device, memory): (Handle, Handle),
        cookie: u64,
    ) -> Result<(), Refusal> {
        let mut packet = RmUnmapMemory::new_zeroed();
        packet.client = self.root;
        packet.device = device;
        packet.memory = memory;
        packet.linear = cookie;
        send(
            &*self.door,
            ("cpu unmap", self.control),
            &mut packet,
            &mut [],
        )
    }
}

/// A file of the unified memory node with a VA space.
#[derive(Clone, Debug)]
pub(crate) struct Uvm {
    pub(crate) door: Arc<dyn Door>,
    pub(crate) fd: Fd,
    pub(crate) abi: AbiVersion,
}

impl Uvm {
    /// Sends a command whose layout every version has.
    pub(crate) fn send<P>(
        &self,
        stage: &'static str,
        command: u32,
        packet: &mut P,
    ) -> Result<(), Refusal>
    where
        P: FromBytes + IntoBytes,
    {
        self.send_bytes(stage, (self.fd, command), packet.as_mut_bytes())
    }

    /// Frees a range; it has no mappings.
    pub(crate) fn free(&self, base: u64, length: u64) -> Result<(), Refusal> {
        let request = UvmFree {
            base,
            length,
            status: 0,
        };
        let mut bytes = vec![0; UvmFree::size(self.abi)];
        request.encode(self.abi, &mut bytes);
        self.send_bytes("release range", (self.fd, uvm::FREE), &mut bytes)
    }

    /// Unregisters a channel, which stops.
    pub(crate) fn unregister_channel(&self, request: &UnregisterChannel) -> Result<(), Refusal> {
        let mut bytes = vec![0; UnregisterChannel::size(self.abi)];
        request.encode(self.abi, &mut bytes);
        let to = (self.fd, uvm::UNREGISTER_CHANNEL);
        self.send_bytes("unregister channel", to, &mut bytes)
    }

    /// Sends a command on some file of the node.
    pub(crate) fn send_bytes(
        &self,
        stage: &'static str,
        (fd, command): (Fd, u32),
        packet: &mut [u8],
    ) -> Result<(), Refusal> {
        let known = uvm::params_size(self.abi, command).filter(|(size, _)| *size == packet.len());
        let (_, status) = known.ok_or(Refusal::system(stage, Errno::INVAL))?;
        self.door
            .ioctl(fd, command, packet, &mut [])
            .map_err(|errno| Refusal::system(stage, errno))?;
        let status = packet[status..]
            .first_chunk()
            .expect("a status has four bytes");
        Refusal::check(stage, u32::from_le_bytes(*status))
    }
}
