//! What a report shows to people, whatever it is printed on: sections of sentences and tables.

use std::collections::BTreeSet;

use super::{
    document::{
        Alternatives, Eviction, Evictions, Exceeded, Few, Forecasts, Loss, Oom, Pressure, Report, Stall,
        Suppressed,
    },
    words::{counted, duration, milliseconds, seconds},
};
use crate::cli::{
    columns::{Head, Table},
    render::human_bytes,
};

/// The answer to a question.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) title: &'static str,
    /// Sentences, each with its label.
    pub(super) notes: Vec<(&'static str, String)>,
    pub(super) tables: Vec<Listed>,
}

/// A table, and what it leaves out.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) caption: &'static str,
    pub(super) table: Table,
    /// How many rows are left out.
    pub(super) more: u64,
    /// What a column means.
    pub(super) note: &'static str,
}

/// The sections that have something to say. A table has at most `most` rows.
pub(super) fn sections(report: &Report, most: usize) -> Vec<Section> {
    [
        evictions(&report.evictions, most),
        others(&report.evictions, most),
        suppressed(&report.suppressed, most),
        oom(&report.oom, most),
        exceeded(&report.exceeded, most),
        pressure(&report.pressure, most),
        stalls(&report.stalls, most),
        forecasts(&report.forecasts, most),
    ]
    .into_iter()
    .filter(|section| !(section.notes.is_empty() && section.tables.is_empty()))
    .collect()
}

/// What is not known, in words.
pub(super) fn lost(loss: &Loss) -> String {
    match loss.events {
        Some(events) => format!("{}: {}", counted(events, "event", "events"), loss.message),
        None => loss.message.clone(),
    }
}

/// What happened, in a sentence.
pub(super) fn summary(report: &Report) -> String {
    let Report { node, from, to, evictions, oom, journal, .. } = report;
    let node = node.as_deref().unwrap_or("an unknown node");
    let count = |outcome: &str| evictions.outcomes.get(outcome).copied().unwrap_or(0);
    let only_decided = count("dryRun") + count("paused") + count("unarmed");
    let mut parts = vec![format!("{} evicted", count("completed"))];
    for (number, what) in [
        (only_decided, "only decided"),
        (count("failed"), "failed"),
        (count("open"), "without a known end"),
        (evictions.by_the_kubelet, "evicted by the kubelet"),
    ] {
        if number > 0 {
            parts.push(format!("{number} {what}"));
        }
    }
    let mode = if journal.modes.is_empty() {
        String::new()
    } else {
        format!(" (mode {})", journal.modes.join(", then "))
    };
    let kills = counted(oom.kills, "process", "processes");
    let incidents = counted(oom.incidents, "incident", "incidents");
    format!(
        "{node} from {} to {}{mode}: of pods {}; {kills} killed by the kernel's OOM killer, in {incidents}.",
        seconds(from),
        seconds(to),
        parts.join(", "),
    )
}

/// What came of an eviction, in words.
pub(super) fn outcome(eviction: &Eviction) -> &'static str {
    match eviction.outcome {
        "completed" => "evicted",
        "failed" => "failed",
        "dryRun" => "would have",
        "paused" => "paused",
        "unarmed" => "unarmed",
        _ => "end unknown",
    }
}

/// Why a pod was chosen, in a word: the resource, or that it was ordered.
pub(super) fn why(eviction: &Eviction) -> String {
    match (&eviction.order, &eviction.signal) {
        (Some(_), _) => String::from("order"),
        (None, Some(signal)) => resource(signal, eviction.hard != Some(false)),
        (None, None) => String::from("?"),
    }
}

/// What ran short, and whether only a soft threshold was crossed.
fn resource(signal: &str, is_hard: bool) -> String {
    let resource = match signal {
        "allocatableMemory.available" => "allocatable",
        signal => signal.strip_suffix(".available").unwrap_or(signal),
    };
    if is_hard { resource.to_owned() } else { format!("{resource}, soft") }
}

/// What an eviction freed; of one that was only decided, what it was predicted to.
pub(super) fn freed(eviction: &Eviction) -> String {
    match (eviction.freed_bytes, eviction.predicted_freed_bytes) {
        (Some(freed), _) => human_bytes(freed),
        (None, Some(predicted)) if eviction.is_only_decided() => format!("~{}", human_bytes(predicted)),
        _ => String::from("?"),
    }
}

/// From the crossing, or from the order, until the victim was dead.
pub(super) fn dead(eviction: &Eviction) -> String {
    let dead = eviction.crossed_to_dead_ms.or(eviction.decided_to_dead_ms);
    dead.map_or_else(|| String::from("-"), milliseconds)
}

/// How many rows are left out of a list of so many, of which others were left out before.
fn hidden(kept: usize, most: usize, more: u64) -> u64 {
    u64::try_from(kept.saturating_sub(most)).unwrap_or(0).saturating_add(more)
}

/// A table of what is counted by owner.
fn listed<T>(
    caption: &'static str,
    few: &Few<T>,
    most: usize,
    heads: impl Into<Vec<Head>>,
    row: impl Fn(&T) -> Vec<String>,
) -> Option<Listed> {
    if few.items.is_empty() {
        return None;
    }
    let mut table = Table::new(heads);
    for item in few.items.iter().take(most) {
        table.row(row(item));
    }
    Some(Listed { caption, table, more: hidden(few.items.len(), most, few.more), note: "" })
}

fn evictions(evictions: &Evictions, most: usize) -> Section {
    let Evictions { items, more, .. } = evictions;
    let failures = items.iter().take(most).filter_map(|eviction| {
        Some(("failed", format!("{}: {}", eviction.victim(), eviction.reason.as_ref()?)))
    });
    let mut notes: Vec<_> = failures.collect();
    if evictions.freed_unknown > 0 {
        let number = counted(evictions.freed_unknown, "eviction", "evictions");
        notes.push(("not known", format!("of {number} it was not measured what came back")));
    }
    let mut tables = Vec::new();
    if !items.is_empty() {
        let mut table = Table::new([
            Head::word("TIME", 20),
            Head::word("WHAT", 11),
            Head::name("POD"),
            Head::word("WHY", 6),
            Head::amount("DEAD", 8),
            Head::amount("FREED", 7),
        ]);
        for eviction in items.iter().take(most) {
            table.row([
                seconds(&eviction.time),
                outcome(eviction).to_owned(),
                eviction.victim(),
                why(eviction),
                dead(eviction),
                freed(eviction),
            ]);
        }
        let note = "DEAD: from the crossing, or from the order; ~: predicted";
        let more = hidden(items.len(), most, *more);
        tables.push(Listed { caption: "Each eviction, the newest first", table, more, note });
    }
    for (caption, head, few) in [
        ("Evictions by workload", "WORKLOAD", &evictions.workloads),
        ("Evictions by namespace", "NAMESPACE", &evictions.namespaces),
    ] {
        let heads = [
            Head::name(head),
            Head::amount("EVICTED", 7),
            Head::amount("WOULD HAVE", 10),
            Head::amount("FAILED", 6),
            Head::amount("UNKNOWN", 7),
            Head::amount("FREED", 7),
        ];
        tables.extend(listed(caption, few, most, heads, |owner| {
            vec![
                owner.name.clone(),
                owner.evicted.to_string(),
                owner.would_have.to_string(),
                owner.failed.to_string(),
                owner.open.to_string(),
                human_bytes(owner.freed_bytes),
            ]
        }));
    }
    Section { title: "Evictions", notes, tables }
}

/// What others would have done, eviction by eviction.
fn others(evictions: &Evictions, most: usize) -> Section {
    let mut notes = Vec::new();
    let mut assumptions = BTreeSet::new();
    for eviction in evictions.items.iter().take(most) {
        let Some(Alternatives { kubelet, kernel }) = &eviction.alternatives else { continue };
        notes.push(("instead of", format!("{} at {}", eviction.victim(), seconds(&eviction.time))));
        if kubelet == kernel {
            notes.push(("both", kubelet.sentence.clone()));
        } else {
            notes.push(("kubelet", kubelet.sentence.clone()));
            notes.push(("kernel", kernel.sentence.clone()));
        }
        assumptions.extend(kubelet.assumptions.iter().chain(&kernel.assumptions).copied());
    }
    notes.extend(assumptions.into_iter().map(|assumption| ("assumed", assumption.to_owned())));
    Section { title: "What others would have done", notes, tables: Vec::new() }
}

fn suppressed(suppressed: &Few<Suppressed>, most: usize) -> Section {
    let heads =
        [Head::name("REASON"), Head::word("SIGNAL", 16), Head::amount("TIMES", 5), Head::word("LAST", 20)];
    let table = listed("Shortages without an eviction, by reason", suppressed, most, heads, |one| {
        vec![one.reason.clone(), one.signal.clone(), one.count.to_string(), seconds(&one.time)]
    });
    let notes = suppressed.items.iter().take(most).map(|one| ("last said", one.message.clone())).collect();
    Section { title: "Shortages without an eviction", notes, tables: table.into_iter().collect() }
}

fn oom(oom: &Oom, most: usize) -> Section {
    let mut notes = Vec::new();
    for (scope, count) in &oom.scopes {
        let whose = match *scope {
            "container" => "a container's limit",
            "pod" => "a pod's limit",
            "qos" => "a QoS class's limit",
            "node" => "the node's memory",
            "system" => "a limit outside of kubepods",
            _ => "an unknown limit",
        };
        let kills = counted(count.kills, "kill", "kills");
        let incidents = counted(count.incidents, "incident", "incidents");
        notes.push((*scope, format!("{kills} in {incidents} by {whose}")));
    }
    for (cause, count) in &oom.averted {
        let times = counted(*count, "time", "times");
        notes.push(("no kill", format!("{times} a marked process was dying already ({cause})")));
    }
    for (number, what) in [
        (oom.open, "without an end in the journal"),
        (oom.unreconciled, "whose kills the kernel's counters do not confirm"),
        (oom.reconstructed, "known by counters alone"),
    ] {
        if number > 0 {
            notes.push(("not known", format!("{} {what}", counted(number, "incident", "incidents"))));
        }
    }
    let mut tables = Vec::new();
    let heads = [
        Head::name("LIMIT"),
        Head::word("SCOPE", 9),
        Head::amount("INCIDENTS", 9),
        Head::amount("KILLS", 5),
        Head::word("LAST", 20),
    ];
    tables.extend(listed("Kills by the limit that was hit", &oom.limits, most, heads, |limit| {
        vec![
            limit.limit_owner.clone().unwrap_or_else(|| String::from("unknown")),
            limit.scope.to_owned(),
            limit.incidents.to_string(),
            limit.kills.to_string(),
            seconds(&limit.time),
        ]
    }));
    for (caption, head, few) in
        [("Kills by container", "KILLED", &oom.victims), ("Kills by namespace", "NAMESPACE", &oom.namespaces)]
    {
        let heads =
            [Head::name(head), Head::amount("KILLS", 5), Head::amount("MOST", 7), Head::word("LAST", 20)];
        let table = listed(caption, few, most, heads, |victim| {
            vec![
                victim.name.clone(),
                victim.kills.to_string(),
                victim.most_bytes.map_or_else(|| String::from("?"), human_bytes),
                seconds(&victim.time),
            ]
        });
        tables.extend(table.map(|table| Listed { note: "MOST: what the largest of them held", ..table }));
    }
    Section { title: "Kills by the kernel's OOM killer", notes, tables }
}

fn exceeded(exceeded: &Exceeded, most: usize) -> Section {
    let heads = [
        Head::name("POD"),
        Head::amount("DECISIONS", 9),
        Head::amount("OTHER CHOSEN", 12),
        Head::amount("MOST ABOVE", 10),
    ];
    let requests =
        listed("Pods above their request when one was chosen", &exceeded.requests, most, heads, |one| {
            vec![
                one.pod.clone(),
                one.decisions.to_string(),
                one.others_chosen.to_string(),
                human_bytes(one.most_above_bytes),
            ]
        });
    let heads = [Head::name("ALLOCATED → KILLED"), Head::word("POD", 5), Head::amount("KILLS", 5)];
    let triggers =
        listed("Who allocated, and who was killed for it", &exceeded.triggers, most, heads, |one| {
            vec![
                format!("{} → {}", one.trigger, one.victim),
                String::from(if one.same_pod { "same" } else { "other" }),
                one.kills.to_string(),
            ]
        });
    let tables = requests.into_iter().chain(triggers).collect();
    Section { title: "Who exceeded whose memory", notes: Vec::new(), tables }
}

fn pressure(pressure: &Pressure, most: usize) -> Section {
    if pressure.thresholds.is_empty() {
        return Section { title: "Time under pressure", notes: Vec::new(), tables: Vec::new() };
    }
    let mut table = Table::new([
        Head::name("SIGNAL"),
        Head::word("KIND", 4),
        Head::amount("TIMES", 5),
        Head::amount("TOTAL", 9),
        Head::amount("LONGEST", 9),
        Head::word("END", 14),
    ]);
    for one in pressure.thresholds.iter().take(most) {
        let least = if one.at_least { "≥" } else { "" };
        table.row([
            one.signal.clone(),
            String::from(if one.hard { "hard" } else { "soft" }),
            one.shortages.to_string(),
            format!("{least}{}", duration(one.total_ms)),
            duration(one.longest_ms),
            String::from(match (one.open, one.at_least) {
                (true, _) => "still crossed",
                (false, true) => "partly unknown",
                (false, false) => "cleared",
            }),
        ]);
    }
    let caption = "How long thresholds were crossed";
    let more = hidden(pressure.thresholds.len(), most, 0);
    let tables = vec![Listed { caption, table, more, note: "≥: at least, as an end is not known" }];
    Section { title: "Time under pressure", notes: Vec::new(), tables }
}

fn stalls(stalls: &Few<Stall>, most: usize) -> Section {
    let heads = [
        Head::name("WAITED ← LIMIT"),
        Head::word("KIND", 13),
        Head::amount("TOTAL", 9),
        Head::amount("LONGEST", 9),
    ];
    let table = listed("Who waited for memory, and at whose limit", stalls, most, heads, |one| {
        let least = if one.at_least { "≥" } else { "" };
        let limit = match one.limit_owner.as_deref() {
            Some("/") => "the node",
            Some(limit) => limit,
            None => "unknown",
        };
        vec![
            format!("{} ← {limit}", one.stalled),
            one.kind.clone(),
            format!("{least}{}", duration(one.stalled_ms)),
            duration(one.longest_ms),
        ]
    });
    Section { title: "Who stalled whom", notes: Vec::new(), tables: table.into_iter().collect() }
}

fn forecasts(forecasts: &Forecasts, most: usize) -> Section {
    let Forecasts { warnings, came_true, did_not, unknown, unforeseen, items, more } = forecasts;
    let mut section = Section { title: "Warnings", notes: Vec::new(), tables: Vec::new() };
    if warnings + unforeseen == 0 {
        return section;
    }
    let times = counted(*warnings, "time", "times");
    section.notes.push((
        "warned",
        format!("{times}: {came_true} came true, {did_not} did not, of {unknown} it is not known"),
    ));
    section.notes.push(("unforeseen", counted(*unforeseen, "crossing", "crossings")));
    if !items.is_empty() {
        let mut table = Table::new([
            Head::word("TIME", 20),
            Head::word("OF", 6),
            Head::word("WHAT", 9),
            Head::amount("IN", 7),
            Head::amount("WAS IN", 7),
            Head::name("CAUSED BY"),
        ]);
        let ms = |ms: Option<u64>| ms.map_or_else(|| String::from("-"), duration);
        for one in items.iter().take(most) {
            let what = match one.outcome {
                "cameTrue" => "came true",
                "didNot" => "did not",
                _ => "unknown",
            };
            table.row([
                seconds(&one.time),
                resource(&one.signal, one.hard),
                what.to_owned(),
                ms(one.crossed_in_ms),
                ms(one.was_crossed_in_ms),
                one.caused_by.clone().unwrap_or_else(|| String::from("-")),
            ]);
        }
        let note = "IN: the crossing, as foreseen; WAS IN: as it was";
        let more = hidden(items.len(), most, *more);
        section.tables.push(Listed { caption: "Each warning, the newest first", table, more, note });
    }
    section
}
