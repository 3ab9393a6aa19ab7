//! The payloads of the desired state's events.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    cgroup::{Applied, Author, ComponentScore, Drift, DriftAction, Moved, Reason, ScoreFate},
    journal::{Event, EventType, Journal, Subject},
    model::{CgroupPath, ContainerKind, Pod, PodName, Quantity, ResourceList},
    policy::{Plan, PodPlan, admission::Rejection},
    sense::Process,
};

/// Reports that something is missing here or does not work, and the consequence. Call it once.
pub(super) fn degraded(journal: &Journal, what: &str, message: &str) {
    degraded_at(journal, what, None, message);
}

/// The same for one place of several; its end is reported with the place too.
pub(super) fn degraded_at(journal: &Journal, what: &str, place: Option<&str>, message: &str) {
    tracing::warn!("{message}");
    let mut data = json!({"what": what, "message": message});
    if let Some(place) = place {
        data["place"] = json!(place);
    }
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

/// Which processes wrote to files, as far as the kernel reported it.
#[derive(Debug, Default)]
pub(super) struct Writers(BTreeMap<(CgroupPath, String), Writer>);

/// The process that wrote a value.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    /// The writer.
    pub(super) by: Process,
    /// The process whose score it is.
    pub(super) of: Option<Process>,
}

impl Writers {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes a writer; the latest one counts.
    pub(super) fn note(&mut self, path: CgroupPath, file: &str, writer: Writer) {
        self.0.insert((path, file.to_owned()), writer);
    }

    /// Adds the writer to a file's report.
    fn name(&self, path: &CgroupPath, file: &str, data: &mut Value) {
        let Some(Writer { by, of }) = self.0.get(&(path.clone(), file.to_owned())) else { return };
        data["writer"] = json!({"pid": by.pid, "comm": by.comm});
        if let Some(of) = of {
            data["pid"] = json!(of.pid);
            data["comm"] = json!(of.comm);
        }
    }
}

/// Files written in one cgroup; the subject is its pod, or the node.
pub(super) fn limits(applied: &Applied, owner: Option<Owned<'_>>, writers: &Writers) -> (Subject, Value) {
    let Applied { path, reason, files } = applied;
    let files: Vec<_> = files
        .iter()
        .map(|change| {
            let mut data = json!({"file": change.file, "old": change.old, "new": change.new});
            if *reason == Reason::Drifted {
                writers.name(path, &change.file, &mut data);
            }
            data
        })
        .collect();
    about(owner, json!({"cgroup": path.as_str(), "reason": reason.as_str(), "files": files}))
}

/// Processes that were moved into their container's present cgroup.
pub(super) fn moved(moved: &Moved, plan: &Plan) -> (Subject, Value) {
    let Moved { from, to, processes } = moved;
    let files = json!([{"file": "cgroup.procs", "old": from.as_str(), "new": to.as_str()}]);
    let data = json!({"cgroup": to.as_str(), "reason": "moved", "files": files, "processes": processes});
    about(owner(to, plan), data)
}

/// A value that another process wrote.
pub(super) fn drifted(drift: &Drift, owner: Option<Owned<'_>>, writers: &Writers) -> (Subject, Value) {
    let Drift { path, cgroup, file, planned, found, action, author } = drift;
    let mut data = json!({
        "cgroup": path.as_str(),
        "cgroupId": cgroup.0,
        "file": file,
        "old": planned,
        "new": found,
        "action": action.as_str(),
    });
    writers.name(path, file, &mut data);
    if let (Some(Author { pid, comm }), None) = (author, data.get("writer")) {
        data["writer"] = json!({"pid": pid, "comm": comm});
    }
    about(owner, data)
}

/// The events of a node component or a pod's sandbox whose score was wrong.
pub(super) fn component(score: &ComponentScore) -> Vec<(EventType, Value)> {
    let ComponentScore { pid, executable, cgroup, found, wanted, fate } = score;
    let (found, wanted) = (found.to_string(), wanted.to_string());
    let drifted = |action: &str| {
        let data = json!({
            "cgroup": cgroup, "file": "oom_score_adj", "old": wanted, "new": found, "action": action,
            "pid": pid, "executable": executable,
        });
        (EventType::LimitsDrifted, data)
    };
    let written = |kind, reason: Reason| {
        let files = json!([{"file": "oom_score_adj", "old": found, "new": wanted}]);
        let data = json!({
            "cgroup": cgroup, "reason": reason.as_str(), "files": files, "pid": pid, "executable": executable,
        });
        (kind, data)
    };
    match fate {
        ScoreFate::Set => vec![written(EventType::LimitsApplied, Reason::Initial)],
        ScoreFate::Restored => {
            vec![drifted(DriftAction::Restored.as_str()), written(EventType::LimitsRestored, Reason::Drifted)]
        }
        ScoreFate::Delayed => vec![drifted(DriftAction::Delayed.as_str())],
        ScoreFate::Audited => vec![drifted(DriftAction::Audited.as_str())],
        // Reported among what this host lacks.
        ScoreFate::Refused => Vec::new(),
    }
}

/// Names the pod and the container that a cgroup belongs to.
fn about(owner: Option<Owned<'_>>, mut data: Value) -> (Subject, Value) {
    let subject = match owner {
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

/// A pod, and its container if the cgroup is one's.
pub(super) type Owned<'a> = (&'a PodName, Option<&'a str>);

/// Returns the pod and the container that own the cgroup by the plan.
pub(super) fn owner<'a>(path: &CgroupPath, plan: &'a Plan) -> Option<Owned<'a>> {
    plan.pods.iter().find_map(|pod| {
        if pod.cgroup.path == *path {
            return Some((&pod.name, None));
        }
        let container = pod.containers.iter().find(|container| container.cgroup.path == *path)?;
        Some((&pod.name, Some(container.name.as_str())))
    })
}
