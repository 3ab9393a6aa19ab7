//! What else on this node ends pods when memory runs short, beside a kubelet: the kubelet itself, and others that rank by
//! rules of their own.

use std::{
    fs::File,
    io::Read as _,
    path::Path,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use super::{
    container_node, host::Host, kubelet_threshold::KubeletThreshold, ownership, problems::Problems,
    reload::Load, specifying::Access,
};
use crate::{
    cgroup::{self, HostProgram, Problem},
    config::{Config, KubeletMemory, KubeletUnknown},
    journal::Journal,
    model::Common,
    serve::{PodView, View},
    threads, trust,
};

/// The `what` of events about other evictors.
const WHAT: &str = "evictors";

/// How often they are looked for.
const LOOK: Duration = Duration::from_mins(1);

/// How long an answer of the kubelet counts: to ask it takes a process and a connection.
const ASK: Duration = Duration::from_mins(10);

const PROC: &str = "/proc";

/// The host's `/etc/os-release` is read at every tenth look: it seldom changes without a boot.
const LOOKS_PER_RELEASE: u32 = 10;

/// Where koordlet runs (Koordinator's Helm chart).
const KOORDLET_NAMESPACE: &str = "koordinator-system";
const KOORDLET: &str = "koordlet";

const OOMD: &str = "systemd-oomd";

/// The first release of Talos that kills pods when memory runs short, unless its `OOMConfig` says otherwise.
const TALOS: (u64, u64) = (1, 12);

/// The most bytes that are read of `/etc/os-release`.
const MOST_BYTES: u64 = 1 << 14;

/// What is known of this node's evictors, for a person.
#[derive(Debug)]
pub struct Evictors {
    /// The values that follow from the kubelet's, and where they are from.
    pub notes: Vec<String>,
    /// Who may evict at the same time, and what to change.
    pub problems: Vec<String>,
}

/// What this process finds of other evictors, and which values a daemon here would have; `None` where no kubelet owns the
/// pods' cgroups. `pods` are those that the daemon knows.
pub fn evictors(config: &Config, pods: &[Common<PodView>]) -> anyhow::Result<Option<Evictors>> {
    Ok(evictors_on(config, &Host::read(config)?, pods))
}

fn evictors_on(config: &Config, host: &Host, pods: &[Common<PodView>]) -> Option<Evictors> {
    let Host { machine_name, boot_id, node, container, .. } = host;
    if !ownership::kubelet_owns_cgroups(config, boot_id) {
        return None;
    }
    let mut config = config.clone();
    let kubelet = KubeletThreshold::new(&config, &Access::new(&config, machine_name)).read(Duration::ZERO);
    config.settle_beside_kubelet(&kubelet, node.memory_bytes);
    // What a user may not see says nothing of the daemon.
    let is_seen = kubelet.as_ref().err().is_none_or(|unknown| !unknown.is_for_lack_of_rights());
    let problems = config.contest(&kubelet, node.memory_bytes).into_iter().filter(|_| is_seen);
    let others = Others::new(Path::new(PROC))
        .look(has_koordlet(pods), true)
        .into_iter()
        .map(|problem| problem.message);
    let observes = container_node::settle(&mut config, container.as_ref(), true);
    let problems = problems.chain(others).chain(observes).collect();
    Some(Evictors { notes: config.beside_kubelet(&kubelet, node.memory_bytes), problems })
}

/// The configuration as a daemon would have it here: with the defaults beside a kubelet, where one owns the pods' cgroups.
pub fn settled(config: &Config) -> anyhow::Result<Config> {
    Ok(settled_on(config, &Host::read(config)?))
}

fn settled_on(config: &Config, host: &Host) -> Config {
    let Host { machine_name, boot_id, node, container, .. } = host;
    let mut config = config.clone();
    if ownership::kubelet_owns_cgroups(&config, boot_id) {
        container_node::settle(&mut config, container.as_ref(), true);
        let access = Access::new(&config, machine_name);
        ownership::follow_kubelet(&mut config, boot_id, &access.running_kubelet());
        let kubelet = KubeletThreshold::new(&config, &access).read(Duration::ZERO);
        config.settle_beside_kubelet(&kubelet, node.memory_bytes);
    }
    config
}

/// Fills in the defaults beside a kubelet, by its flags and files: nothing waits for the kubelet at the start.
pub(super) fn settle(config: &mut Config, kubelet: &KubeletThreshold, memory_bytes: u64) {
    fill_in(config, &kubelet.local(), memory_bytes);
}

fn fill_in(config: &mut Config, kubelet: &Result<KubeletMemory, KubeletUnknown>, memory_bytes: u64) {
    config.settle_beside_kubelet(kubelet, memory_bytes);
    for line in config.beside_kubelet(kubelet, memory_bytes) {
        tracing::info!("{line}");
    }
}

/// Has the configuration filled in with each reload, on the thread that reads it, also by what the kubelet itself says.
pub(super) fn settling(load: Box<Load>, kubelet: KubeletThreshold, memory_bytes: u64) -> Box<Load> {
    Box::new(move || {
        let mut config = load()?;
        fill_in(&mut config, &kubelet.read(Duration::ZERO), memory_bytes);
        Ok(config)
    })
}

/// The configuration that other evictors are compared with. The look-out for them ends with this.
pub(super) struct Rivals(watch::Sender<Config>);

impl Rivals {
    /// Takes the configuration that is in force from now on.
    pub(super) fn configure(&self, config: &Config) {
        self.0.send_replace(config.clone());
    }
}

/// Reports other evictors for as long as they may act. Must be called inside a tokio runtime.
pub(super) fn watch(
    config: &Config,
    kubelet: KubeletThreshold,
    memory_bytes: u64,
    view: watch::Receiver<View>,
    journal: Journal,
) -> Rivals {
    let (sender, mut configs) = watch::channel(config.clone());
    tokio::spawn(async move {
        let (mut problems, mut others) = (Problems::default(), Others::new(Path::new(PROC)));
        let mut looks = 0;
        loop {
            let config = configs.borrow_and_update().clone();
            let has_koordlet = has_koordlet(&view.borrow().pods);
            let kubelet = kubelet.clone();
            let look = move || {
                kubelet.look_for_places();
                let known = kubelet.read(ASK);
                // What is not known yet at the start may be known, and no better, a minute later.
                let place = if known.is_ok() { "kubelet" } else { "kubeletUnknown" };
                let contest = config.contest(&known, memory_bytes).map(|message| problem(place, message));
                let others_found = others.look(has_koordlet, looks == 0);
                (contest.into_iter().chain(others_found).collect(), others)
            };
            let (found, looked) = threads::blocking(look).await;
            others = looked;
            problems.renew(found, &journal);
            tokio::select! {
                () = tokio::time::sleep(LOOK) => looks = (looks + 1) % LOOKS_PER_RELEASE,
                changed = configs.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    looks = 0;
                }
            }
        }
    });
    Rivals(sender)
}

fn problem(place: &str, message: String) -> Problem {
    Problem { what: WHAT, place: place.to_owned(), message }
}

fn has_koordlet(pods: &[Common<PodView>]) -> bool {
    pods.iter().any(|pod| is_koordlet(&pod.namespace, &pod.name))
}

/// A tenant can name a pod so, but not in that namespace.
fn is_koordlet(namespace: &str, name: &str) -> bool {
    namespace == KOORDLET_NAMESPACE && name.starts_with(KOORDLET)
}

/// All but the kubelet. What cannot be looked at is not there.
struct Others<'a> {
    proc: &'a Path,
    oomd: Option<HostProgram>,
    /// Whether the host is a Talos that kills pods, as read last.
    is_talos_with_handler: bool,
}

impl<'a> Others<'a> {
    fn new(proc: &'a Path) -> Self {
        Self { proc, oomd: HostProgram::new(proc, OOMD).ok(), is_talos_with_handler: false }
    }

    /// With `reads_release` it reads `/etc/os-release` again.
    fn look(&mut self, has_koordlet: bool, reads_release: bool) -> Vec<Problem> {
        let mut problems = Vec::new();
        if reads_release {
            let text = os_release(self.proc);
            self.is_talos_with_handler = text.is_some_and(|text| is_talos_with_handler(&text));
        }
        if let Some(oomd) = &mut self.oomd
            && let Ok(Some(pid)) = oomd.find(Instant::now())
        {
            let message = format!(
                "systemd-oomd runs (process {pid}), and kills whole cgroups by rules of its own where a unit's ManagedOOMSwap= or \
                 ManagedOOMMemoryPressure= is kill: see with oomctl whether it watches -.slice or kubepods.slice, and if so write \
                 ManagedOOMSwap=auto and ManagedOOMMemoryPressure=auto in a drop-in of that slice, or disable systemd-oomd.service"
            );
            problems.push(problem(OOMD, message));
        }
        if has_koordlet {
            let message = format!(
                "koordlet runs in {KOORDLET_NAMESPACE}, and may evict pods by rules of its own: in the ConfigMap \
                 slo-controller-config write \"enable\": false in resource-threshold-config, or leave evictions to it (mode: \
                 observe)"
            );
            problems.push(problem(KOORDLET, message));
        }
        if self.is_talos_with_handler {
            let message = "Talos kills pods by memory pressure on its own (its OOM handler): switch it off with an OOMConfig \
                           document of triggerExpression: \"false\", or leave evictions to it (mode: observe)";
            problems.push(problem("talos", message.to_owned()));
        }
        problems
    }
}

/// `/etc/os-release` of the host.
fn os_release(proc: &Path) -> Option<String> {
    let root = cgroup::hosts_root(proc).ok()?;
    let file = trust::open_below(root, Path::new("/etc/os-release")).ok()?.ok()?;
    let mut text = String::new();
    File::from(file).take(MOST_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

fn is_talos_with_handler(os_release: &str) -> bool {
    let value = |key: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"'))
    };
    let version = value("VERSION_ID").and_then(|version| {
        let mut parts = version.trim_start_matches('v').split('.').map(str::parse::<u64>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    });
    value("ID") == Some("talos") && version.is_some_and(|version| version >= TALOS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MemoryAvailableSource, Mode, Ownership, PodSource};

    #[test]
    fn a_configuration_gets_the_defaults_beside_a_kubelet_only_there() {
        let source = |ownership| {
            let config = Config { ownership, ..Config::default() };
            settled(&config).unwrap().memory_available_source
        };
        assert_eq!(source(Ownership::Kubelet), MemoryAvailableSource::Kubelet);
        assert_eq!(source(Ownership::Enforcer), MemoryAvailableSource::MemAvailable);
    }

    #[test]
    fn a_replay_and_doctor_take_a_node_that_is_a_container_as_only_observing() {
        let enforcing = |ownership| {
            // It asks no kubelet.
            let pod_source = PodSource::Static;
            Config { mode: Mode::Enforce, ownership, pod_source, ..Config::default() }
        };
        let (kind, machine) = (Host::of_kind(), Host { container: None, ..Host::of_kind() });
        let becomes = |ownership, host: &Host| settled_on(&enforcing(ownership), host).mode;
        assert_eq!(becomes(Ownership::Kubelet, &kind), Mode::Observe);
        assert_eq!(becomes(Ownership::Kubelet, &machine), Mode::Enforce);
        assert_eq!(becomes(Ownership::Enforcer, &kind), Mode::Enforce);
        let is_said = |host: &Host| {
            let found = evictors_on(&enforcing(Ownership::Kubelet), host, &[]).unwrap();
            found.problems.iter().any(|problem| problem.contains("the node is a container itself"))
        };
        assert_eq!([&kind, &machine].map(is_said), [true, false]);
    }

    #[test]
    fn talos_kills_pods_since_a_release() {
        for (text, kills) in [
            ("NAME=\"Talos\"\nID=talos\nVERSION_ID=v1.12.0\n", true),
            ("ID=talos\nVERSION_ID=v1.11.9\n", false),
            ("ID=talos\nVERSION_ID=v2.0.0-alpha.1\n", true),
            ("ID=debian\nVERSION_ID=\"13.1\"\n", false),
            ("ID=talos\n", false),
        ] {
            assert_eq!(is_talos_with_handler(text), kills, "{text}");
        }
    }

    #[test]
    fn koordlet_is_known_by_its_namespace() {
        assert!(is_koordlet("koordinator-system", "koordlet-x7k2p"));
        assert!(!is_koordlet("default", "koordlet-x7k2p"));
        assert!(!is_koordlet("koordinator-system", "koord-manager-1"));
    }
}
