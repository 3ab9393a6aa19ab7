//! A kubelet that comes while the cgroups are the daemon's: what it may have written is left.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::{
    cgroup::{Author, Drift},
    model::OwnerLevel,
};

/// A node whose plan is in force, and whether a kubelet runs there.
fn scene() -> (Fixture, Arc<AtomicBool>) {
    let mut fixture = Fixture::new(&[TREE, &["system.slice"]].concat());
    let runs = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&runs);
    fixture.reconciler.set_arrival(move || asked.load(Ordering::Relaxed));
    let kubepods = fixture.id("/kubepods");
    fixture.reconciler.ledger.make(kubepods, Some(&OwnerLevel::Node));
    for cgroup in ["kubepods/pod1", "kubepods/pod1/app"] {
        fixture.write(&format!("{cgroup}/cgroup.events"), "populated 1\nfrozen 0\n");
    }
    drop(fixture.reconcile(&shared("8192")));
    assert_eq!(fixture.read("kubepods/cpu.weight"), "157");
    (fixture, runs)
}

/// A plan that also limits what a kubelet limits, kubepods to that.
fn shared(memory: &str) -> Plan {
    Plan {
        node: cgroup("/kubepods", &[("cpu.weight", "157"), ("memory.max", memory)]),
        reserved: vec![cgroup("/system.slice", &[("cpu.weight", "39")])],
        ..plan("8192")
    }
}

#[test]
fn what_a_kubelet_has_written_outlives_the_hand_over() {
    let (mut fixture, _runs) = scene();
    let written = [
        ("kubepods/memory.max", "4096\n"),
        ("kubepods/cpu.weight", "77\n"),
        ("system.slice/cpu.weight", "50\n"),
    ];
    for (file, content) in written {
        fixture.write(file, content);
    }
    let report = fixture.reconciler.hand_over(&fixture.permit);
    assert!(report.failed.is_empty(), "{report:?}");
    assert!(report.errors.is_empty() && report.removed.is_empty(), "kubepods stays, though it is empty");
    assert_eq!(written.map(|(file, _)| fixture.read(file)), written.map(|(_, content)| content.to_owned()));
    let show = |drift: &Drift| format!("{}/{}: {} -> {}", drift.path, drift.file, drift.planned, drift.found);
    let mut left: Vec<String> = report.drifted.iter().map(show).collect();
    left.sort();
    let expected = [
        "/kubepods/cpu.weight: 157 -> 77",
        "/kubepods/memory.max: 8192 -> 4096",
        "/system.slice/cpu.weight: 39 -> 50",
    ];
    assert_eq!(left, expected);
    assert!(report.drifted.iter().all(|drift| drift.action == DriftAction::Left));
    let claimed = fixture.reconciler.ledger.files(fixture.id("/kubepods")).count();
    assert_eq!(claimed, 0, "a cleanup does not restore them either");
    // What only the daemon has written is given back.
    assert_eq!(fixture.read("kubepods/pod1/cpu.weight"), "100");
    assert!(fixture.read("kubepods/pod1/memory.max").starts_with("max"));
}

#[test]
fn a_value_that_a_kubelet_writes_once_more_is_its_own() {
    let is_left = |pid: u32, planned: &str| {
        let (mut fixture, _runs) = scene();
        let key = (CgroupPath::parse("/kubepods").unwrap(), String::from("memory.max"));
        let author = Author { pid, comm: String::from("kubelet") };
        let changes =
            Changes { written: [key.clone()].into(), authors: [(key, author)].into(), ..Changes::default() };
        assert!(fixture.reconciler.look_at(&changes, Some(&fixture.permit)).is_converged());
        drop(fixture.reconcile(&shared(planned)));
        drop(fixture.reconciler.hand_over(&fixture.permit));
        fixture.read("kubepods/memory.max").starts_with(planned)
    };
    assert!(is_left(77, "8192"));
    assert!(!is_left(1, "8192"), "systemd writes what the daemon asks it to");
    assert!(!is_left(77, "4096"), "the daemon has written since");
}

#[test]
fn without_a_kubelet_everything_is_given_back_at_the_end() {
    for (is_running, expected) in [(false, "100"), (true, "77\n")] {
        let (mut fixture, runs) = scene();
        fixture.reconciler.set_drift(DriftPolicy::new(OnDrift::Report));
        fixture.write("kubepods/cpu.weight", "77\n");
        drop(fixture.reconcile(&shared("8192")));
        // One that has not come yet may have written it too.
        runs.store(is_running, Ordering::Relaxed);
        drop(fixture.reconciler.release(&fixture.permit));
        assert_eq!(fixture.read("kubepods/cpu.weight"), expected, "{is_running}");
    }
}

#[test]
fn what_a_kubelet_may_have_written_is_left_until_it_counts_as_one() {
    let (mut fixture, runs) = scene();
    runs.store(true, Ordering::Relaxed);
    fixture.write("kubepods/cpu.weight", "77\n");
    fixture.write("kubepods/pod1/cpu.weight", "1\n");
    let report = fixture.reconcile(&shared("8192"));
    let drifted: Vec<_> = report.drifted.iter().map(|drift| (drift.path.as_str(), drift.action)).collect();
    assert_eq!(drifted, [("/kubepods", DriftAction::Delayed), ("/kubepods/pod1", DriftAction::Restored)]);
    assert_eq!(fixture.read("kubepods/cpu.weight"), "77\n");
    assert_eq!(fixture.read("kubepods/pod1/cpu.weight"), "79", "no kubelet writes there");
    let due = fixture.reconciler.contest_due();
    fixture.wait(Duration::from_secs(29));
    assert!(fixture.reconcile(&shared("8192")).drifted.is_empty(), "reported once");
    assert!(due.is_some() && fixture.reconciler.contest_due() == due, "looking again makes it no longer");
    assert_eq!(fixture.read("kubepods/cpu.weight"), "77\n");
    fixture.wait(Duration::from_secs(1));
    let report = fixture.reconciler.write_back(Some(&fixture.permit));
    assert_eq!(report.drifted.first().map(|drift| drift.action), Some(DriftAction::Restored));
    assert_eq!(fixture.read("kubepods/cpu.weight"), "157");
    assert_eq!(fixture.reconciler.contest_due(), None);

    assert!(fixture.reconcile(&shared("8192")).is_converged());
    runs.store(false, Ordering::Relaxed);
    fixture.write("kubepods/cpu.weight", "77\n");
    assert_eq!(fixture.reconcile(&shared("8192")).written.len(), 1, "without a kubelet at once");
}

#[test]
fn a_limit_that_a_kubelet_has_raised_is_not_lowered_meanwhile() {
    let (mut fixture, runs) = scene();
    fixture.write("kubepods/memory.max", "81920\n");
    fixture.write("kubepods/memory.current", "40960\n");
    for (is_running, withheld) in [(true, 0), (false, 1)] {
        runs.store(is_running, Ordering::Relaxed);
        let report = fixture.reconcile(&shared("8192"));
        assert_eq!(report.withheld.len(), withheld, "{report:?}");
        assert_eq!(fixture.read("kubepods/memory.max"), "81920\n");
    }
}

/// Otherwise the next start would restore the same files once more, over what others have written since.
#[test]
fn a_mark_says_no_more_than_is_left_to_be_restored() {
    let (mut fixture, _runs) = scene();
    let system = CgroupPath::parse("/system.slice").unwrap();
    let mark = |fixture: &Fixture| fixture.reconciler.open(&system).unwrap().mark().unwrap();
    // Only root can mark a cgroup.
    if mark(&fixture).is_none() {
        return;
    }
    drop(fixture.reconcile(&Plan { reserved: Vec::new(), ..shared("8192") }));
    assert_eq!(mark(&fixture), None);
}
