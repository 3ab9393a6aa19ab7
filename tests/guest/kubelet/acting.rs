//! Evictions that the API server is asked for, and Events: with fakes of the runtime, the Pods API and the API server.

use std::{fs, net::SocketAddr, thread, time::Duration};

use enforcer::{model::QosClass, policy::CgroupDriver::Systemd};
use enforcer_tests::{
    daemon::Daemon,
    expect::assert_holds,
    kernel,
    load::Load,
    stream::{Stream, is},
    wait::{TIMEOUT, wait_until},
};
use serde_json::{Value, json};

use super::{
    MIB, SANDBOX,
    node::{Node, Placed},
    specs::{
        evicting_below,
        fake::{FakeKubelet, FakePod},
        hold_in, pod_of, serve, serve_pods_api, spec,
    },
};

#[path = "../../../enforcer/src/specs/fake_api.rs"]
#[expect(dead_code, reason = "the client's own tests use more of it")]
pub(super) mod fake_api;

use fake_api::{FakeApi, Refusal};

const TOKEN: &str = "secret";

pub(super) struct Scene {
    pub(super) node: Node,
    pub(super) kubelet: FakeKubelet,
    pub(super) api: FakeApi,
    pub(super) settings: String,
}

impl Scene {
    /// A daemon evicts at a hard threshold, which is not met yet.
    pub(super) fn new(name: &str) -> Self {
        Self::with(name, &evicting_below(threshold_bytes()))
    }

    /// A daemon evicts as these thresholds say.
    pub(super) fn with(name: &str, thresholds: &str) -> Self {
        Self::reached_by(name, thresholds, |server| server)
    }

    /// The same with another address for the API server, which leads to that.
    pub(super) fn reached_by(
        name: &str,
        thresholds: &str,
        way: impl FnOnce(SocketAddr) -> SocketAddr,
    ) -> Self {
        let node = Node::new(name, Systemd);
        node.serve();
        let (kubelet, api) = (FakeKubelet::new(), FakeApi::new(TOKEN));
        serve_pods_api(&node, &kubelet);
        let signed = rcgen::generate_simple_self_signed([String::from("127.0.0.1")]).unwrap();
        let (certificate, key) = (signed.cert.pem(), signed.signing_key.serialize_pem());
        let folder = node.kubelet_root();
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("ca.pem"), &certificate).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = way(listener.local_addr().unwrap());
        listener.set_nonblocking(true).unwrap();
        let serving = api.clone();
        serve(move || {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            serving.serve(listener, (certificate, key))
        });
        let kubeconfig = folder.join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://{address}', certificate-authority: ca.pem}}}}]\n\
             users: [{{name: u, user: {{token: {TOKEN}}}}}]\n"
        );
        fs::write(&kubeconfig, text).unwrap();
        let settings = format!(
            "{thresholds}\nkubeconfig: {}\nnodeName: node-1\nsinks: {{kubernetes: {{enabled: true}}}}",
            kubeconfig.display()
        );
        Self { node, kubelet, api, settings }
    }

    /// A pod that the kubelet and the API server know.
    pub(super) fn pod(&mut self, name: &str, controller: Option<&str>) -> Placed {
        let placed = self.node.pod(QosClass::Burstable, "shop", name, &["app"]);
        let kind = controller.unwrap_or_default().to_owned();
        self.kubelet.put(FakePod { controller: kind, ..spec(&placed, name, "Burstable", 0, "16Mi") });
        self.put(name, &placed, controller, &json!({"phase": "Running"}));
        placed
    }

    /// A pod that the API server knows, with that status.
    fn put(&self, name: &str, placed: &Placed, controller: Option<&str>, status: &Value) {
        let owners: Vec<Value> =
            controller.iter().map(|kind| json!({"kind": kind, "name": "o", "controller": true})).collect();
        let app = json!({"name": "app", "resources": {"requests": {"memory": "16Mi"}}});
        self.api.put(json!({
            "metadata": {"namespace": "shop", "name": name, "uid": placed.uid, "ownerReferences": owners},
            "spec": {"nodeName": "node-1", "containers": [app]},
            "status": status,
        }));
    }

    pub(super) fn start(&self, known: &str) -> (Daemon, Stream) {
        let daemon = self.node.start(&self.settings);
        wait_until("the spec", || !pod_of(&daemon, known)["spec"].is_null());
        let stream = daemon.follow().unwrap();
        (daemon, stream)
    }

    /// The evictions that were asked for, by the path.
    pub(super) fn evictions(&self) -> Vec<String> {
        let changed = self.api.changed().into_iter().map(|(request, _)| request);
        changed.filter(|request| request.ends_with("/eviction")).collect()
    }

    /// The Events of that reason about pods.
    pub(super) fn events(&self, reason: &str) -> Vec<Value> {
        let changed = self.api.changed().into_iter();
        let events = changed.filter(|(request, _)| request.ends_with("/namespaces/shop/events"));
        events.map(|(_, event)| event).filter(|event| event["reason"] == reason).collect()
    }
}

/// A threshold that what [`fill`] takes crosses.
pub(super) fn threshold_bytes() -> u64 {
    kernel::meminfo_bytes("MemAvailable").unwrap().saturating_sub(400 * MIB)
}

pub(super) fn fill(placed: &Placed) -> Load {
    Load::start(placed.cgroup(1), &["ramp", "--huge", "--no-catch-up", "--rate", "100Mi", "--to", "500Mi"])
        .unwrap()
}

#[guest_test(daemon)]
fn an_evicted_pod_of_a_controller_is_evicted_at_the_api_server_and_explained_there() {
    let mut scene = Scene::new("acting");
    let web = scene.pod("web", Some("ReplicaSet"));
    let bare = scene.pod("bare", None);
    let (daemon, mut stream) = scene.start("bare");
    let sandbox = hold_in(web.cgroup(SANDBOX), "1Mi");
    let mut filling = fill(&web);
    let requested = stream.wait_for_pod("eviction.requested", "shop/web", TIMEOUT).unwrap();
    assert!(!filling.wait().unwrap().success());
    assert_holds(
        &requested["data"],
        &json!({"outcome": "accepted", "action": "evict", "uid": web.uid, "requests": 1}),
    );
    println!("asked {} ms after the signal", requested["data"]["signalledToRequestedMs"]);
    let asked = scene.api.asked().into_iter().find(|asked| asked.target.contains("/pods/web"));
    assert_eq!(
        asked.map(|asked| asked.target),
        Some(String::from("/api/v1/namespaces/shop/pods/web/eviction"))
    );
    assert_holds(
        &pod_of(&daemon, "web"),
        &json!({"labels": {"app": "web"}, "controller": {"kind": "ReplicaSet", "name": "o", "uid": "u-o"}}),
    );
    assert_eq!(scene.evictions(), ["POST /api/v1/namespaces/shop/pods/web/eviction"]);
    wait_until("the Event", || !scene.events("Evicted").is_empty());
    let event = scene.events("Evicted").remove(0);
    let regarding = json!({"kind": "Pod", "namespace": "shop", "name": "web", "uid": web.uid});
    assert_holds(
        &event,
        &json!({"regarding": regarding, "related": {"name": "node-1"}, "type": "Warning", "action": "Evict"}),
    );
    assert!(event["note"].as_str().unwrap().starts_with("The node was low on resource: memory."), "{event}");
    scene.api.remove(&web.uid);
    stream.wait_for_pod("eviction.confirmed", "shop/web", TIMEOUT).unwrap();
    stream
        .wait_for("the end of the shortage", TIMEOUT, |event| {
            is(event, "pressure.cleared") && event["data"]["crossedToClearedMs"].is_number()
        })
        .unwrap();
    assert!({ sandbox }.lives().unwrap());

    // Nothing would make this one anew.
    let mut filling = fill(&bare);
    let withheld = stream.wait_for_pod("eviction.requested", "shop/bare", TIMEOUT).unwrap();
    assert!(!filling.wait().unwrap().success());
    assert_holds(&withheld["data"], &json!({"outcome": "withheld", "reason": "barePod", "requests": 0}));
    assert_eq!(scene.evictions().len(), 1);
    daemon.stop().unwrap();
}

/// The API server is away while a pod is evicted, the daemon is killed, and the next one asks: once.
#[guest_test(daemon)]
fn an_api_server_that_was_away_is_asked_once_by_the_next_daemon() {
    let mut scene = Scene::new("acting-away");
    let web = scene.pod("web", Some("ReplicaSet"));
    let (mut daemon, mut stream) = scene.start("web");
    scene.api.refuse(&Refusal::Status(503, None), 100_000);
    let mut filling = fill(&web);
    stream.wait_for_pod("eviction.signalled", "shop/web", TIMEOUT).unwrap();
    assert!(!filling.wait().unwrap().success());
    let is_away = |event: &Value| is(event, "degraded.entered") && event["data"]["what"] == "apiServer";
    stream.wait_for("no API server", TIMEOUT, is_away).unwrap();
    daemon.succeed().unwrap();
    let mut stream = daemon.follow().unwrap();
    thread::sleep(Duration::from_secs(1));
    assert!(scene.evictions().is_empty());
    scene.api.serve_again();
    // The first request was refused, which was reported.
    let is_accepted =
        |event: &Value| is(event, "eviction.requested") && event["data"]["outcome"] == "accepted";
    stream.wait_for("the eviction at the API server", TIMEOUT, is_accepted).unwrap();
    daemon.succeed().unwrap();
    let mut stream = daemon.follow().unwrap();
    scene.api.remove(&web.uid);
    stream.wait_for_pod("eviction.confirmed", "shop/web", TIMEOUT).unwrap();
    assert_eq!(scene.evictions().len(), 1);
    daemon.stop().unwrap();
}

/// The kubelet evicts as well: its victims are reported beside the pod that would have been evicted, and a status that enforcer
/// wrote is not taken for the kubelet's.
#[guest_test(daemon)]
fn a_pod_that_the_kubelet_evicts_is_reported_and_an_own_victim_is_not() {
    let mut scene = Scene::new("foreign");
    scene.settings.push_str("\npodSource: apiServer");
    let [own, first, other] = ["own", "first", "other"].map(|name| scene.pod(name, Some("ReplicaSet")));
    let _held = [hold_in(first.cgroup(1), "60Mi"), hold_in(other.cgroup(1), "30Mi")];
    let (daemon, mut stream) = scene.start("other");
    let mut filling = fill(&own);
    stream.wait_for_pod("eviction.requested", "shop/own", TIMEOUT).unwrap();
    assert!(!filling.wait().unwrap().success());

    let message = "The node was low on resource: memory. ";
    let evict = |name: &str, placed: &Placed, by: &str| {
        let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": by});
        let status =
            json!({"phase": "Failed", "reason": "Evicted", "message": message, "conditions": [condition]});
        scene.put(name, placed, Some("ReplicaSet"), &status);
    };
    evict("own", &own, "TerminationByEnforcer");
    evict("other", &other, "TerminationByKubelet");
    let foreign = stream.wait_for_pod("eviction.foreign", "shop/other", TIMEOUT).unwrap();
    assert_holds(
        &foreign["data"],
        &json!({
            "uid": other.uid, "by": "kubelet", "reason": "Evicted", "message": message, "resource": "memory",
            "rank": 2, "wouldHaveEvicted": {"namespace": "shop", "name": "first", "uid": first.uid},
        }),
    );
    // A status that is written anew is no other eviction.
    scene.put("other", &other, Some("ReplicaSet"), &json!({"phase": "Running"}));
    evict("other", &other, "TerminationByKubelet");
    thread::sleep(Duration::from_secs(2));
    let events = daemon.events().unwrap();
    assert_eq!(events.iter().filter(|event| is(event, "eviction.foreign")).count(), 1);
    daemon.stop().unwrap();
}
