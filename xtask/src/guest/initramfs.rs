//! The guest's root: a base archive per kernel, cached, and one per run after it.
use std::{
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use crate::{
    guest::{cpio::Archive, modules::Module},
    run,
};

/// Part of the base's name in the cache: counted up when [`write_base`] or the modules for it change.
pub(crate) const FORMAT: u32 = 2;

/// Folders that exist before anything is mounted.
const FOLDERS: &[&str] = &[
    "bin",
    "dev",
    "etc",
    "etc/rig",
    "lib",
    "lib/modules",
    "proc",
    "root",
    "run",
    "sys",
    "tmp",
    "usr",
    "usr/local",
    "usr/local/bin",
    "var",
    "var/lib",
    "var/log",
    "mnt",
];

/// Writes folders, busybox with all its applets, users and modules.
pub(crate) fn write_base(to: &Path, busybox: &Path, modules: &[Module]) -> anyhow::Result<()> {
    let file = File::create(to).with_context(|| format!("cannot create {}", to.display()))?;
    let mut archive = Archive::new(BufWriter::new(file));
    for folder in FOLDERS {
        archive.directory(folder)?;
    }
    archive.link("sbin", "bin")?;
    archive.link("usr/bin", "../bin")?;
    archive.link("usr/sbin", "../bin")?;
    archive.link("etc/mtab", "../proc/self/mounts")?;
    archive.device("dev/console", 5, 1)?;
    archive.device("dev/null", 1, 3)?;
    archive.file(
        "etc/passwd",
        0o644,
        b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    )?;
    archive.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n")?;
    archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost guest\n")?;
    archive.file("bin/busybox", 0o755, &read(busybox)?)?;
    for applet in
        run::text(Command::new(busybox).arg("--list"))?.lines().filter(|applet| *applet != "busybox")
    {
        archive.link(&format!("bin/{applet}"), "busybox")?;
    }
    let mut load = String::new();
    for Module { name, image } in modules {
        archive.file(&format!("lib/modules/{name}.ko"), 0o644, image)?;
        load.push_str(name);
        load.push_str(".ko\n");
    }
    archive.file("lib/modules/load", 0o644, load.as_bytes())?;
    archive.finish()?.flush().with_context(|| format!("cannot write {}", to.display()))
}

/// A file of the host and its place in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileToAdd {
    pub(crate) host: PathBuf,
    /// Absolute.
    pub(crate) guest: String,
}

impl std::str::FromStr for FileToAdd {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (host, guest) = text.rsplit_once(':').context("give it as HOST:GUEST")?;
        if host.is_empty() {
            bail!("the host's file has no name");
        }
        let Some(relative) = guest.strip_prefix('/') else {
            bail!("{guest}: the guest's path must be absolute")
        };
        let parts: Vec<&str> = relative.split('/').collect();
        if parts.iter().any(|part| part.is_empty() || *part == "." || *part == "..") {
            bail!("{guest}: the guest's path must name a file, without empty parts, . and ..");
        }
        if let Some(first) = parts.first().filter(|first| ["dev", "proc", "sys"].contains(*first)) {
            bail!("{guest}: /{first} is the kernel's own; choose another folder");
        }
        Ok(Self { host: host.into(), guest: guest.to_owned() })
    }
}

/// Writes the whole initramfs of one run: the bases, then init, programs, files and the script, in the folder `root`, which
/// is empty or ends with a slash.
pub(crate) fn write_run(
    to: &Path,
    bases: &[&Path],
    root: &str,
    programs: &[(String, PathBuf)],
    files: &[FileToAdd],
    script: &[u8],
) -> anyhow::Result<()> {
    let mut out =
        BufWriter::new(File::create(to).with_context(|| format!("cannot create {}", to.display()))?);
    for base in bases {
        let mut base_file = File::open(base).with_context(|| format!("cannot open {}", base.display()))?;
        io::copy(&mut base_file, &mut out).with_context(|| format!("cannot copy {}", base.display()))?;
    }
    let mut archive = Archive::new(out);
    for (name, program) in programs {
        archive.file(&format!("{root}usr/local/bin/{name}"), 0o755, &read(program)?)?;
    }
    archive.link("init", &format!("{root}usr/local/bin/guest-init"))?;
    archive.directory(&format!("{root}etc/rig"))?;
    archive.file(&format!("{root}etc/rig/script"), 0o644, script)?;
    for FileToAdd { host, guest } in files {
        let mode = fs::metadata(host).with_context(|| format!("cannot read {}", host.display()))?;
        let executable = std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o111 != 0;
        let (relative, root) = place(guest, root);
        for (end, _) in relative.match_indices('/') {
            let folder = relative.get(..end).unwrap_or_default();
            if !is_base_path(folder) {
                archive.directory(&format!("{root}{folder}"))?;
            }
        }
        archive.file(&format!("{root}{relative}"), if executable { 0o755 } else { 0o644 }, &read(host)?)?;
    }
    archive.finish()?.flush().with_context(|| format!("cannot write {}", to.display()))
}

/// The place of a file in the archive, and the root it is in: init mounts over some folders, and copies their files
/// afterwards, before it changes the root.
fn place<'a>(guest: &str, root: &'a str) -> (String, &'a str) {
    let relative = guest.trim_start_matches('/');
    let mounted_over = relative.starts_with("tmp/") || relative.starts_with("run/");
    if mounted_over { (format!("etc/rig/late/{relative}"), "") } else { (relative.to_owned(), root) }
}

/// Whether the base has this folder, or a link in its place, already.
pub(crate) fn is_base_path(folder: &str) -> bool {
    FOLDERS.contains(&folder) || ["sbin", "usr/bin", "usr/sbin"].contains(&folder)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_to_add_is_host_and_guest() {
        let file: FileToAdd = "a:b/c.yaml:/etc/enforcer/config.yaml".parse().unwrap();
        assert_eq!(file.host, Path::new("a:b/c.yaml"));
        assert_eq!(file.guest, "/etc/enforcer/config.yaml");
    }

    #[test]
    fn files_for_mounted_folders_wait_beside() {
        for root in ["", "debian/"] {
            assert_eq!(place("/tmp/a/b", root), ("etc/rig/late/tmp/a/b".to_owned(), ""));
            assert_eq!(place("/etc/a", root), ("etc/a".to_owned(), root));
        }
    }

    #[test]
    fn file_to_add_refuses_what_the_guest_cannot_hold() {
        for (text, reason) in [
            ("file", "HOST:GUEST"),
            (":/etc/x", "no name"),
            ("x:etc/x", "absolute"),
            ("x:/", "name a file"),
            ("x:/etc/../x", "without"),
            ("x:/proc/x", "the kernel's own"),
        ] {
            let error = text.parse::<FileToAdd>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
