//! A manifest that changes where its running pod stands: nothing of the pod is left without limit, score and rank.

use std::{fs, path::Path};

use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    plan::{Planned, folder as cgroup_folder, pids_below},
    process::Process,
    stream::{Stream, is},
    wait::{TIMEOUT, wait_until},
};

use super::{folder, join, read, settings_of};

const NAME: &str = "edits";
const NONE: &str = "{}";
const BURSTABLE: &str = "{requests: {cpu: 20m, memory: 16Mi}, limits: {cpu: 100m, memory: 32Mi}}";
const GUARANTEED: &str = "{limits: {cpu: 50m, memory: 48Mi}}";

/// A pod of one container.
fn pod(name: &str, annotations: &str, of_pod: &str, container: &str, resources: &str) -> String {
    let of_pod = if of_pod.is_empty() { String::new() } else { format!("  resources: {of_pod}\n") };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, uid: {name}, annotations: {{{annotations}}}}}\nspec:\n{of_pod}\
         \x20 containers:\n  - name: {container}\n    resources: {resources}\n"
    )
}

/// What is done to a running pod, and where its process is after it.
struct Edit {
    name: &'static str,
    before: String,
    /// The edits, one right after the other.
    after: Vec<String>,
    /// Below kubepods.
    from: &'static str,
    to: &'static str,
}

fn edits(elsewhere: &str) -> Vec<Edit> {
    let plain = |name, resources| pod(name, "", "", "app", resources);
    let adopting = format!("enforcer.dev/cgroup: /{elsewhere}");
    vec![
        Edit {
            name: "rises",
            before: plain("rises", NONE),
            after: vec![plain("rises", BURSTABLE)],
            from: "besteffort/podrises/app",
            to: "burstable/podrises/app",
        },
        Edit {
            name: "falls",
            before: plain("falls", GUARANTEED),
            after: vec![plain("falls", NONE)],
            from: "podfalls/app",
            to: "besteffort/podfalls/app",
        },
        Edit {
            name: "twice",
            before: plain("twice", NONE),
            after: vec![plain("twice", BURSTABLE), plain("twice", GUARANTEED)],
            from: "besteffort/podtwice/app",
            to: "podtwice/app",
        },
        Edit {
            name: "whole",
            before: plain("whole", NONE),
            after: vec![pod("whole", "", GUARANTEED, "app", NONE)],
            from: "besteffort/podwhole/app",
            to: "podwhole/app",
        },
        // These stay, with the values and the score of the container that the plan has.
        Edit {
            name: "renamed",
            before: plain("renamed", BURSTABLE),
            after: vec![pod("renamed", "", "", "other", "{limits: {memory: 24Mi}}")],
            from: "burstable/podrenamed/app",
            to: "burstable/podrenamed/app",
        },
        Edit {
            name: "adopts",
            before: plain("adopts", NONE),
            after: vec![pod("adopts", &adopting, "", "app", BURSTABLE)],
            from: "besteffort/podadopts/app",
            to: "besteffort/podadopts/app",
        },
        Edit {
            name: "nested",
            before: plain("nested", NONE),
            after: vec![plain("nested", BURSTABLE)],
            from: "besteffort/podnested/app/inner",
            to: "besteffort/podnested/app/inner",
        },
    ]
}

/// What stands below kubepods beside the plan after the edits.
const FORMER: [&str; 3] = ["burstable/podrenamed/app", "besteffort/podadopts", "besteffort/podnested"];

fn kubepods(path: &str) -> String {
    format!("/{NAME}/kubepods/{path}")
}

fn place(daemon: &Daemon, name: &str, manifest: &str) {
    daemon.manifest(&format!("{name}.yaml"), manifest).unwrap();
}

fn cgroup_of(pid: u32) -> String {
    read(Path::new(&format!("/proc/{pid}/cgroup"))).trim_start_matches("0::").to_owned()
}

fn score_of(process: &Process) -> i64 {
    read(Path::new(&format!("/proc/{}/oom_score_adj", process.id()))).parse().unwrap()
}

fn wait_until_in(process: &Process, cgroup: &str) {
    wait_until(&format!("process {} in {cgroup}", process.id()), || cgroup_of(process.id()) == cgroup);
}

fn wait_until_gone(cgroup: &str) {
    wait_until(&format!("the end of {cgroup}"), || !cgroup_folder(cgroup).exists());
}

fn said(daemon: &Daemon, arguments: &[&str]) -> String {
    let output = daemon.verb(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[guest_test(daemon)]
fn an_edit_of_a_running_pod_leaves_nothing_of_it_behind() {
    let _elsewhere = Cgroup::create("edits-elsewhere").unwrap();
    let _root = Cgroup::create(NAME).unwrap();
    let daemon = Daemon::start(&folder(NAME), &settings_of(NAME, "")).unwrap();
    let mut stream = daemon.follow().unwrap();
    let edits = edits("edits-elsewhere");
    for edit in &edits {
        place(&daemon, edit.name, &edit.before);
    }
    // What a pod adopts no longer has its own values back, and its processes stay.
    let others = Cgroup::create("edits-left").unwrap();
    let left = join(others.path(), "exec sleep 1000");
    wait_until_in(&left, "/edits-left");
    let score_before = score_of(&left);
    place(&daemon, "leaves", &pod("leaves", "enforcer.dev/cgroup: /edits-left", "", "app", BURSTABLE));
    Planned::of(&daemon).unwrap().wait_until_held().unwrap();
    fs::create_dir(cgroup_folder(&kubepods("besteffort/podnested/app/inner"))).unwrap();
    let mut processes: Vec<Process> = edits
        .iter()
        .map(|edit| join(&cgroup_folder(&kubepods(edit.from)), "sleep 1000 & exec sleep 1000"))
        .collect();
    for (edit, process) in edits.iter().zip(&processes) {
        wait_until_in(process, &kubepods(edit.from));
    }
    Planned::of(&daemon).unwrap().wait_until_held().unwrap();
    assert_eq!(read(&others.path().join("memory.max")), "33554432");

    for edit in &edits {
        for manifest in &edit.after {
            place(&daemon, edit.name, manifest);
        }
    }
    place(&daemon, "leaves", &pod("leaves", "", "", "app", BURSTABLE));
    for (edit, process) in edits.iter().zip(&processes) {
        wait_until_in(process, &kubepods(edit.to));
    }
    let former = FORMER.map(kubepods);
    let beside: Vec<&str> = former.iter().map(String::as_str).collect();
    let planned = Planned::of(&daemon).unwrap();
    planned.wait_until_held_beside(&beside).unwrap();
    let process = |name: &str| &processes[edits.iter().position(|edit| edit.name == name).unwrap()];
    for (name, stays, limit, container) in [
        ("renamed", "burstable/podrenamed/app", "25165824", kubepods("burstable/podrenamed/other")),
        ("adopts", "besteffort/podadopts", "33554432", String::from("/edits-elsewhere")),
        ("nested", "besteffort/podnested/app", "33554432", kubepods("burstable/podnested/app")),
    ] {
        let stays = kubepods(stays);
        wait_until(&format!("the limit of {stays}"), || {
            read(&cgroup_folder(&stays).join("memory.max")) == limit
        });
        let score = planned.scores[&container];
        wait_until(&format!("the score of {name}"), || score_of(process(name)) == score);
    }
    wait_until("the values of what is adopted no longer", || {
        read(&others.path().join("memory.max")) == "max" && score_of(&left) == score_before
    });
    assert_eq!(cgroup_of(left.id()), "/edits-left");
    for gone in ["besteffort/podrises", "podfalls", "besteffort/podtwice", "burstable/podtwice"] {
        wait_until_gone(&kubepods(gone));
    }

    check_reports(&daemon, &mut stream);

    // Both places of a pod are one: whoever evicts it ends what is in either.
    let mut beside = join(&cgroup_folder(&kubepods("burstable/podnested/app")), "exec sleep 1000");
    wait_until_in(&beside, &kubepods("burstable/podnested/app"));
    said(&daemon, &["evict", "default/nested", "--reason", "a test"]);
    beside.wait_for_end(TIMEOUT).unwrap();
    let mut nested = processes.pop().unwrap();
    nested.wait_for_end(TIMEOUT).unwrap();
    wait_until_gone(&kubepods("besteffort/podnested"));
    stream.wait_for("its end", TIMEOUT, |event| is(event, "degraded.left") && is_of_nested(event)).unwrap();

    // Killed in the middle of it all, the daemon finds by its marks what is to be moved.
    drop(stream);
    drop(daemon);
    place_while_down("rises", &pod("rises", "", "", "app", GUARANTEED));
    place_while_down("renamed", &pod("renamed", "", "", "third", "{limits: {memory: 20Mi}}"));
    fs::remove_file(folder(NAME).join("pods/nested.yaml")).unwrap();
    let daemon = Daemon::start(&folder(NAME), &settings_of(NAME, "")).unwrap();
    wait_until_in(&processes[0], &kubepods("podrises/app"));
    let renamed = cgroup_folder(&kubepods("burstable/podrenamed/app"));
    wait_until("the limit of the renamed one", || read(&renamed.join("memory.max")) == "20971520");
    let adopted = cgroup_folder(&kubepods("besteffort/podadopts"));
    assert_eq!(read(&adopted.join("memory.max")), "33554432");
    // What is empty goes.
    for process in &processes {
        for pid in pids_below(&cgroup_folder(&cgroup_of(process.id()))) {
            kill(pid);
        }
    }
    Planned::of(&daemon).unwrap().wait_until_held().unwrap();
    daemon.stop().unwrap();
}

/// What is reported of the edits: the class that changed, the move, and why a container with cgroups of its own stays.
fn check_reports(daemon: &Daemon, stream: &mut Stream) {
    let changed = stream.wait_for_pod("pod.changed", "default/rises", TIMEOUT).unwrap();
    let classes = (&changed["data"]["oldQosClass"], &changed["data"]["qosClass"]);
    assert_eq!(classes, (&"BestEffort".into(), &"Burstable".into()), "{changed}");
    let moved = stream
        .wait_for("the move", TIMEOUT, |event| {
            is(event, "limits.applied")
                && event["subject"] == "default/rises"
                && event["data"]["reason"] == "moved"
        })
        .unwrap();
    assert_eq!(moved["data"]["processes"], 2, "{moved}");
    assert_eq!(moved["data"]["files"][0]["old"], kubepods("besteffort/podrises/app"), "{moved}");
    stream
        .wait_for("why it stays", TIMEOUT, |event| is(event, "degraded.entered") && is_of_nested(event))
        .unwrap();
    let planned = said(daemon, &["plan", "--live"]);
    let step = format!(
        "move    {} -> {}\n",
        kubepods("besteffort/podnested/app"),
        kubepods("burstable/podnested/app")
    );
    assert!(planned.contains(&step), "{planned}");
}

fn is_of_nested(event: &serde_json::Value) -> bool {
    let message = event["data"]["message"].as_str().unwrap_or_default();
    message.contains("podnested/app are not moved") && message.contains("cgroups of their own")
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    // It may have ended already.
    let _ended = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

fn place_while_down(name: &str, manifest: &str) {
    fs::write(folder(NAME).join("pods").join(format!("{name}.yaml")), manifest).unwrap();
}
