//! The configuration file: one YAML document of kind `EnforcerConfiguration`.
//!
//! Reading it has no side effects. Every error names file, line and field, and all of them come at once.

mod fields;

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    path::{Path, PathBuf},
};

use self::fields::Fields;
use crate::{
    model::{CgroupPath, ParseQuantityError, Quantity, ResourceList, ResourceName},
    policy::{
        CpuWeightFormula, EvictionSettings, Settings, SwapBehavior,
        threshold::{self, Signal, Threshold, ThresholdValue},
    },
    yaml::{Entry, Node, Value, shown},
};

/// Where the configuration is looked for when `--config` is not given; there it may be missing.
pub const DEFAULT_PATH: &str = "/etc/enforcer/config.yaml";

const API_VERSION: &str = "enforcer.dev/v1alpha1";
const KIND: &str = "EnforcerConfiguration";

pub use crate::policy::engine::Mode;

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
    /// `staticPodPath`: the folder of manifests.
    pub static_pod_path: PathBuf,
    /// `maxPods`.
    pub max_pods: u64,
    /// Everything that decides the plan.
    pub settings: Settings,
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
            static_pod_path: "/etc/enforcer/pods".into(),
            max_pods: 110,
            settings: Settings::default(),
        }
    }
}

/// Why there is no configuration: everything that is wrong with the file, in its order.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read.
    #[error("cannot read the configuration {path}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
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
    /// A short name for this very configuration, equal for equal ones; another build may give another.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut hasher = DefaultHasher::new();
        format!("{self:?}").hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    /// Reads the file at `path`; without one the file at the default place, which may be missing.
    pub fn load(path: Option<&Path>) -> Result<Self, Error> {
        let (path, required) = path.map_or((Path::new(DEFAULT_PATH), false), |path| (path, true));
        let failed = |source| Error::Read { path: path.display().to_string(), source };
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !required => return Ok(Self::default()),
            Err(error) => return Err(failed(error)),
            Ok(metadata) if metadata.len() > MAX_BYTES => {
                return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB")));
            }
            Ok(_) => {}
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Reads the text of a configuration file; `file` is its name, for the errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, Error> {
        let root = Node::parse(text, 1).map_err(|(line, message)| Error::Invalid {
            problems: vec![Problem { file: file.to_owned(), line, field: String::new(), message }],
        })?;
        let mut fields = Fields::new(file, root);
        let config = read(&mut fields);
        let problems = fields.finish();
        if problems.is_empty() { Ok(config) } else { Err(Error::Invalid { problems }) }
    }
}

fn read(fields: &mut Fields) -> Config {
    let default = Config::default();
    let one_of = |expected: &'static str| {
        move |text: &str| -> Result<(), String> {
            if text == expected {
                Ok(())
            } else {
                Err(format!("{text:?} is not supported: write {expected}"))
            }
        }
    };
    if fields.text("apiVersion", one_of(API_VERSION)).is_none() {
        fields.missing("apiVersion", API_VERSION);
    }
    if fields.text("kind", one_of(KIND)).is_none() {
        fields.missing("kind", KIND);
    }
    let settings = Settings {
        cgroup_root: fields
            .text("cgroupRoot", |text| CgroupPath::parse(text).map_err(|error| error.to_string()))
            .unwrap_or(default.settings.cgroup_root),
        cpu_weight_formula: fields
            .choice(
                "cpuWeightFormula",
                &[("kubelet", CpuWeightFormula::Kubelet), ("linear", CpuWeightFormula::Linear)],
            )
            .unwrap_or(default.settings.cpu_weight_formula),
        cpu_cfs_quota: fields.boolean("cpuCFSQuota").unwrap_or(default.settings.cpu_cfs_quota),
        cpu_cfs_quota_period_us: fields
            .text("cpuCFSQuotaPeriod", cfs_period_us)
            .unwrap_or(default.settings.cpu_cfs_quota_period_us),
        pod_pids_limit: fields.text("podPidsLimit", pids_limit).unwrap_or(default.settings.pod_pids_limit),
        single_process_oom_kill: fields
            .boolean("singleProcessOOMKill")
            .unwrap_or(default.settings.single_process_oom_kill),
        system_reserved: reserved(fields, "systemReserved"),
        kube_reserved: reserved(fields, "kubeReserved"),
        enforce_pods: enforce_node_allocatable(fields).unwrap_or(default.settings.enforce_pods),
        swap_behavior: swap_behavior(fields),
        eviction: eviction(fields),
        ..default.settings
    };
    fields.text("cgroupDriver", one_of("cgroupfs"));
    Config {
        mode: fields.choice("mode", Mode::NAMES).unwrap_or(default.mode),
        ownership: fields
            .choice(
                "ownership",
                &[
                    ("auto", Ownership::Auto),
                    ("enforcer", Ownership::Enforcer),
                    ("kubelet", Ownership::Kubelet),
                ],
            )
            .unwrap_or(default.ownership),
        state_dir: fields.text("stateDir", absolute).unwrap_or(default.state_dir),
        run_dir: fields.text("runDir", absolute).unwrap_or(default.run_dir),
        static_pod_path: fields.text("staticPodPath", absolute).unwrap_or(default.static_pod_path),
        max_pods: fields
            .text("maxPods", |text| text.parse().map_err(|_error| format!("{text:?} is not a whole number")))
            .unwrap_or(default.max_pods),
        settings,
    }
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err(format!("{text:?} is not an absolute path")) }
}

/// A Go duration of 1 ms to 1 s, which is what the kernel takes (`kernel/sched/core.c`, `tg_set_cfs_bandwidth`).
fn cfs_period_us(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a period: write 1ms to 1s, such as 100ms");
    let scaled = |digits: &str, factor: u64| {
        digits.parse::<u64>().ok().and_then(|count| count.checked_mul(factor)).ok_or_else(wrong)
    };
    let us = if let Some(digits) = text.strip_suffix("ms") {
        scaled(digits, 1_000)?
    } else if let Some(digits) = text.strip_suffix("us") {
        scaled(digits, 1)?
    } else {
        scaled(text.strip_suffix('s').ok_or_else(wrong)?, 1_000_000)?
    };
    if (1_000..=1_000_000).contains(&us) { Ok(us) } else { Err(wrong()) }
}

fn pids_limit(text: &str) -> Result<Option<u64>, String> {
    match text.parse::<i64>() {
        Ok(limit) => Ok(u64::try_from(limit).ok().filter(|limit| *limit > 0)),
        Err(_) => Err(format!("{text:?} is not a whole number: write a limit, or -1 for none")),
    }
}

fn reserved(fields: &mut Fields, field: &str) -> ResourceList {
    let quantity = |name: &str, text: &str| -> Result<Quantity, String> {
        if !matches!(name, ResourceName::CPU | ResourceName::MEMORY | "ephemeral-storage" | "pid") {
            return Err(String::from(
                "not a resource that can be reserved: cpu, memory, ephemeral-storage or pid",
            ));
        }
        let quantity: Quantity = text.parse().map_err(|error: ParseQuantityError| error.to_string())?;
        if quantity < Quantity::default() {
            return Err(format!("{text:?} is negative: a reservation is zero or more"));
        }
        Ok(quantity)
    };
    fields
        .mapping(field, quantity)
        .into_iter()
        .map(|(name, quantity)| (ResourceName::new(&name), quantity))
        .collect()
}

fn enforce_node_allocatable(fields: &mut Fields) -> Option<bool> {
    let names = fields.list("enforceNodeAllocatable", |text| match text {
        "pods" | "none" => Ok(text == "pods"),
        other => Err(format!("{other:?} is not supported: write pods or none")),
    })?;
    Some(names.into_iter().any(|pods| pods))
}

fn swap_behavior(fields: &mut Fields) -> SwapBehavior {
    let behaviors = fields.mapping("memorySwap", |key, text| match (key, text) {
        // The kubelet takes an empty word for the default.
        ("swapBehavior", "" | "NoSwap") => Ok(SwapBehavior::NoSwap),
        ("swapBehavior", "LimitedSwap") => Ok(SwapBehavior::LimitedSwap),
        ("swapBehavior", other) => Err(format!("{other:?} is not one of NoSwap, LimitedSwap")),
        _ => Err(String::from("unknown field")),
    });
    behaviors.into_iter().next().map(|(_, behavior)| behavior).unwrap_or_default()
}

fn eviction(fields: &mut Fields) -> EvictionSettings {
    let default = EvictionSettings::default();
    if !fields.has("evictionHard") {
        return default;
    }
    let memory_available = fields.mapping("evictionHard", |signal, text| match signal {
        "memory.available" => threshold::parse(text).map_err(|error| error.to_string()),
        _ => Err(String::from("not a signal that is watched: memory.available")),
    });
    // As in the kubelet: a signal that is not named, once some are, has no threshold.
    let value: Option<ThresholdValue> = memory_available.into_iter().next().and_then(|(_, value)| value);
    let thresholds = [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable]
        .into_iter()
        .filter_map(|signal| value.map(|value| Threshold::hard(signal, value)))
        .collect();
    EvictionSettings { thresholds, ..default }
}

#[cfg(test)]
mod tests;
