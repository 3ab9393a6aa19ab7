//! Containers that are too many to be kept one by one, as a sum.

use std::collections::BTreeMap;

use super::{
    ApiContainer, Resources,
    amounts::{Amounts, read_quantity},
};
use crate::model::Quantity;

/// The most containers in one list that are kept one by one: the others are summed up behind them. Kubernetes has no limit
/// but the size of the object, and a pod must not be spared because it has many.
pub(super) const MOST_CONTAINERS: usize = 32;

/// The names of the containers that stand for those beyond [`MOST_CONTAINERS`]. No container has parentheses.
pub(super) const OTHERS: &str = "(others)";

/// The same for sidecars.
pub(super) const OTHER_SIDECARS: &str = "(other sidecars)";

/// Amounts of several containers.
type Sums = BTreeMap<String, Quantity>;

/// A container's requests; a missing one is its limit.
fn requests(container: ApiContainer) -> Sums {
    let Resources { requests, limits } = container.resources;
    let own: Amounts = limits.into_iter().chain(requests).collect();
    own.into_iter().filter_map(|(name, written)| Some((name, read_quantity(&written)?))).collect()
}

fn add(sums: &mut Sums, amounts: &Sums) {
    for (name, amount) in amounts {
        let sum = sums.entry(name.clone()).or_insert(Quantity::from_units(0));
        *sum = sum.saturating_add(*amount);
    }
}

/// A container that stands for others.
fn standing_for(name: &str, requests: Sums, restart_policy: Option<&str>) -> ApiContainer {
    let requests = requests.into_iter().map(|(name, sum)| (name, sum.to_string())).collect();
    let resources = Resources { requests, limits: Amounts::new() };
    ApiContainer { name: name.to_owned(), resources, restart_policy: restart_policy.map(str::to_owned) }
}

/// Puts the requests of app containers beyond [`MOST_CONTAINERS`] into one: they run at the same time.
pub(super) fn sum_up(containers: &mut Vec<ApiContainer>) {
    if containers.len() > MOST_CONTAINERS {
        let mut sums = Sums::new();
        for container in containers.drain(MOST_CONTAINERS..) {
            add(&mut sums, &requests(container));
        }
        containers.push(standing_for(OTHERS, sums, None));
    }
}

/// The same for init containers. They run one after the other, each beside the sidecars before it, so the most of them
/// counts; the sidecars run on, and their sum counts.
pub(super) fn sum_up_init(containers: &mut Vec<ApiContainer>) {
    if containers.len() <= MOST_CONTAINERS {
        return;
    }
    let (mut most, mut sidecars) = (Sums::new(), Sums::new());
    for container in containers.drain(MOST_CONTAINERS..) {
        let is_sidecar = container.restart_policy.as_deref() == Some("Always");
        let mut own = requests(container);
        if is_sidecar {
            add(&mut sidecars, &own);
            continue;
        }
        add(&mut own, &sidecars);
        for (name, amount) in own {
            let known = most.entry(name).or_insert(amount);
            *known = amount.max(*known);
        }
    }
    containers.push(standing_for(OTHERS, most, None));
    containers.push(standing_for(OTHER_SIDECARS, sidecars, Some("Always")));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::specs::pod::{ApiPod, ContainerStatus};

    /// What is summed up requests as much as it did.
    #[test]
    fn what_is_summed_up_requests_the_same() {
        let container = |number: usize, memory: usize, policy: Option<&str>| ApiContainer {
            name: format!("c{number}"),
            resources: Resources {
                requests: [(String::from("memory"), format!("{memory}Mi"))].into(),
                limits: Amounts::new(),
            },
            restart_policy: policy.map(str::to_owned),
        };
        let metadata = json!({"name": "web", "namespace": "shop", "uid": "u1"});
        let mut pod = ApiPod { metadata: serde_json::from_value(metadata).unwrap(), ..ApiPod::default() };
        pod.spec.init_containers = (0..100)
            .map(|number| container(number, 1 + number * 37 % 101, (number % 7 == 3).then_some("Always")))
            .collect();
        pod.spec.containers = (100..200).map(|number| container(number, 3, None)).collect();
        // The kubelet sorts these by name, and a resize that was not taken is not in them.
        pod.status.container_statuses = (100..200)
            .rev()
            .map(|number| ContainerStatus {
                name: format!("c{number}"),
                allocated_resources: [(String::from("memory"), String::from("2Mi"))].into(),
            })
            .collect();
        let whole = crate::policy::effective::requests(&pod.to_pod().unwrap());
        pod.cut();
        assert_eq!((pod.spec.init_containers.len(), pod.spec.containers.len()), (34, 33));
        assert_eq!(crate::policy::effective::requests(&pod.to_pod().unwrap()), whole);
    }
}
