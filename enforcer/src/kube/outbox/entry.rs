//! One eviction of the outbox.

use std::time::{Duration, Instant};

use enforcer_events::{
    Payload,
    eviction::{EvictionConfirmed, EvictionRequested},
};

use super::{
    super::message::{Action, Outcome, PodRef},
    Now, Owner,
};
use crate::model::CgroupId;

/// The pause after a failure; each further one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The pause before the first look whether an evicted pod is gone.
const CONFIRM: Duration = Duration::from_secs(1);

/// One eviction, and how far it is.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Entry {
    pub(super) pod: PodRef,
    /// The position of the signal's event.
    pub(super) sequence: u64,
    pub(super) signalled: Signalled,
    /// When it was killed last, on `CLOCK_BOOTTIME` of this boot, if that is known.
    pub(super) killed_ms: Option<u64>,
    /// Whose pod it is, as far as it is known.
    pub(super) owner: Option<Owner>,
    /// How often containers of it were killed again.
    pub(super) repeats: u32,
    /// The cgroups of the last time, if an earlier process reported it.
    pub(super) unsure: Vec<CgroupId>,
    /// Whether a disruption budget refused its eviction.
    pub(super) has_budget: bool,
    pub(super) message: String,
    pub(super) stage: Stage,
    pub(super) due: Instant,
    pub(super) expiry: Instant,
    /// How often in a row it failed.
    pub(super) failures: u32,
    /// Whether a request was not found or a conflict: if the pod is as it was, evictions have another version.
    pub(super) is_version_doubtful: bool,
    /// How many requests that change something were sent.
    pub(super) requests: u32,
    pub(super) is_refusal_reported: bool,
    /// Whether its status was what was asked for: the object stays.
    pub(super) is_marked_failed: bool,
    /// Whether it was killed here: a soft eviction is first requested.
    pub(super) is_killed: bool,
    /// Whether the journal has the event of its signal: nothing is reported of it before.
    pub(super) is_recorded: bool,
}

/// What is asked next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stage {
    /// How is the pod?
    Look,
    /// It is as it should be for this to be asked.
    Act(Action),
    /// It was asked for: is the pod gone?
    Confirm,
}

/// When an eviction was signalled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signalled {
    /// On the clock on the wall, in milliseconds since 1970.
    pub(super) time_ms: i64,
    /// Since the machine was started, in milliseconds, if it was reported.
    pub(super) boot_ms: Option<u64>,
}

impl Entry {
    pub(super) fn requested(
        &self,
        id: &str,
        outcome: &'static str,
        reason: Option<&'static str>,
        words: &str,
    ) -> EvictionRequested {
        let PodRef { namespace, name, uid } = self.pod.clone();
        EvictionRequested {
            eviction_id: id.to_owned(),
            namespace,
            name,
            uid,
            outcome: outcome.into(),
            action: None,
            reason: reason.map(Into::into),
            requests: self.requests,
            signalled_to_requested_ms: None,
            boot_ms: None,
            message: words.to_owned(),
        }
    }

    pub(super) fn settled(
        &self,
        id: &str,
        outcome: &'static str,
        reason: Option<&'static str>,
        words: &str,
    ) -> Payload {
        Payload::EvictionRequested(self.requested(id, outcome, reason, words))
    }

    /// The server refuses: it is asked again, and the first refusal is reported.
    pub(super) fn refused(
        &mut self,
        id: &str,
        reason: Option<&'static str>,
        words: &str,
        after: Option<Duration>,
        now: Instant,
    ) -> Option<Payload> {
        let is_first = !std::mem::replace(&mut self.is_refusal_reported, true);
        self.stage = Stage::Look;
        self.retry(id, now, after);
        is_first.then(|| self.settled(id, "refused", reason, words))
    }

    pub(super) fn confirmed(self, id: &str, now: Now) -> Payload {
        let PodRef { namespace, name, uid } = self.pod;
        let after_ms = self.signalled.boot_ms.map(|boot_ms| now.boot_ms.saturating_sub(boot_ms));
        Payload::EvictionConfirmed(EvictionConfirmed {
            eviction_id: id.to_owned(),
            namespace,
            name,
            uid,
            signalled_to_confirmed_ms: after_ms,
        })
    }

    /// Counts a request that was sent again; `None` if there is no answer to it.
    pub(super) fn count(&mut self, answer: Outcome) -> Option<Outcome> {
        let (answer, again) = answer.counted();
        self.requests += again;
        (!matches!(answer, Outcome::Failed(_))).then_some(answer)
    }

    pub(super) fn confirm(&mut self, now: Instant) {
        if self.stage != Stage::Confirm {
            self.stage = Stage::Confirm;
            self.failures = 0;
            self.due = now + CONFIRM;
        }
    }

    /// Waits before the next request: longer each time, and no two of thousands of nodes at the same moment.
    pub(super) fn retry(&mut self, id: &str, now: Instant, after: Option<Duration>) {
        let pause = FIRST_PAUSE * 2_u32.saturating_pow(self.failures.min(16));
        let pause = pause.min(LONGEST_PAUSE);
        self.failures += 1;
        let spread = id.bytes().fold(u32::from(self.failures.to_le_bytes()[0]), |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        let jittered = pause / 2 + pause / 2 * (spread % 256) / 255;
        self.due = now + jittered.max(after.unwrap_or_default());
    }
}
