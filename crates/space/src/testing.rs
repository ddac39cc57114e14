//! What tests of several modules need.

mod rng;

use core::cell::Cell;

pub(crate) use rng::Rng;

/// A number from a generator as an index.
pub(crate) fn index(number: u64) -> usize {
    usize::try_from(number).expect("test spaces are small")
}

std::thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// Counts a look at a record: a node, a segment, a hole, a bitmap.
pub(crate) fn step() {
    STEPS.set(STEPS.get() + 1);
}

/// How many records `work` looks at.
fn steps_of(work: impl FnOnce()) -> u64 {
    let before = STEPS.get();
    work();
    STEPS.get() - before
}

/// Asserts that four times as much of everything takes at most eight times as many steps, where a
/// quadratic algorithm takes sixteen times as many.
///
/// `prepare` makes what the work of an amount is done on.
///
/// # Panics
/// When it takes more, or fewer steps than there is work.
pub(crate) fn assert_subquadratic<T>(
    smallest: u64,
    mut prepare: impl FnMut(u64) -> T,
    mut work: impl FnMut(&mut T, u64),
) {
    let mut last = None;
    for amount in [smallest, 4 * smallest, 16 * smallest] {
        let mut on = prepare(amount);
        let steps = steps_of(|| work(&mut on, amount));
        assert!(steps >= amount, "{amount} of work can't take {steps} steps");
        if let Some(before) = last.replace(steps) {
            assert!(
                steps <= 8 * before,
                "{before} steps, and {steps} for {amount}"
            );
        }
    }
}
