//! A preload library: programs that open `/dev/nvidiactl`, `/dev/nvidiaN` or `/dev/nvidia-uvm`
//! get the simulated driver of `vrampager-nv-driver` instead, without being changed.
//!
//! ```text
//! LD_PRELOAD=libvrampager_nv_shim.so VRAMPAGER_SIM=gpus=2,vram=8G program
//! ```
//!
//! * `VRAMPAGER_SIM` describes the machine, as `Config::parse` reads it.
//! * Opening `/proc/driver/vrampager/counters` gives what is alive and what has happened, one
//!   `name value` per line.
//! * If `VRAMPAGER_SIM_REPORT` names a file, the same is written there when the process exits.
//!
//! How it works: the calls that reach device nodes are exported under their C names and passed on
//! as system calls unless they are about one of our files. A file is a memory file, so that its
//! descriptor is a real one; `RM_MAP_MEMORY` puts the memory itself behind the descriptor it is
//! given, so that even a program whose `mmap` cannot be seen maps the right bytes. A thread runs
//! the channels.
//!
//! Known gaps: descriptors passed to other processes do not work there, and a forked child has no
//! driver. Pinned pages of private mappings are read through the process and so are gone when the
//! program unmaps them; shared ones stay, as real pins do. A mapping with an offset is right only
//! for programs whose `mmap` goes through this library.

mod calls;
mod engine;
mod memory;
mod paths;
mod raw;
mod state;
