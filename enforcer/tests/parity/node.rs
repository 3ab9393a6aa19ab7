//! The kubelet's formulas for the node: what it leaves to pods, who may run, who makes way, and who is evicted first.

use std::{cmp::Ordering, collections::BTreeMap};

use super::{
    formulas::{self, Files, Machine, Options, linear, milli, shares, value},
    pod::{Amounts, Pod},
};

/// What is reserved, and from where on the node evicts, in thousandths of cores and bytes.
#[derive(Clone, Debug)]
pub(crate) struct Reserved {
    pub(crate) cpu_milli: i128,
    pub(crate) memory_bytes: i128,
    /// The hard threshold of `memory.available`.
    pub(crate) threshold_bytes: i128,
    /// The hard threshold of `nodefs.available`, as part of the capacity.
    pub(crate) nodefs_share: f32,
}

/// An amount that pods request, in the unit that the scheduler counts: pods, thousandths of cores, base units.
type Counted = BTreeMap<String, i128>;

/// `node.status.allocatable` (`MachineInfo` of `pkg/kubelet/nodestatus/setters.go`).
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "as upstream computes it")]
fn allocatable(machine: &Machine, reserved: &Reserved) -> Counted {
    let kept = (machine.ephemeral_bytes as f64 * f64::from(reserved.nodefs_share)) as i128;
    let huge: i128 = machine.huge.values().sum();
    let memory = (machine.memory_bytes - reserved.memory_bytes - reserved.threshold_bytes).max(0);
    let mut amounts = machine.huge.clone();
    amounts.insert("pods".into(), machine.pods);
    amounts.insert("cpu".into(), (machine.cpu_milli - reserved.cpu_milli).max(0));
    amounts.insert("memory".into(), (memory - huge).max(0));
    amounts.insert("ephemeral-storage".into(), (machine.ephemeral_bytes - kept).max(0));
    amounts
}

/// kubepods: `getNodeAllocatableInternalAbsolute` and `enforceNodeAllocatableCgroups` of
/// `pkg/kubelet/cm/node_container_manager_linux.go`. The eviction threshold is not taken off.
pub(crate) fn node_files(
    machine: &Machine,
    reserved: &Reserved,
    admitted: &[&Pod],
    options: &Options,
) -> Files {
    let mut files = Files::new();
    files.insert("cpu.weight".into(), linear(shares(machine.cpu_milli - reserved.cpu_milli)).to_string());
    files.insert("memory.max".into(), (machine.memory_bytes - reserved.memory_bytes).to_string());
    files.insert("pids.max".into(), machine.max_pids.to_string());
    files.extend(machine.huge.iter().map(|(name, bytes)| (formulas::huge_file(name), bytes.to_string())));
    let protected: i128 = admitted
        .iter()
        .filter(|pod| formulas::class(pod) != "BestEffort")
        .map(|pod| value(get(&formulas::requests(pod), "memory")))
        .sum();
    if options.tiered && protected > 0 {
        files.insert("memory.min".into(), protected.to_string());
    }
    files
}

/// The classes' cgroups: `setCPUCgroupConfig` and `setMemoryQoS` of `pkg/kubelet/cm/qos_container_manager_linux.go`.
pub(crate) fn tier_files(class: &str, admitted: &[&Pod], options: &Options) -> Files {
    let of_class = || admitted.iter().filter(|pod| class == "Burstable" && formulas::class(pod) == class);
    let cpu = of_class().map(|pod| milli(get(&formulas::requests(pod), "cpu"))).sum();
    let memory: i128 = of_class().map(|pod| value(get(&formulas::requests(pod), "memory"))).sum();
    let mut files = Files::from([("cpu.weight".into(), linear(shares(cpu)).to_string())]);
    if options.tiered && memory > 0 {
        files.insert("memory.low".into(), memory.to_string());
    }
    files
}

fn get(amounts: &Amounts, name: &str) -> i128 {
    amounts.get(name).copied().unwrap_or(0)
}

/// What becomes of a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    Admitted { preempt: Vec<String> },
    Rejected { reason: String, message: String },
}

/// Admits pods in their order (`AdmissionCheck` in `pkg/scheduler`, `pkg/kubelet/preemption/preemption.go`).
pub(crate) fn admit(machine: &Machine, reserved: &Reserved, pods: &[Pod]) -> Vec<Verdict> {
    let allocatable = allocatable(machine, reserved);
    let mut verdicts: Vec<Verdict> = Vec::new();
    let mut running: Vec<usize> = Vec::new();
    for (index, pod) in pods.iter().enumerate() {
        let missing = missing(pod, &allocatable, running.iter().map(|place| &pods[*place]));
        let verdict = match missing.first() {
            None => Verdict::Admitted { preempt: Vec::new() },
            Some(_) if formulas::is_critical(pod) => preempt(pod, pods, &running, &missing),
            Some(first) => first.rejection(),
        };
        if let Verdict::Admitted { preempt } = &verdict {
            for place in running.clone().into_iter().filter(|place| preempt.contains(&name(&pods[*place]))) {
                verdicts[place] = Verdict::Rejected {
                    reason: "Preempting".into(),
                    message: "Preempted in order to admit critical pod".into(),
                };
                running.retain(|other| *other != place);
            }
            running.push(index);
        }
        verdicts.push(verdict);
    }
    verdicts
}

fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// A resource of which too little is left.
struct Missing {
    resource: String,
    requested: i128,
    used: i128,
    capacity: i128,
}

impl Missing {
    fn rejection(&self) -> Verdict {
        let Self { resource, requested, used, capacity } = self;
        Verdict::Rejected {
            reason: format!("OutOf{resource}"),
            message: format!(
                "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
            ),
        }
    }
}

/// `Fits` of `pkg/scheduler/framework/plugins/noderesources/fit.go`.
fn missing<'pod>(pod: &Pod, allocatable: &Counted, running: impl Iterator<Item = &'pod Pod>) -> Vec<Missing> {
    let wanted = counted(pod);
    let mut used = Counted::new();
    for (name, amount) in running.flat_map(counted) {
        *used.entry(name).or_insert(0) += amount;
    }
    // In the order in which the scheduler reports: pods, cpu, memory, ephemeral-storage, then the others.
    let rank =
        |name: &str| ["pods", "cpu", "memory", "ephemeral-storage"].iter().position(|known| *known == name);
    let mut names: Vec<&String> = wanted.keys().collect();
    names.sort_by_key(|name| (rank(name).unwrap_or(usize::MAX), (*name).clone()));
    names
        .into_iter()
        .filter_map(|resource| {
            let (requested, used) = (wanted[resource], used.get(resource).copied().unwrap_or(0));
            let capacity = allocatable.get(resource).copied().unwrap_or(0);
            (requested > 0 && requested > capacity - used).then(|| Missing {
                resource: resource.clone(),
                requested,
                used,
                capacity,
            })
        })
        .collect()
}

fn counted(pod: &Pod) -> Counted {
    let mut amounts: Counted = formulas::requests(pod)
        .into_iter()
        .map(|(name, nano)| if name == "cpu" { (name, milli(nano)) } else { (name, value(nano)) })
        .collect();
    amounts.insert("pods".into(), 1);
    amounts
}

/// `GetResourceRequest` of `pkg/api/v1/resource/helpers.go`.
fn request(pod: &Pod, resource: &str) -> i128 {
    if resource == "pods" {
        return 1;
    }
    let nano = formulas::request_quantity(pod, resource);
    if resource == "cpu" { milli(nano) } else { value(nano) }
}

/// What is still to be freed, in the order in which it was found missing.
type Requirements = Vec<(String, i128)>;

fn without(requirements: &Requirements, pods: &[&Pod]) -> Requirements {
    let left = requirements.iter().map(|(resource, quantity)| {
        let freed: i128 = pods.iter().map(|pod| request(pod, resource)).sum();
        (resource.clone(), quantity - freed)
    });
    left.filter(|(_, quantity)| *quantity > 0).collect()
}

/// `getPodsToPreempt`.
fn preempt(preemptor: &Pod, pods: &[Pod], running: &[usize], missing: &[Missing]) -> Verdict {
    let requirements: Requirements =
        missing.iter().map(|one| (one.resource.clone(), one.requested - (one.capacity - one.used))).collect();
    let may_end = |pod: &Pod| {
        let by_priority = matches!(
            (preemptor.priority, pod.priority),
            (Some(own), Some(other)) if other < own
        );
        !formulas::is_critical(pod) || by_priority
    };
    let of_class = |class: &str| -> Vec<&Pod> {
        let candidates = running.iter().map(|place| &pods[*place]);
        candidates.filter(|pod| may_end(pod) && formulas::class(pod) == class).collect()
    };
    let (best, burstable, guaranteed) =
        (of_class("BestEffort"), of_class("Burstable"), of_class("Guaranteed"));
    let everyone = [best.clone(), burstable.clone(), guaranteed.clone()].concat();
    let lacking = without(&requirements, &everyone);
    if !lacking.is_empty() {
        let list: String = lacking
            .iter()
            .fold(String::new(), |list, (name, quantity)| list + &format!("(res: {name}, q: {quantity}), "));
        return Verdict::Rejected {
            reason: "UnexpectedAdmissionError".into(),
            message: format!(
                "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [{list}]"
            ),
        };
    }
    let guaranteed =
        by_distance(&guaranteed, without(&requirements, &[best.clone(), burstable.clone()].concat()));
    let burstable =
        by_distance(&burstable, without(&requirements, &[best.clone(), guaranteed.clone()].concat()));
    let best = by_distance(&best, without(&requirements, &[burstable.clone(), guaranteed.clone()].concat()));
    Verdict::Admitted { preempt: [best, burstable, guaranteed].concat().into_iter().map(name).collect() }
}

/// `getPodsToPreemptByDistance`.
fn by_distance<'pod>(pods: &[&'pod Pod], mut requirements: Requirements) -> Vec<&'pod Pod> {
    let (mut left, mut chosen) = (pods.to_vec(), Vec::new());
    while !requirements.is_empty() {
        let mut best: Option<(usize, f64)> = None;
        for (place, pod) in left.iter().enumerate() {
            let own = distance(pod, &requirements);
            let is_better = best.is_none_or(|(other, least)| {
                own < least || (own.total_cmp(&least).is_eq() && is_no_larger(pod, left[other]))
            });
            if is_better {
                best = Some((place, own));
            }
        }
        let Some((place, _)) = best else { break };
        let pod = left.swap_remove(place);
        requirements = without(&requirements, &[pod]);
        chosen.push(pod);
    }
    chosen
}

#[expect(clippy::cast_precision_loss, reason = "as upstream computes it")]
fn distance(pod: &Pod, requirements: &Requirements) -> f64 {
    let part = |(resource, quantity): &(String, i128)| {
        let left = (quantity - request(pod, resource)).max(0) as f64 / *quantity as f64;
        left * left
    };
    requirements.iter().map(part).sum()
}

/// `smallerResourceRequest`: of equals, the later one.
fn is_no_larger(pod: &Pod, other: &Pod) -> bool {
    for resource in ["memory", "cpu"] {
        match request(pod, resource).cmp(&request(other, resource)) {
            Ordering::Less => return true,
            Ordering::Greater => return false,
            Ordering::Equal => {}
        }
    }
    true
}

/// What the stats say of a pod, in the order of the pods; `None` where there are none.
pub(crate) type Usages = Vec<Option<i128>>;

/// `rankMemoryPressure`: the pods' places, the first to be evicted first.
pub(crate) fn rank(pods: &[Pod], usages: &Usages) -> Vec<usize> {
    let priority = |place: usize| pods[place].priority.unwrap_or(0);
    let above = |place: usize, usage: i128| usage - formulas::ranking_request(&pods[place]);
    let is_before = |left: usize, right: usize| {
        let keys = |place: usize| match usages[place] {
            None => (0, 0, 0),
            Some(usage) => (
                if above(place, usage) > 0 { 1 } else { 2 },
                i128::from(priority(place)),
                -above(place, usage),
            ),
        };
        match (usages[left], usages[right]) {
            // Without stats the comparison of what is used is a tie, and the priority decides.
            (None, None) => priority(left) < priority(right),
            _ => keys(left) < keys(right),
        }
    };
    // By insertion: slow, plain, and stable.
    let mut order: Vec<usize> = Vec::new();
    for place in 0..pods.len() {
        let at = order.iter().position(|other| is_before(place, *other)).unwrap_or(order.len());
        order.insert(at, place);
    }
    order
}
