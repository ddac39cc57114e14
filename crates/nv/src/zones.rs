//! Which GPU addresses are whose.

use vrampager_addr::Span;
use vrampager_hal::{HalError, VaZone};

/// Addresses that a GPU's VA space may have: what CPU and GPU share, 47 bits.
pub(crate) const LIMIT: u64 = 1 << 47;

/// End of the back end's own addresses, behind which those of the callers begin.
pub(crate) const OWN_END: u64 = 128 << 30;

/// GPUs that the driver supports in one machine, counted by minor numbers.
const GPUS: u32 = 32;

/// Where shaders see their local and shared memory, whatever is mapped there.
const SHADER_WINDOWS: (u64, u64) = (0x7293_0000_0000, 0x7295_0000_0000);

/// Zones of the callers on one GPU: its part of what all have. Unified memory has one address
/// space for all GPUs and the CPU, so the parts do not overlap, and the upper one ends below where
/// programs and their libraries are loaded.
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

/// Why host memory at these addresses cannot be seen there by GPUs, if so.
pub(crate) fn unusable(span: Span) -> Option<&'static str> {
    let (start, end) = SHADER_WINDOWS;
    let windows = Span::from_bounds(start, end).expect("ordered bounds");
    if span.start() < OWN_END {
        Some("host memory below 128 GiB")
    } else if span.end() > LIMIT {
        Some("host memory above 128 TiB")
    } else if span.overlaps(windows) {
        Some("host memory in the windows of shaders")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_mean_something_else_to_gpus_are_unusable() {
        let page = |start| unusable(Span::new(start, 4096).unwrap());
        assert_eq!(page(OWN_END - 4096), Some("host memory below 128 GiB"));
        assert_eq!(page(LIMIT), Some("host memory above 128 TiB"));
        for start in [SHADER_WINDOWS.0, SHADER_WINDOWS.1 - 4096] {
            assert_eq!(page(start), Some("host memory in the windows of shaders"));
        }
        for start in [
            OWN_END,
            SHADER_WINDOWS.0 - 4096,
            SHADER_WINDOWS.1,
            LIMIT - 4096,
        ] {
            assert_eq!(page(start), None, "{start:#x}");
        }
    }

    #[test]
    fn zones_of_all_gpus_are_apart_and_usable() {
        let all: Vec<Span> = (0..GPUS)
            .flat_map(|minor| zones(minor).unwrap())
            .map(|zone| zone.span)
            .collect();
        for (n, zone) in all.iter().enumerate() {
            assert_eq!(unusable(*zone), None);
            assert!(all[..n].iter().all(|other| !other.overlaps(*zone)));
        }
        assert!(zones(GPUS).is_err());
    }
}
