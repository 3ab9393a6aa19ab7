//! `enforcer describe`: all that is known of a pod.

use std::{
    collections::{BTreeMap, VecDeque},
    path::Path,
};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::{
    Context, Failure, client, format,
    orders::left,
    page::Page,
    pods::{self, Row},
    ranked::{because, growth},
    render::{self, human_bytes},
    status::state,
    times::Times,
    top, why,
};
use crate::{
    cgroup::{self, CgroupDir},
    model::{CgroupPath, Common},
    serve::{ContainerView, Memories, MemoryView, OrderView, PodMemory, PodView, RankedView, View},
};

/// How many of its events are shown.
const EVENTS: usize = 10;

/// The files of a cgroup that say what holds for it.
const FILES: &[&str] = &[
    "memory.min",
    "memory.low",
    "memory.high",
    "memory.max",
    "memory.swap.max",
    "memory.oom.group",
    "cpu.weight",
    "cpu.max",
    "cpuset.cpus",
    "pids.max",
];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Requests and limits are the effective ones that decide: those of all containers
together, with defaults. Cgroup values are read from their files now.")]
pub(super) struct Args {
    /// The pod: NAME or NAMESPACE/NAME
    #[arg(value_name = "POD")]
    pod: String,
}

/// The printed document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    /// As the daemon shows it.
    pod: Common<PodView>,
    /// Whether it is a kubelet's, whose spec is read elsewhere than in a manifest.
    #[serde(skip)]
    is_kubelets: bool,
    /// Its place in the list of pods.
    row: Row,
    /// Its row in the order of eviction, with every key; `None` if it is not in it.
    ranking: Option<RankedView>,
    /// The pod that comes after it, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    because: Option<String>,
    /// The memory of the pod and of its containers; `None` if its cgroup cannot be read.
    memory: Option<PodMemory>,
    /// What the files of its cgroup and of its containers' say, by the cgroup's path.
    cgroups: BTreeMap<String, BTreeMap<&'static str, String>>,
    /// The orders that concern it.
    orders: Vec<OrderView>,
    /// Its newest events, the oldest first.
    events: Vec<Value>,
    /// The screen about its latest eviction or kill; `None` if there was none.
    #[serde(skip)]
    why: Option<String>,
}

pub(super) fn describe(context: &Context, args: &Args) -> Result<(), Failure> {
    let mut document = client::block_on(asked(context, &args.pod))?;
    let name = format!("{}/{}", document.pod.namespace, document.pod.name);
    // That nothing happened to it is no failure.
    document.why = why::of_pod(context, &name).ok();
    format::print(context.output, &document, || table(&document))
}

async fn asked(context: &Context, written: &str) -> Result<Document, Failure> {
    let run_dir = &context.config.run_dir;
    let view: View = client::get_json(run_dir, "/v1/pods").await?;
    let pod = pods::named(&view.pods, written)?.clone();
    let ranking = pods::ranking(context).await?;
    let path = format!("/v1/containers?uid={}", client::encode(pod.uid.as_str()));
    let answer = client::get(run_dir, &path).await?;
    // The daemon cannot read it where there is no cgroup v2.
    let memory = if answer.status.is_success() {
        let Memories { pods, .. } = answer.json(&path).await?;
        pods.into_iter().find(|memory| memory.uid == pod.uid.as_str())
    } else {
        None
    };
    let orders: Vec<OrderView> = client::get_json(run_dir, "/v1/orders").await?;
    let concerns = |order: &OrderView| {
        order.is_pause()
            || (order.namespace.as_ref() == Some(&pod.namespace) && order.name.as_ref() == Some(&pod.name))
    };
    let mut events = VecDeque::new();
    let query = format!("namespace={}&pod={}", client::encode(&pod.namespace), client::encode(&pod.name));
    top::events(run_dir, &query, |line| {
        if let Ok(event) = serde_json::from_slice::<Value>(line) {
            if events.len() == EVENTS {
                events.pop_front();
            }
            events.push_back(event);
        }
    })
    .await?;
    let ranked = ranking.as_ref().and_then(|ranking| {
        let own = pods::ranked(&pod, ranking)?;
        let place = ranking.order.iter().position(|row| row.rank == own.rank)?;
        Some((ranking.order.get(place)?.clone(), ranking.order.get(place + 1)))
    });
    let because = ranked.as_ref().map(|(row, next)| match (next, row.rank) {
        (None, 2..) => String::from("it comes last"),
        _ => because(row, *next, row.decided_by.as_deref().unwrap_or_default()),
    });
    Ok(Document {
        row: Row::of(&pod, ranking.as_ref(), super::freshness::now_ms()),
        ranking: ranked.map(|(row, _)| row),
        because,
        memory,
        cgroups: values(&pod),
        is_kubelets: view.specs.is_some(),
        orders: orders.into_iter().filter(concerns).collect(),
        events: events.into(),
        why: None,
        pod: Common::from(pod),
    })
}

/// What the files of the pod's cgroups say; a file that is absent or cannot be read is left out.
fn values(pod: &PodView) -> BTreeMap<String, BTreeMap<&'static str, String>> {
    let Ok(root) = CgroupDir::mount(Path::new(cgroup::MOUNT)) else { return BTreeMap::new() };
    let paths = std::iter::once(&pod.cgroup).chain(pod.containers.iter().map(|container| &container.cgroup));
    let read = |path: &CgroupPath| {
        let cgroup = root.open(path).ok()?;
        let values = FILES.iter().filter_map(|file| Some((*file, cgroup.read(file).ok()?.trim().to_owned())));
        Some((path.to_string(), values.collect()))
    };
    paths.filter_map(read).collect()
}

fn table(document: &Document) -> String {
    let Document { pod, is_kubelets, row, ranking, because, memory, cgroups, orders, events, why } = document;
    let mut page = Page::default();
    page.field("pod", &format!("{}/{}, uid {}", pod.namespace, pod.name, pod.uid));
    let critical = if pod.critical { ", critical" } else { "" };
    page.field("class", &format!("{}, priority {}{critical}", pod.qos_class, pod.priority));
    let reason = pod.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    page.field("state", &format!("{}{reason}", state(pod.state)));
    let spec = match (&row.spec, &pod.spec) {
        (Some(spec), Some(_)) => spec.words(),
        _ if *is_kubelets => String::from("not known: only its cgroups and names are"),
        _ => String::from("a manifest"),
    };
    page.field("spec", &spec);
    if let Some(controller) = &pod.controller {
        page.field("controller", &format!("{} {}", controller.kind, controller.name));
    }
    let limit = pod
        .limit_bytes
        .map_or_else(|| String::from("no limit"), |bytes| format!("limit {}", human_bytes(bytes)));
    page.field("memory", &format!("request {}, {limit}", human_bytes(pod.request_bytes)));
    if let Some(memory) = memory {
        page.field("", &used(&memory.memory));
    }
    match (ranking, &row.excluded) {
        (Some(ranked), _) => {
            let because = because.as_deref().unwrap_or_default();
            page.field("eviction", &format!("number {} if memory runs short: {because}", ranked.rank));
            page.field("", &growth(ranked.growth_bytes_per_second.unwrap_or(0)));
        }
        (None, Some(reason)) => page.field("eviction", &format!("never: {reason}")),
        (None, None) => page.field("eviction", "not in the order of eviction"),
    }
    for order in orders {
        let what = if order.is_pause() { "no pod is evicted" } else { "it is not evicted" };
        page.field("order", &format!("{what} for {}: {}", left(order.left_ms), order.reason));
    }
    page.field("cgroup", pod.cgroup.as_str());
    files(&mut page, cgroups.get(pod.cgroup.as_str()));
    for container in &pod.containers {
        let memory =
            memory.iter().flat_map(|memory| &memory.containers).find(|memory| memory.name == container.name);
        described(&mut page, container, memory.map(|memory| &memory.memory), cgroups);
    }
    if !events.is_empty() {
        page.gap();
        page.paragraph("Its newest events:");
        let now = Timestamp::now();
        for event in events {
            page.paragraph(&render::event(event.to_string().as_bytes(), false, Times::Ages, now));
        }
    }
    if let Some(why) = why {
        page.gap();
        page.screen(why);
    }
    page.finish()
}

fn described(
    page: &mut Page,
    container: &ContainerView,
    memory: Option<&MemoryView>,
    cgroups: &BTreeMap<String, BTreeMap<&'static str, String>>,
) {
    let ContainerView { name, kind, attempt, oom_score_adj, cgroup, cgroup_id } = container;
    let attempt = attempt.map_or_else(String::new, |attempt| format!(", made {attempt} times before"));
    let gone = if cgroup_id.is_none() { ", has no cgroup" } else { "" };
    page.gap();
    page.field("container", &format!("{name} ({kind}{attempt}), oom_score_adj {oom_score_adj}{gone}"));
    page.field("cgroup", cgroup.as_str());
    if let Some(memory) = memory {
        page.field("memory", &used(memory));
    }
    files(page, cgroups.get(cgroup.as_str()));
}

fn used(memory: &MemoryView) -> String {
    let MemoryView { current_bytes, anon_bytes, file_bytes, shmem_bytes, .. } = memory;
    format!(
        "uses {}: anon {}, file {}, shmem {}",
        human_bytes(*current_bytes),
        human_bytes(*anon_bytes),
        human_bytes(*file_bytes),
        human_bytes(*shmem_bytes)
    )
}

fn files(page: &mut Page, values: Option<&BTreeMap<&'static str, String>>) {
    // An empty list is that of the cgroup above.
    let values = values.into_iter().flatten().filter(|(_, value)| !value.is_empty());
    let values = values.map(|(file, value)| format!("{file} {value}"));
    let values: Vec<_> = values.collect();
    if !values.is_empty() {
        page.field("", &values.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::page::{WIDTH, width};

    #[test]
    fn all_that_is_known_is_on_a_page_of_80_columns_and_escaped() {
        let pod: PodView = serde_json::from_value(json!({"namespace": "default", "name": "web\u{1b}[2J", "uid": "u1",
            "qosClass": "Burstable", "priority": 5, "requestBytes": 1 << 20, "limitBytes": 2 << 20, "state": "evicted",
            "reason": "it was \u{202e}evicted", "startsUnderMemoryPressure": true, "cgroup": "/kubepods/p",
            "containers": [{"name": "app", "kind": "app", "oomScoreAdj": 988, "cgroup": "/kubepods/p/app", "cgroupId": 7}]}))
        .unwrap();
        let values =
            BTreeMap::from([("memory.max", String::from("2097152")), ("cpuset.cpus", String::new())]);
        let event = json!({"type": "dev.enforcer.pod.added", "time": "2026-01-31T12:00:00.123456Z",
            "subject": "default/web", "data": {"message": "x ".repeat(80)}});
        let document = Document {
            row: Row::of(&pod, None, 0),
            ranking: None,
            because: None,
            memory: None,
            cgroups: BTreeMap::from([(String::from("/kubepods/p/app"), values)]),
            orders: Vec::new(),
            events: vec![event],
            why: Some(String::from("a screen\n")),
            is_kubelets: true,
            pod: Common::from(pod),
        };
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["cgroups"]["/kubepods/p/app"]["memory.max"], "2097152");
        let text = table(&document);
        assert!(text.lines().all(|line| width(line) <= WIDTH), "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text:?}");
        for part in [
            "Burstable, priority 5",
            "limit 2Mi",
            "oom_score_adj 988",
            "memory.max 2097152\n",
            "not known: only its cgroups and names are",
            "pod.added",
            "a screen",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let alone = table(&Document { is_kubelets: false, ..document });
        assert!(alone.contains("a manifest\n"), "{alone}");
    }
}
