//! The requests to the API server, and its answers.

use bytes::Bytes;
use hyper::{HeaderMap, Method, Request, StatusCode, header::RETRY_AFTER, http};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    exchange::{Answer, Exchange, MOST_ANSWER_BYTES, Sent, build},
    message::{
        About, Call, ConditionStatus, ContainerRef, FoundPod, Outcome, PodRef, Report, TaintEffect, is_plain,
    },
};
use crate::{
    helper::plain,
    network::ConnectionError,
    specs::{ApiServerFeed, DISRUPTED_BY_ENFORCER, DISRUPTION_TARGET},
};

/// Who reports Events.
const CONTROLLER: &str = "enforcer.dev/enforcer";

/// The longest word and the longest note of an Event (`pkg/apis/core/validation/events.go`).
const MOST_WORD_BYTES: usize = 128;
const MOST_NOTE_BYTES: usize = 1_024;

/// What is asked only to have a connection. All who are known to the server may read it (`system:public-info-viewer`), and it
/// asks no storage.
const PING: &str = "/version";

/// The annotation of a pod that stands for a static one of the kubelet.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Our condition and our taint of a node.
const CONDITION: &str = "EnforcerMemoryPressure";
const TAINT: &str = "enforcer.dev/memory-pressure";

const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("the request cannot be written")]
    Request(#[from] http::Error),
    #[error("the token contains characters that an HTTP header may not have: check the token file")]
    Token,
    #[error("the pod's name or namespace is none that the API server could have")]
    Name,
    #[error("the answer is longer than {MOST_ANSWER_BYTES} bytes")]
    TooLong,
    #[error("the answer cannot be read")]
    Unreadable(#[from] serde_json::Error),
    #[error("the request has arrived and is not answered")]
    Unanswered,
    #[error("the request was not answered, and reading the pod failed with status {0}")]
    Unread(StatusCode),
}

/// A client of the API server, with one connection.
#[derive(Debug, Default)]
pub(super) struct Api {
    exchange: Exchange,
}

impl Api {
    /// Asks, over the connection of the last question if that is still open. After the deadline the answer serves no one.
    pub(super) async fn ask(
        &mut self,
        access: &ApiServerFeed,
        call: &Call,
        deadline: Instant,
    ) -> Result<Outcome, ApiError> {
        self.exchange.begin();
        if let Call::Taint { node, effect } = call {
            let found = self.send(access, call).await?;
            if !found.status.is_success() {
                return outcome(call, found);
            }
            let Some(patch) = taints(&found.body, *effect)? else {
                return Ok(Outcome::Done { sent_boot_ms: found.sent_boot_ms });
            };
            let answer = self.exchange.send(access, || patch_node(access, node, &patch)).await?;
            return outcome(call, answer);
        }
        if let Call::Evict { pod, .. } | Call::Delete { pod, .. } | Call::Status { pod, .. } = call {
            return self.change(access, call, pod, deadline).await;
        }
        if *call == Call::Discover
            && let Some(version) = self.exchange.version(access)
        {
            return Ok(Outcome::Known(version.to_owned()));
        }
        let outcome = outcome(call, self.send(access, call).await?)?;
        if let Outcome::Discovered(found) = &outcome {
            self.exchange.set_version(found.clone());
        }
        Ok(outcome)
    }

    /// Asks for what changes a pod. The pod is the answer if there is no other.
    async fn change(
        &mut self,
        access: &ApiServerFeed,
        call: &Call,
        pod: &PodRef,
        deadline: Instant,
    ) -> Result<Outcome, ApiError> {
        let look = Call::Look(pod.clone());
        let is_undone = |answer: &Answer| match answer.status {
            StatusCode::OK => Ok(found(serde_json::from_slice(&answer.body)?).is_as_it_was(pod)),
            StatusCode::NOT_FOUND => Ok(false),
            other => Err(ApiError::Unread(other)),
        };
        let sent = self
            .exchange
            .change(access, || request(access, call), || request(access, &look), is_undone, deadline)
            .await?;
        let answer = match sent {
            Sent::Answered(answer) => answer,
            Sent::Looked(answer) => return outcome(&look, answer),
        };
        let outcome = outcome(call, answer)?;
        // It may be of another version now.
        if matches!((call, &outcome), (Call::Evict { .. }, Outcome::Missing | Outcome::Conflict)) {
            self.exchange.set_version(None);
        }
        Ok(outcome)
    }

    /// Whether what was asked last was sent twice, also if there is no answer.
    pub(super) fn is_resent(&self) -> bool {
        self.exchange.is_resent()
    }

    /// An Event has a name of its own and a count, a condition its value, and the second half of a taint the version of the node
    /// that the first half has found: done twice they are as done once.
    async fn send(&mut self, access: &ApiServerFeed, call: &Call) -> Result<Answer, ApiError> {
        self.exchange.send(access, || request(access, call)).await
    }
}

fn request(access: &ApiServerFeed, call: &Call) -> Result<Request<Bytes>, ApiError> {
    let (method, target, content_type, body) = match call {
        Call::Discover => (Method::GET, String::from("/api/v1"), None, None),
        Call::Ping => (Method::GET, String::from(PING), None, None),
        Call::Look(pod) => (Method::GET, path(pod)?, None, None),
        Call::Evict { pod, group_version, grace_seconds } => {
            let target = format!("{}/eviction", path(pod)?);
            (
                Method::POST,
                target,
                Some("application/json"),
                Some(eviction(pod, group_version, *grace_seconds)),
            )
        }
        Call::Delete { pod, grace_seconds } => {
            let mut options = options(pod, *grace_seconds);
            options["apiVersion"] = "v1".into();
            options["kind"] = "DeleteOptions".into();
            (Method::DELETE, path(pod)?, Some("application/json"), Some(options))
        }
        Call::Status { pod, message } => {
            let target = format!("{}/status", path(pod)?);
            (Method::PATCH, target, Some(STRATEGIC_MERGE_PATCH), Some(status(pod, message)))
        }
        Call::Report(report) => {
            let target = events_of(report.about.namespace())?;
            (Method::POST, target, Some("application/json"), Some(event(report)))
        }
        Call::Repeat { namespace, name, count, time_ms } => {
            if !is_plain(name) {
                return Err(ApiError::Name);
            }
            let target = format!("{}/{name}", events_of(namespace)?);
            let series = json!({"series": {"count": count, "lastObservedTime": micros(*time_ms)}});
            (Method::PATCH, target, Some(MERGE_PATCH), Some(series))
        }
        Call::Condition { node, status } => {
            let target = format!("{}/status", node_path(node)?);
            (Method::PATCH, target, Some(STRATEGIC_MERGE_PATCH), Some(condition(*status)))
        }
        // From the server's cache, as it need not be of this moment.
        Call::DiskPressure { node } => {
            (Method::GET, format!("{}?resourceVersion=0", node_path(node)?), None, None)
        }
        // The first half: what the node has.
        Call::Taint { node, effect: _ } => (Method::GET, node_path(node)?, None, None),
    };
    build(access, method, &target, content_type, body.as_ref())
}

/// The second half of [`Call::Taint`].
fn patch_node(access: &ApiServerFeed, node: &str, patch: &Value) -> Result<Request<Bytes>, ApiError> {
    build(access, Method::PATCH, &node_path(node)?, Some(MERGE_PATCH), Some(patch))
}

fn node_path(node: &str) -> Result<String, ApiError> {
    if !is_plain(node) {
        return Err(ApiError::Name);
    }
    Ok(format!("/api/v1/nodes/{node}"))
}

/// Conditions are merged by their type, so that the kubelet's stay.
fn condition(status: Option<ConditionStatus>) -> Value {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = match status {
        None => json!({"$patch": "delete", "type": CONDITION}),
        Some(status) => {
            let (status, reason, message) = match status {
                ConditionStatus::True => (
                    "True",
                    "MemoryIsShort",
                    "a memory threshold of enforcer is met, or was met a short time ago",
                ),
                ConditionStatus::False => {
                    ("False", "MemoryIsSufficient", "no memory threshold of enforcer is met")
                }
            };
            json!({
                "type": CONDITION, "status": status, "reason": reason, "message": message,
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            })
        }
    };
    json!({"status": {"conditions": [condition]}})
}

/// A patch of the node's taints, which are replaced as a whole: only if the node is still of that version. `None` if they
/// are as they should be.
fn taints(node: &[u8], effect: Option<TaintEffect>) -> Result<Option<Value>, ApiError> {
    let Node { metadata, spec, status: _ } = serde_json::from_slice(node)?;
    let is_ours = |taint: &Value| taint["key"] == TAINT;
    let before = spec.taints.unwrap_or_default();
    let mut after: Vec<Value> = before.iter().filter(|taint| !is_ours(taint)).cloned().collect();
    if let Some(effect) = effect {
        let ours = before.iter().find(|taint| is_ours(taint) && taint["effect"] == effect.as_str());
        after.push(ours.cloned().unwrap_or_else(|| json!({"key": TAINT, "effect": effect.as_str()})));
    }
    let is_same = before.len() == after.len() && before.iter().all(|taint| after.contains(taint));
    let version = metadata.resource_version;
    Ok((!is_same).then(|| json!({"metadata": {"resourceVersion": version}, "spec": {"taints": after}})))
}

fn path(pod: &PodRef) -> Result<String, ApiError> {
    if !pod.is_valid() {
        return Err(ApiError::Name);
    }
    Ok(format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name))
}

/// The uid is a precondition: another pod of that name is not touched.
fn options(pod: &PodRef, grace_seconds: u64) -> Value {
    json!({"gracePeriodSeconds": grace_seconds, "preconditions": {"uid": pod.uid}})
}

fn eviction(pod: &PodRef, group_version: &str, grace_seconds: u64) -> Value {
    json!({
        "apiVersion": group_version,
        "kind": "Eviction",
        "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": options(pod, grace_seconds),
    })
}

/// What a kubelet writes of a pod that it has evicted (`pkg/kubelet/eviction`: phase, reason and message), and the
/// condition by which a job's `podFailurePolicy` knows a disruption. A patch with another uid is a conflict.
fn status(pod: &PodRef, message: &str) -> Value {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({
        "metadata": {"uid": pod.uid},
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "message": message,
            "conditions": [{
                "type": DISRUPTION_TARGET,
                "status": "True",
                "reason": DISRUPTED_BY_ENFORCER,
                "message": message,
                "lastTransitionTime": now,
            }],
        },
    })
}

fn events_of(namespace: &str) -> Result<String, ApiError> {
    if !is_plain(namespace) {
        return Err(ApiError::Name);
    }
    Ok(format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"))
}

fn event(report: &Report) -> Value {
    let Report { name, about, node, reason, action, is_warning, note, annotations, time_ms } = report;
    let of_node = json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": node});
    let mut event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": about.namespace(), "name": name, "annotations": annotations},
        "eventTime": micros(*time_ms),
        "reportingController": CONTROLLER,
        "reportingInstance": cut(node, MOST_WORD_BYTES),
        "reason": cut(reason, MOST_WORD_BYTES),
        "action": cut(action, MOST_WORD_BYTES),
        "type": if *is_warning { "Warning" } else { "Normal" },
        "note": cut(note, MOST_NOTE_BYTES),
    });
    match about {
        About::Node => event["regarding"] = of_node,
        About::Pod(PodRef { namespace, name, uid }, container) => {
            let mut pod =
                json!({"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid});
            if let Some(ContainerRef { name, list }) = container {
                pod["fieldPath"] = format!("spec.{}{{{name}}}", list.as_str()).into();
            }
            event["regarding"] = pod;
            event["related"] = of_node;
        }
    }
    event
}

/// A time of the kind `MicroTime`.
fn micros(time_ms: i64) -> String {
    let time = jiff::Timestamp::from_millisecond(time_ms).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

fn cut(text: &str, most_bytes: usize) -> &str {
    let mut end = most_bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[derive(Deserialize)]
struct Resources {
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
    #[serde(default)]
    group: String,
    #[serde(default)]
    version: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Pod {
    metadata: Metadata,
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Node {
    metadata: Metadata,
    spec: NodeSpec,
    status: NodeStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    conditions: Option<Vec<Condition>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    taints: Option<Vec<Value>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    uid: String,
    resource_version: String,
    deletion_timestamp: Option<String>,
    owner_references: Option<Vec<Owner>>,
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Owner {
    kind: String,
    controller: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: String,
}

/// A `Status`: what the server says when it does not do what was asked.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Refusal {
    message: String,
    details: Details,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Details {
    retry_after_seconds: u64,
    causes: Vec<Cause>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Cause {
    reason: String,
}

fn outcome(call: &Call, answer: Answer) -> Result<Outcome, ApiError> {
    let Answer { status, headers, body, sent_boot_ms } = answer;
    if status.is_success() {
        return Ok(match call {
            Call::Discover => {
                let Resources { resources } = serde_json::from_slice(&body)?;
                let eviction = resources.into_iter().find(|resource| resource.name == "pods/eviction");
                // The group of the kind; servers before 1.22 serve policy/v1beta1.
                Outcome::Discovered(eviction.map(|of| format!("{}/{}", of.group, of.version)))
            }
            Call::Look(_) => Outcome::Found(found(serde_json::from_slice(&body)?)),
            Call::DiskPressure { .. } => {
                Outcome::DiskPressure(disk_pressure(&serde_json::from_slice(&body)?))
            }
            Call::Ping
            | Call::Evict { .. }
            | Call::Delete { .. }
            | Call::Status { .. }
            | Call::Report(_)
            | Call::Repeat { .. }
            | Call::Condition { .. }
            | Call::Taint { .. } => Outcome::Done { sent_boot_ms },
        });
    }
    Ok(match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => Outcome::Missing,
        StatusCode::CONFLICT => Outcome::Conflict,
        _ => refused(status, &headers, &body),
    })
}

/// The node controller sets the conditions of a node whose kubelet is silent to `Unknown`.
fn disk_pressure(node: &Node) -> Option<bool> {
    let mut conditions = node.status.conditions.iter().flatten();
    match conditions.find(|condition| condition.r#type == "DiskPressure")?.status.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

fn found(pod: Pod) -> FoundPod {
    let Pod { metadata, status } = pod;
    let controller = metadata
        .owner_references
        .unwrap_or_default()
        .into_iter()
        .find(|owner| owner.controller == Some(true));
    FoundPod {
        uid: metadata.uid,
        is_terminating: metadata.deletion_timestamp.is_some(),
        has_ended: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
        controller: controller.map(|owner| owner.kind),
        is_mirror: metadata.annotations.is_some_and(|annotations| annotations.contains_key(MIRROR)),
    }
}

fn refused(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Outcome {
    let refusal: Refusal = serde_json::from_slice(body).unwrap_or_default();
    let words = if refusal.message.is_empty() {
        String::from_utf8_lossy(body).trim().to_owned()
    } else {
        refusal.message
    };
    // One budget answers 429 with its cause (`pkg/registry/core/pod/storage/eviction.go`), two budgets 500 with words.
    let is_budget = refusal.details.causes.iter().any(|cause| cause.reason == "DisruptionBudget")
        || status == StatusCode::INTERNAL_SERVER_ERROR && words.contains("PodDisruptionBudget");
    let header = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let seconds =
        header.or((refusal.details.retry_after_seconds > 0).then_some(refusal.details.retry_after_seconds));
    let after_ms = seconds.map(|seconds| seconds.saturating_mul(1_000));
    // The daemon would cut it too, and a longer one has no place in an answer.
    let words = plain(&words);
    if is_budget {
        return Outcome::Budget { words, after_ms };
    }
    Outcome::Refused { status: status.as_u16(), words, after_ms }
}
