//! Exit codes and the errors behind them.

use std::fmt;
use std::process::ExitCode;

use vrampager::ErrorKind;
use vrampager_hal::HalError;

/// What to do about a driver that is not there: NVIDIA's is the only one that a device needs.
const NO_DRIVER: &str = "load NVIDIA's kernel driver and make its nodes (`nvidia-modprobe -c 0 \
                         -u`), see that you may read and write them, or use `nv:sim`, which needs \
                         none";

/// What the program's exit code says; the numbers are stable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// A device or a file failed, or a file changed underneath.
    Failed = 1,
    /// An argument cannot be used.
    Usage = 2,
    /// Memory for a request is not there.
    OutOfMemory = 3,
    /// GPU addresses are used up.
    OutOfAddresses = 4,
    /// Bytes differ, something was left behind, or an invariant is broken. 5 is for quotas.
    Invariant = 6,
}

impl Exit {
    /// The name in JSON.
    fn kind(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::OutOfMemory => "out-of-memory",
            Self::OutOfAddresses => "out-of-addresses",
            Self::Invariant => "invariant",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error on its way out, with the exit code that it ends in.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    error: anyhow::Error,
}

impl Failure {
    pub(crate) fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Self {
            exit,
            error: error.into(),
        }
    }

    /// For an argument that cannot be used.
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self::new(Exit::Usage, error)
    }

    /// For a message that no error stands behind.
    pub(crate) fn because(exit: Exit, message: String) -> Self {
        Self::new(exit, anyhow::Error::msg(message))
    }

    /// The one object that `--json` prints instead of a report.
    pub(crate) fn to_json(&self) -> String {
        error_json(&self.to_string(), self.exit)
    }
}

/// The object `{"error": ..., "kind": ...}`.
pub(crate) fn error_json(error: &str, exit: Exit) -> String {
    serde_json::json!({ "error": error, "kind": exit.kind() }).to_string()
}

impl fmt::Display for Failure {
    /// With the causes, each behind a colon, and what to do where that is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)?;
        match self.error.chain().any(is_no_driver) {
            true => write!(f, "; {NO_DRIVER}"),
            false => Ok(()),
        }
    }
}

fn is_no_driver(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = match error.downcast_ref() {
        Some(vrampager::Error::Device(error)) => Some(error),
        Some(_) | None => error.downcast_ref(),
    };
    matches!(error, Some(HalError::NoDriver { .. }))
}

impl From<vrampager::Error> for Failure {
    fn from(error: vrampager::Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::OutOfMemory => Exit::OutOfMemory,
            ErrorKind::OutOfAddresses => Exit::OutOfAddresses,
            ErrorKind::Invalid => Exit::Usage,
            ErrorKind::Busy | ErrorKind::DeviceLost | ErrorKind::Backend => Exit::Failed,
        };
        Self::new(exit, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_help_text() {
        let exits = [
            Exit::Failed,
            Exit::Usage,
            Exit::OutOfMemory,
            Exit::OutOfAddresses,
            Exit::Invariant,
        ];
        assert_eq!(exits.map(|exit| exit as u8), [1, 2, 3, 4, 6]);
        for exit in exits {
            let line = format!("\n  {}  ", exit as u8);
            assert!(crate::args::EXIT_CODES.contains(&line), "{exit:?}");
        }
    }

    #[test]
    fn a_driver_that_is_missing_comes_with_what_to_do_and_no_other_error_does() {
        let missing = || HalError::NoDriver {
            node: "/dev/nvidia0".to_owned(),
            errno: 2,
        };
        let direct = anyhow::Error::from(missing()).context("it failed");
        for failure in [
            Failure::new(Exit::Failed, direct),
            Failure::from(vrampager::Error::Device(missing())),
        ] {
            let text = failure.to_string();
            assert!(text.contains("/dev/nvidia0 cannot be opened: "), "{text}");
            assert!(text.ends_with(NO_DRIVER), "{text}");
            assert!(failure.to_json().contains("nvidia-modprobe"));
        }
        let busy = vrampager::Error::Device(HalError::Busy(vrampager_hal::DeviceId(0)));
        let text = Failure::from(busy).to_string();
        assert!(!text.contains("nvidia-modprobe"), "{text}");
    }

    #[test]
    fn causes_are_part_of_the_message_and_quotes_are_escaped_in_json() {
        let cause = anyhow::Error::msg("the \"cause\"");
        let failure = Failure::usage(cause.context("it failed"));
        assert_eq!(
            failure.to_json(),
            r#"{"error":"it failed: the \"cause\"","kind":"usage"}"#
        );
    }
}
