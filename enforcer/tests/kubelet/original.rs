//! Which of upstream's tables are read in their original shape, and how each row is judged.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};
use enforcer::{
    model::{Pod, Quantity, ResourceList, ResourceName},
    policy::{
        CpuWeightFormula, EvictionSettings, MemoryReservationPolicy, Settings, allocatable, cpu, critical,
        effective, hugepages,
        threshold::{self, Signal, Threshold, ThresholdValue, Written},
        values,
    },
};
use serde_json::Value;

use super::{
    case::{self, PodCase, Texts},
    node,
    upstream::{field, pod},
};

/// Judges one row, given its name.
pub(crate) type Judge = fn(&str, &Value) -> Judged;

/// What is, and what should be; none where upstream does not look at it either, or where it is of another world.
type Judged = Result<Option<(String, String)>>;

/// Tables that are read row by row.
pub(crate) const READ: &[(&str, Judge)] = &[
    ("cm.TestCpuWeightToCPUShares", cpu_weight),
    ("cm.TestHugePageLimits", huge_page_limits),
    ("cm.TestMilliCPUToQuota", quota),
    ("cm.TestNodeAllocatableForEnforcement", unreserved),
    ("cm.TestNodeAllocatableInputValidation", reservation_is_valid),
    ("cm.TestNodeAllocatableInputValidation.ephemeral", reservation_is_valid),
    ("cm.TestNodeAllocatableReservationForScheduling", reservation),
    ("cm.TestNodeAllocatableReservationForScheduling.ephemeral", reservation),
    ("cm.TestResourceConfigForPod", pod_cgroup),
    ("cm.TestResourceConfigForPodWithEnforceMemoryQoS", pod_memory_qos),
    ("eviction.TestParsePercentage", percentage),
    ("eviction.TestParseThresholdConfig", threshold_config),
    ("types.TestIsCriticalPod", |_, row| predicate(row, critical::is_critical)),
    ("types.TestIsCriticalPodBasedOnPriority", |_, row| {
        let pod = Pod { priority: priority(field(row, "priority"))?, ..PodCase::default().build()? };
        same(critical::is_critical(&pod), flag(row, "expected"))
    }),
    ("types.TestIsMirrorPod", |_, row| predicate(row, critical::is_mirror)),
    ("types.TestIsNodeCriticalPod", |_, row| predicate(row, critical::is_node_critical)),
    ("types.TestIsStaticPod", |_, row| predicate(row, critical::is_static)),
    ("types.TestPreemptable", |_, row| {
        let (preemptor, other) = (annotated(field(row, "preemptor"))?, annotated(field(row, "preemptee"))?);
        same(critical::may_preempt(&preemptor, &other), flag(row, "expected"))
    }),
    ("v1resource.TestGetResourceRequest", ranking_request),
];

/// Tables that `upstream` turns into the fixtures' shape.
pub(crate) const RESTATED: &[&str] = &[
    "qos.TestComputePodQOS",
    "qos.TestGetContainerOOMScoreAdjust",
    "resource.TestAggregateContainerRequestsAndLimits",
    "resource.TestPodLevelResourceRequests",
    "resource.TestPodRequestsAndLimits",
    "resource.TestPodRequestsAndLimitsWithoutOverhead",
    "resource.TestPodResourceLimits",
    "resource.TestPodResourceRequests",
];

/// Why the others are not read here.
pub(crate) const NOT_READ: &[(&str, &str)] = &[
    ("cm.TestCgroupNameToCgroupfs", TABLE),
    ("cm.TestCgroupNameToSystemd", TABLE),
    ("cm.TestCgroupNameToSystemdBasename", TABLE),
    ("cm.TestParseSystemdToCgroupName", TABLE),
    ("eviction.TestAddAllocatableThresholds", TABLE),
    ("eviction.TestCompareThresholdValue", "compares by `ThresholdValue`'s own equality"),
    ("eviction.TestEvictionMessage", TABLE),
    ("eviction.TestGetReclaimableThreshold", TABLE),
    ("eviction.TestNodeConditions", TABLE),
    ("eviction.TestNodeConditionsLastObservedAt", TABLE),
    ("eviction.TestNodeConditionsObservedSince", TABLE),
    ("eviction.TestPercentageThresholdsMet", TABLE),
    ("eviction.TestSortByEvictionPriority", TABLE),
    ("eviction.TestThresholdsFirstObservedAt", TABLE),
    ("eviction.TestThresholdsMet", TABLE),
    ("eviction.TestThresholdsMetGracePeriod", TABLE),
    ("eviction.TestThresholdsUpdatedStats", TABLE),
    ("eviction.TestUpdateThreshold", "the notifier of cgroup v1: there is none here"),
    ("evictionmgr.TestPIDPressure", TABLE),
    ("evictionmgr.TestPIDPressure_VerifyPodStatus", TABLE),
    ("kuberuntime.TestCalculateLinuxResources", FIXTURE),
    ("kuberuntime.TestGenerateContainerConfigWithMemoryQoSEnforced", FIXTURE),
    ("kuberuntime.TestGenerateLinuxContainerConfigResources", FIXTURE),
    ("kuberuntime.TestGenerateLinuxContainerResources", FIXTURE),
    ("kuberuntime.TestGenerateLinuxContainerResourcesWithSwap", FIXTURE),
    ("kuberuntime.TestGetContainerSwapBehavior", FIXTURE),
    ("kuberuntime.TestGetHugepageLimitsFromResources", FIXTURE),
    ("lifecycle.TestGeneralPredicates", TABLE),
    ("nodestatus.TestMachineInfo", FIXTURE),
    (
        "nodestatus.TestMemoryPressureCondition",
        "the conditions of a Node object, which only the kubelet writes",
    ),
    ("preemption.TestAdmissionRequirementsDistance", TABLE),
    ("preemption.TestAdmissionRequirementsSubtract", TABLE),
    ("preemption.TestGetPodsToPreempt", TABLE),
    ("preemption.TestHandleAdmissionFailure", TABLE),
    ("preemption.TestSmallerResourceRequest", TABLE),
    ("resource.TestIsPodLevelLimitsSet", EFFECTIVE),
    ("resource.TestIsPodLevelResourcesSet", EFFECTIVE),
    ("resource.TestIsSupportedPodLevelResource", EFFECTIVE),
];

const TABLE: &str =
    "restated beside the code, where its helper calls are spelled out; not read in the original shape";
const FIXTURE: &str = "restated in fixtures/kubelet, as cgroup v2 has it; not read in the original shape";
const EFFECTIVE: &str = "a helper of upstream's, seen here in the effective requests that it leads to";

#[expect(clippy::unnecessary_wraps, reason = "what each judge ends with")]
fn same<T: std::fmt::Debug>(is: T, should: T) -> Judged {
    Ok(Some((format!("{is:?}"), format!("{should:?}"))))
}

fn flag(row: &Value, name: &str) -> bool {
    field(row, name).as_bool() == Some(true)
}

fn number(row: &Value, name: &str) -> Result<u64> {
    field(row, name).as_u64().with_context(|| format!("no {name}"))
}

fn built(value: &Value) -> Result<Pod> {
    serde_json::from_value::<PodCase>(pod(value)?)?.build()
}

/// Whether a row has pod-level resources, and upstream's gate for them is off.
fn is_gated(row: &Value) -> Result<bool> {
    Ok(!flag(row, "podLevelResourcesEnabled") && built(field(row, "pod"))?.resources.is_some())
}

fn cpu_weight(_: &str, row: &Value) -> Judged {
    same(cpu::shares_of_weight(number(row, "cpuWeight")?), number(row, "expectedCpuShares")?)
}

fn quota(_: &str, row: &Value) -> Judged {
    let quota = cpu::quota_us(number(row, "input")?, number(row, "period")?);
    same(quota.unwrap_or(0), number(row, "quota")?)
}

fn huge_page_limits(_: &str, row: &Value) -> Judged {
    let mut list = ResourceList::new();
    for input in field(row, "inputs").as_array().context("no inputs")? {
        let key = field(input, "key").as_str().context("no key")?;
        // A call of `strconv.FormatInt` with 2 MiB.
        let key = if key.contains("[2097152, 10]") { "hugepages-2097152" } else { key };
        let amount = field(input, "input").as_str().context("no input")?.parse()?;
        list.insert(ResourceName::new(key), amount);
    }
    let should: BTreeMap<String, u64> = serde_json::from_value(field(row, "expected").clone())?;
    let should = should.into_iter().map(|(size, limit)| Ok((size.parse()?, limit))).collect::<Result<_>>()?;
    same(hugepages::by_page_bytes(&list), should)
}

fn list(value: &Value) -> Result<ResourceList> {
    if value.is_null() {
        return Ok(ResourceList::new());
    }
    if field(value, "call").as_str() == Some("getEphemeralStorageResourceList") {
        let amount = value["args"][0].as_str().context("no amount")?;
        if amount.is_empty() {
            return Ok(ResourceList::new());
        }
        return case::list(&Texts::from([(String::from("ephemeral-storage"), amount.to_owned())]));
    }
    case::list(&serde_json::from_value(value.clone())?)
}

fn threshold_value(value: &Value) -> Result<ThresholdValue> {
    if let Some(share) = field(value, "Percentage").as_f64() {
        // As upstream's table: a 32-bit float.
        return Ok(ThresholdValue::Share(share.to_string().parse()?));
    }
    let quantity: Quantity = field(value, "Quantity").as_str().context("no value")?.parse()?;
    Ok(ThresholdValue::Amount(quantity.units()))
}

/// The capacity, and the settings.
fn reserving(row: &Value) -> Result<(ResourceList, Settings)> {
    let capacity = list(field(row, "capacity"))?;
    let is_storage = field(field(row, "capacity"), "call").as_str().is_some();
    let signal = if is_storage { Signal::NodefsAvailable } else { Signal::MemoryAvailable };
    let hard = field(row, "hardThreshold");
    let thresholds =
        if hard.is_null() { vec![] } else { vec![Threshold::hard(signal, threshold_value(hard)?)] };
    let settings = Settings {
        kube_reserved: list(field(row, "kubeReserved"))?,
        system_reserved: list(field(row, "systemReserved"))?,
        eviction: EvictionSettings { thresholds, ..EvictionSettings::default() },
        ..Settings::default()
    };
    Ok((capacity, settings))
}

fn unreserved(_: &str, row: &Value) -> Judged {
    let (capacity, settings) = reserving(row)?;
    same(allocatable::unreserved(&capacity, &settings), list(field(row, "expected"))?)
}

fn reservation(_: &str, row: &Value) -> Judged {
    let (capacity, settings) = reserving(row)?;
    same(allocatable::reservation(&capacity, &settings), list(field(row, "expected"))?)
}

fn reservation_is_valid(_: &str, row: &Value) -> Judged {
    let (capacity, settings) = reserving(row)?;
    same(!allocatable::overreserved(&capacity, &settings).is_empty(), flag(row, "invalidConfiguration"))
}

fn pod_settings(row: &Value) -> Result<Settings> {
    Ok(Settings {
        cpu_cfs_quota: flag(row, "enforceCPULimits"),
        cpu_cfs_quota_period_us: number(row, "quotaPeriod")?,
        cpu_weight_formula: CpuWeightFormula::Linear,
        ..Settings::default()
    })
}

fn pod_cgroup(_: &str, row: &Value) -> Judged {
    if is_gated(row)? {
        return Ok(None);
    }
    let expected = field(row, "expected");
    let mut should = Texts::new();
    let weight = cpu::weight_linear(number(expected, "CPUShares")?);
    should.insert(String::from("cpu.weight"), weight.to_string());
    match (field(expected, "CPUQuota").as_i64(), field(expected, "CPUPeriod").as_u64()) {
        (Some(-1), Some(100_000)) | (None, _) => {}
        (Some(-1), Some(period)) => drop(should.insert(String::from("cpu.max"), format!("max {period}"))),
        (Some(quota), Some(period)) => {
            should.insert(String::from("cpu.max"), format!("{quota} {period}"));
        }
        (Some(_), None) => bail!("a quota without a period"),
    }
    if let Some(memory) = field(expected, "Memory").as_u64() {
        should.insert(String::from("memory.max"), memory.to_string());
    }
    let node = node(1 << 33, ResourceList::new());
    same(values::pod(&built(field(row, "pod"))?, &node, &pod_settings(row)?).to_text(), should)
}

/// Upstream compares `Unified` only.
fn pod_memory_qos(_: &str, row: &Value) -> Judged {
    let settings = Settings {
        memory_reservation_policy: MemoryReservationPolicy::TieredReservation,
        ..pod_settings(row)?
    };
    let node = node(1 << 33, ResourceList::new());
    let mut files = values::pod(&built(field(row, "pod"))?, &node, &settings).to_text();
    files.retain(|file, _| ["memory.min", "memory.low", "memory.high"].contains(&file.as_str()));
    let should = field(field(row, "expected"), "Unified");
    same(files, if should.is_null() { Texts::new() } else { serde_json::from_value(should.clone())? })
}

fn percentage(text: &str, row: &Value) -> Judged {
    let is = match threshold::parse(text) {
        Ok(Some(ThresholdValue::Share(share))) => Some(share),
        _ => None,
    };
    let should: Option<f32> =
        if flag(row, "hasError") { None } else { Some(field(row, "value").to_string().parse()?) };
    same(is, should)
}

fn threshold_config(_: &str, row: &Value) -> Judged {
    let map = |name| -> Result<Vec<(String, String)>> {
        let map: Option<Texts> = serde_json::from_value(field(row, name).clone())?;
        Ok(map.into_iter().flatten().collect())
    };
    let (hard, soft) = (map("evictionHard")?, map("evictionSoft")?);
    let (grace, reclaim) = (map("evictionSoftGracePeriod")?, map("evictionMinReclaim")?);
    let is = threshold::from_configuration(&Written {
        hard: Some(&hard),
        soft: &soft,
        soft_grace_period: &grace,
        minimum_reclaim: &reclaim,
        merge_defaults: false,
        enforce_pods: field(row, "allocatableConfig").as_array().is_some_and(|names| !names.is_empty()),
    });
    let shown = |thresholds: Vec<Threshold>| -> BTreeSet<String> {
        thresholds.iter().map(|threshold| format!("{threshold:?}")).collect()
    };
    let should = field(row, "expectThresholds").as_array().into_iter().flatten().map(|expected| {
        let signal = field(expected, "Signal").as_str().context("no signal")?;
        let signal = match signal {
            "allocatableMemory.available" => Signal::AllocatableMemoryAvailable,
            _ => Signal::from_name(signal).with_context(|| format!("unknown signal {signal}"))?,
        };
        let reclaim = field(expected, "MinReclaim");
        Ok(Threshold {
            // Upstream's `gracePeriod` there.
            grace_period_ms: if field(expected, "GracePeriod").as_str().is_some() { 30_000 } else { 0 },
            min_reclaim: if reclaim.is_null() { None } else { Some(threshold_value(reclaim)?) },
            ..Threshold::hard(signal, threshold_value(field(expected, "Value"))?)
        })
    });
    let should = shown(should.collect::<Result<_>>()?);
    same(is.ok().map(shown), (!flag(row, "expectErr")).then_some(should))
}

fn ranking_request(_: &str, row: &Value) -> Judged {
    if is_gated(row)? {
        return Ok(None);
    }
    let resource = field(row, "resourceName").as_str().context("no resource")?;
    let request = effective::ranking_request(&built(field(row, "pod"))?, resource);
    let is = if resource == ResourceName::CPU { request.milli() } else { request.units() };
    same(is, number(row, "expectedValue")?)
}

fn predicate(row: &Value, is: impl Fn(&Pod) -> bool) -> Judged {
    same(is(&annotated(field(row, "pod"))?), flag(row, "expected"))
}

/// The pod of upstream's helper `getTestPod(annotations, priority, priority class)`.
fn annotated(value: &Value) -> Result<Pod> {
    let mut pod = PodCase::default().build()?;
    let args = &value["args"];
    let annotation = match (field(&args[0], "call").as_str(), args[0]["args"][0].as_str()) {
        (None, _) => None,
        (Some("configMirrorAnnotation"), _) => Some(("kubernetes.io/config.mirror", "true")),
        (Some("configSourceAnnotation"), Some("FileSource")) => Some(("kubernetes.io/config.source", "file")),
        (Some("configSourceAnnotation"), Some("HTTPSource")) => Some(("kubernetes.io/config.source", "http")),
        (Some("configSourceAnnotation"), Some("ApiserverSource")) => {
            Some(("kubernetes.io/config.source", "api"))
        }
        other => bail!("unknown annotation {other:?}"),
    };
    pod.annotations.extend(annotation.map(|(key, value)| (key.to_owned(), value.to_owned())));
    pod.priority = priority(&args[1])?;
    pod.priority_class_name = match args[2].as_str() {
        None | Some("") => None,
        Some("scheduling.SystemNodeCritical") => Some(String::from("system-node-critical")),
        Some(other) => bail!("unknown class {other}"),
    };
    Ok(pod)
}

fn priority(value: &Value) -> Result<Option<i32>> {
    Ok(match value.as_str() {
        None => None,
        Some("systemPriority") => Some(2_000_000_000),
        Some("systemPriorityUpper") => Some(2_000_001_000),
        Some("scheduling.HighestUserDefinablePriority") => Some(1_000_000_000),
        Some(other) => bail!("unknown priority {other}"),
    })
}
