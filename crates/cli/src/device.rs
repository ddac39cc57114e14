//! `info` and `accept`: what a device is, and whether it keeps its promises.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::anyhow;
use serde_json::{Value, json};
use vrampager::DeviceInfo;
use vrampager_addr::Size;
use vrampager_hal::Discovery;
use vrampager_hal::accept::{self, Outcome, Report};

use crate::args::DeviceArgs;
use crate::exit::{Exit, Failure};

/// What to print, and how the program ends.
type Printed = (String, Option<Exit>);

/// Describes all devices that the argument names.
pub(crate) fn info(args: &DeviceArgs) -> Result<Printed, Failure> {
    let discovery = vrampager::discover(&args.device)?;
    let mut described = Vec::new();
    for info in devices(&*discovery, args)? {
        let free = discovery
            .free_vram(info.id)
            .map_err(vrampager::Error::from)?;
        described.push((info, free));
    }
    let described = described.iter().map(|(info, free)| (info, *free));
    let text = if args.json {
        let devices: Vec<Value> = described.map(info_json).collect();
        json!({ "version": env!("CARGO_PKG_VERSION"), "devices": devices }).to_string()
    } else {
        described.map(info_text).collect()
    };
    Ok((text, None))
}

/// All devices that the argument names: one at least, or there is nothing to be said of them.
fn devices(discovery: &dyn Discovery, args: &DeviceArgs) -> Result<Vec<DeviceInfo>, Failure> {
    let devices = discovery.devices().map_err(vrampager::Error::from)?;
    if devices.is_empty() {
        let error = anyhow!("{} names no device that is there", args.device);
        return Err(Failure::new(Exit::Failed, error));
    }
    Ok(devices)
}

fn info_json((info, free): (&DeviceInfo, u64)) -> Value {
    let zones = info.zones.iter().map(
        |zone| json!({ "name": zone.name, "start": zone.span.start(), "bytes": zone.span.len() }),
    );
    json!({
        "id": info.id.0,
        "name": info.name,
        "vram_bytes": info.vram_bytes,
        "vram_free_bytes": free,
        "aperture_bytes": info.aperture_bytes,
        "zones": zones.collect::<Vec<_>>(),
        "properties": info.properties.iter().cloned().collect::<BTreeMap<_, _>>(),
        "unsupported": info.unsupported,
    })
}

fn info_text((info, free): (&DeviceInfo, u64)) -> String {
    let mut text = format!(
        "device {}: {}\n  VRAM       {}, {} free\n  aperture   {}\n",
        info.id.0,
        info.name,
        Size(info.vram_bytes),
        Size(free),
        Size(info.aperture_bytes)
    );
    for (name, value) in &info.properties {
        writeln!(text, "  {name:<10} {value}").expect("a string takes everything");
    }
    for what in &info.unsupported {
        writeln!(text, "  lacks      {what}").expect("a string takes everything");
    }
    for zone in &info.zones {
        let (start, end) = (zone.span.start(), zone.span.end());
        let size = Size(zone.span.len());
        writeln!(
            text,
            "  addresses  {start:#x} to {end:#x}, {size} ({})",
            zone.name
        )
        .expect("a string takes everything");
    }
    text
}

/// Runs the acceptance suites on all devices that the argument names.
pub(crate) fn accept(args: &DeviceArgs) -> Result<Printed, Failure> {
    let discovery = vrampager::discover(&args.device)?;
    let devices = devices(&*discovery, args)?;
    let (mut text, mut found, mut accepted) = (String::new(), Vec::new(), true);
    for device in devices {
        let reports = accept::all(&*discovery, device.id);
        accepted &= reports.iter().all(Report::passed);
        text += &format!("device {}: {}\n", device.id.0, device.name);
        for report in &reports {
            text += &report.to_string();
        }
        let suites: Vec<Value> = reports.iter().map(suite_json).collect();
        found.push(json!({ "id": device.id.0, "name": device.name, "suites": suites }));
    }
    if args.json {
        let version = env!("CARGO_PKG_VERSION");
        text = json!({ "version": version, "accepted": accepted, "devices": found }).to_string();
    }
    Ok((text, (!accepted).then_some(Exit::Invariant)))
}

fn suite_json(report: &Report) -> Value {
    let checks = report.checks.iter().map(|check| {
        let (outcome, why) = match &check.outcome {
            Outcome::Pass => ("pass", None),
            Outcome::Fail { why } => ("fail", Some(why)),
            Outcome::NotSupported { why } => ("not-supported", Some(why)),
        };
        json!({ "name": check.name, "outcome": outcome, "why": why })
    });
    json!({
        "contract": report.contract,
        "passed": report.passed(),
        "checks": checks.collect::<Vec<_>>(),
    })
}
