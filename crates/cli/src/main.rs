//! The program `vrampager`.
#![forbid(unsafe_code)]

mod args;
mod device;
mod exit;
mod memcpy;
mod model;
mod probe;
mod progress;
mod report;
mod sim_driver;
mod state;
mod swap;
mod verify;
mod window;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use clap_complete::Shell;

use crate::args::{Cli, Command, SwapArgs};
use crate::exit::{Exit, Failure, error_json};

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return refuse(&error),
    };
    let json = command.json();
    if matches!(command, Command::Swap(_)) {
        exit_on_panic(json);
    }
    let done = match &command {
        Command::SimDriver(args) => {
            return sim_driver::launch(args).unwrap_or_else(|failure| fail(&failure, json));
        }
        Command::Swap(args) => swap(args),
        Command::Info(args) => device::info(args),
        Command::Accept(args) => device::accept(args),
        Command::Probe(args) => probe::probe(args),
        Command::Completions { shell } => Ok((completions(*shell), None)),
    };
    match done {
        Ok((text, exit)) => match print(&text) {
            Ok(()) => exit.map_or(ExitCode::SUCCESS, ExitCode::from),
            Err(error) => fail(&Failure::new(Exit::Failed, error), false),
        },
        Err(failure) => fail(&failure, json),
    }
}

fn swap(args: &SwapArgs) -> Result<(String, Option<Exit>), Failure> {
    let report = swap::run(args)?;
    let text = if args.device.json {
        serde_json::to_string(&report).map_err(|error| Failure::new(Exit::Failed, error))?
    } else {
        report.to_string()
    };
    Ok((text, report.exit()))
}

fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "vrampager", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes to standard output, ending the line. A reader that has gone away is no failure.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let end = if text.ends_with('\n') { "" } else { "\n" };
    match write!(out, "{text}{end}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

fn fail(failure: &Failure, json: bool) -> ExitCode {
    complain(&failure.to_string());
    if json && print(&failure.to_json()).is_err() {
        return Exit::Failed.into();
    }
    failure.exit.into()
}

/// Ends a run that did not get past its arguments, or was asked for help.
fn refuse(error: &clap::Error) -> ExitCode {
    // Whoever asked for JSON parses standard output, whatever else is wrong with the arguments.
    let json = std::env::args_os().any(|word| word == "--json");
    if error.use_stderr() && json {
        let text = error.to_string();
        let message = text.trim().trim_start_matches("error: ");
        if print(&error_json(message, Exit::Usage)).is_err() {
            return Exit::Failed.into();
        }
    }
    match error.print() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Exit::Failed.into(),
        _ if error.use_stderr() => Exit::Usage.into(),
        _ => ExitCode::SUCCESS,
    }
}

/// Panics are broken invariants, found by assertions; unwinding through a manager in that state
/// would find more of them.
fn exit_on_panic(json: bool) {
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.to_string();
        complain(&message);
        let printed = !json || print(&error_json(&message, Exit::Invariant)).is_ok();
        let exit = if printed {
            Exit::Invariant
        } else {
            Exit::Failed
        };
        std::process::exit(i32::from(exit as u8));
    }));
}

/// Writes a message to standard error, which nobody may be reading.
fn complain(message: &str) {
    drop(writeln!(io::stderr(), "vrampager: {message}"));
}
