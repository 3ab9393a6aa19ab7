//! Gives each sink a thread of its own, so that a slow receiver delays no other.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, mpsc},
};

use enforcer_events::{Payload, node::Degraded};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{oneshot, watch},
};

use super::{
    Healths, JournaldSettings, Kind, KubernetesSettings, SinkSettings, WebhookSettings,
    feed::Feed,
    health::{Health, Progress},
    journald::Journald,
    kubernetes::{self, Kubernetes, Optional},
    run::{FAILING, Outlet, Run},
    webhook::Webhook,
};
use crate::{
    durable::StateError,
    journal::{self, Cursor, CursorFile, EventType, Filter, Journal, Subject},
    kube::ApiServer,
    network::Network,
};

/// The stack of a sink's thread.
const STACK_BYTES: usize = 512 << 10;

/// What all sinks share.
#[derive(Clone, Debug)]
pub struct Ground {
    /// The log that they read.
    pub journal: Journal,
    /// The state directory; its folder `sinks` holds their cursors.
    pub state_dir: PathBuf,
    /// The node's name, as receivers see it.
    pub node: String,
    /// Their counters.
    pub healths: Healths,
    /// Makes the requests of webhooks.
    pub network: Network,
    /// Takes Events.
    pub api_server: ApiServer,
    /// Whether the daemon evicts, and does not only say what it would do.
    pub evicts: bool,
}

/// A configured sink.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Wanted {
    /// To systemd's journal.
    Journald(JournaldSettings),
    /// To an HTTP receiver.
    Webhook(Box<WebhookSettings>),
    /// To the Kubernetes API server.
    Kubernetes(KubernetesSettings),
}

impl Wanted {
    /// All sinks of the settings.
    #[must_use]
    pub fn all(settings: &SinkSettings) -> Vec<Self> {
        let journald = settings.journald.enabled.then(|| Self::Journald(settings.journald.clone()));
        let kubernetes = settings.kubernetes.enabled.then_some(Self::Kubernetes(settings.kubernetes));
        journald
            .into_iter()
            .chain(kubernetes)
            .chain(settings.webhooks.iter().cloned().map(Box::new).map(Self::Webhook))
            .collect()
    }

    /// Its unique name: `journald`, `webhook-pager`.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Journald(_) => String::from("journald"),
            Self::Webhook(webhook) => format!("webhook-{}", webhook.name),
            Self::Kubernetes(_) => String::from("kubernetes"),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Journald(_) => Kind::Journald,
            Self::Webhook(_) => Kind::Webhook,
            Self::Kubernetes(_) => Kind::Kubernetes,
        }
    }

    fn types(&self) -> &[EventType] {
        match self {
            Self::Journald(journald) => &journald.types,
            Self::Webhook(webhook) => &webhook.types,
            Self::Kubernetes(_) => kubernetes::TYPES,
        }
    }
}

/// A running sink on its own thread. Dropping it makes the thread stop.
#[derive(Debug)]
pub struct Sink {
    stop: watch::Sender<bool>,
    /// Closed when its thread has ended.
    ended: oneshot::Receiver<()>,
    health: Arc<Health>,
    progress: Arc<Progress>,
    name: String,
}

impl Sink {
    /// Starts a sink. Without a cursor it begins after the sequence `begin`. It replaces `before`, a sink of the same
    /// name, and waits for its end.
    pub fn start(ground: &Ground, wanted: &Wanted, begin: u64, before: Option<Self>) -> io::Result<Self> {
        let (stop, stopping) = watch::channel(false);
        let (end, ended) = oneshot::channel();
        let name = wanted.name();
        let health = Arc::clone(ground.healths.of(wanted.kind()));
        let progress = health.add(&name);
        progress.set(begin);
        let work = Work {
            ground: ground.clone(),
            wanted: wanted.clone(),
            begin,
            health: Arc::clone(&health),
            progress: Arc::clone(&progress),
        };
        let thread = std::thread::Builder::new().name(name.clone()).stack_size(STACK_BYTES);
        let (built, is_built) = mpsc::channel();
        let spawned = thread.spawn(move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                // The caller waits for this.
                Err(error) => return drop(built.send(Err(error))),
            };
            drop(built.send(Ok(())));
            let before = before.map(|mut before| {
                before.stop.send_replace(true);
                std::mem::replace(&mut before.ended, oneshot::channel().1)
            });
            if let Some(ended) = before {
                // The sender sends nothing. It is dropped when the thread ends.
                drop(ended.blocking_recv());
            }
            work.run(&runtime, stopping);
            drop(end);
        });
        let sink = Self { stop, ended, health, progress, name };
        // On an error, dropping `sink` removes it from the health.
        spawned.and_then(|_| is_built.recv().map_err(io::Error::other)?)?;
        Ok(sink)
    }

    /// The last sequence that needs no delivery any more. It may lag for a moment.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.progress.position()
    }

    /// Stops it and waits for its end. It may finish the present delivery, and writes its cursor. Safe to cancel.
    pub async fn stop(&mut self) {
        self.stop.send_replace(true);
        drop((&mut self.ended).await);
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.health.remove(&self.name, &self.progress);
    }
}

/// The input of a sink's thread.
struct Work {
    ground: Ground,
    wanted: Wanted,
    begin: u64,
    health: Arc<Health>,
    progress: Arc<Progress>,
}

impl Work {
    fn run(self, runtime: &Runtime, stopping: watch::Receiver<bool>) {
        match self.wanted.clone() {
            Wanted::Journald(settings) => match Journald::new(&settings, &self.ground.journal) {
                Ok(journald) => runtime.block_on(self.deliver(journald, stopping)),
                Err(error) => {
                    self.emit(&format!("the sink journald does not start: {}", crate::chain(&error)));
                }
            },
            Wanted::Webhook(settings) => {
                let webhook = Webhook::new(*settings, &self.ground.node, self.ground.network.clone());
                runtime.block_on(self.deliver(webhook, stopping));
            }
            Wanted::Kubernetes(settings) => {
                let optional = Optional { would_evict: settings.dry_run, threshold_met: self.ground.evicts };
                let kubernetes =
                    Kubernetes::new(optional, self.ground.api_server.clone(), self.ground.journal.clone());
                runtime.block_on(self.deliver(kubernetes, stopping));
            }
        }
    }

    async fn deliver<O: Outlet>(self, outlet: O, stopping: watch::Receiver<bool>) {
        let Ground { journal, state_dir, .. } = &self.ground;
        let mut cursor = CursorFile::new(state_dir, &self.wanted.name());
        let (after, why) = beginning(journal, cursor.read(), self.begin);
        if let Some(why) = why {
            self.emit(&format!("the sink {}: {why}", self.wanted.name()));
        }
        let filter = Filter { kinds: self.wanted.types().to_vec(), ..Filter::default() };
        let run = Run {
            shown: self.wanted.name(),
            feed: Feed::new(journal.clone(), after, filter, Arc::clone(&self.health)),
            journal: journal.clone(),
            cursor,
            outlet,
            health: self.health,
            progress: self.progress,
            failing: FAILING,
        };
        run.run(stopping).await;
    }

    fn emit(&self, message: &str) {
        tracing::warn!("{message}");
        let data = Degraded {
            sink: Some(self.wanted.name().clone()),
            message: Some(message.to_owned()),
            ..Degraded::of("sink")
        };
        self.ground.journal.emit(Subject::Node, Payload::DegradedEntered(data));
    }
}

/// The sequence after which a sink with this cursor begins, and a message if the cursor cannot be used. Without a
/// cursor it is `new`. Events that were gone before do not count as a loss of this sink.
fn beginning(
    journal: &Journal,
    cursor: Result<Option<Cursor>, StateError>,
    new: u64,
) -> (u64, Option<String>) {
    match cursor {
        Ok(None) => (new, None),
        Ok(Some(cursor)) => match journal::resume(journal, &cursor) {
            Ok(after) => (after, None),
            Err(after) => {
                let why = format!(
                    "nothing is kept of the log of its cursor {cursor}, so it begins again with the oldest event that is kept"
                );
                (after, Some(why))
            }
        },
        Err(error) => {
            let why = crate::chain(&error);
            let why = format!("it begins again with the oldest event that is kept: {why}");
            (journal::before_all(journal), Some(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::journal::RawEvent;

    #[test]
    fn a_cursor_that_says_nothing_begins_with_the_oldest_event_and_says_so() {
        let journal = Journal::new("n", "b");
        for _ in 0..4_000 {
            let data = json!({"pad": "x".repeat(1_000)});
            journal.append_raw(RawEvent { kind: EventType::PodAdded, subject: Subject::Node, data });
        }
        let oldest = journal.range().oldest;
        assert!(oldest > 100, "{oldest}");
        let (path, aside) = (PathBuf::from("/x"), PathBuf::from("/x.damaged"));
        let damaged = StateError::SetAside { path, why: String::from("no JSON"), aside };
        let other = Cursor { epoch: String::from("other"), sequence: 3_990 };
        for cursor in [Err(damaged), Ok(Some(other))] {
            let (after, why) = beginning(&journal, cursor, 4_000);
            assert_eq!(after, oldest - 1, "{why:?}");
            assert!(why.is_some_and(|why| why.contains("begins again with the oldest event that is kept")));
        }
        assert_eq!(beginning(&journal, Ok(None), 4_000), (4_000, None));
        assert_eq!(beginning(&journal, Ok(Some(journal.cursor(3_999))), 0), (3_999, None));
    }
}
