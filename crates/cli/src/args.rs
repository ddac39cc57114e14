//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use vrampager_addr::parse_size;

use crate::probe::ProbeArgs;
use crate::sim_driver::SimDriverArgs;

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  all went well
  1  a device or a file failed, or a file changed underneath
  2  an argument cannot be used
  3  out of memory
  4  out of GPU addresses
  5  reserved for quotas
  6  bytes differ, something was left behind, or an invariant is broken";

const EXAMPLES: &str = "\
Examples:
  Eight models on a device with 64 MiB, 1,000 requests:
    vrampager swap models/*.gguf --device sim:vram=64M --requests 1000
  Two request traces, each standing for one model, 60 times as fast as recorded:
    vrampager swap a.safetensors b.onnx --trace chat.csv,code.csv --speed 60
  4 MiB of written state per model, so little host memory that it has to be swapped out:
    vrampager swap *.onnx --device sim:vram=16M --state 4M --host 8M --swap 1G --json

A request makes all tensors of one model resident in one submission, lets the engine copy each of
them to a window in host memory, and compares every byte with the file, which is read through a
handle of its own. A model that does not fit as a whole is run tensor by tensor.

In the report:
  hits        requests that found all tensors in VRAM
  swap-in     time from the start of a request that was no hit until its tensors are in VRAM
  copy_ratio  speed of the engine's copies of 1 MiB and more by the speed of plain memcpy: the
              median of up to 64 requests, each compared with the median of 8 memcpys of 2 MiB
              right after it, between buffers larger than the cache. Null when there was no
              large copy, and in deterministic mode, where time is virtual.
  leaks       what the device, the address space and the process hold more than before the run";

/// Use more GPU memory than the card has.
#[derive(Debug, Parser)]
#[command(name = "vrampager", version, args_override_self = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Swap model files on a device that is too small for them, and verify every byte
    #[command(
        args_override_self = true,
        after_help = EXIT_CODES,
        after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}")
    )]
    Swap(SwapArgs),
    /// Say what a device is
    #[command(args_override_self = true, after_help = EXIT_CODES)]
    Info(DeviceArgs),
    /// Try whether a device keeps the promises of the four contracts
    #[command(args_override_self = true, after_help = EXIT_CODES)]
    Accept(DeviceArgs),
    /// Give a driver bad inputs, and compare its answers with those of the real one
    #[command(args_override_self = true, after_help = EXIT_CODES)]
    Probe(ProbeArgs),
    /// Run a program with the simulated NVIDIA driver in front of it
    #[command(args_override_self = true, after_help = crate::sim_driver::EXIT_CODES)]
    SimDriver(SimDriverArgs),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
}

impl Command {
    /// Whether errors are to be objects on standard output.
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Swap(args) => args.device.json,
            Self::Info(args) | Self::Accept(args) => args.json,
            Self::Probe(args) => args.json,
            Self::SimDriver(_) | Self::Completions { .. } => false,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Which device: `sim:KEY=VALUE,...`, `nv` for all GPUs of the machine, `nv:0` for one of
    /// them, or `nv:sim,KEY=VALUE,...` for those of a simulated driver
    #[arg(long, value_name = "DEVICE", default_value = "sim:vram=256M")]
    pub(crate) device: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SwapArgs {
    /// Model files: safetensors, ONNX, GGUF
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// VRAM to use, all of it from the start; what nobody else has taken by then unless given
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) vram: Option<u64>,
    /// Host memory for what does not fit in VRAM
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    pub(crate) host: u64,
    /// Swap file for what does not fit in host memory; 0 for none
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    pub(crate) swap: u64,
    /// Folder of the swap file, which has no name there; the system's for temporary files
    /// unless given
    #[arg(long, value_name = "DIR")]
    pub(crate) swap_dir: Option<PathBuf>,
    /// How many requests to serve
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: u64,
    /// Draw the model of each request after Zipf's law from this seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Take the requests from Azure LLM traces instead; the n-th file asks for the n-th model
    #[arg(long, value_name = "CSV", value_delimiter = ',')]
    pub(crate) trace: Vec<PathBuf>,
    /// Keep the times of the trace, divided by this; without it a request follows the last one
    #[arg(long, value_name = "X", requires = "trace", value_parser = speed)]
    pub(crate) speed: Option<f64>,
    /// A buffer of this size for each model, which every request verifies and writes anew
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    pub(crate) state: u64,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse::<f64>().ok();
    let speed = speed.filter(|speed| speed.is_finite() && *speed > 0.0);
    speed.ok_or_else(|| "expected a number over 0, such as 60".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_description_of_the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_later_option_replaces_an_earlier_one() {
        let words = "vrampager swap a --requests 1 b --requests 2 --json --json";
        let cli = Cli::try_parse_from(words.split(' ')).unwrap();
        let Command::Swap(args) = cli.command else {
            panic!("not swap")
        };
        assert_eq!(args.requests, 2);
        assert_eq!(args.files, ["a", "b"].map(PathBuf::from));
    }

    #[test]
    fn values_without_a_meaning_are_refused_by_name() {
        let refused = [
            ("--requests 0", "--requests"),
            ("--host 1X", "unknown unit"),
            ("--speed 2", "--trace"),
            ("--trace t.csv --speed 0", "number over 0"),
            ("--trace t.csv --speed nan", "number over 0"),
            ("--sede 1", "--seed"),
        ];
        for (words, part) in refused {
            let words = format!("vrampager swap a {words}");
            let error = Cli::try_parse_from(words.split(' '))
                .unwrap_err()
                .to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
