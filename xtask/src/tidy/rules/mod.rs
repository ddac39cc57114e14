//! One file per rule.

mod align;
mod decisions;
mod edges;
mod leftovers;
mod manifest;
mod orphans;
mod purity;
mod size;
mod text;
mod unsafe_code;

use super::{Finding, Tree};

/// Every rule, in the order they are told about in CONTRIBUTING.md.
pub(super) const ALL: [fn(&Tree) -> Vec<Finding>; 10] = [
    edges::check,
    manifest::check,
    decisions::check,
    size::check,
    text::check,
    leftovers::check,
    unsafe_code::check,
    purity::check,
    align::check,
    orphans::check,
];

/// Lines of `text` with their numbers, counted from 1.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().zip(1..).map(|(line, number)| (number, line))
}
