//! A progress bar for people who watch.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, Instant};

const CELLS: u64 = 30;
const REDRAW: Duration = Duration::from_millis(100);

/// A line on standard error that is drawn over and over; nothing unless that is a terminal. It has
/// no colours that `NO_COLOR` could switch off.
#[derive(Debug)]
pub(crate) struct Progress {
    total: u64,
    drawn: Option<Instant>,
    visible: bool,
}

impl Progress {
    pub(crate) fn new(total: u64) -> Self {
        Self {
            total,
            drawn: None,
            visible: stderr().is_terminal(),
        }
    }

    /// Shows that `done` requests are over and `what` comes next.
    pub(crate) fn show(&mut self, done: u64, what: &str) {
        let fresh = |drawn: Instant| drawn.elapsed() < REDRAW;
        if !self.visible || self.drawn.is_some_and(fresh) {
            return;
        }
        self.drawn = Some(Instant::now());
        // A terminal that has gone away must not end the run.
        self.visible = write!(stderr(), "\r{}\x1b[K", line(done, self.total, what)).is_ok();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.visible && self.drawn.is_some() {
            drop(write!(stderr(), "\r\x1b[K"));
        }
    }
}

fn line(done: u64, total: u64, what: &str) -> String {
    let full = usize::try_from(done * CELLS / total).expect("at most the number of cells");
    let empty = usize::try_from(CELLS).expect("a small number") - full;
    let (full, empty) = ("#".repeat(full), ".".repeat(empty));
    format!("[{full}{empty}] {done}/{total} {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_is_full_at_the_end_only() {
        assert_eq!(line(0, 9, "a"), format!("[{}] 0/9 a", ".".repeat(30)));
        assert_eq!(line(9, 9, "a"), format!("[{}] 9/9 a", "#".repeat(30)));
        assert!(line(299, 300, "a").contains("#.]"));
    }
}
