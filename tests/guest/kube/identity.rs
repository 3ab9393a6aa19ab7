//! Who was killed: ten pods with three containers each, and the kernel's OOM killer in some of them.

use std::{
    collections::BTreeSet,
    time::{Instant, SystemTime},
};

use enforcer_tests::{
    expect::assert_holds,
    kube::{self, NAMESPACE, PATIENCE, documented_roles, wait_for},
    random::Random,
    rounds::is_soak,
    stream::{Stream, is},
};
use serde_json::{Value, json};

use super::{Scene, pods, shown, small, subject, views};

const CONTAINERS: [&str; 3] = ["a", "b", "c"];

/// How many pods are started side by side.
const AT_A_TIME: usize = 2;

/// How many pods there are, and in how many of their containers the kernel kills.
struct Extent {
    pods: usize,
    kills: usize,
}

impl Extent {
    fn of_this_run() -> Self {
        if is_soak() { Self { pods: 40, kills: 60 } } else { Self { pods: 10, kills: 6 } }
    }
}

#[guest_test(kube)]
fn every_kill_names_pod_and_container_and_every_view_has_every_pod() {
    let mut scene = Scene::open("identity", &documented_roles());
    let Extent { pods: count, kills } = Extent::of_this_run();
    let start = Instant::now();
    let names: Vec<String> = (0..count).map(|number| format!("id-{number}")).collect();
    let mut placed = Vec::new();
    // A few at a time: the kubelet starts all that it has side by side, and would have them all run at the very end.
    for (batch, names) in names.chunks(AT_A_TIME).enumerate() {
        for (number, app) in names.iter().enumerate() {
            // Guaranteed and Burstable: a container without a limit is not killed at one. All requests of 40 pods fit a node of two
            // processors.
            let resources = match (batch * AT_A_TIME + number) % 5 {
                0 => json!({"limits": {"cpu": "50m", "memory": "32Mi"}}),
                _ => json!({"requests": {"cpu": "5m", "memory": "8Mi"}, "limits": {"memory": "32Mi"}}),
            };
            scene.begin(app, &kube::pod(app, &CONTAINERS.map(|name| small(name, &resources))));
        }
        placed.extend(names.iter().map(|app| scene.running(app)));
    }
    println!("{count} pods run after {:?}", start.elapsed());
    let since_ms = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let daemon = scene.start("sinks: {kubernetes: {enabled: true}}");
    let mut stream = daemon.follow().unwrap();
    for pod in &placed {
        let known = wait_for(kube::name(pod), || {
            let known = shown(&daemon, pod).filter(|known| !known["spec"].is_null());
            Ok(known.filter(|known| known["containers"].as_array().map_or(0, Vec::len) == CONTAINERS.len()))
        });
        let containers = CONTAINERS.map(|name| json!({"name": name}));
        assert_holds(
            &known.unwrap(),
            &json!({"namespace": NAMESPACE, "uid": kube::uid(pod), "containers": containers}),
        );
    }

    let mut random = Random::of_this_run();
    let mut chosen = BTreeSet::new();
    while chosen.len() < kills {
        chosen.insert((random.below(count as u64), random.below(3)));
    }
    for (pod, container) in chosen {
        let (pod, container) = (usize::try_from(pod).unwrap(), usize::try_from(container).unwrap());
        let (pod, container) = (&placed[pod], CONTAINERS[container]);
        let mut load = kube::exec(pod, container, &["spike", "--size", "64Mi"]).unwrap();
        assert!(!load.wait_for_end(PATIENCE).unwrap().success(), "{}", random.seed());
        let incident = incident_of(&mut stream, pod, container);
        assert_eq!(incident["subject"], subject(pod), "{incident}");
        assert_eq!(incident["data"]["victims"][0]["containerInit"], false, "{incident}");
    }

    // One whose own process is killed, in a pod that the daemon has just seen come.
    let limited = json!({"limits": {"memory": "32Mi"}});
    let ramp = ["ramp", "--no-catch-up", "--rate", "20Mi", "--to", "64Mi"];
    let mut late = kube::pod("late", &[kube::container("app", &ramp, &limited), small("side", &limited)]);
    late["spec"]["restartPolicy"] = json!("Never");
    scene.begin("late", &late);
    let late = wait_for("the end of its container", || {
        let pod = scene.cluster.pod("late")?.unwrap_or_default();
        let mut ended = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        Ok(ended.any(|status| !status["state"]["terminated"].is_null()).then_some(pod.clone()))
    })
    .unwrap();
    let incident = incident_of(&mut stream, &late, "app");
    assert_eq!(incident["data"]["victims"][0]["containerInit"], true, "{incident}");
    scene.wait_until_reported(&late, "OOMKilling");
    assert_eq!(stream.of("oom.incident").count(), kills + 1, "{}", random.seed());
    assert_eq!(pods(&daemon).len(), count + 1, "{:?}", pods(&daemon));

    let all: Vec<&Value> = placed.iter().chain([&late]).collect();
    views::assert_listed(&daemon, &all, since_ms);
    daemon.stop().unwrap();
}

/// The OOM incident in a container, which must be whole.
fn incident_of(stream: &mut Stream, pod: &Value, container: &str) -> Value {
    let id = kube::container_id(pod, container).unwrap();
    let is_it = |event: &Value| {
        is(event, "oom.incident")
            && event["data"]["limitOwner"].as_str().is_some_and(|owner| owner.contains(id))
    };
    let what = format!("the kill in {container} of {}", kube::name(pod));
    let incident = stream.wait_for(&what, PATIENCE, is_it).unwrap();
    let place = json!({"namespace": NAMESPACE, "pod": kube::name(pod), "uid": kube::uid(pod), "container": container});
    assert_holds(
        &incident["data"],
        &json!({
            "scope": "container", "kills": 1, "trigger": place, "victims": [place],
            "reconciled": true, "reconciliation": "matched", "reconstructed": false,
        }),
    );
    incident
}
