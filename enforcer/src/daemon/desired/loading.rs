//! Takes in the pods that a source holds, and reports what is new about them and about the source.
use std::sync::Arc;

use enforcer_events::{Payload, node::SourceReported, pod::PodRejected};

use super::{
    Desired,
    emit::{self, STATIC},
};
use crate::{
    journal::Subject,
    source::{Loaded, SourceError},
};

/// The `what` of events when less is known of the manifests than should be.
const WHAT: &str = "manifests";

impl Desired {
    /// Takes the pods that the source holds now, reports what is new, and brings the cgroups in line.
    pub(in crate::daemon) async fn load(&mut self, loaded: Arc<Loaded>) -> anyhow::Result<()> {
        let is_down = loaded.errors.iter().any(SourceError::is_down);
        self.emit_errors(&loaded);
        let was_up = self.is_loaded && !self.loaded.errors.iter().any(SourceError::is_down);
        if !is_down {
            if !was_up {
                let message =
                    format!("{}: {} pods", self.config.static_pod_path.display(), loaded.pods.len());
                let data = SourceReported { source: STATIC.into(), message };
                self.emit(Subject::Node, Payload::SourceUp(data));
            }
            let now_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
            self.counts.source_was_read(STATIC, now_ms);
        }
        self.loaded = Arc::clone(&loaded);
        self.is_loaded = true;
        let changes = self.roster.apply(loaded.pods.clone());
        if !is_down {
            self.roster.forget_the_unnamed();
        }
        let decisions = self.replan();
        for change in &changes {
            self.emit_change(change);
        }
        self.carry_out(decisions);
        self.reconcile().await
    }

    /// Reports new errors, and the end of degradations.
    fn emit_errors(&self, loaded: &Loaded) {
        for error in loaded.new_errors(&self.loaded) {
            let message = error.to_string();
            if error.is_degraded() {
                emit::degraded_at(&self.journal, WHAT, Some(&message), &message);
                continue;
            }
            tracing::warn!("{message}");
            let payload = if error.is_down() {
                Payload::SourceDown(SourceReported { source: STATIC.into(), message })
            } else {
                Payload::PodRejected(PodRejected {
                    namespace: None,
                    name: None,
                    uid: None,
                    source: STATIC.into(),
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
