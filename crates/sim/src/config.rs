use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use vrampager_addr::{PAGE, PAGE_SIZE, parse_size};

use crate::fault::{Injection, parse_injection};
use crate::planted::PlantedBug;

/// How operations get executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// One thread per engine kind.
    Threaded,
    /// No threads; a seeded scheduler with a virtual clock.
    Deterministic,
}

/// What to simulate. Parsed from the part of a device string behind `sim:`.
///
/// | key | meaning | allowed | default |
/// |---|---|---|---|
/// | `vram` | device memory per device | 4K to 1T, whole pages | 256M |
/// | `bar` | CPU-visible aperture | 4K to 1T, whole pages | 64M, at most `vram` |
/// | `host` | limit of the host heap per device | 4K to 16T, whole pages | 64G |
/// | `gpus` | devices | 1 to 16 | 1 |
/// | `mode` | see [`Mode`] | `threaded`, `deterministic` | `threaded` |
/// | `seed` | of the scheduler in deterministic mode | 0 to 2^64-1 | 0 |
/// | `ring` | operations that a channel holds | 2 to 65536 | 1024 |
/// | `fault` | may be repeated; applies to each device | see [`Injection`] | none |
///
/// Pages are 4 KiB. Sizes take the units of [`parse_size`].
///
/// # Examples
/// ```
/// use vrampager_sim::SimConfig;
/// let config: SimConfig = "vram=64M,bar=16M,seed=7,fault=create:3".parse().unwrap();
/// assert_eq!(config.vram, 64 << 20);
/// assert_eq!(config.to_string().parse(), Ok(config));
///
/// let error = "vram=100".parse::<SimConfig>().unwrap_err();
/// assert!(error.to_string().contains("`vram`"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SimConfig {
    /// Bytes of device memory.
    pub vram: u64,
    /// Bytes of the aperture.
    pub bar: u64,
    /// Most bytes of host objects.
    pub host: u64,
    /// Number of devices.
    pub gpus: u32,
    /// Execution.
    pub mode: Mode,
    /// Of all pseudorandom choices.
    pub seed: u64,
    /// Operations that one channel holds.
    pub ring: u32,
    /// Faults to come on each device.
    pub faults: Vec<Injection>,
    bug: Option<PlantedBug>,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            vram: 256 << 20,
            bar: 64 << 20,
            host: 64 << 30,
            gpus: 1,
            mode: Mode::Threaded,
            seed: 0,
            ring: 1024,
            faults: Vec::new(),
            bug: None,
        }
    }
}

/// Why a text is not a [`SimConfig`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no such key.
    #[error("unknown key `{key}`; allowed are {KEYS}")]
    UnknownKey {
        /// What was written.
        key: String,
    },
    /// An item is not of the form `key=value`.
    #[error("`{item}` is not key=value; allowed keys are {KEYS}")]
    NoValue {
        /// What was written.
        item: String,
    },
    /// A key that may be given once was given again.
    #[error("key `{key}` is given twice; only `fault` may be repeated")]
    Duplicate {
        /// Which.
        key: &'static str,
    },
    /// The value is malformed or out of range.
    #[error("key `{key}` cannot be `{value}`; allowed is {allowed}")]
    BadValue {
        /// Which.
        key: &'static str,
        /// What was written.
        value: String,
        /// What could have been.
        allowed: &'static str,
    },
}

const KEYS: &str = "vram, bar, host, gpus, mode, seed, ring, fault";
const FAULTS: &str = "CALL:N, copy:N:BYTES or lose:N with N from 1 on, where CALL is open, \
     reserve-va, create, map-cpu, map-gpu, create-timeline, create-channel, submit, unmap-gpu, \
     unmap-cpu, destroy, release-va, destroy-channel, destroy-timeline, import or share";
const DEVICE_SIZE: &str = "a size from 4K to 1T in whole pages of 4K, such as 256M";
const HOST_SIZE: &str = "a size from 4K to 16T in whole pages of 4K, such as 64G";

impl SimConfig {
    /// Plants one defect.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn planted(mut self, bug: PlantedBug) -> Self {
        self.bug = Some(bug);
        self
    }

    pub(crate) fn has(&self, bug: PlantedBug) -> bool {
        self.bug == Some(bug)
    }

    /// Checks the ranges in the table above; fields are public and need not come from a text.
    ///
    /// # Errors
    /// [`ConfigError::BadValue`] with the first key that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let pages =
            |value: u64, max: u64| PAGE.divides(value) && (PAGE_SIZE..=max).contains(&value);
        let rules = [
            ("vram", self.vram, pages(self.vram, 1 << 40), DEVICE_SIZE),
            ("bar", self.bar, pages(self.bar, 1 << 40), DEVICE_SIZE),
            ("host", self.host, pages(self.host, 1 << 44), HOST_SIZE),
            (
                "gpus",
                self.gpus.into(),
                (1..=16).contains(&self.gpus),
                "1 to 16",
            ),
            (
                "ring",
                self.ring.into(),
                (2..=65536).contains(&self.ring),
                "2 to 65536 operations",
            ),
        ];
        match rules.into_iter().find(|&(_, _, good, _)| !good) {
            None => Ok(()),
            Some((key, value, _, allowed)) => Err(ConfigError::BadValue {
                key,
                value: value.to_string(),
                allowed,
            }),
        }
    }

    /// Takes one `key=value`; the key's name, once it is known to be one.
    fn set(&mut self, key: &str, value: &str) -> Result<&'static str, ConfigError> {
        let bad = |key, allowed| ConfigError::BadValue {
            key,
            value: value.to_owned(),
            allowed,
        };
        let size = |key, allowed| parse_size(value).map_err(|_| bad(key, allowed));
        match key {
            "vram" => {
                self.vram = size("vram", DEVICE_SIZE)?;
                Ok("vram")
            }
            "bar" => {
                self.bar = size("bar", DEVICE_SIZE)?;
                Ok("bar")
            }
            "host" => {
                self.host = size("host", HOST_SIZE)?;
                Ok("host")
            }
            "gpus" => {
                self.gpus = value.parse().map_err(|_| bad("gpus", "1 to 16"))?;
                Ok("gpus")
            }
            "mode" => {
                self.mode = match value {
                    "threaded" => Mode::Threaded,
                    "deterministic" => Mode::Deterministic,
                    _ => return Err(bad("mode", "threaded or deterministic")),
                };
                Ok("mode")
            }
            "seed" => {
                self.seed = value
                    .parse()
                    .map_err(|_| bad("seed", "a number below 2^64"))?;
                Ok("seed")
            }
            "ring" => {
                let allowed = "2 to 65536 operations";
                self.ring = value.parse().map_err(|_| bad("ring", allowed))?;
                Ok("ring")
            }
            "fault" => {
                let fault = parse_injection(value).ok_or_else(|| bad("fault", FAULTS))?;
                self.faults.push(fault);
                Ok("fault")
            }
            _ => Err(ConfigError::UnknownKey {
                key: key.to_owned(),
            }),
        }
    }
}

impl FromStr for SimConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        let mut seen = Vec::new();
        for item in text.split(',').filter(|item| !item.trim().is_empty()) {
            let (key, value) = item.split_once('=').ok_or_else(|| ConfigError::NoValue {
                item: item.trim().to_owned(),
            })?;
            let key = config.set(key.trim(), value.trim())?;
            if key != "fault" && seen.contains(&key) {
                return Err(ConfigError::Duplicate { key });
            }
            seen.push(key);
        }
        if !seen.contains(&"bar") {
            config.bar = config.bar.min(config.vram);
        }
        config.check()?;
        Ok(config)
    }
}

/// A size in the largest unit that keeps it exact.
struct Exact(u64);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
        let exact = units
            .into_iter()
            .find(|&(shift, _)| self.0 != 0 && self.0.trailing_zeros() >= shift);
        match exact {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Display for SimConfig {
    /// All keys, in a form that parses to the same value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Threaded => "threaded",
            Mode::Deterministic => "deterministic",
        };
        write!(
            f,
            "vram={},bar={},host={},gpus={},mode={mode},seed={},ring={}",
            Exact(self.vram),
            Exact(self.bar),
            Exact(self.host),
            self.gpus,
            self.seed,
            self.ring
        )?;
        for fault in &self.faults {
            write!(f, ",fault={fault}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        text.parse::<SimConfig>().unwrap_err().to_string()
    }

    #[test]
    fn no_text_at_all_is_the_default() {
        assert_eq!("".parse(), Ok(SimConfig::default()));
    }

    #[test]
    fn a_bad_string_names_the_key_and_what_is_allowed() {
        assert_eq!(
            error("vrom=1M"),
            "unknown key `vrom`; allowed are vram, bar, host, gpus, mode, seed, ring, fault"
        );
        assert_eq!(
            error("vram=5000"),
            "key `vram` cannot be `5000`; allowed is a size from 4K to 1T in whole pages of 4K, \
             such as 256M"
        );
        assert_eq!(
            error("gpus=0"),
            "key `gpus` cannot be `0`; allowed is 1 to 16"
        );
        assert_eq!(
            error("ring=1"),
            "key `ring` cannot be `1`; allowed is 2 to 65536 operations"
        );
        assert_eq!(
            error("mode=fast"),
            "key `mode` cannot be `fast`; allowed is threaded or deterministic"
        );
        assert!(error("fault=jump:1").starts_with("key `fault` cannot be `jump:1`; allowed is"));
        assert!(error("seed=-1").starts_with("key `seed` cannot be `-1`"));
        assert!(error("bar=1Q").starts_with("key `bar` cannot be `1Q`"));
        assert!(error("threaded").starts_with("`threaded` is not key=value"));
        assert!(error("seed=1,seed=2").starts_with("key `seed` is given twice"));
    }

    #[test]
    fn the_default_aperture_is_never_larger_than_device_memory() {
        let config: SimConfig = "vram=1M".parse().unwrap();
        assert_eq!(config.bar, 1 << 20);
    }

    #[test]
    fn printing_and_parsing_agree() {
        let text = "vram=12K,bar=4K,host=3M,gpus=2,mode=deterministic,seed=9,ring=16,\
                    fault=create:3,fault=copy:1:100";
        let config: SimConfig = text.parse().unwrap();
        assert_eq!(config.to_string(), text);
    }
}
