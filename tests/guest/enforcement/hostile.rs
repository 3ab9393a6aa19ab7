//! What stands in the way is reported, left alone, and harms no other pod.

use std::{
    fs, io,
    os::unix::fs::chown,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    plan::Planned,
    process::Process,
    rounds::Rounds,
    stream::{Stream, is},
    wait::{TIMEOUT, wait_until},
};
use rustix::{
    process::Signal,
    thread::{CapabilitySet, remove_capability_from_bounding_set},
};

use super::{Scene, folder, join, read, settings_of, values};

const LIMITED: &str = "{requests: {cpu: 20m, memory: 16Mi}, limits: {cpu: 100m, memory: 32Mi}}";
const GUARANTEED: &str = "{limits: {cpu: 50m, memory: 32Mi}}";

fn pod(name: &str, resources: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, uid: {name}}}\nspec:\n  containers:\n  - name: app\n    \
         resources: {resources}\n"
    )
}

fn place(daemon: &Daemon, name: &str, resources: &str) {
    daemon.manifest(&format!("{name}.yaml"), &pod(name, resources)).unwrap();
}

/// Waits for a report that something is wrong, in words that hold all of these.
fn wait_for_trouble(stream: &mut Stream, words: &[&str]) {
    wait_for_word(stream, "degraded.entered", words);
}

/// Waits for a report that it is wrong no longer.
fn wait_for_relief(stream: &mut Stream, words: &[&str]) {
    wait_for_word(stream, "degraded.left", words);
}

fn wait_for_word(stream: &mut Stream, kind: &str, words: &[&str]) {
    let reported = |event: &serde_json::Value| {
        is(event, kind)
            && event["data"]["message"]
                .as_str()
                .is_some_and(|reported| words.iter().all(|word| reported.contains(word)))
    };
    stream.wait_for(&format!("{kind} with {words:?}"), TIMEOUT, reported).unwrap();
}

/// Whether a pod serves: what is planned for it stands, and a process comes in.
fn assert_serves(daemon: &Daemon, name: &str) {
    let mut process = Process::new(daemon.exec(&format!("default/{name}"), &["true"]).unwrap());
    let status = process.wait_for_end(TIMEOUT).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    assert!(status.success(), "{name}: {status}");
}

#[guest_test(daemon)]
fn a_cgroup_that_somebody_removes_comes_back() {
    let scene = Scene::open("removed", "");
    place(&scene.daemon, "web", LIMITED);
    place(&scene.daemon, "bank", GUARANTEED);
    let planned = Planned::of(&scene.daemon).unwrap();
    planned.wait_until_held().unwrap();
    let web = scene.cgroup("burstable/podweb");
    fs::remove_dir(web.join("app")).unwrap();
    planned.wait_until_held().unwrap();
    // The container's comes back so soon that the pod's may be busy again.
    wait_until("a moment without the container's cgroup", || {
        drop(fs::remove_dir(web.join("app")));
        fs::remove_dir(&web).is_ok()
    });
    planned.wait_until_held().unwrap();
    for name in ["web", "bank"] {
        assert_serves(&scene.daemon, name);
    }
    scene.daemon.stop().unwrap();
}

/// Ends a thread also where the scene fails.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A thread removes cgroups all the time while they are written to.
#[guest_test(daemon, repeats)]
fn cgroups_that_vanish_while_they_are_written_stop_no_other() {
    let scene = Scene::open("vanishing", "");
    let names: Vec<String> = (0..8).map(|number| format!("p{number}")).collect();
    let (removed, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for name in &names {
                    let pod = scene.cgroup(&format!("burstable/pod{name}"));
                    // Not there yet, or no longer: that is the point.
                    if fs::remove_dir(pod.join("app")).and_then(|()| fs::remove_dir(pod)).is_ok() {
                        removed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        let end = OnDrop(&is_over);
        let mut rounds = Rounds::new(8, 2_000);
        while let Some(round) = rounds.next() {
            let before = removed.load(Ordering::Relaxed);
            for name in &names {
                let limits = format!("{{requests: {{cpu: 10m}}, limits: {{memory: {}Mi}}}}", 32 + round % 32);
                place(&scene.daemon, name, &limits);
            }
            rounds.note(&scene.daemon).unwrap();
            wait_until("another removal", || removed.load(Ordering::Relaxed) > before);
        }
        drop(end);
    });
    Planned::of(&scene.daemon).unwrap().wait_until_held().unwrap();
    for name in &names {
        assert_serves(&scene.daemon, name);
    }
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn processes_in_a_pods_own_cgroup_are_reported_and_the_pod_is_served_once_they_are_gone() {
    let scene = Scene::open("busy", "");
    let mut stream = scene.daemon.follow().unwrap();
    place(&scene.daemon, "first", LIMITED);
    Planned::of(&scene.daemon).unwrap().wait_until_held().unwrap();
    let busy = scene.cgroup("burstable/podbusy");
    fs::create_dir(&busy).unwrap();
    let mut squatter = join(&busy, "exec sleep 1000");
    wait_until("the squatter", || !read(&busy.join("cgroup.procs")).is_empty());
    place(&scene.daemon, "busy", LIMITED);
    place(&scene.daemon, "other", LIMITED);
    wait_for_trouble(&mut stream, &["/burstable/podbusy", "processes"]);
    for name in ["first", "other"] {
        assert_serves(&scene.daemon, name);
    }
    assert_eq!(read(&busy.join("memory.max")), "33554432", "its own limits need no process to move");
    assert_eq!(read(&busy.join("cgroup.procs")), squatter.id().to_string());
    assert!(squatter.lives().unwrap());
    drop(squatter);
    Planned::of(&scene.daemon).unwrap().wait_until_held().unwrap();
    assert_serves(&scene.daemon, "busy");
    wait_for_relief(&mut stream, &["/burstable/podbusy", "processes"]);
    scene.daemon.stop().unwrap();
}

/// A file system that takes no writes: each kind of trouble is reported, and nothing is forgotten when it ends.
#[guest_test(daemon)]
fn a_cgroup_file_system_that_is_read_only_is_reported_and_taken_up_when_it_is_writable() {
    let name = "readonly";
    let _root = Cgroup::create(name).unwrap();
    // In a mount namespace of the daemon's own no other process is disturbed.
    let script = r#"mount -o remount,bind,ro /sys/fs/cgroup && exec "$0" "$@""#;
    let mut daemon =
        Daemon::launch(&folder(name), &settings_of(name, ""), &["unshare", "-m", "sh", "-c", script])
            .unwrap();
    daemon.wait_until_ready().unwrap();
    let mut stream = daemon.follow().unwrap();
    place(&daemon, "web", LIMITED);
    wait_for_trouble(&mut stream, &["/readonly/kubepods", "Read-only"]);
    let refused = daemon.verb(&["exec", "default/web", "--", "true"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(77), "{}", String::from_utf8_lossy(&refused.stderr));
    let inside = format!("--mount=/proc/{}/ns/mnt", daemon.pid());
    let remounted = Command::new("nsenter")
        .args([&inside, "mount", "-o", "remount,bind,rw", "/sys/fs/cgroup"])
        .output()
        .unwrap();
    assert!(remounted.status.success(), "{}", String::from_utf8_lossy(&remounted.stderr));
    Planned::of(&daemon).unwrap().wait_until_held().unwrap();
    assert_serves(&daemon, "web");
    wait_for_relief(&mut stream, &["/readonly/kubepods", "Read-only"]);
    daemon.stop().unwrap();
}

/// One file that may not be written costs that file.
#[guest_test(daemon)]
fn a_file_that_may_not_be_written_is_reported_and_the_others_are() {
    let name = "denied";
    let scene = Scene::open(name, "");
    place(&scene.daemon, "web", LIMITED);
    place(&scene.daemon, "other", LIMITED);
    Planned::of(&scene.daemon).unwrap().wait_until_held().unwrap();
    let Scene { name, daemon, _root } = scene;
    daemon.stop().unwrap();
    let web = super::kubepods(name).join("burstable/podweb");
    chown(web.join("memory.max"), Some(65_534), Some(65_534)).unwrap();
    // Root without this is held to the files' permissions; what a thread may not have, its children may not either.
    let launched = thread::spawn(move || {
        remove_capability_from_bounding_set(CapabilitySet::DAC_OVERRIDE).unwrap();
        Daemon::launch(&folder(name), &settings_of(name, ""), &[]).unwrap()
    });
    let mut daemon = launched.join().unwrap();
    daemon.wait_until_ready().unwrap();
    let mut stream = daemon.follow().unwrap();
    let wider = LIMITED.replace("memory: 32Mi", "memory: 48Mi").replace("cpu: 100m", "cpu: 200m");
    place(&daemon, "web", &wider);
    place(&daemon, "other", &wider);
    wait_for_trouble(&mut stream, &["/burstable/podweb", "memory.max", "ermission denied"]);
    wait_until("the other files", || {
        read(&web.join("cpu.max")) == "20000 100000" && read(&web.join("app/memory.max")) == "50331648"
    });
    assert_eq!(read(&web.join("memory.max")), "33554432");
    assert_serves(&daemon, "other");
    chown(web.join("memory.max"), Some(0), Some(0)).unwrap();
    Planned::of(&daemon).unwrap().wait_until_held().unwrap();
    wait_for_relief(&mut stream, &["/burstable/podweb", "memory.max", "ermission denied"]);
    daemon.stop().unwrap();
}

/// Frozen cgroups take limits, and hold up no other cgroup.
#[guest_test(daemon)]
fn a_frozen_class_holds_up_no_other() {
    let scene = Scene::open("frozen", "");
    place(&scene.daemon, "before", LIMITED);
    Planned::of(&scene.daemon).unwrap().wait_until_held().unwrap();
    let mut stream = scene.daemon.follow().unwrap();
    let burstable = scene.cgroup("burstable");
    fs::write(burstable.join("cgroup.freeze"), "1").unwrap();
    place(&scene.daemon, "below", LIMITED);
    place(&scene.daemon, "beside", GUARANTEED);
    place(&scene.daemon, "before", &LIMITED.replace("memory: 32Mi", "memory: 48Mi"));
    Planned::of(&scene.daemon).unwrap().wait_until_held().unwrap();
    assert_serves(&scene.daemon, "beside");
    wait_for_trouble(&mut stream, &["/frozen/kubepods/burstable", "frozen"]);
    // Who comes in waits with the others, and goes on with them.
    let mut waiting = Process::new(scene.daemon.exec("default/below", &["true"]).unwrap());
    wait_until("its joining", || !read(&burstable.join("podbelow/app/cgroup.procs")).is_empty());
    wait_until("its freezing", || read(&burstable.join("podbelow/app/cgroup.events")).contains("frozen 1"));
    assert!(waiting.lives().unwrap());
    fs::write(burstable.join("cgroup.freeze"), "0").unwrap();
    waiting.wait_for_end(TIMEOUT).unwrap();
    wait_for_relief(&mut stream, &["/frozen/kubepods/burstable", "frozen"]);
    scene.daemon.stop().unwrap();
}

/// Cgroups that no pod names are reported, and neither written to, nor emptied, nor removed, nor are their processes
/// scored.
#[guest_test(daemon)]
fn strays_foreign_and_threaded_cgroups_are_reported_and_left_alone() {
    let scene = Scene::open("strangers", "");
    let mut stream = scene.daemon.follow().unwrap();
    place(&scene.daemon, "web", LIMITED);
    Planned::of(&scene.daemon).unwrap().wait_until_held().unwrap();
    // A pod of another's, an empty one, one with threads, and one whose name is meant for terminals.
    let names = ["burstable/podforeign", "podstray", "besteffort/threads", "burstable/\u{1b}[31mred"];
    for name in names {
        fs::create_dir(scene.cgroup(name)).unwrap();
    }
    let threaded = scene.cgroup("besteffort/threads/inner");
    fs::create_dir(&threaded).unwrap();
    fs::write(threaded.join("cgroup.type"), "threaded").unwrap();
    fs::write(scene.cgroup("burstable/podforeign/memory.max"), "123456789").unwrap();
    let mut foreign =
        join(&scene.cgroup("burstable/podforeign"), "echo 345 > /proc/self/oom_score_adj; exec sleep 1000");
    let mut in_threads = join(&scene.cgroup("besteffort/threads"), "exec sleep 1000");
    let score = |process: &Process| read(Path::new(&format!("/proc/{}/oom_score_adj", process.id())));
    wait_until("the foreign process", || score(&foreign) == "345");
    let files =
        ["memory.max", "memory.high", "cpu.weight", "pids.max", "cgroup.subtree_control", "cgroup.freeze"];
    let before: Vec<_> = names.map(|name| values(&scene.cgroup(name), &files)).into();
    for (number, name) in names.iter().enumerate() {
        // Whatever happens makes the daemon look.
        place(&scene.daemon, &format!("another{number}"), LIMITED);
        let shown = name.replace('\u{1b}', "");
        let reported = |event: &serde_json::Value| {
            let reported = event["data"]["message"].as_str().unwrap_or_default().replace('\u{1b}', "");
            is(event, "degraded.entered")
                && (reported.contains(&shown)
                    || reported.contains(name.trim_start_matches("burstable/\u{1b}")))
        };
        stream.wait_for(&format!("a word of {name:?}"), TIMEOUT, reported).unwrap();
    }
    let strangers = names.map(|name| format!("/strangers/kubepods/{name}"));
    let strangers: Vec<&str> = strangers.iter().map(String::as_str).collect();
    Planned::of(&scene.daemon).unwrap().wait_until_held_beside(&strangers).unwrap();
    let after: Vec<_> = names.map(|name| values(&scene.cgroup(name), &files)).into();
    assert_eq!(after, before);
    assert_eq!(read(&threaded.join("cgroup.type")), "threaded");
    assert_eq!(score(&foreign), "345");
    assert_eq!(score(&in_threads), "0");
    assert!(foreign.lives().unwrap() && in_threads.lives().unwrap());
    // What is printed for people has nothing in it that a terminal obeys.
    let shown = scene.daemon.verb(&["--no-color", "events"]).output().unwrap();
    assert!(!shown.stdout.contains(&0x1b));
    scene.daemon.stop().unwrap();
}

/// A container may hand its threads on to threaded cgroups: the process is scored, and what is in its way is nothing.
#[guest_test(daemon)]
fn a_container_with_threaded_cgroups_below_it_is_scored() {
    let scene = Scene::open("threaded", "");
    let mut stream = scene.daemon.follow().unwrap();
    place(&scene.daemon, "web", LIMITED);
    Planned::of(&scene.daemon).unwrap().wait_until_held().unwrap();
    let app = scene.cgroup("burstable/podweb/app");
    let inner = app.join("inner");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("cgroup.type"), "threaded").unwrap();
    let mut command = Command::new("/bin/sh");
    let script =
        format!("echo 0 > {}/cgroup.procs && exec workload spin --threads 3 --for 1000s", app.display());
    let spin = Process::new(
        command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap(),
    );
    let tasks = || -> io::Result<Vec<String>> {
        let tasks = fs::read_dir(format!("/proc/{}/task", spin.id()))?;
        Ok(tasks.filter_map(Result::ok).map(|task| task.file_name().to_string_lossy().into_owned()).collect())
    };
    wait_until("its threads", || tasks().is_ok_and(|tasks| tasks.len() == 4));
    // It has them, and keeps no processor busy with them.
    spin.signal(Signal::STOP).unwrap();
    let last = tasks().unwrap().pop().unwrap();
    fs::write(inner.join("cgroup.threads"), last).unwrap();
    Planned::of(&scene.daemon).unwrap().wait_until_held().unwrap();
    stream.drain(Duration::from_millis(200));
    assert_eq!(stream.of("degraded.entered").filter(|event| event.to_string().contains("podweb")).count(), 0);
    drop(spin);
    scene.daemon.stop().unwrap();
}
