//! Examples of which CPUs are taken: those of upstream's tests, and those of what differs.

use rstest::rstest;

use super::machines::{machine, machine_without, set};
use crate::cpus::{CpuOptions, LogicalCpu, Refusal, Topology, reserve, take};

const PACKED: CpuOptions = CpuOptions { full_pcpus_only: false, distribute_cpus_across_cores: false };
const WHOLE: CpuOptions = CpuOptions { full_pcpus_only: true, distribute_cpus_across_cores: false };
const SPREAD: CpuOptions = CpuOptions { full_pcpus_only: false, distribute_cpus_across_cores: true };

/// `pkg/kubelet/cm/cpumanager/cpu_assignment_test.go`: `commonTakeByTopologyTestCases` and
/// `TestTakeByTopologyNUMAPacked`. The laptop is upstream's `topoSingleSocketHT`.
#[rstest]
#[case::nothing("laptop", "0-7", 0, "")]
#[case::one("laptop", "0-7", 1, "0")]
#[case::one_of_a_used_core("laptop", "1,3,5-7", 1, "6")]
#[case::a_core("laptop", "0-7", 2, "0,4")]
#[case::all("laptop", "0-7", 8, "0-7")]
#[case::the_only_free_core("laptop", "0-3,6", 2, "2,6")]
#[case::one_of_the_fuller_socket("dual", "1-5,7-11", 1, "2")]
#[case::a_socket("dual", "0-11", 6, "0,2,4,6,8,10")]
#[case::a_socket_and_a_core("dual", "0-11", 8, "0-2,4,6-8,10")]
#[case::a_socket_of_two_nodes("clustered", "0-79", 40, "0-19,40-59")]
#[case::a_node("clustered", "0-79", 20, "0-9,40-49")]
#[case::the_next_node("clustered", "10-39,50-79", 20, "10-19,50-59")]
#[case::a_socket_and_a_node("clustered", "0-79", 60, "0-29,40-69")]
#[case::three_whole_nodes("clustered", "1-39,41-79", 60, "10-39,50-79")]
#[case::three_nodes_and_two_cores("clustered", "0-79", 64, "0-31,40-71")]
fn cpus_are_taken_as_upstream_packs_them(
    #[case] name: &str,
    #[case] free: &str,
    #[case] count: u32,
    #[case] taken: &str,
) {
    assert_eq!(take(&machine(name), &set(free), count, PACKED), Ok(set(taken)));
}

/// `TestTakeByTopologyWithSpreadPhysicalCPUsPreferredOption` in the same file.
#[rstest]
#[case::three_cores("laptop", "0-7", 3, "0-2")]
#[case::two_cores_of_a_socket("dual", "0-11", 2, "0,2")]
#[case::all_cores_of_a_socket("dual", "0-11", 3, "0,2,4")]
#[case::a_socket("dual", "0-11", 6, "0,2,4,6,8,10")]
#[case::a_socket_and_two_cores("dual", "0-11", 8, "0-4,6,8,10")]
#[case::without_smt("dual without SMT", "0-7", 2, "0-1")]
#[case::eight_cores_of_a_node("clustered", "0-79", 8, "0-7")]
fn cpus_are_spread_as_upstream_spreads_them(
    #[case] name: &str,
    #[case] free: &str,
    #[case] count: u32,
    #[case] taken: &str,
) {
    assert_eq!(take(&machine(name), &set(free), count, SPREAD), Ok(set(taken)));
}

#[rstest]
#[case::threads_of_consecutive_numbers("hybrid", "0-15", 3, "0,2,4")]
#[case::siblings_when_all_cores_have_given("laptop", "0-7", 6, "0-5")]
#[case::a_used_core_before_siblings("laptop", "1-7", 4, "1-4")]
#[case::the_node_with_enough_cores("xeon", "0,2,4,16,18,20,1,3,5,7,9,11,17", 4, "1,3,5,7")]
fn spreading_goes_by_cores_whatever_their_numbers(
    #[case] name: &str,
    #[case] free: &str,
    #[case] count: u32,
    #[case] taken: &str,
) {
    assert_eq!(take(&machine(name), &set(free), count, SPREAD), Ok(set(taken)));
}

#[rstest]
#[case::one_node_though_a_fuller_one_is_too_small("xeon", "0-1,3,5,17,19,21", 4, "1,3,17,19")]
#[case::two_nodes_of_one_socket("epyc", "24-63,88-127", 32, "32-47,96-111")]
#[case::two_of_many_nodes_on_one_socket("caches", "56-127,184-255", 32, "64-79,192-207")]
#[case::the_smallest_of_many_nodes("caches", "0-12,128-140,16-23,144-151", 9, "8-12,136-139")]
#[case::an_odd_cpu_without_a_second_thread("hybrid", "0-19", 5, "0-3,16")]
fn few_nodes_and_few_pieces_are_taken(
    #[case] name: &str,
    #[case] free: &str,
    #[case] count: u32,
    #[case] taken: &str,
) {
    assert_eq!(take(&machine(name), &set(free), count, PACKED), Ok(set(taken)));
}

#[rstest]
#[case::not_of_a_used_core("laptop", "0-3,5-7", 4, "1-2,5-6")]
#[case::not_as_a_node_of_an_odd_number(
    "power",
    "0-73",
    18,
    "0-1,8-9,16-17,24-25,32-33,48-49,56-57,64-65,72-73"
)]
#[case::cores_of_one_thread_are_whole("hybrid", "0-1,3-5,16-19", 6, "0-1,4-5,16-17")]
fn only_whole_free_cores_are_given(
    #[case] name: &str,
    #[case] free: &str,
    #[case] count: u32,
    #[case] taken: &str,
) {
    assert_eq!(take(&machine(name), &set(free), count, WHOLE), Ok(set(taken)));
}

#[test]
fn a_core_is_whole_with_the_threads_that_are_online() {
    let machine = machine_without("laptop", "6-7");
    assert_eq!(take(&machine, &set("0,2-3"), 2, WHOLE), Ok(set("2-3")));
}

#[test]
fn no_core_is_broken_though_whole_ones_do_not_add_up() {
    let cores = [0_u32; 6].into_iter().chain([1; 3]).chain([2; 2]).chain([3; 2]);
    let of = |(cpu, core)| LogicalCpu { cpu, core, socket: 0, numa_node: 0 };
    let machine = Topology::new((0..).zip(cores).map(of)).unwrap();
    let refusal = Refusal::NoWholeCores { requested: 6, threads_per_core: 6, available: 5 };
    assert_eq!(take(&machine, &set("6-12"), 6, WHOLE), Err(refusal));
}

#[test]
fn what_cannot_be_given_is_refused_in_the_words_of_the_kubelet() {
    let of = |free, count, options| take(&machine("laptop"), &set(free), count, options).unwrap_err();
    let short = of("0,2,4,6", 5, PACKED);
    assert_eq!(short.to_string(), "not enough cpus available to satisfy request: requested=5, available=4");
    assert_eq!(short.reason(), "UnexpectedAdmissionError");
    let odd = of("0-7", 3, WHOLE);
    assert_eq!(odd, Refusal::SmtAlignment { requested: 3, threads_per_core: 2 });
    assert_eq!(odd.to_string(), "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2");
    let split = of("0-3,4", 4, WHOLE);
    assert_eq!(
        split.to_string(),
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 4, CPUs per core = 2"
    );
    assert_eq!((odd.reason(), split.reason()), ("SMTAlignmentError", "SMTAlignmentError"));
    assert_eq!(of("0-7", u32::MAX, PACKED), Refusal::NotEnough { requested: u32::MAX, available: 8 });
}

#[test]
fn cpus_that_are_not_online_are_not_free() {
    let free = set("0-3,8-4000");
    assert_eq!(
        take(&machine_without("laptop", "3"), &free, 4, PACKED),
        Err(Refusal::NotEnough { requested: 4, available: 3 })
    );
}

/// `NewStaticPolicy`: "Given a system with 8 CPUs available and HT enabled, if numReservedCPUs=2, then reserved={0,4}".
#[test]
fn the_first_cores_are_reserved() {
    assert_eq!(reserve(&machine("laptop"), 2, WHOLE), Ok(set("0,4")));
    assert_eq!(reserve(&machine("laptop"), 1, WHOLE), Ok(set("0")));
    assert_eq!(reserve(&machine("laptop"), 2, SPREAD), Ok(set("0-1")));
    assert_eq!(
        reserve(&machine("laptop"), 9, PACKED),
        Err(Refusal::NotEnough { requested: 9, available: 8 })
    );
}
