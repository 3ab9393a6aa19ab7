//! The kernel's OOM kills, by cause and by owner.

use std::collections::{BTreeMap, BTreeSet};

use enforcer_events::{
    oom::{Averted, Detected, Incident, Scope, Victim},
    pod::Place,
};
use ulid::Ulid;

use super::{
    super::document::{Few, Oom as Reported, OomLimit, OomVictim, Triggered},
    At,
    few::Owners,
    name_of, pod_of, time,
};

/// How many detected OOMs are awaited.
const MOST_OPEN: usize = 1_024;

/// All OOMs of the range.
#[derive(Debug, Default)]
pub(super) struct Oom {
    open: BTreeSet<Ulid>,
    reported: Reported,
    limits: Owners<(Option<String>, &'static str), OomLimit>,
    victims: Owners<String, OomVictim>,
    namespaces: Owners<String, OomVictim>,
    triggers: Owners<(String, String), Triggered>,
}

impl Oom {
    pub(super) fn detected(&mut self, at: At, detected: &Detected) {
        if !at.is_in_range {
            return;
        }
        if self.open.len() >= MOST_OPEN && self.open.pop_first().is_some() {
            self.reported.open += 1;
        }
        self.open.insert(detected.incident_id);
    }

    pub(super) fn averted(&mut self, at: At, averted: &Averted) {
        if let Some(id) = averted.incident_id {
            self.open.remove(&id);
        }
        if at.is_in_range {
            *self.reported.averted.entry(averted.cause.as_str()).or_default() += 1;
        }
    }

    pub(super) fn incident(&mut self, at: At, incident: &Incident, controllers: &BTreeMap<String, String>) {
        self.open.remove(&incident.incident_id);
        if !at.is_in_range {
            return;
        }
        let Incident {
            scope, limit_owner, trigger, place, kills, victims, reconciled, reconstructed, ..
        } = incident;
        self.reported.incidents += 1;
        self.reported.kills += kills;
        self.reported.unreconciled += u64::from(!reconciled);
        self.reported.reconstructed += u64::from(*reconstructed);
        let scope = scope.map_or("unknown", Scope::as_str);
        let count = self.reported.scopes.entry(scope).or_default();
        count.incidents += 1;
        count.kills += kills;
        let new = || OomLimit { limit_owner: limit_owner.clone(), scope, ..OomLimit::default() };
        if let Some(limit) = self.limits.of((limit_owner.clone(), scope), new) {
            limit.incidents += 1;
            limit.kills += kills;
            limit.time = time(at.ms);
        }
        // One that died for sharing memory was not killed for its own.
        let killed = || victims.iter().filter(|victim| victim.shares_memory_with.is_none());
        for victim in killed() {
            self.victim(at, &victim.place, 1, most_bytes(victim), controllers);
            if let Some(trigger) = trigger {
                self.triggered(&trigger.place, &victim.place);
            }
        }
        // Of kills that only counters show, the cgroup is known.
        if killed().next().is_none() && *kills > 0 {
            let unknown = Place::default();
            self.victim(at, place.as_ref().unwrap_or(&unknown), *kills, None, controllers);
        }
    }

    fn victim(
        &mut self,
        at: At,
        place: &Place,
        kills: u64,
        bytes: Option<u64>,
        controllers: &BTreeMap<String, String>,
    ) {
        let workload = place.uid.as_ref().and_then(|uid| controllers.get(uid)).cloned();
        let namespace = place.namespace.clone().unwrap_or_else(|| String::from("no namespace"));
        let of_container = (name_of(place), workload, &mut self.victims);
        for (name, workload, owners) in [of_container, (namespace, None, &mut self.namespaces)] {
            let new = || OomVictim { name: name.clone(), ..OomVictim::default() };
            if let Some(owner) = owners.of(name.clone(), new) {
                owner.kills += kills;
                owner.most_bytes = owner.most_bytes.max(bytes);
                owner.time = time(at.ms);
                owner.workload = workload.or_else(|| owner.workload.take());
            }
        }
    }

    fn triggered(&mut self, trigger: &Place, victim: &Place) {
        let key = (name_of(trigger), name_of(victim));
        let same_pod = pod_of(trigger).is_some() && pod_of(trigger) == pod_of(victim);
        let (trigger, victim) = key.clone();
        let new = || Triggered { trigger, victim, same_pod, kills: 0 };
        if let Some(pair) = self.triggers.of(key, new) {
            pair.kills += 1;
        }
    }

    pub(super) fn uncounted(&self) -> u64 {
        let owners = self.victims.uncounted() + self.namespaces.uncounted();
        self.limits.uncounted() + owners + self.triggers.uncounted()
    }

    pub(super) fn finish(self) -> (Reported, Few<Triggered>) {
        let open = u64::try_from(self.open.len()).unwrap_or(u64::MAX);
        let reported = Reported {
            open: self.reported.open.saturating_add(open),
            limits: self.limits.finish(|limit| limit.kills),
            victims: self.victims.finish(|victim| victim.kills),
            namespaces: self.namespaces.finish(|victim| victim.kills),
            ..self.reported
        };
        (reported, self.triggers.finish(|pair| pair.kills))
    }
}

/// What a victim held when it was marked.
fn most_bytes(victim: &Victim) -> Option<u64> {
    let memory = victim.memory?;
    Some(memory.anon_bytes.saturating_add(memory.file_bytes).saturating_add(memory.shmem_bytes))
}
