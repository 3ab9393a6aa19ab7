//! A pod as the statement of the kubelet's formulas sees it, and its manifest.

use std::{cmp, collections::BTreeMap};

use serde_json::{Map, Value, json};

use super::random::Random;

/// Amounts by resource name, in billionths of the base unit (cores, bytes), exactly.
pub(crate) type Amounts = BTreeMap<String, i128>;

/// One base unit.
pub(crate) const UNIT: i128 = 1_000_000_000;

const MIB: i128 = UNIT << 20;

/// Requests and limits, as the manifest has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resources {
    pub(crate) requests: Amounts,
    pub(crate) limits: Amounts,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    App,
    Init,
    Sidecar,
}

#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) resources: Resources,
}

#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) priority: Option<i32>,
    pub(crate) priority_class_name: Option<String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) overhead: Amounts,
    /// `spec.resources`.
    pub(crate) level: Option<Resources>,
    /// Init containers and sidecars first.
    pub(crate) containers: Vec<Container>,
}

impl Pod {
    pub(crate) fn apps(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|container| container.kind == Kind::App)
    }

    /// Any pod that the API server would take; `index` makes its name its own.
    pub(crate) fn generate(random: &mut Random, index: usize) -> Self {
        // Pods of one kind are alike in what they name, as real ones are.
        let habit = Habit::pick(random);
        let mut containers = Vec::new();
        for number in 0..random.below(4) {
            let kind = if random.percent(50) { Kind::Init } else { Kind::Sidecar };
            containers.push(Container {
                name: format!("i{number}"),
                kind,
                resources: habit.resources(random, index),
            });
        }
        for number in 0..random.between(1, 3) {
            containers.push(Container {
                name: format!("c{number}"),
                kind: Kind::App,
                resources: habit.resources(random, index),
            });
        }
        let level = random.percent(25).then(|| level(random, &containers));
        // What the API server makes of `resources: {}` beside huge pages is not in the specification.
        let is_huge = containers
            .iter()
            .any(|container| container.resources.limits.keys().any(|name| name.starts_with("hugepages-")));
        let level = level.filter(|level| !(is_huge && level.requests.is_empty() && level.limits.is_empty()));
        let mut overhead = Amounts::new();
        if random.percent(15) {
            overhead.insert("memory".into(), memory(random));
            if random.percent(50) {
                overhead.insert("cpu".into(), cpu(random));
            }
        }
        let (priority, priority_class_name) = match random.below(20) {
            0 => (Some(2_000_001_000), Some("system-node-critical")),
            1 => (Some(2_000_000_000), Some("system-cluster-critical")),
            2 => (Some(2_000_000_000), None),
            3 => (Some(1_999_999_999), None),
            4..8 => (None, None),
            _ => (Some(*random.pick(&[-10, -1, 0, 1, 100, 1_000_000])), None),
        };
        let mut annotations = BTreeMap::new();
        match random.below(30) {
            0 => drop(annotations.insert("kubernetes.io/config.source".into(), "file".into())),
            1 => drop(annotations.insert("kubernetes.io/config.source".into(), "api".into())),
            2 => drop(annotations.insert("kubernetes.io/config.mirror".into(), "abc".into())),
            _ => {}
        }
        Self {
            namespace: String::from(*random.pick(&["default", "kube-system", "a-b"])),
            name: format!("p{index}"),
            uid: format!("{:08x}-6bb6-11e6-bc26-{index:012x}", random.below(1 << 32)),
            priority,
            priority_class_name: priority_class_name.map(String::from),
            annotations,
            overhead,
            level,
            containers,
        }
    }

    /// The manifest, as JSON.
    pub(crate) fn manifest(&self) -> Value {
        let list = |init: bool| -> Vec<Value> {
            let of_list = self.containers.iter().filter(|container| (container.kind != Kind::App) == init);
            of_list.map(manifest_of).collect()
        };
        let mut spec = json!({"containers": list(false), "initContainers": list(true)});
        let fields = [
            ("priority", self.priority.map(Value::from)),
            ("priorityClassName", self.priority_class_name.clone().map(Value::from)),
            ("overhead", (!self.overhead.is_empty()).then(|| amounts(&self.overhead))),
            ("resources", self.level.as_ref().map(resources)),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                spec[name] = value;
            }
        }
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "namespace": self.namespace,
                "name": self.name,
                "uid": self.uid,
                "annotations": self.annotations,
            },
            "spec": spec,
        })
    }
}

/// Which resources the containers of a pod name, in percent.
struct Habit {
    request: u64,
    limit: u64,
    /// Limits equal requests.
    equal: bool,
    huge: bool,
}

impl Habit {
    fn pick(random: &mut Random) -> Self {
        match random.below(5) {
            0 => Self { request: 0, limit: 0, equal: false, huge: false },
            1 => Self { request: 100, limit: 100, equal: true, huge: random.percent(20) },
            2 => Self { request: 100, limit: 0, equal: false, huge: false },
            3 => Self { request: 0, limit: 100, equal: false, huge: false },
            _ => Self { request: 60, limit: 60, equal: random.percent(30), huge: random.percent(20) },
        }
    }

    fn resources(&self, random: &mut Random, index: usize) -> Resources {
        let mut resources = Resources::default();
        for name in ["cpu", "memory", "ephemeral-storage"] {
            let amount = if name == "cpu" { cpu } else { memory };
            if name == "ephemeral-storage" && !index.is_multiple_of(8) {
                continue;
            }
            let request = random.percent(self.request).then(|| amount(random));
            let limit = random.percent(self.limit).then(|| amount(random));
            // A limit below its request is no pod.
            let limit = match (request, limit) {
                (Some(request), Some(_)) if self.equal => Some(request),
                (Some(request), Some(limit)) => Some(cmp::max(request, limit)),
                (_, limit) => limit,
            };
            resources.requests.extend(request.map(|request| (name.to_owned(), request)));
            resources.limits.extend(limit.map(|limit| (name.to_owned(), limit)));
        }
        // The API server takes huge pages beside cpu or memory alone, and only where both are equal.
        if self.huge && random.percent(60) && !resources.requests.is_empty() {
            let name = *random.pick(&["hugepages-2Mi", "hugepages-1Gi"]);
            let bytes = if name == "hugepages-2Mi" { MIB * 2 } else { MIB * 1_024 };
            let amount = bytes * i128::from(random.between(1, 3));
            resources.requests.insert(name.into(), amount);
            resources.limits.insert(name.into(), amount);
        }
        resources
    }
}

/// Pod-level resources: requests of at least what the containers request together, limits of at least that.
fn level(random: &mut Random, containers: &[Container]) -> Resources {
    let mut level = Resources::default();
    for name in ["cpu", "memory"] {
        let own: i128 = containers
            .iter()
            .map(|container| {
                let Resources { requests, limits } = &container.resources;
                requests.get(name).or(limits.get(name)).copied().unwrap_or(0)
            })
            .sum();
        let more = if name == "cpu" { cpu(random) } else { memory(random) };
        let least = own + more * i128::from(random.below(2));
        if random.percent(60) {
            level.requests.insert(name.into(), least);
        }
        if random.percent(60) {
            level.limits.insert(name.into(), least + more * i128::from(random.below(2)));
        }
    }
    level
}

/// From 0 to 300 cores, in whole thousandths.
fn cpu(random: &mut Random) -> i128 {
    let milli = match random.below(10) {
        0 => 0,
        1 => random.between(1, 12),
        2 => random.between(1, 300) * 1_000,
        _ => random.between(1, 40) * 50,
    };
    i128::from(milli) * UNIT / 1_000
}

/// From 0 to 16 GiB, in whole bytes.
fn memory(random: &mut Random) -> i128 {
    let bytes = match random.below(12) {
        0 => 0,
        1 => random.between(1, 5_000),
        2 => random.between(1, 16) << 30,
        3 => random.between(1, 3_000) * 1_000_000,
        4 => random.below(1 << 31),
        _ => random.between(1, 64) * (16 << 20),
    };
    i128::from(bytes) * UNIT
}

fn manifest_of(container: &Container) -> Value {
    let mut value =
        json!({"name": container.name, "image": "i", "resources": resources(&container.resources)});
    if container.kind == Kind::Sidecar {
        value["restartPolicy"] = json!("Always");
    }
    value
}

fn resources(resources: &Resources) -> Value {
    let mut value = Map::new();
    for (name, list) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        if !list.is_empty() {
            value.insert(name.into(), amounts(list));
        }
    }
    Value::Object(value)
}

fn amounts(list: &Amounts) -> Value {
    list.iter()
        .map(|(name, amount)| (name.clone(), Value::from(written(*amount))))
        .collect::<Map<_, _>>()
        .into()
}

/// An amount as people write it: in the largest unit that leaves it whole; the last digits decide which family of units.
fn written(nano: i128) -> String {
    if nano % UNIT != 0 {
        return format!("{}m", nano / (UNIT / 1_000));
    }
    let units = nano / UNIT;
    let families: [&[(&str, i128)]; 2] = [
        &[("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)],
        &[("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)],
    ];
    for family in families {
        if let Some((suffix, size)) = family.iter().find(|(_, size)| units > 0 && units % size == 0) {
            return format!("{}{suffix}", units / size);
        }
    }
    units.to_string()
}
