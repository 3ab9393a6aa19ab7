//! Examples of what becomes of assignments.

use super::machines::{machine, machine_without, set};
use crate::{
    cpus::{Assignments, CpuOptions, CpuSet, Owner, Problem, Reconciled, Refusal, Wanted, reconcile},
    model::PodUid,
};

const PACKED: CpuOptions = CpuOptions { full_pcpus_only: false, distribute_cpus_across_cores: false };

fn uid(name: &str) -> PodUid {
    PodUid::new(name).unwrap()
}

fn owner(pod: &str, container: &str) -> Owner {
    Owner { pod: uid(pod), container: container.to_owned() }
}

fn wants(all: &[(&str, &str, u32)]) -> Vec<Wanted> {
    let of = |&(pod, container, cpus): &(&str, &str, u32)| {
        let Owner { pod, container } = owner(pod, container);
        Wanted { pod, container, cpus }
    };
    all.iter().map(of).collect()
}

/// On the laptop, with CPU 0 and its sibling reserved.
fn on_laptop(previous: &Assignments, all: &[(&str, &str, u32)]) -> Reconciled {
    reconcile(&machine("laptop"), &set("0,4"), PACKED, previous, &wants(all))
}

/// The containers' CPUs as one text.
fn text(assignments: &Assignments) -> String {
    let of = |(owner, cpus): (Owner, &CpuSet)| format!("{}/{}={cpus}", owner.pod, owner.container);
    assignments.owners().map(of).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_new_pod_gets_cpus_and_they_return_when_it_goes() {
    let first = on_laptop(&Assignments::default(), &[("a", "x", 2), ("a", "y", 1)]);
    assert_eq!(text(&first.assignments), "a/x=1,5 a/y=2");
    assert_eq!(first.assignments.default_cpu_set, set("0,3-4,6-7"));
    assert!(first.shared_changed && first.refused.is_empty() && first.problems.is_empty());
    let second = on_laptop(&first.assignments, &[("b", "x", 1), ("a", "y", 1)]);
    assert_eq!(text(&second.assignments), "a/y=2 b/x=6");
    let gone = &second.changes[0];
    assert_eq!((&gone.owner, &gone.before, &gone.after), (&owner("a", "x"), &set("1,5"), &set("")));
    let none = on_laptop(&second.assignments, &[]);
    assert_eq!((text(&none.assignments), none.changes.len()), (String::new(), 2));
    assert_eq!(none.assignments.default_cpu_set, set("0-7"));
}

#[test]
fn a_pod_gets_all_or_nothing_and_the_next_one_its_own() {
    let done = on_laptop(&Assignments::default(), &[("a", "x", 4), ("a", "y", 4), ("b", "x", 6)]);
    assert_eq!(text(&done.assignments), "b/x=1-3,5-7");
    assert_eq!(done.refused.len(), 1);
    assert_eq!(done.refused[0].owner, owner("a", "y"));
    assert_eq!(done.refused[0].refusal, Refusal::NotEnough { requested: 4, available: 2 });
    // It is served as soon as there is room.
    let later = on_laptop(&done.assignments, &[("a", "x", 4), ("a", "y", 2)]);
    assert_eq!(text(&later.assignments), "a/x=1-2,5-6 a/y=3,7");
    assert!(later.refused.is_empty());
}

#[test]
fn the_last_shared_cpu_is_never_given_away() {
    let none = CpuSet::new();
    let all = |count| {
        reconcile(&machine("laptop"), &none, PACKED, &Assignments::default(), &wants(&[("a", "x", count)]))
    };
    assert_eq!(all(8).refused[0].refusal, Refusal::SharedPoolEmpty { requested: 8, available: 8 });
    assert_eq!(all(8).assignments.default_cpu_set, set("0-7"));
    assert_eq!(all(7).assignments.default_cpu_set.len(), 1);
}

#[test]
fn a_standing_container_keeps_its_cpus_and_what_is_wrong_is_reported() {
    let first =
        on_laptop(&Assignments::default(), &[("a", "x", 2), ("b", "x", 2), ("c", "x", 2)]).assignments;
    assert_eq!(text(&first), "a/x=1,5 b/x=2,6 c/x=3,7");
    let all = wants(&[("a", "x", 2), ("b", "x", 2), ("c", "x", 3)]);
    let done = reconcile(&machine_without("laptop", "5"), &set("0,2"), PACKED, &first, &all);
    assert_eq!((text(&done.assignments), done.changes.len()), (text(&first), 0));
    assert_eq!(done.assignments.default_cpu_set, set("0,4"));
    let expected = [
        Problem::ReservedNotShared { cpus: set("2") },
        Problem::Offline { owner: owner("a", "x"), cpus: set("5") },
        Problem::Reserved { owner: owner("b", "x"), cpus: set("2") },
        Problem::Resized { owner: owner("c", "x"), cpus: set("3,7"), wanted: 3 },
    ];
    assert_eq!(done.problems, expected);
    assert_eq!(done.problems[1].to_string(), "CPUs 5 of container x of pod a are not online");
    // When the CPU is online again and the reservation as before, nothing is wrong.
    let again = on_laptop(&done.assignments, &[("a", "x", 2), ("b", "x", 2), ("c", "x", 2)]);
    assert_eq!((text(&again.assignments), again.problems.len()), (text(&first), 0));
}

#[test]
fn cpus_of_two_owners_stay_and_are_reported() {
    let mut broken = on_laptop(&Assignments::default(), &[("a", "x", 2)]).assignments;
    broken.entries.entry(uid("b")).or_default().insert(String::from("x"), set("5-6"));
    let done = on_laptop(&broken, &[("a", "x", 2), ("b", "x", 2), ("c", "x", 2)]);
    assert_eq!(text(&done.assignments), "a/x=1,5 b/x=5-6 c/x=3,7");
    let (first, second) = (owner("a", "x"), owner("b", "x"));
    assert_eq!(done.problems, [Problem::TwoOwners { first, second, cpus: set("5") }]);
}

#[test]
fn a_container_that_is_given_twice_or_wants_none_changes_nothing() {
    let done = on_laptop(&Assignments::default(), &[("a", "x", 2), ("a", "x", 4), ("b", "x", 0)]);
    assert_eq!(text(&done.assignments), "a/x=1,5");
    assert!(done.refused.is_empty());
}
