//! What leaves are made of: thirty-two numbers in order, that make room and close ranks without
//! a branch.
//!
//! Loops have a fixed count, and indices bounds that the compiler can see. So they become a few
//! moves of vector registers, as wide as the target has them, with no check left between.

use core::array;

use super::lanes::{LANES, Lanes};

/// Segments in a leaf.
pub(super) const SLOTS: usize = 32;

/// Most slots that one operation adds or drops.
pub(super) const PARTS: usize = 2;

/// A number for each segment, and what a shift by [`PARTS`] reads or writes behind them.
pub(super) type Slots = [i32; SLOTS + PARTS];

/// The slots from `at` on are selected by reading this from `SLOTS - at` on.
static SELECT: [i32; 2 * SLOTS] = {
    let mut mask = [0; 2 * SLOTS];
    let mut slot = SLOTS;
    while slot < 2 * SLOTS {
        mask[slot] = -1;
        slot += 1;
    }
    mask
};

#[inline(always)]
fn lanes(slots: &[i32], lo: usize) -> Lanes {
    array::from_fn(|lane| slots[lo + lane])
}

/// Which of the slots from `lo` on are `at` or behind.
#[inline(always)]
fn selected(lo: usize, at: usize) -> Lanes {
    lanes(&SELECT, SLOTS - at.min(SLOTS) + lo)
}

/// Takes the selected of `new`, the others of `old`.
#[inline(always)]
fn blend(mask: Lanes, new: Lanes, old: Lanes) -> Lanes {
    array::from_fn(|lane| new[lane] & mask[lane] | old[lane] & !mask[lane])
}

/// Moves the slots from `at` on up by `by`, which is at most [`PARTS`].
#[inline(always)]
pub(super) fn shift_up(slots: &mut Slots, at: usize, by: usize) {
    let by = by.min(PARTS);
    for block in (0..SLOTS / LANES).rev() {
        let lo = block * LANES;
        let moved = blend(selected(lo, at), lanes(slots, lo), lanes(slots, lo + by));
        slots[lo + by..][..LANES].copy_from_slice(&moved);
    }
}

/// Moves the slots from `at + by` on down to `at`; `by` is at most [`PARTS`].
#[inline(always)]
pub(super) fn shift_down(slots: &mut Slots, at: usize, by: usize) {
    let by = by.min(PARTS);
    for block in 0..SLOTS / LANES {
        let lo = block * LANES;
        let moved = blend(selected(lo, at), lanes(slots, lo + by), lanes(slots, lo));
        slots[lo..][..LANES].copy_from_slice(&moved);
    }
}
