//! The Prometheus that scrapes the daemon in tests: Debian's own package, unpacked into the cache, never installed; no
//! service runs.
use std::path::PathBuf;

use anyhow::{Context as _, bail};

use crate::{
    places::Places,
    setup::{apt, debs, lock::Lock},
    steps::Work,
};

/// Names the folder for the tests.
pub(crate) const VARIABLE: &str = "ENFORCER_PROMETHEUS";

/// Says that there is none; if the caller set one of the two, that choice is kept.
pub(crate) const WITHOUT: &str = "ENFORCER_WITHOUT_PROMETHEUS";

/// Where the package has its programs.
const PROGRAMS: &str = "usr/bin";

/// Provides the folder of its programs. They need no library beside libc.
pub(crate) fn provide(places: &Places, lock: &Lock) -> anyhow::Result<(PathBuf, Work)> {
    let Some(first) = lock.prometheus.first() else {
        bail!("the lock file names no prometheus: cargo xtask setup --update-lock");
    };
    let name = format!("prometheus/{}", first.stamp());
    let (folder, work) = places.fill(&name, |folder| {
        for package in &lock.prometheus {
            apt::unpack(&debs::fetch(places, package)?, folder)?;
        }
        folder.join(PROGRAMS).join("promtool").metadata().context("the package has no promtool")?;
        Ok(())
    })?;
    Ok((folder.join(PROGRAMS), work))
}
