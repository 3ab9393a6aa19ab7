//! The fewest NUMA nodes that have enough free CPUs.

use std::collections::BTreeSet;

use super::{set::CpuSet, topology::Topology};

/// Up to so many nodes, all combinations are compared.
const COMPARED: usize = 12;

/// A NUMA node's part of the free CPUs.
struct Part {
    free: CpuSet,
    sockets: BTreeSet<u32>,
    cores: usize,
}

/// The free CPUs of the NUMA nodes to take `wanted` from; `free` has at least as many.
///
/// Of the combinations of the fewest nodes it is the one on the fewest sockets, then that with the fewest free CPUs, then
/// that of the lowest numbers, by the order of the topology manager's bit masks. With `spread`, it is above all one that
/// has enough cores.
pub(super) fn fewest(topology: &Topology, free: &CpuSet, wanted: usize, spread: bool) -> CpuSet {
    let of = |node: &CpuSet| {
        let free = node.intersection(free);
        let placed = || free.iter().filter_map(|cpu| topology.get(cpu));
        let sockets = placed().map(|cpu| cpu.socket).collect();
        let cores = placed().map(|cpu| cpu.core).collect::<BTreeSet<_>>().len();
        Part { free, sockets, cores }
    };
    let parts: Vec<Part> =
        topology.numa_nodes().values().map(of).filter(|part| !part.free.is_empty()).collect();
    let all: Vec<&Part> = parts.iter().collect();
    let Some(fewest) = how_many(&all, wanted) else { return free.clone() };
    let chosen = if parts.len() <= COMPARED {
        compared(&parts, fewest, wanted, spread)
    } else {
        // Nodes of one socket, if one has enough of them.
        let sockets: BTreeSet<u32> = parts.iter().flat_map(|part| part.sockets.iter().copied()).collect();
        let on = |socket: u32| {
            all.iter().copied().filter(|part| part.sockets.contains(&socket)).collect::<Vec<_>>()
        };
        let enough = sockets.into_iter().map(on).filter(|parts| how_many(parts, wanted) == Some(fewest));
        let closest = enough.min_by_key(|parts| parts.iter().map(|part| part.free.len()).sum::<usize>());
        smallest(closest.unwrap_or(all), fewest, wanted)
    };
    chosen.into_iter().fold(CpuSet::new(), |union, part| union.union(&part.free))
}

/// How many of the parts are needed at least; `None` if all together have too little.
fn how_many(parts: &[&Part], wanted: usize) -> Option<usize> {
    let mut sizes: Vec<usize> = parts.iter().map(|part| part.free.len()).collect();
    sizes.sort_unstable_by(|first, second| second.cmp(first));
    let mut sum = 0;
    let enough = sizes.iter().position(|size| {
        sum += size;
        sum >= wanted
    });
    enough.map(|last| last + 1)
}

/// The best of all combinations of that many parts.
fn compared(parts: &[Part], fewest: usize, wanted: usize, spread: bool) -> Vec<&Part> {
    let mut best = None;
    for mask in 0_u32..1 << parts.len() {
        if usize::try_from(mask.count_ones()) != Ok(fewest) {
            continue;
        }
        let chosen =
            || parts.iter().enumerate().filter(|(place, _)| mask & (1 << place) != 0).map(|(_, part)| part);
        let free: usize = chosen().map(|part| part.free.len()).sum();
        if free < wanted {
            continue;
        }
        let cores: usize = chosen().map(|part| part.cores).sum();
        let sockets = chosen().flat_map(|part| &part.sockets).collect::<BTreeSet<_>>().len();
        let shared = if spread { wanted.saturating_sub(cores) } else { 0 };
        let score = (shared, sockets, free);
        if best.as_ref().is_none_or(|(least, _)| score < *least) {
            best = Some((score, chosen().collect()));
        }
    }
    best.map(|(_, chosen)| chosen).unwrap_or_default()
}

/// That many parts which have enough, each as small as those allow that are still to come.
fn smallest(mut parts: Vec<&Part>, fewest: usize, wanted: usize) -> Vec<&Part> {
    parts.sort_by_key(|part| part.free.len());
    let (mut chosen, mut needed) = (Vec::new(), wanted);
    for (place, part) in parts.iter().enumerate() {
        let slots = fewest.saturating_sub(chosen.len());
        if slots == 0 {
            break;
        }
        let largest = parts.iter().skip(place + 1).rev().take(slots - 1).map(|part| part.free.len());
        if part.free.len() + largest.sum::<usize>() >= needed {
            chosen.push(*part);
            needed = needed.saturating_sub(part.free.len());
        }
    }
    chosen
}
