//! Which GPU addresses are whose.

use vrampager_addr::Span;
use vrampager_hal::VaZone;

/// Addresses that a GPU's VA space may have: what CPU and GPU share, 47 bits.
pub(crate) const LIMIT: u64 = 1 << 47;

/// Zones of the callers. Below them is the back end's own. The upper one ends where programs and
/// their libraries are loaded, long before the windows of shaders at
/// `0x7293_0000_0000`: unified memory has one address space for CPU and GPU.
pub(crate) fn zones() -> Vec<VaZone> {
    let zone = |name, start, end| VaZone {
        name,
        span: Span::from_bounds(start, end).expect("ordered bounds"),
    };
    vec![
        zone("low", 128 << 30, 1 << 40),
        zone("high", 1 << 40, 1 << 46),
    ]
}
