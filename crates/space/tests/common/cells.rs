//! Spaces of a few cells, of any length: for the model tests and the fuzz target.

use vrampager_space::GapRule;

/// Bytes of a cell: nodes of a tree reach 2^31 - 2 bytes, that is all cells, some, two, one or
/// none.
pub(crate) const UNITS: [u64; 5] = [1, 1 << 24, 1 << 28, (1 << 31) - 2, 1 << 45];

pub(crate) const COLORS: u32 = 3;

/// Cells that stay free between neighbours; not symmetric.
pub(crate) const GAPS: [[u64; COLORS as usize]; COLORS as usize] =
    [[0, 1, 3], [2, 0, 1], [0, 4, 1]];

fn gap<const UNIT: u64>(left: u32, right: u32) -> u64 {
    UNIT * GAPS[left as usize][right as usize]
}

/// By the number of the unit.
pub(crate) const RULES: [GapRule; 5] = [
    gap::<{ UNITS[0] }>,
    gap::<{ UNITS[1] }>,
    gap::<{ UNITS[2] }>,
    gap::<{ UNITS[3] }>,
    gap::<{ UNITS[4] }>,
];
