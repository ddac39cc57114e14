use std::fmt;

/// What one suite found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The contract's name.
    pub contract: &'static str,
    /// In the order they were run.
    pub checks: Vec<Check>,
}

/// One promise of a contract, tried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    /// The promise, as a sentence.
    pub name: &'static str,
    /// Whether it was kept.
    pub outcome: Outcome,
}

/// How a check ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The promise was kept.
    Pass,
    /// It was not.
    Fail {
        /// What was seen instead.
        why: String,
    },
    /// It could not be tried on this device.
    NotSupported {
        /// What is missing.
        why: String,
    },
}

impl Report {
    /// Whether no check failed and at least one could be tried.
    #[must_use]
    pub fn passed(&self) -> bool {
        let tried = self
            .checks
            .iter()
            .any(|check| check.outcome == Outcome::Pass);
        tried && self.failures().next().is_none()
    }

    /// The checks that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| match check.outcome {
            Outcome::Fail { .. } => true,
            Outcome::Pass | Outcome::NotSupported { .. } => false,
        })
    }
}

impl fmt::Display for Report {
    /// One line per check.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.contract)?;
        for Check { name, outcome } in &self.checks {
            match outcome {
                Outcome::Pass => writeln!(f, "  pass  {name}")?,
                Outcome::Fail { why } => writeln!(f, "  FAIL  {name}: {why}")?,
                Outcome::NotSupported { why } => writeln!(f, "  n/a   {name}: {why}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_tried_is_neither_failure_nor_success() {
        let why = String::from("none");
        let report = |outcomes: &[Outcome]| Report {
            contract: "x",
            checks: outcomes
                .iter()
                .map(|outcome| Check {
                    name: "y",
                    outcome: outcome.clone(),
                })
                .collect(),
        };
        let untried = Outcome::NotSupported { why: why.clone() };
        assert!(report(&[Outcome::Pass, untried.clone()]).passed());
        assert!(
            !report(&[untried]).passed(),
            "a device that supports nothing"
        );
        let failed = report(&[Outcome::Pass, Outcome::Fail { why }]);
        assert!(!failed.passed());
        assert_eq!(failed.to_string(), "x\n  pass  y\n  FAIL  y: none\n");
    }
}
