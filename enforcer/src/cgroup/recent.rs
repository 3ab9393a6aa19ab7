//! Which processes were started since others were looked at.

use std::time::{Duration, Instant};

/// All processes are looked at at least this often, even if none was started.
pub(super) const AT_THE_LATEST: Duration = Duration::from_mins(15);

/// Tells which processes to look at, by the ids that the kernel gave out. A process may exec the relevant program a moment
/// after it was started, so each is looked at twice.
#[derive(Debug, Default)]
pub(super) struct Recent {
    looked: Option<Look>,
}

#[derive(Debug)]
struct Look {
    at: Instant,
    /// The last look at all processes.
    all_at: Instant,
    /// The newest process id at that time.
    newest: Option<u32>,
    /// The newest process id at the look before.
    before: Option<u32>,
}

impl Recent {
    /// Whether processes were started since the last look, or it is long ago. `newest` is the newest process id.
    pub(super) fn wants_look(&self, newest: Option<u32>, now: Instant) -> bool {
        self.looked.as_ref().is_none_or(|look| {
            newest.is_none()
                || look.newest != newest
                || now.saturating_duration_since(look.at) >= AT_THE_LATEST
        })
    }

    /// Notes a look. All processes started since the look before the last one have ids above what is returned; `None` if
    /// all have to be looked at.
    ///
    /// `newest` is to be read before the look: the next one covers processes that start meanwhile.
    pub(super) fn look(&mut self, newest: Option<u32>, now: Instant) -> Option<u32> {
        let since = self.since(newest, now);
        self.looked = Some(Look {
            at: now,
            all_at: self.looked.as_ref().filter(|_| since.is_some()).map_or(now, |look| look.all_at),
            newest,
            before: self.looked.as_ref().and_then(|look| look.newest),
        });
        since
    }

    fn since(&self, newest: Option<u32>, now: Instant) -> Option<u32> {
        let look = self.looked.as_ref()?;
        let (newest, last, before) = (newest?, look.newest?, look.before?);
        // Ids wrap around.
        let ascends = before <= last && last <= newest;
        let is_recent = now.saturating_duration_since(look.all_at) < AT_THE_LATEST;
        (ascends && is_recent).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_looked_at_until_it_is_long_ago() {
        let now = Instant::now();
        let mut recent = Recent::default();
        assert_eq!(recent.look(Some(700), now), None, "the first look is at all");
        assert_eq!(recent.look(Some(800), now), None, "and the second");
        assert_eq!(recent.look(Some(900), now), Some(700));
        assert_eq!(recent.look(Some(950), now), Some(800));
        assert_eq!(recent.look(Some(950), now + AT_THE_LATEST), None);
        assert_eq!(recent.look(Some(960), now + AT_THE_LATEST), Some(950));
        assert_eq!(recent.look(Some(300), now + AT_THE_LATEST), None, "ids began anew");
        assert_eq!(
            recent.look(Some(900), now + AT_THE_LATEST),
            None,
            "as they had between the last two looks"
        );
        assert_eq!(recent.look(None, now + AT_THE_LATEST), None);
    }

    #[test]
    fn a_look_is_wanted_when_something_was_started_or_after_a_while() {
        let now = Instant::now();
        let mut recent = Recent::default();
        assert!(recent.wants_look(Some(700), now), "at first");
        recent.look(Some(700), now);
        assert!(!recent.wants_look(Some(700), now));
        assert!(recent.wants_look(Some(701), now));
        recent.look(None, now);
        assert!(recent.wants_look(None, now), "it is not known");
        recent.look(Some(700), now);
        assert!(recent.wants_look(Some(700), now + AT_THE_LATEST));
    }
}
