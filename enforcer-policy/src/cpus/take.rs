//! Which CPUs a container gets: `takeByTopologyNUMAPacked` in `cpu_assignment.go`.

use std::{cmp::Reverse, collections::BTreeMap};

use super::{
    nodes,
    options::CpuOptions,
    set::CpuSet,
    topology::{Groups, Topology},
};

/// Why a container does not get the CPUs that it wants.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// With `full-pcpus-only`, the number is not one of whole cores.
    #[error(
        "SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {threads_per_core}"
    )]
    SmtAlignment {
        /// How many CPUs are wanted.
        requested: u32,
        /// How many a core has.
        threads_per_core: u32,
    },
    /// With `full-pcpus-only`, too few whole cores are free.
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = {requested}, CPUs per core = {threads_per_core}"
    )]
    NoWholeCores {
        /// How many CPUs are wanted.
        requested: u32,
        /// How many a core has.
        threads_per_core: u32,
        /// How many CPUs the whole free cores have.
        available: usize,
    },
    /// Too few CPUs are free.
    #[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
    NotEnough {
        /// How many CPUs are wanted.
        requested: u32,
        /// How many are free.
        available: usize,
    },
    /// No CPU is reserved, and the shared pool would have none left. In the kubelet this cannot happen, as it wants at
    /// least one CPU reserved.
    #[error("no cpu would be left for the other containers: requested={requested}, available={available}")]
    SharedPoolEmpty {
        /// How many CPUs are wanted.
        requested: u32,
        /// How many are free.
        available: usize,
    },
}

impl Refusal {
    /// The reason by which the kubelet fails such a pod.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::SmtAlignment { .. } | Self::NoWholeCores { .. } => "SMTAlignmentError",
            Self::NotEnough { .. } | Self::SharedPoolEmpty { .. } => "UnexpectedAdmissionError",
        }
    }
}

/// Chooses `count` of the free CPUs.
///
/// They come from as few NUMA nodes as possible: of the sets of nodes that have enough, from that on the fewest sockets,
/// then that with the fewest free CPUs. (The kubelet does so with the topology manager's hints.) Within these nodes they
/// come from whole free NUMA nodes and sockets as long as one is not more than what is wanted, then from whole free
/// cores, then single: each time first from what has the fewest free CPUs, so that large free parts stay whole. Cores of
/// more threads go before those of fewer, so that a core of one thread is left for an odd CPU.
///
/// - With `full-pcpus-only`, all of them are the CPUs of whole free cores, and their number must be a multiple of the
///   threads of a core. A core that has fewer threads than others counts as whole if its number divides theirs.
/// - With `distribute-cpus-across-cores`, nothing is taken as a whole core: each core gives one CPU before any gives its
///   second. Whole NUMA nodes and sockets are taken even so, as in the kubelet. (The kubelet takes the CPUs in the order
///   of their numbers then, which packs cores whose threads have consecutive numbers.)
///
/// CPUs that are not online are not free. The result depends on nothing but the arguments.
pub fn take(topology: &Topology, free: &CpuSet, count: u32, options: CpuOptions) -> Result<CpuSet, Refusal> {
    let wanted = usize::try_from(count).unwrap_or(usize::MAX);
    let mut free = free.intersection(topology.cpus());
    let mut group = 1;
    if options.full_pcpus_only {
        let threads_per_core = topology.threads_per_core();
        group = usize::try_from(threads_per_core).unwrap_or(usize::MAX);
        if !count.is_multiple_of(threads_per_core) {
            return Err(Refusal::SmtAlignment { requested: count, threads_per_core });
        }
        free = whole_cores(topology, &free, group);
        if free.len() < wanted {
            return Err(Refusal::NoWholeCores { requested: count, threads_per_core, available: free.len() });
        }
    }
    if free.len() < wanted {
        return Err(Refusal::NotEnough { requested: count, available: free.len() });
    }
    let spread = options.distribute_cpus_across_cores;
    let left = nodes::fewest(topology, &free, wanted, spread);
    let mut taking = Taking { topology, left, taken: CpuSet::new(), needed: wanted, group };
    taking.units();
    if !spread {
        taking.cores();
    }
    taking.single(spread);
    if taking.needed > 0 {
        // Only possible with whole cores whose numbers of threads do not divide each other, such as 3 and 2.
        let (available, threads_per_core) = (taking.taken.len(), topology.threads_per_core());
        return Err(Refusal::NoWholeCores { requested: count, threads_per_core, available });
    }
    Ok(taking.taken)
}

/// Chooses the CPUs that are reserved for the node's own processes, from all that are online: those of the first cores
/// (`NewStaticPolicy`).
pub fn reserve(topology: &Topology, count: u32, options: CpuOptions) -> Result<CpuSet, Refusal> {
    take(topology, topology.cpus(), count, CpuOptions { full_pcpus_only: false, ..options })
}

/// The CPUs of the cores that are free with all of their threads. A core of another number of threads than the largest
/// has counts if that number divides the largest one's.
fn whole_cores(topology: &Topology, free: &CpuSet, group: usize) -> CpuSet {
    let is_whole = |core: &&CpuSet| core.is_subset(free) && group.is_multiple_of(core.len());
    topology.cores().values().filter(is_whole).flat_map(CpuSet::iter).collect()
}

/// CPUs on the way from free to taken.
struct Taking<'a> {
    topology: &'a Topology,
    left: CpuSet,
    taken: CpuSet,
    needed: usize,
    /// What is taken whole is a multiple of so many CPUs.
    group: usize,
}

/// The places of a core or CPU in the order: its outer unit's free CPUs and number, then its inner unit's.
type Rank = (usize, u32, usize, u32);

impl Taking<'_> {
    fn take(&mut self, cpus: &CpuSet) {
        self.taken = self.taken.union(cpus);
        self.left = self.left.difference(cpus);
        self.needed = self.needed.saturating_sub(cpus.len());
    }

    /// NUMA nodes are the outer units if they have one or more sockets, sockets if they have several nodes.
    fn outer_and_inner(&self) -> (&Groups, &Groups) {
        let (nodes, sockets) = (self.topology.numa_nodes(), self.topology.sockets());
        if sockets.len() >= nodes.len() { (nodes, sockets) } else { (sockets, nodes) }
    }

    /// Takes whole NUMA nodes and sockets.
    fn units(&mut self) {
        let (outer, inner) = self.outer_and_inner();
        let (outer, inner) = (outer.clone(), inner.clone());
        for units in [outer, inner] {
            let mut whole: Vec<CpuSet> =
                units.into_values().filter(|unit| unit.is_subset(&self.left)).collect();
            whole.sort_by_key(CpuSet::len);
            for unit in whole {
                if unit.len() <= self.needed
                    && unit.len().is_multiple_of(self.group)
                    && unit.is_subset(&self.left)
                {
                    self.take(&unit);
                }
            }
        }
    }

    /// Takes whole cores.
    fn cores(&mut self) {
        let ranks = self.ranks();
        let rank = |core: &CpuSet| core.first().and_then(|cpu| ranks.get(&cpu).copied());
        let is_whole = |core: &&CpuSet| core.is_subset(&self.left);
        let mut whole: Vec<CpuSet> = self.topology.cores().values().filter(is_whole).cloned().collect();
        whole.sort_by_cached_key(|core| (Reverse(core.len()), rank(core)));
        for core in whole {
            if core.len() <= self.needed {
                self.take(&core);
            }
        }
    }

    /// Takes single CPUs: of one core after the other, or of one more from each core in turn.
    fn single(&mut self, spread: bool) {
        if self.needed == 0 || self.group > 1 {
            return;
        }
        let ranks = self.ranks();
        let mut ordered = Vec::new();
        for (&core, cpus) in self.topology.cores() {
            let free = cpus.intersection(&self.left);
            for (turn, cpu) in free.iter().enumerate() {
                let rank = ranks.get(&cpu).copied();
                let thread = cpus.iter().position(|other| other == cpu);
                let key = if spread {
                    (turn, rank, thread, 0, u32::from(cpu))
                } else {
                    (0, rank, None, free.len(), core)
                };
                ordered.push((key, cpu));
            }
        }
        ordered.sort_unstable();
        let chosen: CpuSet = ordered.into_iter().take(self.needed).map(|(_, cpu)| cpu).collect();
        self.take(&chosen);
    }

    /// The places of all CPUs that are left.
    fn ranks(&self) -> BTreeMap<u16, Rank> {
        let (outer, inner) = self.outer_and_inner();
        let by_cpu = |units: &Groups| {
            let mut places = BTreeMap::new();
            for (&number, unit) in units {
                let free = unit.intersection(&self.left);
                places.extend(free.iter().map(|cpu| (cpu, (free.len(), number))));
            }
            places
        };
        let (outer, inner) = (by_cpu(outer), by_cpu(inner));
        let of = |(&cpu, &(free, number)): (&u16, &(usize, u32))| {
            let &(inner_free, inner_number) = inner.get(&cpu)?;
            Some((cpu, (free, number, inner_free, inner_number)))
        };
        outer.iter().filter_map(of).collect()
    }
}
