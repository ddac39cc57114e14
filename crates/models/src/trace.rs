use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::requests::{Request, RequestError};

const TIMESTAMP: &str = "TIMESTAMP";
const TOKEN_COLUMNS: [&str; 2] = ["ContextTokens", "GeneratedTokens"];
const TIMESTAMP_FORM: &str = "YYYY-MM-DD HH:MM:SS with up to 9 decimals";
/// A field is quoted in an error up to this many characters.
const QUOTED_CHARS: usize = 40;

/// Requests from Azure LLM inference traces (`AzurePublicDataset`, 2023 and later): CSV with a
/// header that names the columns `TIMESTAMP`, `ContextTokens` and `GeneratedTokens`, and may name
/// others.
///
/// Several files are merged by timestamp, equal ones in the order of the files. Each file stands
/// for one model: file `i` asks for model `i % models`, so with fewer files than models the last
/// models are never asked for, and with more files some share a model.
///
/// Rows are read as they are needed. The first error ends the requests.
#[derive(Debug)]
pub struct TraceRequests {
    files: Vec<TraceFile>,
    models: usize,
    speed: f64,
    first_ns: Option<u64>,
    failed: bool,
}

impl TraceRequests {
    /// Opens the traces `paths` for `models` models. Time between requests is divided by `speed`:
    /// 60 plays an hour in a minute.
    ///
    /// # Errors
    /// [`RequestError`] for a parameter without a meaning, or for the header or first row of a
    /// file.
    pub fn open<P: AsRef<Path>>(
        paths: &[P],
        models: usize,
        speed: f64,
    ) -> Result<Self, RequestError> {
        if models == 0 {
            return Err(RequestError::NoModels);
        }
        if !speed.is_finite() || speed <= 0.0 {
            return Err(RequestError::BadSpeed { speed });
        }
        if paths.is_empty() {
            return Err(RequestError::NoTraceFiles);
        }
        let mut files = Vec::new();
        for path in paths {
            files.push(TraceFile::open(path.as_ref())?);
        }
        let first_ns = files.iter().filter_map(|file| file.next_ns).min();
        Ok(Self {
            files,
            models,
            speed,
            first_ns,
            failed: false,
        })
    }

    fn request(&self, ns: u64, file: usize) -> Request {
        let since_first = ns - self.first_ns.unwrap_or(ns);
        let seconds = Duration::from_nanos(since_first).as_secs_f64() / self.speed;
        // A speed close to zero can put a request beyond all time.
        let at_ns = Duration::try_from_secs_f64(seconds)
            .ok()
            .and_then(|at| u64::try_from(at.as_nanos()).ok())
            .unwrap_or(u64::MAX);
        Request {
            at_ns,
            model: file % self.models,
        }
    }
}

impl Iterator for TraceRequests {
    type Item = Result<Request, RequestError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let waiting = self.files.iter().enumerate();
        let (ns, index) = waiting
            .filter_map(|(i, file)| Some((file.next_ns?, i)))
            .min()?;
        if let Err(error) = self.files[index].advance() {
            self.failed = true;
            return Some(Err(error));
        }
        Some(Ok(self.request(ns, index)))
    }
}

#[derive(Debug)]
struct TraceFile {
    path: PathBuf,
    reader: csv::Reader<File>,
    record: csv::StringRecord,
    timestamp: usize,
    tokens: [usize; 2],
    /// Nanoseconds since 1970 of the next row; `None` at the end.
    next_ns: Option<u64>,
}

impl TraceFile {
    fn open(path: &Path) -> Result<Self, RequestError> {
        let file = File::open(path).map_err(|source| RequestError::Open {
            file: path.to_owned(),
            source,
        })?;
        // Trimming removes the CR of a CRLF. As a terminator it would make the line numbers wrong,
        // and so would a quoted line break.
        let mut reader = csv::ReaderBuilder::new()
            .terminator(csv::Terminator::Any(b'\n'))
            .quoting(false)
            .trim(csv::Trim::All)
            .from_reader(file);
        let header = reader.headers().map_err(|source| RequestError::BadRow {
            file: path.to_owned(),
            line: 1,
            source,
        })?;
        let find = |column: &'static str| {
            let found = header.iter().position(|name| name == column);
            found.ok_or_else(|| RequestError::MissingColumn {
                file: path.to_owned(),
                column,
            })
        };
        let timestamp = find(TIMESTAMP)?;
        let [context, generated] = TOKEN_COLUMNS;
        let tokens = [find(context)?, find(generated)?];
        let record = csv::StringRecord::new();
        let mut trace = Self {
            path: path.to_owned(),
            reader,
            record,
            timestamp,
            tokens,
            next_ns: None,
        };
        trace.advance()?;
        Ok(trace)
    }

    fn advance(&mut self) -> Result<(), RequestError> {
        // Where the row starts, for errors that carry no position themselves.
        let line = self.reader.position().line();
        let more = self
            .reader
            .read_record(&mut self.record)
            .map_err(|source| {
                let line = source.position().map_or(line, csv::Position::line);
                RequestError::BadRow {
                    file: self.path.clone(),
                    line,
                    source,
                }
            })?;
        if !more {
            self.next_ns = None;
            return Ok(());
        }
        let line = self.record.position().map_or(line, csv::Position::line);
        for (column, index) in TOKEN_COLUMNS.into_iter().zip(self.tokens) {
            let parsed = self
                .record
                .get(index)
                .and_then(|field| field.parse::<u64>().ok());
            if parsed.is_none() {
                return Err(self.bad_field(line, column, index, "a number of tokens"));
            }
        }
        let Some(ns) = self.record.get(self.timestamp).and_then(parse_timestamp_ns) else {
            return Err(self.bad_field(line, TIMESTAMP, self.timestamp, TIMESTAMP_FORM));
        };
        if let Some(back_ns) = self.next_ns.and_then(|last| last.checked_sub(ns))
            && back_ns > 0
        {
            return Err(RequestError::OutOfOrder {
                file: self.path.clone(),
                line,
                back_ns,
            });
        }
        self.next_ns = Some(ns);
        Ok(())
    }

    fn bad_field(
        &self,
        line: u64,
        column: &'static str,
        index: usize,
        expected: &'static str,
    ) -> RequestError {
        let field = self.record.get(index).unwrap_or_default();
        let value = field.chars().take(QUOTED_CHARS).collect();
        RequestError::BadField {
            file: self.path.clone(),
            line,
            column,
            value,
            expected,
        }
    }
}

/// Nanoseconds since 1970 of `YYYY-MM-DD HH:MM:SS[.fraction]` for years 1970 to 2261.
fn parse_timestamp_ns(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(' ')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    let date_is_right = (1970..=2261).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day);
    // A leap second counts as the one after it.
    let time_is_right = hour < 24 && minute < 60 && second <= 60;
    let fraction_is_right =
        (1..=9).contains(&fraction.len()) && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if !(date_is_right && time_is_right && fraction_is_right) {
        return None;
    }
    let days_before_year: u64 = (1970..year)
        .map(|year| if is_leap(year) { 366 } else { 365 })
        .sum();
    let days_before_month: u64 = (1..month).map(|month| days_in(year, month)).sum();
    let days = days_before_year + days_before_month + day - 1;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    let nanoseconds = format!("{fraction:0<9}").parse::<u64>().ok()?;
    // OVERFLOW: below 2262 this is less than 2^63.
    Some(seconds * 1_000_000_000 + nanoseconds)
}

/// Three numbers of exactly `digits` digits.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(separator);
    let mut values = [0; 3];
    for (value, digits) in values.iter_mut().zip(digits) {
        let part = parts.next()?;
        if part.len() != digits || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *value = part.parse().ok()?;
    }
    parts.next().is_none().then_some(values)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

    fn trace(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The error that reading a trace of this text ends in.
    fn error_of(text: &str) -> RequestError {
        let folder = tempfile::tempdir().unwrap();
        let path = trace(&folder, "t.csv", text);
        match TraceRequests::open(&[path], 1, 1.0) {
            Err(error) => error,
            Ok(requests) => requests.filter_map(Result::err).next().unwrap(),
        }
    }

    #[test]
    fn timestamps_count_from_1970_in_nanoseconds() {
        let known = [
            ("1970-01-01 00:00:00", 0),
            ("1970-01-02 00:00:01.5", 86_401_500_000_000),
            // date -u -d '2023-11-16 18:17:03' +%s
            ("2023-11-16 18:17:03.9799600", 1_700_158_623_979_960_000),
            ("2024-02-29 23:59:59.000000001", 1_709_251_199_000_000_001),
        ];
        for (text, ns) in known {
            assert_eq!(parse_timestamp_ns(text), Some(ns), "{text}");
        }
    }

    #[test]
    fn what_is_no_timestamp_is_refused() {
        let wrong = [
            "",
            "2023-11-16",
            "2023-11-16T18:17:03",
            "2023-13-16 18:17:03",
            "2023-02-29 18:17:03",
            "2023-11-00 18:17:03",
            "2023-11-16 24:17:03",
            "2023-11-16 18:60:03",
            "2023-11-16 18:17:61",
            "2023-11-16 18:17:03.",
            "2023-11-16 18:17:03.1234567890",
            "2023-11-16 18:17:03.-1",
            "2023-11-16 18:17",
            "2023-11-16 18:17:03:04",
            "+023-11-16 18:17:03",
            "1969-11-16 18:17:03",
            "9999-11-16 18:17:03",
        ];
        for text in wrong {
            assert_eq!(parse_timestamp_ns(text), None, "{text}");
        }
    }

    #[test]
    fn files_are_merged_by_time_and_each_stands_for_one_model() {
        let folder = tempfile::tempdir().unwrap();
        let day = "2023-11-16 18:00:0";
        let a = format!("{HEADER}\r\n{day}1.0000000,1,1\r\n{day}3.5000000,1,1");
        let b = format!("\u{feff}{HEADER}\n{day}0.0000000,1,1\n{day}3.5000000,1,1\n");
        let files = [trace(&folder, "a.csv", &a), trace(&folder, "b.csv", &b)];

        let requests = TraceRequests::open(&files, 2, 2.0).unwrap();
        let requests: Vec<_> = requests
            .map(Result::unwrap)
            .map(|r| (r.at_ns, r.model))
            .collect();

        let expected = [
            (0, 1),
            (500_000_000, 0),
            (1_750_000_000, 0),
            (1_750_000_000, 1),
        ];
        assert_eq!(requests, expected);
    }

    #[test]
    fn more_files_than_models_share_models() {
        let folder = tempfile::tempdir().unwrap();
        let row = format!("{HEADER}\n2023-11-16 18:00:00,1,1\n");
        let files = ["a", "b", "c"].map(|name| trace(&folder, name, &row));
        let models = TraceRequests::open(&files, 2, 1.0)
            .unwrap()
            .map(|r| r.unwrap().model);
        assert_eq!(models.collect::<Vec<_>>(), [0, 1, 0]);
    }

    #[test]
    fn other_columns_may_stand_between() {
        let folder = tempfile::tempdir().unwrap();
        let text = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,3,1,1\n";
        let path = trace(&folder, "t.csv", text);
        assert_eq!(TraceRequests::open(&[path], 1, 1.0).unwrap().count(), 1);
    }

    #[test]
    fn a_trace_without_rows_has_no_requests() {
        let folder = tempfile::tempdir().unwrap();
        let path = trace(&folder, "t.csv", HEADER);
        assert_eq!(TraceRequests::open(&[path], 1, 1.0).unwrap().count(), 0);
    }

    #[test]
    fn bad_rows_are_named_by_file_and_line() {
        let good = "2023-11-16 18:00:01,1,1";
        let text = |row: &str| error_of(&format!("{HEADER}\r\n{good}\r\n{row}\r\n")).to_string();
        let cases = [
            (
                "2023-11-16 18:00,1,1",
                "t.csv:3: TIMESTAMP is \"2023-11-16 18:00\"",
            ),
            ("2023-11-16 18:00:02,x,1", "t.csv:3: ContextTokens is \"x\""),
            (
                "2023-11-16 18:00:02,1,-1",
                "t.csv:3: GeneratedTokens is \"-1\"",
            ),
            ("2023-11-16 18:00:02,1", "t.csv:3: bad row"),
            (
                "2023-11-16 18:00:00,1,1",
                "t.csv:3: 1000000000 ns before the row above",
            ),
        ];
        for (row, expected) in cases {
            assert!(text(row).contains(expected), "{}", text(row));
        }
    }

    #[test]
    fn a_header_without_the_columns_is_refused() {
        let error = error_of("TIMESTAMP,GeneratedTokens\n");
        assert!(matches!(
            error,
            RequestError::MissingColumn {
                column: "ContextTokens",
                ..
            }
        ));
        let error = error_of("");
        assert!(matches!(
            error,
            RequestError::MissingColumn {
                column: TIMESTAMP,
                ..
            }
        ));
    }

    #[test]
    fn parameters_without_a_meaning_are_refused() {
        let none: [&Path; 0] = [];
        let refused = TraceRequests::open(&none, 1, 1.0);
        assert!(matches!(refused, Err(RequestError::NoTraceFiles)));
        let refused = TraceRequests::open(&["x"], 0, 1.0);
        assert!(matches!(refused, Err(RequestError::NoModels)));
        for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let refused = TraceRequests::open(&["x"], 1, speed);
            assert!(matches!(refused, Err(RequestError::BadSpeed { .. })));
        }
        let refused = TraceRequests::open(&["no-such-file"], 1, 1.0);
        assert!(matches!(refused, Err(RequestError::Open { .. })));
    }
}
