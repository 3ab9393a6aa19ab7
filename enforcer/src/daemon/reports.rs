//! The reflex, and where its reports go: to the journal, the recorder, and the desired state.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Context as _;
use tokio::{runtime::Builder, sync::mpsc};

use super::{
    EngineEvent, RECORDING, armed, emit,
    host::Host,
    ooms::BeingEvicted,
    past,
    recording::{self, Recording},
    trimming::MEMORY_LOCK,
};
use crate::{
    clock,
    config::Config,
    evict::{
        self, Asking, EventBuilder, EvictionIntents, FillWaker, InheritedEviction, Listener, Recorded,
        Reflex, ReflexConfig, Report, Requester,
    },
    journal::Journal,
    kube::Kills,
    policy::engine::{EngineSettings, Thresholds},
    recorder::Asker,
};

/// Where the reflex's reports go.
pub(super) struct ReportTargets {
    pub(super) events: Arc<Mutex<EventBuilder>>,
    pub(super) journal: Journal,
    pub(super) being_evicted: BeingEvicted,
    pub(super) sender: mpsc::UnboundedSender<EngineEvent>,
    /// Woken when available memory begins to fall fast.
    pub(super) fill_waker: Option<FillWaker>,
    /// Asked before a soft eviction signals anything.
    pub(super) requester: Option<Arc<dyn Requester>>,
    /// Where kills are handed on to be requested at the API server.
    pub(super) kills: Option<Kills>,
}

/// What an earlier process left to the reflex.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// The reflex's part of the intent page, if there is one.
    pub(super) intents: Option<EvictionIntents>,
    /// The eviction to go on with.
    pub(super) inherited: Option<Arc<InheritedEviction>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a power cut can no longer lose that event; not for ever, as a disk may accept no writes at all. A
/// journal without a disk has reported that, and does not wait.
pub(super) async fn is_durable(journal: &Journal, sequence: u64) -> bool {
    let mut durable = journal.durable();
    let reached = durable.wait_for(|durable| *durable >= sequence);
    !journal.has_disk() || tokio::time::timeout(RECORDING, reached).await.is_ok_and(|reached| reached.is_ok())
}

/// The same for a thread outside of any runtime, which may outlive the daemon's.
fn wait_until_durable(journal: &Journal, sequence: u64) -> bool {
    match Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime.block_on(is_durable(journal, sequence)),
        Err(error) => {
            tracing::warn!(%error, "cannot wait for a decision to be on the disk");
            false
        }
    }
}

/// Receives the reflex's reports.
struct ReportListener {
    events: Arc<Mutex<EventBuilder>>,
    journal: Journal,
    being_evicted: BeingEvicted,
    kills: Option<Kills>,
    asker: Option<Asker>,
    sender: mpsc::UnboundedSender<EngineEvent>,
    run_dir: PathBuf,
    boot_id: String,
    /// The position of the decision of the eviction that an earlier process left.
    decided_before: Option<u64>,
}

impl ReportListener {
    /// How whoever asks a victim to end finds out whether that event is on the disk. This thread must not wait for it: a
    /// kill that is reported late is requested late.
    fn recorded(&self, sequence: u64) -> Recorded {
        let journal = self.journal.clone();
        Recorded::Awaited(Arc::new(move || wait_until_durable(&journal, sequence)))
    }

    /// Stores the armed thresholds for the next start, before the arming is reported.
    fn keep_armed(&self, thresholds: &Thresholds) {
        if let Err(error) = armed::keep(&self.run_dir, &self.boot_id, thresholds) {
            let message = format!(
                "a restart while a threshold is crossed disarms it: cannot write to {}: {error}",
                self.run_dir.display()
            );
            emit::degraded(&self.journal, "armed", &message);
        }
    }
}

impl Listener for ReportListener {
    /// Has the kernel read the pages that a report needs from disk now, and not when memory is short.
    fn rehearse(&mut self, report: Report) {
        drop(lock(&self.events).clone().event(&report));
    }

    fn see(&mut self, report: &Report) {
        if let Some(kills) = &self.kills
            && let Some(killed) = evict::killed_data(report)
        {
            kills.send(killed);
        }
        let reflexion = match report {
            Report::Conditions(conditions) => EngineEvent::Conditions(*conditions),
            Report::Signalled { number, candidate, .. }
            | Report::Terminated { number, candidate, .. }
            | Report::Requested { number, candidate }
            | Report::Inherited { number, candidate, is_asked: true, .. } => {
                EngineEvent::Evicted { uid: candidate.identity().uid.clone(), number: *number }
            }
            Report::Arming { armed, unarmed: _ } => return self.keep_armed(armed),
            Report::Decided { id: _, decision, members, containers: _ } => {
                if let Some(victim) = members.get(decision.index.0).filter(|_| !decision.dry_run) {
                    let path = victim.identity().cgroup.clone();
                    self.being_evicted.begin(decision.cgroup, path, decision.decided_ns);
                }
                return;
            }
            Report::Crossed { .. }
            | Report::Cleared { .. }
            | Report::Completed { .. }
            | Report::Failed { .. }
            | Report::Contained { .. }
            | Report::Uncontained { .. }
            | Report::Eased { .. }
            | Report::Suppressed { .. }
            | Report::ToBeAsked { .. }
            | Report::Inherited { .. }
            | Report::InheritedEnded { .. }
            | Report::Hooked { .. }
            | Report::SharedMemoryHeld { .. }
            | Report::SharedMemoryFreed { .. }
            | Report::Blind(..)
            | Report::Sighted(_)
            | Report::Stuck(_) => return,
        };
        // Without a receiver the daemon is stopping.
        drop(self.sender.send(reflexion));
    }

    fn emit(&mut self, report: Report) -> Recorded {
        let event = lock(&self.events).event(&report);
        let sequence = event.map(|event| self.journal.append(event));
        if let Some(asker) = &self.asker {
            recording::follow(asker, &report);
        }
        match (&report, sequence) {
            (Report::Completed { candidate, .. } | Report::Failed { candidate, .. }, _) => {
                self.being_evicted.end(candidate.facts().cgroup, clock::boottime_ns());
                Recorded::Known(true)
            }
            (Report::InheritedEnded { eviction, .. }, _) => {
                self.being_evicted.end(eviction.facts.cgroup, clock::boottime_ns());
                Recorded::Known(true)
            }
            // A soft eviction waits for the journal, a hard one never waits for a disk.
            (Report::Decided { decision, .. }, Some(sequence)) if decision.grace_ns > 0 => {
                self.recorded(sequence)
            }
            // The journal may still be syncing what the earlier process wrote.
            (Report::ToBeAsked { asking: Asking::Again, .. }, _) => {
                self.decided_before.map_or(Recorded::Known(false), |sequence| self.recorded(sequence))
            }
            _ => Recorded::Known(true),
        }
    }
}

pub(super) fn start_reflex(
    config: &Config,
    settings: &EngineSettings,
    host: &Host,
    reporting: ReportTargets,
    left: Left,
    recording: &mut Recording,
) -> anyhow::Result<Reflex> {
    let ReportTargets { events, journal, being_evicted, sender, fill_waker, requester, kills } = reporting;
    let Left { intents, inherited } = left;
    if let Some(eviction) = &inherited {
        being_evicted.begin(eviction.facts.cgroup, eviction.path.clone(), eviction.facts.decided_ns);
    }
    let listener = ReportListener {
        events,
        journal: journal.clone(),
        being_evicted,
        kills,
        asker: recording.asker(),
        sender,
        run_dir: config.run_dir.clone(),
        boot_id: host.boot_id.clone(),
        decided_before: inherited.as_ref().map(|eviction| eviction.sequence),
    };
    let reflex_config = ReflexConfig {
        settings: *settings,
        memory_available_source: config.memory_available_source,
        scheduling: config.eviction_scheduling,
        hook: config.pre_kill_hook.as_ref().map(|hook| hook.program.clone()),
        cpus: host.node.cpu_milli / 1_000,
        fill_waker,
        requester,
        inherited,
        past: past::read(&journal),
        armed: armed::read(&config.run_dir, &host.boot_id, &settings.thresholds),
        ..ReflexConfig::default()
    };
    evict::clear_hooks();
    let reflex = Reflex::spawn(&reflex_config, intents, Vec::new(), recording.tap(), listener);
    let reflex = reflex.context("cannot start eviction")?;
    if let Err(error) = reflex.memory_locked() {
        emit::degraded(
            &journal,
            MEMORY_LOCK,
            &format!("the daemon's memory cannot be locked, so it may react late under pressure: {error}"),
        );
    }
    if let Err(error) = reflex.scheduled() {
        emit::degraded(
            &journal,
            "scheduling",
            &format!(
                "evictionScheduling: {} is not available (it needs CAP_SYS_NICE, and RestrictRealtime=no in the unit), so on a busy node an eviction may be late: {error}",
                config.eviction_scheduling.as_str()
            ),
        );
    }
    Ok(reflex)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::journal::{self, EventType, RawEvent, Subject};

    fn decided() -> RawEvent {
        RawEvent { kind: EventType::EvictionDecided, subject: Subject::Node, data: json!({}) }
    }

    /// That what is durable outlives a power cut is proved where the journal is.
    #[tokio::test]
    async fn a_soft_decision_is_waited_for_until_the_disk_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open("n", "b", &dir.path().join("state"), dir.path()).unwrap().0;
        for _ in 0..20 {
            let sequence = journal.append_raw(decided());
            assert!(is_durable(&journal, sequence).await);
            assert!(*journal.durable().borrow() >= sequence);
        }
        let ahead = journal.range().newest + 1;
        assert!(!is_durable(&journal, ahead).await, "an event that was never appended is on no disk");
        journal.close();
    }

    #[tokio::test]
    async fn a_disk_that_takes_nothing_is_not_waited_for_for_ever() {
        let journal = journal::tests::stuck();
        let sequence = journal.append_raw(decided());
        let start = std::time::Instant::now();
        assert!(!is_durable(&journal, sequence).await, "no process may be signalled");
        assert!((RECORDING..RECORDING * 3).contains(&start.elapsed()));
        // A journal in memory alone, which is reported at the start, delays no eviction.
        let journal = Journal::new("n", "b");
        let sequence = journal.append_raw(decided());
        assert!(is_durable(&journal, sequence).await);
    }
    /// As the one does that asks victims to end.
    #[test]
    fn a_thread_without_a_runtime_waits_for_the_disk_as_well() {
        let journal = journal::tests::stuck();
        let sequence = journal.append_raw(decided());
        let start = std::time::Instant::now();
        assert!(!wait_until_durable(&journal, sequence));
        assert!((RECORDING..RECORDING * 3).contains(&start.elapsed()));
        let journal = Journal::new("n", "b");
        let sequence = journal.append_raw(decided());
        assert!(wait_until_durable(&journal, sequence));
    }
}
