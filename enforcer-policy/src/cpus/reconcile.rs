//! What becomes of assignments when pods come and go.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    assignments::{Assignments, Owner, POLICY_NAME, Problem},
    options::CpuOptions,
    set::CpuSet,
    take::{Refusal, take},
    topology::Topology,
    wanted::Wanted,
};
use crate::model::PodUid;

/// A pod that got no further CPUs of its own.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refused {
    /// Its first container that could not have what it wants.
    pub owner: Owner,
    /// Why.
    pub refusal: Refusal,
}

/// A container whose CPUs have changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Change {
    /// The container.
    pub owner: Owner,
    /// The CPUs that it had of its own; empty if none.
    pub before: CpuSet,
    /// The CPUs that it has of its own; empty if none.
    pub after: CpuSet,
}

/// What [`reconcile`] has found and decided.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reconciled {
    /// The assignments from now on, with their checksum.
    pub assignments: Assignments,
    /// The pods that do not have what they want, in the order in which they were given.
    pub refused: Vec<Refused>,
    /// What is wrong with the assignments that were kept.
    pub problems: Vec<Problem>,
    /// The containers whose CPUs have changed, by pod and name.
    pub changes: Vec<Change>,
    /// Whether the shared pool has changed.
    pub shared_changed: bool,
}

/// Brings assignments up to date with the containers that want CPUs of their own: all of the node, in the order in which
/// they are to be served.
///
/// - A container that has CPUs and is not among `wanted` any more loses them.
/// - One that has CPUs keeps exactly these, whatever else changes: even if one goes offline or is reserved by now, or if
///   it wants another number. Each such case is a [`Problem`].
/// - The new containers of a pod get all that they want, or none of them anything: then the pod is [`Refused`], and its
///   containers run in the shared pool.
/// - Reserved CPUs are given to none. The shared pool is every online CPU that is no container's own, and is never given away
///   as a whole.
#[must_use]
pub fn reconcile(
    topology: &Topology,
    reserved: &CpuSet,
    options: CpuOptions,
    previous: &Assignments,
    wanted: &[Wanted],
) -> Reconciled {
    let mut entries: BTreeMap<PodUid, BTreeMap<String, CpuSet>> = BTreeMap::new();
    let mut resized = Vec::new();
    let mut taken = CpuSet::new();
    let mut news: Vec<(&PodUid, Vec<&Wanted>)> = Vec::new();
    let mut places = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for one in wanted.iter().filter(|one| one.cpus > 0) {
        if !seen.insert((&one.pod, &one.container)) {
            continue;
        }
        if let Some(cpus) = previous.get(&one.pod, &one.container).filter(|cpus| !cpus.is_empty()) {
            if u32::try_from(cpus.len()) != Ok(one.cpus) {
                let (owner, cpus) = (owner(one), cpus.clone());
                resized.push(Problem::Resized { owner, cpus, wanted: one.cpus });
            }
            taken = taken.union(cpus);
            entries.entry(one.pod.clone()).or_default().insert(one.container.clone(), cpus.clone());
            continue;
        }
        let place = *places.entry(&one.pod).or_insert_with(|| {
            news.push((&one.pod, Vec::new()));
            news.len() - 1
        });
        if let Some((_, containers)) = news.get_mut(place) {
            containers.push(one);
        }
    }
    let mut refused = Vec::new();
    for (pod, containers) in news {
        match serve(topology, reserved, options, &taken, &containers) {
            Ok((given, now_taken)) => {
                taken = now_taken;
                entries.entry(pod.clone()).or_default().extend(given);
            }
            Err(of) => refused.push(of),
        }
    }
    let mut assignments = Assignments {
        policy_name: POLICY_NAME.to_owned(),
        default_cpu_set: topology.cpus().difference(&taken),
        entries,
        checksum: 0,
    };
    assignments.checksum = assignments.expected_checksum();
    let mut problems = assignments.valid_for(topology, reserved);
    problems.extend(resized);
    Reconciled {
        changes: changes(previous, &assignments),
        shared_changed: previous.default_cpu_set != assignments.default_cpu_set,
        assignments,
        refused,
        problems,
    }
}

/// CPUs by container.
type Given = BTreeMap<String, CpuSet>;

/// CPUs for the new containers of one pod, and all that are taken then.
fn serve(
    topology: &Topology,
    reserved: &CpuSet,
    options: CpuOptions,
    taken: &CpuSet,
    containers: &[&Wanted],
) -> Result<(Given, CpuSet), Refused> {
    let mut taken = taken.clone();
    let mut given = Given::new();
    for &one in containers {
        let shared = topology.cpus().difference(&taken);
        let free = shared.difference(reserved);
        let of = |refusal| Refused { owner: owner(one), refusal };
        let cpus = take(topology, &free, one.cpus, options).map_err(of)?;
        if cpus == shared {
            return Err(of(Refusal::SharedPoolEmpty { requested: one.cpus, available: free.len() }));
        }
        taken = taken.union(&cpus);
        given.insert(one.container.clone(), cpus);
    }
    Ok((given, taken))
}

fn owner(one: &Wanted) -> Owner {
    Owner { pod: one.pod.clone(), container: one.container.clone() }
}

fn changes(previous: &Assignments, now: &Assignments) -> Vec<Change> {
    let of = |assignments: &Assignments, owner: &Owner| {
        assignments.get(&owner.pod, &owner.container).cloned().unwrap_or_default()
    };
    let owners: BTreeSet<Owner> = previous.owners().chain(now.owners()).map(|(owner, _)| owner).collect();
    let change = |owner: Owner| Change { before: of(previous, &owner), after: of(now, &owner), owner };
    owners.into_iter().map(change).filter(|change| change.before != change.after).collect()
}
