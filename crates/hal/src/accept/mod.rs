//! Acceptance suites, one per contract.
//!
//! A suite opens the device for each of its checks, uses it only through the contracts, and
//! returns what it found as data: a back end that fails, panics or refuses ends one check and not
//! the run. A check's name is the promise that it tests.
//!
//! Needed are 16 MiB of VRAM, an aperture of 1 MiB, and nobody else on the device.
//!
//! # Examples
//! ```
//! use vrampager_hal::{Discovery, HalError, accept};
//!
//! fn accepted(discovery: &dyn Discovery) -> Result<bool, HalError> {
//!     let mut accepted = true;
//!     for device in discovery.devices()? {
//!         for report in accept::all(discovery, device.id) {
//!             print!("{report}");
//!             accepted &= report.passed();
//!         }
//!     }
//!     Ok(accepted)
//! }
//! ```

mod bench;
pub mod discovery;
pub mod memory;
pub mod queue;
pub mod release;
mod report;

pub use report::{Check, Outcome, Report};

use crate::{DeviceId, Discovery};

/// Runs the four suites.
pub fn all(discovery: &dyn Discovery, device: DeviceId) -> [Report; 4] {
    [
        discovery::run(discovery, device),
        memory::run(discovery, device),
        queue::run(discovery, device),
        release::run(discovery, device),
    ]
}
