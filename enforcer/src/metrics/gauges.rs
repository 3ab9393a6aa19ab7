use super::{
    labels::{Level, Slice},
    process::Process,
};
use crate::{evict::ReflexStats, model::QosClass};

/// How things are at the moment of being asked. What cannot be read is absent.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// What `memory.available` is, in bytes.
    pub available_bytes: Option<u64>,
    /// The thresholds of `memory.available`.
    pub headroom: Vec<Headroom>,
    /// Time that tasks could not work for want of something, by part of the machine.
    pub pressure: Vec<Pressure>,
    /// The class of each pod that may be evicted.
    pub candidates: Vec<QosClass>,
    /// How many of them an operator protects.
    pub protected_pods: u64,
    /// Who would be next, the first first; empty where pods are not to be named.
    pub next_victims: Vec<NextVictim>,
    /// What the journal's segments take on the disk.
    pub event_log_bytes: u64,
    /// The sinks that events are pushed to, of each kind.
    pub sinks: Vec<SinkState>,
    /// How many events wait for the disk.
    pub unwritten_records: u64,
    /// How many records the flight recorder had no room for.
    pub lost_by_recorder: u64,
    /// How many lines of the log were dropped, as stderr took none.
    pub log_lines_dropped: u64,
    /// How many eBPF programs are attached.
    pub programs_attached: u64,
    /// What the reflex has done.
    pub reflex: Option<ReflexStats>,
    /// The mode in force.
    pub mode: String,
    /// The hash of the configuration in force.
    pub config_hash: String,
    /// The daemon's own process.
    pub process: Process,
}

/// How the sinks of one kind do.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SinkState {
    /// The kind.
    pub name: &'static str,
    /// Whether there is any.
    pub is_on: bool,
    /// How many events the hindmost has before it.
    pub lag_records: u64,
    /// When the one for which that is longest ago delivered something last, in milliseconds since 1970; 0 is never.
    pub last_success_ms: u64,
    /// How many attempts to deliver failed.
    pub failures: u64,
    /// How many events went from the journal before they were delivered.
    pub lost: u64,
}

/// A threshold of `memory.available`, and what is left above it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Headroom {
    /// Which.
    pub level: Level,
    /// Where it lies.
    pub threshold_bytes: u64,
}

/// What is short when tasks stall.
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

    /// The word, and the name of the kernel's file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Io => "io",
        }
    }
}

/// Time that tasks stalled, since the machine or the cgroup is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pressure {
    /// For want of what.
    pub resource: Resource,
    /// Where.
    pub slice: Slice,
    /// While at least one task did, in microseconds.
    pub waiting_us: u64,
    /// While all did, in microseconds; none where the kernel does not count it.
    pub stalled_us: Option<u64>,
}

impl Pressure {
    /// Reads the text of a pressure file; none if it is none.
    #[must_use]
    pub fn parse(resource: Resource, slice: Slice, text: &str) -> Option<Self> {
        let total = |who: &str| -> Option<u64> {
            let line = text.lines().find(|line| line.split(' ').next() == Some(who))?;
            line.split(' ').find_map(|field| field.strip_prefix("total="))?.parse().ok()
        };
        Some(Self { resource, slice, waiting_us: total("some")?, stalled_us: total("full") })
    }
}

/// How many of those that are next are named: their names are labels.
pub const NEXT_VICTIMS: usize = 3;

/// A pod that would be evicted.
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
