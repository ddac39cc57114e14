//! `sim-driver`: runs a program with the simulated NVIDIA driver in front of it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context as _, anyhow};
use clap::Args;
use vrampager_nv_driver::{Config, Live};
use vrampager_nv_server::wire::NAME_VARIABLE;
use vrampager_nv_server::{Server, run_family};

use crate::exit::{Exit, Failure};

pub(crate) const EXIT_CODES: &str = "\
Exit codes: that of the program, or 128 and the number of the signal that ended it; and without one
  1  the driver or the program could not be started, or --kill-at found fewer ioctls
  2  an argument cannot be used
  6  something was left behind in the driver, or it broke down

SIGINT, SIGQUIT and SIGTERM are passed on to the program.";

#[derive(Debug, Args)]
pub(crate) struct SimDriverArgs {
    /// The machine, such as `gpus=2,vram=8G,release=570.144`
    #[arg(long, value_name = "MACHINE", default_value = "", value_parser = machine)]
    sim: Box<Config>,
    /// A file that gets the driver's counters at the end, when nobody has it open any more
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Kill the process that makes the N-th ioctl, when that is done; exit 1 if there are fewer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    kill_at: Option<u64>,
    /// The program and its arguments; `--` before it ends the options
    #[arg(required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

fn machine(text: &str) -> Result<Box<Config>, String> {
    let config = Config::parse(text).map_err(|error| error.to_string())?;
    Ok(Box::new(config))
}

/// The library beside this program, where both are built and installed.
fn library() -> io::Result<PathBuf> {
    const NAME: &str = "libvrampager_nv_shim.so";
    let own = std::env::current_exe()?;
    let beside = own.with_file_name(NAME);
    let in_deps = own.with_file_name("deps").join(NAME);
    // Cargo's tests build it there only, and may leave an old one beside.
    let found = [in_deps, beside].into_iter().find(|path| path.is_file());
    found.ok_or_else(|| {
        let place = own.display();
        io::Error::other(format!(
            "{NAME} is not beside {place}: cargo build -p vrampager-nv-shim makes it"
        ))
    })
}

/// Runs the program until it and all processes that it left running have ended. Ends as the
/// program did.
pub(crate) fn launch(args: &SimDriverArgs) -> Result<ExitCode, Failure> {
    let failed = |error| Failure::new(Exit::Failed, error);
    let broken = |error| Failure::new(Exit::Invariant, error);
    // A file that cannot be written is told before the program has done its work, not after.
    let report = args.report.as_deref().map(create).transpose();
    let report = report.map_err(failed)?;
    let server = Server::start(Config::clone(&args.sim), args.kill_at);
    let server = server.map_err(|error| failed(error.into()))?;
    let status = run(args, &server).map_err(failed)?;
    if !server.works() {
        return Err(broken(anyhow!("the simulated driver broke down")));
    }
    let (left, counted) = (server.live(), server.counted());
    if let Some(mut report) = report {
        let written = report.write_all(format!("{left}{counted}").as_bytes());
        written.context("writing the report").map_err(failed)?;
    }
    complain_of_missing(args.sim.injections.len() as u64, counted.injected);
    if left != Live::default() {
        return Err(broken(anyhow!("the driver kept what nobody has:\n{left}")));
    }
    match args.kill_at {
        Some(nth) if counted.ioctls < nth => {
            let made = counted.ioctls;
            Err(failed(anyhow!(
                "--kill-at {nth} killed nobody: there were only {made} ioctls"
            )))
        }
        Some(_) | None => Ok(exit_code(status)),
    }
}

fn create(report: &Path) -> anyhow::Result<File> {
    File::create(report).with_context(|| format!("creating {}", report.display()))
}

/// Says that failures were asked for and did not come: a test that passed then has tried nothing.
fn complain_of_missing(asked: u64, came: u64) {
    if came < asked {
        let missing = asked - came;
        crate::complain(&format!(
            "{missing} of {asked} failures of --sim fail= never came: there were too few requests \
             of their kind and number"
        ));
    }
}

/// The library, in front of those that the user loads before a program.
fn preloads(library: &Path) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(own) = std::env::var_os("LD_PRELOAD").filter(|own| !own.is_empty()) {
        all.push(":");
        all.push(own);
    }
    all
}

fn run(args: &SimDriverArgs, server: &Server) -> anyhow::Result<ExitStatus> {
    let library = library()?;
    let (program, arguments) = args.program.split_first().context("there is no program")?;
    // LIBC_PATH is where tinygrad looks for the C library that it calls mmap of by name.
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_PRELOAD", preloads(&library))
        .env("LIBC_PATH", &library)
        .env(NAME_VARIABLE, server.name());
    run_family(&mut command).with_context(|| format!("starting {}", program.display()))
}

/// The program's own code; for one that was killed, 128 and the signal's number, as shells have it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let killed = || status.signal().map(|signal| 128 + signal);
    let code = status.code().or_else(killed);
    let code = code.and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}
