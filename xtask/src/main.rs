//! Tasks of the repository, run as `cargo xtask TASK`.
//!
//! - `tidy` checks what neither the compiler nor clippy does: the edges between crates, sizes,
//!   leftovers, where unsafe code may stand.

#![forbid(unsafe_code)]

mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask TASK

tasks:
  tidy                check the house rules; prints each finding as path:line: rule: message
";

/// Exit code for a command line that makes no sense, as in the program itself.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("tidy") if args.len() == 1 => tidy::run(repository()),
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
