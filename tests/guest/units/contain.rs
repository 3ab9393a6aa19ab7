//! A pod in a slice that is held back while systemd reads its units anew.

use enforcer_tests::{
    process::Process,
    stream::{Stream, is},
    wait::{TIMEOUT, wait_until},
};
use rustix::process::Signal;
use serde_json::Value;

use super::{Scene, read, reload, wait_until_in};
use crate::eviction::to_leave;

const SETTINGS: &str = "evictionPressureTransitionPeriod: 1ms\nevictionHard: {memory.available: 30Mi}\n\
                        evictionSoft: {memory.available: 700Mi}\nevictionSoftGracePeriod: {memory.available: 1s}\n\
                        evictionMaxPodGracePeriod: 600";

const MIB: u64 = 1 << 20;

/// A pod that has time to end.
fn pod(name: &str, priority: i32, requests: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, uid: {name}}}\nspec:\n  priority: {priority}\n  \
         terminationGracePeriodSeconds: 600\n  containers:\n  - name: app\n    resources: {{requests: {{{requests}}}}}\n"
    )
}

fn contained(stream: &mut Stream, state: &str) -> Value {
    let is_it = |event: &Value| is(event, "eviction.contained") && event["data"]["state"] == state;
    stream.wait_for(state, TIMEOUT, is_it).unwrap()
}

/// systemd writes the slice's own `memory.high`, and the daemon the one that holds the pod back.
#[guest_test(systemd)]
fn a_pod_that_is_held_back_stays_so_over_a_reload_and_is_let_go_of_afterwards() {
    let scene = Scene::open("holds", SETTINGS);
    let mut stream = scene.daemon.follow().unwrap();
    let manifest = |name: &str, priority, requests: &str| {
        scene.daemon.manifest(&format!("{name}.yaml"), &pod(name, priority, requests)).unwrap();
    };
    manifest("victim", -10, "");
    let mut victim = scene.daemon.hold("default/victim", "150Mi").unwrap();
    wait_until_in(&victim, &scene.slice("besteffort-podvictim").join("enforcer-victim-app.scope"));
    // So it outlives SIGTERM.
    victim.signal(Signal::STOP).unwrap();
    victim.wait_until_stopped(TIMEOUT).unwrap();
    let size = to_leave(600 * MIB);
    manifest("filler", 0, &format!("memory: {}", size.parse::<u64>().unwrap() + 32 * MIB));
    let filler = scene.daemon.hold("default/filler", &size).unwrap();
    stream.wait_for_pod("eviction.signalled", "default/victim", TIMEOUT).unwrap();
    // No BestEffort pod may start while memory is short.
    manifest("grower", 0, "memory: 16Mi");
    let grower: Process = scene
        .exec("default/grower", &["workload", "ramp", "--no-catch-up", "--rate", "30Mi", "--to", "450Mi"]);
    let held = contained(&mut stream, "contained");
    assert_eq!(held["subject"], "default/grower", "{held}");
    let high = scene.slice("burstable-podgrower").join("memory.high");
    let lowered = (held["data"]["memoryHighBytes"].as_u64().unwrap() / 4_096 * 4_096).to_string();
    assert_eq!(read(&high), lowered);

    reload();
    wait_until("what systemd wrote, and the daemon over it", || {
        scene.daemon.log().contains("is lowered again") && read(&high) == lowered
    });
    assert_eq!(stream.of("eviction.contained").count(), 1);

    drop(victim);
    let released = contained(&mut stream, "released");
    assert_eq!(released["data"]["evictionId"], held["data"]["evictionId"], "{released}");
    wait_until("the slice's own value", || read(&high) == "max");
    let events = scene.daemon.events().unwrap();
    let mut drifted = events.iter().filter(|event| is(event, "limits.drifted"));
    assert!(!drifted.any(|event| event["data"]["file"] == "memory.high"), "{events:#?}");
    drop((filler, grower));
    scene.daemon.stop().unwrap();
}
