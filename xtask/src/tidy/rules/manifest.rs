//! What every manifest of the workspace says.

use super::super::tree::Package;
use super::super::{Finding, Tree};

const RULE: &str = "manifest";

pub(in super::super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.packages
        .iter()
        .flat_map(|package| check_package(tree, package))
        .collect()
}

fn check_package(tree: &Tree, package: &Package) -> Vec<Finding> {
    let path = package.manifest();
    let mut messages = Vec::new();
    if package
        .description
        .as_deref()
        .is_none_or(|text| text.trim().is_empty())
    {
        messages.push("the package has no description");
    }
    let text = tree.files.get(&path).map_or("", |file| &file.text);
    if !uses_workspace_lints(text) {
        messages.push("the package does not use the workspace's lints ([lints] workspace = true)");
    }
    messages
        .into_iter()
        .map(|message| Finding {
            path: path.clone(),
            line: 0,
            rule: RULE,
            message: message.into(),
        })
        .collect()
}

fn uses_workspace_lints(manifest: &str) -> bool {
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[lints]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .any(|line| line.split_whitespace().eq(["workspace", "=", "true"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "crates/addr/Cargo.toml";

    #[test]
    fn a_package_without_workspace_lints_is_reported() {
        let tree = Tree::of(&[(MANIFEST, "[lints]\n[x]\nworkspace = true\n")])
            .with(Package::of("vrampager-addr"));
        let findings = check(&tree);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].message.contains("lints"));
    }

    #[test]
    fn a_package_without_description_is_reported() {
        let package = Package {
            description: None,
            ..Package::of("vrampager-addr")
        };
        let tree = Tree::of(&[(MANIFEST, "[lints]\nworkspace = true\n")]).with(package);
        let findings = check(&tree);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].message.contains("description"));
    }
}
