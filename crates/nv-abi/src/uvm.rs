//! Commands of the unified memory node (`nv_uvm_ioctl.h`, `nv_uvm_linux_ioctl.h`).
//!
//! The request is the bare command number: it carries no size, so that a client with another
//! version's layout is mis-parsed in silence. [`params_size`] is what the driver copies.

use crate::{AbiVersion, Handle, Uuid};

/// Creates the file's VA space.
pub const INITIALIZE: u32 = 0x3000_0001;
/// Releases nothing: the VA space lives as long as its file.
pub const DEINITIALIZE: u32 = 0x3000_0002;
/// Binds a GPU's VA space.
pub const REGISTER_GPU_VASPACE: u32 = 25;
/// Unbinds a GPU's VA space.
pub const UNREGISTER_GPU_VASPACE: u32 = 26;
/// Registers a channel.
pub const REGISTER_CHANNEL: u32 = 27;
/// Unregisters a channel; its layout depends on the version.
pub const UNREGISTER_CHANNEL: u32 = 28;
/// Lets two GPUs map one another's memory.
pub const ENABLE_PEER_ACCESS: u32 = 29;
/// Takes that back.
pub const DISABLE_PEER_ACCESS: u32 = 30;
/// Maps an allocation of the resource manager into an external range.
pub const MAP_EXTERNAL_ALLOCATION: u32 = 33;
/// Frees a range; its layout depends on the version.
pub const FREE: u32 = 34;
/// Registers a GPU.
pub const REGISTER_GPU: u32 = 37;
/// Unregisters a GPU.
pub const UNREGISTER_GPU: u32 = 38;
/// Whether GPUs can reach all pageable memory.
pub const PAGEABLE_MEM_ACCESS: u32 = 39;
/// Unmaps part of an external range from one GPU.
pub const UNMAP_EXTERNAL: u32 = 66;
/// Whether a range exists.
pub const VALIDATE_VA_RANGE: u32 = 72;
/// Creates an external range.
pub const CREATE_EXTERNAL_RANGE: u32 = 73;
/// Ties a VA space to the memory of the calling process.
pub const MM_INITIALIZE: u32 = 75;

layout! {
    /// `UVM_INITIALIZE_PARAMS`.
    Initialize, 16 {
        flags: u64 = 0, "Flags.";
        status: u32 = 8, "Status.";
        pad: u32 = 12, "Hole.";
    }
}

layout! {
    /// `UVM_MM_INITIALIZE_PARAMS`.
    MmInitialize, 8 {
        uvm_fd: i32 = 0, "File with the VA space.";
        status: u32 = 4, "Status.";
    }
}

layout! {
    /// `UVM_REGISTER_GPU_PARAMS`.
    RegisterGpu, 40 {
        uuid: Uuid = 0, "GPU.";
        numa_enabled: u8 = 16, "On return.";
        pad: [u8; 3] = 17, "Hole.";
        numa_node: i32 = 20, "On return; -1: none.";
        rm_ctrl_fd: i32 = 24, "Only for partitions; -1.";
        client: Handle = 28, "Only for partitions.";
        partition: Handle = 32, "Only for partitions.";
        status: u32 = 36, "Status.";
    }
}

layout! {
    /// `UVM_UNREGISTER_GPU_PARAMS`, also `UVM_UNREGISTER_GPU_VASPACE_PARAMS`.
    UnregisterGpu, 20 {
        uuid: Uuid = 0, "GPU.";
        status: u32 = 16, "Status.";
    }
}

layout! {
    /// `UVM_REGISTER_GPU_VASPACE_PARAMS`.
    RegisterGpuVaspace, 32 {
        uuid: Uuid = 0, "GPU.";
        rm_ctrl_fd: i32 = 16, "Control file of the client.";
        client: Handle = 20, "Client.";
        vaspace: Handle = 24, "Externally owned VA space.";
        status: u32 = 28, "Status.";
    }
}

layout! {
    /// `UVM_REGISTER_CHANNEL_PARAMS`.
    RegisterChannel, 56 {
        uuid: Uuid = 0, "GPU.";
        rm_ctrl_fd: i32 = 16, "Control file of the client.";
        client: Handle = 20, "Client.";
        channel: Handle = 24, "Channel.";
        pad0: u32 = 28, "Hole.";
        base: u64 = 32, "Start of the addresses the driver may use for channel resources.";
        length: u64 = 40, "Their number.";
        status: u32 = 48, "Status.";
        pad1: u32 = 52, "Hole.";
    }
}

layout! {
    /// `UVM_ENABLE_PEER_ACCESS_PARAMS`, also `UVM_DISABLE_PEER_ACCESS_PARAMS`.
    PeerAccess, 36 {
        uuid_a: Uuid = 0, "One GPU.";
        uuid_b: Uuid = 16, "The other GPU.";
        status: u32 = 32, "Status.";
    }
}

layout! {
    /// `UVM_CREATE_EXTERNAL_RANGE_PARAMS`, also `UVM_VALIDATE_VA_RANGE_PARAMS`.
    Range, 24 {
        base: u64 = 0, "First address.";
        length: u64 = 8, "Bytes.";
        status: u32 = 16, "Status.";
        pad: u32 = 20, "Hole.";
    }
}

layout! {
    /// `UvmGpuMappingAttributes`.
    GpuMapping, 36 {
        uuid: Uuid = 0, "GPU that maps.";
        mapping: u32 = 16, "Access: see [`access`].";
        caching: u32 = 20, "Caching; 0: default.";
        format: u32 = 24, "Format; 0: default.";
        element_bits: u32 = 28, "Element size; 0: default.";
        compression: u32 = 32, "Compression; 0: default.";
    }
}

/// Access of a [`GpuMapping`] (`UvmGpuMappingType`).
pub mod access {
    /// As the allocation allows.
    pub const DEFAULT: u32 = 0;
    /// Read, write and atomics.
    pub const READ_WRITE_ATOMIC: u32 = 1;
    /// Read and write.
    pub const READ_WRITE: u32 = 2;
    /// Read only.
    pub const READ_ONLY: u32 = 3;
}

/// Entries of [`MapExternalAllocation::attributes`].
pub const MAX_GPUS: usize = 256;

layout! {
    /// `UVM_MAP_EXTERNAL_ALLOCATION_PARAMS`.
    MapExternalAllocation, 9264 {
        base: u64 = 0, "First address, inside one external range.";
        length: u64 = 8, "Bytes.";
        offset: u64 = 16, "First byte of the allocation.";
        attributes: [GpuMapping; MAX_GPUS] = 24, "Who maps, and how.";
        count: u64 = 9240, "Entries that count.";
        rm_ctrl_fd: i32 = 9248, "Control file of the client.";
        client: Handle = 9252, "Client.";
        memory: Handle = 9256, "Memory object.";
        status: u32 = 9260, "Status.";
    }
}

layout! {
    /// `UVM_UNMAP_EXTERNAL_PARAMS`.
    UnmapExternal, 40 {
        base: u64 = 0, "First address.";
        length: u64 = 8, "Bytes.";
        uuid: Uuid = 16, "GPU.";
        status: u32 = 32, "Status.";
        pad: u32 = 36, "Hole.";
    }
}

layout! {
    /// `UVM_PAGEABLE_MEM_ACCESS_PARAMS`.
    PageableMemAccess, 8 {
        pageable: u8 = 0, "On return.";
        pad: [u8; 3] = 1, "Hole.";
        status: u32 = 4, "Status.";
    }
}

/// Bytes the driver copies for a command, and the offset of its status; `None` for an unknown
/// command.
#[must_use]
pub fn params_size(version: AbiVersion, command: u32) -> Option<(usize, usize)> {
    use core::mem::offset_of;
    macro_rules! of {
        ($ty:ty) => {
            (size_of::<$ty>(), offset_of!($ty, status))
        };
    }
    Some(match command {
        INITIALIZE => of!(Initialize),
        MM_INITIALIZE => of!(MmInitialize),
        REGISTER_GPU => of!(RegisterGpu),
        UNREGISTER_GPU | UNREGISTER_GPU_VASPACE => of!(UnregisterGpu),
        REGISTER_GPU_VASPACE => of!(RegisterGpuVaspace),
        REGISTER_CHANNEL => of!(RegisterChannel),
        UNREGISTER_CHANNEL => match version {
            AbiVersion::V570 | AbiVersion::V580 => of!(crate::v570::UnregisterChannel),
            AbiVersion::V610 => of!(crate::v610::UnregisterChannel),
        },
        ENABLE_PEER_ACCESS | DISABLE_PEER_ACCESS => of!(PeerAccess),
        CREATE_EXTERNAL_RANGE | VALIDATE_VA_RANGE => of!(Range),
        MAP_EXTERNAL_ALLOCATION => of!(MapExternalAllocation),
        UNMAP_EXTERNAL => of!(UnmapExternal),
        FREE => match version {
            AbiVersion::V570 | AbiVersion::V580 => of!(crate::v570::UvmFree),
            AbiVersion::V610 => of!(crate::v610::UvmFree),
        },
        PAGEABLE_MEM_ACCESS => of!(PageableMemAccess),
        _ => return None,
    })
}
