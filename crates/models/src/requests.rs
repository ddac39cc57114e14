use std::io;
use std::path::PathBuf;

use crate::rng::SplitMix64;

/// One request for a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// When it arrives, in nanoseconds after the first request; 0 throughout if the source has no
    /// clock and each request follows the last one's end.
    pub at_ns: u64,
    /// Index of the model.
    pub model: usize,
}

/// Why requests cannot be produced.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum RequestError {
    /// There is no model to ask for.
    #[error("requests need at least one model")]
    NoModels,
    /// The exponent is negative, infinite or not a number.
    #[error("the Zipf exponent {exponent} is not a finite number of at least 0")]
    BadExponent {
        /// The exponent.
        exponent: f64,
    },
    /// The speed is zero, negative, infinite or not a number.
    #[error("the speed {speed} is not a finite number over 0")]
    BadSpeed {
        /// The speed.
        speed: f64,
    },
    /// No trace file was named.
    #[error("a trace needs at least one file")]
    NoTraceFiles,
    /// The operating system refused to open a trace.
    #[error("{}: cannot open the trace", file.display())]
    Open {
        /// The trace.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The header lacks a column.
    #[error("{}:1: the header has no column {column}", file.display())]
    MissingColumn {
        /// The trace.
        file: PathBuf,
        /// The column.
        column: &'static str,
    },
    /// A row is not CSV, has another number of fields than the header, or cannot be read.
    #[error("{}:{line}: bad row", file.display())]
    BadRow {
        /// The trace.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        source: csv::Error,
    },
    /// A field is not what its column holds.
    #[error("{}:{line}: {column} is {value:?}, expected {expected}", file.display())]
    BadField {
        /// The trace.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The column.
        column: &'static str,
        /// The start of the field.
        value: String,
        /// What the column holds.
        expected: &'static str,
    },
    /// A row is older than the one before it.
    #[error("{}:{line}: {back_ns} ns before the row above; sort the trace by TIMESTAMP",
        file.display())]
    OutOfOrder {
        /// The trace.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// How far time runs back.
        back_ns: u64,
    },
}

/// Endless requests whose popularity follows Zipf's law: model `k` (from 0) is asked for with a
/// probability proportional to `1 / (k + 1)^exponent`. Exponent 0 asks for all alike.
///
/// The sequence is a function of the three parameters. There is no clock: `at_ns` is 0.
///
/// # Examples
/// ```
/// use vrampager_models::ZipfRequests;
///
/// let mut asked = [0; 4];
/// for request in ZipfRequests::new(4, 1.0, 7)?.take(1000) {
///     asked[request.model] += 1;
/// }
/// assert!(asked[0] > asked[1] && asked[1] > asked[3]);
/// # Ok::<(), vrampager_models::RequestError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ZipfRequests {
    /// Sums of the weights up to and including each model.
    cumulative: Vec<f64>,
    rng: SplitMix64,
}

impl ZipfRequests {
    /// Requests for `models` models.
    ///
    /// # Errors
    /// [`RequestError::NoModels`], [`RequestError::BadExponent`].
    pub fn new(models: usize, exponent: f64, seed: u64) -> Result<Self, RequestError> {
        if models == 0 {
            return Err(RequestError::NoModels);
        }
        if !exponent.is_finite() || exponent < 0.0 {
            return Err(RequestError::BadExponent { exponent });
        }
        let mut cumulative = Vec::new();
        let (mut sum, mut rank) = (0.0, 1.0_f64);
        for _ in 0..models {
            sum += rank.powf(-exponent);
            rank += 1.0;
            cumulative.push(sum);
        }
        Ok(Self {
            cumulative,
            rng: SplitMix64::new(seed),
        })
    }
}

impl Iterator for ZipfRequests {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let last = self.cumulative.len() - 1;
        let drawn = self.rng.next_unit() * self.cumulative[last];
        // Rounding may bring the product up to the sum itself.
        let model = self
            .cumulative
            .partition_point(|&sum| sum <= drawn)
            .min(last);
        Some(Request { at_ns: 0, model })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_parameters_give_equal_requests_and_another_seed_gives_others() {
        let draw =
            |seed| -> Vec<_> { ZipfRequests::new(8, 1.1, seed).unwrap().take(100).collect() };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }

    #[test]
    fn frequencies_follow_the_law() {
        const DRAWS: u32 = 100_000;
        let mut asked = [0_u32; 3];
        for request in ZipfRequests::new(3, 1.0, 1).unwrap().take(DRAWS as usize) {
            asked[request.model] += 1;
        }
        // 6/11, 3/11, 2/11 of the draws. A standard deviation is under 160.
        for (asked, expected) in asked.into_iter().zip([54_545, 27_272, 18_181]) {
            assert!(
                asked.abs_diff(expected) < 800,
                "{asked} instead of {expected}"
            );
        }
    }

    #[test]
    fn exponent_zero_asks_for_all_alike() {
        let third = ZipfRequests::new(4, 0.0, 1)
            .unwrap()
            .take(40_000)
            .filter(|r| r.model == 2);
        assert!(third.count().abs_diff(10_000) < 500);
    }

    #[test]
    fn parameters_without_a_meaning_are_refused() {
        assert!(matches!(
            ZipfRequests::new(0, 1.0, 1),
            Err(RequestError::NoModels)
        ));
        for exponent in [-0.1, f64::NAN, f64::INFINITY] {
            let refused = ZipfRequests::new(2, exponent, 1);
            assert!(matches!(refused, Err(RequestError::BadExponent { .. })));
        }
    }
}
