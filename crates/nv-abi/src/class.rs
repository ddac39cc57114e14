//! Resource manager classes and the parameters they are allocated with (`cl*.h`, `nvos.h`).

use crate::Handle;

/// Root client, as kernel clients ask for it.
pub const NV01_ROOT: u32 = 0x0;
/// Root client without privilege.
pub const NV01_ROOT_NON_PRIV: u32 = 0x1;
/// Root client, as user space asks for it.
pub const NV01_ROOT_CLIENT: u32 = 0x41;
/// System memory.
pub const NV01_MEMORY_SYSTEM: u32 = 0x3E;
/// Device memory.
pub const NV01_MEMORY_LOCAL_USER: u32 = 0x40;
/// An address range of a VA space to map into.
pub const NV01_MEMORY_VIRTUAL: u32 = 0x70;
/// Pages of the caller, described by their address.
pub const NV01_MEMORY_SYSTEM_OS_DESCRIPTOR: u32 = 0x71;
/// A GPU.
pub const NV01_DEVICE_0: u32 = 0x80;
/// One GPU of a linked set; here always the only one.
pub const NV20_SUBDEVICE_0: u32 = 0x2080;
/// Debugger session on a compute object.
pub const GT200_DEBUGGER: u32 = 0x83DE;
/// Subcontext of a channel group.
pub const FERMI_CONTEXT_SHARE_A: u32 = 0x9067;
/// VA space.
pub const FERMI_VASPACE_A: u32 = 0x90F1;
/// Channel group (TSG).
pub const KEPLER_CHANNEL_GROUP_A: u32 = 0xA06C;
/// Doorbell window, Turing to Ada.
pub const TURING_USERMODE_A: u32 = 0xC461;
/// Doorbell window, Hopper and later.
pub const HOPPER_USERMODE_A: u32 = 0xC661;
/// Channel, Ampere and Ada.
pub const AMPERE_CHANNEL_GPFIFO_A: u32 = 0xC56F;
/// Channel, Blackwell.
pub const BLACKWELL_CHANNEL_GPFIFO_A: u32 = 0xC96F;
/// Compute engine, Ampere.
pub const AMPERE_COMPUTE_B: u32 = 0xC7C0;
/// Compute engine, Ada.
pub const ADA_COMPUTE_A: u32 = 0xC9C0;
/// Compute engine, Blackwell.
pub const BLACKWELL_COMPUTE_B: u32 = 0xCEC0;
/// Copy engine, Ampere and Ada.
pub const AMPERE_DMA_COPY_B: u32 = 0xC7B5;
/// Copy engine, Blackwell.
pub const BLACKWELL_DMA_COPY_B: u32 = 0xCAB5;

layout! {
    /// `NV0080_ALLOC_PARAMETERS`, for [`NV01_DEVICE_0`].
    DeviceAlloc, 56 {
        device_id: u32 = 0, "Device instance.";
        client_share: Handle = 4, "Client whose VA space is shared.";
        target_client: Handle = 8, "Unused.";
        target_device: Handle = 12, "Unused.";
        flags: u32 = 16, "Flags.";
        pad0: u32 = 20, "Hole.";
        va_space_size: u64 = 24, "Size of the default VA space, or 0.";
        va_start: u64 = 32, "Internal.";
        va_limit: u64 = 40, "Internal.";
        va_mode: u32 = 48, "0: several VA spaces may exist.";
        pad1: u32 = 52, "Hole.";
    }
}

layout! {
    /// `NV2080_ALLOC_PARAMETERS`, for [`NV20_SUBDEVICE_0`].
    SubdeviceAlloc, 4 {
        subdevice_id: u32 = 0, "Index in the linked set.";
    }
}

layout! {
    /// `NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS`, for [`NV01_MEMORY_VIRTUAL`].
    VirtualAlloc, 24 {
        offset: u64 = 0, "First address.";
        limit: u64 = 8, "Last address.";
        vaspace: Handle = 16, "VA space, or 0 for the device's default one.";
        pad: u32 = 20, "Hole.";
    }
}

layout! {
    /// `NV_MEMORY_ALLOCATION_PARAMS`, for [`NV01_MEMORY_LOCAL_USER`] and [`NV01_MEMORY_SYSTEM`].
    MemoryAlloc, 128 {
        owner: u32 = 0, "Who allocates; neither 0 nor all ones.";
        kind: u32 = 4, "Usage type.";
        flags: u32 = 8, "See [`mem`].";
        width: u32 = 12, "Surface width.";
        height: u32 = 16, "Surface height.";
        pitch: i32 = 20, "Surface pitch.";
        attr: u32 = 24, "See [`mem`].";
        attr2: u32 = 28, "See [`mem`].";
        format: u32 = 32, "Format.";
        compression: u32 = 36, "Compression coverage.";
        zcull: u32 = 40, "Unused.";
        pad0: u32 = 44, "Hole.";
        range_lo: u64 = 48, "First physical address allowed.";
        range_hi: u64 = 56, "Last physical address allowed.";
        size: u64 = 64, "Bytes; the size given on return.";
        alignment: u64 = 72, "Alignment.";
        offset: u64 = 80, "Physical offset on return.";
        limit: u64 = 88, "Size minus one on return.";
        address: u64 = 96, "CPU address on return.";
        ctag_offset: u32 = 104, "Unused.";
        vaspace: Handle = 108, "VA space.";
        internal_flags: u32 = 112, "Must be 0.";
        tag: u32 = 116, "Tag.";
        numa_node: i32 = 120, "NUMA node.";
        pad1: u32 = 124, "Hole.";
    }
}

/// Fields of [`MemoryAlloc`] (`NVOS32_*`).
pub mod mem {
    /// Flag: placement in banks does not matter.
    pub const IGNORE_BANK_PLACEMENT: u32 = 0x1;
    /// Flag: the alignment is a demand.
    pub const ALIGNMENT_FORCE: u32 = 0x100;
    /// Flag: the caller gives the handle.
    pub const HANDLE_PROVIDED: u32 = 0x4000;
    /// Flag: no CPU mapping is needed.
    pub const MAP_NOT_REQUIRED: u32 = 0x8000;
    /// Flag: contents survive power states.
    pub const PERSISTENT_VIDMEM: u32 = 0x1_0000;
    /// Flag: the physical range fields count.
    pub const USE_BEGIN_END: u32 = 0x2_0000;
    /// Attribute, bits 24:23: page size class; 3 is huge.
    pub const ATTR_PAGE_SIZE_SHIFT: u32 = 23;
    /// Huge pages.
    pub const ATTR_PAGE_SIZE_HUGE: u32 = 3;
    /// Attribute, bits 26:25: 0 device memory, 1 host memory.
    pub const ATTR_LOCATION_SHIFT: u32 = 25;
    /// Host memory.
    pub const ATTR_LOCATION_PCI: u32 = 1;
    /// Attribute, bits 28:27: contiguity.
    pub const ATTR_PHYSICALITY_SHIFT: u32 = 27;
    /// One piece.
    pub const ATTR_CONTIGUOUS: u32 = 2;
    /// One piece if possible.
    pub const ATTR_ALLOW_NONCONTIGUOUS: u32 = 3;
    /// Second attribute, bits 3:2: 1 cached by the GPU, 2 not.
    pub const ATTR2_GPU_CACHEABLE_SHIFT: u32 = 2;
    /// Second attribute, bits 21:20: size of a huge page; 1 is 2 MiB.
    pub const ATTR2_PAGE_SIZE_HUGE_SHIFT: u32 = 20;
    /// Second attribute: user space may not write.
    pub const ATTR2_USER_READ_ONLY: u32 = 1 << 22;
    /// Second attribute: the device may not write.
    pub const ATTR2_DEVICE_READ_ONLY: u32 = 1 << 23;
    /// Usage type of images and plain data.
    pub const TYPE_IMAGE: u32 = 0;
    /// Usage type of notifiers.
    pub const TYPE_NOTIFIER: u32 = 13;
}

/// Flags of a [`FERMI_VASPACE_A`] (`NV_VASPACE_ALLOCATION_FLAGS_*`).
pub mod vaspace {
    /// Another driver (UVM) owns the page tables.
    pub const IS_EXTERNALLY_OWNED: u32 = 0x8;
    /// Faults can be replayed.
    pub const ENABLE_PAGE_FAULTING: u32 = 0x40;
}

layout! {
    /// `NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS`, for [`KEPLER_CHANNEL_GROUP_A`].
    ChannelGroupAlloc, 20 {
        error: Handle = 0, "Error notifier.";
        ecc_error: Handle = 4, "Memory error notifier.";
        vaspace: Handle = 8, "VA space, or 0.";
        engine_type: u32 = 12, "Engine the group's runlist belongs to.";
        vgpu: u32 = 16, "Unused.";
    }
}

layout! {
    /// `NV_CTXSHARE_ALLOCATION_PARAMETERS`, for [`FERMI_CONTEXT_SHARE_A`].
    ContextShareAlloc, 12 {
        vaspace: Handle = 0, "VA space of the subcontext.";
        flags: u32 = 4, "1: asynchronous.";
        subctx_id: u32 = 8, "Identifier on return.";
    }
}

layout! {
    /// `NV83DE_ALLOC_PARAMETERS`, for [`GT200_DEBUGGER`].
    DebuggerAlloc, 12 {
        debugger_client: Handle = 0, "Obsolete.";
        app_client: Handle = 4, "Client of the compute object.";
        compute_object: Handle = 8, "The compute object.";
    }
}

/// Engine types (`NV2080_ENGINE_TYPE_*`).
pub mod engine {
    /// Graphics and compute.
    pub const GRAPHICS: u32 = 1;
    /// First copy engine.
    pub const COPY0: u32 = 9;
}

/// Whether a class is a channel.
#[must_use]
pub const fn is_channel(class: u32) -> bool {
    matches!(class, AMPERE_CHANNEL_GPFIFO_A | BLACKWELL_CHANNEL_GPFIFO_A)
}

/// Whether a class is a compute engine.
#[must_use]
pub const fn is_compute(class: u32) -> bool {
    matches!(
        class,
        AMPERE_COMPUTE_B | ADA_COMPUTE_A | BLACKWELL_COMPUTE_B
    )
}

/// Whether a class is a copy engine.
#[must_use]
pub const fn is_copy(class: u32) -> bool {
    matches!(class, AMPERE_DMA_COPY_B | BLACKWELL_DMA_COPY_B)
}
