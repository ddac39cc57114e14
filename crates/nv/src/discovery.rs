//! Finding GPUs and opening them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vrampager_hal::{DeviceId, DeviceInfo, Discovery, Gpu, HalError, Memory, Queue, Release};
use vrampager_nv_abi::ctrl;
use vrampager_nv_abi::escape::CardInfo;

use crate::config::{Config, Machine};
use crate::context::{Context, Link, Stages};
use crate::device::{self, Device};
use crate::door::Door;
use crate::plane::{Hold, Plane, Planes, PlanesError};
use crate::real::RealNodes;
use crate::session::{self, Session};
use crate::sim::SimNodes;
use crate::zones::zones;

/// The GPUs behind one driver, real or simulated: the discovery contract.
///
/// It is all the state there is: two of them know nothing of one another. The devices of one
/// reach memory of each other, as far as the hardware connects them.
#[derive(Debug)]
pub struct Nv {
    context: Arc<Context>,
    simulated: Option<Arc<SimNodes>>,
    /// Minor numbers that may be seen.
    visible: Option<Vec<u32>>,
    slots: Mutex<BTreeMap<DeviceId, Arc<Slot>>>,
    /// Keeps the other real control plane out.
    _hold: Option<Hold>,
}

/// What outlives an open.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    open: AtomicBool,
    refused: Mutex<Vec<HalError>>,
}

impl Slot {
    pub(crate) fn closed(&self, refused: Vec<HalError>) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = refused;
        self.open.store(false, Ordering::Release);
    }
}

impl Nv {
    /// The GPUs that `config` describes, all closed. Real ones take the kernel driver's place in
    /// `planes` as long as this lives; simulated ones do not care.
    ///
    /// # Errors
    /// [`PlanesError`] while the PCI plane is in use.
    pub fn new(config: Config, planes: &Planes) -> Result<Arc<Self>, PlanesError> {
        let (door, simulated, hold): (Arc<dyn Door>, _, _) = match config.machine {
            Machine::Real => {
                let hold = planes.enter(Plane::KernelDriver)?;
                (Arc::new(RealNodes::default()), None, Some(hold))
            }
            Machine::Simulated(machine) => {
                let nodes = Arc::new(SimNodes::new(machine));
                (Arc::clone(&nodes) as Arc<dyn Door>, Some(nodes), None)
            }
        };
        Ok(Arc::new(Self {
            context: Arc::new(Context::new(door)),
            simulated,
            visible: config.visible,
            slots: Mutex::default(),
            _hold: hold,
        }))
    }

    /// The simulated driver behind it, if it is one.
    #[must_use]
    pub fn simulated(&self) -> Option<&SimNodes> {
        self.simulated.as_deref()
    }

    /// What the driver refused to take back when the device was last closed, first refusal first:
    /// nothing from a driver that works. The kernel drops such things with the device's files.
    #[must_use]
    pub fn refused(&self, id: DeviceId) -> Vec<HalError> {
        let slot = self.slot(id);
        let refused = slot.refused.lock();
        refused.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn slot(&self, id: DeviceId) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry(id).or_default())
    }

    /// The cards that may be seen, in order of their minor numbers.
    fn cards(&self) -> Result<Vec<CardInfo>, HalError> {
        let mut cards = device::cards(&*self.context.door)?;
        if let Some(visible) = &self.visible {
            cards.retain(|card| visible.contains(&card.minor));
        }
        Ok(cards)
    }

    fn card(&self, id: DeviceId) -> Result<CardInfo, HalError> {
        let index = usize::try_from(id.0).expect("32 bits fit");
        let card = self.cards()?.into_iter().nth(index);
        card.ok_or(HalError::NoDevice(id))
    }

    /// Asks a device something, open or not, as a client of its own.
    fn ask<T>(
        &self,
        id: DeviceId,
        card: &CardInfo,
        question: impl FnOnce(&Device) -> Result<T, HalError>,
    ) -> Result<T, HalError> {
        let link = Link::closed(&self.context.door);
        let mut device = Device::closed(&self.context, link, (id, 0));
        let mut stages = Stages::new();
        let asked = device.link.make_client(&mut stages);
        let asked = asked.and_then(|()| device.attach(card, &mut stages));
        let asked = asked.and_then(|()| question(&device));
        // Closing the files takes along whatever the driver does not let go by itself.
        drop(device.undo_all(stages));
        asked
    }

    fn start(&self, id: DeviceId, card: &CardInfo, slot: &Arc<Slot>) -> Result<Session, HalError> {
        let (link, open) = self.context.join()?;
        let mut device = Device::closed(&self.context, link, (id, open));
        let mut stages = Stages::new();
        let up = device.attach(card, &mut stages);
        let up = up.and_then(|()| device.bring_up(&mut stages));
        let up = up.and_then(|timelines| Ok((timelines, info(&device, card)?)));
        match up {
            Ok((timelines, info)) => {
                let slot = Arc::clone(slot);
                Ok(Session::new(device, stages, timelines, (info, slot)))
            }
            Err(error) => {
                // The first error is the one to report.
                let refused = device.undo_all(stages);
                drop(self.context.leave(device.lasting(&refused)));
                Err(error)
            }
        }
    }
}

fn info(device: &Device, card: &CardInfo) -> Result<DeviceInfo, HalError> {
    let (domain, bus, slot) = (card.domain, card.bus, card.slot);
    let properties = device.properties()?;
    let mut unsupported = device.query_classes()?.missing();
    if properties.is_empty() {
        unsupported.push("telling of its multiprocessors");
    }
    Ok(DeviceInfo {
        id: device.id,
        name: format!(
            "NVIDIA {:04x} at {domain:04x}:{bus:02x}:{slot:02x}",
            card.device_id
        ),
        vram_bytes: device.memory_info(ctrl::fb::HEAP_SIZE)?,
        aperture_bytes: device.memory_info(ctrl::fb::BAR1_SIZE)?,
        zones: zones(card.minor)?,
        properties,
        unsupported,
    })
}

impl Discovery for Nv {
    fn devices(&self) -> Result<Vec<DeviceInfo>, HalError> {
        let cards = self.cards()?;
        let numbered = (0..).map(DeviceId).zip(&cards);
        let describe = |(id, card)| self.ask(id, card, |device| info(device, card));
        numbered.map(describe).collect()
    }

    fn free_vram(&self, id: DeviceId) -> Result<u64, HalError> {
        let free = self.ask(id, &self.card(id)?, |device| {
            Ok(device.memory_info(ctrl::fb::HEAP_FREE)?)
        })?;
        Ok(session::whole_pages(free))
    }

    fn open(&self, id: DeviceId) -> Result<Gpu, HalError> {
        let card = self.card(id)?;
        let slot = self.slot(id);
        if slot.open.swap(true, Ordering::AcqRel) {
            return Err(HalError::Busy(id));
        }
        match self.start(id, &card, &slot) {
            Ok(session) => {
                let session = Arc::new(session);
                self.context.publish(id, &session);
                Ok(Gpu {
                    info: session.info().clone(),
                    memory: Arc::clone(&session) as Arc<dyn Memory>,
                    queue: Arc::clone(&session) as Arc<dyn Queue>,
                    release: session as Arc<dyn Release>,
                })
            }
            Err(error) => {
                slot.open.store(false, Ordering::Release);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use vrampager_hal::ChannelKind;
    use vrampager_nv_abi::{Status, uvm};
    use vrampager_nv_driver::{Failure, Injection, Kind};

    use super::*;

    /// Start of the lowest addresses of the back end's own that a channel's resources fit in.
    fn lowest(nv: &Nv) -> u64 {
        let mut shared = nv.context.lock();
        let start = shared.own.take(64 << 20).unwrap().start();
        shared.own.vacate(start);
        start
    }

    #[test]
    fn the_addresses_of_a_channel_go_with_the_last_registration_that_keeps_them() {
        let (channel, vaspace, gpu) = (
            uvm::UNREGISTER_CHANNEL,
            uvm::UNREGISTER_GPU_VASPACE,
            uvm::UNREGISTER_GPU,
        );
        for (refused, kept) in [
            (&[channel][..], false),
            (&[channel, vaspace], false),
            (&[channel, gpu], false),
            (&[channel, vaspace, gpu], true),
        ] {
            let config = "sim,gpus=2,vram=64M".parse().unwrap();
            let nv = Nv::new(config, &Planes::default()).unwrap();
            let _other = nv.open(DeviceId(1)).unwrap();
            let free = lowest(&nv);
            let gpu = nv.open(DeviceId(0)).unwrap();
            gpu.queue.create_channel(ChannelKind::Copy).unwrap();
            for &number in refused {
                nv.simulated().unwrap().inject(Injection {
                    kind: Kind::Uvm,
                    number,
                    nth: 1,
                    failure: Failure::Status(Status::INVALID_STATE),
                });
            }
            gpu.release.close();
            assert_eq!(nv.refused(DeviceId(0)).len(), refused.len());
            assert_eq!(lowest(&nv) > free, kept, "{refused:?} refused");
            // Whoever joins tries again first.
            nv.context.join().unwrap();
            assert_eq!(lowest(&nv), free, "{refused:?} refused, after another try");
            assert_eq!(nv.context.leave(Stages::new()), []);
        }
    }
}
