//! Unified memory: a VA space per file, shared by all GPUs registered with it.
//!
//! Memory mapped here is referenced (the driver duplicates it), so it outlives its object in the
//! resource manager until it is unmapped here too.

mod external;
mod gpu;

use std::collections::{BTreeMap, BTreeSet};

use vrampager_nv_abi::neutral::{UnregisterChannel, UvmFree};
use vrampager_nv_abi::{Handle, Status, Uuid, uvm};
use zerocopy::{FromBytes, IntoBytes};

use crate::channel::ChannelId;
use crate::inject::{Failure, Kind};
use crate::store::{Process, Store};
use crate::vas::VasId;
use crate::{Driver, Errno, FileId};

/// What a file of the unified memory node is used for.
#[derive(Debug)]
pub(crate) enum UvmFile {
    /// Nothing yet.
    Fresh,
    /// It has a VA space.
    Space(Box<UvmSpace>),
    /// It ties the VA space of another file to the memory of its process.
    Mm { space: FileId },
}

/// Whether the VA space is tied to its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mm {
    /// Not asked for; the simulated kernel does not need it.
    Unused,
    Alive,
    /// The file that tied it is closed: nothing new can be registered or mapped.
    Released,
}

/// A VA space.
#[derive(Debug)]
pub(crate) struct UvmSpace {
    flags: u64,
    mm: Mm,
    pub(crate) gpus: BTreeMap<usize, Option<VasId>>,
    peers: BTreeSet<(usize, usize)>,
    pub(crate) ranges: BTreeMap<u64, Range>,
    pub(crate) channels: BTreeMap<(Handle, Handle), ChannelReg>,
}

/// A registered channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelReg {
    id: ChannelId,
    gpu: usize,
    /// Start of the range that its resources take.
    base: u64,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) len: u64,
    kind: RangeKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RangeKind {
    External,
    Channel,
}

impl UvmSpace {
    fn new(flags: u64) -> Self {
        Self {
            flags,
            mm: Mm::Unused,
            gpus: BTreeMap::new(),
            peers: BTreeSet::new(),
            ranges: BTreeMap::new(),
            channels: BTreeMap::new(),
        }
    }

    fn check_mm(&self) -> Result<(), Status> {
        match self.mm {
            Mm::Unused | Mm::Alive => Ok(()),
            Mm::Released => Err(Status::PAGE_TABLE_NOT_AVAIL),
        }
    }

    /// Whether a GPU is registered; its VA space, if that is too.
    fn registered(&self, gpu: usize) -> Result<Option<VasId>, Status> {
        self.gpus.get(&gpu).copied().ok_or(Status::INVALID_DEVICE)
    }

    fn peers(&self, a: usize, b: usize) -> bool {
        self.peers.contains(&ordered(a, b))
    }

    /// The range that has `base`.
    fn range_at(&self, base: u64) -> Option<(u64, Range)> {
        let (&start, range) = self.ranges.range(..=base).next_back()?;
        (base - start < range.len).then_some((start, *range))
    }

    /// The lowest range that shares an address with `[base, base + len)`.
    fn first_overlap(&self, base: u64, len: u64) -> Option<(u64, Range)> {
        let next = || self.ranges.range(base..base + len).next();
        self.range_at(base)
            .or_else(|| next().map(|(&start, range)| (start, *range)))
    }

    fn overlaps(&self, base: u64, len: u64) -> bool {
        self.first_overlap(base, len).is_some()
    }
}

fn ordered(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

/// Reads a packet whose size the caller has checked.
fn parse<T: FromBytes>(packet: &[u8]) -> T {
    let parsed = T::read_from_bytes(packet);
    parsed.expect("checked against the command's size")
}

impl<S: Store> Driver<S> {
    pub(crate) fn uvm_ioctl(
        &mut self,
        process: &dyn Process,
        file: FileId,
        command: u32,
        packet: &mut [u8],
    ) -> Result<(), Errno> {
        if command == uvm::DEINITIALIZE {
            return Ok(());
        }
        let (size, offset) = uvm::params_size(self.abi, command).ok_or(Errno::Inval)?;
        if packet.len() != size {
            return Err(Errno::Inval);
        }
        let status = match self.injector.count(Kind::Uvm, command) {
            Some(Failure::Errno(errno)) => return Err(errno),
            Some(Failure::Status(status)) => status,
            None => self
                .uvm_command(process, file, command, packet)
                .err()
                .unwrap_or(Status::OK),
        };
        packet[offset..offset + 4].copy_from_slice(&status.0.to_le_bytes());
        Ok(())
    }

    fn uvm_command(
        &mut self,
        process: &dyn Process,
        file: FileId,
        command: u32,
        packet: &mut [u8],
    ) -> Result<(), Status> {
        match command {
            uvm::INITIALIZE => return self.uvm_initialize(file, &parse(packet)),
            uvm::MM_INITIALIZE => return self.uvm_mm_initialize(process, file, &parse(packet)),
            _ => {}
        }
        self.space(file)?;
        match command {
            uvm::REGISTER_GPU => self.uvm_register_gpu(file, packet),
            uvm::UNREGISTER_GPU => self.uvm_unregister_gpu(file, &parse(packet)),
            uvm::REGISTER_GPU_VASPACE => self.uvm_register_vas(process, file, &parse(packet)),
            uvm::UNREGISTER_GPU_VASPACE => self.uvm_unregister_vas(file, &parse(packet)),
            uvm::REGISTER_CHANNEL => self.uvm_register_channel(process, file, &parse(packet)),
            uvm::UNREGISTER_CHANNEL => {
                let request = UnregisterChannel::decode(self.abi, packet);
                let request = request.expect("checked against the command's size");
                self.uvm_unregister_channel(file, &request)
            }
            uvm::ENABLE_PEER_ACCESS => self.uvm_enable_peers(file, &parse(packet)),
            uvm::DISABLE_PEER_ACCESS => self.uvm_disable_peers(file, &parse(packet)),
            uvm::CREATE_EXTERNAL_RANGE => self.uvm_create_range(file, &parse(packet)),
            uvm::MAP_EXTERNAL_ALLOCATION => self.uvm_map(process, file, &parse(packet)),
            uvm::UNMAP_EXTERNAL => self.uvm_unmap(file, &parse(packet)),
            uvm::FREE => {
                let request = UvmFree::decode(self.abi, packet);
                self.uvm_free(file, &request.expect("checked against the command's size"))
            }
            uvm::VALIDATE_VA_RANGE => self.uvm_validate(file, &parse(packet)),
            _ => {
                let mut answer: uvm::PageableMemAccess = parse(packet);
                answer.pageable = 0;
                packet.copy_from_slice(answer.as_bytes());
                Ok(())
            }
        }
    }

    fn uvm_initialize(&mut self, file: FileId, request: &uvm::Initialize) -> Result<(), Status> {
        let open = self
            .files
            .get_mut(&file)
            .expect("dispatched on an open file");
        match &open.uvm {
            UvmFile::Fresh => {
                open.uvm = UvmFile::Space(Box::new(UvmSpace::new(request.flags)));
                Ok(())
            }
            UvmFile::Space(space) if space.flags == request.flags => Ok(()),
            UvmFile::Space(_) | UvmFile::Mm { .. } => Err(Status::INVALID_ARGUMENT),
        }
    }

    fn uvm_mm_initialize(
        &mut self,
        process: &dyn Process,
        file: FileId,
        request: &uvm::MmInitialize,
    ) -> Result<(), Status> {
        let target = process
            .file(request.uvm_fd)
            .ok_or(Status::INVALID_ARGUMENT)?;
        if target == file {
            return Err(Status::IN_USE);
        }
        let space = self
            .space_mut(target)
            .map_err(|_| Status::INVALID_ARGUMENT)?;
        match space.mm {
            Mm::Unused => {}
            Mm::Alive => return Err(Status::INVALID_STATE),
            Mm::Released => return Err(Status::PAGE_TABLE_NOT_AVAIL),
        }
        let open = self
            .files
            .get_mut(&file)
            .expect("dispatched on an open file");
        if !matches!(open.uvm, UvmFile::Fresh) {
            return Err(Status::IN_USE);
        }
        open.uvm = UvmFile::Mm { space: target };
        self.space_mut(target).expect("found above").mm = Mm::Alive;
        Ok(())
    }

    /// The VA space of a file; without one, nothing but making one is allowed.
    pub(crate) fn space(&self, file: FileId) -> Result<&UvmSpace, Status> {
        match self.files.get(&file).map(|file| &file.uvm) {
            Some(UvmFile::Space(space)) => Ok(space),
            Some(UvmFile::Fresh | UvmFile::Mm { .. }) | None => Err(Status::ILLEGAL_ACTION),
        }
    }

    pub(crate) fn space_mut(&mut self, file: FileId) -> Result<&mut UvmSpace, Status> {
        match self.files.get_mut(&file).map(|file| &mut file.uvm) {
            Some(UvmFile::Space(space)) => Ok(space),
            Some(UvmFile::Fresh | UvmFile::Mm { .. }) | None => Err(Status::ILLEGAL_ACTION),
        }
    }

    /// What closing a UVM file does: the VA space goes with channels, ranges and registrations.
    pub(crate) fn close_uvm(&mut self, file: FileId) {
        if let Some(UvmFile::Mm { space }) = self.files.get(&file).map(|file| &file.uvm) {
            let space = *space;
            if let Ok(space) = self.space_mut(space) {
                space.mm = Mm::Released;
            }
            return;
        }
        let Ok(space) = self.space(file) else {
            return;
        };
        let gpus: Vec<usize> = space.gpus.keys().copied().collect();
        for gpu in gpus {
            self.drop_gpu(file, gpu);
        }
    }

    fn gpu_by_uuid(&self, uuid: &Uuid) -> Option<usize> {
        self.gpus.iter().position(|gpu| gpu.uuid == *uuid)
    }
}
