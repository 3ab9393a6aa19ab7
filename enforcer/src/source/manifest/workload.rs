//! How many pods a workload has at once, and what they are like.

use super::{
    name,
    place::{Place, Report, Reported},
    pod,
};
use crate::model::{Pod, PodName};

/// The annotation that makes an object one of Helm's hooks.
const HELM_HOOK: &str = "helm.sh/hook";

/// What makes pods.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Workload {
    /// `spec.replicas`: `Deployment`, `ReplicaSet`, `ReplicationController`.
    Replicated,
    /// The same, with `spec.ordinals`.
    StatefulSet,
    /// One a node.
    DaemonSet,
    /// The smaller of `spec.parallelism` and `spec.completions`.
    Job,
    /// One Job at a time.
    CronJob,
}

/// The pods that a workload has at once: `<name>-<first>` and so on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pods {
    /// The number in the name of the first.
    pub first: u64,
    /// How many they are.
    pub count: u64,
}

/// Reads the pods of a workload, of which the first is returned with where its template is; `None` if anything is wrong
/// with it, which then is all in the report.
pub(super) fn read<'doc>(
    place: &Place<'doc>,
    workload: Workload,
    report: &mut Report<'_>,
) -> Option<(Pod, Pods, Place<'doc>)> {
    let errors_before = report.count();
    let metadata = required(place, "metadata", report);
    let spec = required(place, "spec", report);
    let (Ok(metadata), Ok(spec)) = (metadata, spec) else { return None };
    let name = pod::read_name(&metadata, report);
    let pods = pods(place, &spec, workload, report);
    let template = template(&spec, workload, report).ok()?;
    let name = name?;
    let last = name_of(&name, pods.first.saturating_add(pods.count.saturating_sub(1)));
    if !name::is_subdomain(&last.name) {
        let problem = super::Problem::Name { value: last.name, form: name::SUBDOMAIN };
        report.fail_at(&metadata, "name", problem);
        return None;
    }
    let pod = pod::read_template(&template, &name_of(&name, pods.first), report);
    (report.count() == errors_before).then_some(())?;
    Some((pod?, pods, template))
}

/// The name of one of a workload's pods.
#[must_use]
pub fn name_of(workload: &PodName, number: u64) -> PodName {
    PodName { namespace: workload.namespace.clone(), name: format!("{}-{number}", workload.name) }
}

/// One of a workload's pods, like another one of it.
#[must_use]
pub fn pod_of(pod: &Pod, name: PodName) -> Option<Pod> {
    let uid = pod::derive_uid(&name)?;
    Some(Pod { name, uid, ..pod.clone() })
}

fn required<'doc>(place: &Place<'doc>, key: &str, report: &mut Report<'_>) -> Result<Place<'doc>, Reported> {
    match place.get(key) {
        Some(value) if report.is_map(&value) => Ok(value),
        Some(_) => Err(Reported),
        None => Err(report.missing(place, key)),
    }
}

fn template<'doc>(
    spec: &Place<'doc>,
    workload: Workload,
    report: &mut Report<'_>,
) -> Result<Place<'doc>, Reported> {
    if workload != Workload::CronJob {
        return required(spec, "template", report);
    }
    let job = required(spec, "jobTemplate", report)?;
    let spec = required(&job, "spec", report)?;
    required(&spec, "template", report)
}

fn pods(place: &Place<'_>, spec: &Place<'_>, workload: Workload, report: &mut Report<'_>) -> Pods {
    let (first, count) = match workload {
        Workload::Replicated => (0, number(spec, "replicas", report).unwrap_or(1)),
        Workload::StatefulSet => {
            let ordinals = report.map(spec, "ordinals");
            let start = ordinals.and_then(|ordinals| number(&ordinals, "start", report));
            (start.unwrap_or(0), number(spec, "replicas", report).unwrap_or(1))
        }
        Workload::DaemonSet => (0, 1),
        Workload::Job if is_over(place) => (0, 0),
        Workload::Job => (0, of_job(spec, report)),
        Workload::CronJob => {
            let job = report.map(spec, "jobTemplate").and_then(|job| report.map(&job, "spec"));
            let of_each = job.map_or(0, |job| of_job(&job, report));
            (0, if is_suspended(spec) { 0 } else { of_each })
        }
    };
    Pods { first: u64::from(first), count: u64::from(count) }
}

/// How many pods a Job has at once. Without `completions` they are as many as `parallelism`.
fn of_job(spec: &Place<'_>, report: &mut Report<'_>) -> u32 {
    let parallelism = number(spec, "parallelism", report).unwrap_or(1);
    let completions = number(spec, "completions", report).unwrap_or(u32::MAX);
    if is_suspended(spec) { 0 } else { parallelism.min(completions) }
}

fn number(place: &Place<'_>, key: &str, report: &mut Report<'_>) -> Option<u32> {
    report.optional_integer(place, key, "a whole number, 0 or more")
}

fn is_suspended(spec: &Place<'_>) -> bool {
    spec.get("suspend").is_some_and(|suspend| suspend.written() == Some("true"))
}

/// Whether a Job of the cluster has ended.
fn is_over(job: &Place<'_>) -> bool {
    let conditions = job.get("status").and_then(|status| status.get("conditions"));
    let is = |condition: &Place<'_>, key: &str, values: &[&str]| {
        let value = condition.get(key);
        value.is_some_and(|value| value.written().is_some_and(|written| values.contains(&written)))
    };
    conditions.is_some_and(|conditions| {
        conditions.items().any(|condition| {
            is(&condition, "type", &["Complete", "Failed"]) && is(&condition, "status", &["True"])
        })
    })
}

/// Whether it only exists while `helm test` runs.
pub(super) fn is_helm_test(place: &Place<'_>) -> bool {
    let annotations = place.get("metadata").and_then(|metadata| metadata.get("annotations"));
    let hooks = annotations.and_then(|annotations| annotations.get(HELM_HOOK));
    hooks.is_some_and(|hooks| {
        let written = hooks.written().unwrap_or_default();
        written.split(',').all(|hook| matches!(hook.trim(), "test" | "test-success" | "test-failure"))
    })
}
