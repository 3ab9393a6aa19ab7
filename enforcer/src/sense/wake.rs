//! What woke the reflex, and what can honestly be said about how long that took.
//!
//! A record of the kernel's edge ring carries its own time, so that the time from the edge to our being awake is known.
//! A PSI trigger and a `memory.events` file do not say when what they tell of began: of them only our own part is
//! known, from being awake to the end of the look.

use std::sync::atomic::{AtomicU64, Ordering};

use super::histogram::{Histogram, Latencies};

/// What an edge tells of.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum EdgeKind {
    /// kswapd woke: free memory is below the low watermark.
    KswapdWoken,
    /// An allocating task began to reclaim for itself, because the machine is short.
    DirectReclaim,
    /// A cgroup went above its `memory.high`.
    MemoryHigh,
    /// A cgroup was about to go above its `memory.max`.
    MemoryMax,
    /// Tasks stalled for want of memory, for longer than a PSI trigger allows.
    Pressure,
}

impl EdgeKind {
    /// Each of them.
    pub const ALL: [Self; 5] =
        [Self::KswapdWoken, Self::DirectReclaim, Self::MemoryHigh, Self::MemoryMax, Self::Pressure];

    /// Its name in metrics and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KswapdWoken => "kswapdWoken",
            Self::DirectReclaim => "directReclaim",
            Self::MemoryHigh => "memoryHigh",
            Self::MemoryMax => "memoryMax",
            Self::Pressure => "pressure",
        }
    }

    const fn place(self) -> usize {
        match self {
            Self::KswapdWoken => 0,
            Self::DirectReclaim => 1,
            Self::MemoryHigh => 2,
            Self::MemoryMax => 3,
            Self::Pressure => 4,
        }
    }
}

/// A reason to look at the node now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Edge {
    /// What it tells of.
    pub kind: EdgeKind,
    /// When that began, in nanoseconds of `CLOCK_BOOTTIME`, where the kernel says so.
    pub onset_ns: Option<u64>,
}

/// What is known of one kind of edges.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct KindStats {
    /// How many there were; those that came together in one record or counter each count.
    pub edges: u64,
    /// From the edge to our being awake, of those that say when they were and that we slept at.
    pub onset_to_awake: Latencies,
    /// From being awake to the end of the next look at the node: what is deferred, as edges came too thick, counts too.
    pub awake_to_looked: Latencies,
}

/// What is known of all kinds. All of it only grows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct WakeStats([KindStats; EdgeKind::ALL.len()]);

impl WakeStats {
    /// Of that kind.
    #[must_use]
    pub fn of(&self, kind: EdgeKind) -> KindStats {
        self.0.get(kind.place()).copied().unwrap_or_default()
    }
}

#[derive(Debug, Default)]
struct Kind {
    edges: AtomicU64,
    onset_to_awake: Histogram,
    awake_to_looked: Histogram,
}

/// Counts wake-ups by what they were for. Takes no lock and allocates nothing.
#[derive(Debug, Default)]
pub struct Wakes([Kind; EdgeKind::ALL.len()]);

impl Wakes {
    /// Takes in an edge that was found when we woke at that time.
    pub fn edge(&self, edge: Edge, awake_ns: u64) {
        let Some(kind) = self.0.get(edge.kind.place()) else { return };
        kind.edges.fetch_add(1, Ordering::Relaxed);
        // One that came after we woke did not wake us.
        if let Some(took_ns) = edge.onset_ns.and_then(|onset_ns| awake_ns.checked_sub(onset_ns)) {
            kind.onset_to_awake.record(took_ns);
        }
    }

    /// Takes in that the look for edges of that kind was done, so long after we woke for the first of them.
    pub fn looked(&self, kind: EdgeKind, took_ns: u64) {
        if let Some(kind) = self.0.get(kind.place()) {
            kind.awake_to_looked.record(took_ns);
        }
    }

    /// What was counted so far.
    #[must_use]
    pub fn stats(&self) -> WakeStats {
        WakeStats(self.0.each_ref().map(|Kind { edges, onset_to_awake, awake_to_looked }| KindStats {
            edges: edges.load(Ordering::Relaxed),
            onset_to_awake: onset_to_awake.read(),
            awake_to_looked: awake_to_looked.read(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_place_and_a_name_of_its_own() {
        for (place, kind) in EdgeKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.place(), place);
        }
        let names: std::collections::BTreeSet<_> = EdgeKind::ALL.map(EdgeKind::as_str).into();
        assert_eq!(names.len(), EdgeKind::ALL.len());
    }

    #[test]
    fn only_an_edge_that_can_have_woken_us_has_a_latency() {
        let wakes = Wakes::default();
        let edge = |onset_ns| Edge { kind: EdgeKind::KswapdWoken, onset_ns };
        wakes.edge(edge(Some(1_000)), 5_000);
        wakes.edge(edge(Some(6_000)), 5_000);
        wakes.edge(edge(None), 5_000);
        wakes.looked(EdgeKind::KswapdWoken, 70_000);
        let stats = wakes.stats().of(EdgeKind::KswapdWoken);
        assert_eq!(stats.edges, 3);
        assert_eq!((stats.onset_to_awake.count(), stats.onset_to_awake.total_ns), (1, 4_000));
        assert_eq!((stats.awake_to_looked.count(), stats.awake_to_looked.max_ns), (1, 70_000));
        assert_eq!(wakes.stats().of(EdgeKind::Pressure), KindStats::default());
    }
}
