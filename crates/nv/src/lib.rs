//! NVIDIA GPUs through the kernel driver's interface, real or simulated.
//!
//! The four contracts of [`vrampager_hal`] over the device nodes of NVIDIA's driver. What is on
//! top of the nodes is the same code for the driver of the machine and for the simulated one of
//! [`vrampager_nv_driver`]; only opening, requests and mappings differ.
//!
//! The devices of one [`Nv`] are one client with one VA space of unified memory, made with the
//! first open and taken down with the last close. So they reach memory of one another, and an
//! address means the same to all; each has objects, channels and address zones of its own, and
//! closing one takes nothing from another but what it shared. All state belongs to [`Nv`] and the
//! devices opened through it.
//!
//! * Every request is checked at both levels, the system call and the packet's status.
//! * What takes several requests pushes the way back of each; a failure undoes them in reverse.
//!   What the driver will not undo is kept, never used again, and tried again later.
//! * A mapping in the address space of unified memory is the only one made: no channel uses the
//!   resource manager's own address space, so nothing is mapped there.
//! * Channels have a group of their own each; timelines are 64-bit numbers in host memory.
//!
//! ```
//! use vrampager_hal::{DeviceId, Discovery};
//! use vrampager_nv::{Nv, Planes};
//!
//! let nv = Nv::new("sim,vram=64M".parse()?, &Planes::default())?;
//! let gpu = nv.open(DeviceId(0))?;
//! assert_eq!(gpu.info.vram_bytes, 64 << 20);
//! assert!(gpu.release.close().is_zero());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod books;
mod channel;
mod config;
mod context;
mod device;
mod discovery;
mod door;
mod error;
mod node;
mod own;
mod pages;
mod plane;
mod push;
mod real;
mod ring;
mod rm;
mod session;
mod sim;
mod timeline;
mod zones;

pub use config::{Config, ConfigError, Machine};
pub use discovery::Nv;
pub use node::NodeFile;
pub use plane::{Hold, Plane, Planes, PlanesError};
pub use sim::SimNodes;
