use rstest::rstest;

use super::*;
use crate::sample::{app, pod};

/// The pods of `pkg/kubelet/preemption/preemption_test.go`: B and U request 100m and 100Mi, the higher ones three
/// times that.
fn standing(name: &str) -> RequestedBack {
    let small: &[_] = &[("cpu", "100m"), ("memory", "100Mi")];
    let large: &[_] = &[("cpu", "300m"), ("memory", "300Mi")];
    let (requests, limits): (&[_], &[_]) = match name {
        "bestEffort" => (&[], &[]),
        "burstable" => (small, &[]),
        "highRequestBurstable" => (large, &[]),
        "guaranteed" => (small, small),
        "highRequestGuaranteed" => (large, large),
        other => panic!("{other}?"),
    };
    RequestedBack::of(&pod(name, vec![app("c", requests, limits)]))
}

fn requirements(amounts: &[(&str, u128)]) -> Requirements {
    Requirements::new(
        amounts.iter().map(|&(name, quantity)| Requirement { resource: ResourceName::new(name), quantity }),
    )
}

const MI: u128 = 1 << 20;
const ALL: [&str; 5] =
    ["bestEffort", "burstable", "highRequestBurstable", "guaranteed", "highRequestGuaranteed"];

/// `TestGetPodsToPreempt`, where the candidates are all that may be preempted.
#[rstest]
#[case::no_requirements(&[], &[], Some(&[][..]))]
#[case::no_pods(&[], &[("pods", 1)], None)]
#[case::equal(&["burstable"], &[("cpu", 100), ("memory", 100 * MI), ("pods", 1)], Some(&["burstable"][..]))]
#[case::higher_than_requests(&["burstable"], &[("cpu", 200), ("memory", 200 * MI), ("pods", 2)], None)]
#[case::best_effort_before_burstable(&["burstable", "bestEffort"], &[("pods", 1)], Some(&["bestEffort"][..]))]
#[case::burstable_before_guaranteed(&["burstable", "guaranteed"], &[("pods", 1)], Some(&["burstable"][..]))]
#[case::the_lower_if_it_suffices(
    &["bestEffort", "highRequestBurstable", "burstable"], &[("cpu", 100), ("memory", 100 * MI)], Some(&["burstable"][..]))]
#[case::the_higher_if_it_does_not(
    &["bestEffort", "burstable", "highRequestBurstable"], &[("cpu", 150), ("memory", 150 * MI)],
    Some(&["highRequestBurstable"][..]))]
#[case::several(&ALL, &[("cpu", 350), ("memory", 350 * MI)], Some(&["highRequestBurstable", "burstable"][..]))]
#[case::guaranteed_when_it_must(&ALL, &[("memory", 550 * MI)], Some(&["highRequestBurstable", "highRequestGuaranteed"][..]))]
fn the_kubelets_victims_are_chosen(
    #[case] candidates: &[&str],
    #[case] lacking: &[(&str, u128)],
    #[case] expected: Option<&[&str]>,
) {
    let pods: Vec<_> = candidates.iter().map(|name| standing(name)).collect();
    let chosen = victims(&pods.iter().collect::<Vec<_>>(), &requirements(lacking));
    let names = chosen.as_ref().ok().map(|places| places.iter().map(|&place| candidates[place]).collect());
    assert_eq!(names, expected.map(<[_]>::to_vec), "{chosen:?}");
}

/// `TestAdmissionRequirementsDistance`; the last one is ours.
#[rstest]
#[case::no_requirements(&[], "burstable", 0.0)]
#[case::no_requests(&[("cpu", 100), ("memory", 100 * MI), ("pods", 1)], "bestEffort", 2.0)]
#[case::equal(&[("cpu", 100), ("memory", 100 * MI), ("pods", 1)], "burstable", 0.0)]
#[case::higher_requests(&[("cpu", 50), ("memory", 50 * MI)], "burstable", 0.0)]
#[case::half(&[("cpu", 200), ("memory", 100 * MI)], "burstable", 0.25)]
fn a_pod_is_that_far_away(#[case] lacking: &[(&str, u128)], #[case] name: &str, #[case] expected: f64) {
    assert!(requirements(lacking).distance(&standing(name)).total_cmp(&expected).is_eq());
}

/// `TestAdmissionRequirementsSubtract`.
#[rstest]
#[case::from_nothing(&[], "burstable", &[])]
#[case::no_requests(&[("cpu", 100), ("memory", 100 * MI), ("pods", 1)], "bestEffort", &[("cpu", 100), ("memory", 100 * MI)])]
#[case::equal(&[("cpu", 100), ("memory", 100 * MI), ("pods", 1)], "burstable", &[])]
#[case::higher(&[("cpu", 50), ("memory", 50 * MI)], "burstable", &[])]
#[case::lower(&[("cpu", 200), ("memory", 200 * MI), ("pods", 1)], "burstable", &[("cpu", 100), ("memory", 100 * MI)])]
fn what_a_pod_gives_is_taken_off(
    #[case] lacking: &[(&str, u128)],
    #[case] name: &str,
    #[case] left: &[(&str, u128)],
) {
    let pod = standing(name);
    assert_eq!(requirements(lacking).without(std::iter::once(&pod)), requirements(left));
}

/// `TestSmallerResourceRequest`.
#[rstest]
#[case::some_and_none(&[("memory", "100Mi"), ("cpu", "100m")], &[], false)]
#[case::lower_memory(&[("memory", "100Mi"), ("cpu", "100m")], &[("memory", "200Mi"), ("cpu", "100m")], true)]
#[case::memory_before_cpu(&[("memory", "200Mi"), ("cpu", "100m")], &[("memory", "100Mi"), ("cpu", "200m")], false)]
#[case::equal(&[("memory", "100Mi"), ("cpu", "100m")], &[("memory", "100Mi"), ("cpu", "100m")], true)]
#[case::others_do_not_count(&[("ephemeral-storage", "300Mi")], &[("ephemeral-storage", "200Mi")], true)]
#[case::then_cpu(&[("memory", "100Mi"), ("cpu", "200m")], &[("memory", "100Mi"), ("cpu", "100m")], false)]
fn requests_are_compared_by_memory_then_cpu(
    #[case] one: &[(&str, &str)],
    #[case] other: &[(&str, &str)],
    #[case] expected: bool,
) {
    let of = |requests| RequestedBack::of(&pod("p", vec![app("c", requests, &[])]));
    assert_eq!(of(one).requests_no_more_than(&of(other)), expected);
}

/// The loop of `getPodsToPreemptByDistance` replaces the best pod by a later one that is as near and no larger, and
/// puts the last pod into the place of the one taken.
#[test]
fn of_equal_pods_the_last_goes_first_and_then_the_one_that_was_moved() {
    let pods: Vec<_> = (0..4).map(|_| standing("burstable")).collect();
    let pods: Vec<_> = pods.iter().collect();
    let chosen = |lacking| victims(&pods, &requirements(&[("cpu", lacking)])).unwrap();
    assert_eq!(chosen(100), [3]);
    assert_eq!(chosen(400), [3, 2, 1, 0]);
    // The nearest is in front: the last pod takes its place, and so is no longer the last of the equal ones.
    let (small, large) = (standing("burstable"), standing("highRequestBurstable"));
    assert_eq!(
        victims(&[&large, &small, &small, &small], &requirements(&[("cpu", 500)])).unwrap(),
        [0, 2, 1]
    );
}

#[test]
fn what_is_lacking_is_reported_in_the_kubelets_words() {
    let pod = standing("burstable");
    let error =
        victims(&[&pod], &requirements(&[("pods", 3), ("cpu", 50), ("memory", 101 * MI)])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: \
         [(res: pods, q: 2), (res: memory, q: 1048576), ]"
    );
}
