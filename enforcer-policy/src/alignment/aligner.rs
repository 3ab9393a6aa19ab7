//! Decides from look to look which pods get new scores; small changes in usage move none.

use std::collections::BTreeMap;

use super::{Alignment, Band, Contender, Scale, align, holds, still_in_order};
use crate::rank::MemoryRankKey;

/// A pod at one look.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Weighed<K> {
    /// The pod's key.
    pub key: K,
    /// Its keys in the ranking.
    pub standing: MemoryRankKey,
    /// What the kernel picks by. Its `set` is ignored: the aligner knows what it set.
    pub contender: Contender,
}

/// Keeps pods aligned from look to look, and changes no score that still serves.
///
/// The order that was aligned for serves until a significant difference in usage contradicts it, and its scores serve
/// while they [hold](holds). So small changes in usage cost no write.
#[derive(Clone, Debug)]
pub struct Aligner<K> {
    /// The pods that were put before all others, in their order.
    leaders: Vec<K>,
    set: BTreeMap<K, Band>,
}

impl<K> Default for Aligner<K> {
    fn default() -> Self {
        Self { leaders: Vec::new(), set: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Aligner<K> {
    /// The bands of the pods whose scores are not all static.
    #[must_use]
    pub fn set(&self) -> &BTreeMap<K, Band> {
        &self.set
    }

    /// The first pod, if there is one to agree on.
    #[must_use]
    pub fn first(&self) -> Option<&K> {
        self.leaders.first()
    }

    /// Gives up all scores; returns whether there were any.
    pub fn release(&mut self) -> bool {
        self.leaders.clear();
        !std::mem::take(&mut self.set).is_empty()
    }

    /// Processes the present state of all pods. Returns whether scores changed.
    pub fn look(&mut self, scale: Scale, pods: &[Weighed<K>]) -> bool {
        self.set.retain(|key, _| pods.iter().any(|pod| pod.key == *key));
        let find = |key: &K| pods.iter().find(|pod| pod.key == *key && pod.contender.may_lead());
        let kept: Vec<&Weighed<K>> = self.leaders.iter().filter_map(find).collect();
        let depth = kept.len();
        let mut others: Vec<&Weighed<K>> =
            pods.iter().filter(|pod| !kept.iter().any(|leader| leader.key == pod.key)).collect();
        others.sort_by(|left, right| rank(left, right));
        let serves = {
            let order: Vec<&Weighed<K>> = kept.iter().chain(&others).copied().collect();
            let has_leader = order.iter().any(|pod| pod.contender.may_lead());
            let leading: Vec<_> = order.iter().filter(|pod| pod.contender.may_lead()).collect();
            let standings: Vec<MemoryRankKey> = leading.iter().map(|pod| pod.standing).collect();
            (depth > 0 || !has_leader)
                && still_in_order(&standings, depth)
                && holds(scale, &self.contenders(&order), depth)
        };
        self.leaders = kept.iter().map(|pod| pod.key.clone()).collect();
        if serves {
            return false;
        }
        let mut order: Vec<&Weighed<K>> = pods.iter().collect();
        order.sort_by(|left, right| rank(left, right));
        let Alignment { bands, depth } = align(scale, &self.contenders(&order));
        let leading = order.iter().filter(|pod| pod.contender.may_lead()).take(depth);
        self.leaders = leading.map(|pod| pod.key.clone()).collect();
        let set: BTreeMap<K, Band> =
            order.iter().zip(&bands).filter_map(|(pod, band)| Some((pod.key.clone(), (*band)?))).collect();
        let differs = set != self.set;
        self.set = set;
        differs
    }

    fn contenders(&self, order: &[&Weighed<K>]) -> Vec<Contender> {
        let known = |pod: &&Weighed<K>| Contender { set: self.set.get(&pod.key).copied(), ..pod.contender };
        order.iter().map(known).collect()
    }
}

/// The ranking, with spared pods after all others.
fn rank<K>(left: &Weighed<K>, right: &Weighed<K>) -> std::cmp::Ordering {
    let spared = left.contender.is_spared.cmp(&right.contender.is_spared);
    spared.then_with(|| left.standing.compare(&right.standing).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn scale() -> Scale {
        Scale::new(2_048 * MIB, 0, None, 4_096)
    }

    fn pod(key: u32, score: i16, priority: i32, usage_mib: u64) -> Weighed<u32> {
        let bytes = usage_mib * MIB;
        Weighed {
            key,
            standing: MemoryRankKey { usage_bytes: Some(bytes), request_bytes: 0, priority, order: key },
            contender: Contender {
                lowest: score,
                highest: score,
                weight_bytes: bytes,
                is_spared: false,
                set: None,
            },
        }
    }

    #[test]
    fn nothing_is_set_anew_while_usages_waver() {
        let mut aligner = Aligner::default();
        let pods = |first_mib, second_mib| [pod(1, 1000, 0, second_mib), pod(2, 1000, -1, first_mib)];
        assert!(aligner.look(scale(), &pods(50, 300)));
        assert_eq!((aligner.first(), aligner.set().get(&2)), (Some(&2), None));
        let set = aligner.set().clone();
        for (first, second) in [(50, 300), (40, 310), (60, 320), (50, 250), (1, 330)] {
            assert!(!aligner.look(scale(), &pods(first, second)), "{first} {second}");
        }
        assert_eq!(*aligner.set(), set);
        // An eighth more, and some.
        assert!(aligner.look(scale(), &pods(50, 370)));
        assert!(aligner.set()[&1].most() < set[&1].most());
    }

    #[test]
    fn two_of_the_same_size_do_not_take_turns() {
        let mut aligner = Aligner::default();
        let pods = |one, two| [pod(1, 990, 0, one), pod(2, 700, 0, two)];
        aligner.look(scale(), &pods(300, 302));
        assert_eq!(aligner.first(), Some(&2));
        assert!(!aligner.look(scale(), &pods(304, 300)));
        assert!(aligner.look(scale(), &pods(330, 300)));
        assert_eq!(aligner.first(), Some(&1));
    }

    #[test]
    fn when_the_first_is_gone_the_next_is_in_place() {
        let mut aligner = Aligner::default();
        let pods = [pod(1, 990, 0, 300), pod(2, 700, -5, 100), pod(3, 990, 5, 500)];
        assert!(aligner.look(scale(), &pods));
        assert_eq!(aligner.first(), Some(&2));
        assert!(!aligner.look(scale(), &[pods[0], pods[2]]));
        assert_eq!((aligner.first(), aligner.set().contains_key(&2)), (Some(&1), false));
    }

    #[test]
    fn who_comes_is_put_in_its_place() {
        let mut aligner = Aligner::default();
        assert!(!aligner.look(scale(), &[pod(1, 990, 0, 100)]));
        assert!(aligner.look(scale(), &[pod(1, 990, 0, 100), pod(2, 1000, 5, 1)]));
        assert_eq!(aligner.first(), Some(&1));
        assert!(aligner.release() && aligner.set().is_empty() && !aligner.release());
    }

    #[test]
    fn a_pod_that_cannot_be_picked_leads_no_other() {
        let mut aligner = Aligner::default();
        let mut critical = pod(1, 1000, 2_000_000_000, 900);
        critical.contender.is_spared = true;
        assert!(!aligner.look(scale(), &[critical, pod(2, -997, 0, 100)]));
        assert_eq!(aligner.first(), None);
        assert!(aligner.look(scale(), &[critical, pod(3, 990, 0, 5)]));
        assert_eq!((aligner.first(), aligner.set()[&3].hold(990)), (Some(&3), 999));
    }
}
