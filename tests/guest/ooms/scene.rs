//! A daemon, pods, processes in their containers, and the events that report their end.
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    kernel,
    plan::{Planned, folder},
    process::Process,
    stream::{Stream, is},
    wait::{TIMEOUT, wait_until},
};
use serde_json::{Value, json};

use super::assert_holds;

pub(super) const MIB: u64 = 1 << 20;

/// One OOM kill closes its incident within a second; an event too many comes within this.
pub(super) const SILENCE: Duration = Duration::from_millis(1500);

/// The OOM counters of a cgroup, from its own `memory.events.local`.
const COUNTERS: [(&str, &str); 3] =
    [("oom", "oom"), ("oom_kill", "oomKill"), ("oom_group_kill", "oomGroupKill")];

/// A daemon in mode enforce, and all that it has reported.
pub(super) struct Scene {
    pub(super) daemon: Daemon,
    pub(super) stream: Stream,
    /// The incidents that were looked at, by id.
    looked_at: Vec<String>,
    /// Dropped last: nothing is left to the next scene, whose cgroups may have the same names.
    _kubepods: Cgroup,
}

impl Scene {
    /// With further lines of configuration.
    pub(super) fn open(name: &str, settings: &str) -> Self {
        let place = Path::new("/tmp/ooms").join(name);
        Self::of(Daemon::start(&place, &format!("mode: enforce\n{settings}")).unwrap())
    }

    pub(super) fn of(daemon: Daemon) -> Self {
        let stream = daemon.follow().unwrap();
        Self { daemon, stream, looked_at: Vec::new(), _kubepods: Cgroup::create("kubepods").unwrap() }
    }

    /// Gives the daemon a manifest of a pod, and waits until its cgroups stand as planned.
    pub(super) fn manifest(&self, name: &str, manifest: &str) {
        self.daemon.manifest(&format!("{name}.yaml"), manifest).unwrap();
        let planned = Planned::of(&self.daemon).unwrap();
        assert!(planned.rejected.is_empty(), "{:?}", planned.rejected);
        planned.wait_until_held().unwrap();
    }

    /// A pod whose containers have these limits of memory; those without have none. The limit of a pod with one container
    /// is that container's, and is hit before it: those that are about a container's have another beside it.
    pub(super) fn pod(&self, name: &str, containers: &[(&str, &str)]) {
        self.manifest(name, &pod_with(name, "", containers));
    }

    /// Runs a command in a container: `default/pod/container`.
    pub(super) fn run(&self, target: &str, command: &[&str]) -> Running {
        Running::new(Process::new(self.daemon.exec(target, command).unwrap()))
    }

    /// The same, and waits until the command says that it is ready.
    pub(super) fn ready(&self, target: &str, command: &[&str]) -> Running {
        Running::new(self.daemon.exec_until_ready(target, command).unwrap())
    }

    /// The next incident about that pod that was not looked at yet, after what holds for each was asserted: `detected`
    /// came before it and said the same, and its moments are in order.
    pub(super) fn incident(&mut self, pod: &str) -> Value {
        self.next(&format!("oom.incident about {pod}"), |subject| subject == pod)
    }

    /// The same about no pod.
    pub(super) fn incident_of_no_pod(&mut self) -> Value {
        self.next("oom.incident about no pod", |subject| !subject.contains('/'))
    }

    fn next(&mut self, what: &str, about: impl Fn(&str) -> bool) -> Value {
        let looked_at = self.looked_at.clone();
        let fresh = |event: &Value| {
            let id = event["data"]["incidentId"].as_str().unwrap_or_default();
            event["subject"].as_str().is_some_and(&about) && !looked_at.iter().any(|known| known == id)
        };
        // In the order in which they began: a later one can be over first.
        let begun = |event: &Value| is(event, "oom.detected") && fresh(event);
        let id = self.stream.wait_for(what, TIMEOUT, begun).unwrap()["data"]["incidentId"].clone();
        let id = id.as_str().unwrap().to_owned();
        let closes = |event: &Value| is(event, "oom.incident") && event["data"]["incidentId"] == id.as_str();
        let incident = self.stream.wait_for(what, TIMEOUT, closes).unwrap()["data"].clone();
        let of_it = |event: &&Value| event["data"]["incidentId"] == id.as_str();
        let detected: Vec<_> = self.stream.of("oom.detected").filter(of_it).collect();
        assert_eq!(detected.len(), 1, "{:#?}", self.stream.seen);
        let reported: Vec<_> = self.stream.of("oom.incident").filter(of_it).collect();
        assert_eq!(reported.len(), 1, "{:#?}", self.stream.seen);
        agree(&detected[0]["data"], &incident);
        self.looked_at.push(id);
        incident
    }

    /// The event of a mark that was no kill, about that pod.
    pub(super) fn averted(&mut self, subject: &str) -> Value {
        self.stream.wait_for_pod("oom.averted", subject, TIMEOUT).unwrap()["data"].clone()
    }

    /// Asserts that no kill was reported but those looked at, none averted but so many, nothing lost; and stops the daemon.
    pub(super) fn close(mut self, averted: usize) {
        self.assert_nothing_else(averted);
        let Self { daemon, .. } = self;
        daemon.stop().unwrap();
    }

    /// The same, and the daemon goes on.
    pub(super) fn assert_nothing_else(&mut self, averted: usize) {
        self.stream.drain(SILENCE);
        let Self { stream, looked_at, .. } = self;
        assert_eq!(stream.of("oom.incident").count(), looked_at.len(), "{:#?}", ooms(stream));
        assert_eq!(stream.of("oom.detected").count(), looked_at.len(), "{:#?}", ooms(stream));
        assert_eq!(stream.of("oom.averted").count(), averted, "{:#?}", ooms(stream));
        let lost = stream.of("degraded.entered").find(|event| event["data"]["what"] == "recordsLost");
        assert_eq!(lost, None);
    }
}

fn ooms(stream: &Stream) -> Vec<&Value> {
    let kinds = ["oom.detected", "oom.incident", "oom.averted"];
    stream.seen.iter().filter(|event| kinds.iter().any(|kind| is(event, kind))).collect()
}

/// Asserts that what was reported at once and what was reported at the end are of one kill.
#[track_caller]
fn agree(detected: &Value, incident: &Value) {
    if incident["reconstructed"] == true {
        return;
    }
    let first = &incident["victims"][0];
    let mut victim = detected["victim"].clone();
    // The kernel reports this one only when the victim exits.
    victim.as_object_mut().unwrap().remove("exitCode");
    assert_holds(first, &victim);
    assert_eq!(detected["trigger"], incident["trigger"], "{detected:#} {incident:#}");
    for key in ["scope", "limitOwner"] {
        // It may be known only at the end, not another then.
        if !detected[key].is_null() {
            assert_eq!(detected[key], incident[key], "{detected:#} {incident:#}");
        }
    }
    assert_in_order(incident);
}

/// Each moment comes after what led to it. A process gives its memory back while it exits: before or after its exit is
/// reported, as the kernel has it.
#[track_caller]
pub(super) fn assert_in_order(incident: &Value) {
    let moment = |name: &str| incident["timelineMs"].get(name).map(|moment| moment.as_u64().unwrap());
    let marked = moment("marked").unwrap_or_else(|| panic!("no moment of the mark: {incident:#}"));
    assert!(moment("firstReclaim").is_none_or(|reclaim| reclaim == 0), "{incident:#}");
    for after in ["exited", "memoryBack"] {
        assert!(moment(after).is_none_or(|after| after >= marked), "{after}: {incident:#}");
    }
}

/// A process of a scene, with what the kernel said of it while it was there.
pub(super) struct Running {
    pub(super) process: Process,
    start_time_ms: u64,
}

impl Running {
    pub(super) fn new(process: Process) -> Self {
        let start_time_ms = start_time_ms(process.id());
        Self { process, start_time_ms }
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits for its end by a SIGKILL.
    pub(super) fn killed(&mut self) {
        use std::os::unix::process::ExitStatusExt as _;
        let status = self.process.wait_for_end(TIMEOUT).unwrap();
        assert_eq!(status.signal(), Some(9), "{status}");
    }

    /// Asserts that the event reports this very process: the event has its start to a millisecond, and the kernel shows it
    /// in hundredths of a second.
    #[track_caller]
    pub(super) fn assert_is(&self, victim: &Value) {
        assert_eq!(victim["pid"], self.pid(), "{victim:#}");
        let reported_ms = victim["startTimeMs"].as_u64().unwrap();
        assert_eq!(reported_ms / 10, self.start_time_ms / 10, "{victim:#}");
    }
}

/// Runs a script in a cgroup that is no container's own.
pub(super) fn start(cgroup: &Cgroup, script: &str) -> Running {
    let script = format!("echo 0 > {}/cgroup.procs || exit 1; {script}", cgroup.path().display());
    let mut command = Command::new("sh");
    Running::new(Process::new(command.args(["-c", &script]).stdout(Stdio::null()).spawn().unwrap()))
}

/// When a process was started, since boot, by /proc; a zombie still has it.
fn start_time_ms(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks: u64 = fields.split(' ').nth(19).unwrap().parse().unwrap();
    ticks * 10
}

/// A manifest whose uid is the name: the cgroup of each container is known beforehand.
pub(super) fn pod_with(name: &str, pod_limit: &str, containers: &[(&str, &str)]) -> String {
    let mut manifest = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, uid: {name}}}\nspec:\n");
    if !pod_limit.is_empty() {
        manifest.push_str(&format!("  resources: {{limits: {{memory: {pod_limit}}}}}\n"));
    }
    manifest.push_str("  containers:\n");
    for (container, limit) in containers {
        manifest.push_str(&format!("  - name: {container}\n"));
        if !limit.is_empty() {
            manifest.push_str(&format!("    resources: {{limits: {{memory: {limit}}}}}\n"));
        }
    }
    manifest
}

/// Pod, container and cgroup as an event names them.
pub(super) fn place(pod: &str, container: &str, cgroup: &str) -> Value {
    json!({"namespace": "default", "pod": pod, "uid": pod, "container": container, "cgroup": cgroup})
}

/// Two objects as one.
pub(super) fn merged(one: &Value, other: &Value) -> Value {
    let mut both = one.as_object().unwrap().clone();
    both.extend(other.as_object().unwrap().clone());
    Value::Object(both)
}

/// The cgroup's own counters, as the events name them.
pub(super) fn counters(cgroup: &str) -> Value {
    let count = |file| kernel::cgroup_counter(cgroup, "memory.events.local", file).unwrap();
    COUNTERS.iter().map(|(file, key)| ((*key).to_owned(), Value::from(count(file)))).collect()
}

/// The same without `oom`: the kernel counts every try there, also those that come while a victim is dying.
pub(super) fn kills(cgroup: &str) -> Value {
    let mut kills = counters(cgroup);
    kills.as_object_mut().unwrap().remove("oom");
    kills
}

/// A cgroup's folder.
pub(super) fn dir(cgroup: &str) -> PathBuf {
    folder(cgroup)
}

/// Bytes that are charged to a cgroup.
pub(super) fn current_bytes(cgroup: &str) -> u64 {
    fs::read_to_string(dir(cgroup).join("memory.current")).unwrap().trim().parse().unwrap()
}

/// Waits until a cgroup has so many processes, and answers them, sorted.
pub(super) fn wait_for_processes(cgroup: &str, count: usize) -> Vec<u64> {
    let list = || -> Vec<u64> {
        let procs = fs::read_to_string(dir(cgroup).join("cgroup.procs")).unwrap();
        procs.lines().map(|pid| pid.parse().unwrap()).collect()
    };
    wait_until("its processes", || list().len() == count);
    // They are there; now let them come to rest, as each of them is to sleep.
    wait_until("their sleep", || {
        list().iter().all(|pid| {
            fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") S "))
        })
    });
    let mut pids = list();
    assert_eq!(pids.len(), count);
    pids.sort_unstable();
    pids
}

/// The process ids of an incident's victims, sorted.
pub(super) fn victims(incident: &Value) -> Vec<u64> {
    let victims = incident["victims"].as_array().unwrap();
    let mut pids: Vec<_> = victims.iter().map(|victim| victim["pid"].as_u64().unwrap()).collect();
    pids.sort_unstable();
    pids
}
