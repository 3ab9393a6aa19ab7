//! Runs evictions of every kind once, from the look to the victim's end and its reports, on files in memory. That way
//! the pages they touch are resident and locked before they are needed. It covers hard and soft memory thresholds,
//! process ids and the pods' limit, for a pod that adopted a cgroup, with the next one throttled meanwhile. It leaves
//! out the intent page and the hook, which have other owners.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::MemfdFlags;

use super::{
    brake::Braking,
    candidate::{Brake, Candidate, Identity, Owner, Target},
    close::Work,
    eviction_loop::{EvictionLoop, Wiring},
    fill_detector::FillDetector,
    hook::{Hooks, Job},
    levels::Levels,
    queue::{Next, Receiver, queue},
    reap::Dying,
    reflex::{PreparedSet, Shared},
    report::Report,
    spec_state::SpecState,
};
use crate::{
    cgroup::{CgroupDir, Guard, Origin},
    clock,
    model::{CgroupFile, CgroupId, CgroupPath, PodName, PodUid, QosClass},
    policy::{
        engine::{
            CandidateFacts, EngineSettings, Input, Mode, NodeSample, Outcome, PodKey, Reading, Usage,
            followed,
        },
        threshold::{Signal, Threshold, ThresholdValue},
    },
    recorder::Tap,
    sense::{
        Available, MemoryAvailableSource, PodsMemory, Tasks,
        snapshot::{BranchFiles, ChargeFiles},
    },
};

/// The length of the queue to each of the helpers.
const ROOM: usize = 64;

const MS: u64 = 1_000_000;

/// The grace period of a soft threshold and of a pod: the shortest that differs from none.
const GRACE_MS: u64 = 1;

/// A node with no available memory, one with less than the soft threshold, and one with plenty.
const SHORT: &str = "MemTotal:           4096 kB\nMemFree:               0 kB\nMemAvailable:          0 kB\n";
const SCANTY: &str =
    "MemTotal:           4096 kB\nMemFree:               8 kB\nMemAvailable:          8 kB\n";
const PLENTY: &str =
    "MemTotal:           4096 kB\nMemFree:            4096 kB\nMemAvailable:       4096 kB\n";

/// Few tasks, and almost the maximum.
const FEW_TASKS: &str = "0.00 0.00 0.00 1/010 1\n";
const MANY_TASKS: &str = "0.00 0.00 0.00 1/990 1\n";
const MOST_TASKS: &str = "1000\n";

/// The pods' limit.
const LIMIT_BYTES: u64 = 4 << 20;

/// The name of the pod that is killed.
const VICTIM: &str = "victim";

/// Its usage, large enough that its memory is awaited and the next pod throttled meanwhile.
const VICTIM_BYTES: u64 = 8 << 20;

/// `cpu.max` of an adopted cgroup.
const ADOPTED_CPU_MAX: &str = "20000 100000\n";

fn thresholds() -> [Threshold; 4] {
    let hard = |signal, amount| Threshold::hard(signal, ThresholdValue::Amount(amount));
    [
        hard(Signal::MemoryAvailable, 4_096),
        Threshold { grace_period_ms: GRACE_MS, ..hard(Signal::MemoryAvailable, 12_288) },
        hard(Signal::AllocatableMemoryAvailable, 4_096),
        hard(Signal::PidAvailable, 11),
    ]
}

/// A rehearsal uses the real code: a loop with its recorder and its helpers' queues, from which nothing is taken.
pub(super) struct Rehearsal {
    eviction_loop: EvictionLoop,
    shared: Arc<Shared>,
    meminfo: OwnedFd,
    load: OwnedFd,
    victim: Arc<Candidate>,
    /// The victim's `memory.current`.
    current: OwnedFd,
    received: Receiver<Report>,
    /// The files of kubepods, one set without headroom and one unused.
    pods: [Option<Box<PodsMemory>>; 2],
    /// Keeps the queues open, so that sending does not fail.
    #[cfg_attr(not(test), expect(dead_code, reason = "held, and looked into by a test"))]
    helpers: (Receiver<Work>, Receiver<Braking>, Receiver<Job>, Receiver<Dying>),
}

impl Rehearsal {
    /// Prepares it, on a stack that is large enough.
    pub(super) fn prepare() -> io::Result<Box<Self>> {
        let (meminfo, load) = (file(PLENTY)?, file(FEW_TASKS)?);
        let path = PathBuf::from(format!("/proc/self/fd/{}", meminfo.as_raw_fd()));
        let available =
            Available::open(&path, MemoryAvailableSource::MemAvailable).map_err(io::Error::other)?;
        let thresholds = thresholds();
        let settings = EngineSettings {
            mode: Mode::Enforce,
            thresholds: followed(&thresholds),
            max_pod_grace_period_ns: GRACE_MS * MS,
            ..EngineSettings::default()
        };
        let shared = Arc::new(Shared::new()?);
        let (reports, received) = queue(ROOM)?;
        let (reaper, dying) = queue(ROOM)?;
        let (closer, work) = queue(ROOM)?;
        let (braker, braking) = queue(ROOM)?;
        let (hooker, jobs) = queue(ROOM)?;
        let wiring = Wiring {
            shared: Arc::clone(&shared),
            available,
            levels: Levels::new(Ok(Tasks::of(load.try_clone()?, file(MOST_TASKS)?)), None),
            reports,
            reaper,
            closer,
            braker,
            hooker,
            hooks: Arc::new(Hooks::new(None, None)?),
            edges: Vec::new(),
            cpus: 1,
            intents: None,
            seed: 0,
            tap: Some(Tap::unwatched()?),
            fill_detector: FillDetector::new(None),
            inherited: None,
        };
        let eviction_loop =
            EvictionLoop::new(&settings, &[], &thresholds, wiring).map_err(io::Error::other)?;
        let charged = charge(VICTIM_BYTES)?;
        let current = charged.current.try_clone()?;
        let (victim, next) = (Arc::new(decoy(VICTIM, charged)?), Arc::new(decoy("next", charge(2_048)?)?));
        let set = Box::new(PreparedSet::new(vec![Arc::clone(&victim), next]));
        shared.post(|inbox| inbox.set = Some(set));
        let pods = [Some(pods(LIMIT_BYTES)?), Some(pods(0)?)];
        let helpers = (work, braking, jobs, dying);
        Ok(Box::new(Self { eviction_loop, shared, meminfo, load, victim, current, received, pods, helpers }))
    }

    /// Rehearses an eviction of each kind, on the eviction thread. Returns whether the victim was killed each time.
    pub(super) fn perform(&mut self) -> io::Result<bool> {
        self.eviction_loop.drain_inbox();
        self.eviction_loop.look();
        let killed = [self.hard()?, self.soft()?, self.pids()?, self.allocatable()?];
        self.eviction_loop.wake_report_thread();
        Ok(killed == [true; 4])
    }

    /// A hard eviction, with the next pod throttled while the victim dies.
    fn hard(&mut self) -> io::Result<bool> {
        write(&self.meminfo, SHORT)?;
        self.eviction_loop.look();
        self.hold_back();
        self.die()?;
        write(&self.meminfo, PLENTY)?;
        self.eviction_loop.look();
        if let (_, Some(brake)) = self.eviction_loop.under_way() {
            let (now_ns, given_back) = (clock::boottime_ns(), true);
            self.eviction_loop.take_in(Input::Outcome(Outcome::Eased { brake, now_ns, given_back }));
        }
        self.revive()
    }

    /// Throttles the next pod, which grows fast by made-up readings.
    fn hold_back(&mut self) {
        let later_ns = clock::boottime_ns() + 100 * MS;
        let node = NodeSample { fill_bytes_per_second: 1 << 40, ..NodeSample::memory(later_ns, 0, 4 << 20) };
        let using = |bytes| {
            let usage = Usage { current_bytes: bytes, working_set_bytes: bytes, ..Usage::default() };
            Reading::Usage(Usage { anon_bytes: bytes, ..usage })
        };
        self.eviction_loop.take_in(Input::Usages { node, readings: &[using(VICTIM_BYTES), using(1 << 20)] });
        if let (_, Some(brake)) = self.eviction_loop.under_way() {
            self.eviction_loop.take_in(Input::Outcome(Outcome::Contained { brake, now_ns: later_ns }));
        }
    }

    /// A soft eviction, in which the victim ignores SIGTERM.
    fn soft(&mut self) -> io::Result<bool> {
        write(&self.meminfo, SCANTY)?;
        self.eviction_loop.look();
        thread::sleep(Duration::from_millis(2 * GRACE_MS));
        self.eviction_loop.look();
        if let (Some(number), _) = self.eviction_loop.under_way() {
            let outcome = Outcome::Terminated { number, now_ns: clock::boottime_ns() };
            self.shared.post(|inbox| {
                let _fits = inbox.outcomes.push(outcome);
            });
            self.eviction_loop.drain_inbox();
        }
        thread::sleep(Duration::from_millis(2 * GRACE_MS));
        self.eviction_loop.look();
        self.die()?;
        write(&self.meminfo, PLENTY)?;
        self.eviction_loop.look();
        self.revive()
    }

    fn pids(&mut self) -> io::Result<bool> {
        write(&self.load, MANY_TASKS)?;
        self.eviction_loop.look();
        self.die()?;
        write(&self.load, FEW_TASKS)?;
        self.eviction_loop.look();
        self.revive()
    }

    fn allocatable(&mut self) -> io::Result<bool> {
        let [short, plenty] = self.pods.each_mut().map(Option::take);
        self.shared.post(|inbox| inbox.pods = short);
        self.eviction_loop.drain_inbox();
        self.eviction_loop.look();
        self.die()?;
        self.shared.post(|inbox| inbox.pods = plenty);
        self.eviction_loop.drain_inbox();
        self.eviction_loop.look();
        self.revive()
    }

    /// Ends the victim's last process.
    fn die(&self) -> io::Result<()> {
        let target = self.victim.targets.first().ok_or(io::ErrorKind::NotFound)?;
        write(&target.events, "populated 0\n")?;
        write(&self.current, "0\n")?;
        self.victim.counted.iter().try_for_each(|file| write(file, "0\n"))
    }

    /// Restores the victim; returns whether it was killed and its limits raised.
    fn revive(&mut self) -> io::Result<bool> {
        // Processes the victim's end.
        self.eviction_loop.look();
        let target = self.victim.targets.first().ok_or(io::ErrorKind::NotFound)?;
        let mut was_killed = starts_with(&target.kill, b"1")?;
        write(&target.kill, "0")?;
        write(&target.events, "populated 1\n")?;
        write(&self.current, &format!("{VICTIM_BYTES}\n"))?;
        self.victim.counted.iter().try_for_each(|file| write(file, "1\n"))?;
        for brake in self.victim.brakes.iter().filter(|brake| brake.owner.is_some()) {
            was_killed &= starts_with(&brake.fd, b"max")?;
            write(&brake.fd, ADOPTED_CPU_MAX)?;
        }
        Ok(was_killed)
    }

    /// The reports made so far, for the listener to rehearse.
    pub(super) fn reports(&self) -> impl Iterator<Item = Report> {
        std::iter::from_fn(|| match self.received.next_until(Some(Instant::now())) {
            Next::Value(report) => Some(report),
            Next::Late | Next::End => None,
        })
    }
}

/// Logs the result of a rehearsal. A failed one does not prevent the start.
pub(super) fn note(rehearsed: io::Result<bool>) {
    match rehearsed {
        Ok(true) => {}
        Ok(false) => tracing::warn!("the rehearsal of evictions did not kill the victim each time"),
        Err(error) => tracing::debug!(%error, "cannot rehearse an eviction"),
    }
}

/// A candidate whose files are in memory and whose directory is never read.
fn decoy(name: &str, charged: ChargeFiles) -> io::Result<Candidate> {
    let open = || CgroupDir::unchecked(Path::new("/")).map_err(io::Error::other);
    let dir = open()?;
    let uid = PodUid::new(name).ok_or(io::ErrorKind::InvalidInput)?;
    // The victim's id is checked; the other pod's must differ.
    let cgroup = if name == VICTIM { dir.id() } else { CgroupId(dir.id().0.wrapping_add(1)) };
    let owner = Owner { path: CgroupPath::root(), cgroup, file: CgroupFile::CpuMax };
    Ok(Candidate {
        origin: Origin::Made,
        guard: Arc::new(Guard::new(Path::new("/proc"), &[])),
        is_forbidden: AtomicBool::new(false),
        identity: Identity {
            pod: PodName { namespace: String::new(), name: name.to_owned() },
            uid,
            qos_class: QosClass::BestEffort,
            limit_bytes: None,
            cgroup: CgroupPath::root(),
            controller: None,
            placed: None,
            spec: SpecState::default(),
        },
        label: format!("/{name}"),
        facts: CandidateFacts {
            cgroup,
            pod: PodKey { hash: cgroup.0 },
            priority: 0,
            request_bytes: 0,
            critical: false,
            protected: false,
            grace_period_ns: GRACE_MS * MS,
            terminating: false,
            torn_down: false,
            in_kubepods: true,
        },
        dir,
        charged: Some(vec![BranchFiles::leaf(charged)]),
        counted: vec![file("1\n")?],
        brakes: vec![
            Brake { fd: file("")?, owner: None },
            Brake { fd: file(ADOPTED_CPU_MAX)?, owner: Some(owner) },
        ],
        weight: Some(file("")?),
        targets: vec![Target {
            dir: open()?,
            origin: Origin::Made,
            kill: file("0")?,
            events: file("populated 1\n")?,
        }],
        is_moving: false,
        elsewhere: Vec::new(),
        is_whole: true,
        pledged: Vec::new(),
        requested: Arc::default(),
        containers: Vec::new(),
    })
}

/// The files of a kubepods with a charge of `bytes`.
fn pods(bytes: u64) -> io::Result<Box<PodsMemory>> {
    let limit = file(&format!("{LIMIT_BYTES}\n"))?;
    Ok(Box::new(PodsMemory::of(CgroupPath::root(), limit, charge(bytes)?)))
}

fn charge(bytes: u64) -> io::Result<ChargeFiles> {
    let stat = format!("anon {bytes}\nfile 0\nshmem 0\ninactive_file 0\n");
    Ok(ChargeFiles { current: file(&format!("{bytes}\n"))?, stat: file(&stat)? })
}

fn file(content: &str) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("rehearsal", MemfdFlags::CLOEXEC)?;
    rustix::io::write(&fd, content.as_bytes())?;
    Ok(fd)
}

/// Replaces the file's content.
fn write(file: &OwnedFd, content: &str) -> io::Result<()> {
    let length = rustix::io::pwrite(file, content.as_bytes(), 0)?;
    Ok(rustix::fs::ftruncate(file, u64::try_from(length).unwrap_or(0))?)
}

fn starts_with(file: &OwnedFd, word: &[u8]) -> io::Result<bool> {
    let mut buffer = [0_u8; 32];
    let count = rustix::io::pread(file, &mut buffer, 0)?;
    Ok(buffer.get(..count).is_some_and(|text| text.starts_with(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_eviction_is_rehearsed_to_its_end() {
        let mut rehearsal = Rehearsal::prepare().unwrap();
        assert!(rehearsal.perform().unwrap());
        let reports: Vec<_> = rehearsal.reports().collect();
        let decided: Vec<_> = reports
            .iter()
            .filter_map(|report| match report {
                Report::Decided { decision, .. } => {
                    Some((decision.shortage.signal, decision.shortage.hard, decision.grace_ns > 0))
                }
                _ => None,
            })
            .collect();
        let expected = [
            (Signal::MemoryAvailable, true, false),
            (Signal::MemoryAvailable, false, true),
            (Signal::PidAvailable, true, false),
            (Signal::AllocatableMemoryAvailable, true, false),
        ];
        assert_eq!(decided, expected, "{reports:#?}");
        let count = |is: fn(&Report) -> bool| reports.iter().filter(|report| is(report)).count();
        assert_eq!(count(|report| matches!(report, Report::Signalled { .. })), 4, "{reports:#?}");
        assert_eq!(count(|report| matches!(report, Report::Terminated { .. })), 1, "{reports:#?}");
        assert_eq!(count(|report| matches!(report, Report::Completed { .. })), 4, "{reports:#?}");
        assert_eq!(count(|report| matches!(report, Report::Contained { .. })), 1, "{reports:#?}");
        assert_eq!(count(|report| matches!(report, Report::Eased { .. })), 1, "{reports:#?}");
        let (work, braking, ..) = &rehearsal.helpers;
        let mut given_back = 0;
        while let Next::Value(work) = work.next_until(Some(Instant::now())) {
            given_back += usize::from(matches!(work, Work::GiveBack(_)));
        }
        assert_eq!(given_back, 4, "the limits of adopted cgroups that are restored");
        let asked = std::iter::from_fn(|| match braking.next_until(Some(Instant::now())) {
            Next::Value(braking) => Some(matches!(braking, Braking::Hold { .. })),
            Next::Late | Next::End => None,
        });
        assert_eq!(asked.collect::<Vec<_>>(), [true, false]);
    }
}
