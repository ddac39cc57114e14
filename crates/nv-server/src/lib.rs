//! The simulated NVIDIA kernel driver for other processes: it outlives each of them, and several
//! share its GPUs.
//!
//! A [`Server`] is a thread with the driver of `vrampager-nv-driver`. What stands in front of a
//! program (the preload library of `vrampager-nv-shim`) speaks to it as [`wire`] says: requests
//! over a socket, memory and files as descriptors.
//!
//! * **An open file is a socket.** The program has one end, the server the other. Descriptors of
//!   it can be duplicated, inherited, kept over `exec` and sent to other processes without anybody
//!   watching. When the last one is gone, by `close` or by the end of its process, the kernel hangs
//!   up, and the server closes the file before it answers another request: what the kernel does
//!   to a driver's files.
//! * **Memory that the driver makes is a memory file**, which mapping hands to the program. It
//!   stays as long as somebody has it mapped.
//! * **Memory of a program** (packets, pinned pages) is read and written through its
//!   `/proc/PID/mem`, which is bound to the address space and not to the number of the process, and
//!   its `maps`, which say what it may write itself. Both are opened when it connects.
//!
//! Known gaps: pinned pages are reached through their process, so they are gone for the driver
//! when it unmaps them, runs another program or ends; real pins stay. The kernel does not promise
//! that a word of them is written at once. A program that this process may not trace has no driver;
//! one that ceases to be traceable later cannot name files in its requests any more.

#[cfg(test)]
mod again;
mod engine;
mod family;
mod machine;
mod memory;
mod process;
mod server;
pub mod wire;

pub use family::run_family;
pub use server::{Server, StartError};
