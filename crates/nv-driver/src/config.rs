//! What machine is simulated.

use thiserror::Error;
use vrampager_addr::parse_size;
use vrampager_nv_abi::AbiVersion;

use crate::inject::{Injection, InjectionError};

/// GPU generation: which classes a GPU has and how it launches work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arch {
    /// Chips `GA10x`.
    Ampere,
    /// Chips `AD10x`.
    Ada,
    /// Chips `GB20x`.
    Blackwell,
}

/// A simulated machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Number of GPUs, 1 to 32.
    pub gpus: usize,
    /// Generation of each.
    pub arch: Arch,
    /// Device memory of each, in bytes.
    pub vram: u64,
    /// CPU-visible window of each (BAR1), in bytes.
    pub bar1: u64,
    /// Host memory the driver may allocate, in bytes.
    pub host: u64,
    /// Driver release; decides the layouts.
    pub release: String,
    /// How long the GPUs take to begin with a ring entry, in nanoseconds.
    pub latency_ns: u64,
    /// Whether a channel runs only after its token has been written to the doorbell
    /// (`doorbell=strict`); otherwise new entries in its ring suffice.
    pub strict_doorbell: bool,
    /// Failures to inject from the start.
    pub injections: Vec<Injection>,
}

/// A description of a machine could not be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No such key.
    #[error(
        "unknown key {key:?}: use gpus, arch, vram, bar1, host, release, latency, doorbell or fail"
    )]
    UnknownKey {
        /// What was given.
        key: String,
    },
    /// The value of a key is not one it can have.
    #[error("bad value {value:?} for {key}")]
    BadValue {
        /// Key.
        key: &'static str,
        /// What was given.
        value: String,
    },
    /// A failure to inject could not be read.
    #[error("cannot read the failure to inject")]
    Injection(#[from] InjectionError),
}

/// More would not have distinct device instances.
const GPUS_MAX: usize = 32;

impl Default for Config {
    /// One Ada GPU with 24 GiB, all of it CPU-visible, and the release clients know best.
    fn default() -> Self {
        Self {
            gpus: 1,
            arch: Arch::Ada,
            vram: 24 << 30,
            bar1: 32 << 30,
            host: 1 << 40,
            release: "570.144".to_owned(),
            latency_ns: 0,
            strict_doorbell: false,
            injections: Vec::new(),
        }
    }
}

impl Config {
    /// Reads `key=value` pairs between commas; keys not given keep their default.
    ///
    /// ```
    /// use vrampager_nv_driver::Config;
    ///
    /// let config = Config::parse("gpus=2,vram=512M,release=580.82.07,fail=uvm:73:2:0x51")?;
    /// assert_eq!((config.gpus, config.vram), (2, 512 << 20));
    /// # Ok::<(), vrampager_nv_driver::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError`], for the first pair that could not be read.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for pair in text
            .split(',')
            .map(str::trim)
            .filter(|pair| !pair.is_empty())
        {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            config.set(key.trim(), value.trim())?;
        }
        Ok(config)
    }

    /// The interface version of the release; the oldest for a release that is none.
    #[must_use]
    pub fn abi(&self) -> AbiVersion {
        AbiVersion::of_release(&self.release).unwrap_or(AbiVersion::V570)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let bad = |key| ConfigError::BadValue {
            key,
            value: value.to_owned(),
        };
        match key {
            "gpus" => {
                let gpus = value.parse().map_err(|_| bad("gpus"))?;
                self.gpus = (1..=GPUS_MAX)
                    .contains(&gpus)
                    .then_some(gpus)
                    .ok_or(bad("gpus"))?;
            }
            "arch" => {
                self.arch = match value {
                    "ampere" => Arch::Ampere,
                    "ada" => Arch::Ada,
                    "blackwell" => Arch::Blackwell,
                    _ => return Err(bad("arch")),
                }
            }
            "vram" => self.vram = parse_size(value).map_err(|_| bad("vram"))?,
            "bar1" => self.bar1 = parse_size(value).map_err(|_| bad("bar1"))?,
            "host" => self.host = parse_size(value).map_err(|_| bad("host"))?,
            "release" => {
                AbiVersion::of_release(value).ok_or(bad("release"))?;
                value.clone_into(&mut self.release);
            }
            "latency" => self.latency_ns = nanoseconds(value).ok_or(bad("latency"))?,
            "doorbell" => {
                self.strict_doorbell = match value {
                    "strict" => true,
                    "any" => false,
                    _ => return Err(bad("doorbell")),
                }
            }
            "fail" => self.injections.push(value.parse()?),
            _ => {
                return Err(ConfigError::UnknownKey {
                    key: key.to_owned(),
                });
            }
        }
        Ok(())
    }
}

/// A whole number with its unit: `ns`, `us` or `ms`.
fn nanoseconds(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_given_is_the_default_machine() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
    }

    #[test]
    fn a_latency_has_a_unit() {
        let latency = |text| Config::parse(text).unwrap().latency_ns;
        assert_eq!(latency("latency=7ns"), 7);
        assert_eq!(latency("latency=50us"), 50_000);
        assert_eq!(latency("latency=2ms"), 2_000_000);
    }

    #[test]
    fn a_doorbell_is_needed_only_if_it_is_strict() {
        let strict = |text| Config::parse(text).unwrap().strict_doorbell;
        assert!(strict("doorbell=strict"));
        assert!(!strict("doorbell=any"));
        assert!(!strict(""));
    }

    #[test]
    fn a_bad_pair_is_named() {
        for (text, message) in [
            ("gpus=0", "bad value \"0\" for gpus"),
            ("gpus=33", "bad value \"33\" for gpus"),
            ("vram=lots", "bad value \"lots\" for vram"),
            ("release=535.1", "bad value \"535.1\" for release"),
            ("latency=5", "bad value \"5\" for latency"),
            ("doorbell=loud", "bad value \"loud\" for doorbell"),
            ("colour=red", "unknown key \"colour\""),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }
}
