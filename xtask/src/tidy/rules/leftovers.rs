//! Nothing half-done, nothing switched off, no paths of the machine it was written on.

use super::super::tree::has_extension;
use super::super::{Finding, Tree};
use super::numbered;

const RULE: &str = "leftovers";

/// Searched in code, outside comments and strings.
const IN_CODE: [(&str, &str); 3] = [
    ("todo!", "unfinished code"),
    ("unimplemented!", "unfinished code"),
    ("#[ignore", "a test that is switched off"),
];
/// Searched in all text; put together here so that this file does not hold them.
const IN_TEXT: [(&str, &str); 2] = [
    (concat!("FIX", "ME"), "a note instead of a fix or an issue"),
    (concat!("XX", "X"), "a note instead of a fix or an issue"),
];
/// Searched in documents and manifests.
const MACHINE_PATHS: [&str; 3] = [
    concat!("/wo", "rk/"),
    concat!("/tm", "p/"),
    concat!("/ro", "ot/"),
];
const NOTE: &str = concat!("TO", "DO");

pub(in super::super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, file) in &tree.files {
        let mut report = |line, message: String| {
            findings.push(Finding {
                path: path.clone(),
                line,
                rule: RULE,
                message,
            });
        };
        for (line, code) in numbered(&file.code) {
            for (word, message) in IN_CODE.iter().filter(|(word, _)| code.contains(word)) {
                report(line, format!("{message}: `{word}`"));
            }
        }
        for (line, text) in numbered(&file.text) {
            for (word, message) in IN_TEXT.iter().filter(|(word, _)| text.contains(word)) {
                report(line, format!("{message}: `{word}`"));
            }
            if text.contains(NOTE) && !text.contains(&format!("{NOTE}(#")) {
                report(line, format!("`{NOTE}` without the number of an issue"));
            }
            if has_extension(path, &["md", "toml"]) {
                for prefix in MACHINE_PATHS.iter().filter(|prefix| text.contains(*prefix)) {
                    report(line, format!("a path of one machine: `{prefix}`"));
                }
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
    fn unfinished_code_and_ignored_tests_are_reported() {
        let text = "todo!()\nunimplemented!()\n#[ignore = \"x\"]\n";
        assert_eq!(lines("a.rs", text), [1, 2, 3]);
    }

    #[test]
    fn the_same_words_in_comments_and_strings_are_no_leftovers() {
        assert_eq!(lines("a.rs", "// todo!()\n\"#[ignore\"\n"), [0; 0]);
    }

    #[test]
    fn a_note_needs_the_number_of_an_issue() {
        assert_eq!(
            lines("a.rs", &format!("// {NOTE}: x\n// {NOTE}(#7): x\n")),
            [1]
        );
        assert_eq!(lines("a.md", concat!("FIX", "ME\n")), [1]);
    }

    #[test]
    fn machine_paths_are_reported_in_documents_and_manifests_only() {
        let text = format!("see {}x\n", MACHINE_PATHS[1]);
        assert_eq!(lines("a.md", &text), [1]);
        assert_eq!(lines("a.toml", &text), [1]);
        assert_eq!(lines("a.rs", &text), [0; 0]);
    }
}
