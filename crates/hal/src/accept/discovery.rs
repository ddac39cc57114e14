//! Suite of the [`Discovery`] contract.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use vrampager_addr::{PAGE, PAGE_SIZE};

use super::bench::{Stop, Verdict, check, fail, same};
use super::{Check, Report};
use crate::{DeviceId, DeviceInfo, Discovery, Gpu, HalError, Heap};

/// Bytes of the largest pages.
const LARGE_PAGE: u64 = 2 << 20;

type DiscoveryCheck = (&'static str, fn(&dyn Discovery, DeviceId) -> Verdict);

const CHECKS: [DiscoveryCheck; 9] = [
    ("an open that fails can be retried", retry),
    ("devices are listed the same twice, by id", listing),
    ("a device describes itself completely", description),
    ("no address is in the zones of two devices", apart),
    ("an open device is the one that was listed", identity),
    ("a device that is not listed is refused", unknown),
    (
        "free memory falls by what is taken, and rises when it is given back",
        free_memory,
    ),
    ("a second open is refused while the first goes on", busy),
    (
        "a closed device can be opened again, whatever was refused meanwhile",
        reopen,
    ),
];

/// Runs the suite on one device, which has to be closed.
pub fn run(discovery: &dyn Discovery, device: DeviceId) -> Report {
    let run = |&(name, body): &DiscoveryCheck| -> Check { check(name, || body(discovery, device)) };
    Report {
        contract: "discovery",
        checks: CHECKS.iter().map(run).collect(),
    }
}

fn listed(discovery: &dyn Discovery, device: DeviceId) -> Result<DeviceInfo, Stop> {
    let devices = discovery.devices()?;
    match devices.into_iter().find(|info| info.id == device) {
        Some(info) => Ok(info),
        None => fail(format!("{device:?} is not listed")),
    }
}

/// Lets `body` use an open device and closes it in any case.
fn opened(
    discovery: &dyn Discovery,
    device: DeviceId,
    body: impl FnOnce(&Gpu) -> Verdict,
) -> Verdict {
    let gpu = discovery.open(device)?;
    let result = catch_unwind(AssertUnwindSafe(|| body(&gpu)));
    gpu.release.close();
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

fn retry(discovery: &dyn Discovery, device: DeviceId) -> Verdict {
    match discovery.open(device) {
        Ok(gpu) => {
            gpu.release.close();
            Ok(())
        }
        Err(_) => opened(discovery, device, |gpu| {
            same(
                "held after a failed open",
                gpu.release.counters(),
                Default::default(),
            )
        }),
    }
}

fn listing(discovery: &dyn Discovery, _: DeviceId) -> Verdict {
    let devices = discovery.devices()?;
    same("second listing", &discovery.devices()?, &devices)?;
    for (n, info) in (0_u32..).zip(&devices) {
        same("id in the list", info.id, DeviceId(n))?;
    }
    Ok(())
}

fn description(discovery: &dyn Discovery, device: DeviceId) -> Verdict {
    let info = listed(discovery, device)?;
    if info.name.is_empty() {
        return fail("it has no name");
    }
    for (what, size) in [("VRAM", info.vram_bytes), ("aperture", info.aperture_bytes)] {
        if size < PAGE_SIZE {
            return fail(format!("{what} is {size} bytes"));
        }
    }
    if info
        .properties
        .iter()
        .any(|(name, value)| name.is_empty() || value.is_empty())
    {
        return fail("a property has no name or no value");
    }
    if info.zones.is_empty() {
        return fail("it has no address zone");
    }
    // Address 0 is in no zone, so the first one starts behind it.
    let mut free_from = 1;
    for zone in &info.zones {
        let span = zone.span;
        if span.is_empty() || !PAGE.divides(span.start()) || !PAGE.divides(span.end()) {
            return fail(format!("zone {} is {span}, not whole pages", zone.name));
        }
        if span.start() < free_from {
            return fail(format!("zone {} at {span} is out of order", zone.name));
        }
        free_from = span.end();
    }
    Ok(())
}

fn apart(discovery: &dyn Discovery, device: DeviceId) -> Verdict {
    let info = listed(discovery, device)?;
    let devices = discovery.devices()?;
    let others = devices.iter().filter(|other| other.id != device);
    for zone in others.flat_map(|other| &other.zones) {
        if let Some(own) = info.zones.iter().find(|own| own.span.overlaps(zone.span)) {
            return fail(format!("zone {} overlaps {}", own.name, zone.span));
        }
    }
    Ok(())
}

fn identity(discovery: &dyn Discovery, device: DeviceId) -> Verdict {
    let info = listed(discovery, device)?;
    opened(discovery, device, |gpu| {
        same("description", &gpu.info, &info)?;
        same("held at open", gpu.release.counters(), Default::default())
    })
}

fn unknown(discovery: &dyn Discovery, _: DeviceId) -> Verdict {
    let count = discovery.devices()?.len();
    let id = DeviceId(u32::try_from(count).unwrap_or(u32::MAX));
    same(
        "open",
        discovery.open(id).err(),
        Some(HalError::NoDevice(id)),
    )
}

fn busy(discovery: &dyn Discovery, device: DeviceId) -> Verdict {
    opened(discovery, device, |gpu| {
        refused(discovery, device)?;
        let mem = gpu.memory.create(Heap::Host, PAGE_SIZE)?;
        gpu.release.destroy(mem)?;
        Ok(())
    })
}

fn free_memory(discovery: &dyn Discovery, device: DeviceId) -> Verdict {
    let total = listed(discovery, device)?.vram_bytes;
    let closed = discovery.free_vram(device)?;
    if closed > total {
        return fail(format!("{closed} bytes of {total} are free"));
    }
    opened(discovery, device, |gpu| {
        let before = discovery.free_vram(device)?;
        let size = PAGE.down(before / 2).max(PAGE_SIZE);
        let mem = gpu.memory.create(Heap::Vram, size)?;
        let after = discovery.free_vram(device)?;
        // Free memory may be told in large pages.
        if after >= before || after > before - size + LARGE_PAGE {
            return fail(format!("{before} bytes were free, {after} without {size}"));
        }
        gpu.release.destroy(mem)?;
        same("free again", discovery.free_vram(device)?, before)
    })
}

/// Tries a second open, and takes it back should it succeed.
fn refused(discovery: &dyn Discovery, device: DeviceId) -> Verdict {
    let second = discovery.open(device).inspect(|gpu| {
        gpu.release.close();
    });
    same("second open", second.err(), Some(HalError::Busy(device)))
}

fn reopen(discovery: &dyn Discovery, device: DeviceId) -> Verdict {
    opened(discovery, device, |gpu| {
        gpu.memory.create(Heap::Vram, PAGE_SIZE)?;
        refused(discovery, device)
    })?;
    opened(discovery, device, |gpu| {
        same("held at open", gpu.release.counters(), Default::default())
    })
}
