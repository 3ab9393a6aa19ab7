//! Others on the node that end pods when memory runs short.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use enforcer::{model::QosClass, policy::CgroupDriver::Systemd};
use enforcer_tests::{
    daemon::Daemon,
    load::workload_as,
    process::Process,
    stream::{Stream, is},
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

use super::node::{self, Node};

/// The guest's description of its system, replaced until this is dropped.
struct OsRelease(Option<Vec<u8>>);

impl OsRelease {
    const PATH: &str = "/etc/os-release";

    fn replace(content: &str) -> Self {
        let before = match fs::read(Self::PATH) {
            Ok(before) => Some(before),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => panic!("{}: {error}", Self::PATH),
        };
        fs::write(Self::PATH, content).unwrap();
        Self(before)
    }
}

impl Drop for OsRelease {
    fn drop(&mut self) {
        match &self.0 {
            Some(before) => fs::write(Self::PATH, before).unwrap(),
            None => fs::remove_file(Self::PATH).unwrap(),
        }
    }
}

/// A process of that program in that cgroup.
fn run(program: &Path, cgroup: &Path) -> Process {
    let script = r#"echo 0 > "$0/cgroup.procs" && exec "$1" hold --size 1Mi"#;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).args([cgroup, program]).stdin(Stdio::null()).stdout(Stdio::null());
    let process = Process::new(command.spawn().unwrap());
    let is_it =
        || fs::read_link(format!("/proc/{}/exe", process.id())).is_ok_and(|executable| executable == program);
    wait_until("the program", is_it);
    process
}

fn wait_for(stream: &mut Stream, kind: &str, place: &str) -> String {
    let fits = |event: &Value| {
        is(event, kind) && event["data"]["what"] == "evictors" && event["data"]["place"] == place
    };
    let event = stream.wait_for(&format!("{kind} about {place}"), TIMEOUT, fits).unwrap();
    event["data"]["message"].as_str().unwrap().to_owned()
}

/// The places that were reported so far.
fn reported(daemon: &Daemon) -> Vec<String> {
    let events = daemon.events().unwrap();
    let entered = events.iter().filter(|event| is(event, "degraded.entered"));
    let others = entered.filter(|event| event["data"]["what"] == "evictors");
    others.filter_map(|event| event["data"]["place"].as_str().map(str::to_owned)).collect()
}

/// Each is reported with what to change, also by `doctor`, and once it is gone, that it is gone. What only has such a name
/// is none.
#[guest_test(daemon)]
fn others_that_end_pods_are_reported_with_what_to_change() {
    let mut node = Node::new("rivals", Systemd);
    node.serve();
    let pod = node.pod(QosClass::Burstable, "shop", "koordlet-x7k2p", &["app"]);
    let folder = PathBuf::from("/tmp/kubelet-rivals");
    let oomd = workload_as(&folder, "systemd-oomd").unwrap();
    // What a tenant runs and how it calls its pod says nothing.
    let own = run(&oomd, pod.cgroup(1).path());
    let daemon = node.start("");
    wait_until("the pod's name", || node::pods(&daemon).iter().any(|pod| pod["name"] == "koordlet-x7k2p"));
    let look = || assert!(daemon.verb(&["reload"]).status().unwrap().success());
    look();

    let host = run(&oomd, Path::new(enforcer_tests::cgroup::ROOT));
    let koordlet = node.pod(QosClass::Burstable, "koordinator-system", "koordlet-b4q9z", &["koordlet"]);
    let is_named = |pod: &Value| pod["namespace"] == "koordinator-system";
    wait_until("koordlet's name", || node::pods(&daemon).iter().any(is_named));
    let talos = OsRelease::replace("NAME=\"Talos\"\nID=talos\nVERSION_ID=v1.12.1\n");
    look();
    let mut stream = daemon.follow().unwrap();
    let message = wait_for(&mut stream, "degraded.entered", "systemd-oomd");
    assert!(message.starts_with(&format!("systemd-oomd runs (process {})", host.id())), "{message}");
    let mut messages = vec![message];
    for (place, line) in [("koordlet", "resource-threshold-config"), ("talos", "triggerExpression")] {
        let message = wait_for(&mut stream, "degraded.entered", place);
        assert!(message.contains(line), "{message}");
        messages.push(message);
    }
    let doctor = daemon.verb(&["-o", "json", "doctor"]).output().unwrap();
    let doctor: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    for message in &messages {
        let shown = doctor["evictors"].as_array().unwrap();
        assert!(shown.iter().any(|shown| shown == message.as_str()), "{message}: {doctor}");
    }

    drop((host, koordlet, talos));
    wait_until("koordlet's end", || !node::pods(&daemon).iter().any(is_named));
    look();
    for place in ["systemd-oomd", "koordlet", "talos"] {
        wait_for(&mut stream, "degraded.left", place);
    }
    let mut others = reported(&daemon);
    others.retain(|place| place != "kubelet");
    others.sort_unstable();
    // Ours is the default threshold, and this kubelet's is not known.
    assert_eq!(others, ["koordlet", "kubeletUnknown", "systemd-oomd", "talos"], "each once");
    drop(own);
    daemon.stop().unwrap();
}
