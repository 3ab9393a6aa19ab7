//! Reservations of allocatable resources for others than pods: another scheduler on the machine runs its own work in
//! them.
//!
//! A reservation counts as requested when pods are admitted, and is made only of what they leave free: neither side can
//! give away what the other has. It ends by itself, so that a scheduler that is gone holds nothing for ever. Its time
//! runs like that of an [order](crate::order).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    admission::{Amounts, Shortage, beyond_free},
    hugepages, lists,
    model::{Node, ParseQuantityError, Quantity, ResourceList, ResourceName},
    order::{self, Moment, OrderError},
    settings::Settings,
};

/// The longest duration of a reservation.
pub const MAX_FOR_MS: u64 = 7 * 24 * 60 * 60 * 1_000;

/// The shortest duration of a reservation.
pub const MIN_FOR_MS: u64 = 1_000;

/// The most reservations at a time.
pub const MAX_RESERVATIONS: usize = 256;

/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 63;

/// The most resources of one reservation.
const MAX_RESOURCES: usize = 16;

/// The longest name of a resource, in bytes: a DNS subdomain, a slash and a label.
const MAX_RESOURCE_BYTES: usize = 317;

/// A reservation in force.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reservation {
    /// Its name, by which it is ended, and made again.
    pub name: String,
    /// The amounts, all above 0.
    #[serde(with = "as_text")]
    pub resources: ResourceList,
    /// What it is for.
    pub reason: String,
    /// The user id of who made it.
    pub uid: u32,
    /// When it was made, in milliseconds since 1970.
    pub given_ms: u64,
    /// When it ends, by the wall clock at the time it was made.
    pub until_ms: u64,
    /// When it ends, in milliseconds of `CLOCK_BOOTTIME`; this is decisive until the machine reboots.
    pub until_boot_ms: u64,
}

impl Reservation {
    /// How much longer it is in force, in milliseconds.
    #[must_use]
    pub fn left_ms(&self, now: Moment) -> u64 {
        self.until_boot_ms.saturating_sub(now.boot_ms)
    }

    fn for_ms(&self) -> u64 {
        self.until_ms.saturating_sub(self.given_ms)
    }
}

/// What somebody asks for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Wish {
    /// The reservation's name.
    pub name: String,
    /// The amounts, all above 0.
    pub resources: ResourceList,
    /// What it is for.
    pub reason: String,
    /// How long it is to hold.
    pub for_ms: u64,
}

/// Why a reservation is refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ReservationError {
    /// Its name is not possible.
    #[error(
        "a reservation's name has 1 to {MAX_NAME_BYTES} letters, digits and -_., and begins with a letter or digit"
    )]
    Name,
    /// It has no meaningful reason.
    #[error(transparent)]
    Reason(#[from] OrderError),
    /// Its duration is out of range.
    #[error("a reservation holds for 1s to 168h, and can be made again")]
    Time,
    /// No amount is above 0.
    #[error("reserve some of a resource, such as memory or cpu")]
    Nothing,
    /// It names too many resources.
    #[error("a reservation has at most {MAX_RESOURCES} resources")]
    TooMuch,
    /// Pods cannot request that resource, so it cannot be reserved.
    #[error(
        "{0:?} cannot be reserved: name cpu, memory, ephemeral-storage, hugepages-SIZE or an extended resource"
    )]
    Resource(String),
    /// An amount is no quantity.
    #[error("{resource}: {source}")]
    Quantity {
        /// The resource.
        resource: String,
        /// What is wrong with it.
        source: ParseQuantityError,
    },
    /// An amount is below 0.
    #[error("{0}: an amount to reserve is not below 0")]
    Negative(String),
    /// Too many reservations are in force.
    #[error("{MAX_RESERVATIONS} reservations are in force already: release some first")]
    TooMany,
    /// More is asked for than is free.
    #[error("{}", not_free(.0))]
    NotFree(Vec<Shortage>),
}

fn not_free(shortages: &[Shortage]) -> String {
    let of = |shortage: &Shortage| {
        let name = shortage.resource.as_str();
        let free = shortage.capacity.saturating_sub(shortage.used);
        format!(
            "{} of {name} are asked for and {} are free (allocatable {}, requested {})",
            amount(name, shortage.requested),
            amount(name, free),
            amount(name, shortage.capacity),
            amount(name, shortage.used)
        )
    };
    shortages.iter().map(of).collect::<Vec<_>>().join("; ")
}

fn amount(name: &str, amount: u128) -> String {
    let whole = u64::try_from(amount).unwrap_or(u64::MAX);
    if name == ResourceName::CPU {
        Quantity::from_milli(whole).to_string()
    } else {
        shown(name, Quantity::from_units(whole))
    }
}

/// A quantity as Kubernetes writes that of this resource.
fn shown(name: &str, quantity: Quantity) -> String {
    let is_bytes = matches!(name, ResourceName::MEMORY | ResourceName::EPHEMERAL_STORAGE)
        || name.starts_with(hugepages::PREFIX);
    if is_bytes { quantity.binary_si().to_string() } else { quantity.to_string() }
}

/// The amounts as text, by resource name: `2Gi`, `500m`.
#[must_use]
pub fn texts(resources: &ResourceList) -> BTreeMap<String, String> {
    resources.iter().map(|(name, &amount)| (name.to_string(), shown(name.as_str(), amount))).collect()
}

/// Reads amounts; those of 0 are left out.
pub fn amounts(texts: &BTreeMap<String, String>) -> Result<ResourceList, ReservationError> {
    if texts.len() > MAX_RESOURCES {
        return Err(ReservationError::TooMuch);
    }
    let mut amounts = ResourceList::new();
    for (resource, text) in texts {
        if !is_reservable(resource) {
            return Err(ReservationError::Resource(resource.chars().take(MAX_RESOURCE_BYTES).collect()));
        }
        let quantity: Quantity = text
            .parse()
            .map_err(|source| ReservationError::Quantity { resource: resource.clone(), source })?;
        if quantity.is_negative() {
            return Err(ReservationError::Negative(resource.clone()));
        }
        if quantity.is_positive() {
            amounts.insert(ResourceName::new(resource), quantity);
        }
    }
    if amounts.is_empty() { Err(ReservationError::Nothing) } else { Ok(amounts) }
}

/// Whether admission counts the resource, other than by the pod.
fn is_reservable(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    name.len() <= MAX_RESOURCE_BYTES
        && name.bytes().all(is_plain)
        && (matches!(name, ResourceName::CPU | ResourceName::MEMORY | ResourceName::EPHEMERAL_STORAGE)
            || name.starts_with(hugepages::PREFIX)
            || name.contains('/'))
}

/// Whether a reservation may have that name.
pub fn check_name(name: &str) -> Result<(), ReservationError> {
    let is_bounded = (1..=MAX_NAME_BYTES).contains(&name.len());
    let begins = name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if is_bounded && begins && is_plain { Ok(()) } else { Err(ReservationError::Name) }
}

impl Wish {
    fn check(&self) -> Result<(), ReservationError> {
        check_name(&self.name)?;
        order::check_reason(&self.reason)?;
        if !(MIN_FOR_MS..=MAX_FOR_MS).contains(&self.for_ms) {
            return Err(ReservationError::Time);
        }
        let is_something = self.resources.values().any(|amount| amount.is_positive());
        if is_something { Ok(()) } else { Err(ReservationError::Nothing) }
    }
}

/// The reservations in force, in the order in which they were made.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reservations(Vec<Reservation>);

impl Reservations {
    /// Restores the reservations that were in force before a restart, and returns those that are over. `same_boot`:
    /// the machine has not rebooted since.
    #[must_use]
    pub fn resume(kept: Vec<Reservation>, same_boot: bool, now: Moment) -> (Self, Vec<Reservation>) {
        let (mut reservations, mut over) = (Self::default(), Vec::new());
        for mut kept in kept {
            let times = (kept.given_ms, kept.until_ms, kept.until_boot_ms);
            let left_ms = order::resumed_left_ms(times, same_boot, now);
            kept.until_boot_ms = now.boot_ms.saturating_add(left_ms);
            let wish = Wish {
                name: kept.name.clone(),
                resources: kept.resources.clone(),
                reason: kept.reason.clone(),
                for_ms: kept.for_ms(),
            };
            let is_new = reservations.find(&kept.name).is_none();
            if left_ms > 0 && is_new && wish.check().is_ok() && reservations.0.len() < MAX_RESERVATIONS {
                reservations.0.push(kept);
            } else {
                over.push(kept);
            }
        }
        (reservations, over)
    }

    /// Makes a reservation, if the node has that much free beside what its pods request; it replaces one of the same
    /// name.
    pub fn make(
        &mut self,
        wish: Wish,
        uid: u32,
        now: Moment,
        (node, settings, pods): (&Node, &Settings, &Amounts),
    ) -> Result<Reservation, ReservationError> {
        wish.check()?;
        if self.find(&wish.name).is_none() && self.0.len() >= MAX_RESERVATIONS {
            return Err(ReservationError::TooMany);
        }
        let others = total(self.0.iter().filter(|reservation| reservation.name != wish.name));
        let shortages = beyond_free(node, settings, (pods, &others), &wish.resources);
        if !shortages.is_empty() {
            return Err(ReservationError::NotFree(shortages));
        }
        let Wish { name, resources, reason, for_ms } = wish;
        let reservation = Reservation {
            name,
            resources,
            reason: reason.trim().to_owned(),
            uid,
            given_ms: now.wall_ms,
            until_ms: now.wall_ms.saturating_add(for_ms),
            until_boot_ms: now.boot_ms.saturating_add(for_ms),
        };
        self.0.retain(|before| before.name != reservation.name);
        self.0.push(reservation.clone());
        Ok(reservation)
    }

    /// Ends a reservation before its time; `None` if it is not in force.
    pub fn release(&mut self, name: &str) -> Option<Reservation> {
        let place = self.0.iter().position(|reservation| reservation.name == name)?;
        Some(self.0.remove(place))
    }

    /// Ends the expired reservations, and returns them.
    pub fn expire(&mut self, now: Moment) -> Vec<Reservation> {
        let (over, kept) = std::mem::take(&mut self.0).into_iter().partition(|one| one.left_ms(now) == 0);
        self.0 = kept;
        over
    }

    /// How long until the next reservation ends, in milliseconds.
    #[must_use]
    pub fn next_end_ms(&self, now: Moment) -> Option<u64> {
        self.0.iter().map(|reservation| reservation.left_ms(now)).min()
    }

    /// The reservation of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Reservation> {
        self.0.iter().find(|reservation| reservation.name == name)
    }

    /// All reservations in force.
    #[must_use]
    pub fn all(&self) -> &[Reservation] {
        &self.0
    }

    /// What they take together.
    #[must_use]
    pub fn total(&self) -> ResourceList {
        total(&self.0)
    }
}

/// What reservations take together.
#[must_use]
pub fn total<'a>(reservations: impl IntoIterator<Item = &'a Reservation>) -> ResourceList {
    let mut sum = ResourceList::new();
    for reservation in reservations {
        lists::add(&mut sum, &reservation.resources);
    }
    sum
}

/// Amounts as text in files.
mod as_text {
    use std::collections::BTreeMap;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, de::Error as _};

    use crate::model::ResourceList;

    pub(super) fn serialize<S: Serializer>(list: &ResourceList, serializer: S) -> Result<S::Ok, S::Error> {
        super::texts(list).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ResourceList, D::Error> {
        super::amounts(&BTreeMap::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests;
