//! The nodes of the machine, as a door.
#![expect(unsafe_code, reason = "the driver is reached by ioctl on raw packets")]

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use vrampager_nv_abi::Node;

use crate::door::{Door, Fd, Part, Progress, put_address};
use crate::node::NodeFile;
use crate::pages::Window;

/// Open files of the machine's nodes.
#[derive(Debug, Default)]
pub(crate) struct RealNodes {
    files: Mutex<BTreeMap<Fd, NodeFile>>,
}

impl RealNodes {
    fn files(&self) -> MutexGuard<'_, BTreeMap<Fd, NodeFile>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Door for RealNodes {
    fn open_once(&self, node: Node) -> Result<Fd, Errno> {
        let file = NodeFile::open(node)?;
        let fd = Fd(file.as_raw_fd());
        self.files().insert(fd, file);
        Ok(fd)
    }

    fn close(&self, fd: Fd) {
        let file = self.files().remove(&fd);
        drop(file.expect("only open files are closed"));
    }

    fn ioctl_once(
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
        // The table stays locked, so that no other thread closes the file meanwhile. It orders
        // requests, which the driver orders anyway.
        let files = self.files();
        let file = files.get(&fd).ok_or(Errno::BADF)?;
        // SAFETY: `rm` builds packets of the driver's own layouts. Their parts are borrowed for
        // the call and as large as what the request reads and writes there; other addresses are
        // of pages that stay mapped as long as they are pinned.
        unsafe { file.ioctl(number, packet) }
    }

    fn mmap_once(&self, fd: Fd, len: u64) -> Result<Window, Errno> {
        let files = self.files();
        Window::of_file(files.get(&fd).ok_or(Errno::BADF)?, len)
    }

    fn run(&self) -> Progress {
        Progress::Unknown
    }
}
