//! Gives a kubelet's containers back the scores that they had before a daemon that was killed, once after the start.

use std::time::{Duration, Instant};

use super::super::{
    super::{handover, instance_lock::InstanceLock},
    Desired, Extent, Placing,
};
use crate::{cgroup::Permit, config::Mode};

/// The pause between attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// How long it waits where the containers cannot be read.
const UNREAD_PAUSE: Duration = Duration::from_secs(10);

/// What is waited for before scores are undone.
#[derive(Debug)]
pub(super) struct Undoing {
    /// Whether this daemon has the claim to evict here. Otherwise the scores may be those of another that runs.
    is_claimed: bool,
    next: Instant,
    /// Until when one that has the claim may only be ending.
    until: Instant,
}

/// What is done now.
#[derive(Debug, Eq, PartialEq)]
enum Turn<C> {
    /// Another daemon has the claim, and may be ending.
    Wait,
    /// Scores are undone, while that claim is held if it was taken for this.
    Undo(Option<C>),
    /// They are left to the daemon that has the claim.
    Leave,
}

impl Undoing {
    /// In mode `enforce` a daemon has the claim from its start on.
    pub(super) fn new(mode: Mode, now: Instant) -> Self {
        Self { is_claimed: mode == Mode::Enforce, next: now, until: now + handover::TIMEOUT }
    }

    /// When the next attempt is.
    pub(super) fn due(&self) -> Instant {
        self.next
    }

    /// Decides what is done at `now`. `take` takes the claim, if no other daemon has it.
    fn turn<C>(&self, now: Instant, take: impl FnOnce() -> Option<C>) -> Turn<C> {
        if self.is_claimed {
            return Turn::Undo(None);
        }
        match take() {
            Some(claim) => Turn::Undo(Some(claim)),
            None if now < self.until => Turn::Wait,
            None => Turn::Leave,
        }
    }
}

impl Desired {
    /// Undoes the scores that an earlier daemon has left, as soon as the containers are known and no other daemon may
    /// keep them so. This is done in every mode: it undoes writes of an earlier process, which must not outlive it.
    pub(super) async fn undo_scores(&mut self, now: Instant) -> anyhow::Result<()> {
        let Some(undoing) = &mut self.aligning.undoing else { return Ok(()) };
        undoing.next = now + PAUSE;
        let Some(containers) = self.placing.as_ref().and_then(Placing::containers) else {
            // They are looked for again and again, and a look is followed by this.
            undoing.next = now + UNREAD_PAUSE;
            return Ok(());
        };
        let claim = match undoing.turn(now, InstanceLock::try_take) {
            Turn::Wait => return Ok(()),
            Turn::Undo(claim) => claim,
            Turn::Leave => {
                tracing::debug!("scores of an earlier daemon, if there are any, stay: another has the claim");
                self.aligning.undoing = None;
                return Ok(());
            }
        };
        self.aligning.undoing = None;
        let permit = Permit::for_cleanup();
        self.change(Extent::Values, move |reconciler| reconciler.undo_scores(containers, &permit)).await?;
        drop(claim);
        // What is known of containers may follow from the scores that they had.
        if let Some(placing) = &mut self.placing {
            placing.request_look();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Aligning, *};

    #[test]
    fn who_evicts_undoes_scores_at_once_and_others_once_no_daemon_has_the_claim() {
        let start = Instant::now();
        let own = Undoing::new(Mode::Enforce, start);
        assert_eq!(own.due(), start);
        assert_eq!(own.turn(start, || -> Option<()> { panic!("it has the claim") }), Turn::Undo(None));
        for mode in [Mode::DryRun, Mode::Observe] {
            let other = Undoing::new(mode, start);
            assert_eq!(other.turn(start, || None::<u8>), Turn::Wait, "{mode}");
            assert_eq!(other.turn(start, || Some(7)), Turn::Undo(Some(7)), "{mode}");
            let late = start + handover::TIMEOUT;
            assert_eq!(other.turn(late, || Some(7)), Turn::Undo(Some(7)), "{mode}");
            assert_eq!(other.turn(late, || None::<u8>), Turn::Leave, "{mode}: it is another's score");
        }
    }

    #[test]
    fn beside_a_kubelet_alone_scores_are_undone_before_any_is_given() {
        for mode in [Mode::Observe, Mode::DryRun, Mode::Enforce] {
            assert!(Aligning::new(Some(mode)).undoing.is_some(), "{mode}");
        }
        assert!(Aligning::new(None).undoing.is_none(), "the plan's scores are kept by sweeps there");
    }
}
