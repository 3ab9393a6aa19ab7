//! From the objects of all files to pods: who counts, what priority classes mean, and how many pods a workload has.

use std::collections::BTreeMap;

use super::Wrong;
use crate::{
    model::{Pod, PodName},
    nearest::nearest,
    source::manifest::{self, Class, LeftOut, Made, ManifestError, Objects, Origin, Problem},
};

/// How many pods are made of workloads at most, of all files together.
const MOST_MADE: u64 = 10_000;

/// What they may take in memory together, by the size of what they are read from, in bytes.
const MOST_BYTES: u64 = 512 << 20;

/// The pods, and what is said of the others.
#[derive(Debug, Default)]
pub(super) struct Resolved {
    pub(super) pods: Vec<(Pod, Origin)>,
    pub(super) errors: Vec<Wrong>,
    pub(super) notes: Vec<String>,
}

/// The pods of all objects; `node` is the one that was asked for.
pub(super) fn resolve(objects: Objects, node: Option<&str>) -> Resolved {
    let Objects { mut made, classes, controllers, left_out, documents: _ } = objects;
    let mut resolved = Resolved::default();
    let classes = Classes::new(classes, &mut resolved.errors);
    // What it has made is given, too.
    let is_there =
        |made: &Made| made.pods.is_some() && made.uid.as_ref().is_some_and(|uid| controllers.contains(uid));
    let before = made.len();
    made.retain(|made| !is_there(made));
    describe(&left_out, before - made.len(), node, &mut resolved.notes);
    // The sort is stable. What was created runs when the rest is admitted.
    made.sort_by_key(|made| (made.created.is_none(), made.created));
    let mut room = Room { pods: MOST_MADE, bytes: MOST_BYTES };
    for mut made in made {
        let pods = classes.apply(&mut made).and_then(|()| expand(made, &mut room));
        match pods {
            Ok(pods) => resolved.pods.extend(pods),
            Err(error) => resolved.errors.push(wrong(&error)),
        }
    }
    resolved
}

/// How much may still be made.
struct Room {
    pods: u64,
    bytes: u64,
}

fn expand(made: Made, room: &mut Room) -> Result<Vec<(Pod, Origin)>, Box<ManifestError>> {
    let Made { pod, pods, weight, origin, .. } = made;
    let Some(pods) = pods else { return Ok(vec![(pod, origin)]) };
    let most = room.pods.min(room.bytes / weight.max(1));
    if pods.count > most {
        let problem = Problem::TooManyPods { count: pods.count, most };
        return Err(Box::new(ManifestError::Document { origin, problem }));
    }
    room.pods -= pods.count;
    room.bytes = room.bytes.saturating_sub(weight.saturating_mul(pods.count));
    let suffix = format!("-{}", pods.first);
    let name = pod.name.name.strip_suffix(&suffix).unwrap_or(&pod.name.name);
    let workload = PodName { namespace: pod.name.namespace.clone(), name: name.to_owned() };
    let numbers = pods.first..pods.first.saturating_add(pods.count);
    let each = numbers.filter_map(|number| manifest::pod_of(&pod, manifest::name_of(&workload, number)));
    Ok(each.map(|pod| (pod, origin.clone())).collect())
}

/// The priority classes that are given.
struct Classes {
    by_name: BTreeMap<String, Class>,
    default: Option<i32>,
}

impl Classes {
    fn new(classes: Vec<Class>, errors: &mut Vec<Wrong>) -> Self {
        let mut by_name: BTreeMap<String, Class> = BTreeMap::new();
        for class in classes {
            if let Some(first) = by_name.get(&class.name) {
                let first = first.origin.clone();
                let class_name = class.name.chars().take(300).collect();
                let error = ManifestError::DuplicateClass { class: class_name, first, second: class.origin };
                errors.push(wrong(&error));
            } else {
                by_name.insert(class.name.clone(), class);
            }
        }
        // Of several the API server takes the lowest.
        let default = by_name.values().filter(|class| class.is_default).map(|class| class.value).min();
        Self { by_name, default }
    }

    /// Sets the priority of a pod that has none yet, as the API server's Priority admission does.
    fn apply(&self, made: &mut Made) -> Result<(), Box<ManifestError>> {
        let pod = &mut made.pod;
        if pod.priority.is_some() {
            return Ok(());
        }
        let name = pod.priority_class_name.as_deref().filter(|name| !name.is_empty());
        let Some(name) = name else {
            pod.priority = self.default;
            return Ok(());
        };
        if let Some(class) = self.by_name.get(name) {
            pod.priority = Some(class.value);
            return Ok(());
        }
        let near = nearest(name, self.by_name.keys().map(String::as_str)).map(ToOwned::to_owned);
        let class = name.chars().take(300).collect();
        let problem = Problem::UnknownClass { pod: pod.name.clone(), class, near };
        let (origin, field) = made
            .class_at
            .clone()
            .unwrap_or_else(|| (made.origin.clone(), String::from("spec.priorityClassName")));
        Err(Box::new(ManifestError::Field { origin, field, problem }))
    }
}

fn wrong(error: &ManifestError) -> Wrong {
    let (ManifestError::Document { origin, .. }
    | ManifestError::Field { origin, .. }
    | ManifestError::Duplicate { second: origin, .. }
    | ManifestError::DuplicateClass { second: origin, .. }) = error;
    Wrong { source: origin.source.clone(), message: error.to_string() }
}

/// Says what was left out.
fn describe(left_out: &LeftOut, made_already: usize, node: Option<&str>, notes: &mut Vec<String>) {
    let LeftOut { ended, elsewhere, unscheduled, tests, others, further, nodes } = left_out;
    let pods = |count: usize| if count == 1 { String::from("1 pod") } else { format!("{count} pods") };
    let mut add = |count: usize, what: String| {
        if count > 0 {
            notes.push(what);
        }
    };
    add(*ended, format!("left out: {} in phase Succeeded or Failed", pods(*ended)));
    let wanted = node.unwrap_or_default();
    add(*elsewhere, format!("left out: {} of other nodes than {wanted}", pods(*elsewhere)));
    add(*unscheduled, format!("left out: {} on no node yet", pods(*unscheduled)));
    add(*tests, format!("left out: {tests} of Helm's tests"));
    add(
        made_already,
        format!("left out: {made_already} workloads whose own pods or workloads are given as well"),
    );
    let mut kinds: Vec<_> = others.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    if *further > 0 {
        kinds.push(format!("{further} of other kinds"));
    }
    add(kinds.len(), format!("passed over, as no pods are made of them: {}", kinds.join(", ")));
    match node {
        Some(node) if !nodes.is_empty() && !nodes.contains(node) => {
            let near = nearest(node, nodes.iter().map(String::as_str));
            let hint = near.map_or_else(String::new, |near| format!(": did you mean {near}?"));
            add(*elsewhere, format!("no pod that is given is on node {node}{hint}"));
        }
        None if nodes.len() > 1 => {
            let some: Vec<_> = nodes.iter().take(3).map(String::as_str).collect();
            let what =
                format!("these pods are of several nodes ({}): --node takes those of one", some.join(", "));
            add(nodes.len(), what);
        }
        Some(_) | None => {}
    }
}

#[cfg(test)]
mod tests;
