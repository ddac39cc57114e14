//! Memory objects: device memory, host memory, pinned pages, doorbells.

use vrampager_addr::{Align, PAGE, PAGE_SIZE};
use vrampager_nv_abi::escape::{RmAllocMemory, os02};
use vrampager_nv_abi::{Handle, Status, class, method};
use zerocopy::IntoBytes;

use super::alloc::{Site, parse};
use super::{Aperture, Kind, Mem, MemId, Object};
use crate::store::{Store, StoreError, StoreId};
use crate::{Driver, FileId};

/// Device memory is handed out in no smaller pieces.
const VRAM_GRANULE: Align = Align::new(64 << 10).expect("a power of two");
const HUGE: Align = Align::new(2 << 20).expect("a power of two");

impl<S: Store> Driver<S> {
    pub(super) fn new_memory(
        &mut self,
        site: Site,
        class: u32,
        params: &mut [u8],
    ) -> Result<MemId, Status> {
        let mut params_read: class::MemoryAlloc = parse(params);
        check_memory(&params_read)?;
        let gpu = self.device_gpu(site)?;
        let page = page_of(&params_read);
        let size = page.up(params_read.size).ok_or(Status::INVALID_ARGUMENT)?;
        let aperture = match class {
            class::NV01_MEMORY_LOCAL_USER => Aperture::Vidmem(gpu),
            _ => Aperture::Sysmem,
        };
        let charged = self.charge(aperture, size)?;
        let store = self.store.create(size).map_err(|_| {
            self.uncharge(aperture, charged);
            Status::INSUFFICIENT_RESOURCES
        })?;
        params_read.size = size;
        params_read.limit = size - 1;
        params.copy_from_slice(params_read.as_bytes());
        Ok(self.add_mem(Mem {
            aperture,
            store,
            size,
            page: page.bytes(),
            charged,
            user_read_only: params_read.attr2 & class::mem::ATTR2_USER_READ_ONLY != 0,
            device_read_only: params_read.attr2 & class::mem::ATTR2_DEVICE_READ_ONLY != 0,
            refs: 1,
        }))
    }

    /// `RM_ALLOC_MEMORY`: pins pages of the caller.
    pub(crate) fn rm_alloc_memory(
        &mut self,
        file: FileId,
        request: &RmAllocMemory,
    ) -> Result<Handle, Status> {
        if request.class != class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR {
            return Err(Status::INVALID_CLASS);
        }
        check_pin(request)?;
        let size = request.limit.checked_add(1).ok_or(Status::INVALID_LIMIT)?;
        let client = self.client(file, request.root)?;
        if client.object(request.parent)?.gpu().is_none() {
            return Err(Status::INVALID_OBJECT_PARENT);
        }
        let handle = self.new_handle(request.root, request.object)?;
        let size = PAGE.up(size).ok_or(Status::INVALID_LIMIT)?;
        let store = self
            .store
            .adopt(request.memory, size)
            .map_err(|error| match error {
                StoreError::BadAddress => Status::INVALID_ADDRESS,
                StoreError::Exhausted => Status::INSUFFICIENT_RESOURCES,
            })?;
        let mem = self.add_mem(host_mem(Aperture::Pinned, store, size));
        let site = Site {
            client: request.root,
            parent: request.parent,
        };
        self.plant(
            site,
            handle,
            Object::new(request.class, site.parent, Kind::Memory(mem)),
        );
        Ok(handle)
    }

    /// The doorbell window of a GPU, made when first asked for and shared by all who ask.
    pub(super) fn new_doorbell(&mut self, gpu: usize) -> Result<MemId, Status> {
        let found = self
            .rm
            .mems
            .iter()
            .find(|(_, mem)| mem.aperture == Aperture::Registers(gpu));
        if let Some((&id, _)) = found {
            self.retain(id);
            return Ok(id);
        }
        let store = self
            .store
            .create(method::USERMODE_SIZE)
            .map_err(|_| Status::INSUFFICIENT_RESOURCES)?;
        self.silence(store);
        let aperture = Aperture::Registers(gpu);
        Ok(self.add_mem(host_mem(aperture, store, method::USERMODE_SIZE)))
    }

    fn add_mem(&mut self, mem: Mem) -> MemId {
        self.rm.next_mem += 1;
        let id = MemId(self.rm.next_mem);
        self.rm.mems.insert(id, mem);
        id
    }

    /// Takes device or host memory from what is left of it.
    fn charge(&mut self, aperture: Aperture, size: u64) -> Result<u64, Status> {
        let (used, limit, granule) = match aperture {
            Aperture::Vidmem(gpu) => (
                &mut self.gpus[gpu].vram_used,
                self.config.vram,
                VRAM_GRANULE,
            ),
            Aperture::Sysmem => (&mut self.host_used, self.config.host, PAGE),
            Aperture::Pinned | Aperture::Registers(_) => return Ok(0),
        };
        let charged = granule.up(size).ok_or(Status::NO_MEMORY)?;
        if charged > limit - *used {
            return Err(Status::NO_MEMORY);
        }
        *used += charged;
        Ok(charged)
    }

    fn uncharge(&mut self, aperture: Aperture, charged: u64) {
        match aperture {
            Aperture::Vidmem(gpu) => self.gpus[gpu].vram_used -= charged,
            Aperture::Sysmem => self.host_used -= charged,
            Aperture::Pinned | Aperture::Registers(_) => {}
        }
    }
}

fn host_mem(aperture: Aperture, store: StoreId, size: u64) -> Mem {
    Mem {
        aperture,
        store,
        size,
        page: PAGE_SIZE,
        charged: 0,
        user_read_only: false,
        device_read_only: false,
        refs: 1,
    }
}

fn check_memory(params: &class::MemoryAlloc) -> Result<(), Status> {
    if params.size == 0 || params.internal_flags != 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    if params.owner == 0 || params.owner == u32::MAX {
        return Err(Status::INVALID_OWNER);
    }
    let ranged = params.range_lo != 0 || params.range_hi != 0;
    if ranged && params.flags & class::mem::USE_BEGIN_END == 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    Ok(())
}

fn page_of(params: &class::MemoryAlloc) -> Align {
    let huge = params.attr >> class::mem::ATTR_PAGE_SIZE_SHIFT & 3
        == class::mem::ATTR_PAGE_SIZE_HUGE
        && params.attr2 >> class::mem::ATTR2_PAGE_SIZE_HUGE_SHIFT & 3 == 1;
    if huge { HUGE } else { PAGE }
}

fn check_pin(request: &RmAllocMemory) -> Result<(), Status> {
    let coherency = request.flags >> os02::COHERENCY_SHIFT & 0xF;
    let known = [
        os02::COHERENCY_UNCACHED,
        os02::COHERENCY_CACHED,
        os02::COHERENCY_WRITE_BACK,
    ];
    let in_host = request.flags & os02::LOCATION_MASK == 0;
    let unmapped = request.flags >> os02::MAPPING_SHIFT == os02::MAPPING_NO_MAP;
    if !in_host || !unmapped || !known.contains(&coherency) {
        return Err(Status::INVALID_FLAGS);
    }
    if !PAGE.divides(request.memory) {
        return Err(Status::NOT_SUPPORTED);
    }
    Ok(())
}
