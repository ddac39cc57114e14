//! Opening and closing a device under management.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vrampager_addr::PAGE_SIZE;
use vrampager_core::{FileId, Limits, Snapshot};
use vrampager_hal::{
    ChannelKind, Counters, DeviceId, DeviceInfo, Discovery, HalError, HostRange, Storage,
    TimelineId,
};
use vrampager_sim::EngineStats;

use crate::buffer::{Buffer, BufferBuilder};
use crate::error::Error;
use crate::file::{FileBacking, Source, SwapFile};
use crate::import::{Import, Imports};
use crate::machine::Machine;
use crate::shell::Shell;
use crate::submission::Submission;
use crate::worker::{Worker, reap_all};

/// How to open a [`Pager`].
#[derive(Debug)]
pub struct PagerBuilder {
    machine: Machine,
    info: DeviceInfo,
    vram: Option<u64>,
    gtt: Option<u64>,
    host: u64,
    swap: Option<(PathBuf, u64)>,
}

impl PagerBuilder {
    /// Bytes of device memory to use, which the pager takes as a whole when it is opened. Unless
    /// told it is what nobody else has taken by then: a pager that is to leave room for others
    /// says how much it wants.
    #[must_use]
    pub fn vram(mut self, bytes: u64) -> Self {
        self.vram = Some(bytes);
        self
    }

    /// Bytes of host memory for what does not fit in VRAM; 1 GiB unless told.
    #[must_use]
    pub fn host(mut self, bytes: u64) -> Self {
        self.host = bytes;
        self
    }

    /// How much of the host memory the device may see at a time; half of it unless told.
    #[must_use]
    pub fn gtt(mut self, bytes: u64) -> Self {
        self.gtt = Some(bytes);
        self
    }

    /// A swap file of `bytes` in `dir`; none unless told.
    #[must_use]
    pub fn swap(mut self, dir: impl Into<PathBuf>, bytes: u64) -> Self {
        self.swap = Some((dir.into(), bytes));
        self
    }

    /// What the device is.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Opens the device and takes it into management.
    ///
    /// # Errors
    /// [`Error::File`] for the swap file, [`Error::Device`] and [`Error::Open`] for the device;
    /// nothing is left open. When others have so much device memory that there is not as much as
    /// [`vram`](Self::vram) asks for, or none at all, that is an error of the kind
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory).
    pub fn open(self) -> Result<Pager, Error> {
        let swap_bytes = self.swap.as_ref().map_or(0, |&(_, bytes)| bytes);
        let swap = match self.swap {
            Some((dir, bytes)) if bytes > 0 => {
                let file: Arc<dyn Storage> = Arc::new(SwapFile::create(&dir, bytes)?);
                Some(file)
            }
            _ => None,
        };
        let discovery = self.machine.discovery();
        let gpu = discovery.open(self.info.id)?;
        let vram = match self
            .vram
            .map_or_else(|| all_free(&*discovery, self.info.id), Ok)
        {
            Ok(bytes) => bytes,
            Err(error) => {
                gpu.release.close();
                return Err(error.into());
            }
        };
        let limits = Limits {
            vram,
            gtt: self.gtt.unwrap_or(self.host / 2),
            host: self.host,
            swap: swap_bytes,
        };
        let (device, runner) = vrampager_core::open(gpu.clone(), limits, swap)?;
        let stream = match runner.open_stream(ChannelKind::Compute) {
            Ok(stream) => stream,
            Err(error) => {
                runner.close();
                return Err(error.into());
            }
        };
        let imports = Imports::new(gpu, self.machine.clone());
        let shell = Arc::new(Shell::new(device, runner, imports));
        let worker = Worker::start(&shell).map_err(Error::Worker)?;
        Ok(Pager {
            info: self.info,
            machine: self.machine,
            shell,
            worker: Some(worker),
            stream,
            next_file: AtomicU32::new(0),
        })
    }
}

/// What a device has left once it is open. When that is nothing, a page: it is the device that
/// refuses it, with its figures.
fn all_free(discovery: &dyn Discovery, device: DeviceId) -> Result<u64, HalError> {
    Ok(discovery.free_vram(device)?.max(PAGE_SIZE))
}

/// One GPU under management. Shared between threads by reference or in an `Arc`.
///
/// Dropping it while buffers, imports or [`Submitted`](crate::Submitted) work are alive is allowed:
/// the device closes with the last of them, and what was released until then comes back with it at
/// the latest. No pager waits for one that it shares with: an import is given back when it is
/// dropped.
#[derive(Debug)]
pub struct Pager {
    info: DeviceInfo,
    machine: Machine,
    pub(crate) shell: Arc<Shell>,
    worker: Option<Worker>,
    pub(crate) stream: TimelineId,
    next_file: AtomicU32,
}

/// A pager at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Domains, buffers and sums.
    pub manager: Snapshot,
    /// What the device holds for the manager.
    pub device: Counters,
    /// What its engines have done, as far as the device tells: zeros for others than `sim`.
    pub engines: EngineStats,
}

impl Pager {
    /// Finds the device that `device` names, such as `sim:vram=256M,bar=64M`, `nv:sim,vram=1G` for
    /// the first GPU of a simulated NVIDIA driver, or `nv:0` for one of the machine's.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`], [`Error::Configuration`] or [`Error::NvConfiguration`] naming the
    /// key that is wrong, [`Error::Device`] when there is no such device, [`Error::Planes`] for a
    /// real one while this process reaches GPUs by [PCI](crate::planes).
    pub fn builder(device: &str) -> Result<PagerBuilder, Error> {
        let first = Self::builders(device)?.into_iter().next();
        Ok(first.ok_or(HalError::NoDevice(DeviceId(0)))?)
    }

    /// All devices that `device` names, in one context: what they import is pinned once.
    ///
    /// # Errors
    /// As for [`builder`](Self::builder), but no device is an empty list.
    pub fn builders(device: &str) -> Result<Vec<PagerBuilder>, Error> {
        Self::builders_of(&Machine::find(device)?)
    }

    pub(crate) fn builders_of(machine: &Machine) -> Result<Vec<PagerBuilder>, Error> {
        let builder = |info| PagerBuilder {
            machine: machine.clone(),
            info,
            vram: None,
            gtt: None,
            host: 1 << 30,
            swap: None,
        };
        Ok(machine
            .discovery()
            .devices()?
            .into_iter()
            .map(builder)
            .collect())
    }

    /// What the device is.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Begins to describe a buffer of `len` bytes; `name` appears in reports.
    #[must_use]
    pub fn buffer(&self, name: &str, len: u64) -> BufferBuilder<'_> {
        BufferBuilder::new(self, name, len)
    }

    /// Begins to describe work for the device.
    pub fn submission(&self) -> Submission<'_> {
        Submission::new(self)
    }

    /// Lets the device use host memory that belongs to the caller, at the address that it has here.
    /// Importing a range again counts it; devices of one driver pin it once.
    ///
    /// # Errors
    /// [`Error::AddressesInUse`] for memory that overlaps a range of another import, or addresses
    /// that buffers are given; [`Error::Releasing`] while that other import is one that nobody
    /// holds any more, and its work is not over; [`Error::Device`] when the device cannot pin or
    /// map it: it is as if nothing had been asked.
    pub fn import(&self, host: &HostRange) -> Result<Import, Error> {
        crate::import::import(&self.shell, host)
    }

    /// Lets this pager's device use a buffer of another pager of the same context, at the address
    /// that it has there (mission row A8). The buffer is pinned meanwhile and counts as written.
    /// Work of the two devices is ordered by whoever submits it: wait for the one before the other
    /// is submitted.
    ///
    /// # Errors
    /// [`Error::Foreign`] unless both pagers come from one call of [`builders`](Self::builders);
    /// [`Error::Manager`] when the buffer cannot be pinned; [`Error::Device`] when this device
    /// cannot reach the other's memory.
    pub fn share(&self, buffer: &Arc<Buffer>) -> Result<Import, Error> {
        crate::import::share(&self.shell, buffer)
    }

    /// Takes an open file as backing for clean buffers. `path` is where it was opened, for reports
    /// and to see when another file takes its place.
    ///
    /// # Errors
    /// [`Error::File`] unless it is a regular file.
    pub fn file(&self, file: File, path: &Path) -> Result<Arc<FileBacking>, Error> {
        let (source, len) = Source::new(file, path)?;
        let id = FileId(self.next_file.fetch_add(1, Ordering::Relaxed));
        self.shell.runner.add_file(id, Arc::new(source));
        let (shell, path) = (self.shell.clone(), path.to_path_buf());
        Ok(Arc::new(FileBacking {
            shell,
            id,
            path,
            len,
        }))
    }

    /// Everything at this moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let manager = self.shell.lock_observed().snapshot();
        let device = self.shell.runner.counters();
        Stats {
            manager,
            device,
            engines: self.machine.engines(self.info.id),
        }
    }

    /// Verifies every invariant of the manager; linear in the number of buffers.
    ///
    /// # Panics
    /// With the name of the invariant that is broken.
    pub fn check(&self) {
        self.shell.lock().check();
    }

    /// Brings back all released memory, for which it waits for the work of other pagers' imports
    /// that nobody holds any more, 15 seconds at most; closes the device and returns what it would
    /// not take back: all zero unless the device misbehaved.
    ///
    /// # Errors
    /// [`Error::InUse`] while buffers or imports are alive. The device then closes with the last of
    /// them.
    pub fn close(mut self) -> Result<Counters, Error> {
        self.shell.settle_borrowers();
        drop(self.worker.take());
        reap_all(&self.shell);
        let buffers = self.shell.lock().snapshot().buffers;
        let imports = self.shell.imports.alive();
        if buffers > 0 || imports > 0 {
            return Err(Error::InUse { buffers, imports });
        }
        Ok(self.shell.runner.close())
    }
}

/// All devices that `device` names, without opening any.
///
/// # Errors
/// As for [`Pager::builder`].
pub fn discover(device: &str) -> Result<Arc<dyn Discovery>, Error> {
    Ok(Machine::find(device)?.discovery())
}
