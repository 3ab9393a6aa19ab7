//! systemd restarts a daemon that can evict no more.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
};

use enforcer_tests::{daemon::Daemon, wait::wait_until};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::{reload, shown, systemctl, text};

const UNIT: &str = "watched.service";

/// The thread of that name of a process.
fn thread_of(pid: &str, name: &str) -> libc::pid_t {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut folders = tasks.map(|task| task.unwrap().path());
    let is_named = |folder: &std::path::PathBuf| {
        fs::read_to_string(folder.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    let folder = folders.find(is_named).unwrap();
    folder.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Stops one thread of another process, and no other.
#[expect(unsafe_code, reason = "no safe crate offers ptrace")]
fn stop_thread(thread: libc::pid_t) {
    let none = std::ptr::null_mut::<libc::c_void>();
    for request in [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT] {
        // SAFETY: neither request reads or writes memory of ours.
        let result = unsafe { libc::ptrace(request, thread, none, none) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
}

fn livez(folder: &Path) -> String {
    let mut answer = String::new();
    if let Ok(mut socket) = UnixStream::connect(folder.join("run/observe.sock")) {
        let asked = socket.write_all(b"GET /livez HTTP/1.0\r\n\r\n");
        let read = socket.read_to_string(&mut answer);
        assert!(asked.is_ok() || read.is_err());
    }
    answer
}

#[guest_test(systemd)]
fn a_daemon_whose_eviction_thread_is_stuck_is_started_again() {
    let folder = Path::new("/tmp/watchdog");
    // What it leaves is its configuration.
    Daemon::start(folder, "mode: enforce").unwrap().stop().unwrap();
    let unit = format!(
        "[Service]\nType=notify\nExecStart=/usr/local/bin/enforcer --config {}/config.yaml run\n\
         WatchdogSec=10\nTimeoutAbortSec=2\nRestart=always\nRestartSec=0\n",
        folder.display()
    );
    fs::write(Path::new("/run/systemd/system").join(UNIT), unit).unwrap();
    reload();
    let started = systemctl(&["start", UNIT]).unwrap();
    assert!(started.status.success(), "{}", text(&started.stderr));
    let first_sign = shown(UNIT, "WatchdogTimestampMonotonic");
    wait_until("another sign of life", || shown(UNIT, "WatchdogTimestampMonotonic") != first_sign);
    assert!(livez(folder).starts_with("HTTP/1.0 200"));

    let pid = shown(UNIT, "MainPID");
    assert_eq!(shown(UNIT, "NRestarts"), "0");
    let thread = thread_of(&pid, "enforcer-reflex");
    stop_thread(thread);
    wait_until("what says so", || livez(folder).ends_with("the eviction thread is stuck\n"));
    wait_until("its successor", || {
        // The kernel reports a thread's end to its tracer first, and the process has not ended before.
        let _state = waitpid(Pid::from_raw(thread), WaitOptions::NOHANG);
        shown(UNIT, "NRestarts") == "1" && shown(UNIT, "ActiveState") == "active"
    });
    assert_ne!(shown(UNIT, "MainPID"), pid);
    assert!(systemctl(&["stop", UNIT]).unwrap().status.success());
}
