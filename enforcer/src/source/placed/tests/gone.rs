//! Containers in which a process was killed, and whose cgroups are gone before the runtime was asked for their names.
use super::*;
use crate::cri::MOST_WANTED;

fn kubelet(pods: &PlacedPods) -> Kubelet {
    Kubelet {
        kubepods: CgroupPath::parse("/kubepods").unwrap(),
        driver: CgroupDriver::Cgroupfs,
        identities: pods.identities.clone(),
    }
}

fn path(uid: &str, container: &str) -> CgroupPath {
    CgroupPath::parse(&format!("/kubepods/pod{uid}/{container}")).unwrap()
}

/// The pod and the container that a kill there is reported with.
fn owner(kubelet: &Kubelet, path: &CgroupPath) -> (String, String) {
    let level = kubelet.owner(path).unwrap().level;
    (level.pod().unwrap().to_string(), level.container().unwrap_or_default().to_owned())
}

fn owned(pod: &str, container: &str) -> (String, String) {
    (pod.to_owned(), container.to_owned())
}

/// Learns what the runtime says if it is asked now.
fn ask(pods: &mut PlacedPods, answer: &Listing, now: Instant) -> Vec<ContainerId> {
    let (asked, question) = pods.identities.question(now);
    pods.learn(answer, now);
    pods.note_names_answered(question);
    asked
}

fn web() -> Sandbox {
    sandbox('0', UID, "default", "web")
}

/// The second attempt hits its limit at once; the first one still ends.
#[test]
fn a_container_that_is_gone_has_its_name_and_attempt_and_is_none_that_lives() {
    let (mut pods, now) = named(QosClass::BestEffort, "default");
    let (kubelet, gone) = (kubelet(&pods), path(UID, &id('2')));
    let before = (settled(&pods, now + GRACE), pods.snapshot(now, 1).1, pods.identities.kept());
    assert!(before.0[0].1);
    let wanted = kubelet.identities.wanted();
    kubelet.want_name(&gone, now);
    assert!(kubelet.awaits_name(&gone) && wanted.borrow().is_some() && !pods.wants_names());
    let ended = Container { running: false, ..container('2', '0', "app", 1) };
    let answer = listing(vec![web()], vec![container('1', '0', "app", 0), ended]);
    assert_eq!(ask(&mut pods, &answer, now), [ContainerId::new(&id('2')).unwrap()]);
    assert!(!kubelet.awaits_name(&gone) && wanted.borrow().is_none());
    // It is reported a moment later, and has the name until then.
    for _ in 0..2 {
        assert_eq!(owner(&kubelet, &gone), owned("default/web", "app"));
        assert_eq!(kubelet.instance(&gone), Instance { kind: None, attempt: Some(1) });
        // What lives is as before: what is gone is neither a container that can be killed nor another one of its name.
        assert_eq!((&settled(&pods, now + GRACE), &pods.snapshot(now, 1).1), (&before.0, &before.1));
        assert_eq!(pods.attempt(&PodUid::new(UID).unwrap(), gone.as_str()), None);
        pods.learn(&listing(vec![web()], vec![container('1', '0', "app", 0)]), now);
    }
    // Not for longer.
    pods.learn(&listing(Vec::new(), Vec::new()), now + Duration::from_mins(1));
    assert_eq!(pods.identities.kept(), before.2);
}

#[test]
fn a_container_that_is_gone_has_the_kind_of_its_spec() {
    let (mut pods, now) = named(QosClass::Burstable, "default");
    specify(&mut pods, spec("web", "Running"));
    let (kubelet, gone) = (kubelet(&pods), path(UID, &id('2')));
    kubelet.want_name(&gone, now);
    ask(&mut pods, &listing(vec![web()], vec![container('2', '0', "app", 1)]), now);
    let instance = Instance { kind: Some(ContainerKind::App), attempt: Some(1) };
    assert_eq!(kubelet.instance(&gone), instance);
}

#[test]
fn a_pod_that_is_gone_as_well_has_its_name_and_is_none_of_the_pods() {
    let mut pods = PlacedPods::new(GRACE, Identities::default());
    let (kubelet, now) = (kubelet(&pods), Instant::now());
    let (of_pod, gone) = (CgroupPath::parse(&format!("/kubepods/pod{UID}")).unwrap(), path(UID, &id('1')));
    for path in [&gone, &of_pod] {
        kubelet.want_name(path, now);
        assert!(kubelet.awaits_name(path), "{path}");
    }
    assert_eq!(owner(&kubelet, &gone), owned(&format!("(unknown)/{UID}"), &id('1')));
    let ended = Sandbox { ready: false, ..web() };
    let answer = listing(vec![ended], vec![container('1', '0', "job", 0)]);
    assert_eq!(ask(&mut pods, &answer, now).len(), 1, "the pod is among the sandboxes");
    // A later listing need not have it any more.
    pods.learn(&listing(Vec::new(), Vec::new()), now);
    assert_eq!(owner(&kubelet, &gone), owned("default/web", "job"));
    assert_eq!(owner(&kubelet, &of_pod), owned("default/web", ""));
    assert!(!kubelet.awaits_name(&gone) && !kubelet.awaits_name(&of_pod));
    let (snapshot, placements) = pods.snapshot(now, 1);
    assert!(snapshot.pods.is_empty() && placements.is_empty() && pods.due(now).is_none());
}

#[test]
fn the_wait_ends_once_the_runtime_does_not_know_the_id() {
    let (mut pods, now) = named(QosClass::Burstable, "default");
    let kubelet = kubelet(&pods);
    let [first, second] = ['2', '3'].map(|digit| path(UID, &id(digit)));
    let answer = listing(vec![web()], vec![container('1', '0', "app", 0)]);
    kubelet.want_name(&first, now);
    // It was asked before, and says nothing of those that have ended.
    pods.learn(&answer, now);
    assert!(kubelet.awaits_name(&first));
    let (asked, question) = pods.identities.question(now);
    assert_eq!(asked.len(), 1);
    kubelet.want_name(&second, now);
    pods.learn(&answer, now);
    pods.note_names_answered(question);
    assert!(!kubelet.awaits_name(&first) && kubelet.awaits_name(&second));
    assert_eq!(ask(&mut pods, &answer, now), [ContainerId::new(&id('3')).unwrap()]);
    assert!(!kubelet.awaits_name(&second));
    // The next kill there waits for nothing either.
    kubelet.want_name(&first, now);
    assert!(!kubelet.awaits_name(&first) && kubelet.identities.wanted().borrow().is_none());
    assert_eq!(owner(&kubelet, &first), owned("default/web", &id('2')));
}

#[test]
fn an_answer_that_gives_the_id_to_another_pod_names_nothing() {
    let (mut pods, now) = named(QosClass::BestEffort, "default");
    let of = |uid, inode, containers: &[char]| cgroup(uid, inode, QosClass::BestEffort, containers);
    pods.take(vec![of(UID, 7, &['0', '1']), of(OTHER, 8, &['3', '4'])], now);
    let (kubelet, gone) = (kubelet(&pods), path(UID, &id('2')));
    kubelet.want_name(&gone, now);
    let sandboxes = vec![web(), sandbox('3', OTHER, "shop", "other")];
    let containers = vec![
        container('1', '0', "app", 0),
        container('4', '3', "app", 0),
        container('2', '3', "app", 7),
        // And of no pod at all.
        container('5', '9', "app", 0),
    ];
    ask(&mut pods, &listing(sandboxes, containers), now);
    assert!(!kubelet.awaits_name(&gone));
    assert_eq!(owner(&kubelet, &gone), owned("default/web", &id('2')));
    assert_eq!(kubelet.instance(&gone), Instance::default());
    let (_, placements) = pods.snapshot(now, 1);
    let paths = |uid: &str| {
        let placement = &placements[&PodUid::new(uid).unwrap()];
        assert_eq!(placement.unnamed, None);
        placement.containers.values().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(paths(UID), [path(UID, &id('1')).to_string()]);
    assert_eq!(paths(OTHER), [path(OTHER, &id('4')).to_string()]);
}

#[test]
fn what_is_killed_without_end_is_held_within_bounds() {
    let (mut pods, now) = named(QosClass::Burstable, "default");
    let (kubelet, kept) = (kubelet(&pods), pods.identities.kept());
    let number = |number: usize| format!("{number:064x}");
    let of = |at: usize| {
        let uid = format!("u-{at}");
        let sandbox = Sandbox { id: number(2 * at), pod_uid: uid.clone(), ..web() };
        let container =
            Container { id: number(2 * at + 1), sandbox_id: number(2 * at), ..container('0', '0', "app", 0) };
        (path(&uid, &number(2 * at + 1)), sandbox, container)
    };
    let mut answer = listing(vec![web()], vec![container('1', '0', "app", 0)]);
    for (gone, sandbox, container) in (1..5 * MOST_WANTED).map(of) {
        kubelet.want_name(&gone, now);
        answer.sandboxes.push(sandbox);
        answer.containers.push(container);
    }
    assert_eq!(ask(&mut pods, &answer, now).len(), MOST_WANTED);
    let later = listing(vec![web()], vec![container('1', '0', "app", 0)]);
    pods.learn(&later, now);
    // Of each its own name and its pod's.
    assert_eq!(pods.identities.kept(), kept + 2 * MOST_WANTED);
    pods.learn(&later, now + Duration::from_mins(1));
    assert_eq!((pods.identities.kept(), pods.wants_names()), (kept, false));
}

/// While the next sandbox has no name yet, the names of what was killed say nothing of it.
#[test]
fn the_name_of_a_container_that_is_gone_makes_no_container_of_the_next_sandbox() {
    let (mut pods, now) = named(QosClass::BestEffort, "default");
    kubelet(&pods).want_name(&path(UID, &id('1')), now);
    pods.take(vec![cgroup(UID, 7, QosClass::BestEffort, &['9'])], now);
    for _ in 0..2 {
        let ended = Sandbox { ready: false, ..web() };
        ask(&mut pods, &listing(vec![ended], Vec::new()), now);
        assert_eq!(settled(&pods, now + GRACE), [(String::from("default/web"), false)]);
        let (_, placements) = pods.snapshot(now + GRACE, 1);
        let placement = placements.values().next().unwrap();
        assert!(placement.containers.is_empty() && placement.unnamed.is_none());
    }
    assert_eq!(owner(&kubelet(&pods), &path(UID, &id('1'))), owned("default/web", "app"));
}
