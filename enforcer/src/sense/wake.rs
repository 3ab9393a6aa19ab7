//! Counts what woke the reflex, and measures how long waking took as far as that is known.
//!
//! A record of the kernel's edge ring has its own time, so the time from the edge to our wake-up is known. A PSI
//! trigger and a `memory.events` file do not say when their event began: for them only our own part is known, from the
//! wake-up to the end of the look.

use std::sync::atomic::{AtomicU64, Ordering};

use super::histogram::{Histogram, Latencies};

/// The event behind an edge.
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
    /// Tasks stalled for lack of memory, for longer than a PSI trigger allows.
    Pressure,
}

impl EdgeKind {
    /// All kinds.
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
    /// The event behind it.
    pub kind: EdgeKind,
    /// When that began, in nanoseconds of `CLOCK_BOOTTIME`, if the kernel reports it.
    pub onset_ns: Option<u64>,
}

/// Counts and latencies of one kind of edges.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct KindStats {
    /// Number of edges; one record or counter that joins several counts as one.
    pub edges: u64,
    /// From the edge to our wake-up, for edges that have a time and came while we slept.
    pub onset_to_awake: Latencies,
    /// From the wake-up to the end of the next look at the node, including looks deferred because edges came too often.
    pub awake_to_looked: Latencies,
}

/// Counts and latencies of all kinds. All only grow.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct WakeStats([KindStats; EdgeKind::ALL.len()]);

impl WakeStats {
    /// The counts of that kind.
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

/// Counts wake-ups by their kind. Takes no lock and allocates nothing.
#[derive(Debug, Default)]
pub struct Wakes([Kind; EdgeKind::ALL.len()]);

impl Wakes {
    /// Counts an edge that was found after the wake-up at that time.
    pub fn edge(&self, edge: Edge, awake_ns: u64) {
        let Some(kind) = self.0.get(edge.kind.place()) else { return };
        kind.edges.fetch_add(1, Ordering::Relaxed);
        // An edge after the wake-up did not cause it.
        if let Some(took_ns) = edge.onset_ns.and_then(|onset_ns| awake_ns.checked_sub(onset_ns)) {
            kind.onset_to_awake.record(took_ns);
        }
    }

    /// Notes that the look for edges of that kind is done, this long after the first of them woke us.
    pub fn looked(&self, kind: EdgeKind, took_ns: u64) {
        if let Some(kind) = self.0.get(kind.place()) {
            kind.awake_to_looked.record(took_ns);
        }
    }

    /// The counts so far.
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
