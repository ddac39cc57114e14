//! Rounding and alignment are done in one crate, with one meaning.

use super::super::scrub::has_word;
use super::super::{Finding, Tree};
use super::numbered;

const RULE: &str = "align";
const HOME: &str = "crates/addr/";
const HELPERS: [&str; 8] = [
    "fn align_up",
    "fn align_down",
    "fn round_up",
    "fn round_down",
    "fn is_aligned",
    "fn align_to",
    "fn page_align",
    "fn round_up_to",
];

pub(in super::super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, file) in tree.rust().filter(|(path, _)| !path.starts_with(HOME)) {
        for (line, code) in numbered(&file.code) {
            for helper in HELPERS.iter().filter(|helper| has_word(code, helper)) {
                let message = format!("`{helper}` belongs to vrampager-addr");
                findings.push(Finding {
                    path: path.to_owned(),
                    line,
                    rule: RULE,
                    message,
                });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alignment_helper_outside_addr_is_reported() {
        let text = "x\npub fn align_up(v: u64, a: u64) -> u64 {\n";
        let tree = Tree::of(&[
            ("crates/addr/src/a.rs", text),
            ("crates/sim/src/a.rs", text),
        ]);
        let places: Vec<_> = check(&tree).into_iter().map(|f| (f.path, f.line)).collect();
        assert_eq!(places, [("crates/sim/src/a.rs".to_owned(), 2)]);
    }

    #[test]
    fn a_name_that_only_begins_alike_is_not_a_helper() {
        let tree = Tree::of(&[("crates/sim/src/a.rs", "fn align_upper() {}\n")]);
        assert_eq!(check(&tree), []);
    }
}
