//! What a run has found.

use std::fmt;

use crate::nodes::Answer;

/// What became of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The answer was as expected, and nothing changed as far as the driver tells.
    Same,
    /// The answer was another one.
    Other(Answer),
    /// The answer was as expected, and yet something is alive that was not before.
    Changed,
    /// The machine does not have what the row needs.
    Skipped(&'static str),
}

/// A row of the table and what became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tried {
    /// What the row is about.
    pub group: &'static str,
    /// The bad input.
    pub what: &'static str,
    /// The answer it must get.
    pub expected: Answer,
    /// What became of it.
    pub outcome: Outcome,
}

impl Tried {
    /// Whether the driver did otherwise than expected.
    #[must_use]
    pub fn failed(&self) -> bool {
        match self.outcome {
            Outcome::Same | Outcome::Skipped(_) => false,
            Outcome::Other(_) | Outcome::Changed => true,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("as expected"),
            Self::Other(answer) => write!(f, "got {answer}"),
            Self::Changed => f.write_str("something stayed changed"),
            Self::Skipped(why) => write!(f, "skipped: {why}"),
        }
    }
}

/// All rows of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Release of the driver.
    pub release: String,
    /// What was tried, in the order of the table.
    pub rows: Vec<Tried>,
}

impl Report {
    /// Whether no answer was another one than expected.
    #[must_use]
    pub fn passed(&self) -> bool {
        !self.rows.iter().any(Tried::failed)
    }

    /// Rows that were tried, without those skipped.
    #[must_use]
    pub fn tried(&self) -> usize {
        self.rows.len() - self.skipped()
    }

    /// Rows that could not be asked on this machine.
    #[must_use]
    pub fn skipped(&self) -> usize {
        let skipped = |row: &&Tried| matches!(row.outcome, Outcome::Skipped(_));
        self.rows.iter().filter(skipped).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut group = "";
        for row in &self.rows {
            if group != row.group {
                group = row.group;
                writeln!(f, "{group}")?;
            }
            let expected = row.expected.to_string();
            writeln!(f, "  {:<46} {expected:<30} {}", row.what, row.outcome)?;
        }
        let failed = self.rows.iter().filter(|row| row.failed()).count();
        let (tried, skipped, release) = (self.tried(), self.skipped(), &self.release);
        writeln!(
            f,
            "driver {release}: {tried} bad inputs, {failed} answered otherwise, {skipped} skipped"
        )
    }
}
