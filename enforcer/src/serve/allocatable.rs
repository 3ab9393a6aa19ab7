//! What pods and other schedulers may request of the node, and what is requested.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use serde::{Deserialize, Serialize};

use super::{now, rfc3339, server::Shared};
use crate::{
    model::{Node, ResourceList, ResourceName},
    policy::{
        Settings,
        admission::Amounts,
        allocatable,
        order::Moment,
        reservation::{self, Reservation},
    },
};

/// Amounts by key: `cpuMilli`, `memoryBytes`, then others under their own names in base units.
pub type AmountsView = BTreeMap<String, u64>;

/// What the node has and what of it is requested: the answer to `GET /v1/allocatable`.
///
/// `allocatable` is `capacity` less `reserved`, `hardThresholds` and `hugePages`; `free` is `allocatable` less
/// `requested`, and 0 where more is requested.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocatableView {
    /// What the node has.
    pub capacity: AmountsView,
    /// `systemReserved` and `kubeReserved`.
    pub reserved: AmountsView,
    /// The hard eviction thresholds that pods cannot request.
    pub hard_thresholds: AmountsView,
    /// The memory that is taken by huge pages.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub huge_pages: AmountsView,
    /// What may be requested.
    pub allocatable: AmountsView,
    /// What is requested: the next two together.
    pub requested: AmountsView,
    /// What pods request that run, or still hold what they had.
    pub requested_by_pods: AmountsView,
    /// What the reservations take.
    pub requested_by_reservations: AmountsView,
    /// What may be requested now.
    pub free: AmountsView,
    /// The reservations in force.
    pub reservations: Vec<ReservationView>,
}

/// A reservation in force.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationView {
    /// Its name.
    pub name: String,
    /// The amounts as quantities, by resource: `2Gi`, `500m`.
    pub resources: BTreeMap<String, String>,
    /// What it is for.
    pub reason: String,
    /// The user id of who made it.
    pub uid: u32,
    /// When it was made, as RFC 3339.
    pub given: String,
    /// When it ends, as RFC 3339. If the wall clock was set since, this is by the old clock.
    pub until: String,
    /// How long it still held at the time of the answer, in milliseconds.
    pub left_ms: u64,
}

impl ReservationView {
    /// The view of a reservation at time `now`.
    #[must_use]
    pub fn new(reservation: &Reservation, now: Moment) -> Self {
        Self {
            name: reservation.name.clone(),
            resources: reservation::texts(&reservation.resources),
            reason: reservation.reason.clone(),
            uid: reservation.uid,
            given: rfc3339(reservation.given_ms),
            until: rfc3339(reservation.until_ms),
            left_ms: reservation.left_ms(now),
        }
    }
}

/// The key and the unit of a resource.
fn entry(name: &str, of: impl Fn(&str) -> u64) -> (String, u64) {
    let key = match name {
        ResourceName::CPU => "cpuMilli",
        ResourceName::MEMORY => "memoryBytes",
        name => name,
    };
    (key.to_owned(), of(name))
}

fn listed(list: &ResourceList) -> AmountsView {
    let amount = |name: &str| {
        let amount = list.get(name).copied().unwrap_or_default();
        if name == ResourceName::CPU { amount.milli() } else { amount.units() }
    };
    list.keys().map(|name| entry(name.as_str(), amount)).collect()
}

impl AllocatableView {
    /// The view of a node whose pods request that much, with these reservations.
    #[must_use]
    pub fn new(
        (node, settings): (&Node, &Settings),
        pods: &Amounts,
        reservations: &[Reservation],
        now: Moment,
    ) -> Self {
        let capacity = allocatable::capacity(node);
        let requestable = allocatable::requestable(node, settings);
        let reserved = reservation::total(reservations);
        let whole = |amount: u128| u64::try_from(amount).unwrap_or(u64::MAX);
        // Every resource that can be requested; of process ids there are no requests.
        let names = || requestable.keys().map(ResourceName::as_str).filter(|name| *name != allocatable::PID);
        let others = Amounts::from_list(&reserved);
        let of =
            |amounts: &Amounts| names().map(|name| entry(name, |name| whole(amounts.get(name)))).collect();
        let (by_pods, by_reservations): (AmountsView, AmountsView) = (of(pods), of(&others));
        let requested: AmountsView =
            names().map(|name| entry(name, |name| whole(pods.get(name) + others.get(name)))).collect();
        let allocatable = listed(&requestable);
        let left = |(key, has): (&String, &u64)| {
            let taken = requested.get(key)?;
            Some((key.clone(), has.saturating_sub(*taken)))
        };
        let free = allocatable.iter().filter_map(left).collect();
        let huge_bytes = crate::policy::hugepages::total_bytes(&capacity);
        Self {
            reserved: listed(&allocatable::reserved(&capacity, settings)),
            hard_thresholds: listed(&allocatable::hard_thresholds(&capacity, settings)),
            huge_pages: (huge_bytes > 0)
                .then(|| entry(ResourceName::MEMORY, |_| huge_bytes))
                .into_iter()
                .collect(),
            capacity: listed(&capacity),
            allocatable,
            requested,
            requested_by_pods: by_pods,
            requested_by_reservations: by_reservations,
            free,
            reservations: reservations.iter().map(|one| ReservationView::new(one, now)).collect(),
        }
    }
}

/// What [`AllocatableView`] is made of, as the daemon knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Requested {
    /// The node.
    pub node: Node,
    /// What of it pods may have.
    pub settings: Settings,
    /// What pods request.
    pub pods: Amounts,
    /// The reservations in force.
    pub reservations: Vec<Reservation>,
}

pub(super) async fn allocatable(State(shared): State<Shared>) -> Response {
    let view = {
        let Requested { node, settings, pods, reservations } = &*shared.requested.borrow();
        AllocatableView::new((node, settings), pods, reservations, now())
    };
    Json(view).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::Quantity,
        policy::{
            admission::Admitter,
            reservation::{Reservations, Wish},
        },
        sample,
    };

    #[test]
    fn every_amount_follows_from_those_before_it() {
        let mut node = Node::new(4_000, 8 << 30);
        node.other.insert(ResourceName::new("hugepages-2Mi"), Quantity::from_units(1 << 30));
        let amount = |name, quantity| (ResourceName::new(name), quantity);
        let settings = Settings {
            system_reserved: [amount("memory", Quantity::from_units(1 << 30))].into(),
            kube_reserved: [amount("cpu", Quantity::from_milli(500))].into(),
            ..Settings::default()
        };
        let mut admitter = Admitter::new(&node, &settings);
        let pod = sample::pod("a", &["c"]);
        admitter.keep(&pod);
        let pods = admitter.requested_by_pods(&ResourceList::new());
        let mut reservations = Reservations::default();
        let wish = Wish {
            name: String::from("batch"),
            resources: [
                amount("memory", Quantity::from_units(2 << 30)),
                amount("cpu", Quantity::from_milli(250)),
            ]
            .into(),
            reason: String::from("why"),
            for_ms: 60_000,
        };
        let at = Moment { boot_ms: 0, wall_ms: 0 };
        reservations.make(wish, 5, at, (&node, &settings, &pods)).unwrap();
        let view = AllocatableView::new((&node, &settings), &pods, reservations.all(), at);
        let memory = |amounts: &AmountsView| amounts["memoryBytes"];
        let left = memory(&view.capacity)
            - memory(&view.reserved)
            - memory(&view.hard_thresholds)
            - memory(&view.huge_pages);
        assert_eq!(memory(&view.allocatable), left);
        assert_eq!(memory(&view.free), left - memory(&view.requested));
        assert_eq!(memory(&view.requested_by_reservations), 2 << 30);
        assert_eq!((view.reserved["cpuMilli"], view.allocatable["cpuMilli"]), (500, 3_500));
        assert_eq!((view.requested["pods"], view.free["pods"]), (1, node.pods - 1));
        assert_eq!(view.reservations[0].resources["memory"], "2Gi");
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["free"]["cpuMilli"], 3_250, "{json}");
    }
}
