//! A file holds one noun; `lib.rs` is a door, not a room.

use super::super::{Finding, Tree};

const RULE: &str = "size";
const FILE_LINES_MAX: usize = 1000;
const LIB_LINES_MAX: usize = 100;

pub(in super::super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .filter_map(|(path, file)| {
            let lines = file.text.lines().count();
            let lines_max = if path.ends_with("/lib.rs") {
                LIB_LINES_MAX
            } else {
                FILE_LINES_MAX
            };
            (lines > lines_max).then(|| {
                let message = format!("{lines} lines, at most {lines_max} are allowed");
                Finding {
                    path: path.to_owned(),
                    line: 0,
                    rule: RULE,
                    message,
                }
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings_for(path: &str, lines: usize) -> usize {
        check(&Tree::of(&[(path, &"x\n".repeat(lines))])).len()
    }

    #[test]
    fn a_file_of_1001_lines_is_reported_and_one_of_1000_is_not() {
        assert_eq!(findings_for("crates/core/src/bo.rs", 1000), 0);
        assert_eq!(findings_for("crates/core/src/bo.rs", 1001), 1);
    }

    #[test]
    fn a_lib_of_101_lines_is_reported_and_one_of_100_is_not() {
        assert_eq!(findings_for("crates/core/src/lib.rs", 100), 0);
        assert_eq!(findings_for("crates/core/src/lib.rs", 101), 1);
    }

    #[test]
    fn long_documents_are_left_alone() {
        assert_eq!(findings_for("docs/glossary.md", 1001), 0);
    }
}
