//! Who owns the pods' cgroups here: this daemon, or a kubelet.
//!
//! Once a kubelet was seen, it owns them for the rest of the boot: one that is away for a while finds its cgroups as it
//! left them.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{
    cgroup::{self, CgroupDir},
    config::{Config, Ownership},
    durable::{self, State},
    model::CgroupPath,
    policy::{CgroupDriver, Settings, name},
};

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

/// Whether the kubelet owns the pods' cgroups here, so that the daemon must not write to them: its process runs, a
/// kubepods exists that enforcer did not make, or a daemon has seen either in this boot.
pub(super) fn kubelet_owns_cgroups(config: &Config, boot_id: &str) -> bool {
    match config.ownership {
        Ownership::Enforcer => false,
        Ownership::Kubelet => true,
        Ownership::Auto => {
            cgroup::kubelet_runs(Path::new("/proc")).unwrap_or(false)
                || kubelets_driver(&config.settings.cgroup_root).is_some()
                || was_seen(&config.run_dir, boot_id)
        }
    }
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

/// Whether the kubepods of the configured driver exists and carries no mark of ours, so that it is the kubelet's.
pub(super) fn is_foreign(settings: &Settings) -> bool {
    let mount = CgroupDir::mount(Path::new(cgroup::MOUNT));
    let foreign = mount.map(|mount| foreign_kubepods(&mount, &settings.cgroup_root)).unwrap_or_default();
    foreign.iter().any(|(driver, _)| *driver == settings.cgroup_driver)
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
