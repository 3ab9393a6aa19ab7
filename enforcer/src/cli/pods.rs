//! `enforcer pods`: every pod with its class, what it requests and uses, and when it would be evicted.

use std::io::{self, Write as _};

use anyhow::anyhow;
use serde::Serialize;

use super::{
    Context, Failure, client,
    columns::{Head, Table},
    format,
    freshness::{self, Freshness},
    render::{escape, human_bytes},
    select,
    status::state,
};
use crate::{
    model::Common,
    nearest::nearest,
    serve::{PodState, PodView, RankedView, RankingView, View},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
NEXT is the pod's place in the order of eviction if memory runs short: never is
for pods that are not evicted. SPEC, beside a kubelet, says where the pod's spec
is from and how old it is; without one it is known by its cgroups alone.")]
pub(super) struct Args {
    #[command(flatten)]
    pods: select::Args,
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
            uid: pod.uid.to_string(),
            qos_class: pod.qos_class.to_string(),
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
        .find(|row| row.uid == pod.uid.as_str() && row.name == pod.name && row.namespace == pod.namespace)
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
    let wanted = view.pods.iter().filter(|pod| args.pods.takes(&pod.namespace, Some(&pod.labels)));
    let mut rows: Vec<_> = wanted.map(|pod| Row::of(pod, ranking.as_ref(), now_ms)).collect();
    rows.sort_by(|one, other| {
        (&one.namespace, &one.name, &one.uid).cmp(&(&other.namespace, &other.name, &other.uid))
    });
    format::print_list(context.output, &rows, || table(&rows, context.columns))
}

fn table(rows: &[Row], columns: Option<usize>) -> String {
    if rows.is_empty() {
        return String::from("no pod is known\n");
    }
    let has_specs = rows.iter().any(|row| row.spec.is_some());
    let mut heads = vec![
        Head::name("POD"),
        Head::word("QOS", 10),
        Head::word("STATE", 8),
        Head::amount("REQUEST", 7),
        Head::amount("USAGE", 7),
        Head::amount("NEXT", 5),
    ];
    if has_specs {
        heads.push(Head::word("SPEC", 0));
    }
    let mut table = Table::new(heads);
    for row in rows {
        let next = match (row.rank, &row.excluded) {
            (Some(rank), _) => rank.to_string(),
            (None, Some(_)) => String::from("never"),
            (None, None) => String::from("-"),
        };
        let mut cells = vec![
            format!("{}/{}", row.namespace, row.name),
            row.qos_class.clone(),
            state(row.state).to_owned(),
            human_bytes(row.request_bytes),
            row.usage_bytes.map_or_else(|| String::from("?"), human_bytes),
            next,
        ];
        if has_specs {
            cells.push(row.spec.as_ref().map_or_else(|| String::from("-"), Freshness::short));
        }
        table.row(cells);
    }
    table.text(columns)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        cli::page::{WIDTH, width},
        model::PodUid,
    };

    /// Its uid has what a uid may have of its names.
    fn pod(namespace: &str, name: &str) -> PodView {
        let uid = format!("u-{namespace}-{name}").replace('\u{1b}', "");
        let uid: String = uid.chars().take(PodUid::MAX_BYTES).collect();
        serde_json::from_value(json!({"namespace": namespace, "name": name, "uid": uid,
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
        assert_eq!(named(&pods, "db").unwrap().uid.as_str(), "u-a-db");
        assert_eq!(named(&pods, "b/web").unwrap().uid.as_str(), "u-b-web");
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
        let text = table(&rows, Some(WIDTH));
        assert!(text.lines().all(|line| width(line) <= WIDTH), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["default/web", "Burstable", "active", "1Mi", "3Mi", "1"]);
        assert_eq!(words[2], ["default/db", "Burstable", "active", "1Mi", "?", "never"]);
        assert!(table(&rows, None).lines().any(|line| width(line) > WIDTH), "no name is cut");
    }
}
