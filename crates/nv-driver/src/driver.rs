//! The whole machine: files, resource manager, address spaces, channels, GPUs.

use std::collections::BTreeMap;

use vrampager_nv_abi::{AbiVersion, Uuid};

use crate::channel::{Channel, ChannelId};
use crate::config::{Arch, Config};
use crate::counters::Counted;
use crate::file::{File, FileId};
use crate::inject::{Injection, Injector};
use crate::rm::Rm;
use crate::store::Store;
use crate::vas::{Vas, VasId};

/// A GPU.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) uuid: Uuid,
    pub(crate) vram_used: u64,
    pub(crate) bar1_used: u64,
}

impl Gpu {
    fn new(index: usize) -> Self {
        let mut uuid = *b"vrampager-gpu-\0\0";
        uuid[15] = u8::try_from(index).expect("at most 32 GPUs");
        Self {
            uuid,
            vram_used: 0,
            bar1_used: 0,
        }
    }
}

impl Arch {
    /// PCI device number of a well-known card of this generation.
    pub(crate) fn device_id(self) -> u16 {
        match self {
            Self::Ampere => 0x2204,
            Self::Ada => 0x2684,
            Self::Blackwell => 0x2B85,
        }
    }
}

/// The driver and its machine. See the crate's documentation.
#[derive(Debug)]
pub struct Driver<S> {
    pub(crate) config: Config,
    pub(crate) abi: AbiVersion,
    pub(crate) store: S,
    pub(crate) files: BTreeMap<FileId, File>,
    pub(crate) rm: Rm,
    pub(crate) vas: BTreeMap<VasId, Vas>,
    pub(crate) channels: BTreeMap<ChannelId, Channel>,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) host_used: u64,
    pub(crate) memblock_size: Option<u64>,
    pub(crate) injector: Injector,
    pub(crate) counted: Counted,
    pub(crate) next_file: u64,
    pub(crate) next_vas: u64,
    pub(crate) next_channel: u64,
}

impl<S: Store> Driver<S> {
    /// A machine as configured, with nothing open.
    #[must_use]
    pub fn new(config: Config, store: S) -> Self {
        Self {
            abi: config.abi(),
            gpus: (0..config.gpus).map(Gpu::new).collect(),
            injector: Injector::new(config.injections.clone()),
            config,
            store,
            files: BTreeMap::new(),
            rm: Rm::default(),
            vas: BTreeMap::new(),
            channels: BTreeMap::new(),
            host_used: 0,
            memblock_size: None,
            counted: Counted::default(),
            next_file: 0,
            next_vas: 0,
            next_channel: 0,
        }
    }

    /// What the machine is.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The memory behind it.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The memory behind it, to be changed as a CPU mapping does.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// Makes a request to come fail.
    pub fn inject(&mut self, injection: Injection) {
        self.injector.add(injection);
    }

    /// Failures still to come.
    #[must_use]
    pub fn pending_injections(&self) -> usize {
        self.injector.pending()
    }

    /// Forgets the failures still to come.
    pub fn clear_injections(&mut self) {
        self.injector.clear();
    }
}
