use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// `pkg/kubelet/cm/helpers_linux_test.go`, `TestMilliCPUToQuota`.
#[rstest]
#[case(0, None)]
#[case(5, Some(1_000))]
#[case(9, Some(1_000))]
#[case(10, Some(1_000))]
#[case(200, Some(20_000))]
#[case(500, Some(50_000))]
#[case(1_000, Some(100_000))]
#[case(1_500, Some(150_000))]
#[case(u64::MAX, Some(QUOTA_MAX_US))]
fn quotas_are_the_kubelets(#[case] cpu_milli: u64, #[case] quota: Option<u64>) {
    assert_eq!(quota_us(cpu_milli, 100_000), quota);
}

/// The linear column: `pkg/kubelet/cm/container_manager_linux_test.go`, `TestGetCpuWeight`; the quadratic one:
/// the formula of opencontainers/cgroups, worked out by hand for these.
#[rstest]
#[case(0, 2, 1, 1)]
#[case(3, 3, 1, 2)]
#[case(10, 10, 1, 4)]
#[case(50, 51, 2, 11)]
#[case(100, 102, 4, 17)]
#[case(200, 204, 8, 29)]
#[case(250, 256, 10, 35)]
#[case(500, 512, 20, 59)]
#[case(1_000, 1_024, 39, 100)]
#[case(1_500, 1_536, 59, 138)]
#[case(2_000, 2_048, 79, 174)]
#[case(4_000, 4_096, 157, 303)]
#[case(8_000, 8_192, 313, 532)]
#[case(16_000, 16_384, 625, 942)]
#[case(64_000, 65_536, 2_500, 3_023)]
#[case(128_000, 131_072, 5_000, 5_478)]
#[case(256_000, 262_144, 10_000, 10_000)]
#[case(u64::MAX, 262_144, 10_000, 10_000)]
fn shares_and_weights_are_the_kubelets(
    #[case] cpu_milli: u64,
    #[case] expected: u64,
    #[case] linear: u64,
    #[case] quadratic: u64,
) {
    assert_eq!(shares(cpu_milli), expected);
    assert_eq!(weight_linear(expected), linear);
    assert_eq!(weight_quadratic(expected), quadratic);
}

/// `pkg/kubelet/cm/cgroup_manager_linux_test.go`, `TestCpuWeightToCPUShares`.
#[rstest]
#[case(1, 2)]
#[case(2, 28)]
#[case(3, 54)]
#[case(4, 80)]
#[case(245, 6_398)]
#[case(10_000, 262_144)]
fn weights_are_read_as_the_kubelet_does(#[case] weight: u64, #[case] shares: u64) {
    assert_eq!(shares_of_weight(weight), shares);
}

/// By hand, from the two functions that [`quota_of_systemd_us`] names.
#[rstest]
#[case(20_000, 100_000, 20_000)]
#[case(20_001, 100_000, 21_000)]
#[case(1_001, 100_000, 2_000)]
#[case(1_500, 5_000, 1_500)]
#[case(1_499, 5_000, 1_500)]
#[case(1_000, 7_000, 1_050)]
#[case(33_333, 1_000_000, 40_000)]
#[case(1_000, 0, 1_000)]
#[case(QUOTA_MAX_US, 100_000, QUOTA_MAX_US)]
fn systemd_keeps_whole_percentages(#[case] quota: u64, #[case] period: u64, #[case] expected: u64) {
    assert_eq!(quota_of_systemd_us(quota, period), expected);
}

#[test]
fn shares_out_of_range_are_bounded() {
    assert_eq!((weight_linear(0), weight_quadratic(0)), (1, 1));
    assert_eq!((weight_linear(1_000_000_000), weight_quadratic(1_000_000_000)), (10_000, 10_000));
    assert_eq!((weight_linear(u64::MAX), weight_quadratic(u64::MAX)), (10_000, 10_000));
}

proptest! {
    #[test]
    fn more_cpu_never_weighs_less(less in 0_u64..300_000, more in 0_u64..1_000) {
        let (low, high) = (shares(less), shares(less + more));
        prop_assert!(weight_linear(low) <= weight_linear(high));
        prop_assert!(weight_quadratic(low) <= weight_quadratic(high));
        prop_assert!(quota_us(less + 1, 100_000) <= quota_us(less + 1 + more, 100_000));
    }

    #[test]
    fn systemd_takes_nothing_away_but_a_rounding(cpu_milli in 1_u64..300_000, period in 1_000_u64..=1_000_000) {
        let quota = quota_us(cpu_milli, period).unwrap();
        let kept = quota_of_systemd_us(quota, period);
        // A hundredth of a cpu more at the most.
        prop_assert!(kept + 1 >= quota && kept <= quota + period.div_ceil(100), "{quota} became {kept}");
    }

    #[test]
    fn a_weight_comes_back_from_its_shares(weight in 1_u64..=10_000) {
        prop_assert!(weight.abs_diff(weight_linear(shares_of_weight(weight))) <= 1);
        prop_assert!(weight_linear(shares_of_weight(weight) + 1) >= weight);
    }

    #[test]
    fn the_linear_weight_keeps_ratios(cpu_milli in 600_u64..20_000, factor in 1_u64..12) {
        // Within what rounding to whole weights of at least 24 can take away.
        let (one, many) = (weight_linear(shares(cpu_milli)), weight_linear(shares(cpu_milli * factor)));
        let difference = many.abs_diff(one * factor);
        prop_assert!(difference <= factor, "{one} : {many}, not 1 : {factor}");
    }
}
