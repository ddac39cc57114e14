//! Comparing what the device holds with what it should hold.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Bytes compared and bytes that differ.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) bytes: u64,
    pub(crate) mismatches: u64,
    /// Where the first of them is.
    pub(crate) first: Option<String>,
}

impl Tally {
    /// Compares bytes from `offset` of `buffer` on.
    pub(crate) fn compare(&mut self, buffer: &str, offset: u64, found: &[u8], expected: &[u8]) {
        assert_eq!(found.len(), expected.len(), "the same range is compared");
        self.bytes += found.len() as u64;
        if found == expected {
            return;
        }
        let pairs = found.iter().zip(expected);
        let mut wrong = pairs
            .enumerate()
            .filter(|(_, (found, right))| found != right);
        if let Some((at, (found, right))) = wrong.next() {
            let at = offset + at as u64;
            self.first.get_or_insert_with(|| {
                format!("byte {at} of `{buffer}` is {found:#04x} instead of {right:#04x}")
            });
            self.mismatches += 1 + wrong.count() as u64;
        }
    }

    /// Adds what another comparison has found after this one.
    pub(crate) fn add(&mut self, later: Self) {
        self.bytes += later.bytes;
        self.mismatches += later.mismatches;
        self.first = self.first.take().or(later.first);
    }
}

/// Reads from `offset` of `file` on until `into` is full.
pub(crate) fn read_at<'a>(
    file: &File,
    offset: u64,
    into: &'a mut Vec<u8>,
    len: usize,
) -> io::Result<&'a [u8]> {
    into.resize(len, 0);
    file.read_exact_at(into, offset)?;
    Ok(into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_byte_counts_and_the_first_one_is_named() {
        let mut tally = Tally::default();
        tally.compare("m/t", 0, b"abc", b"abc");
        tally.compare("m/t", 3, b"dXfY", b"defg");
        tally.compare("m/u", 0, b"Z", b"a");
        assert_eq!((tally.bytes, tally.mismatches), (8, 3));
        let first = "byte 4 of `m/t` is 0x58 instead of 0x65";
        assert_eq!(tally.first.as_deref(), Some(first));
    }

    #[test]
    fn a_sum_keeps_the_earlier_first_mismatch() {
        let one = |name| {
            let mut tally = Tally::default();
            tally.compare(name, 0, b"a", b"b");
            tally
        };
        let mut sum = Tally::default();
        sum.add(Tally::default());
        sum.add(one("x"));
        sum.add(one("y"));
        assert_eq!((sum.bytes, sum.mismatches), (2, 2));
        assert!(sum.first.unwrap().contains("`x`"));
    }

    #[test]
    fn a_file_that_ends_early_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, b"abcd").unwrap();
        let file = File::open(&path).unwrap();
        let mut buffer = Vec::new();
        assert_eq!(read_at(&file, 1, &mut buffer, 2).unwrap(), b"bc");
        let error = read_at(&file, 3, &mut buffer, 2).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
