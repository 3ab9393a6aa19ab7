//! A tally of the event stream: how many evictions there were, and what is missing now.

use std::collections::BTreeSet;

use enforcer_events::{Event, Payload, eviction::EvictionDecided, node::ConfigLoaded};
use serde::Serialize;

/// How far back events are counted.
pub(in crate::cli) const WINDOW_MS: i64 = 24 * 3_600 * 1_000;

/// How many problems are kept; further ones are only counted.
const MAX_PROBLEMS: usize = 64;

/// The event types that are counted.
pub(in crate::cli) const KINDS: [&str; 6] = [
    "config.loaded",
    "eviction.decided",
    "eviction.completed",
    "oom.incident",
    "degraded.entered",
    "degraded.left",
];

/// What happened in the last day, and what is missing now.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct Tally {
    /// Pods that were evicted.
    pub(in crate::cli) evicted: u64,
    /// Decisions that were reported but not carried out.
    pub(in crate::cli) only_decided: u64,
    /// OOM kills by the kernel, by incident.
    pub(in crate::cli) oom_incidents: u64,
    /// What is missing since the daemon's start, and why.
    pub(in crate::cli) degraded: Vec<Problem>,
    /// How many more problems there are.
    pub(in crate::cli) more_degraded: usize,
    #[serde(skip)]
    open: BTreeSet<(String, String)>,
}

/// A missing facility.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(in crate::cli) struct Problem {
    pub(in crate::cli) what: String,
    pub(in crate::cli) message: String,
}

impl Tally {
    /// Counts an event; anything else, and other types, are ignored. `now_ms` is the wall clock.
    pub(in crate::cli) fn take(&mut self, line: &[u8], now_ms: i64) {
        let Ok(Event { time, payload, .. }) = Event::parse(line) else { return };
        let time = time.parse::<jiff::Timestamp>();
        let is_recent = time.is_ok_and(|time| time.as_millisecond() >= now_ms.saturating_sub(WINDOW_MS));
        match payload {
            Payload::EvictionCompleted(_) if is_recent => self.evicted += 1,
            Payload::EvictionDecided(EvictionDecided::Decision(decision))
                if is_recent && decision.dry_run =>
            {
                self.only_decided += 1;
            }
            Payload::OomIncident(_) if is_recent => self.oom_incidents += 1,
            // After a start, problems are reported again.
            Payload::ConfigLoaded(ConfigLoaded::Started(_)) => self.open.clear(),
            // Orders are requested separately.
            Payload::DegradedEntered(degraded) | Payload::DegradedLeft(degraded)
                if matches!(&*degraded.what, "protect" | "pause") => {}
            Payload::DegradedEntered(degraded) => {
                if self.open.len() < 16 * MAX_PROBLEMS {
                    self.open.insert((degraded.what.into_owned(), degraded.message.unwrap_or_default()));
                }
            }
            Payload::DegradedLeft(degraded) => {
                // Without the original message it ends all problems of its kind.
                match degraded.message.as_deref().and_then(|message| message.strip_prefix("no longer so: ")) {
                    Some(was) => {
                        self.open.remove(&(degraded.what.into_owned(), was.to_owned()));
                    }
                    None => self.open.retain(|(open, _)| *open != degraded.what),
                }
            }
            _ => return,
        }
        self.degraded = self
            .open
            .iter()
            .take(MAX_PROBLEMS)
            .map(|(what, message)| Problem { what: what.clone(), message: message.clone() })
            .collect();
        self.more_degraded = self.open.len() - self.degraded.len();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-31T12:00:00Z";

    fn tally(events: &[(&str, &str, Value)]) -> Tally {
        let now_ms = NOW.parse::<jiff::Timestamp>().unwrap().as_millisecond();
        let mut tally = Tally::default();
        for (kind, time, data) in events {
            let event = json!({
                "type": format!("dev.enforcer.{kind}"), "time": time, "data": data, "id": "", "source": "",
                "subject": "", "sequence": "",
            });
            tally.take(event.to_string().as_bytes(), now_ms);
        }
        tally
    }

    fn decided(dry_run: bool) -> Value {
        json!({
            "evictionId": "c", "dryRun": dry_run, "hard": true, "graceMs": 0, "decidedBy": "priority", "ranking": [],
            "rankedCount": 1, "excluded": [], "excludedCount": 0, "predictedFreedBytes": 0, "message": "",
            "configHash": "",
        })
    }

    fn incident() -> Value {
        let counts = json!({"oom": 1, "oomKill": 1, "oomGroupKill": 0});
        json!({
            "incidentId": "01J8Z3NDEKTSV4RRFFQ69G5FAV", "limitSource": "unknown", "kills": 1, "victims": [],
            "timelineMs": {}, "counters": counts, "countersBefore": counts, "countersAfter": counts,
            "reconciled": true, "reconciliation": "matched", "reconstructed": false,
        })
    }

    fn whats(tally: &Tally) -> Vec<&str> {
        tally.degraded.iter().map(|problem| problem.what.as_str()).collect()
    }

    #[test]
    fn a_day_is_counted() {
        let reported = tally(&[
            ("eviction.completed", "2026-01-30T11:00:00Z", json!({"evictionId": "a"})),
            ("eviction.completed", "2026-01-30T13:00:00Z", json!({"evictionId": "b"})),
            ("eviction.decided", NOW, decided(true)),
            ("eviction.decided", NOW, decided(false)),
            ("oom.incident", NOW, incident()),
            ("oom.incident", "no time", incident()),
        ]);
        assert_eq!((reported.evicted, reported.only_decided, reported.oom_incidents), (1, 1, 1));
    }

    #[test]
    fn what_is_missing_is_known_until_it_ends_or_the_daemon_starts() {
        let entered =
            |what: &str, message: &str| ("degraded.entered", NOW, json!({"what": what, "message": message}));
        let left =
            ("degraded.left", NOW, json!({"what": "limits", "place": "/a", "message": "no longer so: a"}));
        let all = [entered("limits", "a"), entered("limits", "b"), entered("btf", ""), left];
        assert_eq!(whats(&tally(&all)), ["btf", "limits"]);
        let start = (
            "config.loaded",
            NOW,
            json!({"mode": "enforce", "configHash": "c", "staticPodPath": "/p", "memoryBytes": 1, "unwatched": [], "message": ""}),
        );
        let reload =
            ("config.loaded", NOW, json!({"mode": "enforce", "configHash": "c", "message": "changed: mode"}));
        assert_eq!(whats(&tally(&[entered("old", ""), start, entered("new", ""), reload])), ["new"]);
        assert_eq!(whats(&tally(&[entered("protect", ""), entered("pause", "")])), [""; 0]);
        let journal = [
            ("degraded.entered", NOW, json!({"what": "journal", "message": "the disk is full"})),
            ("degraded.left", NOW, json!({"what": "journal", "message": "the disk takes events again"})),
        ];
        assert_eq!(whats(&tally(&journal)), [""; 0]);
    }

    #[test]
    fn a_flood_of_problems_is_bounded() {
        let entered = |number: usize| {
            ("degraded.entered", NOW, json!({"what": "limits", "message": number.to_string()}))
        };
        let reported = tally(&(0..2_000).map(entered).collect::<Vec<_>>());
        assert_eq!((reported.degraded.len(), reported.more_degraded), (MAX_PROBLEMS, 15 * MAX_PROBLEMS));
        let mut reported = reported;
        reported.take(b"no event \xff", 0);
        assert_eq!(reported.degraded.len(), MAX_PROBLEMS);
    }
}
