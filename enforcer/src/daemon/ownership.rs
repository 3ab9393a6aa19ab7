//! Who owns the pods' cgroups here: this daemon, or a kubelet.
//!
//! Once a kubelet was seen, it owns them for the rest of the boot: one that is away for a while finds its cgroups as it
//! left them.

mod arriving;

use std::{path::Path, time::Duration};

use serde::{Deserialize, Serialize};

pub(super) use self::arriving::{Latch, Sightings, running};
use super::specifying::RunningKubelet;
use crate::{
    cgroup::{self, CgroupDir},
    config::{Config, KubeletCgroupRoot, KubeletPlaces, KubeletUnknown, Ownership, ValueSource},
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
    /// Its cgroup root, if that is not configured: while the kubelet is away, nothing else shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cgroup_root: Option<String>,
}

impl State for Seen {
    const MAX_BYTES: u64 = 1 << 14;
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
    if let Ok(mount) = mount() {
        remember_below(&mount, config, boot_id);
    }
}

/// The same in that hierarchy. Returns whether a kubelet has made its kubepods.
fn remember_below(mount: &CgroupDir, config: &Config, boot_id: &str) -> bool {
    let root = &config.settings.cgroup_root;
    let is_there = driver_below(mount, root).is_some();
    if is_there {
        remember(config, boot_id, Some(root).filter(|_| config.cgroup_root_at.0.is_none()));
    }
    is_there
}

/// Remembers for this boot that a kubelet owns the cgroups, and its cgroup root, unless that is configured.
pub(super) fn remember(config: &Config, boot_id: &str, cgroup_root: Option<&CgroupPath>) {
    let is_wanted = match config.ownership {
        Ownership::Auto => true,
        // The usual one is remembered only in place of another.
        Ownership::Kubelet => {
            cgroup_root.is_some_and(|root| !root.is_root() || seen_root(&config.run_dir, boot_id).is_some())
        }
        Ownership::Enforcer => false,
    };
    if !is_wanted {
        return;
    }
    let cgroup_root = cgroup_root.map(|root| root.as_str().to_owned());
    let seen = Seen { boot_id: boot_id.to_owned(), cgroup_root };
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

/// The cgroup root of the kubelet that a daemon has seen in this boot, if that is known.
fn seen_root(run_dir: &Path, boot_id: &str) -> Option<CgroupPath> {
    // An unreadable file was reported when it was looked at for whether a kubelet was seen.
    let seen = durable::read::<Seen>(&run_dir.join(FILE)).ok().flatten()?;
    let root = seen.cgroup_root.filter(|_| seen.boot_id == boot_id)?;
    CgroupPath::parse(&root).ok()
}

/// Takes the kubelet's cgroup root, unless our own file says one, and its cgroup driver, whatever the file says. Reads
/// the kubelet's flags and files: where its container runtime listens is known from then on.
pub(super) fn follow_kubelet(config: &mut Config, boot_id: &str, kubelet: &RunningKubelet) {
    let shown = kubelet.places();
    if config.cgroup_root_at.0.is_none() {
        let root = kubelets_root(shown, || seen_root(&config.run_dir, boot_id));
        if let Some(root) = root {
            let driver = kubelets_driver(&root.path).unwrap_or(config.settings.cgroup_driver);
            follow_root(config, root, driver);
        }
    }
    follow_driver(config);
}

/// The cgroup root that the running kubelet shows, or else the one that it had when a daemon saw it last.
fn kubelets_root(
    shown: Result<Option<KubeletPlaces>, KubeletUnknown>,
    seen: impl FnOnce() -> Option<CgroupPath>,
) -> Option<KubeletCgroupRoot> {
    let shown = shown.unwrap_or_else(|unknown| {
        let why = crate::chain(&unknown);
        if unknown.is_for_lack_of_rights() {
            tracing::debug!("the kubelet's cgroup root cannot be read: {why}");
        } else {
            tracing::warn!("the kubelet's cgroup root is not known: {why}: if it has one, set cgroupRoot");
        }
        None
    });
    let as_seen = |path| KubeletCgroupRoot { path, origin: String::from("as it was seen in this boot") };
    shown.and_then(|places| places.cgroup_root).or_else(|| seen().map(as_seen))
}

/// Takes that cgroup root, if that driver has names for what is below it.
fn follow_root(config: &mut Config, root: KubeletCgroupRoot, driver: CgroupDriver) {
    let KubeletCgroupRoot { path, origin } = root;
    if path == config.settings.cgroup_root {
        return;
    }
    if let Err(error) = name::check(&path, driver) {
        tracing::warn!(
            "the kubelet's pods are not known, as its cgroup root is not followed: {path} ({origin}): {error}"
        );
        return;
    }
    tracing::info!("cgroupRoot: {path} (kubelet: {origin})");
    config.settings.cgroup_root = path;
    config.value_sources.set("cgroupRoot", ValueSource::Kubelet(origin));
}

/// The cgroup driver of the kubelet here, by the kubepods that exists; `None` if none does. After a change of the driver
/// both may: then it is the one that holds processes.
pub(super) fn kubelets_driver(cgroup_root: &CgroupPath) -> Option<CgroupDriver> {
    driver_below(&mount().ok()?, cgroup_root)
}

fn driver_below(mount: &CgroupDir, cgroup_root: &CgroupPath) -> Option<CgroupDriver> {
    let foreign = foreign_kubepods(mount, cgroup_root);
    let populated = foreign.iter().find(|(_, kubepods)| matches!(kubepods.is_populated(), Ok(true)));
    populated.or(foreign.first()).map(|(driver, _)| *driver)
}

/// Takes the kubelet's cgroup driver, whatever the file says.
fn follow_driver(config: &mut Config) {
    if let Some(driver) = kubelets_driver(&config.settings.cgroup_root) {
        config.settings.cgroup_driver = driver;
        let source = ValueSource::Kubelet(String::from("its kubepods"));
        config.value_sources.set("cgroupDriver", source);
    }
}

/// Why the kubelet's pods are in another kubepods than the configured one, for a person: below the other root that the
/// kubelet shows, or of another driver. A daemon that starts then chooses it ([`follow_kubelet`]).
pub(super) fn elsewhere(settings: &Settings, other_root: Option<&CgroupPath>) -> Option<String> {
    elsewhere_below(&mount().ok()?, settings, other_root)
}

fn elsewhere_below(
    mount: &CgroupDir,
    settings: &Settings,
    other_root: Option<&CgroupPath>,
) -> Option<String> {
    if let Some(root) = other_root.filter(|root| driver_below(mount, root).is_some()) {
        return Some(format!(
            "the kubelet's kubepods is below another cgroup, {root}, than at the daemon's start: it starts again"
        ));
    }
    let message =
        "the kubelet's kubepods is of another cgroup driver than at the daemon's start: it starts again";
    is_of_another_driver(mount, settings).then(|| String::from(message))
}

/// Whether the kubelet's pods are in the kubepods of another driver than the configured one: that one alone is the
/// kubelet's, or it alone holds processes.
fn is_of_another_driver(mount: &CgroupDir, settings: &Settings) -> bool {
    let (configured, others): (Vec<_>, Vec<_>) = foreign_kubepods(mount, &settings.cgroup_root)
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

fn mount() -> Result<CgroupDir, cgroup::Error> {
    CgroupDir::mount(Path::new(cgroup::MOUNT))
}

/// The kubepods of each driver that exist and carry no mark of ours.
fn foreign_kubepods(mount: &CgroupDir, cgroup_root: &CgroupPath) -> Vec<(CgroupDriver, CgroupDir)> {
    [CgroupDriver::Cgroupfs, CgroupDriver::Systemd]
        .into_iter()
        .filter(|driver| name::check(cgroup_root, *driver).is_ok())
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
            remember(&config(configured), "b", None);
            assert!(!was_seen(dir.path(), "b"), "what is configured is not remembered");
        }
        remember(&config(Ownership::Auto), "b", None);
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

    /// That of no cgroup on this host, with what shows it.
    #[expect(clippy::unnecessary_wraps, reason = "it stands beside what cannot be read")]
    fn shown(path: &str) -> Result<Option<KubeletPlaces>, KubeletUnknown> {
        let (path, origin) = (CgroupPath::parse(path).unwrap(), String::from("its flag --cgroup-root"));
        Ok(Some(KubeletPlaces { cgroup_root: Some(KubeletCgroupRoot { path, origin }), runtime: None }))
    }

    /// A configuration with that text, whose run directory is that.
    fn configured(text: &str, run_dir: &Path) -> Config {
        let head = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nownership: kubelet\n";
        Config { run_dir: run_dir.to_owned(), ..Config::parse("c.yaml", &format!("{head}{text}")).unwrap() }
    }

    #[test]
    fn the_cgroup_root_is_our_own_files_or_what_the_running_kubelet_shows() {
        let dir = tempfile::tempdir().unwrap();
        let unknown = || KubeletUnknown::Hidden { program: String::from("k3s"), pid: 7 };
        for (text, shows, root, source) in [
            ("", shown("/none/kubelet"), "/none/kubelet", "kubelet: its flag --cgroup-root"),
            ("cgroupRoot: /none/own\n", shown("/none/kubelet"), "/none/own", "c.yaml:4"),
            ("cgroupRoot: /\n", shown("/none/kubelet"), "/", "c.yaml:4"),
            ("", shown("/"), "/", "default"),
            ("", Ok(Some(KubeletPlaces::default())), "/", "default"),
            ("", Ok(None), "/", "default"),
            ("", Err(unknown()), "/", "default"),
            // systemd has no name for it.
            ("cgroupDriver: systemd\n", shown("/none_kubelet"), "/", "default"),
            ("", shown("/none_kubelet"), "/none_kubelet", "kubelet: its flag --cgroup-root"),
        ] {
            let mut config = configured(text, dir.path());
            let once = std::sync::Mutex::new(Some(shows));
            let kubelet = RunningKubelet::that_shows(move || once.lock().unwrap().take().unwrap_or(Ok(None)));
            follow_kubelet(&mut config, "b", &kubelet);
            let found = (config.settings.cgroup_root.as_str(), config.value_sources.of("cgroupRoot"));
            assert_eq!(found, (root, source.to_owned()), "{text}");
        }
    }

    /// Otherwise a daemon that is started again meanwhile would know no pod.
    #[test]
    fn the_root_of_a_kubelet_that_was_seen_holds_while_it_is_away() {
        let dir = tempfile::tempdir().unwrap();
        let root = CgroupPath::parse("/none/kubelet").unwrap();
        let away = RunningKubelet::that_shows(|| Ok(None));
        let found = |boot: &str| {
            let mut config = configured("", dir.path());
            follow_kubelet(&mut config, boot, &away);
            config.settings.cgroup_root.to_string()
        };
        assert_eq!(found("b"), "/");
        remember(&configured("", dir.path()), "b", Some(&root));
        assert_eq!(["b", "c"].map(found), ["/none/kubelet", "/"]);
        // One that runs decides.
        let mut config = configured("", dir.path());
        follow_kubelet(&mut config, "b", &RunningKubelet::that_shows(|| shown("/")));
        assert_eq!(config.settings.cgroup_root, CgroupPath::root());
    }

    /// As the kubelet makes them under each driver.
    #[test]
    fn kubepods_is_found_below_the_root_that_the_kubelet_shows() {
        let temp = tempfile::tempdir().unwrap();
        for path in ["kubelet/kubepods", "machine.slice/machine-kubepods.slice"] {
            fs::create_dir_all(temp.path().join(path)).unwrap();
        }
        let mount = CgroupDir::unchecked(temp.path()).unwrap();
        let settings = |root: &str| Settings {
            cgroup_root: CgroupPath::parse(root).unwrap(),
            cgroup_driver: driver_below(&mount, &CgroupPath::parse(root).unwrap()).unwrap_or_default(),
            ..Settings::default()
        };
        let drivers = ["/kubelet", "/machine", "/machine.slice"].map(|root| settings(root).cgroup_driver);
        assert_eq!(drivers, [CgroupDriver::Cgroupfs, CgroupDriver::Systemd, CgroupDriver::Systemd]);
        let found = |root: &str, other: &str| {
            let message = elsewhere_below(&mount, &settings(root), Some(&CgroupPath::parse(other).unwrap()));
            message.is_some_and(|message| message.contains(&format!("below another cgroup, {other}, ")))
        };
        assert!(found("/", "/kubelet") && found("/kubelet", "/machine"));
        // Where it is not, and where systemd has no name for it.
        assert!(!found("/", "/none") && !found("/", "/none_kubelet"));
        assert_eq!(elsewhere_below(&mount, &settings("/machine"), None), None);
    }
}
