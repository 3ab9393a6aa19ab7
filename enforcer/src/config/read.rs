//! Builds the configuration from the fields of the files.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use super::{
    self as config, Access, Config, MemoryAvailableSource, Mode, OnDrift, OomScorePolicy, Ownership,
    PodSource, PreKillHook, ReloadOn, Scheduling, Sockets, accounts, cpus, exposure,
    fields::{Fields, Pair},
    sinks,
    table::{ENFORCEABLE, RESERVABLE},
};
use crate::{
    evict::HookProgram,
    journal::Limits,
    kube::{Action, ApiSettings, NodeSettings, OnPdb, TaintEffect},
    model::{CgroupPath, NodeComponent, ParseQuantityError, Quantity, ResourceList, ResourceName},
    policy::{
        CgroupDriver, CpuWeightFormula, EvictionSettings, KubeReservedPolicy, MemoryProtection,
        MemoryReservationPolicy, ReservedCgroup, ReservedScope, Settings, SwapBehavior, duration,
        engine::BreakerSettings,
        threshold::{self, Map, Signal, Threshold, Written},
    },
};

/// The default of `preKillHook.timeout`.
const DEFAULT_HOOK_TIMEOUT_MS: u64 = 1_000;

/// `apiAction`.
const API_ACTIONS: [(&str, Option<Action>); 4] = [
    ("evict", Some(Action::Evict)),
    ("delete", Some(Action::Delete)),
    ("status", Some(Action::Status)),
    ("none", None),
];

/// `barePods` and `daemonSetPods`.
const ACTIONS_FOR_SPECIAL_PODS: [(&str, Option<Action>); 3] =
    [("killOnly", None), ("evict", Some(Action::Evict)), ("status", Some(Action::Status))];

/// `nodeTaint`.
const TAINT_EFFECTS: [(&str, Option<TaintEffect>); 3] = [
    ("none", None),
    ("PreferNoSchedule", Some(TaintEffect::PreferNoSchedule)),
    ("NoSchedule", Some(TaintEffect::NoSchedule)),
];

fn journal(fields: &mut Fields, default: Limits) -> Limits {
    Limits {
        max_bytes: fields.text("journalMaxBytes", journal_bytes).unwrap_or(default.max_bytes),
        max_age_ms: fields.text("journalMaxAge", journal_age_ms).unwrap_or(default.max_age_ms),
    }
}

/// What is asked of the API server.
fn api(fields: &mut Fields, default: ApiSettings) -> ApiSettings {
    ApiSettings {
        action: fields.choice("apiAction", &API_ACTIONS).unwrap_or(default.action),
        on_pdb: fields
            .choice("onPdb", &[("override", OnPdb::Override), ("respect", OnPdb::Respect)])
            .unwrap_or(default.on_pdb),
        bare_pods: fields.choice("barePods", &ACTIONS_FOR_SPECIAL_PODS).unwrap_or(default.bare_pods),
        daemon_set_pods: fields
            .choice("daemonSetPods", &ACTIONS_FOR_SPECIAL_PODS)
            .unwrap_or(default.daemon_set_pods),
    }
}

/// What is set on the node while memory is short.
fn node_marks(fields: &mut Fields) -> NodeSettings {
    NodeSettings {
        condition: fields.boolean("nodeCondition").unwrap_or_default(),
        taint: fields.choice("nodeTaint", &TAINT_EFFECTS).flatten(),
    }
}

/// Takes every field, fills in defaults, and checks rules that span fields.
pub(super) fn read(fields: &mut Fields) -> Config {
    let default = Config::default();
    let system_reserved_cgroup = fields.text("systemReservedCgroup", cgroup);
    let kube_reserved_cgroup = fields.text("kubeReservedCgroup", cgroup);
    let enforced = enforced(fields);
    let mut held = |what: &str, field: &'static str, path: &Option<CgroupPath>| {
        let scope = enforced.scope(what)?;
        if path.is_none() {
            fields.wrong(
                "enforceNodeAllocatable",
                &format!(
                    "names {what}-reserved, but {field} is not set: set it to a cgroup such as /system.slice"
                ),
            );
        }
        path.clone().map(|path| ReservedCgroup { path, scope })
    };
    let system_held = held("system", "systemReservedCgroup", &system_reserved_cgroup);
    let kube_held = held("kube", "kubeReservedCgroup", &kube_reserved_cgroup);
    let merge_default_eviction_settings =
        fields.boolean("mergeDefaultEvictionSettings").unwrap_or(default.merge_default_eviction_settings);
    let (eviction, hard_memory_at) = eviction(fields, merge_default_eviction_settings, enforced.pods);
    let others = settings(fields);
    let others = cpus::read(fields, others);
    let settings = Settings {
        enforce_pods: enforced.pods,
        system_reserved_cgroup: system_held,
        kube_reserved_cgroup: kube_held,
        eviction,
        ..others
    };
    cpus::check(fields, &settings, [&system_reserved_cgroup, &kube_reserved_cgroup]);
    let (memory_available_source, memory_available_source_at) = memory_available_source(fields)
        .unwrap_or((default.memory_available_source, config::Written::default()));
    let config = Config {
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
        sockets: sockets(fields),
        metrics_listen: fields.text("metricsListen", address),
        metrics_hosts: fields.list("metricsHosts", host).unwrap_or(default.metrics_hosts),
        metrics_tls: exposure::tls(fields),
        metrics_token_file: fields.text("metricsTokenFile", absolute),
        metrics_pod_names: fields.boolean("metricsPodNames").unwrap_or(default.metrics_pod_names),
        config_reload: fields.choice("configReload", ReloadOn::NAMES).unwrap_or(default.config_reload),
        journal: journal(fields, default.journal),
        static_pod_path: fields.text("staticPodPath", absolute).unwrap_or(default.static_pod_path),
        cri_socket: fields.text("criSocket", absolute),
        pod_source: fields.choice("podSource", PodSource::NAMES).unwrap_or(default.pod_source),
        kubeconfig: fields.text("kubeconfig", absolute),
        kubelet_root_dir: fields.text("kubeletRootDir", absolute),
        kubelet_port: fields.text("kubeletPort", port).unwrap_or(default.kubelet_port),
        node_name: fields.text("nodeName", node_name),
        api: api(fields, default.api),
        node_marks: node_marks(fields),
        unknown_pod_grace_ms: fields
            .text("unknownPodGrace", unknown_pod_grace_ms)
            .unwrap_or(default.unknown_pod_grace_ms),
        on_drift: fields
            .choice("onDrift", &[("restore", OnDrift::Restore), ("report", OnDrift::Report)])
            .unwrap_or(default.on_drift),
        node_components: fields.list("nodeComponents", component).unwrap_or(default.node_components),
        oom_score_policy: fields
            .choice("oomScorePolicy", OomScorePolicy::NAMES)
            .unwrap_or(default.oom_score_policy),
        memory_available_source,
        memory_available_source_at,
        hard_memory_at,
        cgroup_root_at: config::Written(fields.own_origin("cgroupRoot")),
        eviction_scheduling: fields
            .choice("evictionScheduling", Scheduling::NAMES)
            .unwrap_or(default.eviction_scheduling),
        protected_max_permille: fields
            .text("protectedMaxShare", permille)
            .unwrap_or(default.protected_max_permille),
        max_pods: whole(fields, "maxPods").unwrap_or(default.max_pods),
        pods_per_core: whole(fields, "podsPerCore").unwrap_or(default.pods_per_core),
        merge_default_eviction_settings,
        system_reserved_cgroup,
        kube_reserved_cgroup,
        pre_kill_hook: hook(fields),
        sinks: sinks::read(fields),
        settings,
        value_sources: config::ValueSources::default(),
    };
    check(fields, &config);
    config
}

/// Checks rules that span fields.
fn check(fields: &mut Fields, config: &Config) {
    // Invalid values were replaced by defaults, and checking these would report the problem twice.
    if fields.has_problems() {
        return;
    }
    exposure::check(fields, config);
    if let Err(errors) = config.settings.check() {
        for error in errors {
            let message = error.to_string();
            let reported = message.strip_prefix(&format!("{}: ", error.field())).unwrap_or(&message);
            fields.wrong(error.field(), reported);
        }
    }
}

/// The settings that do not depend on others.
fn settings(fields: &mut Fields) -> Settings {
    let default = Settings::default();
    Settings {
        cgroup_root: fields.text("cgroupRoot", cgroup).unwrap_or(default.cgroup_root),
        cgroup_driver: fields
            .choice(
                "cgroupDriver",
                &[("cgroupfs", CgroupDriver::Cgroupfs), ("systemd", CgroupDriver::Systemd)],
            )
            .unwrap_or(default.cgroup_driver),
        cpu_weight_formula: fields
            .choice(
                "cpuWeightFormula",
                &[("kubelet", CpuWeightFormula::Kubelet), ("linear", CpuWeightFormula::Linear)],
            )
            .unwrap_or(default.cpu_weight_formula),
        cpu_cfs_quota: fields.boolean("cpuCFSQuota").unwrap_or(default.cpu_cfs_quota),
        cpu_cfs_quota_period_us: fields
            .text("cpuCFSQuotaPeriod", cfs_period_us)
            .unwrap_or(default.cpu_cfs_quota_period_us),
        pod_pids_limit: fields
            .integer("podPidsLimit", -1)
            .map_or(default.pod_pids_limit, |limit| u64::try_from(limit).ok().filter(|limit| *limit > 0)),
        single_process_oom_kill: fields
            .boolean("singleProcessOOMKill")
            .unwrap_or(default.single_process_oom_kill),
        system_reserved: reserved(fields, "systemReserved"),
        kube_reserved: reserved(fields, "kubeReserved"),
        kube_reserved_policy: fields
            .choice(
                "kubeReservedPolicy",
                &[("none", KubeReservedPolicy::None), ("auto", KubeReservedPolicy::Auto)],
            )
            .unwrap_or(default.kube_reserved_policy),
        memory_throttling_factor: fields
            .text("memoryThrottlingFactor", throttling_factor)
            .or(default.memory_throttling_factor),
        memory_reservation_policy: fields
            .choice(
                "memoryReservationPolicy",
                &[
                    ("None", MemoryReservationPolicy::None),
                    ("TieredReservation", MemoryReservationPolicy::TieredReservation),
                ],
            )
            .unwrap_or(default.memory_reservation_policy),
        memory_protection: fields
            .choice(
                "memoryProtection",
                &[("kubelet", MemoryProtection::Kubelet), ("request", MemoryProtection::Request)],
            )
            .unwrap_or(default.memory_protection),
        swap_behavior: swap_behavior(fields),
        eviction_priority_ceiling: priority(fields, "evictionPriorityCeiling"),
        ..default
    }
}

/// `memoryAvailableSource`, and where our own file says it.
fn memory_available_source(fields: &mut Fields) -> Option<(MemoryAvailableSource, config::Written)> {
    let choices =
        [("memAvailable", MemoryAvailableSource::MemAvailable), ("kubelet", MemoryAvailableSource::Kubelet)];
    let source = fields.choice("memoryAvailableSource", &choices)?;
    Some((source, config::Written(fields.own_origin("memoryAvailableSource"))))
}

/// The owners and groups of the sockets.
fn sockets(fields: &mut Fields) -> Sockets {
    let mut access = |owner, group| Access {
        owner: fields.text(owner, |text| accounts::user(Path::new(accounts::USERS), text)),
        group: fields.text(group, |text| accounts::group(Path::new(accounts::GROUPS), text)),
    };
    Sockets {
        observe: access("observeSocketOwner", "observeSocketGroup"),
        admin: access("adminSocketOwner", "adminSocketGroup"),
    }
}

/// `preKillHook`: the program's path, its arguments, and how long to wait for it.
fn hook(fields: &mut Fields) -> Option<PreKillHook> {
    let mut inner = fields.inner("preKillHook")?;
    let path = fields.inner_text(&mut inner, "path", absolute);
    let args = fields.inner_list(&mut inner, "args", argument).unwrap_or_default();
    let timeout_ms = fields.inner_text(&mut inner, "timeout", hook_timeout_ms);
    let has_path = inner.has("path");
    fields.inner_end(inner);
    if !has_path {
        fields.wrong("preKillHook", "path is missing: write the absolute path of a program");
    }
    let program = HookProgram { path: path?, args };
    Some(PreKillHook { program, timeout_ms: timeout_ms.unwrap_or(DEFAULT_HOOK_TIMEOUT_MS) })
}

fn argument(text: &str) -> Result<String, String> {
    if text.contains('\0') {
        Err(String::from("an argument cannot hold a zero byte"))
    } else {
        Ok(text.to_owned())
    }
}

fn hook_timeout_ms(text: &str) -> Result<u64, String> {
    let timeout = duration::parse(text).map_err(|error| error.to_string())?;
    u64::try_from(timeout.as_millis())
        .ok()
        .filter(|ms| (10..=60_000).contains(ms))
        .ok_or_else(|| format!("{text:?} is not a timeout: write 10ms to 1m, such as 2s"))
}

fn journal_bytes(text: &str) -> Result<u64, String> {
    let bytes: Quantity = text.parse().map_err(|error: ParseQuantityError| error.to_string())?;
    u64::try_from(bytes.value_ceil())
        .ok()
        .filter(|bytes| (4 << 20..=1 << 30).contains(bytes))
        .ok_or_else(|| format!("{text:?} is not a size of the journal: write 4Mi to 1Gi, such as 64Mi"))
}

fn journal_age_ms(text: &str) -> Result<u64, String> {
    let age = duration::parse(text).map_err(|error| error.to_string())?;
    u64::try_from(age.as_millis())
        .ok()
        .filter(|ms| (3_600_000..=365 * 86_400_000).contains(ms))
        .ok_or_else(|| format!("{text:?} is not an age of events: write 1h to 8760h, such as 168h"))
}

fn unknown_pod_grace_ms(text: &str) -> Result<u64, String> {
    let grace = duration::parse(text).map_err(|error| error.to_string())?;
    u64::try_from(grace.as_millis())
        .ok()
        .filter(|ms| *ms <= 3_600_000)
        .ok_or_else(|| format!("{text:?} is too long: write 0s to 1h, such as 10s"))
}

/// A DNS name without a port.
fn host(name: &str) -> Result<String, String> {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    if name.len() <= 253 && name.split('.').all(is_label) {
        return Ok(name.to_owned());
    }
    Err(format!("{name:?} is not the name of a host, such as node-1.example.com, without a port"))
}

/// A node's name: a DNS subdomain.
fn node_name(name: &str) -> Result<String, String> {
    match host(name) {
        Ok(name) if name.bytes().all(|byte| !byte.is_ascii_uppercase() && byte != b'_') => Ok(name),
        _ => Err(format!("{name:?} is not the name of a node, such as node-1.example.com, in lower case")),
    }
}

fn component(name: &str) -> Result<NodeComponent, String> {
    NodeComponent::parse(name).map_err(|error| error.to_string())
}

pub(super) fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err(format!("{text:?} is not an absolute path")) }
}

/// Not a host name: its resolver would decide where pods' namespaces are exposed.
fn address(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse::<SocketAddr>().ok().filter(|address| address.port() != 0);
    address.ok_or_else(|| {
        format!("{text:?} is not an IP address and a port: write such as 127.0.0.1:9464 or \"[::1]:9464\"")
    })
}

fn cgroup(text: &str) -> Result<CgroupPath, String> {
    CgroupPath::parse(text).map_err(|error| error.to_string())
}

fn whole(fields: &mut Fields, field: &'static str) -> Option<u64> {
    fields.integer(field, 0).and_then(|number| u64::try_from(number).ok())
}

fn port(text: &str) -> Result<u16, String> {
    let port = text.parse::<u16>().ok().filter(|port| *port != 0);
    port.ok_or_else(|| format!("{text:?} is not a port: write a whole number from 1 to 65535"))
}

fn priority(fields: &mut Fields, field: &'static str) -> Option<i32> {
    fields.text(field, |text| {
        text.parse().map_err(|_error| format!("{text:?} is not a priority: write a whole number of 32 bits"))
    })
}

/// 1 ms to 1 s, the kernel's range (`kernel/sched/core.c`, `tg_set_cfs_bandwidth`).
fn cfs_period_us(text: &str) -> Result<u64, String> {
    let period = duration::parse(text).map_err(|error| error.to_string())?;
    u64::try_from(period.as_micros())
        .ok()
        .filter(|us| (1_000..=1_000_000).contains(us))
        .ok_or_else(|| format!("{text:?} is not a period: write 1ms to 1s, such as 100ms"))
}

fn throttling_factor(text: &str) -> Result<f64, String> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    text.parse()
        .ok()
        .filter(|factor| plain && *factor > 0.0 && *factor <= 1.0)
        .ok_or_else(|| format!("{text:?} is not a factor: write a number above 0 and at most 1, such as 0.9"))
}

/// A share in thousandths, rounded up.
fn permille(text: &str) -> Result<u16, String> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let share: Option<Quantity> = text.parse().ok().filter(|_| plain);
    share
        .and_then(|share| u16::try_from(share.milli_value_ceil()).ok())
        .filter(|permille| (1..=1_000).contains(permille))
        .ok_or_else(|| format!("{text:?} is not a share: write a number above 0 and at most 1, such as 0.5"))
}

fn reserved(fields: &mut Fields, field: &'static str) -> ResourceList {
    let quantity = |name: &str, text: &str| -> Result<Quantity, String> {
        if !RESERVABLE.contains(&name) {
            return Err(format!("not a resource that can be reserved: {}", RESERVABLE.join(", ")));
        }
        let quantity: Quantity = text.parse().map_err(|error: ParseQuantityError| error.to_string())?;
        if quantity.is_negative() {
            return Err(format!("{text:?} is negative: a reservation is zero or more"));
        }
        Ok(quantity)
    };
    let entries = fields.mapping(field, quantity);
    entries.into_iter().map(|(name, quantity)| (ResourceName::new(&name), quantity)).collect()
}

/// `enforceNodeAllocatable`.
struct Enforced {
    pods: bool,
    names: Vec<String>,
}

impl Enforced {
    fn scope(&self, what: &str) -> Option<ReservedScope> {
        let has = |name: String| self.names.contains(&name);
        if has(format!("{what}-reserved")) {
            Some(ReservedScope::All)
        } else if has(format!("{what}-reserved-compressible")) {
            Some(ReservedScope::Compressible)
        } else {
            None
        }
    }
}

/// The kubelet's rules (`ValidateKubeletConfiguration`): `none` excludes all others, and a cgroup is limited either to
/// all of its reservation or only to its CPU.
fn enforced(fields: &mut Fields) -> Enforced {
    let names = fields.list("enforceNodeAllocatable", |text| {
        if ENFORCEABLE.contains(&text) {
            Ok(text.to_owned())
        } else {
            Err(format!("{text:?} is not one of {}", ENFORCEABLE.join(", ")))
        }
    });
    let Some(names) = names else { return Enforced { pods: true, names: Vec::new() } };
    let has = |name: &str| names.iter().any(|named| named == name);
    if has("none") && names.len() > 1 {
        fields.wrong("enforceNodeAllocatable", "none stands alone: leave it out, or the others");
    }
    for what in ["system", "kube"] {
        let (all, cpu) = (format!("{what}-reserved"), format!("{what}-reserved-compressible"));
        if has(&all) && has(&cpu) {
            fields.wrong(
                "enforceNodeAllocatable",
                &format!("{all} and {cpu} exclude each other: leave one out"),
            );
        }
    }
    Enforced { pods: has("pods"), names }
}

fn swap_behavior(fields: &mut Fields) -> SwapBehavior {
    let behaviors = fields.mapping("memorySwap", |key, text| match (key, text) {
        // The kubelet takes an empty string as the default.
        ("swapBehavior", "" | "NoSwap") => Ok(SwapBehavior::NoSwap),
        ("swapBehavior", "LimitedSwap") => Ok(SwapBehavior::LimitedSwap),
        ("swapBehavior", other) => Err(format!("{other:?} is not one of NoSwap, LimitedSwap")),
        _ => Err(String::from("unknown field: swapBehavior is the only one")),
    });
    behaviors.into_iter().next().map(|(_, behavior)| behavior).unwrap_or_default()
}

/// The settings of evictions, and where our own file decides about the hard threshold of memory.
fn eviction(
    fields: &mut Fields,
    merge_defaults: bool,
    enforce_pods: bool,
) -> (EvictionSettings, config::Written) {
    let default = EvictionSettings::default();
    let transition = fields.text("evictionPressureTransitionPeriod", |text| {
        duration::parse(text).map_err(|error| error.to_string())
    });
    // The kubelet takes zero as not set.
    let transition_ms = transition
        .filter(|period| !period.is_zero())
        .map(|period| u64::try_from(period.as_millis()).unwrap_or(u64::MAX));
    let max_grace = whole(fields, "evictionMaxPodGracePeriod");
    let (thresholds, hard_memory_at) = thresholds(fields, merge_defaults, enforce_pods);
    let settings = EvictionSettings {
        thresholds,
        pressure_transition_period_ms: transition_ms.unwrap_or(default.pressure_transition_period_ms),
        max_pod_grace_period_seconds: max_grace.unwrap_or(default.max_pod_grace_period_seconds),
        evict_within_request: fields.boolean("evictWithinRequest").unwrap_or(default.evict_within_request),
        breaker: breaker(fields),
    };
    (settings, hard_memory_at)
}

fn breaker(fields: &mut Fields) -> BreakerSettings {
    enum Part {
        MaxKills(u16),
        WindowNs(u64),
        MaxSharePermille(u16),
    }
    let parts = fields.mapping("breaker", |key, text| match key {
        "maxKills" => text
            .parse()
            .map(Part::MaxKills)
            .map_err(|_error| format!("{text:?} is not a number of kills: write 0 to {}", u16::MAX)),
        "window" => duration::parse(text)
            .map_err(|error| error.to_string())
            .map(|window| u64::try_from(window.as_nanos()).unwrap_or(u64::MAX))
            .and_then(|ns| {
                if ns == 0 {
                    Err(format!("{text:?} is not a duration above 0: write such as 10m"))
                } else {
                    Ok(Part::WindowNs(ns))
                }
            }),
        "maxShare" => permille(text).map(Part::MaxSharePermille),
        _ => Err(String::from("unknown field: write maxKills, window or maxShare")),
    });
    let mut breaker = BreakerSettings::default();
    for (_, part) in parts {
        match part {
            Part::MaxKills(kills) => breaker.max_kills = kills,
            Part::WindowNs(ns) => breaker.window_ns = ns,
            Part::MaxSharePermille(share) => breaker.max_share_permille = share,
        }
    }
    breaker
}

fn thresholds(
    fields: &mut Fields,
    merge_defaults: bool,
    enforce_pods: bool,
) -> (Vec<Threshold>, config::Written) {
    const MAPS: [Map; 4] = [Map::Hard, Map::Soft, Map::SoftGracePeriod, Map::MinimumReclaim];
    let maps = MAPS.map(|map| fields.pairs(map.field()));
    let plain = maps.each_ref().map(|pairs| {
        let entries = pairs.iter().flatten();
        entries.map(|Pair { key, text, .. }| (key.clone(), text.clone())).collect::<Vec<_>>()
    });
    let [hard, soft, soft_grace_period, minimum_reclaim] = &plain;
    let written = Written {
        hard: maps.first().is_some_and(Option::is_some).then_some(hard),
        soft,
        soft_grace_period,
        minimum_reclaim,
        merge_defaults,
        enforce_pods,
    };
    let named = maps
        .first()
        .into_iter()
        .flatten()
        .flatten()
        .find(|pair| pair.key == Signal::MemoryAvailable.as_str());
    // Without the defaults, a map that does not name it decides that there is none.
    let decides = fields.own_origin(Map::Hard.field()).filter(|_| named.is_some() || !merge_defaults);
    let hard_memory_at = config::Written(decides.map(|field| named.map_or(field, Pair::origin)));
    let thresholds = match threshold::from_configuration(&written) {
        Ok(thresholds) => thresholds,
        Err(wrong) => {
            for invalid in wrong {
                let pairs = MAPS.iter().zip(&maps).find(|(map, _)| **map == invalid.map);
                let pair = pairs
                    .and_then(|(_, pairs)| pairs.iter().flatten().find(|pair| pair.key == invalid.signal));
                if let Some(pair) = pair {
                    fields.wrong_pair(invalid.map.field(), pair, &invalid.problem.to_string());
                }
            }
            Vec::new()
        }
    };
    (thresholds, hard_memory_at)
}
