//! Host memory through which bytes pass between files, callers and device memory.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

use vrampager_addr::Va;
use vrampager_hal::Fence;

/// One piece of the staging area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Offset in the host object.
    pub(crate) offset: u64,
    /// Where the device sees it.
    pub(crate) va: Va,
    pub(crate) len: u64,
}

/// Pieces in turn: while the engine empties one, the CPU fills the next.
#[derive(Debug)]
pub(crate) struct Staging {
    free: Mutex<VecDeque<(Piece, Option<Fence>)>>,
    returned: Condvar,
}

impl Staging {
    /// Cuts `[offset, offset + count * len)` of the host object, seen by the device from `va` on.
    pub(crate) fn new(offset: u64, va: Va, len: u64, count: u64) -> Self {
        let piece = |i| Piece {
            offset: offset + i * len,
            va: va.offset(i * len),
            len,
        };
        let free = (0..count).map(|i| (piece(i), None)).collect();
        Self {
            free: Mutex::new(free),
            returned: Condvar::new(),
        }
    }

    /// Takes the piece that has been idle longest, waiting while others have all of them; its
    /// fence has to be waited for before it is touched.
    pub(crate) fn take(&self) -> (Piece, Option<Fence>) {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.returned.wait_while(free, |free| free.is_empty());
        let mut free = waited.unwrap_or_else(PoisonError::into_inner);
        free.pop_front().expect("waited until there is one")
    }

    /// Gives a piece back; the device is done with it once `fence` is reached.
    pub(crate) fn put(&self, piece: Piece, fence: Option<Fence>) {
        self.free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back((piece, fence));
        self.returned.notify_one();
    }
}
