//! The log's writer thread, which writes appended events to the disk in batches, and the thread that syncs them.
//!
//! No other thread waits for them. While the disk refuses writes, events stay in memory, and the oldest are dropped
//! when they are too many. Both are reported.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{
    kmsg::Kmsg,
    log::{Shared, Work},
    medium::Medium,
    record::Kept,
    retention::Limits,
    store::{Store, Unsynced},
    trouble::Part,
};

/// The most events in one write.
const BATCH_RECORDS: usize = 1024;

/// The first and the longest delay until a retry.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// How often retention runs without new events.
const RETAIN_EVERY: Duration = Duration::from_hours(1);

/// Starts both threads.
pub(super) fn start(
    shared: &Arc<Shared>,
    store: Store,
    unsynced: Vec<Unsynced>,
) -> io::Result<JoinHandle<()>> {
    let (sender, receiver) = mpsc::channel();
    let mut syncer = Syncer::new(shared, store.medium());
    for unsynced in unsynced {
        syncer.take(unsynced);
    }
    // A separate thread, so that events get to their segment, where a kill cannot lose them, during a sync.
    let syncer = std::thread::Builder::new()
        .name(String::from("journal-sync"))
        .spawn(move || syncer.run(&receiver))?;
    let writer = Writer::new(shared, store, sender, Kmsg::system());
    std::thread::Builder::new().name(String::from("journal")).spawn(move || writer.run(syncer))
}

/// Writes events to the segments.
pub(super) struct Writer {
    shared: Arc<Shared>,
    store: Store,
    limits: Limits,
    synced: mpsc::Sender<Unsynced>,
    kmsg: Kmsg,
    /// While the disk refuses: the time of the next try, and the delay before it.
    retry: Option<(Instant, Duration)>,
}

impl Writer {
    pub(super) fn new(
        shared: &Arc<Shared>,
        store: Store,
        synced: mpsc::Sender<Unsynced>,
        kmsg: Kmsg,
    ) -> Self {
        Self { shared: Arc::clone(shared), store, limits: shared.limits(), synced, kmsg, retry: None }
    }

    /// Runs until the log is closed.
    fn run(mut self, syncer: JoinHandle<bool>) {
        while self.pass(RETAIN_EVERY) {}
        // The syncer ends when its sender is gone.
        let (sender, _receiver) = mpsc::channel();
        drop(std::mem::replace(&mut self.synced, sender));
        let in_order = crate::threads::join(syncer).unwrap_or_default();
        self.end(in_order);
    }

    /// Marks a clean end if everything was written and, by `is_synced`, synced.
    pub(super) fn end(self, is_synced: bool) {
        let is_written = self.retry.is_none() && self.shared.settled() < self.store.next();
        if !is_synced || !is_written {
            // The next start checks what is there.
            tracing::error!("the journal was not closed cleanly: the disk did not take everything");
        } else if let Err(error) = self.store.close() {
            let error = anyhow::Error::new(error).context("the journal was not closed cleanly");
            tracing::error!("{error:#}");
        }
    }

    /// Makes the next try due at once.
    #[cfg(test)]
    pub(super) fn hurry(&mut self) {
        if let Some((at, _)) = &mut self.retry {
            *at = Instant::now();
        }
    }

    /// Waits up to `patience` for something to write, and writes it. Returns false at the end of the log.
    pub(super) fn pass(&mut self, patience: Duration) -> bool {
        let work = self.shared.work(BATCH_RECORDS, self.retry.map(|(at, _)| at), patience);
        let limits = self.shared.limits();
        if limits != self.limits {
            self.limits = limits;
            self.store.set_limits(limits);
        }
        match work {
            Work::Closed => return false,
            Work::Nothing => self.store.retain(),
            Work::Records(records) => {
                if let Err(error) = self.write(&records) {
                    self.shared.set_disk_down();
                    self.shared.trouble_begins(Part::Writing, &error);
                    if self.retry.is_none() {
                        self.kmsg.trouble(&error);
                    }
                    let wait = self.retry.map_or(RETRY_MIN, |(_, wait)| (wait * 2).min(RETRY_MAX));
                    self.retry = Some((Instant::now() + wait, wait));
                    if self.shared.is_closing() {
                        return false;
                    }
                }
            }
        }
        if self.retry.is_some() {
            let from = self.kmsg.seen().max(self.shared.settled());
            self.kmsg.emit(&self.shared.behind(from), Instant::now());
        }
        true
    }

    fn write(&mut self, records: &[Kept]) -> anyhow::Result<()> {
        let Some(unsynced) = self.store.append(records)? else { return Ok(()) };
        self.shared.set_written(unsynced.newest);
        self.retry = None;
        self.shared.trouble_ends(Part::Writing, self.store.take_lost());
        if self.synced.send(unsynced).is_err() {
            tracing::error!("the journal is not synced any more");
        }
        Ok(())
    }
}

/// Syncs the segments.
pub(super) struct Syncer {
    shared: Arc<Shared>,
    medium: Arc<dyn Medium>,
    /// One for each segment, in order.
    pending: VecDeque<Unsynced>,
    /// Whether the last sync of the first of them failed.
    has_failed: bool,
}

impl Syncer {
    pub(super) fn new(shared: &Arc<Shared>, medium: Arc<dyn Medium>) -> Self {
        Self { shared: Arc::clone(shared), medium, pending: VecDeque::new(), has_failed: false }
    }

    /// Runs until the writer has ended. Returns whether the disk holds everything.
    fn run(mut self, unsynced: &mpsc::Receiver<Unsynced>) -> bool {
        // While the disk refuses: the time of the next try, and the delay before it.
        let mut retry: Option<(Instant, Duration)> = None;
        loop {
            let received = match retry {
                None if self.pending.is_empty() => {
                    unsynced.recv().map_err(|_closed| mpsc::RecvTimeoutError::Disconnected)
                }
                None => Err(mpsc::RecvTimeoutError::Timeout),
                Some((at, _)) => unsynced.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match received {
                Ok(received) => self.take(received),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return self.pass(),
            }
            for more in unsynced.try_iter() {
                self.take(more);
            }
            if retry.is_some_and(|(at, _)| at > Instant::now()) {
                continue;
            }
            retry = if self.pass() {
                None
            } else {
                let wait = retry.map_or(RETRY_MIN, |(_, wait)| (wait * 2).min(RETRY_MAX));
                Some((Instant::now() + wait, wait))
            };
        }
    }

    /// Queues a part to be synced. It replaces a queued one of the same segment.
    pub(super) fn take(&mut self, unsynced: Unsynced) {
        match self.pending.back_mut() {
            Some(last) if Arc::ptr_eq(&last.segment, &unsynced.segment) => *last = unsynced,
            Some(_) | None => self.pending.push_back(unsynced),
        }
    }

    /// Syncs the queued parts in order. Returns whether the disk took all.
    pub(super) fn pass(&mut self) -> bool {
        while let Some(Unsynced { segment, extent, newest }) = self.pending.front() {
            let again = if self.has_failed { segment.write_again(extent) } else { Ok(()) };
            if let Err(error) = again.and_then(|()| segment.sync(&*self.medium)) {
                self.has_failed = true;
                let error = anyhow::Error::new(error)
                    .context(format!("cannot sync {}", segment.data_path().display()));
                self.shared.trouble_begins(Part::Syncing, &error);
                return false;
            }
            self.has_failed = false;
            self.shared.set_durable(*newest);
            self.pending.pop_front();
        }
        self.shared.trouble_ends(Part::Syncing, 0);
        true
    }
}

#[cfg(test)]
mod tests;
