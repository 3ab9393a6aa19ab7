//! Detects when available memory or process ids begin to fall fast, and wakes the thread that looks ahead. At rest
//! that thread only looks every ten seconds, often too late.
//!
//! The reflex samples the node anyway, the more often the less is left. This adds a comparison per sample, and a
//! system call at the beginning of a fall. It does not allocate or wait.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::Thread,
};

use crate::policy::{engine::NodeSample, threshold::Signal};

/// The signals to compare.
const SIGNALS: [Signal; 3] =
    [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable, Signal::PidAvailable];

/// Samples that are compared are at least this far apart; closer ones do not show a rate.
const LEAST_SPAN_NS: u64 = 250_000_000;

/// Wakes if less time is left at that rate. If more is left, the look every ten seconds is in time.
const STEEP_NS: u64 = 20_000_000_000;

/// The least time between two wakes.
const PAUSE_NS: u64 = 1_000_000_000;

/// Wakes the thread that looks ahead.
#[derive(Clone, Debug)]
pub struct FillWaker {
    thread: Thread,
    is_woken: Arc<AtomicBool>,
}

impl FillWaker {
    /// Unparks `thread`; `is_woken` distinguishes this from other wakes.
    #[must_use]
    pub fn new(thread: Thread, is_woken: Arc<AtomicBool>) -> Self {
        Self { thread, is_woken }
    }

    /// Wakes it: a store, and a system call if the thread is parked.
    fn wake(&self) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Compares samples of the node.
#[derive(Debug, Default)]
pub(super) struct FillDetector {
    fill_waker: Option<FillWaker>,
    /// The sample of each signal to compare with: its time, and what was available.
    before: [Option<(u64, u64)>; SIGNALS.len()],
    woken_ns: Option<u64>,
}

impl FillDetector {
    /// Without `fill_waker` it does nothing.
    pub(super) fn new(fill_waker: Option<FillWaker>) -> Self {
        Self { fill_waker, ..Self::default() }
    }

    /// Takes a sample of the node. `next_threshold` returns the next threshold of a signal that is not crossed, in its
    /// base unit.
    pub(super) fn look(&mut self, node: &NodeSample, next_threshold: impl Fn(Signal) -> Option<u64>) {
        if self.fill_waker.is_none() || !self.is_steep(node, next_threshold) {
            return;
        }
        let is_early = |woken_ns: u64| node.now_ns.saturating_sub(woken_ns) < PAUSE_NS;
        if self.woken_ns.is_some_and(is_early) {
            return;
        }
        self.woken_ns = Some(node.now_ns);
        if let Some(fill_waker) = &self.fill_waker {
            fill_waker.wake();
        }
    }

    fn is_steep(&mut self, node: &NodeSample, next_threshold: impl Fn(Signal) -> Option<u64>) -> bool {
        let mut is_steep = false;
        for (signal, before) in SIGNALS.into_iter().zip(&mut self.before) {
            let Some(level) = node.level(signal) else {
                *before = None;
                continue;
            };
            let Some((then_ns, then)) = *before else {
                *before = Some((node.now_ns, level.available));
                continue;
            };
            let span_ns = node.now_ns.saturating_sub(then_ns);
            if span_ns < LEAST_SPAN_NS {
                continue;
            }
            *before = Some((node.now_ns, level.available));
            let Some(headroom) =
                next_threshold(signal).and_then(|amount| level.available.checked_sub(amount))
            else {
                continue;
            };
            let lost = u128::from(then.saturating_sub(level.available));
            // The headroom lasts `headroom / lost` spans.
            is_steep |= lost > 0 && u128::from(headroom) * u128::from(span_ns) <= lost * u128::from(STEEP_NS);
        }
        is_steep
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const MIB: u64 = 1 << 20;
    const MS: u64 = 1_000_000;

    struct Rig {
        fill_detector: FillDetector,
        is_woken: Arc<AtomicBool>,
    }

    fn rig() -> Rig {
        let is_woken = Arc::new(AtomicBool::new(false));
        let fill_detector = FillDetector::new(Some(FillWaker::new(thread::current(), Arc::clone(&is_woken))));
        Rig { fill_detector, is_woken }
    }

    impl Rig {
        /// Looks; whether it rang.
        fn look(&mut self, at_ms: u64, available_mib: u64) -> bool {
            let node = NodeSample::memory(at_ms * MS, available_mib * MIB, 64 << 30);
            self.fill_detector.look(&node, |signal| (signal == Signal::MemoryAvailable).then_some(100 * MIB));
            self.is_woken.swap(false, Ordering::AcqRel)
        }
    }

    #[test]
    fn a_fast_fall_rings_and_no_more_than_once_a_second() {
        let mut rig = rig();
        assert!(!rig.look(0, 1_600));
        // 100 MiB/s, with 15 s left; too close to the look before to say so.
        assert!(!rig.look(100, 1_590));
        assert!(rig.look(250, 1_575));
        assert!(!rig.look(500, 1_550) && !rig.look(1_000, 1_500));
        assert!(rig.look(1_250, 1_475));
    }

    #[test]
    fn rest_a_slow_leak_and_what_comes_back_ring_nothing() {
        let mut rig = rig();
        for (at_ms, available_mib) in
            [(0, 1_600), (1_000, 1_600), (2_000, 1_570), (3_000, 1_900), (4_000, 1_850)]
        {
            assert!(!rig.look(at_ms, available_mib), "{at_ms}");
        }
        // Below the threshold it is too late.
        rig.look(5_000, 100);
        assert!(!rig.look(6_000, 50));
    }

    #[test]
    fn process_ids_ring_too_and_without_a_threshold_nothing_does() {
        let mut rig = rig();
        let node = |at_ms: u64, left: u64| NodeSample {
            pids: Some(crate::policy::engine::Level { available: left, capacity: 32_768 }),
            ..NodeSample::memory(at_ms * MS, 1_600 * MIB, 2_048 * MIB)
        };
        let pids = |signal| (signal == Signal::PidAvailable).then_some(1_000);
        for (at_ms, left) in [(0, 30_000), (1_000, 28_000)] {
            rig.fill_detector.look(&node(at_ms, left), |_| None);
        }
        assert!(!rig.is_woken.swap(false, Ordering::AcqRel));
        rig.fill_detector.look(&node(2_000, 26_000), pids);
        assert!(rig.is_woken.swap(false, Ordering::AcqRel));
    }
}
