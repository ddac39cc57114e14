//! Which driver and which of its GPUs.

use std::str::FromStr;

use thiserror::Error;

/// A driver and the GPUs of it that may be seen.
///
/// Parsed from the part of a device string behind `nv:`: minor numbers between commas, or nothing
/// for all real GPUs; `sim` for the simulated driver, followed by its machine as
/// [`vrampager_nv_driver::Config`] reads it, and `visible=` minor numbers between colons.
///
/// # Examples
/// ```
/// use vrampager_nv::{Config, Machine};
///
/// let config: Config = "sim,vram=64M,gpus=3,visible=0:2".parse()?;
/// assert!(matches!(config.machine, Machine::Simulated(machine) if machine.gpus == 3));
/// assert_eq!(config.visible, Some(vec![0, 2]));
/// assert_eq!("1".parse(), Ok(Config { machine: Machine::Real, visible: Some(vec![1]) }));
/// # Ok::<(), vrampager_nv::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Whose driver.
    pub machine: Machine,
    /// Minor numbers of the GPUs to be seen; all of them without.
    pub visible: Option<Vec<u32>>,
}

/// Where the driver is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Machine {
    /// The driver of this machine.
    Real,
    /// A simulated one.
    Simulated(vrampager_nv_driver::Config),
}

/// Why a text is not a [`Config`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The simulated machine could not be read.
    #[error(transparent)]
    Machine(#[from] vrampager_nv_driver::ConfigError),
    /// A GPU is named by something else than its minor number.
    #[error("`{given}` is no number of a GPU; use `nv:0` or `nv:sim,KEY=VALUE,...`")]
    Gpu {
        /// What was written.
        given: String,
    },
}

fn minors(text: &str, separator: char) -> Result<Vec<u32>, ConfigError> {
    let minor = |item: &str| {
        item.trim().parse().map_err(|_| ConfigError::Gpu {
            given: item.to_owned(),
        })
    };
    text.split(separator).map(minor).collect()
}

impl FromStr for Config {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let (kind, rest) = text.split_once(',').unwrap_or((text, ""));
        if kind.trim() != "sim" {
            let all = text.trim().is_empty();
            return Ok(Self {
                machine: Machine::Real,
                visible: if all { None } else { Some(minors(text, ',')?) },
            });
        }
        let (mut machine, mut visible) = (Vec::new(), None);
        for pair in rest.split(',') {
            match pair.trim().strip_prefix("visible=") {
                Some(_) if visible.is_some() => {
                    let key = "visible".to_owned();
                    return Err(vrampager_nv_driver::ConfigError::Duplicate { key }.into());
                }
                Some(list) => visible = Some(minors(list, ':')?),
                None => machine.push(pair),
            }
        }
        let machine = vrampager_nv_driver::Config::parse(&machine.join(","))?;
        Ok(Self {
            machine: Machine::Simulated(machine),
            visible,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
        for (text, message) in [
            ("gpu0", "`gpu0` is no number of a GPU"),
            ("0,", "`` is no number of a GPU"),
            ("sim,visible=a", "`a` is no number of a GPU"),
            ("sim,colour=red", "unknown key `colour`"),
            ("sim,vram=8M,vram=8M", "key `vram` is given twice"),
            (
                "sim,visible=0,vram=8M,visible=1",
                "key `visible` is given twice",
            ),
        ] {
            let error = text.parse::<Config>().unwrap_err().to_string();
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }

    #[test]
    fn nothing_means_all_gpus_of_the_machine() {
        let all = Config {
            machine: Machine::Real,
            visible: None,
        };
        assert_eq!("".parse(), Ok(all));
    }
}
