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
    config::{Config, Mode},
    daemon::{
        EngineEvent,
        desired::{Desired, Evictable},
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

/// The most evictions by order that are under way at a time.
const MAX_EVICTIONS: usize = 16;

/// What an operator wants.
pub(super) struct EvictOrder {
    pub(super) pod: PodName,
    pub(super) operator: Operator,
    /// Whether it is only to be said what would be done.
    pub(super) dry_run: bool,
}

type Answer = oneshot::Sender<Result<Done, No>>;

/// Who carries out evictions by order.
pub(in crate::daemon) struct Evictions {
    journal: Journal,
    being_evicted: BeingEvicted,
    /// What else is ordered, at any time.
    orders: watch::Receiver<Vec<Order>>,
    /// Where it is told that a pod was asked to end.
    reflexions: mpsc::UnboundedSender<EngineEvent>,
    /// How many are under way.
    under_way: Arc<AtomicUsize>,
    /// Who sees each to its end.
    workers: Arc<Workers>,
}

impl Evictions {
    pub(in crate::daemon) fn new(
        journal: &Journal,
        being_evicted: &BeingEvicted,
        orders: watch::Receiver<Vec<Order>>,
        reflexions: &mpsc::UnboundedSender<EngineEvent>,
        workers: &Arc<Workers>,
    ) -> Self {
        Self {
            journal: journal.clone(),
            being_evicted: being_evicted.clone(),
            orders,
            reflexions: reflexions.clone(),
            under_way: Arc::default(),
            workers: Arc::clone(workers),
        }
    }

    /// Has a pod evicted as far as the mode allows, and answers.
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
        let (uid, by_hand) = match decided {
            Ok(decided) => decided,
            Err(no) => return refuse(answer, no),
        };
        let seconds = by_hand.grace.as_secs();
        let done = Done { durable: true, eviction_id: Some(by_hand.id.to_string()), ..Done::default() };
        if dry_run || config.mode == Mode::DryRun {
            let (why, eviction_id) = if dry_run {
                ("nothing was done", None)
            } else {
                self.journal.append(by_hand.decided(true, &config.hash()));
                ("the daemon runs in mode dry-run, so nothing was done", done.eviction_id)
            };
            let message = format!("pod {pod} would be asked to end, and killed after {seconds} s: {why}");
            // Who asked may have gone.
            drop(answer.send(Ok(Done { message, dry_run: true, eviction_id, ..done })));
            return;
        }
        let message = format!("pod {pod} was asked to end; what is left of it after {seconds} s is killed");
        self.carry_out(uid, by_hand, config.hash(), Done { message, ..done }, answer);
    }

    fn carry_out(
        &self,
        uid: PodUid,
        by_hand: ManualEviction,
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
        let work = move || {
            let sequence = journal.append(by_hand.decided(false, &config_hash));
            if runtime.block_on(is_durable(&journal, sequence)) {
                let (cgroup, path) =
                    (by_hand.candidate.facts().cgroup, by_hand.candidate.identity().cgroup.clone());
                being_evicted.add(cgroup, path);
                follow(&uid, &by_hand, &orders, &journal, &reflexions, done, answer);
                being_evicted.remove(cgroup);
            } else {
                journal.append(by_hand.unrecorded());
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
            // Its answer went with it: who asked is told that the daemon is stopping.
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            tracing::error!(%busy, "an eviction by order is not carried out");
        }
    }
}

/// Sees an eviction to its end; the answer is given when the pod has been asked to end.
fn follow(
    uid: &PodUid,
    by_hand: &ManualEviction,
    orders: &watch::Receiver<Vec<Order>>,
    journal: &Journal,
    reflexions: &mpsc::UnboundedSender<EngineEvent>,
    done: Done,
    answer: Answer,
) {
    let mut waiting = Some((done, answer));
    let protection = What::protect(&by_hand.candidate.identity().pod);
    let spared = || orders.borrow().iter().any(|order| order.what == protection).then_some(Spared::Protected);
    let ended = by_hand.carry_out(spared, |event| {
        if event.kind == EventType::EvictionSignalled {
            // The daemon is stopping when nobody listens.
            drop(reflexions.send(EngineEvent::Evicted { uid: uid.clone(), number: 0 }));
            if let Some((done, answer)) = waiting.take() {
                // Who asked may have gone.
                drop(answer.send(Ok(done)));
            }
        }
        journal.append(event);
    });
    let Some((done, answer)) = waiting else { return };
    match ended {
        Ok(_) => {
            let pod = &by_hand.candidate.identity().pod;
            let message = format!("pod {pod} had ended by itself");
            // Who asked may have gone.
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
