use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use enforcer_common::counter::drops;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};

use super::{
    counts::{Counted, Counts, NO_NAMESPACE, dry_run_place, eviction_place, oom_place},
    durations::{Taken, seconds},
    gauges::{Gauges, Headroom, Pressure},
    labels::{Failure, Method, Outcome, Phase, Qos, Scope, Signal, Suppressed, Survived},
    page::{Kind, Page},
    process::Process,
    turns::turns,
};
use crate::{journal::EventType, model::QosClass, sense::EdgeKind};

/// How many of those who would be next are named.
const NEXT: usize = 3;

/// All that is counted and all that is read, as `OpenMetrics` text. The text is whole before anybody gets any of it, so that
/// a slow reader holds nothing.
///
/// The error is that of writing to memory, which does not happen.
pub fn expose(counts: &Counts, gauges: Gauges) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Whole { counts: counts.clone(), gauges }));
    let mut text = String::with_capacity(32 << 10);
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Whole {
    counts: Counts,
    gauges: Gauges,
}

impl Collector for Whole {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self { counts, gauges } = self;
        let counted = &*counts.0;
        let mut page = Page::new(encoder);
        evictions(&mut page, counted)?;
        course(&mut page, counted, gauges)?;
        ooms(&mut page, counted)?;
        headroom(&mut page, counts, gauges)?;
        pressure(&mut page, gauges)?;
        pods(&mut page, gauges)?;
        events(&mut page, counted, gauges)?;
        sinks(&mut page, counted)?;
        programs(&mut page, counted, gauges)?;
        sources(&mut page, counted)?;
        reflex(&mut page, gauges)?;
        itself(&mut page, gauges)?;
        process(&mut page, &gauges.process)
    }
}

fn evictions(page: &mut Page<'_>, counted: &Counted) -> fmt::Result {
    page.family(
        "enforcer_evictions_total",
        Kind::Counter,
        "Evictions that came to an end, by what was short, the victim's class and namespace, what it was sent and what came of it",
        |rows| {
            for (place, namespace) in namespaces(counted) {
                for (signal, qos) in pairs(Signal::ALL, Qos::ALL) {
                    for (method, outcome) in pairs(Method::ALL, Outcome::ALL) {
                        let cell = eviction_place(place, signal, qos, method, outcome);
                        let Some(count) = counted.evictions.get(cell) else { continue };
                        let labels = [
                            ("signal", signal.as_str()),
                            ("qos", qos.as_str()),
                            ("namespace", namespace),
                            ("method", method.as_str()),
                            ("outcome", outcome.as_str()),
                        ];
                        rows.count(&labels, count)?;
                    }
                }
            }
            Ok(())
        },
    )?;
    page.family(
        "enforcer_evictions_dry_run_total",
        Kind::Counter,
        "Evictions that were decided and not carried out, as the mode or an operator had it",
        |rows| {
            for (place, namespace) in namespaces(counted) {
                for (signal, qos) in pairs(Signal::ALL, Qos::ALL) {
                    let Some(count) = counted.dry_runs.get(dry_run_place(place, signal, qos)) else {
                        continue;
                    };
                    let labels =
                        [("signal", signal.as_str()), ("qos", qos.as_str()), ("namespace", namespace)];
                    rows.count(&labels, count)?;
                }
            }
            Ok(())
        },
    )?;
    page.family(
        "enforcer_evictions_repeated_total",
        Kind::Counter,
        "Evictions that were decided of pods that had been evicted before and come back",
        |rows| {
            for (place, namespace) in namespaces(counted) {
                if let Some(count) = counted.repeated.get(place) {
                    rows.count(&[("namespace", namespace)], count)?;
                }
            }
            Ok(())
        },
    )?;
    page.family(
        "enforcer_eviction_failures_total",
        Kind::Counter,
        "Evictions that did not come to their end, by why",
        |rows| {
            let failures = Failure::ALL.iter().zip(&counted.failures);
            failures
                .into_iter()
                .try_for_each(|(reason, count)| rows.count(&[("reason", reason.as_str())], get(count)))
        },
    )?;
    page.family(
        "enforcer_eviction_suppressed_total",
        Kind::Counter,
        "Shortages in which nobody was evicted, by why",
        |rows| {
            let suppressed = Suppressed::ALL.iter().zip(&counted.suppressed);
            suppressed
                .into_iter()
                .try_for_each(|(reason, count)| rows.count(&[("reason", reason.as_str())], get(count)))
        },
    )
}

/// How evictions went.
fn course(page: &mut Page<'_>, counted: &Counted, gauges: &Gauges) -> fmt::Result {
    page.family(
        "enforcer_eviction_duration_seconds",
        Kind::Histogram,
        "How long each phase of an eviction took; of detect every wake-up for an edge of the kernel's counts, whatever came of it",
        |rows| {
            for (phase, durations) in Phase::ALL.iter().zip(&counted.phases) {
                let taken = match phase {
                    Phase::Detect => detected(gauges),
                    Phase::Decide | Phase::Signal | Phase::Exit | Phase::Freed => durations.read(),
                };
                rows.durations(&[("phase", phase.as_str())], &taken)?;
            }
            Ok(())
        },
    )?;
    page.counter(
        "enforcer_eviction_freed_bytes_total",
        "Memory that victims gave back",
        Some(get(&counted.freed_bytes)),
    )?;
    page.family(
        "enforcer_eviction_prediction_error_ratio",
        Kind::Histogram,
        "By which share of what was predicted more or less came back: 0 is exact",
        |rows| {
            let (sum, count, buckets) = counted.prediction_errors.read();
            rows.histogram(&[], sum, count, &buckets)
        },
    )
}

/// From waking for an edge to the end of the look that it caused.
fn detected(gauges: &Gauges) -> Taken {
    let mut taken = Taken::default();
    if let Some(reflex) = &gauges.reflex {
        for kind in EdgeKind::ALL {
            taken.add(&reflex.wakes.of(kind).awake_to_looked);
        }
    }
    taken
}

fn ooms(page: &mut Page<'_>, counted: &Counted) -> fmt::Result {
    page.family(
        "enforcer_oom_kills_total",
        Kind::Counter,
        "Processes that the kernel's OOM killer killed, by whose limit was hit, the victim's namespace and whether its container's init survived",
        |rows| {
            for (place, namespace) in namespaces(counted) {
                for (scope, survived) in pairs(Scope::ALL, Survived::ALL) {
                    let Some(count) = counted.oom_kills.get(oom_place(place, scope, survived)) else { continue };
                    let labels = [
                        ("scope", scope.as_str()),
                        ("namespace", namespace),
                        ("init_survived", survived.as_str()),
                    ];
                    rows.count(&labels, count)?;
                }
            }
            Ok(())
        },
    )
}

fn headroom(page: &mut Page<'_>, counts: &Counts, gauges: &Gauges) -> fmt::Result {
    page.gauge("enforcer_memory_available_bytes", "What memory.available is now", gauges.available_bytes)?;
    page.family(
        "enforcer_eviction_threshold_bytes",
        Kind::Gauge,
        "Where the thresholds of memory.available lie",
        |rows| {
            gauges.headroom.iter().try_for_each(|Headroom { level, threshold_bytes }| {
                rows.gauge(&[("threshold", level.as_str())], *threshold_bytes)
            })
        },
    )?;
    page.family(
        "enforcer_memory_headroom_bytes",
        Kind::Gauge,
        "How far memory.available is above each threshold; below 0 it is crossed",
        |rows| {
            let Some(available_bytes) = gauges.available_bytes else { return Ok(()) };
            gauges.headroom.iter().try_for_each(|Headroom { level, threshold_bytes }| {
                let left = i128::from(available_bytes) - i128::from(*threshold_bytes);
                let end = if left < 0 { i64::MIN } else { i64::MAX };
                rows.gauge_signed(&[("threshold", level.as_str())], i64::try_from(left).unwrap_or(end))
            })
        },
    )?;
    page.family(
        "enforcer_time_to_threshold_seconds",
        Kind::Gauge,
        "How long until each threshold of memory.available is crossed if things go on as they do; infinite if it is not",
        |rows| {
            gauges.headroom.iter().try_for_each(|Headroom { level, threshold_bytes: _ }| {
                let left = counts.left_ns(*level).map_or(f64::INFINITY, seconds);
                rows.gauge_float(&[("threshold", level.as_str())], left)
            })
        },
    )
}

fn pressure(page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
    let micros = |us: u64| std::time::Duration::from_micros(us).as_secs_f64();
    page.family(
        "enforcer_pressure_waiting_seconds_total",
        Kind::Counter,
        "Time in which at least one task could not work for want of that resource",
        |rows| {
            gauges.pressure.iter().try_for_each(|Pressure { resource, slice, waiting_us, stalled_us: _ }| {
                let labels = [("resource", resource.as_str()), ("slice", slice.as_str())];
                rows.count_float(&labels, micros(*waiting_us))
            })
        },
    )?;
    page.family(
        "enforcer_pressure_stalled_seconds_total",
        Kind::Counter,
        "Time in which no task could work for want of that resource",
        |rows| {
            for Pressure { resource, slice, waiting_us: _, stalled_us } in &gauges.pressure {
                let labels = [("resource", resource.as_str()), ("slice", slice.as_str())];
                if let Some(stalled_us) = stalled_us {
                    rows.count_float(&labels, micros(*stalled_us))?;
                }
            }
            Ok(())
        },
    )
}

fn pods(page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
    page.family("enforcer_candidates", Kind::Gauge, "Pods that eviction chooses among, by class", |rows| {
        for class in QosClass::ALL {
            let count = gauges.candidates.iter().filter(|candidate| **candidate == class).count();
            rows.gauge(&[("qos", class.as_str())], u64::try_from(count).unwrap_or(u64::MAX))?;
        }
        Ok(())
    })?;
    page.gauge(
        "enforcer_protected_pods",
        "Those of them that an operator protects",
        Some(gauges.protected_pods),
    )?;
    page.family(
        "enforcer_next_victim_info",
        Kind::Info,
        "Who would be evicted next for memory.available; only with metricsPodNames",
        |rows| {
            for (rank, next) in (1..).zip(gauges.next_victims.iter().take(NEXT)) {
                let rank: u64 = rank;
                let labels =
                    [("rank", &*rank.to_string()), ("namespace", &next.namespace), ("pod", &next.pod)];
                rows.info(&labels)?;
            }
            Ok(())
        },
    )
}

fn events(page: &mut Page<'_>, counted: &Counted, gauges: &Gauges) -> fmt::Result {
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
        "What was lost, by where: records of an eBPF program, reports of the reflex, events before the disk, a reader or a sink had them",
        |rows| {
            for (stage, lost) in drops::NAMES.iter().zip(&counted.lost_by_programs) {
                rows.count(&[("stage", &format!("bpf_{stage}"))], get(lost))?;
            }
            let reports = gauges.reflex.as_ref().map_or(0, |reflex| reflex.reports_dropped);
            rows.count(&[("stage", "reflex_reports")], reports)?;
            rows.count(&[("stage", "journal")], get(&counted.lost_by_journal))?;
            rows.count(&[("stage", "reader")], get(&counted.lost_to_readers))?;
            counted.sinks.read().iter().try_for_each(|sink| {
                rows.count(&[("stage", &format!("sink_{}", sink.name.as_str()))], sink.lost)
            })
        },
    )?;
    page.gauge(
        "enforcer_event_log_bytes",
        "What the journal takes on the disk",
        Some(gauges.event_log_bytes),
    )?;
    page.family(
        "enforcer_queue_records",
        Kind::Gauge,
        "What waits in the daemon's queues: events for the disk",
        |rows| rows.gauge(&[("queue", "journal")], gauges.unwritten_records),
    )
}

fn sinks(page: &mut Page<'_>, counted: &Counted) -> fmt::Result {
    let sinks = counted.sinks.read();
    page.family(
        "enforcer_event_sink_lag_records",
        Kind::Gauge,
        "Events in the journal that a sink has not delivered",
        |rows| {
            sinks.iter().try_for_each(|sink| rows.gauge(&[("sink", sink.name.as_str())], sink.lag_records))
        },
    )?;
    page.family(
        "enforcer_event_sink_last_success_timestamp_seconds",
        Kind::Gauge,
        "When a sink delivered something last; 0 is never",
        |rows| {
            sinks.iter().try_for_each(|sink| {
                rows.gauge_float(&[("sink", sink.name.as_str())], milliseconds(sink.last_success_ms))
            })
        },
    )
}

fn programs(page: &mut Page<'_>, counted: &Counted, gauges: &Gauges) -> fmt::Result {
    page.counter(
        "enforcer_bpf_ringbuf_lost_total",
        "Records that the eBPF programs had no room for, since they were loaded, by whichever daemon",
        Some(counted.lost_by_programs.iter().map(get).fold(0, u64::saturating_add)),
    )?;
    page.counter(
        "enforcer_bpf_recursion_misses_total",
        "How often the kernel passed over an eBPF program that ran on that CPU already",
        Some(gauges.process.recursion_misses),
    )?;
    page.gauge(
        "enforcer_bpf_programs_attached",
        "eBPF programs that are attached",
        Some(gauges.programs_attached),
    )
}

fn sources(page: &mut Page<'_>, counted: &Counted) -> fmt::Result {
    let up = |(place, source)| {
        let up = get(counted.sources_up.get(place)?);
        Some((source, up.checked_sub(1)?))
    };
    page.family("enforcer_source_up", Kind::Gauge, "Whether a source of pods works", |rows| {
        let mut sources = counted.sources.all().filter_map(up);
        sources.try_for_each(|(source, up)| rows.gauge(&[("source", source)], up))
    })?;
    page.family(
        "enforcer_source_last_sync_timestamp_seconds",
        Kind::Gauge,
        "When a source of pods was read last; one that tells of changes is read when there is one",
        |rows| {
            for (place, source) in counted.sources.all() {
                let read_ms = counted.sources_read_ms.get(place).map_or(0, get);
                if read_ms > 0 {
                    rows.gauge_float(&[("source", source)], milliseconds(read_ms))?;
                }
            }
            Ok(())
        },
    )?;
    page.family(
        "enforcer_degraded",
        Kind::Gauge,
        "Whether something is missing or not as it should be: 1 until the daemon says that it is over",
        |rows| {
            let mut reasons = counted.degraded.read();
            reasons.try_for_each(|(reason, is_so)| rows.gauge(&[("reason", reason)], u64::from(is_so)))
        },
    )
}

fn reflex(page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
    let reflex = gauges.reflex.as_ref();
    page.family(
        "enforcer_reflex_looks_total",
        Kind::Counter,
        "Looks of the eviction thread at the node, by whether they worked",
        |rows| {
            let Some(reflex) = reflex else { return Ok(()) };
            let failed = reflex.samples_failed;
            rows.count(&[("outcome", "ok")], reflex.samples.saturating_sub(failed))?;
            rows.count(&[("outcome", "failed")], failed)
        },
    )?;
    page.family(
        "enforcer_reflex_edges_total",
        Kind::Counter,
        "What the kernel told the eviction thread of, by kind",
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
        "From an edge that says when it was to the eviction thread's being awake",
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

/// The daemon, what it was built of and what it follows.
fn itself(page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
    let turns = turns();
    page.family(
        "enforcer_loop_duration_seconds",
        Kind::Histogram,
        "How long the daemon's loop was busy each time that it woke",
        |rows| rows.durations(&[], &turns.busy()),
    )?;
    page.family(
        "enforcer_loop_lateness_seconds",
        Kind::Histogram,
        "How much later than it was due the daemon's loop woke for what it does by the clock",
        |rows| rows.durations(&[], &turns.late()),
    )?;
    page.family(
        "enforcer_loop_stall_seconds_max",
        Kind::Gauge,
        "The most that it was late by within the last five to ten minutes, in seconds",
        |rows| {
            let worst = std::time::Duration::from_micros(turns.worst_micros());
            rows.gauge_float(&[], worst.as_secs_f64())
        },
    )?;
    page.family("enforcer_build_info", Kind::Info, "What the daemon is", |rows| {
        rows.info(&[("version", env!("CARGO_PKG_VERSION")), ("architecture", std::env::consts::ARCH)])
    })?;
    page.family("enforcer_config_hash_info", Kind::Info, "The configuration in force", |rows| {
        rows.info(&[("hash", &gauges.config_hash), ("mode", &gauges.mode)])
    })
}

/// Under the names that all processes have.
fn process(page: &mut Page<'_>, process: &Process) -> fmt::Result {
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
    page.gauge("process_resident_memory_bytes", "Memory that the daemon has", *resident_bytes)?;
    page.gauge("process_virtual_memory_bytes", "The daemon's address space", *virtual_bytes)?;
    page.gauge("process_locked_memory_bytes", "What of its address space is locked", *locked_bytes)?;
    page.family("process_cpu_seconds_total", Kind::Counter, "CPU time of the daemon", |rows| {
        cpu_seconds.map_or(Ok(()), |seconds| rows.count_float(&[], seconds))
    })?;
    page.gauge("process_open_fds", "Descriptors that the daemon has open", *open_fds)?;
    page.gauge("process_max_fds", "The most that it may open", *max_fds)?;
    page.gauge("process_threads", "The daemon's threads", *threads)?;
    page.family(
        "process_start_time_seconds",
        Kind::Gauge,
        "When the daemon was started, in seconds since 1970",
        |rows| start_seconds.map_or(Ok(()), |seconds| rows.gauge_float(&[], seconds)),
    )
}

/// The namespaces that are told apart, with their places; then that of what is no pod's.
fn namespaces(counted: &Counted) -> impl Iterator<Item = (usize, &str)> {
    counted.namespaces.all().chain(std::iter::once((NO_NAMESPACE, "")))
}

fn pairs<A: Copy, B: Copy>(first: &[A], second: &[B]) -> impl Iterator<Item = (A, B)> {
    first.iter().flat_map(move |one| second.iter().map(move |other| (*one, *other)))
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn milliseconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}
