//! The topologies of real machines, and the texts to write sets of CPUs with.

use crate::cpus::{CpuSet, LogicalCpu, Topology};

/// A part of a machine whose cores all have the same number of threads: lists of CPUs, one per thread of a core, in the
/// order of the cores; the number of the first core in its socket; the socket; the NUMA node.
type Part = (&'static [&'static str], u32, u32, u32);

/// A laptop: Core i7-8650U.
const LAPTOP: &[Part] = &[(&["0-3", "4-7"], 0, 0, 0)];

/// Two Xeon E5-2640 v3, numbered in turn as BIOSes of Dell do.
const XEON: &[Part] = &[
    (&["0,2,4,6,8,10,12,14", "16,18,20,22,24,26,28,30"], 0, 0, 0),
    (&["1,3,5,7,9,11,13,15", "17,19,21,23,25,27,29,31"], 0, 1, 1),
];

/// Two EPYC 7551: four NUMA nodes in each socket.
const EPYC: &[Part] = &[
    (&["0-7", "64-71"], 0, 0, 0),
    (&["8-15", "72-79"], 8, 0, 1),
    (&["16-23", "80-87"], 16, 0, 2),
    (&["24-31", "88-95"], 24, 0, 3),
    (&["32-39", "96-103"], 0, 1, 4),
    (&["40-47", "104-111"], 8, 1, 5),
    (&["48-55", "112-119"], 16, 1, 6),
    (&["56-63", "120-127"], 24, 1, 7),
];

/// Two Kunpeng 920: arm64 without SMT.
const ARM: &[Part] =
    &[(&["0-31"], 0, 0, 0), (&["32-63"], 32, 0, 1), (&["64-95"], 0, 1, 2), (&["96-127"], 32, 1, 3)];

/// Core i7-12700: eight cores with two threads of consecutive numbers, four with one.
const HYBRID: &[Part] = &[(&["0,2,4,6,8,10,12,14", "1,3,5,7,9,11,13,15"], 0, 0, 0), (&["16-19"], 36, 0, 0)];

/// POWER8 with two of the eight threads of a core online, of one core only the second, and with NUMA nodes 0 and 8.
const POWER: &[Part] = &[
    (&["0,8,16,24,32", "1,9,17,25,33"], 0, 0, 0),
    (&["48,56,64,72", "49,57,65,73"], 48, 8, 8),
    (&["41"], 40, 8, 8),
];

/// Two Xeon Gold 6230 with sub-NUMA clustering: upstream's `topoDualSocketMultiNumaPerSocketHT`.
const CLUSTERED: &[Part] = &[
    (&["0-9", "40-49"], 0, 0, 0),
    (&["10-19", "50-59"], 10, 0, 1),
    (&["20-29", "60-69"], 0, 1, 2),
    (&["30-39", "70-79"], 10, 1, 3),
];

/// Two EPYC 7763 with a NUMA node for each L3 cache: more nodes than are compared in all combinations.
const CACHES: &[Part] = &[
    (&["0-7", "128-135"], 0, 0, 0),
    (&["8-15", "136-143"], 8, 0, 1),
    (&["16-23", "144-151"], 16, 0, 2),
    (&["24-31", "152-159"], 24, 0, 3),
    (&["32-39", "160-167"], 32, 0, 4),
    (&["40-47", "168-175"], 40, 0, 5),
    (&["48-55", "176-183"], 48, 0, 6),
    (&["56-63", "184-191"], 56, 0, 7),
    (&["64-71", "192-199"], 0, 1, 8),
    (&["72-79", "200-207"], 8, 1, 9),
    (&["80-87", "208-215"], 16, 1, 10),
    (&["88-95", "216-223"], 24, 1, 11),
    (&["96-103", "224-231"], 32, 1, 12),
    (&["104-111", "232-239"], 40, 1, 13),
    (&["112-119", "240-247"], 48, 1, 14),
    (&["120-127", "248-255"], 56, 1, 15),
];

/// Upstream's `topoDualSocketHT`.
const DUAL: &[Part] = &[(&["0,2,4", "6,8,10"], 0, 0, 0), (&["1,3,5", "7,9,11"], 0, 1, 1)];

/// Upstream's `topoDualSocketNoHT`.
const DUAL_NO_SMT: &[Part] = &[(&["0-3"], 0, 0, 0), (&["4-7"], 4, 1, 1)];

/// The machines by name.
pub(super) const MACHINES: &[(&str, &[Part])] = &[
    ("laptop", LAPTOP),
    ("xeon", XEON),
    ("epyc", EPYC),
    ("arm", ARM),
    ("hybrid", HYBRID),
    ("power", POWER),
    ("clustered", CLUSTERED),
    ("caches", CACHES),
    ("dual", DUAL),
    ("dual without SMT", DUAL_NO_SMT),
];

/// The CPUs of a machine.
pub(super) fn cpus(name: &str) -> Vec<LogicalCpu> {
    let (_, parts) = MACHINES.iter().find(|(known, _)| *known == name).unwrap();
    let mut cpus = Vec::new();
    for &(threads, first, socket, numa_node) in *parts {
        for thread in threads {
            let of = (first..).zip(set(thread).iter().collect::<Vec<_>>());
            cpus.extend(of.map(|(core, cpu)| LogicalCpu { cpu, core, socket, numa_node }));
        }
    }
    cpus
}

/// A machine with all of its CPUs online.
pub(super) fn machine(name: &str) -> Topology {
    Topology::new(cpus(name)).unwrap()
}

/// A machine of which some CPUs are offline.
pub(super) fn machine_without(name: &str, offline: &str) -> Topology {
    let offline = set(offline);
    Topology::new(cpus(name).into_iter().filter(|cpu| !offline.contains(cpu.cpu))).unwrap()
}

pub(super) fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

mod tests {
    use rstest::rstest;

    use super::{LogicalCpu, Topology, cpus, machine, machine_without};
    use crate::cpus::TopologyError;

    #[rstest]
    #[case("laptop", (8, 4, 1, 1, 2))]
    #[case("xeon", (32, 16, 2, 2, 2))]
    #[case("epyc", (128, 64, 2, 8, 2))]
    #[case("arm", (128, 128, 2, 4, 1))]
    #[case("hybrid", (20, 12, 1, 1, 2))]
    #[case("power", (19, 10, 2, 2, 2))]
    #[case("clustered", (80, 40, 2, 4, 2))]
    #[case("caches", (256, 128, 2, 16, 2))]
    fn a_topology_has_the_cores_sockets_and_nodes_of_its_machine(
        #[case] name: &str,
        #[case] counts: (usize, usize, usize, usize, u32),
    ) {
        let machine = machine(name);
        let nodes = machine.numa_nodes().len();
        let (cores, sockets) = (machine.cores().len(), machine.sockets().len());
        assert_eq!((machine.cpus().len(), cores, sockets, nodes, machine.threads_per_core()), counts);
    }

    #[test]
    fn cores_of_two_sockets_with_the_same_number_are_two() {
        let machine = machine("xeon");
        assert_eq!(machine.get(0).map(|cpu| cpu.core), Some(0));
        assert_eq!(machine.get(16).map(|cpu| cpu.core), Some(0));
        assert_eq!(machine.get(1).map(|cpu| cpu.core), Some(1));
        assert_eq!(machine.get(32), None);
        assert_eq!(machine.cores()[&1].to_string(), "1,17");
        assert_eq!(machine_without("xeon", "1").cores()[&17].to_string(), "17");
    }

    #[test]
    fn what_is_no_machine_is_refused() {
        assert_eq!(Topology::new([]), Err(TopologyError::Empty));
        let mut twice = cpus("laptop");
        twice.push(LogicalCpu { cpu: 3, core: 9, socket: 0, numa_node: 0 });
        assert_eq!(Topology::new(twice), Err(TopologyError::Duplicate { cpu: 3 }));
        let far = LogicalCpu { cpu: 8_192, core: 0, socket: 0, numa_node: 0 };
        assert_eq!(Topology::new([far]), Err(TopologyError::TooLarge { cpu: 8_192 }));
        assert!(Topology::new([LogicalCpu { cpu: 8_191, ..far }]).is_ok());
    }
}
