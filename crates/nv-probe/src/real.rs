//! The nodes of the machine: `/dev/nvidiactl`, `/dev/nvidiaN`, `/dev/nvidia-uvm`.
#![expect(unsafe_code, reason = "the driver is reached by ioctl on raw packets")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use rustix::mm::{MapFlags, ProtFlags};
use vrampager_nv_driver::{Live, Node};

use crate::nodes::{Answer, MEMORY_BYTES, Nodes};

/// Open files of the machine's nodes, and memory for their packets to point to.
#[derive(Debug)]
pub struct RealNodes {
    files: BTreeMap<i32, OwnedFd>,
    /// More than is handed out, so that a page boundary is in it.
    memory: Vec<u8>,
}

const PAGE: usize = 4096;

/// One request with its packet.
struct Request<'a> {
    number: u32,
    packet: &'a mut [u8],
}

// SAFETY: the argument is a packet of the size that the request or the driver's release implies,
// and it stays borrowed for the call. Addresses in it are those of `RealNodes::memory`, which the
// driver checks against what it reads and writes there, or of nothing.
unsafe impl Ioctl for Request<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        Opcode::from(self.number)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.packet.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

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

    fn file(&self, fd: i32) -> Result<&OwnedFd, Errno> {
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
        let path = match node {
            Node::Control => "/dev/nvidiactl".to_owned(),
            Node::Gpu(minor) => format!("/dev/nvidia{minor}"),
            Node::Uvm => "/dev/nvidia-uvm".to_owned(),
        };
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let fd = file.as_raw_fd();
        self.files.insert(fd, file);
        Ok(fd)
    }

    fn close(&mut self, fd: i32) {
        let file = self.files.remove(&fd);
        drop(file.expect("a descriptor is closed once"));
    }

    fn ioctl(&mut self, fd: i32, number: u32, packet: &mut [u8]) -> Result<(), Answer> {
        let file = self.file(fd)?;
        // SAFETY: see the implementation of `Ioctl`.
        unsafe { ioctl(file, Request { number, packet }) }?;
        Ok(())
    }

    fn mmap(&mut self, fd: i32, len: u64, offset: u64) -> Result<(), Answer> {
        let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let file = self.file(fd)?;
        // SAFETY: a new mapping where the kernel chooses replaces nothing.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, file, offset) }?;
        // SAFETY: the range was mapped above, and nothing has its address.
        unsafe { rustix::mm::munmap(at, len) }?;
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
