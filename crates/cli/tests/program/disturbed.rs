//! Runs that are disturbed: files that change, and the end of the process.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{MIB, code, json, program, stderr, write_model};

/// A program at work, with a swap file in `swap`; killed with the test.
struct Running {
    child: Option<Child>,
    folder: TempDir,
}

impl Running {
    fn start(options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path(), "a.safetensors", 1);
        fs::create_dir(folder.path().join("swap")).unwrap();
        let trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,1,1\n\
                     2023-11-16 18:00:05,1,1\n";
        fs::write(folder.path().join("t.csv"), trace).unwrap();
        let line = "swap a.safetensors --device sim:vram=8M --swap 1M --swap-dir swap --json";
        let words = line.split(' ').chain(options.split(' '));
        let mut command = program();
        command.args(words).current_dir(folder.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = Some(command.spawn().unwrap());
        Self { child, folder }
    }

    fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    fn model(&self) -> std::path::PathBuf {
        self.folder.path().join("a.safetensors")
    }

    fn proc(&self, name: &str) -> io::Result<String> {
        fs::read_to_string(format!("/proc/{}/{name}", self.pid()))
    }

    /// Waits until all of the model has been uploaded: until more bytes than it has were read.
    fn until_resident(&self) {
        self.until("the model is resident", || {
            let io = self.proc("io").unwrap_or_default();
            let read = io.lines().find_map(|line| line.strip_prefix("rchar: "));
            read.is_some_and(|bytes| bytes.parse::<u64>().unwrap() > 3 * MIB + MIB / 2)
        });
    }

    fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{what}: not in a minute"
            );
            thread::yield_now();
        }
    }

    fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        kill.args([name, &self.pid().to_string()]);
        assert!(kill.status().unwrap().success());
    }

    fn output(mut self) -> std::process::Output {
        self.child.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

/// Changes some bytes in the middle of a model's largest tensor.
fn scribble(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(b"scribble", MIB).unwrap();
}

#[test]
fn a_killed_program_leaves_no_swap_file() {
    let running = Running::start("--requests 1000000000000");
    let swap = running.folder.path().join("swap").canonicalize().unwrap();
    let has_swap_file = || {
        let fds = fs::read_dir(format!("/proc/{}/fd", running.pid())).unwrap();
        let mut files = fds.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
        files.any(|file| file.starts_with(&swap))
    };
    running.until("the swap file is open", has_swap_file);
    running.until_resident();
    running.signal("-KILL");
    let mut running = running;
    let output = running.child.take().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(9));
    assert_eq!(fs::read_dir(swap).unwrap().count(), 0);
}

#[test]
fn a_file_that_is_written_meanwhile_is_reported_by_name() {
    let running = Running::start("--requests 1000000000000");
    running.until_resident();
    scribble(&running.model());
    let output = running.output();
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let error = json(&output)["error"].as_str().unwrap().to_owned();
    let expected = "a.safetensors: changed since it was opened: modification time";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn a_file_that_is_replaced_meanwhile_is_reported_by_name() {
    let running = Running::start("--requests 1000000000000");
    running.until_resident();
    let other = write_model(running.folder.path(), "other.safetensors", 9);
    fs::rename(other, running.model()).unwrap();
    let output = running.output();
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let expected = "a.safetensors: changed since it was opened: inode";
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
}

#[test]
fn bytes_that_differ_from_the_file_end_in_6() {
    // The second request comes 5 seconds after the first. Between them the file gets other bytes
    // and its old time back, while the device still holds the old bytes.
    let running = Running::start("--trace t.csv --speed 1");
    running.until_resident();
    running.signal("-STOP");
    running.until("it has stopped", || {
        let status = running.proc("status").unwrap();
        status.lines().any(|line| line.starts_with("State:\tT"))
    });
    let modified = fs::metadata(running.model()).unwrap().modified().unwrap();
    scribble(&running.model());
    let file = File::options().write(true).open(running.model()).unwrap();
    file.set_modified(modified).unwrap();
    running.signal("-CONT");

    let output = running.output();
    assert_eq!(code(&output), 6, "{}", stderr(&output));
    let report = json(&output);
    assert_eq!(report["verified"], false);
    assert!((1..=16).contains(&report["mismatches"].as_u64().unwrap()));
    let first = report["first_mismatch"].as_str().unwrap();
    assert!(first.contains("`a.safetensors/tensor.0`"), "{first}");
    assert_eq!(report["leaks"]["va_bytes"], 0);
}
