//! Values as they are when the page is requested; nothing here is kept between requests.

use super::{
    labels::{Level, Slice},
    process::Process,
};
use crate::{evict::ReflexStats, model::QosClass};

/// Values at the time of a request. Values that cannot be read are absent.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// `memory.available` in bytes.
    pub available_bytes: Option<u64>,
    /// The thresholds of `memory.available`.
    pub headroom: Vec<Headroom>,
    /// Time that tasks were stalled on a resource, by part of the machine.
    pub pressure: Vec<Pressure>,
    /// What the system's own parts use.
    pub system: Vec<SystemPart>,
    /// What is reserved for them.
    pub reserved: Vec<ReservedPart>,
    /// The kernel's own memory.
    pub kernel: Option<KernelMemory>,
    /// The class of each pod that may be evicted.
    pub candidates: Vec<QosClass>,
    /// The number of them that an operator protects.
    pub protected_pods: u64,
    /// The pods that would be evicted next, in order; empty if metrics must not name pods.
    pub next_victims: Vec<NextVictim>,
    /// Disk space of the journal's segments, in bytes.
    pub event_log_bytes: u64,
    /// The sinks that events are pushed to, by kind.
    pub sinks: Vec<SinkState>,
    /// Events that wait for the disk.
    pub unwritten_records: u64,
    /// Records that the flight recorder had no room for.
    pub lost_by_recorder: u64,
    /// Log lines that were dropped because stderr took none.
    pub log_lines_dropped: u64,
    /// Attached eBPF programs.
    pub programs_attached: u64,
    /// The reflex's counters.
    pub reflex: Option<ReflexStats>,
    /// The current mode.
    pub mode: String,
    /// The hash of the current configuration.
    pub config_hash: String,
    /// The daemon's own process.
    pub process: Process,
}

/// A part of the system: a reserved cgroup, or a component of the node. Values that cannot be read are absent.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SystemPart {
    /// `system`, `kube`, or the component's name.
    pub name: String,
    /// CPU time, in microseconds.
    pub cpu_us: Option<u64>,
    /// Memory in use.
    pub memory_bytes: Option<u64>,
    /// Tasks: processes with all their threads.
    pub tasks: Option<u64>,
}

/// What is reserved for a part of the system; absent what is not.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ReservedPart {
    /// `system` or `kube`.
    pub scope: &'static str,
    /// CPUs in thousandths.
    pub cpu_milli: Option<u64>,
    /// Memory.
    pub memory_bytes: Option<u64>,
    /// Tasks.
    pub tasks: Option<u64>,
    /// Whether more memory is in use.
    pub memory_exceeded: Option<bool>,
    /// Whether there are more tasks.
    pub tasks_exceeded: Option<bool>,
}

/// The kernel's own memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct KernelMemory {
    /// Its objects, of which part can be reclaimed.
    pub slab_bytes: u64,
    /// The stacks of tasks in the kernel.
    pub stack_bytes: u64,
    /// Page tables.
    pub page_table_bytes: u64,
}

/// The state of the sinks of one kind.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SinkState {
    /// The kind.
    pub name: &'static str,
    /// Whether any is configured.
    pub is_on: bool,
    /// Events that the slowest one has not delivered yet.
    pub lag_records: u64,
    /// The oldest last delivery among them, in milliseconds since 1970; 0 is never.
    pub last_success_ms: u64,
    /// Failed delivery attempts.
    pub failures: u64,
    /// Events that left the journal before they were delivered.
    pub lost: u64,
}

/// A threshold of `memory.available`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Headroom {
    /// Hard or soft.
    pub level: Level,
    /// Its value.
    pub threshold_bytes: u64,
}

/// The resource that stalled tasks wait for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Resource {
    /// Processors.
    Cpu,
    /// Memory.
    Memory,
    /// Disks.
    Io,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Memory, Self::Io];

    /// Its label, and the name of the kernel's file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Io => "io",
        }
    }
}

/// Time that tasks stalled, since boot or since the cgroup was created.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pressure {
    /// The resource.
    pub resource: Resource,
    /// The part of the machine.
    pub slice: Slice,
    /// Time in which at least one task stalled, in microseconds.
    pub waiting_us: u64,
    /// Time in which all stalled, in microseconds; `None` if the kernel does not count it.
    pub stalled_us: Option<u64>,
}

impl Pressure {
    /// Parses the text of a pressure file; `None` if it is not one.
    #[must_use]
    pub fn parse(resource: Resource, slice: Slice, text: &str) -> Option<Self> {
        let total = |kind: &str| -> Option<u64> {
            let line = text.lines().find(|line| line.split(' ').next() == Some(kind))?;
            line.split(' ').find_map(|field| field.strip_prefix("total="))?.parse().ok()
        };
        Some(Self { resource, slice, waiting_us: total("some")?, stalled_us: total("full") })
    }
}

/// The most next victims to name, as their names are labels.
pub const NEXT_VICTIMS: usize = 3;

/// A pod that would be evicted next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NextVictim {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read_as_the_kernel_writes_it() {
        let text = "some avg10=0.00 avg60=0.01 avg300=0.00 total=123456\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=99\n";
        let read = |text| Pressure::parse(Resource::Memory, Slice::Node, text);
        let pressure = read(text).unwrap();
        assert_eq!((pressure.waiting_us, pressure.stalled_us), (123_456, Some(99)));
        // The machine's processors had no second line before Linux 5.13.
        assert_eq!(read("some avg10=0.00 total=7\n").map(|pressure| pressure.stalled_us), Some(None));
        assert_eq!(read(""), None);
        assert_eq!(read("some total=x\n"), None);
    }
}
