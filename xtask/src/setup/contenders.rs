//! What the daemon is measured beside: Debian's own packages, unpacked into the cache, never installed.
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::{
    guest::initramfs::FileToAdd,
    places::Places,
    setup::{apt, debs, lock::Lock},
    steps::Work,
};

/// What a guest needs of them, and where: guests have no other shared libraries.
const FILES: &[(&str, &str)] = &[
    ("usr/bin/earlyoom", "/usr/bin/earlyoom"),
    ("lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2"),
    ("lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6"),
];

/// Provides the files that a guest needs to run the contenders.
pub(crate) fn provide(places: &Places, lock: &Lock) -> anyhow::Result<(Vec<FileToAdd>, Work)> {
    if lock.contenders.is_empty() {
        bail!("the lock file names no contenders: cargo xtask setup --update-lock");
    }
    let stamps: Vec<_> =
        lock.contenders.iter().map(|package| format!("{}-{}", package.name, package.stamp())).collect();
    let (folder, work) = places.fill(&format!("contenders/{}", stamps.join("_")), |folder| {
        for package in &lock.contenders {
            apt::unpack(&debs::fetch(places, package)?, folder)?;
        }
        Ok(())
    })?;
    let files = FILES
        .iter()
        .map(|(from, to)| Ok(FileToAdd { host: resolve(&folder, from)?, guest: (*to).to_owned() }));
    Ok((files.collect::<anyhow::Result<_>>()?, work))
}

/// The file itself: a package may hold a link in its place.
fn resolve(folder: &Path, file: &str) -> anyhow::Result<PathBuf> {
    let path = folder.join(file);
    path.canonicalize().with_context(|| format!("the unpacked contenders have no {file}"))
}
