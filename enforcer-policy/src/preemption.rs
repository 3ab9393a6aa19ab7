//! Which pods end so that a critical one fits: `pkg/kubelet/preemption/preemption.go`.

use std::{collections::BTreeMap, fmt};

use crate::model::{Pod, QosClass, ResourceName};

use super::{allocatable::PODS, effective, qos};

/// A missing resource of a pod, and its amount: cpu in thousandths, others in base units.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Requirement {
    /// The resource; `pods` for the pod's own place.
    pub resource: ResourceName,
    /// The amount missing, above 0.
    pub quantity: u128,
}

/// The missing resources of a pod, in the order in which they were found (upstream `admissionRequirementList`).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Requirements(Vec<Requirement>);

/// No set of preemptible pods frees enough.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: {lacking}"
)]
pub struct NoVictims {
    /// What would still be missing if all of them ended.
    pub lacking: Requirements,
}

/// What a pod would free: its class determines its cost, its requests how much it helps.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RequestedBack {
    qos_class: QosClass,
    /// As upstream `GetResourceRequest` counts them: cpu in thousandths, others in base units.
    requests: BTreeMap<ResourceName, u64>,
}

impl RequestedBack {
    /// What this pod would free.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let requests = effective::ranking_requests(pod)
            .into_iter()
            .map(|(name, quantity)| {
                let amount =
                    if name.as_str() == ResourceName::CPU { quantity.milli() } else { quantity.units() };
                (name, amount)
            })
            .collect();
        Self { qos_class: qos::class(pod), requests }
    }

    /// How much of a resource it frees; of `pods` its own place.
    #[must_use]
    pub fn request(&self, resource: &str) -> u64 {
        if resource == PODS { 1 } else { self.requests.get(resource).copied().unwrap_or(0) }
    }

    /// Whether it requests no more than the other, by memory, then by cpu (upstream `smallerResourceRequest`). True for
    /// equal requests.
    #[must_use]
    pub fn requests_no_more_than(&self, other: &Self) -> bool {
        let key =
            |standing: &Self| (standing.request(ResourceName::MEMORY), standing.request(ResourceName::CPU));
        key(self) <= key(other)
    }
}

impl Requirements {
    /// These resources, in that order; entries of 0 are dropped.
    #[must_use]
    pub fn new(requirements: impl IntoIterator<Item = Requirement>) -> Self {
        Self(requirements.into_iter().filter(|requirement| requirement.quantity > 0).collect())
    }

    /// Whether nothing is missing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The missing resources.
    pub fn iter(&self) -> impl Iterator<Item = &Requirement> {
        self.0.iter()
    }

    /// What is still missing after those pods have ended (upstream `subtract`).
    #[must_use]
    pub fn without<'pod>(&self, pods: impl IntoIterator<Item = &'pod RequestedBack>) -> Self {
        let mut left = self.0.clone();
        for pod in pods {
            for requirement in &mut left {
                let request = pod.request(requirement.resource.as_str());
                requirement.quantity = requirement.quantity.saturating_sub(request.into());
            }
            left.retain(|requirement| requirement.quantity > 0);
            if left.is_empty() {
                break;
            }
        }
        Self(left)
    }

    /// How far a pod is from meeting all of it: the sum of the squared shares that would still be missing (upstream
    /// `distance`). 0 means that it meets everything.
    #[must_use]
    pub fn distance(&self, pod: &RequestedBack) -> f64 {
        self.0.iter().fold(0.0, |sum, requirement| {
            let request = u128::from(pod.request(requirement.resource.as_str()));
            let share = float(requirement.quantity.saturating_sub(request)) / float(requirement.quantity);
            sum + share * share
        })
    }
}

/// As in the kubelet's message: `[(res: cpu, q: 100), ]`.
impl fmt::Display for Requirements {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[")?;
        for Requirement { resource, quantity } in &self.0 {
            write!(formatter, "(res: {resource}, q: {quantity}), ")?;
        }
        formatter.write_str("]")
    }
}

#[expect(clippy::cast_precision_loss, reason = "the kubelet's own arithmetic, float64(int64)")]
fn float(quantity: u128) -> f64 {
    quantity as f64
}

/// Chooses the pods that must end so that nothing in `requirements` is missing, as indexes into `candidates` (upstream
/// `getPodsToPreempt`). All candidates must be preemptible.
///
/// Guaranteed pods are chosen only for what all Burstable and BestEffort ones together cannot free, and Burstable ones
/// only for what BestEffort ones and those Guaranteed pods cannot. The cheap classes come first in the result.
pub fn victims(candidates: &[&RequestedBack], requirements: &Requirements) -> Result<Vec<usize>, NoVictims> {
    let of_class = |class| -> Vec<usize> {
        let places = candidates.iter().enumerate();
        places.filter(|(_, pod)| pod.qos_class == class).map(|(place, _)| place).collect()
    };
    let (best_effort, burstable, guaranteed) =
        (of_class(QosClass::BestEffort), of_class(QosClass::Burstable), of_class(QosClass::Guaranteed));
    let left = |first: &[usize], second: &[usize]| {
        requirements.without(first.iter().chain(second).filter_map(|&place| candidates.get(place).copied()))
    };
    let lacking = requirements.without(candidates.iter().copied());
    if !lacking.is_empty() {
        return Err(NoVictims { lacking });
    }
    let from_guaranteed = by_distance(candidates, guaranteed, left(&best_effort, &burstable))?;
    let from_burstable = by_distance(candidates, burstable, left(&best_effort, &from_guaranteed))?;
    let mut victims = by_distance(candidates, best_effort, left(&from_burstable, &from_guaranteed))?;
    victims.extend(from_burstable);
    victims.extend(from_guaranteed);
    Ok(victims)
}

/// Chooses the nearest pod until nothing is missing; of equally near ones the smallest, of equally small ones the last
/// (upstream `getPodsToPreemptByDistance`; the swap keeps its order after each choice).
fn by_distance(
    candidates: &[&RequestedBack],
    mut places: Vec<usize>,
    mut lacking: Requirements,
) -> Result<Vec<usize>, NoVictims> {
    let mut taken = Vec::new();
    while !lacking.is_empty() {
        let mut best: Option<(usize, f64, &RequestedBack)> = None;
        for (index, &place) in places.iter().enumerate() {
            let Some(&pod) = candidates.get(place) else { continue };
            let distance = lacking.distance(pod);
            let better = best.is_none_or(|(_, least, nearest)| {
                // Both come from the same sums: equal pods have bitwise equal distances.
                distance < least || (distance.total_cmp(&least).is_eq() && pod.requests_no_more_than(nearest))
            });
            if better {
                best = Some((index, distance, pod));
            }
        }
        let Some((index, _, pod)) = best else { return Err(NoVictims { lacking }) };
        lacking = lacking.without([pod]);
        taken.push(places.swap_remove(index));
    }
    Ok(taken)
}

#[cfg(test)]
mod tests;
