//! `probe`: what a driver, real or simulated, answers to bad inputs.

use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};
use vrampager_hal::HalError;
use vrampager_nv_driver::Config;
use vrampager_nv_probe::{Outcome, RealNodes, Report, SetupError, SimNodes, Tried, run};

use crate::exit::{Exit, Failure};

#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// Which driver: `nv:sim` with the settings of its machine, or `nv:N` for the GPU of
    /// `/dev/nvidiaN`
    #[arg(long, value_name = "DEVICE", default_value = "nv:sim,gpus=2", value_parser = target)]
    device: Target,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// The driver to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Simulated(Box<Config>),
    Real { minor: u32 },
}

fn target(text: &str) -> Result<Target, String> {
    let unknown = || format!("`{text}` is neither `nv:sim` with settings nor `nv:N`");
    let rest = text.strip_prefix("nv:").ok_or_else(unknown)?;
    match rest.split_once(',').unwrap_or((rest, "")) {
        ("sim", machine) => Config::parse(machine)
            .map(|machine| Target::Simulated(Box::new(machine)))
            .map_err(|error| error.to_string()),
        _ => rest
            .parse()
            .map(|minor| Target::Real { minor })
            .map_err(|_| unknown()),
    }
}

/// Gives every bad input of the table to the driver.
pub(crate) fn probe(args: &ProbeArgs) -> Result<(String, Option<Exit>), Failure> {
    let report = match &args.device {
        Target::Simulated(machine) => run(&mut SimNodes::new(Config::clone(machine)), 0),
        Target::Real { minor } => run(&mut RealNodes::default(), *minor),
    };
    let report = report
        .map_err(explained)
        .context("the GPU cannot be brought up");
    let report = report.map_err(|error| Failure::new(Exit::Failed, error))?;
    let text = if args.json {
        report_json(&report).to_string()
    } else {
        report.to_string()
    };
    Ok((text, (!report.passed()).then_some(Exit::Invariant)))
}

/// A driver that is not there is told as everywhere else.
fn explained(error: SetupError) -> anyhow::Error {
    match error.no_driver() {
        Some((node, errno)) => HalError::NoDriver { node, errno }.into(),
        None => error.into(),
    }
}

fn report_json(report: &Report) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "release": report.release,
        "passed": report.passed(),
        "tried": report.tried(),
        "skipped": report.skipped(),
        "rows": report.rows.iter().map(row_json).collect::<Vec<_>>(),
    })
}

fn row_json(row: &Tried) -> Value {
    let (outcome, got, why) = match row.outcome {
        Outcome::Same => ("same", None, None),
        Outcome::Other(answer) => ("other", Some(answer.to_string()), None),
        Outcome::Changed => ("changed", None, None),
        Outcome::Skipped(why) => ("skipped", None, Some(why)),
    };
    json!({
        "group": row.group,
        "what": row.what,
        "expected": row.expected.to_string(),
        "outcome": outcome,
        "got": got,
        "why": why,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_named_by_its_machine_or_by_a_gpu() {
        let machine = Config::parse("gpus=3").unwrap();
        let simulated = |machine| Ok(Target::Simulated(Box::new(machine)));
        assert_eq!(target("nv:sim,gpus=3"), simulated(machine));
        assert_eq!(target("nv:sim"), simulated(Config::default()));
        assert_eq!(target("nv:1"), Ok(Target::Real { minor: 1 }));
        for text in ["sim", "nv:", "nv:x", "nv:sim,gpus=0"] {
            assert!(target(text).is_err(), "{text}");
        }
    }
}
