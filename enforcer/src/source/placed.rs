//! The pods that another made, by their cgroups: which there are, what is known of them, and where their containers are.
//!
//! cgroupfs says which pods exist; the container runtime gives names, and another source specs. If those are away, no pod
//! is missing.

mod identities;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Health, Snapshot,
    specified::{Provenance, SpecifiedPods},
};
use crate::{
    cgroup::PodCgroup,
    cri::Listing,
    model::{Knowledge, Placement, Pod, PodUid},
    policy::critical::CONFIG_SOURCE,
    specs::{ApiPod, Change},
};

pub use self::identities::{Identities, Kubelet};

/// Pods of this namespace may be what the node needs, whatever their class. While their priority is not known, they are
/// spared.
const SYSTEM_NAMESPACE: &str = "kube-system";

/// How long a new pod waits for its name before it is reported without one.
const NAME_PATIENCE: Duration = Duration::from_secs(5);

/// The pods that another made.
#[derive(Debug)]
pub struct PlacedPods {
    /// How long a pod must be known before it may be evicted without its spec.
    grace: Duration,
    pods: BTreeMap<PodUid, PlacedPod>,
    identities: Identities,
    specs: SpecifiedPods,
}

#[derive(Debug)]
struct PlacedPod {
    cgroup: PodCgroup,
    since: Instant,
    /// Since when it has a name; `None` without one.
    named_since: Option<Instant>,
}

impl PlacedPods {
    /// No pods yet, whose names go into `identities`. A pod must be known for `grace` before it may be evicted without its
    /// spec.
    #[must_use]
    pub fn new(grace: Duration, identities: Identities) -> Self {
        Self { grace, pods: BTreeMap::new(), identities, specs: SpecifiedPods::default() }
    }

    /// Sets the grace from now on.
    pub fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    /// Takes the pods whose cgroups exist now. Returns whether that is a change.
    pub fn take(&mut self, cgroups: Vec<PodCgroup>, now: Instant) -> bool {
        let mut before = std::mem::take(&mut self.pods);
        let mut differs = false;
        for cgroup in cgroups {
            let known = before.remove(&cgroup.place.uid);
            differs |= known.as_ref().is_none_or(|known| known.cgroup != cgroup);
            // Another cgroup of the same name is another pod.
            let known = known.filter(|known| known.cgroup.id == cgroup.id);
            let (since, named_since) = known.map_or((now, None), |known| (known.since, known.named_since));
            let uid = cgroup.place.uid.clone();
            let named_since = named_since.or_else(|| self.identities.is_named(&uid).then_some(now));
            self.pods.insert(uid, PlacedPod { cgroup, since, named_since });
        }
        self.forget_old_specs();
        differs || !before.is_empty()
    }

    /// Takes what has changed about the pods' specs.
    pub fn specify(&mut self, provenance: Provenance, change: Change) {
        self.specs.take(provenance, change);
        self.forget_old_specs();
    }

    /// Which pods' specs are not valid, and why.
    #[must_use]
    pub fn invalid_specs(&self) -> impl ExactSizeIterator<Item = &str> {
        self.specs.invalid()
    }

    /// Forgets the specs of these pods, which are no longer right.
    pub fn forget_specs(&mut self, uids: &[String]) {
        self.specs.forget(uids);
    }

    fn forget_old_specs(&mut self) {
        let standing: BTreeSet<PodUid> = self.pods.keys().cloned().collect();
        self.specs.forget_all_but(&standing);
    }

    /// The specs that are known, for the disk.
    #[must_use]
    pub fn specs(&self) -> Vec<ApiPod> {
        self.specs.to_kept()
    }

    /// Who gave the pod's spec; `None` if it is not known.
    #[must_use]
    pub fn provenance(&self, uid: &PodUid) -> Option<Provenance> {
        self.specs.get(uid).map(|spec| spec.provenance)
    }

    /// Takes what a container runtime lists.
    pub fn learn(&mut self, listing: &Listing, now: Instant) {
        self.identities.learn(listing, &self.pods);
        for (uid, pod) in &mut self.pods {
            if pod.named_since.is_none() && self.identities.is_named(uid) {
                pod.named_since = Some(now);
            }
        }
    }

    /// Whether a pod or container has no name yet.
    #[must_use]
    pub fn wants_names(&self) -> bool {
        !self.identities.know_all(&self.pods)
    }

    /// When the snapshot changes although nothing was taken: a pod may be evicted from then on, or is reported without a
    /// name.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let moments = self.pods.values().flat_map(|pod| {
            let settles = pod.named_since.map(|named_since| named_since + self.grace);
            std::iter::once(pod.since + NAME_PATIENCE).chain(settles)
        });
        moments.filter(|moment| *moment > now).min()
    }

    /// Whether a pod without a spec may be evicted, if its class is BestEffort.
    fn is_settled(
        &self,
        uid: &PodUid,
        PlacedPod { cgroup, named_since, .. }: &PlacedPod,
        now: Instant,
    ) -> bool {
        let is_known_for_long =
            named_since.is_some_and(|named_since| now.saturating_duration_since(named_since) >= self.grace);
        is_known_for_long
            && self.identities.pod(uid).namespace != SYSTEM_NAMESPACE
            && self.identities.are_distinct(cgroup)
            && !self.identities.is_needed(cgroup)
    }

    /// The pods, and where they are; also where those are that still wait for a name.
    #[must_use]
    pub fn snapshot(&self, now: Instant, read_ms: u64) -> (Snapshot, BTreeMap<PodUid, Placement>) {
        let mut pods = Vec::new();
        let mut placements = BTreeMap::new();
        for (uid, pod) in &self.pods {
            let name = self.identities.is_named(uid).then(|| self.identities.pod(uid));
            // If the runtime gives it another name, the spec is another pod's.
            let spec =
                self.specs.get(uid).filter(|spec| name.as_ref().is_none_or(|name| *name == spec.pod.name));
            let knowledge = match spec {
                Some(spec) => Knowledge::Spec {
                    is_settled: !spec.has_ended() && self.identities.are_distinct(&pod.cgroup),
                },
                None => Knowledge::Names { is_settled: self.is_settled(uid, pod, now) },
            };
            let PlacedPod { cgroup, since, named_since: _ } = pod;
            let placement = Placement {
                pod: cgroup.place.path.clone(),
                containers: self.identities.containers(cgroup),
                knowledge,
            };
            placements.insert(uid.clone(), placement);
            let is_patient = now.saturating_duration_since(*since) < NAME_PATIENCE;
            if name.is_none() && spec.is_none() && is_patient {
                continue;
            }
            let mut pod = match spec {
                Some(spec) => spec.pod.as_ref().clone(),
                None => Pod::new(self.identities.pod(uid), uid.clone(), Vec::new()),
            };
            // The class that the kubelet has given it.
            pod.stored_qos_class = Some(cgroup.place.class);
            // A manifest may have a uid of its own: then the spec says that it is one.
            if is_static(uid) {
                pod.annotations.insert(CONFIG_SOURCE.to_owned(), String::from("file"));
            }
            pods.push(Arc::new(pod));
        }
        (Snapshot { pods, health: Health::Up, read_ms: Some(read_ms) }, placements)
    }
}

/// Whether the pod comes from a manifest of the kubelet's own: its uid is a hash of that, without hyphens, and the API
/// server gives no such uid (`applyDefaults` in `pkg/kubelet/config/common.go`).
fn is_static(uid: &PodUid) -> bool {
    !uid.as_str().contains('-')
}

#[cfg(test)]
mod tests {
    use super::{identities::SANDBOX, *};
    use crate::{
        cgroup::ContainerCgroup,
        cri::{Container, Sandbox},
        model::{CgroupId, CgroupPath, ContainerId, QosClass},
        policy::{CgroupDriver, critical, name::PodPlace},
    };

    const GRACE: Duration = Duration::from_secs(10);
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
        pods.learn(
            &listing(vec![sandbox('0', UID, namespace, "web")], vec![container('1', '0', "app", 0)]),
            now,
        );
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
        let provenance = Provenance { source: crate::source::SourceName::KUBELET, is_from_disk: false };
        pods.specify(provenance, Change::Whole(vec![spec]));
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
        assert_eq!(knowledge, Knowledge::Spec { is_settled: true });
        // One that has ended is not.
        assert_eq!(specify(&mut pods, spec("web", "Failed")).1, Knowledge::Spec { is_settled: false });
        // Nor is one of which a container has no name.
        specify(&mut pods, spec("web", "Running"));
        pods.take(vec![cgroup(UID, 7, QosClass::Burstable, &['0', '1', '2'])], now);
        let knowledge = pods.snapshot(now, 1).1.into_values().next().unwrap().knowledge;
        assert_eq!(knowledge, Knowledge::Spec { is_settled: false });
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
        assert_eq!(knowledge, Knowledge::Spec { is_settled: false });
        pods.take(Vec::new(), Instant::now());
        assert_eq!(pods.specs().len(), 1, "the source still has it");
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

    /// One that takes the memory could be missed.
    #[test]
    fn a_pod_whose_containers_have_no_distinct_names_does_not_settle() {
        let (mut pods, now) = named(QosClass::BestEffort, "default");
        let is_settled = |pods: &PlacedPods| settled(pods, now + GRACE)[0].1;
        assert!(is_settled(&pods));
        pods.take(vec![cgroup(UID, 7, QosClass::BestEffort, &['0', '1', '2'])], now);
        assert!(!is_settled(&pods), "one without a name");
        let sandboxes = vec![sandbox('0', UID, "default", "web")];
        let containers = vec![container('1', '0', "app", 0), container('2', '0', "app", 1)];
        pods.learn(&listing(sandboxes, containers), now);
        assert!(!is_settled(&pods), "two of one name");
        pods.take(vec![cgroup(UID, 7, QosClass::BestEffort, &['0', '2'])], now);
        assert!(is_settled(&pods));
        pods.take(vec![cgroup(UID, 7, QosClass::BestEffort, &['0'])], now);
        assert!(!is_settled(&pods), "none");
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
    fn of_two_attempts_the_latest_is_the_container() {
        let (mut pods, now) = named(QosClass::Burstable, "default");
        pods.take(vec![cgroup(UID, 7, QosClass::Burstable, &['0', '1', '2'])], now);
        assert!(pods.wants_names());
        // The runtime has forgotten the first one already; its cgroup still stands.
        pods.learn(
            &listing(vec![sandbox('0', UID, "default", "web")], vec![container('2', '0', "app", 1)]),
            now,
        );
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
        assert!(
            awaits(&format!("/kubepods/pod{OTHER}")) && awaits(&format!("/kubepods/pod{UID}/{}", id('9')))
        );
        for path in
            ["/kubepods", "/a", &format!("/kubepods/pod{UID}"), &format!("/kubepods/pod{UID}/{}", id('1'))]
        {
            assert!(!awaits(path), "{path}");
        }
    }
}
