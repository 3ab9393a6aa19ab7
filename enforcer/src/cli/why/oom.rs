//! A kill by the kernel's OOM killer, on one screen.

use enforcer_events::oom::{LimitSource, OomCounts, Reconciliation, Scope, Timeline, Victim};

use super::{
    data::{self, bytes, number, whole_span},
    fold::Folded,
    sentence::{Oom, task},
};
use crate::cli::{
    columns::{Head, Table},
    page::{Page, Style},
};

/// How many victims are shown.
const SHOWN: usize = 8;

pub(super) fn table(folded: &Folded, style: Style) -> String {
    let oom = Oom::of(folded);
    let mut page = Page::new(style);
    page.paragraph(&folded.sentence);
    page.gap();
    page.field("OOM", &data::at(folded, style));
    if !matches!(oom, Oom::Averted(_)) {
        limit(&mut page, oom);
    }
    match oom.trigger() {
        Some(trigger) => {
            let task = task(&trigger.comm, trigger.pid, &trigger.place);
            page.field("trigger", &format!("{task} asked for memory"));
        }
        None => page.field("trigger", "the allocating process was not traced"),
    }
    let all = oom.victims();
    if !all.is_empty() {
        page.gap();
        died(&mut page, all);
        page.gap();
    }
    if let Some(incident) = oom.incident() {
        timeline(&mut page, &incident.timeline_ms);
        counters(&mut page, incident.counters, incident.reconciliation);
    }
    if matches!(oom, Oom::Detected(_)) {
        page.field("", "it is not closed yet: more is reported within a second");
    }
    if oom.is_reconstructed() {
        page.field("", "there is no record of it: this is derived from counters");
    }
    next(&mut page, &oom);
    page.finish()
}

fn limit(page: &mut Page, oom: Oom<'_>) {
    let scope = oom.scope().map_or("unknown", Scope::as_str);
    let owner = oom.limit_owner().unwrap_or("its owner is not known");
    let source = match oom.incident().map(|incident| incident.limit_source) {
        Some(LimitSource::Traced) => "; reported by the kernel",
        Some(LimitSource::Counters) => "; by the counters that moved",
        Some(LimitSource::Unknown) | None => "",
    };
    page.field("limit", &format!("{scope}: {owner}{source}"));
}

fn died(page: &mut Page, all: &[Victim]) {
    let mut table = Table::new([
        Head::amount("PID", 7),
        Head::word("COMM", 15),
        Head::name("WHERE"),
        Head::amount("ANON", 7),
        Head::amount("FILE", 7),
        Head::amount("SHMEM", 7),
        Head::amount("SCORE", 5),
        Head::word("INIT", 4),
    ]);
    for victim in all.iter().take(SHOWN) {
        let place = match (&victim.place.pod, &victim.place.container) {
            (Some(pod), Some(container)) => format!("{pod}/{container}"),
            (Some(pod), None) => pod.clone(),
            (None, _) => victim.place.cgroup.clone().unwrap_or_else(|| String::from("?")),
        };
        let init = match victim.container_init {
            Some(true) => "yes",
            Some(false) => "no",
            None => "?",
        };
        let memory = victim.memory;
        table.row([
            victim.pid.to_string(),
            victim.comm.clone(),
            place,
            bytes(memory.map(|memory| memory.anon_bytes)),
            bytes(memory.map(|memory| memory.file_bytes)),
            bytes(memory.map(|memory| memory.shmem_bytes)),
            number(victim.oom_score_adj),
            init.to_owned(),
        ]);
    }
    page.table(&table);
    if all.len() > SHOWN {
        page.line(&format!("and {} more: `enforcer -o json why` shows all", all.len() - SHOWN));
    }
}

fn timeline(page: &mut Page, timeline: &Timeline) {
    let rungs = [
        (timeline.first_reclaim, "the trigger began to reclaim"),
        (timeline.marked, "the first victim was chosen"),
        (timeline.exited, "the last of them had exited"),
        (timeline.memory_back, "the memory was back"),
    ];
    let reached = rungs.into_iter().filter_map(|(at, what)| Some((at?, what)));
    for (number, (at, what)) in reached.enumerate() {
        let at = format!("+{}", whole_span(at));
        page.moment(if number == 0 { "ladder" } else { "" }, &at, what);
    }
}

fn counters(page: &mut Page, counters: OomCounts, reconciliation: Reconciliation) {
    let OomCounts { oom, oom_kill, oom_group_kill } = counters;
    let verdict = match reconciliation {
        Reconciliation::Matched => "as many as were traced",
        Reconciliation::Differs => "not as many as were traced",
        Reconciliation::NoBaseline => "what they were before is not known",
        Reconciliation::Unreadable => "the cgroup is gone",
    };
    page.field(
        "counters",
        &format!("oom +{oom}, oom_kill +{oom_kill}, oom_group_kill +{oom_group_kill}: {verdict}"),
    );
}

fn next(page: &mut Page, oom: &Oom<'_>) {
    if matches!(oom, Oom::Averted(_)) {
        page.field("next", "nothing: it was no OOM kill, and is not counted as one");
        return;
    }
    let mut reported = Vec::new();
    if oom.victims().iter().any(|victim| victim.container_init == Some(true)) {
        reported.push("a container's init died: the container went down with it");
    }
    let own_limit = matches!(oom.scope(), Some(Scope::Container | Scope::Pod));
    reported.push(if own_limit {
        "raise that limit or have it use less: no other pod would have helped"
    } else {
        "`enforcer headroom` says how near the node is to the next one"
    });
    if matches!(oom, Oom::Detected(_)) && !oom.is_reconstructed() {
        reported.push("`enforcer events --type oom.incident -f` shows how it ends");
    }
    for (number, line) in reported.iter().enumerate() {
        page.field(if number == 0 { "next" } else { "" }, line);
    }
}
