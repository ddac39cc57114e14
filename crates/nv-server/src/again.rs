//! A test in a process of its own, which it changes or ends.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Tells such a process what it is there for.
const ROLE: &str = "VRAMPAGER_TEST_ROLE";

/// What this process is there for, if it is one that a test has started.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The test that calls it, once more.
pub(crate) fn again(role: &str) -> Command {
    let thread = std::thread::current();
    let test = thread.name().unwrap();
    assert!(test.contains("::tests::"), "{test} is no test");
    // Signals may be ignored where tests run.
    let mut command = Command::new("env");
    command
        .arg("--default-signal=INT,QUIT,TERM")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, role)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// How it ends, within 20 s.
pub(crate) fn end_of(child: &mut Child) -> ExitStatus {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("it goes on");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
