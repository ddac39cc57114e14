//! Unmodified programs on the simulated driver.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use vrampager_nv_abi::{Node, class};
use vrampager_nv_driver::{Config, Errno, Live};
use vrampager_nv_probe::client::Client;
use vrampager_nv_probe::{Answer, Nodes as _, RealNodes};
use vrampager_nv_server::Server;
use vrampager_nv_server::wire::NAME_VARIABLE;

/// The library, which cargo puts beside this test.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its file");
    own.with_file_name("libvrampager_nv_shim.so")
}

fn example() -> PathBuf {
    let deps = library();
    let target = deps.ancestors().nth(2).expect("the library is in a folder");
    target.join("examples").join("first_bytes")
}

fn server(machine: &str) -> Server {
    let machine = Config::parse(machine).expect("a machine that exists");
    Server::start(machine, None).expect("a thread and some descriptors")
}

/// A program with the library in front of it.
fn preloaded(server: &Server, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", library())
        .env(NAME_VARIABLE, server.name());
    command
}

fn run(server: &Server, program: impl AsRef<OsStr>, arguments: &[&str]) -> Output {
    let output = preloaded(server, program).args(arguments).output();
    output.expect("the program starts")
}

/// Runs a shell script; `counters` in it prints how many files are open.
fn shell(server: &Server, script: &str) -> String {
    let counters = "counters() { grep -o '^files.*' /proc/driver/vrampager/counters; }";
    let output = run(server, "sh", &["-c", &format!("{counters}\n{script}")]);
    assert_eq!(text(&output.stderr), "", "{script}");
    text(&output.stdout)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits until nothing is left in the driver. That is at once, but for children that live on for a
/// moment: those of the program, and those that other tests are starting in this process.
fn until_closed(server: &Server) {
    let end = Instant::now() + Duration::from_secs(10);
    while server.live() != Live::default() {
        assert!(Instant::now() < end, "{}", server.live());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_plain_client_and_its_child_see_the_same_bytes_through_two_mappings() {
    let server = server("gpus=3");
    let output = run(&server, example(), &[]);
    let expected = "3 GPUs\nwritten 0xc0ffee00, seen 0xc0ffee00\n";
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    assert!(output.status.success());
    until_closed(&server);
    assert!(server.counted().ioctls > 5);
}

#[test]
fn an_injected_failure_reaches_the_program() {
    let output = run(&server("fail=alloc:0x40:1:0x51"), example(), &[]);
    assert!(!output.status.success());
    assert!(
        text(&output.stderr).contains("NO_MEMORY (0x51)"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_program_without_its_driver_is_told_that_there_is_no_device() {
    let gone = server("");
    let mut command = preloaded(&gone, example());
    drop(gone);
    let output = command.output().unwrap();
    let errors = text(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("does not answer"), "{errors}");
    assert!(errors.contains("No such device"), "{errors}");
}

#[test]
fn a_file_is_open_as_long_as_anybody_has_a_descriptor_of_it() {
    let server = server("");
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    let pipe = pipe.to_str().expect("a name of ours");
    shell(&server, &format!("mkfifo {pipe}"));
    for (what, script, files) in [
        ("nothing is open at first", "counters", "files 0\n"),
        ("one is", "{open}; counters", "files 1\n"),
        ("closed", "{open}; exec 3<&-; counters", "files 0\n"),
        (
            "duplicated",
            "{open}; exec 4<&3 3<&-; counters",
            "files 1\n",
        ),
        (
            "both closed",
            "{open}; exec 4<&3 3<&- 4<&-; counters",
            "files 0\n",
        ),
        (
            "replaced",
            "{open}; exec 3</dev/null; counters",
            "files 0\n",
        ),
        (
            "kept over exec",
            "{open}; exec grep -o '^files.*' /proc/driver/vrampager/counters",
            "files 1\n",
        ),
        (
            "inherited by a child that goes on",
            "{open}; (read line <{pipe}) & exec 3<&-; counters; echo >{pipe}",
            "files 1\n",
        ),
    ] {
        let script = script.replace("{open}", "exec 3</dev/nvidiactl");
        let script = script.replace("{pipe}", pipe);
        assert_eq!(shell(&server, &script), files, "{what}");
        until_closed(&server);
    }
}

#[test]
fn a_killed_program_has_closed_its_files() {
    let server = server("");
    let output = run(&server, "sh", &["-c", "exec 3</dev/nvidiactl; kill -9 $$"]);
    assert_eq!(output.status.signal(), Some(9));
    until_closed(&server);
}

/// A program: maps device memory, frees it, and looks through the file after that.
fn look_at_freed_memory() {
    const SIZE: u64 = 1 << 20;
    let mut client = Client::new(RealNodes::default()).expect("the driver answers");
    let card = client.cards().expect("the driver answers")[0];
    let gpu = client.gpu(card).expect("the driver answers");
    let mut params = client.memory_params(SIZE);
    let memory = client
        .alloc(gpu.device, class::NV01_MEMORY_LOCAL_USER, &mut params)
        .expect("the driver answers");
    let fd = client.linked(gpu.minor).expect("the driver answers");
    client
        .map_cpu(client.map_packet(gpu, memory, SIZE, fd))
        .expect("the driver answers");
    client.free(memory).expect("the driver answers");
    let shown = client.nodes().mmap(fd, SIZE, 0);
    assert_eq!(shown, Err(Answer::from(Errno::Inval)));
    client
        .open(Node::Control)
        .expect("the driver still answers");
}

#[test]
fn memory_that_is_freed_before_it_is_mapped_is_an_error_for_its_program_alone() {
    const NAME: &str = "memory_that_is_freed_before_it_is_mapped_is_an_error_for_its_program_alone";
    if std::env::var_os(NAME_VARIABLE).is_some() {
        return look_at_freed_memory();
    }
    let server = server("");
    let own = std::env::current_exe().expect("a test knows its file");
    let output = run(&server, own, &["--exact", NAME]);
    assert!(output.status.success(), "{}", text(&output.stdout));
    assert!(server.works());
    assert!(server.counted().ioctls > 5);
    until_closed(&server);
}

#[test]
fn a_program_killed_in_any_of_its_requests_leaves_nothing() {
    let whole = server("");
    assert!(run(&whole, example(), &[]).status.success());
    let requests = whole.counted().ioctls;
    assert!(requests > 5);
    for nth in 1..=requests {
        let server = Server::start(Config::default(), Some(nth)).unwrap();
        let output = run(&server, example(), &[]);
        assert!(!output.status.success(), "request {nth}");
        until_closed(&server);
        assert_eq!(server.counted().ioctls, nth);
    }
}

#[test]
fn programs_without_gpus_are_left_alone() {
    let server = server("gpus=1");
    let output = run(&server, "cat", &["/proc/self/comm"]);
    assert_eq!(text(&output.stdout), "cat\n");
    let output = run(&server, "cat", &["/proc/driver/nvidia/version"]);
    let version = text(&output.stdout);
    assert!(version.contains("570.144"), "{version}");
}

#[test]
fn nodes_that_the_machine_has_can_be_seen_and_others_are_not_there() {
    let server = server("gpus=2");
    for node in ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"] {
        let exists = run(&server, "test", &["-c", &format!("/dev/{node}")]);
        assert!(exists.status.success(), "{node}");
    }
    for node in ["nvidia2", "nvidia7", "nvidia31", "nvidia999"] {
        let path = format!("/dev/{node}");
        for program in ["cat", "stat"] {
            let output = run(&server, program, &[&path]);
            let errors = text(&output.stderr);
            let missing = errors.contains("No such file or directory");
            assert!(missing, "{program} {node}: {errors}");
        }
        let exists = run(&server, "sh", &["-c", &format!("test -e {path}")]);
        assert_eq!(exists.status.code(), Some(1), "{node}");
    }
}

#[test]
fn nodes_are_found_by_relative_paths_and_through_slashes_and_dots_and_by_nothing_else() {
    let server = server("gpus=1");
    for (folder, path, found) in [
        ("/", "//dev//nvidia0", true),
        ("/", "/./dev/./nvidia0", true),
        ("/", "dev/nvidiactl", true),
        ("/dev", "nvidia0", true),
        ("/dev", "./nvidia-uvm", true),
        ("/proc", "driver/vrampager/counters", true),
        ("/proc", "nvidia0", false),
        ("/dev", "nvidia0/", false),
        ("/dev", "nvidia1", false),
        ("/dev", "counters", false),
        ("/dev", "shm/../nvidia0", false),
    ] {
        for program in ["stat", "cat"] {
            let script = format!("cd {folder} && {program} {path}");
            let output = run(&server, "sh", &["-c", &script]);
            assert_eq!(
                output.status.success(),
                found,
                "{script}: {}",
                text(&output.stderr)
            );
        }
    }
}

#[test]
fn nodes_have_the_numbers_of_nvidias_devices() {
    const NAME: &str = "nodes_have_the_numbers_of_nvidias_devices";
    if std::env::var_os(NAME_VARIABLE).is_none() {
        let own = std::env::current_exe().expect("a test knows its file");
        let output = run(&server("gpus=2"), own, &["--exact", NAME]);
        assert!(output.status.success(), "{}", text(&output.stdout));
        // This one asks by statx.
        let output = run(&server("gpus=2"), "stat", &["-c", "%t:%T", "/dev/nvidia1"]);
        assert_eq!(text(&output.stdout), "c3:1\n");
        return;
    }
    use std::os::unix::fs::MetadataExt as _;
    for (path, major, minor) in [
        ("/dev/nvidiactl", 195, 255),
        ("/dev/nvidia0", 195, 0),
        ("/dev/nvidia1", 195, 1),
        ("/dev/nvidia-uvm", 511, 0),
        ("/dev/null", 1, 3),
    ] {
        let device = std::fs::metadata(path).expect("it is there").rdev();
        assert_eq!(device, libc::makedev(major, minor), "{path}");
    }
}

#[test]
fn a_program_with_all_its_descriptors_in_use_is_told_so_and_has_opened_nothing() {
    let server = server("");
    let script = "ulimit -n 3; exec 3</dev/nvidiactl";
    let output = run(&server, "sh", &["-c", script]);
    let errors = text(&output.stderr);
    assert!(errors.contains("Too many open files"), "{errors}");
    until_closed(&server);
}

#[test]
fn the_library_has_every_name_that_a_node_is_opened_by() {
    let library = std::fs::read(library()).expect("the library is built");
    let has = |name: &str| {
        let entry = format!("\0{name}\0");
        library
            .windows(entry.len())
            .any(|found| found == entry.as_bytes())
    };
    for name in [
        "open",
        "open64",
        "openat",
        "openat64",
        "__open_2",
        "__open64_2",
        "__openat_2",
        "__openat64_2",
    ] {
        assert!(has(name), "{name}");
    }
    assert!(!has("openat2_of_nobody"));
}

#[test]
fn a_node_that_is_read_has_nothing_to_read() {
    let output = run(&server(""), "cat", &["/dev/nvidiactl"]);
    assert_eq!(text(&output.stdout), "");
    assert!(output.status.success());
}

/// What the kernel says of a descriptor of this process: the flags of `open`.
fn flags_of(fd: i32) -> u32 {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).expect("it is open");
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    u32::from_str_radix(flags.expect("every file has them").trim(), 8).expect("octal")
}

#[test]
fn ioctls_that_the_kernel_answers_for_every_file_are_answered_for_these() {
    const NAME: &str = "ioctls_that_the_kernel_answers_for_every_file_are_answered_for_these";
    if std::env::var_os(NAME_VARIABLE).is_none() {
        let own = std::env::current_exe().expect("a test knows its file");
        let server = server("");
        let output = run(&server, own, &["--exact", NAME]);
        assert!(output.status.success(), "{}", text(&output.stdout));
        assert_eq!(server.counted().ioctls, 0, "none is the driver's");
        return;
    }
    // FIOCLEX, FIONCLEX, FIONBIO and FIOASYNC, with the flags that they change.
    let mut nodes = RealNodes::default();
    let fd = nodes.open(Node::Control).expect("the driver answers");
    for (request, argument, mask, expected) in [
        (0x5450, 0, 0o2_000_000, 0),
        (0x5451, 0, 0o2_000_000, 0o2_000_000),
        (0x5450, 0, 0o2_000_000, 0),
        (0x5421, 1, 0o4_000, 0o4_000),
        (0x5421, 0, 0o4_000, 0),
        (0x5452, 1, 0o20_000, 0o20_000),
        (0x5452, 0, 0o20_000, 0),
    ] {
        let packet = &mut i32::to_ne_bytes(argument);
        assert_eq!(nodes.ioctl(fd, request, packet), Ok(()), "{request:#x}");
        assert_eq!(flags_of(fd) & mask, expected, "{request:#x} {argument}");
    }
}
