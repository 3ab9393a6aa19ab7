//! The timeline, from the crossing of the threshold or the order on.

use enforcer_events::{
    Payload,
    eviction::{EvictionContained, EvictionEnded, EvictionSignalled, Hook},
};

use super::{
    data::{bytes, span, whole_span},
    fold::Folded,
    sentence::failed,
};
use crate::cli::{page::Page, render::human_bytes};

/// A rung: the time in milliseconds, if it is known, and what happened.
type Rung = (Option<f64>, String);

pub(super) fn ladder(page: &mut Page, folded: &Folded) {
    let mut rungs: Vec<Rung> = Vec::new();
    if folded.is_by_order() {
        rungs.push((Some(0.0), String::from("ordered")));
    } else if folded.decided.is_some() {
        let decided = folded.decision().and_then(|decision| decision.crossed_to_decided_ms);
        rungs.push((Some(0.0), String::from("crossed")));
        rungs.push((decided, String::from("decided")));
    }
    for step in &folded.steps {
        rungs.extend(rung(step.payload()));
    }
    if let Some(over) = folded.over() {
        let left = match over.shortage.observed_count {
            Some(count) => count.to_string(),
            None => bytes(over.shortage.observed_bytes),
        };
        let at = Some(over.crossed_to_cleared_ms);
        rungs.push((at, format!("the shortage was over, with {left} available")));
    }
    // A rung without a time stays behind the one that was reported before it.
    let mut latest = 0.0_f64;
    let mut ordered: Vec<(f64, Rung)> = Vec::new();
    for (at, what) in rungs {
        let place = at.unwrap_or(latest);
        latest = latest.max(place);
        ordered.push((place, (at, what)));
    }
    ordered.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    for (number, (_, (at, what))) in ordered.into_iter().enumerate() {
        let at = at.map_or_else(String::new, |at| format!("+{}", span(at)));
        page.moment(if number == 0 { "ladder" } else { "" }, &at, &what);
    }
}

fn rung(payload: &Payload) -> Vec<Rung> {
    match payload {
        Payload::EvictionSignalled(signalled) => self::signalled(signalled),
        Payload::EvictionContained(contained) => vec![(None, self::contained(contained))],
        Payload::EvictionCompleted(ended) => {
            let mut rungs: Vec<_> = ran(ended.hook.as_ref()).into_iter().collect();
            let by_itself = ended.ended_by.as_deref() == Some("SIGTERM");
            let dead = if by_itself { "exited by itself" } else { "dead: it holds no process" };
            let at = ended.timeline.crossed_to_dead_ms.or(ended.decided_to_dead_ms);
            rungs.push((at, dead.to_owned()));
            if let Some(ms) = ended.timeline.crossed_to_memory_back_ms {
                rungs.push((Some(ms), String::from("its memory was back")));
            }
            rungs.extend(reconstructed(ended));
            rungs
        }
        Payload::EvictionRequested(requested) => {
            let after = requested.signalled_to_requested_ms;
            let after = after.map(|ms| format!(", {ms} ms after the signal")).unwrap_or_default();
            vec![(None, format!("{}{after}", requested.message))]
        }
        Payload::EvictionConfirmed(_) => vec![(None, String::from("the pod is gone from the API server"))],
        Payload::EvictionRepeated(repeated) => vec![(None, repeated.message.clone())],
        Payload::EvictionFailed(ended) => {
            let mut rungs: Vec<_> = ran(ended.hook.as_ref()).into_iter().collect();
            let why = failed(ended.message.as_deref(), ended.reason.as_deref());
            rungs.push((ended.crossed_to_given_up_ms, format!("given up: {why}")));
            rungs.extend(reconstructed(ended));
            rungs
        }
        _ => Vec::new(),
    }
}

fn signalled(signalled: &EvictionSignalled) -> Vec<Rung> {
    let EvictionSignalled { timeline, .. } = signalled;
    let mut rungs: Vec<_> = ran(signalled.hook.as_ref()).into_iter().collect();
    if signalled.sent == "SIGTERM" {
        let grace = signalled.grace_ms.map(|ms| format!(", given {}", whole_span(ms))).unwrap_or_default();
        let at = timeline.crossed_to_terminated_ms.or(signalled.decided_to_terminated_ms);
        rungs.push((at, format!("asked to exit (SIGTERM){grace}")));
        return rungs;
    }
    let why = match signalled.killed_because.as_deref() {
        Some("gracePassed") => ": its grace had passed",
        Some("hardThreshold") => ": the hard threshold was crossed meanwhile",
        Some("exhausting") => ": memory would have run out",
        Some("hookOver") => ": the preKillHook had ended",
        Some("unanswered") => ": the API server was not to end it, or did not answer",
        Some(_) | None => "",
    };
    let at = timeline.crossed_to_signalled_ms.or(signalled.decided_to_signalled_ms);
    rungs.push((at, format!("killed (SIGKILL){why}")));
    rungs
}

fn reconstructed(ended: &EvictionEnded) -> Option<Rung> {
    let found = "found by the next daemon: this one had exited meanwhile";
    ended.reconstructed.then(|| (None, String::from(found)))
}

fn contained(contained: &EvictionContained) -> String {
    let pod = format!("{}/{}", contained.namespace, contained.name);
    match &*contained.state {
        "contained" => format!(
            "{pod} held at {} of {} meanwhile",
            human_bytes(contained.memory_high_bytes),
            human_bytes(contained.usage_bytes)
        ),
        "released" => {
            let held = contained.held_ms.map(|ms| format!(" after {}", span(ms))).unwrap_or_default();
            format!("{pod} released{held}")
        }
        "stuck" => format!("{pod} could not be released at once: retrying"),
        _ => {
            let why = failed(contained.message.as_deref(), contained.reason.as_deref());
            format!("{pod} could not be held: {why}")
        }
    }
}

/// The run of the hook, if it is over.
fn ran(hook: Option<&Hook>) -> Option<Rung> {
    let hook = hook?;
    let outcome = hook.outcome.as_deref()?;
    let ran = hook.ran_ms.map(|ms| format!(" after {}", span(ms))).unwrap_or_default();
    let status = hook.exit_status.map(|status| format!(" with {status}")).unwrap_or_default();
    let more = hook.message.as_deref().map(|message| format!(": {message}")).unwrap_or_default();
    Some((None, format!("preKillHook {outcome}{status}{ran}{more}")))
}
