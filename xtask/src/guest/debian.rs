//! A guest that is a Debian system with a package manager of its own: real packages, installed and configured by dpkg.
//!
//! A guest makes the root once for the cache, so that nothing of the host is in it and no privilege is needed. Every
//! later guest has it as a folder of its initramfs, which the guest's own init makes the root before it becomes systemd.
use std::{fs::File, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};

use crate::{
    guest::{Guests, Init, cpus::Cpus, exec::Run, initramfs::FileToAdd, machine::Clock},
    run::last_lines,
    setup::{
        debs,
        lock::{Lock, Package},
    },
    steps::Work,
};

/// Part of the root's name in the cache: incremented when the script changes.
const FORMAT: u32 = 1;

/// Installs the packages, and prints the root as an archive.
const SCRIPT: &[u8] = include_bytes!("debian/root.sh");

/// Parameters of the kernel. No udev announces the serial console, for which a login prompt would wait.
pub(super) const KERNEL_ARGUMENTS: &str =
    "rig.init=debian systemd.getty_auto=no systemd.unit=multi-user.target";

/// The folder of the initramfs that is the root.
pub(super) const ROOT: &str = "debian/";

/// Enough for the packages, what is in them, and the archive of the next.
const MEMORY_MIB: u32 = 2048;

/// Emulated beside others it takes ten minutes.
const TIMEOUT: Duration = Duration::from_mins(40);

/// How much of a failed script's output is shown.
const SHOWN_LINES: usize = 40;

/// A release of Debian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Release {
    Bookworm,
    Trixie,
}

impl Release {
    pub(crate) const ALL: [Self; 2] = [Self::Bookworm, Self::Trixie];

    /// Its suite in the archive.
    pub(crate) fn suite(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        }
    }

    /// What people call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "Debian 12",
            Self::Trixie => "Debian 13",
        }
    }
}

/// Provides the archive of a root with these packages.
pub(crate) fn provide(
    guests: &Guests,
    release: Release,
    packages: &[Package],
) -> anyhow::Result<(PathBuf, Work)> {
    let name = format!("debian/{}-{:016x}-{FORMAT}", release.suite(), Lock::digest(packages));
    let (folder, work) = guests.places.fill(&name, |folder| {
        let fetched = |package: &Package| {
            let host = debs::fetch(&guests.places, package)?;
            Ok(FileToAdd { host, guest: format!("/packages/{}.deb", package.name) })
        };
        let held = guests.places.lock_cache()?;
        let files: Vec<FileToAdd> = packages.iter().map(fetched).collect::<anyhow::Result<_>>()?;
        drop(held);
        let [root, log] = ["root.cpio", "log"].map(|name| folder.join(name));
        let file = |path| File::create(path).with_context(|| format!("cannot create a file in {name}"));
        let run = Run {
            kernel: guests.kernels.first().context("no kernel was set up")?,
            init: Init::Own,
            memory_mib: MEMORY_MIB,
            cpus: Cpus::Count(2),
            clock: Clock::Host,
            timeout: TIMEOUT,
            boot: &[],
            files: &files,
            script: SCRIPT,
        };
        let status = run.exec(guests, Box::new(file(&root)?), Box::new(file(&log)?))?;
        if status != 0 {
            let said = std::fs::read(&log).unwrap_or_default();
            bail!(
                "the packages of {} cannot be installed ({status}):\n{}",
                release.name(),
                last_lines(&String::from_utf8_lossy(&said), SHOWN_LINES)
            );
        }
        Ok(())
    })?;
    Ok((folder.join("root.cpio"), work))
}
