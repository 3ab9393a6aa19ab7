//! The first sentence: the victim, what happened, the trigger, and the one comparison that decided.
use serde_json::Value;

use super::{
    data::{bytes, data, list, number, pod, text},
    fold::{Folded, Outcome},
};
use crate::{
    cli::{
        ranked::{self, because},
        render::human_bytes,
    },
    journal::EventType,
    serve::RankedView,
};

pub(super) fn sentence(folded: &Folded) -> String {
    match folded.kind {
        "eviction" => eviction(folded),
        "oom" => oom(folded),
        _ => suppression(folded),
    }
}

/// The victim's name; `a pod` if it is unknown.
pub(super) fn victim(folded: &Folded) -> String {
    let decision = folded.decision();
    let named = decision.get("victim").and_then(|victim| pod(victim, "name"));
    let subject = || {
        let mut events = folded.decided.iter().chain(&folded.steps);
        events.find_map(|event| text(event, "subject")).map(str::to_owned)
    };
    named.or_else(subject).unwrap_or_else(|| String::from("a pod"))
}

fn eviction(folded: &Folded) -> String {
    let decision = folded.decision();
    let victim = victim(folded);
    let failure = folded.step(EventType::EvictionFailed).unwrap_or(&Value::Null);
    let what = match Outcome::of(folded) {
        Outcome::Completed => "was evicted",
        Outcome::Failed => "was to be evicted",
        Outcome::Paused => "would have been evicted, if an operator had not paused eviction,",
        Outcome::DryRun => "would have been evicted (dry run)",
        Outcome::Signalled => "is being evicted",
        Outcome::Unknown => "was chosen to be evicted",
    };
    let mut sentence = match (decision.get("operator"), trigger(decision)) {
        (Some(operator), _) => format!(
            "{victim} {what} by order of uid {}: {}",
            number(operator, "uid").map_or_else(|| String::from("?"), |uid| uid.to_string()),
            text(operator, "reason").unwrap_or("no reason is recorded")
        ),
        (None, Some(trigger)) => format!("{victim} {what} because {trigger}"),
        (None, None) => format!("{victim} {what}; the reason is no longer kept"),
    };
    if decision.get("operator").is_none()
        && let [first, others @ ..] = rows(decision).as_slice()
        && let Some(key) = text(decision, "decidedBy")
    {
        sentence.push_str(&format!("; {}", because(first, others.first(), key)));
    }
    if Outcome::of(folded) == Outcome::Failed {
        sentence.push_str(&format!(". It was not: {}", failed(failure)));
    }
    if sentence.ends_with('.') { sentence } else { sentence + "." }
}

pub(super) fn failed(failure: &Value) -> String {
    let reason = text(failure, "message").or_else(|| text(failure, "reason"));
    reason.unwrap_or("the reason is not recorded").to_owned()
}

/// The ranking of a decision.
pub(super) fn rows(decision: &Value) -> Vec<RankedView> {
    let row = |row: &Value| serde_json::from_value::<RankedView>(row.clone()).ok();
    let mut rows: Vec<_> = list(decision, "ranking").iter().filter_map(row).collect();
    ranked::compare(&mut rows, ranked::is_pids(text(decision, "signal").unwrap_or_default()));
    rows
}

/// `memory.available fell to 199Mi, below 200Mi`; `None` without a signal.
pub(super) fn trigger(data: &Value) -> Option<String> {
    let signal = text(data, "signal")?;
    let soft = if data.get("hard") == Some(&Value::Bool(false)) { "its soft threshold " } else { "" };
    if let (Some(observed), Some(threshold)) = (number(data, "observedCount"), number(data, "thresholdCount"))
    {
        return Some(format!("{signal} fell to {observed}, below {soft}{threshold}"));
    }
    let (Some(observed), Some(threshold)) = (number(data, "observedBytes"), number(data, "thresholdBytes"))
    else {
        return Some(format!("{signal} ran short"));
    };
    let (shown, of) = apart(observed, threshold);
    Some(format!("{signal} fell to {shown}, below {soft}{of}"))
}

/// Both amounts in units, or in bytes if they would read the same.
pub(super) fn apart(one: u64, other: u64) -> (String, String) {
    let (shown, of) = (human_bytes(one), human_bytes(other));
    if shown == of && one != other { (format!("{one} bytes"), format!("{other} bytes")) } else { (shown, of) }
}

fn suppression(folded: &Folded) -> String {
    let reported = folded.decision();
    let message = failed(reported);
    let crossed = folded.crossed.as_ref().and_then(|crossed| trigger(data(crossed)));
    let crossed = crossed.map(|crossed| format!(" though {crossed}"));
    format!("No pod was evicted{}: {message}.", crossed.unwrap_or_default())
}

/// The event with the most details about an OOM, and its data.
pub(super) fn oom_data(folded: &Folded) -> (Option<EventType>, &Value) {
    let kinds = [EventType::OomIncident, EventType::OomAverted, EventType::OomDetected];
    let reported = kinds.into_iter().find_map(|kind| Some((Some(kind), folded.step(kind)?)));
    reported.unwrap_or((None, &Value::Null))
}

/// All victims of an OOM.
pub(super) fn victims(data: &Value) -> Vec<&Value> {
    match list(data, "victims") {
        [] => data.get("victim").into_iter().collect(),
        victims => victims.iter().collect(),
    }
}

fn oom(folded: &Folded) -> String {
    let (kind, data) = oom_data(folded);
    let victims = victims(data);
    let first = victims.first().copied();
    let who = first.map_or_else(|| place(data).unwrap_or_else(|| String::from("something")), task);
    if kind == Some(EventType::OomAverted) {
        let why = match text(data, "cause") {
            Some("ownEviction") => "its pod was being evicted",
            _ => "it was dying already",
        };
        return format!("The kernel killed no process: it chose {who}, and {why}.");
    }
    let others = match victims.len() {
        0 | 1 => String::new(),
        2 => String::from(" and one other"),
        count => format!(" and {} others", count - 1),
    };
    let was = if victims.len() > 1 { "were" } else { "was" };
    let mut sentence = format!("{who}{others} {was} killed by the kernel because {}", limit(data));
    let trigger = data.get("trigger").filter(|trigger| trigger.get("pid").is_some());
    if let Some(trigger) = trigger {
        let own = first.is_some_and(|first| first.get("pid") == trigger.get("pid"));
        let by = if own { String::from("it") } else { task(trigger) };
        sentence.push_str(&format!(" when {by} asked for memory"));
    }
    if let Some(first) = first
        && let Some(score) = super::data::signed(first, "oomScoreAdj")
        && first.get("anonBytes").is_some()
    {
        sentence.push_str(&format!(
            "; within that limit the kernel chose {} for its {} of memory and its oom_score_adj {score}",
            text(first, "comm").unwrap_or("it"),
            human_bytes(resident(first))
        ));
    }
    sentence + "."
}

/// The resident memory of a victim, in bytes.
pub(super) fn resident(victim: &Value) -> u64 {
    ["anonBytes", "fileBytes", "shmemBytes"]
        .iter()
        .filter_map(|key| number(victim, key))
        .fold(0, u64::saturating_add)
}

/// `workload (pid 398) in container c1 of default/p`.
pub(super) fn task(task: &Value) -> String {
    let comm = text(task, "comm").unwrap_or("a process");
    let pid = number(task, "pid").map_or_else(String::new, |pid| format!(" (pid {pid})"));
    let place = place(task).map_or_else(String::new, |place| format!(" in {place}"));
    format!("{comm}{pid}{place}")
}

fn place(task: &Value) -> Option<String> {
    match (text(task, "container"), pod(task, "pod")) {
        (Some(container), Some(pod)) => Some(format!("container {container} of {pod}")),
        (None, Some(pod)) => Some(pod),
        (_, None) => text(task, "cgroup").map(str::to_owned),
    }
}

/// Whose limit was hit.
fn limit(data: &Value) -> String {
    let owner = text(data, "limitOwner");
    let shown = owner.map_or_else(String::new, |owner| format!(" ({owner})"));
    match (text(data, "scope"), owner) {
        (Some("container"), _) => format!("the container's own limit was hit{shown}"),
        (Some("pod"), _) => format!("the pod's limit was hit{shown}"),
        (Some("qos"), _) => format!("the limit of its class was hit{shown}"),
        (_, Some("/")) => String::from("the node ran out of memory"),
        (Some("node"), _) => format!("the limit of all pods was hit{shown}"),
        (_, Some(owner)) => format!("the limit of {owner} was hit"),
        (_, None) => String::from("a limit was hit whose owner is not known"),
    }
}

/// How much of the predicted memory came back.
pub(super) fn came_back(data: &Value) -> Option<String> {
    data.get("predictedFreedBytes")?;
    let freed = match data.get("freedBytes") {
        Some(_) => bytes(data, "freedBytes"),
        None => String::from("an unknown part"),
    };
    Some(format!("{freed} of {} that were predicted", bytes(data, "predictedFreedBytes")))
}
