//! Registering GPUs, their VA spaces, their channels, and peers.

use vrampager_addr::{PAGE, Span};
use vrampager_nv_abi::neutral::UnregisterChannel;
use vrampager_nv_abi::{Handle, Status, Uuid, uvm};
use zerocopy::IntoBytes;

use super::{ChannelReg, Range, RangeKind, ordered, parse};
use crate::config::Arch;
use crate::rm::{Aperture, Client, Kind};
use crate::store::{Process, Store};
use crate::vas::{Entry, Origin, VasId};
use crate::{Driver, FileId};

/// Addresses that the resources of one channel take.
const CHANNEL_RESOURCES: u64 = 2 << 20;

impl<S: Store> Driver<S> {
    pub(super) fn uvm_register_gpu(
        &mut self,
        file: FileId,
        packet: &mut [u8],
    ) -> Result<(), Status> {
        let mut request: uvm::RegisterGpu = parse(packet);
        let gpu = self
            .gpu_by_uuid(&request.uuid)
            .ok_or(Status::GPU_UUID_NOT_FOUND)?;
        let space = self.space_mut(file)?;
        space.check_mm()?;
        if space.gpus.contains_key(&gpu) {
            return Err(Status::INVALID_DEVICE);
        }
        space.gpus.insert(gpu, None);
        request.numa_enabled = 0;
        request.numa_node = -1;
        packet.copy_from_slice(request.as_bytes());
        Ok(())
    }

    pub(super) fn uvm_unregister_gpu(
        &mut self,
        file: FileId,
        request: &uvm::UnregisterGpu,
    ) -> Result<(), Status> {
        let (gpu, _) = self.registered_gpu(file, &request.uuid)?;
        self.drop_gpu(file, gpu);
        Ok(())
    }

    /// A registered GPU and its registered VA space.
    pub(super) fn registered_gpu(
        &self,
        file: FileId,
        uuid: &Uuid,
    ) -> Result<(usize, Option<VasId>), Status> {
        let gpu = self.gpu_by_uuid(uuid).ok_or(Status::INVALID_DEVICE)?;
        let vas = self.space(file)?.registered(gpu)?;
        Ok((gpu, vas))
    }

    /// The client that a control file's descriptor and a handle name.
    pub(super) fn uvm_client(
        &self,
        process: &dyn Process,
        fd: i32,
        client: Handle,
    ) -> Result<&Client, Status> {
        let control = process.file(fd).ok_or(Status::INVALID_ARGUMENT)?;
        self.client(control, client)
    }

    pub(super) fn uvm_register_vas(
        &mut self,
        process: &dyn Process,
        file: FileId,
        request: &uvm::RegisterGpuVaspace,
    ) -> Result<(), Status> {
        let (gpu, registered) = self.registered_gpu(file, &request.uuid)?;
        if registered.is_some() {
            return Err(Status::INVALID_DEVICE);
        }
        self.space(file)?.check_mm()?;
        self.uvm_client(process, request.rm_ctrl_fd, request.client)?;
        let id = self.vas_object(request.client, request.vaspace)?;
        let vas = self.vas.get_mut(&id).expect("its object holds it");
        if vas.gpu != gpu {
            return Err(Status::INVALID_DEVICE);
        }
        if !vas.external || !vas.faulting || vas.uvm.is_some() {
            return Err(Status::INVALID_FLAGS);
        }
        vas.uvm = Some(file);
        self.retain_vas(id);
        self.space_mut(file)?.gpus.insert(gpu, Some(id));
        Ok(())
    }

    pub(super) fn uvm_unregister_vas(
        &mut self,
        file: FileId,
        request: &uvm::UnregisterGpu,
    ) -> Result<(), Status> {
        let (gpu, vas) = self.registered_gpu(file, &request.uuid)?;
        vas.ok_or(Status::INVALID_DEVICE)?;
        self.drop_vas(file, gpu);
        Ok(())
    }

    /// Takes a GPU's VA space out: its channels stop, its mappings go.
    fn drop_vas(&mut self, file: FileId, gpu: usize) {
        let space = self.space_mut(file).expect("the caller has the space");
        let Some(id) = space.gpus.get_mut(&gpu).and_then(Option::take) else {
            return;
        };
        let channels: Vec<(Handle, Handle)> = space
            .channels
            .iter()
            .filter(|(_, channel)| channel.gpu == gpu)
            .map(|(&key, _)| key)
            .collect();
        for key in channels {
            self.drop_channel(file, key);
        }
        let vas = self.vas.get_mut(&id).expect("the registration held it");
        vas.uvm = None;
        let everything = Span::from_bounds(0, u64::MAX).expect("zero is the lowest address");
        let carved = vas.table.carve(everything);
        for mem in carved.released {
            self.release(mem);
        }
        self.release_vas(id);
    }

    /// Takes a GPU out, and the ranges with the last one.
    pub(super) fn drop_gpu(&mut self, file: FileId, gpu: usize) {
        self.drop_vas(file, gpu);
        let space = self.space_mut(file).expect("the caller has the space");
        let peers = space.gpus.keys().copied().filter(|&other| other != gpu);
        for other in peers.collect::<Vec<_>>() {
            self.unmap_peer(file, other, gpu);
        }
        let space = self.space_mut(file).expect("the caller has the space");
        space.gpus.remove(&gpu);
        space.peers.retain(|&(a, b)| a != gpu && b != gpu);
    }

    pub(super) fn uvm_register_channel(
        &mut self,
        process: &dyn Process,
        file: FileId,
        request: &uvm::RegisterChannel,
    ) -> Result<(), Status> {
        let (gpu, vas) = self.registered_gpu(file, &request.uuid)?;
        let vas = vas.ok_or(Status::INVALID_DEVICE)?;
        self.space(file)?.check_mm()?;
        let client = self.uvm_client(process, request.rm_ctrl_fd, request.client)?;
        let Kind::Channel(id) = client.object(request.channel)?.kind else {
            return Err(Status::INVALID_CHANNEL);
        };
        let key = (request.client, request.channel);
        if self.space(file)?.channels.contains_key(&key) || self.channels[&id].vas != vas {
            return Err(Status::INVALID_CHANNEL);
        }
        let base = self.channel_room(file, request.base, request.length)?;
        let space = self.space_mut(file)?;
        space.channels.insert(key, ChannelReg { id, gpu, base });
        let range = Range {
            len: CHANNEL_RESOURCES,
            kind: RangeKind::Channel,
        };
        space.ranges.insert(base, range);
        self.channels.get_mut(&id).expect("its object holds it").uvm = Some(file);
        Ok(())
    }

    /// The first free addresses for a channel's resources inside what the client offers.
    fn channel_room(&self, file: FileId, base: u64, length: u64) -> Result<u64, Status> {
        let limit = match self.config.arch {
            Arch::Ampere | Arch::Ada => 1 << 40,
            Arch::Blackwell => 1 << 57,
        };
        let span = Span::new(base, length).ok_or(Status::INVALID_ADDRESS)?;
        if span.is_empty() || !PAGE.divides(base) || !PAGE.divides(length) {
            return Err(Status::INVALID_ADDRESS);
        }
        if span.end() > limit {
            return Err(Status::OUT_OF_RANGE);
        }
        let space = self.space(file)?;
        let mut at = base;
        // Each range is stepped over once, whatever its size.
        while at + CHANNEL_RESOURCES <= span.end() {
            match space.first_overlap(at, CHANNEL_RESOURCES) {
                Some((start, range)) => at = start + range.len,
                None => return Ok(at),
            }
        }
        Err(Status::INVALID_ADDRESS)
    }

    pub(super) fn uvm_unregister_channel(
        &mut self,
        file: FileId,
        request: &UnregisterChannel,
    ) -> Result<(), Status> {
        let key = (request.client, request.channel);
        if !self.space(file)?.channels.contains_key(&key) {
            return Err(Status::INVALID_CHANNEL);
        }
        self.drop_channel(file, key);
        Ok(())
    }

    /// Forgets a registered channel and gives its addresses back; it does not run any more.
    pub(crate) fn drop_channel(&mut self, file: FileId, key: (Handle, Handle)) {
        let space = self.space_mut(file).expect("the caller has the space");
        let gone = space.channels.remove(&key).expect("the caller found it");
        space.ranges.remove(&gone.base);
        if let Some(channel) = self.channels.get_mut(&gone.id) {
            channel.uvm = None;
        }
    }

    pub(super) fn uvm_enable_peers(
        &mut self,
        file: FileId,
        request: &uvm::PeerAccess,
    ) -> Result<(), Status> {
        let pair = self.peer_pair(file, request)?;
        let new = self.space_mut(file)?.peers.insert(pair);
        new.then_some(()).ok_or(Status::INVALID_DEVICE)
    }

    pub(super) fn uvm_disable_peers(
        &mut self,
        file: FileId,
        request: &uvm::PeerAccess,
    ) -> Result<(), Status> {
        let pair = self.peer_pair(file, request)?;
        let known = self.space_mut(file)?.peers.remove(&pair);
        known.then_some(()).ok_or(Status::INVALID_DEVICE)?;
        self.unmap_peer(file, pair.0, pair.1);
        self.unmap_peer(file, pair.1, pair.0);
        Ok(())
    }

    /// Removes what one GPU has mapped of the memory of another.
    fn unmap_peer(&mut self, file: FileId, gpu: usize, owner: usize) {
        let registered = self.space(file).and_then(|space| space.registered(gpu));
        let Ok(Some(id)) = registered else {
            return;
        };
        let everything = Span::from_bounds(0, u64::MAX).expect("zero is the lowest address");
        let mapped: Vec<(u64, Entry)> = self.vas[&id].table.overlapping(everything).collect();
        for (start, entry) in mapped {
            let peer = self.mem(entry.mem).aperture == Aperture::Vidmem(owner);
            if peer && entry.origin == Origin::Uvm {
                let vas = self.vas.get_mut(&id).expect("its registration holds it");
                vas.table.remove(start);
                self.release(entry.mem);
            }
        }
    }

    fn peer_pair(&self, file: FileId, request: &uvm::PeerAccess) -> Result<(usize, usize), Status> {
        let (a, _) = self.registered_gpu(file, &request.uuid_a)?;
        let (b, _) = self.registered_gpu(file, &request.uuid_b)?;
        (a != b)
            .then_some(ordered(a, b))
            .ok_or(Status::INVALID_DEVICE)
    }
}
