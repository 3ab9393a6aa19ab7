//! Metrics of evictions and OOM kills.
use std::fmt;

use super::{get, namespaces, pairs};
use crate::{
    metrics::{
        counts::{Counted, dry_run_place, eviction_place, oom_place},
        durations::Taken,
        gauges::Gauges,
        labels::{Failure, Method, Outcome, Phase, Qos, Scope, Signal, Suppressed, Survived},
        page::{Kind, Page},
    },
    sense::EdgeKind,
};

pub(super) fn evictions(page: &mut Page<'_>, counted: &Counted) -> fmt::Result {
    page.family(
        "enforcer_evictions_total",
        Kind::Counter,
        "Evictions that ended, by what was short, the victim's class and namespace, its signals and the outcome",
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
        "Evictions that were decided but not carried out, because of the mode or an operator",
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
        "Evictions that were decided for pods that returned after an earlier eviction",
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
        "enforcer_eviction_restarts_killed_total",
        Kind::Counter,
        "Times that containers of an evicted pod were killed again, which the kubelet had started before the pod was gone",
        |rows| {
            for (place, namespace) in namespaces(counted) {
                if let Some(count) = counted.restarts_killed.get(place) {
                    rows.count(&[("namespace", namespace)], count)?;
                }
            }
            Ok(())
        },
    )?;
    page.family(
        "enforcer_eviction_failures_total",
        Kind::Counter,
        "Evictions that failed, by reason",
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
        "Shortages in which no pod was evicted, by reason",
        |rows| {
            let suppressed = Suppressed::ALL.iter().zip(&counted.suppressed);
            suppressed
                .into_iter()
                .try_for_each(|(reason, count)| rows.count(&[("reason", reason.as_str())], get(count)))
        },
    )
}

/// Metrics of the course of evictions.
pub(super) fn course(page: &mut Page<'_>, counted: &Counted, gauges: &Gauges) -> fmt::Result {
    page.family(
        "enforcer_eviction_duration_seconds",
        Kind::Histogram,
        "How long each phase of an eviction took; detect counts every wake for a kernel edge, whatever its outcome",
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
        "Memory that victims freed",
        Some(get(&counted.freed_bytes)),
    )?;
    page.family(
        "enforcer_eviction_prediction_error_ratio",
        Kind::Histogram,
        "How much more or less came back than predicted, as a share of the prediction: 0 is exact",
        |rows| {
            let (sum, count, buckets) = counted.prediction_errors.read();
            rows.histogram(&[], sum, count, &buckets)
        },
    )
}

/// The time from waking for an edge to the end of the look that it caused.
fn detected(gauges: &Gauges) -> Taken {
    let mut taken = Taken::default();
    if let Some(reflex) = &gauges.reflex {
        for kind in EdgeKind::ALL {
            taken.add(&reflex.wakes.of(kind).awake_to_looked);
        }
    }
    taken
}

pub(super) fn ooms(page: &mut Page<'_>, counted: &Counted) -> fmt::Result {
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
