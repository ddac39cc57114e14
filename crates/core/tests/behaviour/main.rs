//! What the manager promises, one file for each promise, on a simulated device with a virtual
//! clock. Rows of TTM's own tests are cited by their names there.
#![expect(
    clippy::unwrap_used,
    reason = "a test's setup either works or ends the test"
)]

mod addresses;
mod clean_files;
mod copy_faults;
mod device_loss;
mod errors;
mod eviction;
mod fences;
mod hostile_managers;
mod multihop;
mod opening;
mod pinning;
mod placement;
mod promotion;
mod reservations;
mod rig;
mod rollback;
mod swapout;
