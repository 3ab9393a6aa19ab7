//! Containers that are gone before anybody could look.
use std::{fs, process::Command, time::Instant};

use enforcer_tests::{plan::folder, process::Process, wait::wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{
    Scene, assert_holds,
    scene::{Running, assert_in_order, dir, merged, place},
};

/// The daemon, held.
struct Held(Pid);

impl Held {
    fn hold(scene: &Scene) -> Self {
        let pid = Pid::from_raw(i32::try_from(scene.daemon.pid()).unwrap()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A daemon that stays held fails its scenario.
        kill_process(self.0, Signal::CONT).ok();
    }
}

/// Runs something that takes too much in a cgroup, and removes the cgroup as soon as that is dead.
fn kill_and_remove(cgroup: &str) -> Running {
    let folder = dir(cgroup);
    let script = format!("echo 0 > {}/cgroup.procs || exit 1; exec tail /dev/zero", folder.display());
    let mut hog = Running::new(Process::new(Command::new("sh").args(["-c", &script]).spawn().unwrap()));
    hog.killed();
    wait_until("the end of the cgroup", || fs::remove_dir(&folder).is_ok());
    hog
}

fn expected(hog: &Running, whose: &Value, limit_owner: &str) -> Value {
    let task = merged(&json!({"pid": hog.pid(), "comm": "tail"}), whose);
    json!({
        "scope": "container",
        "limitOwner": limit_owner,
        "limitSource": "traced",
        "trigger": task,
        "victims": [merged(&task, &json!({"exitCode": 9}))],
        "reconstructed": false,
    })
}

#[guest_test(kernel)]
fn while_the_daemon_cannot_look() {
    let mut scene = Scene::open("gone", "singleProcessOOMKill: true");
    scene.pod("web", &[("app", "16Mi"), ("side", "16Mi")]);
    let pod = "/kubepods/burstable/podweb";
    let app = format!("{pod}/app");

    // One that the daemon made.
    let held = Held::hold(&scene);
    let hog = kill_and_remove(&app);
    drop(held);
    let incident = scene.incident("default/web");
    assert_holds(&incident, &expected(&hog, &place("web", "app", &app), &app));

    // One that a runtime made in the pod's, and that the daemon never saw alive.
    wait_until("its cgroup anew, with its limit", || {
        fs::read_to_string(folder(&app).join("memory.max")).is_ok_and(|max| max.trim() == "16777216")
    });
    let held = Held::hold(&scene);
    let brief = format!("{pod}/brief");
    fs::create_dir(dir(&brief)).unwrap();
    fs::write(dir(&brief).join("memory.max"), "8388608").unwrap();
    let hog = kill_and_remove(&brief);
    drop(held);
    let incident = scene.incident("default/web");
    let whose = json!({"namespace": "default", "pod": "web", "uid": "web", "cgroup": brief});
    assert_holds(&incident, &expected(&hog, &whose, &brief));
    scene.close(0);
}

#[guest_test(kernel)]
fn has_its_moments_in_order() {
    let mut scene = Scene::open("moments", "");
    scene.pod("web", &[("app", "128Mi"), ("side", "32Mi")]);
    let begin = Instant::now();
    let mut hog = scene.run("default/web/app", &["workload", "spike", "--size", "512Mi"]);
    let incident = scene.incident("default/web");
    let took_ms = u64::try_from(begin.elapsed().as_millis()).unwrap();
    hog.killed();
    assert_in_order(&incident);
    let moment = |name: &str| {
        incident["timelineMs"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {incident:#}"))
    };
    // All are there, and in milliseconds.
    let moments = ["firstReclaim", "marked", "exited", "memoryBack"].map(moment);
    assert!(moments.iter().all(|moment| *moment <= took_ms), "{moments:?} within {took_ms} ms");
    scene.close(0);
}
