//! `enforcer next`: which pods would be evicted next, key by key.

use super::{
    Context, Failure, client, format,
    page::Page,
    ranked::{self, because, is_pids, name},
};
use crate::serve::{ExcludedView, OrderView, RankedView, RankingView, View, ranked_signal};

/// How many excluded pods are named for each reason.
const NAMED: usize = 8;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The running daemon ranks its pods by their present usage, with the engine that
decides evictions. BY is the key that puts a pod before the next one.")]
pub(super) struct Args {
    /// How many pods to show
    #[arg(short = 'n', long = "number", value_name = "NUMBER", default_value_t = 10)]
    number: usize,
    /// The signal that runs short: memory.available, allocatableMemory.available
    /// or pid.available
    #[arg(long, value_name = "SIGNAL", default_value = "memory.available", value_parser = signal)]
    signal: String,
}

fn signal(text: &str) -> Result<String, String> {
    ranked_signal(text).map(|signal| signal.as_str().to_owned())
}

pub(super) fn next(context: &Context, args: &Args) -> Result<(), Failure> {
    let Args { number, signal } = args;
    let run_dir = &context.config.run_dir;
    let (mut ranking, view, orders) = client::block_on(async {
        let path = format!("/v1/ranking?signal={}", client::encode(signal));
        let ranking: RankingView = client::get_json(run_dir, &path).await?;
        let view: View = client::get_json(run_dir, "/v1/pods").await?;
        let orders: Vec<OrderView> = client::get_json(run_dir, "/v1/orders").await?;
        Ok((ranking, view, orders))
    })?;
    let all = ranking.order.len();
    // The first sentence names the runner-up, even with `-n 1`.
    let runner_up = ranking.order.get(1).cloned();
    ranking.order.truncate(*number);
    let paused = orders.iter().any(OrderView::is_pause);
    format::print(context.output, &ranking, || {
        table(&ranking, all, runner_up.as_ref(), &mode(&view.mode, paused))
    })
}

/// Why no pod is evicted at all; empty if pods are.
fn mode(mode: &str, paused: bool) -> String {
    match (mode, paused) {
        ("enforce", true) => String::from("An operator has paused eviction: no pod is evicted."),
        ("enforce", false) => String::new(),
        (mode, _) => format!("The daemon runs in mode {mode}: no pod is evicted."),
    }
}

fn table(ranking: &RankingView, all: usize, runner_up: Option<&RankedView>, mode: &str) -> String {
    let RankingView { signal, order, excluded } = ranking;
    let mut page = Page::default();
    match order.first() {
        Some(first) => {
            let key = first.decided_by.as_deref().unwrap_or_default();
            let why = because(first, runner_up, key).replacen("it came", "it comes", 1);
            let why = why.replacen("it was the only pod that might", "it is the only pod that may", 1);
            page.paragraph(&format!("{} would be evicted next if {signal} ran short: {why}.", name(first)));
        }
        None if all > 0 => page.paragraph(&format!("{all} pods may be evicted if {signal} runs short.")),
        None => page.paragraph(&format!("No pod may be evicted if {signal} runs short.")),
    }
    page.paragraph(mode);
    if let Some(first) = order.first() {
        page.gap();
        page.lines(&ranked::table(order, is_pids(signal)));
        if all > order.len() {
            page.line(&format!("and {} more: -n {all} shows all", all - order.len()));
        }
        page.gap();
        page.field("first", &usage(first));
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
