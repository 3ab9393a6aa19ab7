//! An eviction, or a suppressed one, on one screen.
use serde_json::Value;

use super::{
    data::{bytes, data, list, number, pod, signed, span, text},
    fold::{Folded, Outcome},
    ladder::ladder,
    sentence::{apart, came_back, rows, victim},
};
use crate::{
    cli::{
        page::Page,
        ranked::{self, is_pids},
        render::human_bytes,
    },
    journal::EventType,
};

/// How many rows of the ranking are shown, and how many excluded pods for each reason.
const SHOWN: usize = 5;
const NAMED: usize = 4;

pub(super) fn table(folded: &Folded) -> String {
    let mut page = Page::default();
    page.paragraph(&folded.sentence);
    page.gap();
    let label = if folded.kind == "eviction" { "eviction" } else { "event" };
    page.field(label, &format!("{} at {}", folded.id, folded.time));
    let decision = folded.decision();
    if folded.kind == "suppression" {
        let crossed = folded.crossed.as_ref().map_or(&Value::Null, data);
        trigger(&mut page, crossed, folded);
    } else {
        trigger(&mut page, decision, folded);
        victim_of(&mut page, decision);
        not_available(&mut page, decision);
        ranking(&mut page, decision);
        ladder(&mut page, folded);
        outcome(&mut page, folded);
    }
    next(&mut page, folded);
    page.finish()
}

fn trigger(page: &mut Page, data: &Value, folded: &Folded) {
    let hard = match data.get("hard") {
        Some(Value::Bool(true)) => " (hard)",
        Some(Value::Bool(false)) if data.get("operator").is_none() => " (soft)",
        _ => "",
    };
    let signal = text(data, "signal");
    let count = |key| number(data, key).map(|count| count.to_string());
    let both = match (number(data, "observedBytes"), number(data, "thresholdBytes")) {
        (Some(observed), Some(threshold)) => Some(apart(observed, threshold)),
        _ => count("observedCount").zip(count("thresholdCount")),
    };
    if let (Some(signal), Some((observed, threshold))) = (signal, both) {
        page.field("trigger", &format!("{signal} {observed} < {threshold}{hard}"));
    } else if let Some(operator) = data.get("operator") {
        let number =
            |key| number(operator, key).map_or_else(|| String::from("?"), |number| number.to_string());
        page.field("trigger", &format!("an order of uid {}, process {}", number("uid"), number("pid")));
    } else {
        page.field("trigger", "no longer kept");
    }
    let Some(warned) = folded.warned.as_ref().map(self::data) else { return };
    let names: Vec<_> = list(warned, "pods").iter().filter_map(|one| pod(one, "name")).take(NAMED).collect();
    let whose = if names.is_empty() { String::from("no pod") } else { names.join(", ") };
    let ahead = super::data::real(warned, "crossedInMs").map_or_else(|| String::from("?"), span);
    page.field("", &format!("warned {ahead} ahead, caused by {whose}"));
}

fn victim_of(page: &mut Page, decision: &Value) {
    let Some(victim) = decision.get("victim").filter(|victim| victim.is_object()) else {
        page.field("victim", "its usage is not kept");
        return;
    };
    let name = pod(victim, "name").unwrap_or_else(|| String::from("?"));
    let class = text(victim, "qosClass").unwrap_or("?");
    let priority = signed(victim, "priority").map_or_else(|| String::from("?"), |number| number.to_string());
    page.field(
        "victim",
        &format!("{name}, {class}, priority {priority}, uid {}", text(victim, "uid").unwrap_or("?")),
    );
    let limit = match victim.get("limitBytes") {
        Some(_) => format!("limit {}", bytes(victim, "limitBytes")),
        None => String::from("no limit"),
    };
    let request = bytes(victim, "requestBytes");
    if super::data::is(victim, "statsMissing") || victim.get("usageBytes").is_none() {
        page.field("", &format!("its usage could not be read; request {request}, {limit}"));
    } else {
        let usage = bytes(victim, "usageBytes");
        page.field("", &format!("used {usage}, request {request}, {limit}"));
        page.field(
            "",
            &format!(
                "of it anon {}, file {}, shmem {}",
                bytes(victim, "anonBytes"),
                bytes(victim, "fileBytes"),
                bytes(victim, "shmemBytes")
            ),
        );
    }
    let growth = signed(victim, "growthBytesPerSecond").filter(|_| decision.get("operator").is_none());
    let tasks = number(victim, "processCount").map(|count| format!("{count} tasks"));
    let more: Vec<_> = growth.map(ranked::growth).into_iter().chain(tasks).collect();
    page.field("", &more.join(", "));
    if let Some(before) = number(decision, "evictedBefore") {
        let left = super::data::real(decision, "backOffLeftMs").map_or_else(|| String::from("?"), span);
        page.field("", &format!("it had come back: evicted {before} times before, back-off for {left} more"));
    }
}

/// Memory that is neither available nor freed by an eviction: free pages on per-CPU lists, and shared memory that no
/// process maps.
fn not_available(page: &mut Page, decision: &Value) {
    if number(decision, "freeListsBytes").is_some() {
        let free = bytes(decision, "freeListsBytes");
        page.field(
            "free lists",
            &format!("{free} free on per-CPU lists, being returned: not enough in time"),
        );
    }
    let Some(held) = decision.get("sharedMemory") else { return };
    let unmapped = bytes(held, "unmappedBytes");
    page.field("in tmpfs", &format!("no process maps {unmapped} of shared memory: no eviction frees it"));
    for cgroup in list(held, "cgroups") {
        let state = if super::data::is(cgroup, "populated") { "running" } else { "without a process" };
        let (bytes, pod) = (bytes(cgroup, "bytes"), text(cgroup, "pod").unwrap_or("?"));
        page.field("", &format!("{bytes} charged to {pod} ({state})"));
    }
    if number(held, "removedCgroupsBytes").is_some_and(|bytes| bytes >= 1 << 20) {
        page.field(
            "",
            &format!("{} charged to cgroups that were removed", bytes(held, "removedCgroupsBytes")),
        );
    }
    for mount in list(held, "mounts") {
        page.field("", &format!("{} in {}", bytes(mount, "bytes"), text(mount, "path").unwrap_or("?")));
    }
}

fn ranking(page: &mut Page, decision: &Value) {
    let rows = rows(decision);
    let ranked = number(decision, "rankedCount").and_then(|count| usize::try_from(count).ok());
    let ranked = ranked.unwrap_or(rows.len()).max(rows.len());
    if !rows.is_empty() {
        page.gap();
        let shown = rows.get(..SHOWN).unwrap_or(&rows);
        page.lines(&ranked::table(shown, is_pids(text(decision, "signal").unwrap_or_default())));
        if ranked > shown.len() {
            page.line(&format!("and {} more; BY: what puts it before the next", ranked - shown.len()));
        }
        page.gap();
    }
    let left_out = list(decision, "excluded");
    if !left_out.is_empty() {
        let named = left_out.iter().filter_map(|one| Some((pod(one, "name")?, text(one, "reason")?)));
        let more = number(decision, "excludedCount").and_then(|count| usize::try_from(count).ok());
        let more = more.unwrap_or(0).saturating_sub(left_out.len());
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        page.field("excluded", &format!("{}{more}", ranked::excluded(named, NAMED)));
    }
}

fn outcome(page: &mut Page, folded: &Folded) {
    let decision = folded.decision();
    let predicted = bytes(decision, "predictedFreedBytes");
    let reported =
        folded.step(EventType::EvictionCompleted).or_else(|| folded.step(EventType::EvictionFailed));
    let reported = reported.and_then(came_back);
    let text = match (Outcome::of(folded), reported) {
        (Outcome::Completed | Outcome::Failed, Some(reported)) => reported,
        (Outcome::Completed | Outcome::Failed, None) => String::from("the amount is not recorded"),
        (Outcome::Paused | Outcome::DryRun, _) => format!("nothing was done; {predicted} were predicted"),
        (Outcome::Signalled, _) => format!("its end is not recorded yet; {predicted} are predicted"),
        (Outcome::Unknown, _) => String::from("the outcome is not recorded"),
    };
    page.field("came back", &text);
}

fn next(page: &mut Page, folded: &Folded) {
    let mut reported = Vec::new();
    if let Some(next) = &folded.followed_by {
        let id = text(data(next), "evictionId").unwrap_or("?");
        let pod = data(next).get("victim").and_then(|victim| pod(victim, "name"));
        let pod =
            pod.or_else(|| text(next, "subject").map(str::to_owned)).unwrap_or_else(|| String::from("?"));
        reported.push(format!("it was still short: then {pod} (enforcer why {id})"));
    }
    if let Some(suppressed) = folded.suppressed.as_ref().map(data) {
        reported.push(format!("then no pod: {}", text(suppressed, "message").unwrap_or("?")));
    }
    if folded.kind == "suppression"
        && let Some(cleared) = folded.cleared.as_ref().map(data)
    {
        let left = number(cleared, "observedBytes").map(human_bytes);
        let left = left.map_or_else(String::new, |left| format!(", with {left} available"));
        let after = super::data::real(cleared, "crossedToClearedMs").map_or_else(|| String::from("?"), span);
        reported.push(format!("the shortage was over {after} after the crossing{left}"));
    } else if folded.cleared.is_none() && folded.decision().get("operator").is_none() {
        reported.push(String::from("the end of the shortage is not recorded"));
    }
    reported.push(String::from("`enforcer next` shows which pod would be next now"));
    if folded.is_recorded {
        reported.push(format!("`enforcer replay {}` decides again", folded.id));
    }
    if folded.kind == "suppression" {
        reported.push(format!(
            "`enforcer events --type {}` shows all such shortages",
            EventType::EvictionSuppressed.short()
        ));
    }
    // The victim may come back.
    if Outcome::of(folded) == Outcome::Completed {
        reported.push(format!("`enforcer events --pod {}` shows whether it came back", victim(folded)));
    }
    for (number, line) in reported.iter().enumerate() {
        page.field(if number == 0 { "next" } else { "" }, line);
    }
}
