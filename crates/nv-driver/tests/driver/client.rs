//! The probe's client on a simulated driver, with what only a simulated one has: a look at its
//! memory, and queues whose pushbuffers the tests write.

use std::ops::{Deref, DerefMut};

use vrampager_nv_abi::neutral::{ChannelAlloc, MapMemoryDma, Schedule};
use vrampager_nv_abi::{AbiVersion, Handle, Node, Status, class, ctrl, escape, uvm};
use vrampager_nv_driver::{Arch, Config, Driver, HeapStore, Place, Store};
use vrampager_nv_probe::{Answer, SimNodes, client};
use zerocopy::FromZeros;

pub(crate) use vrampager_nv_probe::client::{ENTRIES, Gpu, USERD, channel_params};

/// One process on one machine, with a client and a VA space.
pub(crate) struct Client {
    client: client::Client<SimNodes>,
    channel_class: u32,
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

/// Where a queue has its pushbuffers, behind ring and control page.
pub(crate) const PUSH: u64 = 0x2000;
const QUEUE_BYTES: u64 = 0x10_0000;

impl Deref for Client {
    type Target = client::Client<SimNodes>;

    fn deref(&self) -> &Self::Target {
        &self.client
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.client
    }
}

impl Client {
    /// Opens the nodes, makes a client and a UVM VA space.
    pub(crate) fn new(machine: &str) -> Self {
        let config = Config::parse(machine).expect("a machine the test made up");
        let channel_class = match config.arch {
            Arch::Ampere | Arch::Ada => class::AMPERE_CHANNEL_GPFIFO_A,
            Arch::Blackwell => class::BLACKWELL_CHANNEL_GPFIFO_A,
        };
        let client = client::Client::new(SimNodes::new(config));
        Self {
            client: client.expect("a client of a driver that works"),
            channel_class,
        }
    }

    pub(crate) fn driver(&mut self) -> &mut Driver<HeapStore> {
        self.nodes().driver()
    }

    /// What the kernel does when the process is gone, whatever it was doing.
    pub(crate) fn die(&mut self) {
        self.close_after(0);
    }

    /// Device, VA space and registration of a GPU.
    pub(crate) fn gpu(&mut self, minor: usize) -> Gpu {
        let cards = self.cards().expect("a list of GPUs");
        self.client.gpu(cards[minor]).expect("a GPU that works")
    }

    /// Device memory.
    pub(crate) fn vidmem(&mut self, gpu: Gpu, size: u64) -> Result<Handle, Answer> {
        let mut params = self.memory_params(size);
        self.alloc(gpu.device, class::NV01_MEMORY_LOCAL_USER, &mut params)
    }

    /// Pages of the process.
    pub(crate) fn pin(&mut self, gpu: Gpu, size: u64) -> Result<Handle, Answer> {
        let mut packet = self.pin_packet(gpu, size);
        self.escape(gpu.fd, escape::RM_ALLOC_MEMORY, &mut packet)?;
        assert_eq!(packet.status, 0);
        Ok(packet.object)
    }

    /// The CPU's view of memory: what a mapping through a fresh file shows.
    pub(crate) fn map_cpu(
        &mut self,
        gpu: Gpu,
        memory: Handle,
        len: u64,
        node: Node,
    ) -> Result<(Place, u64, i32), Answer> {
        let fd = match node {
            Node::Gpu(minor) => self.linked(minor)?,
            Node::Control | Node::Uvm => self.open(node)?,
        };
        let packet = self.map_packet(gpu, memory, len, fd);
        let cookie = self.client.map_cpu(packet)?;
        let file = self.nodes().file(fd).expect("an open descriptor");
        let shown = self.driver().mmap(file, len, 0)?;
        Ok((shown.place, cookie, fd))
    }

    pub(crate) fn unmap_cpu(
        &mut self,
        gpu: Gpu,
        memory: Handle,
        cookie: u64,
    ) -> Result<(), Answer> {
        let mut packet = escape::RmUnmapMemory::new_zeroed();
        packet.client = self.root;
        packet.device = gpu.device;
        packet.memory = memory;
        packet.linear = cookie;
        let ctl = self.ctl;
        self.escape(ctl, escape::RM_UNMAP_MEMORY, &mut packet)?;
        match packet.status {
            0 => Ok(()),
            status => Err(Answer::Status(Status(status))),
        }
    }

    pub(crate) fn map_dma(
        &mut self,
        gpu: Gpu,
        memory: Handle,
        address: u64,
        len: u64,
    ) -> Result<u64, Answer> {
        let packet = self.dma_packet(gpu, memory, address, len);
        self.dma(packet)
    }

    pub(crate) fn dma(&mut self, packet: MapMemoryDma) -> Result<u64, Answer> {
        self.client.map_dma(packet)
    }

    pub(crate) fn map_uvm(
        &mut self,
        gpu: Gpu,
        memory: Handle,
        base: u64,
        len: u64,
    ) -> Result<(), Answer> {
        let mut packet = self.uvm_map_packet(gpu, memory, base, len);
        self.uvm(uvm::MAP_EXTERNAL_ALLOCATION, &mut packet)
    }

    pub(crate) fn peers(&mut self, a: Gpu, b: Gpu) -> Result<(), Answer> {
        let mut packet = uvm::PeerAccess {
            uuid_a: a.uuid,
            uuid_b: b.uuid,
            status: 0,
        };
        self.uvm(uvm::ENABLE_PEER_ACCESS, &mut packet)
    }

    /// Device memory mapped for one GPU at `base`, with its bytes as the CPU would see them.
    pub(crate) fn buffer(&mut self, gpu: Gpu, base: u64, size: u64) -> (Handle, Place) {
        let memory = self.client.buffer(gpu, base, size).expect("device memory");
        let (place, _, fd) = self
            .map_cpu(gpu, memory, size, Node::Gpu(gpu.minor))
            .expect("a CPU mapping");
        self.close(fd);
        (memory, place)
    }

    /// A scheduled channel whose memory is at `base`; channel resources go to `base + 4 MiB`.
    pub(crate) fn queue(&mut self, gpu: Gpu, base: u64) -> Queue {
        let (memory, ring) = self.buffer(gpu, base, QUEUE_BYTES);
        let mut params = self.memory_params(0x1000);
        let notifier = self.alloc(gpu.device, class::NV01_MEMORY_SYSTEM, &mut params);
        let notifier = notifier.expect("host memory");
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
    ) -> Result<Handle, Answer> {
        let class = self.channel_class;
        self.client.channel(parent, class, params)
    }

    pub(crate) fn schedule(&mut self, group: Handle, enable: u8) -> Result<(), Answer> {
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
        let written = self.driver().store_mut().write(place, bytes);
        written.expect("heap memory");
    }

    pub(crate) fn read<const N: usize>(&mut self, place: Place, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        let place = Place {
            offset: place.offset + offset,
            ..place
        };
        let read = self.driver().store().read(place, &mut bytes);
        read.expect("heap memory");
        bytes
    }
}
