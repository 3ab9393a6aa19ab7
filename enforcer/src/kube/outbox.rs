//! What the API server still has to be asked: pure, from the journal's events and the server's answers.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use enforcer_events::{
    Payload,
    eviction::{EvictionConfirmed, EvictionDecided, EvictionEnded, EvictionRequested, EvictionSignalled},
};

use super::message::{Action, Call, FoundPod, Outcome, PodRef};
use crate::model::PodName;

/// For how long after the signal the API server is asked. A pod that still runs then has been started anew for long.
pub(super) const EXPIRY: Duration = Duration::from_hours(1);

/// The grace of a pod whose processes are dead, in seconds; with 0 the API server would not wait for the kubelet.
const GRACE_SECONDS: u64 = 1;

/// The pause after a failure; each further one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The pause before the first look whether an evicted pod is gone.
const CONFIRM: Duration = Duration::from_secs(1);

/// How many decisions' messages are kept until the signal.
const MESSAGES: usize = 64;

/// The most evictions that are kept. The breaker allows a fraction of that in an hour.
const MOST: usize = 1_024;

/// What is asked of the API server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ApiSettings {
    /// For a pod of a controller; `None` asks for nothing.
    pub action: Option<Action>,
    /// What to do if a disruption budget refuses.
    pub on_pdb: OnPdb,
    /// For a pod without a controller; `None` leaves it to the kubelet.
    pub bare_pods: Option<Action>,
    /// For a pod of a `DaemonSet`, which comes back on the same node; `None` leaves it to the kubelet.
    pub daemon_set_pods: Option<Action>,
}

impl Default for ApiSettings {
    fn default() -> Self {
        Self { action: Some(Action::Evict), on_pdb: OnPdb::Override, bare_pods: None, daemon_set_pods: None }
    }
}

/// What to do if a disruption budget refuses an eviction: the processes are dead already.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnPdb {
    /// Delete the pod: a kubelet's own eviction ignores budgets too.
    Override,
    /// Ask again.
    Respect,
}

/// Whose pod it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Owned {
    /// A controller makes another, anywhere.
    ByController,
    /// Another is made on this node.
    ByDaemonSet,
    /// Nothing makes another.
    ByNothing,
}

/// The evictions that the API server has to know of.
///
/// An eviction comes in with the event of its signal, and leaves with the events that say what came of it. Whoever reads
/// the events again from [`position`](Self::position) has the same evictions, and looks at each pod before anything is
/// asked again.
#[derive(Debug)]
pub struct Outbox {
    settings: ApiSettings,
    entries: BTreeMap<String, Entry>,
    /// The group and version of evictions.
    group_version: Option<String>,
    /// The messages of the latest decisions, by eviction.
    messages: VecDeque<(String, String)>,
}

#[derive(Debug)]
struct Entry {
    pod: PodRef,
    /// The position of the signal's event.
    sequence: u64,
    signalled: Signalled,
    message: String,
    stage: Stage,
    due: Instant,
    expiry: Instant,
    /// How often in a row it failed.
    failures: u32,
    /// How many requests that change something were sent.
    requests: u32,
    is_refusal_reported: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    /// How is the pod?
    Look,
    /// It is as it should be for this to be asked.
    Act(Action),
    /// It was asked for: is the pod gone?
    Confirm,
}

/// When an eviction was signalled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signalled {
    /// On the clock on the wall, in milliseconds since 1970.
    pub(super) time_ms: i64,
    /// Since the machine was started, in milliseconds, if it was reported.
    pub(super) boot_ms: Option<u64>,
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

impl ApiSettings {
    fn action(self, owned: Owned) -> Option<Action> {
        match owned {
            Owned::ByController => self.action,
            Owned::ByDaemonSet => self.daemon_set_pods,
            Owned::ByNothing => self.bare_pods,
        }
    }
}

impl Owned {
    fn of(pod: &FoundPod) -> Self {
        match pod.controller.as_deref() {
            None => Self::ByNothing,
            Some("DaemonSet") => Self::ByDaemonSet,
            Some(_) => Self::ByController,
        }
    }

    /// Why nothing is asked for such a pod: in a word, and in words.
    const fn withheld(self) -> (Option<&'static str>, &'static str) {
        match self {
            Self::ByController => (None, "apiAction is none"),
            Self::ByDaemonSet => {
                (Some("daemonSetPod"), "the pod is of a DaemonSet, which would make another on this node")
            }
            Self::ByNothing => (Some("barePod"), "the pod has no controller, and nothing would make another"),
        }
    }
}

impl Outbox {
    /// An empty one.
    #[must_use]
    pub fn new(settings: ApiSettings) -> Self {
        Self { settings, entries: BTreeMap::new(), group_version: None, messages: VecDeque::new() }
    }

    /// Takes an event of the journal in.
    pub fn take(&mut self, sequence: u64, time_ms: i64, pod: Option<&PodName>, payload: &Payload, now: Now) {
        match payload {
            Payload::EvictionDecided(EvictionDecided::Decision(decision)) => {
                self.messages.truncate(MESSAGES - 1);
                self.messages.push_front((decision.eviction_id.clone(), decision.message.clone()));
            }
            Payload::EvictionSignalled(signalled) => {
                let EvictionSignalled { eviction_id, namespace, name, uid, boot_ms, .. } = signalled;
                let pod = PodRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() };
                self.add(eviction_id, pod, sequence, Signalled { time_ms, boot_ms: *boot_ms }, now);
            }
            // A crash came between the signal and its event, and the next process found the pod signalled.
            Payload::EvictionCompleted(ended) | Payload::EvictionFailed(ended) => {
                let EvictionEnded { eviction_id, uid, boot_ms, .. } = ended;
                if let (true, Some(boot_ms), Some(uid), Some(PodName { namespace, name })) =
                    (ended.reconstructed, *boot_ms, uid.clone(), pod.cloned())
                {
                    let signalled = Signalled { time_ms, boot_ms: Some(boot_ms) };
                    self.add(eviction_id, PodRef { namespace, name, uid }, sequence, signalled, now);
                }
            }
            Payload::EvictionRequested(requested) => {
                let Some(entry) = self.entries.get_mut(&requested.eviction_id) else { return };
                match &*requested.outcome {
                    "accepted" | "terminating" => entry.confirm(now.instant),
                    "refused" => entry.is_refusal_reported = true,
                    _ => drop(self.entries.remove(&requested.eviction_id)),
                }
            }
            Payload::EvictionConfirmed(confirmed) => drop(self.entries.remove(&confirmed.eviction_id)),
            _ => {}
        }
    }

    fn add(&mut self, id: &str, pod: PodRef, sequence: u64, signalled: Signalled, now: Now) {
        // A grace has a second signal. A name that the API server cannot have is none of its pods'.
        if self.entries.contains_key(id) || self.entries.len() >= MOST || !pod.is_valid() {
            return;
        }
        let message = self.messages.iter().find(|(of, _)| of == id).map(|(_, message)| message.clone());
        let age_ms = u64::try_from(now.time_ms - signalled.time_ms).unwrap_or(0);
        let expiry = now.instant + EXPIRY.saturating_sub(Duration::from_millis(age_ms));
        let entry = Entry {
            pod,
            sequence,
            signalled,
            message: message.unwrap_or_else(|| String::from("The node was low on resource: memory. ")),
            stage: Stage::Look,
            due: now.instant,
            expiry,
            failures: 0,
            requests: 0,
            is_refusal_reported: false,
        };
        self.entries.insert(id.to_owned(), entry);
    }

    /// When something is to be asked next; `None` if there is nothing.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.entries.values().map(|entry| entry.due).min()
    }

    /// What is to be asked now, for which eviction.
    #[must_use]
    pub fn next(&self, now: Now) -> Option<(String, Call)> {
        let due = self.entries.iter().filter(|(_, entry)| entry.due <= now.instant);
        let (id, entry) = due.min_by_key(|(_, entry)| (entry.due, entry.sequence))?;
        let pod = entry.pod.clone();
        let call = match (entry.stage, &self.group_version) {
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

    /// Takes the answer to what [`next`](Self::next) returned, asked at `asked`; `None`
    /// means that there is none. Returns
    /// what is to be reported.
    pub fn answered(&mut self, id: &str, answer: Option<Outcome>, asked: Now, now: Now) -> Option<Payload> {
        let settings = self.settings;
        let entry = self.entries.get_mut(id)?;
        if now.instant >= entry.expiry {
            let words =
                "it was not asked in time; the kubelet has started the pod's containers anew meanwhile";
            // Whether it is gone at last is not waited for any longer.
            let payload = (entry.stage != Stage::Confirm).then(|| entry.settled(id, "expired", None, words));
            self.entries.remove(id);
            return payload;
        }
        let asks_for_version = entry.stage == Stage::Act(Action::Evict) && self.group_version.is_none();
        let Some(answer) = answer else {
            // Whether it was done nevertheless is seen by a look.
            if matches!(entry.stage, Stage::Act(_)) && !asks_for_version {
                entry.requests += 1;
                entry.stage = Stage::Look;
            }
            entry.retry(id, now.instant, None);
            return None;
        };
        match (entry.stage, answer) {
            (Stage::Look, Outcome::Found(found)) => return self.looked(id, &found, now),
            (Stage::Look, Outcome::Missing) => {
                return self.settle(id, "gone", None, "it has no such pod any more");
            }
            (Stage::Confirm, Outcome::Found(found)) if found.uid == entry.pod.uid => {
                entry.retry(id, now.instant, None);
            }
            (Stage::Confirm, Outcome::Found(_) | Outcome::Missing) => {
                let entry = self.entries.remove(id)?;
                return Some(entry.confirmed(id, now));
            }
            (Stage::Act(Action::Evict), Outcome::Discovered(found)) => match found {
                Some(_) => self.group_version = found,
                None => entry.stage = Stage::Act(Action::Delete),
            },
            (Stage::Act(action), Outcome::Done) => {
                entry.requests += 1;
                let after_ms = entry.signalled.boot_ms.map(|boot_ms| asked.boot_ms.saturating_sub(boot_ms));
                let words = format!("it has accepted: {}", action.as_str());
                let mut requested = entry.requested(id, "accepted", None, &words);
                requested.action = Some(action.as_str().into());
                requested.signalled_to_requested_ms = after_ms;
                entry.confirm(now.instant);
                return Some(Payload::EvictionRequested(requested));
            }
            (Stage::Act(Action::Evict), Outcome::Budget { words }) => {
                entry.requests += 1;
                if settings.on_pdb == OnPdb::Override {
                    entry.stage = Stage::Act(Action::Delete);
                    return None;
                }
                return entry.refused(id, Some("disruptionBudget"), &words, None, now.instant);
            }
            // It has changed meanwhile, or evictions are served in another version now.
            (Stage::Act(_), Outcome::Missing | Outcome::Conflict) if !asks_for_version => {
                entry.requests += 1;
                self.group_version = None;
                entry.stage = Stage::Look;
                entry.retry(id, now.instant, None);
            }
            (Stage::Act(action), Outcome::Refused { status, words, after_ms }) if !asks_for_version => {
                entry.requests += 1;
                let is_forbidden = matches!(status, 401 | 403);
                if action == Action::Delete && settings.action == Some(Action::Evict) && is_forbidden {
                    // Without the right to delete, a budget can only be waited for.
                    let words = format!(
                        "a disruption budget refuses it, and these credentials may not delete pods: {words}"
                    );
                    return entry.refused(id, Some("disruptionBudget"), &words, None, now.instant);
                }
                let words = format!("status {status}: {words}");
                let after = after_ms.map(Duration::from_millis);
                return entry.refused(id, None, &words, after, now.instant);
            }
            (_, Outcome::Refused { after_ms, .. }) => {
                entry.retry(id, now.instant, after_ms.map(Duration::from_millis));
            }
            (_, _) => entry.retry(id, now.instant, None),
        }
        None
    }

    /// Decides what to ask for a pod as the API server has it.
    fn looked(&mut self, id: &str, found: &FoundPod, now: Now) -> Option<Payload> {
        let settings = self.settings;
        let entry = self.entries.get_mut(id)?;
        if found.uid != entry.pod.uid {
            return self.settle(id, "anotherPod", None, "its pod of that name is another one");
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
        let owned = Owned::of(found);
        let Some(action) = settings.action(owned) else {
            let (reason, words) = owned.withheld();
            return self.settle(
                id,
                "withheld",
                reason,
                &format!("{words}: the kubelet starts its containers anew"),
            );
        };
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
        let entry = self.entries.remove(id)?;
        Some(entry.settled(id, outcome, reason, words))
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

    /// Whether nothing has to be asked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Entry {
    fn requested(
        &self,
        id: &str,
        outcome: &'static str,
        reason: Option<&'static str>,
        words: &str,
    ) -> EvictionRequested {
        let PodRef { namespace, name, uid } = self.pod.clone();
        EvictionRequested {
            eviction_id: id.to_owned(),
            namespace,
            name,
            uid,
            outcome: outcome.into(),
            action: None,
            reason: reason.map(Into::into),
            requests: self.requests,
            signalled_to_requested_ms: None,
            message: format!("the API server: {words}"),
        }
    }

    fn settled(&self, id: &str, outcome: &'static str, reason: Option<&'static str>, words: &str) -> Payload {
        Payload::EvictionRequested(self.requested(id, outcome, reason, words))
    }

    /// The server refuses: it is asked again, and the first refusal is reported.
    fn refused(
        &mut self,
        id: &str,
        reason: Option<&'static str>,
        words: &str,
        after: Option<Duration>,
        now: Instant,
    ) -> Option<Payload> {
        let is_first = !std::mem::replace(&mut self.is_refusal_reported, true);
        self.stage = Stage::Look;
        self.retry(id, now, after);
        is_first.then(|| self.settled(id, "refused", reason, words))
    }

    fn confirmed(self, id: &str, now: Now) -> Payload {
        let PodRef { namespace, name, uid } = self.pod;
        let after_ms = self.signalled.boot_ms.map(|boot_ms| now.boot_ms.saturating_sub(boot_ms));
        Payload::EvictionConfirmed(EvictionConfirmed {
            eviction_id: id.to_owned(),
            namespace,
            name,
            uid,
            signalled_to_confirmed_ms: after_ms,
        })
    }

    fn confirm(&mut self, now: Instant) {
        if self.stage != Stage::Confirm {
            self.stage = Stage::Confirm;
            self.failures = 0;
            self.due = now + CONFIRM;
        }
    }

    /// Waits before the next request: longer each time, and no two of thousands of nodes at the same moment.
    fn retry(&mut self, id: &str, now: Instant, after: Option<Duration>) {
        let pause = FIRST_PAUSE * 2_u32.saturating_pow(self.failures.min(16));
        let pause = pause.min(LONGEST_PAUSE);
        self.failures += 1;
        let spread = id.bytes().fold(u32::from(self.failures.to_le_bytes()[0]), |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        let jittered = pause / 2 + pause / 2 * (spread % 256) / 255;
        self.due = now + jittered.max(after.unwrap_or_default());
    }
}
