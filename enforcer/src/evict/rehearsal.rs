//! Runs an eviction once, from the look to the victim's end and to what is told of it, on files in memory, so that the pages
//! it takes are there, and locked, before they are needed. Left out are what has an owner of its own: the intent page, the
//! hook, and other levels than memory.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use rustix::fs::MemfdFlags;

use super::{
    brake::Braking,
    candidate::{Brake, Candidate, Identity, Target},
    hook::{Hooks, Job},
    levels::Levels,
    onset::Onset,
    queue::{Next, Receiver, queue},
    reap::Work,
    reflex::{PreparedSet, Shared},
    report::Report,
    turn::{Turn, Wiring},
};
use crate::{
    cgroup::CgroupDir,
    model::{CgroupPath, PodName, PodUid, QosClass},
    policy::{
        engine::{CandidateFacts, EngineSettings, Mode, PodKey},
        message::Requests,
    },
    recorder::Tap,
    sense::{
        Available, MemoryAvailableSource,
        snapshot::{BranchFiles, ChargeFiles, Missing},
    },
};

/// Room for what an eviction has to say to each of the helpers.
const ROOM: usize = 16;

/// A node with nothing left, and one with plenty.
const SHORT: &str = "MemTotal:           4096 kB\nMemFree:               0 kB\nMemAvailable:          0 kB\n";
const PLENTY: &str =
    "MemTotal:           4096 kB\nMemFree:            4096 kB\nMemAvailable:       4096 kB\n";

/// What goes through a rehearsal is what will in earnest: a turn with its recorder and its helpers' queues, of which nobody
/// takes anything.
pub(super) struct Rehearsal {
    turn: Turn,
    meminfo: OwnedFd,
    decoy: Arc<Candidate>,
    told: Receiver<Report>,
    /// As long as there are receivers, there is room for what is sent.
    _helpers: (Receiver<Work>, Receiver<Braking>, Receiver<Job>),
}

impl Rehearsal {
    /// Makes all that it takes, on a stack that has room for it.
    pub(super) fn prepare() -> io::Result<Box<Self>> {
        let meminfo = file(SHORT)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", meminfo.as_raw_fd()));
        let available =
            Available::open(&path, MemoryAvailableSource::MemAvailable).map_err(io::Error::other)?;
        let settings = EngineSettings { mode: Mode::Enforce, ..EngineSettings::default() };
        let shared = Arc::new(Shared::new()?);
        let (teller, told) = queue(ROOM)?;
        let (reaper, work) = queue(ROOM)?;
        let (braker, braking) = queue(ROOM)?;
        let (hooker, jobs) = queue(ROOM)?;
        let wiring = Wiring {
            shared: Arc::clone(&shared),
            available,
            levels: Levels::new(Err(Missing::Absent), None),
            teller,
            reaper,
            braker,
            hooker,
            hooks: Arc::new(Hooks::new(None, None)?),
            edges: Vec::new(),
            cpus: 1,
            pledges: None,
            seed: 0,
            tap: Some(Tap::to_nobody()?),
            onset: Onset::new(None),
        };
        let turn = Turn::new(&settings, &[], wiring).map_err(io::Error::other)?;
        let decoy = Arc::new(decoy()?);
        let set = Box::new(PreparedSet::new(vec![Arc::clone(&decoy)]));
        shared.post(|mail| mail.set = Some(set));
        Ok(Box::new(Self { turn, meminfo, decoy, told, _helpers: (work, braking, jobs) }))
    }

    /// Rehearses one eviction, on the thread that it is for. Whether the decoy was signalled.
    pub(super) fn perform(&mut self) -> io::Result<bool> {
        self.turn.take_mail();
        // It is signalled, and looked at once more; then it is dead, and its memory back.
        self.turn.look();
        self.turn.look();
        let target = self.decoy.targets.first().ok_or(io::ErrorKind::NotFound)?;
        rustix::io::pwrite(&target.events, b"populated 0\n", 0)?;
        rustix::io::pwrite(&self.meminfo, PLENTY.as_bytes(), 0)?;
        self.turn.look();
        self.turn.look();
        self.turn.wake_teller();
        let mut signalled = [0_u8; 8];
        let count = rustix::io::pread(&target.kill, &mut signalled, 0)?;
        Ok(signalled.get(..count) == Some(b"1"))
    }

    /// What was reported meanwhile, for whoever is to rehearse what is told of an eviction.
    pub(super) fn reports(&self) -> impl Iterator<Item = Report> {
        std::iter::from_fn(|| match self.told.next_until(Some(Instant::now())) {
            Next::Value(report) => Some(report),
            Next::Late | Next::End => None,
        })
    }
}

/// Tells what came of a rehearsal. That it cannot be done is no reason not to start.
pub(super) fn note(rehearsed: io::Result<bool>) {
    match rehearsed {
        Ok(true) => {}
        Ok(false) => tracing::warn!("the rehearsal of an eviction did not come to a kill"),
        Err(error) => tracing::debug!(%error, "cannot rehearse an eviction"),
    }
}

/// A candidate whose files are in memory and whose directory is never looked into.
fn decoy() -> io::Result<Candidate> {
    let open = || CgroupDir::unchecked(Path::new("/")).map_err(io::Error::other);
    let dir = open()?;
    let uid = PodUid::new("rehearsal").ok_or(io::ErrorKind::InvalidInput)?;
    Ok(Candidate {
        identity: Identity {
            pod: PodName { namespace: String::new(), name: String::from("rehearsal") },
            uid,
            qos_class: QosClass::BestEffort,
            limit_bytes: None,
            cgroup: CgroupPath::root(),
        },
        label: String::from("/rehearsal"),
        facts: CandidateFacts {
            cgroup: dir.id(),
            pod: PodKey::default(),
            priority: 0,
            request_bytes: 0,
            critical: false,
            protected: false,
            grace_period_ns: 0,
        },
        dir,
        charged: vec![BranchFiles::leaf(ChargeFiles {
            current: file("4096\n")?,
            stat: file("anon 4096\nfile 0\nshmem 0\ninactive_file 0\n")?,
        })],
        counted: vec![file("1\n")?],
        brakes: vec![Brake { fd: file("")?, owner: None }],
        weight: Some(file("")?),
        targets: vec![Target { dir: open()?, kill: file("")?, events: file("populated 1\n")? }],
        elsewhere: Vec::new(),
        is_whole: true,
        pledged: Vec::new(),
        requested: Requests::default(),
        containers: Vec::new(),
    })
}

fn file(content: &str) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("rehearsal", MemfdFlags::CLOEXEC)?;
    rustix::io::write(&fd, content.as_bytes())?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rehearsal_comes_to_a_kill_and_to_its_end() {
        let mut rehearsal = Rehearsal::prepare().unwrap();
        assert!(rehearsal.perform().unwrap());
        let reports: Vec<_> = rehearsal.reports().collect();
        let has = |is: fn(&Report) -> bool| reports.iter().any(is);
        assert!(has(|report| matches!(report, Report::Decided { .. })), "{reports:#?}");
        assert!(has(|report| matches!(report, Report::Signalled { .. })), "{reports:#?}");
        assert!(has(|report| matches!(report, Report::Completed { .. })), "{reports:#?}");
    }
}
