//! The configuration file: one YAML document of kind `EnforcerConfiguration`.
//!
//! Reading it has no side effects. Every error names file, line and field, and all errors are reported at once.

mod accounts;
mod beside;
mod cpus;
mod draft;
mod effective;
mod exposure;
mod fields;
mod kubelet;
mod read;
mod schema;
mod sinks;
mod sources;
mod table;
mod watched;

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use crate::{
    cgroup,
    journal::Limits,
    kube::{ApiSettings, NodeSettings},
    model::{CgroupPath, NodeComponent},
    policy::{EvictionSettings, Settings, allocatable, engine::Resource, threshold::Threshold},
    sink::SinkSettings,
};

pub use self::{
    draft::{Machine, draft},
    effective::{Effective, Ignored, Origin, Written},
    exposure::MetricsTls,
    kubelet::{
        KubeletCgroupRoot, KubeletHostname, KubeletMemory, KubeletPlaces, KubeletShown, KubeletUnknown,
        kubelet_memory, kubelet_places, kubelet_shown,
    },
    schema::schema,
    sources::{ValueSource, ValueSources},
    table::{FIELDS, Field, Form},
};

/// The path of the configuration without `--config`; a missing file is no error there.
pub const DEFAULT_PATH: &str = "/etc/enforcer/config.yaml";

const API_VERSION: &str = "enforcer.dev/v1alpha1";
const KIND: &str = "EnforcerConfiguration";
const KUBELETS_API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KUBELETS_KIND: &str = "KubeletConfiguration";

pub use crate::{
    cgroup::OnDrift,
    evict::{HookProgram, Scheduling},
    policy::{alignment::OomScorePolicy, engine::Mode},
    sense::MemoryAvailableSource,
    serve::{Access, Account, Sockets},
};

/// The default of `nodeComponents` besides kubelets and runtimes.
const KUBE_PROXY: &str = "kube-proxy";

/// The whole configuration, with defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `mode`.
    pub mode: Mode,
    /// `ownership`.
    pub ownership: Ownership,
    /// `stateDir`: data that must outlive a reboot.
    pub state_dir: PathBuf,
    /// `runDir`: sockets, and data that need not outlive a reboot.
    pub run_dir: PathBuf,
    /// `observeSocketOwner` and the like: the owners and groups of the sockets.
    pub sockets: Sockets,
    /// `metricsListen`: where metrics are served besides the observe socket; `None` for nowhere.
    pub metrics_listen: Option<SocketAddr>,
    /// `metricsHosts`: the host names, besides the node's own, that requests to `metricsListen` may use.
    pub metrics_hosts: Vec<String>,
    /// `metricsTLS`: the files by which metrics are served over TLS there; `None` for plain HTTP.
    pub metrics_tls: Option<MetricsTls>,
    /// `metricsTokenFile`: the file of the tokens that read them there.
    pub metrics_token_file: Option<PathBuf>,
    /// `metricsPodNames`: whether metrics name pods.
    pub metrics_pod_names: bool,
    /// `configReload`: what makes the daemon read its configuration again.
    pub config_reload: ReloadOn,
    /// `journalMaxBytes`, `journalMaxAge`: how much of the journal is kept.
    pub journal: Limits,
    /// `staticPodPath`: the folder of manifests.
    pub static_pod_path: PathBuf,
    /// `criSocket`: the container runtime's socket; `None` to find it.
    pub cri_socket: Option<PathBuf>,
    /// `podSource`: where a kubelet's pods have their specs from.
    pub pod_source: PodSource,
    /// `kubeconfig`: who this is to the kubelet's server and to the API server, and where that is; `None` for what a cluster
    /// gives a pod.
    pub kubeconfig: Option<PathBuf>,
    /// `kubeletRootDir`: the kubelet's `--root-dir`; `None` if it is to be found.
    pub kubelet_root_dir: Option<PathBuf>,
    /// `kubeletPort`: the port of the kubelet's HTTPS server.
    pub kubelet_port: u16,
    /// `nodeName`: the node's name in the cluster; `None` for the one that is found.
    pub node_name: Option<String>,
    /// `apiAction`, `onPdb`, `barePods` and `daemonSetPods`: what is asked of the API server for an evicted pod.
    pub api: ApiSettings,
    /// What is set on the node at the API server while memory is short.
    pub node_marks: NodeSettings,
    /// `unknownPodGrace`: how long a pod must be known before it may be evicted without its spec, in milliseconds.
    pub unknown_pod_grace_ms: u64,
    /// `onDrift`: the reaction to a value that something else wrote.
    pub on_drift: OnDrift,
    /// `nodeComponents`: the components with the score −999, besides the daemon itself.
    pub node_components: Vec<NodeComponent>,
    /// `oomScorePolicy`: how the scores of containers are computed.
    pub oom_score_policy: OomScorePolicy,
    /// `memoryAvailableSource`.
    pub memory_available_source: MemoryAvailableSource,
    /// Where our own file says that, if it does: beside a kubelet the default is another.
    pub memory_available_source_at: Written,
    /// Where our own file decides about the hard threshold of `memory.available`, if it does: the same.
    pub hard_memory_at: Written,
    /// Where our own file says `cgroupRoot`, if it does: beside a kubelet it is otherwise the kubelet's own.
    pub cgroup_root_at: Written,
    /// `evictionScheduling`: how the eviction thread is scheduled.
    pub eviction_scheduling: Scheduling,
    /// `protectedMaxShare`, in thousandths: the largest share of the node's memory for all protected pods.
    pub protected_max_permille: u16,
    /// `maxPods`.
    pub max_pods: u64,
    /// `podsPerCore`; 0 is no limit.
    pub pods_per_core: u64,
    /// `mergeDefaultEvictionSettings`: how the thresholds were read.
    pub merge_default_eviction_settings: bool,
    /// `systemReservedCgroup`, enforced or not.
    pub system_reserved_cgroup: Option<CgroupPath>,
    /// `kubeReservedCgroup`, enforced or not.
    pub kube_reserved_cgroup: Option<CgroupPath>,
    /// `preKillHook`: the program to run before a victim is signalled.
    pub pre_kill_hook: Option<PreKillHook>,
    /// `sinks`: where events are pushed to.
    pub sinks: SinkSettings,
    /// The settings that the plan depends on.
    pub settings: Settings,
    /// Where the values come from.
    pub value_sources: ValueSources,
}

/// `preKillHook`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PreKillHook {
    /// The program and its arguments.
    pub program: HookProgram,
    /// The longest time that an eviction waits for it, in milliseconds: 10 ms to a minute.
    pub timeout_ms: u64,
}

/// `podSource`: where the specs of a kubelet's pods come from.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PodSource {
    /// The first of the others that works.
    #[default]
    Auto,
    /// None: pods are known by their cgroups and names.
    Static,
    /// The kubelet's Pods API.
    PodsApi,
    /// The kubelet's HTTPS server.
    Kubelet,
    /// The API server.
    ApiServer,
}

impl PodSource {
    /// The names in the configuration.
    pub(crate) const NAMES: &[(&str, Self)] = &[
        ("auto", Self::Auto),
        ("static", Self::Static),
        ("podsAPI", Self::PodsApi),
        ("kubelet", Self::Kubelet),
        ("apiServer", Self::ApiServer),
    ];

    /// The name in the configuration.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Static => "static",
            Self::PodsApi => "podsAPI",
            Self::Kubelet => "kubelet",
            Self::ApiServer => "apiServer",
        }
    }
}

/// `configReload`: what makes the daemon read its configuration again, besides `enforcer reload`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReloadOn {
    /// SIGHUP.
    Signal,
    /// SIGHUP, and a change of the file.
    Auto,
}

impl ReloadOn {
    /// The names in the configuration.
    pub(crate) const NAMES: &[(&str, Self)] = &[("signal", Self::Signal), ("auto", Self::Auto)];

    /// The name in the configuration.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Signal => "signal",
            Self::Auto => "auto",
        }
    }
}

/// Which process writes the pods' cgroups.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ownership {
    /// The kubelet if one runs or its kubepods exists, otherwise the daemon.
    Auto,
    /// The daemon.
    Enforcer,
    /// The kubelet.
    Kubelet,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::DryRun,
            ownership: Ownership::Auto,
            state_dir: "/var/lib/enforcer".into(),
            run_dir: "/run/enforcer".into(),
            sockets: Sockets::default(),
            metrics_listen: None,
            metrics_hosts: Vec::new(),
            metrics_tls: None,
            metrics_token_file: None,
            metrics_pod_names: false,
            config_reload: ReloadOn::Signal,
            journal: Limits::default(),
            static_pod_path: "/etc/enforcer/pods".into(),
            cri_socket: None,
            pod_source: PodSource::Auto,
            kubeconfig: None,
            kubelet_root_dir: None,
            kubelet_port: 10_250,
            node_name: None,
            api: ApiSettings::default(),
            node_marks: NodeSettings::default(),
            unknown_pod_grace_ms: 10_000,
            on_drift: OnDrift::Restore,
            node_components: cgroup::COMPONENTS
                .iter()
                .chain([&KUBE_PROXY])
                .map(|name| NodeComponent::Executable((*name).to_owned()))
                .collect(),
            oom_score_policy: OomScorePolicy::Static,
            memory_available_source: MemoryAvailableSource::MemAvailable,
            memory_available_source_at: Written::default(),
            hard_memory_at: Written::default(),
            cgroup_root_at: Written::default(),
            eviction_scheduling: Scheduling::default(),
            protected_max_permille: 500,
            max_pods: 110,
            pods_per_core: 0,
            merge_default_eviction_settings: false,
            system_reserved_cgroup: None,
            kube_reserved_cgroup: None,
            pre_kill_hook: None,
            sinks: SinkSettings::default(),
            settings: Settings::default(),
            value_sources: ValueSources::default(),
        }
    }
}

/// Why the configuration could not be loaded. Problems are in the order of the file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("cannot read the configuration {path}: --config names another")]
    Read {
        /// The file.
        path: String,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// Other users may change it, and so could make this process write to cgroups and end pods.
    #[error("the configuration {path} {why}: {remedy}")]
    Untrusted {
        /// The file, or a folder that leads to it.
        path: String,
        /// Which users may.
        why: String,
        /// How to fix it.
        remedy: String,
    },
    /// The content is invalid.
    #[error("{}", join(problems))]
    Invalid {
        /// All problems.
        problems: Vec<Problem>,
    },
}

/// One problem in the file.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{file}:{line}: {field}{message}")]
pub struct Problem {
    /// The file.
    pub file: String,
    /// The line, counted from 1.
    pub line: u64,
    /// The field with a colon and a space, or empty for the document itself.
    pub field: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

fn join(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl Config {
    /// How many pods a machine with that many thousandths of a CPU may run.
    #[must_use]
    pub fn pods(&self, cpu_milli: u64) -> u64 {
        allocatable::pods(cpu_milli, self.pods_per_core, self.max_pods)
    }

    /// Thresholds that were set but have no effect, each as a sentence that names its field.
    #[must_use]
    pub fn unwatched(&self) -> Vec<String> {
        let thresholds = self.settings.eviction.thresholds.iter();
        // Defaults are not worth a warning.
        let defaults = EvictionSettings::default().thresholds;
        let is_unwatched = |threshold: &&Threshold| {
            Resource::of(threshold.signal).is_none() && !defaults.contains(threshold)
        };
        thresholds
            .filter(is_unwatched)
            .map(|threshold| {
                let field = if threshold.is_hard() { "evictionHard" } else { "evictionSoft" };
                format!(
                    "{field}.{}: is read but not watched, as disks are not watched: no pod is evicted for it",
                    threshold.signal
                )
            })
            .collect()
    }

    /// A sentence about the unwatched thresholds of disks at the kubelet's defaults; `None` without any.
    #[must_use]
    pub fn unwatched_defaults(&self) -> Option<String> {
        let defaults = EvictionSettings::default().thresholds;
        let of_disks = self
            .settings
            .eviction
            .thresholds
            .iter()
            .filter(|threshold| Resource::of(threshold.signal).is_none() && defaults.contains(threshold));
        let names: Vec<_> = of_disks.map(|threshold| threshold.signal.as_str()).collect();
        (!names.is_empty()).then(|| {
            format!(
                "disks are not watched, that is a kubelet's work: no pod is evicted for the default thresholds of {}",
                names.join(", ")
            )
        })
    }

    /// All settings without effect, also by default, each as a sentence.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.unwatched().into_iter().chain(self.unwatched_defaults()).collect()
    }

    /// A hash of this configuration, equal for equal ones; another build may return another.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut hasher = DefaultHasher::new();
        format!("{self:?}").hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    /// Reads the file at `path`, by default the one at [`DEFAULT_PATH`], which may be missing.
    pub fn load(path: Option<&Path>) -> Result<Self, Error> {
        Effective::load(path, None).map(|effective| effective.config)
    }

    /// Reads the text of a configuration file; `file` is its name in errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, Error> {
        Effective::parse(Some((file, text)), None).map(|effective| effective.config)
    }
}

#[cfg(test)]
mod tests;
