//! The header above the tree: the node, the mode, and the warnings that an operator has to know first.

use super::{model::State, picture::Picture, table::Tone};
use crate::{
    cli::{
        orders::left,
        render::{escape, human_bytes},
    },
    serve::{OrderView, SignalView, ThresholdView},
};

/// Text in pieces, each with its tone.
pub(super) type Line = Vec<(String, Tone)>;

/// The lines above the tree.
pub(super) fn header(state: &State) -> Vec<Line> {
    let Some(picture) = &state.picture else {
        return vec![vec![
            (String::from("enforcer"), Tone::Strong),
            (String::from("  waiting for the daemon"), Tone::Plain),
        ]];
    };
    let mut first = mode(picture);
    first.push((format!("   sort: {}", state.sort.name()), Tone::Faint));
    if !state.filter.is_empty() {
        first.push((format!("   filter: {}", escape(&state.filter)), Tone::Warning));
    }
    let mut lines = vec![first, memory(picture)];
    lines.extend(others(picture));
    lines.push(happened(state, picture));
    lines.extend(loud(state, picture));
    lines
}

/// The header in one line, for a screen with few rows.
pub(super) fn brief(state: &State) -> Line {
    let Some(picture) = &state.picture else { return vec![(String::from("waiting"), Tone::Plain)] };
    let mut line = Vec::new();
    if picture.orders.iter().any(OrderView::is_pause) {
        line.push((String::from("PAUSED "), Tone::Alarm));
    }
    if picture.mode != "enforce" {
        line.push((format!("{} ", escape(&picture.mode).to_uppercase()), Tone::Alarm));
    }
    match memory_signal(picture) {
        Some(signal) => {
            line.push((signal.available_bytes.map_or_else(|| String::from("?"), human_bytes), Tone::Plain));
            let nearest = signal.thresholds.iter().find(|threshold| threshold.hard);
            if let Some(threshold) = nearest.or_else(|| signal.thresholds.first()) {
                let (text, tone) = until(threshold);
                line.push((format!(" {text}"), tone));
            }
        }
        None => line.push((String::from("no headroom known"), Tone::Warning)),
    }
    line
}

fn mode(picture: &Picture) -> Line {
    let (text, tone) = match picture.mode.as_str() {
        "enforce" => (String::from("enforce"), Tone::Plain),
        "dry-run" => (String::from("DRY-RUN: NOTHING IS EVICTED"), Tone::Alarm),
        "observe" => (String::from("OBSERVE: NOTHING IS DECIDED"), Tone::Alarm),
        other => (escape(other), Tone::Alarm),
    };
    let mut line = vec![(String::from("enforcer  "), Tone::Strong), (text, tone)];
    if picture.memory_pressure {
        line.push((String::from("   MEMORY PRESSURE"), Tone::Alarm));
    }
    if picture.disk_pressure == Some(true) {
        line.push((String::from("   DISK PRESSURE (KUBELET)"), Tone::Alarm));
    }
    line
}

fn memory_signal(picture: &Picture) -> Option<&SignalView> {
    let signals = &picture.headroom.as_ref()?.signals;
    signals.iter().find(|signal| signal.signal == "memory.available")
}

fn memory(picture: &Picture) -> Line {
    let mut line = vec![(String::from("memory    "), Tone::Strong)];
    let Some(signal) = memory_signal(picture) else {
        line.push((String::from("no threshold is watched"), Tone::Warning));
        return line;
    };
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| String::from("?"), human_bytes);
    line.push((
        format!("{} of {} available", bytes(signal.available_bytes), bytes(signal.capacity_bytes)),
        Tone::Plain,
    ));
    line.extend(thresholds(signal));
    if let Some(fill) = signal.fill_bytes_per_second.filter(|fill| *fill > 0) {
        line.push((format!("  -{}/s", human_bytes(fill)), Tone::Plain));
    }
    line
}

fn thresholds(signal: &SignalView) -> Line {
    let mut line = Vec::new();
    for threshold in &signal.thresholds {
        let kind = if threshold.hard { "hard" } else { "soft" };
        let amount = threshold.threshold_bytes.map_or_else(|| escape(&threshold.value), human_bytes);
        let (text, tone) = until(threshold);
        line.push((format!("  {kind} {amount} "), Tone::Plain));
        line.push((text, tone));
    }
    line
}

/// When a threshold is crossed.
fn until(threshold: &ThresholdView) -> (String, Tone) {
    match threshold.crossed_in_ms {
        _ if threshold.met => {
            (String::from("CROSSED"), if threshold.hard { Tone::Alarm } else { Tone::Warning })
        }
        Some(ms) if ms < 60_000 => (format!("in {}", left(ms)), Tone::Alarm),
        Some(ms) if ms < 600_000 => (format!("in {}", left(ms)), Tone::Warning),
        Some(ms) if ms < 24 * 3_600_000 => (format!("in {}", left(ms)), Tone::Plain),
        Some(_) | None => (String::from("far"), Tone::Plain),
    }
}

/// Other signals with a threshold that is crossed, or will be within ten minutes.
fn others(picture: &Picture) -> Option<Line> {
    let near = |threshold: &ThresholdView| {
        threshold.met || threshold.crossed_in_ms.is_some_and(|crossed_in_ms| crossed_in_ms < 600_000)
    };
    let signals = &picture.headroom.as_ref()?.signals;
    let line: Line = signals
        .iter()
        .filter(|signal| signal.signal != "memory.available" && signal.thresholds.iter().any(near))
        .flat_map(|signal| {
            let mut line = vec![(format!("{} ", escape(&signal.signal)), Tone::Plain)];
            line.extend(thresholds(signal));
            line.push((String::from("   "), Tone::Plain));
            line
        })
        .collect();
    if line.is_empty() {
        None
    } else {
        Some([vec![(String::from("also      "), Tone::Strong)], line].concat())
    }
}

fn happened(state: &State, picture: &Picture) -> Line {
    let stall = match picture.node_stall_percent {
        Some((some, full)) => format!("some {some:.1} full {full:.1}"),
        None => String::from("not known"),
    };
    let alarming = picture.node_stall_percent.is_some_and(|(some, _)| some >= 10.0);
    let tally = &state.tally;
    let mut text = format!("   evicted {}", tally.evicted);
    if tally.only_decided > 0 {
        text.push_str(&format!(", only decided {}", tally.only_decided));
    }
    text.push_str(&format!(", OOM kills {} in 24h", tally.oom_incidents));
    vec![
        (String::from("stall %   "), Tone::Strong),
        (stall, if alarming { Tone::Warning } else { Tone::Plain }),
        (text, Tone::Plain),
    ]
}

/// Warnings: orders in force, and what is missing.
fn loud(state: &State, picture: &Picture) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut say = |title: &str, text: String, tone| {
        lines.push(vec![(format!("{title:<10}"), Tone::Strong), (text, tone)]);
    };
    if let Some(pause) = picture.orders.iter().find(|order| order.is_pause()) {
        let text = format!("no pod is evicted for {}: {}", left(pause.left_ms), escape(&pause.reason));
        say("PAUSED", text, Tone::Alarm);
    }
    let protected: Vec<_> = picture
        .orders
        .iter()
        .filter_map(|order| Some(format!("{}/{}", order.namespace.as_deref()?, order.name.as_deref()?)))
        .map(|name| escape(&name))
        .collect();
    if !protected.is_empty() {
        say("protected", format!("{}: {}", protected.len(), protected.join(", ")), Tone::Warning);
    }
    if !picture.missing.is_empty() {
        say("missing", escape(&picture.missing.join("; ")), Tone::Warning);
    }
    let degraded = &state.tally.degraded;
    if !degraded.is_empty() {
        let count = degraded.len() + state.tally.more_degraded;
        let text: Vec<_> =
            degraded.iter().map(|one| format!("{}: {}", escape(&one.what), escape(&one.message))).collect();
        say("degraded", format!("{count}: {}", text.join("; ")), Tone::Warning);
    }
    lines
}
