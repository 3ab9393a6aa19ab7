use rstest::rstest;

use super::*;
use crate::sample::pod;

/// `scheduling.HighestUserDefinablePriority`.
const HIGHEST_OF_USERS: i32 = 1_000_000_000;
const CLUSTER: i32 = CRITICAL_PRIORITY;
const HIGHER: i32 = CRITICAL_PRIORITY + 1_000;

const FILE: Option<(&str, &str)> = Some((CONFIG_SOURCE, "file"));
const HTTP: Option<(&str, &str)> = Some((CONFIG_SOURCE, "http"));
const API: Option<(&str, &str)> = Some((CONFIG_SOURCE, "api"));
const MIRROR: Option<(&str, &str)> = Some((CONFIG_MIRROR, "true"));

fn made(annotation: Option<(&str, &str)>, priority: Option<i32>) -> Pod {
    let annotations = annotation.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Pod { priority, annotations, ..pod("p", Vec::new()) }
}

/// `pkg/kubelet/types/pod_update_test.go`, `TestIsCriticalPod` and `TestIsCriticalPodBasedOnPriority`; with the class
/// system-node-critical, `TestIsNodeCriticalPod`.
#[rstest]
#[case::file_source(FILE, None, true)]
#[case::mirror(MIRROR, None, true)]
#[case::system_priority(None, Some(CLUSTER), true)]
#[case::greater_than_system_priority(None, Some(HIGHER), true)]
#[case::api_source(API, None, false)]
#[case::nothing(None, None, false)]
#[case::highest_of_users(None, Some(HIGHEST_OF_USERS), false)]
#[case::just_below(None, Some(CLUSTER - 1), false)]
fn who_is_critical(
    #[case] annotation: Option<(&str, &str)>,
    #[case] priority: Option<i32>,
    #[case] expected: bool,
) {
    let mut pod = made(annotation, priority);
    assert_eq!((is_critical(&pod), is_node_critical(&pod)), (expected, false));
    pod.priority_class_name = Some(String::from("system-cluster-critical"));
    assert!(!is_node_critical(&pod));
    pod.priority_class_name = Some(String::from(NODE_CRITICAL_CLASS));
    assert_eq!(is_node_critical(&pod), expected);
}

/// `pkg/kubelet/types/pod_update_test.go`, `TestIsStaticPod` and `TestIsMirrorPod`.
#[rstest]
#[case(FILE, true, false)]
#[case(HTTP, true, false)]
#[case(API, false, false)]
#[case(MIRROR, false, true)]
#[case(None, false, false)]
fn where_a_pod_comes_from(
    #[case] annotation: Option<(&str, &str)>,
    #[case] is_a_static_one: bool,
    #[case] is_a_mirror: bool,
) {
    let pod = made(annotation, None);
    assert_eq!((is_static(&pod), is_mirror(&pod)), (is_a_static_one, is_a_mirror));
}

/// `pkg/kubelet/types/pod_update_test.go`, `TestPreemptable`; the last ones are ours.
#[rstest]
#[case::critical_from_not_critical(made(FILE, None), made(None, None), true)]
#[case::higher_from_critical(made(FILE, Some(HIGHER)), made(FILE, Some(CLUSTER)), true)]
#[case::not_static_but_higher(made(API, Some(HIGHER)), made(FILE, Some(CLUSTER)), true)]
#[case::lower_from_critical(made(FILE, Some(CLUSTER)), made(FILE, Some(HIGHER)), false)]
#[case::both_without_priority(made(FILE, None), made(FILE, None), false)]
#[case::both_of_one_priority(made(FILE, Some(CLUSTER)), made(FILE, Some(CLUSTER)), false)]
#[case::none_is_not_a_priority_of_0(made(None, Some(1)), made(None, None), false)]
#[case::nor_one_above_a_negative_one(made(None, None), made(None, Some(-1)), false)]
fn who_takes_from_whom(#[case] preemptor: Pod, #[case] other: Pod, #[case] expected: bool) {
    assert_eq!(may_preempt(&preemptor, &other), expected);
}
