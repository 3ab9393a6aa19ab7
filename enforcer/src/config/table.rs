//! The table of all fields of the configuration. The reader, the schema, `config effective` and the documentation use
//! its names and forms.

mod show;

use serde_json::{Value, json};

pub(super) use self::show::duration;
use self::show::{account, enforced, quantities, thresholds};
use super::{Config, MemoryAvailableSource, Mode, OnDrift, Ownership, PreKillHook, cpus, exposure, sinks};
use crate::{
    kube::{Action, OnPdb, TaintEffect},
    model::Quantity,
    policy::{
        CgroupDriver, CpuWeightFormula, KubeReservedPolicy, MemoryProtection, MemoryReservationPolicy,
        SwapBehavior, engine::BreakerSettings,
    },
};

/// One field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in the file.
    pub name: &'static str,
    /// The form of its value.
    pub form: Form,
    /// Whether a `KubeletConfiguration` has it too, with the same meaning.
    pub kubelets: bool,
    /// Its description.
    pub help: &'static str,
    /// Its value in a configuration, as written in a file; null if it is not set.
    pub show: fn(&Config) -> Value,
}

/// The form of a field's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// True or false.
    Boolean,
    /// A whole number of at least this value.
    Integer(i64),
    /// A number above 0 and at most 1.
    Share,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A duration such as 1m30s.
    Duration,
    /// An IP address and a port.
    Address,
    /// An amount such as 64Mi.
    Quantity,
    /// An absolute path of a file or folder.
    Path,
    /// A user's or a group's name or number.
    Account,
    /// A cgroup's path below the mount point.
    Cgroup,
    /// A list of names.
    Names,
    /// A list of some of these words.
    Words(&'static [&'static str]),
    /// Quantities of these resources.
    Quantities(&'static [&'static str]),
    /// Quantities or percentages by signal.
    Thresholds,
    /// Durations by signal.
    Durations,
    /// An object of these fields.
    Object(&'static [(&'static str, Self)]),
    /// A list of such objects.
    Objects(&'static [(&'static str, Self)]),
    /// Any text.
    Text,
}

/// The resources that may be reserved.
pub(super) const RESERVABLE: &[&str] = &["cpu", "memory", "ephemeral-storage", "pid"];

/// The words of `enforceNodeAllocatable`.
pub(super) const ENFORCEABLE: &[&str] = &[
    "none",
    "pods",
    "system-reserved",
    "system-reserved-compressible",
    "kube-reserved",
    "kube-reserved-compressible",
];

const fn ours(name: &'static str, form: Form, help: &'static str, show: fn(&Config) -> Value) -> Field {
    Field { name, form, kubelets: false, help, show }
}

const fn kubelets(name: &'static str, form: Form, help: &'static str, show: fn(&Config) -> Value) -> Field {
    Field { name, form, kubelets: true, help, show }
}

/// All fields, grouped by topic.
pub const FIELDS: &[Field] = &[
    ours(
        "mode",
        Form::Choice(&["observe", "dry-run", "enforce"]),
        "how far the daemon goes: only observe and report; decide and report, without acting; act",
        |config| json!(config.mode.as_str()),
    ),
    ours(
        "ownership",
        Form::Choice(&["auto", "enforcer", "kubelet"]),
        "which process writes the pods' cgroups; auto: the kubelet if one runs, its kubepods exists, or one was seen since the last boot",
        |config| {
            json!(match config.ownership {
                Ownership::Auto => "auto",
                Ownership::Enforcer => "enforcer",
                Ownership::Kubelet => "kubelet",
            })
        },
    ),
    ours("stateDir", Form::Path, "the folder of data that must outlive a reboot: the journal", |config| {
        json!(config.state_dir)
    }),
    ours(
        "runDir",
        Form::Path,
        "the folder of sockets, and of data that must outlive only the process",
        |config| json!(config.run_dir),
    ),
    ours(
        "observeSocketOwner",
        Form::Account,
        "the user that owns observe.sock, by name or number; not set, the daemon's own",
        |config| account(config.sockets.observe.owner.as_ref()),
    ),
    ours(
        "observeSocketGroup",
        Form::Account,
        "the group that may read from observe.sock, by name or number; not set, the daemon's own",
        |config| account(config.sockets.observe.group.as_ref()),
    ),
    ours(
        "adminSocketOwner",
        Form::Account,
        "a user besides root that may order changes (the owner of admin.sock), by name or number; not set, the daemon's own",
        |config| account(config.sockets.admin.owner.as_ref()),
    ),
    ours(
        "adminSocketGroup",
        Form::Account,
        "a group that may order changes (admin.sock), by name or number; not set, none may",
        |config| account(config.sockets.admin.group.as_ref()),
    ),
    ours(
        "metricsListen",
        Form::Address,
        "an IP address and a port, such as 127.0.0.1:9464, where GET /metrics is served to every client that can reach it; beyond the loopback interface only with metricsTLS, and metricsTokenFile or a clientCAFile; not set, only the observe socket serves it",
        |config| json!(config.metrics_listen.map(|address| address.to_string())),
    ),
    ours(
        "metricsHosts",
        Form::Names,
        "the names of this node that requests to metricsListen may give as their host, besides its host name, localhost and IP addresses: others are refused, as a web page can make any name resolve to this node",
        |config| json!(config.metrics_hosts),
    ),
    ours(
        "metricsTLS",
        exposure::FORM,
        "the PEM files of the certificate and the key with which metricsListen speaks TLS, and of the authorities whose clients' certificates may read it; each is read again every 10 s; not set, it speaks plain HTTP",
        exposure::show,
    ),
    ours(
        "metricsTokenFile",
        Form::Path,
        "a file of the tokens that may read metricsListen, one a line, sent as Authorization: Bearer; with a clientCAFile too, either is enough; read again every 10 s",
        |config| json!(config.metrics_token_file),
    ),
    ours(
        "metricsPodNames",
        Form::Boolean,
        "whether the metrics name the three pods that would be evicted next",
        |config| json!(config.metrics_pod_names),
    ),
    ours(
        "configReload",
        Form::Choice(&["signal", "auto"]),
        "what makes the daemon read this file again, besides enforcer reload: SIGHUP; auto: also a change of the file, as when a mounted ConfigMap changes",
        |config| json!(config.config_reload.as_str()),
    ),
    ours(
        "journalMaxBytes",
        Form::Quantity,
        "the disk space of the journal, 4Mi to 1Gi: whole files are deleted, the oldest first",
        |config| json!(Quantity::from_units(config.journal.max_bytes).binary_si().to_string()),
    ),
    ours(
        "journalMaxAge",
        Form::Duration,
        "how long events are kept, 1h to 8760h (a year), unless journalMaxBytes is reached before",
        |config| json!(duration(config.journal.max_age_ms.saturating_mul(1_000))),
    ),
    kubelets("staticPodPath", Form::Path, "the folder of manifests", |config| json!(config.static_pod_path)),
    ours(
        "criSocket",
        Form::Path,
        "the socket of the container runtime, which gives names to a kubelet's containers; not set, that of the running kubelet's flags or files, or else one of the usual ones",
        |config| json!(config.cri_socket),
    ),
    ours(
        "podSource",
        Form::Choice(&["auto", "static", "podsAPI", "kubelet", "apiServer"]),
        "where requests and priorities of a kubelet's pods are read: its Pods API, its HTTPS server, the API server, the first \
         of them that answers (auto), or nowhere (static)",
        |config| json!(config.pod_source.as_str()),
    ),
    ours(
        "kubeconfig",
        Form::Path,
        "a kubeconfig with the credentials for the kubelet's HTTPS server and for the API server, and with the address of \
         that; not set, what a cluster gives a pod: the service account's token, and the variables \
         KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT",
        |config| json!(config.kubeconfig),
    ),
    ours(
        "kubeletRootDir",
        Form::Path,
        "the kubelet's root directory, where the socket of its Pods API is, and its certificate in pki; not set, those of the \
         running kubelet's flags --root-dir and --cert-dir, or else /var/lib/kubelet and its pki",
        |config| json!(config.kubelet_root_dir),
    ),
    ours("kubeletPort", Form::Integer(1), "the port of the kubelet's HTTPS server", |config| {
        json!(config.kubelet_port)
    }),
    ours(
        "nodeName",
        Form::Text,
        "this node's name in the cluster, by which the API server is asked for its pods; not set, that of the variable \
         NODE_NAME, or else of the kubelet's flag --hostname-override, or the machine's host name in lower case",
        |config| json!(config.node_name),
    ),
    ours(
        "apiAction",
        Form::Choice(&["evict", "delete", "status", "none"]),
        "the request to the API server after a pod of a controller (not a DaemonSet) was evicted: evict it, delete it, mark it \
         Failed with the reason Evicted, or none, so that the kubelet restarts its containers",
        |config| json!(config.api.action.map_or("none", Action::as_str)),
    ),
    ours(
        "onPdb",
        Form::Choice(&["override", "respect"]),
        "what to do if a PodDisruptionBudget refuses the eviction of a pod whose processes are dead: delete the pod, as the \
         kubelet's own eviction ignores budgets too, or retry for an hour",
        |config| {
            json!(match config.api.on_pdb {
                OnPdb::Override => "override",
                OnPdb::Respect => "respect",
            })
        },
    ),
    ours(
        "barePods",
        Form::Choice(&["killOnly", "evict", "status"]),
        "the request to the API server after a pod without a controller was evicted, which nothing recreates: none, evict it, or \
         mark it Failed with the reason Evicted",
        |config| json!(config.api.bare_pods.map_or("killOnly", Action::as_str)),
    ),
    ours(
        "daemonSetPods",
        Form::Choice(&["killOnly", "evict", "status"]),
        "the request to the API server after a pod of a DaemonSet was evicted, which is recreated on this node: none, evict it, \
         or mark it Failed with the reason Evicted",
        |config| json!(config.api.daemon_set_pods.map_or("killOnly", Action::as_str)),
    ),
    ours(
        "nodeCondition",
        Form::Boolean,
        "whether the daemon sets the condition EnforcerMemoryPressure on its node at the API server; only beside a kubelet and with mode: enforce",
        |config| json!(config.node_marks.condition),
    ),
    ours(
        "nodeTaint",
        Form::Choice(&["none", "PreferNoSchedule", "NoSchedule"]),
        "the effect of the taint enforcer.dev/memory-pressure, which the daemon sets on its node at the API server while memory is \
         short; only beside a kubelet and with mode: enforce",
        |config| json!(config.node_marks.taint.map_or("none", TaintEffect::as_str)),
    ),
    ours(
        "unknownPodGrace",
        Form::Duration,
        "how long a kubelet's pod must be known before it may be evicted without its spec, 0s to 1h: then only if it is BestEffort, has a name, and is neither in kube-system nor one that the kubelet counts as critical",
        |config| json!(duration(config.unknown_pod_grace_ms.saturating_mul(1_000))),
    ),
    ours(
        "onDrift",
        Form::Choice(&["restore", "report"]),
        "what to do if another process writes a cgroup file or score of ours: write the planned value back, three times within a minute at once, then with back-off up to a minute for as long as the other process goes on; or only report it",
        |config| {
            json!(match config.on_drift {
                OnDrift::Restore => "restore",
                OnDrift::Report => "report",
            })
        },
    ),
    ours(
        "nodeComponents",
        Form::Names,
        "what the node needs to run pods, as units (kubelet.service) or file names of programs (kubelet): their processes have the score -999, like the daemon's own",
        |config| json!(config.node_components.iter().map(ToString::to_string).collect::<Vec<_>>()),
    ),
    ours(
        "oomScorePolicy",
        Form::Choice(&["static", "ranked"]),
        "what the scores of containers follow: only class and request, as the kubelet's; or also the eviction ranking, so that the kernel's own OOM killer picks the same pod",
        |config| json!(config.oom_score_policy.as_str()),
    ),
    ours(
        "memoryAvailableSource",
        Form::Choice(&["memAvailable", "kubelet"]),
        "how memory.available is computed: the kernel's own estimate, or the kubelet's formula, in which page cache in use counts as used and the kernel's own memory does not, until the kernel finds hardly anything left; beside a kubelet the default is kubelet",
        |config| {
            json!(match config.memory_available_source {
                MemoryAvailableSource::MemAvailable => "memAvailable",
                MemoryAvailableSource::Kubelet => "kubelet",
            })
        },
    ),
    ours(
        "evictionScheduling",
        Form::Choice(&["normal", "rr"]),
        "how the kernel schedules the eviction thread: like others, by its nice value; or in real time, before all threads that are not (SCHED_RR, priority 1)",
        |config| json!(config.eviction_scheduling.as_str()),
    ),
    kubelets(
        "evictionHard",
        Form::Thresholds,
        "the thresholds below which pods are evicted at once; if set, only the signals that it names have one; beside a kubelet the default of memory.available is above the kubelet's own",
        |config| thresholds(config, |threshold| threshold.is_hard().then(|| threshold.value.to_string())),
    ),
    kubelets(
        "evictionSoft",
        Form::Thresholds,
        "the thresholds below which pods are evicted after a grace period",
        |config| thresholds(config, |threshold| (!threshold.is_hard()).then(|| threshold.value.to_string())),
    ),
    kubelets("evictionSoftGracePeriod", Form::Durations, "how long a soft threshold must be met", |config| {
        thresholds(config, |threshold| {
            (!threshold.is_hard()).then(|| duration(threshold.grace_period_ms.saturating_mul(1_000)))
        })
    }),
    kubelets(
        "evictionMinimumReclaim",
        Form::Thresholds,
        "how much more must be available before a threshold no longer counts as met",
        |config| thresholds(config, |threshold| threshold.min_reclaim.map(|reclaim| reclaim.to_string())),
    ),
    kubelets(
        "evictionPressureTransitionPeriod",
        Form::Duration,
        "how long a node condition outlasts its threshold; 0s is the default",
        |config| {
            json!(duration(config.settings.eviction.pressure_transition_period_ms.saturating_mul(1_000)))
        },
    ),
    kubelets(
        "evictionMaxPodGracePeriod",
        Form::Integer(0),
        "the longest grace period in seconds that a soft eviction gives a pod",
        |config| json!(config.settings.eviction.max_pod_grace_period_seconds),
    ),
    ours(
        "preKillHook",
        Form::Object(&[("path", Form::Path), ("args", Form::Names), ("timeout", Form::Duration)]),
        "a program to run as root before a victim is signalled: path (absolute; it and its folders writable only by root), args, and timeout, the longest time that an eviction waits for it (1s; 10ms to 1m)",
        |config| {
            config.pre_kill_hook.as_ref().map_or(Value::Null, |PreKillHook { program, timeout_ms }| {
                json!({"path": program.path, "args": program.args, "timeout": duration(timeout_ms.saturating_mul(1_000))})
            })
        },
    ),
    ours(
        "evictionPriorityCeiling",
        Form::Integer(-2_147_483_648),
        "the highest priority above its own to which a pod's annotation enforcer.dev/eviction-priority may raise its eviction ranking; not set, it may only lower it",
        |config| json!(config.settings.eviction_priority_ceiling),
    ),
    ours(
        "evictWithinRequest",
        Form::Boolean,
        "whether pods that use no more than they request may be evicted, after all others",
        |config| json!(config.settings.eviction.evict_within_request),
    ),
    ours(
        "breaker",
        Form::Object(&[
            ("maxKills", Form::Integer(0)),
            ("window", Form::Duration),
            ("maxShare", Form::Share),
        ]),
        "the most kills within the window, and the largest share of the pods, which applies from ten kills on, or from three on in one shortage that no kill has ended; with one more, eviction becomes a dry run until the configuration is reloaded",
        |config| {
            let BreakerSettings { max_kills, window_ns, max_share_permille } =
                config.settings.eviction.breaker;
            let share = f64::from(max_share_permille) / 1_000.0;
            json!({"maxKills": max_kills, "window": duration(window_ns / 1_000), "maxShare": share})
        },
    ),
    ours(
        "protectedMaxShare",
        Form::Share,
        "the largest share of the node's memory that the pods spared by `enforcer protect` may hold together",
        |config| json!(f64::from(config.protected_max_permille) / 1_000.0),
    ),
    ours(
        "sinks",
        sinks::FORM,
        "where events are pushed to: journald, kubernetes (Events of the API server), and webhook, a list of HTTP receivers; docs/sinks.md has their fields",
        sinks::show,
    ),
    ours(
        "kubeReservedPolicy",
        Form::Choice(&["none", "auto"]),
        "what is reserved of CPU and memory that kubeReserved does not name: nothing, or by the node's capacity; see docs/planning.md",
        |config| {
            json!(match config.settings.kube_reserved_policy {
                KubeReservedPolicy::None => "none",
                KubeReservedPolicy::Auto => "auto",
            })
        },
    ),
    kubelets(
        "mergeDefaultEvictionSettings",
        Form::Boolean,
        "whether signals that evictionHard does not name keep their defaults",
        |config| json!(config.merge_default_eviction_settings),
    ),
    kubelets("systemReserved", Form::Quantities(RESERVABLE), "what is reserved for the system", |config| {
        quantities(&config.settings.system_reserved)
    }),
    kubelets(
        "kubeReserved",
        Form::Quantities(RESERVABLE),
        "what is reserved for Kubernetes' own daemons",
        |config| quantities(&config.settings.kube_reserved),
    ),
    kubelets(
        "enforceNodeAllocatable",
        Form::Words(ENFORCEABLE),
        "which cgroups are limited to what is allocatable or reserved",
        enforced,
    ),
    kubelets("systemReservedCgroup", Form::Cgroup, "the cgroup that systemReserved is for", |config| {
        json!(config.system_reserved_cgroup.as_ref().map(ToString::to_string))
    }),
    kubelets("kubeReservedCgroup", Form::Cgroup, "the cgroup that kubeReserved is for", |config| {
        json!(config.kube_reserved_cgroup.as_ref().map(ToString::to_string))
    }),
    kubelets(
        "reservedSystemCPUs",
        Form::Text,
        "the CPUs that no container gets as its own, such as 0-1,8; their number replaces the cpu of systemReserved and kubeReserved",
        cpus::show_reserved,
    ),
    kubelets("maxPods", Form::Integer(0), "the most pods on the node", |config| json!(config.max_pods)),
    kubelets(
        "podsPerCore",
        Form::Integer(0),
        "the most pods per CPU, within maxPods; 0 is no limit",
        |config| json!(config.pods_per_core),
    ),
    kubelets(
        "cgroupRoot",
        Form::Cgroup,
        "the parent cgroup of kubepods; beside a kubelet, if it is not set here, what the running kubelet's flags or files say",
        |config| json!(config.settings.cgroup_root.to_string()),
    ),
    kubelets(
        "cgroupDriver",
        Form::Choice(&["cgroupfs", "systemd"]),
        "how cgroups are named; beside a kubelet, its kubepods decides",
        |config| {
            json!(match config.settings.cgroup_driver {
                CgroupDriver::Cgroupfs => "cgroupfs",
                CgroupDriver::Systemd => "systemd",
            })
        },
    ),
    kubelets("cpuCFSQuota", Form::Boolean, "whether CPU limits are enforced", |config| {
        json!(config.settings.cpu_cfs_quota)
    }),
    kubelets("cpuCFSQuotaPeriod", Form::Duration, "the period of CPU limits, 1ms to 1s", |config| {
        json!(duration(config.settings.cpu_cfs_quota_period_us))
    }),
    kubelets(
        "cpuManagerPolicy",
        Form::Choice(&["none", "static"]),
        "whether containers of Guaranteed pods that request whole CPUs get these for themselves; see docs/cpus.md",
        cpus::show_policy,
    ),
    kubelets(
        "cpuManagerPolicyOptions",
        Form::Object(&[
            ("full-pcpus-only", Form::Choice(&["true", "false"])),
            ("distribute-cpus-across-cores", Form::Choice(&["true", "false"])),
        ]),
        "which CPUs those are: whole cores only (full-pcpus-only), or threads of different cores (distribute-cpus-across-cores)",
        cpus::show_options,
    ),
    ours(
        "cpuWeightFormula",
        Form::Choice(&["kubelet", "linear"]),
        "how requests become weights: node, classes and pods linear, containers as current runtimes do; or linear everywhere",
        |config| {
            json!(match config.settings.cpu_weight_formula {
                CpuWeightFormula::Kubelet => "kubelet",
                CpuWeightFormula::Linear => "linear",
            })
        },
    ),
    kubelets("podPidsLimit", Form::Integer(-1), "the most tasks of a pod; -1 is no limit", |config| {
        json!(config.settings.pod_pids_limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX)))
    }),
    kubelets(
        "singleProcessOOMKill",
        Form::Boolean,
        "whether the kernel kills only one process of a container, not all",
        |config| json!(config.settings.single_process_oom_kill),
    ),
    kubelets(
        "memorySwap",
        Form::Object(&[("swapBehavior", Form::Choice(&["NoSwap", "LimitedSwap"]))]),
        "whether containers of Burstable pods may swap in proportion to their memory request",
        |config| {
            json!({"swapBehavior": match config.settings.swap_behavior {
                SwapBehavior::NoSwap => "NoSwap",
                SwapBehavior::LimitedSwap => "LimitedSwap",
            }})
        },
    ),
    kubelets(
        "memoryThrottlingFactor",
        Form::Share,
        "where memory.high lies between request and limit; not set, there is none",
        |config| json!(config.settings.memory_throttling_factor),
    ),
    kubelets(
        "memoryReservationPolicy",
        Form::Choice(&["None", "TieredReservation"]),
        "whether requested memory is protected from reclaim: memory.min for Guaranteed pods, memory.low for Burstable ones",
        |config| {
            json!(match config.settings.memory_reservation_policy {
                MemoryReservationPolicy::None => "None",
                MemoryReservationPolicy::TieredReservation => "TieredReservation",
            })
        },
    ),
    ours(
        "memoryProtection",
        Form::Choice(&["kubelet", "request"]),
        "which requested memory is protected from reclaim: what memoryReservationPolicy says; or that of every pod, by memory.min",
        |config| {
            json!(match config.settings.memory_protection {
                MemoryProtection::Kubelet => "kubelet",
                MemoryProtection::Request => "request",
            })
        },
    ),
];

/// The table lists every mode.
const _: () = assert!(Mode::NAMES.len() == 3, "a mode is missing above");

/// The field with that name.
#[must_use]
pub(super) fn field(name: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.name == name)
}
