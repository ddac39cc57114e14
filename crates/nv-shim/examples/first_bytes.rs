//! The shortest way to bytes in device memory: what any client of the kernel driver does first.
//! A child process sees them too, through files that it inherits.
//!
//! ```text
//! cargo build -p vrampager-nv-shim -p vrampager-cli --lib --bins --examples
//! target/debug/vrampager sim-driver -- target/debug/examples/first_bytes
//! ```
#![expect(
    unsafe_code,
    reason = "a client of a C interface: ioctl and mmap take raw pointers"
)]
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

use vrampager_nv_abi::escape::{self, CardInfo, RegisterFd, RmAlloc, RmFree, RmMapMemory};
use vrampager_nv_abi::{Handle, Status, class};
use zerocopy::{FromZeros, Immutable, IntoBytes};

const SIZE: usize = 1 << 20;

fn main() -> io::Result<()> {
    // A duplicate is the same file: it stays open when the first descriptor is closed.
    let control = node("/dev/nvidiactl")?.try_clone()?;
    let mut cards = [CardInfo::new_zeroed(); 32];
    call(&control, escape::CARD_INFO, &mut cards)?;
    let present = cards.iter().filter(|card| card.valid != 0).count();
    println!("{present} GPUs");

    let client = allocate(&control, 0, 0, class::NV01_ROOT_CLIENT, 0)?;
    let params = class::DeviceAlloc::new_zeroed();
    let device = allocate(
        &control,
        client,
        client,
        class::NV01_DEVICE_0,
        address(&params),
    )?;
    let mut params = class::MemoryAlloc::new_zeroed();
    params.owner = client;
    params.size = SIZE as u64;
    let kind = class::NV01_MEMORY_LOCAL_USER;
    let memory = allocate(&control, client, device, kind, address(&params))?;

    let first = map(&control, client, device, memory)?.wrapping_add(SIZE - 4);
    // SAFETY: the mapping is SIZE bytes long and stays for the life of the process.
    unsafe { first.cast::<u32>().write_volatile(0xC0FF_EE00) };
    in_child(|| {
        let second = map(&control, client, device, memory)?.wrapping_add(SIZE - 4);
        // SAFETY: as above.
        let seen = unsafe { second.cast::<u32>().read_volatile() };
        println!("written 0xc0ffee00, seen {seen:#x}");
        Ok(())
    })?;

    let mut free = RmFree::new_zeroed();
    free.root = client;
    free.object = client;
    call(&control, escape::RM_FREE, &mut free)?;
    check(free.status)
}

/// Runs an action in a child process, and waits for its end.
fn in_child(action: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: the process has one thread, so the child may do whatever it could.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => std::process::exit(i32::from(action().is_err())),
        child => {
            let mut status = 0;
            // SAFETY: the status is written to a local variable.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
            match (ended == child, status) {
                (true, 0) => Ok(()),
                _ => Err(io::Error::other("the child failed")),
            }
        }
    }
}

fn node(path: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn address<T>(params: &T) -> u64 {
    std::ptr::from_ref(params).expose_provenance() as u64
}

/// The first of the two error levels: the system call's own.
fn call<T: IntoBytes + Immutable>(file: &File, nr: u8, packet: &mut T) -> io::Result<()> {
    let request = escape::request(nr, size_of::<T>());
    // SAFETY: the packet is as long as the request says and lives through the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request.into(), packet) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The second: the status in the packet.
fn check(status: u32) -> io::Result<()> {
    match Status(status) {
        Status::OK => Ok(()),
        status => Err(io::Error::other(status.to_string())),
    }
}

fn allocate(
    control: &File,
    root: Handle,
    parent: Handle,
    class: u32,
    params: u64,
) -> io::Result<Handle> {
    let mut packet = RmAlloc::new_zeroed();
    packet.root = root;
    packet.parent = parent;
    packet.class = class;
    packet.params = params;
    call(control, escape::RM_ALLOC, &mut packet)?;
    check(packet.status).map(|()| packet.object)
}

/// Maps memory through a fresh file, as each mapping needs one.
fn map(control: &File, client: Handle, device: Handle, memory: Handle) -> io::Result<*mut u8> {
    let file = node("/dev/nvidia0")?;
    call(
        &file,
        escape::REGISTER_FD,
        &mut RegisterFd {
            ctl_fd: control.as_raw_fd(),
        },
    )?;
    let mut packet = RmMapMemory::new_zeroed();
    packet.client = client;
    packet.device = device;
    packet.memory = memory;
    packet.length = SIZE as u64;
    packet.fd = file.as_raw_fd();
    call(control, escape::RM_MAP_MEMORY, &mut packet)?;
    check(packet.status)?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (anywhere, fd) = (std::ptr::null_mut(), file.as_raw_fd());
    // SAFETY: a new mapping where the kernel chooses replaces nothing.
    let base = unsafe { libc::mmap(anywhere, SIZE, access, libc::MAP_SHARED, fd, 0) };
    if base == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(base.cast())
    }
}
