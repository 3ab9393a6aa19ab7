//! Scores: of processes that come into containers by any way, those that other processes write, and of the node's own.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use aya::maps::{HashMap, Map, MapData, loaded_maps};
use enforcer_tests::{
    daemon::Daemon,
    load::workload_as,
    pods::{Container, pod},
    process::Process,
    stream::{Stream, is},
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

const GUARANTEED: i32 = -997;

/// Where the workload program has other names.
const PROGRAMS: &str = "/tmp/scores/bin";

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
        .wait_for("the container's limits", TIMEOUT, |event| {
            is(event, "limits.applied") && event["data"]["container"] == "app"
        })
        .unwrap();
    let cgroup =
        Path::new("/sys/fs/cgroup").join(applied["data"]["cgroup"].as_str().unwrap().trim_start_matches('/'));
    // What is guarded is put in right after that.
    wait_until("the guard", || is_guarded(&cgroup));
    (daemon, stream, cgroup)
}

/// Whether the kernel's programs watch the files of that cgroup; the scores of its processes they watch before that.
fn is_guarded(cgroup: &Path) -> bool {
    let id = fs::metadata(cgroup).unwrap().ino();
    let maps = loaded_maps().filter_map(Result::ok).filter(|map| map.name() == b"GUARDED");
    maps.filter_map(|map| MapData::from_id(map.id()).ok()).any(|map| {
        let map = HashMap::<_, u64, u32>::try_from(Map::HashMap(map));
        map.is_ok_and(|map| map.get(&id, 0).is_ok())
    })
}

fn shell(script: &str) -> Child {
    Command::new("sh").args(["-c", script]).stdout(Stdio::null()).spawn().unwrap()
}

fn score(pid: u32) -> Option<i32> {
    fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?.trim().parse().ok()
}

fn pids(cgroup: &Path) -> Vec<u32> {
    let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[guest_test(daemon)]
fn a_fork_storm_leaves_no_wrong_score() {
    let (daemon, _stream, cgroup) = guaranteed("storm");
    let join = format!("echo $$ > {}", cgroup.join("cgroup.procs").display());
    let all_are_right =
        || pids(&cgroup).iter().all(|pid| score(*pid).is_none_or(|score| score == GUARANTEED));
    // Hundreds that stay, more than are reported of one cgroup at once.
    let mut staying = shell(&format!("{join}; exec workload fork --count 300 --for 600s"));
    wait_until("three hundred processes", || pids(&cgroup).len() > 300);
    wait_until("their scores", all_are_right);
    fs::write(cgroup.join("cgroup.kill"), "1").unwrap();
    staying.wait().unwrap();
    wait_until("an empty container", || pids(&cgroup).is_empty());
    // As many that are gone before they can be looked at; and one that stays.
    let short = "i=0; while [ $i -lt 300 ]; do sleep 0 & i=$((i+1)); done; wait";
    let last = Process::new(shell(&format!("{join}; {short}; exec sleep 1000")));
    wait_until("the last one alone", || {
        let comm = fs::read_to_string(format!("/proc/{}/comm", last.id())).unwrap();
        comm.trim() == "sleep" && pids(&cgroup) == [last.id()]
    });
    wait_until("its score", all_are_right);
    drop(last);
    daemon.stop().unwrap();
}

fn drifted(event: &Value) -> bool {
    is(event, "limits.drifted") && event["data"]["file"] == "oom_score_adj"
}

#[guest_test(daemon)]
fn a_score_that_somebody_writes_is_put_back_thrice_then_later_and_reported_with_the_writer() {
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
            .wait_for("the drift", TIMEOUT, |event| {
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
            .wait_for("the restoration", TIMEOUT, |event| {
                is(event, "limits.restored") && event["data"]["files"][0]["old"] == format!("50{round}")
            })
            .unwrap();
        assert_eq!(restored["data"]["files"][0]["new"], "-997", "{restored}");
        assert_eq!(score(pid), Some(GUARANTEED));
    }
    assert!(shell(&format!("echo 600 > /proc/{pid}/oom_score_adj")).wait().unwrap().success());
    let event = stream
        .wait_for("the fourth time", TIMEOUT, |event| drifted(event) && event["data"]["new"] == "600")
        .unwrap();
    assert_eq!(event["data"]["action"], "delayed", "{event}");
    wait_until("its score again", || score(pid) == Some(GUARANTEED));
    stream
        .wait_for("the end of it", TIMEOUT, |event| {
            is(event, "degraded.left") && event["data"]["what"] == "drift"
        })
        .unwrap();
    // A new process is no drift.
    let other = Process::new(shell(&format!("echo $$ > {}/cgroup.procs; exec sleep 600", cgroup.display())));
    wait_until("the score of a new process", || score(other.id()) == Some(GUARANTEED));
    assert_eq!(stream.seen.iter().filter(|event| drifted(event)).count(), 5);
    assert!(app.lives().unwrap());
    drop(other);
    daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn a_process_that_insists_on_its_score_is_reported_a_few_times_and_undone_for_ever() {
    let (daemon, mut stream, cgroup) = guaranteed("insists");
    // It counts its rounds of 900 writes each.
    let rounds = daemon.folder().join("rounds");
    let script = format!(
        "n=0; while :; do i=0; while [ $i -lt 900 ]; do echo $i > /proc/self/oom_score_adj; i=$((i + 1)); done; \
         n=$((n + 1)); echo $n > {}; done",
        rounds.display()
    );
    let hostile = Process::new(shell(&format!("echo $$ > {}/cgroup.procs; {script}", cgroup.display())));
    let delayed = stream
        .wait_for("the contest", TIMEOUT, |event| drifted(event) && event["data"]["action"] == "delayed")
        .unwrap();
    assert_eq!(delayed["data"]["pid"], hostile.id(), "{delayed}");
    let reported = |daemon: &Daemon| daemon.events().unwrap().iter().filter(|event| drifted(event)).count();
    wait_until("another round", || reported(&daemon) >= 5);
    let count = || fs::read_to_string(&rounds).ok().and_then(|count| count.trim().parse::<u32>().ok());
    let before = count().unwrap_or_default();
    wait_until("thousands of writes after that", || count() >= Some(before + 5));
    // Others are looked after as before.
    let other = Process::new(shell(&format!("echo $$ > {}/cgroup.procs; exec sleep 600", cgroup.display())));
    wait_until("the score of a new process", || score(other.id()) == Some(GUARANTEED));
    drop(stream);
    let reported = reported(&daemon);
    // Three times at once, and then after 1, 2, 4 … seconds.
    assert!((5..=16).contains(&reported), "{reported}");
    drop((hostile, other));
    daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn a_cgroup_file_that_somebody_writes_is_reported_with_the_writer() {
    let (daemon, mut stream, cgroup) = guaranteed("file");
    let file = cgroup.join("memory.max");
    let mut writer = shell(&format!("echo 512M > {}", file.display()));
    let writer_pid = writer.id();
    assert!(writer.wait().unwrap().success());
    let event = stream
        .wait_for("the drift", TIMEOUT, |event| {
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
    let event = stream.wait_for("the restoration", TIMEOUT, restored).unwrap();
    assert_eq!(event["data"]["files"][0]["writer"]["pid"], writer_pid, "{event}");
    assert_eq!(fs::read_to_string(&file).unwrap().trim(), "1073741824");
    stream.drain(Duration::from_secs(1));
    assert_eq!(stream.of("limits.drifted").count(), 1, "reported once, though inotify reports it as well");
    daemon.stop().unwrap();
}

fn hold(program: &Path, cgroup: Option<&Path>) -> Process {
    let join =
        cgroup.map(|cgroup| format!("echo $$ > {}/cgroup.procs; ", cgroup.display())).unwrap_or_default();
    Process::new(shell(&format!("{join}exec {} hold --size 1Mi", program.display())))
}

/// A sandbox in a cgroup, and in another a container that shares its namespaces.
fn sandbox(pause: &Path, own: &Path, container: &Path) -> Process {
    let joins = |cgroup: &Path| format!("echo $$ > {}/cgroup.procs", cgroup.display());
    // Runtimes take longer than a clock tick from one to the other.
    let script = format!(
        "{}; sleep 1; sh -c '{}; exec workload hold --size 1Mi' & exec {} hold --size 1Mi",
        joins(own),
        joins(container),
        pause.display()
    );
    let mut command = Command::new("unshare");
    command.args(["-i", "sh", "-c", &script]).stdout(Stdio::null());
    let sandbox = Process::new(command.spawn().unwrap());
    wait_until("the sandbox's container", || !pids(container).is_empty());
    sandbox
}

#[guest_test(daemon)]
fn components_of_the_node_and_pause_processes_have_their_scores() {
    let kubelet = workload_as(Path::new(PROGRAMS), "kubelet").unwrap();
    let early = hold(&kubelet, None);
    let (daemon, mut stream, cgroup) = guaranteed("components");
    wait_until("the component's score", || score(early.id()) == Some(-999));
    assert_eq!(score(daemon.pid()), Some(-999));
    let applied = stream
        .wait_for("the component's event", TIMEOUT, |event| {
            is(event, "limits.applied") && event["data"]["executable"] == "kubelet"
        })
        .unwrap();
    assert_eq!(applied["data"]["pid"], early.id(), "{applied}");
    assert_eq!(applied["data"]["files"][0]["new"], "-999", "{applied}");

    // A later one, the pause process of a sandbox, and what only looks like either.
    let made = |id: &str| {
        let path = cgroup.parent().unwrap().join(id.repeat(32));
        fs::create_dir(&path).unwrap();
        path
    };
    let pause = workload_as(Path::new(PROGRAMS), "pause").unwrap();
    let [own, shares, other] = ["0a", "1b", "2c"].map(made);
    let sandboxes = sandbox(&pause, &own, &shares);
    let impostor = hold(&pause, Some(&other));
    let nobodys = hold(&pause, None);
    let contained = hold(&kubelet, Some(&cgroup));
    // The last to come: when it has its score the others have been looked at.
    let late = hold(&kubelet, None);
    wait_until("the sandbox's score", || score(sandboxes.id()) == Some(-998));
    wait_until("the score of a container's pause", || score(impostor.id()) == Some(GUARANTEED));
    wait_until("the score of one in a container", || score(contained.id()) == Some(GUARANTEED));
    wait_until("the later component's score", || score(late.id()) == Some(-999));
    assert_eq!(score(nobodys.id()), Some(0), "a pause process outside of pods");
    assert_eq!(score(contained.id()), Some(GUARANTEED), "a program of that name in a container");
    assert_eq!(score(impostor.id()), Some(GUARANTEED), "a container's program that is called pause");
    fs::write(shares.join("cgroup.kill"), "1").unwrap();
    drop((early, late, sandboxes, impostor, nobodys, contained));
    daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn components_are_only_reported_without_leave_to_write() {
    let running = hold(&workload_as(Path::new(PROGRAMS), "kubelet").unwrap(), None);
    let daemon = daemon("dry-run", "mode: dry-run");
    let mut stream = daemon.follow().unwrap();
    let event = stream
        .wait_for("the difference", TIMEOUT, |event| {
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
