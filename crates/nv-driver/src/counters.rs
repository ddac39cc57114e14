//! What is alive and what has happened: the oracle of every leak test.

use std::fmt;

use crate::Driver;
use crate::rm::Aperture;
use crate::store::Store;
use crate::uvm::UvmFile;
use crate::vas::Origin;

/// Things that are alive now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Live {
    /// Open files.
    pub files: usize,
    /// Clients.
    pub clients: usize,
    /// Objects of all clients, without the clients themselves.
    pub objects: usize,
    /// Memory allocations, referenced by whatever.
    pub memories: usize,
    /// Of these, pinned pages of processes.
    pub pins: usize,
    /// CPU mappings.
    pub cpu_maps: usize,
    /// Mappings made by `RM_MAP_MEMORY_DMA`.
    pub dma_maps: usize,
    /// Mappings made by UVM.
    pub uvm_maps: usize,
    /// UVM ranges.
    pub uvm_ranges: usize,
    /// GPUs registered with UVM files.
    pub uvm_gpus: usize,
    /// Address spaces.
    pub vaspaces: usize,
    /// Channels.
    pub channels: usize,
    /// Device memory in use on all GPUs, in bytes.
    pub vram_bytes: u64,
    /// CPU window in use on all GPUs, in bytes.
    pub bar1_bytes: u64,
}

/// Things that have happened since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// System calls with a packet.
    pub ioctls: u64,
    /// Ring entries run.
    pub entries: u64,
    /// Copy launches.
    pub copies: u64,
    /// Bytes they copied.
    pub copied_bytes: u64,
    /// Compute launches.
    pub launches: u64,
    /// Channels stopped for an error.
    pub channel_errors: u64,
    /// Error notifications whose memory was gone.
    pub lost_notifications: u64,
    /// Failures that were asked for and have come.
    pub injected: u64,
}

impl<S: Store> Driver<S> {
    /// Counts what is alive.
    #[must_use]
    pub fn live(&self) -> Live {
        let entries = || self.vas.values().flat_map(|vas| vas.table.origins());
        let spaces = || {
            self.files.values().filter_map(|file| match &file.uvm {
                UvmFile::Space(space) => Some(space),
                UvmFile::Fresh | UvmFile::Mm { .. } => None,
            })
        };
        let pinned = self
            .rm
            .mems
            .values()
            .filter(|mem| mem.aperture == Aperture::Pinned);
        Live {
            files: self.files.len(),
            clients: self.rm.clients.len(),
            objects: self
                .rm
                .clients
                .values()
                .map(|client| client.objects.len())
                .sum(),
            memories: self.rm.mems.len(),
            pins: pinned.count(),
            cpu_maps: self.rm.cpu_maps.len(),
            dma_maps: entries().filter(|&origin| origin == Origin::Rm).count(),
            uvm_maps: entries().filter(|&origin| origin == Origin::Uvm).count(),
            uvm_ranges: spaces().map(|space| space.ranges.len()).sum(),
            uvm_gpus: spaces().map(|space| space.gpus.len()).sum(),
            vaspaces: self.vas.len(),
            channels: self.channels.len(),
            vram_bytes: self.gpus.iter().map(|gpu| gpu.vram_used).sum(),
            bar1_bytes: self.gpus.iter().map(|gpu| gpu.bar1_used).sum(),
        }
    }

    /// What has happened.
    #[must_use]
    pub fn counted(&self) -> Counted {
        Counted {
            injected: self.injector.came(),
            ..self.counted
        }
    }
}

macro_rules! as_lines {
    ($ty:ty: $($field:ident),+) => {
        impl fmt::Display for $ty {
            /// One `name value` per line.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(writeln!(f, concat!(stringify!($field), " {}"), self.$field)?;)+
                Ok(())
            }
        }
    };
}

as_lines!(Live: files, clients, objects, memories, pins, cpu_maps, dma_maps, uvm_maps, uvm_ranges,
    uvm_gpus, vaspaces, channels, vram_bytes, bar1_bytes);
as_lines!(Counted: ioctls, entries, copies, copied_bytes, launches, channel_errors,
    lost_notifications, injected);
