//! The nodes of the machine: `/dev/nvidiactl`, `/dev/nvidiaN`, `/dev/nvidia-uvm`.
#![expect(unsafe_code, reason = "the driver is reached by ioctl on raw packets")]

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use vrampager_nv::NodeFile;
use vrampager_nv_abi::Node;
use vrampager_nv_driver::Live;

use crate::nodes::{Answer, MEMORY_BYTES, Nodes};

/// Open files of the machine's nodes, and memory for their packets to point to.
#[derive(Debug)]
pub struct RealNodes {
    files: BTreeMap<i32, NodeFile>,
    /// More than is handed out, so that a page boundary is in it.
    memory: Vec<u8>,
}

const PAGE: usize = 4096;

impl Default for RealNodes {
    fn default() -> Self {
        Self {
            files: BTreeMap::new(),
            memory: vec![0; MEMORY_BYTES + PAGE],
        }
    }
}

impl RealNodes {
    fn aligned(&self) -> usize {
        self.memory.as_ptr().addr().next_multiple_of(PAGE) - self.memory.as_ptr().addr()
    }

    fn file(&self, fd: i32) -> Result<&NodeFile, Errno> {
        self.files.get(&fd).ok_or(Errno::BADF)
    }
}

impl From<Errno> for Answer {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno.raw_os_error())
    }
}

impl Nodes for RealNodes {
    fn open(&mut self, node: Node) -> Result<i32, Answer> {
        let file = NodeFile::open(node)?;
        let fd = file.as_raw_fd();
        self.files.insert(fd, file);
        Ok(fd)
    }

    fn close(&mut self, fd: i32) {
        let file = self.files.remove(&fd);
        drop(file.expect("a descriptor is closed once"));
    }

    fn ioctl(&mut self, fd: i32, number: u32, packet: &mut [u8]) -> Result<(), Answer> {
        // SAFETY: the packet is of the size that the request or the driver's release implies.
        // Addresses in it are those of `memory`, which outlives the files and is checked by the
        // driver against what it reads and writes there, or of nothing.
        unsafe { self.file(fd)?.ioctl(number, packet) }?;
        Ok(())
    }

    fn mmap(&mut self, fd: i32, len: u64, offset: u64) -> Result<(), Answer> {
        let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        let at = self.file(fd)?.map(len, offset)?;
        // SAFETY: the range was mapped above, and nothing has its address.
        unsafe { rustix::mm::munmap(at.as_ptr().cast(), len) }?;
        Ok(())
    }

    fn memory(&mut self) -> &mut [u8] {
        let start = self.aligned();
        &mut self.memory[start..start + MEMORY_BYTES]
    }

    fn address(&self) -> u64 {
        (self.memory.as_ptr().expose_provenance() + self.aligned()) as u64
    }

    fn live(&self) -> Option<Live> {
        None
    }
}
