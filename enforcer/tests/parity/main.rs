//! Generated pods beside an independent statement of the kubelet's formulas. The statement (`formulas`, `node`) is written
//! from the kubelet's specification; it shares no code with what is compared. Manifests go the whole way: text, parser,
//! defaults, plan.

mod formulas;
mod node;
mod pod;
mod random;
#[path = "../../fuzz/src/reference.rs"]
#[expect(unreachable_pub, dead_code, reason = "it belongs to a library of its own, which uses more of it")]
mod reference;

use std::{
    collections::BTreeMap,
    env,
    hash::{BuildHasher as _, Hasher as _, RandomState},
};

use anyhow::{Context as _, Result, ensure};
use enforcer::{
    model::{self, CgroupValues, Quantity, ResourceList, ResourceName},
    policy::{
        CgroupDriver, CpuWeightFormula, EvictionSettings, MemoryReservationPolicy, Plan, PodPlan, Settings,
        SwapBehavior,
        admission::Admission,
        plan, rank,
        threshold::{Signal, Threshold, ThresholdValue},
    },
    source::manifest,
};

use formulas::{Files, Machine, Options};
use node::{Reserved, Verdict};
use pod::Pod;
use random::Random;

/// Set, it is the seed of the run.
const SEED: &str = "ENFORCER_TEST_SEED";

/// Set, many more pods are compared.
const SOAK: &str = "ENFORCER_SOAK";

/// Pods on one node.
const PODS: usize = 25;

/// Nodes in a test, and in a soak.
const NODES: [u64; 2] = [400, 8_000];

/// One node with its pods, by chance.
struct Case {
    machine: Machine,
    reserved: Reserved,
    options: Options,
    pods: Vec<Pod>,
    usages: node::Usages,
}

impl Case {
    fn generate(random: &mut Random) -> Self {
        let memory_bytes = i128::from(random.between(1, 64)) << 30;
        let huge = [("hugepages-2Mi", 2 << 20), ("hugepages-1Gi", 1 << 30)];
        let machine = Machine {
            cpu_milli: i128::from(random.between(1, 64)) * 1_000,
            memory_bytes,
            swap_bytes: i128::from(random.between(0, 8)) << 30,
            pods: i128::from(random.between(5, 110)),
            huge: huge.map(|(name, bytes)| (name.to_owned(), bytes * i128::from(random.below(3)))).into(),
            ephemeral_bytes: i128::from(random.between(1, 100)) << 30,
            max_pids: i128::from(random.between(1, 64)) * 1_024,
        };
        let reserved = Reserved {
            cpu_milli: i128::from(random.below(10)) * 50,
            memory_bytes: i128::from(random.below(10)) * (32 << 20),
            threshold_bytes: i128::from(random.between(1, 10)) * (50 << 20),
            nodefs_share: *random.pick(&[0.05, 0.1, 0.15]),
        };
        let options = Options {
            systemd: random.percent(30),
            linear_containers: random.percent(30),
            cfs_quota: random.percent(80),
            period_us: *random.pick(&[100_000, 100_000, 5_000, 10_000, 1_000_000]),
            pids_limit: random.percent(40).then(|| i128::from(random.between(1, 1_000))),
            single_process_oom_kill: random.percent(30),
            tiered: random.percent(40),
            limited_swap: random.percent(40),
        };
        let pods: Vec<Pod> = (0..PODS).map(|index| Pod::generate(random, index)).collect();
        let usage = |random: &mut Random| random.percent(90).then(|| i128::from(random.below(1 << 33)));
        let usages = pods.iter().map(|_| usage(random)).collect();
        Self { machine, reserved, options, pods, usages }
    }

    fn settings(&self) -> Settings {
        let Self { reserved, options, .. } = self;
        let unsigned = |number: i128| u64::try_from(number).unwrap_or(0);
        let thresholds = vec![
            Threshold::hard(
                Signal::MemoryAvailable,
                ThresholdValue::Amount(unsigned(reserved.threshold_bytes)),
            ),
            Threshold::hard(Signal::NodefsAvailable, ThresholdValue::Share(reserved.nodefs_share)),
        ];
        Settings {
            cgroup_driver: if options.systemd { CgroupDriver::Systemd } else { CgroupDriver::Cgroupfs },
            cpu_weight_formula: if options.linear_containers {
                CpuWeightFormula::Linear
            } else {
                CpuWeightFormula::Kubelet
            },
            cpu_cfs_quota: options.cfs_quota,
            cpu_cfs_quota_period_us: unsigned(options.period_us),
            pod_pids_limit: options.pids_limit.map(unsigned),
            single_process_oom_kill: options.single_process_oom_kill,
            kube_reserved: ResourceList::from([(
                ResourceName::new("memory"),
                Quantity::from_units(unsigned(reserved.memory_bytes)),
            )]),
            system_reserved: ResourceList::from([(
                ResourceName::new("cpu"),
                format!("{}m", reserved.cpu_milli).parse().unwrap_or_default(),
            )]),
            memory_reservation_policy: if options.tiered {
                MemoryReservationPolicy::TieredReservation
            } else {
                MemoryReservationPolicy::None
            },
            swap_behavior: if options.limited_swap {
                SwapBehavior::LimitedSwap
            } else {
                SwapBehavior::NoSwap
            },
            eviction: EvictionSettings { thresholds, ..EvictionSettings::default() },
            ..Settings::default()
        }
    }

    fn node(&self) -> model::Node {
        let Machine { cpu_milli, memory_bytes, swap_bytes, pods, huge, ephemeral_bytes, max_pids } =
            &self.machine;
        let unsigned = |number: i128| u64::try_from(number).unwrap_or(0);
        let mut other: ResourceList = huge
            .iter()
            .map(|(name, bytes)| (ResourceName::new(name), Quantity::from_units(unsigned(*bytes))))
            .collect();
        other
            .insert(ResourceName::new("ephemeral-storage"), Quantity::from_units(unsigned(*ephemeral_bytes)));
        model::Node {
            cpu_milli: unsigned(*cpu_milli),
            memory_bytes: unsigned(*memory_bytes),
            swap_bytes: unsigned(*swap_bytes),
            pods: unsigned(*pods),
            max_pids: Some(unsigned(*max_pids)),
            page_bytes: 4_096,
            swap_controller: true,
            other,
        }
    }

    /// Everything that differs, in words.
    fn differences(&self) -> Result<Vec<String>> {
        let list = serde_json::json!({
            "apiVersion": "v1",
            "kind": "List",
            "items": self.pods.iter().map(Pod::manifest).collect::<Vec<_>>(),
        });
        let parsed = manifest::parse("generated.json", list.to_string().as_bytes());
        ensure!(parsed.errors.is_empty(), "the manifests are refused: {:?}", parsed.errors);
        let (node, settings) = (self.node(), self.settings());
        let planned = plan(&node, &settings, &parsed.pods);
        let defaulted: Vec<Pod> = self.pods.iter().map(formulas::defaulted).collect();
        let mut found = Differences::default();
        self.compare_admission(&planned, &defaulted, &mut found);
        self.compare_tiers(&planned, &defaulted, &mut found);
        for (pod, planned) in defaulted.iter().zip(&planned.pods) {
            self.compare_pod(pod, planned, &mut found);
        }
        self.compare_ranking(&planned, &defaulted, &mut found);
        Ok(found.0)
    }

    fn compare_admission(&self, planned: &Plan, pods: &[Pod], found: &mut Differences) {
        let verdicts = node::admit(&self.machine, &self.reserved, pods);
        for ((pod, planned), should) in pods.iter().zip(&planned.pods).zip(verdicts) {
            let is = match &planned.admission {
                Admission::Admitted { preempt } => {
                    Verdict::Admitted { preempt: preempt.iter().map(ToString::to_string).collect() }
                }
                Admission::Rejected(rejection) => Verdict::Rejected {
                    reason: rejection.reason().into_owned(),
                    message: rejection.message(),
                },
            };
            found.compare(pod, "admission", &is, &should);
        }
    }

    fn compare_tiers(&self, planned: &Plan, pods: &[Pod], found: &mut Differences) {
        let admitted: Vec<&Pod> = pods
            .iter()
            .zip(&planned.pods)
            .filter(|(_, planned)| planned.admission.is_admitted())
            .map(|(pod, _)| pod)
            .collect();
        let first = &pods[0];
        let should = node::node_files(&self.machine, &self.reserved, &admitted, &self.options);
        found.compare(first, "kubepods", &plain(&planned.node.values), &should);
        for (class, cgroup) in &planned.qos {
            let should = node::tier_files(class.as_str(), &admitted, &self.options);
            found.compare(first, class.as_str(), &plain(&cgroup.values), &should);
        }
    }

    fn compare_pod(&self, pod: &Pod, planned: &PodPlan, found: &mut Differences) {
        let Self { machine, options, .. } = self;
        found.compare(pod, "class", &planned.qos_class.as_str(), &formulas::class(pod));
        found.compare(pod, "critical", &planned.critical, &formulas::is_critical(pod));
        let lists = [
            ("requests", &planned.requests, formulas::requests(pod)),
            ("limits", &planned.limits, formulas::limits(pod)),
        ];
        for (name, is, should) in lists {
            let text = |list: &ResourceList| -> BTreeMap<String, i128> {
                list.iter().map(|(name, quantity)| (name.to_string(), nano(*quantity))).collect()
            };
            found.compare(pod, name, &text(is), &should);
        }
        let request = i128::from(planned.ranking_request_bytes);
        found.compare(pod, "ranking request", &request, &formulas::ranking_request(pod));
        found.compare(pod, "path", &planned.cgroup.path.as_str(), &formulas::pod_path(pod, options).as_str());
        let files = formulas::pod_files(pod, machine, options);
        found.compare(pod, "pod cgroup", &plain(&planned.cgroup.values), &normal(files));
        for (container, planned) in pod.containers.iter().zip(&planned.containers) {
            let name = |what: &str| format!("{what} of {}", container.name);
            let score = i128::from(planned.oom_score_adj);
            found.compare(pod, &name("score"), &score, &formulas::score(pod, container, machine));
            let should = normal(formulas::container_files(pod, container, machine, options));
            found.compare(pod, &name("cgroup"), &plain(&planned.cgroup.values), &should);
        }
    }

    fn compare_ranking(&self, planned: &Plan, pods: &[Pod], found: &mut Differences) {
        let mut order: Vec<usize> = (0..pods.len()).collect();
        rank::by_memory(&mut order, |place| rank::MemoryRankKey {
            usage_bytes: self.usages[*place].and_then(|usage| u64::try_from(usage).ok()),
            request_bytes: planned.pods[*place].ranking_request_bytes,
            priority: planned.pods[*place].eviction_priority,
            order: u32::try_from(*place).unwrap_or(u32::MAX),
        });
        found.compare(&pods[0], "ranking", &order, &node::rank(pods, &self.usages));
    }
}

/// Read from its text by a reader of its own.
fn nano(quantity: Quantity) -> i128 {
    match reference::read(&quantity.to_string()) {
        reference::Reading::Nano(nano) => nano,
        reference::Reading::Malformed | reference::Reading::TooLarge => i128::MAX,
    }
}

#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn compare<T: PartialEq + std::fmt::Debug>(&mut self, pod: &Pod, what: &str, is: &T, should: &T) {
        if is != should {
            let manifest = pod.manifest();
            self.0.push(format!("{what}:\n  is     {is:?}\n  should {should:?}\n  of     {manifest}"));
        }
    }
}

fn plain(values: &CgroupValues) -> Files {
    normal(values.to_text())
}

/// Without what equals the kernel's default: to leave it out means the same.
fn normal(mut files: Files) -> Files {
    files.retain(|name, value| {
        // Without a quota the period says nothing.
        let no_quota = name == "cpu.max" && value.starts_with("max ");
        !no_quota
            && !matches!(
                (name.as_str(), value.as_str()),
                ("memory.min" | "memory.low" | "memory.oom.group", "0") | ("memory.max" | "pids.max", "max")
            )
    });
    files
}

#[test]
fn generated_pods_are_treated_as_the_kubelet_would() -> Result<()> {
    let seed = match env::var(SEED) {
        Ok(seed) => seed.parse().with_context(|| format!("{SEED}={seed} is not a number"))?,
        Err(_) => RandomState::new().build_hasher().finish(),
    };
    let nodes = NODES[usize::from(env::var_os(SOAK).is_some())];
    for number in 0..nodes {
        let mut random = Random::new(seed.wrapping_add(number));
        let case = Case::generate(&mut random);
        let again = format!("node {number}; run it again with {SEED}={seed}");
        let found = case.differences().with_context(|| again.clone())?;
        let shown: Vec<_> = found.iter().take(1).cloned().collect();
        ensure!(
            found.is_empty(),
            "{} differences on {again}\nof {:?} {:?} {:?}\n{}",
            found.len(),
            case.machine,
            case.reserved,
            case.options,
            shown.join("\n")
        );
    }
    Ok(())
}
