//! The sinks in the daemon: started, changed by SIGHUP, and stopped.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::timeout;

use super::{host::Host, start, telling};
use crate::{
    config::Config,
    journal::Journal,
    sink::{Ground, Healths, Kind, Sink, Wanted},
};

/// How long the sinks may take to end.
const GOODBYE: Duration = Duration::from_secs(2);

/// Those that run, by their names.
#[derive(Debug)]
pub(super) struct Sinks {
    ground: Ground,
    /// Behind which sequence a sink begins that has no cursor.
    begin: u64,
    running: BTreeMap<String, (Wanted, Sink)>,
}

impl Sinks {
    /// Opens the log, and starts what is configured. One that is new begins with what this daemon tells.
    pub(super) async fn open(config: &Config, host: &Host) -> anyhow::Result<(Journal, Self)> {
        let journal = start::open_journal(config, host).await?;
        let ground = Ground {
            journal: journal.clone(),
            state_dir: config.state_dir.clone(),
            node: host.name.clone(),
            healths: Healths::default(),
        };
        let begin = journal.range().newest;
        let mut sinks = Self { ground, begin, running: BTreeMap::new() };
        sinks.configure(config);
        Ok((journal, sinks))
    }

    /// Follows another configuration. A sink that is configured as before goes on, or stays stopped.
    pub(super) fn configure(&mut self, config: &Config) {
        let mut before = std::mem::take(&mut self.running);
        for wanted in Wanted::all(&config.sinks) {
            let name = wanted.name();
            let replaced = match before.remove(&name) {
                Some((present, sink)) if present == wanted => {
                    self.running.insert(name, (present, sink));
                    continue;
                }
                other => other.map(|(_, sink)| sink),
            };
            match Sink::start(&self.ground, &wanted, self.begin, replaced) {
                Ok(sink) => {
                    self.running.insert(name, (wanted, sink));
                }
                Err(error) => {
                    let message = format!("the sink {name} does not start: {error}");
                    telling::degraded(&self.ground.journal, "sink", &message);
                }
            }
        }
        // One that is added later begins with what is told from then on.
        self.begin = self.ground.journal.range().newest;
    }

    /// How they are.
    pub(super) fn healths(&self) -> &Healths {
        &self.ground.healths
    }

    /// Stops them: each may finish what it is at. What they have not delivered they do after the next start.
    pub(super) async fn close(mut self) {
        let stopping = self.running.values_mut().map(|(_, sink)| sink.stop());
        if timeout(GOODBYE, futures_util::future::join_all(stopping)).await.is_err() {
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
