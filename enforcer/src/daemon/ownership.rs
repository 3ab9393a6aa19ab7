//! Who owns the pods' cgroups here: this daemon, or a kubelet.
//!
//! Once a kubelet was seen, it owns them for the rest of the boot: one that is away for a while finds its cgroups as it
//! left them.

use std::{path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    cgroup::{self, CgroupDir},
    config::{Config, Ownership, ValueSource},
    durable::{self, State},
    model::CgroupPath,
    policy::{CgroupDriver, Settings, name},
};

/// How long a kubelet must run that has made no kubepods yet.
const SETTLE: Duration = Duration::from_secs(3);

/// The file in the run directory.
const FILE: &str = "kubelet.json";

/// That a kubelet was seen, and in which boot.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    boot_id: String,
}

impl State for Seen {
    const MAX_BYTES: u64 = 1 << 12;
    const IS_SYNCED: bool = false;
}

/// Whether the kubelet owns the pods' cgroups here, so that the daemon must not write to them: a kubepods exists that
/// enforcer did not make, a daemon has seen a kubelet in this boot, or one runs.
pub(super) fn kubelet_owns_cgroups(config: &Config, boot_id: &str) -> bool {
    match config.ownership {
        Ownership::Enforcer => false,
        Ownership::Kubelet => true,
        Ownership::Auto => {
            kubelets_driver(&config.settings.cgroup_root).is_some()
                || was_seen(&config.run_dir, boot_id)
                || runs_for_a_while(Path::new("/proc"))
        }
    }
}

/// Whether a kubelet runs, and still does a moment later: one that is not set up yet ends at once, again and again.
fn runs_for_a_while(proc: &Path) -> bool {
    let first = cgroup::kubelets(proc).unwrap_or_default();
    if first.is_empty() {
        return false;
    }
    std::thread::sleep(SETTLE);
    cgroup::kubelets(proc).is_ok_and(|later| !first.is_disjoint(&later))
}

/// Remembers for this boot that a kubelet owns the cgroups, if it has made its kubepods, and unless it is configured. A
/// process alone may be one that ends at once: `kubelet --version`, or a unit that is not set up yet.
pub(super) fn remember_kubepods(config: &Config, boot_id: &str) {
    if kubelets_driver(&config.settings.cgroup_root).is_some() {
        remember(config, boot_id);
    }
}

/// Remembers for this boot that a kubelet owns the cgroups, unless that is configured.
pub(super) fn remember(config: &Config, boot_id: &str) {
    if config.ownership != Ownership::Auto {
        return;
    }
    let seen = Seen { boot_id: boot_id.to_owned() };
    if let Err(error) = durable::write(&config.run_dir.join(FILE), &seen) {
        tracing::warn!(
            "a later start of the daemon may take the pods' cgroups for its own while the kubelet is away: cannot write \
             {FILE}: {error}"
        );
    }
}

/// Whether a daemon has seen a kubelet in this boot. An unreadable file says yes: then nothing is written.
fn was_seen(run_dir: &Path, boot_id: &str) -> bool {
    match durable::read::<Seen>(&run_dir.join(FILE)) {
        Ok(seen) => seen.is_some_and(|seen| seen.boot_id == boot_id),
        Err(error) => {
            tracing::warn!("taking the pods' cgroups for a kubelet's: {}", crate::chain(&error));
            true
        }
    }
}

/// The cgroup driver of the kubelet here, by the kubepods that exists; `None` if none does. After a change of the driver
/// both may: then it is the one that holds processes.
pub(super) fn kubelets_driver(cgroup_root: &CgroupPath) -> Option<CgroupDriver> {
    let mount = CgroupDir::mount(Path::new(cgroup::MOUNT)).ok()?;
    let foreign = foreign_kubepods(&mount, cgroup_root);
    let populated = foreign.iter().find(|(_, kubepods)| matches!(kubepods.is_populated(), Ok(true)));
    populated.or(foreign.first()).map(|(driver, _)| *driver)
}

/// Takes the kubelet's cgroup driver, whatever the file says.
pub(super) fn follow_driver(config: &mut Config) {
    if let Some(driver) = kubelets_driver(&config.settings.cgroup_root) {
        config.settings.cgroup_driver = driver;
        let source = ValueSource::Kubelet(String::from("its kubepods"));
        config.value_sources.set("cgroupDriver", source);
    }
}

/// Whether the kubelet's pods are in the kubepods of another driver than the configured one: that one alone is the
/// kubelet's, or it alone holds processes. A daemon that starts then chooses it ([`kubelets_driver`]).
pub(super) fn is_of_another_driver(settings: &Settings) -> bool {
    let Ok(mount) = CgroupDir::mount(Path::new(cgroup::MOUNT)) else { return false };
    let (configured, others): (Vec<_>, Vec<_>) = foreign_kubepods(&mount, &settings.cgroup_root)
        .into_iter()
        .partition(|(driver, _)| *driver == settings.cgroup_driver);
    let is_populated =
        |(_, kubepods): &(CgroupDriver, CgroupDir)| matches!(kubepods.is_populated(), Ok(true));
    match (configured.first(), others.first()) {
        (None, Some(_)) => true,
        (Some(configured), Some(other)) => !is_populated(configured) && is_populated(other),
        (_, None) => false,
    }
}

/// The kubepods of each driver that exist and carry no mark of ours.
fn foreign_kubepods(mount: &CgroupDir, cgroup_root: &CgroupPath) -> Vec<(CgroupDriver, CgroupDir)> {
    [CgroupDriver::Cgroupfs, CgroupDriver::Systemd]
        .into_iter()
        .filter_map(|driver| Some((driver, mount.open(&name::kubepods(cgroup_root, driver)).ok()?)))
        .filter(|(_, kubepods)| !matches!(kubepods.is_marked(), Ok(true)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_kubelet_that_was_seen_owns_the_cgroups_for_the_rest_of_the_boot() {
        let dir = tempfile::tempdir().unwrap();
        let config = |ownership| Config { ownership, run_dir: dir.path().to_owned(), ..Config::default() };
        assert!(!was_seen(dir.path(), "b"));
        for configured in [Ownership::Kubelet, Ownership::Enforcer] {
            remember(&config(configured), "b");
            assert!(!was_seen(dir.path(), "b"), "what is configured is not remembered");
        }
        remember(&config(Ownership::Auto), "b");
        assert_eq!(["b", "c"].map(|boot| was_seen(dir.path(), boot)), [true, false]);
        assert!(kubelet_owns_cgroups(&config(Ownership::Auto), "b"));
        assert!(!kubelet_owns_cgroups(&config(Ownership::Enforcer), "b"));
    }

    #[test]
    fn an_unreadable_file_counts_as_a_kubelet_that_was_seen() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "damaged").unwrap();
        assert!(was_seen(dir.path(), "b"));
    }
}
