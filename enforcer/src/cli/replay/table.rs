//! A replay as a table.

use serde_json::Value;

use super::document::{Document, Origin, Replay, Replayed, Row};
use crate::cli::{
    columns::name_width,
    page::{cell, width},
    render::{escape, human_bytes, wrap},
};

const WIDTH: usize = 80;

/// How many columns a line has beside its pod, and how many of them the reason takes at least.
const REST: usize = 54;
const WHY: usize = 29;

/// How wide the parts of a line are.
#[derive(Clone, Copy, Debug)]
struct Widths {
    /// The pod.
    pod: usize,
    /// All.
    line: usize,
}

impl Widths {
    fn of<'a>(pods: impl Iterator<Item = &'a str>, columns: Option<usize>) -> Self {
        let longest = pods.map(|pod| width(&escape(pod))).max().unwrap_or(0);
        Self { pod: name_width(longest, REST, columns), line: columns.unwrap_or(WIDTH) }
    }
}

/// With names as wide as fits into that many columns.
pub(super) fn table(document: &Document, columns: Option<usize>) -> String {
    let Document { recording, replay, happenings, decisions: _, under } = document;
    let mut text = head(recording, replay);
    let pod_of =
        |happening: &'_ Value| happening.get("pod").and_then(Value::as_str).unwrap_or_default().to_owned();
    let pods: Vec<_> = happenings.iter().map(pod_of).collect();
    let widths = Widths::of(pods.iter().map(String::as_str), columns);
    if !happenings.is_empty() {
        text.push_str(&line(widths, "TIME", "WHAT", "POD", "WHY"));
    }
    for (happening, pod) in happenings.iter().zip(&pods) {
        let what = string(happening, "what");
        text.push_str(&line(widths, &clock(happening.get("time")), &what, pod, &why(&what, happening)));
    }
    if let Some(under) = under {
        text.push_str(&other(under, columns));
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
fn line(widths: Widths, time: &str, what: &str, pod: &str, why: &str) -> String {
    let mut before = format!("{time:<12} {what:<10} ");
    if !pod.is_empty() {
        before.push_str(&format!("{} ", cell(pod, widths.pod, false)));
    }
    let indent = width(&before);
    let mut text = String::new();
    let mut lines = wrap(why, widths.line.saturating_sub(indent).max(WHY));
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

fn other(under: &Replayed, columns: Option<usize>) -> String {
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
    let recorded_of = |row: &Row| victim_of(row.recorded.as_ref()).unwrap_or_else(|| String::from("no pod"));
    let pods: Vec<_> = rows.iter().map(recorded_of).collect();
    let widths = Widths::of(pods.iter().map(String::as_str), columns);
    text.push_str(&line(widths, "TIME", "", "RECORDED", "WOULD HAVE EVICTED"));
    let mut is_modelled = false;
    for (row, was) in rows.iter().zip(&pods) {
        let Row { time, boot_time_ns: _, recorded: _, under, modelled, read: _, no_victim } = row;
        let none = || no_victim.as_ref().map_or_else(String::new, |why| format!("no pod: {}", escape(why)));
        let would = match under {
            Some(decision) => {
                let by = decision.get("decidedBy").and_then(Value::as_str).unwrap_or("?");
                format!("{} ({by}; {})", victim_of(Some(decision)).unwrap_or_default(), of(decision))
            }
            None => none(),
        };
        is_modelled |= *modelled;
        let mark = if *modelled { "modelled" } else { "" };
        text.push_str(&line(
            widths,
            &clock(time.as_ref().map(|time| Value::from(time.as_str())).as_ref()),
            mark,
            was,
            &would,
        ));
    }
    if is_modelled {
        text.push_str("modelled: the two had diverged before; from then on available memory is a model\n");
    }
    text
}

/// The victim of a decision, not escaped.
fn victim_of(decision: Option<&Value>) -> Option<String> {
    let victim = decision?.get("victim")?;
    let text = |key: &str| victim.get(key).and_then(Value::as_str).unwrap_or_default();
    match (victim.get("namespace"), victim.get("name")) {
        (Some(_), Some(_)) => Some(format!("{}/{}", text("namespace"), text("name"))),
        _ => Some(format!("cgroup {}", victim.get("cgroupId")?)),
    }
}

/// A string of the object, escaped; empty if it is missing.
fn string(object: &Value, key: &str) -> String {
    escape(object.get(key).and_then(Value::as_str).unwrap_or_default())
}
