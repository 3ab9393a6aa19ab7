//! The defaults beside a kubelet that evicts too: one of the two must come first, and by the same measure.

use super::{Config, KubeletMemory, KubeletUnknown, MemoryAvailableSource, ValueSource, Written};
use crate::{
    model::{Quantity, ResourceName},
    policy::{
        allocatable,
        threshold::{Signal, Threshold, ThresholdValue},
    },
};

/// The least distance to the kubelet's own threshold, in bytes.
const LEAST_MARGIN: u64 = 100 << 20;

/// The same as a part of the node's memory: one hundredth.
const MARGIN_DIVISOR: u64 = 100;

/// What is known of the kubelet's threshold.
type Known = Result<KubeletMemory, KubeletUnknown>;

impl Config {
    /// Fills in the defaults beside a kubelet, for a node of that much memory: available memory as the kubelet computes it,
    /// and a hard threshold above its own, so that it does not evict by another ranking at the same time.
    ///
    /// What our own file says stays. So does the default, if the kubelet's threshold is not known or there is no room above
    /// it.
    pub fn settle_beside_kubelet(&mut self, kubelet: &Known, memory_bytes: u64) {
        if self.memory_available_source_at.0.is_none() {
            self.memory_available_source = MemoryAvailableSource::Kubelet;
            let source = ValueSource::Kubelet(String::from("as it computes it"));
            self.value_sources.set("memoryAvailableSource", source);
        }
        let Ok(kubelet) = kubelet else { return };
        let value = self.below_soft(kubelet, above(kubelet, memory_bytes), memory_bytes);
        if self.hard_memory_at.0.is_some() || value >= self.room(memory_bytes) {
            return;
        }
        self.value_sources
            .set("evictionHard", ValueSource::Kubelet(format!("above its own, {}", kubelet.origin)));
        let hard = |threshold: &&mut Threshold| threshold.is_hard();
        for threshold in self.settings.eviction.thresholds.iter_mut().filter(hard) {
            match (threshold.signal, kubelet.hard) {
                (Signal::MemoryAvailable, _) => threshold.value = ThresholdValue::Amount(value),
                // The kubelet subtracts no more than its own threshold from what pods may request: within a margin, pods
                // that use what they requested would be evicted.
                (Signal::AllocatableMemoryAvailable, Some(theirs)) => threshold.value = theirs,
                _ => {}
            }
        }
    }

    /// A hard threshold of that value, or midway between the kubelet's and our soft one if it would be above that: pods that
    /// may end within their grace period would be killed first.
    fn below_soft(&self, kubelet: &KubeletMemory, value: u64, memory_bytes: u64) -> u64 {
        let soft = self.settings.eviction.thresholds.iter();
        let soft =
            soft.filter(|threshold| !threshold.is_hard() && threshold.signal == Signal::MemoryAvailable);
        let theirs = kubelet.hard.map_or(0, |hard| hard.amount(memory_bytes));
        match soft.map(|threshold| threshold.value.amount(memory_bytes)).min() {
            Some(soft) if soft <= value && soft > theirs => theirs + (soft - theirs) / 2,
            Some(_) | None => value,
        }
    }

    /// What a threshold must be below: a default must not be what this node does not have, besides reservations and the
    /// minimum reclaim.
    fn room(&self, memory_bytes: u64) -> u64 {
        let settings = &self.settings;
        let memory = [(ResourceName::new(ResourceName::MEMORY), Quantity::from_units(memory_bytes))];
        let kube_reserved = allocatable::kube_reserved(&memory.into_iter().collect(), settings);
        let reserved = [&settings.system_reserved, &kube_reserved]
            .map(|reserved| reserved.get(ResourceName::MEMORY).map_or(0, |memory| memory.units()));
        let hard = settings.eviction.hard(Signal::MemoryAvailable);
        let reclaim =
            hard.and_then(|threshold| threshold.min_reclaim).map_or(0, |value| value.amount(memory_bytes));
        reserved.into_iter().chain([reclaim]).fold(memory_bytes, u64::saturating_sub)
    }

    /// Why the kubelet may evict before this daemon or with it, and what to change; `None` if it does not, or if our own
    /// file says that there is no threshold of memory.
    #[must_use]
    pub fn contest(&self, kubelet: &Known, memory_bytes: u64) -> Option<String> {
        let ours = self.settings.eviction.hard(Signal::MemoryAvailable)?.value.amount(memory_bytes);
        let place = place(&self.hard_memory_at);
        let kubelet = match kubelet {
            Ok(kubelet) => kubelet,
            Err(_) if self.hard_memory_at.0.is_some() => return None,
            Err(unknown) => {
                return Some(format!(
                    "the kubelet's own threshold is not known, so ours is the default of {}, and the kubelet may evict at the \
                     same time by another ranking: {}; write evictionHard with a memory.available above the kubelet's, or set a kubeconfig that may get nodes/configz",
                    size(ours),
                    crate::chain(unknown)
                ));
            }
        };
        let theirs = kubelet.hard?.amount(memory_bytes);
        let wanted = above(kubelet, memory_bytes);
        (ours <= theirs).then(|| {
            let change = match &self.hard_memory_at.0 {
                _ if wanted >= self.room(memory_bytes) => String::from("lower the kubelet's threshold"),
                Some(_) => format!("write evictionHard.memory.available: {} or more", size(wanted)),
                None => format!("enforcer reload makes ours {}", size(wanted)),
            };
            format!(
                "{place}: evictionHard.memory.available is {}, and the kubelet's own is {} ({}), so the kubelet evicts as \
                 well, by another ranking: {change}",
                size(ours),
                size(theirs),
                kubelet.origin
            )
        })
    }

    /// The values that may follow from the kubelet's, with their origins, each as a sentence.
    #[must_use]
    pub fn beside_kubelet(&self, kubelet: &Known, memory_bytes: u64) -> Vec<String> {
        let threshold = self.settings.eviction.hard(Signal::MemoryAvailable);
        let ours = threshold
            .map_or_else(|| String::from("not set"), |threshold| size(threshold.value.amount(memory_bytes)));
        let theirs = match kubelet {
            Ok(KubeletMemory { hard: Some(hard), origin }) => {
                format!("the kubelet's own is {} ({origin})", size(hard.amount(memory_bytes)))
            }
            Ok(KubeletMemory { hard: None, origin }) => format!("the kubelet has none ({origin})"),
            Err(unknown) => format!("the kubelet's own is not known: {}", crate::chain(unknown)),
        };
        let source = match self.memory_available_source {
            MemoryAvailableSource::Kubelet => "kubelet",
            MemoryAvailableSource::MemAvailable => "memAvailable, so the thresholds cannot be compared",
        };
        vec![
            format!("evictionHard.memory.available: {ours} ({}); {theirs}", place(&self.hard_memory_at)),
            format!("memoryAvailableSource: {source} ({})", place(&self.memory_available_source_at)),
        ]
    }
}

/// A threshold that is crossed before the kubelet's own.
fn above(kubelet: &KubeletMemory, memory_bytes: u64) -> u64 {
    let theirs = kubelet.hard.map_or(0, |hard| hard.amount(memory_bytes));
    let margin = (memory_bytes / MARGIN_DIVISOR).max(LEAST_MARGIN);
    // In whole MiB, rounded up: more digits say nothing.
    theirs.saturating_add(margin).div_ceil(1 << 20).saturating_mul(1 << 20)
}

fn size(bytes: u64) -> String {
    Quantity::from_units(bytes).binary_si().to_string()
}

fn place(written: &Written) -> String {
    written.0.as_ref().map_or_else(|| String::from("by default"), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    #[expect(clippy::unnecessary_wraps, reason = "what is not known is an error elsewhere")]
    fn kubelets(hard: Option<u64>) -> Known {
        Ok(KubeletMemory { hard: hard.map(ThresholdValue::Amount), origin: String::from("k.yaml:3") })
    }

    fn unknown() -> Known {
        Err(KubeletUnknown::Nowhere(PathBuf::from("/k")))
    }

    fn settled(text: &str, kubelet: &Known, memory_bytes: u64) -> Config {
        let head = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\n";
        let mut config = Config::parse("c.yaml", &format!("{head}{text}")).unwrap();
        config.settle_beside_kubelet(kubelet, memory_bytes);
        config
    }

    /// The hard thresholds of memory, in MiB.
    fn hard(config: &Config) -> [Option<u64>; 2] {
        [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable].map(|signal| {
            let hard = config.settings.eviction.hard(signal)?;
            Some(hard.value.amount(64 * GIB) / MIB)
        })
    }

    #[test]
    fn the_default_is_above_the_kubelets() {
        for (theirs, memory_bytes, ours) in [
            (Some(100 * MIB), 8 * GIB, 200),
            (Some(GIB), 8 * GIB, 1_124),
            (Some(100 * MIB), 64 * GIB, 756),
            (None, 64 * GIB, 656),
            // No room above it.
            (Some(950 * MIB), GIB, 100),
        ] {
            let config = settled("", &kubelets(theirs), memory_bytes);
            let allocatable = theirs.filter(|_| ours > 100).map_or(100, |theirs| theirs / MIB);
            assert_eq!(hard(&config), [Some(ours), Some(allocatable)], "{theirs:?}");
            assert_eq!(config.memory_available_source, MemoryAvailableSource::Kubelet);
        }
        assert_eq!(hard(&settled("", &unknown(), GIB)), [Some(100), Some(100)]);
        // What is reserved or is to be reclaimed as well leaves none either.
        for taken in
            ["systemReserved: {memory: 850Mi}\n", "evictionMinimumReclaim: {memory.available: 850Mi}\n"]
        {
            assert_eq!(hard(&settled(taken, &kubelets(Some(100 * MIB)), GIB))[0], Some(100), "{taken}");
        }
    }

    #[test]
    fn the_default_stays_below_our_own_soft_threshold() {
        let of = |soft: &str| {
            let text = format!(
                "evictionSoft: {{memory.available: {soft}}}\nevictionSoftGracePeriod: {{memory.available: 1m}}\n"
            );
            hard(&settled(&text, &kubelets(Some(100 * MIB)), 64 * GIB))[0]
        };
        assert_eq!(of("500Mi"), Some(300));
        assert_eq!(of("1Gi"), Some(756));
        // There is nothing in between.
        assert_eq!(of("100Mi"), Some(756));
    }

    #[test]
    fn what_our_own_file_says_stays() {
        let kubelet = kubelets(Some(GIB));
        let config = settled("memoryAvailableSource: memAvailable\n", &kubelet, 8 * GIB);
        assert_eq!(config.memory_available_source, MemoryAvailableSource::MemAvailable);
        let of = |text: &str| hard(&settled(text, &kubelet, 8 * GIB))[0];
        assert_eq!(of("evictionHard: {memory.available: 300Mi}\n"), Some(300));
        assert_eq!(of("evictionHard: {pid.available: 10%}\n"), None);
        let merged = "mergeDefaultEvictionSettings: true\nevictionHard: {pid.available: 10%}\n";
        assert_eq!(of(merged), Some(1_124));
    }

    #[test]
    fn a_kubelets_file_below_our_own_is_the_kubelets_word() {
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {memory.available: 1Gi}\n";
        let mut config = super::super::Effective::parse(None, Some(("k.yaml", text))).unwrap().config;
        config.settle_beside_kubelet(&kubelets(Some(GIB)), 8 * GIB);
        assert_eq!(hard(&config)[0], Some(1_124));
    }

    #[test]
    fn a_threshold_at_the_kubelets_or_below_names_the_line_to_change() {
        let contest = |ours: &str, theirs| {
            let config =
                settled(&format!("evictionHard: {{memory.available: {ours}}}\n"), &kubelets(theirs), 8 * GIB);
            config.contest(&kubelets(theirs), 8 * GIB)
        };
        let message = contest("200Mi", Some(200 * MIB)).unwrap();
        assert_eq!(
            message,
            "c.yaml:3: evictionHard.memory.available is 200Mi, and the kubelet's own is 200Mi (k.yaml:3), so the kubelet \
             evicts as well, by another ranking: write evictionHard.memory.available: 300Mi or more"
        );
        assert_eq!(contest("201Mi", Some(200 * MIB)), None);
        assert_eq!(contest("1Mi", None), None);
        assert!(contest("200Mi", Some(8 * GIB)).unwrap().ends_with("lower the kubelet's threshold"));
        // The kubelet's has changed since ours followed from it.
        let config = settled("", &kubelets(Some(100 * MIB)), 8 * GIB);
        let message = config.contest(&kubelets(Some(200 * MIB)), 8 * GIB).unwrap();
        assert!(message.ends_with("enforcer reload makes ours 300Mi"), "{message}");
    }

    #[test]
    fn an_unknown_threshold_is_a_problem_only_for_a_default() {
        let config = settled("", &unknown(), GIB);
        let message = config.contest(&unknown(), GIB).unwrap();
        assert!(
            message.contains("the default of 100Mi") && message.contains("/k does not exist"),
            "{message}"
        );
        let config = settled("evictionHard: {memory.available: 300Mi}\n", &unknown(), GIB);
        assert_eq!(config.contest(&unknown(), GIB), None);
        let shown = config.beside_kubelet(&unknown(), GIB);
        assert!(shown[0].starts_with("evictionHard.memory.available: 300Mi (c.yaml:3); "), "{shown:?}");
        assert_eq!(shown[1], "memoryAvailableSource: kubelet (by default)");
    }
}
