//! What holds of every choice on every machine, whatever is free.

use std::collections::BTreeMap;

use proptest::{prelude::*, sample::select};

use super::machines::{MACHINES, cpus, machine};
use crate::{
    cpus::{Assignments, CpuOptions, CpuSet, Owner, Reconciled, Refusal, Topology, Wanted, reconcile, take},
    model::PodUid,
};

fn any_options() -> impl Strategy<Value = CpuOptions> {
    select(vec![(false, false), (true, false), (false, true)]).prop_map(|(full_pcpus_only, spread)| {
        CpuOptions { full_pcpus_only, distribute_cpus_across_cores: spread }
    })
}

/// A machine, sometimes with some CPUs offline.
fn any_machine() -> impl Strategy<Value = Topology> {
    let names: Vec<&str> = MACHINES.iter().map(|(name, _)| *name).collect();
    (select(names), prop_oneof![3 => Just(None), 1 => any::<u64>().prop_map(Some)]).prop_map(
        |(name, seed)| {
            let Some(seed) = seed else { return machine(name) };
            let is_online = |cpu: u16| {
                cpu == 0 || !(u64::from(cpu) ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).is_multiple_of(7)
            };
            Topology::new(cpus(name).into_iter().filter(|cpu| is_online(cpu.cpu))).unwrap()
        },
    )
}

/// A part of the CPUs, of which some are free as whole NUMA nodes or cores, and some that do not exist.
fn any_free(machine: &Topology) -> impl Strategy<Value = CpuSet> + use<> {
    let online = machine.cpus().clone();
    let pieces: Vec<CpuSet> =
        machine.cores().values().chain(machine.numa_nodes().values()).cloned().collect();
    let singles = proptest::collection::vec(any::<bool>(), online.len());
    let some = proptest::sample::subsequence(pieces.clone(), 0..=pieces.len());
    let some_pieces = prop_oneof![Just(Vec::new()), some];
    let less = prop_oneof![Just(Vec::new()), proptest::collection::vec(select(pieces), 0..6)];
    (singles, some_pieces, less, prop_oneof![Just(true), Just(false)]).prop_map(
        move |(singles, more, less, all)| {
            let mut free: CpuSet = if all {
                online.clone()
            } else {
                online.iter().zip(singles).filter(|(_, is_free)| *is_free).map(|(cpu, _)| cpu).collect()
            };
            free = more.iter().fold(free, |free, piece| free.union(piece));
            free = less.iter().fold(free, |free, piece| free.difference(piece));
            free.union(&CpuSet::from_cpus([5_000]).unwrap())
        },
    )
}

fn any_case() -> impl Strategy<Value = (Topology, CpuSet, u32, CpuOptions)> {
    any_machine().prop_flat_map(|machine| {
        let free = any_free(&machine);
        let count = prop_oneof![0_u32..9, 0_u32..u32::try_from(machine.cpus().len()).unwrap() + 2];
        (Just(machine), free, count, any_options())
    })
}

/// What may be given of the free CPUs, and how many a request must be a multiple of: written down again, by each CPU.
fn capacity(machine: &Topology, free: &CpuSet, options: CpuOptions) -> (CpuSet, u32) {
    let threads = machine.threads_per_core();
    if !options.full_pcpus_only {
        return (free.intersection(machine.cpus()), 1);
    }
    let siblings = |cpu: u16| {
        let core = machine.get(cpu).unwrap().core;
        machine
            .cpus()
            .iter()
            .filter(move |other| machine.get(*other).unwrap().core == core)
            .collect::<Vec<_>>()
    };
    let is_given = |cpu: &u16| {
        let core = siblings(*cpu);
        core.iter().all(|cpu| free.contains(*cpu)) && (threads as usize).is_multiple_of(core.len())
    };
    (machine.cpus().iter().filter(is_given).collect(), threads)
}

/// The least number of NUMA nodes that have so many of the CPUs, by all of their combinations.
fn least_nodes(machine: &Topology, cpus: &CpuSet, count: usize) -> u32 {
    let sizes: Vec<usize> = machine.numa_nodes().values().map(|node| node.intersection(cpus).len()).collect();
    let mut sums = vec![0; 1 << sizes.len()];
    let mut least = u32::MAX;
    for mask in 0..sums.len() {
        if mask > 0 {
            sums[mask] = sums[mask & (mask - 1)] + sizes[mask.trailing_zeros() as usize];
        }
        if sums[mask] >= count {
            least = least.min(mask.count_ones());
        }
    }
    least
}

fn nodes_of(machine: &Topology, cpus: &CpuSet) -> u32 {
    let nodes = machine.numa_nodes().values().filter(|node| !node.is_disjoint(cpus));
    u32::try_from(nodes.count()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn as_many_free_cpus_are_taken_as_are_wanted_or_it_is_refused((machine, free, count, options) in any_case()) {
        let (given, multiple) = capacity(&machine, &free, options);
        let enough = given.len() >= count as usize;
        match take(&machine, &free, count, options) {
            Ok(taken) => {
                prop_assert!(taken.is_subset(&given), "{taken} of {given}");
                prop_assert_eq!(taken.len(), count as usize);
                prop_assert_eq!(count % multiple, 0);
            }
            Err(Refusal::SmtAlignment { requested, threads_per_core }) => {
                prop_assert_eq!((requested, threads_per_core), (count, multiple));
                prop_assert_ne!(count % multiple, 0);
            }
            Err(Refusal::NoWholeCores { available, .. }) => {
                prop_assert!(options.full_pcpus_only && !enough && available == given.len());
            }
            Err(Refusal::NotEnough { available, .. }) => {
                prop_assert!(!options.full_pcpus_only && !enough && available == given.len());
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn with_full_pcpus_only_no_core_is_given_in_part((machine, free, count, _) in any_case()) {
        let options = CpuOptions { full_pcpus_only: true, ..CpuOptions::default() };
        let count = count / machine.threads_per_core() * machine.threads_per_core();
        if let Ok(taken) = take(&machine, &free, count, options) {
            for core in machine.cores().values() {
                prop_assert!(core.is_disjoint(&taken) || core.is_subset(&taken), "{core} of {taken}");
            }
        }
    }

    #[test]
    fn the_fewest_numa_nodes_are_taken((machine, free, count, options) in any_case()) {
        if let Ok(taken) = take(&machine, &free, count, options) {
            let (given, _) = capacity(&machine, &free, options);
            let least = least_nodes(&machine, &given, count as usize);
            prop_assert_eq!(nodes_of(&machine, &taken), least, "{} of {}", taken, given);
        }
    }

    #[test]
    fn packing_breaks_one_free_core_at_most((machine, free, count, _) in any_case()) {
        if let Ok(taken) = take(&machine, &free, count, CpuOptions::default()) {
            let broken = machine.cores().values().filter(|core| {
                core.is_subset(&free) && !core.is_disjoint(&taken) && !core.is_subset(&taken)
            });
            prop_assert!(broken.count() <= 1, "{taken} of {free}");
        }
    }

    #[test]
    fn spreading_uses_no_sibling_while_a_core_has_given_none((machine, free, count, _) in any_case()) {
        let options = CpuOptions { distribute_cpus_across_cores: true, ..CpuOptions::default() };
        if let Ok(taken) = take(&machine, &free, count, options) {
            let whole = machine.numa_nodes().values().chain(machine.sockets().values());
            let whole = whole.filter(|unit| unit.is_subset(&taken)).fold(CpuSet::new(), |all, unit| all.union(unit));
            let touched = machine.numa_nodes().values().filter(|node| !node.is_disjoint(&taken));
            let mut given = Vec::new();
            for node in touched {
                for core in machine.cores().values().filter(|core| core.is_subset(node)) {
                    if core.is_disjoint(&whole) && !core.is_disjoint(&free) {
                        let of = core.intersection(&taken).len();
                        given.push((of, core.intersection(&free).len()));
                    }
                }
            }
            let most = given.iter().map(|(of, _)| *of).max().unwrap_or(0);
            prop_assert!(given.iter().all(|&(of, had)| of + 1 >= most || of == had), "{taken} of {free}");
        }
    }
}

/// What happens on a node.
#[derive(Clone, Debug)]
enum Step {
    /// A pod comes whose containers want so many CPUs.
    Arrive(Vec<u32>),
    /// One of the pods goes.
    Leave(usize),
    /// A container of one of the pods goes, the last one with its pod.
    LeaveContainer(usize),
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => proptest::collection::vec(prop_oneof![4 => 1_u32..7, 1 => 1_u32..70], 1..4).prop_map(Step::Arrive),
        2 => any::<usize>().prop_map(Step::Leave),
        1 => any::<usize>().prop_map(Step::LeaveContainer),
    ];
    proptest::collection::vec(step, 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn pods_come_and_go_and_none_touches_the_cpus_of_another(
        (machine, reserved) in any_machine().prop_flat_map(|machine| {
            let online: Vec<u16> = machine.cpus().iter().collect();
            let reserved = proptest::sample::subsequence(online, 0..4);
            (Just(machine), reserved.prop_map(|cpus| CpuSet::from_cpus(cpus).unwrap()))
        }),
        options in any_options(),
        steps in any_steps(),
    ) {
        let mut now = Assignments::default();
        let mut wanted: Vec<Wanted> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Arrive(containers) => {
                    let pod = PodUid::new(&format!("pod-{number}")).unwrap();
                    wanted.extend(containers.into_iter().enumerate().map(|(place, cpus)| Wanted {
                        pod: pod.clone(),
                        container: format!("c{place}"),
                        cpus,
                    }));
                }
                Step::Leave(which) if !wanted.is_empty() => {
                    let gone = wanted[which % wanted.len()].pod.clone();
                    wanted.retain(|one| one.pod != gone);
                }
                Step::LeaveContainer(which) if !wanted.is_empty() => {
                    wanted.remove(which % wanted.len());
                }
                Step::Leave(_) | Step::LeaveContainer(_) => {}
            }
            let before = now;
            let after = reconcile(&machine, &reserved, options, &before, &wanted);
            now = after.assignments.clone();

            // Each has its own, and as many as it wants.
            let mut owned = CpuSet::new();
            for (owner, cpus) in now.owners() {
                prop_assert!(owned.is_disjoint(cpus), "{owner} shares {cpus}");
                owned = owned.union(cpus);
                let one = wanted.iter().find(|one| one.pod == owner.pod && one.container == owner.container);
                prop_assert_eq!(one.map(|one| one.cpus as usize), Some(cpus.len()), "{}", owner);
                if options.full_pcpus_only {
                    let part = machine.cores().values().find(|core| !core.is_disjoint(cpus) && !core.is_subset(cpus));
                    prop_assert_eq!(part, None, "{} has {}", owner, cpus);
                }
            }
            // The rest is shared, the reserved CPUs among it.
            prop_assert!(owned.is_disjoint(&reserved) && owned.is_subset(machine.cpus()));
            prop_assert_eq!(&now.default_cpu_set, &machine.cpus().difference(&owned));
            prop_assert!(!now.default_cpu_set.is_empty());
            prop_assert!(after.problems.is_empty(), "{:?}", after.problems);
            prop_assert!(now.is_intact() && now.checksum != 0);

            // Those that stay keep what they have; of the others all of a pod get theirs, or none.
            let mut new: BTreeMap<&PodUid, Vec<bool>> = BTreeMap::new();
            for one in &wanted {
                let has = now.get(&one.pod, &one.container);
                match before.get(&one.pod, &one.container) {
                    Some(cpus) => prop_assert_eq!(has, Some(cpus)),
                    None => new.entry(&one.pod).or_default().push(has.is_some()),
                }
            }
            for (pod, given) in new {
                let refused = after.refused.iter().filter(|refused| refused.owner.pod == *pod).count();
                prop_assert!(given.iter().all(|has| *has == (refused == 0)), "{pod}: {given:?}");
                prop_assert!(refused <= 1);
            }

            // The report of changes is the difference, and nothing is left to do.
            for change in &after.changes {
                let Owner { pod, container } = &change.owner;
                let of = |assignments: &Assignments| assignments.get(pod, container).cloned().unwrap_or_default();
                prop_assert_eq!((&change.before, &change.after), (&of(&before), &of(&now)));
                prop_assert_ne!(&change.before, &change.after);
            }
            prop_assert_eq!(after.changes.is_empty(), before.entries == now.entries);
            prop_assert_eq!(after.shared_changed, before.default_cpu_set != now.default_cpu_set);
            let again = reconcile(&machine, &reserved, options, &now, &wanted);
            prop_assert_eq!((&again.assignments, again.changes.len()), (&now, 0));
            // A refusal may have another reason, as the pods after it have been served since.
            let refused = |of: &Reconciled| of.refused.iter().map(|one| one.owner.pod.clone()).collect::<Vec<_>>();
            prop_assert_eq!(refused(&again), refused(&after));
        }
    }
}
