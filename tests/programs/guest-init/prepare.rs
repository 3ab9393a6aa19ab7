//! Modules, devices and network of the guest.
use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use rustix::{io::Errno, system::finit_module};

/// One module a line, in the order in which they must be loaded; the host writes it.
const MODULES: &str = "/lib/modules/load";

/// Loads the kernel modules that the host put into the archive and answers what failed.
pub(crate) fn load_modules() -> Vec<String> {
    let list = match fs::read_to_string(MODULES) {
        Ok(list) => list,
        Err(error) => return vec![format!("cannot read {MODULES}: {error}")],
    };
    list.lines()
        .filter_map(|module| {
            let path = Path::new("/lib/modules").join(module);
            let loaded =
                fs::File::open(&path).map_err(|error| error.to_string()).and_then(|file| match finit_module(
                    &file, c"", 0,
                ) {
                    Ok(()) | Err(Errno::EXIST) => Ok(()),
                    Err(error) => Err(error.to_string()),
                });
            loaded.err().map(|error| format!("cannot load {}: {error}", path.display()))
        })
        .collect()
}

/// Everything that programs expect beside the file systems; answers what failed.
pub(crate) fn system() -> Vec<String> {
    let mut failures = Vec::new();
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        if let Err(error) = symlink(target, Path::new("/dev").join(name)) {
            failures.push(format!("cannot link /dev/{name}: {error}"));
        }
    }
    if let Err(error) = rustix::system::sethostname(b"guest") {
        failures.push(format!("cannot set the host name: {error}"));
    }
    match Command::new("/bin/busybox").args(["ip", "link", "set", "lo", "up"]).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let error = String::from_utf8_lossy(&output.stderr);
            failures.push(format!("cannot bring up lo: {}", error.trim().replace('\n', "; ")));
        }
        Err(error) => failures.push(format!("cannot bring up lo: {error}")),
    }
    failures
}

/// Copies the files that the host meant for folders which are mounted over; answers what failed.
pub(crate) fn late_files() -> Vec<String> {
    const LATE: &str = "/etc/rig/late";
    if !Path::new(LATE).exists() {
        return Vec::new();
    }
    match Command::new("/bin/busybox").args(["cp", "-a", &format!("{LATE}/."), "/"]).output() {
        Ok(output) if output.status.success() => Vec::new(),
        Ok(output) => vec![format!("cannot copy files: {}", String::from_utf8_lossy(&output.stderr).trim())],
        Err(error) => vec![format!("cannot copy files: {error}")],
    }
}
