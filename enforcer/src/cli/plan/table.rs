//! The plan as a table: a line for the node, and a line per pod.

use super::{
    cpus::{ContainerCpus, NodeCpus},
    document::{AdmissionDocument, Cgroup, ContainerDocument, Document, NodeDocument, PodDocument},
};
use crate::{
    cli::{
        columns::name_width,
        page::{cell, width},
        render::{self, human_bytes},
    },
    model::{CpuMax, Limit},
};

const WIDTH: usize = 80;

/// How many columns a line has beside its name.
const REST: usize = 50;

/// With names as wide as fits into that many columns.
pub(super) fn table(document: &Document, verbose: bool, columns: Option<usize>) -> String {
    let Document { node, qos_cgroups, pods, errors: _, warnings: _, beside_kubelet } = document;
    let mut text = node_line(node);
    for line in
        beside_kubelet.iter().flat_map(|value| render::wrap(&format!("beside the kubelet: {value}"), WIDTH))
    {
        text.push_str(&format!("{line}\n"));
    }
    if let Some(NodeCpus { reserved, shared, problem }) = &node.cpus {
        let line = match problem {
            Some(problem) => format!("no container gets CPUs of its own: {problem}"),
            None => format!(
                "CPUs: {reserved} reserved for the system; {shared} for containers that have none of their own"
            ),
        };
        for line in render::wrap(&line, WIDTH) {
            text.push_str(&format!("{line}\n"));
        }
    }
    if verbose {
        files(&mut text, "  ", &node.cgroup);
        for cgroup in node.reserved_cgroups.iter().chain(qos_cgroups.iter().map(|qos| &qos.cgroup)) {
            text.push_str(&format!("  {}\n", render::escape(&cgroup.path)));
            files(&mut text, "    ", cgroup);
        }
    }
    if pods.is_empty() {
        text.push_str("no pods\n");
        return text;
    }
    let names = pods.iter().flat_map(|pod| {
        let containers = pod.containers.iter().filter(|_| shows_containers(pod, verbose));
        std::iter::once(pod_name(pod)).chain(containers.map(container_name))
    });
    let longest = names.map(|name| width(&render::escape(&name))).max().unwrap_or(0);
    let name = name_width(longest, REST, columns);
    text.push_str(&row(&cell("POD", name, false), "CLASS", "SCORE", "WEIGHT", "CPU", "MEMORY", "ADMITTED"));
    for pod in pods {
        pod_lines(&mut text, pod, verbose, name);
    }
    text
}

fn node_line(node: &NodeDocument) -> String {
    let amount = |key| node.capacity.get(key).unwrap_or(0);
    let of = |key| node.allocatable.get(key).unwrap_or(0);
    let reserved = node.kube_reserved.as_ref().map_or_else(String::new, |reserved| {
        let of = |key| reserved.get(key).unwrap_or(0);
        format!(
            "reserved for Kubernetes' daemons: {} cpu, {}\n",
            cpu(of("cpuMilli")),
            human_bytes(of("memoryBytes"))
        )
    });
    format!(
        "{} cpu, {}, swap {}, {} pods; allocatable {} cpu, {}\n{reserved}{}: weight {}, memory {}\n",
        cpu(amount("cpuMilli")),
        human_bytes(amount("memoryBytes")),
        human_bytes(amount("swapBytes")),
        amount("pods"),
        cpu(of("cpuMilli")),
        human_bytes(of("memoryBytes")),
        render::escape(&node.cgroup.path),
        weight(&node.cgroup),
        memory(&node.cgroup),
    )
}

fn pod_name(pod: &PodDocument) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

fn container_name(container: &ContainerDocument) -> String {
    format!("  {}", container.name)
}

fn shows_containers(pod: &PodDocument, verbose: bool) -> bool {
    pod.containers.len() > 1 || verbose
}

fn pod_lines(text: &mut String, pod: &PodDocument, verbose: bool, name_width: usize) {
    let name = cell(&pod_name(pod), name_width, false);
    let AdmissionDocument { admitted, preempt, reason, message } = &pod.admission;
    let answer = if *admitted { "yes" } else { "NO" };
    text.push_str(&row(
        &name,
        pod.qos_class,
        &scores(&pod.containers),
        &weight(&pod.cgroup),
        &cpu_max(&pod.cgroup),
        &memory(&pod.cgroup),
        answer,
    ));
    let mut note = |note: String| {
        for line in render::wrap(&note, WIDTH - 4) {
            text.push_str(&format!("    {line}\n"));
        }
    };
    if let (Some(reason), Some(message)) = (reason, message) {
        note(format!("{reason}: {}", message.trim()));
    }
    for ContainerDocument { name, cpus, .. } in &pod.containers {
        let Some(ContainerCpus { cpus, exclusive, reason }) = cpus else { continue };
        if *exclusive {
            note(format!("{name} has CPUs {cpus} of its own: {reason}"));
        } else if verbose {
            note(format!("{name} shares CPUs {cpus}: {reason}"));
        }
    }
    if !preempt.is_empty() {
        note(format!("preempts {}", preempt.join(", ")));
    }
    if verbose {
        text.push_str(&format!("    {}\n", render::escape(&pod.cgroup.path)));
        files(text, "      ", &pod.cgroup);
    }
    if shows_containers(pod, verbose) {
        for container in &pod.containers {
            container_lines(text, container, verbose, name_width);
        }
    }
}

fn container_lines(text: &mut String, container: &ContainerDocument, verbose: bool, name_width: usize) {
    let name = cell(&container_name(container), name_width, false);
    text.push_str(&row(
        &name,
        container.kind,
        &container.oom_score_adj.to_string(),
        &weight(&container.cgroup),
        &cpu_max(&container.cgroup),
        &memory(&container.cgroup),
        "",
    ));
    if verbose {
        text.push_str(&format!("    {}\n", render::escape(&container.cgroup.path)));
        files(text, "      ", &container.cgroup);
    }
}

fn row(
    name: &str,
    class: &str,
    score: &str,
    weight: &str,
    cpu: &str,
    memory: &str,
    admitted: &str,
) -> String {
    let line = format!("{name} {class:<10} {score:>8} {weight:>6} {cpu:>5} {memory:>6} {admitted}");
    format!("{}\n", line.trim_end())
}

fn files(text: &mut String, indent: &str, cgroup: &Cgroup) {
    for (file, value) in cgroup.values.to_text() {
        text.push_str(&format!("{indent}{file} {value}\n"));
    }
}

/// The lowest and the highest score, which are mostly the same.
fn scores(containers: &[ContainerDocument]) -> String {
    let all = || containers.iter().map(|container| container.oom_score_adj);
    match (all().min(), all().max()) {
        (Some(low), Some(high)) if low != high => format!("{low}..{high}"),
        (Some(score), _) => score.to_string(),
        (None, _) => String::from("-"),
    }
}

/// `cpu.weight`; a dash if it is not set.
fn weight(cgroup: &Cgroup) -> String {
    cgroup.values.cpu_weight.map_or_else(|| String::from("-"), |weight| weight.to_string())
}

/// `memory.max` in a unit; a dash for no limit.
fn memory(cgroup: &Cgroup) -> String {
    cgroup.values.memory_max.and_then(Limit::amount).map_or_else(|| String::from("-"), human_bytes)
}

/// `cpu.max` as a number of cpus; a dash for no limit.
fn cpu_max(cgroup: &Cgroup) -> String {
    let milli = |max: CpuMax| max.quota_us.amount()?.checked_mul(1_000)?.checked_div(max.period_us);
    cgroup.values.cpu_max.and_then(milli).map_or_else(|| String::from("-"), cpu)
}

/// `4`, `250m`, `1500m`.
fn cpu(milli: u64) -> String {
    if milli.is_multiple_of(1_000) { (milli / 1_000).to_string() } else { format!("{milli}m") }
}
