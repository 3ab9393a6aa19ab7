//! The kubelet's formulas for one pod, stated anew in their plainest form from its specification: exact integers, no
//! sharing of intermediate results, nothing taken from the code that is compared. Each names the upstream function.

use std::collections::BTreeMap;

use super::pod::{Amounts, Container, Kind, Pod, Resources, UNIT};

/// cgroup files and the text in them; what equals the kernel's default is left out.
pub(crate) type Files = BTreeMap<String, String>;

/// The settings that the formulas depend on.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the kubelet's configuration")]
pub(crate) struct Options {
    pub(crate) systemd: bool,
    pub(crate) linear_containers: bool,
    pub(crate) cfs_quota: bool,
    pub(crate) period_us: i128,
    pub(crate) pids_limit: Option<i128>,
    pub(crate) single_process_oom_kill: bool,
    pub(crate) tiered: bool,
    pub(crate) limited_swap: bool,
}

/// What the machine has.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) cpu_milli: i128,
    pub(crate) memory_bytes: i128,
    pub(crate) swap_bytes: i128,
    pub(crate) pods: i128,
    /// Sizes by resource name, in bytes that are set aside.
    pub(crate) huge: BTreeMap<String, i128>,
    pub(crate) ephemeral_bytes: i128,
    pub(crate) max_pids: i128,
}

pub(crate) fn value(nano: i128) -> i128 {
    (nano + UNIT - 1).div_euclid(UNIT)
}

pub(crate) fn milli(nano: i128) -> i128 {
    (nano + UNIT / 1_000 - 1).div_euclid(UNIT / 1_000)
}

fn get(list: &Amounts, name: &str) -> i128 {
    list.get(name).copied().unwrap_or(0)
}

fn is_supported(name: &str) -> bool {
    name == "cpu" || name == "memory" || name.starts_with("hugepages-")
}

/// `SetDefaults_Pod`, `defaultHugePagePodLimits` and `defaultPodRequests` of `pkg/apis/core/v1/defaults.go`.
pub(crate) fn defaulted(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    for Container { resources: Resources { requests, limits }, .. } in &mut pod.containers {
        for (name, limit) in limits.iter() {
            requests.entry(name.clone()).or_insert(*limit);
        }
    }
    let together = aggregate(&pod, |resources| &resources.requests);
    let huge = aggregate(&pod, |resources| &resources.limits);
    if let Some(level) = &mut pod.level {
        for (name, limit) in huge.iter().filter(|(name, _)| name.starts_with("hugepages-")) {
            level.limits.entry(name.clone()).or_insert(*limit);
        }
    }
    if let Some(level) = &mut pod.level
        && !level.limits.is_empty()
    {
        for (name, amount) in &together {
            if name == "cpu" || name == "memory" {
                level.requests.entry(name.clone()).or_insert(*amount);
            }
        }
        for (name, limit) in level.limits.iter().filter(|(name, _)| is_supported(name)) {
            level.requests.entry(name.clone()).or_insert(*limit);
        }
    }
    pod
}

/// `AggregateContainerRequests` and `AggregateContainerLimits`.
fn aggregate(pod: &Pod, of: impl Fn(&Resources) -> &Amounts) -> Amounts {
    let names: Vec<&String> =
        pod.containers.iter().flat_map(|container| of(&container.resources).keys()).collect();
    let mut result = Amounts::new();
    for name in names {
        let amount = |container: &Container| get(of(&container.resources), name);
        let running: i128 = pod.containers.iter().filter(|one| one.kind != Kind::Init).map(amount).sum();
        let mut most = running;
        let mut sidecars = 0;
        for container in pod.containers.iter().filter(|one| one.kind != Kind::App) {
            if container.kind == Kind::Sidecar {
                sidecars += amount(container);
                most = most.max(sidecars);
            } else {
                most = most.max(amount(container) + sidecars);
            }
        }
        result.insert(name.clone(), most);
    }
    result
}

/// `PodRequests` of `component-helpers/resource/helpers.go`.
pub(crate) fn requests(pod: &Pod) -> Amounts {
    let mut result = aggregate(pod, |resources| &resources.requests);
    for (name, amount) in
        pod.level.iter().flat_map(|level| &level.requests).filter(|(name, _)| is_supported(name))
    {
        result.insert(name.clone(), *amount);
    }
    for (name, amount) in &pod.overhead {
        *result.entry(name.clone()).or_insert(0) += amount;
    }
    result
}

/// `PodLimits` of the same file: overhead adds to what is limited alone.
pub(crate) fn limits(pod: &Pod) -> Amounts {
    let mut result = aggregate(pod, |resources| &resources.limits);
    for (name, amount) in
        pod.level.iter().flat_map(|level| &level.limits).filter(|(name, _)| is_supported(name))
    {
        result.insert(name.clone(), *amount);
    }
    for (name, amount) in &pod.overhead {
        if let Some(limit) = result.get_mut(name).filter(|limit| **limit != 0) {
            *limit += amount;
        }
    }
    result
}

/// `GetResourceRequestQuantity` of `pkg/api/v1/resource/helpers.go`, in billionths.
pub(crate) fn request_quantity(pod: &Pod, resource: &str) -> i128 {
    let is_level_set = pod
        .level
        .iter()
        .any(|level| level.requests.keys().chain(level.limits.keys()).any(|name| is_supported(name)));
    let own = if is_level_set {
        let of_level =
            |level: &Resources| if is_supported(resource) { get(&level.requests, resource) } else { 0 };
        pod.level.as_ref().map_or(0, of_level)
    } else {
        get(&aggregate(pod, |resources| &resources.requests), resource)
    };
    if own == 0 { 0 } else { own + get(&pod.overhead, resource) }
}

/// What the ranking compares a pod's usage with, in bytes.
pub(crate) fn ranking_request(pod: &Pod) -> i128 {
    value(request_quantity(pod, "memory"))
}

/// `ComputePodQOS`, with the pod-level branch as fixed in 1.37.
pub(crate) fn class(pod: &Pod) -> &'static str {
    const NAMES: [&str; 2] = ["cpu", "memory"];
    let level = pod
        .level
        .as_ref()
        .filter(|level| level.requests.keys().chain(level.limits.keys()).any(|name| is_supported(name)));
    let of: Vec<&Resources> = match level {
        Some(level) => vec![level],
        None => pod.containers.iter().map(|container| &container.resources).collect(),
    };
    let sum = |list: fn(&Resources) -> &Amounts, name: &str| -> i128 {
        of.iter().map(|resources| get(list(resources), name).max(0)).sum()
    };
    let requests = NAMES.map(|name| sum(|resources| &resources.requests, name));
    let limits = NAMES.map(|name| sum(|resources| &resources.limits, name));
    if requests == [0, 0] && limits == [0, 0] {
        return "BestEffort";
    }
    let all_limited = of.iter().all(|resources| NAMES.iter().all(|name| get(&resources.limits, name) > 0));
    if all_limited && requests == limits { "Guaranteed" } else { "Burstable" }
}

/// `IsCriticalPod` of `pkg/kubelet/types/pod_update.go`.
pub(crate) fn is_critical(pod: &Pod) -> bool {
    let source = pod.annotations.get("kubernetes.io/config.source");
    source.is_some_and(|source| source != "api")
        || pod.annotations.contains_key("kubernetes.io/config.mirror")
        || pod.priority.is_some_and(|priority| priority >= 2_000_000_000)
}

/// `GetContainerOOMScoreAdjust` of `pkg/kubelet/qos/policy.go`.
pub(crate) fn score(pod: &Pod, container: &Container, machine: &Machine) -> i128 {
    let is_node_critical =
        is_critical(pod) && pod.priority_class_name.as_deref() == Some("system-node-critical");
    if is_node_critical || class(pod) == "Guaranteed" {
        return -997;
    }
    if class(pod) == "BestEffort" {
        return 1_000;
    }
    let capacity = machine.memory_bytes;
    let request = |container: &Container| value(get(&container.resources.requests, "memory"));
    let level_requests = pod.level.as_ref().map(|level| &level.requests);
    let rest = match level_requests.filter(|list| list.keys().any(|name| is_supported(name))) {
        Some(list) if get(list, "memory") != 0 => {
            let together = get(&aggregate(pod, |resources| &resources.requests), "memory");
            let count = i128::try_from(pod.containers.len()).unwrap_or(i128::MAX);
            (value(get(list, "memory")) - value(together)) / count
        }
        _ => 0,
    };
    let mut score = 1_000 - 1_000 * (request(container) + rest) / capacity;
    if container.kind == Kind::Sidecar {
        let least = pod.apps().map(request).min().unwrap_or(0);
        score = score.min(1_000 - 1_000 * (least + rest) / capacity);
    }
    if score < 3 {
        3
    } else if score == 1_000 {
        999
    } else {
        score
    }
}

/// `MilliCPUToShares` of `pkg/kubelet/cm/helpers_linux.go`.
pub(crate) fn shares(milli: i128) -> i128 {
    if milli == 0 { 2 } else { (milli * 1_024 / 1_000).clamp(2, 262_144) }
}

/// `getCPUWeight` of `pkg/kubelet/cm/cgroup_manager_linux.go`.
pub(crate) fn linear(shares: i128) -> i128 {
    if shares >= 262_144 { 10_000 } else { 1 + (shares - 2) * 9_999 / 262_142 }
}

/// `ConvertCPUSharesToCgroupV2Value` of opencontainers/cgroups, as runtimes apply it to containers.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "below 10,000, as upstream computes it"
)]
pub(crate) fn quadratic(shares: i128) -> i128 {
    if shares <= 2 {
        return 1;
    }
    if shares >= 262_144 {
        return 10_000;
    }
    let log = (shares as f64).log2();
    10_f64.powf((log * log + 125.0 * log) / 612.0 - 7.0 / 34.0).ceil() as i128
}

/// `MilliCPUToQuota`.
fn quota(milli: i128, period_us: i128) -> i128 {
    (milli * period_us / 1_000).max(1_000)
}

/// What a file holds.
struct Text(String);

impl From<i128> for Text {
    fn from(number: i128) -> Self {
        Self(number.to_string())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text)
    }
}

fn put(files: &mut Files, name: &str, value: impl Into<Text>) {
    files.insert(name.to_owned(), value.into().0);
}

fn put_quota(files: &mut Files, limit: i128, options: &Options) {
    if options.cfs_quota && milli(limit) > 0 {
        let mut quota = quota(milli(limit), options.period_us);
        if options.systemd {
            // systemd keeps whole percents of a second (`addCPUQuota` of opencontainers/cgroups).
            let percents = (quota * 100 + options.period_us - 1) / options.period_us;
            quota = percents * options.period_us / 100;
        }
        put(files, "cpu.max", format!("{quota} {}", options.period_us));
    }
}

pub(crate) fn huge_file(name: &str) -> String {
    let size = match name {
        "hugepages-2Mi" => "2MB",
        "hugepages-1Gi" => "1GB",
        other => other,
    };
    format!("hugetlb.{size}.max")
}

/// `ResourceConfigForPod` of `pkg/kubelet/cm/helpers_linux.go`.
pub(crate) fn pod_files(pod: &Pod, machine: &Machine, options: &Options) -> Files {
    let (requests, limits, class) = (requests(pod), limits(pod), class(pod));
    let mut files = Files::new();
    let cpu = if class == "BestEffort" { 0 } else { milli(get(&requests, "cpu")) };
    put(&mut files, "cpu.weight", linear(shares(cpu)));
    if class != "BestEffort" {
        let guaranteed = class == "Guaranteed";
        if guaranteed || declares_all(pod, "cpu") {
            put_quota(&mut files, get(&limits, "cpu"), options);
        }
        let memory = value(get(&limits, "memory"));
        if (guaranteed || declares_all(pod, "memory")) && memory > 0 {
            put(&mut files, "memory.max", memory);
        }
    }
    for name in machine.huge.keys() {
        put(&mut files, &huge_file(name), value(get(&requests, name)));
    }
    if let Some(limit) = options.pids_limit {
        put(&mut files, "pids.max", limit);
    }
    if class != "BestEffort" {
        protect(&mut files, class, value(get(&requests, "memory")), options);
    }
    files
}

/// Whether every container declared a limit, init containers with the sidecars before them.
fn declares_all(pod: &Pod, name: &str) -> bool {
    if pod.level.as_ref().is_some_and(|level| get(&level.limits, name) > 0) {
        return true;
    }
    let mut sidecars = 0;
    pod.containers.iter().all(|container| {
        let own = get(&container.resources.limits, name);
        let declared = match container.kind {
            Kind::App => own,
            Kind::Init | Kind::Sidecar => own + sidecars,
        };
        if container.kind == Kind::Sidecar {
            sidecars += own;
        }
        declared > 0
    })
}

/// Memory QoS with the policy `TieredReservation` (KEP-2570).
fn protect(files: &mut Files, class: &str, request: i128, options: &Options) {
    if options.tiered && request > 0 {
        put(files, if class == "Guaranteed" { "memory.min" } else { "memory.low" }, request);
    }
}

/// `generateLinuxContainerResources` of `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`, and what runtimes make of it.
pub(crate) fn container_files(
    pod: &Pod,
    container: &Container,
    machine: &Machine,
    options: &Options,
) -> Files {
    let Resources { requests, limits } = &container.resources;
    let level = |name: &str| pod.level.as_ref().map_or(0, |level| get(&level.limits, name));
    let or_level = |name: &str| match get(limits, name) {
        0 => level(name),
        own => own,
    };
    let mut files = Files::new();
    // Without a request the limit counts, be it the pod's (`calculateLinuxResources`).
    let cpu = requests.get("cpu").copied().unwrap_or_else(|| or_level("cpu"));
    let weight = if options.linear_containers { linear } else { quadratic };
    put(&mut files, "cpu.weight", weight(shares(milli(cpu))));
    put_quota(&mut files, or_level("cpu"), options);
    let memory = value(or_level("memory"));
    if memory > 0 {
        put(&mut files, "memory.max", memory);
    }
    put(&mut files, "memory.oom.group", i128::from(!options.single_process_oom_kill));
    for name in machine.huge.keys() {
        let own = limits.get(name).copied();
        put(&mut files, &huge_file(name), value(own.unwrap_or_else(|| level(name))));
    }
    let request = value(get(requests, "memory"));
    put(&mut files, "memory.swap.max", swap(pod, container, machine, options));
    protect(&mut files, class(pod), request, options);
    files
}

/// `configureSwap` and `getSwapBehavior` of `pkg/kubelet/kuberuntime` (KEP-2400).
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "as upstream computes it")]
fn swap(pod: &Pod, container: &Container, machine: &Machine, options: &Options) -> i128 {
    let Resources { requests, limits } = &container.resources;
    let request = value(get(requests, "memory"));
    let may_swap = options.limited_swap
        && class(pod) == "Burstable"
        && !is_critical(pod)
        && request > 0
        && get(requests, "memory") != get(limits, "memory")
        && request <= machine.memory_bytes;
    if !may_swap {
        return 0;
    }
    (request as f64 / machine.memory_bytes as f64 * machine.swap_bytes as f64) as i128
}

/// Where a pod's cgroup is: `pkg/kubelet/cm/cgroup_manager_linux.go` and `pod_container_manager_linux.go`.
pub(crate) fn pod_path(pod: &Pod, options: &Options) -> String {
    let tier = match class(pod) {
        "Guaranteed" => "",
        "Burstable" => "burstable",
        _ => "besteffort",
    };
    match (options.systemd, tier) {
        (false, "") => format!("/kubepods/pod{}", pod.uid),
        (false, tier) => format!("/kubepods/{tier}/pod{}", pod.uid),
        (true, "") => format!("/kubepods.slice/kubepods-pod{}.slice", pod.uid.replace('-', "_")),
        (true, tier) => format!(
            "/kubepods.slice/kubepods-{tier}.slice/kubepods-{tier}-pod{}.slice",
            pod.uid.replace('-', "_")
        ),
    }
}
