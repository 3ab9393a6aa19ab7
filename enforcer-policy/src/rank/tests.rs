use proptest::prelude::*;
use rstest::rstest;

use super::*;

const MIB: u64 = 1 << 20;

/// Usage and request in MiB.
fn key(usage: impl Into<Option<u64>>, request: u64, priority: i32) -> MemoryRankKey {
    let usage_bytes = usage.into().map(|usage| usage * MIB);
    MemoryRankKey { usage_bytes, request_bytes: request * MIB, priority, order: 0 }
}

/// The positions in the given order, from the first to be evicted.
fn order(mut keys: Vec<MemoryRankKey>) -> Vec<u32> {
    for (index, key) in (0..).zip(&mut keys) {
        key.order = index;
    }
    by_memory(&mut keys, |key| *key);
    keys.into_iter().map(|key| key.order).collect()
}

/// `pkg/kubelet/eviction/helpers_test.go`, `TestOrderedByExceedsRequestMemory`.
#[test]
fn what_exceeds_its_request_goes_first() {
    assert_eq!(order(vec![key(199, 200, -1), key(101, 100, 1)]), [1, 0]);
}

/// `pkg/kubelet/eviction/helpers_test.go`, `TestOrderedByMemory`.
#[test]
fn within_a_priority_the_furthest_above_its_request_goes_first() {
    let pods = vec![
        key(500, 0, 0),
        key(300, 0, 0),
        key(800, 100, 0),
        key(300, 100, 0),
        key(800, 1_024, 0),
        key(200, 1_024, 0),
    ];
    assert_eq!(order(pods), [2, 0, 1, 3, 4, 5]);
}

/// `pkg/kubelet/eviction/helpers_test.go`, `TestOrderedByPriorityMemory`: this is the order, whatever the input's.
fn full() -> Vec<MemoryRankKey> {
    vec![
        key(500, 0, -1),
        key(50, 0, -1),
        key(600, 100, 1),
        key(150, 100, 1),
        key(800, 1_024, -1),
        key(200, 1_024, -1),
        key(800, 1_024, 1),
        key(200, 1_024, 1),
    ]
}

#[test]
fn the_keys_are_compared_in_turn() {
    assert_eq!(order(full()), [0, 1, 2, 3, 4, 5, 6, 7]);
    let backwards = full().into_iter().rev().collect();
    assert_eq!(order(backwards), [7, 6, 5, 4, 3, 2, 1, 0]);
}

#[rstest]
#[case(key(None, 0, 5), key(1, 0, -5), DecidedBy::StatsMissing)]
#[case(key(2, 1, 5), key(1, 1, -5), DecidedBy::ExceedsRequest)]
#[case(key(2, 1, -1), key(900, 1, 0), DecidedBy::Priority)]
#[case(key(2, 1, 0), key(900, 899, 1), DecidedBy::Priority)]
#[case(key(9, 1, 0), key(900, 893, 0), DecidedBy::AboveRequest)]
#[case(key(1, 2, 0), key(1, 3, 0), DecidedBy::AboveRequest)]
#[case(key(None, 9, 0), key(None, 1, 1), DecidedBy::Priority)]
#[case(key(None, 9, 0), key(None, 1, 0), DecidedBy::Order)]
#[case(key(5, 4, 0), key(6, 5, 0), DecidedBy::Order)]
fn the_deciding_key_is_reported(
    #[case] first: MemoryRankKey,
    #[case] mut second: MemoryRankKey,
    #[case] decided_by: DecidedBy,
) {
    second.order = 1;
    assert_eq!(first.compare(&second), (Ordering::Less, decided_by));
    assert_eq!(second.compare(&first), (Ordering::Greater, decided_by));
}

/// `pkg/kubelet/eviction/helpers_test.go`, `TestOrderedByPriorityProcesses`.
#[test]
fn tasks_are_counted_within_a_priority() {
    let expected = [(-1, Some(20)), (-1, Some(6)), (1, Some(20)), (1, Some(5))];
    let mut pods: Vec<_> = (0..)
        .zip(expected.iter().rev())
        .map(|(order, &(priority, process_count))| PidRankKey { process_count, priority, order })
        .collect();
    by_pids(&mut pods, |pod| *pod);
    assert_eq!(pods.iter().map(|pod| (pod.priority, pod.process_count)).collect::<Vec<_>>(), expected);
    let (without, with) = (PidRankKey { process_count: None, ..pods[3] }, pods[3]);
    assert_eq!(without.compare(&with), (Ordering::Less, DecidedBy::StatsMissing));
}

#[test]
fn amounts_at_the_types_ends_are_compared_right() {
    let most = MemoryRankKey { usage_bytes: Some(u64::MAX), request_bytes: 0, priority: 0, order: 1 };
    let least = MemoryRankKey { usage_bytes: Some(0), request_bytes: u64::MAX, priority: 0, order: 0 };
    assert_eq!(most.compare(&least), (Ordering::Less, DecidedBy::ExceedsRequest));
    assert_eq!(most.above_request_bytes(), Some(i64::MAX));
    assert_eq!(least.above_request_bytes(), Some(i64::MIN));
}

prop_compose! {
    /// Few values, so that ties are common.
    fn any_standing()(
        usage_bytes in proptest::option::weighted(0.8, 0_u64..6),
        request_bytes in 0_u64..6,
        priority in -1_i32..2,
    ) -> MemoryRankKey {
        MemoryRankKey { usage_bytes, request_bytes, priority, order: 0 }
    }
}

fn numbered(mut keys: Vec<MemoryRankKey>) -> Vec<MemoryRankKey> {
    for (index, key) in (0..).zip(&mut keys) {
        key.order = index;
    }
    keys
}

proptest! {
    #[test]
    fn the_order_is_total(keys in proptest::collection::vec(any_standing(), 3)) {
        let [a, b, c] = <[MemoryRankKey; 3]>::try_from(numbered(keys)).unwrap();
        prop_assert_eq!(a.compare(&a).0, Ordering::Equal);
        prop_assert_eq!(a.compare(&b).0, b.compare(&a).0.reverse());
        if a.compare(&b).0.is_lt() && b.compare(&c).0.is_lt() {
            prop_assert!(a.compare(&c).0.is_lt());
        }
    }

    #[test]
    fn the_input_order_decides_ties_only(
        (sorted, mut shuffled) in proptest::collection::vec(any_standing(), 0..40)
            .prop_map(numbered)
            .prop_flat_map(|keys| (Just(keys.clone()), Just(keys).prop_shuffle())),
    ) {
        let mut sorted = sorted;
        by_memory(&mut sorted, |key| *key);
        by_memory(&mut shuffled, |key| *key);
        prop_assert_eq!(&sorted, &shuffled);
        for pair in sorted.windows(2) {
            let (ordering, decided_by) = pair[0].compare(&pair[1]);
            prop_assert_eq!(ordering, Ordering::Less);
            prop_assert_eq!(decided_by == DecidedBy::Order, pair[0].order < pair[1].order && {
                let same = MemoryRankKey { order: pair[1].order, ..pair[0] };
                same.compare(&pair[1]).0 == Ordering::Equal
            });
        }
    }
}
