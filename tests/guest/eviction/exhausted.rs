//! No thread, no descriptor and no address space is to be had: the daemon answers, and evicts the right pod. Killed for the
//! memory that it takes itself, it loses nothing.

use std::{any::Any, fs, os::unix::process::ExitStatusExt as _, path::Path, process::Command};

use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    host::PidMax,
    process::Process,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::{MIB, Scene, THRESHOLD_BYTES, to_leave};

/// What is available before each crossing, above the threshold; what takes it below; and what the victim gives back.
const ABOVE_BYTES: u64 = 100 * MIB;
const BALLAST_BYTES: usize = 160 << 20;
const HOG: &str = "200Mi";

/// What cannot be had.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Want {
    /// No more tasks in the daemon's cgroup (`pids.max`).
    TasksOfTheDaemon,
    /// No process id, for anybody: a pod has taken them all.
    ProcessIds,
    /// No descriptor in the daemon (`EMFILE`).
    Descriptors,
    /// No open file, for anybody that the kernel refuses one (`ENFILE`).
    OpenFiles,
    /// No address space in the daemon (`RLIMIT_AS`).
    AddressSpace,
    /// No memory that is promised to anybody (`vm.overcommit_memory=2`).
    Commitments,
}

impl Want {
    const ALL: [Self; 6] = [
        Self::TasksOfTheDaemon,
        Self::ProcessIds,
        Self::Descriptors,
        Self::OpenFiles,
        Self::AddressSpace,
        Self::Commitments,
    ];
}

/// Puts a system's setting back when it is dropped.
struct Sysctl(&'static str, String);

impl Sysctl {
    fn set(path: &'static str, value: &str) -> Self {
        let before = fs::read_to_string(path).unwrap();
        fs::write(path, value).unwrap();
        Self(path, before)
    }
}

impl Drop for Sysctl {
    fn drop(&mut self) {
        fs::write(self.0, &self.1).unwrap();
    }
}

/// A limit of the daemon's, until this is dropped.
pub(super) struct Limited(Pid, Resource, Rlimit);

impl Limited {
    pub(super) fn set(daemon: &Daemon, resource: Resource, most: u64) -> Self {
        let pid = Pid::from_raw(daemon.pid().try_into().unwrap()).unwrap();
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        let before = prlimit(Some(pid), resource, limit).unwrap();
        Self(pid, resource, before)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        prlimit(Some(self.0), self.1, self.2).unwrap();
    }
}

/// The lowest descriptor that is free: with so many allowed, there is no further one.
pub(super) fn first_free_descriptor(daemon: &Daemon) -> u64 {
    let folder = format!("/proc/{}/fd", daemon.pid());
    let is_free = |descriptor: &u64| fs::symlink_metadata(format!("{folder}/{descriptor}")).is_err();
    (0..1 << 20).find(is_free).unwrap()
}

fn address_space_bytes(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB"));
    size.unwrap().trim().parse::<u64>().unwrap() * 1024
}

/// Whether each part of the heap has the flag `lo` (`proc_pid_smaps(5)`).
fn heap_is_locked(daemon: &Daemon) -> bool {
    let maps = fs::read_to_string(format!("/proc/{}/smaps", daemon.pid())).unwrap();
    let heap: Vec<&str> = maps.split("[heap]").skip(1).collect();
    let flags = |part: &&str| part.lines().find_map(|line| line.strip_prefix("VmFlags:")).unwrap().to_owned();
    !heap.is_empty() && heap.iter().map(flags).all(|flags| flags.split(' ').any(|flag| flag == "lo"))
}

/// Each of these is answered, whatever is wanting.
fn ask(daemon: &Daemon, want: Want) {
    for path in ["/livez", "/metrics", "/v1/ranking", "/v1/pods", "/v1/headroom", "/v1/usages"] {
        let answer = match daemon.get(path) {
            Ok(answer) => answer,
            // The kernel has no socket for who asks either (`unix_create1`: twice `file-max`).
            Err(error) if want == Want::OpenFiles && error.raw_os_error() == Some(libc::ENFILE) => continue,
            Err(error) => panic!("{want:?}: {path}: {error}"),
        };
        assert!(answer.starts_with("HTTP/1.0 200"), "{want:?}: {path}: {answer:?}\n{}", daemon.log());
    }
}

fn open(cgroup: &Cgroup, name: &str) -> Scene {
    let settings = format!(
        "mode: enforce\nevictionPressureTransitionPeriod: 1ms\nbreaker: {{maxKills: 50, maxShare: 1}}\n\
         evictionHard: {{memory.available: {}Mi}}",
        THRESHOLD_BYTES / MIB
    );
    let join = format!("echo 0 > {}/cgroup.procs && exec \"$@\"", cgroup.path().display());
    let mut daemon =
        Daemon::launch(&Path::new("/tmp").join(name), &settings, &["sh", "-c", &join, "sh"]).unwrap();
    daemon.wait_until_ready().unwrap();
    let stream = daemon.follow().unwrap();
    Scene { daemon, stream }
}

#[guest_test(daemon)]
fn exhausted_resources_do_not_prevent_an_eviction() {
    // What is freed of this stays with this process, which is to find memory too where no more is promised.
    drop(vec![1_u8; 16 << 20]);
    drop(vec![1_u8; 8 << 20]);
    let cgroup = Cgroup::create("exhausted").unwrap();
    let mut scene = open(&cgroup, "exhausted");
    let mut calm = scene.hold("calm", 0, "memory: 64Mi", "", "16Mi");
    let mut filler = scene.fill(&to_leave(THRESHOLD_BYTES + ABOVE_BYTES + 200 * MIB));
    for (number, want) in Want::ALL.into_iter().enumerate() {
        let hog = format!("hog-{number}");
        let mut victim = scene.hold(&hog, 0, "", "", HOG);
        wait_until("its place in the ranking", || scene.daemon.get("/v1/ranking").unwrap().contains(&hog));
        let mut ballast: Vec<u8> = Vec::with_capacity(BALLAST_BYTES);
        let mut bomb = None;
        let relief: Vec<Box<dyn Any>> = match want {
            Want::TasksOfTheDaemon => {
                cgroup.write("pids.max", &cgroup.read("pids.current").unwrap()).unwrap();
                Vec::new()
            }
            Want::ProcessIds => {
                // The kernel gives those above 300 again and again.
                let most = PidMax::set(450).unwrap();
                bomb = Some(scene.start("bomb", &["workload", "fork", "--count", "3000"]));
                // The bomb goes on no more once it was refused: what others give back is taken here.
                let mut taken = Vec::new();
                wait_until("the last process id", || {
                    let another = Command::new("sleep").arg("1000").spawn();
                    another.map(|child| taken.push(Process::new(child))).is_err()
                });
                vec![Box::new(most), Box::new(taken)]
            }
            Want::Descriptors => {
                let mut limited = None;
                // One that it opens and closes again may be counted at first.
                wait_until("the last descriptor", || {
                    drop(limited.take());
                    let most = first_free_descriptor(&scene.daemon);
                    limited = Some(Limited::set(&scene.daemon, Resource::Nofile, most));
                    ask(&scene.daemon, want);
                    scene.daemon.log().contains("cannot accept ordinary connections on the observe socket")
                });
                vec![Box::new(limited)]
            }
            Want::OpenFiles => vec![Box::new(Sysctl::set("/proc/sys/fs/file-max", "1"))],
            Want::AddressSpace => {
                let most = address_space_bytes(&scene.daemon);
                vec![Box::new(Limited::set(&scene.daemon, Resource::As, most))]
            }
            Want::Commitments => vec![
                Box::new(Sysctl::set("/proc/sys/vm/overcommit_ratio", "0")),
                Box::new(Sysctl::set("/proc/sys/vm/overcommit_memory", "2")),
            ],
        };

        // Often enough that nothing which is held back for it is used up by it.
        for _ in 0..3 {
            ask(&scene.daemon, want);
        }
        ballast.resize(BALLAST_BYTES, 1);
        let decided = scene.wait("eviction.decided", &hog);
        scene.wait("eviction.completed", &hog);
        ask(&scene.daemon, want);
        victim.wait_for_end(TIMEOUT).unwrap();
        assert!(calm.lives().unwrap() && filler.lives().unwrap(), "{want:?}: {decided}");

        drop(relief);
        cgroup.write("pids.max", "max").unwrap();
        drop(ballast);
        scene.wait_for_end_of_shortage();
        assert_eq!(scene.stream.of("eviction.decided").count(), 1, "{want:?}");
        assert_eq!(scene.stream.of("oom.incident").count(), 0, "{want:?}");
        if bomb.is_some() {
            scene.clear(&["bomb"]);
        }
        scene.clear(&[&hog]);
    }

    // Unlocked only while freed memory was returned, which has happened many times.
    wait_until("the lock of the heap", || heap_is_locked(&scene.daemon));
    killed_for_its_own_memory(&cgroup, scene);
    drop((calm, filler));
}

/// The kernel kills the daemon at its own limit. Its successor has all that happened, and the kill.
fn killed_for_its_own_memory(cgroup: &Cgroup, scene: Scene) {
    let before = scene.daemon.events().unwrap();
    cgroup.write("memory.max", &MIB.to_string()).unwrap();
    let mut daemon = scene.daemon;
    let status = daemon.wait_for_end().unwrap();
    assert_eq!(status.signal(), Some(9), "{status}");
    drop(daemon);
    cgroup.write("memory.max", "max").unwrap();

    let mut scene = open(cgroup, "exhausted");
    let is_own = |event: &serde_json::Value| {
        let victims = event["data"]["victims"].as_array();
        is(event, "oom.incident")
            && victims.is_some_and(|all| all.iter().any(|one| one["comm"] == "enforcer"))
    };
    scene.stream.wait_for("its own kill", TIMEOUT, is_own).unwrap();
    scene.catch_up();
    let after = scene.daemon.events().unwrap();
    assert_eq!(after[..before.len()], before[..]);
    let evictions =
        |events: &[serde_json::Value]| events.iter().filter(|event| is(event, "eviction.decided")).count();
    assert_eq!(evictions(&after), Want::ALL.len(), "none is repeated");
    scene.clear(&["calm", "filler"]);
    scene.daemon.stop().unwrap();
}
