//! What the API server still has to be asked: pure, from the journal's events and the server's answers.

mod entry;
mod open;
mod settings;

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use enforcer_events::{
    Payload,
    eviction::{EvictionDecided, EvictionEnded, EvictionRequested, EvictionSignalled},
};

use self::entry::{Entry, Signalled, Stage};
pub use self::{
    open::{OpenEviction, Removal},
    settings::{ApiSettings, OnPdb, Owner},
};
use super::message::{Action, Call, FoundPod, Outcome, PodRef};
use crate::model::{CgroupId, PodName};

/// For how long after the signal the API server is asked. A pod that still runs then has been started anew for long.
pub(super) const EXPIRY: Duration = Duration::from_hours(1);

/// For how long after the signal a first request needs no look. What the event says of the pod is as old.
const FRESH: Duration = Duration::from_secs(5);

/// The grace period of a pod whose processes are dead, in seconds, as the kubelet's own hard eviction gives; with 0 the API
/// server would not wait for the kubelet.
const GRACE_SECONDS: u64 = 1;

/// How many decisions' messages are kept until the signal, and how many ids of settled evictions.
const LATEST: usize = 64;

/// How often the status of one pod is asked for.
const MOST_MARKS: u32 = 5;

/// The most evictions that are kept. The breaker allows a fraction of that in an hour.
const MOST: usize = 1_024;

/// The evictions that the API server has to know of.
///
/// An eviction comes in with the event of its signal, or a moment before it, and leaves with the events that say what came of
/// it. Whoever reads the events again from [`position`](Self::position) has the same evictions, and looks at each pod before
/// anything is asked again.
#[derive(Debug)]
pub struct Outbox {
    settings: ApiSettings,
    entries: BTreeMap<String, Entry>,
    /// The group and version of evictions.
    group_version: Option<String>,
    /// The messages of the latest decisions, by eviction.
    messages: VecDeque<(String, String)>,
    /// The latest evictions of which nothing has to be asked any more.
    settled: VecDeque<String>,
    /// Up to this position the journal is that of earlier processes, or of an earlier outbox: what was asked then is not
    /// known.
    replayed: u64,
    /// Up to this position the journal is that of earlier boots.
    earlier_boots: u64,
}

/// The present time on each clock.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The clock that only goes forward.
    pub instant: Instant,
    /// The clock on the wall, in milliseconds since 1970.
    pub time_ms: i64,
    /// Since the machine was started, in milliseconds.
    pub boot_ms: u64,
}

impl Outbox {
    /// An empty one. Evictions whose events are up to the position `replayed` are looked at before anything is asked.
    #[must_use]
    pub fn new(settings: ApiSettings, replayed: u64) -> Self {
        Self {
            settings,
            entries: BTreeMap::new(),
            group_version: None,
            messages: VecDeque::new(),
            settled: VecDeque::new(),
            replayed,
            earlier_boots: 0,
        }
    }

    /// Notes that the journal up to that position is of an earlier boot. The kubelet has restarted all pods since: what was evicted
    /// then may run again.
    pub fn note_earlier_boot(&mut self, sequence: u64) {
        self.earlier_boots = self.earlier_boots.max(sequence);
    }

    /// Whether a request is still to be made.
    #[must_use]
    pub fn is_requesting(&self) -> bool {
        self.entries.values().any(|entry| entry.stage != Stage::Confirm)
    }

    /// Takes an event of the journal in. Returns what is to be reported.
    #[must_use]
    pub fn take(
        &mut self,
        sequence: u64,
        time_ms: i64,
        pod: Option<&PodName>,
        payload: &Payload,
        now: Now,
    ) -> Option<Payload> {
        match payload {
            Payload::EvictionDecided(EvictionDecided::Decision(decision)) => {
                self.messages.truncate(LATEST - 1);
                self.messages.push_front((decision.eviction_id.clone(), decision.message.clone()));
            }
            // Before SIGKILL it may still be spared.
            Payload::EvictionSignalled(signalled) if signalled.sent == "SIGKILL" => {
                let killed_ms =
                    self.killed_ms(sequence, Signalled { time_ms, boot_ms: signalled.boot_ms }, now);
                if let Some(entry) = self.entries.get_mut(&signalled.eviction_id) {
                    entry.is_killed = true;
                    entry.killed_ms = entry.killed_ms.max(killed_ms);
                    entry.is_recorded = true;
                    entry.sequence = entry.sequence.min(sequence);
                }
                let is_new = self.add_killed(sequence, time_ms, signalled, now);
                let owner = live_owner(signalled).filter(|_| is_new)?;
                if let Some(entry) = self.entries.get_mut(&signalled.eviction_id) {
                    entry.owner = Some(owner);
                }
                if !self.is_fresh(sequence, signalled, now) {
                    return None;
                }
                // A phase that has become Succeeded meanwhile must not be overwritten.
                if self.settings.action(owner) != Some(Action::Status) {
                    return self.decide(&signalled.eviction_id, owner, now);
                }
            }
            // It has exited within its grace. Or a crash came between the signal and its event, and the next process found the
            // pod signalled.
            Payload::EvictionCompleted(ended) | Payload::EvictionFailed(ended) => {
                let EvictionEnded { eviction_id, uid, boot_ms, reconstructed, .. } = ended;
                let is_over = if *reconstructed {
                    boot_ms.is_some()
                } else {
                    matches!(payload, Payload::EvictionCompleted(_))
                };
                if let Some(entry) = self.entries.get_mut(eviction_id).filter(|_| is_over) {
                    entry.is_killed = true;
                }
                if let (true, Some(uid), Some(PodName { namespace, name })) =
                    (is_over, uid.clone(), pod.cloned())
                {
                    let signalled = Signalled { time_ms, boot_ms: *boot_ms };
                    let killed_ms = self.killed_ms(sequence, signalled, now);
                    let pod = PodRef { namespace, name, uid };
                    self.add(eviction_id, pod, (sequence, signalled), killed_ms, now);
                }
            }
            Payload::EvictionRequested(requested) => {
                if requested.boot_ms.is_some() && !self.entries.contains_key(&requested.eviction_id) {
                    self.add_soft(requested, sequence, time_ms, now);
                    return None;
                }
                let entry = self.entries.get_mut(&requested.eviction_id)?;
                match &*requested.outcome {
                    "accepted" | "terminating" => {
                        entry.is_marked_failed = requested.action.as_deref() == Some(Action::Status.as_str());
                        entry.confirm(now.instant);
                    }
                    "refused" => entry.is_refusal_reported = true,
                    _ => drop(self.remove(&requested.eviction_id)),
                }
            }
            Payload::EvictionConfirmed(confirmed) => drop(self.remove(&confirmed.eviction_id)),
            Payload::EvictionRepeated(repeated) => {
                if let Some(entry) = self.entries.get_mut(&repeated.eviction_id) {
                    entry.repeats = entry.repeats.max(repeated.count);
                    let may_be_cut_off = sequence <= self.replayed && repeated.outcome == "killed";
                    let cgroups = repeated.cgroup_ids.iter().filter(|_| may_be_cut_off);
                    entry.unsure = cgroups.copied().map(CgroupId).collect();
                }
            }
            _ => {}
        }
        None
    }

    /// Takes in a kill before its event, if it is to be requested at once; all else waits for the event. `newest` is the
    /// position of the journal's newest event.
    pub fn take_kill(&mut self, newest: u64, killed: &EvictionSignalled, now: Now) {
        let Some(owner) = live_owner(killed) else { return };
        let removes = matches!(self.settings.action(owner), Some(Action::Evict | Action::Delete));
        if !removes
            || !self.is_fresh(u64::MAX, killed, now)
            || !self.add_killed(newest + 1, now.time_ms, killed, now)
        {
            return;
        }
        if let Some(entry) = self.entries.get_mut(&killed.eviction_id) {
            entry.is_recorded = false;
        }
        // One that is to be removed is asked for, and nothing is to be reported of it yet.
        drop(self.decide(&killed.eviction_id, owner, now));
    }

    /// Whether the journal has the event of that kill, as far as it was taken in.
    #[must_use]
    pub fn is_recorded(&self, id: &str) -> bool {
        self.entries.get(id).is_none_or(|entry| entry.is_recorded)
    }

    /// Its event is not waited for any longer.
    pub fn set_recorded(&mut self, id: &str) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.is_recorded = true;
        }
    }

    /// Whether what the event says of the pod still holds: it must be of this process and this moment, so that nothing was
    /// asked yet.
    fn is_fresh(&self, sequence: u64, signalled: &EvictionSignalled, now: Now) -> bool {
        let age = signalled.boot_ms.and_then(|boot_ms| now.boot_ms.checked_sub(boot_ms));
        let is_young = age.is_some_and(|age| Duration::from_millis(age) < FRESH);
        // One that is being deleted keeps the grace period that was asked for. One that had time to end may have been requested
        // before it was killed.
        let may_be_requested = signalled.terminating || signalled.killed_because.is_some();
        sequence > self.replayed && is_young && !may_be_requested
    }

    /// Keeps an eviction by its kill. Returns whether it is a new one.
    fn add_killed(&mut self, sequence: u64, time_ms: i64, signalled: &EvictionSignalled, now: Now) -> bool {
        let EvictionSignalled { eviction_id, namespace, name, uid, boot_ms, .. } = signalled;
        let pod = PodRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() };
        let signalled = Signalled { time_ms, boot_ms: *boot_ms };
        let killed_ms = self.killed_ms(sequence, signalled, now);
        self.add(eviction_id, pod, (sequence, signalled), killed_ms, now)
    }

    /// Keeps a soft eviction, which the API server has accepted before any signal.
    fn add_soft(&mut self, requested: &EvictionRequested, sequence: u64, time_ms: i64, now: Now) {
        let EvictionRequested { eviction_id, namespace, name, uid, boot_ms, .. } = requested;
        let pod = PodRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() };
        let signalled = Signalled { time_ms, boot_ms: *boot_ms };
        let is_new = self.add(eviction_id, pod, (sequence, signalled), None, now);
        if let Some(entry) = self.entries.get_mut(eviction_id).filter(|_| is_new) {
            entry.is_killed = false;
            entry.confirm(now.instant);
        }
    }

    /// When a pod was killed by that event, since this boot; by the wall clock if the event does not say it.
    fn killed_ms(&self, sequence: u64, signalled: Signalled, now: Now) -> Option<u64> {
        if sequence <= self.earlier_boots {
            return None;
        }
        let age_ms = || u64::try_from(now.time_ms - signalled.time_ms).unwrap_or(0);
        signalled.boot_ms.or_else(|| now.boot_ms.checked_sub(age_ms()))
    }

    /// Keeps an eviction whose event has that position. Returns whether it is a new one.
    fn add(
        &mut self,
        id: &str,
        pod: PodRef,
        (sequence, signalled): (u64, Signalled),
        killed_ms: Option<u64>,
        now: Now,
    ) -> bool {
        let age = match signalled.boot_ms {
            _ if sequence <= self.earlier_boots => None,
            Some(boot_ms) => now.boot_ms.checked_sub(boot_ms),
            None => Some(u64::try_from(now.time_ms - signalled.time_ms).unwrap_or(0)),
        };
        let age = age.map_or(EXPIRY, Duration::from_millis);
        let expiry = now.instant + EXPIRY.saturating_sub(age);
        // A name that the API server cannot have is none of its pods'.
        if self.settled.iter().any(|settled| settled == id)
            || self.entries.contains_key(id)
            || !pod.is_valid()
        {
            return false;
        }
        // A pod that is killed again, because the server could not be asked yet, is asked for once, and for as long as for the
        // last kill.
        if let Some(known) = self.entries.values_mut().find(|known| known.pod.uid == pod.uid) {
            known.expiry = known.expiry.max(expiry);
            known.killed_ms = known.killed_ms.max(killed_ms);
            return false;
        }
        if self.entries.len() >= MOST {
            tracing::warn!(
                eviction = id,
                "more than {MOST} evictions wait for the API server: this one is not requested"
            );
            return false;
        }
        let message = self.messages.iter().find(|(of, _)| of == id).map(|(_, message)| message.clone());
        let entry = Entry {
            pod,
            sequence,
            signalled,
            killed_ms,
            owner: None,
            repeats: 0,
            unsure: Vec::new(),
            has_budget: false,
            message: message.unwrap_or_else(|| String::from("The node was low on resource: memory. ")),
            stage: Stage::Look,
            due: now.instant,
            expiry,
            failures: 0,
            is_version_doubtful: false,
            requests: 0,
            is_refusal_reported: false,
            is_marked_failed: false,
            is_killed: true,
            is_recorded: true,
        };
        self.entries.insert(id.to_owned(), entry);
        true
    }

    /// When something is to be asked next; `None` if there is nothing.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.entries.values().map(|entry| entry.due).min()
    }

    /// Whether a first request is to be made now, for which nothing else may be waited for.
    #[must_use]
    pub fn is_urgent(&self, now: Now) -> bool {
        let is_first = |entry: &Entry| matches!(entry.stage, Stage::Act(_)) && entry.failures == 0;
        self.entries.values().any(|entry| is_first(entry) && entry.due <= now.instant)
    }

    /// What is to be asked now, for which eviction: at first what changes something.
    #[must_use]
    pub fn next(&self, now: Now) -> Option<(String, Call)> {
        let due = self.entries.iter().filter(|(_, entry)| entry.due <= now.instant);
        let is_look = |stage| !matches!(stage, Stage::Act(_));
        let (id, entry) = due.min_by_key(|(_, entry)| (is_look(entry.stage), entry.due, entry.sequence))?;
        let pod = entry.pod.clone();
        let stage = if now.instant >= entry.expiry { Stage::Look } else { entry.stage };
        let call = match (stage, &self.group_version) {
            (Stage::Look | Stage::Confirm, _) => Call::Look(pod),
            (Stage::Act(Action::Evict), None) => Call::Discover,
            (Stage::Act(Action::Evict), Some(group_version)) => {
                Call::Evict { pod, group_version: group_version.clone(), grace_seconds: GRACE_SECONDS }
            }
            (Stage::Act(Action::Delete), _) => Call::Delete { pod, grace_seconds: GRACE_SECONDS },
            (Stage::Act(Action::Status), _) => Call::Status { pod, message: entry.message.clone() },
        };
        Some((id.clone(), call))
    }

    /// Takes the group and version of evictions, found before one had to be asked for.
    pub fn discovered(&mut self, group_version: Option<String>) {
        self.group_version = group_version;
    }

    /// Takes the answer to what [`next`](Self::next) returned, asked at `asked`; `None` means that there is none. Returns what
    /// is to be reported.
    pub fn answered(&mut self, id: &str, answer: Option<Outcome>, asked: Now, now: Now) -> Option<Payload> {
        let settings = self.settings;
        let entry = self.entries.get_mut(id)?;
        let answer = answer.and_then(|answer| entry.count(answer));
        if now.instant >= entry.expiry && !matches!(answer, Some(Outcome::Done { .. })) {
            let words = "no request succeeded within an hour; the kubelet restarts the containers";
            // Whether it is gone at last is not waited for any longer.
            let payload = (entry.stage != Stage::Confirm).then(|| entry.settled(id, "expired", None, words));
            self.remove(id);
            return payload;
        }
        let asks_for_version = entry.stage == Stage::Act(Action::Evict) && self.group_version.is_none();
        let Some(answer) = answer else {
            // Whether it was done nevertheless is seen by a look.
            if matches!(entry.stage, Stage::Act(_)) {
                entry.requests += u32::from(!asks_for_version);
                entry.stage = Stage::Look;
            }
            entry.retry(id, now.instant, None);
            return None;
        };
        match (entry.stage, answer) {
            (Stage::Look, Outcome::Found(found)) => return self.looked(id, &found, now),
            // The request was not answered, and this is how the pod is since.
            (Stage::Act(_), Outcome::Found(found)) => {
                entry.requests += 1;
                return self.looked(id, &found, now);
            }
            (Stage::Look, Outcome::Missing) => {
                return self.settle(id, "gone", None, "the pod no longer exists");
            }
            (Stage::Confirm, Outcome::Found(found)) if found.uid == entry.pod.uid => {
                if entry.is_marked_failed && (found.has_ended || entry.requests >= MOST_MARKS) {
                    self.remove(id);
                    return None;
                }
                // The kubelet wrote the phase that it knew over the one that was asked for.
                if entry.is_marked_failed {
                    entry.stage = Stage::Act(Action::Status);
                }
                entry.retry(id, now.instant, None);
            }
            (Stage::Confirm, Outcome::Found(_) | Outcome::Missing) => {
                let entry = self.remove(id)?;
                return Some(entry.confirmed(id, now));
            }
            (Stage::Act(Action::Evict), Outcome::Known(version)) => self.group_version = Some(version),
            (Stage::Act(Action::Evict), Outcome::Discovered(found)) => match found {
                Some(_) => self.group_version = found,
                None if settings.on_pdb == OnPdb::Override => entry.stage = Stage::Act(Action::Delete),
                None => {
                    let words = "the API server has no subresource pods/eviction";
                    return entry.refused(id, None, words, None, now.instant);
                }
            },
            (Stage::Act(action), Outcome::Done { sent_boot_ms }) => {
                entry.requests += 1;
                // The value comes from the kube process, which is not trusted.
                let sent_boot_ms = sent_boot_ms.clamp(asked.boot_ms, now.boot_ms.max(asked.boot_ms));
                let after_ms = entry.signalled.boot_ms.map(|boot_ms| sent_boot_ms.saturating_sub(boot_ms));
                let words = format!("the API server accepted the request `{}`", action.as_str());
                let mut requested = entry.requested(id, "accepted", None, &words);
                requested.action = Some(action.as_str().into());
                requested.signalled_to_requested_ms = after_ms;
                let is_again = std::mem::replace(&mut entry.is_marked_failed, action == Action::Status);
                entry.confirm(now.instant);
                return (!is_again).then_some(Payload::EvictionRequested(requested));
            }
            (Stage::Act(Action::Evict), Outcome::Budget { words, after_ms }) => {
                entry.requests += 1;
                entry.has_budget = true;
                if settings.on_pdb == OnPdb::Override {
                    entry.stage = Stage::Act(Action::Delete);
                    return None;
                }
                let after = after_ms.map(Duration::from_millis);
                return entry.refused(id, Some("disruptionBudget"), &words, after, now.instant);
            }
            // It has changed meanwhile, or evictions are served in another version now.
            (Stage::Act(_), Outcome::Missing | Outcome::Conflict) if !asks_for_version => {
                entry.requests += 1;
                entry.is_version_doubtful = true;
                entry.stage = Stage::Look;
                entry.retry(id, now.instant, None);
            }
            (Stage::Act(action), Outcome::Refused { status, words, after_ms }) if !asks_for_version => {
                entry.requests += 1;
                if action == Action::Delete && entry.has_budget && matches!(status, 401 | 403) {
                    // Without the right to delete, a budget can only be waited for.
                    let words = format!(
                        "a PodDisruptionBudget refuses the eviction, and these credentials may not delete pods: {words}"
                    );
                    return entry.refused(id, Some("disruptionBudget"), &words, None, now.instant);
                }
                let words = format!("the API server answers {status}: {words}");
                let after = after_ms.map(Duration::from_millis);
                return entry.refused(id, None, &words, after, now.instant);
            }
            (stage, other) => {
                // The version was asked for: what was known of the pod may be old when that is known.
                if matches!(stage, Stage::Act(_)) {
                    entry.stage = Stage::Look;
                }
                let after_ms = if let Outcome::Refused { after_ms, .. } = other { after_ms } else { None };
                entry.retry(id, now.instant, after_ms.map(Duration::from_millis));
            }
        }
        None
    }

    /// Decides what to ask for a pod as the API server has it.
    fn looked(&mut self, id: &str, found: &FoundPod, now: Now) -> Option<Payload> {
        let entry = self.entries.get_mut(id)?;
        if found.uid != entry.pod.uid {
            return self.settle(id, "anotherPod", None, "another pod has this name now");
        }
        if found.is_terminating {
            entry.confirm(now.instant);
            return Some(entry.settled(id, "terminating", None, "the pod is being deleted already"));
        }
        if found.has_ended {
            return self.settle(id, "ended", None, "the pod has ended already");
        }
        if found.is_mirror {
            return self.settle(id, "withheld", Some("staticPod"), "the pod is a static one of the kubelet");
        }
        if std::mem::take(&mut entry.is_version_doubtful) {
            self.group_version = None;
        }
        self.decide(id, Owner::of(found.controller.as_deref()), now)
    }

    /// Decides what to ask for a pod of such an owner.
    fn decide(&mut self, id: &str, owner: Owner, now: Now) -> Option<Payload> {
        let Some(action) = self.settings.action(owner) else {
            let (reason, words) = owner.withheld();
            return self.settle(
                id,
                "withheld",
                reason,
                &format!("{words}; the kubelet restarts its containers"),
            );
        };
        let entry = self.entries.get_mut(id)?;
        entry.owner = Some(owner);
        entry.stage = Stage::Act(action);
        entry.due = now.instant;
        None
    }

    /// Reports what came of an eviction, and forgets it.
    fn settle(
        &mut self,
        id: &str,
        outcome: &'static str,
        reason: Option<&'static str>,
        words: &str,
    ) -> Option<Payload> {
        let entry = self.remove(id)?;
        Some(entry.settled(id, outcome, reason, words))
    }

    fn remove(&mut self, id: &str) -> Option<Entry> {
        self.settled.truncate(LATEST - 1);
        self.settled.push_front(id.to_owned());
        self.entries.remove(id)
    }

    /// The position from which the events have to be read again after a restart; `read` is how far they were read.
    #[must_use]
    pub fn position(&self, read: u64) -> u64 {
        self.entries
            .values()
            .map(|entry| entry.sequence.saturating_sub(1))
            .min()
            .map_or(read, |first| first.min(read))
    }
}

/// Whose pod it is by the event itself; `None` if no source had its spec then.
fn live_owner(signalled: &EvictionSignalled) -> Option<Owner> {
    let kind = signalled.controller.as_ref().map(|controller| controller.kind.as_str());
    (signalled.spec.as_deref() == Some("live")).then(|| Owner::of(kind))
}

#[cfg(test)]
mod tests;
