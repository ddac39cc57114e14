//! The simulated driver as a client sees it: through packets alone.

mod bad_inputs;
mod channels;
mod client;
mod doorbell;
mod failures;
mod garbage;
mod lifetime;
mod passes;
mod versions;
