//! Sets scores so that the kernel's own OOM killer, should it be faster, picks the same pod as the ranking.
//!
//! The kernel kills the process with the most *points*: its resident, swapped and page table bytes, plus a thousandth
//! of the node's memory for each unit of its `oom_score_adj` (`oom_badness` in `mm/oom_kill.c`). How a pod's memory is
//! spread over its processes is not known here, so nothing is assumed: the largest process of the first in rank may
//! hold next to nothing, and one process may hold all of another pod's memory. Scores that [hold](holds) hold for any
//! spread.
//!
//! As little is changed as possible. Guaranteed pods, those that the node needs, sandboxes and the node's components
//! keep their scores (`pkg/kubelet/qos/policy.go`). Of the others only the first in rank are raised, no further than
//! puts them before those that follow, and no higher than the maximum of their class. Where that is not enough, those
//! that follow are lowered, by no more than necessary, and not below the minimum of a Burstable pod. So a BestEffort
//! container is below 1000 only if the ranking spares its pod longer than another that holds less memory.

mod aligner;
mod band;

use std::fmt;

pub use self::{
    aligner::{Aligner, Weighed},
    band::Band,
};
use super::{oom_score, rank::MemoryRankKey};

/// `oomScorePolicy`: what determines the scores of containers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OomScorePolicy {
    /// Class and request only, as in the kubelet.
    #[default]
    Static,
    /// Class, request and the ranking.
    Ranked,
}

impl OomScorePolicy {
    /// Both policies with their names in the configuration.
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

/// How many of the first in rank are each put before all that follow, as far as there is room: the kernel may have to
/// kill more than one before the next look.
const DEPTH: usize = 8;

/// Scores are set so far apart that a pod may grow by this much of the node, in thousandths, and by an eighth of
/// itself, before they must be set again. The kernel's counts are also a few pages off on many processors.
const MARGIN: i128 = 10;
const GROWTH_SHARE: u64 = 8;

/// A score stays if a new one would be no more than this above it.
const SLACK: i128 = 50;

/// Usages that differ by less do not change the order: this much, and a thirty-second of the usage.
const ALIKE_BYTES: u64 = 4 << 20;
const ALIKE_SHARE: u64 = 32;

/// The weight of one point of a score.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Scale {
    unit_bytes: u64,
}

impl Scale {
    /// On a node with that much memory and swap, whose pods are limited to `pods_limit_bytes` together, if at all.
    ///
    /// In an OOM of kubepods' own limit, scores are weighed by that limit. The smaller one counts: scores that are far
    /// enough apart for it are so for the other too.
    #[must_use]
    pub fn new(memory_bytes: u64, swap_bytes: u64, pods_limit_bytes: Option<u64>, page_bytes: u64) -> Self {
        let whole_bytes = memory_bytes.saturating_add(swap_bytes);
        let least_bytes = pods_limit_bytes.map_or(whole_bytes, |limit_bytes| limit_bytes.min(whole_bytes));
        let page_bytes = page_bytes.max(1);
        // Like the kernel: pages, divided by a thousand, rounded down.
        Self { unit_bytes: (least_bytes / page_bytes / 1_000).max(1).saturating_mul(page_bytes) }
    }

    /// The weight of a score in bytes.
    fn worth(self, score: i128) -> i128 {
        score * i128::from(self.unit_bytes)
    }

    /// How far a pod's score must be below another's, so that its memory cannot outweigh the difference even if it
    /// grows.
    fn distance(self, weight_bytes: u64) -> i128 {
        let weight_bytes = weight_bytes.saturating_add(weight_bytes / GROWTH_SHARE);
        i128::from(weight_bytes / self.unit_bytes) + 1 + MARGIN
    }
}

/// A pod to be aligned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Contender {
    /// The lowest static score of its containers.
    pub lowest: i16,
    /// The highest.
    pub highest: i16,
    /// The most that one of its processes can weigh: its charge for anonymous and mapped memory, page tables and swap.
    pub weight_bytes: u64,
    /// Whether the ranking never picks it, such as a critical pod.
    pub is_spared: bool,
    /// The band of its containers' scores, if one is set.
    pub set: Option<Band>,
}

impl Contender {
    /// Whether its score may differ from the static one.
    fn is_movable(&self) -> bool {
        self.lowest >= oom_score::BURSTABLE_MIN
    }

    /// The highest score that its class allows.
    fn ceiling(&self) -> i128 {
        let is_best_effort = self.highest > oom_score::BURSTABLE_MAX;
        (if is_best_effort { oom_score::BEST_EFFORT } else { oom_score::BURSTABLE_MAX }).into()
    }

    /// The lowest and highest score of its processes now.
    fn scores(&self) -> (i128, i128) {
        let now = |score: i16| i128::from(self.set.map_or(score, |set| set.hold(score)));
        (now(self.lowest), now(self.highest))
    }

    /// Whether it can be put before others, so that the kernel picks it.
    fn may_lead(&self) -> bool {
        !self.is_spared && self.is_movable()
    }
}

/// The bands of the pods' scores.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Alignment {
    /// One per contender, in their order; `None` if its containers keep their static scores.
    pub bands: Vec<Option<Band>>,
    /// How many of the first in rank are put before all that follow.
    pub depth: usize,
}

/// Whether each of the first `depth` that may lead has more points than any pod after it, whichever of a pod's
/// processes holds its memory. `order` is the ranking, with spared pods at its end.
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

/// The scores that put each in rank before those that follow, as far down as there is room; at least the first.
///
/// Static scores stay if they do so already, and earlier scores stay if they are about as good as new ones.
#[must_use]
pub fn align(scale: Scale, order: &[Contender]) -> Alignment {
    let statics: Vec<_> = order.iter().map(|contender| Contender { set: None, ..*contender }).collect();
    let leaders = order.iter().filter(|contender| contender.may_lead()).count();
    let wanted = leaders.min(DEPTH);
    if holds(scale, &statics, wanted) {
        return Alignment { bands: vec![None; order.len()], depth: wanted };
    }
    let fitting = (1..=wanted).rev().find_map(|depth| {
        let bands = spread(scale, order, depth)?;
        Some(Alignment { bands, depth })
    });
    // The first is put before the others in any case, as far as there is room.
    fitting.unwrap_or_else(|| Alignment { bands: squeeze(scale, order), depth: wanted.min(1) })
}

/// The least score that each of the first `depth` needs to be before those that follow at their present scores, the
/// last of them first; no more than its class allows.
fn least_wanted(scale: Scale, order: &[Contender], depth: usize) -> Vec<i128> {
    let places: Vec<usize> = leading(order).take(depth).collect();
    let mut wanted = vec![0; depth];
    // The score that a pod needs to be before those that follow.
    let mut needed = i128::MIN;
    let mut end = order.len();
    for (place, wanted) in places.iter().zip(&mut wanted).rev() {
        let followers = order.get(place + 1..end).into_iter().flatten().filter(|other| other.is_movable());
        let beyond = followers.map(|other| i128::from(other.highest) + scale.distance(other.weight_bytes));
        needed = beyond.fold(needed, i128::max);
        if let Some(leader) = order.get(*place) {
            *wanted = i128::from(leader.lowest).max(needed).min(leader.ceiling());
            let highest = i128::from(leader.highest).max(*wanted);
            needed = needed.max(highest + scale.distance(leader.weight_bytes));
        }
        end = *place;
    }
    wanted
}

/// The places in the order of those that may lead.
fn leading(order: &[Contender]) -> impl Iterator<Item = usize> {
    order.iter().enumerate().filter(|(_, contender)| contender.may_lead()).map(|(place, _)| place)
}

/// The scores that put the first `depth` before all that follow, or `None` if there is no room.
fn spread(scale: Scale, order: &[Contender], depth: usize) -> Option<Vec<Option<Band>>> {
    let floor = i128::from(oom_score::BURSTABLE_MIN);
    let mut wanted = least_wanted(scale, order, depth).into_iter();
    let mut bands = Vec::with_capacity(order.len());
    // The score of the last pod that was put before the others; before the first only the class's limit applies.
    let mut before: Option<i128> = None;
    for contender in order {
        if !contender.is_movable() {
            bands.push(None);
            continue;
        }
        let below = before.map(|before| before - scale.distance(contender.weight_bytes));
        let most = below.map_or(contender.ceiling(), |below| below.min(contender.ceiling()));
        if most < floor {
            return None;
        }
        let lead = if contender.may_lead() { wanted.next() } else { None };
        let Some(least) = lead else {
            bands.push(Band::new(floor, kept_most(contender, most)).filter(|band| band.moves(contender)));
            continue;
        };
        let least = kept_least(contender, least.min(most), most);
        before = Some(least);
        bands.push(Band::new(least, most).filter(|band| band.moves(contender)));
    }
    Some(bands)
}

/// Puts the first as high, and all others as low, as they may be; for weights that there is no room for.
fn squeeze(scale: Scale, order: &[Contender]) -> Vec<Option<Band>> {
    let floor = i128::from(oom_score::BURSTABLE_MIN);
    let mut before: Option<i128> = None;
    let band = |contender: &Contender| {
        if !contender.is_movable() {
            return None;
        }
        let ceiling = contender.ceiling();
        let band = match before {
            None if contender.may_lead() => {
                before = Some(ceiling);
                Band::new(ceiling, ceiling)
            }
            None => None,
            Some(before) => {
                let most = (before - scale.distance(contender.weight_bytes)).clamp(floor, ceiling);
                Band::new(floor, kept_most(contender, most))
            }
        };
        band.filter(|band| band.moves(contender))
    };
    order.iter().map(band).collect()
}

/// The upper bound that was set, if it is low enough and not much lower.
fn kept_most(contender: &Contender, most: i128) -> i128 {
    let set = contender.set.map(|band| i128::from(band.most()));
    set.filter(|set| (most - SLACK..=most).contains(set)).unwrap_or(most)
}

/// The same for the lower bound, which may not be above `most`.
fn kept_least(contender: &Contender, least: i128, most: i128) -> i128 {
    let set = contender.set.map(|band| i128::from(band.least()));
    set.filter(|set| (least..=most.min(least + SLACK)).contains(set)).unwrap_or(least)
}

/// Whether an order is still right but for differences in usage that may be chance: none of the first `depth` would be
/// behind a later one if it used a little more.
#[must_use]
pub fn still_in_order(order: &[MemoryRankKey], depth: usize) -> bool {
    order.iter().enumerate().take(depth).all(|(place, standing)| {
        let usage_bytes = standing.usage_bytes.map(|usage_bytes| {
            usage_bytes.saturating_add(ALIKE_BYTES).saturating_add(usage_bytes / ALIKE_SHARE)
        });
        let at_most = MemoryRankKey { usage_bytes, ..*standing };
        order.iter().skip(place + 1).all(|other| at_most.compare(other).0.is_lt())
    })
}

#[cfg(test)]
mod tests;
