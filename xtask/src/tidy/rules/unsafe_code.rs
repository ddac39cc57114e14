//! Where unsafe code may stand, and that each such module says why it does.

use super::super::scrub::has_word;
use super::super::tree::{Package, Role};
use super::super::{Finding, Tree};
use super::numbered;

const RULE: &str = "unsafe";

/// Files and folders that may hold unsafe code.
const ALLOWED: [&str; 11] = [
    "crates/hal/src/mapping.rs",
    "crates/space/src/sub/bytes/sse2.rs",
    // A global allocator that refuses.
    "crates/space/tests/exhaustion.rs",
    // Peers without a safe interface, and the processor's counters.
    "crates/space/benches/",
    // Vector instructions, which are no functions of their own in safe code.
    "crates/space/src/range/lanes.rs",
    "crates/sim/",
    "crates/vrampager/",
    "crates/nv/",
    "crates/nv-probe/src/real.rs",
    "crates/nv-server/",
    "crates/nv-shim/",
];

pub(in super::super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> = tree
        .rust()
        .filter_map(|(path, file)| {
            let (line, _) = numbered(&file.code).find(|(_, code)| has_word(code, "unsafe"))?;
            let message = fault(tree, path, &file.code)?;
            Some(Finding {
                path: path.to_owned(),
                line,
                rule: RULE,
                message: message.into(),
            })
        })
        .collect();
    findings.extend(
        tree.packages
            .iter()
            .flat_map(|package| roots_without_forbid(tree, package)),
    );
    findings
}

fn fault(tree: &Tree, path: &str, code: &str) -> Option<&'static str> {
    if !ALLOWED.iter().any(|allowed| path.starts_with(allowed)) {
        return Some("unsafe code is not allowed here");
    }
    // A bench of several files may say it once, at its root.
    let root = path
        .rsplit_once('/')
        .map(|(folder, _)| format!("{folder}/main.rs"));
    let root = root.and_then(|root| tree.files.get(&root));
    (!says_why(code) && !root.is_some_and(|root| says_why(&root.code))).then_some(
        "the module does not say why: #![expect(unsafe_code, reason = \"...\")] at its top",
    )
}

fn says_why(code: &str) -> bool {
    let squeezed: String = code.split_whitespace().collect();
    // Where the unsafe code itself is conditional, so is the expectation.
    let conditional = squeezed.split("#![cfg_attr(").skip(1);
    let mut conditional = conditional.filter_map(|rest| rest.split(")]").next());
    squeezed.contains("#![expect(unsafe_code,reason=")
        || conditional.any(|attribute| attribute.contains(",expect(unsafe_code,reason="))
}

/// A crate that may not hold unsafe code says so to the compiler.
fn roots_without_forbid(tree: &Tree, package: &Package) -> Vec<Finding> {
    if ALLOWED
        .iter()
        .any(|allowed| allowed.starts_with(&format!("{}/", package.folder)))
    {
        return Vec::new();
    }
    package
        .targets
        .iter()
        .filter(|target| target.role != Role::Other)
        .filter(|target| {
            let code = tree.files.get(&target.path).map_or("", |file| &file.code);
            !code.contains("#![forbid(unsafe_code)]")
        })
        .map(|target| Finding {
            path: target.path.clone(),
            line: 0,
            rule: RULE,
            message: "the crate does not say #![forbid(unsafe_code)]".into(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITH_REASON: &str = "#![expect(\n    unsafe_code,\n    reason = \"x\"\n)]\nunsafe {}\n";

    fn findings_for(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn unsafe_code_outside_the_allowed_places_is_reported() {
        assert_eq!(findings_for("crates/core/src/bo.rs", WITH_REASON), 1);
        assert_eq!(findings_for("crates/hal/src/memory.rs", WITH_REASON), 1);
        assert_eq!(findings_for("crates/hal/src/mapping.rs", WITH_REASON), 0);
        assert_eq!(findings_for("crates/sim/src/memory.rs", WITH_REASON), 0);
    }

    #[test]
    fn a_module_with_unsafe_code_says_why() {
        assert_eq!(findings_for("crates/sim/src/memory.rs", "unsafe {}\n"), 1);
        let other_lint = "#![expect(dead_code, reason = \"x\")]\nunsafe {}\n";
        assert_eq!(findings_for("crates/sim/src/memory.rs", other_lint), 1);
        let on_some_targets =
            "#![cfg_attr(unix, expect(unsafe_code, reason = \"x\"))]\nunsafe {}\n";
        assert_eq!(findings_for("crates/sim/src/memory.rs", on_some_targets), 0);
        let other_attribute = "#![cfg_attr(unix, deny(unsafe_code))]\nunsafe {}\n";
        assert_eq!(findings_for("crates/sim/src/memory.rs", other_attribute), 1);
    }

    #[test]
    fn a_bench_may_say_why_once_at_its_root() {
        let measure = ("crates/space/benches/x/measure.rs", "unsafe {}\n");
        assert_eq!(check(&Tree::of(&[measure])).len(), 1);
        let root = ("crates/space/benches/x/main.rs", WITH_REASON);
        assert_eq!(check(&Tree::of(&[measure, root])), []);
    }

    #[test]
    fn the_word_in_a_comment_is_not_code() {
        assert_eq!(findings_for("crates/core/src/bo.rs", "// unsafe\n"), 0);
    }

    #[test]
    fn a_safe_crate_forbids_it_at_its_root() {
        let tree = Tree::of(&[("crates/core/src/lib.rs", "//! Doc.\n")])
            .with(Package::of("vrampager-core"))
            .with(Package::of("vrampager-sim"));
        let paths: Vec<String> = check(&tree).into_iter().map(|f| f.path).collect();
        assert_eq!(paths, ["crates/core/src/lib.rs"]);
    }
}
