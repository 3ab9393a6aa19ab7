//! The daemon's sinks: started, changed by SIGHUP, and stopped.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use enforcer_events::{Payload, node::Degraded};
use tokio::time::timeout;

use super::{emit, host::Host, kubernetes, specifying::Access, start};
use crate::{
    config::{Config, Mode},
    journal::{Journal, Subject},
    kube::ApiServer,
    metrics::Counts,
    network::Network,
    sink::{Ground, Healths, Kind, Sink, Wanted},
};

/// How long the sinks may take to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// How soon a failed start is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// The `what` of the degradation while a sink does not run.
const SINK: &str = "sink";

/// The running sinks, by name.
#[derive(Debug)]
pub(super) struct Sinks {
    ground: Ground,
    /// A sink without a cursor begins after this sequence number.
    begin: u64,
    running: BTreeMap<String, (Wanted, Sink)>,
    /// Sinks that could not be started.
    waiting: BTreeMap<String, Waiting>,
    again: Instant,
}

/// A sink that waits for its thread, and where it begins.
#[derive(Debug)]
struct Waiting {
    wanted: Wanted,
    begin: u64,
}

impl Sinks {
    /// Opens the journal, and starts the configured sinks. A new sink begins with this daemon's first event.
    pub(super) async fn open(
        config: &Config,
        host: &Host,
        counts: &Counts,
        access: &Access,
    ) -> anyhow::Result<(Journal, Self)> {
        let journal = start::open_journal(config, host, counts).await?;
        let ground = Ground {
            journal: journal.clone(),
            state_dir: config.state_dir.clone(),
            node: host.name.clone(),
            healths: Healths::default(),
            network: Network::start().context("cannot start the network thread")?,
            api_server: kubernetes::server(access).context("cannot start the thread for the API server")?,
            evicts: config.mode == Mode::Enforce,
        };
        let begin = journal.range().newest;
        let mut sinks =
            Self { ground, begin, running: BTreeMap::new(), waiting: BTreeMap::new(), again: Instant::now() };
        sinks.configure(config);
        Ok((journal, sinks))
    }

    /// Applies another configuration. An unchanged sink continues, or stays stopped.
    pub(super) fn configure(&mut self, config: &Config) {
        let mut before = std::mem::take(&mut self.running);
        self.waiting.clear();
        for wanted in Wanted::all(&config.sinks) {
            let name = wanted.name();
            let replaced = match before.remove(&name) {
                Some((present, sink)) if present == wanted => {
                    self.running.insert(name, (present, sink));
                    continue;
                }
                other => other.map(|(_, sink)| sink),
            };
            let begin = self.begin;
            if let Err(error) = self.start(&name, &wanted, begin, replaced) {
                let message = format!(
                    "the sink {name} does not start, and is tried again every {} s: {error}",
                    RETRY.as_secs()
                );
                emit::degraded(&self.ground.journal, SINK, &message);
                self.waiting.insert(name, Waiting { wanted, begin });
            }
        }
        self.again = Instant::now() + RETRY;
        // A sink that is added later begins with the events after this.
        self.begin = self.ground.journal.range().newest;
    }

    fn start(&mut self, name: &str, wanted: &Wanted, begin: u64, replaced: Option<Sink>) -> io::Result<()> {
        let sink = Sink::start(&self.ground, wanted, begin, replaced)?;
        self.running.insert(name.to_owned(), (wanted.clone(), sink));
        Ok(())
    }

    /// Tries again to start the failed ones if it is time: the kernel may have refused a thread.
    pub(super) fn retry(&mut self) {
        let now = Instant::now();
        if self.waiting.is_empty() || now < self.again {
            return;
        }
        self.again = now + RETRY;
        for (name, Waiting { wanted, begin }) in std::mem::take(&mut self.waiting) {
            match self.start(&name, &wanted, begin, None) {
                Ok(()) => {
                    let message = Some(format!("the sink {name} runs"));
                    let data = Degraded { sink: Some(name), message, ..Degraded::of(SINK) };
                    self.ground.journal.emit(Subject::Node, Payload::DegradedLeft(data));
                }
                Err(error) => {
                    tracing::warn!(%error, "the sink {name} does not start");
                    self.waiting.insert(name, Waiting { wanted, begin });
                }
            }
        }
    }

    /// The API server, which takes Events, and evictions.
    pub(super) fn api_server(&self) -> &ApiServer {
        &self.ground.api_server
    }

    /// The sinks' states.
    pub(super) fn healths(&self) -> &Healths {
        &self.ground.healths
    }

    /// Stops the sinks: each may finish its present delivery. The next start delivers the rest.
    pub(super) async fn close(mut self) {
        let stopping = self.running.values_mut().map(|(_, sink)| sink.stop());
        if timeout(DRAIN_TIMEOUT, futures_util::future::join_all(stopping)).await.is_err() {
            tracing::warn!("not all sinks ended in time: what they delivered last may be delivered again");
        }
        let newest = self.ground.journal.range().newest;
        for kind in Kind::ALL {
            let lag = self.healths().of(*kind).lag_records(newest);
            if lag > 0 {
                tracing::info!("{}: {lag} events are left for the next start", kind.as_str());
            }
        }
    }
}
