//! What outlives the daemon in the kernel: OOM kills while no daemon runs, and while one version takes over from
//! another.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use aya::{
    maps::{HashMap, Map, MapData, loaded_maps},
    programs::{loaded_links, loaded_programs},
};
use enforcer::sense::{
    Again, Attached, Choice, Facts, Inherited, Pins, PinsError, Programs, Record, Version, choose, decode,
};
use enforcer_tests::{
    daemon::Daemon,
    pods::{Container, pod},
    process::Process,
    random::Random,
    rounds::Rounds,
    stream::{Stream, is},
    wait::{TIMEOUT, wait_until},
};
use rustix::{
    fs::FlockOperation,
    mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount},
};
use serde_json::Value;

const MOUNT: &str = "/sys/fs/bpf";
const PINS: &str = "/sys/fs/bpf/enforcer";

fn folder(name: &str) -> PathBuf {
    Path::new("/tmp/pins").join(name)
}

fn daemon(name: &str) -> Daemon {
    Daemon::start(&folder(name), "mode: enforce").unwrap()
}

/// A pod of one container with a small limit; its container's folder, once it stands. The name is one scenario's alone:
/// a pod whose cgroup stands already is not reported.
fn small_pod(daemon: &Daemon, name: &str) -> PathBuf {
    let manifest = pod(name, 0, &[Container { name: "app", requests: "", limits: "memory: 8Mi" }]);
    daemon.manifest(&format!("{name}.yaml"), &manifest).unwrap();
    let mut stream = daemon.follow().unwrap();
    let applied = stream.wait_for_pod("limits.applied", &format!("default/{name}"), TIMEOUT).unwrap();
    let cgroup = applied["data"]["cgroup"].as_str().unwrap();
    let cgroup = cgroup.strip_suffix("/app").unwrap_or(cgroup);
    let app = Path::new("/sys/fs/cgroup").join(cgroup.trim_start_matches('/')).join("app");
    wait_until("the container's limit", || {
        fs::read_to_string(app.join("memory.max")).is_ok_and(|max| max.trim() == (8 << 20).to_string())
    });
    app
}

/// A process that takes memory in that cgroup until it is killed.
fn eater_in(cgroup: &Path) -> Process {
    let script = format!("echo $$ > {}/cgroup.procs; exec tail /dev/zero", cgroup.display());
    Process::new(Command::new("sh").args(["-c", &script]).spawn().unwrap())
}

/// A cgroup of a small limit, beside all pods.
fn small_cgroup(name: &str) -> PathBuf {
    let cgroup = Path::new("/sys/fs/cgroup").join(name);
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory").unwrap();
    fs::create_dir(&cgroup).unwrap();
    fs::write(cgroup.join("memory.max"), "4M").unwrap();
    fs::write(cgroup.join("memory.swap.max"), "0").unwrap();
    cgroup
}

/// Has the kernel kill a process in that cgroup; its id.
fn killed_in(cgroup: &Path) -> u32 {
    let mut eater = eater_in(cgroup);
    let pid = eater.id();
    let status = eater.wait_for_end(TIMEOUT).unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status}");
    pid
}

/// How often each process was reported as a victim in events of that type.
fn reported(stream: &Stream, kind: &str) -> BTreeMap<u64, usize> {
    let mut reported = BTreeMap::new();
    for event in stream.of(kind) {
        let data = &event["data"];
        let victims = data["victims"].as_array().cloned().unwrap_or_else(|| vec![data["victim"].clone()]);
        for victim in victims {
            let pid = victim["pid"].as_u64();
            assert!(pid.is_some(), "a victim without a process: {event:#}");
            *reported.entry(pid.unwrap_or_default()).or_default() += 1;
        }
    }
    reported
}

fn once(pids: &[u32]) -> BTreeMap<u64, usize> {
    pids.iter().map(|pid| (u64::from(*pid), 1)).collect()
}

/// Waits until each victim is reported, and some time more: no kill is reported twice.
fn assert_reported_once(daemon: &Daemon, pids: &[u32]) -> Stream {
    let mut stream = daemon.follow().unwrap();
    let last = pids.iter().copied().collect::<BTreeSet<_>>();
    for pid in &last {
        stream
            .wait_for("an incident", TIMEOUT, |event| {
                is(event, "oom.incident")
                    && event["data"]["victims"]
                        .as_array()
                        .is_some_and(|victims| victims.iter().any(|victim| victim["pid"] == *pid))
            })
            .unwrap();
    }
    stream.drain(Duration::from_secs(2));
    assert_eq!(reported(&stream, "oom.incident"), once(pids));
    assert_eq!(reported(&stream, "oom.detected").values().sum::<usize>(), stream.of("oom.incident").count());
    let ids = |kind| -> BTreeSet<String> {
        stream.of(kind).map(|event| event["data"]["incidentId"].to_string()).collect()
    };
    assert_eq!(ids("oom.detected"), ids("oom.incident"));
    assert_eq!(ids("oom.detected").len(), stream.of("oom.detected").count());
    stream
}

fn versions() -> Vec<String> {
    let Ok(entries) = fs::read_dir(PINS) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn unpin() -> Output {
    Command::new("enforcer").args(["run", "--unpin"]).output().unwrap()
}

fn choice() -> Choice {
    choose(&Facts::gather())
}

/// The folder of pins. A process that is just being started by another thread holds its lock until it is itself.
fn pins() -> Pins {
    let mut pins = None;
    wait_until("the pins", || {
        let opened = Pins::open();
        let is_busy = matches!(opened, Err(PinsError::Busy { .. }));
        if !is_busy {
            pins = Some(opened.unwrap());
        }
        !is_busy
    });
    pins.unwrap()
}

/// The programs pinned as that version's, without a reader.
fn leave(version: u64) {
    let attached =
        Programs::load_pinned(&choice(), pins(), Version::numbered(version), &mut |_record| ()).unwrap();
    assert_eq!(attached.inherited, Inherited::default());
    assert_eq!(attached.unpinned, []);
    assert!(attached.failed.is_empty(), "{:#?}", attached.failed);
}

fn links() -> usize {
    loaded_links().count()
}

#[guest_test(daemon)]
fn kills_while_the_daemon_is_dead_are_reported_by_the_next() {
    let first = daemon("dead");
    let app = small_pod(&first, "pins-dead");
    let before = killed_in(&app);
    drop(assert_reported_once(&first, &[before]));
    // SIGKILL.
    drop(first);
    let mut pids = vec![before];
    pids.extend((0..5).map(|_| killed_in(&app)));

    let second = daemon("dead");
    let stream = assert_reported_once(&second, &pids);
    for event in stream.of("oom.incident") {
        let victim = &event["data"]["victims"][0];
        assert_eq!(
            (&victim["namespace"], &victim["pod"], &victim["container"]),
            (&"default".into(), &"pins-dead".into(), &"app".into()),
            "{event}"
        );
        // The pod's limit is its one container's.
        assert_eq!(event["data"]["scope"], "pod", "{event}");
        assert!(event["data"]["timelineMs"]["exited"].is_number(), "{event}");
    }
    drop(stream);

    // In order.
    second.stop().unwrap();
    pids.push(killed_in(&app));
    let third = daemon("dead");
    drop(assert_reported_once(&third, &pids));
    third.stop().unwrap();
}

#[guest_test(kernel, repeats)]
fn a_storm_through_kills_of_the_daemon_is_reported_once() {
    let mut random = Random::of_this_run();
    println!("seed {}", random.seed());
    let first = daemon("storm");
    let app = small_pod(&first, "pins-storm");
    let mut first = Some(first);
    let storm = Storm::begin(&app);
    let mut rounds = Rounds::new(2, 100);
    while let Some(round) = rounds.next() {
        let mut daemon = first.take().unwrap();
        // Every second one is killed at work; the others may be killed before they are ready.
        if round % 2 == 0 {
            daemon.wait_until_ready().unwrap();
            rounds.note(&daemon).unwrap();
        }
        storm.wait_for_more(random.below(6));
        drop(daemon);
        storm.wait_for_more(random.below(4));
        first = Some(Daemon::launch(&folder("storm"), "mode: enforce", &[]).unwrap());
    }
    storm.wait_for_more(1);
    let pids = storm.end();
    drop(first);
    let last = daemon("storm");
    println!("{} kills", pids.len());
    drop(assert_reported_once(&last, &pids));
    last.stop().unwrap();
}

/// Kills by the kernel, one after another.
struct Storm {
    goes_on: Arc<AtomicBool>,
    killed: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<Vec<u32>>>,
}

impl Storm {
    fn begin(cgroup: &Path) -> Self {
        let goes_on = Arc::new(AtomicBool::new(true));
        let killed = Arc::new(AtomicU64::new(0));
        let (still, count, cgroup) = (Arc::clone(&goes_on), Arc::clone(&killed), cgroup.to_owned());
        let thread = thread::spawn(move || {
            let mut pids = Vec::new();
            while still.load(Ordering::Relaxed) {
                pids.push(killed_in(&cgroup));
                count.fetch_add(1, Ordering::Relaxed);
            }
            pids
        });
        Self { goes_on, killed, thread: Some(thread) }
    }

    /// Waits until so many more are killed.
    fn wait_for_more(&self, kills: u64) {
        let enough = self.killed.load(Ordering::Relaxed) + kills;
        wait_until("more kills of the storm", || self.killed.load(Ordering::Relaxed) >= enough);
    }

    fn end(mut self) -> Vec<u32> {
        self.goes_on.store(false, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Storm {
    /// A scenario that fails takes its storm with it.
    fn drop(&mut self) {
        self.goes_on.store(false, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[guest_test(daemon, repeats)]
fn a_storm_through_a_change_of_versions_is_read_once() {
    drop(unpin());
    let cgroup = small_cgroup("pins-swap");
    leave(1);
    let storm = Storm::begin(&cgroup);
    let mut again = Again::default();
    let mut marks: Vec<u32> = Vec::new();
    let mut exits: Vec<u32> = Vec::new();
    let mut read = |again: Option<&mut Again>, record: &[u8]| {
        if let Some(again) = again {
            again.note(record);
        }
        match decode(record).unwrap() {
            Record::Mark(mark) => marks.push(mark.tid),
            Record::Exit(exit) => exits.push(exit.tid),
            other => drop(other),
        }
    };
    let mut doubles = 0;
    let mut last: Option<Attached> = None;
    for version in (2..).zip(Rounds::new(3, 60)).map(|(version, _)| version) {
        storm.wait_for_more(3);
        // The one before ended without reading another record.
        drop(last.take());
        let mut taken: Vec<Vec<u8>> = Vec::new();
        let attached = Programs::load_pinned(&choice(), pins(), Version::numbered(version), &mut |record| {
            taken.push(record.to_vec());
        })
        .unwrap();
        assert_eq!(attached.unpinned, []);
        assert_eq!(attached.inherited.versions.len(), 1, "{:?}", attached.inherited);
        assert_eq!(versions().len(), 1, "{:?}", versions());
        for record in taken {
            if again.is_one(&record) {
                doubles += 1;
            } else {
                read(Some(&mut again), &record);
            }
        }
        last = Some(attached);
    }
    let mut pids = storm.end();
    // A victim that has ended may be reported a moment later, and none may be reported twice: what comes until the exit of
    // one more victim is all that there is of those before it.
    let end = killed_in(&cgroup);
    pids.push(end);
    let mut attached = last.unwrap();
    wait_until("the last exit", || {
        let mut is_last = false;
        while let Some(record) = attached.events.next() {
            if again.is_one(&record) {
                doubles += 1;
            } else {
                read(None, &record);
            }
            is_last |= matches!(decode(&record).unwrap(), Record::Exit(exit) if exit.tid == end);
        }
        is_last
    });
    println!("{} kills, {doubles} records that two versions had", pids.len());
    marks.sort_unstable();
    let mut expected = pids.clone();
    expected.sort_unstable();
    assert_eq!(marks, expected);
    exits.sort_unstable();
    assert_eq!(exits, expected);
    drop(attached);
    fs::remove_dir(cgroup).unwrap();
    assert!(unpin().status.success());
}

/// What the old programs report as a victim exits, the new ones may report when it is freed: where the kernel did not run
/// them at the exit, or where the victim went just as it was entered in their map. As then, it is among the awaited after
/// it has exited.
#[guest_test(daemon)]
fn an_exit_that_the_next_version_reports_much_later_is_read_once() {
    drop(unpin());
    let cgroup = small_cgroup("pins-late");
    leave(1);
    let mut eater = eater_in(&cgroup);
    let pid = eater.id();
    wait_until("the victim's end", || {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    });
    let awaited = Path::new(PINS).join(versions().pop().unwrap()).join("map_MARKED");
    let awaited = Map::from_map_data(MapData::from_pin(awaited).unwrap()).unwrap();
    let mut awaited = HashMap::<_, u32, [u64; 2]>::try_from(awaited).unwrap();
    assert!(awaited.get(&pid, 0).is_err(), "it has been reported");
    awaited.insert(pid, [1, 0], 0).unwrap();

    let mut again = Again::default();
    let mut reported = Vec::new();
    let mut attached = Programs::load_pinned(&choice(), pins(), Version::numbered(2), &mut |record| {
        again.note(record);
        reported.push(decode(record).unwrap());
    })
    .unwrap();
    let exited = |record: &Record| matches!(record, Record::Exit(exit) if exit.pid == pid);
    assert_eq!(reported.iter().filter(|record| exited(record)).count(), 1, "{reported:?}");
    // All of another victim is read, and nothing of the first: its parent has not asked for it.
    let other = killed_in(&cgroup);
    let mut before = Vec::new();
    let exited_other = |record: &Record| matches!(record, Record::Exit(exit) if exit.pid == other);
    wait_until("the exit of another", || {
        while let Some(record) = attached.events.next() {
            before.push(decode(&record).unwrap());
        }
        before.iter().any(exited_other)
    });
    assert!(!before.iter().any(exited), "{before:?}");
    eater.wait_for_end(TIMEOUT).unwrap();
    wait_until("the exit, once more", || {
        attached.events.next().is_some_and(|record| {
            assert!(again.is_one(&record), "{:?} after {reported:?}", decode(&record));
            exited(&decode(&record).unwrap())
        })
    });
    drop(attached);
    fs::remove_dir(cgroup).unwrap();
    assert!(unpin().status.success());
}

#[guest_test(daemon)]
fn what_another_version_saw_is_reported_by_the_daemon() {
    let first = daemon("takeover");
    let app = small_pod(&first, "pins-takeover");
    drop(first);
    assert!(unpin().status.success());
    leave(0xabc);
    let pids: Vec<_> = (0..3).map(|_| killed_in(&app)).collect();
    let second = daemon("takeover");
    let stream = assert_reported_once(&second, &pids);
    assert!(stream.of("oom.incident").all(|event| event["subject"] == "default/pins-takeover"));
    assert_eq!(versions().len(), 1);
    assert!(!versions().iter().any(|version| version.ends_with("0abc")), "{:?}", versions());
    drop(stream);
    second.stop().unwrap();
}

#[guest_test(kernel)]
fn unpinning_leaves_nothing_and_waits_for_no_daemon() {
    drop(unpin());
    // Those of daemons before go a moment after them.
    wait_until("the end of other programs", || loaded_programs().count() == 0);
    let links_before = links();
    let killed = daemon("unpin");
    let attached = links();
    // SIGKILL: its end waits for no program to be detached.
    drop(killed);
    assert_eq!(links(), attached, "the kernel detached programs as the process ended");
    let daemon = daemon("unpin");
    wait_until("the end of a killed daemon's programs", || links() == attached);
    assert_eq!(versions().len(), 1);
    let refused = unpin();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("another enforcer"), "{refused:?}");
    daemon.stop().unwrap();
    let version = Path::new(PINS).join(versions().pop().unwrap());
    let pinned = fs::read_dir(version).unwrap();
    let pinned =
        pinned.filter(|file| file.as_ref().unwrap().file_name().as_encoded_bytes().starts_with(b"link_"));
    let kept = pinned.count();
    assert!((1..attached - links_before).contains(&kept), "{kept} of {attached} programs are kept");
    wait_until("the end of those that are not kept", || links() == links_before + kept);
    let removed = unpin();
    assert!(removed.status.success(), "{removed:?}");
    let shown = String::from_utf8(removed.stdout).unwrap();
    assert!(shown.lines().any(|line| line.ends_with("/link_process_exit")), "{shown}");
    assert!(!Path::new(PINS).exists());
    wait_until("the end of the links", || links() == links_before);
    assert!(unpin().status.success(), "nothing to remove is no failure");

    let restoring = Daemon::start_with(&folder("unpin"), "mode: enforce", &["--on-exit", "restore"]).unwrap();
    assert_eq!(versions().len(), 1);
    restoring.stop().unwrap();
    assert!(!Path::new(PINS).exists());
    wait_until("the end of the links", || links() == links_before);
}

#[guest_test(kernel)]
fn every_map_of_a_kept_program_is_kept() {
    drop(unpin());
    // Those of daemons before go a moment after them.
    wait_until("the end of other programs", || loaded_programs().count() == 0);
    leave(5);
    let folder = Path::new(PINS).join(versions().pop().unwrap());
    let pinned = |prefix: &str| -> BTreeSet<String> {
        let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter_map(|name| name.to_str()?.strip_prefix(prefix).map(str::to_owned)).collect()
    };
    let (kept, programs) = (pinned("map_"), pinned("link_"));
    wait_until("the end of what is not kept", || loaded_programs().count() == programs.len());
    let names: BTreeMap<u32, String> = loaded_maps()
        .map(Result::unwrap)
        .map(|map| (map.id(), String::from_utf8_lossy(map.name()).into_owned()))
        .collect();
    for program in loaded_programs().map(Result::unwrap) {
        for map in program.map_ids().unwrap().unwrap() {
            let name = &names[&map];
            // Constants go with the programs.
            if !name.ends_with("rodata") {
                assert!(
                    kept.iter().any(|kept| kept.get(..15).unwrap_or(kept) == name),
                    "the map {name} is used by {:?}, which outlives the daemon, and is not kept: {kept:?}",
                    program.name_as_str()
                );
            }
        }
    }
    assert!(unpin().status.success());
}

#[guest_test(daemon)]
fn only_one_daemon_has_the_pins() {
    let first = daemon("first");
    let app = small_pod(&first, "pins-first");
    let second = Daemon::start(&folder("second"), "mode: observe").unwrap();
    let degraded = |event: &Value| is(event, "degraded.entered") && event["data"]["what"] == "bpffs";
    let event = second.follow().unwrap().wait_for("degraded bpffs", TIMEOUT, degraded).unwrap();
    assert!(event.to_string().contains("another enforcer"), "{event}");
    let pid = killed_in(&app);
    // Both see it, each by programs of its own.
    drop(assert_reported_once(&first, &[pid]));
    drop(assert_reported_once(&second, &[pid]));
    second.stop().unwrap();
    first.stop().unwrap();
}

#[guest_test(daemon)]
fn what_is_not_ours_is_named_and_left() {
    drop(unpin());
    fs::create_dir(PINS).unwrap();
    rustix::fs::chmod(PINS, rustix::fs::Mode::RWXU).unwrap();
    let foreign = Path::new(PINS).join("somebody");
    fs::create_dir(&foreign).unwrap();
    let daemon = daemon("foreign");
    let named = |event: &Value| is(event, "degraded.entered") && event.to_string().contains("/somebody");
    daemon.follow().unwrap().wait_for("a degraded event about it", TIMEOUT, named).unwrap();
    let app = small_pod(&daemon, "pins-foreign");
    drop(assert_reported_once(&daemon, &[killed_in(&app)]));
    daemon.stop().unwrap();
    let left = unpin();
    assert_eq!(left.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&left.stderr).contains("/somebody"), "{left:?}");
    assert_eq!(versions(), ["somebody"]);
    fs::remove_dir(&foreign).unwrap();
    assert!(unpin().status.success());
    assert!(!Path::new(PINS).exists());
}

#[guest_test(daemon)]
fn without_bpffs_the_rest_goes_on() {
    drop(unpin());
    let reported_without = |name: &str, why: &str| {
        let daemon = daemon(name);
        let lost = |event: &Value| is(event, "degraded.entered") && event["data"]["what"] == "bpffs";
        let mut stream = daemon.follow().unwrap();
        let event = stream.wait_for("degraded bpffs", TIMEOUT, lost).unwrap();
        assert!(event.to_string().contains(why), "{event}");
        let app = small_pod(&daemon, &format!("pins-{name}"));
        let pid = killed_in(&app);
        let seen = assert_reported_once(&daemon, &[pid]);
        assert_eq!(seen.seen.iter().filter(|event| lost(event)).count(), 1, "reported once");
        drop((stream, seen));
        daemon.stop().unwrap();
    };
    mount_remount(MOUNT, MountFlags::RDONLY, "").unwrap();
    reported_without("readonly", "Read-only file system");
    mount_remount(MOUNT, MountFlags::empty(), "").unwrap();
    unmount(MOUNT, UnmountFlags::empty()).unwrap();
    reported_without("none", "no bpffs");
    mount("bpf", MOUNT, "bpf", MountFlags::empty(), None).unwrap();
}

#[guest_test(daemon)]
fn a_lock_that_somebody_holds_is_respected_and_released_by_a_kill() {
    let first = daemon("lock");
    let handle = fs::File::open(PINS).unwrap();
    let refused = rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK));
    drop(first);
    rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive).unwrap();
}
