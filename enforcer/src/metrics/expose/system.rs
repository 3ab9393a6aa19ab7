//! Metrics of what the system's own parts use, and of what is reserved for them.
use std::fmt;

use crate::metrics::{
    gauges::{Gauges, KernelMemory, ReservedPart, SystemPart},
    page::{Kind, Page},
};

pub(super) fn parts(page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
    let micros = |us: u64| std::time::Duration::from_micros(us).as_secs_f64();
    let mut named: Vec<(String, &SystemPart)> = Vec::new();
    for part in &gauges.system {
        let name = label(&part.name);
        // A row appears once.
        if named.iter().all(|(known, _)| *known != name) {
            named.push((name, part));
        }
    }
    let parts = || named.iter().map(|(name, part)| (name.as_str(), *part));
    page.family(
        "enforcer_system_cpu_seconds_total",
        Kind::Counter,
        "CPU time of a reserved cgroup, or of a component's present processes",
        |rows| {
            parts().try_for_each(|(name, SystemPart { cpu_us, .. })| match cpu_us {
                Some(us) => rows.count_float(&[("part", name)], micros(*us)),
                None => Ok(()),
            })
        },
    )?;
    page.family(
        "enforcer_system_memory_bytes",
        Kind::Gauge,
        "Memory of a reserved cgroup without idle page cache, or what a component's processes have alone",
        |rows| {
            parts().try_for_each(|(name, SystemPart { memory_bytes, .. })| match memory_bytes {
                Some(bytes) => rows.gauge(&[("part", name)], *bytes),
                None => Ok(()),
            })
        },
    )?;
    page.family(
        "enforcer_system_tasks",
        Kind::Gauge,
        "Tasks of a reserved cgroup or component: processes with all their threads",
        |rows| {
            parts().try_for_each(|(name, SystemPart { tasks, .. })| match tasks {
                Some(tasks) => rows.gauge(&[("part", name)], *tasks),
                None => Ok(()),
            })
        },
    )?;
    page.family("enforcer_kernel_memory_bytes", Kind::Gauge, "The kernel's own memory, by kind", |rows| {
        let Some(KernelMemory { slab_bytes, stack_bytes, page_table_bytes }) = gauges.kernel else {
            return Ok(());
        };
        rows.gauge(&[("kind", "slab")], slab_bytes)?;
        rows.gauge(&[("kind", "stacks")], stack_bytes)?;
        rows.gauge(&[("kind", "pageTables")], page_table_bytes)
    })
}

pub(super) fn reserved(page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
    page.family(
        "enforcer_reserved_cpus",
        Kind::Gauge,
        "CPUs that systemReserved or kubeReserved has for a reserved cgroup",
        |rows| {
            gauges.reserved.iter().try_for_each(|ReservedPart { scope, cpu_milli, .. }| match cpu_milli {
                Some(milli) => {
                    let cpus = std::time::Duration::from_millis(*milli).as_secs_f64();
                    rows.gauge_float(&[("scope", scope)], cpus)
                }
                None => Ok(()),
            })
        },
    )?;
    page.family(
        "enforcer_reserved_memory_bytes",
        Kind::Gauge,
        "Memory that systemReserved or kubeReserved has for a reserved cgroup",
        |rows| {
            gauges.reserved.iter().try_for_each(|ReservedPart { scope, memory_bytes, .. }| match memory_bytes
            {
                Some(bytes) => rows.gauge(&[("scope", scope)], *bytes),
                None => Ok(()),
            })
        },
    )?;
    page.family(
        "enforcer_reserved_tasks",
        Kind::Gauge,
        "Tasks that systemReserved or kubeReserved has for a reserved cgroup",
        |rows| {
            gauges.reserved.iter().try_for_each(|ReservedPart { scope, tasks, .. }| match tasks {
                Some(tasks) => rows.gauge(&[("scope", scope)], *tasks),
                None => Ok(()),
            })
        },
    )?;
    page.family(
        "enforcer_reservation_exceeded",
        Kind::Gauge,
        "Whether a reserved cgroup uses more than is reserved for it",
        |rows| {
            for ReservedPart { scope, memory_exceeded, tasks_exceeded, .. } in &gauges.reserved {
                for (resource, exceeded) in [("memory", memory_exceeded), ("pid", tasks_exceeded)] {
                    if let Some(exceeded) = exceeded {
                        rows.gauge(&[("scope", scope), ("resource", resource)], u64::from(*exceeded))?;
                    }
                }
            }
            Ok(())
        },
    )
}

/// A name from outside as a label: files and units may be called anything.
fn label(name: &str) -> String {
    let plain = |one: char| if one.is_ascii_alphanumeric() || "-_.@:".contains(one) { one } else { '_' };
    name.chars().map(plain).collect()
}
