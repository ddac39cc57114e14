//! The house rules that neither the compiler nor clippy checks, as plain functions over a tree of
//! files and a list of packages.
//!
//! A rule never touches the disk: it gets a [`Tree`] and returns findings, so each is tested on a
//! small tree written in the test.

mod rules;
mod scrub;
mod tree;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use tree::Tree;

/// One place that breaks a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// Counted from 1; 0 when the finding is about the file as a whole.
    line: usize,
    rule: &'static str,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            line,
            rule,
            message,
        } = self;
        match line {
            0 => write!(f, "{path}: {rule}: {message}"),
            _ => write!(f, "{path}:{line}: {rule}: {message}"),
        }
    }
}

/// Checks the repository at `root` and prints what it finds.
///
/// # Errors
///
/// When a file cannot be read or `cargo metadata` fails; findings are not errors but a failing
/// exit code.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let tree = Tree::read(root)?;
    let findings = check(&tree);
    for finding in &findings {
        eprintln!("{finding}");
    }
    if findings.is_empty() {
        eprintln!(
            "tidy: {} files in {} packages keep {} rules",
            tree.files.len(),
            tree.packages.len(),
            rules::ALL.len()
        );
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("tidy: {} findings", findings.len());
    Ok(ExitCode::FAILURE)
}

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> = rules::ALL.iter().flat_map(|rule| rule(tree)).collect();
    findings.sort();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree::Package;

    #[test]
    fn findings_of_all_rules_come_sorted_by_place() {
        let tree = Tree::of(&[("b.rs", "x \n"), ("a.rs", "\t\n")]);
        let places: Vec<_> = check(&tree).into_iter().map(|f| (f.path, f.line)).collect();
        assert_eq!(places, [("a.rs".into(), 1), ("b.rs".into(), 1)]);
    }

    #[test]
    fn a_small_tree_that_keeps_the_rules_has_no_findings() {
        let tree = Tree::of(&[
            (
                "crates/addr/src/lib.rs",
                "//! Doc.\n\n#![forbid(unsafe_code)]\n",
            ),
            ("crates/addr/Cargo.toml", "[lints]\nworkspace = true\n"),
        ])
        .with(Package::of("vrampager-addr"));
        assert_eq!(check(&tree), []);
    }

    #[test]
    fn a_finding_reads_as_a_place_in_a_file() {
        let finding = Finding {
            path: "a.rs".into(),
            line: 3,
            rule: "size",
            message: "too long".into(),
        };
        assert_eq!(finding.to_string(), "a.rs:3: size: too long");
    }
}
