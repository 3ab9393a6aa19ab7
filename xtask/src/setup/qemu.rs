//! QEMU, unpacked beside the host's own packages.
use std::{fs, path::PathBuf, process::Command};

use anyhow::Context as _;

use crate::{
    pins,
    places::Places,
    run,
    setup::{
        apt::{self, Apt},
        debs,
        lock::Lock,
    },
    steps::Work,
};

/// An unpacked QEMU.
#[derive(Clone, Debug)]
pub(crate) struct Qemu {
    folder: PathBuf,
}

impl Qemu {
    /// Unpacks the locked packages and those libraries that the host lacks.
    pub(crate) fn provide(places: &Places, lock: &Lock) -> anyhow::Result<(Self, Work)> {
        let first = lock.qemu.first().context("the lock file names no QEMU")?;
        let (folder, work) = places.fill(&format!("qemu/{}", first.stamp()), |folder| {
            for package in &lock.qemu {
                apt::unpack(&debs::fetch(places, package)?, folder)?;
            }
            let apt = Apt::update(places, "qemu", &[pins::HOST_SUITE, pins::QEMU_SUITE])?;
            // The locked ones are requested by version, so that apt resolves for no others.
            let wanted: Vec<String> =
                lock.qemu.iter().map(|package| format!("{}={}", package.name, package.version)).collect();
            for deb in apt.download_missing(&wanted)? {
                let name = deb.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if !lock.qemu.iter().any(|package| name.starts_with(&format!("{}_", package.name))) {
                    apt::unpack(&deb, folder)?;
                }
            }
            fs::remove_dir_all(folder.join("usr/share/doc")).or_else(ignore_missing)?;
            // A library that is still missing shows here and not in the middle of a test.
            run::output(Self { folder: folder.to_owned() }.command().arg("--version")).map(drop)
        })?;
        Ok((Self { folder }, work))
    }

    /// The emulator, with its firmware and libraries.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(self.program());
        // Debian 12 still has packages that ship to /lib.
        let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"]
            .map(|folder| self.folder.join(folder).display().to_string())
            .join(":");
        command.env("LD_LIBRARY_PATH", libraries);
        for firmware in ["usr/share/seabios", "usr/share/qemu"] {
            command.arg("-L").arg(self.folder.join(firmware));
        }
        command
    }

    fn program(&self) -> PathBuf {
        self.folder.join("usr/bin/qemu-system-x86_64")
    }
}

fn ignore_missing(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
