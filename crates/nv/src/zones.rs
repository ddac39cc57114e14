//! Which GPU addresses are whose.

use vrampager_addr::Span;
use vrampager_hal::{HalError, VaZone};

/// Addresses that a GPU's VA space may have: what CPU and GPU share, 47 bits.
pub(crate) const LIMIT: u64 = 1 << 47;

/// End of the back end's own addresses, behind which those of the callers begin.
pub(crate) const OWN_END: u64 = 128 << 30;

/// GPUs that the driver supports in one machine, counted by minor numbers.
const GPUS: u32 = 32;

/// Zones of the callers on one GPU: its part of what all have. Unified memory has one address
/// space for all GPUs and the CPU, so the parts do not overlap, and the upper one ends below where
/// programs and their libraries are loaded, long before the windows of shaders at
/// `0x7293_0000_0000`.
pub(crate) fn zones(minor: u32) -> Result<Vec<VaZone>, HalError> {
    if minor >= GPUS {
        return Err(HalError::Unsupported("a minor number above 31"));
    }
    let zone = |name, start: u64, end: u64| {
        let part = (end - start) / u64::from(GPUS);
        let start = start + part * u64::from(minor);
        let span = Span::new(start, part).expect("ordered bounds");
        VaZone { name, span }
    };
    Ok(vec![
        zone("low", OWN_END, 1 << 40),
        zone("high", 1 << 40, 1 << 46),
    ])
}
