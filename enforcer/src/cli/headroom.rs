//! `enforcer headroom`: bytes and seconds to each threshold.

use super::{
    Context, Failure, client,
    columns::name_width,
    format,
    page::{Page, cell, width},
    ranked::signed,
    render::{escape, human_bytes},
};
use crate::serve::{HeadroomView, SignalView, SliceView, ThresholdView};

/// How many columns a line about a cgroup has beside its name.
const REST: usize = 38;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
CROSSED is the time until the threshold is crossed at the present rate. MET
marks one that is crossed now; its headroom is the missing amount. SOME and FULL
are the shares of the last ten seconds in which some task, or all of them,
waited for memory.")]
pub(super) struct Args {}

pub(super) fn headroom(context: &Context, _args: &Args) -> Result<(), Failure> {
    let headroom: HeadroomView = client::block_on(client::get_json(&context.config.run_dir, "/v1/headroom"))?;
    format::print(context.output, &headroom, || table(&headroom, context.columns))
}

/// With names as wide as fits into that many columns.
fn table(headroom: &HeadroomView, columns: Option<usize>) -> String {
    let HeadroomView { signals, slices } = headroom;
    let mut page = Page::default();
    if signals.iter().all(|signal| signal.thresholds.is_empty()) {
        page.paragraph("No eviction threshold is set: set evictionHard or evictionSoft.");
    } else {
        page.line(&line("SIGNAL", ["", "THRESHOLD", "AVAILABLE", "HEADROOM", "FILLS", "CROSSED"]));
    }
    for signal in signals {
        for threshold in &signal.thresholds {
            page.line(&threshold_line(signal, threshold));
        }
    }
    if !slices.is_empty() {
        page.gap();
        let longest = slices.iter().map(|slice| width(&escape(&slice.cgroup))).max().unwrap_or(0);
        let name = name_width(longest, REST, columns);
        page.line(&slice(&cell("CGROUP", name, false), ["CURRENT", "LIMIT", "SOME", "FULL"]));
        for SliceView {
            name: _,
            cgroup,
            current_bytes,
            limit_bytes,
            some_avg10_percent,
            full_avg10_percent,
        } in slices
        {
            let bytes = |bytes: Option<u64>, none: &str| bytes.map_or_else(|| none.to_owned(), human_bytes);
            let percent = |percent: Option<f64>| {
                percent.map_or_else(|| String::from("?"), |percent| format!("{percent:.2}%"))
            };
            let (current, limit) = (bytes(*current_bytes, "?"), bytes(*limit_bytes, "-"));
            let (some, full) = (percent(*some_avg10_percent), percent(*full_avg10_percent));
            page.line(&slice(&cell(cgroup, name, false), [&current, &limit, &some, &full]));
        }
    }
    page.finish()
}

fn threshold_line(signal: &SignalView, threshold: &ThresholdView) -> String {
    let counted = |count: Option<u64>| count.map(|count| count.to_string());
    let unknown = |text: Option<String>| text.unwrap_or_else(|| String::from("?"));
    let available = signal.available_bytes.map(human_bytes).or_else(|| counted(signal.available_count));
    let amount = threshold.threshold_bytes.map(human_bytes).or_else(|| counted(threshold.threshold_count));
    let left = threshold.headroom_bytes.map(signed);
    let left = left.or_else(|| threshold.headroom_count.map(|count| count.to_string()));
    let rate = signal.fill_bytes_per_second.map(human_bytes).or_else(|| counted(signal.fill_per_second));
    let rate = rate.map(|rate| if rate == "0" { String::from("-") } else { format!("{rate}/s") });
    let crossed = match (threshold.met, threshold.crossed_in_ms) {
        (true, _) => String::from("MET"),
        (false, Some(ms)) => span(ms),
        (false, None) => String::from("-"),
    };
    let kind = if threshold.hard { "hard" } else { "soft" };
    let columns = [kind, &unknown(amount), &unknown(available), &unknown(left), &unknown(rate), &crossed];
    line(&signal.signal, columns)
}

/// A duration in its largest unit.
fn span(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0..=9 => format!("{seconds}.{} s", ms / 100 % 10),
        10..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => String::from("days"),
    }
}

/// One line of the table. The longest signal name has 27 characters.
fn line(signal: &str, [kind, threshold, available, left, rate, crossed]: [&str; 6]) -> String {
    format!(
        "{} {kind:<4} {threshold:>9} {available:>9} {left:>8} {rate:>8} {crossed:>8}",
        cell(signal, 27, false)
    )
}

fn slice(name: &str, [current, limit, some, full]: [&str; 4]) -> String {
    format!("{name} {current:>9} {limit:>9} {some:>8} {full:>8}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::page::WIDTH;

    #[test]
    fn what_is_left_is_reported_within_80_columns() {
        let threshold = ThresholdView {
            hard: true,
            met: false,
            threshold_bytes: Some(1023 << 20),
            headroom_bytes: Some(-(1023 << 20)),
            crossed_in_ms: Some(9_999),
            ..ThresholdView::default()
        };
        let met = ThresholdView { hard: false, met: true, ..threshold.clone() };
        let pids = ThresholdView {
            threshold_count: Some(4_194_304),
            headroom_count: Some(-4_194_304),
            ..ThresholdView::default()
        };
        let headroom = HeadroomView {
            signals: vec![
                SignalView {
                    signal: "allocatableMemory.available".into(),
                    available_bytes: Some(1023 << 30),
                    fill_bytes_per_second: Some(1023 << 20),
                    thresholds: vec![threshold, met],
                    ..SignalView::default()
                },
                SignalView {
                    signal: "pid.available".into(),
                    available_count: Some(4_194_304),
                    fill_per_second: Some(0),
                    thresholds: vec![pids],
                    ..SignalView::default()
                },
            ],
            slices: vec![SliceView {
                cgroup: format!("/{}\u{1b}[2J", "kubepods.slice".repeat(9)),
                some_avg10_percent: Some(100.0),
                ..SliceView::default()
            }],
        };
        let text = table(&headroom, Some(WIDTH));
        assert!(text.lines().all(|line| width(line) <= WIDTH), "{text}");
        assert!(text.contains("9.9 s") && text.contains("MET") && text.contains("-1023Mi"), "{text}");
        assert!(text.contains("4194304") && text.contains("100.00%") && !text.contains('\u{1b}'), "{text}");
        let whole = table(&headroom, None);
        assert!(whole.contains(&"kubepods.slice".repeat(9)), "{whole}");
        assert!(table(&HeadroomView::default(), None).contains("set evictionHard"));
    }

    #[test]
    fn a_time_is_reported_as_far_as_it_says_something() {
        for (ms, reported) in
            [(0, "0.0 s"), (9_949, "9.9 s"), (119_999, "119 s"), (120_000, "2 min"), (7_200_000, "2 h")]
        {
            assert_eq!(span(ms), reported);
        }
        assert_eq!(span(u64::MAX), "days");
    }
}
