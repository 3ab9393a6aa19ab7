use super::*;
use crate::model::ResourceList;

fn pod(name: &str, uid: &str, priority: i32) -> Pod {
    Pod {
        name: PodName { namespace: "default".into(), name: name.into() },
        uid: PodUid::new(uid).unwrap(),
        priority: Some(priority),
        priority_class_name: None,
        tolerations: Vec::new(),
        annotations: BTreeMap::new(),
        termination_grace_period_seconds: 30,
        overhead: ResourceList::new(),
        resources: None,
        containers: Vec::new(),
        stored_qos_class: None,
    }
}

fn shared(name: &str, uid: &str, priority: i32) -> Arc<Pod> {
    Arc::new(pod(name, uid, priority))
}

fn names(roster: &Roster, state: State) -> Vec<&str> {
    roster.in_state(state).into_iter().map(|pod| pod.name.name.as_str()).collect()
}

#[test]
fn tells_what_is_new_changed_and_gone() {
    let mut roster = Roster::new();
    let changes = roster.apply(vec![pod("b", "2", 0), pod("a", "1", 0)]);
    assert_eq!(changes, [Change::Added(shared("b", "2", 0)), Change::Added(shared("a", "1", 0))]);
    assert_eq!(names(&roster, State::Active), ["b", "a"], "the order of arrival stays");
    assert_eq!(roster.apply(vec![pod("a", "1", 0), pod("b", "2", 0)]), []);
    let changes = roster.apply(vec![pod("a", "1", 7)]);
    let edited = Change::Changed { old: shared("a", "1", 0), new: shared("a", "1", 7) };
    assert_eq!(changes, [edited, Change::Removed(shared("b", "2", 0))]);
    assert_eq!(names(&roster, State::Leaving), ["b"]);
    assert_eq!(roster.apply(vec![pod("a", "1", 7)]), [], "a removal is told once");
}

#[test]
fn an_evicted_pod_stays_so_until_its_manifest_changes() {
    let mut roster = Roster::new();
    roster.apply(vec![pod("a", "1", 0)]);
    let uid = PodUid::new("1").unwrap();
    assert!(roster.evict(&uid));
    assert!(!roster.evict(&uid), "it is evicted already");
    roster.apply(vec![pod("a", "1", 0)]);
    assert_eq!(names(&roster, State::Evicted), ["a"]);
    roster.apply(vec![pod("a", "1", 5)]);
    assert_eq!(names(&roster, State::Active), ["a"]);
}

#[test]
fn an_evicted_pod_that_went_and_came_back_is_active() {
    let mut roster = Roster::new();
    roster.apply(vec![pod("a", "1", 0)]);
    let uid = PodUid::new("1").unwrap();
    roster.evict(&uid);
    assert_eq!(roster.apply(Vec::new()), [Change::Removed(shared("a", "1", 0))]);
    assert!(!roster.evict(&uid), "a leaving pod is not evicted");
    assert_eq!(roster.apply(vec![pod("a", "1", 0)]), [Change::Added(shared("a", "1", 0))]);
    assert_eq!(roster.get(&uid).unwrap().state, State::Active);
}

#[test]
fn only_a_leaving_pod_is_forgotten() {
    let mut roster = Roster::new();
    roster.apply(vec![pod("a", "1", 0)]);
    let uid = PodUid::new("1").unwrap();
    assert_eq!(roster.forget(&uid), None);
    roster.apply(Vec::new());
    assert_eq!(roster.forget(&uid), Some(shared("a", "1", 0)));
    assert_eq!(roster.get(&uid), None);
}

#[test]
fn a_name_finds_the_pod_that_stays() {
    let mut roster = Roster::new();
    roster.apply(vec![pod("a", "1", 0)]);
    roster.apply(vec![pod("a", "2", 0)]);
    let name = PodName { namespace: "default".into(), name: "a".into() };
    assert_eq!(roster.named(&name).unwrap().pod.uid.as_str(), "2");
}

#[test]
fn of_two_pods_with_one_uid_the_first_counts() {
    let mut roster = Roster::new();
    assert_eq!(roster.apply(vec![pod("a", "1", 0), pod("b", "1", 0)]), [Change::Added(shared("a", "1", 0))]);
}
