//! Keeps evicted and preempted pods ended over a restart, until their manifest changes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Roster, State};
use crate::model::{Pod, PodUid};

/// A pod that was ended for good, as it is kept over a restart.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndedPod {
    /// Its uid.
    pub uid: String,
    /// The manifest that it was ended with, by [`Pod::fingerprint`]; `None` if unknown, which matches any manifest.
    pub fingerprint: Option<u64>,
    /// Why.
    pub why: Why,
}

/// Why a pod was ended for good.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Why {
    /// It was evicted.
    Evicted,
    /// It made way for a critical pod.
    Preempted,
}

/// The ended pods of an earlier process that no source has named since the start.
#[derive(Clone, Debug, Default)]
pub(super) struct Remembered(BTreeMap<PodUid, EndedPod>);

impl Remembered {
    /// The state of a pod that a source names for the first time; `None` if it was not ended, or has another manifest.
    pub(super) fn state(&mut self, pod: &Pod) -> Option<State> {
        match self.0.remove(&pod.uid) {
            Some(EndedPod { fingerprint, why, .. })
                if fingerprint.is_none_or(|fingerprint| fingerprint == pod.fingerprint()) =>
            {
                Some(match why {
                    Why::Evicted => State::Evicted,
                    Why::Preempted => State::Preempted,
                })
            }
            // Its manifest has changed meanwhile.
            Some(_) | None => None,
        }
    }
}

impl Roster {
    /// Takes over what an earlier process kept, before any source has named a pod. Invalid uids are ignored.
    pub fn remember(&mut self, ended: impl IntoIterator<Item = EndedPod>) {
        for pod in ended {
            if let Some(uid) = PodUid::new(&pod.uid) {
                self.remembered.0.insert(uid, pod);
            }
        }
    }

    /// Forgets the pods that no source has named: they were removed while no daemon ran.
    pub fn forget_the_unnamed(&mut self) {
        self.remembered.0.clear();
    }

    /// The pods that were ended for good, in the order of their uids.
    #[must_use]
    pub fn ended(&self) -> Vec<EndedPod> {
        let ended = self.entries.values().filter_map(|entry| {
            let why = match entry.state {
                State::Evicted => Why::Evicted,
                State::Preempted => Why::Preempted,
                State::Waiting { .. } | State::Active(_) | State::Leaving => return None,
            };
            let fingerprint = Some(entry.pod.fingerprint());
            Some(EndedPod { uid: entry.pod.uid.to_string(), fingerprint, why })
        });
        let mut ended: Vec<_> = ended.chain(self.remembered.0.values().cloned()).collect();
        ended.sort_by(|left, right| left.uid.cmp(&right.uid));
        ended
    }
}
