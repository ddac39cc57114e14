//! What a device string names.

use std::sync::{Arc, LazyLock};

use vrampager_hal::{DeviceId, Discovery};
use vrampager_nv::{Nv, Planes};
use vrampager_sim::{EngineStats, SimConfig, SimDevice, SimError, Simulator};

use crate::error::Error;

const KNOWN_DEVICES: &str = "`sim:KEY=VALUE,...`, `nv`, `nv:0` or `nv:sim,KEY=VALUE,...`";

/// Which plane this process uses to reach real GPUs. What the planes would overwrite for each
/// other are addresses of the process, so this belongs to the process and to no device.
static PLANES: LazyLock<Planes> = LazyLock::new(Planes::default);

/// Which way this process reaches real GPUs: through their kernel driver, or through their PCI
/// registers, but never both, because each maps memory at addresses that it takes for its own
/// (mission row A2). Devices found by [`Pager::builder`](crate::Pager::builder) or
/// [`discover`](crate::discover) are counted here until they are dropped; a program that reaches
/// GPUs by PCI itself enters that plane here first.
///
/// # Examples
/// ```
/// use vrampager::{Plane, planes};
///
/// let mine = planes().enter(Plane::Pci)?;
/// let error = vrampager::discover("nv:0").unwrap_err();
/// let text = "the kernel driver plane cannot be used while the PCI plane is";
/// assert_eq!(error.to_string(), text);
/// drop(mine);
/// # Ok::<(), vrampager::PlanesError>(())
/// ```
#[must_use]
pub fn planes() -> &'static Planes {
    &PLANES
}

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
            "nv" => Ok(Self::Nv(Nv::new(rest.parse()?, planes())?)),
            _ => Err(Error::UnknownDevice {
                given: device.to_owned(),
                known: KNOWN_DEVICES,
            }),
        }
    }

    /// Whether both are the same context, in which devices know one another.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Sim(one), Self::Sim(other)) => Arc::ptr_eq(one, other),
            (Self::Nv(one), Self::Nv(other)) => Arc::ptr_eq(one, other),
            (Self::Sim(_), Self::Nv(_)) | (Self::Nv(_), Self::Sim(_)) => false,
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
