//! The thread that requests evictions from the API server: it reads the journal, asks, and reports the result.

use std::{
    fmt,
    future::poll_fn,
    io,
    path::{Path, PathBuf},
    pin::pin,
    task::Poll,
    time::{Duration, Instant},
};

use enforcer_events::{
    Event, EventType, Payload,
    eviction::{EvictionDecided, EvictionSignalled},
    pressure::PressureRising,
};
use tokio::{
    runtime::Builder,
    sync::{mpsc, watch},
    time::timeout_at,
};

use super::{
    client::ApiServer,
    message::{Call, Lane, Outcome},
    outbox::{ApiSettings, Now, OpenEviction, Outbox},
    pace::{EVERY, Pace, Warmth},
    trouble::Trouble,
};
use crate::{
    clock,
    journal::{Batch, Cursor, CursorFile, Filter, Journal, Reader, Record, Subject, before_all, resume},
    keeper::Keeper,
    specs::ApiServerFeed,
    threads,
};

/// The stack of the thread.
const STACK_BYTES: usize = 512 << 10;

/// The name of the thread and of the cursor's file.
const NAME: &str = "kube-evictions";

/// How many kills may be handed on. Others are found in the journal.
const MOST_KILLS: usize = 16;

/// How long the event of a kill may come after the kill itself; it may also be lost.
const RECORDED: Duration = Duration::from_secs(2);

/// For how long credentials are used again for a first request: after a kill, the disk that they are on may be slow.
/// It is longer than the longest time between two requests while a connection is kept open, each of which reads them.
const CREDENTIALS_LAST: Duration = Duration::from_mins(2);

/// The running thread. Dropping it makes it stop.
#[derive(Debug)]
pub struct Evictions {
    stop: watch::Sender<bool>,
    open: watch::Receiver<Vec<OpenEviction>>,
    kills: Kills,
}

/// Hands on kills before their events are in the journal, which takes a busy node longer than a request. The intent page has
/// them by then, so that a next process finds them too.
#[derive(Clone, Debug)]
pub struct Kills(mpsc::Sender<EvictionSignalled>);

impl Kills {
    /// Hands a kill on. Never waits: one that cannot be handed on is found in the journal.
    pub fn send(&self, killed: EvictionSignalled) {
        drop(self.0.try_send(killed));
    }
}

struct Run {
    journal: Journal,
    reader: Reader,
    kills: mpsc::Receiver<EvictionSignalled>,
    keeper: Keeper<Cursor>,
    /// The position that it was given last.
    kept: Option<Cursor>,
    outbox: Outbox,
    /// The evictions whose pods are still to be removed.
    open: watch::Sender<Vec<OpenEviction>>,
    server: ApiServer,
    trouble: Trouble,
    /// When the version of evictions is asked for, if none needs it.
    discover: Option<Instant>,
    /// The pauses before that.
    pace: Pace,
    /// Whether the connection is kept open: to open one takes a busy node a second.
    warmth: Warmth,
    /// The credentials that were read last, and when.
    access: Option<(ApiServerFeed, Instant)>,
}

impl fmt::Debug for Run {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Run").field("outbox", &self.outbox).finish_non_exhaustive()
    }
}

impl Evictions {
    /// Starts the thread. It goes on where an earlier one stopped; without a cursor it begins after the sequence `begin`.
    pub fn start(
        journal: &Journal,
        state_dir: &Path,
        begin: u64,
        settings: ApiSettings,
        server: ApiServer,
    ) -> io::Result<Self> {
        Self::start_paced(Pace::new(EVERY), journal, state_dir, begin, (settings, server))
    }

    pub(super) fn start_paced(
        pace: Pace,
        journal: &Journal,
        state_dir: &Path,
        begin: u64,
        (settings, server): (ApiSettings, ApiServer),
    ) -> io::Result<Self> {
        let (stop, stopping) = watch::channel(false);
        let (opened, open) = watch::channel(Vec::new());
        let (killed, kills) = mpsc::channel(MOST_KILLS);
        let replayed = journal.range().newest;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let keeper = start_keeper(state_dir)?;
        let (journal, state_dir) = (journal.clone(), PathBuf::from(state_dir));
        std::thread::Builder::new().name(NAME.to_owned()).stack_size(STACK_BYTES).spawn(move || {
            threads::set_nice(threads::REQUEST_NICE);
            let mut file = CursorFile::new(&state_dir, NAME);
            let begin = match file.read() {
                Ok(Some(kept)) => resume(&journal, &kept).unwrap_or_else(|before| before),
                Ok(None) => begin,
                Err(error) => {
                    let why = crate::chain(&error);
                    tracing::warn!("the cursor of API evictions cannot be read, and each kept eviction is looked at: {why}");
                    before_all(&journal)
                }
            };
            let kinds = vec![
                EventType::PressureRising,
                EventType::ThresholdCrossed,
                EventType::EvictionDecided,
                EventType::EvictionSignalled,
                EventType::EvictionCompleted,
                EventType::EvictionFailed,
                EventType::EvictionRequested,
                EventType::EvictionConfirmed,
                EventType::EvictionRepeated,
            ];
            // This position must survive a kill before the first request.
            let first = journal.cursor(begin);
            if file.due(&first).is_some()
                && let Err(error) = file.write(&first)
            {
                tracing::warn!(%error, "cannot write the first cursor of API evictions");
            }
            let reader = journal.reader(Some(begin), Filter { kinds, ..Filter::default() });
            let run = Run {
                reader,
                kills,
                keeper,
                kept: Some(first),
                outbox: Outbox::new(settings, replayed),
                open: opened,
                server,
                trouble: Trouble::new(&journal),
                journal,
                discover: Some(Instant::now() + pace.first()),
                pace,
                warmth: Warmth::default(),
                access: None,
            };
            runtime.block_on(run.run(stopping));
        })?;
        Ok(Self { stop, open, kills: Kills(killed) })
    }

    /// Where kills are handed on.
    #[must_use]
    pub fn kills(&self) -> Kills {
        self.kills.clone()
    }

    /// The evictions whose pods are still to be removed, at any time.
    #[must_use]
    pub fn open(&self) -> watch::Receiver<Vec<OpenEviction>> {
        self.open.clone()
    }
}

impl Drop for Evictions {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

impl Run {
    async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            () = self.work() => {}
            // A request under way may still arrive. The next process looks before it asks again.
            () = stopped(&mut stop) => {}
        }
        // Once more, if it could not be written before.
        self.kept = None;
        self.keep_position();
    }

    async fn work(&mut self) {
        loop {
            while let Ok(killed) = self.kills.try_recv() {
                self.take_kill(&killed);
            }
            // All else is looked at once the request is on its way.
            if !self.outbox.is_urgent(now()) {
                self.look();
            }
            let now = now();
            if let Some((id, call)) = self.outbox.next(now) {
                if let Some(answer) = self.ask(call).await {
                    // The version is no result: the request follows at once.
                    if !matches!(answer, Ok(Outcome::Discovered(Some(_)) | Outcome::Known(_))) {
                        self.until_recorded(&id).await;
                    }
                    if let Some(payload) = self.outbox.answered(&id, answer.ok(), now, self::now()) {
                        self.report(payload);
                    }
                    if !self.outbox.is_requesting() {
                        self.trouble.settle();
                    }
                }
                continue;
            }
            if self.discover.is_some_and(|due| due <= now.instant) {
                // Opens the connection before the first eviction, and reports missing credentials or a server that cannot be
                // reached. Missing rights appear only with the first eviction.
                let found = self.ask(Call::Discover).await;
                self.discover = match found {
                    Some(Ok(Outcome::Discovered(found))) => {
                        self.outbox.discovered(found);
                        None
                    }
                    Some(Ok(Outcome::Known(version))) => {
                        self.outbox.discovered(Some(version));
                        None
                    }
                    Some(_) => Some(Instant::now() + self.pace.failed()),
                    // An eviction asks for it, which had to go first.
                    None => self.discover,
                };
                continue;
            }
            if self.warmth.due().is_some_and(|due| due <= now.instant) {
                // A failure matters only once an eviction needs the server.
                drop(self.ask_plainly(Call::Ping).await);
                continue;
            }
            self.keep_position();
            let due = [self.outbox.due(), self.discover, self.warmth.due()];
            let due = due.into_iter().flatten().min();
            tokio::select! {
                Some(killed) = self.kills.recv() => self.take_kill(&killed),
                () = self.reader.readable() => {}
                () = sleep_until(due) => {}
            }
        }
    }

    fn take_kill(&mut self, killed: &EvictionSignalled) {
        self.outbox.take_kill(self.journal.range().newest, killed, now());
    }

    /// Waits for the event of a kill: what came of its request follows it.
    async fn until_recorded(&mut self, id: &str) {
        let end = tokio::time::Instant::now() + RECORDED;
        while !self.outbox.is_recorded(id) && timeout_at(end, self.reader.readable()).await.is_ok() {
            self.read();
        }
        self.outbox.set_recorded(id);
    }

    /// Takes in all events that are there, and shows which evictions are open.
    fn look(&mut self) {
        self.read();
        let open = self.outbox.open(now());
        self.open.send_if_modified(|shown| {
            let differs = *shown != open;
            if differs {
                *shown = open;
            }
            differs
        });
    }

    /// Takes in all events that are there.
    fn read(&mut self) {
        while let Some(batch) = self.reader.read() {
            match batch {
                Batch::Gap { from, to } => {
                    tracing::warn!(
                        from,
                        to,
                        "lost events may include evictions; none of these is requested from the API server"
                    );
                }
                Batch::Records(records) => {
                    for Record { sequence, time_ms, kind: _, pod, line } in records {
                        match Event::parse(&line) {
                            Ok(event) => {
                                let payload = &event.payload;
                                if !self.journal.is_of_this_boot(&event.source) {
                                    self.outbox.note_earlier_boot(sequence);
                                }
                                if foretells(payload) {
                                    self.warm();
                                }
                                let report =
                                    self.outbox.take(sequence, time_ms, pod.as_ref(), payload, now());
                                if let Some(report) = report {
                                    self.report(report);
                                }
                            }
                            Err(error) => tracing::warn!(%error, sequence, "an event cannot be read back"),
                        }
                    }
                }
            }
        }
    }

    /// Prepares for an eviction that may follow: with the connection comes the version of evictions, if it is not known.
    fn warm(&mut self) {
        let now = Instant::now();
        if self.warmth.warn(now) && self.discover.is_some() {
            self.discover = Some(now);
        }
    }

    /// Asks, and reports whether the server can be asked. `None`: the answer is no longer waited for, as a request has become
    /// urgent.
    async fn ask(&mut self, call: Call) -> Option<Result<Outcome, String>> {
        let changes = !call.changes_nothing();
        let answer = self.ask_plainly(call).await?;
        self.trouble.note(changes, &answer);
        Some(answer)
    }

    async fn ask_plainly(&mut self, call: Call) -> Option<Result<Outcome, String>> {
        let lane = match call {
            Call::Look(_) => Lane::Looks,
            _ => Lane::Evictions,
        };
        if lane == Lane::Evictions {
            self.warmth.used(Instant::now());
        }
        let access = match self.access(&call).await? {
            Ok(access) => access,
            Err(why) => return Some(Err(why)),
        };
        let server = self.server.clone();
        let mut answer = pin!(server.ask_as(access, lane, call));
        let begun = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await;
        if let Poll::Ready(answer) = begun {
            return Some(answer);
        }
        self.look();
        loop {
            if lane == Lane::Looks && self.outbox.is_urgent(now()) {
                return None;
            }
            tokio::select! {
                answer = &mut answer => return Some(answer),
                // A look may take its time, and is repeated.
                Some(killed) = self.kills.recv(), if lane == Lane::Looks => self.take_kill(&killed),
                () = self.reader.readable(), if lane == Lane::Looks => self.read(),
            }
        }
    }

    /// The credentials: for what changes a pod, and what has to be known before, those of the last two minutes, else as they are
    /// now. `None`: they are no longer waited for, as a request has become urgent.
    async fn access(&mut self, call: &Call) -> Option<Result<ApiServerFeed, String>> {
        let is_urgent = self.outbox.is_urgent(now());
        let begin = Instant::now();
        if let Some((access, read)) = &self.access
            && (is_urgent || !call.changes_nothing())
            && begin.duration_since(*read) < CREDENTIALS_LAST
        {
            return Some(Ok(access.clone()));
        }
        let server = self.server.clone();
        let mut reading = pin!(server.access());
        let access = loop {
            tokio::select! {
                access = &mut reading => break access,
                // One that changes nothing is asked again.
                Some(killed) = self.kills.recv(), if call.changes_nothing() && !is_urgent => {
                    self.take_kill(&killed);
                    if self.outbox.is_urgent(now()) {
                        return None;
                    }
                }
            }
        };
        if let Ok(access) = &access {
            self.access = Some((access.clone(), begin));
        }
        Some(access)
    }

    fn report(&self, payload: Payload) {
        let pod = match &payload {
            Payload::EvictionRequested(of) => (&of.namespace, &of.name),
            Payload::EvictionConfirmed(of) => (&of.namespace, &of.name),
            _ => return,
        };
        let (namespace, name) = (pod.0.clone(), pod.1.clone());
        self.journal.emit(Subject::Pod(crate::model::PodName { namespace, name }), payload);
    }

    /// Has the position written that is read again after a restart. One that is behind is safe: each pod is looked at before
    /// anything is asked again.
    fn keep_position(&mut self) {
        let position = self.journal.cursor(self.outbox.position(self.reader.position()));
        if self.kept.as_ref() != Some(&position) {
            self.keeper.keep(position.clone());
            self.kept = Some(position);
        }
    }
}

/// Starts the thread that writes the position: a request must not wait for the disk.
fn start_keeper(state_dir: &Path) -> io::Result<Keeper<Cursor>> {
    let mut file = CursorFile::new(state_dir, NAME);
    let mut is_reported = false;
    Keeper::start("kube-keeper", CursorFile::PACE, move |position| {
        let written = file.write(&position);
        if let Err(error) = &written
            && !is_reported
        {
            tracing::warn!(%error, "cannot write the cursor of API evictions");
        }
        is_reported = written.is_err();
    })
}

/// Whether an eviction may follow.
fn foretells(payload: &Payload) -> bool {
    match payload {
        Payload::PressureRising(PressureRising::Headroom(_)) | Payload::ThresholdCrossed(_) => true,
        // What is decided only has no request.
        Payload::EvictionDecided(EvictionDecided::Decision(decision)) => !decision.dry_run,
        _ => false,
    }
}

fn now() -> Now {
    Now {
        instant: Instant::now(),
        time_ms: jiff::Timestamp::now().as_millisecond(),
        boot_ms: clock::boottime_ms(),
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
