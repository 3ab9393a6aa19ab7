//! Metrics of the state of the node and its pods.
use std::fmt;

use super::{get, milliseconds};
use crate::{
    metrics::{
        counts::{Counted, Counts},
        durations::seconds,
        gauges::{Gauges, Headroom, NEXT_VICTIMS, Pressure},
        page::{Kind, Page},
    },
    model::QosClass,
};

pub(super) fn headroom(page: &mut Page<'_>, counts: &Counts, gauges: &Gauges) -> fmt::Result {
    page.gauge("enforcer_memory_available_bytes", "The current memory.available", gauges.available_bytes)?;
    page.family(
        "enforcer_eviction_threshold_bytes",
        Kind::Gauge,
        "The thresholds of memory.available",
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
        "Time until each threshold of memory.available is crossed at the current rate; infinite if it will not be",
        |rows| {
            gauges.headroom.iter().try_for_each(|Headroom { level, threshold_bytes: _ }| {
                let left = counts.left_ns(*level).map_or(f64::INFINITY, seconds);
                rows.gauge_float(&[("threshold", level.as_str())], left)
            })
        },
    )
}

pub(super) fn pressure(page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
    let micros = |us: u64| std::time::Duration::from_micros(us).as_secs_f64();
    page.family(
        "enforcer_pressure_waiting_seconds_total",
        Kind::Counter,
        "Time in which at least one task was stalled on that resource",
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
        "Time in which all tasks were stalled on that resource",
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

pub(super) fn pods(page: &mut Page<'_>, gauges: &Gauges) -> fmt::Result {
    page.family("enforcer_candidates", Kind::Gauge, "Pods that may be evicted, by class", |rows| {
        for class in QosClass::ALL {
            let count = gauges.candidates.iter().filter(|candidate| **candidate == class).count();
            rows.gauge(&[("qos", class.as_str())], u64::try_from(count).unwrap_or(u64::MAX))?;
        }
        Ok(())
    })?;
    page.gauge(
        "enforcer_protected_pods",
        "Pods among the candidates that an operator protects",
        Some(gauges.protected_pods),
    )?;
    page.family(
        "enforcer_next_victim_info",
        Kind::Info,
        "The pods that would be evicted next for memory.available; only with metricsPodNames",
        |rows| {
            for (rank, next) in (1..).zip(gauges.next_victims.iter().take(NEXT_VICTIMS)) {
                let rank: u64 = rank;
                let labels =
                    [("rank", &*rank.to_string()), ("namespace", &next.namespace), ("pod", &next.pod)];
                rows.info(&labels)?;
            }
            Ok(())
        },
    )
}

pub(super) fn sources(page: &mut Page<'_>, counted: &Counted) -> fmt::Result {
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
        "When a source of pods was last read; one that reports changes is read when there is one",
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
        "Whether something is missing or not as it should be: 1 until the daemon reports that it is over",
        |rows| {
            let mut reasons = counted.degraded.read();
            reasons.try_for_each(|(reason, is_so)| rows.gauge(&[("reason", reason)], u64::from(is_so)))
        },
    )
}
