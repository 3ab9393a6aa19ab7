//! Pods that are being ended here, but not for a shortage: by an operator's order, or to make way for a critical pod.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::model::PodUid;

/// The pods that are being ended now. What they release counts for a shortage, so that no other is killed for it.
#[derive(Clone, Debug, Default)]
pub(in crate::daemon) struct BeingEnded(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// A pod is there once for each that ends it.
    pods: Mutex<Vec<PodUid>>,
    changed: Notify,
}

/// A pod that is being ended until this is dropped.
#[derive(Debug)]
#[must_use = "the pod is not being ended any more once this is dropped"]
pub(in crate::daemon) struct PodEnding {
    of: BeingEnded,
    uid: PodUid,
}

impl BeingEnded {
    /// The pod is about to be signalled.
    pub(in crate::daemon) fn begin(&self, uid: PodUid) -> PodEnding {
        self.lock().push(uid.clone());
        self.0.changed.notify_one();
        PodEnding { of: self.clone(), uid }
    }

    /// Whether the pod is being ended.
    pub(in crate::daemon) fn contains(&self, uid: &PodUid) -> bool {
        self.lock().contains(uid)
    }

    /// Waits until others are being ended than at the last call.
    pub(in crate::daemon) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PodUid>> {
        self.0.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PodEnding {
    fn drop(&mut self) {
        let mut pods = self.of.lock();
        if let Some(place) = pods.iter().position(|uid| *uid == self.uid) {
            pods.swap_remove(place);
        }
        drop(pods);
        self.of.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pod_is_being_ended_until_the_last_that_ends_it_is_done() {
        let being_ended = BeingEnded::default();
        let uid = PodUid::new("u1").unwrap();
        let (first, second) = (being_ended.begin(uid.clone()), being_ended.begin(uid.clone()));
        being_ended.changed().await;
        drop(first);
        assert!(being_ended.contains(&uid));
        drop(second);
        assert!(!being_ended.contains(&uid));
        being_ended.changed().await;
    }
}
