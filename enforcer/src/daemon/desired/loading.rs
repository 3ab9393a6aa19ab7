//! Takes in the pods that a source holds, and reports what is new about them and about the source.
use std::sync::Arc;

use enforcer_events::{Payload, node::SourceReported, pod::PodRejected};

use super::{Desired, emit};
use crate::{
    journal::Subject,
    source::{Health, Loaded, Snapshot, SourceError, SourceName},
};

/// The source that manifest files are.
const NAME: SourceName = SourceName::STATIC;

/// The `what` of events when less is known of the manifests than should be.
const WHAT: &str = "manifests";

impl Desired {
    /// Takes the pods that the source holds now, reports what is new, and brings the cgroups in line.
    pub(in crate::daemon) async fn load(&mut self, loaded: Arc<Loaded>) -> anyhow::Result<()> {
        // A kubelet's node needs no manifests here.
        let is_unused = self.placing.is_some() && loaded.errors.iter().any(SourceError::is_unused);
        let is_down = !is_unused && loaded.errors.iter().any(SourceError::is_down);
        if !is_unused {
            self.emit_errors(&loaded);
        }
        let before = self.pods.source(NAME);
        let mut read_ms = before.and_then(|before| before.read_ms);
        if !is_down {
            if before.is_none_or(|before| before.health != Health::Up) {
                let message =
                    format!("{}: {} pods", self.config.static_pod_path.display(), loaded.pods.len());
                let data = SourceReported { source: NAME.as_str().into(), message };
                self.emit(Subject::Node, Payload::SourceUp(data));
            }
            let now_ms = emit::now_ms();
            self.counts.source_was_read(NAME.as_str(), now_ms);
            read_ms = Some(now_ms);
        }
        let health = if is_down { Health::Down } else { Health::Up };
        let pods = loaded.pods.clone();
        self.loaded = loaded;
        let changes = self.pods.take(NAME, Snapshot { pods, health, read_ms });
        let (decisions, _differs) = self.replan();
        for change in &changes {
            self.emit_change(change);
        }
        self.carry_out(decisions);
        self.reconcile().await
    }

    /// Reports new errors, and the end of degradations.
    fn emit_errors(&self, loaded: &Loaded) {
        // No event: the pod is admitted as it is written.
        for warning in loaded.new_warnings(&self.loaded) {
            tracing::warn!("{warning}");
        }
        for error in loaded.new_errors(&self.loaded) {
            let message = error.to_string();
            if error.is_degraded() {
                emit::degraded_at(&self.journal, WHAT, Some(&message), &message);
                continue;
            }
            tracing::warn!("{message}");
            let payload = if error.is_down() {
                Payload::SourceDown(SourceReported { source: NAME.as_str().into(), message })
            } else {
                Payload::PodRejected(PodRejected {
                    namespace: None,
                    name: None,
                    uid: None,
                    source: NAME.as_str().into(),
                    reason: None,
                    message,
                    dry_run: None,
                })
            };
            self.emit(Subject::Node, payload);
        }
        for error in self.loaded.new_errors(loaded).filter(|error| error.is_degraded()) {
            let place = error.to_string();
            emit::recovered_at(&self.journal, WHAT, Some(&place), &format!("no longer so: {place}"));
        }
    }
}
