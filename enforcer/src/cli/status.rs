//! `enforcer status`: the node on one screen.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::{
    Context, Failure, client, format,
    orders::left,
    page::Page,
    ranked::signed,
    render::human_bytes,
    top::{self, Tally},
};
use crate::{
    journal::EventType,
    sense::{Facility, State},
    serve::{Doctor, HeadroomView, OrderView, PodState, SignalView, SpecsView, ThresholdView, View},
};

/// How many problems are shown.
const SHOWN: usize = 5;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The verdict is the worst of what is found: short (a threshold is met), paused,
notEnforcing (by its mode it evicts nothing), degraded (something is lost), ok.
Scripts that judge the host ask `enforcer doctor`, whose exit status says it.")]
pub(super) struct Args {}

/// What is to be said first.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Verdict {
    /// A threshold is met.
    Short,
    /// An operator has paused eviction.
    Paused,
    /// In this mode nothing is evicted.
    NotEnforcing,
    /// Something is lost or does not work.
    Degraded,
    /// None of these.
    Ok,
}

/// The printed document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    verdict: Verdict,
    /// The verdict in words.
    sentence: String,
    mode: String,
    conditions: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_pressure: Option<bool>,
    /// The source of the specs of a kubelet's pods; absent without a kubelet.
    #[serde(skip_serializing_if = "Option::is_none")]
    specs: Option<SpecsView>,
    /// How many pods are in each state.
    pods: BTreeMap<&'static str, usize>,
    /// The thresholds and what is left before each; `None` if the daemon does not read them.
    signals: Option<Vec<SignalView>>,
    orders: Vec<OrderView>,
    /// The newest kept event about a pod that was evicted, or would have been.
    last_eviction: Option<Value>,
    /// The newest kept kill by the kernel.
    last_oom_kill: Option<Value>,
    /// What happened in the last day, and what does not work.
    #[serde(flatten)]
    tally: Tally,
    /// The host's facilities that are lost in part or whole.
    lost: Vec<Facility>,
}

pub(super) fn status(context: &Context, _args: &Args) -> Result<(), Failure> {
    let document = client::block_on(asked(context))?;
    format::print(context.output, &document, || table(&document))
}

async fn asked(context: &Context) -> Result<Document, Failure> {
    let run_dir = &context.config.run_dir;
    let view: View = client::get_json(run_dir, "/v1/pods").await?;
    let orders: Vec<OrderView> = client::get_json(run_dir, "/v1/orders").await?;
    let doctor: Doctor = client::get_json(run_dir, "/v1/doctor").await?;
    let headroom = client::get(run_dir, "/v1/headroom").await?;
    // Where no forecaster runs, nothing is known of it, and the rest is.
    let headroom: Option<HeadroomView> =
        if headroom.status.is_success() { Some(headroom.json("/v1/headroom").await?) } else { None };
    let mut tally = Tally::default();
    let (mut last_eviction, mut last_oom_kill) = (None, None);
    let now_ms = jiff::Timestamp::now().as_millisecond();
    top::events(run_dir, &top::tally_query(false), |line| {
        tally.take(line, now_ms);
        let Ok(event) = serde_json::from_slice::<Value>(line) else { return };
        match kind(&event) {
            Some(EventType::EvictionDecided | EventType::EvictionCompleted) => last_eviction = Some(event),
            Some(EventType::OomIncident) => last_oom_kill = Some(event),
            _ => {}
        }
    })
    .await?;
    Ok(document(view, orders, doctor, headroom, tally, [last_eviction, last_oom_kill]))
}

fn document(
    view: View,
    orders: Vec<OrderView>,
    doctor: Doctor,
    headroom: Option<HeadroomView>,
    tally: Tally,
    [last_eviction, last_oom_kill]: [Option<Value>; 2],
) -> Document {
    let View { mode, memory_pressure: _, conditions, disk_pressure, specs, pods: known } = view;
    let mut pods = BTreeMap::new();
    for pod in &known {
        *pods.entry(state(pod.state)).or_insert(0) += 1;
    }
    let is_lost = |facility: &Facility| matches!(facility.state, State::Lesser | State::Missing);
    let lost: Vec<_> = doctor.facilities.into_iter().filter(is_lost).collect();
    let signals = headroom.map(|headroom| headroom.signals);
    let met: Vec<_> = signals
        .iter()
        .flatten()
        .flat_map(|signal| signal.thresholds.iter().map(move |threshold| (signal, threshold)))
        .filter(|(_, threshold)| threshold.met)
        .map(|(signal, threshold)| {
            let kind = if threshold.hard { "hard" } else { "soft" };
            format!("{} is below its {kind} threshold of {}", signal.signal, threshold.value)
        })
        .collect();
    let problems = tally.degraded.len() + tally.more_degraded + lost.len();
    let (verdict, sentence) = match mode.as_str() {
        _ if !met.is_empty() => (Verdict::Short, met.join(", and ")),
        _ if orders.iter().any(OrderView::is_pause) => {
            (Verdict::Paused, String::from("no pod is evicted until the pause ends"))
        }
        "enforce" if problems > 0 => {
            (Verdict::Degraded, String::from("pods are evicted, and something is lost or does not work"))
        }
        "enforce" => (Verdict::Ok, String::from("pods are evicted when the node runs short")),
        "dry-run" => (Verdict::NotEnforcing, String::from("evictions are decided and reported, not done")),
        _ => (Verdict::NotEnforcing, String::from("it only observes and reports")),
    };
    Document {
        verdict,
        sentence,
        mode,
        conditions,
        disk_pressure,
        specs,
        pods,
        signals,
        orders,
        last_eviction,
        last_oom_kill,
        tally,
        lost,
    }
}

/// The word for a pod's state.
pub(super) fn state(state: PodState) -> &'static str {
    match state {
        PodState::Pending => "pending",
        PodState::Active => "active",
        PodState::Evicted => "evicted",
        PodState::Rejected => "rejected",
        PodState::Removed => "removed",
    }
}

fn kind(event: &Value) -> Option<EventType> {
    EventType::parse(event.get("type")?.as_str()?)
}

fn table(document: &Document) -> String {
    let Document { verdict, sentence, mode, conditions, disk_pressure, specs, pods, tally, lost, .. } =
        document;
    let mut page = Page::default();
    let verdict = match verdict {
        Verdict::Short => "SHORT",
        Verdict::Paused => "PAUSED",
        Verdict::NotEnforcing => "not enforcing",
        Verdict::Degraded => "DEGRADED",
        Verdict::Ok => "ok",
    };
    page.field("verdict", &format!("{verdict}: {sentence}"));
    page.field("mode", mode);
    let disk = (*disk_pressure == Some(true)).then(|| String::from("DiskPressure by its kubelet"));
    let conditions: Vec<_> = conditions.iter().cloned().chain(disk).collect();
    if !conditions.is_empty() {
        page.field("node", &conditions.join(", "));
    }
    let counted: Vec<_> = pods.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let counted = if counted.is_empty() { String::from("none") } else { counted.join(", ") };
    page.field("pods", &counted);
    if let Some(specs) = specs {
        page.field("source", specs.source.as_deref().unwrap_or("no source of specs answers"));
    }
    match &document.signals {
        None => page.field("thresholds", "not known: the daemon does not read them"),
        Some(signals) => thresholds(&mut page, signals),
    }
    for order in &document.orders {
        let what = match (&order.namespace, &order.name) {
            (Some(namespace), Some(name)) => format!("{namespace}/{name} is not evicted"),
            _ => String::from("no pod is evicted"),
        };
        page.field("order", &format!("{what} for {}: {}", left(order.left_ms), order.reason));
    }
    let none = || String::from("none is kept");
    page.field("eviction", &document.last_eviction.as_ref().map_or_else(none, words));
    page.field("OOM kill", &document.last_oom_kill.as_ref().map_or_else(none, words));
    page.field(
        "last day",
        &format!(
            "{} evicted, {} only decided, {} kills by the kernel",
            tally.evicted, tally.only_decided, tally.oom_incidents
        ),
    );
    let lost = lost.iter().map(|facility| {
        let lost = facility.lost.as_deref().unwrap_or("lost in part");
        format!("{}: {lost}", facility.name)
    });
    let problems: Vec<_> = tally
        .degraded
        .iter()
        .map(|problem| format!("{}: {}", problem.what, problem.message))
        .chain(lost)
        .collect();
    for (number, problem) in problems.iter().take(SHOWN).enumerate() {
        page.field(if number == 0 { "degraded" } else { "" }, problem);
    }
    let more = problems.len().saturating_sub(SHOWN) + tally.more_degraded;
    if more > 0 {
        page.field(
            "",
            &format!("and {more} more: `enforcer doctor` and `enforcer events --type degraded.entered`"),
        );
    }
    page.finish()
}

fn thresholds(page: &mut Page, signals: &[SignalView]) {
    if signals.iter().all(|signal| signal.thresholds.is_empty()) {
        page.field("thresholds", "none is set");
    }
    let mut label = "thresholds";
    for (signal, threshold) in
        signals.iter().flat_map(|signal| signal.thresholds.iter().map(move |one| (signal, one)))
    {
        page.field(label, &distance(signal, threshold));
        label = "";
    }
}

fn distance(signal: &SignalView, threshold: &ThresholdView) -> String {
    let kind = if threshold.hard { "hard" } else { "soft" };
    let unknown = || String::from("an unknown amount");
    let left = threshold.headroom_bytes.map(signed);
    let left =
        left.or_else(|| threshold.headroom_count.map(|count| count.to_string())).unwrap_or_else(unknown);
    let available = signal.available_bytes.map(human_bytes);
    let available =
        available.or_else(|| signal.available_count.map(|count| count.to_string())).unwrap_or_else(unknown);
    let met = if threshold.met { ", MET" } else { "" };
    let soon =
        threshold.crossed_in_ms.map_or_else(String::new, |ms| format!(", crossed in {}", self::left(ms)));
    format!("{} {kind} {}: {available} available, {left} above it{soon}{met}", signal.signal, threshold.value)
}

/// An event in words: when, about which pod, and what.
fn words(event: &Value) -> String {
    let text = |key: &str| event.get(key).and_then(Value::as_str).unwrap_or_default();
    let time = text("time");
    let time = time.get(..19).unwrap_or(time).replace('T', " ");
    let kind = kind(event);
    let detail = crate::render::detail(kind, event.get("data").unwrap_or(&Value::Null));
    let name = kind.map_or("", EventType::short);
    format!("{time} {}: {name} {detail}", text("subject"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::page::{WIDTH, width};

    fn view(mode: &str) -> View {
        View { mode: mode.to_owned(), ..View::default() }
    }

    fn headroom(met: bool) -> HeadroomView {
        let threshold = ThresholdView {
            hard: true,
            value: String::from("200Mi"),
            met,
            headroom_bytes: Some(if met { -1_048_576 } else { 700 << 20 }),
            crossed_in_ms: Some(7_000),
            ..ThresholdView::default()
        };
        let signal = SignalView {
            signal: String::from("memory.available"),
            available_bytes: Some(900 << 20),
            thresholds: vec![threshold],
            ..SignalView::default()
        };
        HeadroomView { signals: vec![signal], slices: Vec::new() }
    }

    fn pause() -> OrderView {
        serde_json::from_value(
            json!({"order": "pause", "reason": "an upgrade", "uid": 0, "given": "", "until": "",
            "leftMs": 60_000}),
        )
        .unwrap()
    }

    fn degraded() -> Tally {
        let mut tally = Tally::default();
        let event = json!({"type": "dev.enforcer.degraded.entered", "time": "2026-01-31T12:00:00Z", "id": "", "source": "",
            "subject": "", "sequence": "", "data": {"what": "journal", "message": "\u{1b}[2Jthe disk is full"}});
        tally.take(event.to_string().as_bytes(), 0);
        tally
    }

    #[test]
    fn the_worst_is_the_verdict() {
        let verdict = |mode: &str, met: bool, orders: Vec<OrderView>, tally: Tally| {
            let document =
                document(view(mode), orders, Doctor::default(), Some(headroom(met)), tally, [None, None]);
            document.verdict
        };
        assert_eq!(verdict("enforce", false, Vec::new(), Tally::default()), Verdict::Ok);
        assert_eq!(verdict("enforce", false, Vec::new(), degraded()), Verdict::Degraded);
        assert_eq!(verdict("dry-run", false, Vec::new(), degraded()), Verdict::NotEnforcing);
        assert_eq!(verdict("observe", false, vec![pause()], degraded()), Verdict::Paused);
        assert_eq!(verdict("observe", true, vec![pause()], degraded()), Verdict::Short);
    }

    #[test]
    fn it_is_one_screen_of_80_columns_and_escaped() {
        let decided = json!({"type": "dev.enforcer.eviction.suppressed", "time": "2026-01-31T12:00:00.123456Z",
            "subject": "default/\u{202e}hog", "data": {"message": "no candidate"}});
        let document = document(
            view("enforce"),
            vec![pause()],
            Doctor::default(),
            Some(headroom(false)),
            degraded(),
            [Some(decided), None],
        );
        let text = table(&document);
        assert!(text.lines().all(|line| width(line) <= WIDTH), "{text}");
        assert!(text.lines().count() <= 24, "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text:?}");
        for part in
            ["PAUSED: ", "700Mi above it", "an upgrade", "2026-01-31 12:00:00 ", "journal: ", "none is kept"]
        {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!((&json["verdict"], &json["degraded"][0]["what"]), (&json!("paused"), &json!("journal")));
    }
}
