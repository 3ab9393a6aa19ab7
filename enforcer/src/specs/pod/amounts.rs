//! Amounts of resources as they are written, which a pod's author chooses: cut to what decides, and read.

use std::collections::BTreeMap;

use super::InvalidPod;
use crate::model::{ParseQuantityError, Quantity, ResourceList, ResourceName};

/// The most page sizes of huge pages whose amounts are kept.
const MOST_PAGE_SIZES: usize = 4;

/// The longest name of an amount of huge pages. A size can be written with any number of zeros before it.
const MOST_PAGE_SIZE_BYTES: usize = 24;

/// The longest amount that is kept as it is written, which may be with any number of zeros before it. No number needs more.
const MOST_QUANTITY_BYTES: usize = 32;

/// What the amounts of huge pages are called, with their size behind it.
const HUGEPAGES: &str = "hugepages-";

/// Quantities by resource, as they are written.
pub(crate) type Amounts = BTreeMap<String, String>;

/// Replaces requests by what is allocated for them.
pub(super) fn allocate(requests: &mut ResourceList, allocated: &Amounts) -> Result<(), InvalidPod> {
    for (name, quantity) in &read_list(allocated)? {
        requests.insert(name.clone(), *quantity);
    }
    Ok(())
}

pub(super) fn read_list(amounts: &Amounts) -> Result<ResourceList, InvalidPod> {
    let mut list = ResourceList::new();
    for (name, written) in amounts {
        let quantity = read_quantity(written).filter(|quantity| !quantity.is_negative());
        let quantity =
            quantity.ok_or_else(|| InvalidPod::Quantity { resource: name.chars().take(63).collect() })?;
        list.insert(ResourceName::new(name), quantity);
    }
    Ok(list)
}

/// The API server takes larger numbers than there are: such a one is the largest.
pub(super) fn read_quantity(written: &str) -> Option<Quantity> {
    match written.parse::<Quantity>() {
        Ok(quantity) => Some(quantity),
        Err(ParseQuantityError::TooLarge { .. }) => Some(Quantity::from_units(i64::MAX.unsigned_abs())),
        Err(_) => None,
    }
}

/// Leaves the resources that decide here, and writes long amounts anew: a pod that is too large for its zeros would be left out, and
/// so spared.
pub(super) fn keep_what_decides(amounts: &mut Amounts) {
    let mut page_sizes = 0;
    amounts.retain(|name, _| match name.as_str() {
        ResourceName::CPU | ResourceName::MEMORY | ResourceName::EPHEMERAL_STORAGE => true,
        name if name.starts_with(HUGEPAGES) && name.len() <= MOST_PAGE_SIZE_BYTES => {
            page_sizes += 1;
            page_sizes <= MOST_PAGE_SIZES
        }
        _ => false,
    });
    for written in amounts.values_mut().filter(|written| written.len() > MOST_QUANTITY_BYTES) {
        // What is no amount stays none.
        *written = read_quantity(written).map(|quantity| quantity.to_string()).unwrap_or_default();
    }
}
