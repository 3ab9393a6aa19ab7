//! Turns kernel facts into observations. Reads only: apart from loading programs, nothing here writes to the machine.
//!
//! For tracing, [`Facts`] say what the kernel and this process can do, [`choose`] is a pure rule over them,
//! and [`Programs`] carries the [`Choice`] out. The programs' records are [decoded](decode) into
//! [`Record`]s.

mod available;
pub mod btf;
mod cpus;
mod edge;
mod edge_ring;
mod error;
mod free_lists;
mod guard;
mod histogram;
mod hugepages;
pub mod incident;
mod kubepods;
mod life;
mod meminfo;
mod memory_events;
mod node;
mod offsets;
mod probe;
mod programs;
mod psi;
mod reclaim;
mod record;
mod ring;
mod sampler;
pub mod snapshot;
mod tasks;
pub(crate) mod text;
mod tracefs;
mod wake;

pub use self::{
    available::{Available, AvailableMemory, MemoryAvailableSource},
    cpus::{
        CpusUnknown, ROOT as CPUS, online as online_cpus, present as present_cpus, topology as cpu_topology,
    },
    edge::{EdgeSource, Readiness, SourceState},
    edge_ring::EdgeRing,
    error::SenseError,
    free_lists::{FreeLists, FreeListsRead},
    guard::{
        ForeignWrite, Guard, GuardCounts, GuardError, GuardEvent, Kept, KindCounts, PidNamespace, Process,
        ScoreCause, Sight, WrongScore,
    },
    histogram::{Histogram, LATENCY_BUCKETS, Latencies},
    kubepods::{PodsCharge, PodsMemory},
    life::{Life, LifeRing, LifeWatch},
    meminfo::{Meminfo, MeminfoError, MemoryInfo, PROC_MEMINFO},
    memory_events::MemoryEvents,
    node::{NodeError, node, page_bytes},
    offsets::{MemoryHierarchy, Resolved, resolve},
    probe::{
        CGROUP2, Choice, Explained, Facility, Facts, Hierarchy, HostFacts, LimitArgument, Lockdown, Lost,
        MarkArgument, MarkProgram, Psi, ReclaimChoice, ReclaimFacts, Rung, State, choose, host_lost, ladder,
        without,
    },
    programs::{
        Again, AttachTypes, Attached, Counters, Failure, Inherited, Pins, PinsError, Programs,
        ReclaimCounters, Unpinned, Version, look_at_pins, unpin,
    },
    psi::{NODE_PRESSURE, Pressure, PsiError, Stalled, Trigger},
    reclaim::{
        ByKind, MuchStall, PressureEvent, Pressures, Stall, StallKind, StallRing, StallWorld, Stalls,
        StallsError,
    },
    record::{
        Decoded, Exit, Limited, Mark, Memory, MemoryBack, OomOver, Record, Sharer, Task, Undecodable, decode,
    },
    ring::{KernelRing, RecordRing, RingStats, drain},
    sampler::Sampler,
    tasks::{TaskCount, Tasks},
    wake::{Edge, EdgeKind, KindStats, WakeStats, Wakes},
};
#[cfg(test)]
pub(crate) use self::{record::recorded, ring::fake as fake_ring};
