//! What a real node of Kubernetes 1.36 answered about its pods: containerd, its kubelet and its API server, at about the same
//! time. `bench record` writes it; the fakes repeat it.

use serde_json::Value;

use crate::{
    model::{Container, ResourceList, ResourceName},
    specs::ApiPod,
};

/// All answers.
pub(crate) struct Recorded(Value);

impl Recorded {
    pub(crate) fn new() -> Self {
        Self(serde_json::from_str(include_str!("recorded/1.36.json")).unwrap())
    }

    /// An answer in text, by its name.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_else(|| panic!("{name} was not recorded"))
    }

    /// The container runtime's answer to that question; `None` if it was not asked that.
    pub(crate) fn runtimes(&self, method: &str, question: &[u8]) -> Option<Vec<u8>> {
        let mut answers = self.0["runtime"][method].as_object()?.iter();
        answers.find(|(asked, _)| decoded(asked) == question).map(|(_, answer)| bytes(answer))
    }

    /// The messages of `WatchPods`, up to the one after which all pods have come.
    pub(crate) fn watched(&self) -> Vec<Vec<u8>> {
        self.0["podsApi"]["events"].as_array().unwrap().iter().map(bytes).collect()
    }

    /// The pods that the API server lists.
    pub(crate) fn listed(&self) -> Vec<Value> {
        let list: Value = serde_json::from_str(self.text("list")).unwrap();
        list["items"].as_array().unwrap().clone()
    }
}

fn bytes(hexadecimal: &Value) -> Vec<u8> {
    decoded(hexadecimal.as_str().unwrap())
}

fn decoded(hexadecimal: &str) -> Vec<u8> {
    let pairs = hexadecimal.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// What is shown of the recorded pods.
pub(crate) const SHOWN: [&str; 3] = [
    "shop/agent-cf4xr Some(Guaranteed) Some(0) 30 s Some(\"DaemonSet\"): agent App 8388608..8388608",
    "shop/bare Some(BestEffort) Some(0) 30 s None: app App ..",
    "shop/web-6c66d86cf5-65vjh Some(Burstable) Some(1000) 7 s Some(\"ReplicaSet\"): prepare Init .., proxy Sidecar \
     8388608..33554432, app App 16777216..67108864, log App 8388608..",
];

/// What decides about each of these pods, in the order of their names.
pub(crate) fn shown(pods: &[ApiPod]) -> Vec<String> {
    let show = |pod: &ApiPod| {
        let pod = pod.to_pod().unwrap();
        let memory = |list: &ResourceList| {
            list.get(ResourceName::MEMORY).map_or_else(String::new, ToString::to_string)
        };
        let containers = pod.containers.iter().map(|Container { name, kind, resources }| {
            format!("{name} {kind:?} {}..{}", memory(&resources.requests), memory(&resources.limits))
        });
        format!(
            "{} {:?} {:?} {} s {:?}: {}",
            pod.name,
            pod.stored_qos_class,
            pod.priority,
            pod.termination_grace_period_seconds,
            pod.controller().map(|owner| &*owner.kind),
            containers.collect::<Vec<_>>().join(", ")
        )
    };
    let mut shown: Vec<String> = pods.iter().map(show).collect();
    shown.sort();
    shown
}
