//! The thread that brings released memory back once its fences are over (mission row D7).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, panicking};
use std::time::Duration;

use vrampager_core::{Device, Done};
use vrampager_hal::{Fence, HalError};

use crate::shell::{Outcome, Shell};

/// Owns the thread; dropping joins it and gives back the imports it has left.
#[derive(Debug)]
pub(crate) struct Worker {
    shell: Arc<Shell>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(crate) fn start(shell: &Arc<Shell>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (its_shell, its_stop) = (shell.clone(), stop.clone());
        let thread = Builder::new()
            .name("vrampager-reap".into())
            .spawn(move || work(&its_shell, &its_stop))?;
        Ok(Self {
            shell: shell.clone(),
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Taking the lock once orders the store before the thread's next look at the flag.
        drop(self.shell.lock_to_drop());
        self.shell.announce();
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            assert!(joined.is_ok() || panicking(), "the worker never panics");
        }
        self.shell.leave_unattended();
    }
}

/// How long the thread waits before it looks around again.
const PATIENCE: Duration = Duration::from_millis(100);

fn work(shell: &Shell, stop: &AtomicBool) {
    let stopped = || stop.load(Ordering::SeqCst);
    let idle = |device: &Device| {
        !stopped() && device.next_ghost().is_none() && !shell.imports.any_retired()
    };
    while !stopped() {
        let imports = shell.imports.give_back_finished();
        let device = shell.lock_observed();
        let pending = device.next_ghost().map(<[Fence]>::to_vec);
        let ripe = device.has_ripe_ghost();
        drop(device);
        let pending = match imports {
            Some(fence) => Some(pending.unwrap_or_else(|| vec![fence])),
            None => pending,
        };
        match pending {
            // Refused by the device: not worth a thread that never rests.
            None if shell.imports.any_retired() => shell.wait_until(PATIENCE, |_| stopped()),
            None => shell.wait_until(Duration::from_secs(3600), |device| !idle(device)),
            Some(_) if ripe => {
                reap_one(shell);
            }
            Some(fences) => {
                let waited = fences
                    .into_iter()
                    .try_for_each(|fence| shell.runner.wait_at_most(fence, PATIENCE));
                match waited {
                    Ok(()) | Err(HalError::Timeout { .. }) => {}
                    // Core hears of a lost device by a step that fails; anything else may pass.
                    Err(error) => {
                        if matches!(error, HalError::DeviceLost(_)) {
                            shell.imports.give_back(|_| true);
                        }
                        reap_one(shell);
                        shell.wait_until(PATIENCE, |_| stopped());
                    }
                }
            }
        }
    }
}

/// Brings back the piece that is over, or waits for the oldest; whether one came back. What the
/// device refuses to take back is quarantined by core and shows in the statistics.
fn reap_one(shell: &Shell) -> bool {
    let task = shell.lock().reap();
    matches!(shell.drive(task), Ok(Outcome::Done(Done::Reaped)))
}

/// Brings back everything that comes back; gives up on fences that are not reached in time.
pub(crate) fn reap_all(shell: &Shell) {
    while reap_one(shell) {}
}
