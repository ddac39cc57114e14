//! Layouts of releases 570 to 579 that later releases changed.

use crate::{Handle, Uuid};

layout! {
    /// `NVOS46_PARAMETERS`, packet of `RM_MAP_MEMORY_DMA`.
    MapMemoryDma, 56 {
        client: Handle = 0, "Client.";
        device: Handle = 4, "Device or subdevice.";
        dma: Handle = 8, "Virtual memory object.";
        memory: Handle = 12, "Memory object.";
        offset: u64 = 16, "First byte of the memory.";
        length: u64 = 24, "Bytes.";
        flags: u32 = 32, "See `escape::os46`.";
        pad0: u32 = 36, "Hole.";
        dma_offset: u64 = 40, "GPU address wanted; the address given on return.";
        status: u32 = 48, "Status.";
        pad1: u32 = 52, "Hole.";
    }
}

layout! {
    /// `NV_VASPACE_ALLOCATION_PARAMETERS`.
    VaspaceAlloc, 48 {
        index: u32 = 0, "0: a new VA space.";
        flags: u32 = 4, "See `class::vaspace`.";
        va_size: u64 = 8, "Bytes; on return, the size given.";
        va_start: u64 = 16, "Internal.";
        va_limit: u64 = 24, "Internal.";
        big_page_size: u32 = 32, "Big page size, or 0.";
        pad: u32 = 36, "Hole.";
        va_base: u64 = 40, "First address.";
    }
}

layout! {
    /// `NV_CHANNEL_ALLOC_PARAMS`.
    ChannelAlloc, 368 {
        error: Handle = 0, "Error notifier.";
        buffer: Handle = 4, "Object with the ring.";
        gpfifo_offset: u64 = 8, "GPU address of the ring.";
        gpfifo_entries: u32 = 16, "Entries of the ring.";
        flags: u32 = 20, "Flags.";
        context_share: Handle = 24, "Subcontext, or 0.";
        vaspace: Handle = 28, "VA space, or 0.";
        userd: [Handle; 8] = 32, "Memory with the control page, per subdevice.";
        userd_offset: [u64; 8] = 64, "Its offset, per subdevice.";
        engine_type: u32 = 128, "Engine.";
        rest: [u32; 59] = 132, "Internal, 0.";
    }
}

layout! {
    /// `NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS`, also `NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS`.
    Schedule, 2 {
        enable: u8 = 0, "Schedule, or take off.";
        skip_submit: u8 = 1, "Do not submit the runlist yet.";
    }
}

layout! {
    /// `UVM_UNREGISTER_CHANNEL_PARAMS`.
    UnregisterChannel, 28 {
        uuid: Uuid = 0, "GPU.";
        client: Handle = 16, "Client.";
        channel: Handle = 20, "Channel.";
        status: u32 = 24, "Status.";
    }
}

layout! {
    /// `UVM_FREE_PARAMS`.
    UvmFree, 24 {
        base: u64 = 0, "Start of the range.";
        length: u64 = 8, "Its length.";
        status: u32 = 16, "Status.";
        pad: u32 = 20, "Hole.";
    }
}
