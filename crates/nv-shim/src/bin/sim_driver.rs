//! Runs a program with the simulated NVIDIA driver in front of it.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: vrampager-sim-driver [--sim MACHINE] [--report FILE] [--] PROGRAM [ARGUMENT...]

  --sim MACHINE   such as gpus=2,vram=8G,release=570.144 (see Config::parse)
  --report FILE   writes what is still alive when the program ends";

/// What to run, and on what.
#[derive(Default)]
struct Request {
    machine: Option<String>,
    report: Option<String>,
    program: Vec<String>,
}

fn main() -> ExitCode {
    let Some(request) = read(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match launch(&request) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("vrampager-sim-driver: {error}");
            ExitCode::FAILURE
        }
    }
}

fn read(mut arguments: impl Iterator<Item = String>) -> Option<Request> {
    let mut request = Request::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--sim" => request.machine = Some(arguments.next()?),
            "--report" => request.report = Some(arguments.next()?),
            "--" => {
                request.program.extend(arguments.by_ref());
            }
            option if option.starts_with("--") => return None,
            _ => {
                request.program.push(argument);
                request.program.extend(arguments.by_ref());
            }
        }
    }
    (!request.program.is_empty()).then_some(request)
}

/// The library beside this program, where both are built and installed.
fn library() -> std::io::Result<PathBuf> {
    const NAME: &str = "libvrampager_nv_shim.so";
    let own = std::env::current_exe()?;
    let beside = own.with_file_name(NAME);
    let in_deps = own.with_file_name("deps").join(NAME);
    let found = [beside, in_deps].into_iter().find(|path| path.is_file());
    found.ok_or_else(|| std::io::Error::other(format!("{NAME} is not beside {}", own.display())))
}

/// Becomes the program; comes back only if that fails.
fn launch(request: &Request) -> std::io::Result<std::convert::Infallible> {
    let library = library()?;
    let (program, arguments) = request
        .program
        .split_first()
        .expect("read() wants a program");
    let mut command = Command::new(program);
    // LIBC_PATH is where tinygrad looks for the C library that it calls mmap of by name.
    command
        .args(arguments)
        .env("LD_PRELOAD", &library)
        .env("LIBC_PATH", &library);
    if let Some(machine) = &request.machine {
        command.env("VRAMPAGER_SIM", machine);
    }
    if let Some(report) = &request.report {
        command.env("VRAMPAGER_SIM_REPORT", report);
    }
    Err(command.exec())
}
