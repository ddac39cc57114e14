//! What a device string names.

use std::sync::Arc;

use vrampager_hal::{DeviceId, Discovery};
use vrampager_nv::{Nv, Planes};
use vrampager_sim::{EngineStats, SimConfig, SimDevice, SimError, Simulator};

use crate::error::Error;

const KNOWN_DEVICES: &str = "`sim:KEY=VALUE,...`, `nv:0` or `nv:sim,KEY=VALUE,...`";

/// The devices behind one back end.
#[derive(Clone, Debug)]
pub(crate) enum Machine {
    Sim(Arc<Simulator>),
    Nv(Arc<Nv>),
}

impl Machine {
    /// Reads a device string; opens nothing.
    pub(crate) fn find(device: &str) -> Result<Self, Error> {
        let (kind, rest) = device.split_once(':').unwrap_or((device, ""));
        match kind {
            "sim" => {
                let config: SimConfig = rest.parse().map_err(SimError::from)?;
                Ok(Self::Sim(Simulator::new(config)?))
            }
            "nv" => {
                let nv = Nv::new(rest.parse()?, &Planes::default());
                // There is no other plane yet that a program could share these with.
                Ok(Self::Nv(nv.expect("planes nobody else knows")))
            }
            _ => Err(Error::UnknownDevice {
                given: device.to_owned(),
                known: KNOWN_DEVICES,
            }),
        }
    }

    pub(crate) fn discovery(&self) -> Arc<dyn Discovery> {
        match self {
            Self::Sim(simulator) => Arc::clone(simulator) as Arc<dyn Discovery>,
            Self::Nv(nv) => Arc::clone(nv) as Arc<dyn Discovery>,
        }
    }

    pub(crate) fn engines(&self, id: DeviceId) -> EngineStats {
        let stats = match self {
            Self::Sim(simulator) => simulator.device(id).map(SimDevice::stats),
            Self::Nv(_) => None,
        };
        stats.unwrap_or_default()
    }
}
