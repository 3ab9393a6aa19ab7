//! What `deny.toml` says of the dependencies.
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{places::Places, run, setup, steps::Steps};

/// Says that the dependencies are not to be checked.
pub(crate) const WITHOUT: &str = "ENFORCER_WITHOUT_CARGO_DENY";

/// Names a cargo-deny that is used instead of the downloaded one.
const VARIABLE: &str = "ENFORCER_CARGO_DENY";

/// What needs no database.
pub(crate) const WITHOUT_DATABASE: [&str; 3] = ["bans", "licenses", "sources"];

/// Provides cargo-deny.
pub(crate) fn program(places: &Places) -> anyhow::Result<PathBuf> {
    env::var_os(VARIABLE).map_or_else(|| setup::cargo_deny(places, Steps::Out), |program| Ok(program.into()))
}

/// Fails if the dependencies do not pass these checks of that cargo-deny.
pub(crate) fn check(places: &Places, program: &Path, checks: &[&str]) -> anyhow::Result<()> {
    let mut deny = Command::new(program);
    deny.args(["--all-features", "check", "--hide-inclusion-graph"]).args(checks).current_dir(&places.root);
    run::output(&mut deny).map(drop)
}
