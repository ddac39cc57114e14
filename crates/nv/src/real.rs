//! The nodes of the machine: `/dev/nvidiactl`, `/dev/nvidiaN`, `/dev/nvidia-uvm`.
#![expect(unsafe_code, reason = "the driver is reached by ioctl on raw packets")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use vrampager_nv_driver::Node;

use crate::door::{Door, Fd, Part, Progress, put_address};
use crate::pages::Window;

/// Open files of the machine's nodes.
#[derive(Debug, Default)]
pub(crate) struct RealNodes {
    files: Mutex<BTreeMap<Fd, OwnedFd>>,
}

/// One request with its packet. The pointers inside the packet are valid for the call.
struct Request<'a> {
    number: u32,
    packet: &'a mut [u8],
}

// SAFETY: the argument is a packet of the size that the request number or the command implies, as
// `rm` builds it from the driver's own layouts, and it stays borrowed for the call.
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

impl RealNodes {
    fn files(&self) -> MutexGuard<'_, BTreeMap<Fd, OwnedFd>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Door for RealNodes {
    fn open(&self, node: Node) -> Result<Fd, Errno> {
        let path = match node {
            Node::Control => "/dev/nvidiactl".to_owned(),
            Node::Gpu(minor) => format!("/dev/nvidia{minor}"),
            Node::Uvm => "/dev/nvidia-uvm".to_owned(),
        };
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let fd = Fd(file.as_raw_fd());
        self.files().insert(fd, file);
        Ok(fd)
    }

    fn close(&self, fd: Fd) {
        let file = self.files().remove(&fd);
        drop(file.expect("only open files are closed"));
    }

    fn ioctl(
        &self,
        fd: Fd,
        number: u32,
        packet: &mut [u8],
        parts: &mut [Part<'_>],
    ) -> Result<(), Errno> {
        let mut rest = parts;
        let mut into = &mut *packet;
        while let Some((part, more)) = rest.split_first_mut() {
            let address = part.bytes.as_mut_ptr().expose_provenance() as u64;
            put_address(into, part.at, address);
            (into, rest) = (&mut *part.bytes, more);
        }
        // A duplicate would be a second file to the driver: the table stays locked instead, which
        // orders requests that the driver would order anyway.
        let files = self.files();
        let file = files.get(&fd).ok_or(Errno::BADF)?;
        // SAFETY: see the implementation of `Ioctl`; parts are borrowed for the call, and sized
        // for what the request reads and writes there.
        unsafe { ioctl(file, Request { number, packet }) }
    }

    fn mmap(&self, fd: Fd, len: u64) -> Result<Window, Errno> {
        let files = self.files();
        Window::of_file(files.get(&fd).ok_or(Errno::BADF)?.as_fd(), len)
    }

    fn run(&self) -> Progress {
        Progress::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_driver_is_an_error_of_the_system_call() {
        let nodes = RealNodes::default();
        match nodes.open(Node::Gpu(250)) {
            Err(errno) => assert!(matches!(errno, Errno::NOENT | Errno::ACCESS | Errno::NXIO)),
            Ok(_) => panic!("there is no GPU of that number"),
        }
    }
}
