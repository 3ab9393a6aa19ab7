//! Connects the flight recorder and the answers of the observe socket to the daemon.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::{
    emit,
    host::Host,
    ranking::{Ranks, Recent},
};
use crate::{
    config::Config,
    evict::{Candidate, Identity, Report},
    journal::Journal,
    policy::{
        engine::{EngineSettings, Reading},
        flight::Member,
        order::Order,
    },
    recorder::{Asker, Provenance, Recorder, Tap},
    serve::{
        Build, ConfigView, Doctor, Foresight, Headrooms, Requested, Scrape, Sources, UsageView, Usages, View,
        Vital,
    },
};

/// The recorder, if there is one, and its sources.
#[derive(Debug)]
pub(super) struct Recording {
    recorder: Option<Recorder>,
    tap: Option<Tap>,
    /// The present candidates.
    candidates: Arc<Mutex<Vec<Arc<Candidate>>>>,
    /// The engine's settings.
    settings: Arc<Mutex<EngineSettings>>,
    /// The candidates' usage a moment ago.
    recent: Arc<Recent>,
    /// The configuration as it is shown.
    shown: watch::Sender<Arc<ConfigView>>,
}

impl Recording {
    /// Starts the recorder. A failure is reported: nothing can be replayed then.
    pub(super) fn start(config: &Config, host: &Host, journal: &Journal) -> Self {
        let provenance =
            Provenance { node: host.name.clone(), boot_id: host.boot_id.clone(), config_hash: config.hash() };
        let reported = journal.clone();
        let settings = Arc::new(Mutex::new(super::engine_settings(config)));
        let failed = move |message: &str| emit::degraded(&reported, "recorder", message);
        let (recorder, tap) = match Recorder::start(&config.state_dir, provenance, failed) {
            Ok((recorder, tap)) => (Some(recorder), Some(tap)),
            Err(error) => {
                let message =
                    format!("no decision can be replayed: cannot start the flight recorder: {error}");
                emit::degraded(journal, "recorder", &message);
                (None, None)
            }
        };
        let shown = watch::Sender::new(Arc::new(shown(config)));
        Self { recorder, tap, candidates: Arc::default(), settings, recent: Arc::default(), shown }
    }

    /// Takes the tap, for the thread that feeds the engine.
    pub(super) fn tap(&mut self) -> Option<Tap> {
        self.tap.take()
    }

    /// Returns a handle to request recordings from other threads.
    pub(super) fn asker(&self) -> Option<Asker> {
        self.recorder.as_ref().map(Recorder::asker)
    }

    /// The sources of the observe socket's answers.
    pub(super) fn sources(
        &self,
        journal: Journal,
        doctor: Doctor,
        headrooms: Headrooms,
        view: watch::Receiver<View>,
        (orders, requested): (watch::Receiver<Vec<Order>>, watch::Receiver<Requested>),
        (metrics, evictor): (Scrape, Vital),
    ) -> Sources {
        let foresight = Foresight { ranker: self.ranks().ranker(), headrooms };
        let (recorder, usages) = (self.asker(), self.usages());
        let config = self.shown.subscribe();
        Sources {
            journal,
            doctor,
            recorder,
            usages,
            foresight,
            config,
            view,
            orders,
            requested,
            metrics,
            evictor,
        }
    }

    /// Returns the present candidates and their ranking.
    pub(super) fn ranks(&self) -> Ranks {
        let (candidates, settings) = (Arc::clone(&self.candidates), Arc::clone(&self.settings));
        Ranks::new(candidates, settings, Arc::clone(&self.recent), self.asker())
    }

    /// Returns a handle to read the candidates' usage.
    fn usages(&self) -> Usages {
        let (candidates, recent) = (Arc::clone(&self.candidates), Arc::clone(&self.recent));
        Usages::by(move || {
            // Copied, so that the lock is not held during the reads: the daemon must not wait for them.
            let candidates = super::lock(&candidates).clone();
            let taken = recent.take(&candidates);
            let view = |(candidate, reading): (&Arc<Candidate>, &Reading)| {
                UsageView::new(candidate.facts().cgroup, reading)
            };
            candidates.iter().zip(&taken.readings).filter_map(view).collect()
        })
    }

    /// Applies another configuration.
    pub(super) fn configured(&self, config: &Config) {
        *super::lock(&self.settings) = super::engine_settings(config);
        self.shown.send_replace(Arc::new(shown(config)));
        if let Some(recorder) = &self.recorder {
            recorder.configured(config.hash());
        }
    }

    /// Names the candidates, before the engine gets them.
    pub(super) fn name(&self, candidates: &[Arc<Candidate>]) {
        if let Some(recorder) = &self.recorder {
            recorder.name(members(candidates));
        }
        candidates.clone_into(&mut super::lock(&self.candidates));
    }
}

/// The configuration as the observe socket shows it.
fn shown(config: &Config) -> ConfigView {
    let (configuration, origins) = config.shown_to_others();
    ConfigView { daemon: Build::own(), config_hash: config.hash(), configuration, origins }
}

/// The candidates' names.
fn members(candidates: &[Arc<Candidate>]) -> impl Iterator<Item = Member> {
    candidates.iter().map(|candidate| {
        let Identity { pod, uid, qos_class, limit_bytes: _, cgroup: _, controller: _, placed: _, spec: _ } =
            candidate.identity();
        Member {
            cgroup: candidate.facts().cgroup,
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: uid.as_str().to_owned(),
            qos_class: qos_class.as_str().to_owned(),
        }
    })
}

/// Has the recorder write a decision, and its outcome.
pub(super) fn follow(asker: &Asker, report: &Report) {
    match report {
        Report::Decided { id, decision, .. } => asker.decided(*id, !decision.dry_run),
        Report::Completed { id, .. } | Report::Failed { id, .. } => asker.ended(*id),
        Report::InheritedEnded { eviction, .. } => asker.ended(eviction.id),
        _ => {}
    }
}
