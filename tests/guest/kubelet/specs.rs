//! Specs of a kubelet's pods: from which source, and what they decide.

use std::{fs, path::PathBuf, thread, time::Duration};

use enforcer::{
    model::QosClass,
    policy::CgroupDriver::{Cgroupfs, Systemd},
};
use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    expect::assert_holds,
    kernel,
    load::Load,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use serde_json::{Value, json};

use super::{
    MIB, SANDBOX,
    node::{self, Node, Placed},
};

#[path = "../../../enforcer/src/specs/fake.rs"]
#[expect(dead_code, reason = "the client's own tests use more of it")]
pub(super) mod fake;

use fake::{FakeKubelet, FakePod};

const TOKEN: &str = "secret";

/// A runtime of its own for a fake, which serves until the scene ends.
pub(super) fn serve<F>(future: impl FnOnce() -> F + Send + 'static) -> thread::JoinHandle<()>
where
    F: Future<Output = std::io::Result<()>>,
{
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { future().await }).unwrap();
    })
}

pub(super) fn spec(placed: &Placed, name: &str, class: &str, priority: i32, request: &str) -> FakePod {
    FakePod {
        uid: placed.uid.clone(),
        namespace: String::from("shop"),
        name: name.to_owned(),
        class: class.to_owned(),
        priority,
        phase: String::from("Running"),
        is_terminating: false,
        // A tenant's wish: another's cgroup, and never to be evicted.
        annotations: [
            ("enforcer.dev/cgroup", "/system.slice"),
            ("enforcer.dev/eviction-priority", "2000000000"),
            ("kubernetes.io/config.source", "file"),
            ("kubernetes.io/config.mirror", "0123"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
        labels: [(String::from("app"), name.to_owned())].into(),
        controller: String::new(),
        is_static: false,
        containers: vec![(String::from("app"), request.to_owned(), String::new())],
    }
}

/// Serves the kubelet's Pods API. Returns its socket.
pub(super) fn serve_pods_api(node: &Node, kubelet: &FakeKubelet) -> PathBuf {
    let socket = node.pods_api();
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let kubelet = kubelet.clone();
    serve(move || kubelet.serve_pods_api(tokio::net::UnixListener::from_std(listener).unwrap()));
    socket
}

/// Evicts a pod at this threshold.
pub(super) fn evicting_below(threshold_bytes: u64) -> String {
    format!(
        "mode: enforce\nevictionPressureTransitionPeriod: 1ms\nevictionHard: {{memory.available: {threshold_bytes}}}"
    )
}

fn hold(placed: &Placed, size: &str) -> Load {
    hold_in(placed.cgroup(1), size)
}

pub(super) fn hold_in(cgroup: &Cgroup, size: &str) -> Load {
    let mut load = Load::start(cgroup, &["hold", "--huge", "--size", size]).unwrap();
    load.wait_for("ready").unwrap();
    load
}

pub(super) fn pod_of(daemon: &Daemon, name: &str) -> Value {
    node::pods(daemon).into_iter().find(|pod| pod["name"] == name).unwrap_or_default()
}

/// The one that exceeds its request is evicted, not the one that uses more, nor the one of lower priority; also by a
/// daemon that starts while no source answers.
#[guest_test(daemon)]
fn requests_and_priorities_decide_also_while_every_source_is_away() {
    let available_bytes = kernel::meminfo_bytes("MemAvailable").unwrap();
    let threshold_bytes = available_bytes.saturating_sub(900 * MIB);
    let mut node = Node::new("specified", Systemd);
    node.serve();
    let pods = [
        ("within", "Burstable", 0, "600Mi", QosClass::Burstable),
        ("lowest", "Burstable", -10, "200Mi", QosClass::Burstable),
        ("critical", "BestEffort", 2_000_000_000, "", QosClass::BestEffort),
        ("static", "Burstable", 0, "16Mi", QosClass::Burstable),
        ("first", "Burstable", 1_000, "16Mi", QosClass::Burstable),
        ("second", "Burstable", 2_000, "16Mi", QosClass::Burstable),
    ];
    let kubelet = FakeKubelet::new();
    let placed = pods.map(|(name, class, priority, request, of)| {
        let placed = node.pod(of, "shop", name, &["app"]);
        // A manifest may have a uid like any other pod's.
        let is_static = name == "static";
        kubelet.put(FakePod { is_static, ..spec(&placed, name, class, priority, request) });
        placed
    });
    let [within, lowest, critical, own, first, second] = &placed;
    let mut spared =
        [hold(within, "250Mi"), hold(lowest, "100Mi"), hold(critical, "100Mi"), hold(own, "100Mi")];
    let sandbox = hold_in(first.cgroup(SANDBOX), "1Mi");

    let socket = serve_pods_api(&node, &kubelet);
    let mut daemon = node.start(&evicting_below(threshold_bytes));
    let mut stream = daemon.follow().unwrap();
    wait_until("a spec", || !pod_of(&daemon, "second")["spec"].is_null());
    assert_holds(
        &pod_of(&daemon, "within"),
        &json!({
            "requestBytes": 600 * MIB, "priority": 0, "critical": false,
            "cgroup": within.path(), "spec": {"source": "podsAPI", "provenance": "live"},
        }),
    );
    assert_eq!(pod_of(&daemon, "critical")["critical"], true);
    let fill = |placed: &Placed| {
        Load::start(
            placed.cgroup(1),
            &["ramp", "--huge", "--no-catch-up", "--rate", "100Mi", "--to", "600Mi"],
        )
        .unwrap()
    };
    let mut filling = fill(first);
    let decided = stream.wait_for("a decision", TIMEOUT, |event| is(event, "eviction.decided")).unwrap();
    assert_eq!(decided["subject"], "shop/first", "{decided}");
    stream.wait_for_pod("eviction.completed", "shop/first", TIMEOUT).unwrap();
    assert!(!filling.wait().unwrap().success());

    // The kubelet and the runtime cannot be reached any more: the next daemon knows what this one knew.
    for file in ["specs.json", "names.json"] {
        wait_until("what is known on the disk", || daemon.folder().join("state").join(file).exists());
    }
    fs::remove_file(&socket).unwrap();
    node.end_runtime();
    daemon.succeed().unwrap();
    let mut stream = daemon.follow().unwrap();
    for source in ["specs", "runtime"] {
        let is_down = |event: &Value| is(event, "source.down") && event["data"]["source"] == source;
        stream.wait_for("no source", TIMEOUT, is_down).unwrap();
    }
    assert_holds(
        &pod_of(&daemon, "second"),
        &json!({"requestBytes": 16 * MIB, "priority": 2_000, "spec": {"source": "podsAPI", "provenance": "disk"}}),
    );
    let mut filling = fill(second);
    stream.wait_for_pod("eviction.decided", "shop/second", TIMEOUT).unwrap();
    stream.wait_for_pod("eviction.completed", "shop/second", TIMEOUT).unwrap();
    assert!(!filling.wait().unwrap().success());
    thread::sleep(Duration::from_millis(500));
    for (load, name) in
        spared.iter_mut().chain([&mut { sandbox }]).zip(["within", "lowest", "critical", "static", "sandbox"])
    {
        assert!(load.lives().unwrap(), "{name} died");
    }
    assert_eq!(stream.of("eviction.decided").count(), 2);
    daemon.stop().unwrap();
}

/// The daemon is killed soon after the processes are dead, before or after its events of that: the next one finds
/// the containers dead, and reports what is missing once.
#[guest_test(daemon)]
fn containers_that_a_daemon_killed_right_before_its_own_end_are_dead_for_the_next() {
    let threshold_bytes = kernel::meminfo_bytes("MemAvailable").unwrap().saturating_sub(400 * MIB);
    let mut node = Node::new("crashed", Systemd);
    node.serve();
    let hog = node.pod(QosClass::Burstable, "shop", "hog", &["app", "side"]);
    let kubelet = FakeKubelet::new();
    let mut containers = spec(&hog, "hog", "Burstable", 0, "16Mi");
    containers.containers.push((String::from("side"), String::from("8Mi"), String::new()));
    kubelet.put(containers);
    serve_pods_api(&node, &kubelet);
    let mut daemon = node.start(&evicting_below(threshold_bytes));
    wait_until("the spec", || !pod_of(&daemon, "hog")["spec"].is_null());
    let sandbox = hold_in(hog.cgroup(SANDBOX), "1Mi");
    let mut side = hold_in(hog.cgroup(2), "1Mi");
    let mut app =
        Load::start(hog.cgroup(1), &["ramp", "--huge", "--no-catch-up", "--rate", "100Mi", "--to", "500Mi"])
            .unwrap();
    assert!(!app.wait().unwrap().success());
    daemon.succeed().unwrap();
    assert!(!side.wait().unwrap().success());

    let mut stream = daemon.follow().unwrap();
    let completed = stream.wait_for_pod("eviction.completed", "shop/hog", TIMEOUT).unwrap();
    let events = daemon.events().unwrap();
    let of = |kind: &str| {
        let id = &completed["data"]["evictionId"];
        events.iter().filter(|event| is(event, kind) && event["data"]["evictionId"] == *id).count()
    };
    let was_reported = of("eviction.signalled");
    println!("the signal was reported {was_reported} times before the crash");
    let counts = ["eviction.decided", "eviction.completed", "eviction.failed"].map(of);
    assert!(counts == [1, 1, 0] && was_reported <= 1, "{counts:?}, {was_reported}: {events:?}");
    assert_eq!(completed["data"]["uid"], hog.uid.as_str());
    // On a slow machine it may even have seen the memory come back.
    let is_reconstructed = completed["data"]["reconstructed"] == true;
    println!("the completion was reconstructed: {is_reconstructed}");
    assert_eq!(completed["data"]["reason"] == "interrupted", is_reconstructed, "{completed}");
    assert!({ sandbox }.lives().unwrap());
    daemon.stop().unwrap();
}

/// By the kubelet's HTTPS server, with a token that is wrong at first.
/// A container that has ended has no cgroup.
#[guest_test(daemon)]
fn a_pod_is_active_also_without_one_of_its_containers() {
    for driver in [Cgroupfs, Systemd] {
        let mut node = Node::new("ended", driver);
        node.serve();
        let web = node.pod(QosClass::Burstable, "shop", "web", &["app"]);
        let kubelet = FakeKubelet::new();
        let mut both = spec(&web, "web", "Burstable", 0, "16Mi");
        both.containers.push((String::from("side"), String::from("8Mi"), String::new()));
        kubelet.put(both);
        serve_pods_api(&node, &kubelet);
        let daemon = node.start("");
        wait_until("the spec", || !pod_of(&daemon, "web")["spec"].is_null());
        let known =
            json!([{"name": "app", "cgroupId": web.container_id(1)}, {"name": "side", "cgroupId": null}]);
        assert_holds(&pod_of(&daemon, "web"), &json!({"state": "active", "containers": known}));
        daemon.stop().unwrap();
    }
}

#[guest_test(daemon)]
fn the_kubelets_server_gives_specs_once_the_token_is_right() {
    let mut node = Node::new("https", Systemd);
    node.serve();
    let web = node.pod(QosClass::Burstable, "shop", "web", &["app"]);
    let kubelet = FakeKubelet::new();
    kubelet.put(spec(&web, "web", "Burstable", 7, "64Mi"));
    let pki = node.kubelet_root().join("pki");
    fs::create_dir_all(&pki).unwrap();
    let signed = rcgen::generate_simple_self_signed([String::from("node-1")]).unwrap();
    let (certificate, key) = (signed.cert.pem(), signed.signing_key.serialize_pem());
    fs::write(pki.join("kubelet.crt"), &certificate).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    let serving = kubelet.clone();
    serve(move || {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        serving.serve_https(listener, (certificate, key), TOKEN)
    });
    let kubeconfig = kubeconfig(&node, "wrong");
    let daemon = node.start(&format!("kubeconfig: {}\nkubeletPort: {port}", kubeconfig.display()));
    let mut stream = daemon.follow().unwrap();
    let is_of_specs = |event: &Value, kind: &str| is(event, kind) && event["data"]["source"] == "specs";
    let down = stream.wait_for("no source", TIMEOUT, |event| is_of_specs(event, "source.down")).unwrap();
    let message = down["data"]["message"].as_str().unwrap();
    assert!(message.contains("podsAPI: ") && message.contains("kubelet: "), "{message}");
    assert!(message.contains("status 401") && !message.contains("wrong"), "{message}");
    assert_eq!(pod_of(&daemon, "web")["requestBytes"], 0);

    fs::write(kubeconfig.with_file_name("token"), TOKEN).unwrap();
    let up = stream.wait_for("the kubelet", TIMEOUT, |event| is_of_specs(event, "source.up")).unwrap();
    assert_eq!(up["data"]["message"], "kubelet: 1 pods");
    let shows = |request_bytes: u64| pod_of(&daemon, "web")["requestBytes"] == request_bytes;
    wait_until("the request", || shows(64 * MIB));
    assert_holds(&pod_of(&daemon, "web"), &json!({"priority": 7, "spec": {"source": "kubelet"}}));
    // A resize, with another pod beside it: a new cgroup has the list read at once.
    kubelet.put(spec(&web, "web", "Burstable", 7, "128Mi"));
    let late = node.pod(QosClass::Burstable, "shop", "late", &["app"]);
    kubelet.put(spec(&late, "late", "Burstable", 1, "32Mi"));
    wait_until("the resize", || shows(128 * MIB));
    wait_until("the late pod's spec", || pod_of(&daemon, "late")["requestBytes"] == 32 * MIB);
    // It is gone from the kubelet, and its cgroup stands.
    kubelet.remove(&late.uid);
    let before = kubelet.lists();
    wait_until("another list", || kubelet.lists() > before + 1);
    assert_eq!(pod_of(&daemon, "late")["requestBytes"], 32 * MIB);
    daemon.stop().unwrap();
}

/// A kubeconfig whose user has its token in a file beside it.
fn kubeconfig(node: &Node, token: &str) -> PathBuf {
    let folder = node.kubelet_root();
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("token"), token).unwrap();
    let path = folder.join("kubeconfig");
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
                clusters: [{name: k, cluster: {server: 'https://127.0.0.1:6443'}}]\n\
                users: [{name: u, user: {tokenFile: token}}]\n";
    fs::write(&path, text).unwrap();
    path
}
