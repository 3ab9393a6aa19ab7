//! Cleans up after a killed daemon: evictions under way, values written for a while, and a cgroup without its mark.

mod dying;
mod ordered;
mod recorded;
mod soft;

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use enforcer_events::{
    Event, Payload,
    eviction::{EvictionDecided, EvictionEnded, ReconstructedDecision},
    limits::{FileWritten, LimitsWritten, Owner},
};
use ulid::Ulid;

use super::{
    desired::Desired,
    emit,
    ended_pods::{self, EndedPodStore},
    host::Host,
    reports::Left,
};
use crate::{
    cgroup::{self, CgroupDir, Handles, Mark, Sought, Throttled},
    config::{Config, Mode},
    evict::{BrakeBook, EvictionIntents, Holding, InheritedEviction, look_at_dying, shortage_data},
    journal::{Batch, EventType, Filter, Intent, Intents, Journal, Subject},
    model::{CgroupId, CgroupPath, PodName, TemporaryValue},
    policy::{engine::Shortage, threshold::Signal},
    source::{EndedPod, Why},
};

/// How long to wait until killed pods are empty, so that their end can be reported.
const DEATH: Duration = Duration::from_secs(2);

/// How many events back the journal is searched for what was reported already.
const BACK: u64 = 10_000;

/// What an earlier daemon's evictions come to.
#[derive(Debug, Default)]
struct Evicted {
    /// The pods that stay evicted.
    ended: Vec<EndedPod>,
    /// The eviction that goes on, and what the intent page has of it.
    inherited: Option<(InheritedEviction, Intent<'static>)>,
}

/// Which evictions of an earlier daemon may go on.
#[derive(Clone, Copy, Debug)]
struct MayGoOn {
    /// Soft ones of which another was asked, or may have been.
    asked: bool,
    /// Those whose victim is dying.
    dying: bool,
}

/// Takes over what an earlier daemon left: the pods that stay evicted, and evictions that it did not live to report. With
/// `may_request`, another can be asked to end pods: then an eviction of which it was asked goes on.
pub(super) fn take_up(
    config: &Config,
    host: &Host,
    journal: &Journal,
    may_request: bool,
    recorded: &Arc<AtomicU64>,
    desired: &mut Desired,
) -> Left {
    let mut ended = ended_pods::read(&config.state_dir).unwrap_or_else(|error| {
        let message = format!("pods that were evicted before may come back: {}", crate::chain(&error));
        emit::degraded(journal, "evictions", &message);
        Vec::new()
    });
    let intents = match Intents::open(&config.run_dir, &host.boot_id) {
        Ok(intents) => Some(intents),
        Err(error) => {
            let message = format!(
                "an eviction is forgotten if the daemon is killed within it: {}",
                crate::chain(&error)
            );
            emit::degraded(journal, "intents", &message);
            None
        }
    };
    if intents.as_ref().is_some_and(|intents| !intents.lasts) {
        let message = format!(
            "runDir {} is on a disk, for which an eviction must not wait: an eviction, and a limit that is held for a while, are \
             forgotten if the daemon is killed within it; have a tmpfs there",
            config.run_dir.display()
        );
        emit::degraded(journal, "intents", &message);
    }
    let left = intents.as_ref().map_or(&[][..], |intents| &intents.left);
    let stuck = temporary_values(left, journal);
    unmarked(left, journal);
    let unreported = |error: std::io::Error| {
        let message = format!("after a restart, pods that were evicted may come back: {error}");
        emit::degraded(journal, "evictions", &message);
    };
    let before = ended.len();
    let may_go_on = MayGoOn { asked: may_request, dying: config.mode == Mode::Enforce };
    let evicted = evictions(left, journal, may_go_on, held_in_the_end);
    let ordered = ordered::end(journal, held_in_the_end);
    for new in evicted.ended.into_iter().chain(ordered) {
        // The kept entry knows the manifest.
        if ended.iter().all(|kept| kept.uid != new.uid) {
            ended.push(new);
        }
    }
    // At once and in every mode: these pods were ended, and the page that says so is cleared now.
    let are_kept =
        if ended.len() > before { ended_pods::write(&config.state_dir, ended.clone()) } else { Ok(()) };
    desired.remember(ended.clone());
    let (eviction, intent) = evicted.inherited.unzip();
    let is_dying = eviction.as_ref().is_some_and(|eviction| eviction.facts.signalled_ns.is_some());
    match are_kept {
        // Its pod is among those: nothing of it is recorded later. It is the first eviction of this process.
        Ok(()) if is_dying => recorded.store(1, Ordering::Release),
        Ok(()) => {}
        Err(error) => unreported(error),
    }
    let inherited = eviction.map(Arc::new);
    let intents = intents.map(|mut intents| {
        let going_on = intents.forget_left(intent.as_ref());
        let Intents { reflex, brakes, mut limits, making, .. } = intents;
        for intent in &stuck {
            // Never released: the next start tries again.
            let _kept = limits.hold(intent);
        }
        desired.set_intents(limits, making);
        (reflex, brakes, going_on)
    });
    if config.mode != Mode::Enforce {
        // Decisions that are not carried out are not kept: no pod was ended.
        return Left::default();
    }
    match EndedPodStore::start(&config.state_dir, ended, Arc::clone(recorded), journal.clone()) {
        Ok(keeper) => desired.set_keeper(keeper),
        Err(error) => unreported(error),
    }
    let intents = intents.map(|(reflex, brakes, going_on)| {
        let throttled = Throttled::default();
        desired.set_throttled(throttled.clone());
        let intents = EvictionIntents::new(reflex, Arc::clone(recorded));
        let intents = going_on.into_iter().fold(intents, EvictionIntents::inheriting);
        intents.braking(BrakeBook::new(brakes, throttled))
    });
    Left { intents, inherited }
}

/// Finds out how each eviction ended, reports what was not reported, and returns the evicted pods.
///
/// A pod with a process that has no SIGKILL pending was not killed. If the journal shows that it had been asked to end,
/// it stays evicted, as in the process that asked; otherwise it is not evicted. In either case it can be evicted anew
/// if memory is short.
///
/// The first that may go on does: it is reported at its end.
fn evictions(
    left: &[Intent<'static>],
    journal: &Journal,
    may: MayGoOn,
    look: impl Fn(Option<(&str, CgroupId)>, &[CgroupId], Instant) -> Holding,
) -> Evicted {
    let Evicted { mut ended, mut inherited } = Evicted::default();
    let (Reported { events, killed }, deadline) = (reported(journal), Instant::now() + DEATH);
    for intent in left {
        let Intent::Eviction {
            id,
            pod,
            uid,
            path,
            cgroup,
            whole,
            targets,
            signal,
            hard,
            threshold,
            observed,
            decided_ns,
        } = intent
        else {
            continue;
        };
        let id = Ulid::from(*id).to_string();
        let holding = look(whole.then_some((&**path, *cgroup)), targets, deadline);
        let was = |kind| events.contains(&(kind, id.clone()));
        let (was_signalled, was_requested) =
            (was(EventType::EvictionSignalled), was(EventType::EvictionRequested));
        let was_ended = was(EventType::EvictionCompleted) || was(EventType::EvictionFailed);
        let may_go_on = inherited.is_none() && !was_ended;
        if holding == Holding::Living
            && may.asked
            && may_go_on
            && !was_signalled
            && let Some(eviction) = soft::inherit(intent, journal)
        {
            inherited = Some((eviction, intent.clone()));
            continue;
        }
        let emit = |payload: Payload| {
            if !events.contains(&(payload.kind(), id.clone())) {
                journal.emit(subject(pod), payload);
            }
        };
        let decided = ReconstructedDecision {
            eviction_id: id.clone(),
            uid: uid.to_string(),
            cgroup: path.to_string(),
            reconstructed: true,
            // A signal of another version has no known unit, so no numbers are reported for it.
            shortage: Signal::from_name(signal).map(|signal| {
                let (hard, threshold, observed) = (*hard, *threshold, *observed);
                shortage_data(&Shortage { signal, hard, threshold, observed })
            }),
        };
        emit(Payload::EvictionDecided(EvictionDecided::Reconstructed(decided)));
        let (ended_as, message, is_ended) = verdict(holding, was_signalled, was_requested);
        if is_ended {
            ended.push(EndedPod { uid: uid.to_string(), fingerprint: None, why: Why::Evicted });
        }
        if holding == Holding::Doomed
            && may.dying
            && may_go_on
            && let Some(eviction) = dying::inherit(intent, journal)
        {
            // At once: the breaker counts it, and the API server is asked to remove the pod.
            if !killed.contains(&id) {
                journal.emit(subject(pod), Payload::EvictionSignalled(dying::signalled(&eviction)));
            }
            inherited = Some((eviction, intent.clone()));
            continue;
        }
        let data = EvictionEnded {
            eviction_id: id.clone(),
            uid: Some(uid.to_string()),
            cgroup: Some(path.to_string()),
            reconstructed: true,
            // An eviction that was carried out without an event of its kill: the breaker counts it, and the API server is asked
            // to remove the pod.
            boot_ms: (holding != Holding::Living && !killed.contains(&id)).then_some(decided_ns / 1_000_000),
            reason: Some("interrupted".into()),
            message: Some(message.to_owned()),
            ..EvictionEnded::default()
        };
        emit(ended_as(data));
    }
    Evicted { ended, inherited }
}

/// What an eviction that does not go on is reported as, why, and whether its pod stays evicted.
fn verdict(
    holding: Holding,
    was_signalled: bool,
    was_requested: bool,
) -> (fn(EvictionEnded) -> Payload, &'static str, bool) {
    match holding {
        Holding::NoProcess => {
            (Payload::EvictionCompleted, "the daemon ended meanwhile; the pod has no process any more", true)
        }
        Holding::Doomed => (
            Payload::EvictionFailed,
            "the daemon ended meanwhile; the pod was killed, and is not dead yet",
            true,
        ),
        Holding::Living if was_signalled => (
            Payload::EvictionFailed,
            "the daemon ended meanwhile; the pod was signalled, and what is left of it lives on until memory is \
             short again",
            true,
        ),
        Holding::Living if was_requested => (
            Payload::EvictionFailed,
            "the daemon ended meanwhile; the API server has accepted to evict the pod, and the kubelet ends it",
            false,
        ),
        Holding::Living => {
            (Payload::EvictionFailed, "the daemon ended before the pod was signalled: it lives on", false)
        }
    }
}

/// Restores the files that were written only for a while.
///
/// This is done in every mode: it undoes writes of an earlier process, which must not outlive it.
fn temporary_values<'a>(left: &[Intent<'a>], journal: &Journal) -> Vec<Intent<'a>> {
    let mut stuck = Vec::new();
    for intent in left {
        let Intent::Value { path, cgroup, value } = intent else { continue };
        let problem = match restore(path, *cgroup, value) {
            Ok(false) => continue,
            Ok(true) => None,
            Err(error) if error.is_gone() => continue,
            Err(error) => Some(error),
        };
        let (file, original, temporary) = (value.file(), value.original(), value.temporary());
        if let Some(error) = problem {
            let message = format!(
                "{path}/{file} is still at {temporary}, and was {original}: {}",
                crate::chain(&error)
            );
            emit::degraded(journal, "limits", &message);
            stuck.push(intent.clone());
        } else {
            let (old, new) = (Some(temporary.to_string()), original.to_string());
            let data = LimitsWritten {
                owner: Owner::default(),
                cgroup: path.to_string(),
                reason: "interrupted".into(),
                files: vec![FileWritten { file: file.to_string(), old, new, writer: None, of: None }],
                processes: None,
                component: None,
            };
            journal.emit(Subject::Node, Payload::LimitsRestored(data));
        }
    }
    stuck
}

/// Marks a cgroup that was made right before the daemon was killed, so that it is removed with its pod.
///
/// This is done in every mode, and changes nothing that other processes see.
fn unmarked(left: &[Intent<'_>], journal: &Journal) {
    for intent in left {
        let Intent::Cgroup { path, mark } = intent else { continue };
        match give_mark(path, mark) {
            Ok(()) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => {
                let message = format!(
                    "the empty cgroup {path} may be left behind when its pod goes: {}",
                    crate::chain(&error)
                );
                emit::degraded(journal, "cgroups", &message);
            }
        }
    }
}

fn give_mark(path: &str, mark: &str) -> Result<(), cgroup::Error> {
    let (Ok(path), Some(mark)) = (CgroupPath::parse(path), Mark::parse(mark)) else { return Ok(()) };
    let dir = CgroupDir::mount(Path::new(cgroup::MOUNT))?.open(&path)?;
    // A cgroup with a mark was completed.
    if dir.mark()?.is_none() { dir.set_mark(&mark) } else { Ok(()) }
}

/// Writes the original value, if the cgroup is the same and still holds the temporary one. Returns whether it did.
fn restore(path: &str, id: CgroupId, value: &TemporaryValue) -> Result<bool, cgroup::Error> {
    let Ok(path) = CgroupPath::parse(path) else { return Ok(false) };
    let dir = CgroupDir::mount(Path::new(cgroup::MOUNT))?.open(&path)?;
    if dir.id() == id { cgroup::restore(&dir, value) } else { Ok(false) }
}

fn subject(pod: &str) -> Subject {
    pod.split_once('/').map_or(Subject::Node, |(namespace, name)| {
        Subject::Pod(PodName { namespace: namespace.to_owned(), name: name.to_owned() })
    })
}

/// Looks at the cgroups of an evicted pod that were to be killed: its own if that was one of them, and others. Dying
/// processes get until `deadline`.
fn held_in_the_end(own: Option<(&str, CgroupId)>, targets: &[CgroupId], deadline: Instant) -> Holding {
    loop {
        let held = held(own, targets);
        if held != Holding::Doomed || Instant::now() >= deadline {
            return held;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn held(own: Option<(&str, CgroupId)>, targets: &[CgroupId]) -> Holding {
    let mount = Path::new(cgroup::MOUNT);
    let own = own.and_then(|(path, id)| Some((CgroupPath::parse(path).ok()?, id)));
    let own = own.map_or(Holding::NoProcess, |(path, id)| held_at(&path, id));
    let handles = if targets.is_empty() { None } else { Handles::of(mount).ok() };
    let others = targets.iter().map(|id| match handles.as_ref().map(|handles| handles.find(*id)) {
        Some(Sought::Found(path)) => held_at(&path, *id),
        Some(Sought::Gone) => Holding::NoProcess,
        // Processes that may live must not be taken for dead.
        Some(Sought::Unknown) | None => Holding::Living,
    });
    others.fold(own, Holding::max)
}

fn held_at(path: &CgroupPath, id: CgroupId) -> Holding {
    let dir = CgroupDir::mount(Path::new(cgroup::MOUNT)).and_then(|root| root.open(path));
    dir.ok().filter(|dir| dir.id() == id).map_or(Holding::NoProcess, |dir| look_at_dying(&dir))
}

/// What the journal has of evictions, by their ids.
#[derive(Debug, Default)]
struct Reported {
    /// Their events.
    events: BTreeSet<(EventType, String)>,
    /// Those of which it has the SIGKILL.
    killed: BTreeSet<String>,
}

/// Returns the evictions in the journal, and which of their events.
fn reported(journal: &Journal) -> Reported {
    let kinds = vec![
        EventType::EvictionDecided,
        EventType::EvictionSignalled,
        EventType::EvictionRequested,
        EventType::EvictionCompleted,
        EventType::EvictionFailed,
    ];
    let newest = journal.range().newest;
    let mut reader = journal.reader(Some(newest.saturating_sub(BACK)), Filter { kinds, ..Filter::default() });
    let Reported { mut events, mut killed } = Reported::default();
    while let Some(batch) = reader.read() {
        let Batch::Records(records) = batch else { continue };
        for record in records {
            let event = Event::parse(&record.line).ok();
            let payload = event.as_ref().map(|event| &event.payload);
            // Only an accepted request of a soft eviction comes before a signal.
            if let Some(Payload::EvictionRequested(requested)) = payload
                && requested.boot_ms.is_none()
            {
                continue;
            }
            if let Some(Payload::EvictionSignalled(signalled)) = payload
                && signalled.sent == "SIGKILL"
            {
                killed.insert(signalled.eviction_id.clone());
            }
            if let Some(id) = payload.and_then(Payload::eviction_id) {
                events.insert((record.kind, id.to_owned()));
            }
        }
    }
    Reported { events, killed }
}

#[cfg(test)]
mod tests;
