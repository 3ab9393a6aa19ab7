//! Locked packages: fetched by path, checked by hash, kept in the cache.
use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::anyhow;

use crate::{
    places::Places,
    run,
    setup::{
        apt,
        lock::{self, Package},
    },
};

/// Fetches a locked package, unless the cache has it with the right hash, and returns the file.
pub(crate) fn fetch(places: &Places, package: &Package) -> anyhow::Result<PathBuf> {
    let folder = places.cache.join("debs");
    std::fs::create_dir_all(&folder)?;
    // A source ends with the kind of its archive.
    let kind = Path::new(&package.path).extension().unwrap_or_default().to_string_lossy();
    let file = folder.join(format!("{}-{}.{kind}", package.name, package.stamp()));
    if has_hash(&file, &package.sha256) {
        return Ok(file);
    }
    let uri = format!("{}/{}", apt::mirror(), package.path);
    let mut command = Command::new("/usr/lib/apt/apt-helper");
    command.args(["-o", "APT::Sandbox::User=", "-o", "Acquire::Retries=3", "download-file", &uri]);
    command.arg(&file).arg(format!("SHA256:{}", package.sha256));
    let fetched = run::output(command.env("LC_ALL", "C"));
    match fetched {
        Ok(_) if has_hash(&file, &package.sha256) => Ok(file),
        Ok(_) => Err(anyhow!("{uri} does not have the SHA256 {}", package.sha256)),
        Err(error) => Err(gone(package, &uri, &file, &error)),
    }
}

fn gone(package: &Package, uri: &str, file: &Path, error: &anyhow::Error) -> anyhow::Error {
    let Package { name, version, suite, path: _, sha256 } = package;
    anyhow!(
        "cannot fetch {name} {version}, which {} has locked, from {uri}\n\
         If {suite} has moved on (the archive keeps only what a suite offers now), take its present version:\n    \
         cargo xtask setup --update-lock\n\
         or put the old file (SHA256 {sha256}, snapshot.debian.org has it) at\n    {}\n\
         What apt said:\n{error:#}",
        lock::FILE,
        file.display(),
    )
}

fn has_hash(file: &Path, sha256: &str) -> bool {
    let sum = file.exists().then(|| run::text(Command::new("sha256sum").arg(file)));
    sum.and_then(Result::ok).is_some_and(|sum| sum.split_whitespace().next() == Some(sha256))
}
