//! What was told of each cgroup's counters, and what they say beyond that.
//!
//! A kill that was traced is credited to the cgroup that counts it. What a reading shows beyond all that was credited
//! is a kill that was not traced: its record was lost, or is late. It is waited for, and then told.
use std::collections::{BTreeMap, HashMap, VecDeque};

use super::{FOLD_NS, GONE_NS, OomCounts, open::Expected};
use crate::model::CgroupId;

/// How long after its mark a kill whose cgroup is not known may be found in one's counters.
const UNPLACED_NS: u64 = 10_000_000_000;
/// The most such kills that are remembered.
const MAX_UNPLACED: usize = 1024;

/// How long a limit that was hit may still lead to a kill: the kernel counts the one before the other, and tries for a while.
const HIT_NS: u64 = 5_000_000_000;
/// How long a group kill that a reading shows may still be explained by an incident. The kernel counts it where
/// `memory.oom.group` is set, which may be above the cgroups that count the kills: of it alone nothing is expected there.
const GROUP_NS: u64 = 10_000_000_000;
/// The most accounts. Cgroups beyond that are told by their records alone.
const MAX_ACCOUNTS: usize = 65_536;

/// A reading, and when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) counts: OomCounts,
    pub(super) at_ns: u64,
}

/// One cgroup's account.
#[derive(Clone, Debug)]
struct Account {
    /// What the counters were when it began: kills before are not ours to tell.
    since_ns: u64,
    /// What they were then, and all that was told since.
    reported: OomCounts,
    /// Kills that the kernel may have counted twice, of incidents that closed while others hid whether it had.
    twice: u64,
    /// The first reading that shows a limit hit without a kill.
    hit: Option<Seen>,
    /// The first reading that shows a group kill which no incident has claimed.
    group: Option<Seen>,
    /// The latest reading of which a limit that was hit went to some incident.
    taken_ns: Option<u64>,
    /// The latest reading.
    latest: Option<Seen>,
    /// A reading that shows more than was told, and until when records may explain it.
    suspect: Option<(Seen, u64)>,
    /// Kills told from counters whose records may still come: how many, and up to which time they are marked.
    owed: u64,
    owed_until_ns: u64,
}

/// The accounts of all cgroups that are known.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    accounts: HashMap<CgroupId, Account>,
    /// What open incidents expect, summed.
    expected: HashMap<CgroupId, Expected>,
    /// How many open incidents each cgroup's counters tell of.
    concerned: HashMap<CgroupId, u64>,
    /// Those that are gone, and until when they are kept.
    graves: VecDeque<(u64, CgroupId)>,
    /// Marks of kills of which no cgroup's counters are known to have told.
    unplaced: VecDeque<u64>,
}

/// What an incident took from an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) before: OomCounts,
    pub(super) moved: OomCounts,
}

impl Account {
    /// Counts as told what an incident took of a reading.
    fn emit(&mut self, moved: OomCounts, read_ns: u64) {
        self.reported = self.reported.plus(moved);
        if moved.oom > 0 {
            self.taken_ns = Some(read_ns);
        }
    }

    /// A limit that was hit long ago, and nobody killed for it: that is no kill, and not the next one's limit either.
    fn forget_hits(&mut self, now_ns: u64) {
        if let Some(hit) = self.hit.take_if(|hit| now_ns.saturating_sub(hit.at_ns) >= HIT_NS) {
            self.reported.oom = self.reported.oom.max(hit.counts.oom);
        }
    }

    /// A group kill that was seen long ago, and that no incident claimed: its records were lost. The next kill is another.
    fn forget_groups(&mut self, now_ns: u64) {
        if let Some(group) = self.group.take_if(|group| now_ns.saturating_sub(group.at_ns) >= GROUP_NS) {
            self.reported.oom_group_kill = self.reported.oom_group_kill.max(group.counts.oom_group_kill);
        }
    }
}

impl Ledger {
    /// Begins an account, unless there is one. What comes on top of `counts` from then on is told.
    pub(super) fn begin(&mut self, cgroup: CgroupId, counts: OomCounts, since_ns: u64) {
        let is_full = self.accounts.len() >= MAX_ACCOUNTS && !self.accounts.contains_key(&cgroup);
        if is_full && !self.make_room() {
            return;
        }
        self.accounts.entry(cgroup).or_insert(Account {
            since_ns,
            reported: counts,
            twice: 0,
            hit: None,
            group: None,
            taken_ns: None,
            latest: None,
            suspect: None,
            owed: 0,
            owed_until_ns: 0,
        });
    }

    /// Forgets the one that is gone for longest; false if there is none, or it is needed.
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
            || self.accounts.get(&cgroup).is_some_and(|account| account.suspect.is_some())
    }

    /// The cgroup is gone. Its account is kept for late records, and as long as an incident or a suspicion needs it.
    pub(super) fn bury(&mut self, cgroup: CgroupId, now_ns: u64) {
        if self.accounts.contains_key(&cgroup) {
            self.graves.push_back((now_ns.saturating_add(GONE_NS), cgroup));
        }
    }

    /// Forgets those that are gone for long.
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

    /// Whether there is an account that began before that time.
    pub(super) fn covers(&self, cgroup: CgroupId, marked_ns: u64) -> bool {
        self.accounts.get(&cgroup).is_some_and(|account| account.since_ns <= marked_ns)
    }

    /// Whether there is an account.
    pub(super) fn knows(&self, cgroup: CgroupId) -> bool {
        self.accounts.contains_key(&cgroup)
    }

    /// Whether a reading shows a group kill of this cgroup that no incident has claimed.
    pub(super) fn shows_group(&mut self, cgroup: CgroupId, seen: Seen) -> bool {
        self.accounts.get_mut(&cgroup).is_some_and(|account| {
            account.forget_groups(seen.at_ns);
            seen.counts.oom_group_kill > account.reported.oom_group_kill
        })
    }

    /// Exchanges what one open incident expects.
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

    /// Exchanges the cgroups whose counters tell of one open incident.
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

    /// Whether this cgroup's counters tell of an open incident.
    pub(super) fn is_concerned(&self, cgroup: CgroupId) -> bool {
        self.concerned.contains_key(&cgroup)
    }

    /// Whether a group kill may be that of an incident which expects `own` of this cgroup: a reading shows a kill more than
    /// all incidents expect, or other incidents of the cgroup hide whether it does. `own` is no longer in the sum.
    pub(super) fn may_count_twice(&self, cgroup: CgroupId, own: Expected, after: Seen) -> bool {
        let reported = self.accounts.get(&cgroup).map_or(0, |account| account.reported.oom_kill);
        let explained = reported.saturating_add(own.kills);
        own.twice > 0 && (self.is_expected(cgroup) || after.counts.oom_kill > explained)
    }

    /// Whether open incidents expect counts of this cgroup.
    pub(super) fn is_expected(&self, cgroup: CgroupId) -> bool {
        self.expected.contains_key(&cgroup)
    }

    /// Takes a mark whose kill was told from counters already; false if it was not.
    ///
    /// The kernel counts a kill a moment before it marks it. Should a mark be taken by that which belongs to a kill after
    /// the reading, the next reading shows that one.
    pub(super) fn settle(&mut self, cgroup: CgroupId, marked_ns: u64) -> bool {
        match self.accounts.get_mut(&cgroup) {
            Some(account)
                if account.owed > 0 && marked_ns <= account.owed_until_ns.saturating_add(FOLD_NS) =>
            {
                account.owed -= 1;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Credits an incident that closes with what it explains of a reading: that many kills, one more if `group` was killed
    /// for it and the kernel counted it, and, where no other incident may, all that moved of the rest. `expected` of the
    /// incident itself is no longer in the sum.
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
        account.hit = None;
        let before = account.reported;
        let all = after.counts.since(before);
        let free = all.oom_kill.saturating_sub(others.unwrap_or_default().kills);
        let twice = if group.is_some() { own.twice.min(free.saturating_sub(own.kills)) } else { 0 };
        if group.is_some() && shared {
            account.twice = account.twice.saturating_add(own.twice.saturating_sub(twice));
        }
        let explained = own.kills.saturating_add(twice);
        // Others' kills, also those whose records were lost, need a limit as well.
        let alone = !shared && free <= explained;
        let moved = OomCounts {
            oom: if alone { all.oom } else { all.oom.min(1) },
            oom_kill: all.oom_kill.min(explained),
            oom_group_kill: if group == Some(cgroup) { all.oom_group_kill.min(1) } else { 0 },
        };
        account.emit(moved, after.at_ns);
        // What is left of it is another's, which is to be seen from now on.
        account.group = None;
        Some(Claim { before, moved })
    }

    /// Credits kills that could not be compared with a reading.
    pub(super) fn credit(&mut self, cgroup: CgroupId, kills: u64) {
        if let Some(account) = self.accounts.get_mut(&cgroup) {
            account.reported = account.reported.plus(OomCounts { oom_kill: kills, ..OomCounts::default() });
        }
    }

    /// An incident closes without a reading: a later one may show that its first victim is counted twice.
    pub(super) fn leave_twice(&mut self, cgroup: CgroupId, own: Expected) {
        if let Some(account) = self.accounts.get_mut(&cgroup) {
            account.twice = account.twice.saturating_add(own.twice);
        }
    }

    /// A traced kill that no counter is known to have told of.
    pub(super) fn unplaced(&mut self, marked_ns: u64) {
        self.unplaced.push_back(marked_ns);
        while self.unplaced.len() > MAX_UNPLACED {
            self.unplaced.pop_front();
        }
    }

    /// Takes a reading; when it shows more than is told and expected, answers until when that is to be explained.
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
        account.latest = account.latest.filter(|latest| latest.at_ns > now_ns).or(Some(seen));
        if account.suspect.is_some() {
            return None;
        }
        let maybe = expected.twice.saturating_add(account.twice);
        let explained = account.reported.oom_kill.saturating_add(expected.kills).saturating_add(maybe);
        if counts.oom_kill > explained {
            let until_ns = now_ns.saturating_add(grace_ns);
            account.suspect = Some((seen, until_ns));
            return Some(until_ns);
        }
        if expected == Expected::default() && counts.oom_kill >= account.reported.oom_kill {
            account.twice = 0;
            account.reported.oom_kill = counts.oom_kill;
            account.forget_hits(now_ns);
            if counts.oom > account.reported.oom {
                account.hit.get_or_insert(seen);
            }
            account.forget_groups(now_ns);
            if counts.oom_group_kill > account.reported.oom_group_kill {
                account.group.get_or_insert(seen);
            }
        }
        None
    }

    /// The latest reading that was taken.
    pub(super) fn latest(&self, cgroup: CgroupId) -> Option<Seen> {
        self.accounts.get(&cgroup)?.latest
    }

    /// The reading under suspicion.
    pub(super) fn suspect(&self, cgroup: CgroupId) -> Option<Seen> {
        self.accounts.get(&cgroup)?.suspect.map(|(seen, _)| seen)
    }

    /// Puts the end of a suspicion off.
    pub(super) fn put_off(&mut self, cgroup: CgroupId, until_ns: u64) {
        if let Some((_, until)) = self.accounts.get_mut(&cgroup).and_then(|account| account.suspect.as_mut())
        {
            *until = until_ns;
        }
    }

    /// Ends a suspicion: what `bound` shows beyond all that was told and is expected counts as told now. Kills without
    /// cgroup are found here. The latest reading remains to be taken again.
    pub(super) fn rebuild(&mut self, cgroup: CgroupId, bound: Seen) -> (Claim, Option<Seen>) {
        let expected = self.expected.get(&cgroup).copied().unwrap_or_default();
        let Some(account) = self.accounts.get_mut(&cgroup) else { return (Claim::default(), None) };
        account.suspect = None;
        let latest = account.latest;
        account.forget_hits(bound.at_ns);
        let before = account.reported;
        let all = bound.counts.since(before);
        let maybe = expected.twice.saturating_add(account.twice);
        let mut kills = all.oom_kill.saturating_sub(expected.kills).saturating_sub(maybe);
        while kills > 0 {
            let fits = |marked_ns: &u64| {
                *marked_ns <= bound.at_ns && bound.at_ns.saturating_sub(*marked_ns) <= UNPLACED_NS
            };
            let Some(at) = self.unplaced.iter().position(fits) else { break };
            self.unplaced.remove(at);
            account.reported = account.reported.plus(OomCounts { oom_kill: 1, ..OomCounts::default() });
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
        let before = account.reported;
        account.emit(moved, bound.at_ns);
        account.owed = account.owed.saturating_add(kills);
        account.owed_until_ns = account.owed_until_ns.max(bound.at_ns);
        (Claim { before, moved }, latest)
    }

    /// Takes what moved of the limits above a kill that is told from counters.
    pub(super) fn hit(&mut self, cgroup: CgroupId, counts: OomCounts, now_ns: u64) -> bool {
        let shared = self.is_expected(cgroup);
        let Some(account) = self.accounts.get_mut(&cgroup) else { return false };
        account.forget_hits(now_ns);
        let all = counts.since(account.reported);
        let oom = if shared { all.oom.min(1) } else { all.oom };
        account.emit(OomCounts { oom, ..OomCounts::default() }, now_ns);
        oom > 0
    }

    /// Whether a reading shows a limit hit without a kill.
    pub(super) fn is_hit(&self, cgroup: CgroupId) -> bool {
        self.accounts.get(&cgroup).is_some_and(|account| account.hit.is_some())
    }

    /// Whether a limit that was hit about then went to some incident: that nothing is left does not say that it was not hit.
    pub(super) fn was_taken(&self, cgroup: CgroupId, about_ns: u64) -> bool {
        self.accounts
            .get(&cgroup)
            .and_then(|account| account.taken_ns)
            .is_some_and(|taken_ns| taken_ns.abs_diff(about_ns) < HIT_NS)
    }
}
