//! Whether a pod may run on the node: `pkg/kubelet/lifecycle/predicate.go`, the scheduler's `Fits` in
//! `pkg/scheduler/framework/plugins/noderesources/fit.go`, and `Admit` of `pkg/kubelet/eviction/eviction_manager.go`.
//!
//! Node affinity, node names, host ports and taints are ignored: they choose among nodes, and here is one.

use std::{borrow::Cow, cell::OnceCell, fmt};

use crate::model::{Node, Pod, PodName, QosClass, ResourceList, TaintEffect};

use self::amounts::Allocatable;
use super::{
    Settings, critical,
    preemption::{self, NoVictims, RequestedBack, Requirement, Requirements},
    qos,
    threshold::NodeCondition,
};

mod amounts;
mod cpus;

pub use self::{
    amounts::{Amounts, Shortage, beyond_free},
    cpus::{CpuAdmitter, CpuMachine, CpuRejection, Cpus, wanted_of},
};

/// The taint of a node under memory pressure, which the control plane sets with the effect `NoSchedule`.
const MEMORY_PRESSURE_TAINT: &str = "node.kubernetes.io/memory-pressure";

/// Whether a pod may run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Admission {
    /// It may run.
    Admitted {
        /// The pods that end for it, the cheapest first; only a critical pod has any.
        preempt: Vec<PodName>,
    },
    /// It may not run.
    Rejected(Rejection),
}

impl Admission {
    /// It may run, and no pod ends for it.
    #[must_use]
    pub fn plain() -> Self {
        Self::Admitted { preempt: Vec::new() }
    }

    /// Whether it may run.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.rejection().is_none()
    }

    /// Why it may not run; `None` if it may.
    #[must_use]
    pub fn rejection(&self) -> Option<&Rejection> {
        match self {
            Self::Admitted { .. } => None,
            Self::Rejected(rejection) => Some(rejection),
        }
    }
}

/// Why a pod may not run. Displays as the kubelet's message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Rejection {
    /// The node has too little left of a resource.
    Insufficient(Shortage),
    /// The node is under pressure, and accepts no such pods meanwhile.
    Condition(Vec<NodeCondition>),
    /// It is critical, but would not fit even if every preemptible pod ended.
    NoVictims(NoVictims),
    /// Its containers do not get the CPUs that they are to have of their own.
    Cpus(CpuRejection),
    /// It made way for a critical pod.
    Preempted,
    /// It ran, and was evicted. The event of its eviction has the kubelet's message.
    Evicted,
}

impl Rejection {
    /// The reason in one word, as in a pod's status.
    #[must_use]
    pub fn reason(&self) -> Cow<'static, str> {
        match self {
            Self::Insufficient(shortage) => Cow::Owned(format!("OutOf{}", shortage.resource)),
            Self::Condition(_) | Self::Evicted => Cow::Borrowed("Evicted"),
            Self::NoVictims(_) => Cow::Borrowed("UnexpectedAdmissionError"),
            Self::Cpus(rejection) => Cow::Borrowed(rejection.reason()),
            Self::Preempted => Cow::Borrowed("Preempting"),
        }
    }

    /// The kubelet's message.
    #[must_use]
    pub fn message(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Insufficient(shortage) => shortage.fmt(formatter),
            Self::Condition(conditions) => {
                let names: Vec<_> = conditions.iter().map(|condition| condition.as_str()).collect();
                write!(formatter, "The node had condition: [{}]. ", names.join(" "))
            }
            Self::NoVictims(error) => write!(
                formatter,
                "Unexpected error while attempting to recover from admission failure: {error}"
            ),
            Self::Cpus(rejection) => rejection.fmt(formatter),
            Self::Preempted => formatter.write_str("Preempted in order to admit critical pod"),
            Self::Evicted => {
                formatter.write_str("The pod stays evicted until its manifest changes or is removed.")
            }
        }
    }
}

/// Whether the node's conditions allow the pod, regardless of free resources (upstream `managerImpl.Admit`).
pub fn under_conditions(pod: &Pod, conditions: &[NodeCondition]) -> Result<(), Rejection> {
    let tolerates = || {
        pod.tolerations
            .iter()
            .any(|toleration| toleration.tolerates(MEMORY_PRESSURE_TAINT, "", TaintEffect::NoSchedule))
    };
    let admitted = match conditions {
        [] => true,
        _ if critical::is_critical(pod) => true,
        [NodeCondition::MemoryPressure] => qos::class(pod) != QosClass::BestEffort || tolerates(),
        _ => false,
    };
    if admitted { Ok(()) } else { Err(Rejection::Condition(conditions.to_vec())) }
}

/// The index of a pod in the order in which an [`Admitter`] got them, from 0.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Place(pub usize);

/// The node's free resources, as pods are admitted one by one.
#[derive(Clone, Debug)]
pub struct Admitter<'pod> {
    allocatable: Allocatable,
    used: Amounts,
    /// Every pod by its place; `None` if it does not run.
    running: Vec<Option<Running<'pod>>>,
}

/// A pod that counts.
#[derive(Clone, Debug)]
struct Running<'pod> {
    pod: &'pod Pod,
    amounts: Amounts,
    /// Computed when first needed for a critical pod.
    standing: OnceCell<RequestedBack>,
}

impl Running<'_> {
    fn standing(&self) -> &RequestedBack {
        self.standing.get_or_init(|| RequestedBack::of(self.pod))
    }
}

impl<'pod> Admitter<'pod> {
    /// A node without pods.
    #[must_use]
    pub fn new(node: &Node, settings: &Settings) -> Self {
        Self { allocatable: Allocatable::new(node, settings), used: Amounts::default(), running: Vec::new() }
    }

    /// Counts a pod that runs already, without checking whether it fits.
    pub fn keep(&mut self, pod: &'pod Pod) -> Place {
        let amounts = Amounts::of(pod);
        self.count(pod, amounts)
    }

    /// Stops counting a pod.
    pub fn end(&mut self, place: Place) {
        if let Some(running) = self.running.get_mut(place.0).and_then(Option::take) {
            self.used.remove(&running.amounts);
        }
    }

    /// Counts the resources of a pod that is not admitted or not running but still holds them; it cannot be preempted
    /// to free them.
    pub fn occupy(&mut self, pod: &Pod) {
        self.used.add(&Amounts::of(pod));
    }

    /// Counts what is reserved for others than pods; no pod can be preempted to free it.
    pub fn reserve(&mut self, reserved: &ResourceList) {
        self.used.add(&Amounts::from_list(reserved));
    }

    /// What all pods that count request together, without what is reserved for others: the same that was given to
    /// [`Self::reserve`].
    #[must_use]
    pub fn requested_by_pods(&self, reserved: &ResourceList) -> Amounts {
        let mut pods = self.used.clone();
        pods.remove(&Amounts::from_list(reserved));
        pods
    }

    /// Reverts [`Self::occupy`].
    pub fn vacate(&mut self, pod: &Pod) {
        self.used.remove(&Amounts::of(pod));
    }

    /// Decides on a pod, and counts nothing yet. Returns the pods that must end for it, the cheapest first.
    pub fn decide(&self, pod: &Pod, conditions: &[NodeCondition]) -> Result<Vec<Place>, Rejection> {
        under_conditions(pod, conditions).and_then(|()| self.fit(pod))
    }

    /// Decides on a pod, and counts it if it is admitted. Returns the pods that end for it, the cheapest first; they no
    /// longer count.
    pub fn admit(&mut self, pod: &'pod Pod, conditions: &[NodeCondition]) -> Result<Vec<Place>, Rejection> {
        let decided = self.decide(pod, conditions);
        match &decided {
            Ok(victims) => {
                for victim in victims {
                    self.end(*victim);
                }
                self.keep(pod);
            }
            Err(_) => self.running.push(None),
        }
        decided
    }

    /// Counts a pod that is rejected for another reason, so that places stay those of the pods.
    fn leave_out(&mut self, rejection: Rejection) -> Rejection {
        self.running.push(None);
        rejection
    }

    /// All resources that the node has too little of for the pod, in the order of upstream's `Fits`: pods, cpu, memory,
    /// ephemeral storage, then the others by name.
    #[must_use]
    pub fn shortages(&self, pod: &Pod) -> Vec<Shortage> {
        self.allocatable.shortages(&self.used, &self.allocatable.known(pod))
    }

    /// Makes room for the pod if necessary (upstream `HandleAdmissionFailure`): only for a critical one, at the expense
    /// of others.
    fn fit(&self, pod: &Pod) -> Result<Vec<Place>, Rejection> {
        let mut shortages = self.shortages(pod);
        if shortages.is_empty() {
            return Ok(Vec::new());
        }
        if !critical::is_critical(pod) {
            return Err(Rejection::Insufficient(shortages.swap_remove(0)));
        }
        let requirements = Requirements::new(
            shortages
                .into_iter()
                .map(|shortage| Requirement { quantity: shortage.lacking(), resource: shortage.resource }),
        );
        let (places, candidates): (Vec<_>, Vec<_>) = self
            .running
            .iter()
            .enumerate()
            .filter_map(|(place, running)| Some((Place(place), running.as_ref()?)))
            .filter(|(_, running)| critical::may_preempt(pod, running.pod))
            .map(|(place, running)| (place, running.standing()))
            .unzip();
        let victims = preemption::victims(&candidates, &requirements).map_err(Rejection::NoVictims)?;
        Ok(victims.into_iter().filter_map(|victim| places.get(victim).copied()).collect())
    }

    fn count(&mut self, pod: &'pod Pod, amounts: Amounts) -> Place {
        self.used.add(&amounts);
        self.running.push(Some(Running { pod, amounts, standing: OnceCell::new() }));
        Place(self.running.len() - 1)
    }
}

/// Decides on all pods in their order; those that end for a later critical one are rejected as preempted.
#[must_use]
pub fn admit_all(
    node: &Node,
    settings: &Settings,
    conditions: &[NodeCondition],
    pods: &[Pod],
) -> Vec<Admission> {
    admit_all_beside(node, settings, conditions, pods, &mut None)
}

/// [`admit_all`] where containers may get CPUs of their own. As in the kubelet, that is decided before what else fits; pods
/// that end later keep theirs until they are gone.
#[must_use]
pub fn admit_all_beside(
    node: &Node,
    settings: &Settings,
    conditions: &[NodeCondition],
    pods: &[Pod],
    cpus: &mut Option<CpuAdmitter<'_>>,
) -> Vec<Admission> {
    let mut admitter = Admitter::new(node, settings);
    let mut admissions: Vec<Admission> = Vec::with_capacity(pods.len());
    for pod in pods {
        let with_cpus = under_conditions(pod, conditions)
            .and_then(|()| cpus.as_mut().map_or(Ok(()), |cpus| cpus.admit(pod)));
        let outcome = match with_cpus {
            Ok(()) => admitter.admit(pod, conditions),
            Err(rejection) => Err(admitter.leave_out(rejection)),
        };
        if outcome.is_err()
            && let Some(cpus) = cpus.as_mut()
        {
            cpus.withdraw(pod);
        }
        let admission = match outcome {
            Ok(victims) => {
                for victim in &victims {
                    if let Some(admission) = admissions.get_mut(victim.0) {
                        *admission = Admission::Rejected(Rejection::Preempted);
                    }
                }
                let names = victims.iter().filter_map(|victim| Some(pods.get(victim.0)?.name.clone()));
                Admission::Admitted { preempt: names.collect() }
            }
            Err(rejection) => Admission::Rejected(rejection),
        };
        admissions.push(admission);
    }
    admissions
}

#[cfg(test)]
mod tests;
