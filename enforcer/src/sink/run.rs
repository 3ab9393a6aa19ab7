//! The loop of every sink: deliver events, store the position, and back off when a receiver refuses events.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use enforcer_events::{Payload, node::Degraded};
use tokio::sync::watch;

use super::{
    feed::{Feed, Item},
    health::{Health, Progress},
};
use crate::{
    journal::{CursorFile, Journal, Subject},
    network::{BackOff, Bounds},
};

/// How long deliveries must fail before that is reported as an event.
pub(super) const FAILING: Duration = Duration::from_secs(30);

/// The least time between two events about skipped events: these reports go to the receiver too.
const PASSED_OVER_PACE: Duration = Duration::from_mins(1);

/// How long a sink may continue when it has to stop.
const GOODBYE: Duration = Duration::from_millis(1_500);

/// The receiver's side of a sink.
pub(super) trait Outlet {
    /// The bounds of the wait after a failure.
    const BACK_OFF: Bounds;

    /// The most events, and the most bytes, in one delivery.
    fn limits(&self) -> (usize, usize);

    /// Delivers some of these in order, at least one. Returns how many were taken.
    async fn deliver(&mut self, items: &[Item]) -> Result<usize, Trouble>;
}

/// Why a receiver took nothing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Trouble {
    /// It may take them later, but not before `after` has passed.
    Later { why: String, after: Option<Duration> },
    /// It takes fewer at once.
    Less,
    /// It will never take the first of these. It may take the others.
    Never { why: String },
    /// It is gone, and no more attempts are wanted.
    Gone { why: String },
}

/// A sink at work.
#[derive(Debug)]
pub(super) struct Run<O> {
    /// Its name in events: `journald`, `webhook-pager`.
    pub(super) shown: String,
    pub(super) journal: Journal,
    pub(super) feed: Feed,
    pub(super) cursor: CursorFile,
    pub(super) outlet: O,
    pub(super) health: Arc<Health>,
    pub(super) progress: Arc<Progress>,
    pub(super) failing: Duration,
}

/// A sink's failures that were reported or have to be.
#[derive(Debug, Default)]
struct Outage {
    /// When deliveries began to fail.
    since: Option<Instant>,
    is_reported: bool,
    /// Whether a failed write of the cursor was reported.
    is_unwritten: bool,
    /// When skipped events were last reported.
    passed_over: Option<Instant>,
    /// How many were skipped since.
    unreported: u64,
}

impl<O: Outlet> Run<O> {
    /// Delivers until `stop` becomes true, and then a moment longer if there is more and nothing fails.
    pub(super) async fn run(mut self, stop: watch::Receiver<bool>) {
        let mut spell = Outage::default();
        // The starting position must survive a kill before the first delivery.
        self.write_cursor(&mut spell);
        let mut over = stop.clone();
        tokio::select! {
            () = self.work(&mut spell, stop) => {}
            () = goodbye(&mut over) => {}
        }
        self.write_cursor(&mut spell);
        if spell.is_reported {
            self.left("is stopped");
        }
    }

    async fn work(&mut self, spell: &mut Outage, mut stop: watch::Receiver<bool>) {
        let mut back_off = BackOff::new(O::BACK_OFF);
        loop {
            let (events, bytes) = self.outlet.limits();
            let items = self.feed.front(events, bytes);
            self.progress.set(self.feed.position());
            if items.is_empty() {
                if *stop.borrow() || !self.rest(spell, &mut stop).await {
                    return;
                }
                continue;
            }
            let wait = match self.deliver(spell, &items).await {
                Ok(taken) => {
                    back_off.reset();
                    self.feed.done(taken);
                    let delivered = items.iter().take(taken).filter(|item| !item.is_gap).count();
                    let delivered = u64::try_from(delivered).unwrap_or(u64::MAX);
                    self.health.count_delivered(
                        &self.progress,
                        delivered,
                        jiff::Timestamp::now().as_millisecond(),
                    );
                    self.recovered(spell);
                    continue;
                }
                Err(Trouble::Less) => continue,
                Err(Trouble::Never { why }) => {
                    self.pass_over(spell, &items, &why);
                    continue;
                }
                Err(Trouble::Gone { why }) => {
                    self.health.count_failure();
                    self.entered(&format!(
                        "is not tried again until its configuration changes or the daemon restarts: {why}"
                    ));
                    return;
                }
                Err(Trouble::Later { why, after }) => {
                    self.health.count_failure();
                    self.failed(spell, &why);
                    after.unwrap_or_default().max(back_off.next())
                }
            };
            self.write_cursor(spell);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stopped(&mut stop) => return,
            }
        }
    }

    /// Waits for an event, and writes the cursor when that is due. Returns false if the sink has to stop.
    async fn rest(&mut self, spell: &mut Outage, stop: &mut watch::Receiver<bool>) -> bool {
        loop {
            let due = self.cursor.due(&self.feed.cursor());
            tokio::select! {
                () = self.feed.readable() => return true,
                () = stopped(stop) => return false,
                () = sleep_until(due) => self.write_cursor(spell),
            }
        }
    }

    /// Delivers events. Writes the cursor of earlier deliveries meanwhile if the receiver is slow.
    async fn deliver(&mut self, spell: &mut Outage, items: &[Item]) -> Result<usize, Trouble> {
        let cursor = self.feed.cursor();
        let due = self.cursor.due(&cursor);
        if due.is_some_and(|due| due <= Instant::now()) {
            self.write_cursor(spell);
            return self.outlet.deliver(items).await;
        }
        let Self { outlet, cursor: file, .. } = self;
        let mut delivering = pin!(outlet.deliver(items));
        tokio::select! {
            outcome = &mut delivering => return outcome,
            () = sleep_until(due) => {}
        }
        // The next write of the cursor reports a failing disk.
        if let Err(error) = file.write(&cursor) {
            tracing::debug!(%error, "a sink's cursor could not be written");
        }
        delivering.await
    }

    fn write_cursor(&mut self, spell: &mut Outage) {
        let cursor = self.feed.cursor();
        if self.cursor.due(&cursor).is_none() {
            return;
        }
        match self.cursor.write(&cursor) {
            Ok(()) => spell.is_unwritten = false,
            Err(error) if !std::mem::replace(&mut spell.is_unwritten, true) => {
                let path = self.cursor.path();
                // Without a cursor the next process begins with new events.
                let then = if self.cursor.is_there() {
                    "delivers events again after a restart"
                } else {
                    "does not deliver pending events after a restart"
                };
                let message = format!("{then}: cannot write {}: {error}", path.display());
                self.entered(&message);
            }
            Err(_reported) => {}
        }
    }

    /// A delivery succeeded.
    fn recovered(&self, spell: &mut Outage) {
        spell.since = None;
        if std::mem::replace(&mut spell.is_reported, false) {
            self.left("takes events again");
        }
    }

    /// A delivery failed. If that lasts, it is reported once, however often it is tried, and once when it is over.
    fn failed(&self, spell: &mut Outage, why: &str) {
        let since = *spell.since.get_or_insert_with(Instant::now);
        if spell.is_reported {
            return;
        }
        tracing::warn!("{}: {why}", self.shown);
        if since.elapsed() >= self.failing {
            spell.is_reported = true;
            self.entered(&format!("takes no events; they are kept and delivered later: {why}"));
        }
    }

    /// Skips the first event, which the receiver will never take. The report is an event too and may be refused as
    /// well, so it is sent seldom.
    fn pass_over(&mut self, spell: &mut Outage, items: &[Item], why: &str) {
        let Some(first) = items.first() else { return };
        self.feed.done(1);
        self.health.count_passed_over();
        self.health.count_failure();
        spell.unreported += 1;
        tracing::warn!("{}: event {} is passed over: {why}", self.shown, first.last);
        if spell.passed_over.is_none_or(|reported| reported.elapsed() >= PASSED_OVER_PACE) {
            spell.passed_over = Some(Instant::now());
            let message = format!(
                "was not given {} events, the last with sequence {}: {why}",
                spell.unreported, first.last
            );
            spell.unreported = 0;
            self.entered(&message);
        }
    }

    fn entered(&self, message: &str) {
        let data = self.degraded(message);
        tracing::warn!("{}", data.message.as_deref().unwrap_or_default());
        self.journal.emit(Subject::Node, Payload::DegradedEntered(data));
    }

    fn left(&self, message: &str) {
        let data = self.degraded(message);
        tracing::info!("{}", data.message.as_deref().unwrap_or_default());
        self.journal.emit(Subject::Node, Payload::DegradedLeft(data));
    }

    fn degraded(&self, message: &str) -> Degraded {
        let message = format!("the sink {} {message}", self.shown);
        Degraded { sink: Some(self.shown.clone()), message: Some(message), ..Degraded::of("sink") }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A dropped sender means stop, too.
    drop(stop.wait_for(|stop| *stop).await);
}

async fn goodbye(stop: &mut watch::Receiver<bool>) {
    stopped(stop).await;
    tokio::time::sleep(GOODBYE).await;
}

#[cfg(test)]
mod tests;
