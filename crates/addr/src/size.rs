use core::fmt;

/// A byte count that prints in the largest binary unit with at most two decimals.
///
/// # Examples
/// ```
/// use vrampager_addr::Size;
/// assert_eq!(Size(64 << 20).to_string(), "64 MiB");
/// assert_eq!(Size(1536).to_string(), "1.5 KiB");
/// assert_eq!(Size(999).to_string(), "999 B");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Size(pub u64);

const UNITS: [(&str, u32); 6] = [
    ("EiB", 60),
    ("PiB", 50),
    ("TiB", 40),
    ("GiB", 30),
    ("MiB", 20),
    ("KiB", 10),
];

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(&(unit, shift)) = UNITS.iter().find(|&&(_, shift)| self.0 >> shift != 0) else {
            return write!(f, "{} B", self.0);
        };
        let whole = self.0 >> shift;
        let rest = self.0 & ((1 << shift) - 1);
        // Hundredths, rounded down: a size is never overstated.
        let hundredths = (u128::from(rest) * 100) >> shift;
        match (hundredths, hundredths % 10) {
            (0, _) => write!(f, "{whole} {unit}"),
            (_, 0) => write!(f, "{whole}.{} {unit}", hundredths / 10),
            (_, _) => write!(f, "{whole}.{hundredths:02} {unit}"),
        }
    }
}

/// Why a text is not a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParseSizeError {
    /// There are no digits before the unit.
    NoNumber,
    /// The unit is none of `B`, `K`, `M`, `G`, `T` (optionally followed by `iB` or `B`).
    UnknownUnit,
    /// The value does not fit in 64 bits.
    TooLarge,
}

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoNumber => "expected a whole number of bytes, such as 512M",
            Self::UnknownUnit => "unknown unit; use B, K, M, G or T (powers of 1024)",
            Self::TooLarge => "does not fit in 64 bits",
        })
    }
}

impl core::error::Error for ParseSizeError {}

/// Parses `4096`, `64K`, `512M`, `2G`, `1T`, also with `iB` or `B` behind the letter. Units are
/// powers of 1024 and may be written in either case.
///
/// # Errors
/// [`ParseSizeError`] says which part of the text is wrong.
///
/// # Examples
/// ```
/// use vrampager_addr::{ParseSizeError, parse_size};
/// assert_eq!(parse_size("512M"), Ok(512 << 20));
/// assert_eq!(parse_size("2 GiB"), Ok(2 << 30));
/// assert_eq!(parse_size("2X"), Err(ParseSizeError::UnknownUnit));
/// ```
pub fn parse_size(text: &str) -> Result<u64, ParseSizeError> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(ParseSizeError::NoNumber);
    }
    let number: u64 = number.parse().map_err(|_| ParseSizeError::TooLarge)?;
    let shift = unit_shift(unit.trim_start()).ok_or(ParseSizeError::UnknownUnit)?;
    number
        .checked_mul(1 << shift)
        .ok_or(ParseSizeError::TooLarge)
}

fn unit_shift(unit: &str) -> Option<u32> {
    let mut letters = unit.chars();
    let Some(first) = letters.next() else {
        return Some(0);
    };
    let tail = letters.as_str();
    if first.eq_ignore_ascii_case(&'b') && tail.is_empty() {
        return Some(0);
    }
    if !(tail.is_empty() || tail.eq_ignore_ascii_case("b") || tail.eq_ignore_ascii_case("ib")) {
        return None;
    }
    match first.to_ascii_uppercase() {
        'K' => Some(10),
        'M' => Some(20),
        'G' => Some(30),
        'T' => Some(40),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn units_are_powers_of_1024_in_either_case() {
        assert_eq!(parse_size("7"), Ok(7));
        assert_eq!(parse_size("7b"), Ok(7));
        assert_eq!(parse_size("3k"), Ok(3 << 10));
        assert_eq!(parse_size("3KB"), Ok(3 << 10));
        assert_eq!(parse_size(" 1TiB "), Ok(1 << 40));
    }

    #[test]
    fn a_bad_size_says_which_part_is_wrong() {
        assert_eq!(parse_size(""), Err(ParseSizeError::NoNumber));
        assert_eq!(parse_size("M"), Err(ParseSizeError::NoNumber));
        assert_eq!(parse_size("-1"), Err(ParseSizeError::NoNumber));
        assert_eq!(parse_size("1.5G"), Err(ParseSizeError::UnknownUnit));
        assert_eq!(parse_size("1Mx"), Err(ParseSizeError::UnknownUnit));
        assert_eq!(
            parse_size("99999999999999999999"),
            Err(ParseSizeError::TooLarge)
        );
        assert_eq!(parse_size("16777216T"), Err(ParseSizeError::TooLarge));
    }

    #[test]
    fn a_printed_size_is_never_more_than_the_value() {
        assert_eq!(Size(0).to_string(), "0 B");
        assert_eq!(Size((1 << 20) - 1).to_string(), "1023.99 KiB");
        assert_eq!(Size(u64::MAX).to_string(), "15.99 EiB");
        assert_eq!(Size((5 << 30) / 2).to_string(), "2.5 GiB");
    }
}
