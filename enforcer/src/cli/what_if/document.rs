//! The foreseen evictions as JSON and YAML, and as a table.

use serde::Serialize;

use super::Now;
use crate::{
    cli::{
        columns::name_width,
        page::{cell, width},
        render::{escape, human_bytes},
    },
    policy::{
        engine::{Level, Reading, Usage},
        flight::Member,
        rank::DecidedBy,
        what_if::{End, Eviction, Foreseen},
    },
};

/// How many columns a line has beside its name.
const REST: usize = 54;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document {
    /// The present state.
    now: Memory,
    /// The assumed state.
    then: Memory,
    thresholds: Vec<ThresholdRow>,
    evictions: Vec<Row>,
    /// `enough`, `nobodyLeft`, `breaker` or `outOfReach`.
    end: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    available_bytes: u64,
    capacity_bytes: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ThresholdRow {
    signal: &'static str,
    hard: bool,
    value: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    rank: usize,
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    signal: &'static str,
    hard: bool,
    after_ms: u64,
    decided_by: &'static str,
    usage_bytes: Option<u64>,
    request_bytes: Option<u64>,
    predicted_freed_bytes: u64,
    available_after_bytes: u64,
}

impl Row {
    fn full_name(&self) -> String {
        match (&self.namespace, &self.name) {
            (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
            _ => String::from("?"),
        }
    }
}

impl Document {
    pub(super) fn new(before: Level, now: &Now, foreseen: &Foreseen) -> Self {
        let memory =
            |level: Level| Memory { available_bytes: level.available, capacity_bytes: level.capacity };
        let row = |(rank, eviction): (usize, &Eviction)| {
            let Eviction { decision, after_ns, available_bytes } = eviction;
            let member = now.members.get(decision.index.0).cloned().flatten();
            let (namespace, name, uid) = match member {
                Some(Member { namespace, name, uid, .. }) => (Some(namespace), Some(name), Some(uid)),
                None => (None, None, None),
            };
            Row {
                rank,
                namespace,
                name,
                uid,
                signal: decision.shortage.signal.as_str(),
                hard: decision.shortage.hard,
                after_ms: after_ns / 1_000_000,
                decided_by: DecidedBy::of(decision.decided_by),
                usage_bytes: Reading::usage(&decision.reading).map(|usage: &Usage| usage.working_set_bytes),
                request_bytes: now.scene.pods.get(decision.index.0).map(|(facts, _)| facts.request_bytes),
                predicted_freed_bytes: decision.predicted_freed_bytes,
                available_after_bytes: *available_bytes,
            }
        };
        Self {
            now: memory(before),
            then: memory(now.scene.node.memory),
            thresholds: now
                .scene
                .settings
                .thresholds
                .iter()
                .map(|one| ThresholdRow {
                    signal: one.signal.as_str(),
                    hard: one.is_hard(),
                    value: one.value.to_string(),
                })
                .collect(),
            evictions: (1..).zip(&foreseen.evictions).map(row).collect(),
            end: match foreseen.end {
                End::Enough => "enough",
                End::NoneLeft => "nobodyLeft",
                End::Breaker => "breaker",
                End::OutOfReach => "outOfReach",
            },
        }
    }
}

/// Why no pod is evicted although memory is short.
const OUT_OF_REACH: &str = "it is short, and no eviction could end that: no pod is evicted\n";

/// The evictions as a table, with names as wide as fits into that many columns.
pub(super) fn table(document: &Document, columns: Option<usize>) -> String {
    let Document { now, then, thresholds, evictions, end } = document;
    let mut text = format!(
        "now  memory.available {} of {}\n",
        human_bytes(now.available_bytes),
        human_bytes(now.capacity_bytes)
    );
    if then.available_bytes != now.available_bytes {
        text.push_str(&format!("then memory.available {}\n", human_bytes(then.available_bytes)));
    }
    for ThresholdRow { signal, hard, value } in thresholds {
        text.push_str(&format!("{} {signal}<{value}\n", if *hard { "hard" } else { "soft" }));
    }
    if evictions.is_empty() {
        text.push_str(match *end {
            "enough" => "no pod would be evicted: nothing is short\n",
            "outOfReach" => OUT_OF_REACH,
            _ => "it is short, and no pod may be evicted\n",
        });
        return text;
    }
    let longest = evictions.iter().map(|row| width(&escape(&row.full_name()))).max().unwrap_or(0);
    let name_width = name_width(longest, REST, columns);
    let line = |rank: &str, name: &str, columns: [&str; 4], by: &str| {
        line(rank, &cell(name, name_width, false), columns, by)
    };
    text.push_str(&line("RANK", "POD", ["USAGE", "REQUEST", "FREES", "LEAVES"], "BY"));
    for row in evictions {
        let name = row.full_name();
        let shown = |bytes: Option<u64>| bytes.map_or_else(|| String::from("?"), human_bytes);
        let columns = [
            shown(row.usage_bytes),
            shown(row.request_bytes),
            human_bytes(row.predicted_freed_bytes),
            human_bytes(row.available_after_bytes),
        ];
        let [usage, request, frees, leaves] = &columns;
        let by = row.decided_by;
        text.push_str(&line(&row.rank.to_string(), &name, [usage, request, frees, leaves], by));
    }
    text.push_str(match *end {
        "enough" => "then it would be enough\n",
        "outOfReach" => OUT_OF_REACH,
        "breaker" => "the circuit breaker would spare the others, and it would still be short\n",
        _ => "and it would still be short: no other pod may be evicted\n",
    });
    text
}

fn line(rank: &str, name: &str, columns: [&str; 4], by: &str) -> String {
    let columns: Vec<_> = columns.iter().map(|column| format!("{column:>7}")).collect();
    format!("{}\n", format!("{rank:>4} {name} {} {by}", columns.join(" ")).trim_end())
}
