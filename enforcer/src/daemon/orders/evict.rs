//! Evictions that operators order.
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot, watch},
};

use super::refuse;
use crate::{
    clock,
    config::{Config, Mode},
    daemon::{
        EngineEvent,
        desired::{BeingEnded, Desired, Evictable},
        ooms::BeingEvicted,
        reports::is_durable,
    },
    evict::{EndError, ManualEviction, Operator},
    journal::{EventType, Journal},
    model::{PodName, PodUid},
    policy::{
        engine::Spared,
        order::{self, Order, What},
    },
    serve::{Done, No},
    threads::Workers,
};

/// The most evictions by order at a time.
const MAX_EVICTIONS: usize = 16;

/// An operator's order to evict a pod.
pub(super) struct EvictOrder {
    pub(super) pod: PodName,
    pub(super) operator: Operator,
    /// Whether only to say what would be done.
    pub(super) dry_run: bool,
}

type Answer = oneshot::Sender<Result<Done, No>>;

/// Carries out evictions by order.
pub(in crate::daemon) struct Evictions {
    journal: Journal,
    being_evicted: BeingEvicted,
    being_ended: BeingEnded,
    /// The other orders in force, at any time.
    orders: watch::Receiver<Vec<Order>>,
    /// Reports that a pod was asked to end.
    reflexions: mpsc::UnboundedSender<EngineEvent>,
    /// The number under way.
    under_way: Arc<AtomicUsize>,
    /// The threads that wait for each victim's end.
    workers: Arc<Workers>,
}

impl Evictions {
    pub(in crate::daemon) fn new(
        journal: &Journal,
        being_evicted: &BeingEvicted,
        being_ended: BeingEnded,
        orders: watch::Receiver<Vec<Order>>,
        reflexions: &mpsc::UnboundedSender<EngineEvent>,
        workers: &Arc<Workers>,
    ) -> Self {
        Self {
            journal: journal.clone(),
            being_evicted: being_evicted.clone(),
            being_ended,
            orders,
            reflexions: reflexions.clone(),
            under_way: Arc::default(),
            workers: Arc::clone(workers),
        }
    }

    /// Evicts a pod as far as the mode allows, and answers.
    pub(super) fn evict(&self, order: EvictOrder, answer: Answer, desired: &Desired, config: &Config) {
        let EvictOrder { pod, operator, dry_run } = order;
        let decided = order::check_reason(&operator.reason).map_err(No::from).and_then(|()| {
            if config.mode == Mode::Observe {
                return Err(No::Refused(String::from(
                    "the daemon runs in mode observe, in which nothing is decided: set mode: enforce",
                )));
            }
            let Evictable { uid, candidate, grace } = desired.evictable(&pod)?;
            Ok((uid, ManualEviction::new(candidate, operator, grace)))
        });
        let (uid, eviction) = match decided {
            Ok(decided) => decided,
            Err(no) => return refuse(answer, no),
        };
        let seconds = eviction.grace.as_secs();
        let done = Done { durable: true, eviction_id: Some(eviction.id.to_string()), ..Done::default() };
        if dry_run || config.mode == Mode::DryRun {
            let (why, eviction_id) = if dry_run {
                ("nothing was done", None)
            } else {
                self.journal.append(eviction.decided(true, &config.hash()));
                ("the daemon runs in mode dry-run, so nothing was done", done.eviction_id)
            };
            let message = format!("pod {pod} would be asked to end, and killed after {seconds} s: {why}");
            // The requester may have gone.
            drop(answer.send(Ok(Done { message, dry_run: true, eviction_id, ..done })));
            return;
        }
        let message = format!("pod {pod} was asked to end; what is left of it after {seconds} s is killed");
        self.carry_out(uid, eviction, config.hash(), Done { message, ..done }, answer);
    }

    fn carry_out(
        &self,
        uid: PodUid,
        eviction: ManualEviction,
        config_hash: String,
        done: Done,
        answer: Answer,
    ) {
        if self.under_way.fetch_add(1, Ordering::Relaxed) >= MAX_EVICTIONS {
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            let why =
                format!("{MAX_EVICTIONS} evictions by order are under way: try again when one has ended");
            return refuse(answer, No::Busy(why));
        }
        let (journal, reflexions, runtime) =
            (self.journal.clone(), self.reflexions.clone(), Handle::current());
        let orders = self.orders.clone();
        let (being_evicted, under_way) = (self.being_evicted.clone(), Arc::clone(&self.under_way));
        let being_ended = self.being_ended.clone();
        let work = move || {
            let sequence = journal.append(eviction.decided(false, &config_hash));
            if runtime.block_on(is_durable(&journal, sequence)) {
                let (cgroup, path) =
                    (eviction.candidate.facts().cgroup, eviction.candidate.identity().cgroup.clone());
                being_evicted.begin(cgroup, path, clock::boottime_ns());
                let ending = being_ended.begin(uid.clone());
                follow(&uid, &eviction, &orders, &journal, &reflexions, done, answer);
                drop(ending);
                being_evicted.end(cgroup, clock::boottime_ns());
            } else {
                journal.append(eviction.unrecorded());
                refuse(
                    answer,
                    No::Busy(String::from(
                        "the decision could not be written to the disk in time: nothing was done",
                    )),
                );
            }
            under_way.fetch_sub(1, Ordering::Relaxed);
        };
        if let Err(busy) = self.workers.run(work) {
            // The answer's sender was dropped with the work: the requester learns that the daemon is stopping.
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            tracing::error!(%busy, "cannot carry out an eviction by order");
        }
    }
}

/// Carries an eviction out to its end; answers once the pod has been asked to end.
fn follow(
    uid: &PodUid,
    eviction: &ManualEviction,
    orders: &watch::Receiver<Vec<Order>>,
    journal: &Journal,
    reflexions: &mpsc::UnboundedSender<EngineEvent>,
    done: Done,
    answer: Answer,
) {
    let mut waiting = Some((done, answer));
    let protection = What::protect(&eviction.candidate.identity().pod);
    let spared = || orders.borrow().iter().any(|order| order.what == protection).then_some(Spared::Protected);
    let ended = eviction.carry_out(spared, |event| {
        if event.kind() == EventType::EvictionSignalled {
            // Without a receiver the daemon is stopping.
            drop(reflexions.send(EngineEvent::Evicted { uid: uid.clone(), number: 0 }));
            if let Some((done, answer)) = waiting.take() {
                // The requester may have gone.
                drop(answer.send(Ok(done)));
            }
        }
        journal.append(event);
    });
    let Some((done, answer)) = waiting else { return };
    match ended {
        Ok(_) => {
            let pod = &eviction.candidate.identity().pod;
            let message = format!("pod {pod} had already ended by itself");
            // The requester may have gone.
            drop(answer.send(Ok(Done { message, ..done })));
        }
        Err(
            error @ (EndError::Forbidden(_)
            | EndError::Refused(_)
            | EndError::Cgroup(_)
            | EndError::Spared(_)
            | EndError::StillAlive),
        ) => {
            refuse(answer, No::Refused(format!("it is not evicted: {}", crate::chain(&error))));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, time::Duration};

    use super::*;
    use crate::{
        cgroup::{CgroupDir, Guard},
        evict::Candidate,
        model::CgroupPath,
        policy::PodPlan,
    };

    #[tokio::test]
    async fn a_pod_is_being_ended_from_its_signal_to_its_end() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("pod")).unwrap();
        let write = |file: &str, text: &str| fs::write(temp.path().join("pod").join(file), text).unwrap();
        for (file, text) in [
            ("cgroup.kill", ""),
            ("cgroup.procs", ""),
            ("cgroup.events", "populated 1\n"),
            ("memory.current", "4096\n"),
            ("memory.stat", "anon 4096\nfile 0\nshmem 0\ninactive_file 0\n"),
        ] {
            write(file, text);
        }
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let guard = Arc::new(Guard::new(Path::new("/proc"), &[]));
        let pod = PodName { namespace: String::from("default"), name: String::from("web") };
        let uid = PodUid::new("u1").unwrap();
        let plan = PodPlan::new(pod, uid.clone(), CgroupPath::parse("/pod").unwrap());
        let candidate = Arc::new(Candidate::open(&root, &guard, &plan).unwrap());
        let (reflexions, _taken) = mpsc::unbounded_channel();
        let (_orders, view) = watch::channel(Vec::new());
        let workers = Arc::new(Workers::start("ending", 1, 1).unwrap());
        let (journal, being_ended) = (Journal::new("n", "b"), BeingEnded::default());
        let evictions = Evictions::new(
            &journal,
            &BeingEvicted::default(),
            being_ended.clone(),
            view,
            &reflexions,
            &workers,
        );
        let operator = Operator { uid: 0, pid: 1, reason: String::from("it hangs") };
        let eviction = ManualEviction::new(candidate, operator, Duration::from_mins(1));
        let (answer, answered) = oneshot::channel();
        evictions.carry_out(uid.clone(), eviction, String::new(), Done::default(), answer);
        assert!(answered.await.unwrap().is_ok());
        assert!(being_ended.contains(&uid), "it was asked to end");
        write("cgroup.events", "populated 0\n");
        while being_ended.contains(&uid) {
            being_ended.changed().await;
        }
    }
}
