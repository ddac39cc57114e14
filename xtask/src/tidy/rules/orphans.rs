//! Every source file belongs to a crate: one that no `mod` names is never compiled, so it rots.

use std::collections::BTreeSet;

use super::super::{Finding, Tree};

const RULE: &str = "orphans";

pub(in super::super) fn check(tree: &Tree) -> Vec<Finding> {
    let reached = reachable(tree);
    let owned = |path: &str| {
        tree.packages
            .iter()
            .any(|package| path.starts_with(&format!("{}/src/", package.folder)))
    };
    tree.rust()
        .filter(|(path, _)| owned(path) && !reached.contains(*path))
        .map(|(path, _)| Finding {
            path: path.to_owned(),
            line: 0,
            rule: RULE,
            message: "no `mod` of its crate names this file".into(),
        })
        .collect()
}

fn reachable(tree: &Tree) -> BTreeSet<String> {
    let targets = tree.packages.iter().flat_map(|package| &package.targets);
    let mut to_visit: Vec<(String, String)> = targets
        .map(|target| (target.path.clone(), folder_of(&target.path).to_owned()))
        .collect();
    let mut reached = BTreeSet::new();
    while let Some((path, children)) = to_visit.pop() {
        let Some(file) = tree.files.get(&path) else {
            continue;
        };
        if !reached.insert(path) {
            continue;
        }
        for name in declared_modules(&file.code) {
            let nested = format!("{children}/{name}");
            to_visit.push((format!("{nested}.rs"), nested.clone()));
            to_visit.push((format!("{nested}/mod.rs"), nested));
        }
    }
    reached
}

/// Names of the modules that live in files of their own: `mod name;`.
fn declared_modules(code: &str) -> Vec<&str> {
    let words: Vec<&str> = code.split_whitespace().collect();
    words
        .windows(2)
        .filter(|pair| pair[0] == "mod")
        .filter_map(|pair| pair[1].strip_suffix(';'))
        .collect()
}

fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

#[cfg(test)]
mod tests {
    use super::super::super::tree::Package;
    use super::*;

    #[test]
    fn a_file_that_no_module_names_is_reported() {
        let tree = Tree::of(&[
            (
                "crates/hal/src/lib.rs",
                "mod a;\npub(crate) mod b;\n// mod lost;\n",
            ),
            ("crates/hal/src/a.rs", "mod inner;\n"),
            ("crates/hal/src/a/inner.rs", ""),
            ("crates/hal/src/b/mod.rs", "mod leaf;\n"),
            ("crates/hal/src/b/leaf.rs", ""),
            ("crates/hal/src/lost.rs", ""),
            ("crates/hal/tests/promise.rs", ""),
        ])
        .with(Package::of("vrampager-hal"));
        let paths: Vec<String> = check(&tree).into_iter().map(|f| f.path).collect();
        assert_eq!(paths, ["crates/hal/src/lost.rs"]);
    }
}
