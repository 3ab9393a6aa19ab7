use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::{
    model::CgroupId,
    sample::{value, values},
};

const PAGE: u64 = 4096;

fn page() -> PageSize {
    PageSize::new(PAGE)
}

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(text).unwrap()
}

fn plan(at: &str, files: &[(&'static str, &str)]) -> CgroupPlan {
    CgroupPlan { path: path(at), values: values(files).into() }
}

fn cgroup(id: u64, files: &[(&'static str, &str)]) -> Observed {
    Observed {
        id: CgroupId(id),
        available: Controller::ALL.into_iter().collect(),
        enabled: Controller::ALL.into_iter().collect(),
        files: values(files).iter().map(|value| (value.file(), Held::Value(value))).collect(),
        mark: None,
        usage_bytes: None,
    }
}

fn snapshot(cgroups: &[(&str, Observed)]) -> Snapshot {
    Snapshot { cgroups: cgroups.iter().map(|(at, observed)| (path(at), observed.clone())).collect() }
}

fn run(plans: &[CgroupPlan], observed: &Snapshot, ledger: &Ledger) -> Diff {
    diff(&plans.iter().collect::<Vec<_>>(), &BTreeSet::new(), observed, ledger, page())
}

fn written(diff: &Diff) -> Vec<String> {
    diff.steps
        .iter()
        .map(|step| match step {
            Step::Create(path) => format!("create {path}"),
            Step::Enable { path, controllers } => {
                let names: Vec<&str> = controllers.iter().map(|controller| controller.name()).collect();
                format!("enable {path} {}", names.join(" "))
            }
            Step::Write(write) => format!("{}/{}={}", write.path, write.file(), write.value),
            Step::Move { from, to } => format!("move {from} {to}"),
        })
        .collect()
}

#[test]
fn a_new_tree_is_made_enabled_and_then_limited() {
    let plans = [
        plan("/kubepods/podx/app", &[("memory.max", "4096"), ("memory.oom.group", "1")]),
        plan("/kubepods/podx", &[("memory.max", "8192"), ("cpu.weight", "100")]),
        plan("/kubepods", &[("cpu.weight", "157"), ("memory.max", "max")]),
    ];
    let mut root = cgroup(1, &[]);
    root.enabled = BTreeSet::from([Controller::Cpu]);
    root.available = BTreeSet::from([Controller::Cpu, Controller::Memory]);
    let diff = run(&plans, &snapshot(&[("/", root)]), &Ledger::default());
    assert_eq!(
        written(&diff),
        [
            "enable / memory",
            "create /kubepods",
            "enable /kubepods cpu memory",
            "create /kubepods/podx",
            "enable /kubepods/podx cpu memory",
            "create /kubepods/podx/app",
            "/kubepods/cpu.weight=157",
            "/kubepods/podx/app/memory.oom.group=1",
            "/kubepods/podx/app/memory.max=4096",
            "/kubepods/podx/memory.max=8192",
        ]
    );
}

#[test]
fn what_is_as_planned_is_left_alone() {
    let plans =
        [plan("/k", &[("memory.max", "8191"), ("cpu.max", "20000 100000"), ("memory.oom.group", "1")])];
    let held = [("memory.max", "4096"), ("cpu.max", "20000 100000"), ("memory.oom.group", "1")];
    let observed = snapshot(&[("/", cgroup(1, &[])), ("/k", cgroup(2, &held))]);
    assert_eq!(run(&plans, &observed, &Ledger::default()), Diff::default());
}

#[rstest]
#[case::never_written(None, "1000", Reason::Initial)]
#[case::plan_changed(Some("500"), "500", Reason::PlanChanged)]
#[case::drifted(Some("2000"), "500", Reason::Drifted)]
#[case::both(Some("700"), "500", Reason::PlanChanged)]
fn a_write_reports_its_reason(#[case] last: Option<&str>, #[case] held: &str, #[case] reason: Reason) {
    let plans = [plan("/k", &[("pids.max", "2000")])];
    let observed = snapshot(&[("/", cgroup(1, &[])), ("/k", cgroup(2, &[("pids.max", held)]))]);
    let mut ledger = Ledger::default();
    if let Some(last) = last {
        ledger.note(CgroupId(2), value("pids.max", last));
    }
    let steps = run(&plans, &observed, &ledger).steps;
    let old = Some(Held::Value(value("pids.max", held)));
    let write = Write { path: path("/k"), value: value("pids.max", "2000"), old, reason };
    assert_eq!(steps, [Step::Write(write)]);
}

#[test]
fn a_file_that_the_plan_drops_goes_back_to_the_kernels_default() {
    let plans = [plan("/k", &[])];
    let observed = snapshot(&[("/", cgroup(1, &[])), ("/k", cgroup(2, &[("memory.high", "4096")]))]);
    let mut ledger = Ledger::default();
    ledger.note(CgroupId(2), value("memory.high", "4096"));
    let diff = run(&plans, &observed, &ledger);
    assert_eq!(written(&diff), ["/k/memory.high=max"]);
    let Some(Step::Write(write)) = diff.steps.first() else { panic!("no write") };
    assert_eq!(write.reason, Reason::Released);
    ledger.note_write(CgroupId(2), write);
    assert_eq!(ledger.files(CgroupId(2)).count(), 0);
    assert_eq!(
        run(&plans, &observed, &Ledger::default()),
        Diff::default(),
        "what was never written is not ours"
    );
}

#[test]
fn memory_max_below_usage_is_withheld() {
    let plans = [plan("/k", &[("memory.max", "8192"), ("pids.max", "10")])];
    let mut held = cgroup(2, &[("memory.max", "max"), ("pids.max", "max")]);
    held.usage_bytes = Some(8193);
    let diff = run(&plans, &snapshot(&[("/", cgroup(1, &[])), ("/k", held.clone())]), &Ledger::default());
    assert_eq!(written(&diff), ["/k/pids.max=10"], "the rest is written");
    assert_eq!(diff.withheld.len(), 1);
    assert_eq!(
        diff.withheld[0].to_string(),
        "usage above the new limit: /k/memory.max stays, as 8193 bytes are in use and 8192 would make the kernel kill"
    );
    held.usage_bytes = Some(8192);
    let diff = run(&plans, &snapshot(&[("/", cgroup(1, &[])), ("/k", held)]), &Ledger::default());
    assert_eq!(diff.withheld, []);
}

#[test]
fn what_the_kernel_lacks_is_reported_and_not_tried() {
    let plans = [plan("/k", &[("hugetlb.2MB.max", "0"), ("memory.swap.max", "0")])];
    let mut root = cgroup(1, &[]);
    root.available.remove(&Controller::Hugetlb);
    root.enabled.remove(&Controller::Hugetlb);
    let diff = run(&plans, &snapshot(&[("/", root), ("/k", cgroup(2, &[]))]), &Ledger::default());
    assert_eq!(diff.steps, []);
    let reported: Vec<String> = diff.missing.iter().map(ToString::to_string).collect();
    assert_eq!(
        reported,
        [
            "/k/hugetlb.2MB.max does not exist: the hugetlb controller is not available there",
            "/k/memory.swap.max does not exist: this kernel does not offer it",
        ]
    );
}

#[test]
fn another_branch_is_never_touched() {
    let plans = [plan("/a/kubepods", &[("cpu.weight", "157")])];
    let mut above = cgroup(2, &[]);
    above.enabled.clear();
    let observed = snapshot(&[("/", cgroup(1, &[])), ("/a", above), ("/b", cgroup(3, &[]))]);
    let diff = run(&plans, &observed, &Ledger::default());
    assert!(diff.steps.iter().all(|step| step.path().as_str().starts_with("/a")), "{:?}", diff.steps);
}

/// What the kernel holds after a step, with its rounding.
fn simulate(observed: &mut Snapshot, step: &Step) {
    match step {
        Step::Create(at) => {
            let id = 100 + u64::try_from(observed.cgroups.len()).unwrap();
            let mut made = cgroup(id, &[]);
            made.enabled.clear();
            for file in FILES {
                made.files.insert(*file, Held::Value(file.default_value()));
            }
            observed.cgroups.insert(at.clone(), made);
        }
        Step::Move { .. } => {}
        Step::Enable { path, controllers } => {
            observed.cgroups.get_mut(path).unwrap().enabled.extend(controllers);
        }
        Step::Write(write) => {
            let held = Held::Value(page().held(&write.value));
            observed.cgroups.get_mut(&write.path).unwrap().files.insert(write.file(), held);
        }
    }
}

const FILES: &[CgroupFile] = &[
    CgroupFile::MemoryMin,
    CgroupFile::MemoryLow,
    CgroupFile::MemoryHigh,
    CgroupFile::MemoryMax,
    CgroupFile::CpuWeight,
    CgroupFile::PidsMax,
];

fn limit(observed: &Observed, file: CgroupFile) -> u64 {
    Limit::parse(&observed.files[&file].to_string()).unwrap().amount().unwrap_or(u64::MAX)
}

/// Four memory values in order; an unset `low` is 0 and an unset `high` is `max`, as the kernel has them.
fn memory() -> impl Strategy<Value = [String; 4]> {
    let pages = prop::collection::vec(1_u64..1000, 4);
    (pages, any::<bool>(), any::<bool>(), any::<bool>(), 0..PAGE).prop_map(
        |(mut pages, no_low, no_high, no_max, odd)| {
            pages.sort_unstable();
            let text = |index: usize| (pages[index] * PAGE + odd).to_string();
            let low = if no_low { String::from("0") } else { text(1) };
            let high = if no_high { String::from("max") } else { text(2) };
            let max = if no_max { String::from("max") } else { text(3) };
            [text(0), low, high, max]
        },
    )
}

/// A kubepods, a pod and its container; the children never get more than their parent.
fn tree() -> impl Strategy<Value = Vec<CgroupPlan>> {
    (memory(), 1_u64..10_000, 1_u64..10_000, 1..3_usize).prop_map(|(values, weight, pids, share)| {
        ["/k", "/k/pod", "/k/pod/app"]
            .into_iter()
            .enumerate()
            .map(|(level, at)| {
                let mut plan = plan(at, &[]);
                for (file, value) in FILES.iter().zip(&values) {
                    let divisor = u64::try_from(share.pow(u32::try_from(level).unwrap())).unwrap();
                    let value =
                        value.parse::<u64>().map_or_else(|_| value.clone(), |n| (n / divisor).to_string());
                    plan.values.set(file.parse(&value).unwrap());
                }
                plan.values.cpu_weight = Some(weight);
                plan.values.pids_max = Some(Limit::Amount(pids));
                plan
            })
            .collect()
    })
}

fn check_order(observed: &Snapshot) {
    for (at, held) in observed.cgroups.iter().filter(|(at, _)| !at.is_root()) {
        let [min, low, high, max] = std::array::from_fn(|index| limit(held, FILES[index]));
        assert!(min.max(low) <= high.min(max), "{at} protects more than it allows: {held:?}");
        assert!(high == u64::MAX || high <= max, "{at}: high above max: {held:?}");
        let parent = at.parent().and_then(|parent| observed.cgroups.get(&parent));
        if let Some(parent) = parent.filter(|parent| !parent.files.is_empty()) {
            for file in
                [CgroupFile::MemoryMin, CgroupFile::MemoryLow, CgroupFile::MemoryMax, CgroupFile::PidsMax]
            {
                assert!(limit(held, file) <= limit(parent, file), "{at}/{file} above its parent's");
            }
        }
    }
}

fn start() -> Snapshot {
    snapshot(&[("/", cgroup(1, &[]))])
}

proptest! {
    #[test]
    fn any_tree_converges_and_is_never_overcommitted_on_the_way(old in tree(), new in tree()) {
        let ledger = Ledger::default();
        let mut observed = start();
        for step in run(&old, &observed, &ledger).steps {
            simulate(&mut observed, &step);
        }
        check_order(&observed);
        for step in run(&new, &observed, &ledger).steps {
            simulate(&mut observed, &step);
            check_order(&observed);
        }
        prop_assert_eq!(run(&new, &observed, &ledger), Diff::default());
    }
}

#[test]
fn a_cpu_is_taken_from_those_that_share_it_before_its_owner_gets_it_and_given_back_after() {
    let plans = |own: &str, shared: &str| {
        let mut plans = vec![
            plan("/k/a", &[("cpuset.cpus", shared)]),
            plan("/k/b", &[("cpuset.cpus", shared), ("cpu.weight", "79")]),
        ];
        if !own.is_empty() {
            plans.push(plan("/k/0own", &[("cpuset.cpus", own)]));
        }
        plans
    };
    let held = |cpus: &str| cgroup(3, &[("cpuset.cpus", cpus), ("cpu.weight", "100")]);
    let all = |cgroups: &[(&str, Observed)]| {
        let above = [("/", cgroup(1, &[])), ("/k", cgroup(2, &[]))];
        snapshot(&[&above[..], cgroups].concat())
    };
    let steps =
        |plans: &[CgroupPlan], observed: &Snapshot| written(&run(plans, observed, &Ledger::default()));
    // Nobody had CPUs, or all of them.
    for before in ["", "0-7"] {
        let observed = all(&[("/k/a", held(before)), ("/k/b", held(before))]);
        assert_eq!(
            steps(&plans("2-3", "0-1,4-7"), &observed),
            [
                "create /k/0own",
                "/k/a/cpuset.cpus=0-1,4-7",
                "/k/b/cpuset.cpus=0-1,4-7",
                "/k/0own/cpuset.cpus=2-3",
                "/k/b/cpu.weight=79",
            ]
        );
    }
    let observed = all(&[("/k/0own", held("2-3")), ("/k/a", held("0-1,4-7")), ("/k/b", held("0-1,4-7"))]);
    assert_eq!(
        steps(&plans("2-4", "0-1,5-7"), &observed)[..3],
        ["/k/a/cpuset.cpus=0-1,5-7", "/k/b/cpuset.cpus=0-1,5-7", "/k/0own/cpuset.cpus=2-4"]
    );
    assert_eq!(
        steps(&plans("2", "0-1,3-7"), &observed)[..3],
        ["/k/0own/cpuset.cpus=2", "/k/a/cpuset.cpus=0-1,3-7", "/k/b/cpuset.cpus=0-1,3-7"]
    );
}
