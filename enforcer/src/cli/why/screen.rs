//! An eviction, or a suppressed one, on one screen.

use enforcer_events::{
    Payload,
    eviction::{Decision, EvictionDecided, VictimSpec},
    pressure::{PressureRising, Shortage},
};

use super::{
    data::{self, bytes, number, span, whole_span},
    fold::{Folded, Outcome},
    ladder::ladder,
    sentence::{amounts, came_back, rows, victim},
};
use crate::{
    cli::{
        freshness::age,
        page::{Page, Style},
        ranked::{self, is_pids},
        render::human_bytes,
    },
    journal::EventType,
};

/// How many rows of the ranking are shown, and how many excluded pods for each reason.
const SHOWN: usize = 5;
const NAMED: usize = 4;

pub(super) fn table(folded: &Folded, style: Style) -> String {
    let mut page = Page::new(style);
    page.paragraph(&folded.sentence);
    page.gap();
    let label = if folded.kind == "eviction" { "eviction" } else { "event" };
    page.field(label, &data::at(folded, style));
    if folded.kind == "suppression" {
        trigger(&mut page, folded.crossing(), folded);
    } else {
        trigger(&mut page, folded.shortage().as_ref(), folded);
        match folded.decision() {
            Some(decision) => {
                victim_of(&mut page, decision, &folded.time);
                not_available(&mut page, decision);
                ranking(&mut page, decision);
            }
            None => page.field("victim", "its usage is not kept"),
        }
        ladder(&mut page, folded);
        outcome(&mut page, folded);
    }
    next(&mut page, folded);
    page.finish()
}

pub(super) fn trigger(page: &mut Page, shortage: Option<&Shortage>, folded: &Folded) {
    let operator = folded.decision().and_then(|decision| decision.operator.as_ref());
    if let Some(shortage) = shortage
        && let Some((observed, threshold)) = amounts(shortage)
    {
        let hard = if shortage.hard { "hard" } else { "soft" };
        page.field("trigger", &format!("{} {observed} < {threshold} ({hard})", shortage.signal));
    } else if let Some(operator) = operator {
        let process = number(operator.pid);
        page.field("trigger", &format!("an order of uid {}, process {process}", operator.uid));
    } else {
        page.field("trigger", "no longer kept");
    }
    let warned = folded.warned.as_ref().map(super::fold::Reported::payload);
    let Some(Payload::PressureRising(PressureRising::Headroom(warned))) = warned else { return };
    let names: Vec<_> =
        warned.pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).take(NAMED).collect();
    let whose = if names.is_empty() { String::from("no pod") } else { names.join(", ") };
    let ahead = warned.crossed_in_ms.map_or_else(|| String::from("?"), whole_span);
    page.field("", &format!("warned {ahead} ahead, caused by {whose}"));
}

fn victim_of(page: &mut Page, decision: &Decision, time: &str) {
    let Some(victim) = &decision.victim else {
        page.field("victim", "its usage is not kept");
        return;
    };
    page.field(
        "victim",
        &format!(
            "{}/{}, {}, priority {}, uid {}",
            victim.namespace, victim.name, victim.qos_class, victim.priority, victim.uid
        ),
    );
    let limit = victim
        .limit_bytes
        .map_or_else(|| String::from("no limit"), |limit| format!("limit {}", human_bytes(limit)));
    let request = human_bytes(victim.request_bytes);
    match victim.usage_bytes.filter(|_| !victim.stats_missing) {
        None => {
            let why = if victim.process_count.is_some() {
                "memory is not counted"
            } else {
                "usage could not be read"
            };
            page.field("", &format!("its {why}; request {request}, {limit}"));
        }
        Some(usage) => {
            page.field("", &format!("used {}, request {request}, {limit}", human_bytes(usage)));
            let (anon, file, shmem) =
                (bytes(victim.anon_bytes), bytes(victim.file_bytes), bytes(victim.shmem_bytes));
            page.field("", &format!("of it anon {anon}, file {file}, shmem {shmem}"));
        }
    }
    let growth = decision.operator.is_none().then_some(victim.growth_bytes_per_second);
    let tasks = victim.process_count.map(|count| format!("{count} tasks"));
    let more: Vec<_> = growth.map(ranked::growth).into_iter().chain(tasks).collect();
    page.field("", &more.join(", "));
    if let Some(spec) = &victim.spec {
        page.field("", &spec_of(spec, time));
    }
    if let Some(before) = decision.evicted_before {
        let left = decision.back_off_left_ms.map_or_else(|| String::from("?"), whole_span);
        page.field("", &format!("it had come back: evicted {before} times before, back-off for {left} more"));
    }
}

/// Where the victim's spec was from when it was chosen at `time`.
fn spec_of(VictimSpec { source, provenance, read_ms }: &VictimSpec, time: &str) -> String {
    let chosen_ms =
        time.parse().ok().and_then(|time: jiff::Timestamp| u64::try_from(time.as_millisecond()).ok());
    let before = chosen_ms.zip(*read_ms).map(|(chosen_ms, read_ms)| age(chosen_ms.saturating_sub(read_ms)));
    let before = before.map_or_else(String::new, |age| format!(", read {age} before"));
    format!("its spec was {provenance} by {source}{before}")
}

/// Memory that is neither available nor freed by an eviction: free pages on per-CPU lists, and shared memory that no
/// process maps.
fn not_available(page: &mut Page, decision: &Decision) {
    if let Some(free) = decision.free_lists_bytes {
        let free = human_bytes(free);
        page.field(
            "free lists",
            &format!("{free} free on per-CPU lists, being returned: not enough in time"),
        );
    }
    let Some(held) = &decision.shared_memory else { return };
    let unmapped = human_bytes(held.unmapped_bytes);
    page.field("in tmpfs", &format!("no process maps {unmapped} of shared memory: no eviction frees it"));
    for cgroup in &held.cgroups {
        let state = if cgroup.populated { "running" } else { "without a process" };
        page.field("", &format!("{} charged to {} ({state})", human_bytes(cgroup.bytes), cgroup.pod));
    }
    if held.removed_cgroups_bytes >= 1 << 20 {
        let removed = human_bytes(held.removed_cgroups_bytes);
        page.field("", &format!("{removed} charged to cgroups that were removed"));
    }
    for mount in &held.mounts {
        page.field("", &format!("{} in {}", human_bytes(mount.bytes), mount.path));
    }
}

pub(super) fn ranking(page: &mut Page, decision: &Decision) {
    let rows = rows(decision);
    let ranked = decision.ranked_count.max(rows.len());
    if !rows.is_empty() {
        page.gap();
        let shown = rows.get(..SHOWN).unwrap_or(&rows);
        let is_pids = is_pids(decision.signal.as_deref().unwrap_or_default());
        page.table(&ranked::table(shown, is_pids));
        if ranked > shown.len() {
            page.line(&format!("and {} more; BY: what puts it before the next", ranked - shown.len()));
        }
        page.gap();
    }
    let left_out = &decision.excluded;
    if !left_out.is_empty() {
        let named = left_out.iter().map(|one| (format!("{}/{}", one.namespace, one.name), &*one.reason));
        let more = decision.excluded_count.saturating_sub(left_out.len());
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        page.field("excluded", &format!("{}{more}", ranked::excluded(named, NAMED)));
    }
}

fn outcome(page: &mut Page, folded: &Folded) {
    let predicted = bytes(folded.decision().map(|decision| decision.predicted_freed_bytes));
    let reported = folded.completed().or_else(|| folded.failed()).and_then(came_back);
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
        let id = next.payload().eviction_id().unwrap_or("?");
        let pod = match next.payload() {
            Payload::EvictionDecided(EvictionDecided::Decision(decision)) => {
                decision.victim.as_ref().map(|victim| format!("{}/{}", victim.namespace, victim.name))
            }
            _ => None,
        };
        let pod = pod.unwrap_or_else(|| next.subject().to_owned());
        reported.push(format!("it was still short: then {pod} (enforcer why {id})"));
    }
    if let Some(suppressed) = &folded.suppressed {
        reported.push(format!("then no pod: {}", suppressed.payload().message().unwrap_or("?")));
    }
    if folded.kind == "suppression"
        && let Some(over) = folded.over()
    {
        let left = over.shortage.observed_bytes.map(human_bytes);
        let left = left.map_or_else(String::new, |left| format!(", with {left} available"));
        let after = span(over.crossed_to_cleared_ms);
        reported.push(format!("the shortage was over {after} after the crossing{left}"));
    } else if folded.cleared.is_none() && !folded.is_by_order() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victims_spec_says_how_old_it_was() {
        let spec = |provenance: &'static str, read_ms| VictimSpec {
            source: "kubelet".into(),
            provenance: provenance.into(),
            read_ms,
        };
        let time = "1970-01-01T00:05:00.123456Z";
        assert_eq!(spec_of(&spec("live", None), time), "its spec was live by kubelet");
        assert_eq!(
            spec_of(&spec("disk", Some(60_000)), time),
            "its spec was disk by kubelet, read 4m before"
        );
        assert_eq!(spec_of(&spec("stale", Some(60_000)), "?"), "its spec was stale by kubelet");
    }
}
