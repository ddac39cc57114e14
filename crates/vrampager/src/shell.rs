//! The thin shell around core: one lock, waiting, and performing effects outside the lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use vrampager_core::{Device, Done, Error, Grant, Runner, Step, TaskId};
use vrampager_hal::HalError;

use crate::import::Imports;

/// A blocked request looks again at least this often, whatever it was told.
const RECHECK: Duration = Duration::from_secs(1);

/// How long the last use of an import waits for its work when no worker can.
const DEADLINE: Duration = Duration::from_secs(15);

/// How long a thread is given to drop what it has taken out.
const MOMENT: Duration = Duration::from_millis(1);

/// A device with its lock.
///
/// The device and the runner's own locks are never held together: the runner is called with the
/// device unlocked, and knows nothing of it.
#[derive(Debug)]
pub(crate) struct Shell {
    device: Mutex<Device>,
    changed: Condvar,
    pub(crate) runner: Runner,
    pub(crate) imports: Imports,
    /// Whether a worker gives back imports that nobody holds.
    attended: AtomicBool,
}

/// How a task came out of [`Shell::drive`].
#[derive(Debug)]
pub(crate) enum Outcome {
    Granted(Grant),
    Done(Done),
}

impl Shell {
    pub(crate) fn new(device: Device, runner: Runner, imports: Imports) -> Self {
        Self {
            device: Mutex::new(device),
            changed: Condvar::new(),
            runner,
            imports,
            attended: AtomicBool::new(true),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Device> {
        // A panic inside core is a bug found by its own assertions; the device's state is then
        // not to be trusted.
        self.device.lock().expect("core has not panicked")
    }

    /// Locks the device for a `Drop`, which must not panic while another panic unwinds; `None`
    /// when core has panicked and its state is not to be touched.
    pub(crate) fn lock_to_drop(&self) -> Option<MutexGuard<'_, Device>> {
        self.device.lock().ok()
    }

    /// Locks the device with its timelines brought up to date.
    pub(crate) fn lock_observed(&self) -> MutexGuard<'_, Device> {
        let progress = self.runner.progress();
        let mut device = self.lock();
        for (timeline, value) in progress {
            device.observe(timeline, value);
        }
        device
    }

    /// Wakes everyone who waits for the device to change.
    pub(crate) fn announce(&self) {
        self.changed.notify_all();
    }

    /// Waits until `ready` holds of the device, or `at_most` has passed.
    pub(crate) fn wait_until(&self, at_most: Duration, ready: impl Fn(&Device) -> bool) {
        let waiting = |device: &mut Device| !ready(device);
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), at_most, waiting);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Carries a task forward until it is granted or over.
    pub(crate) fn drive(&self, task: TaskId) -> Result<Outcome, Error> {
        loop {
            let mut device = self.lock_observed();
            let epoch = device.epoch();
            let step = device.step(task);
            if device.epoch() != epoch {
                // It gave something up on the way, be it only to block.
                self.changed.notify_all();
            }
            match step {
                Step::Perform(_) => {
                    drop(device);
                    self.perform(task, step);
                }
                Step::Blocked => self.pause(device),
                Step::Granted(grant) => return Ok(Outcome::Granted(grant)),
                Step::Done(result) => return result.map(Outcome::Done),
            }
        }
    }

    fn perform(&self, task: TaskId, first: Step) {
        let mut next = Some(first);
        while let Some(Step::Perform(effects)) = next {
            let outcome = self.runner.perform(&effects);
            next = self.lock().performed(task, &outcome);
            self.announce();
        }
    }

    /// Says that no worker runs any more, and gives back the imports that it has left.
    pub(crate) fn leave_unattended(&self) {
        self.attended.store(false, Ordering::SeqCst);
        self.give_back_unattended();
    }

    /// Gives back the imports that nobody holds, once their work is over, unless a worker does.
    ///
    /// The `Drop` of the shell is no place for this alone: devices that share with one another keep
    /// each other's shell alive by their imports. What is let go of while the worker is still there
    /// is seen by [`leave_unattended`](Self::leave_unattended), which locks the imports later.
    pub(crate) fn give_back_unattended(&self) {
        if !self.attended.load(Ordering::SeqCst) && self.imports.any_retired() {
            self.give_back_imports();
        }
    }

    /// Waits for the work of imports that nobody holds, and gives them back. Once a wait has been
    /// in vain there is no other; what stays is looked at again when something is let go of, and
    /// closing the device takes it away.
    fn give_back_imports(&self) {
        let mut patience = DEADLINE;
        self.imports.give_back(|fence| {
            let waited = self.runner.wait_at_most(fence, patience);
            let over = matches!(waited, Ok(()) | Err(HalError::DeviceLost(_)));
            if !over {
                patience = Duration::ZERO;
            }
            over
        });
    }

    /// Has the imports that nobody holds given back as far as their work is over in time, on any
    /// thread. What the device refuses is left to be tried again.
    fn settle_imports(&self, until: Instant) {
        loop {
            let pending = self.imports.give_back_finished();
            let left = until.saturating_duration_since(Instant::now());
            let waited = match pending {
                _ if left.is_zero() => return,
                Some(fence) => self.runner.wait_at_most(fence, left),
                None if self.imports.any_leaving() => {
                    thread::sleep(MOMENT);
                    Ok(())
                }
                None => return,
            };
            // Work that has stopped is not over: the worker sees what becomes of it.
            if waited.is_err() {
                return;
            }
        }
    }

    /// Waits until other pagers have let go of this one's buffers, as far as nobody holds the
    /// imports that keep them.
    pub(crate) fn settle_borrowers(&self) {
        let until = Instant::now() + DEADLINE;
        for borrower in self.imports.borrowers() {
            borrower.settle_imports(until);
        }
    }

    fn pause(&self, device: MutexGuard<'_, Device>) {
        let epoch = device.epoch();
        let unchanged = |device: &mut Device| device.epoch() == epoch;
        let paused = self.changed.wait_timeout_while(device, RECHECK, unchanged);
        drop(paused.expect("core has not panicked"));
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        if self.device.get_mut().is_ok() {
            crate::worker::reap_all(self);
        }
        self.leave_unattended();
        self.runner.close();
    }
}
