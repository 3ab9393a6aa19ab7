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
    // The list as a whole: a library that was updated alone is another root.
    let stamp = lock
        .systemd
        .iter()
        .flat_map(|package| package.sha256.bytes())
        .fold(0_u64, |hash, byte| hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte));
    let name = format!("systemd/{}-{stamp:016x}-{}", first.stamp(), systemd::FORMAT);
    let (folder, work) = places.fill(&name, |folder| {
        let unpacked = tempfile::tempdir_in(&places.cache)?;
        for package in &lock.systemd {
            apt::unpack(&debs::fetch(places, package)?, unpacked.path())?;
        }
        systemd::write(&folder.join("systemd.cpio"), unpacked.path())
    })?;
    Ok((folder.join("systemd.cpio"), work))
}
