//! Each crate taken from the registry has its reason in the decision record on dependencies.

use std::collections::BTreeSet;

use super::super::tree::Origin;
use super::super::{Finding, Tree};

const RULE: &str = "decisions";
const RECORD: &str = "docs/adr/0003-dependencies.md";

pub(in super::super) fn check(tree: &Tree) -> Vec<Finding> {
    let record = tree.files.get(RECORD).map_or("", |file| &file.text);
    let used: BTreeSet<&str> = tree
        .packages
        .iter()
        .flat_map(|package| &package.dependencies)
        .filter(|dependency| dependency.origin == Origin::Registry)
        .map(|dependency| dependency.name.as_str())
        .collect();
    used.into_iter()
        .filter(|name| !record.contains(&format!("| `{name}` |")))
        .map(|name| {
            let message = format!("`{name}` is a dependency without a line that says why");
            Finding {
                path: RECORD.into(),
                line: 0,
                rule: RULE,
                message,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::tree::{Kind, Package};
    use super::*;

    #[test]
    fn a_dependency_without_a_reason_is_reported() {
        let tree = Tree::of(&[(RECORD, "| `thiserror` | all | errors |\n")]).with(
            Package::of("vrampager-hal")
                .on("thiserror", Kind::Build)
                .on("libc", Kind::Dev),
        );
        let findings = check(&tree);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].message.starts_with("`libc`"));
    }
}
