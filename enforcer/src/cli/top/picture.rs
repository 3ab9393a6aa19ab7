//! The daemon's answers at one time as a tree: class, pod, container.

use std::collections::HashMap;

use serde::Serialize;

use crate::{
    cli::freshness::Freshness,
    model::QosClass,
    serve::{
        ExcludedView, HeadroomView, Memories, MemoryView, OrderView, PodMemory, PodState, PodView,
        RankedView, RankingView, SpecsView, View,
    },
};

/// All answers at one time. An answer that failed says why.
#[derive(Clone, Debug)]
pub(super) struct Look {
    /// The time on a monotonic clock, in milliseconds.
    pub(super) at_ms: u64,
    /// The time on the wall clock, in milliseconds since 1970.
    pub(super) wall_ms: u64,
    pub(super) view: View,
    pub(super) memories: Result<Memories, String>,
    pub(super) ranking: Result<RankingView, String>,
    pub(super) headroom: Result<HeadroomView, String>,
    pub(super) orders: Vec<OrderView>,
}

/// The memory of a class, a pod or a container; `None` is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Figures {
    /// `memory.current`.
    pub(super) current_bytes: Option<u64>,
    /// The working set, which is compared with the request.
    pub(super) usage_bytes: Option<u64>,
    pub(super) anon_bytes: Option<u64>,
    pub(super) file_bytes: Option<u64>,
    pub(super) shmem_bytes: Option<u64>,
    pub(super) request_bytes: Option<u64>,
    /// `None` also means no limit.
    pub(super) limit_bytes: Option<u64>,
    pub(super) growth_bytes_per_second: Option<i64>,
    /// `some avg10` of its cgroup.
    pub(super) stall_percent: Option<f64>,
}

impl Figures {
    /// The usage in percent of the request; `None` without a request.
    pub(super) fn percent_of_request(&self) -> Option<u64> {
        let request = self.request_bytes.filter(|bytes| *bytes > 0)?;
        let used = self.usage_bytes.or(self.current_bytes)?;
        u64::try_from(u128::from(used) * 100 / u128::from(request)).ok()
    }

    fn of_cgroup(memory: &MemoryView) -> Self {
        Self {
            current_bytes: Some(memory.current_bytes),
            usage_bytes: None,
            anon_bytes: Some(memory.anon_bytes),
            file_bytes: Some(memory.file_bytes),
            shmem_bytes: Some(memory.shmem_bytes),
            request_bytes: None,
            limit_bytes: memory.limit_bytes,
            growth_bytes_per_second: None,
            stall_percent: memory.stall.map(|stall| stall.some_avg10_percent),
        }
    }

    /// The sum of both; values that both lack stay unknown, and limits are not added up.
    fn plus(self, other: &Self) -> Self {
        fn sum<T>(left: Option<T>, right: Option<T>, add: impl Fn(T, T) -> T) -> Option<T> {
            match (left, right) {
                (Some(left), Some(right)) => Some(add(left, right)),
                (one, other) => one.or(other),
            }
        }
        let bytes = |left, right| sum(left, right, u64::saturating_add);
        Self {
            current_bytes: bytes(self.current_bytes, other.current_bytes),
            usage_bytes: bytes(self.usage_bytes, other.usage_bytes),
            anon_bytes: bytes(self.anon_bytes, other.anon_bytes),
            file_bytes: bytes(self.file_bytes, other.file_bytes),
            shmem_bytes: bytes(self.shmem_bytes, other.shmem_bytes),
            request_bytes: bytes(self.request_bytes, other.request_bytes),
            limit_bytes: None,
            growth_bytes_per_second: sum(
                self.growth_bytes_per_second,
                other.growth_bytes_per_second,
                i64::saturating_add,
            ),
            stall_percent: self.stall_percent,
        }
    }
}

/// The tree and its header.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Picture {
    #[serde(skip)]
    pub(super) at_ms: u64,
    pub(super) mode: String,
    pub(super) memory_pressure: bool,
    /// By the kubelet's account; `None` without one, or if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) disk_pressure: Option<bool>,
    /// `some` and `full` of the node, in per cent of the last ten seconds.
    pub(super) node_stall_percent: Option<(f64, f64)>,
    pub(super) headroom: Option<HeadroomView>,
    pub(super) orders: Vec<OrderView>,
    /// The source of a kubelet's pods' specs; `None` without a kubelet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) specs: Option<SpecsView>,
    /// What is not known, and why.
    pub(super) missing: Vec<String>,
    pub(super) classes: Vec<Class>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Class {
    /// The QoS class as in Kubernetes.
    #[serde(rename = "qosClass")]
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) figures: Figures,
    pub(super) pods: Vec<Pod>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) state: PodState,
    /// Its place in the order of eviction, from 1; `None` if it may not be evicted.
    pub(super) rank: Option<usize>,
    /// Why it may not be evicted, in the words of `eviction.decided`.
    pub(super) excluded: Option<String>,
    pub(super) critical: bool,
    pub(super) protected: bool,
    /// Whether its usage cannot be read, in which case it is evicted first.
    pub(super) stats_missing: bool,
    /// Where the spec of a kubelet's pod is from, and how fresh it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) spec: Option<Freshness>,
    #[serde(flatten)]
    pub(super) figures: Figures,
    pub(super) containers: Vec<Container>,
}

impl Pod {
    /// `namespace/name`.
    pub(super) fn label(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) kind: String,
    #[serde(flatten)]
    pub(super) figures: Figures,
}

/// What is known about pods beside the roster, by uid. Pods excluded from the ranking have only names there.
struct Known<'a> {
    memories: HashMap<&'a str, &'a PodMemory>,
    ranks: HashMap<&'a str, &'a RankedView>,
    excluded: HashMap<(&'a str, &'a str), &'a ExcludedView>,
    before: HashMap<&'a str, &'a Pod>,
    protected: Vec<(&'a str, &'a str)>,
    /// The time since the previous picture, in milliseconds.
    since_ms: u64,
    wall_ms: u64,
}

impl Picture {
    /// The tree of the answers; `before` is the previous picture, to compute growth.
    pub(super) fn new(look: &Look, before: Option<&Self>) -> Self {
        let nothing = Memories::default();
        let memories = look.memories.as_ref().unwrap_or(&nothing);
        let known = Known {
            memories: memories.pods.iter().map(|pod| (pod.uid.as_str(), pod)).collect(),
            ranks: look
                .ranking
                .iter()
                .flat_map(|ranking| ranking.order.iter().map(|ranked| (ranked.uid.as_str(), ranked)))
                .collect(),
            excluded: look
                .ranking
                .iter()
                .flat_map(|ranking| {
                    ranking.excluded.iter().map(|one| ((one.namespace.as_str(), one.name.as_str()), one))
                })
                .collect(),
            before: before
                .into_iter()
                .flat_map(|before| before.classes.iter().flat_map(|class| &class.pods))
                .map(|pod| (pod.uid.as_str(), pod))
                .collect(),
            protected: look.orders.iter().filter_map(protects).collect(),
            since_ms: before.map_or(0, |before| look.at_ms.saturating_sub(before.at_ms)),
            wall_ms: look.wall_ms,
        };
        let classes = [QosClass::BestEffort, QosClass::Burstable, QosClass::Guaranteed];
        let class = |class: QosClass| {
            let of_class = look.view.pods.iter().filter(|pod| pod.qos_class == class.as_str());
            let pods: Vec<_> = of_class.map(|pod| known.pod(pod)).collect();
            let sum = pods.iter().fold(Figures::default(), |sum, pod| sum.plus(&pod.figures));
            let stall_percent = look.headroom.as_ref().ok().and_then(|headroom| stall_of(headroom, class));
            let figures = Figures { stall_percent, ..sum };
            Class { name: class.as_str().to_owned(), figures, pods }
        };
        let missing = [
            ("the ranking", look.ranking.as_ref().err()),
            ("the headroom", look.headroom.as_ref().err()),
            ("the containers' memory", look.memories.as_ref().err()),
        ];
        let mut missing: Vec<_> = missing
            .into_iter()
            .filter_map(|(what, error)| error.map(|error| format!("{what} is not known: {error}")))
            .collect();
        if look.view.specs.as_ref().is_some_and(|specs| specs.source.is_none()) {
            missing.push(String::from("pods' specs are as last known: no source of them answers"));
        }
        if memories.omitted > 0 {
            missing.push(format!("{} pods were not read: there are too many at once", memories.omitted));
        }
        Self {
            at_ms: look.at_ms,
            mode: look.view.mode.clone(),
            memory_pressure: look.view.memory_pressure,
            disk_pressure: look.view.disk_pressure,
            node_stall_percent: memories
                .node_stall
                .map(|stall| (stall.some_avg10_percent, stall.full_avg10_percent)),
            headroom: look.headroom.as_ref().ok().cloned(),
            orders: look.orders.clone(),
            specs: look.view.specs.clone(),
            missing,
            classes: classes.into_iter().map(class).collect(),
        }
    }

    /// Fills in the memory of some pods that was read since.
    pub(super) fn fill_in(&mut self, memories: &Memories) {
        let memories: HashMap<_, _> = memories.pods.iter().map(|pod| (pod.uid.as_str(), pod)).collect();
        for pod in self.classes.iter_mut().flat_map(|class| &mut class.pods) {
            let Some(memory) = memories.get(pod.uid.as_str()) else { continue };
            pod.figures.stall_percent = memory.memory.stall.map(|stall| stall.some_avg10_percent);
            let figures = Figures::of_cgroup(&memory.memory);
            pod.figures.current_bytes = pod.figures.current_bytes.or(figures.current_bytes);
            pod.figures.anon_bytes = pod.figures.anon_bytes.or(figures.anon_bytes);
            pod.figures.file_bytes = pod.figures.file_bytes.or(figures.file_bytes);
            pod.figures.shmem_bytes = pod.figures.shmem_bytes.or(figures.shmem_bytes);
            for container in &mut pod.containers {
                let growth_bytes_per_second = container.figures.growth_bytes_per_second;
                if let Some(found) = memory.containers.iter().find(|found| found.name == container.name) {
                    container.figures =
                        Figures { growth_bytes_per_second, ..Figures::of_cgroup(&found.memory) };
                }
            }
        }
    }

    /// All pods.
    pub(super) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.classes.iter().flat_map(|class| &class.pods)
    }
}

fn protects(order: &OrderView) -> Option<(&str, &str)> {
    if order.is_pause() { None } else { Some((order.namespace.as_deref()?, order.name.as_deref()?)) }
}

/// Each class has its own cgroup, except Guaranteed: its pods are directly below kubepods.
fn stall_of(headroom: &HeadroomView, class: QosClass) -> Option<f64> {
    let name = class.as_str().to_lowercase();
    headroom.slices.iter().find(|slice| slice.name == name)?.some_avg10_percent
}

impl Known<'_> {
    fn pod(&self, pod: &PodView) -> Pod {
        let name = (pod.namespace.as_str(), pod.name.as_str());
        let memory = self.memories.get(pod.uid.as_str());
        let ranked = self.ranks.get(pod.uid.as_str());
        let before = self.before.get(pod.uid.as_str());
        let mut figures = memory.map(|memory| Figures::of_cgroup(&memory.memory)).unwrap_or_default();
        figures.request_bytes = Some(pod.request_bytes);
        figures.limit_bytes = pod.limit_bytes;
        if let Some(ranked) = ranked {
            // The values that it is ranked by: they include what its containers use elsewhere.
            figures.current_bytes = ranked.current_bytes.or(figures.current_bytes);
            figures.usage_bytes = ranked.usage_bytes;
            figures.anon_bytes = ranked.anon_bytes.or(figures.anon_bytes);
            figures.file_bytes = ranked.file_bytes.or(figures.file_bytes);
            figures.shmem_bytes = ranked.shmem_bytes.or(figures.shmem_bytes);
            figures.growth_bytes_per_second = ranked.growth_bytes_per_second;
        } else {
            figures.growth_bytes_per_second =
                self.growth(figures.current_bytes, before.and_then(|before| before.figures.current_bytes));
        }
        let containers = pod.containers.iter().map(|container| {
            let same = |found: &&crate::serve::ContainerMemory| found.name == container.name;
            let found = memory.and_then(|memory| memory.containers.iter().find(same));
            let mut figures = found.map(|found| Figures::of_cgroup(&found.memory)).unwrap_or_default();
            let before =
                before.and_then(|before| before.containers.iter().find(|one| one.name == container.name));
            figures.growth_bytes_per_second =
                self.growth(figures.current_bytes, before.and_then(|before| before.figures.current_bytes));
            Container { name: container.name.clone(), kind: container.kind.to_string(), figures }
        });
        Pod {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.to_string(),
            state: pod.state,
            rank: ranked.map(|ranked| ranked.rank),
            excluded: self.excluded.get(&name).map(|one| one.reason.clone()),
            critical: pod.critical,
            protected: self.protected.contains(&name),
            stats_missing: ranked.is_some_and(|ranked| ranked.stats_missing),
            spec: pod.spec.as_ref().map(|spec| Freshness::of(spec, self.wall_ms)),
            containers: containers.collect(),
            figures,
        }
    }

    fn growth(&self, now: Option<u64>, before: Option<u64>) -> Option<i64> {
        let (now, before) = (i128::from(now?), i128::from(before?));
        let since_ms = i128::from(self.since_ms);
        i64::try_from(((now - before) * 1_000).checked_div(since_ms)?).ok()
    }
}
