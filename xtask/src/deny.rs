//! What `deny.toml` says of the dependencies.
use std::process::Command;

use crate::{places::Places, run, setup, steps::Steps};

/// What needs no network.
pub(crate) const OFFLINE: [&str; 3] = ["bans", "licenses", "sources"];

/// Fails if the dependencies do not pass these checks of cargo-deny.
pub(crate) fn check(places: &Places, checks: &[&str]) -> anyhow::Result<()> {
    let mut deny = Command::new(setup::cargo_deny(places, Steps::Out)?);
    deny.args(["--all-features", "check", "--hide-inclusion-graph"]).args(checks).current_dir(&places.root);
    run::output(&mut deny).map(drop)
}
