//! What a run has found, as JSON and as text.

use std::fmt::{self, Write as _};

use serde::Serialize;
use vrampager::{Counters, Totals};
use vrampager_addr::Size;

use crate::exit::Exit;

/// The object that `swap --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) version: &'static str,
    pub(crate) config: Config,
    /// Whether every byte was as it should be.
    pub(crate) verified: bool,
    /// Bytes that were not.
    pub(crate) mismatches: u64,
    pub(crate) first_mismatch: Option<String>,
    pub(crate) verified_bytes: u64,
    pub(crate) requests: u64,
    pub(crate) hits: u64,
    pub(crate) models: Vec<ModelReport>,
    pub(crate) bytes: Bytes,
    pub(crate) copy_ratio: Option<f64>,
    pub(crate) copy_speed: Option<CopySpeed>,
    pub(crate) seconds: f64,
    pub(crate) leaks: Leaks,
}

/// What the run was asked to do; sizes in bytes.
#[derive(Debug, Serialize)]
pub(crate) struct Config {
    pub(crate) device: String,
    pub(crate) host: u64,
    pub(crate) swap: u64,
    pub(crate) swap_dir: String,
    pub(crate) state: u64,
    pub(crate) requests: u64,
    pub(crate) seed: u64,
    pub(crate) trace: Vec<String>,
    pub(crate) speed: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ModelReport {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) format: String,
    /// Bytes of all its tensors.
    pub(crate) bytes: u64,
    pub(crate) tensors: usize,
    pub(crate) requests: u64,
    pub(crate) hits: u64,
    /// Whether it was too large to be in VRAM as a whole.
    pub(crate) tensor_by_tensor: bool,
    /// Bytes moved while its requests were served, whosever they are.
    pub(crate) file_read: u64,
    pub(crate) copied: u64,
    pub(crate) dropped_clean: u64,
    /// Of requests that were no hits.
    pub(crate) swap_in_ms: Option<SwapIn>,
}

#[derive(Debug, Serialize)]
pub(crate) struct SwapIn {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl SwapIn {
    /// Nearest-rank percentiles of times in milliseconds; `None` of no time.
    pub(crate) fn of(times_ms: &mut [f64]) -> Option<Self> {
        times_ms.sort_by(f64::total_cmp);
        let rank = |percent: usize| (times_ms.len() * percent).div_ceil(100);
        let at = |percent| times_ms.get(rank(percent).checked_sub(1)?);
        Some(Self {
            p50: *at(50)?,
            p99: *at(99)?,
        })
    }
}

/// Bytes moved by the pager.
#[derive(Debug, Serialize)]
pub(crate) struct Bytes {
    pub(crate) file_read: u64,
    pub(crate) h2d: u64,
    pub(crate) d2h: u64,
    pub(crate) dropped_clean: u64,
    pub(crate) swap_written: u64,
    pub(crate) swap_read: u64,
}

impl From<Totals> for Bytes {
    fn from(totals: Totals) -> Self {
        Self {
            file_read: totals.file_read,
            h2d: totals.host_to_device,
            d2h: totals.device_to_host,
            dropped_clean: totals.dropped_clean,
            swap_written: totals.swap_written,
            swap_read: totals.swap_read,
        }
    }
}

/// Medians in bytes per second.
#[derive(Debug, Serialize)]
pub(crate) struct CopySpeed {
    pub(crate) engine: f64,
    pub(crate) memcpy: f64,
}

/// What was left after the run.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Leaks {
    pub(crate) objects: u64,
    pub(crate) mappings: u64,
    pub(crate) ranges: u64,
    pub(crate) pages: u64,
    pub(crate) va_bytes: u64,
    pub(crate) channels: u64,
    pub(crate) timelines: u64,
    /// File descriptors of the process.
    pub(crate) fds: u64,
}

impl Leaks {
    pub(crate) fn new(left: Counters, fds: u64) -> Self {
        Self {
            objects: left.objects,
            mappings: left.mappings,
            ranges: left.ranges,
            pages: left.pages,
            va_bytes: left.va_bytes,
            channels: left.channels,
            timelines: left.timelines,
            fds,
        }
    }

    fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("objects", self.objects),
            ("mappings", self.mappings),
            ("ranges", self.ranges),
            ("pages", self.pages),
            ("address bytes", self.va_bytes),
            ("channels", self.channels),
            ("timelines", self.timelines),
            ("file descriptors", self.fds),
        ]
    }
}

impl Report {
    /// How the program ends; `None` is success.
    pub(crate) fn exit(&self) -> Option<Exit> {
        let clean = self.leaks.named().iter().all(|&(_, count)| count == 0);
        (!self.verified || !clean).then_some(Exit::Invariant)
    }

    fn totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{} requests, {} hits, {:.1} s; {} compared, {} bytes differ",
            self.requests,
            self.hits,
            self.seconds,
            Size(self.verified_bytes),
            self.mismatches
        )?;
        if let Some(first) = &self.first_mismatch {
            writeln!(f, "first difference: {first}")?;
        }
        let moved = &self.bytes;
        writeln!(
            f,
            "read from files {}, dropped clean {}, host to device {}, device to host {}, \
             swap written {}, swap read {}",
            Size(moved.file_read),
            Size(moved.dropped_clean),
            Size(moved.h2d),
            Size(moved.d2h),
            Size(moved.swap_written),
            Size(moved.swap_read)
        )?;
        if let (Some(ratio), Some(speed)) = (self.copy_ratio, &self.copy_speed) {
            let gib = f64::from(1 << 30);
            let (engine, memcpy) = (speed.engine / gib, speed.memcpy / gib);
            writeln!(
                f,
                "large copies run at {ratio:.2} of memcpy ({engine:.1} GiB/s, memcpy {memcpy:.1} \
                 GiB/s)"
            )?;
        }
        let left = self.leaks.named();
        let left: Vec<String> = left
            .iter()
            .filter(|&&(_, count)| count != 0)
            .map(|(what, count)| format!("{count} {what}"))
            .collect();
        match left.as_slice() {
            [] => writeln!(f, "left behind: nothing"),
            left => writeln!(f, "left behind: {}", left.join(", ")),
        }
    }
}

const HEADER: [&str; 10] = [
    "model",
    "size",
    "tensors",
    "requests",
    "hits",
    "file read",
    "copied",
    "dropped",
    "p50 ms",
    "p99 ms",
];

impl ModelReport {
    fn row(&self) -> [String; HEADER.len()] {
        let ms = |of: fn(&SwapIn) -> f64| {
            let times = self.swap_in_ms.as_ref();
            times.map_or("-".into(), |times| format!("{:.2}", of(times)))
        };
        let by_tensor = if self.tensor_by_tensor { " *" } else { "" };
        [
            printable(&self.name) + by_tensor,
            Size(self.bytes).to_string(),
            self.tensors.to_string(),
            self.requests.to_string(),
            self.hits.to_string(),
            Size(self.file_read).to_string(),
            Size(self.copied).to_string(),
            Size(self.dropped_clean).to_string(),
            ms(|times| times.p50),
            ms(|times| times.p99),
        ]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.models.iter().map(ModelReport::row);
        write_table(f, HEADER, &rows.collect::<Vec<_>>())?;
        if self.models.iter().any(|model| model.tensor_by_tensor) {
            writeln!(f, "* too large for VRAM, served tensor by tensor")?;
        }
        self.totals(f)
    }
}

/// The first column to the left, the others to the right, each as wide as its widest cell.
fn write_table<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    header: [&str; N],
    rows: &[[String; N]],
) -> fmt::Result {
    let width = |text: &str| text.chars().count();
    let mut widths = header.map(width);
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = width(cell).max(*widest);
        }
    }
    for row in std::iter::once(&header.map(String::from)).chain(rows) {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            match column {
                0 => write!(line, "{cell:<width$}")?,
                _ => write!(line, "  {cell:>width$}")?,
            }
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

/// A name from outside, without what would move a terminal's cursor.
fn printable(name: &str) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    name.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Table(Vec<[String; 2]>);

    impl fmt::Display for Table {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write_table(f, ["name", "n"], &self.0)
        }
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["longer name", "1"], ["\u{fc}", "1234"]];
        let table = Table(rows.map(|row| row.map(String::from)).into());
        assert_eq!(
            table.to_string(),
            "name            n\n\
             longer name     1\n\
             \u{fc}            1234\n"
        );
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let mut times: Vec<f64> = (0..100).rev().map(f64::from).collect();
        let swap_in = SwapIn::of(&mut times).unwrap();
        assert_eq!((swap_in.p50, swap_in.p99), (49.0, 98.0));
        let one = SwapIn::of(&mut [7.0]).unwrap();
        assert_eq!((one.p50, one.p99), (7.0, 7.0));
        assert!(SwapIn::of(&mut []).is_none());
    }

    #[test]
    fn control_characters_of_a_name_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[2J\nb"), "a?[2J?b");
    }
}
