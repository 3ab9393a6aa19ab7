//! The thread that kills containers of an evicted pod again, which the kubelet starts before the API server has removed
//! the pod.

mod pace;

use std::{
    io,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use enforcer_events::{Payload, eviction::EvictionRepeated};
use tokio::{runtime::Builder, sync::watch};

use self::pace::{Pace, Step};
use super::EngineEvent;
use crate::{
    clock,
    evict::{Candidate, EndError, check_again, kill_again},
    journal::{Journal, Subject},
    kube::OpenEviction,
    model::{CgroupId, PodName},
    policy::{
        engine::{Refusal, Spared},
        order::{Order, What},
        threshold::NodeCondition,
    },
    threads,
};

/// The stack of the thread.
const STACK_BYTES: usize = 512 << 10;

/// How soon containers are looked at again. Nothing reports that the first process comes into a cgroup.
const LOOK: Duration = Duration::from_millis(100);

/// The same once nothing has changed for [`QUIET`].
const LOOK_QUIET: Duration = Duration::from_secs(1);

/// How long after its kill a process may show neither the signal, which it has taken, nor that it exits.
const TAKEN_MS: u64 = 1_000;

/// How long a new cgroup may take to get its first process.
const QUIET: Duration = Duration::from_secs(10);

/// The running thread; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Repeating {
    feed: Option<Feed>,
    thread: Option<JoinHandle<()>>,
}

/// What the daemon's loop knows.
#[derive(Debug)]
struct Feed {
    candidates: watch::Sender<Vec<Arc<Candidate>>>,
    is_short: watch::Sender<bool>,
}

struct Run {
    open: watch::Receiver<Vec<OpenEviction>>,
    candidates: watch::Receiver<Vec<Arc<Candidate>>>,
    is_short: watch::Receiver<bool>,
    orders: watch::Receiver<Vec<Order>>,
    journal: Journal,
    pace: Pace,
    changed: Instant,
}

impl Repeating {
    /// Starts the thread. `open` are the evictions whose pods the API server is to remove, `orders` those of operators.
    pub(super) fn start(
        open: watch::Receiver<Vec<OpenEviction>>,
        orders: watch::Receiver<Vec<Order>>,
        journal: &Journal,
    ) -> io::Result<Self> {
        let (to_candidates, candidates) = watch::channel(Vec::new());
        let (to_is_short, is_short) = watch::channel(false);
        let runtime = Builder::new_current_thread().enable_time().build()?;
        let (journal, pace, changed) = (journal.clone(), Pace::default(), Instant::now());
        let run = Run { open, candidates, is_short, orders, journal, pace, changed };
        let thread = std::thread::Builder::new().name(String::from("kube-repeats")).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || runtime.block_on(run.run()))?;
        let feed = Feed { candidates: to_candidates, is_short: to_is_short };
        Ok(Self { feed: Some(feed), thread: Some(thread) })
    }

    /// Hands on the pods that may be evicted.
    pub(super) fn set_candidates(&self, candidates: &[Arc<Candidate>]) {
        if let Some(feed) = &self.feed {
            feed.candidates.send_replace(candidates.to_vec());
        }
    }

    /// Takes whether memory is short.
    pub(super) fn note(&self, event: &EngineEvent) {
        if let (Some(feed), EngineEvent::Conditions(conditions)) = (&self.feed, event) {
            let is_short = conditions.has(NodeCondition::MemoryPressure);
            feed.is_short.send_if_modified(|before| std::mem::replace(before, is_short) != is_short);
        }
    }
}

impl Drop for Repeating {
    /// No container is signalled afterwards.
    fn drop(&mut self) {
        drop(self.feed.take());
        if let Some(thread) = self.thread.take() {
            threads::join(thread);
        }
    }
}

impl Run {
    async fn run(mut self) {
        loop {
            let due = self.look();
            let changed = tokio::select! {
                changed = self.open.changed() => changed,
                changed = self.candidates.changed() => changed,
                changed = self.is_short.changed() => changed,
                () = wait_until(due) => continue,
            };
            // The daemon stops.
            if changed.is_err() {
                return;
            }
            self.changed = Instant::now();
        }
    }

    /// Looks at all open evictions, and does what is due. Returns when to look again.
    fn look(&mut self) -> Option<Instant> {
        let open = self.open.borrow_and_update().clone();
        let is_short = *self.is_short.borrow_and_update();
        self.candidates.mark_unchanged();
        self.pace.keep(&open);
        let mut next = None;
        for eviction in &open {
            let now = Instant::now();
            let Some(due) = self.pace.due(eviction, is_short, now) else { continue };
            let pause = if now.duration_since(self.changed) < QUIET { LOOK } else { LOOK_QUIET };
            let again = due.max(now + pause);
            next = Some(next.map_or(again, |next: Instant| next.min(again)));
            let is_it = |candidate: &&Arc<Candidate>| is_of(candidate, eviction);
            let candidate = self.candidates.borrow().iter().find(is_it).cloned();
            if let Some(candidate) = candidate.filter(|_| due <= now) {
                self.repeat(eviction, &candidate, now);
            }
        }
        next
    }

    fn repeat(&mut self, eviction: &OpenEviction, candidate: &Candidate, now: Instant) {
        let living =
            candidate.living_containers(eviction.killed_ms.filter(|killed_ms| is_recent(*killed_ms)));
        if living.is_empty() {
            return;
        }
        let names: Vec<&str> = living.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(", ");
        if let Err(error) = check_again(candidate) {
            return self.refused(eviction, &living, &names, &error, now);
        }
        let cgroups: Vec<CgroupId> = living.iter().map(|(_, cgroup)| *cgroup).collect();
        match self.pace.step(eviction, &cgroups, self.spared(candidate), now) {
            None => {}
            Some(Step::Finish) => {
                if let Err(error) = kill_again(candidate) {
                    self.refused(eviction, &living, &names, &error, now);
                }
            }
            Some(Step::Spare(spared)) => {
                let message =
                    format!("the kubelet started {names} again, which is not killed: {}", why(spared));
                self.report(eviction, &living, "spared", Some(spared.as_str()), message, None);
            }
            Some(Step::Exhausted) => {
                let message = format!(
                    "the kubelet started {names} again; containers were killed again {} times, and are not any more for \
                     this eviction: the pod is a candidate like any other",
                    pace::MOST
                );
                self.report(eviction, &living, "exhausted", None, message, None);
            }
            Some(Step::Kill { count }) => {
                // Before the signal, so that no kill goes unreported if the daemon is killed here; the next one kills what
                // lives then. A power cut ends the containers by itself, so the disk is not waited for.
                let message =
                    format!("the kubelet started {names} again before the pod was gone: killed again");
                self.report(eviction, &living, "killed", None, message, Some(count));
                if let Err(error) = kill_again(candidate) {
                    self.refused(eviction, &living, &names, &error, now);
                }
            }
        }
    }

    /// Reports, once for each eviction, that its containers cannot be killed, unless they are gone.
    fn refused(
        &mut self,
        eviction: &OpenEviction,
        living: &[(String, CgroupId)],
        names: &str,
        error: &EndError,
        now: Instant,
    ) {
        let reason = match error {
            EndError::Refused(Refusal::Empty | Refusal::Gone) => return,
            EndError::Cgroup(error) if error.is_gone() => return,
            EndError::Forbidden(_) => "forbidden",
            _ => "refused",
        };
        if self.pace.refused(eviction, now) {
            let message =
                format!("the kubelet started {names} again, which cannot be killed: {}", crate::chain(error));
            self.report(eviction, living, "refused", Some(reason), message, None);
        }
    }

    /// Why the pod must not be killed now. The mode does not change while the daemon runs.
    fn spared(&self, candidate: &Candidate) -> Option<Spared> {
        let facts = candidate.facts();
        let (orders, protection) = (self.orders.borrow(), What::protect(&candidate.identity().pod));
        let has = |what: &What| orders.iter().any(|order| order.what == *what);
        if has(&What::Pause) {
            Some(Spared::Paused)
        } else if facts.critical {
            Some(Spared::Critical)
        } else {
            (facts.protected || has(&protection)).then_some(Spared::Protected)
        }
    }

    fn report(
        &self,
        eviction: &OpenEviction,
        living: &[(String, CgroupId)],
        outcome: &'static str,
        reason: Option<&'static str>,
        message: String,
        count: Option<u32>,
    ) {
        let (namespace, name) = (eviction.pod.namespace.clone(), eviction.pod.name.clone());
        let data = EvictionRepeated {
            eviction_id: eviction.id.clone(),
            namespace: namespace.clone(),
            name: name.clone(),
            uid: eviction.pod.uid.clone(),
            outcome: outcome.into(),
            reason: reason.map(Into::into),
            containers: living.iter().map(|(name, _)| name.clone()).collect(),
            cgroup_ids: living.iter().map(|(_, id)| id.0).collect(),
            count: count.unwrap_or_else(|| self.pace.count(eviction)),
            boot_ms: Some(clock::boottime_ms()),
            message,
        };
        self.journal.emit(Subject::Pod(PodName { namespace, name }), Payload::EvictionRepeated(data));
    }
}

/// Whether that is the pod of the eviction: by its uid, which no other pod of that name has. Only of a kubelet's pod are
/// the containers known apart from the sandbox.
fn is_of(candidate: &Candidate, eviction: &OpenEviction) -> bool {
    let identity = candidate.identity();
    identity.placed.is_some() && identity.uid.as_str() == eviction.pod.uid
}

/// Whether what the kill ended may still look alive. Later everything that lives counts: the kill may not have reached it, as its
/// cgroup was not known yet.
fn is_recent(killed_ms: u64) -> bool {
    clock::boottime_ms().checked_sub(killed_ms).is_some_and(|age_ms| age_ms < TAKEN_MS)
}

fn why(spared: Spared) -> &'static str {
    match spared {
        Spared::Protected => "an operator has protected the pod",
        Spared::Critical => "the pod has become critical",
        Spared::Paused => "an operator has paused evicting",
        Spared::NotEnforcing => "the mode is not enforce",
    }
}

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
