//! The thread that shows at the API server that memory is short here: a condition and a taint of the node, both opt-in.
//!
//! The kubelet's own condition `MemoryPressure`, and its taint, are left alone. What was set is removed when the daemon stops,
//! and after a crash by the next one: a small state file says that there is something to remove. That file may be lost: without
//! it, what is configured is removed at the start as if it had been set.

use std::{
    io,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
    time::{Duration, Instant},
};

use enforcer_events::{Payload, node::Degraded};
use serde::{Deserialize, Serialize};
use tokio::{runtime::Builder, sync::watch};

use super::{
    client::{ApiServer, Named},
    message::{Call, ConditionStatus, Lane, Outcome, TaintEffect},
};
use crate::{
    durable::{self, State},
    journal::{Journal, Subject},
    network::{BackOff, Bounds},
};

/// The name of the thread.
const NAME: &str = "kube-node";

const STACK_BYTES: usize = 512 << 10;

/// The `what` of the degradation while the node cannot be changed.
const WHAT: &str = "nodeCondition";

/// How long a stop waits for the removal of what was set.
const GOODBYE: Duration = Duration::from_secs(3);

const PAUSES: Bounds = Bounds { least: Duration::from_secs(1), most: Duration::from_mins(1) };

/// How long after the order to stop the last try begins, so that there is time for its answer.
const LAST_TRY: Duration = Duration::from_millis(2_500);

const LAST_PAUSES: Bounds = Bounds { least: Duration::from_millis(200), most: Duration::from_secs(1) };

/// What is set on the node while memory is short.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct NodeSettings {
    /// Whether the condition `EnforcerMemoryPressure` is set.
    pub condition: bool,
    /// The effect of the taint `enforcer.dev/memory-pressure`; `None` without one.
    pub taint: Option<TaintEffect>,
}

impl NodeSettings {
    /// Whether anything is set.
    #[must_use]
    pub fn is_some(self) -> bool {
        self != Self::default()
    }

    /// Both; of two effects, the first.
    fn and(self, other: Self) -> Self {
        Self { condition: self.condition || other.condition, taint: self.taint.or(other.taint) }
    }
}

/// What may have been set and has to be removed, on the disk.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Marks {
    pub(super) node: String,
    pub(super) set: NodeSettings,
}

impl State for Marks {
    const MAX_BYTES: u64 = 4 << 10;
}

/// What the node has; also what it should have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Shown {
    condition: Option<ConditionStatus>,
    taint: Option<TaintEffect>,
}

impl Shown {
    const NOTHING: Self = Self { condition: None, taint: None };

    fn of(settings: NodeSettings, is_short: bool) -> Self {
        let condition = if is_short { ConditionStatus::True } else { ConditionStatus::False };
        Self {
            condition: settings.condition.then_some(condition),
            taint: settings.taint.filter(|_| is_short),
        }
    }
}

/// The running thread. Dropping it removes what was set, and waits a moment for that.
#[derive(Debug)]
pub struct NodeMarks {
    /// Whether memory is short; `None` ends the thread.
    short: watch::Sender<Option<bool>>,
    ended: Receiver<()>,
}

struct Run {
    settings: NodeSettings,
    server: ApiServer,
    journal: Journal,
    path: PathBuf,
    /// What has been set since the start, and what a predecessor left.
    marks: Option<Marks>,
    /// What a predecessor may have left without a record, until it has been removed.
    suspected: NodeSettings,
    /// What the node has, if known.
    shown: Option<Shown>,
    is_degraded: bool,
}

impl NodeMarks {
    /// Starts the thread, if there is something to set or to remove.
    pub fn start(
        journal: &Journal,
        state_dir: &Path,
        settings: NodeSettings,
        server: ApiServer,
    ) -> io::Result<Option<Self>> {
        let path = state_dir.join("node-marks.json");
        let marks = durable::read::<Marks>(&path).unwrap_or_else(|error| {
            tracing::warn!(
                "cannot read which condition or taint an earlier daemon set on the node; `kubectl describe node` shows them: {}",
                crate::chain(&error)
            );
            None
        });
        if !settings.is_some() && marks.is_none() {
            return Ok(None);
        }
        let (short, shortage) = watch::channel(Some(false));
        let (end, ended): (Sender<()>, _) = channel();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let suspected = if marks.is_none() { settings } else { NodeSettings::default() };
        let journal = journal.clone();
        let mut run =
            Run { settings, server, journal, path, marks, suspected, shown: None, is_degraded: false };
        std::thread::Builder::new().name(NAME.to_owned()).stack_size(STACK_BYTES).spawn(move || {
            runtime.block_on(run.run(shortage));
            drop(end);
        })?;
        Ok(Some(Self { short, ended }))
    }

    /// Notes whether memory is short.
    pub fn set_short(&self, is_short: bool) {
        self.short.send_if_modified(|short| short.replace(is_short) != Some(is_short));
    }
}

impl Drop for NodeMarks {
    fn drop(&mut self) {
        self.short.send_replace(None);
        // An API server that is away keeps the daemon no longer: the next start removes what is left.
        let _ended = self.ended.recv_timeout(GOODBYE);
    }
}

impl Run {
    async fn run(&mut self, mut short: watch::Receiver<Option<bool>>) {
        let mut back_off = BackOff::new(PAUSES);
        loop {
            let asked = *short.borrow_and_update();
            let Some(is_short) = asked else { return self.remove_all().await };
            let wanted = Shown::of(self.settings, is_short);
            let done = if self.shown == Some(wanted) { Ok(()) } else { self.show(wanted).await };
            match done {
                Ok(()) => {
                    back_off.reset();
                    self.recovered();
                    // While the node's name is only a guess, what may be set is still to be looked at.
                    let wait = if self.suspected.is_some() { PAUSES.most } else { Duration::MAX };
                    // A dropped sender means stop.
                    if let Ok(Err(_dropped)) = tokio::time::timeout(wait, short.changed()).await {
                        return;
                    }
                }
                Err(why) => {
                    self.troubled(&why);
                    let _is_over = tokio::time::timeout(back_off.next(), short.changed()).await;
                }
            }
        }
    }

    /// Removes what is set, and tries again while a stop waits: the node may have just changed, or the server may be away
    /// for a moment.
    async fn remove_all(&mut self) {
        let end = Instant::now() + LAST_TRY;
        let mut back_off = BackOff::new(LAST_PAUSES);
        while self.shown != Some(Shown::NOTHING) {
            let Err(why) = self.show(Shown::NOTHING).await else { return };
            let pause = back_off.next();
            if Instant::now() + pause > end {
                tracing::warn!(
                    "the node's condition or taint may stay at the API server until the next start: {why}"
                );
                return;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Brings the node in line.
    async fn show(&mut self, wanted: Shown) -> Result<(), String> {
        let set = NodeSettings { condition: wanted.condition.is_some(), taint: wanted.taint };
        // Until both are set, what the node has is not known: an answer may be lost.
        self.shown = None;
        let Named { name, is_guess } = self.server.named();
        // The host's name may be that of another node: while nothing says this one's, it is the one on record.
        let name = self.marks.as_ref().filter(|_| is_guess).map_or(name, |marks| marks.node.clone());
        if let Some(Marks { node, set }) = self.marks.clone().filter(|marks| marks.node != name) {
            // The node has another name now.
            self.change(&node, set, Shown::NOTHING).await?;
            self.forget()?;
        }
        self.mark(name.clone(), set)?;
        let recorded = self.marks.as_ref().map(|marks| marks.set).unwrap_or_default();
        // From a node that may be another one, nothing is removed on a suspicion.
        let suspected = if is_guess { NodeSettings::default() } else { self.suspected };
        self.change(&name, recorded.and(suspected), wanted).await?;
        if !is_guess {
            self.suspected = NodeSettings::default();
        }
        self.shown = (!self.suspected.is_some()).then_some(wanted);
        if wanted == Shown::NOTHING && self.marks.is_some() { self.forget() } else { Ok(()) }
    }

    /// Changes a node that may have what is in `before`. If one half fails, the other is done all the same.
    async fn change(&self, node: &str, before: NodeSettings, wanted: Shown) -> Result<(), String> {
        let mut condition = Ok(());
        if before.condition || wanted.condition.is_some() {
            let call = Call::Condition { node: node.to_owned(), status: wanted.condition };
            condition = self.ask(node, call, wanted.condition.is_none()).await;
        }
        let mut taint = Ok(());
        if before.taint.is_some() || wanted.taint.is_some() {
            let call = Call::Taint { node: node.to_owned(), effect: wanted.taint };
            taint = self.ask(node, call, wanted.taint.is_none()).await;
        }
        condition.and(taint)
    }

    /// Nothing is left to remove.
    fn forget(&mut self) -> Result<(), String> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(format!("cannot remove {}: {error}", self.path.display()));
            }
            // Somebody else may have removed it.
            Ok(()) | Err(_) => {}
        }
        self.marks = None;
        Ok(())
    }

    /// Notes on the disk what is about to be set, in addition to what was.
    fn mark(&mut self, node: String, set: NodeSettings) -> Result<(), String> {
        if !set.is_some() && self.marks.is_none() {
            return Ok(());
        }
        let before = self.marks.as_ref().map(|marks| marks.set).unwrap_or_default();
        let marks = Marks { node, set: set.and(before) };
        if self.marks.as_ref() != Some(&marks) {
            durable::write(&self.path, &marks)
                .map_err(|error| format!("cannot write {}: {error}", self.path.display()))?;
            self.marks = Some(marks);
        }
        Ok(())
    }

    async fn ask(&self, node: &str, call: Call, is_removal: bool) -> Result<(), String> {
        match self.server.ask(Lane::Events, call).await? {
            Outcome::Done { .. } => Ok(()),
            // A node that is gone has nothing any more.
            Outcome::Missing if is_removal => Ok(()),
            Outcome::Missing => {
                Err(format!("the API server has no node {node:?}: set `nodeName` to its name there"))
            }
            Outcome::Conflict => Err(String::from("the node has just changed")),
            Outcome::Refused { status, words, .. } => Err(format!("status {status}: {words}")),
            other => Err(format!("unexpected answer of the API server: {other:?}")),
        }
    }

    fn troubled(&mut self, why: &str) {
        if std::mem::replace(&mut self.is_degraded, true) {
            return;
        }
        let message = format!(
            "cannot set or remove the node's condition or taint at the API server, which may be out of date: {why}"
        );
        tracing::warn!("{message}");
        let data = Degraded { message: Some(message), ..Degraded::of(WHAT) };
        self.journal.emit(Subject::Node, Payload::DegradedEntered(data));
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.is_degraded) {
            let message =
                Some(String::from("the node's condition and taint at the API server are up to date"));
            let data = Degraded { message, ..Degraded::of(WHAT) };
            self.journal.emit(Subject::Node, Payload::DegradedLeft(data));
        }
    }
}
