//! What the design notes ask of ours, and whether it is so.

/// What was measured of one allocator on one trace.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Nanoseconds for an operation, without the harness.
    pub(crate) ns: f64,
    /// Nanoseconds of single operations, with the harness and the clock: sorted.
    pub(crate) latencies: Vec<f64>,
    /// Host memory for each live range at the end.
    pub(crate) bytes: f64,
    pub(crate) failures: u64,
}

impl Row {
    /// The latency that `part` of all operations do not exceed.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        let index = (last as f64 * part) as usize;
        self.latencies.get(index).copied().unwrap_or(0.0)
    }

    /// One line, without its end.
    pub(crate) fn print(&self, workload: &str) {
        print!(
            "{workload:<15} {:<24} ns/op {:>7.1} p50 {:>6.0} p99 {:>6.0} p99.9 {:>6.0} \
             worst {:>8.0} B/live {:>6.1} fail {}",
            self.name,
            self.ns,
            self.quantile(0.5),
            self.quantile(0.99),
            self.quantile(0.999),
            self.quantile(1.0),
            self.bytes,
            self.failures,
        );
    }
}

/// A figure that has a limit of its own.
#[derive(Clone, Copy)]
pub(crate) enum Figure {
    P99,
    Worst,
    Bytes,
    Failures,
}

/// An allocator to compare with.
pub(crate) enum Yardstick {
    Peer(&'static str),
    /// One of the kernel's, which can't be run here: its name, and peers with the time it took for
    /// each nanosecond of theirs when both were measured in one process. Of several peers the
    /// geometric mean counts, because one alone may be disturbed in either run.
    Kernel(&'static str, Vec<(&'static str, f64)>),
}

enum Kind {
    Ratio(Yardstick),
    Limit(Figure),
}

/// That `ours` needs at most `target`, or `target` times what another does.
pub(crate) struct Claim {
    ours: &'static str,
    kind: Kind,
    target: f64,
}

pub(crate) fn at_most(target: f64, ours: &'static str, of: Yardstick) -> Claim {
    Claim {
        ours,
        kind: Kind::Ratio(of),
        target,
    }
}

pub(crate) fn limit(target: f64, ours: &'static str, figure: Figure) -> Claim {
    Claim {
        ours,
        kind: Kind::Limit(figure),
        target,
    }
}

pub(crate) fn verdict(value: f64, target: f64) -> &'static str {
    if value <= target { "ok" } else { "MISS" }
}

impl Claim {
    /// Prints a line if what it is about was measured.
    pub(crate) fn print(&self, workload: &str, rows: &[Row]) {
        let row = |name: &str| rows.iter().find(|row| row.name == name);
        let Some(ours) = row(self.ours) else {
            return;
        };
        let subject = format!("{workload} {}", self.ours);
        match &self.kind {
            Kind::Ratio(Yardstick::Peer(peer)) => {
                if let Some(peer) = row(peer) {
                    print_ratio(&subject, peer.name, ours.ns / peer.ns, self.target);
                }
            }
            Kind::Ratio(Yardstick::Kernel(label, scales)) => {
                let logs: Vec<f64> = scales
                    .iter()
                    .filter_map(|&(peer, scale)| row(peer).map(|row| (row.ns * scale).ln()))
                    .collect();
                if logs.is_empty() {
                    return;
                }
                let ns = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
                let label = format!("{label} (by ratio)");
                print_ratio(&subject, &label, ours.ns / ns, self.target);
            }
            Kind::Limit(figure) => {
                let (what, value) = match figure {
                    Figure::P99 => ("p99 ns", ours.quantile(0.99)),
                    Figure::Worst => ("worst ns", ours.quantile(1.0)),
                    Figure::Bytes => ("bytes for each live range", ours.bytes),
                    Figure::Failures => ("failures", ours.failures as f64),
                };
                print_limit(&format!("{subject} {what}"), value, self.target);
            }
        }
    }
}

pub(crate) fn print_ratio(subject: &str, label: &str, ratio: f64, target: f64) {
    let verdict = verdict(ratio, target);
    println!("ratio {subject} vs {label} {ratio:.3} target {target} {verdict}");
}

pub(crate) fn print_limit(subject: &str, value: f64, target: f64) {
    let verdict = verdict(value, target);
    println!("limit {subject} {value:.1} target {target} {verdict}");
}
