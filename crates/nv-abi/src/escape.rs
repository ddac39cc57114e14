//! Escape ioctls of the control node and the per-GPU nodes (`nv_escape.h`, `nv-ioctl.h`).
//!
//! The request carries direction, size, magic `'F'` and number; the driver refuses a size it does
//! not know with `EINVAL`. Everything else is reported in the packet's status field.

use crate::Handle;

/// `RM_ALLOC_MEMORY`: only on a GPU's node.
pub const RM_ALLOC_MEMORY: u8 = 0x27;
/// `RM_FREE`: only on the control node.
pub const RM_FREE: u8 = 0x29;
/// `RM_CONTROL`: only on the control node.
pub const RM_CONTROL: u8 = 0x2A;
/// `RM_ALLOC`: only on the control node.
pub const RM_ALLOC: u8 = 0x2B;
/// `RM_DUP_OBJECT`: only on the control node.
pub const RM_DUP_OBJECT: u8 = 0x34;
/// `RM_VID_HEAP_CONTROL`: only on the control node.
pub const RM_VID_HEAP_CONTROL: u8 = 0x4A;
/// `RM_MAP_MEMORY`: only on the control node.
pub const RM_MAP_MEMORY: u8 = 0x4E;
/// `RM_UNMAP_MEMORY`: only on the control node.
pub const RM_UNMAP_MEMORY: u8 = 0x4F;
/// `RM_MAP_MEMORY_DMA`: only on the control node; its layout depends on the version.
pub const RM_MAP_MEMORY_DMA: u8 = 0x57;
/// `RM_UNMAP_MEMORY_DMA`: only on the control node.
pub const RM_UNMAP_MEMORY_DMA: u8 = 0x58;
/// `CARD_INFO`: only on the control node; an array of [`CardInfo`].
pub const CARD_INFO: u8 = 0xC8;
/// `REGISTER_FD`: links a GPU file to a control file.
pub const REGISTER_FD: u8 = 0xC9;
/// `CHECK_VERSION_STR`: only on the control node.
pub const CHECK_VERSION_STR: u8 = 0xD2;
/// `IOCTL_XFER_CMD`: carries another escape whose size does not fit a request.
pub const XFER_CMD: u8 = 0xD3;
/// `ATTACH_GPUS_TO_FD`: only on the control node.
pub const ATTACH_GPUS_TO_FD: u8 = 0xD4;
/// `SYS_PARAMS`: only on the control node.
pub const SYS_PARAMS: u8 = 0xD6;
/// `WAIT_OPEN_COMPLETE`.
pub const WAIT_OPEN_COMPLETE: u8 = 0xDA;

/// The magic byte of escape requests.
pub const MAGIC: u8 = b'F';

/// The ioctl request of an escape: read and write, with the packet's size.
///
/// # Panics
///
/// If `size` does not fit the 14 size bits of a request; packets of this interface do.
#[must_use]
pub const fn request(nr: u8, size: usize) -> u32 {
    assert!(size < 1 << 14);
    #[expect(clippy::cast_possible_truncation, reason = "asserted to be below 2^14")]
    let size = size as u32;
    (3 << 30) | (size << 16) | ((MAGIC as u32) << 8) | nr as u32
}

/// Number and packet size of an escape request; `None` if it is not an escape.
#[must_use]
pub fn split(request: u32) -> Option<(u8, usize)> {
    let [nr, magic, ..] = request.to_le_bytes();
    let size = (request >> 16) & 0x3FFF;
    (magic == MAGIC && request >> 30 == 3).then_some((nr, size as usize))
}

layout! {
    /// `NVOS21_PARAMETERS`, packet of [`RM_ALLOC`].
    RmAlloc, 32 {
        root: Handle = 0, "Client the object belongs to; for a new client, its handle or 0.";
        parent: Handle = 4, "Object the new one goes under.";
        object: Handle = 8, "Handle wanted, or 0 to have one made; the handle given on return.";
        class: u32 = 12, "Class number.";
        params: u64 = 16, "Address of the class's parameters, or 0.";
        params_size: u32 = 24, "Ignored: the driver uses the size in its own class table.";
        status: u32 = 28, "Status.";
    }
}

layout! {
    /// `NVOS64_PARAMETERS`, the longer packet of [`RM_ALLOC`].
    RmAlloc64, 48 {
        root: Handle = 0, "Client the object belongs to; for a new client, its handle or 0.";
        parent: Handle = 4, "Object the new one goes under.";
        object: Handle = 8, "Handle wanted, or 0 to have one made; the handle given on return.";
        class: u32 = 12, "Class number.";
        params: u64 = 16, "Address of the class's parameters, or 0.";
        rights: u64 = 24, "Address of the rights asked for, or 0.";
        params_size: u32 = 32, "Ignored: the driver uses the size in its own class table.";
        flags: u32 = 36, "Flags.";
        status: u32 = 40, "Status.";
        pad: u32 = 44, "Hole.";
    }
}

layout! {
    /// `NVOS00_PARAMETERS`, packet of [`RM_FREE`].
    RmFree, 16 {
        root: Handle = 0, "Client.";
        parent: Handle = 4, "Ignored.";
        object: Handle = 8, "Object to free; an unknown one is no error.";
        status: u32 = 12, "Status.";
    }
}

layout! {
    /// `NVOS54_PARAMETERS`, packet of [`RM_CONTROL`].
    RmControl, 32 {
        client: Handle = 0, "Client.";
        object: Handle = 4, "Object the command is for.";
        cmd: u32 = 8, "Command: class in the upper half.";
        flags: u32 = 12, "Flags.";
        params: u64 = 16, "Address of the command's parameters.";
        params_size: u32 = 24, "Their size, which must be the command's.";
        status: u32 = 28, "Status.";
    }
}

layout! {
    /// `NVOS02_PARAMETERS` with its file, packet of [`RM_ALLOC_MEMORY`].
    RmAllocMemory, 56 {
        root: Handle = 0, "Client.";
        parent: Handle = 4, "Device.";
        object: Handle = 8, "Handle wanted.";
        class: u32 = 12, "Memory class.";
        flags: u32 = 16, "See [`os02`].";
        pad0: u32 = 20, "Hole.";
        memory: u64 = 24, "Address of the pages to take.";
        limit: u64 = 32, "Their size in bytes, minus one.";
        status: u32 = 40, "Status.";
        pad1: u32 = 44, "Hole.";
        fd: i32 = 48, "File, or -1.";
        pad2: u32 = 52, "Hole.";
    }
}

/// Fields of [`RmAllocMemory::flags`] (`NVOS02_FLAGS_*`).
pub mod os02 {
    /// Bits 11:8: where the memory is; 0 is host memory.
    pub const LOCATION_MASK: u32 = 0xF << 8;
    /// Bits 15:12: CPU caching.
    pub const COHERENCY_SHIFT: u32 = 12;
    /// Uncached.
    pub const COHERENCY_UNCACHED: u32 = 0;
    /// Cached.
    pub const COHERENCY_CACHED: u32 = 1;
    /// Write-back.
    pub const COHERENCY_WRITE_BACK: u32 = 5;
    /// Bits 31:30: whether the kernel maps it.
    pub const MAPPING_SHIFT: u32 = 30;
    /// The kernel does not map it.
    pub const MAPPING_NO_MAP: u32 = 1;
    /// Pages may be anywhere.
    pub const PHYSICALITY_NONCONTIGUOUS: u32 = 1 << 4;
}

layout! {
    /// `NVOS33_PARAMETERS` with its file, packet of [`RM_MAP_MEMORY`].
    RmMapMemory, 56 {
        client: Handle = 0, "Client.";
        device: Handle = 4, "Device or subdevice to reach the memory through.";
        memory: Handle = 8, "Memory object.";
        pad0: u32 = 12, "Hole.";
        offset: u64 = 16, "First byte to map.";
        length: u64 = 24, "Bytes to map.";
        linear: u64 = 32, "Cookie of the mapping on return, used to unmap.";
        status: u32 = 40, "Status.";
        flags: u32 = 44, "See [`os33`].";
        fd: i32 = 48, "Fresh file that will carry the mapping; one mapping per file.";
        pad1: u32 = 52, "Hole.";
    }
}

/// Fields of [`RmMapMemory::flags`] (`NVOS33_FLAGS_*`).
pub mod os33 {
    /// Bits 1:0: access; 3 is not defined.
    pub const ACCESS_MASK: u32 = 3;
    /// Read and write.
    pub const ACCESS_READ_WRITE: u32 = 0;
    /// The mapping would outlive its object: refused.
    pub const PERSISTENT: u32 = 1 << 4;
    /// Bits 25:23: caching; the driver overwrites it.
    pub const CACHING_SHIFT: u32 = 23;
}

layout! {
    /// `NVOS34_PARAMETERS`, packet of [`RM_UNMAP_MEMORY`].
    RmUnmapMemory, 32 {
        client: Handle = 0, "Client.";
        device: Handle = 4, "Device or subdevice.";
        memory: Handle = 8, "Memory object.";
        pad0: u32 = 12, "Hole.";
        linear: u64 = 16, "Cookie that mapping returned.";
        status: u32 = 24, "Status.";
        flags: u32 = 28, "Flags.";
    }
}

/// Fields of the flags of [`RM_MAP_MEMORY_DMA`] (`NVOS46_FLAGS_*`).
pub mod os46 {
    /// Bits 1:0: access.
    pub const ACCESS_MASK: u32 = 3;
    /// Read only.
    pub const ACCESS_READ_ONLY: u32 = 1;
    /// The GPU snoops CPU caches.
    pub const CACHE_SNOOP: u32 = 1 << 4;
    /// 4 KiB pages.
    pub const PAGE_SIZE_4KB: u32 = 1 << 8;
    /// The address is given, not chosen.
    pub const DMA_OFFSET_FIXED: u32 = 1 << 15;
}

layout! {
    /// `NVOS47_PARAMETERS`, packet of [`RM_UNMAP_MEMORY_DMA`].
    RmUnmapMemoryDma, 48 {
        client: Handle = 0, "Client.";
        device: Handle = 4, "Device or subdevice.";
        dma: Handle = 8, "Virtual memory object.";
        memory: Handle = 12, "Memory object.";
        flags: u32 = 16, "Flags.";
        pad0: u32 = 20, "Hole.";
        dma_offset: u64 = 24, "GPU address.";
        size: u64 = 32, "Bytes, or 0 for the whole mapping that starts there.";
        status: u32 = 40, "Status.";
        pad1: u32 = 44, "Hole.";
    }
}

layout! {
    /// `NVOS55_PARAMETERS`, packet of [`RM_DUP_OBJECT`].
    RmDupObject, 28 {
        client: Handle = 0, "Client that gets the duplicate.";
        parent: Handle = 4, "Its parent.";
        object: Handle = 8, "Handle wanted, or 0; the handle given on return.";
        source_client: Handle = 12, "Client that owns the source.";
        source: Handle = 16, "Source object.";
        flags: u32 = 20, "Flags.";
        status: u32 = 24, "Status.";
    }
}

layout! {
    /// `NVOS32_PARAMETERS`, packet of [`RM_VID_HEAP_CONTROL`].
    RmVidHeapControl, 184 {
        root: Handle = 0, "Client.";
        parent: Handle = 4, "Device.";
        function: u32 = 8, "What to do.";
        vaspace: Handle = 12, "Address space, or 0.";
        heap: i16 = 16, "Heap number.";
        pad: u16 = 18, "Hole.";
        status: u32 = 20, "Status.";
        total: u64 = 24, "Bytes of the heap.";
        free: u64 = 32, "Bytes that are free in it.";
        data: [u8; 144] = 40, "Parameters of the function.";
    }
}

layout! {
    /// `nv_ioctl_card_info_t`, one entry of [`CARD_INFO`].
    CardInfo, 72 {
        valid: u8 = 0, "Non-zero for a GPU that exists.";
        pad0: [u8; 3] = 1, "Hole.";
        domain: u32 = 4, "PCI domain.";
        bus: u8 = 8, "PCI bus.";
        slot: u8 = 9, "PCI slot.";
        function: u8 = 10, "PCI function.";
        pad1: u8 = 11, "Hole.";
        vendor_id: u16 = 12, "PCI vendor.";
        device_id: u16 = 14, "PCI device.";
        gpu_id: u32 = 16, "Identifier the resource manager uses.";
        interrupt_line: u16 = 20, "Interrupt line.";
        pad2: u16 = 22, "Hole.";
        reg_address: u64 = 24, "Register window: bus address.";
        reg_size: u64 = 32, "Register window: bytes.";
        fb_address: u64 = 40, "Memory window: bus address.";
        fb_size: u64 = 48, "Memory window: bytes.";
        minor: u32 = 56, "N of `/dev/nvidiaN`.";
        name: [u8; 10] = 60, "Name, zero-terminated.";
        pad3: u16 = 70, "Hole.";
    }
}

layout! {
    /// `nv_ioctl_register_fd_t`, packet of [`REGISTER_FD`].
    RegisterFd, 4 {
        ctl_fd: i32 = 0, "An open control file.";
    }
}

layout! {
    /// `nv_ioctl_rm_api_version_t`, packet of [`CHECK_VERSION_STR`].
    CheckVersion, 72 {
        cmd: u32 = 0, "Kind of check.";
        reply: u32 = 4, "1 if the versions agree.";
        version: [u8; 64] = 8, "The client's version, zero-terminated.";
    }
}

layout! {
    /// `nv_ioctl_sys_params_t`, packet of [`SYS_PARAMS`].
    SysParams, 8 {
        memblock_size: u64 = 0, "Memory block size; set once.";
    }
}

layout! {
    /// `nv_ioctl_wait_open_complete_t`, packet of [`WAIT_OPEN_COMPLETE`].
    WaitOpenComplete, 8 {
        rc: i32 = 0, "Result of the open.";
        adapter_status: u32 = 4, "Status of the adapter.";
    }
}

layout! {
    /// `nv_ioctl_xfer_t`, packet of [`XFER_CMD`].
    Xfer, 16 {
        cmd: u32 = 0, "Number of the escape carried.";
        size: u32 = 4, "Size of its packet.";
        ptr: u64 = 8, "Address of its packet.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_carries_its_number_and_size_both_ways() {
        assert_eq!(request(RM_ALLOC, size_of::<RmAlloc>()), 0xC020_462B);
        assert_eq!(split(0xC020_462B), Some((RM_ALLOC, 32)));
        assert_eq!(
            split(request(CARD_INFO, 64 * size_of::<CardInfo>())),
            Some((CARD_INFO, 4608))
        );
        assert_eq!(split(0x3000_0001), None);
        assert_eq!(split(37), None);
    }
}
