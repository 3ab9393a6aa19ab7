//! Reports once when the disk fails, and once when it works again.

use std::sync::{Arc, PoisonError};

use enforcer_events::{Payload, node::Degraded};

use super::{Journal, Subject, log::Shared};

/// An operation that the disk may refuse.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Part {
    /// Writing to a segment.
    Writing,
    /// Syncing to the disk.
    Syncing,
}

#[derive(Debug, Default)]
pub(super) struct Trouble {
    writing: bool,
    syncing: bool,
    /// How many dropped events are not reported yet.
    lost: u64,
}

impl Trouble {
    fn is_any(&self) -> bool {
        self.writing || self.syncing
    }

    fn set(&mut self, part: Part, to: bool) {
        match part {
            Part::Writing => self.writing = to,
            Part::Syncing => self.syncing = to,
        }
    }
}

impl Shared {
    /// The disk begins to refuse this operation.
    pub(super) fn trouble_begins(self: &Arc<Self>, part: Part, error: &anyhow::Error) {
        let was_any = {
            let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
            let was_any = trouble.is_any();
            trouble.set(part, true);
            was_any
        };
        if !was_any {
            tracing::error!("{error:#}");
            let message = format!(
                "the journal cannot be written: the newest events are kept in memory, and are lost with the power: {error:#}"
            );
            let data = Degraded { message: Some(message), ..Degraded::of("journal") };
            emit(self, Payload::DegradedEntered(data));
        }
    }

    /// The operation works again; `lost` events were dropped before.
    pub(super) fn trouble_ends(self: &Arc<Self>, part: Part, lost: u64) {
        self.note_lost(lost);
        let lost = {
            let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
            let was_any = trouble.is_any();
            trouble.set(part, false);
            trouble.lost = trouble.lost.saturating_add(lost);
            if !was_any || trouble.is_any() {
                return;
            }
            std::mem::take(&mut trouble.lost)
        };
        let message = match lost {
            0 => String::from("the journal is written again; no event was lost"),
            1 => {
                String::from("the journal is written again; one event was lost: see the gap in the sequence")
            }
            lost => {
                format!("the journal is written again; {lost} events were lost: see the gaps in the sequence")
            }
        };
        let data = Degraded { message: Some(message), lost_events: Some(lost), ..Degraded::of("journal") };
        emit(self, Payload::DegradedLeft(data));
    }
}

fn emit(shared: &Arc<Shared>, payload: Payload) {
    Journal { shared: Arc::clone(shared) }.emit(Subject::Node, payload);
}
