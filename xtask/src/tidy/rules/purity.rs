//! Crates that decide have no clock, no threads, no environment and no random iteration order:
//! the same steps give the same result, which is what the deterministic simulation relies on.

use super::super::scrub::has_word;
use super::super::{Finding, Tree};
use super::numbered;

const RULE: &str = "purity";

const PURE: [&str; 4] = [
    "crates/addr/src/",
    "crates/space/src/",
    "crates/reclaim/src/",
    "crates/core/src/",
];

const FORBIDDEN: [&str; 7] = [
    "Instant",
    "SystemTime",
    "thread",
    "HashMap",
    "HashSet",
    "env",
    "static mut",
];

pub(in super::super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, file) in tree
        .rust()
        .filter(|(path, _)| PURE.iter().any(|p| path.starts_with(p)))
    {
        // Tests stand at the end of a file and may use what they like.
        let lines = numbered(&file.code).take_while(|(_, code)| !code.contains("#[cfg(test)]"));
        for (line, code) in lines {
            for word in FORBIDDEN.iter().filter(|word| has_word(code, word)) {
                let message = format!("`{word}` makes two runs of the same steps differ");
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

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)]))
            .into_iter()
            .map(|f| f.line)
            .collect()
    }

    #[test]
    fn clocks_and_hash_maps_in_a_deciding_crate_are_reported() {
        let text = "let t = Instant::now();\nlet m: HashMap<u8, u8>;\n";
        assert_eq!(lines("crates/core/src/bo.rs", text), [1, 2]);
    }

    #[test]
    fn tests_and_crates_with_effects_may_use_them() {
        let text = "#[cfg(test)]\nmod tests { use std::time::Instant; }\n";
        assert_eq!(lines("crates/core/src/bo.rs", text), [0; 0]);
        assert_eq!(
            lines("crates/sim/src/clock.rs", "Instant::now();\n"),
            [0; 0]
        );
    }
}
