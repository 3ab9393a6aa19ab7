//! Scores by which the kernel's own OOM killer, should it be faster, picks whom the ranking would.
//!
//! The kernel kills the process with the most *points*: its resident, swapped and page table bytes, and a thousandth of
//! what the node has for each of its `oom_score_adj` (`oom_badness` in `mm/oom_kill.c`). Who has how much of a pod's memory
//! is not known here, so nothing is assumed about it: the first in rank may hold next to nothing in its largest process,
//! and all that another pod holds may be one process. So scores that [hold](holds) hold however the memory is spread.
//!
//! What the classes' scores promise stays (`pkg/kubelet/qos/policy.go`): Guaranteed pods and those that the node needs keep
//! theirs, no other pod's goes below a Burstable one's lowest or above its class's highest, and a BestEffort pod's comes
//! down from the highest only where the ranking spares it longer than another.

mod aligner;

use std::fmt;

pub use self::aligner::{Aligner, Weighed};
use super::{oom_score, rank::MemoryStanding};

/// `oomScorePolicy`: what the scores of containers follow.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OomScorePolicy {
    /// Class and request alone, as the kubelet's.
    #[default]
    Static,
    /// The ranking as well.
    Ranked,
}

impl OomScorePolicy {
    /// Both by the names that the configuration gives them.
    pub const NAMES: &'static [(&'static str, Self)] = &[("static", Self::Static), ("ranked", Self::Ranked)];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Ranked => "ranked",
        }
    }
}

impl fmt::Display for OomScorePolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// How many of the first in rank are each put before all who follow, as far as there is room: the kernel may have to kill
/// more than one before anybody looks again.
const DEPTH: usize = 8;

/// Scores are set so far apart that a pod may grow by this much of the node, in thousandths, and by an eighth of itself,
/// before they have to be set anew. The kernel's counts are some pages off on many processors, too.
const MARGIN: i128 = 10;
const GROWTH_SHARE: u64 = 8;

/// A score that was set stays where a new one would be no more than this above it.
const SLACK: i128 = 50;

/// Usages that differ by less say nothing new of who comes first: this much, and a thirty-second of the usage.
const ALIKE_BYTES: u64 = 4 << 20;
const ALIKE_SHARE: u64 = 32;

/// What one point of a score weighs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Scale {
    unit_bytes: u64,
}

impl Scale {
    /// On a node with that much memory and swap, whose pods may have `pods_limit_bytes` together, if that is limited.
    ///
    /// An OOM of kubepods' own limit weighs scores by that limit. The smaller one counts: scores that are far enough apart
    /// for it are for the other as well.
    #[must_use]
    pub fn new(memory_bytes: u64, swap_bytes: u64, pods_limit_bytes: Option<u64>, page_bytes: u64) -> Self {
        let whole_bytes = memory_bytes.saturating_add(swap_bytes);
        let least_bytes = pods_limit_bytes.map_or(whole_bytes, |limit_bytes| limit_bytes.min(whole_bytes));
        let page_bytes = page_bytes.max(1);
        // As the kernel does: pages, by a thousand, rounded down.
        Self { unit_bytes: (least_bytes / page_bytes / 1_000).max(1).saturating_mul(page_bytes) }
    }

    /// What a score is worth in bytes.
    fn worth(self, score: i128) -> i128 {
        score * i128::from(self.unit_bytes)
    }

    /// How far below another's a pod's score must be, so that its memory cannot outweigh the difference even if it grows.
    fn distance(self, weight_bytes: u64) -> i128 {
        let weight_bytes = weight_bytes.saturating_add(weight_bytes / GROWTH_SHARE);
        i128::from(weight_bytes / self.unit_bytes) + 1 + MARGIN
    }
}

/// A pod among those that are to be aligned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Contender {
    /// The lowest static score of its containers.
    pub lowest: i16,
    /// The highest.
    pub highest: i16,
    /// The most that one of its processes can weigh: what is charged for anonymous and mapped memory, page tables and swap.
    pub weight_bytes: u64,
    /// Whether the ranking never picks it, such as a critical pod.
    pub is_spared: bool,
    /// The score that all its containers have instead of their static ones, if they have.
    pub set: Option<i16>,
}

impl Contender {
    /// Whether its score may be another than the static one.
    fn is_movable(&self) -> bool {
        self.lowest >= oom_score::BURSTABLE_MIN
    }

    /// The highest that its class may have.
    fn ceiling(&self) -> i128 {
        let is_best_effort = self.highest > oom_score::BURSTABLE_MAX;
        (if is_best_effort { oom_score::BEST_EFFORT } else { oom_score::BURSTABLE_MAX }).into()
    }

    /// The lowest and highest score that its processes have now.
    fn scores(&self) -> (i128, i128) {
        let (lowest, highest) = self.set.map_or((self.lowest, self.highest), |set| (set, set));
        (lowest.into(), highest.into())
    }

    /// Whether it can be put before others: the kernel is to pick it when its turn comes.
    fn may_lead(&self) -> bool {
        !self.is_spared && self.is_movable()
    }
}

/// The scores that pods are to have.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Alignment {
    /// One for each contender, in their order; none for its containers' static ones.
    pub scores: Vec<Option<i16>>,
    /// How many of the first in rank are put before all who follow.
    pub depth: usize,
}

/// Whether each of the first `depth` who may lead has more points than anybody after it, whoever of a pod's processes
/// holds its memory. `order` is the ranking, with those that are spared at its end.
#[must_use]
pub fn holds(scale: Scale, order: &[Contender], depth: usize) -> bool {
    let leaders = order.iter().enumerate().filter(|(_, contender)| contender.may_lead());
    leaders.take(depth).all(|(place, leader)| {
        let (least, _) = leader.scores();
        order.iter().skip(place + 1).all(|other| {
            let (_, most) = other.scores();
            scale.worth(least) > scale.worth(most) + i128::from(other.weight_bytes)
        })
    })
}

/// The scores that put each in rank before those who follow, as far down as there is room; the first at the least.
///
/// Static scores stay where they do already, and what was set stays where it is about as good as new.
#[must_use]
pub fn align(scale: Scale, order: &[Contender]) -> Alignment {
    let statics: Vec<_> = order.iter().map(|contender| Contender { set: None, ..*contender }).collect();
    let leaders = order.iter().filter(|contender| contender.may_lead()).count();
    let wanted = leaders.min(DEPTH);
    if holds(scale, &statics, wanted) {
        return Alignment { scores: vec![None; order.len()], depth: wanted };
    }
    let floor = i128::from(oom_score::BURSTABLE_MIN);
    let mut scores: Vec<Option<i16>> = Vec::with_capacity(order.len());
    // Below what every score that follows must be, but for the weight of who has it; none before the first leader.
    let mut before: Option<i128> = None;
    let mut depth = 0;
    let mut is_room_left = true;
    for (place, contender) in order.iter().enumerate() {
        if !contender.is_movable() {
            scores.push(None);
            continue;
        }
        let highest = |below: i128| below - scale.distance(contender.weight_bytes);
        if contender.may_lead() && depth < wanted && is_room_left {
            let own = before.map_or(contender.ceiling(), |below| contender.ceiling().min(highest(below)));
            let own = kept(contender, own).filter(|_| before.is_some()).unwrap_or(own);
            let rest = order.iter().skip(place + 1).filter(|other| other.is_movable());
            let fits = own >= floor
                && rest.map(|other| own - scale.distance(other.weight_bytes)).all(|at| at >= floor);
            if fits || before.is_none() {
                before = Some(own);
                depth += 1;
                scores.push(narrow(own));
                continue;
            }
            is_room_left = false;
        }
        let bound = before.map_or(contender.ceiling(), highest).max(floor);
        let is_low_enough = i128::from(contender.highest) <= bound;
        scores.push(if is_low_enough { None } else { narrow(kept(contender, bound).unwrap_or(bound)) });
    }
    Alignment { scores, depth }
}

/// The score that was set, where it is as low as it must be and not much lower.
fn kept(contender: &Contender, bound: i128) -> Option<i128> {
    contender.set.map(i128::from).filter(|set| (bound - SLACK..=bound).contains(set))
}

fn narrow(score: i128) -> Option<i16> {
    i16::try_from(score.clamp(oom_score::BURSTABLE_MIN.into(), oom_score::BEST_EFFORT.into())).ok()
}

/// Whether an order that was right still is, but for differences in usage that are too small to be told from chance: the
/// first `depth` are not behind anybody who follows even if they used a little more.
#[must_use]
pub fn still_in_order(order: &[MemoryStanding], depth: usize) -> bool {
    order.iter().enumerate().take(depth).all(|(place, standing)| {
        let usage_bytes = standing.usage_bytes.map(|usage_bytes| {
            usage_bytes.saturating_add(ALIKE_BYTES).saturating_add(usage_bytes / ALIKE_SHARE)
        });
        let at_most = MemoryStanding { usage_bytes, ..*standing };
        order.iter().skip(place + 1).all(|other| at_most.compare(other).0.is_lt())
    })
}

#[cfg(test)]
mod tests;
