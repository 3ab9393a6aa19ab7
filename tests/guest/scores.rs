//! Scores: of processes that come into containers by any way, of those that somebody else writes, and of the node's own.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use enforcer_tests::{
    daemon::Daemon,
    pods::{Container, pod},
    process::Process,
    stream::{Stream, is},
    wait::{PATIENCE, wait_until},
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

const GUARANTEED: i32 = -997;

fn daemon(name: &str, settings: &str) -> Daemon {
    Daemon::start(&Path::new("/tmp/scores").join(name), settings).unwrap()
}

/// A daemon with one Guaranteed pod of that name, and its container's cgroup.
fn guaranteed(name: &str) -> (Daemon, Stream, PathBuf) {
    let daemon = daemon(name, "mode: enforce");
    let mut stream = daemon.follow().unwrap();
    let limits = "cpu: 1, memory: 1Gi";
    daemon.manifest("p.yaml", &pod(name, 0, &[Container { name: "app", requests: "", limits }])).unwrap();
    let applied = stream
        .wait_for("the container's limits", PATIENCE, |event| {
            is(event, "limits.applied") && event["data"]["container"] == "app"
        })
        .unwrap();
    let cgroup =
        Path::new("/sys/fs/cgroup").join(applied["data"]["cgroup"].as_str().unwrap().trim_start_matches('/'));
    // What is guarded is put in right after that.
    thread::sleep(Duration::from_secs(2));
    (daemon, stream, cgroup)
}

fn shell(script: &str) -> Child {
    Command::new("sh").args(["-c", script]).stdout(Stdio::null()).spawn().unwrap()
}

fn score(pid: u32) -> Option<i32> {
    fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?.trim().parse().ok()
}

/// When a process started, in milliseconds since boot; /proc tells hundredths of a second, rounded down.
fn start_ms(pid: u32) -> Option<i64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks: i64 = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
    Some(ticks * 10)
}

fn now_ms() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}

fn pids(cgroup: &Path) -> Vec<u32> {
    let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// What was seen of a cgroup's processes.
#[derive(Debug, Default)]
struct Seen {
    looks: u32,
    processes: BTreeSet<u32>,
    /// How often one had another score than wanted, and how old the oldest of those was.
    wrong: u32,
    oldest_ms: i64,
    looked_ms: Option<i64>,
    /// The longest between two looks.
    longest_gap_ms: i64,
}

impl Seen {
    /// Looks at every process once.
    fn look(&mut self, cgroup: &Path, wanted: i32) {
        self.looks += 1;
        let at_ms = now_ms();
        let before_ms = self.looked_ms.replace(at_ms).unwrap_or(at_ms);
        self.longest_gap_ms = self.longest_gap_ms.max(at_ms - before_ms);
        for pid in pids(cgroup) {
            self.processes.insert(pid);
            // The score first: it was wrong at that age or before.
            let Some(score) = score(pid) else { continue };
            if score != wanted
                && let Some(start_ms) = start_ms(pid)
            {
                self.wrong += 1;
                self.oldest_ms = self.oldest_ms.max(now_ms() - start_ms);
            }
        }
    }
}

#[guest_test(daemon, exclusive)]
fn a_fork_storm_leaves_no_wrong_score_for_long() {
    let (daemon, _stream, cgroup) = guaranteed("storm");
    let procs = cgroup.join("cgroup.procs");
    for (what, storm) in [
        ("1,000 that stay", "exec workload fork --count 1000 --for 60s"),
        ("1,000 short ones", "i=0; while [ $i -lt 1000 ]; do sleep 0.05 & i=$((i+1)); done; wait"),
    ] {
        let mut child = shell(&format!("echo $$ > {}; {storm}", procs.display()));
        let mut seen = Seen::default();
        let begun = now_ms();
        while child.try_wait().unwrap().is_none() && now_ms() - begun < 100_000 {
            seen.look(&cgroup, GUARANTEED);
            if what == "1,000 that stay" && pids(&cgroup).len() > 1_000 {
                break;
            }
        }
        seen.look(&cgroup, GUARANTEED);
        println!(
            "{what}: {} processes seen in {} looks and {} ms; {} times one had a wrong score, at the age of {} ms at the most",
            seen.processes.len(),
            seen.looks,
            now_ms() - begun,
            seen.wrong,
            seen.oldest_ms
        );
        assert!(seen.processes.len() > 500, "{seen:?}");
        // Where the machine stood still, the daemon did too.
        assert!(seen.oldest_ms <= 100 + 2 * seen.longest_gap_ms, "{seen:?}");
        assert!(pids(&cgroup).iter().all(|pid| score(*pid).is_none_or(|score| score == GUARANTEED)));
        fs::write(cgroup.join("cgroup.kill"), "1").unwrap();
        child.wait().unwrap();
        wait_until("an empty container", || pids(&cgroup).is_empty());
    }
    daemon.stop().unwrap();
}

fn drifted(event: &Value) -> bool {
    is(event, "limits.drifted") && event["data"]["file"] == "oom_score_adj"
}

#[guest_test(kernel)]
fn a_score_that_somebody_writes_is_put_back_thrice_and_told_with_the_writer() {
    let (daemon, mut stream, cgroup) = guaranteed("written");
    let mut app = Process::new(daemon.exec("default/written/app", &["sleep", "600"]).unwrap());
    let pid = app.id();
    // What `exec` became.
    let comm = || fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    wait_until("the process", || {
        pids(&cgroup).contains(&pid) && score(pid) == Some(GUARANTEED) && comm().trim() == "sleep"
    });
    for round in 0..3 {
        let mut writer = shell(&format!("echo 50{round} > /proc/{pid}/oom_score_adj"));
        let writer_pid = writer.id();
        assert!(writer.wait().unwrap().success());
        let event = stream
            .wait_for("the drift", PATIENCE, |event| {
                drifted(event) && event["data"]["new"] == format!("50{round}")
            })
            .unwrap();
        let data = &event["data"];
        assert_eq!((&data["old"], &data["action"]), (&"-997".into(), &"restored".into()), "{event}");
        assert_eq!(
            (&data["writer"]["pid"], &data["writer"]["comm"]),
            (&writer_pid.into(), &"sh".into()),
            "{event}"
        );
        assert_eq!((&data["pid"], &data["comm"]), (&pid.into(), &"sleep".into()), "{event}");
        assert_eq!(
            (&event["subject"], &data["container"]),
            (&"default/written".into(), &"app".into()),
            "{event}"
        );
        let restored = stream
            .wait_for("the restoration", PATIENCE, |event| {
                is(event, "limits.restored") && event["data"]["files"][0]["old"] == format!("50{round}")
            })
            .unwrap();
        assert_eq!(restored["data"]["files"][0]["new"], "-997", "{restored}");
        assert_eq!(score(pid), Some(GUARANTEED));
    }
    assert!(shell(&format!("echo 600 > /proc/{pid}/oom_score_adj")).wait().unwrap().success());
    let event = stream
        .wait_for("the fourth time", PATIENCE, |event| drifted(event) && event["data"]["new"] == "600")
        .unwrap();
    assert_eq!(event["data"]["action"], "yielded", "{event}");
    // Neither at once nor by a sweep.
    stream.drain(Duration::from_secs(3));
    assert_eq!(score(pid), Some(600));
    // A new process is nobody's drift.
    let other = Process::new(shell(&format!("echo $$ > {}/cgroup.procs; exec sleep 600", cgroup.display())));
    wait_until("the score of a new process", || score(other.id()) == Some(GUARANTEED));
    assert_eq!(stream.seen.iter().filter(|event| drifted(event)).count(), 4);
    assert!(app.lives().unwrap());
    drop(other);
    daemon.stop().unwrap();
}

/// The time that a process has spent on cpus, in milliseconds.
fn cpu_ms(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks = |index: usize| fields[index].parse::<u64>().unwrap();
    (ticks(11) + ticks(12)) * 10
}

#[guest_test(daemon, exclusive)]
fn a_process_that_insists_on_its_score_costs_neither_events_nor_the_daemon() {
    let (daemon, mut stream, cgroup) = guaranteed("insists");
    let before_ms = cpu_ms(daemon.pid());
    let script = "i=0; while :; do i=$(((i + 1) % 900)); echo $i > /proc/self/oom_score_adj; done";
    let hostile = Process::new(shell(&format!("echo $$ > {}/cgroup.procs; {script}", cgroup.display())));
    stream
        .wait_for("the end of it", PATIENCE, |event| drifted(event) && event["data"]["action"] == "yielded")
        .unwrap();
    stream.drain(Duration::from_secs(5));
    let (took_ms, hostile_ms) = (cpu_ms(daemon.pid()) - before_ms, cpu_ms(hostile.id()));
    let told = stream.seen.iter().filter(|event| drifted(event)).count();
    println!("{told} drifts told; the daemon took {took_ms} ms of a cpu, the process {hostile_ms} ms");
    assert!((1..=4).contains(&told), "{told}");
    assert!(took_ms < hostile_ms / 2, "the daemon took {took_ms} ms of {hostile_ms}");
    // Others are looked after as before.
    let other = Process::new(shell(&format!("echo $$ > {}/cgroup.procs; exec sleep 600", cgroup.display())));
    wait_until("the score of a new process", || score(other.id()) == Some(GUARANTEED));
    drop((hostile, other));
    daemon.stop().unwrap();
}

#[guest_test(kernel)]
fn a_cgroup_file_that_somebody_writes_is_told_with_the_writer() {
    let (daemon, mut stream, cgroup) = guaranteed("file");
    let file = cgroup.join("memory.max");
    let mut writer = shell(&format!("echo 512M > {}", file.display()));
    let writer_pid = writer.id();
    assert!(writer.wait().unwrap().success());
    let event = stream
        .wait_for("the drift", PATIENCE, |event| {
            is(event, "limits.drifted") && event["data"]["file"] == "memory.max"
        })
        .unwrap();
    let data = &event["data"];
    assert_eq!(
        (&data["writer"]["pid"], &data["writer"]["comm"]),
        (&writer_pid.into(), &"sh".into()),
        "{event}"
    );
    assert_eq!((&data["old"], &data["new"]), (&"1073741824".into(), &"536870912".into()), "{event}");
    let restored =
        |event: &Value| is(event, "limits.restored") && event["data"]["files"][0]["file"] == "memory.max";
    let event = stream.wait_for("the restoration", PATIENCE, restored).unwrap();
    assert_eq!(event["data"]["files"][0]["writer"]["pid"], writer_pid, "{event}");
    assert_eq!(fs::read_to_string(&file).unwrap().trim(), "1073741824");
    stream.drain(Duration::from_secs(1));
    assert_eq!(stream.of("limits.drifted").count(), 1, "told once, though inotify tells of it as well");
    daemon.stop().unwrap();
}

/// The workload program under another name.
fn program(name: &str) -> PathBuf {
    let path = std::env::var("PATH").unwrap();
    let workload =
        path.split(':').map(|folder| Path::new(folder).join("workload")).find(|path| path.exists());
    let folder = Path::new("/tmp/scores/bin");
    fs::create_dir_all(folder).unwrap();
    let copy = folder.join(name);
    fs::copy(workload.unwrap(), &copy).unwrap();
    copy
}

fn hold(program: &Path, cgroup: Option<&Path>) -> Process {
    let join =
        cgroup.map(|cgroup| format!("echo $$ > {}/cgroup.procs; ", cgroup.display())).unwrap_or_default();
    Process::new(shell(&format!("{join}exec {} hold --size 1Mi", program.display())))
}

#[guest_test(daemon)]
fn components_of_the_node_and_pause_processes_have_their_scores() {
    let kubelet = program("kubelet");
    let early = hold(&kubelet, None);
    let (daemon, mut stream, cgroup) = guaranteed("components");
    wait_until("the component's score", || score(early.id()) == Some(-999));
    assert_eq!(score(daemon.pid()), Some(-999));
    let applied = stream
        .wait_for("the component's event", PATIENCE, |event| {
            is(event, "limits.applied") && event["data"]["executable"] == "kubelet"
        })
        .unwrap();
    assert_eq!(applied["data"]["pid"], early.id(), "{applied}");
    assert_eq!(applied["data"]["files"][0]["new"], "-999", "{applied}");

    // A later one, a pause process in a cgroup of the pod that no container is, and what only looks like either.
    let sandbox = cgroup.parent().unwrap().join("sandbox");
    fs::create_dir(&sandbox).unwrap();
    let pause = program("pause");
    let late = hold(&kubelet, None);
    let sandboxes = hold(&pause, Some(&sandbox));
    let nobodys = hold(&pause, None);
    let contained = hold(&kubelet, Some(&cgroup));
    wait_until("the later component's score", || score(late.id()) == Some(-999));
    wait_until("the sandbox's score", || score(sandboxes.id()) == Some(-998));
    wait_until("the score of one in a container", || score(contained.id()) == Some(GUARANTEED));
    thread::sleep(Duration::from_secs(1));
    assert_eq!(score(nobodys.id()), Some(0), "a pause process outside of pods");
    assert_eq!(score(contained.id()), Some(GUARANTEED), "a program of that name in a container");
    drop((early, late, sandboxes, nobodys, contained));
    daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn components_are_only_told_without_leave_to_write() {
    let running = hold(&program("kubelet"), None);
    let daemon = daemon("dry-run", "mode: dry-run");
    let mut stream = daemon.follow().unwrap();
    let event = stream
        .wait_for("the difference", PATIENCE, |event| {
            is(event, "limits.drifted") && event["data"]["executable"] == "kubelet"
        })
        .unwrap();
    let data = &event["data"];
    assert_eq!(
        (&data["action"], &data["old"], &data["new"]),
        (&"audited".into(), &"-999".into(), &"0".into())
    );
    assert_eq!(score(running.id()), Some(0));
    drop(running);
    daemon.stop().unwrap();
}
