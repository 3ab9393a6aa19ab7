//! Huge pages: resources `hugepages-<size>`, files `hugetlb.<size>.max`.

use std::collections::BTreeMap;

use crate::model::{Quantity, ResourceList};

/// How the resources of huge pages begin.
pub(crate) const PREFIX: &str = "hugepages-";

/// The amount in bytes per page size in bytes; sizes that are not a positive number of bytes are left out, and two
/// names of the same size are added up (upstream `HugePageLimits` in `pkg/kubelet/cm/helpers_linux.go`).
#[must_use]
pub fn by_page_bytes(list: &ResourceList) -> BTreeMap<u64, u64> {
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for (name, amount) in list {
        let size = name.as_str().strip_prefix(PREFIX).and_then(|size| size.parse::<Quantity>().ok());
        if let Some(page_bytes) = size.map(Quantity::units).filter(|&bytes| bytes > 0) {
            let sum = sizes.entry(page_bytes).or_default();
            *sum = sum.saturating_add(amount.units());
        }
    }
    sizes
}

/// The amount of huge pages of all sizes in bytes; a name counts whatever its size (upstream `IsHugePageResourceName`).
#[must_use]
pub fn total_bytes(list: &ResourceList) -> u64 {
    list.iter()
        .filter(|(name, _)| name.as_str().starts_with(PREFIX))
        .fold(0, |sum: u64, (_, amount)| sum.saturating_add(amount.units()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::model::ResourceName;

    /// `pkg/kubelet/cm/helpers_linux_test.go`, `TestHugePageLimits`.
    #[rstest]
    #[case(&[("2Mi", "128")], &[])]
    #[case(&[("hugepages-2Mi", "128")], &[(2_097_152, 128)])]
    #[case(
        &[("hugepages-2Mi", "128"), ("hugepages-2097152", "256"), ("hugepages-4Mi", "512"), ("4Mi", "1024")],
        &[(2_097_152, 384), (4_194_304, 512)]
    )]
    #[case(&[("hugepages-", "1"), ("hugepages-0", "1"), ("hugepages--2Mi", "1"), ("hugepages-2MB", "1")], &[])]
    fn sizes_are_reported_apart(#[case] list: &[(&str, &str)], #[case] expected: &[(u64, u64)]) {
        let list = list.iter().map(|(name, text)| (ResourceName::new(name), text.parse().unwrap())).collect();
        assert_eq!(by_page_bytes(&list), expected.iter().copied().collect());
    }
}
