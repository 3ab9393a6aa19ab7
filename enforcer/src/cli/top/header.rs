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

/// The heights of screens that have room for a chart; a plain table has none.
const CHART_ROWS: std::ops::Range<u16> = 30..u16::MAX;

/// The chart's title and its brackets, and what is written behind it, in columns.
const BESIDE_CHART: usize = 12 + 26;

/// How far ahead the forecast looks, in seconds.
const AHEAD_S: u64 = 60;

/// The lines above the tree.
pub(super) fn header(state: &State) -> Vec<Line> {
    let Some(picture) = &state.picture else {
        return vec![vec![
            (String::from("enforcer"), Tone::Strong),
            (String::from("  waiting for the daemon"), Tone::Plain),
        ]];
    };
    let mut first = mode(picture);
    if let Some(name) = would_be_first(picture) {
        first.push((format!("   would evict first: {name}"), Tone::Warning));
    }
    first.push((format!("   sort: {}", state.sort.name()), Tone::Faint));
    if !state.filter.is_empty() {
        first.push((format!("   filter: {}", escape(&state.filter)), Tone::Warning));
    }
    let mut lines = vec![first, memory(picture)];
    if CHART_ROWS.contains(&state.size.1) {
        lines.extend(chart(picture, usize::from(state.size.0)));
    }
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

/// The pod that would be evicted first, where none is.
fn would_be_first(picture: &Picture) -> Option<String> {
    if picture.mode == "enforce" {
        return None;
    }
    let first = picture.pods().find(|pod| pod.rank == Some(1))?;
    Some(escape(&first.label()))
}

/// The node's memory as a bar: what is used, `>` what will be in a minute at the present rate, and where each threshold
/// is, `S` for soft and `H` for hard.
fn chart(picture: &Picture, width: usize) -> Option<Line> {
    let signal = memory_signal(picture)?;
    let (available, capacity) = (signal.available_bytes?, signal.capacity_bytes.filter(|bytes| *bytes > 0)?);
    let room = width.saturating_sub(BESIDE_CHART).min(80);
    if room < 10 {
        return None;
    }
    let fill = signal.fill_bytes_per_second.unwrap_or(0);
    let left = available.saturating_sub(fill.saturating_mul(AHEAD_S));
    // The place at which that much is available, from the left: nothing is used there.
    let place = |bytes: u64| {
        let used = u128::from(capacity.saturating_sub(bytes));
        let place = used * u128::try_from(room).unwrap_or(0) / u128::from(capacity);
        usize::try_from(place).unwrap_or(room).min(room - 1)
    };
    let (now, then) = (place(available), place(left));
    let mut bar: Vec<char> = (0..room)
        .map(|at| {
            if at < now {
                '#'
            } else if at < then {
                '>'
            } else {
                '.'
            }
        })
        .collect();
    for threshold in &signal.thresholds {
        if let Some(mark) = threshold.threshold_bytes.map(place).and_then(|at| bar.get_mut(at)) {
            *mark = if threshold.hard { 'H' } else { 'S' };
        }
    }
    let is_crossed =
        signal.thresholds.iter().any(|one| one.threshold_bytes.is_some_and(|bytes| left < bytes));
    let tone = if is_crossed { Tone::Warning } else { Tone::Plain };
    let bar: String = bar.into_iter().collect();
    Some(vec![
        (String::from("          "), Tone::Strong),
        (format!("[{bar}]"), Tone::Plain),
        (format!("  {} in a minute", human_bytes(left)), tone),
    ])
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::model::{Input, sample};

    fn text(state: &State) -> Vec<String> {
        header(state).into_iter().map(|line| line.into_iter().map(|(piece, _)| piece).collect()).collect()
    }

    fn state(rows: u16) -> State {
        let mut state = State::new((100, rows));
        state.take(Input::Looked(Box::new(sample::look(0))));
        state
    }

    #[test]
    fn a_large_screen_has_a_bar_with_thresholds_and_forecast_and_a_small_one_has_not() {
        let mut large = state(40);
        let signal = large.picture.as_mut().and_then(|picture| picture.headroom.as_mut());
        let signal = signal
            .and_then(|headroom| headroom.signals.iter_mut().find(|one| one.signal == "memory.available"));
        let signal = signal.unwrap();
        let gib = 1 << 30;
        (signal.available_bytes, signal.capacity_bytes) = (Some(4 * gib), Some(8 * gib));
        signal.fill_bytes_per_second = Some(gib / 60);
        signal.thresholds.retain(|threshold| threshold.hard);
        signal.thresholds[0].threshold_bytes = Some(gib);
        let lines = text(&large);
        let bar = lines.iter().find(|line| line.contains("[#")).unwrap();
        // Of 62 columns half is used, an eighth will be, and the last eighth is below the threshold.
        let expected = format!("[{}{}{}H{}]", "#".repeat(31), ">".repeat(7), ".".repeat(16), ".".repeat(7));
        assert!(bar.contains(&expected), "{bar}");
        assert!(bar.ends_with("3Gi in a minute") || bar.contains("Gi in a minute"), "{bar}");
        for rows in [24, u16::MAX] {
            assert!(!text(&state(rows)).iter().any(|line| line.contains("[#")), "{rows}");
        }
    }

    #[test]
    fn where_nothing_is_evicted_it_says_who_would_be_first() {
        let mut state = state(24);
        let picture = state.picture.as_mut().unwrap();
        picture.mode = String::from("dry-run");
        let first = picture.pods().find(|pod| pod.rank == Some(1)).unwrap().label();
        assert!(
            text(&state)[0].contains(&format!("would evict first: {first}   sort: ")),
            "{:?}",
            text(&state)
        );
        state.picture.as_mut().unwrap().mode = String::from("enforce");
        assert!(!text(&state)[0].contains("would evict"));
    }
}
