use super::*;
use crate::model::{OwnerLevel, PodName};

#[derive(Default)]
struct World {
    owners: HashMap<CgroupId, Owner>,
    stalled_ns: HashMap<CgroupId, ByKind>,
}

impl World {
    fn with(containers: &[(u64, &str, &str)]) -> Self {
        let mut world = Self::default();
        for (id, pod, container) in containers {
            let level = OwnerLevel::Container {
                pod: PodName { namespace: "default".into(), name: (*pod).into() }.into(),
                uid: PodUid::new(pod).unwrap(),
                container: (*container).into(),
            };
            let path = CgroupPath::parse(&format!("/kubepods/pod{pod}/{container}")).unwrap();
            world.owners.insert(CgroupId(*id), Owner { path, level });
        }
        world
    }
}

impl StallWorld for World {
    fn owner(&mut self, cgroup: CgroupId) -> Option<Owner> {
        self.owners.get(&cgroup).cloned()
    }

    fn path(&mut self, cgroup: CgroupId) -> Option<CgroupPath> {
        let owner = self.owners.get(&cgroup).map(|owner| owner.path.clone());
        owner.or_else(|| CgroupPath::parse(&format!("/system.slice/{}", cgroup.0)).ok())
    }

    fn stalled_ns(&mut self, cgroup: CgroupId) -> ByKind {
        self.stalled_ns.get(&cgroup).copied().unwrap_or_default()
    }
}

const SECOND: u64 = 1_000_000_000;

fn stall(cgroup: u64, limit: Option<u64>, kind: StallKind) -> MuchStall {
    MuchStall {
        time_ns: 1,
        cgroup: CgroupId(cgroup),
        limit: limit.map(CgroupId),
        kind,
        stall_ns: 60_000_000,
        window_ns: 120_000_000,
        tid: 8,
        pid: 7,
        comm: "java".into(),
    }
}

fn rising(event: Option<PressureEvent>) -> Stalling {
    match event {
        Some(PressureEvent::Rising(rising)) => rising,
        other => panic!("{other:?}"),
    }
}

fn ended(events: Vec<PressureEvent>) -> Vec<StallsOver> {
    let cleared = |event| match event {
        PressureEvent::Cleared(cleared) => cleared,
        PressureEvent::Rising(rising) => panic!("{rising:?}"),
    };
    events.into_iter().map(cleared).collect()
}

#[test]
fn a_pod_is_reported_once_and_again_only_as_a_reminder() {
    let mut world = World::with(&[(1, "web", "app"), (2, "web", "side")]);
    let mut pressures = Pressures::default();
    let first = rising(pressures.stalled(0, &stall(1, Some(1), StallKind::MemcgReclaim), &mut world));
    assert_eq!((first.place.pod.as_deref(), first.place.container.as_deref()), (Some("web"), Some("app")));
    assert_eq!((first.stall_ms, first.window_stall_ms, first.lasting_ms), (60, 120, 0));
    for second in 1..60 {
        let container = 1 + second % 2;
        let reported =
            pressures.stalled(second * SECOND, &stall(container, None, StallKind::MemcgReclaim), &mut world);
        assert_eq!(reported, None, "second {second}");
    }
    let again = rising(pressures.stalled(REMIND_NS, &stall(2, None, StallKind::MemcgReclaim), &mut world));
    assert_eq!((again.place.container.as_deref(), again.lasting_ms), (Some("side"), 60_000));
    assert_eq!(
        pressures.stalled(REMIND_NS + SECOND, &stall(2, None, StallKind::MemcgReclaim), &mut world),
        None
    );
}

#[test]
fn it_is_over_when_it_has_been_quiet_and_says_what_it_came_to() {
    let mut world = World::with(&[(1, "web", "app")]);
    let mut pressures = Pressures::default();
    assert_eq!(pressures.due_ns(), None);
    let of = |memcg, high| [0, memcg, high, 0];
    world.stalled_ns.insert(CgroupId(1), of(620_000_000, 30_000_000));
    pressures.stalled(SECOND, &stall(1, Some(1), StallKind::MemcgReclaim), &mut world);
    pressures.stalled(3 * SECOND, &stall(1, Some(1), StallKind::MemcgReclaim), &mut world);
    world.stalled_ns.insert(CgroupId(1), of(900_000_000, 40_000_000));
    assert_eq!(pressures.due_ns(), Some(13 * SECOND));
    assert_eq!(pressures.quiet(13 * SECOND - 1, &mut world), []);
    let [cleared] = &ended(pressures.quiet(13 * SECOND, &mut world))[..] else { panic!("not one") };
    assert_eq!((cleared.lasted_ms, cleared.records, cleared.longest_stall_ms), (2_000, 2, 60));
    // 500 ms were there before the 120 ms that the first record reports.
    assert_eq!(cleared.stalled_ms, BTreeMap::from([("memcgReclaim".into(), 400), ("memoryHigh".into(), 10)]));
    assert_eq!(pressures.due_ns(), None);
    rising(pressures.stalled(14 * SECOND, &stall(1, Some(1), StallKind::MemcgReclaim), &mut world));
}

#[test]
fn whose_limit_it_was_says_how_it_is_known() {
    let mut world = World::with(&[(1, "web", "app")]);
    let mut reported = |limit, kind| {
        let reported = rising(Pressures::default().stalled(0, &stall(1, limit, kind), &mut world));
        (reported.limit_owner.unwrap(), reported.limit_source)
    };
    let pod = "/system.slice/9".to_owned();
    let own = "/kubepods/podweb/app".to_owned();
    assert_eq!(reported(Some(9), StallKind::MemcgReclaim), (pod.clone(), "argument".into()));
    assert_eq!(reported(None, StallKind::MemcgReclaim), (own.clone(), "taskCgroup".into()));
    assert_eq!(reported(None, StallKind::MemoryHigh), (own, "taskCgroup".into()));
    assert_eq!(reported(None, StallKind::DirectReclaim), ("/".to_owned(), "machine".into()));
    assert_eq!(reported(Some(9), StallKind::Throttled), (pod, "argument".into()));
}

#[test]
fn what_is_no_pods_is_reported_by_cgroup_and_about_the_node() {
    let mut world = World::default();
    let mut pressures = Pressures::default();
    for cgroup in [5, 6] {
        let reported = pressures.stalled(0, &stall(cgroup, None, StallKind::DirectReclaim), &mut world);
        assert_eq!(reported.as_ref().unwrap().subject(), Subject::Node);
        assert_eq!(rising(reported).place.cgroup, Some(format!("/system.slice/{cgroup}")));
    }
    assert_eq!(pressures.quiet(QUIET_NS, &mut world).len(), 2);
}

#[test]
fn no_more_are_reported_than_there_is_room_for() {
    let mut world = World::default();
    let mut pressures = Pressures::default();
    for cgroup in 0..u64::try_from(MAX_TOLD).unwrap() {
        rising(pressures.stalled(0, &stall(cgroup, None, StallKind::MemcgReclaim), &mut world));
    }
    assert_eq!(pressures.stalled(0, &stall(u64::MAX, None, StallKind::MemcgReclaim), &mut world), None);
    assert_eq!(pressures.unreported(), 1);
}

#[test]
fn the_event_is_what_is_documented() {
    let mut world = World::with(&[(1, "web", "app")]);
    let reported =
        rising(Pressures::default().stalled(0, &stall(1, Some(1), StallKind::MemcgReclaim), &mut world));
    let expected = serde_json::json!({
        "namespace": "default", "pod": "web", "uid": "web", "container": "app",
        "cgroup": "/kubepods/podweb/app", "cgroupId": 1, "kind": "memcgReclaim", "stallMs": 60,
        "windowStallMs": 120, "limitOwner": "/kubepods/podweb/app", "limitSource": "argument",
        "pid": 7, "tid": 8, "comm": "java", "lastingMs": 0,
    });
    assert_eq!(serde_json::to_value(reported).unwrap(), expected);
}

/// The container runtime may name a container after its first stall.
#[test]
fn an_event_takes_the_names_that_are_known_by_now_and_keeps_them_when_the_cgroup_is_gone() {
    let mut pressures = Pressures::default();
    let mut world = World::with(&[(1, "unnamed", "c0ffee")]);
    let reported = pressures.stalled(0, &stall(1, None, StallKind::MemcgReclaim), &mut world);
    let mut cleared = pressures.quiet(QUIET_NS, &mut world);
    let mut named = World::with(&[(1, "web", "app")]);
    let subject = |name: &str| Subject::Pod(PodName { namespace: "default".into(), name: name.into() });
    for mut event in [reported.unwrap(), cleared.remove(0)] {
        assert_eq!((event.cgroup(), event.subject()), (CgroupId(1), subject("unnamed")));
        event.name_again(&mut named);
        assert_eq!(event.subject(), subject("web"));
        event.name_again(&mut World::default());
        assert_eq!(event.subject(), subject("web"), "it is gone");
    }
}
