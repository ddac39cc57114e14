//! How eagerly the server looks for requests and work.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use vrampager_nv_driver::Progress;

/// How long after the last request or work there is no pause, so that a program that asks for one
/// thing after the other finds the server awake.
const AWAKE: Duration = Duration::from_millis(1);
/// The pause between looks after that: an idle machine costs next to nothing.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000,
};

/// Whether the server is awake.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When there was something to do last, in nanoseconds.
    worked: u64,
    now: u64,
}

impl Pace {
    /// Notes what a pass at `now` has found: how many requests, and what the channels did.
    pub(crate) fn note(&mut self, requests: usize, progress: Progress, now: u64) {
        self.now = now;
        match (requests, progress) {
            (1.., _) | (_, Progress::Moved) => self.worked = now,
            (0, Progress::Waiting | Progress::Idle) => {}
        }
    }

    /// How long to wait for requests before the next pass.
    pub(crate) fn pause(&self) -> Timespec {
        let idle = self.now.saturating_sub(self.worked);
        if Duration::from_nanos(idle) < AWAKE {
            Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            }
        } else {
            PAUSE
        }
    }
}

/// Nanoseconds on the clock that timestamps of semaphores show.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let nanoseconds = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    u64::try_from(nanoseconds).expect("the monotonic clock counts up from boot")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_stays_awake_for_a_while_after_a_request_or_work() {
        let mut pace = Pace::default();
        for (requests, progress, now, awake) in [
            (0, Progress::Moved, 5_000_000, true),
            (0, Progress::Waiting, 5_900_000, true),
            (0, Progress::Idle, 6_000_000, false),
            (1, Progress::Idle, 7_000_000, true),
            (0, Progress::Idle, 7_999_999, true),
            (0, Progress::Waiting, 8_000_000, false),
        ] {
            pace.note(requests, progress, now);
            assert_eq!(pace.pause().tv_nsec == 0, awake, "{now}");
        }
    }
}
