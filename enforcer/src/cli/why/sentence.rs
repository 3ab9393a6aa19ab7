//! The first sentence: the victim, what happened, the trigger, and the one comparison that decided.

use enforcer_events::{
    Payload,
    eviction::{Decision, EvictionEnded, Ranked},
    oom::{Averted, AvertedCause, Detected, Incident, Scope, Trigger, Victim},
    pod::Place,
    pressure::Shortage,
};

use super::{
    data::bytes,
    fold::{Folded, Outcome},
    other,
};
use crate::{
    cli::{
        ranked::{self, because},
        render::human_bytes,
    },
    serve::RankedView,
};

pub(super) fn sentence(folded: &Folded) -> String {
    match folded.kind {
        "eviction" => eviction(folded),
        "oom" => oom(folded),
        "suppression" => suppression(folded),
        _ => other::sentence(folded),
    }
}

/// The victim's name; `a pod` if it is unknown.
pub(super) fn victim(folded: &Folded) -> String {
    if let Some(victim) = folded.decision().and_then(|decision| decision.victim.as_ref()) {
        return format!("{}/{}", victim.namespace, victim.name);
    }
    let mut events = folded.decided.iter().chain(&folded.steps);
    events.next().map_or_else(|| String::from("a pod"), |event| event.subject().to_owned())
}

fn eviction(folded: &Folded) -> String {
    let decision = folded.decision();
    let victim = victim(folded);
    let what = match Outcome::of(folded) {
        Outcome::Completed => "was evicted",
        Outcome::Failed => "was to be evicted",
        Outcome::Paused => "would have been evicted, if an operator had not paused eviction,",
        Outcome::DryRun => "would have been evicted (dry run)",
        Outcome::Signalled => "is being evicted",
        Outcome::Unknown => "was chosen to be evicted",
    };
    let operator = decision.and_then(|decision| decision.operator.as_ref());
    let mut sentence = match (operator, folded.shortage()) {
        (Some(operator), _) => {
            format!("{victim} {what} by order of uid {}: {}", operator.uid, operator.reason)
        }
        (None, Some(shortage)) => format!("{victim} {what} because {}", trigger(&shortage)),
        (None, None) => format!("{victim} {what}; the reason is no longer kept"),
    };
    if operator.is_none()
        && let Some(decision) = decision
        && let [first, others @ ..] = rows(decision).as_slice()
    {
        sentence.push_str(&format!("; {}", because(first, others.first(), &decision.decided_by)));
    }
    if Outcome::of(folded) == Outcome::Failed
        && let Some(ended) = folded.failed()
    {
        let why = failed(ended.message.as_deref(), ended.reason.as_deref());
        sentence.push_str(&format!(". It was not: {why}"));
    }
    if sentence.ends_with('.') { sentence } else { sentence + "." }
}

pub(super) fn failed(message: Option<&str>, reason: Option<&str>) -> String {
    message.or(reason).unwrap_or("the reason is not recorded").to_owned()
}

/// The ranking of a decision.
pub(super) fn rows(decision: &Decision) -> Vec<RankedView> {
    let mut rows: Vec<_> = decision.ranking.iter().map(row).collect();
    ranked::compare(&mut rows, ranked::is_pids(decision.signal.as_deref().unwrap_or_default()));
    rows
}

fn row(ranked: &Ranked) -> RankedView {
    RankedView {
        rank: usize::try_from(ranked.rank).unwrap_or(usize::MAX),
        namespace: ranked.namespace.clone(),
        name: ranked.name.clone(),
        evictable: ranked.evictable,
        stats_missing: ranked.stats_missing,
        exceeds_request: ranked.exceeds_request.unwrap_or_default(),
        priority: ranked.priority,
        usage_bytes: ranked.usage_bytes,
        request_bytes: ranked.request_bytes.unwrap_or_default(),
        above_request_bytes: ranked.above_request_bytes,
        process_count: ranked.process_count,
        ..RankedView::default()
    }
}

/// `memory.available fell to 199Mi, below 200Mi`.
pub(super) fn trigger(shortage: &Shortage) -> String {
    let Shortage { signal, hard, .. } = shortage;
    let soft = if *hard { "" } else { "its soft threshold " };
    match amounts(shortage) {
        Some((observed, threshold)) => format!("{signal} fell to {observed}, below {soft}{threshold}"),
        None => format!("{signal} ran short"),
    }
}

/// What was left, and the threshold.
pub(super) fn amounts(shortage: &Shortage) -> Option<(String, String)> {
    if let (Some(observed), Some(threshold)) = (shortage.observed_count, shortage.threshold_count) {
        return Some((observed.to_string(), threshold.to_string()));
    }
    Some(apart(shortage.observed_bytes?, shortage.threshold_bytes?))
}

/// Both amounts in units, or in bytes if they would read the same.
fn apart(one: u64, other: u64) -> (String, String) {
    let (shown, of) = (human_bytes(one), human_bytes(other));
    if shown == of && one != other { (format!("{one} bytes"), format!("{other} bytes")) } else { (shown, of) }
}

fn suppression(folded: &Folded) -> String {
    let message = folded.decided.as_ref().and_then(|reported| reported.payload().message());
    let crossed = folded.crossing().map(|crossed| format!(" though {}", trigger(crossed)));
    format!("No pod was evicted{}: {}.", crossed.unwrap_or_default(), failed(message, None))
}

/// The event with the most details about an OOM.
#[derive(Clone, Copy, Debug)]
pub(super) enum Oom<'a> {
    Incident(&'a Incident),
    Averted(&'a Averted),
    Detected(&'a Detected),
    /// None is kept.
    Unknown,
}

impl<'a> Oom<'a> {
    pub(super) fn of(folded: &'a Folded) -> Self {
        let incident = |payload: &'a Payload| match payload {
            Payload::OomIncident(incident) => Some(Self::Incident(incident)),
            _ => None,
        };
        let averted = |payload: &'a Payload| match payload {
            Payload::OomAverted(averted) => Some(Self::Averted(averted)),
            _ => None,
        };
        let detected = |payload: &'a Payload| match payload {
            Payload::OomDetected(detected) => Some(Self::Detected(detected)),
            _ => None,
        };
        let found = folded.step(incident).or_else(|| folded.step(averted)).or_else(|| folded.step(detected));
        found.unwrap_or(Self::Unknown)
    }

    pub(super) fn incident(self) -> Option<&'a Incident> {
        if let Self::Incident(incident) = self { Some(incident) } else { None }
    }

    pub(super) fn scope(self) -> Option<Scope> {
        match self {
            Self::Incident(incident) => incident.scope,
            Self::Detected(detected) => detected.scope,
            Self::Averted(_) | Self::Unknown => None,
        }
    }

    pub(super) fn limit_owner(self) -> Option<&'a str> {
        match self {
            Self::Incident(incident) => incident.limit_owner.as_deref(),
            Self::Detected(detected) => detected.limit_owner.as_deref(),
            Self::Averted(_) | Self::Unknown => None,
        }
    }

    pub(super) fn trigger(self) -> Option<&'a Trigger> {
        match self {
            Self::Incident(incident) => incident.trigger.as_ref(),
            Self::Averted(averted) => Some(&averted.trigger),
            Self::Detected(detected) => detected.trigger.as_ref(),
            Self::Unknown => None,
        }
    }

    pub(super) fn victims(self) -> &'a [Victim] {
        match self {
            Self::Incident(incident) => &incident.victims,
            Self::Averted(averted) => &averted.victims,
            Self::Detected(detected) => detected.victim.as_slice(),
            Self::Unknown => &[],
        }
    }

    pub(super) fn is_reconstructed(self) -> bool {
        match self {
            Self::Incident(incident) => incident.reconstructed,
            Self::Detected(detected) => detected.reconstructed,
            Self::Averted(_) | Self::Unknown => false,
        }
    }

    /// Where counters moved, if nothing was traced.
    fn place(self) -> Option<String> {
        match self {
            Self::Incident(incident) => place(incident.place.as_ref()?),
            Self::Detected(detected) => place(detected.place.as_ref()?),
            Self::Averted(_) | Self::Unknown => None,
        }
    }
}

fn oom(folded: &Folded) -> String {
    let oom = Oom::of(folded);
    let victims = oom.victims();
    let who = match victims.first() {
        Some(first) => task(&first.comm, first.pid, &first.place),
        None => oom.place().unwrap_or_else(|| String::from("something")),
    };
    if let Oom::Averted(averted) = oom {
        let why = match averted.cause {
            AvertedCause::OwnEviction => "its pod was being evicted",
            AvertedCause::AlreadyDying => "it was dying already",
        };
        return format!("The kernel killed no process: it chose {who}, and {why}.");
    }
    let others = match victims.len() {
        0 | 1 => String::new(),
        2 => String::from(" and one other"),
        count => format!(" and {} others", count - 1),
    };
    let was = if victims.len() > 1 { "were" } else { "was" };
    let mut sentence = format!("{who}{others} {was} killed by the kernel because {}", limit(oom));
    if let Some(trigger) = oom.trigger() {
        let own = victims.first().is_some_and(|first| first.pid == trigger.pid);
        let by = if own { String::from("it") } else { task(&trigger.comm, trigger.pid, &trigger.place) };
        sentence.push_str(&format!(" when {by} asked for memory"));
    }
    if let Some(Victim { comm, oom_score_adj: Some(score), memory: Some(memory), .. }) = victims.first() {
        let resident = memory.anon_bytes.saturating_add(memory.file_bytes).saturating_add(memory.shmem_bytes);
        sentence.push_str(&format!(
            "; within that limit the kernel chose {comm} for its {} of memory and its oom_score_adj {score}",
            human_bytes(resident)
        ));
    }
    sentence + "."
}

/// `workload (pid 398) in container c1 of default/p`.
pub(super) fn task(comm: &str, pid: u32, place: &Place) -> String {
    let place = self::place(place).map(|place| format!(" in {place}")).unwrap_or_default();
    format!("{comm} (pid {pid}){place}")
}

fn place(place: &Place) -> Option<String> {
    let pod = place.namespace.as_ref().zip(place.pod.as_ref());
    match (&place.container, pod) {
        (Some(container), Some((namespace, pod))) => {
            Some(format!("container {container} of {namespace}/{pod}"))
        }
        (None, Some((namespace, pod))) => Some(format!("{namespace}/{pod}")),
        (_, None) => place.cgroup.clone(),
    }
}

/// Whose limit was hit.
fn limit(oom: Oom<'_>) -> String {
    let owner = oom.limit_owner();
    let shown = owner.map(|owner| format!(" ({owner})")).unwrap_or_default();
    match (oom.scope(), owner) {
        (Some(Scope::Container), _) => format!("the container's own limit was hit{shown}"),
        (Some(Scope::Pod), _) => format!("the pod's limit was hit{shown}"),
        (Some(Scope::Qos), _) => format!("the limit of its class was hit{shown}"),
        (_, Some("/")) => String::from("the node ran out of memory"),
        (Some(Scope::Node), _) => format!("the limit of all pods was hit{shown}"),
        (_, Some(owner)) => format!("the limit of {owner} was hit"),
        (_, None) => String::from("a limit was hit whose owner is not known"),
    }
}

/// How much of the predicted memory came back.
pub(super) fn came_back(ended: &EvictionEnded) -> Option<String> {
    let predicted = ended.predicted_freed_bytes?;
    let freed = match ended.freed_bytes {
        Some(_) => bytes(ended.freed_bytes),
        None => String::from("an unknown part"),
    };
    Some(format!("{freed} of {} that were predicted", human_bytes(predicted)))
}
