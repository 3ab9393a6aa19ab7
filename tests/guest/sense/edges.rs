//! Pressure triggers and breached limits on real kernels, alone and through the daemon.
use std::{
    fs,
    os::fd::OwnedFd,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use enforcer::sense::{
    Edge, EdgeKind, EdgeSource, MemoryEvents, Pressure, PsiError, Readiness, SourceState, Trigger,
};
use enforcer_tests::{cgroup::Cgroup, daemon::Daemon, load::Load, reflex, trace::Trace, wait::TIMEOUT};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags},
    io::Errno,
    thread::CapabilitySet,
};

const LOAD: &str = "workload";

fn open(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}

fn pressure(cgroup: &Cgroup, alternatives: &[Trigger]) -> Result<Pressure, PsiError> {
    Pressure::arm(|| open(&cgroup.path().join("memory.pressure"), OFlags::RDWR), alternatives)
}

fn events(cgroup: &Cgroup) -> MemoryEvents {
    MemoryEvents::new(open(&cgroup.path().join("memory.events"), OFlags::RDONLY).unwrap()).unwrap()
}

/// Takes what comes next, as the reflex would.
fn next(source: &mut impl EdgeSource) -> (Vec<EdgeKind>, SourceState) {
    let ready = {
        let mut ready = [PollFd::from_borrowed_fd(source.fd(), PollFlags::PRI)];
        let patience = Timespec { tv_sec: TIMEOUT.as_secs().try_into().unwrap(), tv_nsec: 0 };
        assert_eq!(poll(&mut ready, Some(&patience)), Ok(1), "nothing comes");
        let [ready] = ready;
        ready.revents()
    };
    let failed = ready.intersects(PollFlags::ERR | PollFlags::HUP);
    let mut kinds = Vec::new();
    let ready = if failed { Readiness::Failed } else { Readiness::Ready };
    let state = source.drain(ready, &mut |Edge { kind, onset_ns: _ }| kinds.push(kind));
    (kinds, state)
}

#[guest_test(kernel)]
fn stalls_in_a_cgroup_fire_its_trigger_and_its_end_ends_it() {
    let cgroup = Cgroup::create("psi-fires").unwrap();
    cgroup.write("memory.high", "16M").unwrap();
    let mut trigger = pressure(&cgroup, Trigger::alternatives(Some(true))).unwrap();
    assert_eq!(trigger.trigger(), Trigger::SHORTEST, "with every capability");
    let load = Load::start(&cgroup, &["spike", "--size", "24Mi"]).unwrap();
    assert_eq!(next(&mut trigger), (vec![EdgeKind::Pressure], SourceState::Live));
    cgroup.kill().unwrap();
    drop(load);
    let path = cgroup.path().to_owned();
    drop(cgroup);
    assert!(!path.exists());
    let begin = Instant::now();
    // One more may have been due before.
    while next(&mut trigger).1 == SourceState::Live {
        assert!(begin.elapsed() < TIMEOUT);
    }
}

#[guest_test(kernel)]
fn breaches_of_both_limits_are_reported_apart_and_their_end_ends_it() {
    let parent = Cgroup::create("limits").unwrap();
    let mut counters = events(&parent);
    let high = Cgroup::create("limits/high").unwrap();
    high.write("memory.high", "16M").unwrap();
    let load = Load::start(&high, &["spike", "--size", "24Mi"]).unwrap();
    assert_eq!(next(&mut counters), (vec![EdgeKind::MemoryHigh], SourceState::Live));
    drop(load);
    drop(high);
    while poll_now(&counters) {
        next(&mut counters);
    }
    let max = Cgroup::create("limits/max").unwrap();
    max.write("memory.max", "16M").unwrap();
    let mut load = Load::start(&max, &["spike", "--size", "24Mi"]).unwrap();
    assert_eq!(next(&mut counters), (vec![EdgeKind::MemoryMax], SourceState::Live));
    load.wait().unwrap();
    drop(max);
    drop(parent);
    let begin = Instant::now();
    while next(&mut counters).1 == SourceState::Live {
        assert!(begin.elapsed() < TIMEOUT);
    }
}

fn poll_now(source: &impl EdgeSource) -> bool {
    let mut ready = [PollFd::from_borrowed_fd(source.fd(), PollFlags::PRI)];
    thread::sleep(Duration::from_millis(200));
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut ready, Some(&now)).unwrap() > 0
}

/// What a kernel grants without the capability is asked of the kernel itself, file by file.
#[guest_test(kernel)]
fn without_the_capability_the_window_is_one_that_the_kernel_takes() {
    let cgroup = Cgroup::create("psi-poor").unwrap();
    let file = cgroup.path().join("memory.pressure");
    let poor = thread::spawn(move || {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::SYS_RESOURCE);
        rustix::thread::set_capabilities(None, sets).unwrap();
        let ask = |trigger: Trigger| -> Result<(), Errno> {
            let fd = open(&file, OFlags::RDWR)?;
            rustix::io::write(&fd, format!("{trigger}\0").as_bytes()).map(drop)
        };
        let armed = |alternatives| {
            Pressure::arm(|| open(&file, OFlags::RDWR), alternatives).map(|pressure| pressure.trigger())
        };
        let asked = [Trigger::early(500), Trigger::early(2_000)].map(ask);
        (asked, armed(Trigger::alternatives(Some(false))), armed(Trigger::alternatives(None)))
    });
    let ([short, long], reported, unreported) = poor.join().unwrap();
    println!("without CAP_SYS_RESOURCE: 500 ms {short:?}, 2 s {long:?}");
    assert!(short.is_err(), "a short window needs the capability");
    match long {
        Ok(()) => {
            assert_eq!(reported, Ok(Trigger::early(2_000)));
            assert_eq!(unreported, Ok(Trigger::early(2_000)), "it falls back where facts are not known");
        }
        Err(errno) => {
            assert_eq!(reported, Err(errno.into()));
            assert_eq!(unreported, Err(errno.into()));
        }
    }
}

/// A kubepods of this scenario's own: another may have left the usual one.
const KUBEPODS: &str = "edges/kubepods";

/// Whether a breach below kubepods woke the daemon's reflex, by the scheduler's word.
fn breach_wakes() -> bool {
    let pod = Cgroup::create(&format!("{KUBEPODS}/stranger")).unwrap();
    pod.write("memory.high", "16M").unwrap();
    let trace = Trace::record(&reflex::WATCHED).unwrap();
    let load = Load::start(&pod, &["spike", "--size", "24Mi"]).unwrap();
    let begin = Instant::now();
    let mut woken = false;
    while !woken && begin.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(200));
        woken = reflex::ran_by(&trace.seen().unwrap(), LOAD, 0).is_some();
    }
    pod.kill().unwrap();
    drop(load);
    woken
}

/// The daemon only observes here, so that kubepods comes and goes without it.
#[guest_test(daemon)]
fn kubepods_may_come_after_the_start_and_go_and_come_again() {
    let folder = Path::new("/tmp/edges-kubepods");
    let root = Cgroup::create("edges").unwrap();
    let daemon = Daemon::start(folder, "mode: observe\ncgroupRoot: /edges").unwrap();
    for round in 0..2 {
        let cgroup = Cgroup::create(KUBEPODS).unwrap();
        // It is notified of the new cgroup, and arms.
        let begin = Instant::now();
        while !breach_wakes() {
            assert!(begin.elapsed() < TIMEOUT * 2, "round {round}: never woken\n{}", daemon.log());
        }
        let path = cgroup.path().to_owned();
        drop(cgroup);
        assert!(!path.exists());
    }
    daemon.stop().unwrap();
    drop(root);
    fs::remove_dir_all(folder).unwrap();
}
