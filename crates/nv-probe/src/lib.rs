//! Bad inputs, the answer that each must get, and a program that gives them to a driver.
//!
//! The table says what NVIDIA's kernel driver answers (from its open sources and headers: statuses
//! of the packet and errors of the system call). [`run`] brings a GPU up as any client does, once
//! for each row, and compares. The same rows run against the simulated driver ([`SimNodes`]), as
//! its promise to be like the real one, and against the nodes of a machine ([`RealNodes`]), as a
//! check of the table itself.
//!
//! ```
//! use vrampager_nv_driver::Config;
//! use vrampager_nv_probe::{SimNodes, run};
//!
//! let report = run(&mut SimNodes::new(Config::parse("gpus=2")?), 0)?;
//! assert!(report.passed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

pub mod client;
mod nodes;
mod real;
mod report;
mod sim;
mod table;

pub use client::SetupError;
pub use nodes::{Answer, MEMORY_BYTES, NOWHERE, Nodes};
pub use real::RealNodes;
pub use report::{Outcome, Report, Tried};
pub use sim::SimNodes;
pub use table::run;
