//! The promise of the ranking: it sorts in place, and allocates nothing, however many pods there are.

mod counting;

use std::sync::atomic::Ordering;

use counting::{COUNT, WATCHED};
use enforcer::policy::rank::{self, MemoryRankKey, PidRankKey};

const PODS: u32 = 10_000;

/// How often `work` allocated or freed.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.load(Ordering::Relaxed);
    WATCHED.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    work();
    WATCHED.store(0, Ordering::Relaxed);
    COUNT.load(Ordering::Relaxed) - before
}

/// Usages that make sorting hard in different ways.
fn orders() -> Vec<(&'static str, Vec<u64>)> {
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let ascending: Vec<u64> = (0..u64::from(PODS)).collect();
    let half = u64::from(PODS) / 2;
    vec![
        ("random", (0..PODS).map(|_| random()).collect()),
        ("descending", ascending.iter().rev().copied().collect()),
        ("equal", vec![7; ascending.len()]),
        ("few values", (0..PODS).map(|_| random() % 3).collect()),
        ("organ pipe", ascending.iter().map(|&n| if n < half { n } else { 2 * half - n }).collect()),
        ("sawtooth", ascending.iter().map(|&n| n % 101).collect()),
        ("ascending", ascending),
    ]
}

/// One test, so that no other thread of this process allocates meanwhile under the same watch.
#[test]
fn ranking_allocates_nothing() {
    assert!(allocations(|| drop(vec![1])) > 0, "the allocator does not count");
    for (name, usages) in orders() {
        let priority = |order: u32| i32::try_from(order % 4).unwrap_or(0);
        let mut memory: Vec<_> = (0..)
            .zip(&usages)
            .map(|(order, &usage)| MemoryRankKey {
                usage_bytes: (order % 101 != 0).then_some(usage),
                request_bytes: usage % 5_000,
                priority: priority(order),
                order,
            })
            .collect();
        let mut pids: Vec<_> = (0..)
            .zip(&usages)
            .map(|(order, &usage)| PidRankKey {
                process_count: Some(usage),
                priority: priority(order),
                order,
            })
            .collect();
        assert_eq!(allocations(|| rank::by_memory(&mut memory, |standing| *standing)), 0, "memory, {name}");
        assert_eq!(allocations(|| rank::by_pids(&mut pids, |standing| *standing)), 0, "pids, {name}");
        assert!(memory.is_sorted_by(|left, right| left.compare(right).0.is_lt()), "memory, {name}");
        assert!(pids.is_sorted_by(|left, right| left.compare(right).0.is_lt()), "pids, {name}");
    }
}
