//! The ranking for people: key by key, and in words the comparison that put one pod before the next.

use super::{
    columns::{Head, Table},
    render::human_bytes,
};
use crate::{
    policy::rank::{DecidedBy, MemoryRankKey, PidRankKey},
    serve::RankedView,
};

/// Whether a signal is about process ids.
pub(super) fn is_pids(signal: &str) -> bool {
    signal == crate::policy::threshold::Signal::PidAvailable.as_str()
}

/// `namespace/name`, not escaped.
pub(super) fn name(row: &RankedView) -> String {
    format!("{}/{}", row.namespace, row.name)
}

/// Fills in the key by which each row comes before the next, where it is missing.
pub(super) fn compare(rows: &mut [RankedView], is_pids: bool) {
    let keys = (0_u32..).zip(rows.windows(2)).map(|(order, pair)| match pair {
        [one, next] => key(one, next, is_pids, order).as_str(),
        _ => DecidedBy::Order.as_str(),
    });
    let keys: Vec<_> = keys.collect();
    for (row, key) in rows.iter_mut().zip(keys) {
        row.decided_by.get_or_insert_with(|| key.to_owned());
    }
}

fn key(one: &RankedView, next: &RankedView, is_pids: bool, order: u32) -> DecidedBy {
    if is_pids {
        let standing = |row: &RankedView, order| PidRankKey {
            process_count: row.process_count,
            priority: row.priority,
            order,
        };
        return standing(one, order).compare(&standing(next, order + 1)).1;
    }
    let standing = |row: &RankedView, order| MemoryRankKey {
        usage_bytes: row.usage_bytes,
        request_bytes: row.request_bytes,
        priority: row.priority,
        order,
    };
    standing(one, order).compare(&standing(next, order + 1)).1
}

/// Why the first row comes before the next, by that key.
pub(super) fn because(first: &RankedView, next: Option<&RankedView>, key: &str) -> String {
    let Some(next) = next else {
        return String::from("it was the only pod that might be evicted");
    };
    let other = name(next);
    let why = match key {
        "statsMissing" => {
            format!("its usage cannot be read, which puts it first, and that of {other} can")
        }
        "exceedsRequest" => format!("it exceeds its request and {other} does not"),
        "priority" => {
            format!("its priority {} is lower than that of {other}, {}", first.priority, next.priority)
        }
        "aboveRequest" => format!("it is {}, and {other} {}", above(first), above(next)),
        "processCount" => format!("it has {} tasks, and {other} {}", count(first), count(next)),
        _ => format!("all keys are equal, and it precedes {other} in the order of the pods"),
    };
    format!("it came before {other} because {why}")
}

fn above(row: &RankedView) -> String {
    match row.above_request_bytes {
        Some(bytes) if bytes < 0 => format!("{} below its request", human_bytes(bytes.unsigned_abs())),
        Some(bytes) => format!("{} above its request", human_bytes(bytes.unsigned_abs())),
        None => String::from("of unknown usage"),
    }
}

fn count(row: &RankedView) -> String {
    row.process_count.map_or_else(|| String::from("an unknown number"), |count| count.to_string())
}

/// Bytes with their sign.
pub(super) fn signed(bytes: i64) -> String {
    let shown = human_bytes(bytes.unsigned_abs());
    if bytes < 0 { format!("-{shown}") } else { shown }
}

/// A growth rate in words.
pub(super) fn growth(bytes_per_second: i64) -> String {
    match bytes_per_second {
        0 => String::from("not growing"),
        rate if rate < 0 => format!("shrinking by {} a second", human_bytes(rate.unsigned_abs())),
        rate => format!("growing by {} a second", human_bytes(rate.unsigned_abs())),
    }
}

/// The deciding key, in at most eight columns.
fn short(key: Option<&str>) -> &str {
    match key {
        None => "",
        Some("statsMissing") => "no stats",
        Some("exceedsRequest") => "exceeds",
        Some("aboveRequest") => "above",
        Some("processCount") => "tasks",
        Some("onlyCandidate") => "alone",
        Some("operator") => "operator",
        Some("priority") => "priority",
        Some(_) => "order",
    }
}

/// The rows key by key. `BY` is the key that puts a row before the next.
pub(super) fn table(rows: &[RankedView], is_pids: bool) -> Table {
    let unknown = || String::from("?");
    let mut heads = vec![Head::amount("#", 2), Head::name("POD")];
    heads.extend(if is_pids {
        vec![Head::amount("PRIORITY", 0), Head::amount("TASKS", 9)]
    } else {
        vec![
            Head::amount("EXCEEDS", 7),
            Head::amount("PRIORITY", 0),
            Head::amount("ABOVE", 8),
            Head::amount("USAGE", 7),
            Head::amount("REQUEST", 7),
        ]
    });
    heads.push(Head::word("BY", 8));
    let mut table = Table::new(heads);
    for row in rows {
        let mut cells = vec![row.rank.to_string(), name(row)];
        if is_pids {
            let tasks = row.process_count.map_or_else(unknown, |count| count.to_string());
            cells.extend([row.priority.to_string(), tasks]);
        } else {
            let exceeds = match (row.stats_missing, row.exceeds_request) {
                (true, _) => "?",
                (false, true) => "yes",
                (false, false) => "no",
            };
            cells.extend([
                exceeds.to_owned(),
                row.priority.to_string(),
                row.above_request_bytes.map_or_else(unknown, signed),
                row.usage_bytes.map_or_else(unknown, human_bytes),
                human_bytes(row.request_bytes),
            ]);
        }
        cells.push(short(row.decided_by.as_deref()).to_owned());
        table.row(cells);
    }
    table
}

/// The excluded pods by reason: `critical (a, b); protected (c)`. At most `most` names per reason are shown.
pub(super) fn excluded<'a>(left_out: impl Iterator<Item = (String, &'a str)>, most: usize) -> String {
    let mut by_reason: Vec<(&str, Vec<String>, usize)> = Vec::new();
    for (pod, reason) in left_out {
        let known = by_reason.iter().position(|(known, ..)| *known == reason);
        let place = known.unwrap_or_else(|| {
            by_reason.push((reason, Vec::new(), 0));
            by_reason.len() - 1
        });
        if let Some((_, names, more)) = by_reason.get_mut(place) {
            if names.len() < most {
                names.push(pod);
            } else {
                *more += 1;
            }
        }
    }
    let reported = by_reason.into_iter().map(|(reason, names, more)| {
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{} ({}{more})", exclusion(reason), names.join(", "))
    });
    reported.collect::<Vec<_>>().join("; ")
}

/// The reason of an exclusion in words.
pub(super) fn exclusion(reason: &str) -> &str {
    match reason {
        "critical" => "critical",
        "protected" => "protected by an operator",
        "gone" => "its cgroup is gone",
        "empty" => "holds nothing",
        "withinRequest" => "within its request, and such pods are spared",
        "terminating" => "is ending already and frees its memory",
        "passedOver" => "could not be evicted in this shortage",
        "usageUnknown" => "what it uses is not counted",
        "chosen" => "chosen before in this dry run",
        "outsideKubepods" => "its memory does not count towards the pods' limit",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::page::{WIDTH, width};

    fn row(rank: usize, name: &str, priority: i32, usage: Option<u64>, request: u64) -> RankedView {
        let standing = MemoryRankKey { usage_bytes: usage, request_bytes: request, priority, order: 0 };
        RankedView {
            rank,
            namespace: "default".into(),
            name: name.into(),
            priority,
            stats_missing: usage.is_none(),
            exceeds_request: standing.exceeds_request(),
            usage_bytes: usage,
            request_bytes: request,
            above_request_bytes: standing.above_request_bytes(),
            ..RankedView::default()
        }
    }

    #[test]
    fn each_key_has_its_words_and_the_ranking_says_which() {
        const MIB: u64 = 1 << 20;
        let mut rows = [
            row(1, "unread", 0, None, 0),
            row(2, "hog", i32::MIN, Some(900 * MIB), 0),
            row(3, "big", 5, Some(900 * MIB), 100 * MIB),
            row(4, "small", 5, Some(200 * MIB), 100 * MIB),
            row(5, "within", 0, Some(50 * MIB), 100 * MIB),
            row(6, &"long".repeat(60), 0, Some(50 * MIB), 100 * MIB),
        ];
        compare(&mut rows, false);
        let keys: Vec<_> = rows.iter().map(|row| row.decided_by.as_deref()).collect();
        let expected = ["statsMissing", "priority", "aboveRequest", "exceedsRequest", "order"];
        assert_eq!(keys[..5], expected.map(Some));
        assert_eq!(keys[5], None);
        let words: Vec<_> = rows
            .windows(2)
            .map(|pair| because(&pair[0], Some(&pair[1]), pair[0].decided_by.as_deref().unwrap()))
            .collect();
        assert!(
            words[1].ends_with("its priority -2147483648 is lower than that of default/big, 5"),
            "{words:?}"
        );
        assert!(
            words[2].contains("it is 800Mi above its request, and default/small 100Mi above"),
            "{words:?}"
        );
        assert!(words[3].ends_with("it exceeds its request and default/within does not"), "{words:?}");
        let text = table(&rows, false).text(Some(WIDTH));
        assert!(text.lines().all(|line| width(line) <= WIDTH), "{text}");
        assert!(text.lines().count() == 7 && text.contains("-2147483648"), "{text}");
        let tasks = table(&rows, true).text(None);
        assert!(tasks.contains("TASKS") && !tasks.contains("USAGE"), "{tasks}");
    }

    #[test]
    fn who_is_left_out_is_reported_by_reason() {
        let all = [("a", "critical"), ("b", "protected"), ("c", "critical"), ("d", "critical")];
        let reported = excluded(all.into_iter().map(|(pod, reason)| (pod.to_owned(), reason)), 2);
        assert_eq!(reported, "critical (a, c and 1 more); protected by an operator (b)");
    }
}
