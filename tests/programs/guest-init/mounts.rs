//! The file systems of the guest.
use std::{ffi::CString, fs, io, os::unix::fs::PermissionsExt as _};

use rustix::{
    mount::{MountFlags, mount, mount_bind, mount_move},
    process::{chdir, chroot},
};

/// One line of the mount table.
struct Mount {
    kind: &'static str,
    target: &'static str,
    flags: MountFlags,
    options: &'static str,
}

const fn line(kind: &'static str, target: &'static str, options: &'static str) -> Mount {
    Mount { kind, target, flags: MountFlags::NOSUID, options }
}

/// In this order: a later one may lie inside an earlier one.
const MOUNTS: &[Mount] = &[
    line("proc", "/proc", ""),
    line("sysfs", "/sys", ""),
    line("devtmpfs", "/dev", "mode=0755"),
    line("devpts", "/dev/pts", "ptmxmode=0666"),
    line("tmpfs", "/dev/shm", "mode=1777"),
    line("tmpfs", "/run", "mode=0755"),
    line("tmpfs", "/tmp", "mode=1777"),
    // As systemd mounts it: usage is charged recursively, and tests see what real hosts have.
    line("cgroup2", "/sys/fs/cgroup", "nsdelegate,memory_recursiveprot"),
    line("tracefs", "/sys/kernel/tracing", ""),
    line("bpf", "/sys/fs/bpf", "mode=0700"),
    line("securityfs", "/sys/kernel/security", ""),
    line("debugfs", "/sys/kernel/debug", ""),
];

/// Mounts the table and answers what failed.
pub(crate) fn mount_all() -> Vec<String> {
    let mut failures = Vec::new();
    // An initramfs gives everybody its root to write to, and no host does.
    if let Err(error) = fs::set_permissions("/", fs::Permissions::from_mode(0o755)) {
        failures.push(format!("cannot change the mode of /: {error}"));
    }
    for Mount { kind, target, flags, options } in MOUNTS {
        // Those under /sys exist already, and sysfs allows no others.
        if let Err(error) = fs::create_dir_all(target) {
            failures.push(format!("cannot create {target}: {error}"));
            continue;
        }
        let options = CString::new(*options).unwrap_or_default();
        if let Err(error) = mount(*kind, *target, *kind, *flags, options.as_c_str()) {
            failures.push(format!("cannot mount {kind} on {target}: {error}"));
        }
    }
    failures
}

/// Makes a folder the root, with all that is mounted.
///
/// An initramfs can be neither left by `pivot_root(2)` nor unmounted: the folder is mounted over it.
pub(crate) fn enter(folder: &str) -> io::Result<()> {
    mount_bind(folder, folder)?;
    for target in ["/proc", "/sys", "/dev", "/run", "/tmp"] {
        mount_move(target, format!("{folder}{target}"))?;
    }
    chdir(folder)?;
    mount_move(".", "/")?;
    chroot(".")?;
    chdir("/")?;
    Ok(())
}
