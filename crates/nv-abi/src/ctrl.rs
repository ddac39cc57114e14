//! Resource manager controls and their parameters (`ctrl*.h`).

use crate::Handle;

/// Driver release, as three texts.
pub const SYSTEM_GET_BUILD_VERSION_V2: u32 = 0x13E;
/// Instance of a GPU from its identifier.
pub const GPU_GET_ID_INFO_V2: u32 = 0x205;
/// Classes of a GPU.
pub const GPU_GET_CLASSLIST: u32 = 0x0080_0201;
/// Classes of a GPU, with the list in the parameters.
pub const GPU_GET_CLASSLIST_V2: u32 = 0x0080_0292;
/// UUID of a GPU.
pub const GPU_GET_GID_INFO: u32 = 0x2080_014A;
/// Shape of the compute engine.
pub const GR_GET_INFO: u32 = 0x2080_1201;
/// Sizes of device memory.
pub const FB_GET_INFO_V2: u32 = 0x2080_1303;
/// Flushes and invalidates the GPU's cache.
pub const FB_FLUSH_GPU_CACHE: u32 = 0x2080_130E;
/// Raises clocks.
pub const PERF_BOOST: u32 = 0x2080_200A;
/// Reads the error state of every multiprocessor.
pub const DEBUG_READ_ALL_SM_ERROR_STATES: u32 = 0x83DE_030C;
/// Reads the recorded memory faults.
pub const DEBUG_READ_MMU_FAULT_INFO: u32 = 0x83DE_0328;
/// Puts a channel group on its runlist.
pub const GROUP_SCHEDULE: u32 = 0xA06C_0101;
/// Puts a channel on its runlist.
pub const CHANNEL_SCHEDULE: u32 = 0xA06F_0103;
/// Binds a channel to an engine.
pub const CHANNEL_BIND: u32 = 0xA06F_0104;
/// The token to write to the doorbell.
pub const GET_WORK_SUBMIT_TOKEN: u32 = 0xC36F_0108;

layout! {
    /// `NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_V2_PARAMS`.
    BuildVersion, 1032 {
        driver_version: [u8; 256] = 0, "Release, zero-terminated.";
        version: [u8; 256] = 256, "Branch version.";
        driver_branch: [u8; 256] = 512, "Branch.";
        title: [u8; 256] = 768, "Title.";
        changelist: u32 = 1024, "Change list.";
        official_changelist: u32 = 1028, "Official change list.";
    }
}

layout! {
    /// `NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS`.
    GpuIdInfo, 32 {
        gpu_id: u32 = 0, "Identifier asked about.";
        gpu_flags: u32 = 4, "Flags.";
        device_instance: u32 = 8, "Device instance.";
        subdevice_instance: u32 = 12, "Subdevice instance.";
        sli_status: u32 = 16, "Unused.";
        board_id: u32 = 20, "Board.";
        gpu_instance: u32 = 24, "GPU instance.";
        numa_id: i32 = 28, "NUMA node, or -1.";
    }
}

layout! {
    /// `NV0080_CTRL_GPU_GET_CLASSLIST_PARAMS`.
    ClassList, 16 {
        count: u32 = 0, "Entries of the list, or 0 to ask for their number.";
        pad: u32 = 4, "Hole.";
        list: u64 = 8, "Address of the list.";
    }
}

layout! {
    /// `NV0080_CTRL_GPU_GET_CLASSLIST_V2_PARAMS`.
    ClassListV2, 404 {
        count: u32 = 0, "Entries of the list, on return.";
        list: [u32; 100] = 4, "Classes.";
    }
}

layout! {
    /// `NV2080_CTRL_GPU_GET_GID_INFO_PARAMS`.
    GidInfo, 268 {
        index: u32 = 0, "Unused.";
        flags: u32 = 4, "2: binary.";
        length: u32 = 8, "Bytes of the identifier.";
        data: [u8; 256] = 12, "Identifier.";
    }
}

/// Flag of [`GidInfo`]: the identifier is wanted as 16 bytes.
pub const GID_FORMAT_BINARY: u32 = 2;

layout! {
    /// `NV2080_CTRL_GR_GET_INFO_PARAMS`; the list holds [`GrInfo`].
    GrGetInfo, 32 {
        count: u32 = 0, "Entries.";
        pad: u32 = 4, "Hole.";
        list: u64 = 8, "Address of the entries.";
        route: [u64; 2] = 16, "Partition; 0 without partitions.";
    }
}

layout! {
    /// `NV2080_CTRL_GR_INFO`, also the shape of framebuffer info entries.
    GrInfo, 8 {
        index: u32 = 0, "What is asked.";
        data: u32 = 4, "Answer.";
    }
}

/// Indices of [`GrInfo`] (`NV2080_CTRL_GR_INFO_INDEX_*`).
pub mod gr {
    /// Multiprocessor version, such as 0x809.
    pub const SM_VERSION: u32 = 0xC;
    /// Warps per multiprocessor.
    pub const MAX_WARPS_PER_SM: u32 = 0xD;
    /// Graphics processing clusters.
    pub const NUM_GPCS: u32 = 0x14;
    /// Texture processing clusters per GPC.
    pub const NUM_TPC_PER_GPC: u32 = 0x17;
    /// Multiprocessors per TPC.
    pub const NUM_SM_PER_TPC: u32 = 0x20;
}

/// Indices of [`FB_GET_INFO_V2`] entries, which have the shape of [`GrInfo`]
/// (`NV2080_CTRL_FB_INFO_INDEX_*`). Answers are in KiB.
pub mod fb {
    /// Window of the CPU onto device memory.
    pub const BAR1_SIZE: u32 = 0x5;
    /// All device memory.
    pub const RAM_SIZE: u32 = 0x7;
    /// Device memory that clients can have.
    pub const HEAP_SIZE: u32 = 0x9;
    /// Of that, what is free.
    pub const HEAP_FREE: u32 = 0x16;
}

/// Bytes of `NV2080_CTRL_FB_GET_INFO_V2_PARAMS`: a count, then entries of [`GrInfo`].
#[must_use]
pub const fn fb_info_size(version: crate::AbiVersion) -> usize {
    match version {
        crate::AbiVersion::V570 => 460,
        crate::AbiVersion::V580 | crate::AbiVersion::V610 => 1028,
    }
}

layout! {
    /// `NV2080_CTRL_PERF_BOOST_PARAMS`.
    PerfBoost, 8 {
        flags: u32 = 0, "Flags.";
        duration: u32 = 4, "Seconds, or all ones.";
    }
}

/// Size of `NV2080_CTRL_FB_FLUSH_GPU_CACHE_PARAMS`; the whole cache is flushed whatever it says.
pub const FB_FLUSH_GPU_CACHE_SIZE: usize = 4024;

layout! {
    /// `NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS`.
    WorkSubmitToken, 4 {
        token: u32 = 0, "Token.";
    }
}

layout! {
    /// `NVA06F_CTRL_BIND_PARAMS`.
    ChannelBind, 4 {
        engine_type: u32 = 0, "Engine.";
    }
}

layout! {
    /// `NV83DE_CTRL_DEBUG_READ_ALL_SM_ERROR_STATES_PARAMS`.
    SmErrorStates, 4824 {
        target_channel: Handle = 0, "Channel.";
        count: u32 = 4, "Multiprocessors to read.";
        states: [[u64; 6]; 100] = 8, "Error state of each multiprocessor; all zero: no error.";
        mmu_fault_info: u32 = 4808, "Obsolete.";
        mmu_fault_valid: u8 = 4812, "Whether a memory fault was recorded.";
        pad0: [u8; 3] = 4813, "Hole.";
        mmu_fault: u32 = 4816, "Fault register.";
        starting_sm: u32 = 4820, "First multiprocessor.";
    }
}

layout! {
    /// `NV83DE_CTRL_DEBUG_READ_MMU_FAULT_INFO_ENTRY`.
    MmuFault, 16 {
        address: u64 = 0, "Faulting GPU address.";
        fault_type: u32 = 8, "See [`fault`].";
        access_type: u32 = 12, "See [`fault`].";
    }
}

layout! {
    /// `NV83DE_CTRL_DEBUG_READ_MMU_FAULT_INFO_PARAMS`.
    MmuFaultInfo, 72 {
        list: [MmuFault; 4] = 0, "The last faults.";
        count: u32 = 64, "How many of them count.";
        pad: u32 = 68, "Hole.";
    }
}

/// Fault and access types (`NV_PFAULT_*`).
pub mod fault {
    /// No page table entry.
    pub const PTE: u32 = 2;
    /// Write to a read-only page.
    pub const RO_VIOLATION: u32 = 6;
    /// The access was a read.
    pub const ACCESS_READ: u32 = 0;
    /// The access was a write.
    pub const ACCESS_WRITE: u32 = 1;
}
