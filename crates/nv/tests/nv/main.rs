//! The back end over the simulated driver.
#![expect(clippy::unwrap_used, reason = "a step that fails ends the test")]

mod accept;
mod context;
mod faults;
mod rounds;
