//! The program's whole environment; it inherits nothing from the daemon.

use ulid::Ulid;

use crate::{
    evict::candidate::Candidate,
    policy::engine::{Decision, Resource},
};

/// The program's `PATH`, and its language.
pub(super) const PATH: (&str, &str) =
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
pub(super) const LANG: (&str, &str) = ("LANG", "C.UTF-8");

/// How the names of all others begin.
pub(super) const PREFIX: &str = "ENFORCER_";

/// The variables by name. Namespace, name and uid are valid for the API server, so they have no special characters. The
/// path of an adopted cgroup is not escaped.
pub(super) fn environment(
    id: Ulid,
    decision: &Decision,
    candidate: &Candidate,
    allowed_ns: u64,
) -> Vec<(&'static str, String)> {
    let identity = candidate.identity();
    let facts = candidate.facts();
    let shortage = &decision.shortage;
    let mut variables = vec![
        (PATH.0, PATH.1.to_owned()),
        (LANG.0, LANG.1.to_owned()),
        ("ENFORCER_EVICTION_ID", id.to_string()),
        ("ENFORCER_SIGNAL", shortage.signal.as_str().to_owned()),
        ("ENFORCER_HARD", shortage.hard.to_string()),
        ("ENFORCER_THRESHOLD", shortage.threshold.to_string()),
        ("ENFORCER_OBSERVED", shortage.observed.to_string()),
        ("ENFORCER_NAMESPACE", identity.pod.namespace.clone()),
        ("ENFORCER_POD", identity.pod.name.clone()),
        ("ENFORCER_UID", identity.uid.as_str().to_owned()),
        ("ENFORCER_QOS_CLASS", identity.qos_class.as_str().to_owned()),
        ("ENFORCER_PRIORITY", facts.priority.to_string()),
        ("ENFORCER_CGROUP", identity.cgroup.as_str().to_owned()),
        ("ENFORCER_REQUEST_BYTES", facts.request_bytes.to_string()),
        ("ENFORCER_GRACE_MS", (decision.grace_ns / 1_000_000).to_string()),
        ("ENFORCER_TIMEOUT_MS", (allowed_ns / 1_000_000).to_string()),
        ("ENFORCER_DRY_RUN", decision.dry_run.to_string()),
    ];
    if let Some(usage) = decision.reading.usage() {
        variables.push(("ENFORCER_USAGE_BYTES", usage.working_set_bytes.to_string()));
    }
    if let (Resource::Pids, Some(count)) = (shortage.resource(), decision.reading.process_count()) {
        variables.push(("ENFORCER_PROCESS_COUNT", count.to_string()));
    }
    if let Some(limit_bytes) = identity.limit_bytes {
        variables.push(("ENFORCER_LIMIT_BYTES", limit_bytes.to_string()));
    }
    variables
}
