mod gone;

use super::{identities::SANDBOX, *};
use crate::{
    cgroup::ContainerCgroup,
    cri::{Container, Sandbox},
    model::{CgroupId, CgroupPath, ContainerId, ContainerKind, Freshness, Instance, QosClass, SpecOrigin},
    policy::{CgroupDriver, critical, name::PodPlace},
    specs::ApiPod,
};

const GRACE: Duration = Duration::from_secs(10);
const LIVE: SpecOrigin = SpecOrigin { source: "kubelet", freshness: Freshness::Live };
const UID: &str = "6c1a4e95-6bb6-11e6-bc26-28d2444e470d";
const OTHER: &str = "7c1a4e95-6bb6-11e6-bc26-28d2444e470d";

fn id(digit: char) -> String {
    digit.to_string().repeat(64)
}

fn cgroup(uid: &str, inode: u64, class: QosClass, containers: &[char]) -> PodCgroup {
    let path = CgroupPath::parse(&format!("/kubepods/pod{uid}")).unwrap();
    let containers = containers.iter().map(|digit| ContainerCgroup {
        container: ContainerId::new(&id(*digit)).unwrap(),
        path: path.child(&id(*digit)).unwrap(),
        score: (class == QosClass::BestEffort).then_some(1_000),
    });
    let containers = containers.collect();
    let uid = PodUid::new(uid).unwrap();
    PodCgroup { place: PodPlace { uid, class, path }, id: CgroupId(inode), containers }
}

fn sandbox(digit: char, uid: &str, namespace: &str, name: &str) -> Sandbox {
    Sandbox {
        id: id(digit),
        pod_uid: uid.into(),
        namespace: namespace.into(),
        name: name.into(),
        attempt: 0,
        ready: true,
        is_static: false,
    }
}

fn container(digit: char, sandbox: char, name: &str, attempt: u32) -> Container {
    Container { id: id(digit), sandbox_id: id(sandbox), name: name.into(), attempt, running: true }
}

fn listing(sandboxes: Vec<Sandbox>, containers: Vec<Container>) -> Listing {
    Listing { runtime: String::from("fake 1"), sandboxes, containers, dropped: 0 }
}

/// One pod: its sandbox is 0, its container 1.
fn named(class: QosClass, namespace: &str) -> (PlacedPods, Instant) {
    let mut pods = PlacedPods::new(GRACE, Identities::default());
    let now = Instant::now();
    assert!(pods.take(vec![cgroup(UID, 7, class, &['0', '1'])], now));
    assert!(pods.wants_names());
    pods.learn(&listing(vec![sandbox('0', UID, namespace, "web")], vec![container('1', '0', "app", 0)]), now);
    assert!(!pods.wants_names());
    (pods, now)
}

fn settled(pods: &PlacedPods, now: Instant) -> Vec<(String, bool)> {
    let (snapshot, placements) = pods.snapshot(now, 1);
    let of = |pod: &Arc<Pod>| {
        let Knowledge::Names { is_settled } = placements[&pod.uid].knowledge else { panic!("a spec") };
        (pod.name.to_string(), is_settled)
    };
    snapshot.pods.iter().map(of).collect()
}

#[test]
fn a_named_pod_is_placed_without_its_sandbox_and_settles() {
    let (pods, now) = named(QosClass::BestEffort, "default");
    let (snapshot, placements) = pods.snapshot(now, 5);
    assert_eq!(snapshot.pods[0].stored_qos_class, Some(QosClass::BestEffort));
    let placement = placements.values().next().unwrap();
    assert_eq!(placement.containers.keys().collect::<Vec<_>>(), ["app"]);
    assert_eq!(settled(&pods, now), [(String::from("default/web"), false)]);
    assert_eq!(pods.due(now), Some(now + NAME_PATIENCE));
    assert_eq!(pods.due(now + NAME_PATIENCE), Some(now + GRACE));
    assert_eq!(settled(&pods, now + GRACE), [(String::from("default/web"), true)]);
    assert_eq!(pods.due(now + GRACE), None);
}

#[test]
fn a_pod_without_a_name_is_reported_late_and_never_settles() {
    let mut pods = PlacedPods::new(GRACE, Identities::default());
    let now = Instant::now();
    pods.take(vec![cgroup(UID, 7, QosClass::BestEffort, &['0'])], now);
    assert_eq!(settled(&pods, now), []);
    let unnamed = (format!("(unknown)/{UID}"), false);
    assert_eq!(settled(&pods, now + NAME_PATIENCE), std::slice::from_ref(&unnamed));
    assert_eq!(settled(&pods, now + 2 * GRACE), [unnamed]);
}

fn spec(name: &str, phase: &str) -> ApiPod {
    serde_json::from_value(serde_json::json!({
        "metadata": {"namespace": "default", "name": name, "uid": UID},
        "spec": {"priority": 7, "containers": [{"name": "app", "resources": {"requests": {"memory": "1Gi"}}}]},
        "status": {"phase": phase},
    }))
    .unwrap()
}

fn specify(pods: &mut PlacedPods, spec: ApiPod) -> (Option<Pod>, Knowledge) {
    let provenance = Provenance { source: SourceName::KUBELET, is_from_disk: false };
    pods.specify(provenance, Change::Whole(vec![spec]), 1);
    let (snapshot, placements) = pods.snapshot(Instant::now(), 1);
    let pod = snapshot.pods.first().map(|pod| pod.as_ref().clone());
    (pod, placements.into_values().next().unwrap().knowledge)
}

#[test]
fn a_pod_with_a_spec_may_be_evicted_at_once_and_has_its_requests() {
    let (mut pods, now) = named(QosClass::Burstable, "default");
    let (pod, knowledge) = specify(&mut pods, spec("web", "Running"));
    let pod = pod.unwrap();
    assert_eq!((pod.priority, pod.containers.len()), (Some(7), 1));
    assert_eq!(pod.stored_qos_class, Some(QosClass::Burstable), "the cgroup's");
    assert_eq!(knowledge, Knowledge::Spec { is_settled: true, origin: LIVE, is_terminating: false });
    // Once its containers are known.
    pods.take(vec![cgroup(UID, 7, QosClass::Burstable, &['0'])], now);
    let knowledge = pods.snapshot(now, 1).1.into_values().next().unwrap().knowledge;
    assert_eq!(knowledge, Knowledge::Spec { is_settled: false, origin: LIVE, is_terminating: false });
}

/// Its processes may ignore SIGTERM for as long as its grace period is, and take the node's memory meanwhile.
#[test]
fn a_pod_that_has_ended_is_terminating_as_long_as_its_cgroup_stands() {
    for phase in ["Failed", "Succeeded"] {
        let (mut pods, now) = named(QosClass::Burstable, "default");
        let (pod, knowledge) = specify(&mut pods, spec("web", phase));
        assert_eq!(pod.unwrap().priority, Some(7), "{phase}");
        assert_eq!(knowledge, Knowledge::Spec { is_settled: true, origin: LIVE, is_terminating: true });
        // An earlier daemon kept less of it. Its priority may be what spares it.
        let mut kept = spec("web", phase);
        kept.spec.priority = None;
        let (_, knowledge) = specify(&mut pods, kept);
        assert_eq!(knowledge, Knowledge::Spec { is_settled: false, origin: LIVE, is_terminating: true });
        // Without a cgroup it is none of the pods.
        assert!(pods.take(Vec::new(), now));
        let (snapshot, placements) = pods.snapshot(now, 1);
        assert!(snapshot.pods.is_empty() && placements.is_empty(), "{phase}");
    }
}

/// What an earlier daemon kept, and what the source no longer has, says nothing of the pod's present controller.
#[test]
fn a_spec_is_live_while_a_source_has_it() {
    let (mut pods, _) = named(QosClass::Burstable, "default");
    let is_live = |pods: &PlacedPods| {
        let Knowledge::Spec { origin, .. } =
            pods.snapshot(Instant::now(), 1).1.into_values().next().unwrap().knowledge
        else {
            panic!("no spec")
        };
        origin.freshness.is_live()
    };
    let provenance = Provenance { source: SourceName::KUBELET, is_from_disk: true };
    pods.specify(provenance, Change::Whole(vec![spec("web", "Running")]), 1);
    assert!(!is_live(&pods));
    specify(&mut pods, spec("web", "Running"));
    assert!(is_live(&pods));
    let gone = Change::Some { changed: Vec::new(), removed: vec![UID.to_owned()] };
    pods.specify(Provenance { is_from_disk: false, ..provenance }, gone, 1);
    assert!(!is_live(&pods));
}

#[test]
fn a_pod_whose_deletion_was_requested_is_terminating_also_from_the_disk() {
    let (mut pods, _) = named(QosClass::Burstable, "default");
    let mut api = spec("web", "Running");
    api.metadata.is_terminating = true;
    let (_, knowledge) = specify(&mut pods, api);
    assert_eq!(knowledge, Knowledge::Spec { is_settled: true, origin: LIVE, is_terminating: true });
    let kept = pods.specs()[0].read().unwrap();
    assert_eq!(specify(&mut pods, kept).1, knowledge);
}

#[test]
fn the_spec_of_another_pod_is_not_taken() {
    let (mut pods, _) = named(QosClass::Burstable, "default");
    let (pod, knowledge) = specify(&mut pods, spec("other", "Running"));
    assert_eq!((pod.unwrap().priority, knowledge), (None, Knowledge::Names { is_settled: false }));
}

#[test]
fn a_spec_names_a_pod_that_the_runtime_does_not() {
    let mut pods = PlacedPods::new(GRACE, Identities::default());
    pods.take(vec![cgroup(UID, 7, QosClass::Burstable, &['0'])], Instant::now());
    let (pod, knowledge) = specify(&mut pods, spec("web", "Running"));
    assert_eq!(pod.unwrap().name.to_string(), "default/web");
    assert_eq!(knowledge, Knowledge::Spec { is_settled: false, origin: LIVE, is_terminating: false });
    pods.take(Vec::new(), Instant::now());
    assert_eq!(pods.specs().len(), 1, "the source still has it");
}

/// A static pod that the runtime names `default/own-node-1`, and specs of the API server.
fn beside_static(uid: &str, is_static: bool, specs: Vec<ApiPod>) -> PlacedPods {
    let mut pods = PlacedPods::new(GRACE, Identities::default());
    let now = Instant::now();
    let cgroups =
        vec![cgroup(uid, 7, QosClass::Burstable, &['0', '1']), cgroup(OTHER, 8, QosClass::Burstable, &['2'])];
    pods.take(cgroups, now);
    let own = Sandbox { is_static, ..sandbox('0', uid, "default", "own-node-1") };
    let sandboxes = vec![own, sandbox('3', OTHER, "default", "web")];
    pods.learn(&listing(sandboxes, vec![container('1', '0', "app", 0), container('2', '3', "app", 0)]), now);
    let provenance = Provenance { source: SourceName::API_SERVER, is_from_disk: false };
    pods.specify(provenance, Change::Whole(specs), 1);
    pods
}

/// A pod of the API server that says to be the mirror of that one.
fn mirror(uid: &str, of: &str, name: &str) -> ApiPod {
    serde_json::from_value(serde_json::json!({
        "metadata": {"namespace": "default", "name": name, "uid": uid, "annotations": {
            "kubernetes.io/config.source": "file", "kubernetes.io/config.mirror": of, "kubernetes.io/config.hash": of,
        }},
        "spec": {"priority": 7, "containers": [{"name": "app"}]},
    }))
    .unwrap()
}

/// Of each pod that has a cgroup: whether it is static, its priority, and where its spec is from.
fn joined(pods: &PlacedPods) -> Vec<(String, bool, Option<i32>, bool)> {
    let (snapshot, placements) = pods.snapshot(Instant::now(), 1);
    let of = |pod: &Arc<Pod>| {
        let has_spec = matches!(placements[&pod.uid].knowledge, Knowledge::Spec { .. });
        assert_eq!(has_spec, pods.spec(&pod.uid).is_some());
        (pod.name.name.clone(), critical::is_critical(pod), pod.priority, has_spec)
    };
    snapshot.pods.iter().map(of).collect()
}

const HASH: &str = "0123456789abcdef0123456789abcdef";
const MIRROR: &str = "8c1a4e95-6bb6-11e6-bc26-28d2444e470d";

fn row(name: &str, is_static: bool, priority: Option<i32>) -> (String, bool, Option<i32>, bool) {
    (name.to_owned(), is_static, priority, priority.is_some())
}

#[test]
fn a_mirror_is_the_spec_of_the_static_pod_that_the_runtime_knows() {
    // A manifest may also give a uid like any other: then its sandbox says what it is.
    for (uid, is_static) in [(HASH, false), (UID, true)] {
        let mut pods = beside_static(uid, is_static, vec![mirror(MIRROR, uid, "own-node-1")]);
        let own = row("own-node-1", true, Some(7));
        let mut expected = vec![own, row("web", false, None)];
        expected.sort_by_key(|(name, ..)| if name == "web" { OTHER } else { uid });
        assert_eq!(joined(&pods), expected);
        let (snapshot, placements) = pods.snapshot(Instant::now(), 1);
        assert!(
            snapshot.pods.iter().all(|pod| pod.uid.as_str() != MIRROR && placements.contains_key(&pod.uid))
        );
        // The kubelet makes a mirror again that was deleted; both say to be the same pod's.
        let provenance = Provenance { source: SourceName::API_SERVER, is_from_disk: false };
        let mut again = mirror("9c1a4e95-6bb6-11e6-bc26-28d2444e470d", uid, "own-node-1");
        again.spec.priority = Some(8);
        let removed = vec![MIRROR.to_owned()];
        pods.specify(provenance, Change::Some { changed: vec![again], removed }, 1);
        assert!(joined(&pods).contains(&row("own-node-1", true, Some(8))));
    }
}

/// None of these is spared, none is another pod, and no static pod loses what it is.
#[test]
fn a_forged_mirror_gains_nothing() {
    let spared = row("own-node-1", true, None);
    let plain = row("web", false, Some(7));
    for (forged, expected) in [
        // Of itself.
        (mirror(OTHER, OTHER, "web"), [&spared, &plain]),
        // Of the static pod, while it runs itself under a name of its own.
        (mirror(OTHER, HASH, "web"), [&spared, &plain]),
        // It does so even under the same name.
        (mirror(OTHER, HASH, "own-node-1"), [&spared, &row("web", false, None)]),
        // A pod that does not run here, and says to be the mirror of one that does.
        (mirror(MIRROR, OTHER, "web"), [&spared, &row("web", false, None)]),
        // Of the static pod, under another name.
        (mirror(MIRROR, HASH, "other"), [&spared, &row("web", false, None)]),
    ] {
        let shown = format!("{forged:?}");
        let pods = beside_static(HASH, false, vec![forged]);
        assert_eq!(joined(&pods).iter().collect::<Vec<_>>(), expected, "{shown}");
    }
    // In another namespace.
    let mut elsewhere = mirror(MIRROR, HASH, "own-node-1");
    elsewhere.metadata.namespace = String::from("tenant");
    assert!(joined(&beside_static(HASH, false, vec![elsewhere])).contains(&spared));
    // A pod that is not static has no mirror, whatever its name is.
    let pods = beside_static(UID, false, vec![mirror(MIRROR, UID, "own-node-1")]);
    assert_eq!(joined(&pods)[0], row("own-node-1", false, None));
    // One that only writes where it is from.
    let mut source = mirror(OTHER, OTHER, "web");
    source.metadata.annotations.mirror = None;
    assert!(joined(&beside_static(HASH, false, vec![source])).contains(&plain));
}

/// What is on the disk of the one source is not the other's word.
#[test]
fn what_was_kept_of_the_api_server_makes_no_pod_static_either() {
    let pods =
        beside_static(HASH, false, vec![mirror(OTHER, OTHER, "web"), mirror(MIRROR, HASH, "own-node-1")]);
    let kept: Vec<_> = pods.specs().iter().filter_map(KeptPod::read).collect();
    for source in [SourceName::API_SERVER, SourceName::KUBELET] {
        let mut next = beside_static(HASH, false, Vec::new());
        next.specify(Provenance { source, is_from_disk: true }, Change::Whole(kept.clone()), 1);
        assert_eq!(joined(&next), [row("own-node-1", true, Some(7)), row("web", false, Some(7))]);
    }
}

#[test]
fn what_the_node_may_need_never_settles() {
    let (pods, now) = named(QosClass::BestEffort, "kube-system");
    assert_eq!(settled(&pods, now + GRACE), [(String::from("kube-system/web"), false)]);
}

#[test]
fn a_pod_with_the_score_of_a_critical_one_never_settles() {
    let (mut pods, now) = named(QosClass::BestEffort, "calico-system");
    let mut needed = cgroup(UID, 7, QosClass::BestEffort, &['0', '1']);
    // The sandbox's says nothing.
    needed.containers[0].score = Some(-998);
    pods.take(vec![needed.clone()], now);
    assert_eq!(settled(&pods, now + GRACE), [(String::from("calico-system/web"), true)]);
    needed.containers[1].score = Some(-997);
    pods.take(vec![needed], now);
    assert_eq!(settled(&pods, now + GRACE), [(String::from("calico-system/web"), false)]);
}

/// Otherwise a pod would be spared while one of its containers restarts, and another one be evicted.
#[test]
fn a_pod_stays_settled_while_a_container_has_no_name_or_another_ones() {
    let (mut pods, now) = named(QosClass::BestEffort, "default");
    let uid = PodUid::new(UID).unwrap();
    let path = |digit| CgroupPath::parse(&format!("/kubepods/pod{UID}/{}", id(digit))).unwrap();
    // Whether it is settled, its container with the name, and what no name leads to, with the sandbox that decides.
    let found = |pods: &PlacedPods| {
        let (_, placements) = pods.snapshot(now + GRACE, 1);
        let placement = &placements[&uid];
        let unnamed = placement.unnamed.as_ref().map(|of| (of.containers.clone(), of.sandbox.clone()));
        (settled(pods, now + GRACE)[0].1, placement.containers.get("app").cloned(), unnamed)
    };
    assert_eq!(found(&pods), (true, Some(path('1')), None));
    pods.take(vec![cgroup(UID, 7, QosClass::BestEffort, &['0', '1', '2'])], now);
    let unnamed = Some((vec![path('2')], Some(path('0'))));
    assert_eq!(found(&pods), (true, Some(path('1')), unnamed), "one without a name");
    pods.take(vec![cgroup(UID, 7, QosClass::BestEffort, &['0', '2'])], now);
    let unnamed = Some((vec![path('2')], Some(path('0'))));
    assert_eq!(found(&pods), (true, None, unnamed), "only one without a name");
    pods.take(vec![cgroup(UID, 7, QosClass::BestEffort, &['0', '1', '2'])], now);
    let sandboxes = vec![sandbox('0', UID, "default", "web")];
    let containers = vec![container('1', '0', "app", 0), container('2', '0', "app", 1)];
    pods.learn(&listing(sandboxes, containers), now);
    let unnamed = Some((vec![path('1')], None));
    assert_eq!(found(&pods), (true, Some(path('2')), unnamed), "two of one name");
    pods.take(vec![cgroup(UID, 7, QosClass::BestEffort, &['0', '2'])], now);
    assert_eq!(found(&pods), (true, Some(path('2')), None));
    pods.take(vec![cgroup(UID, 7, QosClass::BestEffort, &['0'])], now);
    assert_eq!(found(&pods), (false, None, None), "none");
}

/// What has no name may be the sandbox itself, or another pod's.
#[test]
fn a_pod_does_not_settle_while_its_sandbox_is_not_known() {
    const OTHER: &str = "7c1a4e95-6bb6-11e6-bc26-000000000002";
    let (mut pods, now) = named(QosClass::BestEffort, "default");
    let is_settled = |pods: &PlacedPods| {
        let (_, placements) = pods.snapshot(now + GRACE, 1);
        matches!(placements[&PodUid::new(OTHER).unwrap()].knowledge, Knowledge::Names { is_settled: true })
    };
    let both = |other: &[char]| {
        vec![cgroup(UID, 7, QosClass::BestEffort, &['0', '1']), cgroup(OTHER, 8, QosClass::BestEffort, other)]
    };
    pods.take(both(&['3', '4']), now);
    assert!(!is_settled(&pods), "neither has a name");
    let sandboxes = vec![sandbox('0', UID, "default", "web"), sandbox('3', OTHER, "default", "other")];
    let containers = vec![container('1', '0', "app", 0), container('4', '0', "app", 0)];
    pods.learn(&listing(sandboxes.clone(), containers), now);
    assert!(!is_settled(&pods), "one is in another pod, as the runtime says");
    pods.learn(&listing(sandboxes.clone(), vec![container('1', '0', "app", 0)]), now);
    pods.take(both(&['5']), now);
    assert!(!is_settled(&pods), "it may be the next sandbox");
    // Where no sandbox has a cgroup, none is killed.
    pods.learn(&listing(sandboxes, vec![container('1', '0', "app", 0)]), now);
    pods.take(
        vec![cgroup(UID, 7, QosClass::BestEffort, &['1']), cgroup(OTHER, 8, QosClass::BestEffort, &['5'])],
        now,
    );
    assert!(is_settled(&pods));
}

#[test]
fn the_grace_begins_with_the_name() {
    let mut pods = PlacedPods::new(GRACE, Identities::default());
    let now = Instant::now();
    pods.take(vec![cgroup(UID, 7, QosClass::BestEffort, &['0', '1'])], now);
    let late = now + 3 * GRACE;
    let sandboxes = vec![sandbox('0', UID, "default", "web")];
    pods.learn(&listing(sandboxes, vec![container('1', '0', "app", 0)]), late);
    assert_eq!(settled(&pods, late), [(String::from("default/web"), false)]);
    assert_eq!(pods.due(late), Some(late + GRACE));
    assert_eq!(settled(&pods, late + GRACE), [(String::from("default/web"), true)]);
}

#[test]
fn a_kubelets_own_pod_is_critical() {
    let mut pods = PlacedPods::new(GRACE, Identities::default());
    let hash = "0123456789abcdef0123456789abcdef";
    let now = Instant::now();
    pods.take(vec![cgroup(hash, 7, QosClass::BestEffort, &[])], now);
    pods.learn(&listing(vec![sandbox('0', hash, "default", "own")], vec![]), now);
    let (snapshot, _) = pods.snapshot(now, 1);
    assert!(critical::is_critical(&snapshot.pods[0]));
}

#[test]
fn another_cgroup_of_the_same_name_begins_anew() {
    let (mut pods, now) = named(QosClass::BestEffort, "default");
    let later = now + GRACE;
    assert!(pods.take(vec![cgroup(UID, 8, QosClass::BestEffort, &['0', '1'])], later));
    assert_eq!(settled(&pods, later), [(String::from("default/web"), false)]);
    assert!(!pods.take(vec![cgroup(UID, 8, QosClass::BestEffort, &['0', '1'])], later));
    assert!(pods.take(vec![], later));
    assert_eq!(settled(&pods, later), []);
}

#[test]
fn names_of_an_earlier_daemon_count_until_the_runtime_answers() {
    let mut pods = PlacedPods::new(GRACE, Identities::default());
    let now = Instant::now();
    let listed = listing(vec![sandbox('0', UID, "shop", "web")], vec![container('1', '0', "app", 2)]);
    pods.restore_names(&listed, now);
    pods.take(vec![cgroup(UID, 7, QosClass::BestEffort, &['0', '1'])], now);
    assert!(pods.wants_names(), "the runtime is asked all the same");
    assert_eq!(settled(&pods, now + GRACE), [(String::from("shop/web"), true)]);
    let (_, placements) = pods.snapshot(now, 1);
    assert_eq!(placements.values().next().unwrap().containers.keys().collect::<Vec<_>>(), ["app"]);
    assert!(!pods.learn(&listed, now), "nothing is new");
    assert!(!pods.wants_names());
}

#[test]
fn of_two_attempts_the_latest_is_the_container() {
    let (mut pods, now) = named(QosClass::Burstable, "default");
    pods.take(vec![cgroup(UID, 7, QosClass::Burstable, &['0', '1', '2'])], now);
    assert!(pods.wants_names());
    // The runtime has forgotten the first one already; its cgroup still stands.
    pods.learn(&listing(vec![sandbox('0', UID, "default", "web")], vec![container('2', '0', "app", 1)]), now);
    let (_, placements) = pods.snapshot(now, 1);
    let path = placements.values().next().unwrap().containers["app"].clone();
    assert_eq!(path.names().last(), Some(id('2').as_str()));
    assert!(!pods.wants_names());
}

#[test]
fn no_listing_gives_a_pod_anothers_container() {
    let mut pods = PlacedPods::new(GRACE, Identities::default());
    let now = Instant::now();
    let best_effort = QosClass::BestEffort;
    pods.take(vec![cgroup(UID, 7, best_effort, &['0', '1']), cgroup(OTHER, 8, best_effort, &['2'])], now);
    let sandboxes = vec![sandbox('0', UID, "default", "web"), sandbox('2', OTHER, "default", "other")];
    // Its cgroup is in the first pod.
    pods.learn(&listing(sandboxes, vec![container('1', '2', "app", 0)]), now);
    let (_, placements) = pods.snapshot(now, 1);
    assert!(placements.values().all(|placement| placement.containers.is_empty()));
}

#[test]
fn a_path_has_an_owner_before_the_roster_knows_it() {
    let (pods, _) = named(QosClass::BestEffort, "default");
    let kubelet = Kubelet {
        kubepods: CgroupPath::parse("/kubepods").unwrap(),
        driver: CgroupDriver::Cgroupfs,
        identities: pods.identities,
    };
    let owner = |path: &str| {
        let owner = kubelet.owner(&CgroupPath::parse(path).unwrap())?;
        let container = owner.level.container().map(str::to_owned);
        Some((owner.level.pod().map(ToString::to_string), container))
    };
    let web = Some(String::from("default/web"));
    for (path, pod, container) in [
        ("/kubepods".to_owned(), None, None),
        ("/kubepods/burstable".to_owned(), None, None),
        (format!("/kubepods/pod{UID}"), web.clone(), None),
        (format!("/kubepods/pod{UID}/{}/inner", id('1')), web.clone(), Some("app".to_owned())),
        (format!("/kubepods/pod{UID}/{}", id('0')), web.clone(), Some(SANDBOX.to_owned())),
        (format!("/kubepods/pod{UID}/{}", id('9')), web, Some(id('9'))),
        (format!("/kubepods/pod{OTHER}/x"), Some(format!("(unknown)/{OTHER}")), Some("x".to_owned())),
    ] {
        assert_eq!(owner(&path), Some((pod, container)), "{path}");
    }
    assert_eq!(owner("/system.slice/sshd.service"), None);
    let awaits = |path: &str| kubelet.awaits_name(&CgroupPath::parse(path).unwrap());
    assert!(awaits(&format!("/kubepods/pod{OTHER}")) && awaits(&format!("/kubepods/pod{UID}/{}", id('9'))));
    for path in
        ["/kubepods", "/a", &format!("/kubepods/pod{UID}"), &format!("/kubepods/pod{UID}/{}", id('1'))]
    {
        assert!(!awaits(path), "{path}");
    }
}

/// systemd in a container, crun's own, a kubelet in a pod and its pods: the cgroups of whoever runs there.
#[test]
fn what_a_container_makes_below_its_cgroup_is_that_containers() {
    let (pods, _) = named(QosClass::BestEffort, "default");
    let of = |kubepods: &str, driver| Kubelet {
        kubepods: CgroupPath::parse(kubepods).unwrap(),
        driver,
        identities: pods.identities.clone(),
    };
    let pod = format!("/kubepods/besteffort/pod{UID}");
    let slice = format!(
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{}.slice",
        UID.replace('-', "_")
    );
    let app = id('1');
    for (kubelet, path, container) in [
        (of("/kubepods", CgroupDriver::Cgroupfs), format!("{pod}/{app}/container"), "app"),
        (of("/kubepods", CgroupDriver::Cgroupfs), format!("{pod}/{app}/init.scope"), "app"),
        (
            of("/kubepods", CgroupDriver::Cgroupfs),
            format!("{pod}/{app}/kubelet/kubepods/burstable/pod{OTHER}/{}", id('9')),
            "app",
        ),
        (of("/kubepods.slice", CgroupDriver::Systemd), format!("{slice}/crio-{app}.scope/container"), "app"),
        (
            of("/kubepods.slice", CgroupDriver::Systemd),
            format!("{slice}/cri-containerd-{app}.scope/system.slice/dbus.service"),
            "app",
        ),
        // A virtual machine, whose containers have no cgroups of their own.
        (of("/kubepods", CgroupDriver::Cgroupfs), format!("{pod}/kata_{}", id('0')), "kata"),
    ] {
        let owner = kubelet.owner(&CgroupPath::parse(&path).unwrap()).unwrap();
        assert_eq!(owner.level.pod().map(ToString::to_string).as_deref(), Some("default/web"), "{path}");
        let shown = owner.level.container().unwrap_or_default();
        assert!(shown.starts_with(container), "{path}: {shown}");
    }
    // A node that is a container of this machine, as kind makes them, has pods of its own.
    let kind = format!("/system.slice/docker-{app}.scope/kubelet.slice/kubelet-kubepods.slice/x");
    assert!(of("/kubepods.slice", CgroupDriver::Systemd).owner(&CgroupPath::parse(&kind).unwrap()).is_none());
}

#[test]
fn a_container_has_the_kind_of_its_spec_and_the_attempt_of_the_runtime() {
    let (mut pods, now) = named(QosClass::Burstable, "default");
    let kubelet = Kubelet {
        kubepods: CgroupPath::parse("/kubepods").unwrap(),
        driver: CgroupDriver::Cgroupfs,
        identities: pods.identities.clone(),
    };
    let path = |digit| format!("/kubepods/pod{UID}/{}", id(digit));
    let instance = |path: &str| kubelet.instance(&CgroupPath::parse(path).unwrap());
    // Without a spec it may be any kind.
    assert_eq!(instance(&path('1')), Instance { kind: None, attempt: Some(0) });
    let api = serde_json::from_value(serde_json::json!({
        "metadata": {"namespace": "default", "name": "web", "uid": UID},
        "spec": {
            "containers": [{"name": "app"}],
            "initContainers": [{"name": "first"}, {"name": "proxy", "restartPolicy": "Always"}],
        },
    }));
    specify(&mut pods, api.unwrap());
    pods.take(vec![cgroup(UID, 7, QosClass::Burstable, &['0', '1', '2', '3', '4', '5'])], now);
    let containers = vec![
        container('1', '0', "app", 0),
        container('2', '0', "first", 0),
        container('3', '0', "proxy", 1),
        container('4', '0', "debugger", 0),
        container('5', '0', "app", 2),
    ];
    let listing = listing(vec![sandbox('0', UID, "default", "web")], containers);
    assert!(pods.learn(&listing, now));
    assert!(!pods.learn(&listing, now), "nothing is new");
    let all = ['1', '2', '3', '4', '5'].map(|digit| {
        let Instance { kind, attempt } = instance(&path(digit));
        (kind.map(ContainerKind::as_str), attempt)
    });
    let expected = [
        (Some("app"), Some(0)),
        (Some("init"), Some(0)),
        (Some("sidecar"), Some(1)),
        (Some("ephemeral"), Some(0)),
        (Some("app"), Some(2)),
    ];
    assert_eq!(all, expected);
    // What a container makes in its own cgroup is that container.
    assert_eq!(instance(&format!("{}/init.scope", path('5'))).attempt, Some(2));
    for other in [path('0'), path('9'), format!("/kubepods/pod{UID}"), "/kubepods".into(), "/a".into()] {
        assert_eq!(instance(&other), Instance::default(), "{other}");
    }
    let uid = PodUid::new(UID).unwrap();
    assert_eq!([pods.attempt(&uid, &path('5')), pods.attempt(&uid, &path('0'))], [Some(2), None]);
    // Its last records are read after it is gone.
    pods.take(Vec::new(), now);
    pods.specify(
        Provenance { source: SourceName::KUBELET, is_from_disk: false },
        Change::Whole(Vec::new()),
        1,
    );
    assert_eq!(instance(&path('3')), Instance { kind: Some(ContainerKind::Sidecar), attempt: Some(1) });
}

#[test]
fn a_container_that_the_runtime_says_is_in_another_pod_has_no_attempt() {
    let (mut pods, now) = named(QosClass::Burstable, "default");
    let elsewhere = vec![sandbox('0', UID, "default", "web"), sandbox('3', OTHER, "default", "other")];
    pods.learn(&listing(elsewhere, vec![container('1', '3', "app", 4)]), now);
    let path = format!("/kubepods/pod{UID}/{}", id('1'));
    assert_eq!(pods.attempt(&PodUid::new(UID).unwrap(), &path), None);
}

#[test]
fn the_latest_sandbox_with_a_cgroup_is_the_pods() {
    let (mut pods, now) = named(QosClass::Burstable, "default");
    let uid = PodUid::new(UID).unwrap();
    let shown = |pods: &PlacedPods| pods.sandbox(&uid).map(ToString::to_string);
    assert_eq!(shown(&pods), Some(id('0')));
    let next = Sandbox { attempt: 1, ..sandbox('2', UID, "default", "web") };
    let sandboxes = vec![sandbox('0', UID, "default", "web"), next];
    assert!(!pods.learn(&listing(sandboxes.clone(), Vec::new()), now), "it has no cgroup yet");
    assert_eq!(shown(&pods), Some(id('0')));
    pods.take(vec![cgroup(UID, 7, QosClass::Burstable, &['0', '1', '2'])], now);
    pods.learn(&listing(sandboxes, Vec::new()), now);
    assert_eq!(shown(&pods), Some(id('2')));
    pods.take(vec![cgroup(UID, 7, QosClass::Burstable, &['1'])], now);
    assert_eq!(shown(&pods), None, "its cgroup is elsewhere");
}
