//! The payloads of the desired state's events.

use serde_json::{Value, json};

use crate::{
    cgroup::{Applied, Drift},
    journal::{Event, EventType, Journal, Subject},
    model::{CgroupPath, ContainerKind, Pod, PodName, Quantity, ResourceList},
    policy::{Plan, PodPlan, admission::Rejection},
};

/// Tells that something is missing here, or does not work, and what follows; once is enough.
pub(super) fn degraded(journal: &Journal, what: &str, message: &str) {
    tracing::warn!("{message}");
    let data = json!({"what": what, "message": message});
    journal.append(Event { kind: EventType::DegradedEntered, subject: Subject::Node, data });
}

/// A pod that came, changed or went.
pub(super) fn pod(pod: &Pod, plan: Option<&PodPlan>) -> Value {
    json!({
        "namespace": pod.name.namespace,
        "name": pod.name.name,
        "uid": pod.uid.as_str(),
        "source": "static",
        "priority": pod.priority(),
        "qosClass": plan.map(|plan| plan.qos_class.as_str()),
        "critical": plan.map(|plan| plan.critical),
        "requests": plan.map(|plan| resources(&plan.requests)),
        "limits": plan.map(|plan| resources(&plan.limits)),
        "containers": pod.containers.iter().map(|container| json!({"name": container.name, "kind": kind(container.kind)})).collect::<Vec<_>>(),
    })
}

/// A pod that may not run.
pub(super) fn rejected(pod: &Pod, rejection: &Rejection, dry_run: bool) -> Value {
    json!({
        "namespace": pod.name.namespace,
        "name": pod.name.name,
        "uid": pod.uid.as_str(),
        "source": "static",
        "reason": rejection.reason(),
        "message": rejection.message(),
        "dryRun": dry_run,
    })
}

/// Resources under the names that events use, in base units.
fn resources(list: &ResourceList) -> Value {
    let entry = |(name, quantity): (&crate::model::ResourceName, &Quantity)| match name.as_str() {
        "cpu" => (String::from("cpuMilli"), json!(quantity.milli_value_ceil())),
        "memory" => (String::from("memoryBytes"), json!(quantity.value_ceil())),
        other => (other.to_owned(), json!(quantity.value_ceil())),
    };
    Value::Object(list.iter().map(entry).collect())
}

/// The name of a container's kind.
pub(super) fn kind(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::App => "app",
        ContainerKind::Init => "init",
        ContainerKind::Sidecar => "sidecar",
    }
}

/// Files that were written to one cgroup: about its pod, or about the node.
pub(super) fn limits(applied: &Applied, plan: &Plan) -> (Subject, Value) {
    let Applied { path, reason, files } = applied;
    let files: Vec<_> = files
        .iter()
        .map(|change| json!({"file": change.file, "old": change.old, "new": change.new}))
        .collect();
    about(path, plan, json!({"cgroup": path.as_str(), "reason": reason.as_str(), "files": files}))
}

/// A value that somebody else wrote.
pub(super) fn drifted(drift: &Drift, plan: &Plan) -> (Subject, Value) {
    let Drift { path, cgroup, file, planned, found, action } = drift;
    let data = json!({
        "cgroup": path.as_str(),
        "cgroupId": cgroup.0,
        "file": file,
        "old": planned,
        "new": found,
        "action": action.as_str(),
    });
    about(path, plan, data)
}

/// Names the pod and the container that a cgroup belongs to.
fn about(path: &CgroupPath, plan: &Plan, mut data: Value) -> (Subject, Value) {
    let subject = match owner(path, plan) {
        None => Subject::Node,
        Some((pod, container)) => {
            data["namespace"] = json!(pod.namespace);
            data["pod"] = json!(pod.name);
            if let Some(container) = container {
                data["container"] = json!(container);
            }
            Subject::Pod(pod.clone())
        }
    };
    (subject, data)
}

fn owner<'a>(path: &CgroupPath, plan: &'a Plan) -> Option<(&'a PodName, Option<&'a str>)> {
    plan.pods.iter().find_map(|pod| {
        if pod.cgroup.path == *path {
            return Some((&pod.name, None));
        }
        let container = pod.containers.iter().find(|container| container.cgroup.path == *path)?;
        Some((&pod.name, Some(container.name.as_str())))
    })
}
