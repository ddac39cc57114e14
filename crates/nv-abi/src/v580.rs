//! Layouts of releases 580 to 594 that differ from their predecessor's.

use crate::Handle;

pub use crate::v570::{ChannelAlloc, UnregisterChannel, UvmFree};

layout! {
    /// `NVOS46_PARAMETERS`, packet of `RM_MAP_MEMORY_DMA`.
    MapMemoryDma, 64 {
        client: Handle = 0, "Client.";
        device: Handle = 4, "Device or subdevice.";
        dma: Handle = 8, "Virtual memory object.";
        memory: Handle = 12, "Memory object.";
        offset: u64 = 16, "First byte of the memory.";
        length: u64 = 24, "Bytes.";
        flags: u32 = 32, "See `escape::os46`.";
        flags2: u32 = 36, "More flags.";
        kind_override: u32 = 40, "Page kind, or 0.";
        pad0: u32 = 44, "Hole.";
        dma_offset: u64 = 48, "GPU address wanted; the address given on return.";
        status: u32 = 56, "Status.";
        pad1: u32 = 60, "Hole.";
    }
}

layout! {
    /// `NV_VASPACE_ALLOCATION_PARAMETERS`.
    VaspaceAlloc, 56 {
        index: u32 = 0, "0: a new VA space.";
        flags: u32 = 4, "See `class::vaspace`.";
        va_size: u64 = 8, "Bytes; on return, the size given.";
        va_start: u64 = 16, "Internal.";
        va_limit: u64 = 24, "Internal.";
        big_page_size: u32 = 32, "Big page size, or 0.";
        pad0: u32 = 36, "Hole.";
        va_base: u64 = 40, "First address.";
        pasid: u32 = 48, "Process address space identifier.";
        pad1: u32 = 52, "Hole.";
    }
}

layout! {
    /// `NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS`, also `NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS`.
    Schedule, 3 {
        enable: u8 = 0, "Schedule, or take off.";
        skip_submit: u8 = 1, "Do not submit the runlist yet.";
        skip_enable: u8 = 2, "Do not enable the channel yet.";
    }
}
