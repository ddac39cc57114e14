//! Mapping memory objects: for the CPU, and into address spaces of the resource manager.

use vrampager_addr::{PAGE, Span};
use vrampager_nv_abi::escape::{
    RmDupObject, RmMapMemory, RmUnmapMemory, RmUnmapMemoryDma, os33, os46,
};
use vrampager_nv_abi::neutral::MapMemoryDma;
use vrampager_nv_abi::{Handle, Node, Status};

use super::alloc::Site;
use super::{Aperture, CpuMap, Kind, MemId, Object};
use crate::file::{Carried, MapContext};
use crate::store::{Place, Process, Store};
use crate::vas::{Access, Entry, Origin, VasId};
use crate::{Driver, FileId};

/// First cookie of a CPU mapping; looks like an address of user space, as the real ones do.
const COOKIE_BASE: u64 = 0x7E00_0000_0000;

impl<S: Store> Driver<S> {
    /// Attaches a mapping of memory to a fresh file, for a later `mmap` of that file. Gives the
    /// cookie, the file, and what it shows.
    pub(crate) fn rm_map_memory(
        &mut self,
        process: &dyn Process,
        file: FileId,
        request: &RmMapMemory,
    ) -> Result<(u64, FileId, MapContext), Status> {
        let client = self.client(file, request.client)?;
        let mem = client
            .object(request.memory)?
            .mem()
            .ok_or(Status::INVALID_OBJECT)?;
        let device = client.object(request.device)?;
        device.gpu().ok_or(Status::INVALID_OBJECT_PARENT)?;
        let bar = self.check_cpu_map(mem, request)?;
        let carrier = process.file(request.fd).ok_or(Status::INVALID_ARGUMENT)?;
        self.check_carrier(mem, carrier)?;
        if let Some((gpu, bytes)) = bar {
            self.gpus[gpu].bar1_used += bytes;
        }
        let place = Place {
            id: self.mem(mem).store,
            offset: request.offset,
        };
        let exact = !matches!(self.mem(mem).aperture, Aperture::Sysmem);
        let carrier_file = self.files.get_mut(&carrier).expect("checked to be open");
        let shown = MapContext {
            place,
            len: request.length,
            exact,
        };
        carrier_file.carried = Carried::Mapping(shown);
        let cookie = COOKIE_BASE + (self.rm.next_cookie << 12);
        self.rm.next_cookie += 1;
        let map = CpuMap {
            client: request.client,
            memory: request.memory,
            carrier,
            bar,
        };
        self.rm.cpu_maps.insert(cookie, map);
        let objects = &mut self.client_mut(request.client).objects;
        let object = objects.get_mut(&request.memory).expect("looked up above");
        object.cpu_maps.insert(cookie);
        Ok((cookie, carrier, shown))
    }

    /// What the mapping takes of the window of the GPU that has the memory, if all is well with it.
    fn check_cpu_map(
        &self,
        mem: MemId,
        request: &RmMapMemory,
    ) -> Result<Option<(usize, u64)>, Status> {
        let access = request.flags & os33::ACCESS_MASK;
        if request.flags & os33::PERSISTENT != 0 || access == os33::ACCESS_MASK {
            return Err(Status::INVALID_FLAGS);
        }
        let mem = self.mem(mem);
        if request.offset >= mem.size {
            return Err(Status::INVALID_BASE);
        }
        let span = Span::new(request.offset, request.length).ok_or(Status::INVALID_LIMIT)?;
        if span.is_empty() || span.end() > mem.size {
            return Err(Status::INVALID_LIMIT);
        }
        if mem.aperture == Aperture::Pinned {
            return Err(Status::NOT_SUPPORTED);
        }
        if mem.user_read_only && access != 1 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let Aperture::Vidmem(gpu) = mem.aperture else {
            return Ok(None);
        };
        let bytes = PAGE.up(span.len()).ok_or(Status::INVALID_LIMIT)?;
        let left = self.config.bar1 - self.gpus[gpu].bar1_used;
        (bytes <= left)
            .then_some(Some((gpu, bytes)))
            .ok_or(Status::NO_MEMORY)
    }

    /// A mapping needs a file of its own, of the node that has the memory.
    fn check_carrier(&self, mem: MemId, carrier: FileId) -> Result<(), Status> {
        let file = self.files.get(&carrier).ok_or(Status::INVALID_ARGUMENT)?;
        let node = match self.mem(mem).aperture {
            Aperture::Vidmem(gpu) | Aperture::Registers(gpu) => Node::Gpu(gpu),
            Aperture::Sysmem | Aperture::Pinned => Node::Control,
        };
        if file.node != node {
            return Err(Status::INVALID_ARGUMENT);
        }
        match file.carried {
            Carried::Nothing => Ok(()),
            Carried::Mapping(_) | Carried::Gone => Err(Status::STATE_IN_USE),
        }
    }

    pub(crate) fn rm_unmap_memory(
        &mut self,
        file: FileId,
        request: &RmUnmapMemory,
    ) -> Result<(), Status> {
        self.client(file, request.client)?.object(request.memory)?;
        let cookie = request.linear;
        let map = self
            .rm
            .cpu_maps
            .get(&cookie)
            .ok_or(Status::OBJECT_NOT_FOUND)?;
        if (map.client, map.memory) != (request.client, request.memory) {
            return Err(Status::OBJECT_NOT_FOUND);
        }
        let objects = &mut self.client_mut(request.client).objects;
        let object = objects.get_mut(&request.memory).expect("looked up above");
        object.cpu_maps.remove(&cookie);
        self.forget_cpu_map(cookie);
        Ok(())
    }

    /// Maps memory into an address space that the resource manager owns; gives the GPU address.
    pub(crate) fn rm_map_dma(
        &mut self,
        file: FileId,
        request: &MapMemoryDma,
    ) -> Result<u64, Status> {
        if request.length == 0 {
            return Err(Status::INVALID_LIMIT);
        }
        let client = self.client(file, request.client)?;
        let device = client.object(request.device)?;
        let dma = client.object(request.dma)?;
        let mem = client
            .object(request.memory)?
            .mem()
            .ok_or(Status::INVALID_OBJECT)?;
        if device.gpu().is_none() {
            return Err(Status::INVALID_OBJECT);
        }
        let Kind::Virtual { vas, base, limit } = dma.kind else {
            return Err(Status::INVALID_OBJECT);
        };
        self.check_own_space(vas)?;
        let within = Span::from_bounds(base, limit + 1).expect("checked when it was made");
        let access = self.check_dma(mem, request)?;
        let start = self.dma_address(vas, within, request)?;
        let entry = Entry {
            len: PAGE.up(request.length).ok_or(Status::INVALID_LIMIT)?,
            mem,
            offset: request.offset,
            access,
            origin: Origin::Rm,
        };
        let table = &mut self
            .vas
            .get_mut(&vas)
            .expect("a virtual object holds it")
            .table;
        table.insert(start, entry);
        let key = (vas, start);
        self.rm
            .dma_maps
            .insert(key, (request.client, request.dma, request.memory));
        let objects = &mut self.client_mut(request.client).objects;
        for handle in [request.dma, request.memory] {
            objects
                .get_mut(&handle)
                .expect("looked up above")
                .dma_maps
                .insert(key);
        }
        Ok(start)
    }

    /// Into an address space that is owned outside, only its owner maps.
    fn check_own_space(&self, vas: VasId) -> Result<(), Status> {
        let own = !self.vas[&vas].external;
        own.then_some(()).ok_or(Status::NOT_SUPPORTED)
    }

    fn check_dma(&self, mem: MemId, request: &MapMemoryDma) -> Result<Access, Status> {
        let mem = self.mem(mem);
        let span = Span::new(request.offset, request.length).ok_or(Status::INVALID_LIMIT)?;
        if span.end() > mem.size {
            return Err(Status::INVALID_LIMIT);
        }
        let read_only = request.flags & os46::ACCESS_MASK == os46::ACCESS_READ_ONLY;
        match (read_only, mem.device_read_only) {
            (true, _) => Ok(Access::ReadOnly),
            (false, true) => Err(Status::INVALID_ARGUMENT),
            (false, false) => Ok(Access::ReadWrite),
        }
    }

    /// The address wanted, or the lowest free one.
    fn dma_address(&self, vas: VasId, within: Span, request: &MapMemoryDma) -> Result<u64, Status> {
        let table = &self.vas[&vas].table;
        let len = PAGE.up(request.length).ok_or(Status::INVALID_LIMIT)?;
        if request.flags & os46::DMA_OFFSET_FIXED == 0 {
            // Address zero is never handed out: too many clients take it for a failure.
            let lowest = within.start().max(PAGE.bytes());
            let within = Span::from_bounds(lowest, within.end()).ok_or(Status::NO_MEMORY)?;
            return table.gap(within, len, PAGE).ok_or(Status::NO_MEMORY);
        }
        let wanted = Span::new(request.dma_offset, len).ok_or(Status::INVALID_ARGUMENT)?;
        if !within.covers(wanted) || !PAGE.divides(wanted.start()) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let free = table.overlapping(wanted).next().is_none();
        free.then_some(wanted.start()).ok_or(Status::NO_MEMORY)
    }

    pub(crate) fn rm_unmap_dma(
        &mut self,
        file: FileId,
        request: &RmUnmapMemoryDma,
    ) -> Result<(), Status> {
        let client = self.client(file, request.client)?;
        if client.object(request.device)?.gpu().is_none() {
            return Err(Status::INVALID_OBJECT);
        }
        let mem = client
            .object(request.memory)?
            .mem()
            .ok_or(Status::INVALID_OBJECT)?;
        let Kind::Virtual { vas, .. } = client.object(request.dma)?.kind else {
            return Err(Status::INVALID_OBJECT);
        };
        self.check_own_space(vas)?;
        let table = &self.vas[&vas].table;
        if request.size == 0 {
            let entry = table.starting_at(request.dma_offset);
            let found = entry.is_some_and(|entry| entry.mem == mem);
            found.then_some(()).ok_or(Status::OBJECT_NOT_FOUND)?;
            self.forget_dma_map(vas, request.dma_offset);
            return Ok(());
        }
        let span = Span::new(request.dma_offset, request.size).ok_or(Status::INVALID_ARGUMENT)?;
        let hit: Vec<(u64, Entry)> = table.overlapping(span).collect();
        let whole = hit.iter().all(|&(start, entry)| {
            Span::new(start, entry.len).is_some_and(|mapping| span.covers(mapping))
        });
        if !whole {
            return Err(Status::INVALID_ARGUMENT);
        }
        for (start, _) in hit {
            self.forget_dma_map(vas, start);
        }
        Ok(())
    }

    /// A second handle for memory, under a device of the same client or another one.
    pub(crate) fn rm_dup(&mut self, file: FileId, request: &RmDupObject) -> Result<Handle, Status> {
        let client = self.client(file, request.client)?;
        let parent = match request.parent {
            own if own == request.client => None,
            parent => Some(&client.object(parent)?.kind),
        };
        if !matches!(parent, Some(Kind::Device { .. })) {
            return Err(Status::INVALID_OBJECT_PARENT);
        }
        let source = self
            .client(file, request.source_client)?
            .object(request.source)?;
        let (class, Kind::Memory(mem)) = (source.class, source.kind.clone()) else {
            return Err(Status::INVALID_ARGUMENT);
        };
        let handle = self.new_handle(request.client, request.object)?;
        self.retain(mem);
        let site = Site {
            client: request.client,
            parent: request.parent,
        };
        self.plant(
            site,
            handle,
            Object::new(class, site.parent, Kind::Memory(mem)),
        );
        Ok(handle)
    }
}
