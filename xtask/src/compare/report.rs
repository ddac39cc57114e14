//! What both sides did, side by side.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// What a side prints of itself.
#[derive(Debug, Deserialize)]
pub(super) struct Measured {
    /// Of the client, if it comes from elsewhere.
    version: Option<String>,
    /// Rounds of {allocate 1 GiB that the CPU sees too, free} that succeeded.
    rounds: u64,
    /// Holes that are left of the addresses, where the client tells.
    holes: Option<u64>,
    leaks: Leaks,
    stress: Stress,
    /// Buffers of 1 GiB until there was no memory, as the client says by its error.
    gib_until_full: u64,
    speed: Speed,
}

/// What is alive in the driver after rounds of {allocate host memory, free} that was not before.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Leaks {
    objects: i64,
    pins: i64,
    mappings: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Stress {
    ops: u64,
    mismatches: u64,
}

/// Medians.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Speed {
    alloc_free_us: f64,
    ioctls_per_alloc_free: f64,
    copy_4k_us: f64,
    copy_64m_gb_per_s: f64,
}

/// The comparison.
#[derive(Debug)]
pub(super) struct Report {
    object: Object,
    /// For the table: (theirs, ours).
    speed: (Speed, Speed),
    mappings: (i64, i64),
    until_full: (u64, u64),
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Object {
    tinygrad: Theirs,
    ours: Ours,
    /// Operations of both clients.
    stress: Stress,
    ratio: Ratio,
}

#[derive(Debug, Serialize)]
struct Theirs {
    rounds: u64,
    leaked_handles: i64,
    leaked_pins: i64,
    version: String,
}

#[derive(Debug, Serialize)]
struct Ours {
    rounds: u64,
    holes: u64,
    leaked_handles: i64,
    leaked_pins: i64,
}

/// Ours over theirs.
#[derive(Debug, Serialize)]
struct Ratio {
    allocs_per_s: f64,
    ioctls_per_alloc: f64,
    copy_4k_latency: f64,
    copy_64m_throughput: f64,
}

impl Report {
    /// # Errors
    ///
    /// When a side measured nothing: ratios would have no meaning.
    pub(super) fn new(theirs: &Measured, ours: &Measured) -> Result<Self> {
        for (side, measured) in [("tinygrad", theirs), ("ours", ours)] {
            ensure!(measured.stress.ops > 0, "{side} did no random operation");
            let speed = measured.speed;
            let values = [
                speed.alloc_free_us,
                speed.ioctls_per_alloc_free,
                speed.copy_4k_us,
                speed.copy_64m_gb_per_s,
            ];
            let usable = values.iter().all(|value| value.is_finite() && *value > 0.0);
            ensure!(usable, "{side} measured nothing: {speed:?}");
        }
        let over = |ours: f64, theirs: f64| ours / theirs;
        let (their_speed, our_speed) = (theirs.speed, ours.speed);
        let object = Object {
            tinygrad: Theirs {
                rounds: theirs.rounds,
                leaked_handles: theirs.leaks.objects,
                leaked_pins: theirs.leaks.pins,
                version: theirs.version.clone().unwrap_or_default(),
            },
            ours: Ours {
                rounds: ours.rounds,
                holes: ours.holes.unwrap_or_default(),
                leaked_handles: ours.leaks.objects,
                leaked_pins: ours.leaks.pins,
            },
            stress: Stress {
                ops: theirs.stress.ops + ours.stress.ops,
                mismatches: theirs.stress.mismatches + ours.stress.mismatches,
            },
            ratio: Ratio {
                // Times, so the other way round.
                allocs_per_s: over(their_speed.alloc_free_us, our_speed.alloc_free_us),
                ioctls_per_alloc: over(
                    our_speed.ioctls_per_alloc_free,
                    their_speed.ioctls_per_alloc_free,
                ),
                copy_4k_latency: over(our_speed.copy_4k_us, their_speed.copy_4k_us),
                copy_64m_throughput: over(
                    our_speed.copy_64m_gb_per_s,
                    their_speed.copy_64m_gb_per_s,
                ),
            },
        };
        Ok(Self {
            object,
            speed: (their_speed, our_speed),
            mappings: (theirs.leaks.mappings, ours.leaks.mappings),
            until_full: (theirs.gib_until_full, ours.gib_until_full),
        })
    }

    /// Whether every byte was right and we left nothing.
    pub(super) fn is_clean(&self) -> bool {
        let ours = &self.object.ours;
        let left = [ours.leaked_handles, ours.leaked_pins, self.mappings.1];
        self.object.stress.mismatches == 0 && ours.holes == 1 && left == [0; 3]
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(&self.object).expect("numbers and texts can be written")
    }
}

/// What a line of the table says: what, theirs, ours, and ours over theirs.
type Row = (&'static str, String, String, Option<f64>);

impl Report {
    fn counts(&self) -> [Row; 6] {
        let Object { tinygrad, ours, .. } = &self.object;
        let row = |what, theirs: String, ours: String| (what, theirs, ours, None);
        let count = |what, theirs: i64, ours: i64| row(what, theirs.to_string(), ours.to_string());
        [
            row(
                "rounds of 1 GiB, CPU-visible",
                tinygrad.rounds.to_string(),
                ours.rounds.to_string(),
            ),
            row(
                "holes left in the addresses",
                "-".into(),
                ours.holes.to_string(),
            ),
            row(
                "buffers of 1 GiB until memory is full",
                self.until_full.0.to_string(),
                self.until_full.1.to_string(),
            ),
            count(
                "leaked handles",
                tinygrad.leaked_handles,
                ours.leaked_handles,
            ),
            count("leaked pins", tinygrad.leaked_pins, ours.leaked_pins),
            count("leaked mappings", self.mappings.0, self.mappings.1),
        ]
    }

    fn speeds(&self) -> [Row; 4] {
        let (theirs, ours) = self.speed;
        let ratio = &self.object.ratio;
        let row = |what, of: fn(Speed) -> String, ratio| (what, of(theirs), of(ours), Some(ratio));
        [
            row(
                "1 MiB allocations and frees per second",
                |speed| format!("{:.0}", 1e6 / speed.alloc_free_us),
                ratio.allocs_per_s,
            ),
            row(
                "ioctls for each",
                |speed| format!("{:.1}", speed.ioctls_per_alloc_free),
                ratio.ioctls_per_alloc,
            ),
            row(
                "4 KiB copied in, us",
                |speed| format!("{:.1}", speed.copy_4k_us),
                ratio.copy_4k_latency,
            ),
            row(
                "64 MiB copied in, GB/s",
                |speed| format!("{:.2}", speed.copy_64m_gb_per_s),
                ratio.copy_64m_throughput,
            ),
        ]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let theirs = format!("tinygrad {}", self.object.tinygrad.version);
        let (ours, over) = ("ours", "ours/theirs");
        writeln!(f, "{:<40} {theirs:>16} {ours:>10} {over:>12}", "")?;
        for (what, theirs, ours, ratio) in self.counts().into_iter().chain(self.speeds()) {
            let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
            let line = format!("{what:<40} {theirs:>16} {ours:>10} {ratio:>12}");
            writeln!(f, "{}", line.trim_end())?;
        }
        let Stress { ops, mismatches } = self.object.stress;
        writeln!(
            f,
            "{ops} random operations of both, {mismatches} with wrong bytes"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(rounds: u64, leaked: i64, us: f64) -> Measured {
        let text = format!(
            r#"{{"version": "1.2", "rounds": {rounds}, "holes": 1, "interface": "more is ignored",
                "leaks": {{"objects": {leaked}, "pins": {leaked}, "mappings": {leaked}}},
                "stress": {{"ops": 10, "mismatches": 0, "seed": 1}},
                "gib_until_full": 3,
                "speed": {{"alloc_free_us": {us}, "ioctls_per_alloc_free": 6, "copy_4k_us": {us},
                           "copy_64m_gb_per_s": 2}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_object_has_the_promised_fields_and_ratios_are_ours_over_theirs() {
        let report = Report::new(&side(63, 1000, 100.0), &side(100_000, 0, 25.0)).unwrap();
        let expected = concat!(
            r#"{"tinygrad":{"rounds":63,"leaked_handles":1000,"leaked_pins":1000,"#,
            r#""version":"1.2"},"#,
            r#""ours":{"rounds":100000,"holes":1,"leaked_handles":0,"leaked_pins":0},"#,
            r#""stress":{"ops":20,"mismatches":0},"#,
            r#""ratio":{"allocs_per_s":4.0,"ioctls_per_alloc":1.0,"copy_4k_latency":0.25,"#,
            r#""copy_64m_throughput":1.0}}"#,
        );
        assert_eq!(report.to_json(), expected);
        assert!(report.is_clean());
    }

    #[test]
    fn a_leak_of_ours_is_not_clean_and_one_of_theirs_is_not_our_fault() {
        let leaky = Report::new(&side(63, 1000, 1.0), &side(9, 1, 1.0)).unwrap();
        assert!(!leaky.is_clean());
        let mut wrong = side(63, 0, 1.0);
        wrong.stress.mismatches = 1;
        assert!(!Report::new(&wrong, &side(9, 0, 1.0)).unwrap().is_clean());
    }

    #[test]
    fn the_table_shows_both_and_the_ratio() {
        let report = Report::new(&side(63, 1000, 100.0), &side(100_000, 0, 25.0)).unwrap();
        let table = report.to_string();
        let wanted =
            "1 MiB allocations and frees per second              10000      40000         4.00";
        assert!(table.contains(wanted), "{table}");
        let wanted = "buffers of 1 GiB until memory is full                   3          3\n";
        assert!(table.contains(wanted), "{table}");
    }

    #[test]
    fn a_side_that_did_no_random_operation_is_named() {
        let mut idle = side(9, 0, 1.0);
        idle.stress.ops = 0;
        let error = Report::new(&side(63, 0, 1.0), &idle).unwrap_err();
        assert_eq!(error.to_string(), "ours did no random operation");
    }

    #[test]
    fn a_side_that_measured_nothing_is_named() {
        let error = Report::new(&side(63, 0, 0.0), &side(9, 0, 1.0)).unwrap_err();
        assert!(error.to_string().starts_with("tinygrad measured nothing"));
    }
}
