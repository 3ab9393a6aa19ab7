//! Runs the whole path once on files in memory, so that its pages are there, and locked, before they are needed.

use std::{io, os::fd::OwnedFd, path::Path};

use rustix::fs::MemfdFlags;

use super::{
    candidate::{Candidate, Identity, Target},
    executor, stat,
};
use crate::{
    cgroup::CgroupDir,
    model::{CgroupPath, PodName, PodUid, QosClass},
    policy::engine::{
        Action, CandidateFacts, Candidates, Engine, EngineSettings, Input, Mode, NodeSample, Outcome, PodKey,
        Resource,
    },
    sense::snapshot::ChargeFiles,
};

/// Rehearses one eviction. That it cannot be done is no reason not to start.
pub(super) fn rehearse() {
    match run() {
        Ok(true) => {}
        Ok(false) => tracing::warn!("the rehearsal of an eviction did not come to a kill"),
        Err(error) => tracing::debug!(%error, "cannot rehearse an eviction"),
    }
}

/// Whether the decoy was signalled.
fn run() -> io::Result<bool> {
    let decoy = decoy()?;
    let settings = EngineSettings { mode: Mode::Enforce, ..EngineSettings::default() };
    let mut engine = Engine::new(&settings);
    let _none = engine.replace(Candidates::new(&[decoy.facts]));
    let mut buffer = [0_u8; stat::BUFFER_BYTES];
    let node = NodeSample::memory(0, 0, 1);
    let _wishes = engine.step(Input::Node(node));
    let readings = [decoy.read_usage(Resource::Pids, &mut buffer)];
    let actions = engine.step(Input::Usages { node, readings: &readings });
    let Some(number) = engine.decision().map(|decision| decision.number) else { return Ok(false) };
    let signalled = actions.iter().any(|action| *action == Action::Evict) && executor::signal(&decoy).is_ok();
    let _told = engine.step(Input::Outcome(Outcome::Signalled { number, now_ns: 0 }));
    let progress = executor::progress(&decoy, Resource::Pids, &mut buffer);
    let _done = engine.step(Input::Outcome(Outcome::Progress {
        number,
        now_ns: 0,
        populated: progress.populated,
        current_bytes: progress.current_bytes,
        process_count: progress.process_count,
    }));
    Ok(signalled)
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
        charged: vec![ChargeFiles {
            current: file("4096\n")?,
            stat: file("anon 4096\nfile 0\nshmem 0\ninactive_file 0\n")?,
        }],
        counted: vec![file("1\n")?],
        brakes: vec![file("")?],
        targets: vec![Target { dir: open()?, kill: file("")?, events: file("populated 1\n")? }],
        elsewhere: Vec::new(),
    })
}

fn file(content: &str) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("rehearsal", MemfdFlags::CLOEXEC)?;
    rustix::io::write(&fd, content.as_bytes())?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_rehearsal_comes_to_a_kill() {
        assert!(super::run().unwrap());
    }
}
