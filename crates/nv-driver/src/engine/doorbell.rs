//! Doorbells: whose token has been written.

use vrampager_nv_abi::method;

use crate::Driver;
use crate::rm::Aperture;
use crate::store::{Place, Store, StoreId};

/// What a doorbell holds before anyone has rung: no channel's token.
const SILENT: u32 = u32::MAX;

fn bell(window: StoreId) -> Place {
    Place {
        id: window,
        offset: method::DOORBELL,
    }
}

impl<S: Store> Driver<S> {
    /// Looks at the doorbell of each GPU if it is strict: the channel whose token is there has
    /// rung, and is looked at by every pass from now on. Otherwise does nothing.
    ///
    /// Each pass does this first. A doorbell is one word of memory and keeps the last token only,
    /// so a front end calls this whenever a client has rung, where it can know; where it cannot,
    /// a first token that another one overwrites before a pass is lost, and its channel waits
    /// until it rings again. The token of a channel that is gone, if it was the last one to ring,
    /// counts for the next channel that gets the same.
    pub fn hear(&mut self) {
        if !self.config.strict_doorbell {
            return;
        }
        let windows = self.rm.mems.values().filter_map(|mem| match mem.aperture {
            Aperture::Registers(gpu) => Some((gpu, mem.store)),
            Aperture::Vidmem(_) | Aperture::Sysmem | Aperture::Pinned => None,
        });
        for (gpu, window) in windows {
            let mut word = SILENT.to_le_bytes();
            let read = self.store.read(bell(window), &mut word);
            read.expect("windows are no adopted pages");
            let token = Some(u32::from_le_bytes(word));
            let mut channels = self.channels.values_mut();
            if let Some(channel) = channels.find(|c| c.gpu == gpu && c.token() == token) {
                channel.exec.rung = true;
            }
        }
    }

    /// Takes the token of channel 0 off a new doorbell window, which memory of zeros has.
    pub(crate) fn silence(&mut self, window: StoreId) {
        let written = self.store.write(bell(window), &SILENT.to_le_bytes());
        written.expect("windows are no adopted pages");
    }
}
