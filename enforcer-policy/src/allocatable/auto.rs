//! What is reserved for a node's own daemons where it was not measured: by the published formula of Google Kubernetes Engine
//! ("Plan GKE Standard node sizes", memory and CPU reservations).

use crate::model::{Quantity, ResourceList, ResourceName};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Below this much memory, [`SMALL_RESERVED_BYTES`] is reserved.
const SMALL_BYTES: u64 = GIB;
const SMALL_RESERVED_BYTES: u64 = 255 * MIB;

/// Shares of the memory up to each size, in percent.
const MEMORY: [(u64, u64); 5] = [(4 * GIB, 25), (8 * GIB, 20), (16 * GIB, 10), (128 * GIB, 6), (u64::MAX, 2)];

/// Shares of the CPUs up to each number of thousandths, in hundredths of a percent.
const CPU: [(u64, u64); 4] = [(1_000, 600), (2_000, 100), (4_000, 50), (u64::MAX, 25)];

/// What is reserved of a node with this capacity. A resource that the capacity lacks is not reserved.
pub(super) fn reserved(capacity: &ResourceList) -> ResourceList {
    let memory =
        capacity.get(ResourceName::MEMORY).map(|has| Quantity::from_units(memory_bytes(has.units())));
    let cpu = capacity.get(ResourceName::CPU).map(|has| Quantity::from_milli(cpu_milli(has.milli())));
    let named = [(ResourceName::MEMORY, memory), (ResourceName::CPU, cpu)];
    named.into_iter().filter_map(|(name, amount)| Some((ResourceName::new(name), amount?))).collect()
}

fn memory_bytes(has: u64) -> u64 {
    // Never more than the node has.
    if has < SMALL_BYTES { SMALL_RESERVED_BYTES.min(has) } else { shares(has, &MEMORY, 100) }
}

fn cpu_milli(has: u64) -> u64 {
    shares(has, &CPU, 10_000)
}

/// The sum of the shares of each step, rounded up.
fn shares(has: u64, steps: &[(u64, u64)], whole: u64) -> u64 {
    let mut below = 0;
    let mut sum = 0_u128;
    for (end, share) in steps {
        sum += u128::from(has.min(*end).saturating_sub(below)) * u128::from(*share);
        below = *end;
    }
    u64::try_from(sum.div_ceil(u128::from(whole))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    // Examples of the formula's page, and the edges of its steps.
    #[rstest]
    #[case(0, 0)]
    #[case(128 * MIB, 128 * MIB)]
    #[case(GIB - 1, 255 * MIB)]
    #[case(GIB, 256 * MIB)]
    #[case(4 * GIB, GIB)]
    #[case(8 * GIB, GIB + 4 * GIB / 5)]
    #[case(16 * GIB, (26 * GIB).div_ceil(10))]
    #[case(128 * GIB, (932 * GIB).div_ceil(100))]
    #[case(256 * GIB, (1_188 * GIB).div_ceil(100))]
    fn memory_by_size(#[case] has: u64, #[case] reserved: u64) {
        let near = |left: u64, right: u64| left.abs_diff(right) <= 1;
        assert!(near(memory_bytes(has), reserved), "{} of {has}, not {reserved}", memory_bytes(has));
    }

    #[rstest]
    #[case(0, 0)]
    #[case(1_000, 60)]
    #[case(2_000, 70)]
    #[case(4_000, 80)]
    #[case(8_000, 90)]
    #[case(64_000, 230)]
    fn cpu_by_number(#[case] has: u64, #[case] reserved: u64) {
        assert_eq!(cpu_milli(has), reserved);
    }

    proptest! {
        #[test]
        fn it_grows_with_the_node_and_is_less(has: u64, more: u64) {
            for reserved in [memory_bytes, cpu_milli] {
                prop_assert!(reserved(has) <= has);
                // One GiB less a byte has 255 MiB reserved, and one GiB 256.
                prop_assert!(reserved(has) <= reserved(has.max(more)));
            }
        }
    }

    #[test]
    fn only_what_the_node_has_is_reserved() {
        assert!(reserved(&ResourceList::new()).is_empty());
    }
}
