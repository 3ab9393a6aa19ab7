//! The stream of records into the incidents: whatever comes in whatever order, each mark is reported at most once,
//! each incident is opened and closed once, and nothing is kept for ever.

use std::collections::HashSet;

use enforcer::{
    model::{CgroupId, CgroupPath, Instance, Owner, OwnerLevel, PodName, PodUid},
    sense::{
        Mark, decode,
        incident::{CLOSE_NS, Eviction, Incidents, Input, MAX_OPEN, NAMED_NS, OomCounts, Output, World},
    },
};
use enforcer_common::record::{COMM_LEN, MarkVictim, ProcessExit};
use ulid::Ulid;
use zerocopy::IntoBytes;

/// The most steps of one input.
const MOST_STEPS: usize = 2_000;

/// Each step is eight bytes: what it is, and what it is about.
pub fn check(bytes: &[u8]) {
    let mut machine = Machine::default();
    for step in bytes.as_chunks::<8>().0.iter().take(MOST_STEPS) {
        machine.take(*step);
    }
    machine.end();
}

#[derive(Default)]
struct Machine {
    now_ns: u64,
    incidents: Incidents,
    world: Few,
    marks: u64,
    /// Incidents that were opened, and those that were closed.
    opened: HashSet<String>,
    closed: HashSet<String>,
    /// The names of victims that were reported at the end, each the name of one mark.
    reported: HashSet<String>,
}

impl Machine {
    fn take(&mut self, step: [u8; 8]) {
        let [what, pid, cgroup, limit, trigger, flags, since, rest] = step;
        let known = u32::from(flags);
        match what % 8 {
            0..=2 => {
                self.marks += 1;
                let mut mark = MarkVictim {
                    // A little before, as the reader is behind: out of order with others.
                    time_ns: self.now_ns.saturating_sub(u64::from(since) << 18),
                    tid: u32::from(pid),
                    tgid: u32::from(pid & rest),
                    cgroup_id: u64::from(cgroup % 8),
                    limit_cgroup_id: u64::from(limit % 8),
                    trigger_tid: u32::from(trigger),
                    trigger_tgid: u32::from(trigger),
                    trigger_cgroup_id: u64::from(trigger % 8),
                    flags: known,
                    ..MarkVictim::EMPTY
                };
                let name = format!("m{}", self.marks);
                mark.comm[..name.len().min(COMM_LEN)].copy_from_slice(name.as_bytes());
                self.record(mark.as_bytes());
            }
            3 | 4 => {
                let exit = ProcessExit {
                    time_ns: self.now_ns.saturating_sub(u64::from(since) << 18),
                    marked_ns: self.now_ns.saturating_sub(u64::from(rest) << 20),
                    cgroup_id: u64::from(cgroup % 8),
                    tid: u32::from(pid),
                    tgid: u32::from(limit),
                    exit_code: 9,
                    flags: known,
                    ..ProcessExit::EMPTY
                };
                self.record(exit.as_bytes());
            }
            // As it is: mostly of no known kind.
            5 => self.record(&step[..usize::from(since % 9)]),
            6 => {
                self.now_ns += u64::from(u16::from_le_bytes([pid, cgroup])) << 14;
                self.step(Input::Tick);
            }
            _ if flags % 2 == 0 => {
                let counts = OomCounts { oom_kill: rest.into(), ..OomCounts::default() };
                self.step(Input::Known { cgroup: CgroupId(u64::from(cgroup % 8)), counts: Some(counts) });
            }
            _ => {
                self.world.evicting = (limit % 2 == 0).then_some(CgroupId(u64::from(cgroup % 8)));
                self.world.counted = flags % 4 == 1;
                self.step(Input::Gone(CgroupId(u64::from(trigger % 8))));
            }
        }
        assert!(self.incidents.open() <= MAX_OPEN);
    }

    fn record(&mut self, bytes: &[u8]) {
        if let Ok(record) = decode(bytes) {
            self.step(Input::Record(record));
        }
    }

    fn step(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for output in self.incidents.step(self.now_ns, input, &mut self.world) {
                inputs.extend(self.output(output));
            }
            let due = self.incidents.deadline_ns();
            assert!(due.is_none_or(|due_ns| due_ns > self.now_ns), "{due:?} is past at {}", self.now_ns);
            assert!(due.is_some() || self.incidents.open() == 0, "an incident that nothing closes");
        }
    }

    fn output(&mut self, output: Output) -> Option<Input> {
        match output {
            Output::Detected(detected) => {
                let new = self.opened.insert(detected.incident_id.to_string());
                assert!(new, "opened twice: {detected:?}");
            }
            Output::Incident(incident) => {
                self.close(&incident.incident_id.to_string());
                assert!(incident.reconstructed || !incident.victims.is_empty(), "{incident:?}");
                incident.victims.iter().for_each(|victim| self.emit(&victim.comm));
            }
            Output::Averted(averted) => {
                if let Some(incident) = averted.incident_id {
                    self.close(&incident.to_string());
                }
                averted.victims.iter().for_each(|victim| self.emit(&victim.comm));
            }
            Output::ReadCounters { incident, cgroups } => {
                let read = |cgroup| (cgroup, self.world.counted.then(OomCounts::default));
                return Some(Input::Counters { incident, readings: cgroups.into_iter().map(read).collect() });
            }
        }
        None
    }

    fn close(&mut self, incident: &str) {
        assert!(self.opened.contains(incident), "{incident} was never opened");
        assert!(self.closed.insert(incident.to_owned()), "{incident} was closed twice");
    }

    fn emit(&mut self, comm: &str) {
        assert!(self.reported.insert(comm.to_owned()), "the mark {comm} was reported twice");
    }

    /// Time goes by, and nothing more comes.
    fn end(&mut self) {
        self.now_ns += CLOSE_NS + NAMED_NS;
        self.step(Input::Tick);
        assert_eq!((self.incidents.open(), self.incidents.deadline_ns()), (0, None));
        assert_eq!(self.opened, self.closed, "opened, and closed");
        assert!(u64::try_from(self.reported.len()).is_ok_and(|reported| reported <= self.marks));
    }
}

/// Eight cgroups, some of them below others, some without an owner.
#[derive(Default)]
struct Few {
    ids: u128,
    evicting: Option<CgroupId>,
    counted: bool,
}

impl World for Few {
    fn owner(&self, cgroup: CgroupId) -> Option<Owner> {
        let pod = PodName { namespace: "default".into(), name: "p".into() };
        let uid = PodUid::new("p")?;
        let level = match cgroup.0 {
            2 => OwnerLevel::Node,
            3 => OwnerLevel::Pod { pod: pod.into(), uid },
            4 | 5 => OwnerLevel::Container { pod: pod.into(), uid, container: format!("c{}", cgroup.0) },
            _ => return None,
        };
        Some(Owner { path: self.path(cgroup)?, level })
    }

    fn path(&self, cgroup: CgroupId) -> Option<CgroupPath> {
        let path = match cgroup.0 {
            1 => "/",
            2 => "/kubepods",
            3 => "/kubepods/podp",
            4 => "/kubepods/podp/c4",
            5 => "/kubepods/podp/c5",
            6 => "/system.slice",
            _ => return None,
        };
        CgroupPath::parse(path).ok()
    }

    fn awaits_name(&self, cgroup: CgroupId) -> bool {
        cgroup.0 == 5
    }

    fn instance(&self, _owner: &CgroupPath) -> Instance {
        Instance::default()
    }

    fn parent(&self, cgroup: CgroupId) -> Option<CgroupId> {
        match cgroup.0 {
            2 | 6 => Some(CgroupId(1)),
            3 => Some(CgroupId(2)),
            4 | 5 => Some(CgroupId(3)),
            // One that is above itself, as no hierarchy has it: bounded nevertheless.
            7 => Some(CgroupId(7)),
            _ => None,
        }
    }

    fn eviction(&self, cgroup: CgroupId, _at_ns: u64) -> Option<Eviction> {
        (self.evicting == Some(cgroup)).then_some(Eviction::Lasts)
    }

    fn new_id(&mut self, _: Option<&Mark>) -> Ulid {
        self.ids += 1;
        Ulid(self.ids)
    }
}
