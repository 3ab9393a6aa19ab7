//! Tests of sets, their text and the options.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rstest::rstest;

use super::machines::set;
use crate::cpus::{CpuOptions, CpuSet, CpuSetError, OptionsError};

#[rstest]
#[case("", "")]
#[case(" \n", "")]
#[case("0-3,8,10-11\n", "0-3,8,10-11")]
#[case("7,0,1,2,2-3", "0-3,7")]
#[case("63-64", "63-64")]
#[case("8191", "8191")]
#[case("5-5,007", "5,7")]
fn a_list_is_read_and_displayed_in_order(#[case] text: &str, #[case] canonical: &str) {
    assert_eq!(set(text).to_string(), canonical);
}

#[rstest]
#[case::words("none", "none")]
#[case::sign("0,+1", "+1")]
#[case::negative("-1", "-1")]
#[case::empty_part("0,,1", "")]
#[case::trailing_comma("0,", "")]
#[case::open_range("0-", "0-")]
#[case::two_dashes("0-1-2", "0-1-2")]
#[case::stride("0-31:2/16", "0-31:2/16")]
#[case::space("0, 1", " 1")]
fn a_malformed_part_is_refused_by_name(#[case] text: &str, #[case] part: &str) {
    assert_eq!(text.parse::<CpuSet>(), Err(CpuSetError::Malformed { part: part.to_owned() }));
}

#[test]
fn numbers_and_ranges_out_of_bounds_are_refused() {
    for text in ["8192", "0-8192", "65536", "99999999999999999999", "0-99999999999999999999"] {
        assert_eq!(text.parse::<CpuSet>(), Err(CpuSetError::TooLarge { part: text.to_owned() }));
    }
    assert_eq!("1,3-2".parse::<CpuSet>(), Err(CpuSetError::Reversed { part: String::from("3-2") }));
    assert_eq!(CpuSet::from_cpus([0, 8_192]), Err(CpuSetError::TooLarge { part: String::from("8192") }));
    assert_eq!(CpuSet::from_cpus([8_191, 0]), Ok(set("0,8191")));
    let Err(CpuSetError::Malformed { part }) = "x".repeat(10_000).parse::<CpuSet>() else {
        panic!("it was read");
    };
    assert_eq!(part.len(), 64);
}

fn any_cpus() -> impl Strategy<Value = BTreeSet<u16>> {
    proptest::collection::btree_set(prop_oneof![0_u16..12, 0_u16..200, 8_100_u16..8_192], 0..40)
}

proptest! {
    #[test]
    fn it_is_a_set(first in any_cpus(), second in any_cpus(), probe in 0_u16..9_000) {
        let sets = [&first, &second].map(|cpus| CpuSet::from_cpus(cpus.iter().copied()).unwrap());
        let [one, other] = &sets;
        let plain = |set: &CpuSet| set.iter().collect::<BTreeSet<u16>>();
        prop_assert_eq!(&plain(one), &first);
        prop_assert_eq!((one.len(), one.is_empty()), (first.len(), first.is_empty()));
        prop_assert_eq!((one.contains(probe), one.first()), (first.contains(&probe), first.first().copied()));
        prop_assert_eq!(plain(&one.union(other)), &first | &second);
        prop_assert_eq!(plain(&one.intersection(other)), &first & &second);
        prop_assert_eq!(plain(&one.difference(other)), &first - &second);
        prop_assert_eq!(one.is_subset(other), first.is_subset(&second));
        prop_assert_eq!(one.is_disjoint(other), first.is_disjoint(&second));
        prop_assert_eq!(one == other, first == second);
        // What is left when all others are gone is the same set, however large it was before.
        prop_assert_eq!(&one.union(other).difference(&other.difference(one)), one);
        prop_assert_eq!(one.to_string().parse(), Ok(one.clone()));
        let bytes = postcard::to_stdvec(one).unwrap();
        prop_assert_eq!(&postcard::from_bytes::<CpuSet>(&bytes).unwrap(), one);
    }

    #[test]
    fn no_text_is_read_as_more_than_it_says(text in "[0-9,\\- \n]{0,12}|\\PC{0,12}") {
        if let Ok(set) = text.parse::<CpuSet>() {
            prop_assert_eq!(set.to_string().parse::<CpuSet>(), Ok(set.clone()));
            prop_assert_eq!(text.trim().is_empty(), set.is_empty());
        }
    }
}

#[rstest]
#[case(&[], (false, false))]
#[case(&[("full-pcpus-only", "true")], (true, false))]
#[case(&[("distribute-cpus-across-cores", "1"), ("full-pcpus-only", "F")], (false, true))]
#[case(&[("full-pcpus-only", "T"), ("full-pcpus-only", "False")], (false, false))]
fn options_are_read_as_the_kubelet_reads_them(#[case] pairs: &[(&str, &str)], #[case] on: (bool, bool)) {
    let options = CpuOptions::from_pairs(pairs.iter().copied()).unwrap();
    assert_eq!((options.full_pcpus_only, options.distribute_cpus_across_cores), on);
}

#[rstest]
#[case(&[("align-by-socket", "true")], "unknown CPU manager policy option \"align-by-socket\": known are full-pcpus-only and distribute-cpus-across-cores")]
#[case(&[("full-pcpus-only", "yes")], "bad value \"yes\" for option \"full-pcpus-only\": write true or false")]
#[case(&[("distribute-cpus-across-cores", "")], "bad value \"\" for option \"distribute-cpus-across-cores\": write true or false")]
#[case(&[("distribute-cpus-across-cores", "true"), ("full-pcpus-only", "true")], "static policy options full-pcpus-only and distribute-cpus-across-cores can not be used at the same time")]
fn options_that_are_none_are_refused_by_name(#[case] pairs: &[(&str, &str)], #[case] message: &str) {
    assert_eq!(CpuOptions::from_pairs(pairs.iter().copied()).unwrap_err().to_string(), message);
}

#[test]
fn the_refusal_of_an_option_is_bounded() {
    let Err(OptionsError::Unknown { name }) = CpuOptions::from_pairs([("x".repeat(1_000).as_str(), "true")])
    else {
        panic!("it was read");
    };
    assert_eq!(name.len(), 64);
}
