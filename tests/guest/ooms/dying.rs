//! Victims that another process had killed already: the kernel marks them all the same, and kills none.
use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
};

use enforcer_tests::{
    kernel,
    process::Process,
    wait::{TIMEOUT, wait_until},
};
use rustix::{
    io::Errno,
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use serde_json::json;

use super::{
    Scene, assert_holds, pod_with,
    scene::{MIB, Running, SILENCE, counters, dir, merged, place},
};

#[guest_test(kernel)]
fn by_another_hand_is_no_kill() {
    let mut scene = Scene::open("dying", "singleProcessOOMKill: true");
    scene.manifest("p", &pod_with("p", "64Mi", &[("c1", ""), ("c2", "")]));
    let pod = "/kubepods/burstable/podp";
    let mut victim = scene.ready("default/p/c1", &["workload", "hold", "--size", "48Mi"]);
    let pid = victim.pid().to_string();
    // In what is left to it the victim would get on with its end, and the kernel would look for another.
    let unthrottled = Unthrottled::new(1);
    // Together they are too much; alone, each fits.
    let usurp = ["workload", "usurp", "--victim", &pid, "--size", "40Mi", "--cpu", "1"];
    let mut usurper = scene.ready("default/p/c2", &usurp);
    drop(unthrottled);
    victim.killed();

    let averted = scene.averted("default/p");
    let task = |pid, container: &str| {
        let cgroup = format!("{pod}/{container}");
        merged(&json!({"pid": pid, "comm": "workload"}), &place("p", container, &cgroup))
    };
    assert_holds(
        &averted,
        &json!({
            "cause": "alreadyDying",
            "trigger": task(usurper.pid(), "c2"),
            "victims": [task(victim.pid(), "c1")],
        }),
    );
    victim.assert_is(&averted["victims"][0]);
    // The kernel agrees: the limit was hit, often, and no process was killed for it.
    assert!(counters(pod)["oom"].as_u64().unwrap() >= 1, "{}", counters(pod));
    for cgroup in [pod, &format!("{pod}/c1"), &format!("{pod}/c2")] {
        assert_eq!(counters(cgroup)["oomKill"], 0, "{cgroup}");
    }
    assert!(usurper.process.lives().unwrap());
    drop(usurper);
    scene.close(1);
}

/// Real-time threads leave ordinary ones no part of a processor while this lives: by default it is 5 %, by throttling and,
/// from Linux 6.12 on, by a server for the ordinary ones. It does not last for ever, whoever waits for what then never comes.
struct Unthrottled {
    end: Option<mpsc::Sender<()>>,
    ended: Option<thread::JoinHandle<()>>,
}

impl Unthrottled {
    fn new(cpu: usize) -> Self {
        let softirqs = format!("ksoftirqd/{cpu}");
        schedule(&softirqs, libc::SCHED_FIFO, 45);
        let server = format!("/sys/kernel/debug/sched/fair_server/cpu{cpu}/runtime");
        let mut before = Vec::new();
        // The server last: with it off, kernels refuse to change the other.
        for (path, none) in
            [(PathBuf::from("/proc/sys/kernel/sched_rt_runtime_us"), "-1"), (server.into(), "0")]
        {
            if path.exists() {
                before.push((path.clone(), fs::read_to_string(&path).unwrap()));
                fs::write(&path, none).unwrap();
            }
        }
        let (end, over) = mpsc::channel();
        let ended = thread::spawn(move || {
            // Whoever has it has gone, or nothing has come of it.
            let _gone = over.recv_timeout(TIMEOUT);
            for (path, value) in before.iter().rev() {
                fs::write(path, value.trim()).unwrap();
            }
            schedule(&softirqs, libc::SCHED_OTHER, 0);
        });
        Self { end: Some(end), ended: Some(ended) }
    }
}

impl Drop for Unthrottled {
    fn drop(&mut self) {
        drop(self.end.take());
        let ended = self.ended.take().unwrap().join();
        // A second panic would end all tests, and not this one.
        assert!(ended.is_ok() || thread::panicking(), "a processor is left to real-time threads alone");
    }
}

/// Gives one of the kernel's own threads a class and a priority: before any usurper's, or its own again.
///
/// Until Linux 6.5 all soft interrupts of a processor wait for its `ksoftirqd` once that has work, timers among them, and the
/// kernel's OOM reaper waits for a timer: a usurper before it would wait for ever for memory that only the reaper gives it.
#[expect(unsafe_code, reason = "no library gives another thread a real-time priority")]
fn schedule(name: &str, policy: libc::c_int, sched_priority: libc::c_int) {
    let is_it = |process: &PathBuf| {
        fs::read_to_string(process.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    let mut processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let thread = processes.find(is_it).unwrap_or_else(|| panic!("the kernel has no {name}"));
    let pid = thread.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let priority = libc::sched_param { sched_priority };
    // SAFETY: it is read during the call alone.
    let answer = unsafe { libc::sched_setscheduler(pid, policy, &raw const priority) };
    assert_eq!(answer, 0, "{name}: {}", std::io::Error::last_os_error());
}

fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

fn pin(tid: u32, set: &CpuSet) {
    match sched_setaffinity(Pid::from_raw(tid.try_into().unwrap()), set) {
        // A thread that has come to its end meanwhile, as those do that wait for work.
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => panic!("thread {tid}: {error}"),
    }
}

fn pin_all(pid: u32, set: &CpuSet) {
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        pin(thread.unwrap().file_name().to_str().unwrap().parse().unwrap(), set);
    }
}

#[guest_test(kernel)]
fn by_our_own_eviction_is_no_kill() {
    const PREY_BYTES: u64 = 120 * MIB;
    let threshold = kernel::meminfo_bytes("MemAvailable").unwrap() - 2 * PREY_BYTES - 200 * MIB;
    let mut scene = Scene::open("own", &format!("evictionHard: {{memory.available: \"{threshold}\"}}"));
    scene.pod("prey", &[("a", ""), ("b", "")]);
    let pod = "/kubepods/besteffort/podprey";
    let mut prey: Vec<Running> = ["a", "b"]
        .iter()
        .map(|container| {
            let size = PREY_BYTES.to_string();
            scene.ready(&format!("default/prey/{container}"), &["workload", "hold", "--size", &size])
        })
        .collect();
    for running in &prey {
        pin(running.pid(), &only(1));
    }
    // No other process runs there from now on, so that no victim of the eviction comes to its end; and no process that
    // holds what others need may wait for it.
    let everywhere = sched_getaffinity(None).unwrap();
    pin_all(scene.daemon.pid(), &only(0));
    pin_all(std::process::id(), &only(0));
    let unthrottled = Unthrottled::new(1);
    let usurper = Command::new("workload")
        .args(["spin", "--threads", "1", "--seize", "1"])
        .stdout(Stdio::null())
        .spawn();
    let usurper = Process::new(usurper.unwrap());
    let size = (400 * MIB).to_string();
    let hog = Command::new("workload").args(["spike", "--size", &size]).stdout(Stdio::null()).spawn();
    let hog = Process::new(hog.unwrap());
    scene.stream.wait_for_pod("eviction.decided", "default/prey", TIMEOUT).unwrap();
    wait_until("the signal", || {
        let pending = fs::read_to_string(format!("/proc/{}/status", prey[1].pid())).unwrap();
        let pending = pending
            .lines()
            .filter_map(|line| line.strip_prefix("SigPnd:\t").or(line.strip_prefix("ShdPnd:\t")));
        pending.map(|set| u64::from_str_radix(set.trim(), 16).unwrap()).any(|set| set & (1 << 8) != 0)
    });
    // The kernel looks for a victim in the writer's own call, and finds those that are dying.
    let writer = thread::spawn(move || fs::write(dir(pod).join("memory.max"), "1"));
    let averted = scene.averted("default/prey");
    drop((usurper, hog, unthrottled));
    pin_all(std::process::id(), &everywhere);
    for running in &mut prey {
        running.killed();
    }
    // The cgroup may be removed under the writer.
    drop(writer.join().unwrap());
    assert_holds(
        &averted,
        &json!({
            "cause": "ownEviction",
            "trigger": {"pid": std::process::id(), "pod": null},
            "victims": [{"namespace": "default", "pod": "prey", "uid": "prey", "comm": "workload"}],
        }),
    );
    let victim = &averted["victims"][0];
    assert!(prey.iter().any(|running| victim["pid"] == running.pid()), "{victim:#}");
    scene.stream.drain(SILENCE);
    let all: Vec<_> = scene.stream.of("oom.averted").collect();
    assert!(all.iter().all(|event| event["data"]["cause"] == "ownEviction"), "{all:#?}");
    let count = all.len();
    scene.close(count);
}
