//! The programs' counters, summed over the CPUs.
use std::fmt;

use aya::maps::{Array, MapData, MapError, PerCpuArray};
use enforcer_common::{
    counter::{drops, seen},
    reclaim::{DIRECT, KERNEL_THREAD, MEMCG, MEMORY_HIGH, ReclaimTotals, THROTTLED},
};

/// The programs' counters. They only grow, and start at 0 when the programs are loaded.
pub struct Counters {
    reclaim: PerCpuArray<MapData, ReclaimTotals>,
    drops: PerCpuArray<MapData, u64>,
    seen: PerCpuArray<MapData, u64>,
    reported: Reported,
}

/// How many losses of each stage have been reported.
enum Reported {
    /// Since this process loaded the programs.
    Here([u64; drops::NAMES.len()]),
    /// Since they were pinned, by any daemon.
    Pinned(Array<MapData, u64>),
}

/// Reclaim, and waits for it, of every kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimCounters {
    /// By allocating tasks, because the machine is short.
    pub direct: ReclaimTotals,
    /// Against memory cgroups' own limits: no sign of shortage outside of them.
    pub memcg: ReclaimTotals,
    /// Sleeps for `memory.high`.
    pub memory_high: ReclaimTotals,
    /// Waits within reclaim; their time is also in that of the reclaim.
    pub throttled: ReclaimTotals,
    /// All of these by the kernel's own threads. No task waits for them.
    pub kernel_threads: ReclaimTotals,
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").finish_non_exhaustive()
    }
}

impl Counters {
    pub(super) const fn new(
        reclaim: PerCpuArray<MapData, ReclaimTotals>,
        drops: PerCpuArray<MapData, u64>,
        seen: PerCpuArray<MapData, u64>,
    ) -> Self {
        Self { reclaim, drops, seen, reported: Reported::Here([0; drops::NAMES.len()]) }
    }

    /// The counters are older than this process, and so is the count of reported losses.
    pub(super) fn set_reported(&mut self, reported: Array<MapData, u64>) {
        self.reported = Reported::Pinned(reported);
    }

    /// Calls `emit` with the losses not reported yet, by stage, and notes them as reported.
    pub fn emit_drops(&mut self, mut emit: impl FnMut(&'static str, u64)) -> Result<(), MapError> {
        for (index, (stage, lost)) in (0..).zip(self.drops()?) {
            // What was reported of nothing need not be read.
            if lost == 0 {
                continue;
            }
            let reported = match &self.reported {
                Reported::Here(reported) => reported
                    .iter()
                    .zip(drops::NAMES)
                    .find(|(_, name)| *name == stage)
                    .map_or(0, |(reported, _)| *reported),
                Reported::Pinned(reported) => reported.get(&index, 0)?,
            };
            if lost <= reported {
                continue;
            }
            emit(stage, lost - reported);
            match &mut self.reported {
                Reported::Here(reported) => {
                    if let Some((reported, _)) =
                        reported.iter_mut().zip(drops::NAMES).find(|(_, name)| *name == stage)
                    {
                        *reported = lost;
                    }
                }
                Reported::Pinned(reported) => reported.set(index, lost, 0)?,
            }
        }
        Ok(())
    }

    /// How often and how long tasks were in reclaim.
    pub fn reclaim(&self) -> Result<ReclaimCounters, MapError> {
        let kind = |index| Ok::<_, MapError>(total(self.reclaim.get(&index, 0)?.iter()));
        Ok(ReclaimCounters {
            direct: kind(DIRECT)?,
            memcg: kind(MEMCG)?,
            memory_high: kind(MEMORY_HIGH)?,
            throttled: kind(THROTTLED)?,
            kernel_threads: kind(KERNEL_THREAD)?,
        })
    }

    /// Losses by stage, with the stage's name.
    pub fn drops(&self) -> Result<Vec<(&'static str, u64)>, MapError> {
        sums(&self.drops, &drops::NAMES)
    }

    /// The events seen, by kind, with the kind's name.
    pub fn seen(&self) -> Result<Vec<(&'static str, u64)>, MapError> {
        sums(&self.seen, &seen::NAMES)
    }
}

fn sums(
    map: &PerCpuArray<MapData, u64>,
    names: &[&'static str],
) -> Result<Vec<(&'static str, u64)>, MapError> {
    (0..).zip(names).map(|(index, name)| Ok((*name, map.get(&index, 0)?.iter().sum()))).collect()
}

fn total<'a>(cpus: impl Iterator<Item = &'a ReclaimTotals>) -> ReclaimTotals {
    cpus.fold(ReclaimTotals::default(), |sum, cpu| ReclaimTotals {
        begun: sum.begun + cpu.begun,
        ended: sum.ended + cpu.ended,
        total_ns: sum.total_ns + cpu.total_ns,
        max_ns: sum.max_ns.max(cpu.max_ns),
        unpaired: sum.unpaired + cpu.unpaired,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_add_up_and_the_longest_stays() {
        let cpu =
            |begun, max_ns| ReclaimTotals { begun, ended: begun, total_ns: max_ns, max_ns, unpaired: 1 };
        let sum = total([cpu(2, 10), cpu(3, 7)].iter());
        assert_eq!(sum, ReclaimTotals { begun: 5, ended: 5, total_ns: 17, max_ns: 10, unpaired: 2 });
    }
}
