//! Pods of a kubelet from their cgroups to the plan, while what says more about them is gone, churns or lies.
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::{
    cgroup::{ContainerCgroup, PodCgroup},
    cri::{Container, Listing, Sandbox},
    daemon::desired::pod_set::PodSet,
    model::{
        CgroupId, CgroupPath, ContainerId, Freshness, Knowledge, Placement, QosClass, SmallMap, SpecOrigin,
    },
    policy::{CgroupDriver, Plan, PodPlan, Settings, name::PodPlace},
    sample,
    source::Kubelet,
    specs::ApiPod,
};

const GRACE: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_mins(1);
const LIVE: Provenance = Provenance { source: SourceName::API_SERVER, is_from_disk: false };

/// The uid of a static pod: a hash.
const STATIC: &str = "0123456789abcdef0123456789abcdef";

/// A pod as the kubelet and its runtime have it: one container, which has been started so often.
#[derive(Clone)]
struct Made {
    uid: String,
    name: String,
    inode: u64,
    attempt: u32,
    /// Whether the cgroup of the former attempt stands as well.
    has_former: bool,
}

impl Made {
    fn new(number: u64) -> Self {
        Self {
            uid: format!("6c1a4e95-6bb6-11e6-bc26-{number:012x}"),
            name: format!("web-{number}"),
            inode: 1_000 + number,
            attempt: 0,
            has_former: false,
        }
    }

    fn id(&self, what: &str, attempt: u32) -> String {
        format!("{what}{:028x}{attempt:032x}", self.inode)
    }

    fn container_id(&self, attempt: u32) -> String {
        self.id("c0c0", attempt)
    }

    fn path(&self) -> CgroupPath {
        CgroupPath::parse(&format!("/kubepods/pod{}", self.uid)).unwrap()
    }

    fn container_path(&self) -> CgroupPath {
        self.path().child(&self.container_id(self.attempt)).unwrap()
    }

    fn cgroup(&self) -> PodCgroup {
        let first = if self.has_former { self.attempt.saturating_sub(1) } else { self.attempt };
        let attempts = (first..=self.attempt).map(|attempt| self.container_id(attempt));
        let ids = attempts.chain([self.id("5a5a", 0)]);
        let containers = ids.map(|id| ContainerCgroup {
            container: ContainerId::new(&id).unwrap(),
            path: self.path().child(&id).unwrap(),
            score: None,
        });
        let uid = PodUid::new(&self.uid).unwrap();
        let place = PodPlace { uid, class: QosClass::Burstable, path: self.path() };
        PodCgroup { place, id: CgroupId(self.inode), containers: containers.collect() }
    }

    fn spec(&self, annotations: &Value) -> ApiPod {
        serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": self.name, "uid": self.uid, "annotations": annotations},
            "spec": {"priority": 7, "containers": [{"name": "app", "resources": {"requests": {"memory": "1Gi"}}}]},
            "status": {"phase": "Running", "qosClass": "Burstable"},
        }))
        .unwrap()
    }
}

/// What the runtime lists: of each pod its sandbox, and the container that runs.
fn listing(made: &[Made]) -> Listing {
    let sandbox = |pod: &Made| Sandbox {
        id: pod.id("5a5a", 0),
        pod_uid: pod.uid.clone(),
        namespace: String::from("shop"),
        name: pod.name.clone(),
        attempt: 0,
        ready: true,
        is_static: false,
    };
    let container = |pod: &Made| Container {
        id: pod.container_id(pod.attempt),
        sandbox_id: pod.id("5a5a", 0),
        name: String::from("app"),
        attempt: pod.attempt,
        running: true,
    };
    let (sandboxes, containers) = (made.iter().map(sandbox).collect(), made.iter().map(container).collect());
    Listing { runtime: String::from("fake 1"), sandboxes, containers, dropped: 0 }
}

/// A node from cgroups to the plan, as the daemon joins them.
struct Scene {
    identities: Identities,
    pods: PlacedPods,
    set: PodSet,
    now: Instant,
}

impl Scene {
    fn new() -> Self {
        let mut set = PodSet::new(sample::node(), Settings::default());
        set.add_kubelet();
        let identities = Identities::default();
        let pods = PlacedPods::new(GRACE, identities.clone());
        Self { identities, pods, set, now: Instant::now() }
    }

    /// One with these pods, named and specified, for long.
    fn of(made: &[Made]) -> Self {
        let mut scene = Self::new();
        scene.look(made);
        scene.pods.learn(&listing(made), scene.now);
        scene.specify(specs::Change::Whole(made.iter().map(|pod| pod.spec(&json!({}))).collect()));
        scene.now += MINUTE;
        let changes = scene.look(made);
        assert!(changes.len() <= made.len(), "{changes:?}");
        scene
    }

    /// Reads the cgroups, and returns what has changed.
    fn look(&mut self, made: &[Made]) -> Vec<Change> {
        self.pods.take(made.iter().map(Made::cgroup).collect(), self.now);
        self.show()
    }

    fn specify(&mut self, change: specs::Change) -> Vec<Change> {
        assert_eq!(self.pods.specify(LIVE, change, 1), []);
        self.show()
    }

    fn learn(&mut self, listing: &Listing) -> Vec<Change> {
        self.pods.learn(listing, self.now);
        self.show()
    }

    fn show(&mut self) -> Vec<Change> {
        let (snapshot, placements) = self.pods.snapshot(self.now, 1);
        self.set.place(placements);
        let changes = self.set.take(SourceName::CGROUPS, snapshot);
        self.set.replan();
        changes
    }

    fn plan(&self) -> Arc<Plan> {
        Arc::clone(self.set.plan())
    }

    /// What an id in the kernel is called.
    fn owner(&self, path: &CgroupPath) -> (String, String) {
        let kubelet = Kubelet {
            kubepods: CgroupPath::parse("/kubepods").unwrap(),
            driver: CgroupDriver::Cgroupfs,
            identities: self.identities.clone(),
        };
        let level = kubelet.owner(path).unwrap().level;
        (level.pod().unwrap().to_string(), level.container().unwrap_or_default().to_owned())
    }
}

/// Neither is there to say anything, and nothing that is known is less true for that.
#[test]
fn while_kubelet_and_runtime_are_stopped_for_minutes_no_pod_is_lost_or_decided_on_otherwise() {
    let made: Vec<Made> = (0..5).map(Made::new).collect();
    let mut scene = Scene::of(&made);
    // All that decides: not whether the specs are live.
    let planned = |scene: &Scene| -> Vec<PodPlan> {
        let origin = SpecOrigin { source: "any", freshness: Freshness::Live };
        let of = |pod: &Arc<PodPlan>| PodPlan {
            placed: pod.placed.map(|placed| placed.with_origin(origin)),
            ..PodPlan::clone(pod)
        };
        scene.plan().pods.iter().map(of).collect()
    };
    let (plan, names) = (planned(&scene), scene.identities.kept());
    assert_eq!(plan.len(), 5);
    let is_as_before = |scene: &Scene| {
        assert_eq!(planned(scene), plan);
        assert_eq!(scene.identities.kept(), names);
        for pod in &made {
            let expected = (format!("shop/{}", pod.name), String::from("app"));
            assert_eq!(scene.owner(&pod.container_path()), expected);
        }
    };
    // The cgroups are read, and both sources fail, for half an hour.
    assert!(scene.pods.note_silence());
    for _ in 0..30 {
        scene.now += MINUTE;
        assert_eq!(scene.look(&made), []);
        is_as_before(&scene);
        assert!(!scene.pods.wants_names(), "nothing is asked for in vain");
    }
    // A runtime that has just started lists nothing yet, and a kubelet has no pods yet.
    assert_eq!(scene.learn(&listing(&[])), []);
    scene.specify(specs::Change::Whole(Vec::new()));
    assert_eq!(scene.look(&made), [], "a pod is gone when its cgroup is");
    let (_, placements) = scene.pods.snapshot(scene.now, 1);
    // What no source has now may be known, and is not live: the API server is asked before anything is requested.
    let is_stale = |placement: &Placement| {
        matches!(placement.knowledge, Knowledge::Spec { is_settled: true, origin, is_terminating: false }
            if matches!(origin.freshness, Freshness::Stale { .. }))
    };
    assert!(placements.len() == 5 && placements.values().all(is_stale), "{placements:?}");
    // Both are back.
    assert_eq!(scene.learn(&listing(&made)), []);
    let back = made.iter().map(|pod| pod.spec(&json!({}))).collect();
    assert_eq!(scene.specify(specs::Change::Whole(back)), []);
    is_as_before(&scene);
    // And the kubelet goes on with its work.
    let mut after = made.clone();
    after[0].attempt = 1;
    after.pop();
    after.push(Made::new(9));
    scene.look(&after);
    scene.learn(&listing(&after));
    assert_eq!(scene.owner(&after[0].container_path()).1, "app");
    let planned: Vec<_> = scene.plan().pods.iter().map(|pod| pod.name.name.clone()).collect();
    assert!(
        !planned.contains(&String::from("web-4")) && planned.contains(&String::from("web-9")),
        "{planned:?}"
    );
}

/// A pod that comes while both are stopped is there, has no name that it might share, and is not evicted.
#[test]
fn a_pod_that_comes_while_kubelet_and_runtime_are_stopped_is_not_evicted_for_want_of_a_name() {
    let made: Vec<Made> = (0..3).map(Made::new).collect();
    let mut scene = Scene::of(&made[..2]);
    for _ in 0..10 {
        scene.now += MINUTE;
        let changes = scene.look(&made);
        assert!(!changes.iter().any(|change| matches!(change, Change::Removed(_))), "{changes:?}");
    }
    let (_, placements) = scene.pods.snapshot(scene.now, 1);
    let of_new = &placements[&PodUid::new(&made[2].uid).unwrap()];
    assert_eq!(of_new.knowledge, Knowledge::Names { is_settled: false });
    assert!(of_new.containers.is_empty());
    scene.learn(&listing(&made));
    assert_eq!(scene.owner(&made[2].container_path()), (String::from("shop/web-2"), String::from("app")));
}

/// Ten restarts a second for five minutes. The kernel has the cgroup of the former attempt still, and the runtime is
/// read less often than they come.
#[test]
fn containers_that_restart_ten_times_a_second_have_the_right_names_and_leave_nothing_behind() {
    const RESTARTS: u32 = 3_000;
    let mut made: Vec<Made> = (0..10).map(Made::new).collect();
    let mut scene = Scene::of(&made);
    let names = scene.identities.kept();
    let removed = |changes: &[Change]| changes.iter().any(|change| !matches!(change, Change::Changed { .. }));
    for restart in 1..=RESTARTS {
        scene.now += Duration::from_millis(100);
        for pod in &mut made {
            (pod.attempt, pod.has_former) = (restart, true);
        }
        let changes = scene.look(&made);
        assert!(!removed(&changes), "{changes:?}");
        // Until the runtime was asked, the new one has no name, and not another's.
        assert!(scene.pods.wants_names());
        let unnamed = made[3].container_id(restart);
        assert_eq!(scene.owner(&made[3].container_path()), (String::from("shop/web-3"), unnamed));
        // It may be evicted all the same, with both.
        let own = scene.plan().pods.iter().find(|pod| pod.name.name == "web-3").cloned().unwrap();
        let unnamed = own.unnamed.as_ref().map(|of| of.containers.as_slice()).unwrap_or_default();
        assert!(own.is_known_enough() && unnamed.contains(&made[3].container_path()), "{own:?}");
        if restart % 3 != 0 {
            continue;
        }
        assert!(!removed(&scene.learn(&listing(&made))));
        let (_, placements) = scene.pods.snapshot(scene.now, 1);
        for pod in &made {
            let placement = &placements[&PodUid::new(&pod.uid).unwrap()];
            let app = SmallMap::from([(String::from("app"), pod.container_path())]);
            assert_eq!(placement.containers, app, "{restart}");
            let former = pod.path().child(&pod.container_id(restart - 1)).unwrap();
            assert_eq!(placement.unnamed.as_ref().unwrap().containers, [former], "{restart}");
            let name = (format!("shop/{}", pod.name), String::from("app"));
            assert_eq!(scene.owner(&pod.container_path()), name, "{restart}");
        }
        // Of the attempts that have no cgroup any more nothing is kept.
        assert!(scene.identities.kept() <= names + made.len(), "{}", scene.identities.kept());
        assert_eq!((scene.set.roster().entries().len(), scene.pods.specs().len()), (10, 10));
    }
    // They run on.
    for pod in &mut made {
        pod.has_former = false;
    }
    scene.look(&made);
    scene.learn(&listing(&made));
    assert_eq!((scene.identities.kept(), scene.pods.wants_names()), (names, false));
}

/// Thousands of pods that come and go, lists that are read again, and specs that are not valid.
#[test]
fn what_is_kept_of_thousands_of_pods_that_came_and_went_does_not_grow() {
    let mut made: Vec<Made> = (0..10).map(Made::new).collect();
    let mut scene = Scene::of(&made);
    let kept = |scene: &Scene| {
        let (_, placements) = scene.pods.snapshot(scene.now, 1);
        let specs = (scene.pods.specs().len(), scene.pods.invalid_specs().len());
        let set = (scene.set.roster().entries().len(), scene.set.leaving().count(), scene.plan().pods.len());
        (scene.identities.kept(), placements.len(), specs, set)
    };
    let before = kept(&scene);
    for number in 10..2_010 {
        scene.now += Duration::from_secs(1);
        let gone = made.remove(0);
        made.push(Made::new(number));
        scene.look(&made);
        scene.learn(&listing(&made));
        let standing = made.iter().map(|pod| PodUid::new(&pod.uid).unwrap()).collect();
        let newest = made.last().unwrap();
        let mut wrong = newest.spec(&json!({}));
        wrong.spec.containers.clear();
        scene.specify(specs::Change::Some { changed: vec![wrong], removed: vec![gone.uid] });
        scene.specify(specs::Change::Some { changed: vec![newest.spec(&json!({}))], removed: Vec::new() });
        if number % 100 == 0 {
            scene.specify(specs::Change::Whole(made.iter().map(|pod| pod.spec(&json!({}))).collect()));
        }
        scene.set.stand(standing);
        // The plan of one that has left goes with the next plan.
        scene.show();
        assert_eq!(kept(&scene), before, "{number}");
    }
}

/// A tenant writes into its pod's annotations what would spare the pod, have another's cgroup killed for it, or make it
/// a static one, if it were a manifest on the node.
#[test]
fn a_tenants_annotations_adopt_no_cgroup_spare_no_pod_and_take_no_identity() {
    let [mut own, hostile, other] = [0, 1, 2].map(Made::new);
    (own.uid, own.name) = (STATIC.to_owned(), String::from("etcd-node-1"));
    let made = [own.clone(), hostile.clone(), other];
    let annotations = json!({
        "enforcer.dev/cgroup": "/system.slice/ssh.service",
        "cgroup.enforcer.dev/app": "/system.slice/containerd.service",
        "enforcer.dev/eviction-priority": "2000000000",
        "kubernetes.io/config.source": "file",
        "kubernetes.io/config.mirror": STATIC,
        "kubernetes.io/config.hash": STATIC,
    });
    for (annotations, is_hostile) in [(&json!({}), false), (&annotations, true)] {
        let mut scene = Scene::new();
        scene.look(&made);
        scene.learn(&listing(&made));
        let specs = made[1..]
            .iter()
            .map(|pod| if pod.uid == hostile.uid { pod.spec(annotations) } else { pod.spec(&json!({})) });
        scene.specify(specs::Change::Whole(specs.collect()));
        let plan = scene.plan();
        let of = |uid: &str| plan.pods.iter().find(|pod| pod.uid.as_str() == uid).unwrap();
        let pod = of(&hostile.uid);
        assert_eq!((pod.adopted, pod.critical), (false, false), "{is_hostile}");
        assert_eq!((pod.priority, pod.eviction_priority), (7, 7), "{is_hostile}");
        assert_eq!((&pod.cgroup.path, pod.name.to_string()), (&hostile.path(), String::from("shop/web-1")));
        let containers: Vec<_> = pod.containers.iter().map(|of| (of.adopted, &of.cgroup.path)).collect();
        assert_eq!(containers, [(false, &hostile.container_path())], "{is_hostile}");
        let roster = scene.set.roster();
        let entry = roster.get(&pod.uid).unwrap();
        assert!(entry.pod.adopts.is_none() && entry.pod.annotations.is_empty(), "{:?}", entry.pod);
        // Whose mirror it says to be keeps its own name, and is critical by itself.
        let mirrored = of(STATIC);
        assert_eq!((mirrored.name.to_string(), mirrored.critical), (String::from("shop/etcd-node-1"), true));
        assert_eq!((mirrored.priority, &mirrored.cgroup.path), (0, &own.path()), "{is_hostile}");
        assert!(
            plan.pods.iter().all(|pod| !pod.adopted && pod.cgroup.path.as_str().starts_with("/kubepods/"))
        );
        // Nor from what an earlier daemon kept of it.
        let kept = scene.pods.specs();
        assert!(!serde_json::to_string(&kept).unwrap().contains("system.slice"));
    }
}

/// The beginning of a source's answers.
fn answer(placing: &mut Placing, node: &str, pods: Vec<ApiPod>) {
    placing.spec_source = Some(SourceName::API_SERVER);
    placing.spec_node = Some(node.to_owned());
    assert_eq!(placing.pods.specify(LIVE, specs::Change::Whole(pods), 1), []);
}

/// With a wrong name of the node the API server answers with an empty list, and that is no error of its.
#[test]
fn an_api_server_that_knows_none_of_the_pods_is_reported_with_the_node_that_it_is_asked_for() {
    let made: Vec<Made> = (0..3).map(Made::new).collect();
    let begin = Instant::now();
    let mut placing = Placing::new(&Settings::default(), GRACE, Identities::default(), true);
    placing.pods.take(made.iter().map(Made::cgroup).collect(), begin);
    placing.pods.learn(&listing(&made), begin);
    // What an earlier daemon left does not say what the source knows.
    let kept = Provenance { source: SourceName::API_SERVER, is_from_disk: true };
    let specs = || made.iter().map(|pod| pod.spec(&json!({}))).collect();
    placing.pods.specify(kept, specs::Change::Whole(specs()), 1);
    assert_eq!(placing.find_spec_problem(begin + GRACE), None, "no source has answered");
    answer(&mut placing, "host-1", Vec::new());
    assert_eq!(placing.pods.source_knows(), SourceKnows::NoPod(SourceName::API_SERVER));
    assert_eq!(placing.find_spec_problem(begin + GRACE), None, "it may be late");
    let problem = placing.find_spec_problem(begin + 2 * GRACE).unwrap();
    assert!(
        problem.starts_with("apiServer: ") && problem.contains("the node \"host-1\": set nodeName"),
        "{problem}"
    );
    answer(&mut placing, "worker-1", vec![made[1].spec(&json!({}))]);
    assert_eq!(placing.find_spec_problem(begin + 2 * GRACE), None);
    // Its object may be deleted long before its last process has ended.
    answer(&mut placing, "worker-1", Vec::new());
    for graces in 3..6 {
        assert_eq!(placing.find_spec_problem(begin + graces * GRACE), None);
    }
}

/// Whether a source that has only these pods is said to know none, with these pods on the node.
fn is_reported(made: &[Made], left_out: u64, pods: Vec<ApiPod>) -> bool {
    let begin = Instant::now();
    let mut placing = Placing::new(&Settings::default(), GRACE, Identities::default(), true);
    placing.pods.take(made.iter().map(Made::cgroup).collect(), begin);
    placing.pods.learn(&listing(made), begin);
    answer(&mut placing, "n", pods);
    placing.left_out = left_out;
    placing.find_spec_problem(begin);
    placing.find_spec_problem(begin + GRACE).is_some_and(|problem| problem.contains("set nodeName"))
}

#[test]
fn a_source_is_not_said_to_know_no_pod_where_it_need_not_know_one_or_does() {
    let [mut own, other, mirror] = [0, 1, 2].map(Made::new);
    (own.uid, own.name) = (STATIC.to_owned(), String::from("etcd-node-1"));
    let of_own = json!({"kubernetes.io/config.mirror": STATIC, "kubernetes.io/config.hash": STATIC});
    let mirror = Made { name: own.name.clone(), ..mirror }.spec(&of_own);
    let mut wrong = other.spec(&json!({}));
    wrong.spec.containers.clear();
    let both = [own.clone(), other];
    assert!(is_reported(&both, 0, Vec::new()), "one is not static");
    assert!(!is_reported(&[own], 0, Vec::new()), "its mirror may not be made yet");
    assert!(!is_reported(&both, 0, vec![mirror]), "the mirror is on this node");
    assert!(!is_reported(&both, 0, vec![wrong]), "it is known, if not valid");
    assert!(!is_reported(&both, 1, Vec::new()), "it may be the one that is left out");
    assert!(!is_reported(&[], 0, Vec::new()));
}

/// What is wrong while no pod has a cgroup and the source has these, which it has had since before the cgroups were read.
fn problem_without_cgroups(pods: Vec<ApiPod>) -> Option<String> {
    let begin = Instant::now();
    let settings = Settings { cgroup_root: CgroupPath::parse("/machine").unwrap(), ..Settings::default() };
    let mut placing = Placing::new(&settings, GRACE, Identities::default(), true);
    answer(&mut placing, "n", pods);
    assert_eq!(placing.find_spec_problem(begin), None);
    assert_eq!(placing.find_spec_problem(begin + GRACE), None, "no cgroup was looked for yet");
    placing.pods.take(Vec::new(), begin + GRACE);
    placing.read_ms = 1;
    let begin = begin + GRACE;
    let before = begin + GRACE.saturating_sub(Duration::from_millis(1));
    assert_eq!((placing.find_spec_problem(begin), placing.find_spec_problem(before)), (None, None));
    let problem = placing.find_spec_problem(begin + GRACE);
    // One that has a cgroup says that it is over.
    let made = Made::new(0);
    answer(&mut placing, "n", vec![made.spec(&json!({}))]);
    placing.pods.take(vec![made.cgroup()], begin + GRACE);
    assert_eq!(placing.find_spec_problem(begin + GRACE), None);
    // Cgroups that cannot be read are no cgroups that are not there.
    placing.pods.take(Vec::new(), begin + GRACE);
    placing.is_degraded = true;
    for graces in 1..4 {
        assert_eq!(placing.find_spec_problem(begin + graces * GRACE), None);
    }
    problem.filter(|problem| problem.contains("no pod has a cgroup"))
}

#[test]
fn pods_that_run_by_what_a_source_says_and_have_no_cgroup_are_a_problem() {
    let with = |change: fn(&mut ApiPod)| {
        let mut pod = Made::new(0).spec(&json!({}));
        change(&mut pod);
        vec![pod]
    };
    let problem = problem_without_cgroups(with(|_| ())).unwrap();
    assert!(problem.starts_with("apiServer: pods run on this node"), "{problem}");
    for part in ["in /machine/kubepods, ", "cgroupRoot, which is /machine now", "node is not \"n\""] {
        assert!(problem.contains(part), "{part}: {problem}");
    }
    for (pods, why) in [
        (with(|pod| pod.status.phase = Some(String::from("Pending"))), "it has no container yet"),
        (with(|pod| pod.status.phase = Some(String::from("Succeeded"))), "it has ended"),
        (with(|pod| pod.metadata.is_terminating = true), "its containers may have ended"),
        (with(|pod| pod.metadata.uid = STATIC.to_owned()), "a static pod"),
        (Vec::new(), "none runs"),
    ] {
        assert_eq!(problem_without_cgroups(pods), None, "{why}");
    }
    let mirror = json!({"kubernetes.io/config.mirror": STATIC, "kubernetes.io/config.hash": STATIC});
    let mirrors = vec![Made::new(0).spec(&mirror)];
    assert_eq!(problem_without_cgroups(mirrors), None, "its pod may be yet to start");
}
