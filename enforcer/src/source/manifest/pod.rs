//! Reads one pod from a document's place into the model.

use std::collections::BTreeMap;

use crate::{
    model::{
        Container, ContainerKind, Labels, Pod, PodName, PodUid, QosClass, Quantity, Requirements,
        ResourceList, ResourceName,
    },
    policy::{critical, preference},
};

use super::{
    adoption, defaults,
    error::Problem,
    name,
    place::{Place, Report},
    toleration,
};

/// `spec.terminationGracePeriodSeconds` if the manifest has none.
const TERMINATION_GRACE_PERIOD_SECONDS: u64 = 30;

/// The priorities of the classes that every cluster has; the API server's Priority admission sets them.
const SYSTEM_CLASSES: [(&str, i32); 2] = [
    ("system-cluster-critical", critical::CRITICAL_PRIORITY),
    ("system-node-critical", critical::CRITICAL_PRIORITY + 1000),
];

/// Reads a pod; `None` if anything is wrong with it, which then is all in the report.
pub(super) fn read(place: &Place<'_>, report: &mut Report<'_>) -> Option<Pod> {
    let errors_before = report.count();
    let metadata = report.map(place, "metadata");
    let spec = report.map(place, "spec");
    if report.count() > errors_before {
        return None;
    }
    let Some(metadata) = metadata else {
        report.missing(place, "metadata");
        return None;
    };
    let name = read_name(&metadata, report);
    let uid = name.as_ref().and_then(|name| read_uid(&metadata, name, report));
    let parts = Parts { metadata: Some(metadata), spec, name: name.zip(uid), errors_before };
    read_parts(place, parts, report)
}

/// Reads the pod that a workload's template makes, under that name; `None` as for [`read`].
pub(super) fn read_template(place: &Place<'_>, name: &PodName, report: &mut Report<'_>) -> Option<Pod> {
    let errors_before = report.count();
    let metadata = report.map(place, "metadata");
    let spec = report.map(place, "spec");
    if report.count() > errors_before {
        return None;
    }
    let name = Some(name.clone()).zip(derive_uid(name));
    read_parts(place, Parts { metadata, spec, name, errors_before }, report)
}

/// What a pod is made of; without a name one was reported already.
struct Parts<'doc> {
    metadata: Option<Place<'doc>>,
    spec: Option<Place<'doc>>,
    name: Option<(PodName, PodUid)>,
    errors_before: usize,
}

fn read_parts(place: &Place<'_>, parts: Parts<'_>, report: &mut Report<'_>) -> Option<Pod> {
    let Parts { metadata, spec, name, errors_before } = parts;
    let annotations =
        metadata.as_ref().map(|metadata| read_annotations(metadata, report)).unwrap_or_default();
    let Some(spec) = spec else {
        report.missing(place, "spec");
        return None;
    };
    let priority_class_name = report.optional_text(&spec, "priorityClassName").ok().flatten();
    let priority = report.optional_integer(&spec, "priority", "a whole number of 32 bits").or_else(|| {
        let known = SYSTEM_CLASSES.iter().find(|(class, _)| priority_class_name == Some(class));
        known.map(|&(_, priority)| priority)
    });
    let tolerations = toleration::read(&spec, report);
    let grace: Option<i64> =
        report.optional_integer(&spec, "terminationGracePeriodSeconds", "a whole number of 64 bits");
    let overhead = report.map(&spec, "overhead").map(|list| read_list(&list, report)).unwrap_or_default();
    let resources = report.map(&spec, "resources").map(|resources| read_requirements(&resources, report));
    let (container_places, containers): (Vec<_>, Vec<_>) = read_containers(&spec, report).into_iter().unzip();
    let adopts = metadata.as_ref().and_then(|metadata| {
        check_preference(metadata, &annotations, report);
        adoption::read(metadata, &annotations, &containers, report)
    });
    let (name, uid) = name?;
    let mut pod = Pod {
        name,
        uid,
        priority,
        priority_class_name: priority_class_name.map(ToOwned::to_owned),
        tolerations,
        annotations,
        // The API server turns a negative value into 1.
        termination_grace_period_seconds: grace
            .map_or(TERMINATION_GRACE_PERIOD_SECONDS, |seconds| u64::try_from(seconds).unwrap_or(1)),
        overhead,
        resources,
        containers,
        adopts,
        stored_qos_class: read_stored_qos_class(place, report),
        labels: Labels::default(),
        owners: Vec::new(),
    };
    defaults::apply(&mut pod);
    check_limits(&spec, &container_places, &pod, report);
    (report.count() == errors_before).then_some(pod)
}

/// The class that the API server decided on, as in the output of `kubectl get -o yaml`.
fn read_stored_qos_class(place: &Place<'_>, report: &mut Report<'_>) -> Option<QosClass> {
    let status = report.map(place, "status")?;
    let name = report.optional_text(&status, "qosClass").ok()??;
    let class = QosClass::from_name(name);
    if class.is_none() {
        let value = name.chars().take(300).collect();
        let allowed = "Guaranteed, Burstable or BestEffort";
        report.fail_at(&status, "qosClass", Problem::Value { value, allowed });
    }
    class
}

/// The name of an object in a namespace; `default` if it names none.
pub(super) fn read_name(metadata: &Place<'_>, report: &mut Report<'_>) -> Option<PodName> {
    let name = read_checked(metadata, "name", name::is_subdomain, name::SUBDOMAIN, report);
    let namespace = if metadata.get("namespace").is_some() {
        read_checked(metadata, "namespace", name::is_label, name::LABEL, report)
    } else {
        Some(String::from("default"))
    };
    Some(PodName { namespace: namespace?, name: name? })
}

/// A required text of that form.
fn read_checked(
    place: &Place<'_>,
    key: &str,
    is_valid: impl Fn(&str) -> bool,
    form: &'static str,
    report: &mut Report<'_>,
) -> Option<String> {
    match report.optional_text(place, key) {
        Ok(Some(text)) if is_valid(text) => return Some(text.to_owned()),
        Ok(Some(text)) => {
            report.fail_at(place, key, Problem::Name { value: text.chars().take(300).collect(), form });
        }
        Ok(None) => {
            report.missing(place, key);
        }
        Err(_) => {}
    }
    None
}

fn read_uid(metadata: &Place<'_>, name: &PodName, report: &mut Report<'_>) -> Option<PodUid> {
    let Some(place) = metadata.get("uid") else { return derive_uid(name) };
    let written = place.written();
    let uid = written.and_then(PodUid::new);
    if uid.is_none() {
        let value = written.unwrap_or_default().chars().take(300).collect();
        report.fail_here(&place, Problem::Name { value, form: name::UID });
    }
    uid
}

/// The uid of a pod whose manifest has none, derived from namespace and name alone, so that an edited file stays the
/// same pod. A UUID of version 8 (RFC 9562), its bits the 128-bit FNV-1a hash of `namespace/name`.
pub(super) fn derive_uid(name: &PodName) -> Option<PodUid> {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    const VERSION_AND_VARIANT: u128 = 0xf000_c000_0000_0000_0000;
    const VERSION_8_VARIANT_1: u128 = 0x8000_8000_0000_0000_0000;
    let hash =
        name.to_string().bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    let hex = format!("{:032x}", hash & !VERSION_AND_VARIANT | VERSION_8_VARIANT_1);
    let part = |range| hex.get(range).unwrap_or_default();
    PodUid::new(&format!("{}-{}-{}-{}-{}", part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)))
}

fn read_annotations(metadata: &Place<'_>, report: &mut Report<'_>) -> BTreeMap<String, String> {
    let Some(annotations) = report.map(metadata, "annotations") else { return BTreeMap::new() };
    annotations
        .entries()
        // The API server reads a null as the empty text.
        .map(|(key, value)| (key, if value.is_null() { Ok("") } else { report.text(&value) }))
        .filter_map(|(key, value)| Some((key.to_owned(), value.ok()?.to_owned())))
        .collect()
}

/// An invalid value is not ignored: a pod that should go first would go last.
fn check_preference(metadata: &Place<'_>, annotations: &BTreeMap<String, String>, report: &mut Report<'_>) {
    let Some(text) = annotations.get(preference::EVICTION_PRIORITY) else { return };
    if preference::parse_preference(text).is_none()
        && let Some(place) = metadata.get("annotations")
    {
        let value = text.chars().take(300).collect();
        let allowed = "a whole number of 32 bits, in quotes";
        report.fail_at(&place, preference::EVICTION_PRIORITY, Problem::Value { value, allowed });
    }
}

fn read_containers<'doc>(spec: &Place<'doc>, report: &mut Report<'_>) -> Vec<(Place<'doc>, Container)> {
    let errors_before = report.count();
    let init = report.list(spec, "initContainers");
    let app = report.list(spec, "containers");
    if app.is_empty() && report.count() == errors_before {
        report.fail_at(spec, "containers", Problem::NoContainers);
    }
    let mut named: BTreeMap<String, u64> = BTreeMap::new();
    let mut containers = Vec::new();
    let init = init.into_iter().map(|place| (true, place));
    for (is_init, place) in init.chain(app.into_iter().map(|place| (false, place))) {
        if !report.is_map(&place) {
            continue;
        }
        let kind = read_kind(&place, is_init, report);
        let resources =
            report.map(&place, "resources").map(|resources| read_requirements(&resources, report));
        let Some(name) = read_checked(&place, "name", name::is_label, name::LABEL, report) else { continue };
        let line = place.get("name").map_or(place.line(), |value| value.line());
        match named.get(&name) {
            Some(&first_line) => {
                report.fail_at(&place, "name", Problem::ContainerTwice { name: name.clone(), first_line });
            }
            None => {
                named.insert(name.clone(), line);
            }
        }
        let resources = resources.unwrap_or_default();
        containers.push((place, Container { name, kind, resources }));
    }
    containers
}

fn read_kind(container: &Place<'_>, is_init: bool, report: &mut Report<'_>) -> ContainerKind {
    let policy = report.optional_text(container, "restartPolicy").ok().flatten();
    match policy {
        Some("Always") if is_init => ContainerKind::Sidecar,
        Some("Always" | "OnFailure" | "Never") | None if is_init => ContainerKind::Init,
        Some("Always" | "OnFailure" | "Never") | None => ContainerKind::App,
        Some(other) => {
            let value = other.chars().take(300).collect();
            report.fail_at(
                container,
                "restartPolicy",
                Problem::Value { value, allowed: "Always, OnFailure or Never" },
            );
            ContainerKind::App
        }
    }
}

fn read_requirements(resources: &Place<'_>, report: &mut Report<'_>) -> Requirements {
    let mut read = |key| report.map(resources, key).map(|list| read_list(&list, report)).unwrap_or_default();
    Requirements { requests: read("requests"), limits: read("limits") }
}

fn read_list(list: &Place<'_>, report: &mut Report<'_>) -> ResourceList {
    let mut resources = ResourceList::new();
    for (name, place) in list.entries() {
        if !name::is_resource(name) {
            report.fail_here(&place, Problem::Resource { name: name.chars().take(300).collect() });
        } else if let Some(quantity) = read_quantity(&place, report) {
            resources.insert(ResourceName::new(name), quantity);
        }
    }
    resources
}

/// Parses a quantity as written: a number keeps all of its digits.
fn read_quantity(place: &Place<'_>, report: &mut Report<'_>) -> Option<Quantity> {
    if place.is_null() {
        report.fail_here(place, Problem::Null);
        return None;
    }
    let Some(written) = place.written() else {
        report.fail_here(place, Problem::Type { expected: "a quantity such as 500m or 128Mi" });
        return None;
    };
    match written.parse::<Quantity>() {
        Ok(quantity) if quantity.is_negative() => {
            report.fail_here(place, Problem::Negative { quantity });
            None
        }
        Ok(quantity) => Some(quantity),
        Err(error) => {
            report.fail_here(place, Problem::Quantity(error));
            None
        }
    }
}

/// No limit may be below its request, in a container or at the pod level (`ValidateResourceRequirements` in
/// `pkg/apis/core/validation`). It runs after the defaults: a pod-level request may come from the containers.
fn check_limits(spec: &Place<'_>, containers: &[Place<'_>], pod: &Pod, report: &mut Report<'_>) {
    let containers = containers.iter().zip(pod.containers.iter().map(|container| &container.resources));
    for (place, requirements) in pod.resources.iter().map(|resources| (spec, resources)).chain(containers) {
        if let Some(resources) = place.get("resources") {
            check_limits_of(&resources, requirements, report);
        }
    }
}

fn check_limits_of(resources: &Place<'_>, requirements: &Requirements, report: &mut Report<'_>) {
    let given = |list| resources.get(list);
    for (name, &limit) in &requirements.limits {
        if let Some(&request) = requirements.requests.get(name).filter(|&&request| request > limit) {
            // A default cannot be pointed at. The other value can then: at least one of the two was written.
            let written = given("limits").filter(|limits| limits.get(name.as_str()).is_some());
            let place = written.or_else(|| given("requests")).unwrap_or_else(|| resources.clone());
            report.fail_at(&place, name.as_str(), Problem::BelowRequest { limit, request });
        }
    }
}
