//! Layouts of releases from 595 that differ from their predecessor's.

use crate::Handle;

pub use crate::v580::{MapMemoryDma, Schedule, VaspaceAlloc};

layout! {
    /// `NV_CHANNEL_ALLOC_PARAMS`.
    ChannelAlloc, 376 {
        error: Handle = 0, "Error notifier.";
        buffer: Handle = 4, "Object with the ring.";
        gpfifo_offset: u64 = 8, "GPU address of the ring.";
        gpfifo_entries: u32 = 16, "Entries of the ring.";
        flags: u32 = 20, "Flags.";
        context_share: Handle = 24, "Subcontext, or 0.";
        vaspace: Handle = 28, "VA space, or 0.";
        handle_vaspace: Handle = 32, "VA space of the ring, or 0.";
        userd: [Handle; 8] = 36, "Memory with the control page, per subdevice.";
        pad0: u32 = 68, "Hole.";
        userd_offset: [u64; 8] = 72, "Its offset, per subdevice.";
        engine_type: u32 = 136, "Engine.";
        rest: [u32; 59] = 140, "Internal, 0.";
    }
}

layout! {
    /// `UVM_UNREGISTER_CHANNEL_PARAMS`.
    UnregisterChannel, 12 {
        client: Handle = 0, "Client.";
        channel: Handle = 4, "Channel.";
        status: u32 = 8, "Status.";
    }
}

layout! {
    /// `UVM_FREE_PARAMS`.
    UvmFree, 16 {
        base: u64 = 0, "Start of the range.";
        status: u32 = 8, "Status.";
        pad: u32 = 12, "Hole.";
    }
}
