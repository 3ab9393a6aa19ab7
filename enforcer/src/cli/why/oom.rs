//! A kill by the kernel's OOM killer, on one screen.
use serde_json::Value;

use super::{
    data::{bytes, is, list, number, real, signed, span, text},
    fold::Folded,
    sentence::{oom_data, task, victims},
};
use crate::{
    cli::page::{Page, cell},
    journal::EventType,
};

/// How many victims are shown.
const SHOWN: usize = 8;

pub(super) fn table(folded: &Folded) -> String {
    let (kind, data) = oom_data(folded);
    let mut page = Page::default();
    page.paragraph(&folded.sentence);
    page.gap();
    page.field("OOM", &format!("{} at {}", folded.id, folded.time));
    let scope = text(data, "scope").unwrap_or("unknown");
    let owner = text(data, "limitOwner").unwrap_or("its owner is not known");
    let source = match text(data, "limitSource") {
        Some("traced") => "; reported by the kernel",
        Some("counters") => "; by the counters that moved",
        Some(_) | None => "",
    };
    page.field("limit", &format!("{scope}: {owner}{source}"));
    match data.get("trigger").filter(|trigger| trigger.is_object()) {
        Some(trigger) => page.field("trigger", &format!("{} asked for memory", task(trigger))),
        None => page.field("trigger", "the allocating process was not traced"),
    }
    let all = victims(data);
    if !all.is_empty() {
        page.gap();
        died(&mut page, &all);
        page.gap();
    }
    timeline(&mut page, data);
    counters(&mut page, data);
    if kind == Some(EventType::OomDetected) {
        page.field("", "it is not closed yet: more is reported within a second");
    }
    if is(data, "reconstructed") {
        page.field("", "there is no record of it: this is derived from counters");
    }
    next(&mut page, kind, data, &all);
    page.finish()
}

fn died(page: &mut Page, all: &[&Value]) {
    page.line(&row(["PID", "COMM", "WHERE", "ANON", "FILE", "SHMEM", "SCORE", "INIT"]));
    for victim in all.iter().take(SHOWN) {
        let number = |key| number(victim, key).map_or_else(|| String::from("?"), |number| number.to_string());
        let place = match (text(victim, "pod"), text(victim, "container")) {
            (Some(pod), Some(container)) => format!("{pod}/{container}"),
            (Some(pod), None) => pod.to_owned(),
            (None, _) => text(victim, "cgroup").unwrap_or("?").to_owned(),
        };
        let score =
            signed(victim, "oomScoreAdj").map_or_else(|| String::from("?"), |score| score.to_string());
        let init = match victim.get("containerInit") {
            Some(Value::Bool(true)) => "yes",
            Some(Value::Bool(false)) => "no",
            _ => "?",
        };
        page.line(&row([
            &number("pid"),
            text(victim, "comm").unwrap_or("?"),
            &place,
            &bytes(victim, "anonBytes"),
            &bytes(victim, "fileBytes"),
            &bytes(victim, "shmemBytes"),
            &score,
            init,
        ]));
    }
    if all.len() > SHOWN {
        page.line(&format!("and {} more: `enforcer -o json why` shows all", all.len() - SHOWN));
    }
}

fn row([pid, comm, place, anon, file, shmem, score, init]: [&str; 8]) -> String {
    format!(
        "{pid:>7} {} {} {anon:>7} {file:>7} {shmem:>7} {score:>5} {init}",
        cell(comm, 15, false),
        cell(place, 21, false)
    )
}

fn timeline(page: &mut Page, data: &Value) {
    let Some(timeline) = data.get("timelineMs") else { return };
    let rungs = [
        ("firstReclaim", "the trigger began to reclaim"),
        ("marked", "the first victim was chosen"),
        ("exited", "the last of them had exited"),
        ("memoryBack", "the memory was back"),
    ];
    let reached = rungs.iter().filter_map(|(key, what)| Some((real(timeline, key)?, what)));
    for (number, (at, what)) in reached.enumerate() {
        let at = format!("+{}", span(at));
        page.moment(if number == 0 { "ladder" } else { "" }, &at, what);
    }
}

fn counters(page: &mut Page, data: &Value) {
    let Some(counters) = data.get("counters") else { return };
    let moved = [("oom", "oom"), ("oomKill", "oom_kill"), ("oomGroupKill", "oom_group_kill")];
    let moved = moved.iter().filter_map(|(key, name)| Some(format!("{name} +{}", number(counters, key)?)));
    let verdict = match text(data, "reconciliation") {
        Some("matched") => "as many as were traced",
        Some("differs") => "not as many as were traced",
        Some("noBaseline") => "what they were before is not known",
        Some("unreadable") => "the cgroup is gone",
        Some(_) | None => "not compared",
    };
    page.field("counters", &format!("{}: {verdict}", moved.collect::<Vec<_>>().join(", ")));
}

fn next(page: &mut Page, kind: Option<EventType>, data: &Value, all: &[&Value]) {
    if kind == Some(EventType::OomAverted) {
        page.field("next", "nothing: it was no OOM kill, and is not counted as one");
        return;
    }
    let mut reported = Vec::new();
    if all.iter().any(|victim| is(victim, "containerInit")) {
        reported.push("a container's init died: the container went down with it");
    }
    let own_limit = matches!(text(data, "scope"), Some("container" | "pod"));
    reported.push(if own_limit {
        "raise that limit or have it use less: no other pod would have helped"
    } else {
        "`enforcer headroom` says how near the node is to the next one"
    });
    if list(data, "victims").is_empty() && !is(data, "reconstructed") {
        reported.push("`enforcer events --type oom.incident -f` shows how it ends");
    }
    for (number, line) in reported.iter().enumerate() {
        page.field(if number == 0 { "next" } else { "" }, line);
    }
}
