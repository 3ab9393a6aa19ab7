//! What was reported of each cgroup's counters, and what they show beyond that.
//!
//! A traced kill is credited to the cgroup that counts it. Counts beyond all that was credited are kills that were not
//! traced: their records were lost or are late. The ledger waits for the records, then reports the kills.
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    num::NonZeroU64,
};

use super::{FOLD_NS, GONE_NS, OomCounts, open::Expected};
use crate::model::CgroupId;

/// How long after its mark a kill without a known cgroup may be found in a cgroup's counters.
const UNPLACED_NS: u64 = 10_000_000_000;
/// The most such kills that are remembered.
const MAX_UNPLACED: usize = 1024;

/// How long after its limit was hit a cgroup may still get a kill: the kernel counts the hit first, and retries.
const HIT_NS: u64 = 5_000_000_000;
/// How long an incident may still claim a group kill that a reading shows. The kernel counts it where
/// `memory.oom.group` is set, which may be above the cgroups that count the kills: no kill is expected there.
const GROUP_NS: u64 = 10_000_000_000;
/// The most accounts. Kills in further cgroups are reported from their records alone.
const MAX_ACCOUNTS: usize = 65_536;

/// A reading, and when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) counts: OomCounts,
    pub(super) at_ns: u64,
}

impl Seen {
    /// What two readings show together: counters only grow, and the time of a reading is not exactly that of its counters.
    pub(super) fn merge(self, other: Self) -> Self {
        let (one, two) = (self.counts, other.counts);
        let counts = OomCounts {
            oom: one.oom.max(two.oom),
            oom_kill: one.oom_kill.max(two.oom_kill),
            oom_group_kill: one.oom_group_kill.max(two.oom_group_kill),
        };
        Self { counts, at_ns: self.at_ns.max(other.at_ns) }
    }
}

/// One cgroup's account. Each cgroup of the host has one, so it is small while all counters are zero.
#[derive(Clone, Debug)]
struct Account {
    /// When the account began: earlier kills are not reported.
    since_ns: u64,
    /// When the latest reading was made.
    read: Option<Time>,
    /// Apart, as most cgroups have nothing of it.
    unusual: Option<Box<Unusual>>,
}

/// A time whose absence takes no room of its own: one more than its nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Time(NonZeroU64);

impl Time {
    const fn new(ns: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(ns))
    }

    const fn ns(self) -> u64 {
        self.0.get() - 1
    }
}

/// What only the account of a cgroup has whose limit was hit, or in which a process was killed.
#[derive(Clone, Copy, Debug, Default)]
struct Unusual {
    /// The counters when the account began, plus all that was reported since.
    reported: OomCounts,
    /// What the latest reading shows.
    latest: OomCounts,
    /// Kills of closed incidents that the kernel may have counted twice: other incidents hid whether it had.
    twice: u64,
    /// The first reading that shows a limit hit without a kill.
    hit: Option<Seen>,
    /// The first reading that shows a group kill which no incident has claimed.
    group: Option<Seen>,
    /// The latest reading whose limit hit was assigned to an incident.
    taken_ns: Option<u64>,
    /// A reading that shows more than was reported, and until when records may explain it.
    suspect: Option<(Seen, u64)>,
    /// Kills reported from counters whose records may still come: how many, and the latest time of their marks.
    owed: u64,
    owed_until_ns: u64,
}

/// The accounts of all known cgroups.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    accounts: HashMap<CgroupId, Account>,
    /// What open incidents expect, summed.
    expected: HashMap<CgroupId, Expected>,
    /// How many open incidents involve each cgroup's counters.
    concerned: HashMap<CgroupId, u64>,
    /// Removed cgroups, and until when their accounts are kept.
    graves: VecDeque<(u64, CgroupId)>,
    /// Marks of kills that are not known to appear in any cgroup's counters.
    unplaced: VecDeque<u64>,
}

/// What an incident took from an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) before: OomCounts,
    pub(super) moved: OomCounts,
}

impl Unusual {
    fn count_twice(&mut self, kills: u64) {
        self.twice = self.twice.saturating_add(kills);
    }
}

impl Account {
    fn new(counts: OomCounts, since_ns: u64) -> Self {
        let mut account = Self { since_ns, read: None, unusual: None };
        account.set_reported(counts);
        account
    }

    /// What is unusual about it.
    fn unusual(&self) -> Unusual {
        self.unusual.as_deref().copied().unwrap_or_default()
    }

    fn unusual_mut(&mut self) -> &mut Unusual {
        self.unusual.get_or_insert_default()
    }

    /// The counters when it began, plus all that was reported since.
    fn reported(&self) -> OomCounts {
        self.unusual().reported
    }

    fn set_reported(&mut self, counts: OomCounts) {
        if counts != self.reported() {
            self.unusual_mut().reported = counts;
        }
    }

    /// Counts as reported.
    fn report(&mut self, moved: OomCounts) {
        self.set_reported(self.reported().plus(moved));
    }

    /// The latest reading.
    fn latest(&self) -> Option<Seen> {
        self.read.map(|read| Seen { counts: self.unusual().latest, at_ns: read.ns() })
    }

    fn set_latest(&mut self, seen: Seen) {
        self.read = Some(Time::new(seen.at_ns));
        if seen.counts != self.unusual().latest {
            self.unusual_mut().latest = seen.counts;
        }
    }

    /// Counts as reported what an incident took from a reading.
    fn emit(&mut self, moved: OomCounts, read_ns: u64) {
        self.report(moved);
        if moved.oom > 0 {
            self.unusual_mut().taken_ns = Some(read_ns);
        }
    }

    /// Drops a limit hit that is old and led to no kill: it does not belong to the next kill.
    fn forget_hits(&mut self, now_ns: u64) {
        let is_old = |hit: &mut Seen| now_ns.saturating_sub(hit.at_ns) >= HIT_NS;
        if let Some(unusual) = self.unusual.as_deref_mut()
            && let Some(hit) = unusual.hit.take_if(is_old)
        {
            unusual.reported.oom = unusual.reported.oom.max(hit.counts.oom);
        }
    }

    /// Drops a group kill that is old and unclaimed: its records were lost. The next kill is another.
    fn forget_groups(&mut self, now_ns: u64) {
        let is_old = |group: &mut Seen| now_ns.saturating_sub(group.at_ns) >= GROUP_NS;
        if let Some(unusual) = self.unusual.as_deref_mut()
            && let Some(group) = unusual.group.take_if(is_old)
        {
            let reported = &mut unusual.reported.oom_group_kill;
            *reported = (*reported).max(group.counts.oom_group_kill);
        }
    }
}

impl Ledger {
    /// Begins an account, unless it exists. Everything above `counts` is reported from then on.
    pub(super) fn begin(&mut self, cgroup: CgroupId, counts: OomCounts, since_ns: u64) {
        let is_full = self.accounts.len() >= MAX_ACCOUNTS && !self.accounts.contains_key(&cgroup);
        if is_full && !self.make_room() {
            return;
        }
        self.accounts.entry(cgroup).or_insert_with(|| Account::new(counts, since_ns));
    }

    /// Forgets the cgroup that was removed first; false if there is none, or an incident needs it.
    fn make_room(&mut self) -> bool {
        let Some((until_ns, cgroup)) = self.graves.pop_front() else { return false };
        if self.is_needed(cgroup) {
            self.graves.push_back((until_ns, cgroup));
            return false;
        }
        self.accounts.remove(&cgroup).is_some()
    }

    fn is_needed(&self, cgroup: CgroupId) -> bool {
        self.expected.contains_key(&cgroup)
            || self.accounts.get(&cgroup).is_some_and(|account| account.unusual().suspect.is_some())
    }

    /// The cgroup is gone. Its account is kept for late records, and as long as an incident or a suspicion needs it.
    pub(super) fn remove(&mut self, cgroup: CgroupId, now_ns: u64) {
        if self.accounts.contains_key(&cgroup) {
            self.graves.push_back((now_ns.saturating_add(GONE_NS), cgroup));
        }
    }

    /// Forgets cgroups that were removed long ago.
    pub(super) fn forget(&mut self, now_ns: u64) {
        while let Some((_, cgroup)) = self.graves.front().copied().filter(|(until_ns, _)| *until_ns <= now_ns)
        {
            self.graves.pop_front();
            if self.is_needed(cgroup) {
                self.graves.push_back((now_ns.saturating_add(GONE_NS), cgroup));
            } else {
                self.accounts.remove(&cgroup);
            }
        }
    }

    /// Whether an account exists that began before that time.
    pub(super) fn covers(&self, cgroup: CgroupId, marked_ns: u64) -> bool {
        self.accounts.get(&cgroup).is_some_and(|account| account.since_ns <= marked_ns)
    }

    /// Whether an account exists.
    pub(super) fn knows(&self, cgroup: CgroupId) -> bool {
        self.accounts.contains_key(&cgroup)
    }

    /// Whether a reading shows a group kill of this cgroup that no incident has claimed.
    pub(super) fn shows_group(&mut self, cgroup: CgroupId, seen: Seen) -> bool {
        self.accounts.get_mut(&cgroup).is_some_and(|account| {
            account.forget_groups(seen.at_ns);
            seen.counts.oom_group_kill > account.reported().oom_group_kill
        })
    }

    /// Replaces what one open incident expects.
    pub(super) fn expect(
        &mut self,
        before: &BTreeMap<CgroupId, Expected>,
        now: &BTreeMap<CgroupId, Expected>,
    ) {
        for (cgroup, Expected { kills, twice }) in before {
            if let Some(sum) = self.expected.get_mut(cgroup) {
                sum.kills = sum.kills.saturating_sub(*kills);
                sum.twice = sum.twice.saturating_sub(*twice);
            }
        }
        for (cgroup, Expected { kills, twice }) in now {
            let sum = self.expected.entry(*cgroup).or_default();
            sum.kills = sum.kills.saturating_add(*kills);
            sum.twice = sum.twice.saturating_add(*twice);
        }
        for cgroup in before.keys() {
            if self.expected.get(cgroup) == Some(&Expected::default()) {
                self.expected.remove(cgroup);
            }
        }
    }

    /// Replaces the cgroups whose counters one open incident involves.
    pub(super) fn concern(&mut self, before: &[CgroupId], now: &[CgroupId]) {
        for cgroup in now {
            *self.concerned.entry(*cgroup).or_default() += 1;
        }
        for cgroup in before {
            if let Some(count) = self.concerned.get_mut(cgroup) {
                *count -= 1;
                if *count == 0 {
                    self.concerned.remove(cgroup);
                }
            }
        }
    }

    /// Whether an open incident involves this cgroup's counters.
    pub(super) fn is_concerned(&self, cgroup: CgroupId) -> bool {
        self.concerned.contains_key(&cgroup)
    }

    /// Whether a group kill may belong to an incident that expects `own` of this cgroup: a reading shows a kill more
    /// than all incidents expect, or other incidents of the cgroup hide whether it does. The sum excludes `own`.
    pub(super) fn may_count_twice(&self, cgroup: CgroupId, own: Expected, after: Seen) -> bool {
        let reported = self.accounts.get(&cgroup).map_or(0, |account| account.reported().oom_kill);
        let explained = reported.saturating_add(own.kills);
        own.twice > 0 && (self.is_expected(cgroup) || after.counts.oom_kill > explained)
    }

    /// Whether open incidents expect counts of this cgroup.
    pub(super) fn is_expected(&self, cgroup: CgroupId) -> bool {
        self.expected.contains_key(&cgroup)
    }

    /// Takes a mark whose kill was already reported from counters; returns false if it was not.
    ///
    /// The kernel counts a kill a moment before it marks it. If this takes the mark of a kill that came after the
    /// reading, the next reading shows that kill.
    pub(super) fn settle(&mut self, cgroup: CgroupId, marked_ns: u64) -> bool {
        match self.accounts.get_mut(&cgroup).and_then(|account| account.unusual.as_deref_mut()) {
            Some(Unusual { owed, owed_until_ns, .. })
                if *owed > 0 && marked_ns <= owed_until_ns.saturating_add(FOLD_NS) =>
            {
                *owed -= 1;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Credits a closing incident with its part of a reading: its kills, one more if `group` was killed for it and the
    /// kernel counted it, and the rest of the movement if no other incident may claim it. This incident is no longer
    /// part of `expected`.
    pub(super) fn claim(
        &mut self,
        cgroup: CgroupId,
        own: Expected,
        group: Option<CgroupId>,
        after: Seen,
    ) -> Option<Claim> {
        let others = self.expected.get(&cgroup).copied();
        let shared = others.is_some();
        let account = self.accounts.get_mut(&cgroup)?;
        account.forget_hits(after.at_ns);
        account.unusual_mut().hit = None;
        let before = account.reported();
        let all = after.counts.since(before);
        let free = all.oom_kill.saturating_sub(others.unwrap_or_default().kills);
        let twice = if group.is_some() { own.twice.min(free.saturating_sub(own.kills)) } else { 0 };
        if group.is_some() && shared {
            account.unusual_mut().count_twice(own.twice.saturating_sub(twice));
        }
        let explained = own.kills.saturating_add(twice);
        // Kills of others, also those whose records were lost, need a limit hit as well.
        let alone = !shared && free <= explained;
        let moved = OomCounts {
            oom: if alone { all.oom } else { all.oom.min(1) },
            oom_kill: all.oom_kill.min(explained),
            oom_group_kill: if group == Some(cgroup) { all.oom_group_kill.min(1) } else { 0 },
        };
        account.emit(moved, after.at_ns);
        // The rest belongs to another incident, and is looked for from now on.
        account.unusual_mut().group = None;
        Some(Claim { before, moved })
    }

    /// Credits kills that could not be compared with a reading.
    pub(super) fn credit(&mut self, cgroup: CgroupId, kills: u64) {
        if let Some(account) = self.accounts.get_mut(&cgroup) {
            account.report(OomCounts { oom_kill: kills, ..OomCounts::default() });
        }
    }

    /// Closes an incident without a reading: a later one may show that its first victim is counted twice.
    pub(super) fn leave_twice(&mut self, cgroup: CgroupId, own: Expected) {
        if let Some(account) = self.accounts.get_mut(&cgroup) {
            account.unusual_mut().count_twice(own.twice);
        }
    }

    /// Notes a traced kill that is not known to appear in any counter.
    pub(super) fn unplaced(&mut self, marked_ns: u64) {
        self.unplaced.push_back(marked_ns);
        while self.unplaced.len() > MAX_UNPLACED {
            self.unplaced.pop_front();
        }
    }

    /// Takes a reading. If it shows more than reported and expected, returns the time by which it has to be explained.
    pub(super) fn read(
        &mut self,
        cgroup: CgroupId,
        counts: OomCounts,
        now_ns: u64,
        grace_ns: u64,
    ) -> Option<u64> {
        let expected = self.expected.get(&cgroup).copied().unwrap_or_default();
        let account = self.accounts.get_mut(&cgroup)?;
        let seen = Seen { counts, at_ns: now_ns };
        // Incidents close in another order than they read.
        if account.latest().is_none_or(|latest| latest.at_ns <= now_ns) {
            account.set_latest(seen);
        }
        if account.unusual().suspect.is_some() {
            return None;
        }
        let reported = account.reported();
        let maybe = expected.twice.saturating_add(account.unusual().twice);
        let explained = reported.oom_kill.saturating_add(expected.kills).saturating_add(maybe);
        if counts.oom_kill > explained {
            let until_ns = now_ns.saturating_add(grace_ns);
            account.unusual_mut().suspect = Some((seen, until_ns));
            return Some(until_ns);
        }
        if expected == Expected::default() && counts.oom_kill >= reported.oom_kill {
            if let Some(unusual) = &mut account.unusual {
                unusual.twice = 0;
            }
            account.set_reported(OomCounts { oom_kill: counts.oom_kill, ..reported });
            account.forget_hits(now_ns);
            if counts.oom > account.reported().oom {
                account.unusual_mut().hit.get_or_insert(seen);
            }
            account.forget_groups(now_ns);
            if counts.oom_group_kill > account.reported().oom_group_kill {
                account.unusual_mut().group.get_or_insert(seen);
            }
        }
        None
    }

    /// Keeps what an incident has seen of a cgroup for the incidents that close after it.
    pub(super) fn note(&mut self, cgroup: CgroupId, seen: Seen) {
        if let Some(account) = self.accounts.get_mut(&cgroup) {
            account.set_latest(account.latest().map_or(seen, |latest| latest.merge(seen)));
        }
    }

    /// The latest reading.
    pub(super) fn latest(&self, cgroup: CgroupId) -> Option<Seen> {
        self.accounts.get(&cgroup)?.latest()
    }

    /// The reading under suspicion.
    pub(super) fn suspect(&self, cgroup: CgroupId) -> Option<Seen> {
        self.accounts.get(&cgroup)?.unusual().suspect.map(|(seen, _)| seen)
    }

    /// Postpones the end of a suspicion.
    pub(super) fn put_off(&mut self, cgroup: CgroupId, until_ns: u64) {
        let unusual = self.accounts.get_mut(&cgroup).and_then(|account| account.unusual.as_mut());
        if let Some((_, until)) = unusual.and_then(|unusual| unusual.suspect.as_mut()) {
            *until = until_ns;
        }
    }

    /// Ends a suspicion: everything in `bound` beyond the reported and expected counts is reported now. Kills without a
    /// cgroup are matched here. Returns the latest reading, which the caller takes again.
    pub(super) fn rebuild(&mut self, cgroup: CgroupId, bound: Seen) -> (Claim, Option<Seen>) {
        let expected = self.expected.get(&cgroup).copied().unwrap_or_default();
        let Some(account) = self.accounts.get_mut(&cgroup) else { return (Claim::default(), None) };
        account.unusual_mut().suspect = None;
        let latest = account.latest();
        account.forget_hits(bound.at_ns);
        let before = account.reported();
        let all = bound.counts.since(before);
        let maybe = expected.twice.saturating_add(account.unusual().twice);
        let mut kills = all.oom_kill.saturating_sub(expected.kills).saturating_sub(maybe);
        while kills > 0 {
            let fits = |marked_ns: &u64| {
                *marked_ns <= bound.at_ns && bound.at_ns.saturating_sub(*marked_ns) <= UNPLACED_NS
            };
            let Some(at) = self.unplaced.iter().position(fits) else { break };
            self.unplaced.remove(at);
            account.report(OomCounts { oom_kill: 1, ..OomCounts::default() });
            kills -= 1;
        }
        if kills == 0 {
            return (Claim::default(), latest);
        }
        let shared = expected != Expected::default();
        let moved = OomCounts {
            oom: if shared { all.oom.min(1) } else { all.oom },
            oom_kill: kills,
            oom_group_kill: if shared { all.oom_group_kill.min(1) } else { all.oom_group_kill },
        };
        let before = account.reported();
        account.emit(moved, bound.at_ns);
        let unusual = account.unusual_mut();
        unusual.owed = unusual.owed.saturating_add(kills);
        unusual.owed_until_ns = unusual.owed_until_ns.max(bound.at_ns);
        (Claim { before, moved }, latest)
    }

    /// Takes the limit hits of a cgroup above a kill that is reported from counters.
    pub(super) fn hit(&mut self, cgroup: CgroupId, counts: OomCounts, now_ns: u64) -> bool {
        let shared = self.is_expected(cgroup);
        let Some(account) = self.accounts.get_mut(&cgroup) else { return false };
        account.forget_hits(now_ns);
        let all = counts.since(account.reported());
        let oom = if shared { all.oom.min(1) } else { all.oom };
        account.emit(OomCounts { oom, ..OomCounts::default() }, now_ns);
        oom > 0
    }

    /// Whether a reading shows a limit hit without a kill.
    pub(super) fn is_hit(&self, cgroup: CgroupId) -> bool {
        self.accounts.get(&cgroup).is_some_and(|account| account.unusual().hit.is_some())
    }

    /// Whether a limit hit of about that time was assigned to an incident: then a zero rest does not mean no hit.
    pub(super) fn was_taken(&self, cgroup: CgroupId, about_ns: u64) -> bool {
        self.accounts
            .get(&cgroup)
            .and_then(|account| account.unusual().taken_ns)
            .is_some_and(|taken_ns| taken_ns.abs_diff(about_ns) < HIT_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CGROUP: CgroupId = CgroupId(1);

    #[test]
    fn an_account_without_counts_is_small() {
        assert_eq!(size_of::<Account>(), 24, "there is one for each cgroup");
        let mut ledger = Ledger::default();
        ledger.begin(CGROUP, OomCounts::default(), 0);
        assert_eq!(ledger.latest(CGROUP), None);
        for at_ns in [0, 1] {
            assert_eq!(ledger.read(CGROUP, OomCounts::default(), at_ns, 0), None);
            assert_eq!(ledger.latest(CGROUP), Some(Seen { counts: OomCounts::default(), at_ns }));
        }
        ledger.credit(CGROUP, 0);
        assert!(ledger.accounts[&CGROUP].unusual.is_none());
    }

    #[test]
    fn an_account_keeps_what_was_counted_before_it_and_what_was_read_last() {
        let before = OomCounts { oom: 3, oom_kill: 2, oom_group_kill: 1 };
        let mut ledger = Ledger::default();
        ledger.begin(CGROUP, before, 5);
        ledger.begin(CGROUP, OomCounts::default(), 6);
        assert_eq!(ledger.accounts[&CGROUP].reported(), before, "it began once");
        assert!(ledger.covers(CGROUP, 5) && !ledger.covers(CGROUP, 4));
        let more = OomCounts { oom_kill: 3, ..before };
        assert_eq!(ledger.read(CGROUP, more, 7, 10), Some(17), "a kill that no record explains yet");
        assert_eq!(ledger.read(CGROUP, before, 6, 10), None);
        assert_eq!(ledger.latest(CGROUP), Some(Seen { counts: more, at_ns: 7 }), "one of an earlier time");
        ledger.note(CGROUP, Seen { counts: OomCounts::default(), at_ns: 9 });
        assert_eq!(ledger.latest(CGROUP), Some(Seen { counts: more, at_ns: 9 }));
    }
}
