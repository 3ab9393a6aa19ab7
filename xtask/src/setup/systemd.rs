//! systemd as a guest's init: Debian's own packages, unpacked into the cache, never installed.
use std::path::PathBuf;

use anyhow::bail;

use crate::{
    guest::systemd,
    places::Places,
    setup::{apt, debs, lock::Lock},
    steps::Work,
};

/// Provides the archive that follows the base's.
pub(crate) fn provide(places: &Places, lock: &Lock) -> anyhow::Result<(PathBuf, Work)> {
    let Some(first) = lock.systemd.first() else {
        bail!("the lock file names no systemd: cargo xtask setup --update-lock");
    };
    let name = format!("systemd/{}-{:016x}-{}", first.stamp(), Lock::digest(&lock.systemd), systemd::FORMAT);
    let (folder, work) = places.fill(&name, |folder| {
        let unpacked = tempfile::tempdir_in(&places.cache)?;
        for package in &lock.systemd {
            apt::unpack(&debs::fetch(places, package)?, unpacked.path())?;
        }
        systemd::write(&folder.join("systemd.cpio"), unpacked.path())
    })?;
    Ok((folder.join("systemd.cpio"), work))
}
