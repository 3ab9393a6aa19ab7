//! Operators' orders: taken, kept, reported, put in force and ended.
//!
//! An order is in force before its answer is given, and is on disk by then, unless the answer says otherwise.
//! `degraded.entered` reports its beginning and `degraded.left` its end: while it is in force, less is evicted than the
//! configuration says.

mod evict;
mod file;
mod reservations;

use std::{future, path::Path, time::Duration};

use enforcer_events::{
    Payload,
    eviction::Operator as OperatorData,
    node::{Degraded, OrderReported},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

use self::evict::EvictOrder;
pub(super) use self::evict::Evictions;
use self::file::{Kept, Waiting, Writer};
use super::{desired::Desired, emit, engine_settings, reload::ReloadOrder, stop::DRAIN_TIMEOUT};
use crate::{
    config::Config,
    evict::{Operator, Reflex},
    journal::{Journal, Subject},
    logging,
    model::{CgroupPath, PodName},
    policy::{
        engine::EngineSettings,
        order::{self, Order, Orders, What},
        reservation::Reservations,
    },
    serve::{Admin, AdminRequest, Asked, Done, No, OrderRequest, OrderView, Peer, View, now, rfc3339},
};

/// While an order is in force its end is checked at least this often: timers do not advance while the machine sleeps,
/// but the clock does.
const LOOK: Duration = Duration::from_secs(30);

/// How many requests may be queued; further ones wait for room.
const REQUESTS: usize = 8;

/// The next work of the order book.
#[derive(Debug)]
pub(super) enum Step {
    /// An order may have ended.
    Due,
    /// An operator sent a request.
    Asked(Box<Asked>),
}

/// Why an order has ended.
enum Cause<'a> {
    Expired,
    Ended { peer: Peer, reason: &'a str },
}

/// The orders in force, and the parts that handle them.
#[derive(Debug)]
pub(super) struct OrderBook {
    orders: Orders,
    reservations: Reservations,
    /// Whether a kubelet admits the pods.
    is_beside_kubelet: bool,
    journal: Journal,
    view: watch::Sender<Vec<Order>>,
    writer: Option<Writer>,
    /// The queue of requests; `None` before the socket is served.
    asked: Option<mpsc::Receiver<Asked>>,
    server: Option<JoinHandle<()>>,
    waiting: Vec<Waiting>,
    /// Whether the orders differ from those on disk.
    is_unkept: bool,
    /// Whether eviction is paused in the settings in force.
    is_paused: bool,
}

impl OrderBook {
    /// Takes over the orders that an earlier process kept.
    pub(super) fn open(state_dir: &Path, boot_id: &str, journal: &Journal, is_beside_kubelet: bool) -> Self {
        let Kept { orders: kept, reservations, same_boot } =
            file::read(state_dir, boot_id).unwrap_or_else(|error| {
                let message =
                    format!("operators' orders and reservations are forgotten: {}", crate::chain(&error));
                emit::degraded(journal, "orders", &message);
                Kept::default()
            });
        let (orders, over) = Orders::resume(kept, same_boot, now());
        let (reservations, expired) = Reservations::resume(reservations, same_boot, now());
        let writer = Writer::start(state_dir, boot_id, journal.clone())
            .inspect_err(|error| {
                let message =
                    format!("a restart forgets orders and reservations: cannot start a thread: {error}");
                emit::degraded(journal, "orders", &message);
            })
            .ok();
        let view = watch::Sender::new(orders.all().to_vec());
        let (is_unkept, is_paused) = (!over.is_empty() || !expired.is_empty(), orders.is_paused());
        let book = Self {
            orders,
            reservations,
            is_beside_kubelet,
            journal: journal.clone(),
            view,
            writer,
            asked: None,
            server: None,
            waiting: Vec::new(),
            is_unkept,
            is_paused,
        };
        for order in book.orders.all() {
            book.emit_begin(order, None);
        }
        for order in &over {
            book.emit_end(order, &Cause::Expired);
        }
        for over in &expired {
            reservations::emit_ended(journal, over, None);
        }
        book
    }

    /// A receiver of the present orders.
    pub(super) fn view(&self) -> watch::Receiver<Vec<Order>> {
        self.view.subscribe()
    }

    /// The eviction engine's settings: the configuration, and the orders.
    pub(super) fn settings(&self, config: &Config) -> EngineSettings {
        EngineSettings { paused: self.orders.is_paused(), ..engine_settings(config) }
    }

    /// Hands another configuration to the reflex, and arms its thresholds if that was ordered.
    pub(super) fn configure(&self, reflex: &Reflex, config: &Config, arm: bool) {
        reflex.set_hook(config.pre_kill_hook.as_ref().map(|hook| hook.program.clone()));
        if arm {
            reflex.configure_armed(self.settings(config));
        } else {
            reflex.configure(self.settings(config));
        }
    }

    /// Takes requests on the admin socket until `stopping` becomes true.
    pub(super) fn serve(
        &mut self,
        admin: Admin,
        kubepods: &CgroupPath,
        view: watch::Receiver<View>,
        stopping: watch::Receiver<bool>,
    ) {
        let (asking, asked) = mpsc::channel(REQUESTS);
        self.asked = Some(asked);
        self.server = Some(tokio::spawn(admin.serve(asking, kubepods.clone(), view, stopping)));
    }

    /// Waits for the next [step](Self::take): for ever if no request can come and no order holds. Safe to cancel.
    pub(super) async fn next(&mut self) -> Step {
        let now = now();
        let ends = [self.orders.next_end_ms(now), self.reservations.next_end_ms(now)];
        let left = ends.into_iter().flatten().min().map(|ms| Duration::from_millis(ms).min(LOOK));
        let wait = async {
            match left {
                Some(left) => tokio::time::sleep(left).await,
                None => future::pending().await,
            }
        };
        let asked = async {
            match &mut self.asked {
                Some(asked) => asked.recv().await,
                None => None,
            }
        };
        tokio::select! {
            Some(asked) = asked => Step::Asked(Box::new(asked)),
            () = wait => Step::Due,
        }
    }

    /// Does a step. Returns a requested reload, which the caller must do.
    #[must_use = "the requester waits for the reload"]
    pub(super) fn take(
        &mut self,
        step: Step,
        desired: &Desired,
        config: &Config,
        evictions: &Evictions,
    ) -> Option<ReloadOrder> {
        match step {
            Step::Due => {
                self.expire();
                None
            }
            Step::Asked(asked) => self.handle(*asked, desired, config, evictions),
        }
    }

    /// Refuses further requests. All orders are on disk afterwards.
    pub(super) async fn close(self) {
        let Self { asked, server, writer, .. } = self;
        drop(asked);
        drop(writer);
        if let Some(server) = server {
            // A client that does not read its answer does not block the exit.
            let _answered = tokio::time::timeout(DRAIN_TIMEOUT, server).await;
        }
    }

    /// Ends orders whose time is up.
    fn expire(&mut self) {
        for order in self.orders.expire(now()) {
            self.emit_end(&order, &Cause::Expired);
            self.changed();
        }
        self.expire_reservations();
    }

    /// Handles a request.
    fn handle(
        &mut self,
        asked: Asked,
        desired: &Desired,
        config: &Config,
        evictions: &Evictions,
    ) -> Option<ReloadOrder> {
        let Asked { request, peer, answer } = asked;
        let request = match request {
            AdminRequest::Order(order) => order,
            AdminRequest::Reserve(wish) => {
                let answered = self.reserve(wish, peer, desired);
                self.answer(answered, answer);
                return None;
            }
            AdminRequest::Release(name) => {
                let answered = self.release(&name, peer);
                self.answer(answered, answer);
                return None;
            }
        };
        let answered = match request {
            OrderRequest::Give { what, reason, for_ms } => {
                self.give(what, &reason, for_ms, peer, desired, config)
            }
            OrderRequest::End { what, reason } => self.end(&what, &reason, peer),
            OrderRequest::Evict { namespace, name, reason, dry_run } => {
                let pod = PodName { namespace, name };
                let operator = Operator { uid: peer.uid, pid: peer.pid, reason };
                evictions.evict(EvictOrder { pod, operator, dry_run }, answer, desired, config);
                return None;
            }
            OrderRequest::Reload { arm, accept_empty, log_level } => {
                // Before anything of the order is in force.
                if let Some(Err(wrong)) = log_level.as_deref().map(logging::filter) {
                    refuse(answer, No::Wrong(wrong));
                    return None;
                }
                return Some(ReloadOrder { arm, accept_empty, log_level, peer, answer });
            }
        };
        self.answer(answered, answer);
        None
    }

    /// Answers: at once if it is refused, else once it is on the disk.
    fn answer(&mut self, answered: Result<Done, No>, answer: oneshot::Sender<Result<Done, No>>) {
        match answered {
            Ok(done) => self.waiting.push(Waiting { done, answer }),
            Err(no) => refuse(answer, no),
        }
    }

    fn give(
        &mut self,
        what: What,
        reason: &str,
        for_ms: u64,
        peer: Peer,
        desired: &Desired,
        config: &Config,
    ) -> Result<Done, No> {
        let now = now();
        // On a copy: a refused order changes nothing.
        let mut orders = self.orders.clone();
        let order = orders.give(what, reason, peer.uid, now, for_ms)?;
        if let Some(pod) = order.what.pod() {
            if !desired.knows(&pod) {
                return Err(desired.unknown(&pod));
            }
            let bytes = desired.held_bytes(&orders.protected().collect());
            order::check_share(bytes, desired.memory_bytes(), config.protected_max_permille)?;
        }
        self.orders = orders;
        self.changed();
        self.emit_begin(&order, Some(peer));
        let until = rfc3339(order.until_ms);
        let message = match order.what.pod() {
            Some(pod) => format!("pod {pod} is not evicted until {until}"),
            None => format!("no pod is evicted until {until}; decisions are only reported"),
        };
        Ok(Done { message, order: Some(OrderView::new(&order, now)), ..Done::default() })
    }

    fn end(&mut self, what: &What, reason: &str, peer: Peer) -> Result<Done, No> {
        order::check_reason(reason)?;
        let Some(order) = self.orders.end(what) else {
            return Err(No::Unknown(match what.pod() {
                Some(pod) => {
                    format!("pod {pod} is not protected: `enforcer protect --list` shows the protected pods")
                }
                None => String::from("eviction is not paused"),
            }));
        };
        self.changed();
        self.emit_end(&order, &Cause::Ended { peer, reason });
        let message = match order.what.pod() {
            Some(pod) => format!("pod {pod} is no longer protected"),
            None => String::from("eviction resumed"),
        };
        Ok(Done { message, order: Some(OrderView::new(&order, now())), ..Done::default() })
    }

    fn changed(&mut self) {
        self.is_unkept = true;
        self.view.send_replace(self.orders.all().to_vec());
    }

    /// Puts new orders in force.
    pub(super) fn put_in_force(&mut self, desired: &mut Desired, reflex: &Reflex, config: &Config) {
        desired.set_protected(self.orders.protected().collect());
        self.put_reservations_in_force(desired);
        let was_paused = std::mem::replace(&mut self.is_paused, self.orders.is_paused());
        // Only on a change: configuring the reflex again closes an open breaker.
        if was_paused != self.is_paused {
            reflex.configure(self.settings(config));
        }
    }

    /// Stores new orders, now that they are in force, and answers the requests that wait for that.
    pub(super) fn settle(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        if !std::mem::take(&mut self.is_unkept) && waiting.is_empty() {
            return;
        }
        if let Some(writer) = &self.writer {
            writer.keep((self.orders.all().to_vec(), self.reservations.all().to_vec()), waiting);
            return;
        }
        for Waiting { done, answer } in waiting {
            // The requester may have gone.
            drop(answer.send(Ok(done)));
        }
    }

    fn emit_begin(&self, order: &Order, peer: Option<Peer>) {
        let until = rfc3339(order.until_ms);
        let what = match order.what.pod() {
            Some(pod) => format!("pod {pod} is not evicted"),
            None => String::from("eviction is paused"),
        };
        let message = format!("{what} until {until}, by order of uid {}: {}", order.uid, order.reason);
        let data = OrderReported {
            pid: peer.map(|peer| peer.pid),
            // Without a peer the order was given to an earlier process.
            resumed: peer.is_none(),
            left_ms: Some(order.left_ms(now())),
            ..about(order)
        };
        self.emit(Payload::DegradedEntered, order, data, message);
    }

    fn emit_end(&self, order: &Order, cause: &Cause<'_>) {
        let what = match order.what.pod() {
            Some(pod) => format!("pod {pod} is no longer protected"),
            None => String::from("eviction resumed"),
        };
        let (data, message) = match cause {
            Cause::Expired => (
                OrderReported { cause: Some("expired".into()), ..about(order) },
                format!("{what}: the time is up"),
            ),
            Cause::Ended { peer, reason } => {
                let ended_by =
                    OperatorData { uid: peer.uid, pid: Some(peer.pid), reason: (*reason).to_owned() };
                (
                    OrderReported { cause: Some("ended".into()), ended_by: Some(ended_by), ..about(order) },
                    format!("{what}, by order of uid {}: {reason}", peer.uid),
                )
            }
        };
        self.emit(Payload::DegradedLeft, order, data, message);
    }

    fn emit(&self, kind: fn(Degraded) -> Payload, order: &Order, data: OrderReported, message: String) {
        tracing::warn!("{message}");
        let pod = order.what.pod();
        let data = Degraded {
            namespace: pod.as_ref().map(|pod| pod.namespace.clone()),
            pod: pod.as_ref().map(|pod| pod.name.clone()),
            order: Some(data),
            message: Some(message),
            ..Degraded::of(order.what.as_str())
        };
        self.journal.emit(pod.map_or(Subject::Node, Subject::Pod), kind(data));
    }
}

fn about(order: &Order) -> OrderReported {
    OrderReported {
        reason: order.reason.clone(),
        uid: order.uid,
        given: rfc3339(order.given_ms),
        until: rfc3339(order.until_ms),
        pid: None,
        resumed: false,
        left_ms: None,
        cause: None,
        ended_by: None,
    }
}

fn refuse(answer: oneshot::Sender<Result<Done, No>>, no: No) {
    // The requester may have gone.
    drop(answer.send(Err(no)));
}
