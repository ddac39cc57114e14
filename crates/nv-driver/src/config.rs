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
    /// Device memory of each, in bytes: 4 MiB to 1 TiB.
    pub vram: u64,
    /// CPU-visible window of each (BAR1), in bytes: 64 KiB to 1 TiB.
    pub bar1: u64,
    /// Host memory the driver may allocate, in bytes: 4 MiB to 64 TiB.
    pub host: u64,
    /// Driver release, of a branch that [`AbiVersion::of_release`] knows; decides the layouts.
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
    #[error("unknown key `{key}`; allowed are {KEYS}")]
    UnknownKey {
        /// What was given.
        key: String,
    },
    /// The value of a key is not one it can have.
    #[error("key `{key}` cannot be `{value}`; allowed is {allowed}")]
    BadValue {
        /// Key.
        key: &'static str,
        /// What was given.
        value: String,
        /// What could have been.
        allowed: &'static str,
    },
    /// A key that may be given once was given again.
    #[error("key `{key}` is given twice; only `fail` may be repeated")]
    Duplicate {
        /// Which.
        key: String,
    },
    /// A failure to inject could not be read.
    #[error(transparent)]
    Injection(#[from] InjectionError),
}

const KEYS: &str = "gpus, arch, vram, bar1, host, release, latency, doorbell, fail";

/// More would not have distinct device instances.
const GPUS_MAX: usize = 32;

/// A size that a key can have.
struct Sizes {
    key: &'static str,
    min: u64,
    max: u64,
    allowed: &'static str,
}

/// Below it clients have no room for their rings, let alone for data. The driver tells the size in
/// KiB with 32 bits, which are enough for twice as much again.
const VRAM: Sizes = Sizes {
    key: "vram",
    min: 4 << 20,
    max: 1 << 40,
    allowed: "a size from 4M to 1T in whole pages of 4K, such as 8G",
};
/// The smallest window shows one doorbell page and one ring at a time.
const BAR1: Sizes = Sizes {
    key: "bar1",
    min: 64 << 10,
    max: 1 << 40,
    allowed: "a size from 64K to 1T in whole pages of 4K, such as 256M",
};
/// As much as Linux addresses with page tables of four levels.
const HOST: Sizes = Sizes {
    key: "host",
    min: 4 << 20,
    max: 64 << 40,
    allowed: "a size from 4M to 64T in whole pages of 4K, such as 16G",
};

impl Sizes {
    fn read(&self, text: &str) -> Result<u64, ConfigError> {
        let fits = |size: &u64| (self.min..=self.max).contains(size) && size.is_multiple_of(4096);
        let size = parse_size(text).ok().filter(fits);
        size.ok_or_else(|| bad(self.key, text, self.allowed))
    }
}

fn bad(key: &'static str, value: &str, allowed: &'static str) -> ConfigError {
    ConfigError::BadValue {
        key,
        value: value.to_owned(),
        allowed,
    }
}

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
        let mut seen = Vec::new();
        for pair in text
            .split(',')
            .map(str::trim)
            .filter(|pair| !pair.is_empty())
        {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let key = key.trim();
            config.set(key, value.trim())?;
            if key != "fail" && seen.contains(&key) {
                let key = key.to_owned();
                return Err(ConfigError::Duplicate { key });
            }
            seen.push(key);
        }
        Ok(config)
    }

    /// The interface version of the release; the oldest for a release that is none.
    #[must_use]
    pub fn abi(&self) -> AbiVersion {
        AbiVersion::of_release(&self.release).unwrap_or(AbiVersion::V570)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let or = |key, allowed| move || bad(key, value, allowed);
        match key {
            "gpus" => {
                let gpus = value.parse().ok();
                let gpus = gpus.filter(|gpus| (1..=GPUS_MAX).contains(gpus));
                self.gpus = gpus.ok_or_else(or("gpus", "1 to 32"))?;
            }
            "arch" => {
                let arch = match value {
                    "ampere" => Some(Arch::Ampere),
                    "ada" => Some(Arch::Ada),
                    "blackwell" => Some(Arch::Blackwell),
                    _ => None,
                };
                self.arch = arch.ok_or_else(or("arch", "ampere, ada or blackwell"))?;
            }
            "vram" => self.vram = VRAM.read(value)?,
            "bar1" => self.bar1 = BAR1.read(value)?,
            "host" => self.host = HOST.read(value)?,
            "release" => {
                let known = is_release(value) && AbiVersion::of_release(value).is_some();
                let release = known.then(|| value.to_owned());
                self.release = release
                    .ok_or_else(or("release", "a release of 570 to 610, such as 580.82.07"))?;
            }
            "latency" => {
                let allowed = "a whole number of ns, us or ms, such as 10us";
                self.latency_ns = nanoseconds(value).ok_or_else(or("latency", allowed))?;
            }
            "doorbell" => {
                let strict = match value {
                    "strict" => Some(true),
                    "any" => Some(false),
                    _ => None,
                };
                self.strict_doorbell = strict.ok_or_else(or("doorbell", "any or strict"))?;
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

/// Whether a text is numbers between dots, and short enough for the driver's fields.
fn is_release(text: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= 32 && text.split('.').all(number)
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
    fn a_size_has_both_limits_and_nothing_beyond_them() {
        for sizes in [VRAM, BAR1, HOST] {
            let read = |size: u64| Config::parse(&format!("{}={size}", sizes.key)).is_ok();
            assert!(read(sizes.min) && read(sizes.max), "{}", sizes.key);
            let outside = [0, 1, sizes.min - 4096, sizes.max + 4096, u64::MAX];
            assert!(!outside.into_iter().any(read), "{}", sizes.key);
        }
    }

    #[test]
    fn a_bad_pair_is_named() {
        for (text, message) in [
            ("gpus=0", "key `gpus` cannot be `0`; allowed is 1 to 32"),
            ("gpus=33", "key `gpus` cannot be `33`"),
            ("vram=lots", "key `vram` cannot be `lots`"),
            (
                "vram=4097",
                "key `vram` cannot be `4097`; allowed is a size",
            ),
            ("release=535.1", "key `release` cannot be `535.1`"),
            ("release=611.1", "key `release` cannot be `611.1`"),
            ("release=570.x", "key `release` cannot be `570.x`"),
            ("release=570.", "key `release` cannot be `570.`"),
            ("latency=5", "key `latency` cannot be `5`"),
            ("doorbell=loud", "key `doorbell` cannot be `loud`"),
            ("colour=red", "unknown key `colour`; allowed are gpus,"),
            ("fail=io:1:1:1", "\"io:1:1:1\" is not kind:number:nth"),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }
}
