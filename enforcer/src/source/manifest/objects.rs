//! Objects as `kubectl`, Helm and Kustomize print them: pods, the workloads that make pods, priority classes, and others.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{
    Origin, Problem, Warning, documents,
    error::ManifestError,
    fields,
    place::{Place, Report},
    pod,
    workload::{self, Pods, Workload},
};
use crate::{
    model::Pod,
    nearest::nearest,
    yaml::{Node, Size, Value, shown},
};

/// How many names of kinds and of nodes are kept for what is said of them.
const MOST_NAMES: usize = 20;

/// What a file may hold that pods follow from, with the version that is read.
const KINDS: [(&str, &str, Kind); 9] = [
    ("v1", "Pod", Kind::Pod),
    ("v1", "ReplicationController", Kind::Workload(Workload::Replicated)),
    ("apps/v1", "Deployment", Kind::Workload(Workload::Replicated)),
    ("apps/v1", "ReplicaSet", Kind::Workload(Workload::Replicated)),
    ("apps/v1", "StatefulSet", Kind::Workload(Workload::StatefulSet)),
    ("apps/v1", "DaemonSet", Kind::Workload(Workload::DaemonSet)),
    ("batch/v1", "Job", Kind::Workload(Workload::Job)),
    ("batch/v1", "CronJob", Kind::Workload(Workload::CronJob)),
    ("scheduling.k8s.io/v1", "PriorityClass", Kind::Class),
];

#[derive(Clone, Copy, Debug)]
enum Kind {
    Pod,
    Workload(Workload),
    Class,
}

/// The objects of all files.
#[derive(Debug, Default)]
pub struct Objects {
    /// Pods and workloads, in order.
    pub made: Vec<Made>,
    /// Priority classes, in order.
    pub classes: Vec<Class>,
    /// The uids of what controls any of them in the cluster, also those that are not taken.
    pub controllers: BTreeSet<String>,
    /// What was found and not taken.
    pub left_out: LeftOut,
    /// How many documents were read, good or bad.
    pub documents: usize,
}

/// A pod, or a workload with the first of its pods.
#[derive(Clone, Debug)]
pub struct Made {
    /// The pod.
    pub pod: Pod,
    /// The pods of a workload; `None` for a pod.
    pub pods: Option<Pods>,
    /// What each of them weighs in memory, roughly and at most, in bytes.
    pub weight: u64,
    /// Where it is.
    pub origin: Origin,
    /// When the pod was created, if it exists in a cluster.
    pub created: Option<Timestamp>,
    /// Its uid in the cluster.
    pub uid: Option<String>,
    /// Where its priority class is named, and the field's path.
    pub class_at: Option<(Origin, String)>,
}

/// A `PriorityClass`.
#[derive(Clone, Debug)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// The priority of its pods.
    pub value: i32,
    /// Whether pods that name none are of it.
    pub is_default: bool,
    /// Where it is.
    pub origin: Origin,
}

/// What is not taken, and why.
#[derive(Clone, Debug, Default)]
pub struct LeftOut {
    /// Pods that have ended.
    pub ended: usize,
    /// Pods of other nodes.
    pub elsewhere: usize,
    /// Pods of the cluster that are on no node yet, where those of one node are wanted.
    pub unscheduled: usize,
    /// Objects that only exist while `helm test` runs.
    pub tests: usize,
    /// Objects of kinds that no pods are made of, by kind: the first few.
    pub others: BTreeMap<String, usize>,
    /// Objects of further kinds.
    pub further: usize,
    /// The nodes that pods name: the first few.
    pub nodes: BTreeSet<String>,
}

impl Objects {
    /// Reads a file's content; `source` is its name in errors. Of pods that name a node, those of `node` are taken, if there
    /// is one. Pods that are not taken are not looked into.
    pub fn read(
        &mut self,
        source: &str,
        bytes: &[u8],
        node: Option<&str>,
    ) -> (Vec<ManifestError>, Vec<Warning>) {
        let mut report = Report::new(source);
        let count = documents(bytes, Size::List, &mut report, |place, report| {
            self.object(place, None, node, report);
        });
        self.documents = self.documents.saturating_add(count);
        report.finish()
    }

    /// An object; `implied` is what an item is that does not say it.
    fn object(
        &mut self,
        place: &Place<'_>,
        implied: Option<(&'static str, &'static str)>,
        node: Option<&str>,
        report: &mut Report<'_>,
    ) {
        // As a template leaves it whose only content was left out.
        if place.is_null() || !report.is_map(place) {
            return;
        }
        let said = report.optional_text(place, "kind");
        let version = report.optional_text(place, "apiVersion");
        let (Ok(said), Ok(version)) = (said, version) else { return };
        let Some(kind) = said.or(implied.map(|(_, kind)| kind)) else {
            report.missing(place, "kind");
            return;
        };
        let version = version.or(implied.map(|(version, _)| version));
        if let Some(of) = kind.strip_suffix("List")
            && place.get("items").is_some()
        {
            let known = KINDS.iter().find(|(has, kind, _)| *kind == of && version == Some(*has));
            if known.is_some() || kind == "List" {
                for item in report.list(place, "items") {
                    self.object(&item, known.map(|(version, kind, _)| (*version, *kind)), node, report);
                }
                return;
            }
        }
        if matches!((kind, version), ("List" | "PodList", Some("v1"))) {
            return;
        }
        match KINDS.iter().find(|(_, known, _)| *known == kind) {
            Some((has, _, found)) if version == Some(*has) => self.known(place, kind, *found, node, report),
            // The core group has none of the others.
            Some((has, ..)) if version.is_none_or(|is| [group(has), ""].contains(&group(is))) => {
                match version {
                    None => {
                        report.missing(place, "apiVersion");
                    }
                    Some(other) => {
                        let problem =
                            Problem::Value { value: other.chars().take(300).collect(), allowed: has };
                        report.fail_at(place, "apiVersion", problem);
                    }
                }
            }
            Some(_) => self.left_out.other(kind),
            None => {
                if let Some(near) = nearest(kind, KINDS.iter().map(|(_, kind, _)| *kind)) {
                    report.unknown_kind(place, kind, near);
                }
                self.left_out.other(kind);
            }
        }
    }

    fn known(
        &mut self,
        place: &Place<'_>,
        kind: &str,
        found: Kind,
        node: Option<&str>,
        report: &mut Report<'_>,
    ) {
        self.controllers.extend(controller(place));
        match found {
            Kind::Class => {
                fields::check(place, kind, report);
                self.classes.extend(class(place, report));
            }
            Kind::Pod if self.left_out.pod(place, node) => {}
            Kind::Workload(_) if workload::is_helm_test(place) => self.left_out.tests += 1,
            Kind::Pod => {
                fields::check(place, kind, report);
                if let Some((pod, created)) = pod::read(place, report).zip(created(place, report)) {
                    self.take(place, place, pod, None, created, report);
                }
            }
            Kind::Workload(workload) => {
                fields::check(place, kind, report);
                if let Some((pod, pods, template)) = workload::read(place, workload, report) {
                    self.take(place, &template, pod, Some(pods), None, report);
                }
            }
        }
    }

    /// Takes a pod that is described at `template` in the object at `place`.
    fn take(
        &mut self,
        place: &Place<'_>,
        template: &Place<'_>,
        pod: Pod,
        pods: Option<Pods>,
        created: Option<Timestamp>,
        report: &Report<'_>,
    ) {
        let class = template.get("spec").and_then(|spec| spec.get("priorityClassName"));
        self.made.push(Made {
            pod,
            pods,
            weight: weight(template.node()),
            origin: report.origin(place.line()),
            created,
            uid: at(place, &["metadata", "uid"]),
            class_at: class.map(|class| (report.origin(class.line()), class.path().to_owned())),
        });
    }
}

impl LeftOut {
    /// Whether that pod is left out, which then is counted.
    fn pod(&mut self, place: &Place<'_>, node: Option<&str>) -> bool {
        let phase = at(place, &["status", "phase"]);
        let is_on = at(place, &["spec", "nodeName"]).filter(|name| !name.is_empty());
        if workload::is_helm_test(place) {
            self.tests += 1;
            return true;
        }
        if matches!(phase.as_deref(), Some("Succeeded" | "Failed")) {
            self.ended += 1;
            return true;
        }
        if let Some(name) = &is_on
            && (self.nodes.len() < MOST_NAMES || Some(name.as_str()) == node)
        {
            self.nodes.insert(shown(name));
        }
        match (is_on, node) {
            (Some(name), Some(wanted)) if name != wanted => self.elsewhere += 1,
            // A manifest without a node may be meant for this one; a pod of the cluster is not there.
            (None, Some(_)) if phase.is_some() => self.unscheduled += 1,
            (_, _) => return false,
        }
        true
    }

    fn other(&mut self, kind: &str) {
        let kind = shown(kind);
        let is_room = self.others.len() < MOST_NAMES;
        match self.others.get_mut(&kind) {
            Some(count) => *count += 1,
            None if is_room => {
                self.others.insert(kind, 1);
            }
            None => self.further += 1,
        }
    }
}

/// The group of `group/version`; the core group has none.
fn group(version: &str) -> &str {
    version.rsplit_once('/').map_or("", |(group, _)| group)
}

/// The text below these keys, if there is one.
fn at(place: &Place<'_>, keys: &[&str]) -> Option<String> {
    let found = keys.iter().try_fold(place.clone(), |place, key| place.get(key));
    found.and_then(|found| found.written().map(ToOwned::to_owned))
}

fn controller(place: &Place<'_>) -> Option<String> {
    let owners = place.get("metadata")?.get("ownerReferences")?;
    let controls = |owner: &Place<'_>| at(owner, &["controller"]).as_deref() == Some("true");
    owners.items().find(controls).and_then(|owner| at(&owner, &["uid"]))
}

/// When the object was created; the outer `None` if that cannot be read, which was reported.
#[expect(clippy::option_option, reason = "an object may have no such time")]
fn created(place: &Place<'_>, report: &mut Report<'_>) -> Option<Option<Timestamp>> {
    let metadata = place.get("metadata")?;
    let Some(written) = report.optional_text(&metadata, "creationTimestamp").ok()? else {
        return Some(None);
    };
    let time = written.parse().ok();
    if time.is_none() {
        let value = written.chars().take(300).collect();
        let problem = Problem::Value { value, allowed: "a time such as 2026-01-31T12:00:00Z" };
        report.fail_at(&metadata, "creationTimestamp", problem);
    }
    time.map(Some)
}

fn class(place: &Place<'_>, report: &mut Report<'_>) -> Option<Class> {
    let Some(metadata) = place.get("metadata") else {
        report.missing(place, "metadata");
        return None;
    };
    if !report.is_map(&metadata) {
        return None;
    }
    let Some(name) = report.optional_text(&metadata, "name").ok()?.map(ToOwned::to_owned) else {
        report.missing(&metadata, "name");
        return None;
    };
    if place.get("value").is_none() {
        report.missing(place, "value");
        return None;
    }
    let value = report.optional_integer(place, "value", "a whole number of 32 bits")?;
    let is_default = at(place, &["globalDefault"]).as_deref() == Some("true");
    Some(Class { name, value, is_default, origin: report.origin(place.line()) })
}

/// What a pod that is read from here takes in memory, roughly and at most, in bytes.
fn weight(node: &Node) -> u64 {
    const EACH_BYTES: u64 = 64;
    let text = |text: &str| u64::try_from(text.len()).unwrap_or(u64::MAX);
    let inside = match &node.value {
        Value::Null => 0,
        Value::Text(written) | Value::Plain(written) => text(written),
        Value::List(items) => items.iter().map(weight).fold(0, u64::saturating_add),
        Value::Map(entries) => {
            let entries = entries.iter().map(|entry| text(&entry.key).saturating_add(weight(&entry.node)));
            entries.fold(0, u64::saturating_add)
        }
    };
    inside.saturating_add(EACH_BYTES)
}
