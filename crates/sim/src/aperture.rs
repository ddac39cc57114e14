//! CPU mappings, and the aperture that those of device memory have to fit in.
#![expect(unsafe_code, reason = "hands mapped memory to CpuMapping")]

use std::collections::BTreeMap;

use rustix::io::Errno;
use vrampager_hal::{CpuMapId, CpuMapping, Heap, MemId};

use crate::heap::View;

#[derive(Debug)]
struct Window {
    mem: MemId,
    heap: Heap,
    len: u64,
    /// Keeps the memory mapped.
    _view: View,
}

/// The CPU mappings of a device.
#[derive(Debug)]
pub(crate) struct Aperture {
    size: u64,
    used: u64,
    windows: BTreeMap<CpuMapId, Window>,
    next_id: u64,
}

impl Aperture {
    pub(crate) fn new(size: u64) -> Self {
        Self {
            size,
            used: 0,
            windows: BTreeMap::new(),
            next_id: 1,
        }
    }

    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    pub(crate) const fn free(&self) -> u64 {
        self.size - self.used
    }

    /// Whether a window of that size can be had. Host memory needs none of the aperture.
    pub(crate) fn admits(&self, heap: Heap, len: u64) -> bool {
        match heap {
            Heap::Vram => len <= self.free(),
            Heap::Host => true,
        }
    }

    /// Takes in a view that has been admitted.
    pub(crate) fn map(
        &mut self,
        mem: MemId,
        heap: Heap,
        len: u64,
        view: Result<View, Errno>,
    ) -> Result<CpuMapping, Errno> {
        let view = view?;
        let id = CpuMapId(self.next_id);
        self.next_id += 1;
        let base = view.region.at(view.offset, len);
        if heap == Heap::Vram {
            self.used += len;
        }
        let owner = view.region.clone();
        let window = Window {
            mem,
            heap,
            len,
            _view: view,
        };
        self.windows.insert(id, window);
        // SAFETY: `at` has checked the range, which the region keeps mapped for reading and
        // writing, and the view owns a share of the region.
        Ok(unsafe { CpuMapping::new(id, base, len) }.owned_by(owner))
    }

    /// The object that the mapping was of.
    ///
    /// # Panics
    /// When there is no such mapping.
    pub(crate) fn unmap(&mut self, id: CpuMapId) -> MemId {
        let window = self.windows.remove(&id);
        let window = window.unwrap_or_else(|| panic!("{id:?} does not exist"));
        if window.heap == Heap::Vram {
            self.used -= window.len;
        }
        window.mem
    }

    pub(crate) fn window_count(&self) -> u64 {
        self.windows.len() as u64
    }
}
