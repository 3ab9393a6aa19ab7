//! A guest whose init is systemd: the files of Debian's packages in its root, and the units that run the script.
//!
//! The guest's own init still runs first: it mounts, loads modules and copies files as usual, and then executes
//! systemd, which finds its file systems mounted. systemd starts the units that are listed here and nothing else:
//! the system bus, and `rig.service`, in which the guest's own program runs the script and reports its status.
//! A scenario may start journald.
use std::{
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::Path,
};

use anyhow::Context as _;

use crate::guest::{cpio::Archive, folders::Folders};

/// Part of the archive's name in the cache: incremented when the content of this file changes.
pub(crate) const FORMAT: u32 = 4;

/// Parameters that the guest's own init reads; the second is for hosts' kernels that default to cgroup v1.
pub(crate) const KERNEL_ARGUMENTS: &str = "rig.init=systemd systemd.unified_cgroup_hierarchy=1";

/// The files, at their paths in the packages.
const FILES: &[&str] = &[
    "bin/journalctl",
    "bin/systemctl",
    "lib/systemd/systemd",
    "lib/systemd/systemd-cgroups-agent",
    "lib/systemd/systemd-journald",
    "lib/systemd/systemd-shutdown",
    "lib/systemd/system/basic.target",
    "lib/systemd/system/dbus.service",
    "lib/systemd/system/dbus.socket",
    "lib/systemd/system/local-fs.target",
    "lib/systemd/system/local-fs-pre.target",
    "lib/systemd/system/paths.target",
    "lib/systemd/system/shutdown.target",
    "lib/systemd/system/slices.target",
    "lib/systemd/system/sockets.target",
    "lib/systemd/system/swap.target",
    "lib/systemd/system/systemd-journald-dev-log.socket",
    "lib/systemd/system/systemd-journald.service",
    "lib/systemd/system/systemd-journald.socket",
    "lib/systemd/system/sysinit.target",
    "lib/systemd/system/timers.target",
    "lib/systemd/system/umount.target",
    "usr/bin/busctl",
    "usr/bin/dbus-daemon",
    "usr/bin/systemd-run",
    "usr/share/dbus-1/system.conf",
    "usr/share/dbus-1/system.d/org.freedesktop.systemd1.conf",
    "usr/share/dbus-1/system-services/org.freedesktop.systemd1.service",
];

/// The libraries of these programs, by the names under which they are loaded.
const LIBRARIES: &[&str] = &[
    "ld-linux-x86-64.so.2",
    "libacl.so.1",
    "libapparmor.so.1",
    "libaudit.so.1",
    "libblkid.so.1",
    "libc.so.6",
    "libcap-ng.so.0",
    "libcap.so.2",
    "libcrypt.so.1",
    "libcrypto.so.3",
    "libdbus-1.so.3",
    "libexpat.so.1",
    "libgcrypt.so.20",
    "libgpg-error.so.0",
    "libip4tc.so.2",
    "libkmod.so.2",
    "liblz4.so.1",
    "liblzma.so.5",
    "libm.so.6",
    "libmount.so.1",
    "libpam.so.0",
    "libpcre2-8.so.0",
    "libseccomp.so.2",
    "libselinux.so.1",
    "libsystemd.so.0",
    "libzstd.so.1",
];

/// The folder of systemd's own libraries, whose names have its version.
const OWN_LIBRARIES: &str = "usr/lib/x86_64-linux-gnu/systemd";

/// Our own files.
const TEXTS: &[(&str, &str)] = &[
    // On a first boot systemd would enable all units.
    ("etc/machine-id", "6f1c1de2a5b94d0f8a5f0e6f7a3b9c11\n"),
    ("etc/os-release", "NAME=\"test guest\"\nID=guest\n"),
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nmessagebus:x:100:100::/nonexistent:/bin/false\n\
         systemd-oom:x:101:101::/nonexistent:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    ),
    ("etc/group", "root:x:0:\nmessagebus:x:100:\nsystemd-oom:x:101:\nnogroup:x:65534:\n"),
    ("etc/systemd/system/default.target", "[Unit]\nRequires=rig.service\nAfter=rig.service\n"),
    (
        "etc/systemd/system/rig.service",
        // The script decides when it is over, and what it may use; if it is killed, the guest ends. It may stop the
        // bus.
        "[Unit]\nWants=dbus.socket\nAfter=dbus.socket\nFailureAction=poweroff-force\nSuccessAction=poweroff-force\n\
         [Service]\nType=exec\nExecStart=/usr/local/bin/guest-init\nTasksMax=infinity\nLimitNOFILE=524288\n",
    ),
];

/// Writes the archive that follows the base's.
pub(crate) fn write(to: &Path, unpacked: &Path) -> anyhow::Result<()> {
    let file = File::create(to).with_context(|| format!("cannot create {}", to.display()))?;
    let mut archive = Archive::new(BufWriter::new(file));
    let mut folders = Folders::default();
    archive.link("var/run", "../run")?;
    folders.make(&mut archive, "lib64/")?;
    archive.link("lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")?;
    for name in FILES {
        folders.file(&mut archive, name, &unpacked.join(name))?;
    }
    for name in LIBRARIES {
        // Packages are on their way from /lib to /usr/lib.
        let found = ["lib", "usr/lib"]
            .map(|lib| unpacked.join(lib).join("x86_64-linux-gnu").join(name))
            .into_iter()
            .find(|path| path.exists())
            .with_context(|| format!("the unpacked packages have no {name}"))?;
        folders.file(&mut archive, &format!("lib/x86_64-linux-gnu/{name}"), &found)?;
    }
    let own = unpacked.join(OWN_LIBRARIES);
    for entry in fs::read_dir(&own).with_context(|| format!("cannot read {}", own.display()))? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a library's name is not UTF-8")?;
        folders.file(&mut archive, &format!("{OWN_LIBRARIES}/{name}"), &entry.path())?;
    }
    for (name, text) in TEXTS {
        folders.make(&mut archive, name)?;
        archive.file(name, 0o644, text.as_bytes())?;
    }
    archive.finish()?.flush().with_context(|| format!("cannot write {}", to.display()))
}
