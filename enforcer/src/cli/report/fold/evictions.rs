//! Evictions from the decision to the end, and shortages without one.

use std::collections::{BTreeMap, VecDeque};

use enforcer_events::eviction::{
    Decision, EvictionDecided, EvictionEnded, EvictionSignalled, EvictionSuppressed, ReconstructedDecision,
};

use super::{
    super::document::{AboveRequest, EvictedOwner, Eviction, Evictions as Reported, Few, Suppressed},
    At,
    few::{Newest, Owners},
    time, workload,
};

/// How many decisions whose end is awaited are kept.
const MOST_OPEN: usize = 1_024;

/// How many ids of evictions that ended are remembered: a second end of one is no other eviction.
const MOST_ENDED: usize = 256;

/// An eviction that is under way.
#[derive(Debug)]
struct Open {
    is_in_range: bool,
    eviction: Eviction,
}

/// All evictions of the range, by their decision.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    open: BTreeMap<String, Open>,
    /// Decisions of the range that are left out, as too many were open.
    dropped: u64,
    ended: VecDeque<String>,
    counts: Reported,
    items: Newest<Eviction>,
    workloads: Owners<String, EvictedOwner>,
    namespaces: Owners<String, EvictedOwner>,
    suppressed: Owners<(String, String), Suppressed>,
    requests: Owners<String, AboveRequest>,
}

impl Evictions {
    pub(super) fn decided(&mut self, at: At, decided: &EvictionDecided) {
        let eviction = match decided {
            EvictionDecided::Decision(decision) => {
                if at.is_in_range {
                    self.above_request(decision);
                }
                of_decision(at, decision)
            }
            EvictionDecided::Reconstructed(decision) => of_reconstructed(at, decision),
        };
        if eviction.is_only_decided() {
            if at.is_in_range {
                self.count(eviction);
            }
            return;
        }
        // One that is left out may still end, and is then counted.
        if self.open.len() >= MOST_OPEN
            && let Some((_, oldest)) = self.open.pop_first()
        {
            self.dropped += u64::from(oldest.is_in_range);
        }
        self.open.insert(eviction.id.clone(), Open { is_in_range: at.is_in_range, eviction });
    }

    pub(super) fn signalled(&mut self, signalled: &EvictionSignalled) {
        if let Some(Open { eviction, .. }) = self.open.get_mut(&signalled.eviction_id) {
            eviction.crossed_to_signalled_ms = signalled.timeline.crossed_to_signalled_ms;
            eviction.namespace.get_or_insert_with(|| signalled.namespace.clone());
            eviction.name.get_or_insert_with(|| signalled.name.clone());
            if let Some(controller) = &signalled.controller {
                eviction.workload.get_or_insert_with(|| workload(controller));
            }
        }
    }

    pub(super) fn ended(&mut self, at: At, ended: &EvictionEnded, outcome: &'static str) {
        let open = self.open.remove(&ended.eviction_id);
        if open.is_none() && self.ended.contains(&ended.eviction_id) {
            return;
        }
        if self.ended.len() == MOST_ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back(ended.eviction_id.clone());
        let Open { is_in_range, mut eviction } = open.unwrap_or_else(|| Open {
            is_in_range: at.is_in_range,
            eviction: Eviction {
                id: ended.eviction_id.clone(),
                time: time(at.ms),
                signal: ended.signal.as_ref().map(ToString::to_string),
                order: ended.operator.as_ref().map(|operator| operator.reason.clone()),
                ..Eviction::default()
            },
        });
        eviction.outcome = outcome;
        let timeline = &ended.timeline;
        eviction.namespace = eviction.namespace.or_else(|| ended.namespace.clone());
        eviction.name = eviction.name.or_else(|| ended.name.clone());
        eviction.uid = eviction.uid.or_else(|| ended.uid.clone());
        eviction.crossed_to_signalled_ms =
            timeline.crossed_to_signalled_ms.or(eviction.crossed_to_signalled_ms);
        eviction.crossed_to_dead_ms = timeline.crossed_to_dead_ms;
        eviction.crossed_to_memory_back_ms = timeline.crossed_to_memory_back_ms;
        eviction.decided_to_dead_ms = ended.decided_to_dead_ms;
        eviction.predicted_freed_bytes = eviction.predicted_freed_bytes.or(ended.predicted_freed_bytes);
        eviction.freed_bytes = ended.freed_bytes;
        if outcome == "failed" {
            eviction.reason =
                ended.message.clone().or_else(|| ended.reason.as_ref().map(ToString::to_string));
        }
        self.close(Open { is_in_range, eviction });
    }

    pub(super) fn suppressed(&mut self, at: At, suppressed: &EvictionSuppressed) {
        let EvictionSuppressed { signal, reason, message } = suppressed;
        let (signal, reason) = (signal.to_string(), reason.to_string());
        let new = || Suppressed { signal: signal.clone(), reason: reason.clone(), ..Suppressed::default() };
        if let Some(found) = self.suppressed.of((signal.clone(), reason.clone()), new) {
            found.count += 1;
            found.time = time(at.ms);
            found.message.clone_from(message);
        }
    }

    pub(super) fn foreign(&mut self) {
        self.counts.by_the_kubelet += 1;
    }

    /// The pods above their request, of those that the decision lists.
    fn above_request(&mut self, decision: &Decision) {
        let chosen = decision.victim.as_ref().map(|victim| (&victim.namespace, &victim.name));
        for ranked in &decision.ranking {
            let above = ranked.above_request_bytes.and_then(|above| u64::try_from(above).ok());
            let Some(above) = above.filter(|above| *above > 0) else { continue };
            let pod = format!("{}/{}", ranked.namespace, ranked.name);
            let new = || AboveRequest { pod: pod.clone(), ..AboveRequest::default() };
            if let Some(found) = self.requests.of(pod.clone(), new) {
                found.decisions += 1;
                found.others_chosen += u64::from(chosen != Some((&ranked.namespace, &ranked.name)));
                found.most_above_bytes = found.most_above_bytes.max(above);
            }
        }
    }

    fn close(&mut self, open: Open) {
        if open.is_in_range {
            self.count(open.eviction);
        }
    }

    fn count(&mut self, eviction: Eviction) {
        *self.counts.outcomes.entry(eviction.outcome).or_default() += 1;
        if eviction.outcome == "completed" {
            match eviction.freed_bytes {
                Some(freed) => self.counts.freed_bytes = self.counts.freed_bytes.saturating_add(freed),
                None => self.counts.freed_unknown += 1,
            }
        }
        let namespace = eviction.namespace.clone().unwrap_or_else(|| String::from("unknown"));
        let workload = match &eviction.workload {
            Some(workload) => format!("{namespace}/{workload}"),
            // A pod without a controller is its own.
            None => eviction.victim(),
        };
        for (name, owners) in [(workload, &mut self.workloads), (namespace, &mut self.namespaces)] {
            let new = || EvictedOwner { name: name.clone(), ..EvictedOwner::default() };
            if let Some(owner) = owners.of(name.clone(), new) {
                match eviction.outcome {
                    "failed" => owner.failed += 1,
                    "open" => owner.open += 1,
                    _ if eviction.is_only_decided() => owner.would_have += 1,
                    _ => owner.evicted += 1,
                }
                owner.freed_bytes = owner.freed_bytes.saturating_add(eviction.freed_bytes.unwrap_or(0));
            }
        }
        self.items.push(eviction);
    }

    /// How many decisions of the range were left out before their end.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn uncounted(&self) -> u64 {
        let owners = self.workloads.uncounted() + self.namespaces.uncounted();
        owners + self.suppressed.uncounted() + self.requests.uncounted()
    }

    pub(super) fn finish(mut self) -> (Reported, Few<Suppressed>, Few<AboveRequest>) {
        for (_, open) in std::mem::take(&mut self.open) {
            self.close(open);
        }
        let (items, more) = self.items.finish();
        let weight = |owner: &EvictedOwner| (owner.evicted + owner.failed + owner.open, owner.would_have);
        let evictions = Reported {
            workloads: self.workloads.finish(weight),
            namespaces: self.namespaces.finish(weight),
            items,
            more,
            ..self.counts
        };
        let suppressed = self.suppressed.finish(|suppressed| suppressed.count);
        (evictions, suppressed, self.requests.finish(|above| (above.decisions, above.most_above_bytes)))
    }
}

fn of_decision(at: At, decision: &Decision) -> Eviction {
    let victim = decision.victim.as_ref();
    let outcome = match decision {
        Decision { paused: true, .. } => "paused",
        Decision { unarmed: true, .. } => "unarmed",
        Decision { dry_run: true, .. } => "dryRun",
        Decision { .. } => "open",
    };
    Eviction {
        id: decision.eviction_id.clone(),
        time: time(at.ms),
        outcome,
        decision_kept: true,
        namespace: victim.map(|victim| victim.namespace.clone()),
        name: victim.map(|victim| victim.name.clone()),
        uid: victim.map(|victim| victim.uid.clone()),
        qos_class: victim.map(|victim| victim.qos_class.to_string()),
        priority: victim.map(|victim| victim.priority),
        workload: victim.and_then(|victim| victim.controller.as_ref()).map(workload),
        signal: decision.signal.as_ref().map(ToString::to_string),
        // An order is about no threshold.
        hard: decision.signal.is_some().then_some(decision.hard),
        threshold_bytes: decision.threshold_bytes,
        observed_bytes: decision.observed_bytes,
        threshold_count: decision.threshold_count,
        observed_count: decision.observed_count,
        order: decision.operator.as_ref().map(|operator| operator.reason.clone()),
        decided_by: Some(decision.decided_by.to_string()),
        usage_bytes: victim.and_then(|victim| victim.usage_bytes),
        request_bytes: victim.map(|victim| victim.request_bytes),
        crossed_to_decided_ms: decision.crossed_to_decided_ms,
        predicted_freed_bytes: Some(decision.predicted_freed_bytes),
        ranking: decision.ranking.iter().take(10).cloned().collect(),
        ranked_count: decision.ranked_count,
        excluded: decision.excluded.iter().take(10).cloned().collect(),
        excluded_count: decision.excluded_count,
        ..Eviction::default()
    }
}

fn of_reconstructed(at: At, decision: &ReconstructedDecision) -> Eviction {
    let shortage = decision.shortage.as_ref();
    Eviction {
        id: decision.eviction_id.clone(),
        time: time(at.ms),
        outcome: "open",
        uid: Some(decision.uid.clone()),
        signal: shortage.map(|shortage| shortage.signal.to_string()),
        hard: shortage.map(|shortage| shortage.hard),
        threshold_bytes: shortage.and_then(|shortage| shortage.threshold_bytes),
        observed_bytes: shortage.and_then(|shortage| shortage.observed_bytes),
        threshold_count: shortage.and_then(|shortage| shortage.threshold_count),
        observed_count: shortage.and_then(|shortage| shortage.observed_count),
        ..Eviction::default()
    }
}
