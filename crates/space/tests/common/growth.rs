//! How the time for some work grows with its amount.

use std::time::Duration;

/// Whether the larger of two amounts of work takes at most `factor` times as long as the
/// smaller one. Other programs disturb measurements, so the best of several counts; what grows
/// faster than that never is.
pub(crate) fn is_bounded(factor: u32, measure: impl FnMut() -> (Duration, Duration)) -> bool {
    std::iter::repeat_with(measure)
        .take(8)
        .any(|(small, large)| large <= small * factor)
}
