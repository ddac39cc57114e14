//! The NVIDIA kernel driver's user-space interface: numbers, layouts, statuses.
//!
//! What it holds: device nodes ([`Node`]), escape ioctls of `/dev/nvidiactl` and `/dev/nvidiaN`
//! ([`escape`]), resource manager classes and controls ([`class`], [`ctrl`]), unified memory
//! commands of `/dev/nvidia-uvm` ([`uvm`]), status codes ([`Status`]) and the words a channel reads
//! from memory ([`method`], [`qmd`]). It makes no system call and keeps no state.
//!
//! Most layouts have been stable since release 570. Those that were not are in [`v570`],
//! [`v580`] and [`v610`], one module per interface version; [`AbiVersion`] names the version a
//! driver speaks, and [`neutral`] converts between a version's layout and one common form. Every
//! size and field offset is asserted at compile time.
//!
//! Facts come from the public headers of NVIDIA's open kernel modules (`nvos.h`, `nv-ioctl.h`,
//! `nv_uvm_ioctl.h`, `ctrl*.h`, `cl*.h`); field names say what a field means here.
#![forbid(unsafe_code)]
#![expect(
    missing_debug_implementations,
    reason = "zerocopy's derives make marker types without it; the layouts themselves have it"
)]

#[macro_use]
mod layout;

pub mod class;
pub mod ctrl;
pub mod escape;
pub mod method;
pub mod neutral;
mod node;
pub mod qmd;
mod status;
pub mod uvm;
pub mod v570;
pub mod v580;
pub mod v610;
mod version;

pub use node::Node;
pub use status::Status;
pub use version::AbiVersion;

/// A resource manager handle: names an object inside one client. Zero names nothing.
pub type Handle = u32;

/// Sixteen bytes that name a GPU to the unified memory driver.
pub type Uuid = [u8; 16];
