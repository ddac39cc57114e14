//! Tasks of the repository, run as `cargo xtask TASK`.
//!
//! - `tidy` checks what neither the compiler nor clippy does: the edges between crates, sizes,
//!   leftovers, where unsafe code may stand.
//! - `compare-tinygrad` runs tinygrad and our back end on the simulated driver.
//! - `demo` fetches real models and swaps them on a simulated GPU that is too small for them.

#![forbid(unsafe_code)]

mod compare;
mod demo;
mod tidy;

use std::path::Path;
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask TASK

tasks:
  tidy                check the house rules; prints each finding as path:line: rule: message
  compare-tinygrad [--json]
                      run tinygrad and our back end side by side on the simulated driver
  demo [-- ARGS]      swap real models on a simulated GPU; ARGS go to `vrampager swap`
";

/// Exit code for a command line that makes no sense, as in the program itself.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["tidy"] => tidy::run(repository()),
        ["compare-tinygrad"] => compare::run(repository(), compare::Format::Table),
        ["compare-tinygrad", "--json"] => compare::run(repository(), compare::Format::Json),
        ["demo"] => demo::run(repository(), &[]),
        ["demo", "--", ..] => demo::run(repository(), &args[2..]),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// The root of the repository this program was built from.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies one level below the root of the repository")
}

/// The cargo that runs this program, or the one on the path.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
