//! Goes on with an eviction that an earlier process of the daemon began.

use super::{
    CandidateIndex, Decision, Engine, Few, HookPlan, PodKey, Reading, Shortage, Usage, victim::Victim,
};
use crate::model::CgroupId;

/// An eviction that an earlier process began, and that had not ended when that process did: a soft one, or one whose victim
/// was killed and is dying.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Inherited {
    /// The victim's cgroup.
    pub cgroup: CgroupId,
    /// The victim's key across cgroups.
    pub pod: PodKey,
    /// The threshold that was met.
    pub shortage: Shortage,
    /// When it was seen crossed, in nanoseconds of `CLOCK_BOOTTIME`.
    pub crossed_ns: u64,
    /// When the victim was chosen.
    pub decided_ns: u64,
    /// When another had accepted to end the victim; `None` if it is not known whether anyone was asked.
    pub requested_ns: Option<u64>,
    /// When the victim was killed, if it was. It has as long to die as if it were killed now.
    pub signalled_ns: Option<u64>,
    /// The victim's grace period.
    pub grace_ns: u64,
    /// What its death was to free, in bytes.
    pub predicted_freed_bytes: u64,
    /// What it was charged for in all at the decision, in bytes; `None` if that was not read.
    pub current_bytes: Option<u64>,
    /// How many tasks it had, if they were counted.
    pub process_count: Option<u64>,
}

impl Engine {
    /// Makes that eviction the one under way, as the first decision of this engine: no other victim is chosen before it is
    /// over. The victim may be killed before it is among the candidates; whoever carries that out waits for it then.
    ///
    /// If it is not known whether anyone was asked, that is to be found out once the victim is among the candidates, and
    /// answered with `Outcome::Requested` or `Unrequested`. Much time may have passed since the decision: after
    /// `Unrequested` the victim is asked only if a threshold of its resource is due, and let off once none is met.
    pub fn inherit(&mut self, inherited: &Inherited, now_ns: u64) {
        let Inherited { cgroup, pod, shortage, crossed_ns, decided_ns, grace_ns, .. } = *inherited;
        let decision = Decision {
            number: self.decided.saturating_add(1),
            dry_run: false,
            paused: false,
            unarmed: false,
            // Of an order that is not known any more.
            index: CandidateIndex(usize::MAX),
            cgroup,
            pod,
            returned: None,
            crossed_ns,
            decided_ns,
            shortage,
            grace_ns,
            // That is not known any more: if it has to be, it is sent SIGTERM first.
            graceless: false,
            hook: HookPlan::Off,
            reading: inherited.reading(),
            growth_bytes_per_second: 0,
            decided_by: None,
            predicted_freed_bytes: inherited.predicted_freed_bytes,
            unmapped_shmem_bytes: 0,
            free_lists_bytes: 0,
            ranking: Few::new(),
            ranked_count: 0,
            excluded: Few::new(),
            excluded_count: 0,
        };
        self.decided = decision.number;
        self.decision = Some(decision);
        self.victim = Some(Victim::inherited(&decision, inherited, now_ns));
    }
}

impl Inherited {
    /// As far as it matters for what comes back.
    fn reading(&self) -> Reading {
        self.current_bytes.map_or(Reading::Missing, |current_bytes| {
            Reading::Usage(Usage {
                current_bytes,
                working_set_bytes: current_bytes,
                anon_bytes: self.predicted_freed_bytes,
                process_count: self.process_count,
                ..Usage::default()
            })
        })
    }
}
