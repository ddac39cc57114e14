//! The comparison with tinygrad: its own NVIDIA back end, unchanged, and ours, side by side on the
//! simulated kernel driver, both behind the same preload library.
//!
//! Both do the same requests and both are timed to the end of the work, by the median of as many
//! operations, each begun when the one before is over:
//!
//! * allocations: 1 MiB of device memory with its GPU mapping, made and freed;
//! * copies: bytes of the host through pinned staging memory into device memory, until the
//!   timeline says that they have arrived.
//!
//! What differs is the client. Nine tenths of the time that tinygrad takes for 4 KiB (90 of 100 us,
//! when this was written) pass in Python before the GPU has the work; so that ratio says little of
//! the GPU, and the one for 64 MiB says little of the client.

mod report;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};

use report::{Measured, Report};

/// Names the release that is compared with, as `tinygrad==VERSION`.
const REQUIREMENTS: &str = "scripts/requirements.txt";
/// Two GPUs, as both sides want them, and memory for a few buffers of 1 GiB.
const MACHINE: &str = "gpus=2,vram=4G";

/// How much is asked of both.
struct Work {
    /// Seconds of random operations.
    stress: &'static str,
    /// Rounds after which tinygrad need not go on.
    their_rounds: &'static str,
    our_rounds: &'static str,
    host_rounds: &'static str,
}

const WORK: Work = Work {
    stress: "20",
    their_rounds: "1000",
    our_rounds: "100000",
    host_rounds: "1000",
};

/// What is printed at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    Table,
    Json,
}

/// Obtains tinygrad with pip, builds both sides in release, runs them one after the other, and
/// prints what they did. The exit code is a failure if a byte differed or we left something.
///
/// # Errors
///
/// When tinygrad cannot be had, something cannot be built, or one side fails.
pub(crate) fn run(root: &Path, format: Format) -> Result<ExitCode> {
    let python = obtain(root)?;
    build(root)?;
    let theirs = theirs(root, &python)?;
    let ours = ours(root)?;
    let report = Report::new(&theirs, &ours)?;
    let text = match format {
        Format::Table => report.to_string(),
        Format::Json => report.to_json() + "\n",
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(if report.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Tinygrad from the registry in an environment of its own; the Python that has it.
///
/// # Errors
///
/// Without Python, its `venv` module, or a network.
fn obtain(root: &Path) -> Result<PathBuf> {
    let folder = root.join("target/tinygrad");
    let requirements = root.join(REQUIREMENTS);
    let wanted = fs::read_to_string(&requirements).context(REQUIREMENTS)?;
    let python = folder.join("bin/python");
    let present = Command::new(&python)
        .args([
            "-c",
            "import importlib.metadata as m; print(m.version('tinygrad'))",
        ])
        .stderr(Stdio::null())
        .output();
    let version = wanted.trim_end().strip_prefix("tinygrad==");
    let version = version.with_context(|| format!("{REQUIREMENTS} names no release"))?;
    if present.is_ok_and(|found| found.stdout.trim_ascii() == version.as_bytes()) {
        return Ok(python);
    }
    let clear = "tinygrad is fetched with pip and needs python3 with venv, and a network";
    let mut venv = Command::new("python3");
    succeed(venv.args(["-m", "venv"]).arg(&folder)).context(clear)?;
    let mut pip = Command::new(&python);
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-input",
        "--retries",
        "1",
    ]);
    succeed(pip.arg("--requirement").arg(requirements)).context(clear)?;
    Ok(python)
}

fn build(root: &Path) -> Result<()> {
    let build = |what: &[&str]| {
        let mut cargo = crate::cargo();
        cargo.current_dir(root);
        succeed(cargo.args(["build", "--release", "--quiet"]).args(what))
    };
    build(&["-p", "vrampager-nv-shim", "-p", "vrampager-cli"])?;
    build(&["-p", "vrampager-nv", "--example", "side_by_side"])
}

fn theirs(root: &Path, python: &Path) -> Result<Measured> {
    let mut command = preloaded(root);
    command
        .arg(python)
        .arg(root.join("scripts/tinygrad-smoke.py"))
        .args(["--stress", WORK.stress, "--rounds", WORK.their_rounds])
        .args(["--host-rounds", WORK.host_rounds, "--speed"]);
    measured("tinygrad", &mut command)
}

fn ours(root: &Path) -> Result<Measured> {
    let program = root.join("target/release/examples/side_by_side");
    let mut command = preloaded(root);
    command
        .arg(program)
        .args(["0,1", WORK.our_rounds, WORK.stress]);
    measured("ours", &mut command)
}

/// A program with the simulated driver in front of it.
fn preloaded(root: &Path) -> Command {
    let mut command = Command::new(root.join("target/release/vrampager"));
    command
        .args(["sim-driver", "--sim", MACHINE, "--"])
        .current_dir(root);
    command
}

/// Runs one side; it prints one JSON object.
fn measured(side: &str, command: &mut Command) -> Result<Measured> {
    eprintln!("compare: {side} at work");
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting {}", command.get_program().display()))?;
    ensure!(
        output.status.success(),
        "{side} ended with {}",
        output.status
    );
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{side} printed {}", String::from_utf8_lossy(&output.stdout)))
}

fn succeed(command: &mut Command) -> Result<()> {
    // Only the report goes to standard output.
    let status = command.stdout(Stdio::from(std::io::stderr())).status();
    let name = command.get_program().display().to_string();
    let status = status.with_context(|| format!("starting {name}"))?;
    ensure!(status.success(), "{name} ended with {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_named_with_its_status() {
        let error = succeed(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert_eq!(error.to_string(), "sh ended with exit status: 3");
        let error = succeed(&mut Command::new("/nowhere/to/be/found")).unwrap_err();
        assert_eq!(error.to_string(), "starting /nowhere/to/be/found");
    }

    #[test]
    fn a_side_that_prints_no_report_is_quoted() {
        let error = measured("ours", Command::new("echo").arg("oops")).unwrap_err();
        assert_eq!(error.to_string(), "ours printed oops\n");
    }
}
