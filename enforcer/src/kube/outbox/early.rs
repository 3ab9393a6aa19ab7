//! Evictions that are requested before the event of a kill: the kill's own report is faster, and a soft eviction has none.

use enforcer_events::eviction::{EvictionRequested, EvictionSignalled};

use super::{Action, Now, Outbox, PodRef, Signalled, live_owner};

impl Outbox {
    /// Takes in a kill whose event is still to be written, after `read` events were read, if its pod is to be removed at once;
    /// the event brings all others.
    pub fn take_kill(&mut self, read: u64, killed: &EvictionSignalled, now: Now) {
        // If this process ends before the event is written, the next one finds the kill on the intent page.
        let sequence = read.saturating_add(1);
        let owner = live_owner(killed).filter(|_| self.is_fresh(sequence, killed, now));
        let Some(owner) = owner else { return };
        if let Some(Action::Evict | Action::Delete) = self.settings.action(owner)
            && self.add_killed(sequence, now.time_ms, killed, now)
        {
            if let Some(entry) = self.entries.get_mut(&killed.eviction_id) {
                (entry.owner, entry.is_early) = (Some(owner), true);
            }
            // Such an owner has an action, so there is nothing to report.
            let _nothing = self.decide(&killed.eviction_id, owner, now);
        }
    }

    /// Whether the event of an eviction's kill is still to come.
    #[must_use]
    pub fn is_early(&self, id: &str) -> bool {
        self.entries.get(id).is_some_and(|entry| entry.is_early)
    }

    /// Takes in a soft eviction, which the API server has accepted before any signal.
    pub(super) fn take_soft(&mut self, requested: &EvictionRequested, sequence: u64, time_ms: i64, now: Now) {
        let EvictionRequested { eviction_id, namespace, name, uid, .. } = requested;
        let pod = PodRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() };
        let is_new = self.add(eviction_id, pod, sequence, Signalled { time_ms, boot_ms: None }, now);
        if let Some(entry) = self.entries.get_mut(eviction_id).filter(|_| is_new) {
            entry.is_killed = false;
            entry.confirm(now.instant);
        }
    }
}
