//! Follows one eviction until the pod's memory is back, or is no longer waited for.

mod need;

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use self::need::Need;
pub(super) use self::need::{Next, Sight};
use super::{
    action::{BrakeCause, Completion, Decision, Failure, FailureReason, Moments},
    arming::is_of_pods,
    back_off::PodKey,
    hook::HookPlan,
    inherited::Inherited,
    input::{CandidateFacts, Usage},
    settings::Resource,
    terminating::Volume,
};
use crate::{model::CgroupId, threshold::Signal};

const MS: u64 = 1_000_000;
const GIB: u64 = 1 << 30;

/// How long a victim may take to die: 2 s, plus 1 s for each GiB and 2 ms for each process that it releases.
///
/// An idle machine takes about 0.1 s/GiB. An emulated guest is about ten times slower, and so is a node whose CPUs are
/// all busy reclaiming. Waiting too long costs time in a shortage that pods can reclaim through; waiting too briefly
/// kills a second pod.
const DEATH_BASE_NS: u64 = 2_000 * MS;
const DEATH_NS_PER_GIB: u64 = 1_000 * MS;
const DEATH_NS_PER_PROCESS: u64 = 2 * MS;

/// A victim that makes progress is not given up: each further 64th of its usage that comes back extends the deadline. On an
/// emulated guest with busy CPUs, 900 processes took more than their 4 s, and the next pod must not pay for that.
///
/// Where process ids are short, memory and processes count each by itself: a process frees its memory long before its id. Where
/// memory is short, a victim that has given back all of it is not awaited for its ids. This adds at most 128 s; a victim that
/// does not die, as it waits for a device, releases nothing.
const STEPS: u64 = 64;
const STEP_NS: u64 = 1_000 * MS;

/// Once no process is left, how long the memory may stop falling before it is given up.
///
/// A process drops its memory before it leaves its cgroup, but the last holder frees it: that may be a reader in
/// `/proc`, or `process_mrelease`, ours too. In a guest this took 130 ms for half a GiB. While some comes back, more
/// will; if none does, the prediction was wrong, and counting on it would only delay the next decision. The wait is at
/// most as long again as the time that the victim had to die.
const STANDSTILL_NS: u64 = 500 * MS;

/// The same once its anonymous memory is back and only shared memory is missing. The last process that maps it drops it
/// before it leaves its cgroup (`exit_task_work` comes before `cgroup_exit` in `do_exit`), unless a file in a tmpfs
/// holds it.
const SHARED_STANDSTILL_NS: u64 = 50 * MS;

/// How long after its grace period a victim may hold processes if the API server was asked to evict it: the kubelet hears of
/// it through a watch, and a terminating pod is no candidate for as long.
const REQUEST_ALLOWANCE_NS: u64 = 10_000 * MS;

/// A prediction is met when no more than a sixteenth of it, or 4 MiB, is missing: counters are batched per CPU,
/// and pages can be shared with processes elsewhere.
const TOLERANCE_SHARE: u64 = 16;
const TOLERANCE_BYTES: u64 = 4 << 20;

/// The longest gap between two looks that counts: on a paused machine the victim had no time to die.
const LONGEST_GAP_NS: u64 = 1_000 * MS;

/// How long before memory is exhausted a victim must be killed for its memory to come back in time: twice what an idle
/// machine takes.
const RELEASE_BASE_NS: u64 = 200 * MS;
const RELEASE_NS_PER_GIB: u64 = 200 * MS;

/// The stage of an eviction. Times are on the victim's own clock, which stops while it is not polled.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
enum Stage {
    /// A hook runs before the signal; it is awaited until then.
    Hooking { until_ns: u64 },
    /// To be signalled; the executor has not answered yet.
    Deciding,
    /// Sent SIGTERM, or ended by the kubelet; has until then.
    Terminating { until_ns: u64 },
    /// To be killed after all; the executor has not answered yet.
    Killing,
    /// Killed, and holding processes; so many 64ths had come back.
    Dying { deadline_ns: u64, steps: u64 },
    /// Without processes; its memory is coming back.
    Settling { since_ns: u64, moved_ns: u64 },
    /// Chosen by an earlier process, which asked no one to end it, as far as can be found out. It is asked if the shortage
    /// lasts.
    Unasked,
}

/// The release of one resource, in its base unit.
#[derive(Clone, Copy, Debug, Default, Deserialize, Schema, Serialize)]
struct Release {
    predicted: u64,
    before: Option<u64>,
    freed: Option<u64>,
}

impl Release {
    fn look(&mut self, now: Option<u64>) {
        if let (Some(before), Some(now)) = (self.before, now) {
            self.freed = Some(before.saturating_sub(now));
        }
    }

    /// How many 64ths of it have come back.
    fn steps(&self) -> u64 {
        let freed = self.freed.unwrap_or(0).min(self.predicted);
        let steps = (u128::from(freed) * u128::from(STEPS)).checked_div(u128::from(self.predicted));
        // At most `STEPS`.
        steps.and_then(|steps| u64::try_from(steps).ok()).unwrap_or(0)
    }

    /// How much is still to come; 0 within `tolerance`.
    fn missing(&self, tolerance: u64) -> u64 {
        let missing = self.predicted.saturating_sub(self.freed.unwrap_or(0));
        if missing <= tolerance { 0 } else { missing }
    }
}

/// The one eviction that is under way.
#[derive(Clone, Copy, Debug, Deserialize, Schema, Serialize)]
pub(super) struct Victim {
    pub(super) number: u64,
    pub(super) cgroup: CgroupId,
    pub(super) pod: PodKey,
    /// The signal that was short.
    pub(super) signal: Signal,
    /// What was available at the decision, in its base unit.
    observed: u64,
    stage: Stage,
    need: Need,
    grace_ns: u64,
    /// Whether it is killed at once if no one else ends it.
    graceless: bool,
    moments: Moments,
    memory: Release,
    /// The part of the predicted memory that a file in a tmpfs may hold.
    shared_bytes: u64,
    /// Files in a tmpfs that no process maps. No prediction counts on them.
    volume_bytes: u64,
    /// Whether another removes its volumes, and with them such files, once it is dead.
    torn_down: bool,
    pids: Release,
    /// Whether its memory counts towards the pods' own limit.
    pub(super) in_kubepods: bool,
    /// The victim's own clock, and when it last advanced.
    clock_ns: u64,
    looked_ns: u64,
}

/// What polling the victim showed.
pub(super) enum Look {
    /// The eviction is still under way.
    Wait,
    Completed(Completion),
    Failed(Failure),
}

impl Victim {
    /// `None` for facts that are not known, as of a victim of an earlier process: what it may still release counts for each
    /// signal, and its volumes are removed by another.
    pub(super) fn new(decision: &Decision, facts: Option<CandidateFacts>) -> Self {
        let usage = decision.reading.usage();
        let release = |resource| Release {
            predicted: decision.reading.freed_by_death(resource),
            before: match resource {
                Resource::Memory => usage.map(|usage| usage.current_bytes),
                Resource::Pids => decision.reading.process_count(),
            },
            freed: None,
        };
        Self {
            number: decision.number,
            cgroup: decision.cgroup,
            pod: decision.pod,
            signal: decision.shortage.signal,
            observed: decision.shortage.observed,
            stage: match decision.hook {
                HookPlan::Off | HookPlan::NoTime => Stage::Deciding,
                HookPlan::Awaited { for_ns } => Stage::Hooking { until_ns: for_ns },
            },
            need: Need::Lasting,
            grace_ns: decision.grace_ns,
            graceless: decision.graceless,
            moments: Moments {
                crossed_ns: decision.crossed_ns,
                decided_ns: decision.decided_ns,
                terminated_ns: None,
                requested_ns: None,
                signalled_ns: None,
                dead_ns: None,
                memory_back_ns: None,
            },
            memory: release(Resource::Memory),
            shared_bytes: usage.map_or(0, Usage::mapped_shmem_bytes),
            volume_bytes: usage.map_or(0, Usage::unmapped_shmem_bytes),
            torn_down: facts.is_none_or(|facts| facts.torn_down),
            pids: release(Resource::Pids),
            in_kubepods: facts.is_none_or(|facts| facts.in_kubepods),
            clock_ns: 0,
            looked_ns: decision.decided_ns,
        }
    }

    /// One that an earlier process chose: it was killed, or another accepted to end it, or may not have been asked yet.
    pub(super) fn inherited(decision: &Decision, inherited: &Inherited, now_ns: u64) -> Self {
        let mut victim = Self { need: Need::Unseen, looked_ns: now_ns, ..Self::new(decision, None) };
        if let Some(requested_ns) = inherited.requested_ns.map(|at_ns| at_ns.min(now_ns)) {
            victim.moments.requested_ns = Some(requested_ns);
            // The kubelet did not wait for this process.
            let end_ns = requested_ns.saturating_add(victim.grace_ns).saturating_add(REQUEST_ALLOWANCE_NS);
            victim.stage = Stage::Terminating { until_ns: end_ns.saturating_sub(now_ns) };
        }
        if let Some(signalled_ns) = inherited.signalled_ns {
            victim.moments.signalled_ns = Some(signalled_ns.min(now_ns));
            // How far it has died meanwhile is not known before the first look.
            victim.stage = Stage::Dying { deadline_ns: victim.allowed_ns(), steps: victim.steps() };
        }
        victim
    }

    fn tick(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.looked_ns);
        self.clock_ns = self.clock_ns.saturating_add(passed_ns.min(LONGEST_GAP_NS));
        self.looked_ns = self.looked_ns.max(now_ns);
    }

    /// It was sent SIGTERM.
    pub(super) fn terminated(&mut self, now_ns: u64) {
        self.tick(now_ns);
        if self.stage == Stage::Deciding {
            self.moments.terminated_ns = Some(now_ns);
            self.stage = Stage::Terminating { until_ns: self.clock_ns.saturating_add(self.grace_ns) };
        }
    }

    /// The API server has accepted to evict it.
    pub(super) fn requested(&mut self, now_ns: u64) {
        self.tick(now_ns);
        if self.stage == Stage::Deciding {
            self.moments.requested_ns = Some(now_ns);
            let until_ns = self.clock_ns.saturating_add(self.grace_ns).saturating_add(REQUEST_ALLOWANCE_NS);
            self.stage = Stage::Terminating { until_ns };
        }
    }

    /// No one was asked to end it, as far as can be found out.
    pub(super) fn unrequested(&mut self, now_ns: u64) {
        self.tick(now_ns);
        if self.is_to_be_asked() {
            self.stage = Stage::Unasked;
        }
    }

    /// No one else ends it, and it has no grace period: it is to be killed.
    pub(super) fn unanswered(&mut self, now_ns: u64) {
        self.tick(now_ns);
        if self.is_to_be_asked() {
            self.stage = Stage::Killing;
        }
    }

    /// It was killed.
    pub(super) fn signalled(&mut self, now_ns: u64) {
        self.tick(now_ns);
        if self.is_undecided() {
            self.moments.signalled_ns = Some(now_ns);
            let deadline_ns = self.clock_ns.saturating_add(self.allowed_ns());
            self.stage = Stage::Dying { deadline_ns, steps: self.steps() };
        }
    }

    /// The hook has ended.
    pub(super) fn hook_ended(&mut self, now_ns: u64) {
        self.tick(now_ns);
        if let Stage::Hooking { until_ns } = &mut self.stage {
            *until_ns = 0;
        }
    }

    /// Whether it is to be signalled and, as far as is known, was not.
    pub(super) fn is_deciding(&self) -> bool {
        self.stage == Stage::Deciding
    }

    /// Whether it is killed at once if no one else ends it.
    pub(super) fn is_graceless(&self) -> bool {
        self.graceless
    }

    /// Whether it is to be asked to end and, as far as is known, was not.
    pub(super) fn is_to_be_asked(&self) -> bool {
        self.stage == Stage::Deciding && self.grace_ns > 0
    }

    /// Whether it is asked only if the shortage lasts.
    pub(super) fn is_unasked(&self) -> bool {
        self.stage == Stage::Unasked
    }

    /// Whether the executor's answer is awaited.
    pub(super) fn is_undecided(&self) -> bool {
        matches!(self.stage, Stage::Deciding | Stage::Killing)
    }

    /// Its moments so far.
    pub(super) fn moments(&self) -> Moments {
        self.moments
    }

    /// Whether it was asked to end. A refusal to kill it may then mean that it has ended.
    pub(super) fn is_asked(&self) -> bool {
        self.moments.asked_ns().is_some()
    }

    /// Updates how far it has died; the amounts are `None` once the cgroup is gone, or if they were not read. With neither
    /// there is nothing more to wait for.
    pub(super) fn look(
        &mut self,
        now_ns: u64,
        populated: bool,
        current_bytes: Option<u64>,
        process_count: Option<u64>,
    ) -> Look {
        self.tick(now_ns);
        let freed_before = (self.memory.freed, self.pids.freed);
        self.memory.look(current_bytes);
        self.pids.look(process_count);
        let freed = (self.memory.freed, self.pids.freed);
        let clock_ns = self.clock_ns;
        match self.stage {
            Stage::Deciding => return Look::Wait,
            Stage::Hooking { .. } | Stage::Unasked | Stage::Terminating { .. } | Stage::Killing
                if populated =>
            {
                return Look::Wait;
            }
            Stage::Dying { mut deadline_ns, steps } if populated => {
                if self.steps() > steps {
                    deadline_ns = deadline_ns.max(clock_ns.saturating_add(STEP_NS));
                    self.stage = Stage::Dying { deadline_ns, steps: self.steps() };
                }
                if clock_ns < deadline_ns {
                    return Look::Wait;
                }
                return Look::Failed(self.failure(now_ns, FailureReason::StillPopulated));
            }
            Stage::Hooking { .. }
            | Stage::Unasked
            | Stage::Terminating { .. }
            | Stage::Killing
            | Stage::Dying { .. } => {
                self.moments.dead_ns = Some(now_ns);
                self.stage = Stage::Settling { since_ns: clock_ns, moved_ns: clock_ns };
            }
            Stage::Settling { since_ns, .. } if freed > freed_before => {
                self.stage = Stage::Settling { since_ns, moved_ns: clock_ns };
            }
            Stage::Settling { .. } => {}
        }
        let is_back = self.credit(Resource::Memory) == 0 && self.credit(Resource::Pids) == 0;
        if current_bytes.or(process_count).is_none() || is_back {
            self.moments.memory_back_ns = Some(now_ns);
            return Look::Completed(self.completion());
        }
        match self.stage {
            Stage::Settling { since_ns, moved_ns }
                if clock_ns.saturating_sub(moved_ns) >= self.standstill_ns()
                    || clock_ns.saturating_sub(since_ns) >= self.allowed_ns() =>
            {
                Look::Completed(self.completion())
            }
            Stage::Hooking { .. }
            | Stage::Deciding
            | Stage::Terminating { .. }
            | Stage::Killing
            | Stage::Dying { .. }
            | Stage::Settling { .. }
            | Stage::Unasked => Look::Wait,
        }
    }

    /// What it was charged for at the last look: bytes, and processes.
    pub(super) fn last_seen(&self) -> (Option<u64>, Option<u64>) {
        let left = |release: &Release| Some(release.before?.saturating_sub(release.freed.unwrap_or(0)));
        (left(&self.memory), left(&self.pids))
    }

    /// How long the missing amount may stop falling before it is given up.
    fn standstill_ns(&self) -> u64 {
        let others = self.credit(Resource::Pids) > 0;
        let missing = self.credit(Resource::Memory);
        if !others && missing <= self.shared_bytes { SHARED_STANDSTILL_NS } else { STANDSTILL_NS }
    }

    /// How much of its usage has come back, in 64ths.
    fn steps(&self) -> u64 {
        let (memory, pids) = (self.memory.steps(), self.pids.steps());
        match Resource::of(self.signal) {
            Some(Resource::Pids) => memory.saturating_add(pids),
            Some(Resource::Memory) | None => memory.max(pids),
        }
    }

    fn allowed_ns(&self) -> u64 {
        let processes_ns = self.pids.predicted.saturating_mul(DEATH_NS_PER_PROCESS);
        scaled(DEATH_BASE_NS, DEATH_NS_PER_GIB, self.memory.predicted).saturating_add(processes_ns)
    }

    /// Whether it may still hold processes, so that no other pod is chosen.
    pub(super) fn is_alive(&self) -> bool {
        match self.stage {
            Stage::Hooking { .. }
            | Stage::Deciding
            | Stage::Terminating { .. }
            | Stage::Killing
            | Stage::Dying { .. }
            | Stage::Unasked => true,
            Stage::Settling { .. } => false,
        }
    }

    /// When it was seen dead, if it was.
    pub(super) fn dead_ns(&self) -> Option<u64> {
        self.moments.dead_ns
    }

    /// The rest of its grace period, if it has one.
    pub(super) fn grace_left_ns(&self) -> Option<u64> {
        let Stage::Terminating { until_ns } = self.stage else { return None };
        Some(until_ns.saturating_sub(self.clock_ns))
    }

    /// Whether memory that its death frees counts for that signal.
    pub(super) fn counts_for(&self, signal: Signal) -> bool {
        self.in_kubepods || !is_of_pods(signal)
    }

    /// What it is still to release, which counts as available until then; in the resource's base unit.
    pub(super) fn credit(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Memory => {
                self.memory.missing((self.memory.predicted / TOLERANCE_SHARE).max(TOLERANCE_BYTES))
            }
            Resource::Pids => self.pids.missing(0),
        }
    }

    /// The same for a shortage of that signal: nothing if its memory does not count for that.
    pub(super) fn credit_for(&self, signal: Signal) -> u64 {
        Resource::of(signal).filter(|_| self.counts_for(signal)).map_or(0, |resource| self.credit(resource))
    }

    /// What another removes now that it is dead, besides what it is still to release itself; `None` if it is not dead.
    pub(super) fn volume(&self) -> Option<Volume> {
        self.volume_with(0)
    }

    /// The same once its own release is not followed any longer: what its processes mapped and has not come back is
    /// taken for files in a volume.
    pub(super) fn volume_left(&self) -> Option<Volume> {
        // It has all come back, or its cgroup is gone.
        let is_over = self.moments.memory_back_ns.is_some();
        let missing = if is_over { 0 } else { self.credit(Resource::Memory) };
        self.volume_with(missing.min(self.shared_bytes))
    }

    fn volume_with(&self, mapped_bytes: u64) -> Option<Volume> {
        let dead_ns = self.dead_ns()?;
        let bytes = if self.torn_down { self.volume_bytes.saturating_add(mapped_bytes) } else { 0 };
        let until_ns = dead_ns.saturating_add(self.allowed_ns());
        Some(Volume { cgroup: self.cgroup, bytes, dead_ns, until_ns, shmem_bytes: 0 })
    }

    /// Why and for how long its memory is awaited, if it is.
    pub(super) fn awaited(&self) -> Option<(BrakeCause, u64)> {
        match self.stage {
            Stage::Hooking { .. } | Stage::Deciding | Stage::Unasked => None,
            Stage::Terminating { until_ns } => {
                let left_ns = until_ns.saturating_sub(self.clock_ns);
                Some((BrakeCause::Grace, left_ns.saturating_add(release_ns(self.memory.predicted))))
            }
            Stage::Killing | Stage::Dying { .. } | Stage::Settling { .. } => {
                let missing = self.credit(Resource::Memory);
                (missing > 0).then(|| (BrakeCause::Release, release_ns(missing)))
            }
        }
    }

    /// How long it has been dying.
    pub(super) fn age_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.moments.signalled_ns.unwrap_or(self.moments.decided_ns))
    }

    pub(super) fn completion(&self) -> Completion {
        Completion {
            number: self.number,
            cgroup: self.cgroup,
            moments: self.moments,
            predicted_freed_bytes: self.memory.predicted,
            freed_bytes: self.memory.freed,
        }
    }

    pub(super) fn failure(&self, now_ns: u64, reason: FailureReason) -> Failure {
        Failure {
            number: self.number,
            cgroup: self.cgroup,
            moments: self.moments,
            given_up_ns: now_ns,
            predicted_freed_bytes: self.memory.predicted,
            freed_bytes: self.memory.freed,
            reason,
        }
    }
}

/// How long so many bytes take to come back.
pub(super) fn release_ns(bytes: u64) -> u64 {
    scaled(RELEASE_BASE_NS, RELEASE_NS_PER_GIB, bytes)
}

/// `base_ns` plus `per_gib_ns` for each GiB of `bytes`, in proportion.
fn scaled(base_ns: u64, per_gib_ns: u64, bytes: u64) -> u64 {
    let part = u128::from(per_gib_ns) * u128::from(bytes) / u128::from(GIB);
    base_ns.saturating_add(u64::try_from(part).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_die_grows_with_the_size() {
        assert_eq!(scaled(DEATH_BASE_NS, DEATH_NS_PER_GIB, 0), 2_000 * MS);
        assert_eq!(scaled(DEATH_BASE_NS, DEATH_NS_PER_GIB, GIB / 2), 2_500 * MS);
        assert_eq!(scaled(DEATH_BASE_NS, DEATH_NS_PER_GIB, 32 * GIB), 34_000 * MS);
        assert_eq!(scaled(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
    }
}
