//! External ranges: addresses into which clients map memory of the resource manager.

use vrampager_addr::{PAGE, Span};
use vrampager_nv_abi::neutral::UvmFree;
use vrampager_nv_abi::{Status, uvm};

use super::{Range, RangeKind};
use crate::rm::{Aperture, MemId};
use crate::store::{Process, Store};
use crate::vas::{Access, Entry, Origin, VasId};
use crate::{Driver, FileId};

/// Addresses that CPU and GPU both have: 47 bits on x86-64.
const SHARED_VA_LIMIT: u64 = 1 << 47;

/// A page-aligned, non-empty span.
fn pages(base: u64, len: u64) -> Result<Span, Status> {
    let span = Span::new(base, len).ok_or(Status::INVALID_ADDRESS)?;
    let aligned = PAGE.divides(base) && PAGE.divides(len) && !span.is_empty();
    aligned.then_some(span).ok_or(Status::INVALID_ADDRESS)
}

impl<S: Store> Driver<S> {
    pub(super) fn uvm_create_range(
        &mut self,
        file: FileId,
        request: &uvm::Range,
    ) -> Result<(), Status> {
        let span = pages(request.base, request.length)?;
        if span.start() == 0 {
            return Err(Status::INVALID_ADDRESS);
        }
        let space = self.space_mut(file)?;
        space.check_mm()?;
        if space.overlaps(span.start(), span.len()) {
            return Err(Status::UVM_ADDRESS_IN_USE);
        }
        let range = Range {
            len: span.len(),
            kind: RangeKind::External,
        };
        space.ranges.insert(span.start(), range);
        Ok(())
    }

    /// Fails unless `span` is inside one external range.
    fn inside_external(&self, file: FileId, span: Span) -> Result<(), Status> {
        let found = self.space(file)?.range_at(span.start());
        let inside = found.is_some_and(|(start, range)| {
            range.kind == RangeKind::External && span.end() <= start + range.len
        });
        inside.then_some(()).ok_or(Status::INVALID_ADDRESS)
    }

    /// Maps an allocation on every GPU listed, or on none.
    pub(super) fn uvm_map(
        &mut self,
        process: &dyn Process,
        file: FileId,
        request: &uvm::MapExternalAllocation,
    ) -> Result<(), Status> {
        let span = pages(request.base, request.length)?;
        if !PAGE.divides(request.offset) {
            return Err(Status::INVALID_ADDRESS);
        }
        let count = usize::try_from(request.count).unwrap_or(usize::MAX);
        let attributes = match request.attributes.get(..count) {
            Some(attributes) if count > 0 => attributes,
            _ => return Err(Status::INVALID_ARGUMENT),
        };
        self.space(file)?.check_mm()?;
        self.inside_external(file, span)?;
        if span.end() > SHARED_VA_LIMIT {
            return Err(Status::OUT_OF_RANGE);
        }
        let client = self.uvm_client(process, request.rm_ctrl_fd, request.client)?;
        let mem = client
            .object(request.memory)?
            .mem()
            .ok_or(Status::INVALID_OBJECT)?;
        let mut targets = Vec::with_capacity(count);
        for attribute in attributes {
            targets.push(self.map_target(file, mem, attribute)?);
        }
        self.check_bytes(mem, request.offset, span.len())?;
        for (vas, access) in targets {
            self.uvm_map_one(vas, span, mem, request.offset, access);
        }
        Ok(())
    }

    /// The address space of one GPU of the list, and the access it gets.
    fn map_target(
        &self,
        file: FileId,
        mem: MemId,
        attribute: &uvm::GpuMapping,
    ) -> Result<(VasId, Access), Status> {
        let known = attribute.mapping <= uvm::access::READ_ONLY
            && attribute.caching <= 2
            && attribute.element_bits <= 5
            && attribute.compression <= 2;
        if !known {
            return Err(Status::INVALID_ARGUMENT);
        }
        let (gpu, vas) = self.registered_gpu(file, &attribute.uuid)?;
        let vas = vas.ok_or(Status::INVALID_DEVICE)?;
        if let Aperture::Vidmem(owner) = self.mem(mem).aperture {
            let space = self.space(file)?;
            space.registered(owner)?;
            if owner != gpu && !space.peers(owner, gpu) {
                return Err(Status::INVALID_DEVICE);
            }
        }
        let access = match attribute.mapping {
            uvm::access::READ_ONLY => Access::ReadOnly,
            _ if self.mem(mem).device_read_only => Access::ReadOnly,
            _ => Access::ReadWrite,
        };
        Ok((vas, access))
    }

    fn check_bytes(&self, mem: MemId, offset: u64, len: u64) -> Result<(), Status> {
        let mem = self.mem(mem);
        let span = Span::new(offset, len).ok_or(Status::INVALID_OFFSET)?;
        // Pages of an allocation are whole: its last one may be mapped to the end.
        let whole = mem.size.next_multiple_of(mem.page);
        (span.end() <= whole)
            .then_some(())
            .ok_or(Status::INVALID_OFFSET)
    }

    /// Maps on one GPU; what was mapped there before is replaced without a word.
    fn uvm_map_one(&mut self, vas: VasId, span: Span, mem: MemId, offset: u64, access: Access) {
        self.retain(mem);
        self.uvm_unmap_one(vas, span);
        let entry = Entry {
            len: span.len(),
            mem,
            offset,
            access,
            origin: Origin::Uvm,
        };
        let vas = self.vas.get_mut(&vas).expect("its registration holds it");
        vas.table.insert(span.start(), entry);
    }

    fn uvm_unmap_one(&mut self, vas: VasId, span: Span) {
        let vas = self.vas.get_mut(&vas).expect("its registration holds it");
        let carved = vas.table.carve(span);
        for mem in carved.retained {
            self.retain(mem);
        }
        for mem in carved.released {
            self.release(mem);
        }
    }

    pub(super) fn uvm_unmap(
        &mut self,
        file: FileId,
        request: &uvm::UnmapExternal,
    ) -> Result<(), Status> {
        let span = pages(request.base, request.length)?;
        self.inside_external(file, span)?;
        let (_, vas) = self.registered_gpu(file, &request.uuid)?;
        if let Some(vas) = vas {
            self.uvm_unmap_one(vas, span);
        }
        Ok(())
    }

    /// Frees a range with its mappings on all GPUs.
    pub(super) fn uvm_free(&mut self, file: FileId, request: &UvmFree) -> Result<(), Status> {
        let space = self.space(file)?;
        let range = *space
            .ranges
            .get(&request.base)
            .ok_or(Status::INVALID_ADDRESS)?;
        let carries_length =
            UvmFree::size(self.abi) == size_of::<vrampager_nv_abi::v570::UvmFree>();
        if range.kind != RangeKind::External || (carries_length && request.length != range.len) {
            return Err(Status::INVALID_ADDRESS);
        }
        let span = Span::new(request.base, range.len).expect("checked when it was made");
        let spaces: Vec<VasId> = space.gpus.values().copied().flatten().collect();
        for vas in spaces {
            self.uvm_unmap_one(vas, span);
        }
        self.space_mut(file)?.ranges.remove(&request.base);
        Ok(())
    }

    pub(super) fn uvm_validate(&self, file: FileId, request: &uvm::Range) -> Result<(), Status> {
        let range = self.space(file)?.ranges.get(&request.base);
        let exact = range.is_some_and(|range| range.len == request.length);
        exact.then_some(()).ok_or(Status::INVALID_ADDRESS)
    }
}
