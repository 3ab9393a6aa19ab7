//! Metrics of the daemon itself: its events and losses, its threads and its process.
use std::fmt;

use enforcer_common::counter::drops;

use super::{get, milliseconds};
use crate::{
    evict::Waiting,
    journal::EventType,
    metrics::{
        counts::Counted,
        durations::Taken,
        gauges::Gauges,
        loops::loops,
        page::{Kind, Page},
        process::Process,
    },
    sense::EdgeKind,
};

pub(super) fn events(page: &mut Page<'_>, counted: &Counted, gauges: &Gauges) -> fmt::Result {
    page.family(
        "enforcer_events_written_total",
        Kind::Counter,
        "Events that were appended to the journal, by type",
        |rows| {
            let written = EventType::ALL.iter().zip(&counted.written);
            written
                .into_iter()
                .try_for_each(|(kind, count)| rows.count(&[("type", kind.short())], get(count)))
        },
    )?;
    page.family(
        "enforcer_events_lost_total",
        Kind::Counter,
        "Losses by stage: records of an eBPF program or of the flight recorder, reports of the reflex, events before they reached the disk, a reader or a sink",
        |rows| {
            for (stage, lost) in drops::NAMES.iter().zip(&counted.lost_by_programs) {
                rows.count(&[("stage", &format!("bpf_{stage}"))], get(lost))?;
            }
            let reports = gauges.reflex.as_ref().map_or(0, |reflex| reflex.reports_dropped);
            rows.count(&[("stage", "reflex_reports")], reports)?;
            rows.count(&[("stage", "recorder")], gauges.lost_by_recorder)?;
            rows.count(&[("stage", "journal")], get(&counted.lost_by_journal))?;
            rows.count(&[("stage", "reader")], get(&counted.lost_to_readers))?;
            gauges.sinks.iter().try_for_each(|sink| {
                rows.count(&[("stage", &format!("sink_{}", sink.name))], sink.lost)
            })
        },
    )?;
    page.gauge(
        "enforcer_event_log_bytes",
        "Disk space that the journal takes",
        Some(gauges.event_log_bytes),
    )?;
    page.family(
        "enforcer_queue_records",
        Kind::Gauge,
        "Entries in the daemon's queues: events for the disk, and work for the eviction thread's helpers",
        |rows| {
            rows.gauge(&[("queue", "journal")], gauges.unwritten_records)?;
            let Waiting { reports, reaper, closer, brake, hook } =
                gauges.reflex.as_ref().map_or_else(Waiting::default, |reflex| reflex.waiting);
            let queues = [
                ("reports", reports),
                ("reaper", reaper),
                ("closer", closer),
                ("brake", brake),
                ("hook", hook),
            ];
            let mut queues = queues.into_iter();
            queues.try_for_each(|(queue, waiting)| {
                rows.gauge(&[("queue", &format!("reflex_{queue}"))], waiting)
            })
        },
    )
}

pub(super) fn sinks(page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
    let sinks = &gauges.sinks;
    let on = || sinks.iter().filter(|sink| sink.is_on);
    page.family(
        "enforcer_event_sink_lag_records",
        Kind::Gauge,
        "Events in the journal that a sink has not delivered",
        |rows| on().try_for_each(|sink| rows.gauge(&[("sink", sink.name)], sink.lag_records)),
    )?;
    page.family(
        "enforcer_event_sink_last_success_timestamp_seconds",
        Kind::Gauge,
        "When a sink last delivered something; 0 is never",
        |rows| {
            on().try_for_each(|sink| {
                rows.gauge_float(&[("sink", sink.name)], milliseconds(sink.last_success_ms))
            })
        },
    )?;
    page.family(
        "enforcer_event_sink_failures_total",
        Kind::Counter,
        "Failed delivery attempts of a sink",
        |rows| sinks.iter().try_for_each(|sink| rows.count(&[("sink", sink.name)], sink.failures)),
    )
}

pub(super) fn programs(page: &mut Page<'_>, counted: &Counted, gauges: &Gauges) -> fmt::Result {
    page.counter(
        "enforcer_bpf_ringbuf_lost_total",
        "Records that the eBPF programs had no room for, since the daemon started and before that while none ran",
        Some(counted.lost_by_programs.iter().map(get).fold(0, u64::saturating_add)),
    )?;
    page.counter(
        "enforcer_bpf_recursion_misses_total",
        "How often the kernel skipped an eBPF program that was already running on that CPU",
        Some(gauges.process.recursion_misses),
    )?;
    page.gauge("enforcer_bpf_programs_attached", "Attached eBPF programs", Some(gauges.programs_attached))
}

pub(super) fn reflex(page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
    let reflex = gauges.reflex.as_ref();
    page.family(
        "enforcer_reflex_looks_total",
        Kind::Counter,
        "Looks of the eviction thread at the node, by outcome",
        |rows| {
            let Some(reflex) = reflex else { return Ok(()) };
            let failed = reflex.samples_failed;
            rows.count(&[("outcome", "ok")], reflex.samples.saturating_sub(failed))?;
            rows.count(&[("outcome", "failed")], failed)
        },
    )?;
    page.counter(
        "enforcer_reflex_usage_failures_total",
        "Readings of a pod's usage for its rank that failed",
        reflex.map(|reflex| reflex.usage_failures),
    )?;
    page.family(
        "enforcer_reflex_edges_total",
        Kind::Counter,
        "Kernel edges that the eviction thread received, by kind",
        |rows| {
            let Some(reflex) = reflex else { return Ok(()) };
            EdgeKind::ALL
                .into_iter()
                .try_for_each(|kind| rows.count(&[("kind", kind.as_str())], reflex.wakes.of(kind).edges))
        },
    )?;
    page.family(
        "enforcer_reflex_wake_duration_seconds",
        Kind::Histogram,
        "Time from an edge, if it has a timestamp, until the eviction thread is awake",
        |rows| {
            let mut taken = Taken::default();
            for kind in reflex.iter().flat_map(|reflex| EdgeKind::ALL.map(|kind| reflex.wakes.of(kind))) {
                taken.add(&kind.onset_to_awake);
            }
            rows.durations(&[], &taken)
        },
    )?;
    page.gauge(
        "enforcer_reflex_edge_sources",
        "Sources of edges that the eviction thread waits on",
        reflex.map(|reflex| reflex.sources),
    )
}

/// The daemon's loop, log, build and configuration.
pub(super) fn itself(page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
    let metrics = loops();
    page.family(
        "enforcer_loop_duration_seconds",
        Kind::Histogram,
        "How long the daemon's loop was busy after each wake",
        |rows| rows.durations(&[], &metrics.busy()),
    )?;
    page.family(
        "enforcer_loop_lateness_seconds",
        Kind::Histogram,
        "How much later than due the daemon's loop woke for timed work",
        |rows| rows.durations(&[], &metrics.late()),
    )?;
    page.family(
        "enforcer_loop_stall_seconds_max",
        Kind::Gauge,
        "The largest lateness of the daemon's loop within the last five to ten minutes, in seconds",
        |rows| {
            let worst = std::time::Duration::from_micros(metrics.worst_micros());
            rows.gauge_float(&[], worst.as_secs_f64())
        },
    )?;
    page.counter(
        "enforcer_log_lines_dropped_total",
        "Lines of the daemon's own log that were dropped because stderr took none",
        Some(gauges.log_lines_dropped),
    )?;
    page.family("enforcer_build_info", Kind::Info, "The daemon's build", |rows| {
        rows.info(&[("version", env!("CARGO_PKG_VERSION")), ("architecture", std::env::consts::ARCH)])
    })?;
    page.family("enforcer_config_hash_info", Kind::Info, "The configuration in force", |rows| {
        rows.info(&[("hash", &gauges.config_hash), ("mode", &gauges.mode)])
    })
}

/// The process metrics, under their common names.
pub(super) fn process(page: &mut Page<'_>, process: &Process) -> fmt::Result {
    let Process {
        resident_bytes,
        virtual_bytes,
        locked_bytes,
        cpu_seconds,
        open_fds,
        max_fds,
        threads,
        start_seconds,
        recursion_misses: _,
    } = process;
    page.gauge("process_resident_memory_bytes", "The daemon's resident memory", *resident_bytes)?;
    page.gauge("process_virtual_memory_bytes", "The daemon's address space", *virtual_bytes)?;
    page.gauge(
        "process_locked_memory_bytes",
        "The locked part of the daemon's address space",
        *locked_bytes,
    )?;
    page.family("process_cpu_seconds_total", Kind::Counter, "CPU time of the daemon", |rows| {
        cpu_seconds.map_or(Ok(()), |seconds| rows.count_float(&[], seconds))
    })?;
    page.gauge("process_open_fds", "Open descriptors of the daemon", *open_fds)?;
    page.gauge("process_max_fds", "The most descriptors that the daemon may open", *max_fds)?;
    page.gauge("process_threads", "The daemon's threads", *threads)?;
    page.family(
        "process_start_time_seconds",
        Kind::Gauge,
        "When the daemon was started, in seconds since 1970",
        |rows| start_seconds.map_or(Ok(()), |seconds| rows.gauge_float(&[], seconds)),
    )
}
