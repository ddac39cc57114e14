//! The thread that brings released memory back once its fences are over (mission row D7).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use vrampager_hal::Fence;

use crate::shell::Shell;

/// Owns the thread; dropping joins it.
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
        drop(self.shell.lock());
        self.shell.announce();
        if let Some(thread) = self.thread.take() {
            assert!(
                thread.join().is_ok() || std::thread::panicking(),
                "the worker never panics"
            );
        }
    }
}

fn work(shell: &Shell, stop: &AtomicBool) {
    let stopped = || stop.load(Ordering::SeqCst);
    while !stopped() {
        shell.wait_until(|device| stopped() || device.next_ghost().is_some());
        let fences: Option<Vec<Fence>> = shell.lock().next_ghost().map(<[Fence]>::to_vec);
        let Some(fences) = fences.filter(|_| !stopped()) else {
            continue;
        };
        // A fence that is not reached in time is looked at again in the next round.
        let over = fences
            .into_iter()
            .all(|fence| shell.runner.wait(fence).is_ok());
        if over {
            reap_one(shell);
        }
    }
}

/// Brings one piece back. What the device refuses to take back is quarantined by core and shows
/// in the statistics.
pub(crate) fn reap_one(shell: &Shell) {
    let task = shell.lock().reap();
    let reaped = shell.drive(task);
    debug_assert!(
        reaped.is_ok(),
        "reaping has no failure of its own: {reaped:?}"
    );
}
