//! When containers that the kubelet starts again are killed again: pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::{
    kube::{OpenEviction, Removal},
    model::CgroupId,
    policy::engine::Spared,
};

/// How often containers are killed again for one eviction. A kubelet's own back-off starts a container about 16 times in
/// the hour for which the API server is asked.
pub(super) const MOST: u32 = 64;

/// The pause after the first time; each further one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How often each eviction's containers were killed again.
#[derive(Debug, Default)]
pub(super) struct Pace(BTreeMap<String, Course>);

#[derive(Debug)]
struct Course {
    count: u32,
    /// Not again before.
    next: Instant,
    is_exhausted: bool,
    /// Whether what an earlier process had reported was done once more.
    is_finished: bool,
    /// Why they were spared last, if that was reported.
    spared: Option<Spared>,
    is_refusal_reported: bool,
}

/// What is to be done with containers that run again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// Kill them, for the `count`th time.
    Kill { count: u32 },
    /// Kill them without a word: an earlier process has reported it, and ended before it was done.
    Finish,
    /// Report that they are not killed, and why.
    Spare(Spared),
    /// Report that they were killed often enough.
    Exhausted,
}

impl Pace {
    /// Forgets all evictions that are not open any more.
    pub(super) fn keep(&mut self, open: &[OpenEviction]) {
        let ids: BTreeSet<&str> = open.iter().map(|eviction| eviction.id.as_str()).collect();
        self.0.retain(|id, _| ids.contains(id.as_str()));
    }

    /// From when on running containers of that eviction's pod are to be killed; `None` if not as things are.
    ///
    /// Where the API server removes the pod, containers that run again only delay that. Where it cannot be asked, or refuses,
    /// the pod stays: then it is only killed while memory is short.
    pub(super) fn due(&self, eviction: &OpenEviction, is_short: bool, now: Instant) -> Option<Instant> {
        let is_wanted = match eviction.removal {
            Removal::Accepted | Removal::Asked => true,
            Removal::Waiting => is_short,
        };
        if !is_wanted || now >= eviction.expiry {
            return None;
        }
        match self.0.get(&eviction.id) {
            Some(course) if course.is_exhausted => None,
            Some(course) => Some(course.next),
            None => Some(now),
        }
    }

    /// Decides about containers that run, in these cgroups; only to be called when [`due`](Self::due). `spared` is why they
    /// must not be killed. Returns nothing if all of that is reported already.
    pub(super) fn step(
        &mut self,
        eviction: &OpenEviction,
        living: &[CgroupId],
        spared: Option<Spared>,
        now: Instant,
    ) -> Option<Step> {
        // A container that is started again gets a cgroup of its own.
        let is_cut_off = !living.is_empty() && living.iter().all(|cgroup| eviction.unsure.contains(cgroup));
        let course = self.course(eviction, now);
        if spared.is_none() && is_cut_off && !std::mem::replace(&mut course.is_finished, true) {
            course.next = now + FIRST_PAUSE;
            return Some(Step::Finish);
        }
        if course.count >= MOST {
            return (!std::mem::replace(&mut course.is_exhausted, true)).then_some(Step::Exhausted);
        }
        if let Some(spared) = spared {
            return (course.spared.replace(spared) != Some(spared)).then_some(Step::Spare(spared));
        }
        course.spared = None;
        let pause = FIRST_PAUSE * 2_u32.saturating_pow(course.count.min(16));
        course.count += 1;
        course.next = now + pause.min(LONGEST_PAUSE);
        Some(Step::Kill { count: course.count })
    }

    /// How often they were killed again.
    pub(super) fn count(&self, eviction: &OpenEviction) -> u32 {
        self.0.get(&eviction.id).map_or(eviction.repeats, |course| course.count)
    }

    /// Notes that they cannot be killed now. Returns whether that is to be reported.
    pub(super) fn refused(&mut self, eviction: &OpenEviction, now: Instant) -> bool {
        let course = self.course(eviction, now);
        course.next = now + LONGEST_PAUSE;
        !std::mem::replace(&mut course.is_refusal_reported, true)
    }

    fn course(&mut self, eviction: &OpenEviction, now: Instant) -> &mut Course {
        let course = self.0.entry(eviction.id.clone()).or_insert_with(|| Course {
            count: 0,
            next: now,
            // An earlier process has reported it.
            is_exhausted: eviction.repeats >= MOST,
            is_finished: false,
            spared: None,
            is_refusal_reported: false,
        });
        course.count = course.count.max(eviction.repeats);
        course
    }
}

#[cfg(test)]
mod tests;
