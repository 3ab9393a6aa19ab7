//! Whether a pod gets the CPUs that it is to have of its own: `Allocate` in `pkg/kubelet/cm/cpumanager/policy_static.go`,
//! and how `pkg/kubelet/cm/admission` words a refusal.

use std::fmt;

use crate::{
    cpus::{Assignments, CpuOptions, CpuSet, Owner, Refusal, Topology, Wanted, reconcile, wanted},
    model::{Pod, PodUid},
    qos,
};

use super::Rejection;

/// The CPUs of a machine, as they are given to containers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CpuMachine {
    /// The CPUs that were online when it was looked at as a whole.
    pub topology: Topology,
    /// Those of them that no container gets as its own.
    pub reserved: CpuSet,
    /// Those of them that are offline by now: no container gets one of these, and who has one keeps it.
    pub offline: CpuSet,
    /// The policy's options.
    pub options: CpuOptions,
}

/// The CPUs of a machine; the error says why no container gets any.
pub type Cpus = Result<CpuMachine, String>;

/// Why a pod does not get CPUs of its own.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CpuRejection {
    /// They are not to be had.
    Refused(Refusal),
    /// Nothing is known of the machine's CPUs, or the kernel cannot keep containers to some of them.
    Unavailable(String),
    /// Its changed manifest wants others than it has, and they do not change while it runs.
    Changed,
}

impl CpuRejection {
    /// The reason in one word, as in a pod's status.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.reason(),
            Self::Unavailable(_) | Self::Changed => "UnexpectedAdmissionError",
        }
    }
}

impl fmt::Display for CpuRejection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An error of a type that the kubelet knows is its own message (`GetPodAdmitResult`).
        let unexpected = |formatter: &mut fmt::Formatter<'_>, why: &dyn fmt::Display| {
            write!(formatter, "Allocate failed due to {why}, which is unexpected")
        };
        match self {
            Self::Refused(refusal @ (Refusal::SmtAlignment { .. } | Refusal::NoWholeCores { .. })) => {
                refusal.fmt(formatter)
            }
            Self::Refused(refusal) => unexpected(formatter, refusal),
            Self::Unavailable(why) => unexpected(formatter, why),
            Self::Changed => formatter.write_str(
                "the CPUs of its own that a container has do not change while its pod runs: remove the pod first, or change its uid",
            ),
        }
    }
}

/// What containers want of a pod's CPUs for themselves, in the order in which they start.
#[must_use]
pub fn wanted_of(pod: &Pod) -> Vec<Wanted> {
    wanted(pod, qos::class(pod))
}

/// Gives CPUs to pods as they are admitted one by one.
#[derive(Clone, Debug)]
pub struct CpuAdmitter<'a> {
    cpus: &'a Cpus,
    wanted: Vec<Wanted>,
    assignments: Assignments,
}

impl<'a> CpuAdmitter<'a> {
    /// Only those among `holders` keep what they have in `assignments`; who has none gets some if that is possible.
    #[must_use]
    pub fn new(cpus: &'a Cpus, assignments: &Assignments, holders: Vec<Wanted>) -> Self {
        let mut admitter = Self { cpus, wanted: holders, assignments: assignments.clone() };
        if let Ok(machine) = cpus {
            admitter.assignments = reconciled(machine, &admitter.assignments, &admitter.wanted).assignments;
        }
        admitter
    }

    /// What holds them is listed as it was before: containers that have CPUs in `assignments`, of pods that `keeps` names.
    pub fn holders(assignments: &Assignments, keeps: impl Fn(&PodUid) -> bool) -> Vec<Wanted> {
        let kept = assignments.owners().filter(|(owner, _)| keeps(&owner.pod));
        kept.map(|(Owner { pod, container }, cpus)| Wanted {
            pod,
            container,
            cpus: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
        })
        .collect()
    }

    /// Gives a pod what its containers want; a pod that is refused gets nothing.
    pub fn admit(&mut self, pod: &Pod) -> Result<(), Rejection> {
        let more = wanted_of(pod);
        if more.is_empty() {
            return Ok(());
        }
        let machine = match self.cpus {
            Ok(machine) => machine,
            Err(why) => return Err(Rejection::Cpus(CpuRejection::Unavailable(why.clone()))),
        };
        let mut before = self.assignments.clone();
        // What it has from an earlier manifest, and in another number, is not what it wants.
        if let Some(containers) = before.entries.get_mut(&pod.uid) {
            let is_wanted = |name: &String, cpus: &mut CpuSet| {
                more.iter().any(|one| one.container == *name && usize::try_from(one.cpus) == Ok(cpus.len()))
            };
            containers.retain(is_wanted);
        }
        let others = self.wanted.iter().filter(|one| one.pod != pod.uid).cloned();
        let wanted: Vec<Wanted> = others.chain(more).collect();
        let reconciled = reconciled(machine, &before, &wanted);
        if let Some(refused) = reconciled.refused.into_iter().find(|refused| refused.owner.pod == pod.uid) {
            return Err(Rejection::Cpus(CpuRejection::Refused(refused.refusal)));
        }
        (self.wanted, self.assignments) = (wanted, reconciled.assignments);
        Ok(())
    }

    /// Takes back what [`Self::admit`] has just given to a pod.
    pub fn withdraw(&mut self, pod: &Pod) {
        let before = self.wanted.len();
        self.wanted.retain(|one| one.pod != pod.uid);
        if let Ok(machine) = self.cpus
            && self.wanted.len() < before
        {
            self.assignments = reconciled(machine, &self.assignments, &self.wanted).assignments;
        }
    }

    /// Who has which CPUs now.
    #[must_use]
    pub fn into_assignments(self) -> Assignments {
        self.assignments
    }
}

fn reconciled(machine: &CpuMachine, before: &Assignments, wanted: &[Wanted]) -> crate::cpus::Reconciled {
    let CpuMachine { topology, reserved, offline, options } = machine;
    reconcile(topology, &reserved.union(offline), *options, before, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cpus::LogicalCpu,
        sample::{app, pod as pod_of},
    };

    /// Three cores of two threads each, the first one reserved.
    fn machine(options: CpuOptions) -> CpuMachine {
        let cpu = |cpu: u16| LogicalCpu { cpu, core: u32::from(cpu / 2), socket: 0, numa_node: 0 };
        let topology = Topology::new((0..6).map(cpu)).unwrap();
        let reserved = "0-1".parse().unwrap();
        CpuMachine { topology, reserved, offline: CpuSet::new(), options }
    }

    fn pod(name: &str, cpus: u64) -> Pod {
        let cpus = cpus.to_string();
        let amounts = [("cpu", cpus.as_str()), ("memory", "1Mi")];
        pod_of(name, vec![app("app", &amounts, &amounts)])
    }

    #[test]
    fn a_pod_gets_cpus_while_there_are_some_and_what_is_withdrawn_is_free_again() {
        let cpus = Ok(machine(CpuOptions::default()));
        let mut admitter = CpuAdmitter::new(&cpus, &Assignments::default(), Vec::new());
        let (a, b, c) = (pod("a", 2), pod("b", 2), pod("c", 1));
        admitter.admit(&a).unwrap();
        admitter.admit(&b).unwrap();
        let rejection = admitter.admit(&c).unwrap_err();
        assert_eq!(rejection.reason(), "UnexpectedAdmissionError");
        assert_eq!(
            rejection.message(),
            "Allocate failed due to not enough cpus available to satisfy request: requested=1, available=0, which is unexpected"
        );
        admitter.withdraw(&a);
        admitter.admit(&c).unwrap();
        let assignments = admitter.into_assignments();
        assert_eq!(assignments.get(&a.uid, "app"), None);
        assert_eq!(assignments.get(&b.uid, "app").map(CpuSet::len), Some(2));
        let kept = CpuAdmitter::holders(&assignments, |uid| *uid == b.uid);
        let left = CpuAdmitter::new(&cpus, &assignments, kept).into_assignments();
        assert_eq!(left.get(&b.uid, "app"), assignments.get(&b.uid, "app"));
        assert_eq!(left.get(&c.uid, "app"), None);
    }

    #[test]
    fn whole_cores_alone_are_refused_as_the_kubelet_does() {
        let cpus = Ok(machine(CpuOptions { full_pcpus_only: true, ..CpuOptions::default() }));
        let mut admitter = CpuAdmitter::new(&cpus, &Assignments::default(), Vec::new());
        let rejection = admitter.admit(&pod("a", 3)).unwrap_err();
        assert_eq!(rejection.reason(), "SMTAlignmentError");
        assert_eq!(
            rejection.message(),
            "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
        );
    }

    #[test]
    fn an_offline_cpu_is_given_to_none_and_an_unknown_machine_gives_none() {
        let cpus = Ok(machine(CpuOptions::default()));
        let cpus = cpus.map(|machine| CpuMachine { offline: "2-4".parse().unwrap(), ..machine });
        let mut admitter = CpuAdmitter::new(&cpus, &Assignments::default(), Vec::new());
        assert!(admitter.admit(&pod("a", 2)).is_err());
        admitter.admit(&pod("b", 1)).unwrap();
        let unknown = Err(String::from("no cpuset"));
        let mut admitter = CpuAdmitter::new(&unknown, &Assignments::default(), Vec::new());
        let rejection = admitter.admit(&pod("a", 1)).unwrap_err();
        assert_eq!(
            (rejection.reason().as_ref(), rejection.message().as_str()),
            ("UnexpectedAdmissionError", "Allocate failed due to no cpuset, which is unexpected")
        );
        admitter.admit(&pod_of("shared", vec![app("app", &[], &[])])).unwrap();
    }
}
