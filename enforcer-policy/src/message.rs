//! The kubelet's message about an eviction: `evictionMessage` in `pkg/kubelet/eviction/helpers.go`.

use std::collections::BTreeMap;

use crate::model::{Container, Pod, Quantity, ResourceList, ResourceName};

use super::{lists, threshold::Signal};

/// The annotation that names the containers above their request, separated by commas.
pub const OFFENDING_CONTAINERS: &str = "offending_containers";
/// The annotation with what those containers used, in the same order.
pub const OFFENDING_CONTAINERS_USAGE: &str = "offending_containers_usage";
/// The annotation that names the pod if it is above its pod-level request.
pub const OFFENDING_POD: &str = "offending_pod";
/// The annotation with what that pod used.
pub const OFFENDING_POD_USAGE: &str = "offending_pod_usage";
/// The annotation that names the resource that ran short.
pub const STARVED_RESOURCE: &str = "starved_resource";

/// How a message begins that names a resource of the node.
const SHORT_OF: &str = "The node was low on resource: ";

/// The requests of a pod and its containers, as far as messages show them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Requests {
    /// The pod-level requests; `None` if there are none.
    pub pod: Option<ResourceList>,
    /// The requests of each container by its name, init containers first.
    pub containers: Vec<(String, ResourceList)>,
}

impl Requests {
    /// The requests of a pod.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let of_container =
            |container: &Container| (container.name.clone(), container.resources.requests.clone());
        Self {
            pod: pod.resources.as_ref().map(|resources| resources.requests.clone()),
            containers: pod.containers.iter().map(of_container).collect(),
        }
    }
}

/// The usages of a pod and its containers of the resource that ran short, in base units.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Usages<'a> {
    /// The whole pod's usage; `None` if unknown.
    pub pod: Option<u64>,
    /// The containers' usages by name, in the order of the message.
    pub containers: Vec<(&'a str, u64)>,
}

/// A message, and the annotations of the event that carries it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Message {
    /// The sentences, each followed by a space.
    pub text: String,
    /// The annotations by key.
    pub annotations: BTreeMap<&'static str, String>,
}

/// The first sentences: the resource that ran short, its threshold and its level, in base units.
#[must_use]
pub fn shortage(signal: Signal, threshold: u64, available: u64) -> String {
    format!(
        "{SHORT_OF}{}. Threshold quantity: {}, available: {}. ",
        signal.resource(),
        shown(signal, Quantity::from_units(threshold)),
        shown(signal, Quantity::from_units(available))
    )
}

/// The resource of the node that a message says to have run short. `None` if it does not say so: a kubelet also evicts
/// a pod that is above a limit of its own, of ephemeral storage or of an emptyDir.
#[must_use]
pub fn named_resource(message: &str) -> Option<&'static str> {
    let named = message.strip_prefix(SHORT_OF)?.split(". ").next()?.trim_end_matches('.');
    Signal::ALL.into_iter().map(Signal::resource).find(|resource| *resource == named)
}

/// The whole message about an evicted pod: the containers that used more than they request.
///
/// Init containers count, ephemeral containers are never named. Without usages there are no annotations.
#[must_use]
pub fn evicted(
    signal: Signal,
    threshold: u64,
    available: u64,
    pod: &str,
    requests: &Requests,
    usages: Option<&Usages<'_>>,
) -> Message {
    let mut text = shortage(signal, threshold, available);
    let mut annotations = BTreeMap::new();
    let Some(usages) = usages else { return Message { text, annotations } };
    let resource = signal.resource();
    let mut blame = |what: &str, name: &str, used: Quantity, request: Quantity| {
        let (used, request) = (shown(signal, used), shown(signal, request));
        text.push_str(&format!(
            "{what} {name} was using {used}, request is {request}, has larger consumption of {resource}. "
        ));
        used
    };
    let pod_request = requests.pod.as_ref().and_then(|requests| requests.get(resource));
    if let (Some(used), Some(&request), ResourceName::MEMORY) = (usages.pod, pod_request, resource) {
        let used = Quantity::from_units(used);
        if used > request {
            let used = blame("Pod", pod, used, request);
            annotations.insert(OFFENDING_POD, pod.to_owned());
            annotations.insert(OFFENDING_POD_USAGE, used);
        }
    }
    let (mut names, mut used_by) = (Vec::new(), Vec::new());
    for &(name, used) in &usages.containers {
        let own = requests.containers.iter().find(|(container, _)| container == name);
        let Some((_, requested)) = own else { continue };
        let (used, request) = (Quantity::from_units(used), lists::get(requested, resource));
        if used > request {
            used_by.push(blame("Container", name, used, request));
            names.push(name);
        }
    }
    annotations.insert(OFFENDING_CONTAINERS, names.join(","));
    annotations.insert(OFFENDING_CONTAINERS_USAGE, used_by.join(","));
    annotations.insert(STARVED_RESOURCE, resource.to_owned());
    Message { text, annotations }
}

/// Bytes in powers of 1024, counts in powers of 1000.
fn shown(signal: Signal, quantity: Quantity) -> String {
    match signal {
        Signal::MemoryAvailable
        | Signal::AllocatableMemoryAvailable
        | Signal::NodefsAvailable
        | Signal::ImagefsAvailable
        | Signal::ContainerfsAvailable => quantity.binary_si().to_string(),
        Signal::NodefsInodesFree
        | Signal::ImagefsInodesFree
        | Signal::ContainerfsInodesFree
        | Signal::PidAvailable => quantity.to_string(),
    }
}

#[cfg(test)]
mod tests;
