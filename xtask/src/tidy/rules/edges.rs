//! Which crate may depend on which: the layers of ARCHITECTURE.md as a table.

use super::super::tree::{Dependency, Kind, Origin, Package};
use super::super::{Finding, Tree};

const RULE: &str = "edges";

/// For each crate, by its name without `vrampager-`, what it may depend on in the workspace. Lines
/// for crates that do not exist yet are the plan of ARCHITECTURE.md.
const ALLOWED: [(&str, &[&str]); 19] = [
    ("addr", &[]),
    ("lock", &[]),
    ("space", &["addr"]),
    ("reclaim", &["addr", "lock"]),
    ("hal", &["addr"]),
    ("core", &["addr", "lock", "space", "reclaim", "hal"]),
    ("nv-abi", &[]),
    ("nv-driver", &["addr", "nv-abi"]),
    ("nv", &["addr", "space", "hal", "nv-abi", "nv-driver"]),
    // Of `nv` it uses the open file of a node, and nothing that decides.
    ("nv-probe", &["nv-abi", "nv-driver", "nv"]),
    // A simulator that shared the code which decides would share its bugs.
    ("sim", &["addr", "space", "hal"]),
    ("vrampager", &["addr", "lock", "core", "hal", "sim", "nv"]),
    ("models", &["addr", "vrampager"]),
    ("traces", &["models", "vrampager"]),
    (
        "cli",
        &[
            "addr",
            "models",
            "traces",
            "vrampager",
            "hal",
            "sim",
            "nv-driver",
            "nv-probe",
            "nv-server",
        ],
    ),
    ("nv-server", &["nv-abi", "nv-driver"]),
    ("nv-shim", &["nv-driver", "nv-server", "nv-abi"]),
    ("xtask", &["models"]),
    ("bench", &["addr", "space", "vrampager"]),
];

/// What a crate's tests may use beyond that. Every crate may also depend on itself, to turn on its
/// own test features.
const ALLOWED_IN_TESTS: [(&str, &[&str]); 5] = [
    ("nv-driver", &["nv-probe"]),
    ("nv-shim", &["nv-probe"]),
    ("core", &["sim"]),
    ("vrampager", &["sim"]),
    ("cli", &["nv-shim"]),
];

pub(in super::super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.packages.iter().flat_map(check_package).collect()
}

fn check_package(package: &Package) -> Vec<Finding> {
    let finding = |message| Finding {
        path: package.manifest(),
        line: 0,
        rule: RULE,
        message,
    };
    let name = package.short_name();
    let Some(allowed) = lookup(&ALLOWED, name) else {
        return vec![finding(format!(
            "crate `{name}` has no line in the table of allowed edges ({})",
            file!()
        ))];
    };
    package
        .dependencies
        .iter()
        .filter(|dependency| dependency.origin == Origin::Workspace)
        .filter(|dependency| !is_allowed(name, dependency, allowed))
        .map(|dependency| {
            let other = short(&dependency.name);
            finding(format!(
                "`{name}` may not depend on `{other}`, only on {allowed:?}"
            ))
        })
        .collect()
}

fn is_allowed(name: &str, dependency: &Dependency, allowed: &[&str]) -> bool {
    let other = short(&dependency.name);
    let in_tests = dependency.kind == Kind::Dev
        && (other == name
            || lookup(&ALLOWED_IN_TESTS, name).is_some_and(|more| more.contains(&other)));
    allowed.contains(&other) || in_tests
}

fn lookup<'a>(table: &[(&str, &'a [&'a str])], name: &str) -> Option<&'a [&'a str]> {
    table
        .iter()
        .find(|(crate_name, _)| *crate_name == name)
        .map(|(_, others)| *others)
}

fn short(name: &str) -> &str {
    name.strip_prefix("vrampager-").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings_for(package: Package) -> Vec<String> {
        check(&Tree::default().with(package))
            .into_iter()
            .map(|f| f.to_string())
            .collect()
    }

    #[test]
    fn a_forbidden_edge_is_reported_with_what_is_allowed() {
        let sim = Package::of("vrampager-sim")
            .on("vrampager-hal", Kind::Build)
            .on("vrampager-core", Kind::Build);
        assert_eq!(
            findings_for(sim),
            [
                "crates/sim/Cargo.toml: edges: `sim` may not depend on `core`, only on \
                 [\"addr\", \"space\", \"hal\"]"
            ]
        );
    }

    #[test]
    fn a_new_crate_without_a_line_in_the_table_is_reported() {
        let findings = findings_for(Package::of("vrampager-util"));
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].contains("crate `util` has no line"),
            "{findings:?}"
        );
    }

    #[test]
    fn the_facade_goes_by_its_own_name() {
        let models = Package::of("vrampager-models").on("vrampager", Kind::Build);
        assert_eq!(findings_for(models), [""; 0]);
    }

    #[test]
    fn a_test_edge_is_allowed_only_in_tests() {
        let tested = Package::of("vrampager-core").on("vrampager-sim", Kind::Dev);
        assert_eq!(findings_for(tested), [""; 0]);

        let linked = Package::of("vrampager-core").on("vrampager-sim", Kind::Build);
        assert_eq!(findings_for(linked).len(), 1);
    }

    #[test]
    fn a_crate_may_turn_on_its_own_features_for_its_tests() {
        let hal = Package::of("vrampager-hal").on("vrampager-hal", Kind::Dev);
        assert_eq!(findings_for(hal), [""; 0]);
    }

    #[test]
    fn a_test_edge_that_no_table_names_is_reported() {
        let space = Package::of("vrampager-space").on("vrampager-sim", Kind::Dev);
        assert_eq!(findings_for(space).len(), 1);
    }

    #[test]
    fn crates_from_the_registry_are_no_edges() {
        let addr = Package::of("vrampager-addr").on("thiserror", Kind::Build);
        assert_eq!(findings_for(addr), [""; 0]);
    }

    #[test]
    fn the_table_itself_has_no_cycle() {
        // Each line may name only crates that a topological order has already placed.
        let mut placed: Vec<&str> = Vec::new();
        for _ in 0..ALLOWED.len() {
            let ready = ALLOWED
                .iter()
                .filter(|(_, others)| others.iter().all(|o| placed.contains(o)));
            let ready: Vec<&str> = ready.map(|(name, _)| *name).collect();
            placed = ready;
        }
        assert_eq!(placed.len(), ALLOWED.len());
    }
}
