//! The thread that runs the channels.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use vrampager_nv_driver::Progress;

use crate::state;

/// Passes without work before the thread sleeps between passes: a client that waits for a copy
/// gets its answer within a pass, an idle program costs next to nothing.
const EAGER_PASSES: u32 = 200;
const PAUSE: Duration = Duration::from_micros(50);

/// Starts the thread. It ends with the process.
pub(crate) fn start() {
    let started = std::thread::Builder::new()
        .name("vrampager-sim".into())
        .spawn(run);
    if let Err(error) = started {
        eprintln!("vrampager: cannot start the simulated GPUs: {error}");
    }
}

fn run() {
    let mut idle = 0;
    loop {
        let progress = state::lock().map(|mut state| state.driver.run(now()));
        match progress {
            Some(Progress::Moved) => idle = 0,
            Some(Progress::Waiting | Progress::Idle) => idle += 1,
            None => return,
        }
        if idle < EAGER_PASSES {
            std::thread::yield_now();
        } else {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Nanoseconds on the clock that timestamps of semaphores show.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let nanoseconds = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    u64::try_from(nanoseconds).expect("the monotonic clock counts up from boot")
}
