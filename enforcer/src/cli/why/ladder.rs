//! The timeline, from the crossing of the threshold or the order on.
use serde_json::Value;

use super::{
    data::{bytes, data, is, number, pod, real, span, text},
    fold::Folded,
    sentence::failed,
};
use crate::{cli::page::Page, journal::EventType};

/// A rung: the time in milliseconds, if it is known, and what happened.
type Rung = (Option<f64>, String);

pub(super) fn ladder(page: &mut Page, folded: &Folded) {
    let decision = folded.decision();
    let by_order = decision.get("operator").is_some();
    let mut rungs: Vec<Rung> = Vec::new();
    if by_order {
        rungs.push((Some(0.0), String::from("ordered")));
    } else if folded.decided.is_some() {
        rungs.push((Some(0.0), String::from("crossed")));
        rungs.push((real(decision, "crossedToDecidedMs"), String::from("decided")));
    }
    for step in &folded.steps {
        rungs.extend(rung(text(step, "type").unwrap_or_default(), data(step)));
    }
    if let Some(cleared) = &folded.cleared {
        let cleared = data(cleared);
        let left = if cleared.get("observedCount").is_some() {
            number(cleared, "observedCount").map_or_else(|| String::from("?"), |count| count.to_string())
        } else {
            bytes(cleared, "observedBytes")
        };
        let at = real(cleared, "crossedToClearedMs");
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

fn rung(kind: &str, data: &Value) -> Vec<Rung> {
    let mut rungs = Vec::new();
    let mut put = |at: Option<f64>, what: String| rungs.push((at, what));
    let either = |crossed: &str, decided: &str| real(data, crossed).or_else(|| real(data, decided));
    if let Some(hook) = data.get("hook").filter(|hook| hook.get("outcome").is_some()) {
        put(None, self::hook(hook));
    }
    match EventType::parse(kind) {
        Some(EventType::EvictionSignalled) if text(data, "sent") == Some("SIGTERM") => {
            let grace = real(data, "graceMs").map_or_else(String::new, |ms| format!(", given {}", span(ms)));
            let at = either("crossedToTerminatedMs", "decidedToTerminatedMs");
            put(at, format!("asked to exit (SIGTERM){grace}"));
        }
        Some(EventType::EvictionSignalled) => {
            let why = match text(data, "killedBecause") {
                Some("gracePassed") => ": its grace had passed",
                Some("hardThreshold") => ": the hard threshold was crossed meanwhile",
                Some("exhausting") => ": memory would have run out",
                Some("hookOver") => ": the preKillHook had ended",
                Some(_) | None => "",
            };
            let at = either("crossedToSignalledMs", "decidedToSignalledMs");
            put(at, format!("killed (SIGKILL){why}"));
        }
        Some(EventType::EvictionContained) => put(None, contained(data)),
        Some(EventType::EvictionCompleted) => {
            let by_itself = text(data, "endedBy") == Some("SIGTERM");
            let dead = if by_itself { "exited by itself" } else { "dead: it holds no process" };
            put(either("crossedToDeadMs", "decidedToDeadMs"), dead.to_owned());
            if let Some(ms) = real(data, "crossedToMemoryBackMs") {
                put(Some(ms), String::from("its memory was back"));
            }
        }
        Some(EventType::EvictionFailed) => {
            put(real(data, "crossedToGivenUpMs"), format!("given up: {}", failed(data)));
        }
        _ => {}
    }
    if is(data, "reconstructed") {
        put(None, String::from("found by the next daemon: this one had exited meanwhile"));
    }
    rungs
}

fn contained(data: &Value) -> String {
    let pod = pod(data, "name").unwrap_or_else(|| String::from("the next in rank"));
    match text(data, "state") {
        Some("contained") => format!(
            "{pod} held at {} of {} meanwhile",
            bytes(data, "memoryHighBytes"),
            bytes(data, "usageBytes")
        ),
        Some("released") => {
            let held = real(data, "heldMs").map_or_else(String::new, |ms| format!(" after {}", span(ms)));
            format!("{pod} released{held}")
        }
        Some("stuck") => format!("{pod} could not be released at once: retrying"),
        Some(_) | None => format!("{pod} could not be held: {}", failed(data)),
    }
}

fn hook(hook: &Value) -> String {
    let ran = real(hook, "ranMs").map_or_else(String::new, |ms| format!(" after {}", span(ms)));
    let status = number(hook, "exitStatus").map_or_else(String::new, |status| format!(" with {status}"));
    let more = text(hook, "message").map_or_else(String::new, |message| format!(": {message}"));
    format!("preKillHook {}{status}{ran}{more}", text(hook, "outcome").unwrap_or("?"))
}
