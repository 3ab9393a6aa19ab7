//! `enforcer next`: which pods would be evicted next, key by key.

use serde::Serialize;

use super::{
    Context, Failure, client, format,
    freshness::{self, Freshness},
    page::{Page, Style},
    ranked::{self, because, is_pids, name},
    select,
};
use crate::serve::{ExcludedView, OrderView, PodView, RankedView, RankingView, View, ranked_signal};

/// How many excluded pods are named for each reason.
const NAMED: usize = 8;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The running daemon ranks its pods by their present usage, with the engine that
decides evictions. BY is the key that puts a pod before the next one.")]
pub(super) struct Args {
    /// How many pods to show
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    number: usize,
    #[command(flatten)]
    pods: select::Args,
    /// The signal that runs short: memory.available, allocatableMemory.available
    /// or pid.available
    #[arg(long, value_name = "SIGNAL", default_value = "memory.available", value_parser = signal)]
    signal: String,
}

fn signal(text: &str) -> Result<String, String> {
    ranked_signal(text).map(|signal| signal.as_str().to_owned())
}

pub(super) fn next(context: &Context, args: &Args) -> Result<(), Failure> {
    let Args { number, signal, pods } = args;
    let run_dir = &context.config.run_dir;
    let (mut ranking, view, orders) = client::block_on(async {
        let path = format!("/v1/ranking?signal={}", client::encode(signal));
        let ranking: RankingView = client::get_json(run_dir, &path).await?;
        let view: View = client::get_json(run_dir, "/v1/pods").await?;
        let orders: Vec<OrderView> = client::get_json(run_dir, "/v1/orders").await?;
        Ok((ranking, view, orders))
    })?;
    // The first sentence is about the whole node, whichever pods are shown.
    let head = Head { first: ranking.order.first().cloned(), runner_up: ranking.order.get(1).cloned() };
    narrow(&mut ranking, &view, pods);
    let all = ranking.order.len();
    ranking.order.truncate(*number);
    let paused = orders.iter().any(OrderView::is_pause);
    let now_ms = freshness::now_ms();
    format::print(context.output, &Document::of(&ranking, &view, now_ms), || {
        let style = Style::Screen(context.columns);
        let mode = mode(&view.mode, paused);
        table(&ranking, all, &head, &mode, &specs(&ranking, &view, now_ms), style)
    })
}

/// Who comes first on the node, and who then.
#[derive(Debug, Default)]
struct Head {
    first: Option<RankedView>,
    runner_up: Option<RankedView>,
}

/// Leaves the pods that were asked for, with the ranks that they have on the node.
fn narrow(ranking: &mut RankingView, view: &View, pods: &select::Args) {
    if !pods.is_narrow() {
        return;
    }
    let labels =
        |is: &dyn Fn(&PodView) -> bool| view.pods.iter().find(|pod| is(pod)).map(|pod| pod.labels.clone());
    ranking.order.retain(|row| {
        let own = labels(&|pod| pod.uid.as_str() == row.uid);
        pods.takes(&row.namespace, own.as_ref())
    });
    ranking.excluded.retain(|one| {
        let own = labels(&|pod| pod.namespace == one.namespace && pod.name == one.name);
        pods.takes(&one.namespace, own.as_ref())
    });
}

/// The document for formats other than the table.
#[derive(Debug, Serialize)]
struct Document<'a> {
    signal: &'a str,
    order: Vec<Row<'a>>,
    excluded: &'a [ExcludedView],
}

/// A ranked pod, and beside a kubelet where its spec is from.
#[derive(Debug, Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    ranked: &'a RankedView,
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<Freshness>,
}

impl<'a> Document<'a> {
    fn of(ranking: &'a RankingView, view: &View, now_ms: u64) -> Self {
        let RankingView { signal, order, excluded } = ranking;
        let row = |ranked: &'a RankedView| {
            let pod = view.pods.iter().find(|pod| pod.uid.as_str() == ranked.uid);
            let spec = pod.and_then(|pod| pod.spec.as_ref()).map(|spec| Freshness::of(spec, now_ms));
            Row { ranked, spec }
        };
        Self { signal, order: order.iter().map(row).collect(), excluded }
    }
}

/// Where the specs of the ranked pods are from; empty without a kubelet.
fn specs(ranking: &RankingView, view: &View, now_ms: u64) -> String {
    let pods = ranking.order.iter().map(|row| (name(row), row.uid.as_str()));
    freshness::by_origin(view, pods, NAMED, now_ms).unwrap_or_default()
}

/// Why no pod is evicted at all; empty if pods are.
fn mode(mode: &str, paused: bool) -> String {
    match (mode, paused) {
        ("enforce", true) => String::from("An operator has paused eviction: no pod is evicted."),
        ("enforce", false) => String::new(),
        (mode, _) => format!("The daemon runs in mode {mode}: no pod is evicted."),
    }
}

fn table(ranking: &RankingView, all: usize, head: &Head, mode: &str, specs: &str, style: Style) -> String {
    let RankingView { signal, order, excluded } = ranking;
    let mut page = Page::new(style);
    match &head.first {
        Some(first) => {
            let key = first.decided_by.as_deref().unwrap_or_default();
            let why = because(first, head.runner_up.as_ref(), key).replacen("it came", "it comes", 1);
            let why = why.replacen("it was the only pod that might", "it is the only pod that may", 1);
            page.paragraph(&format!("{} would be evicted next if {signal} ran short: {why}.", name(first)));
        }
        None => page.paragraph(&format!("No pod may be evicted if {signal} runs short.")),
    }
    page.paragraph(mode);
    if let Some(first) = order.first() {
        page.gap();
        page.table(&ranked::table(order, is_pids(signal)));
        if all > order.len() {
            page.line(&format!("and {} more: --number {all} shows all", all - order.len()));
        }
        page.gap();
        page.field("first", &usage(first));
        if !specs.is_empty() {
            page.field("specs", specs);
        }
    }
    if order.is_empty() && all == 0 && head.first.is_some() {
        page.paragraph("None of the pods that were asked for may be evicted.");
    }
    if !excluded.is_empty() {
        let left_out = excluded
            .iter()
            .map(|ExcludedView { namespace, name, reason }| (format!("{namespace}/{name}"), reason.as_str()));
        page.field("excluded", &ranked::excluded(left_out, NAMED));
    }
    page.finish()
}

/// The first pod's usage by kind of memory.
fn usage(row: &RankedView) -> String {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| String::from("?"), super::render::human_bytes);
    let limit = row
        .limit_bytes
        .map_or_else(|| String::from("no limit"), |limit| format!("limit {}", bytes(Some(limit))));
    let growth = row.growth_bytes_per_second.map(|rate| format!(", {}", ranked::growth(rate)));
    format!(
        "{} {}: anon {}, file {}, shmem {}; {limit}{}",
        row.qos_class,
        name(row),
        bytes(row.anon_bytes),
        bytes(row.file_bytes),
        bytes(row.shmem_bytes),
        growth.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn view(specs: Option<&serde_json::Value>) -> View {
        let pod = |uid: &str, spec: serde_json::Value| {
            json!({"namespace": "n", "name": uid, "uid": uid, "qosClass": "Burstable", "priority": 0, "state": "active",
                "startsUnderMemoryPressure": true, "cgroup": "/c", "containers": [], "spec": spec})
        };
        let read =
            |provenance: &str, ms: u64| json!({"source": "kubelet", "provenance": provenance, "readMs": ms});
        let pods = [pod("a", read("live", 9_000)), pod("b", read("stale", 1_000)), pod("c", json!(null))];
        serde_json::from_value(
            json!({"mode": "enforce", "memoryPressure": false, "specs": specs, "pods": pods}),
        )
        .unwrap()
    }

    fn ranking() -> RankingView {
        let row = |uid: &&str| RankedView {
            namespace: "n".into(),
            name: (*uid).into(),
            uid: (*uid).into(),
            ..RankedView::default()
        };
        let order = ["a", "b", "c"].iter().map(row).collect();
        RankingView { signal: "memory.available".into(), order, excluded: Vec::new() }
    }

    #[test]
    fn where_specs_are_from_is_shown_beside_a_kubelet_only() {
        let beside = view(Some(&json!({"source": "kubelet"})));
        let shown = specs(&ranking(), &beside, 10_000);
        let expected =
            "live by kubelet, read 1s ago (n/a); stale by kubelet, read 9s ago (n/b); not known (n/c)";
        assert_eq!(shown, expected);
        let page = |view: &View| {
            table(&ranking(), 3, &Head::default(), "", &specs(&ranking(), view, 10_000), Style::default())
        };
        assert!(page(&beside).contains("\nspecs "), "{}", page(&beside));
        assert!(page(&beside).lines().all(|line| line.chars().count() <= 80), "{}", page(&beside));
        assert!(!page(&view(None)).contains("specs"));
    }

    #[test]
    fn the_document_says_for_each_pod_where_its_spec_is_from() {
        let ranking = ranking();
        let document = serde_json::to_value(Document::of(&ranking, &view(Some(&json!({}))), 10_000)).unwrap();
        let order = &document["order"];
        let expected = json!({"source": "kubelet", "provenance": "stale", "readMs": 1_000, "ageMs": 9_000});
        assert_eq!(
            (&order[1]["spec"], &order[2]["spec"], &order[1]["uid"]),
            (&expected, &json!(null), &json!("b"))
        );
    }
}
