//! A journal whose evictions are asked of a fake API server, and the signals that it is given.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use enforcer_events::{
    Event, EventType, Payload,
    eviction::{Controller, EvictionRequested, EvictionSignalled, Timeline},
};

use super::server::Api;
use crate::{
    journal::{Batch, Filter, Journal, Subject},
    kube::{Action, ApiSettings, Evictions, OnPdb, pace::Pace},
    model::PodName,
};

pub(in crate::kube) const SETTINGS: ApiSettings = ApiSettings {
    action: Some(Action::Evict),
    on_pdb: OnPdb::Override,
    bare_pods: None,
    daemon_set_pods: None,
};

/// A journal, and the thread that reads it.
pub(super) struct Scene {
    pub(super) journal: Journal,
    pub(super) state: tempfile::TempDir,
    pub(super) api: Api,
    pub(super) evictions: Option<Evictions>,
}

impl Scene {
    pub(super) fn new(settings: ApiSettings) -> Self {
        let mut scene = Self {
            journal: Journal::new("n", "b"),
            state: tempfile::tempdir().unwrap(),
            api: Api::serve(),
            evictions: None,
        };
        scene.start(settings);
        scene
    }

    pub(super) fn start(&mut self, settings: ApiSettings) {
        self.start_paced(settings, Pace::new(Duration::from_secs(10)));
    }

    pub(super) fn start_paced(&mut self, settings: ApiSettings, pace: Pace) {
        let server = self.api.server();
        let state: &Path = self.state.path();
        let evictions = Evictions::start_paced(pace, &self.journal, state, 0, (settings, server));
        self.evictions = Some(evictions.unwrap());
    }

    pub(super) fn signal(&self, id: &str, name: &str, uid: &str) {
        self.emit(signalled(id, name, uid));
    }

    pub(super) fn emit(&self, signalled: EvictionSignalled) {
        let subject = Subject::Pod(PodName { namespace: String::from("shop"), name: signalled.name.clone() });
        self.journal.emit(subject, Payload::EvictionSignalled(signalled));
    }

    /// The events of that type, once there are so many.
    pub(super) fn wait(&self, kind: EventType, count: usize) -> Vec<Event> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let events = self.events(kind);
            if events.len() >= count {
                return events;
            }
            assert!(
                Instant::now() < end,
                "{} of {count} {kind}: {:?}",
                events.len(),
                self.api.change(|server| server.asked.len())
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn events(&self, kind: EventType) -> Vec<Event> {
        let mut reader = self.journal.reader(Some(0), Filter { kinds: vec![kind], ..Filter::default() });
        let mut events = Vec::new();
        while let Some(batch) = reader.read() {
            let Batch::Records(records) = batch else { panic!("a gap") };
            events.extend(records.iter().map(|record| Event::parse(&record.line).unwrap()));
        }
        events
    }

    pub(super) fn requested(&self) -> EvictionRequested {
        let events = self.wait(EventType::EvictionRequested, 1);
        let Payload::EvictionRequested(requested) = events.last().unwrap().payload.clone() else { panic!() };
        requested
    }
}

pub(in crate::kube) fn signalled(id: &str, name: &str, uid: &str) -> EvictionSignalled {
    EvictionSignalled {
        eviction_id: id.to_owned(),
        namespace: String::from("shop"),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: None,
        spec: None,
        terminating: false,
        signal: Some("memory.available".into()),
        sent: "SIGKILL".into(),
        grace_ms: None,
        killed_because: None,
        brakes_failed: None,
        boot_ms: Some(crate::clock::boottime_ms()),
        timeline: Timeline::default(),
        decided_to_terminated_ms: None,
        decided_to_signalled_ms: None,
        hook: None,
        operator: None,
    }
}

/// A signal that says by a live spec whose pod it is.
pub(in crate::kube) fn signalled_live(
    id: &str,
    name: &str,
    uid: &str,
    kind: Option<&str>,
) -> EvictionSignalled {
    let controller = kind.map(|kind| Controller { kind: kind.to_owned(), name: String::from("o") });
    EvictionSignalled { controller, spec: Some("live".into()), ..signalled(id, name, uid) }
}
