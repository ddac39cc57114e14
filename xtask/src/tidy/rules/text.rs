//! Plain text: ASCII and 100 columns in code; nowhere a tab or blanks at the end of a line.

use super::super::tree::has_extension;
use super::super::{Finding, Tree};
use super::numbered;

const RULE: &str = "text";
const COLUMNS_MAX: usize = 100;

pub(in super::super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, file) in &tree.files {
        for (line, text) in numbered(&file.text) {
            findings.extend(fault(path, text).map(|message| Finding {
                path: path.clone(),
                line,
                rule: RULE,
                message: message.into(),
            }));
        }
    }
    findings
}

fn fault(path: &str, line: &str) -> Option<&'static str> {
    if line.contains('\t') {
        Some("a tab")
    } else if line.ends_with(char::is_whitespace) {
        Some("blanks at the end of the line")
    } else if has_extension(path, &["rs", "toml"]) && !line.is_ascii() {
        Some("a character outside ASCII")
    } else if has_extension(path, &["rs"]) && line.chars().count() > COLUMNS_MAX {
        Some("more than 100 columns")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<(usize, String)> {
        check(&Tree::of(&[(path, text)]))
            .into_iter()
            .map(|f| (f.line, f.message))
            .collect()
    }

    #[test]
    fn each_fault_is_reported_on_its_line() {
        let text = format!("ok\n\tx\nx \n\u{e4}\n{}\n", "x".repeat(101));
        assert_eq!(
            messages("a.rs", &text),
            [
                (2, "a tab".to_owned()),
                (3, "blanks at the end of the line".to_owned()),
                (4, "a character outside ASCII".to_owned()),
                (5, "more than 100 columns".to_owned()),
            ]
        );
    }

    #[test]
    fn a_document_may_be_wide_and_beyond_ascii_but_has_no_tabs() {
        let text = format!("\u{e4}{}\n\t\n", "x".repeat(101));
        assert_eq!(messages("a.md", &text), [(2, "a tab".to_owned())]);
    }

    #[test]
    fn a_line_of_exactly_100_columns_is_fine() {
        assert_eq!(messages("a.rs", &"x".repeat(100)), []);
    }
}
