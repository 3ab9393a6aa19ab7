//! The configuration file: one YAML document of kind `EnforcerConfiguration`.
//!
//! Reading it has no side effects. Every error names file, line and field, and all of them come at once.

mod accounts;
mod fields;
mod read;
mod schema;
mod sinks;
mod table;

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, Read as _},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use self::fields::{Fields, Provenance};
use crate::{
    cgroup,
    journal::Limits,
    model::{CgroupPath, NodeComponent},
    policy::{EvictionSettings, Settings, allocatable, engine::Resource, threshold::Threshold},
    regular,
    sink::SinkSettings,
    trust::{self, Untrusted},
};

pub use self::{
    schema::schema,
    table::{FIELDS, Field, Form},
};

/// Where the configuration is looked for when `--config` is not given; there it may be missing.
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

/// What `nodeComponents` names by default beside kubelets and runtimes.
const KUBE_PROXY: &str = "kube-proxy";

/// The largest configuration file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// The whole configuration, defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `mode`.
    pub mode: Mode,
    /// `ownership`.
    pub ownership: Ownership,
    /// `stateDir`: what must outlive a reboot.
    pub state_dir: PathBuf,
    /// `runDir`: sockets, and what need not.
    pub run_dir: PathBuf,
    /// `observeSocketOwner` and the like: whose the sockets are.
    pub sockets: Sockets,
    /// `metricsListen`: where metrics are told beside the observe socket; none is nowhere.
    pub metrics_listen: Option<SocketAddr>,
    /// `metricsHosts`: under which names, beside the node's own, metrics are answered at `metricsListen`.
    pub metrics_hosts: Vec<String>,
    /// `metricsPodNames`: whether metrics name pods.
    pub metrics_pod_names: bool,
    /// `journalMaxBytes`, `journalMaxAge`: how much is kept of what happened.
    pub journal: Limits,
    /// `staticPodPath`: the folder of manifests.
    pub static_pod_path: PathBuf,
    /// `onDrift`: what is done about a value that somebody else wrote.
    pub on_drift: OnDrift,
    /// `nodeComponents`: what has the score −999, beside the daemon itself.
    pub node_components: Vec<NodeComponent>,
    /// `oomScorePolicy`: what the scores of containers follow.
    pub oom_score_policy: OomScorePolicy,
    /// `memoryAvailableSource`.
    pub memory_available_source: MemoryAvailableSource,
    /// `evictionScheduling`: how the thread that evicts is scheduled.
    pub eviction_scheduling: Scheduling,
    /// `protectedMaxShare`, in thousandths: how much of the node's memory protected pods may hold together.
    pub protected_max_permille: u16,
    /// `maxPods`.
    pub max_pods: u64,
    /// `podsPerCore`; 0 is no such limit.
    pub pods_per_core: u64,
    /// `mergeDefaultEvictionSettings`: how the thresholds were read.
    pub merge_default_eviction_settings: bool,
    /// `systemReservedCgroup`, enforced or not.
    pub system_reserved_cgroup: Option<CgroupPath>,
    /// `kubeReservedCgroup`, enforced or not.
    pub kube_reserved_cgroup: Option<CgroupPath>,
    /// `preKillHook`: what is run before a victim is signalled.
    pub pre_kill_hook: Option<PreKillHook>,
    /// `sinks`: where events are pushed to.
    pub sinks: SinkSettings,
    /// Everything that decides the plan.
    pub settings: Settings,
}

/// `preKillHook`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PreKillHook {
    /// The program and its arguments.
    pub program: HookProgram,
    /// How long an eviction waits for it at the most, in milliseconds: 10 ms to a minute.
    pub timeout_ms: u64,
}

/// Who writes the pods' cgroups.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ownership {
    /// The kubelet where one runs or its kubepods is there, else we.
    Auto,
    /// We do.
    Enforcer,
    /// The kubelet does.
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
            metrics_pod_names: false,
            journal: Limits::default(),
            static_pod_path: "/etc/enforcer/pods".into(),
            on_drift: OnDrift::Restore,
            node_components: cgroup::COMPONENTS
                .iter()
                .chain([&KUBE_PROXY])
                .map(|name| NodeComponent::Executable((*name).to_owned()))
                .collect(),
            oom_score_policy: OomScorePolicy::Static,
            memory_available_source: MemoryAvailableSource::MemAvailable,
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
        }
    }
}

/// Why there is no configuration: everything that is wrong with the file, in its order.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read.
    #[error("cannot read the configuration {path}: --config names another")]
    Read {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Others may change it: who writes there has this process write to cgroups and end pods.
    #[error("the configuration {path} {why}: {remedy}")]
    Untrusted {
        /// The file, or a folder that leads to it.
        path: String,
        /// Who may.
        why: String,
        /// What to do about it.
        remedy: String,
    },
    /// Its content is wrong.
    #[error("{}", join(problems))]
    Invalid {
        /// One entry for each thing that is wrong.
        problems: Vec<Problem>,
    },
}

/// One thing that is wrong with the file.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{file}:{line}: {field}{message}")]
pub struct Problem {
    /// The file.
    pub file: String,
    /// The line, counted from 1.
    pub line: u64,
    /// The field with a colon and a space, or nothing for the document itself.
    pub field: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

fn join(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl Config {
    /// How many pods a machine with that many thousandths of a cpu may run.
    #[must_use]
    pub fn pods(&self, cpu_milli: u64) -> u64 {
        allocatable::pods(cpu_milli, self.pods_per_core, self.max_pods)
    }

    /// Thresholds that were set, and are read and not acted on, each as a sentence that names its field.
    #[must_use]
    pub fn unwatched(&self) -> Vec<String> {
        let thresholds = self.settings.eviction.thresholds.iter();
        // What is so by default is no news to whoever set others.
        let defaults = EvictionSettings::default().thresholds;
        let is_unwatched = |threshold: &&Threshold| {
            Resource::of(threshold.signal).is_none() && !defaults.contains(threshold)
        };
        thresholds
            .filter(is_unwatched)
            .map(|threshold| {
                let field = if threshold.is_hard() { "evictionHard" } else { "evictionSoft" };
                format!(
                    "{field}.{}: is read and not watched, as disks are not: nobody is evicted for it",
                    threshold.signal
                )
            })
            .collect()
    }

    /// The thresholds of disks that are at the kubelet's defaults and not watched, as a sentence; none where there is none.
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

    /// All that is configured, also by default, and not acted on, each as a sentence.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.unwatched().into_iter().chain(self.unwatched_defaults()).collect()
    }

    /// A short name for this very configuration, equal for equal ones; another build may give another.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut hasher = DefaultHasher::new();
        format!("{self:?}").hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    /// Reads the file at `path`; without one the file at the default place, which may be missing.
    pub fn load(path: Option<&Path>) -> Result<Self, Error> {
        Effective::load(path, None).map(|effective| effective.config)
    }

    /// Reads the text of a configuration file; `file` is its name, for the errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, Error> {
        Effective::parse(Some((file, text)), None).map(|effective| effective.config)
    }
}

/// The configuration in force, and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Effective {
    /// The configuration.
    pub config: Config,
    /// Where each field stands that is not at its default.
    pub origins: BTreeMap<&'static str, Origin>,
    /// The fields of a kubelet's file that do not concern us.
    pub ignored: Vec<Ignored>,
}

/// A place in a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Origin {
    /// The file.
    pub file: String,
    /// The line, counted from 1.
    pub line: u64,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.file, self.line)
    }
}

/// A field that was passed over.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ignored {
    /// Its name.
    pub field: String,
    /// Where it stands.
    pub origin: Origin,
}

impl Effective {
    /// Reads the file at `path`, or the one at the default place if there is one, over a kubelet's file.
    pub fn load(path: Option<&Path>, kubelets: Option<&Path>) -> Result<Self, Error> {
        let own = match path {
            Some(path) => Some((path, text(path)?)),
            None => match text(Path::new(DEFAULT_PATH)) {
                Ok(text) => Some((Path::new(DEFAULT_PATH), text)),
                Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
        };
        let kubelets = kubelets.map(|path| Ok((path, text(path)?))).transpose()?;
        let named =
            |file: Option<(&Path, String)>| file.map(|(path, text)| (path.display().to_string(), text));
        let (own, kubelets) = (named(own), named(kubelets));
        Self::parse(own.as_ref().map(borrowed), kubelets.as_ref().map(borrowed))
    }

    /// Whether only root and this process's user may change the files that [`Self::load`] reads, and what leads to them. A
    /// read-only mount is trusted. A file that is missing is left to that.
    pub fn check_trust(path: Option<&Path>, kubelets: Option<&Path>) -> Result<(), Error> {
        for path in [Some(path.unwrap_or_else(|| Path::new(DEFAULT_PATH))), kubelets].into_iter().flatten() {
            let failed = |source| Error::Read { path: path.display().to_string(), source };
            match trust::check_file(path) {
                Ok(Ok(())) => {}
                Ok(Err((path, Untrusted { why, remedy }))) => {
                    return Err(Error::Untrusted { path: path.display().to_string(), why, remedy });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    /// Reads the texts of our own file and of a kubelet's, each with its name for the errors.
    pub fn parse(own: Option<(&str, &str)>, kubelets: Option<(&str, &str)>) -> Result<Self, Error> {
        let mut fields = Fields::default();
        if let Some((file, text)) = kubelets {
            fields.read(file, text, true, KUBELETS_API_VERSION, KUBELETS_KIND)?;
        }
        if let Some((file, text)) = own {
            fields.read(file, text, false, API_VERSION, KIND)?;
        }
        let config = read::read(&mut fields);
        match fields.finish() {
            Ok(Provenance { origins, ignored }) => Ok(Self { config, origins, ignored }),
            Err(problems) => Err(Error::Invalid { problems }),
        }
    }

    /// What was configured and is not acted on by this version, each with its field.
    #[must_use]
    pub fn unwatched(&self) -> Vec<String> {
        self.config.unwatched()
    }
}

fn borrowed((file, text): &(String, String)) -> (&str, &str) {
    (file, text)
}

/// Reads a file that is text and not too large. Anything but a regular file is refused: a pipe could keep us for ever.
fn text(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::Read { path: path.display().to_string(), source };
    let wrong = |message: &str| failed(io::Error::new(io::ErrorKind::InvalidInput, message.to_owned()));
    let mut bytes = Vec::new();
    regular::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > MAX_BYTES) {
        return Err(wrong("it is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = before.split(|byte| *byte == b'\n').count();
        Error::Invalid {
            problems: vec![Problem {
                file: path.display().to_string(),
                line: u64::try_from(line).unwrap_or(u64::MAX),
                field: String::new(),
                message: String::from("is not UTF-8 text"),
            }],
        }
    })
}

#[cfg(test)]
mod tests;
