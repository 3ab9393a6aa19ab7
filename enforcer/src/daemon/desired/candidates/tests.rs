use std::cell::Cell;

use super::*;
use crate::{
    cgroup::Forbidden,
    model::{Freshness, Placement, Pod, SmallMap, SpecOrigin},
    policy::{self, Settings},
    sample,
    source::{Health, Snapshot, SourceName},
};

thread_local! {
    /// How many times `refuse` was called.
    static TRIED: Cell<u32> = const { Cell::new(0) };
}

fn refuse(_: &CgroupDir, _: &Arc<Guard>, plan: &PodPlan) -> Result<Candidate, OpenError> {
    TRIED.set(TRIED.get() + 1);
    Err(OpenError::Forbidden { path: plan.cgroup.path.to_string(), reason: Forbidden::HoldsDaemon })
}

#[test]
fn a_pod_that_cannot_be_opened_is_tried_after_its_pause_and_not_with_each_pass() {
    TRIED.set(0);
    let temp = tempfile::tempdir().unwrap();
    let root = CgroupDir::unchecked(temp.path()).unwrap();
    let mut pods = PodSet::new(sample::node(), Settings::default());
    let pod = Arc::new(sample::pod("p", &["a"]));
    let snapshot = Snapshot { pods: vec![pod], health: Health::Up, read_ms: Some(1) };
    assert_eq!(pods.take(SourceName::STATIC, snapshot).len(), 1);
    pods.replan();
    let path = pods.plan().pods[0].cgroup.path.clone();
    let existing = Existing { planned: [(path, CgroupId(7))].into(), ..Existing::default() };
    let opener = Opener { open: refuse, ..Opener::new(false, &[]) };
    let mut candidates = CandidateSet::new(opener, Journal::new("n", "b"));
    // Whether there was a pass, and how often the pod was tried until now. No pass hands out other candidates.
    let renew = |candidates: &mut CandidateSet, now| {
        let renewed = candidates.renew(Present { root: &root, pods: &pods, existing: &existing }, now);
        assert!(renewed.as_ref().is_none_or(|renewed| renewed.candidates.is_none()));
        (renewed.is_some(), TRIED.get())
    };
    let start = Instant::now();
    assert_eq!(renew(&mut candidates, start), (true, 1));
    assert_eq!(renew(&mut candidates, start), (false, 1), "nothing has changed");
    candidates.note_change();
    assert_eq!(renew(&mut candidates, start), (true, 1), "another pod has changed");
    let mut due = start;
    for (pause_s, tried) in [(1, 2), (2, 3), (4, 4)] {
        due += Duration::from_secs(pause_s);
        assert_eq!(candidates.due(), Some(due));
        assert_eq!(renew(&mut candidates, due), (true, tried));
    }
}

/// Of a kubelet's pod whose spec is not known yet, nothing is opened.
#[test]
fn a_pod_of_which_only_names_are_known_is_no_candidate_until_that_is_settled() {
    TRIED.set(0);
    let temp = tempfile::tempdir().unwrap();
    let root = CgroupDir::unchecked(temp.path()).unwrap();
    let mut pods = PodSet::new(sample::node(), Settings::default());
    pods.add_kubelet();
    let pod = Pod { stored_qos_class: Some(QosClass::BestEffort), ..sample::pod("p", &["a"]) };
    let uid = pod.uid.clone();
    let snapshot = Snapshot { pods: vec![Arc::new(pod)], health: Health::Up, read_ms: Some(1) };
    pods.take(SourceName::CGROUPS, snapshot);
    let path = CgroupPath::parse("/kubepods/besteffort/podp").unwrap();
    let existing = Existing { planned: [(path.clone(), CgroupId(7))].into(), ..Existing::default() };
    let opener = Opener { open: refuse, ..Opener::new(true, &[]) };
    let mut candidates = CandidateSet::new(opener, Journal::new("n", "b"));
    for (is_settled, tried) in [(false, 0), (true, 1)] {
        let knowledge = Knowledge::Names { is_settled };
        let placement =
            Placement { pod: path.clone(), containers: SmallMap::new(), unnamed: None, knowledge };
        assert!(pods.place([(uid.clone(), placement)].into()));
        pods.replan();
        candidates.note_change();
        let present = Present { root: &root, pods: &pods, existing: &existing };
        assert!(candidates.renew(present, Instant::now()).is_some());
        assert_eq!(TRIED.get(), tried);
    }
}

/// A source that falls silent must not have the files of all pods opened anew.
#[test]
fn a_candidate_stays_open_when_only_the_source_of_its_spec_falls_silent() {
    let temp = tempfile::tempdir().unwrap();
    let pod_dir = temp.path().join("kubepods/besteffort/podp");
    std::fs::create_dir_all(&pod_dir).unwrap();
    for file in ["cgroup.kill", "cgroup.procs", "cgroup.events", "memory.current", "memory.stat"] {
        std::fs::write(pod_dir.join(file), "").unwrap();
    }
    let root = CgroupDir::unchecked(temp.path()).unwrap();
    let guard = Arc::new(Guard::new(temp.path(), &[]));
    let of = |freshness| Knowledge::Spec {
        is_settled: true,
        origin: SpecOrigin { source: "kubelet", freshness },
        is_terminating: false,
    };
    let plan = |knowledge| {
        let pod = sample::pod("p", &[]);
        let mut plan = policy::plan(&sample::node(), &Settings::default(), &[pod]).pods.remove(0);
        let plan_of = Arc::make_mut(&mut plan);
        plan_of.cgroup.path = CgroupPath::parse("/kubepods/besteffort/podp").unwrap();
        plan_of.placed = Some(knowledge);
        plan
    };
    let first = plan(of(Freshness::Live));
    let unplaced = PodPlan { placed: None, ..PodPlan::clone(&first) };
    let candidate = Arc::new(Candidate::open(&root, &guard, &unplaced).unwrap());
    let mut open = OpenCandidate {
        plan: first,
        candidate,
        opened: Instant::now(),
        containers: Vec::new(),
        former: Vec::new(),
        awaited: None,
    };
    let silent = plan(of(Freshness::Stale { read_ms: 5 }));
    open.follow(&silent);
    assert!(open.plan == silent, "it is opened anew");
    assert!(!open.candidate.identity().spec.is_live());
    open.follow(&plan(of(Freshness::Live)));
    assert!(open.candidate.identity().spec.is_live());
    open.follow(&silent);
    let mut other = PodPlan::clone(&plan(of(Freshness::Live)));
    other.priority += 1;
    open.follow(&Arc::new(other));
    assert!(open.plan.priority == silent.priority, "that is another plan");
    assert!(!open.candidate.identity().spec.is_live(), "what it was opened with is older");
}

/// One planned pod, whose cgroup is of ordinary files.
struct Scene {
    temp: tempfile::TempDir,
    root: CgroupDir,
    pods: PodSet,
    existing: Existing,
    path: CgroupPath,
}

impl Scene {
    /// On a host with these controllers, and with those files in the pod's cgroup besides what each has.
    fn new(controllers: &str, files: &[(&str, &str)]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("cgroup.controllers"), controllers).unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let mut pods = PodSet::new(sample::node(), Settings::default());
        let pod = Arc::new(sample::pod("p", &[]));
        let snapshot = Snapshot { pods: vec![pod], health: Health::Up, read_ms: Some(1) };
        assert_eq!(pods.take(SourceName::STATIC, snapshot).len(), 1);
        pods.replan();
        let path = pods.plan().pods[0].cgroup.path.clone();
        std::fs::create_dir_all(temp.path().join(path.as_str().trim_start_matches('/'))).unwrap();
        let id = root.open(&path).unwrap().id();
        let existing = Existing { planned: [(path.clone(), id)].into(), ..Existing::default() };
        let scene = Self { temp, root, pods, existing, path };
        let each = [("cgroup.kill", ""), ("cgroup.procs", ""), ("cgroup.events", "populated 1\n")];
        for (file, text) in each.iter().chain(files) {
            scene.write(file, text);
        }
        scene
    }

    fn write(&self, file: &str, text: &str) {
        let dir = self.temp.path().join(self.path.as_str().trim_start_matches('/'));
        std::fs::write(dir.join(file), text).unwrap();
    }

    /// The candidates, if they are others than before.
    fn renew(&self, candidates: &mut CandidateSet, now: Instant) -> Option<Vec<Arc<Candidate>>> {
        let present = Present { root: &self.root, pods: &self.pods, existing: &self.existing };
        candidates.renew(present, now).and_then(|renewed| renewed.candidates)
    }
}

fn no_candidates() -> CandidateSet {
    CandidateSet::new(Opener::new(false, &[]), Journal::new("n", "b"))
}

/// Whoever makes a cgroup may hand the memory controller on to it later; a candidate opened before that would stay one of
/// unknown usage.
#[test]
fn a_candidate_whose_memory_is_not_counted_yet_is_looked_at_again_where_the_host_can_count_it() {
    for (controllers, pauses_s) in [("cpu memory pids\n", &[1, 2, 4][..]), ("cpu pids\n", &[])] {
        let scene = Scene::new(controllers, &[("pids.current", "3\n")]);
        let mut candidates = no_candidates();
        let renew = |candidates: &mut CandidateSet, now| scene.renew(candidates, now);
        let mut now = Instant::now();
        let first = renew(&mut candidates, now).unwrap();
        assert!(!first[0].accounted().memory && first[0].accounted().pids);
        for pause_s in pauses_s {
            now += Duration::from_secs(*pause_s);
            assert_eq!(candidates.due(), Some(now));
            assert!(renew(&mut candidates, now).is_none(), "nothing is counted that was not before");
        }
        scene.write("memory.current", "4096\n");
        scene.write("memory.stat", "anon 4096\nfile 0\nshmem 0\ninactive_file 0\n");
        let Some(due) = candidates.due() else {
            assert!(pauses_s.is_empty());
            continue;
        };
        assert!(renew(&mut candidates, due.checked_sub(Duration::from_millis(1)).unwrap()).is_none());
        let renewed = renew(&mut candidates, due).unwrap();
        assert!(renewed[0].accounted().memory);
        assert_eq!(renewed[0].usage().usage().map(|usage| usage.working_set_bytes), Some(4096));
        assert_eq!(candidates.due(), None);
    }
}

/// It is ranked no longer, and reported like one that could not be opened in the first place.
#[test]
fn a_candidate_that_holds_what_must_never_be_killed_by_now_is_none_until_that_is_gone() {
    let scene = Scene::new("", &[]);
    let mut candidates = no_candidates();
    let start = Instant::now();
    let first = scene.renew(&mut candidates, start).unwrap();
    scene.write("cgroup.procs", &format!("{}\n", std::process::id()));
    candidates.note_change();
    assert!(scene.renew(&mut candidates, start).is_none(), "nothing was found yet");
    assert!(first[0].recheck());
    candidates.note_change();
    assert!(scene.renew(&mut candidates, start).unwrap().is_empty());
    scene.write("cgroup.procs", "");
    let again = scene.renew(&mut candidates, start + Duration::from_secs(1)).unwrap();
    assert!(!again[0].is_forbidden());
}

/// What it releases is on its way: no other pod need be killed for it.
#[test]
fn a_pod_that_is_ended_by_order_or_to_make_way_counts_as_terminating_until_that_is_over() {
    let scene = Scene::new(
        "memory pids\n",
        &[
            ("pids.current", "3\n"),
            ("memory.current", "4096\n"),
            ("memory.stat", "anon 4096\nfile 0\nshmem 0\ninactive_file 0\n"),
        ],
    );
    let uid = scene.pods.plan().pods[0].uid.clone();
    let mut candidates = no_candidates();
    let is_terminating = |candidates: &mut CandidateSet| {
        candidates.note_change();
        scene.renew(candidates, Instant::now()).expect("another set")[0].facts().terminating
    };
    assert!(!is_terminating(&mut candidates));
    let ending = candidates.being_ended().begin(uid);
    assert!(is_terminating(&mut candidates));
    drop(ending);
    assert!(!is_terminating(&mut candidates));
}
