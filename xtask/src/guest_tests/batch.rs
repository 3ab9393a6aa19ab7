//! Which tests run together in one guest, and in which order guests start.
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    guest::{Init, kernel::KernelName},
    guest_tests::{
        MEMORY_MIB, NODE_MEMORY_MIB,
        tier::{GuestTest, Need, Tier},
    },
};

/// No guest runs more tests than this, so that no guest runs long after the others have ended.
const MOST_TESTS: usize = 30;

/// About how long a test takes, of a tier that runs on every kernel, and of another.
const KERNEL_WEIGHT: usize = 3;
const OTHER_WEIGHT: usize = 5;

/// The tests of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) kernel: KernelName,
    pub(crate) need: Need,
    /// The kernel, and what distinguishes it from that kernel's other batches.
    pub(crate) name: String,
    pub(crate) tests: Vec<String>,
}

impl Batch {
    /// The memory of its guest.
    pub(crate) fn memory_mib(&self) -> u32 {
        if self.need.init == Init::Kube { NODE_MEMORY_MIB } else { MEMORY_MIB }
    }
}

/// The batches in which tests run on some kernels, in the order in which they start. On `whole` kernels every test
/// runs, on the others only tests of the tier `kernel`.
pub(crate) fn batches(tests: &[GuestTest], kernels: &[KernelName], whole: &[KernelName]) -> Vec<Batch> {
    let mut groups: BTreeMap<(KernelName, Need), Vec<&GuestTest>> = BTreeMap::new();
    for kernel in kernels {
        for test in tests.iter().filter(|test| test.tier == Tier::Kernel || whole.contains(kernel)) {
            for need in test.tier.needs() {
                groups.entry((*kernel, need)).or_default().push(test);
            }
        }
    }
    let mut batches = Vec::new();
    for ((kernel, need), tests) in groups {
        // A node takes minutes to be Ready: there is one.
        let most = if need.init == Init::Kube { tests.len() } else { MOST_TESTS };
        let shares = shares(&tests, most);
        let several = shares.len() > 1;
        for (number, tests) in (1..).zip(shares) {
            let mut name = kernel.to_string();
            if !need.label.is_empty() {
                name.push_str(&format!(" {}", need.label));
            }
            if several {
                name.push_str(&format!(" part {number}"));
            }
            batches.push(Batch { kernel, need, name, tests });
        }
    }
    // Long batches start first, so that no guest runs long after the others have ended. What runs alone waits for all others,
    // and so comes last.
    batches.sort_by_key(|batch| Reverse((!batch.need.alone, weight(batch, tests))));
    batches
}

/// About how long the tests of a batch take.
fn weight(batch: &Batch, tests: &[GuestTest]) -> usize {
    let of_kernel: BTreeSet<&str> =
        tests.iter().filter(|test| test.tier == Tier::Kernel).map(|test| &*test.name).collect();
    let of = |name: &String| if of_kernel.contains(&**name) { KERNEL_WEIGHT } else { OTHER_WEIGHT };
    batch.tests.iter().map(of).sum()
}

/// Neighbours go to different guests: tests of one module take about equally long.
fn shares(tests: &[&GuestTest], most: usize) -> Vec<Vec<String>> {
    let count = tests.len().div_ceil(most);
    let share = |first| tests.iter().skip(first).step_by(count).map(|test| test.name.clone()).collect();
    (0..count).map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &[KernelName] = &[KernelName::V6_12];

    fn tests(names: &[&str]) -> Vec<GuestTest> {
        names.iter().map(|name| GuestTest::parse(name).unwrap()).collect()
    }

    #[test]
    fn tests_run_where_their_tier_says() {
        let tests = tests(&[
            "a::kernel",
            "b::daemon",
            "c::systemd",
            "d::kernel::repeats",
            "e::kube",
            "f::exclusive",
            "g::exclusive",
            "h::without_memory",
            "i::debian",
        ]);
        let of = |batches: Vec<Batch>| -> Vec<_> {
            batches.into_iter().map(|batch| (batch.name, batch.tests.join(" "))).collect()
        };
        let expected = [
            ("6.12", "a::kernel b::daemon d::kernel::repeats"),
            ("6.1", "a::kernel d::kernel::repeats"),
            ("7.2", "a::kernel d::kernel::repeats"),
            ("6.12 without memory", "h::without_memory"),
            ("6.12 systemd", "c::systemd"),
            ("6.12 debian 12", "i::debian"),
            ("6.12 debian 13", "i::debian"),
            ("6.12 alone", "f::exclusive g::exclusive"),
            ("6.12 kube", "e::kube"),
        ]
        .map(|(name, tests)| (name.to_owned(), tests.to_owned()));
        assert_eq!(of(batches(&tests, &KernelName::ALL, ONE)), expected);
        let all = batches(&tests, &KernelName::ALL, &KernelName::ALL);
        // Each kernel has both releases of Debian.
        assert_eq!(all.iter().map(|batch| batch.tests.len()).sum::<usize>(), 3 * (tests.len() + 1));
        assert!(batches(&tests, &[KernelName::V6_1], ONE).iter().all(|batch| batch.need.init == Init::Own));
        let memory_mib: Vec<u32> =
            batches(&tests, ONE, ONE).iter().map(|batch| batch.memory_mib() / 1024).collect();
        assert_eq!(memory_mib, [2, 2, 2, 2, 2, 2, 4]);
    }

    #[test]
    fn many_tests_are_split_and_none_is_lost() {
        let names: Vec<_> = (0..=2 * MOST_TESTS).map(|number| format!("t{number:03}::kernel")).collect();
        let tests = tests(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let batches = batches(&tests, ONE, &[]);
        assert_eq!(batches.iter().map(|batch| batch.tests.len()).collect::<Vec<_>>(), [21, 20, 20]);
        assert_eq!(batches[0].name, "6.12 part 1");
        let mut all: Vec<_> = batches.into_iter().flat_map(|batch| batch.tests).collect();
        all.sort();
        assert_eq!(all, names);
        let names: Vec<_> = (0..=MOST_TESTS).map(|number| format!("t{number:03}::kube")).collect();
        let of_node = self::tests(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(super::batches(&of_node, ONE, ONE).len(), 1, "one node");
    }
}
