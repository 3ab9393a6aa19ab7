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
    sink::{Ground, Healths, Kind, Sink, SinkSettings, Wanted},
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
        let mut sinks = Self::none(ground);
        sinks.configure(config);
        Ok((journal, sinks))
    }

    fn none(ground: Ground) -> Self {
        Self { ground, running: BTreeMap::new(), waiting: BTreeMap::new(), again: Instant::now() }
    }

    /// Applies another configuration. An unchanged sink continues, or stays stopped. One that is added begins with the
    /// events after this: its receiver takes what is old for new.
    pub(super) fn configure(&mut self, config: &Config) {
        self.apply(&config.sinks);
    }

    fn apply(&mut self, settings: &SinkSettings) {
        let newest = self.ground.journal.range().newest;
        let mut before = std::mem::take(&mut self.running);
        let mut waiting = std::mem::take(&mut self.waiting);
        for wanted in Wanted::all(settings) {
            let name = wanted.name();
            let (begin, replaced) = match before.remove(&name) {
                Some((present, sink)) if present == wanted => {
                    self.running.insert(name, (present, sink));
                    continue;
                }
                // It has a cursor, unless the disk refuses it.
                Some((_, sink)) => (sink.position(), Some(sink)),
                None => (waiting.remove(&name).map_or(newest, |waiting| waiting.begin), None),
            };
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

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixDatagram, path::Path, sync::Arc};

    use serde_json::json;

    use super::*;
    use crate::{
        journal::{EventType, RawEvent},
        sink::JournaldSettings,
    };

    fn sinks(state_dir: &Path) -> Sinks {
        Sinks::none(Ground {
            journal: Journal::new("n", "b"),
            state_dir: state_dir.to_owned(),
            node: String::from("n"),
            healths: Healths::default(),
            network: Network::in_this_process().unwrap(),
            api_server: ApiServer::in_this_process("n", Arc::new(|| Err(String::from("none")))).unwrap(),
            evicts: true,
        })
    }

    fn append(sinks: &Sinks, count: usize) {
        for _ in 0..count {
            let event = RawEvent { kind: EventType::PodAdded, subject: Subject::Node, data: json!({}) };
            sinks.ground.journal.append_raw(event);
        }
    }

    /// The sequence of the next event that the sink journald delivers.
    fn delivered(journald: &UnixDatagram) -> u64 {
        let mut entry = vec![0; 1 << 16];
        let length = journald.recv(&mut entry).unwrap();
        let text = String::from_utf8_lossy(&entry[..length]).into_owned();
        let sequence = text.lines().find_map(|line| line.strip_prefix("ENFORCER_SEQUENCE="));
        sequence.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
    }

    /// A sink that is added after ten days is not given all that the log keeps of them.
    #[tokio::test]
    async fn a_sink_that_a_reload_adds_begins_with_the_reload_and_goes_on_from_its_cursor() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let journald = UnixDatagram::bind(&socket).unwrap();
        journald.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut sinks = sinks(dir.path());
        let with = |types: Vec<EventType>| SinkSettings {
            journald: JournaldSettings { enabled: true, socket: socket.clone(), types },
            ..SinkSettings::default()
        };
        sinks.apply(&SinkSettings::default());
        append(&sinks, 5);
        sinks.apply(&with(Vec::new()));
        append(&sinks, 1);
        assert_eq!(delivered(&journald), 6);
        // A reload that changes nothing of it, and one that changes it.
        append(&sinks, 1);
        sinks.apply(&with(Vec::new()));
        append(&sinks, 1);
        sinks.apply(&with(vec![EventType::PodAdded]));
        append(&sinks, 1);
        assert_eq!([(); 3].map(|()| delivered(&journald)), [7, 8, 9]);
        sinks.close().await;
    }

    /// The disk takes no cursor: what is yet to be delivered is not lost with a change.
    #[tokio::test]
    async fn a_sink_that_a_reload_changes_goes_on_where_it_is_without_a_cursor_too() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let mut sinks = sinks(Path::new("/proc/none"));
        let with = |types: Vec<EventType>| SinkSettings {
            journald: JournaldSettings { enabled: true, socket: socket.clone(), types },
            ..SinkSettings::default()
        };
        sinks.apply(&with(Vec::new()));
        append(&sinks, 5);
        // That the disk refuses the cursor is an event too.
        sinks.apply(&with(vec![EventType::PodAdded, EventType::DegradedEntered]));
        let journald = UnixDatagram::bind(&socket).unwrap();
        journald.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(delivered(&journald), 1);
        sinks.close().await;
    }
}
