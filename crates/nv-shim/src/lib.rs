//! A preload library: programs that open `/dev/nvidiactl`, `/dev/nvidiaN` or `/dev/nvidia-uvm`
//! get the simulated driver of a server (`vrampager-nv-server`) instead, without being changed.
//!
//! ```text
//! vrampager sim-driver --sim gpus=2,vram=8G -- program
//! ```
//!
//! is the way to have both; `VRAMPAGER_SIM_DRIVER` names the server to the library.
//!
//! * Opening `/proc/driver/vrampager/counters` gives what is alive in the driver and what has
//!   happened, one `name value` per line.
//! * `/proc/driver/nvidia/version` gives its release.
//!
//! How it works: `open`, `ioctl` and `mmap` are exported under their C names, and passed on as
//! system calls unless they are about the driver; those are sent to the server. Open files are
//! sockets, of which the kernel keeps account: `close`, `dup`, `fork`, `exec`, and being killed
//! need nothing of this library. It keeps no state but idle connections.
//!
//! A path is one of ours when it names it from the root, the working folder or a descriptor of a
//! folder on; links and `..` are not followed.
//!
//! Known gaps: a program that makes system calls without the C library is not seen, nor is a file
//! that the C library opens for itself, as `fopen` does. `stat` of a node says what a character
//! device of NVIDIA's numbers says (the major number of unified memory, which Linux gives out, is
//! 511); `fstat` of an open file says that it is a socket.

mod calls;
mod driver;
mod paths;
mod raw;
