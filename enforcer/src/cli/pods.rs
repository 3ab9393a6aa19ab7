//! `enforcer pods`: every pod with its class, what it requests and uses, and when it would be evicted.

use std::io::{self, Write as _};

use anyhow::anyhow;
use serde::Serialize;

use super::{
    Context, Failure, client, format,
    freshness::{self, Freshness},
    page::{Page, WIDTH, cell, width},
    render::{escape, human_bytes},
    status::state,
};
use crate::{
    nearest::nearest,
    serve::{Common, PodState, PodView, RankedView, RankingView, View},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
NEXT is the pod's place in the order of eviction if memory runs short: never is
for pods that are not evicted. SPEC, beside a kubelet, says where the pod's spec
is from and how old it is; without one it is known by its cgroups alone.")]
pub(super) struct Args {
    /// Only pods of this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

/// A pod in the list.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) qos_class: String,
    pub(super) priority: i32,
    pub(super) state: PodState,
    pub(super) request_bytes: u64,
    /// Its working set; `None` if it is not known.
    pub(super) usage_bytes: Option<u64>,
    /// Its place in the order of eviction, from 1; `None` if it is not in it.
    pub(super) rank: Option<usize>,
    /// Why it is not evicted, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) excluded: Option<String>,
    /// Where its spec is from; `None` for a manifest's pod, and if only its cgroups are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) spec: Option<Freshness>,
}

impl Row {
    pub(super) fn of(pod: &PodView, ranking: Option<&RankingView>, now_ms: u64) -> Self {
        let ranked = ranking.and_then(|ranking| ranked(pod, ranking));
        let excluded = ranking.and_then(|ranking| {
            let is_it = |namespace: &str, name: &str| namespace == pod.namespace && name == pod.name;
            ranking.excluded.iter().find(|excluded| is_it(&excluded.namespace, &excluded.name))
        });
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            qos_class: pod.qos_class.clone(),
            priority: pod.priority,
            state: pod.state,
            request_bytes: pod.request_bytes,
            usage_bytes: ranked.and_then(|row| row.usage_bytes),
            rank: ranked.map(|row| row.rank),
            excluded: excluded.map(|excluded| excluded.reason.clone()),
            spec: pod.spec.as_ref().map(|spec| Freshness::of(spec, now_ms)),
        }
    }
}

/// The pod's row in the order of eviction.
pub(super) fn ranked<'a>(pod: &PodView, ranking: &'a RankingView) -> Option<&'a RankedView> {
    ranking
        .order
        .iter()
        .find(|row| row.uid == pod.uid && row.name == pod.name && row.namespace == pod.namespace)
}

/// The order of eviction if memory runs short. That it is not known is said once, and the rest is shown.
pub(super) async fn ranking(context: &Context) -> Result<Option<RankingView>, Failure> {
    match client::get_json(&context.config.run_dir, "/v1/ranking").await {
        Ok(ranking) => Ok(Some(ranking)),
        Err(failure) if failure.is_unreachable() => Err(failure),
        Err(failure) => {
            let said = escape(&failure.to_string());
            // If this fails, there is nowhere to report it.
            drop(writeln!(io::stderr().lock(), "warning: usage and order of eviction are not known: {said}"));
            Ok(None)
        }
    }
}

/// The pod that is meant by NAMESPACE/NAME, or by a NAME that only one has.
pub(super) fn named<'a>(pods: &'a [Common<PodView>], written: &str) -> Result<&'a PodView, Failure> {
    let full = |pod: &PodView| format!("{}/{}", pod.namespace, pod.name);
    let found: Vec<&PodView> =
        pods.iter().map(|pod| &**pod).filter(|pod| full(pod) == written || pod.name == written).collect();
    match found.as_slice() {
        [pod] => Ok(pod),
        [] => {
            let names: Vec<String> = pods.iter().flat_map(|pod| [full(pod), pod.name.clone()]).collect();
            let hint = nearest(written, names.iter().map(String::as_str));
            let hint = hint.map_or_else(
                || String::from("`enforcer pods` lists all"),
                |near| format!("did you mean {near}?"),
            );
            Err(Failure::not_there(anyhow!("there is no pod {written}: {hint}")))
        }
        several => {
            // A pod that was replaced by one of the same name is on its way out.
            let mut here = several.iter().filter(|pod| pod.state != PodState::Removed);
            if let (Some(pod), None) = (here.next(), here.next()) {
                return Ok(pod);
            }
            let names: Vec<_> = several.iter().map(|pod| full(pod)).collect();
            Err(Failure::usage(anyhow!("{written} is more than one pod: write {}", names.join(" or "))))
        }
    }
}

pub(super) fn pods(context: &Context, args: &Args) -> Result<(), Failure> {
    let (view, ranking) = client::block_on(async {
        let view: View = client::get_json(&context.config.run_dir, "/v1/pods").await?;
        Ok((view, ranking(context).await?))
    })?;
    let now_ms = freshness::now_ms();
    let wanted =
        view.pods.iter().filter(|pod| args.namespace.as_ref().is_none_or(|wanted| *wanted == pod.namespace));
    let mut rows: Vec<_> = wanted.map(|pod| Row::of(pod, ranking.as_ref(), now_ms)).collect();
    rows.sort_by(|one, other| {
        (&one.namespace, &one.name, &one.uid).cmp(&(&other.namespace, &other.name, &other.uid))
    });
    format::print_list(context.output, &rows, || table(&rows, context.is_wide))
}

fn table(rows: &[Row], is_wide: bool) -> String {
    if rows.is_empty() {
        return String::from("no pod is known\n");
    }
    let name = |row: &Row| format!("{}/{}", row.namespace, row.name);
    let has_specs = rows.iter().any(|row| row.spec.is_some());
    let line = |[qos, state, request, usage, next, spec]: [&str; 6]| {
        let line = format!("{qos:<10} {state:<8} {request:>7} {usage:>7} {next:>5}");
        if has_specs { format!("{line} {spec}") } else { line }
    };
    let head = line(["QOS", "STATE", "REQUEST", "USAGE", "NEXT", "SPEC"]);
    let spec_width = if has_specs { Freshness::WIDTH - "SPEC".len() } else { 0 };
    let longest = rows.iter().map(|row| width(&escape(&name(row)))).max().unwrap_or(0).max("POD".len());
    let room = WIDTH.saturating_sub(width(&head) + spec_width + 1);
    let columns = if is_wide { longest } else { longest.min(room) };
    let mut page = Page::default();
    page.line(&format!("{} {head}", cell("POD", columns, false)));
    for row in rows {
        let next = match (row.rank, &row.excluded) {
            (Some(rank), _) => rank.to_string(),
            (None, Some(_)) => String::from("never"),
            (None, None) => String::from("-"),
        };
        let usage = row.usage_bytes.map_or_else(|| String::from("?"), human_bytes);
        let spec = row.spec.as_ref().map_or_else(|| String::from("-"), Freshness::short);
        let (qos, request, spec) =
            (cell(&row.qos_class, 10, false), human_bytes(row.request_bytes), escape(&spec));
        let values = line([&qos, state(row.state), &request, &usage, &next, &spec]);
        page.line(&format!("{} {values}", cell(&name(row), columns, false)));
    }
    page.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(namespace: &str, name: &str) -> PodView {
        serde_json::from_value(json!({"namespace": namespace, "name": name, "uid": format!("u-{namespace}-{name}"),
            "qosClass": "Burstable", "priority": 0, "requestBytes": 1 << 20, "state": "active", "reason": null,
            "startsUnderMemoryPressure": true, "cgroup": "/kubepods/p", "containers": []}))
        .unwrap()
    }

    fn ranking() -> RankingView {
        serde_json::from_value(json!({"signal": "memory.available",
            "order": [{"rank": 1, "namespace": "default", "name": "web", "uid": "u-default-web", "usageBytes": 3 << 20}],
            "excluded": [{"namespace": "default", "name": "db", "reason": "critical"}]}))
        .unwrap()
    }

    #[test]
    fn a_pod_is_found_by_its_name_alone_if_no_other_has_it() {
        let pods: Vec<Common<PodView>> =
            [pod("a", "web"), pod("b", "web"), pod("a", "db")].into_iter().map(Common::from).collect();
        assert_eq!(named(&pods, "db").unwrap().uid, "u-a-db");
        assert_eq!(named(&pods, "b/web").unwrap().uid, "u-b-web");
        let several = named(&pods, "web").unwrap_err().to_string();
        assert!(several.contains("a/web or b/web"), "{several}");
        let near = named(&pods, "a/wbe").unwrap_err().to_string();
        assert!(near.contains("did you mean a/web?"), "{near}");
    }

    #[test]
    fn place_and_usage_are_those_of_the_ranking_and_fit_80_columns() {
        let ranking = ranking();
        let rows: Vec<_> =
            [pod("default", "web"), pod("default", "db"), pod("kube-system", &"x\u{1b}".repeat(60))]
                .iter()
                .map(|pod| Row::of(pod, Some(&ranking), 0))
                .collect();
        assert_eq!((rows[0].rank, rows[0].usage_bytes), (Some(1), Some(3 << 20)));
        assert_eq!(rows[1].excluded.as_deref(), Some("critical"));
        let text = table(&rows, false);
        assert!(text.lines().all(|line| width(line) <= WIDTH), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["default/web", "Burstable", "active", "1Mi", "3Mi", "1"]);
        assert_eq!(words[2], ["default/db", "Burstable", "active", "1Mi", "?", "never"]);
        assert!(table(&rows, true).lines().any(|line| width(line) > WIDTH), "wide cuts no name");
    }
}
