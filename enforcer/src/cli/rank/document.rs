//! The order as JSON and YAML, which are part of the public contract; and as a table.

use serde::Serialize;

use super::stats::Stats;
use crate::{
    cli::{
        columns::name_width,
        page::{cell, width},
        render::{escape, human_bytes},
    },
    model::{Pod, ResourceName},
    policy::{
        critical, effective, preference,
        rank::{self, MemoryRankKey, PidRankKey},
        threshold::Signal,
    },
};

/// How many columns a line has beside its name.
const REST: usize = 50;

#[derive(Debug, Serialize)]
pub(super) struct Document {
    signal: &'static str,
    order: Vec<Entry>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    rank: usize,
    namespace: String,
    name: String,
    evictable: bool,
    stats_missing: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    exceeds_request: Option<bool>,
    priority: i32,
    #[serde(flatten)]
    keys: Keys,
}

impl Entry {
    fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// The keys that are compared after the priority.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Keys {
    #[serde(rename_all = "camelCase")]
    Memory {
        #[serde(skip_serializing_if = "Option::is_none")]
        usage_bytes: Option<u64>,
        request_bytes: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        above_request_bytes: Option<i64>,
    },
    #[serde(rename_all = "camelCase")]
    Pids {
        #[serde(skip_serializing_if = "Option::is_none")]
        process_count: Option<u64>,
    },
}

impl Document {
    pub(super) fn new(signal: Signal, pods: &[Pod], stats: &Stats, ceiling: Option<i32>) -> Self {
        let priority = |pod: &Pod| preference::eviction_priority(pod, ceiling);
        let numbered = (0_u32..).zip(pods);
        let order = if signal == Signal::PidAvailable {
            let standing = |(order, pod): (u32, &Pod)| PidRankKey {
                process_count: stats.of(pod).process_count,
                priority: priority(pod),
                order,
            };
            let mut order: Vec<_> = numbered.map(|entry| (entry.1, standing(entry))).collect();
            rank::by_pids(&mut order, |(_, standing)| *standing);
            (1..).zip(order).map(|(rank, (pod, standing))| by_pids(rank, pod, &standing)).collect()
        } else {
            let standing = |(order, pod): (u32, &Pod)| MemoryRankKey {
                usage_bytes: stats.of(pod).working_set_bytes,
                request_bytes: effective::ranking_request(pod, ResourceName::MEMORY).units(),
                priority: priority(pod),
                order,
            };
            let mut order: Vec<_> = numbered.map(|entry| (entry.1, standing(entry))).collect();
            rank::by_memory(&mut order, |(_, standing)| *standing);
            (1..).zip(order).map(|(rank, (pod, standing))| by_memory(rank, pod, &standing)).collect()
        };
        Self { signal: signal.as_str(), order }
    }
}

fn entry(
    rank: usize,
    pod: &Pod,
    priority: i32,
    stats_missing: bool,
    exceeds_request: Option<bool>,
    keys: Keys,
) -> Entry {
    Entry {
        rank,
        namespace: pod.name.namespace.clone(),
        name: pod.name.name.clone(),
        evictable: !critical::is_critical(pod),
        stats_missing,
        exceeds_request,
        priority,
        keys,
    }
}

fn by_memory(rank: usize, pod: &Pod, standing: &MemoryRankKey) -> Entry {
    let keys = Keys::Memory {
        usage_bytes: standing.usage_bytes,
        request_bytes: standing.request_bytes,
        above_request_bytes: standing.above_request_bytes(),
    };
    entry(
        rank,
        pod,
        standing.priority,
        standing.usage_bytes.is_none(),
        standing.usage_bytes.map(|_| standing.exceeds_request()),
        keys,
    )
}

fn by_pids(rank: usize, pod: &Pod, standing: &PidRankKey) -> Entry {
    let keys = Keys::Pids { process_count: standing.process_count };
    entry(rank, pod, standing.priority, standing.process_count.is_none(), None, keys)
}

/// The order as a table, with names as wide as fits into that many columns.
pub(super) fn table(document: &Document, columns: Option<usize>) -> String {
    let Document { signal, order } = document;
    let longest = order.iter().map(|entry| width(&escape(&entry.full_name()))).max().unwrap_or(0);
    let name_width = name_width(longest, REST, columns);
    let line = |rank: &str, name: &str, priority: &str, columns: &[&str], note: &str| {
        line(rank, &cell(name, name_width, false), priority, columns, note)
    };
    let mut text = format!("evicted in this order when {signal} is short\n");
    let is_pids = *signal == Signal::PidAvailable.as_str();
    text.push_str(&if is_pids {
        line("RANK", "POD", "PRIORITY", &["PROCESSES"], "")
    } else {
        line("RANK", "POD", "PRIORITY", &["USAGE", "REQUEST", "ABOVE"], "")
    });
    for entry in order {
        let name = entry.full_name();
        let unknown = || String::from("?");
        let columns = match &entry.keys {
            Keys::Memory { usage_bytes, request_bytes, above_request_bytes } => vec![
                usage_bytes.map_or_else(unknown, human_bytes),
                human_bytes(*request_bytes),
                above_request_bytes.map_or_else(unknown, signed),
            ],
            Keys::Pids { process_count } => {
                vec![process_count.map_or_else(unknown, |count| count.to_string())]
            }
        };
        let note = match (entry.evictable, entry.stats_missing) {
            (false, _) => "critical",
            (true, true) => "no stats",
            (true, false) => "",
        };
        let columns: Vec<_> = columns.iter().map(String::as_str).collect();
        text.push_str(&line(&entry.rank.to_string(), &name, &entry.priority.to_string(), &columns, note));
    }
    text
}

fn line(rank: &str, name: &str, priority: &str, columns: &[&str], note: &str) -> String {
    let columns: Vec<_> = columns.iter().map(|column| format!("{column:>7}")).collect();
    let columns = columns.join(" ");
    format!("{}\n", format!("{rank:>4} {name} {priority:>11} {columns} {note}").trim_end())
}

fn signed(bytes: i64) -> String {
    let shown = human_bytes(bytes.unsigned_abs());
    if bytes < 0 { format!("-{shown}") } else { shown }
}
