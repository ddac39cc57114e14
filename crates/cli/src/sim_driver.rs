//! `sim-driver`: runs a program with the simulated NVIDIA driver in front of it.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use clap::Args;
use vrampager_nv_driver::Config;

use crate::exit::{Exit, Failure};

#[derive(Debug, Args)]
pub(crate) struct SimDriverArgs {
    /// The machine, such as `gpus=2,vram=8G,release=570.144`
    #[arg(long, value_name = "MACHINE", default_value = "", value_parser = machine)]
    sim: String,
    /// A file that gets what is still alive when the program exits
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// The program gets the text and not what it means: a mistake is better found here.
fn machine(text: &str) -> Result<String, String> {
    let known = Config::parse(text).map_err(|error| error.to_string())?;
    drop(known);
    Ok(text.to_owned())
}

/// The library beside this program, where both are built and installed.
fn library() -> io::Result<PathBuf> {
    const NAME: &str = "libvrampager_nv_shim.so";
    let own = std::env::current_exe()?;
    let beside = own.with_file_name(NAME);
    let in_deps = own.with_file_name("deps").join(NAME);
    let found = [beside, in_deps].into_iter().find(|path| path.is_file());
    found.ok_or_else(|| {
        let place = own.display();
        io::Error::other(format!(
            "{NAME} is not beside {place}: cargo build -p vrampager-nv-shim makes it"
        ))
    })
}

/// Becomes the program; comes back only if that fails.
pub(crate) fn launch(args: &SimDriverArgs) -> Failure {
    match exec(args) {
        Ok(never) => match never {},
        Err(error) => Failure::new(Exit::Failed, error),
    }
}

fn exec(args: &SimDriverArgs) -> anyhow::Result<std::convert::Infallible> {
    let library = library()?;
    let (program, arguments) = args.program.split_first().context("there is no program")?;
    let mut command = Command::new(program);
    // LIBC_PATH is where tinygrad looks for the C library that it calls mmap of by name.
    command
        .args(arguments)
        .env("LD_PRELOAD", &library)
        .env("LIBC_PATH", &library)
        .env("VRAMPAGER_SIM", &args.sim);
    if let Some(report) = &args.report {
        command.env("VRAMPAGER_SIM_REPORT", report);
    }
    let error = command.exec();
    Err(error).with_context(|| format!("starting {}", program.display()))
}
