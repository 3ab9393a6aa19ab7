//! The contenders of the daemon: Debian's own packages, unpacked into the cache, never installed.
use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

use crate::{
    guest::initramfs::FileToAdd,
    places::Places,
    setup::{apt, debs, lock::Lock},
    steps::Work,
};

/// The files that a guest needs of them, at their paths in the packages, beyond systemd's.
const FILES: &[&str] = &[
    "etc/nohang/nohang.conf",
    "lib/systemd/system/systemd-oomd.service",
    "lib/systemd/system/systemd-oomd.socket",
    "lib/systemd/systemd-oomd",
    "usr/bin/earlyoom",
    "usr/bin/oomd",
    "usr/bin/python3.11",
    "usr/sbin/nohang",
    "usr/share/dbus-1/system.d/org.freedesktop.oom1.conf",
];

/// Libraries, by the names under which they are loaded.
const LIBRARIES: &[&str] =
    &["libffi.so.8", "libgcc_s.so.1", "libjsoncpp.so.25", "libstdc++.so.6", "libz.so.1"];

/// The interpreter's own modules.
const MODULES: &str = "usr/lib/python3.11";

/// Provides the files that a guest needs to run the contenders.
pub(crate) fn provide(places: &Places, lock: &Lock) -> anyhow::Result<(Vec<FileToAdd>, Work)> {
    let Some(first) = lock.contenders.first() else {
        bail!("the lock file names no contenders: cargo xtask setup --update-lock");
    };
    let name = format!("contenders/{}-{:016x}", first.stamp(), Lock::digest(&lock.contenders));
    let (folder, work) = places.fill(&name, |folder| {
        for package in &lock.contenders {
            apt::unpack(&debs::fetch(places, package)?, folder)?;
        }
        Ok(())
    })?;
    let mut files = Vec::new();
    for name in FILES {
        files.push(FileToAdd { host: resolve(&folder.join(name))?, guest: format!("/{name}") });
    }
    for name in LIBRARIES {
        // Packages are on their way from /lib to /usr/lib.
        let found = ["lib", "usr/lib"]
            .map(|lib| folder.join(lib).join("x86_64-linux-gnu").join(name))
            .into_iter()
            .find(|path| path.exists())
            .with_context(|| format!("the unpacked contenders have no {name}"))?;
        files.push(FileToAdd { host: resolve(&found)?, guest: format!("/lib/x86_64-linux-gnu/{name}") });
    }
    add_below(&folder.join(MODULES), &format!("/{MODULES}"), &mut files)?;
    Ok((files, work))
}

/// All files below a folder; links within it are left out, as no import uses them.
fn add_below(folder: &Path, guest: &str, files: &mut Vec<FileToAdd>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a module's name is not UTF-8")?;
        let (kind, guest) = (entry.file_type()?, format!("{guest}/{name}"));
        if kind.is_dir() {
            add_below(&entry.path(), &guest, files)?;
        } else if kind.is_file() {
            files.push(FileToAdd { host: entry.path(), guest });
        }
    }
    Ok(())
}

/// The file itself: a package may hold a link in its place.
fn resolve(path: &Path) -> anyhow::Result<PathBuf> {
    path.canonicalize().with_context(|| format!("the unpacked contenders have no {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folders_files_keep_their_places() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("re")).unwrap();
        fs::write(folder.path().join("re/a.py"), "").unwrap();
        std::os::unix::fs::symlink("re", folder.path().join("link")).unwrap();
        let mut files = Vec::new();
        add_below(folder.path(), "/usr/lib/python", &mut files).unwrap();
        let guests: Vec<_> = files.iter().map(|file| file.guest.as_str()).collect();
        assert_eq!(guests, ["/usr/lib/python/re/a.py"]);
    }
}
