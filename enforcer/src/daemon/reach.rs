//! Whether eviction thresholds can be reached on this machine: an unreachable one would have every pod evicted in vain.

use std::path::Path;

use super::host::Host;
use crate::{
    cgroup::{self, CgroupDir},
    config::Config,
    model::{Quantity, ResourceName},
    policy::{
        allocatable,
        engine::Resource,
        name,
        threshold::{Signal, Threshold},
    },
    sense::{Available, PROC_MEMINFO, TaskCount, Tasks},
};

/// The thresholds that ask, with their minimum reclaim, for more than the machine's capacity.
pub(super) fn beyond_capacity(config: &Config, host: &Host) -> Vec<String> {
    thresholds(config)
        .filter_map(|threshold| {
            let capacity = capacity(threshold.signal, config, host)?;
            let target = target(threshold, capacity);
            (target > capacity).then(|| {
                format!(
                    "{}: asks for {}, but there is {} in all, so it would always be crossed and every pod evicted: ask for less",
                    field(threshold),
                    show(threshold.signal, target),
                    show(threshold.signal, capacity)
                )
            })
        })
        .collect()
}

/// The thresholds that ask for more than would be available if every pod were gone now. Pods count with the most that
/// they can free: everything that their cgroups are charged for.
pub(super) fn out_of_reach(config: &Config, host: &Host) -> Vec<String> {
    let kubepods = name::kubepods(&config.settings.cgroup_root, config.settings.cgroup_driver);
    let kubepods = CgroupDir::mount(Path::new(cgroup::MOUNT)).and_then(|mount| mount.open(&kubepods)).ok();
    // Without kubepods, no pod uses anything.
    let charged = |file: &str| {
        let text = kubepods.as_ref().and_then(|dir| dir.read(file).ok());
        text.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let now = |signal| match signal {
        Signal::MemoryAvailable => {
            let mut available =
                Available::open(Path::new(PROC_MEMINFO), config.memory_available_source).ok()?;
            Some((available.read().ok()?.available_bytes, charged("memory.current")))
        }
        Signal::PidAvailable => {
            let TaskCount { running, most } = Tasks::open(Path::new("/proc")).ok()?.read().ok()?;
            Some((most.saturating_sub(running), charged("pids.current")))
        }
        _ => None,
    };
    thresholds(config)
        .filter_map(|threshold| {
            let (available, pods) = now(threshold.signal)?;
            let capacity = capacity(threshold.signal, config, host)?;
            unreachable(threshold, capacity, available, pods)
        })
        .collect()
}

/// Returns the problem of a threshold, if any, for the available amount and the amount that pods may free.
fn unreachable(threshold: &Threshold, capacity: u64, available: u64, pods: u64) -> Option<String> {
    let target = target(threshold, capacity);
    let reach = available.saturating_add(pods);
    let show = |amount| show(threshold.signal, amount);
    (target > reach).then(|| {
        format!(
            "{}: asks for {}, but with every pod gone there would be {} at the most ({} are available, and pods use {}): \
             ask for less",
            field(threshold),
            show(target),
            show(reach),
            show(available),
            show(pods)
        )
    })
}

fn thresholds(config: &Config) -> impl Iterator<Item = &Threshold> {
    config.settings.eviction.thresholds.iter().filter(|threshold| Resource::of(threshold.signal).is_some())
}

/// The capacity of a signal; `None` if it is unknown.
fn capacity(signal: Signal, config: &Config, host: &Host) -> Option<u64> {
    match signal {
        Signal::MemoryAvailable => Some(host.node.memory_bytes),
        Signal::AllocatableMemoryAvailable => {
            let enforced = allocatable::enforced(&host.node, &config.settings);
            // If nothing is left for pods, the reservation is wrong, not the threshold.
            enforced.get(ResourceName::MEMORY).map(|bytes| bytes.units()).filter(|bytes| *bytes > 0)
        }
        Signal::PidAvailable => host.node.max_pids,
        _ => None,
    }
}

/// How much must be available until a threshold that was met is no longer met.
fn target(threshold: &Threshold, capacity: u64) -> u64 {
    let reclaim = threshold.min_reclaim.map_or(0, |reclaim| reclaim.amount(capacity));
    threshold.value.amount(capacity).saturating_add(reclaim)
}

fn field(threshold: &Threshold) -> String {
    let field = if threshold.is_hard() { "evictionHard" } else { "evictionSoft" };
    let reclaim = if threshold.min_reclaim.is_some() { " with its evictionMinimumReclaim" } else { "" };
    format!("{field}.{}{reclaim}", threshold.signal)
}

fn show(signal: Signal, amount: u64) -> String {
    match Resource::of(signal) {
        Some(Resource::Memory) => {
            // Rounded to a MiB: more digits say nothing.
            let bytes = if amount > 1 << 20 { amount >> 20 << 20 } else { amount };
            Quantity::from_units(bytes).binary_si().to_string()
        }
        Some(Resource::Pids) | None => format!("{amount} tasks"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cgroup::Absent,
        model::Node,
        policy::{Settings, threshold::ThresholdValue},
        sample,
        sense::PidNamespace,
    };

    const GIB: u64 = 1 << 30;

    fn hard(signal: Signal, amount: u64) -> Threshold {
        Threshold::hard(signal, ThresholdValue::Amount(amount))
    }

    fn host() -> Host {
        let node = Node { max_pids: Some(1_000), ..sample::node() };
        let pid_namespace = Some(PidNamespace::new(4, 0xEFFF_FFFC));
        Host {
            name: "host".into(),
            machine_name: "host".into(),
            boot_id: "boot".into(),
            node,
            systemd: Err(Absent::Init),
            pid_namespace,
            cpus: "0-3".parse().ok(),
            container: None,
        }
    }

    fn config(thresholds: &[Threshold]) -> Config {
        let mut settings = Settings::default();
        settings.eviction.thresholds = thresholds.to_vec();
        settings.system_reserved = [(ResourceName::new("memory"), Quantity::from_units(GIB))].into();
        Config { settings, ..Config::default() }
    }

    #[test]
    fn a_threshold_beyond_what_the_machine_has_is_named_with_its_field() {
        let soft = Threshold { grace_period_ms: 5, ..hard(Signal::PidAvailable, 1_001) };
        let reclaim = Some(ThresholdValue::Amount(1));
        let thresholds = [
            hard(Signal::MemoryAvailable, 8 * GIB),
            Threshold { min_reclaim: reclaim, ..hard(Signal::MemoryAvailable, 8 * GIB) },
            hard(Signal::AllocatableMemoryAvailable, 7 * GIB),
            hard(Signal::AllocatableMemoryAvailable, 7 * GIB + 1),
            soft,
            hard(Signal::NodefsAvailable, u64::MAX),
        ];
        let reported = beyond_capacity(&config(&thresholds), &host());
        let begin = [
            "evictionHard.memory.available with its evictionMinimumReclaim: asks for 8Gi, but there is 8Gi",
            "evictionHard.allocatableMemory.available: asks for 7Gi, but there is 7Gi",
            "evictionSoft.pid.available: asks for 1001 tasks, but there is 1000 tasks",
        ];
        assert_eq!(reported.len(), begin.len(), "{reported:#?}");
        assert!(
            reported.iter().zip(begin).all(|(reported, begin)| reported.starts_with(begin)),
            "{reported:#?}"
        );
    }

    #[test]
    fn a_threshold_that_all_pods_gone_do_not_reach_is_out_of_reach() {
        let threshold = hard(Signal::MemoryAvailable, 4 * GIB);
        assert_eq!(unreachable(&threshold, 8 * GIB, 3 * GIB, GIB), None);
        let reported = unreachable(&threshold, 8 * GIB, 3 * GIB, GIB - 1).unwrap();
        assert!(
            reported.starts_with("evictionHard.memory.available: asks for 4Gi, but with every pod gone"),
            "{reported}"
        );
        // Now, on this machine.
        let of = |signal, amount| out_of_reach(&config(&[hard(signal, amount)]), &host()).len();
        assert_eq!((of(Signal::MemoryAvailable, 1), of(Signal::MemoryAvailable, u64::MAX)), (0, 1));
        assert_eq!((of(Signal::PidAvailable, 1), of(Signal::PidAvailable, u64::MAX)), (0, 1));
    }
}
