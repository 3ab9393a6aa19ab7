//! A replay as a table, within 80 columns.

use serde_json::Value;

use super::document::{Document, Origin, Replay, Replayed, Row};
use crate::cli::render::{escape, human_bytes, shorten, wrap};

/// The maximum width of a name.
const NAME: usize = 26;
const WIDTH: usize = 80;

pub(super) fn table(document: &Document) -> String {
    let Document { recording, replay, happenings, decisions: _, under } = document;
    let mut text = head(recording, replay);
    if !happenings.is_empty() {
        text.push_str(&line("TIME", "WHAT", "POD", "WHY"));
    }
    for happening in happenings {
        let what = string(happening, "what");
        let pod = happening.get("pod").and_then(Value::as_str).unwrap_or_default();
        text.push_str(&line(&clock(happening.get("time")), &what, pod, &why(&what, happening)));
    }
    if let Some(under) = under {
        text.push_str(&other(under));
    }
    text
}

fn head(recording: &Origin, replay: &Replay) -> String {
    let Origin { source, program, node, from, to, lost_records, damage, .. } = recording;
    let unknown = || String::from("?");
    let node = node.clone().unwrap_or_else(unknown);
    let mut said = vec![
        format!("{source}: by enforcer {program} on {node}"),
        format!("from {} to {}", from.clone().unwrap_or_else(unknown), to.clone().unwrap_or_else(unknown)),
    ];
    let Replay { equal: _, steps_equal, steps_not_run, first_difference } = replay;
    said.push(match first_difference {
        None => format!("{steps_equal} steps run again: the same, bit for bit"),
        Some(difference) => format!(
            "{steps_equal} steps run again are the same; the next is not (byte {})",
            difference.at_byte
        ),
    });
    if *steps_not_run > 0 {
        said.push(format!("{steps_not_run} steps could not be run again: something before them is missing"));
    }
    if *lost_records > 0 {
        said.push(format!("there is a gap: the recorder lost {lost_records} records"));
    }
    for damage in damage {
        said.push(format!("damaged at byte {}, {} bytes: {}", damage.at_byte, damage.bytes, damage.what));
    }
    said.iter().flat_map(|said| wrap(said, WIDTH)).map(|line| line + "\n").collect()
}

/// One happening; without a pod, the reason takes the pod's columns too.
fn line(time: &str, what: &str, pod: &str, why: &str) -> String {
    let mut before = format!("{time:<12} {what:<10} ");
    if !pod.is_empty() {
        let pod = shorten(pod, NAME);
        let padding = NAME.saturating_sub(pod.chars().count());
        before.push_str(&format!("{pod}{:padding$} ", ""));
    }
    let indent = before.chars().count();
    let mut text = String::new();
    let mut lines = wrap(why, WIDTH.saturating_sub(indent));
    if lines.is_empty() {
        lines.push(String::new());
    }
    for why in lines {
        text.push_str(&format!("{}\n", format!("{before}{why}").trim_end()));
        before = " ".repeat(indent);
    }
    text
}

/// The time of day, to the millisecond.
fn clock(time: Option<&Value>) -> String {
    let time = time.and_then(Value::as_str).unwrap_or_default();
    time.split_once('T').map_or("?", |(_, clock)| clock.get(..12).unwrap_or(clock)).to_owned()
}

fn why(what: &str, data: &Value) -> String {
    match what {
        "crossed" | "cleared" => format!("{}: {}", string(data, "signal"), of(data)),
        "decided" => {
            let by = data.get("decidedBy").and_then(Value::as_str).unwrap_or("?");
            let dry = if data.get("dryRun") == Some(&Value::Bool(true)) { ", dry run" } else { "" };
            format!("{by}; {}{dry}", of(data))
        }
        "completed" => {
            let freed = data.get("freedBytes").and_then(Value::as_u64);
            let freed = freed.map_or_else(|| String::from("?"), human_bytes);
            let predicted = data.get("predictedFreedBytes").and_then(Value::as_u64).unwrap_or(0);
            format!("{freed} of {} came back", human_bytes(predicted))
        }
        "suppressed" => format!("{}: {}", string(data, "signal"), string(data, "reason")),
        "hookEnded" => string(data, "outcome"),
        "failed" | "cutShort" => string(data, "reason"),
        "configured" => format!("mode {}", string(data, "mode")),
        "gap" => match data.get("lostRecords").and_then(Value::as_u64) {
            Some(0) | None => String::from("the file is damaged here"),
            Some(lost) => format!("{lost} records were lost"),
        },
        _ => String::new(),
    }
}

/// The observed amount and its threshold.
fn of(data: &Value) -> String {
    let number = |key: &str| data.get(key).and_then(Value::as_u64);
    if let (Some(observed), Some(threshold)) = (number("observedBytes"), number("thresholdBytes")) {
        return format!("{} of {}", human_bytes(observed), human_bytes(threshold));
    }
    let count = |key| number(key).map_or_else(|| String::from("?"), |count| count.to_string());
    format!("{} of {}", count("observedCount"), count("thresholdCount"))
}

fn other(under: &Replayed) -> String {
    let Replayed { config, mode, parted, rows } = under;
    let mut text = String::from("\n");
    let title = format!("under {config} (mode {mode})");
    match parted {
        None => text.push_str(&format!("{}: the same\n", escape(&title))),
        Some(_) => text.push_str(&format!("{}:\n", escape(&title))),
    }
    if rows.is_empty() {
        text.push_str("no pod is evicted, as recorded\n");
        return text;
    }
    text.push_str(&line("TIME", "", "RECORDED", "WOULD HAVE EVICTED"));
    let mut is_modelled = false;
    for row in rows {
        let Row { time, boot_time_ns: _, recorded, under, modelled, read: _, no_victim } = row;
        let name = |decision: &Option<Value>| {
            let victim = decision.as_ref()?.get("victim")?;
            match (victim.get("namespace"), victim.get("name")) {
                (Some(_), Some(_)) => {
                    Some(format!("{}/{}", string(victim, "namespace"), string(victim, "name")))
                }
                _ => Some(format!("cgroup {}", victim.get("cgroupId")?)),
            }
        };
        let none = || no_victim.as_ref().map_or_else(String::new, |why| format!("no pod: {}", escape(why)));
        let would = match under {
            Some(decision) => {
                let by = decision.get("decidedBy").and_then(Value::as_str).unwrap_or("?");
                format!("{} ({by}; {})", shorten(&name(under).unwrap_or_default(), NAME), of(decision))
            }
            None => none(),
        };
        is_modelled |= *modelled;
        let mark = if *modelled { "modelled" } else { "" };
        let recorded = name(recorded).unwrap_or_else(|| String::from("no pod"));
        text.push_str(&line(
            &clock(time.as_ref().map(|time| Value::from(time.as_str())).as_ref()),
            mark,
            &recorded,
            &would,
        ));
    }
    if is_modelled {
        text.push_str("modelled: the two had diverged before; from then on available memory is a model\n");
    }
    text
}

/// A string of the object, escaped; empty if it is missing.
fn string(object: &Value, key: &str) -> String {
    escape(object.get(key).and_then(Value::as_str).unwrap_or_default())
}
