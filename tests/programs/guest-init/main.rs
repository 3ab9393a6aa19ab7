//! PID 1 of the test guests: prepares the system, runs one script, and reports its exit status to the host.
//!
//! The host (`cargo xtask vm`) listens on named virtio-serial ports: the script's stdout and stderr each have
//! one, and this program reports on the third, one line a message:
//!
//! | line | meaning |
//! |---|---|
//! | `ready RELEASE` | the guest is prepared; the kernel is RELEASE |
//! | `warn TEXT` | a step of the preparation failed |
//! | `exit STATUS OUT ERR` | the script ended; its two streams carried OUT and ERR bytes |
//!
//! The host ends the guest as soon as it has read that many bytes.
//!
//! With `rig.init=systemd` on the kernel's command line it becomes systemd once the system is prepared, and systemd
//! starts it again, as a service, for the rest. With `rig.init=debian` the same is done in the root of a Debian system,
//! which is a folder of the initramfs.
mod mounts;
mod ports;
mod prepare;
mod script;

use std::{
    fs,
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
};

use anyhow::Context as _;

use crate::ports::Report;

/// What failed before systemd took over, one line each.
const FAILURES: &str = "/run/rig-failures";

/// The root of a Debian system.
const DEBIAN: &str = "/debian";

fn main() -> ExitCode {
    match run() {
        Ok(()) => {}
        // The console is the only place left to report it.
        Err(error) => drop(writeln!(io::stderr(), "guest-init: {error:#}")),
    }
    // PID 1 must not return, or the kernel panics; the host sees the end by the power off.
    match rustix::system::reboot(rustix::system::RebootCommand::PowerOff) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "guest-init: cannot power off: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let failures = if rustix::process::getpid().is_init() {
        let failures = prepare();
        // Nothing is mounted before that.
        let command_line = fs::read_to_string("/proc/cmdline")?;
        match command_line.split_ascii_whitespace().find_map(|word| word.strip_prefix("rig.init=")) {
            Some("systemd") => return become_systemd(&failures),
            Some("debian") => {
                mounts::enter(DEBIAN).with_context(|| format!("cannot make {DEBIAN} the root"))?;
                return become_systemd(&failures);
            }
            _ => failures,
        }
    } else {
        let failures = fs::read_to_string(FAILURES).with_context(|| format!("cannot read {FAILURES}"))?;
        failures.lines().map(str::to_owned).collect()
    };

    let mut report = Report::open()?;
    for failure in failures {
        report.line(&format!("warn {failure}"))?;
    }
    let command_line = fs::read_to_string("/proc/cmdline")?;
    let shell = command_line.split_ascii_whitespace().find_map(|word| word.strip_prefix("rig.shell="));
    report.line(&format!("ready {}", rustix::system::uname().release().to_string_lossy()))?;
    let end = match shell {
        Some(size) => script::shell(size)?,
        None => script::run()?,
    };
    report.line(&format!("exit {} {} {}", end.status, end.out_bytes, end.err_bytes))?;
    // A shell's host watches the machine, not the report.
    if shell.is_none() {
        report.wait_for_host();
    }
    Ok(())
}

/// Makes the system what programs expect; answers what failed.
fn prepare() -> Vec<String> {
    let mut failures = mounts::mount_all();
    failures.extend(prepare::load_modules());
    failures.extend(prepare::system());
    failures.extend(prepare::late_files());
    failures
}

/// Replaces this program by systemd, which finds everything mounted; returns only if that fails.
fn become_systemd(failures: &[String]) -> anyhow::Result<()> {
    const SYSTEMD: &str = "/lib/systemd/systemd";
    fs::write(FAILURES, failures.join("\n")).with_context(|| format!("cannot write {FAILURES}"))?;
    let error = Command::new(SYSTEMD).exec();
    Err(error).with_context(|| format!("cannot run {SYSTEMD}"))
}
