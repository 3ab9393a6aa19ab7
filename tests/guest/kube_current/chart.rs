//! The chart: installed, tested, changed and uninstalled by helm, with the image of a release and the daemon of these tests.
//!
//! The node has neither a scheduler nor a network for pods. The test binds the pods that ask for one, and gives their network
//! an address and nothing more.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use enforcer_tests::{
    kernel,
    kube::{self, Cluster, NODE, wait_for},
    process,
};
use serde_json::{Value, json};

use crate::kube::{MARGIN_BYTES, Scene, hog, two};

const NAMESPACE: &str = "enforcer-system";
const RELEASE: &str = "enforcer";
const CHART: &str = "/packages/enforcer-chart.tgz";
const IMAGE: &str = "/packages/enforcer-oci.tar";
const REPOSITORY: &str = "ghcr.io/enforcer-dev/enforcer";
const VALUES: &str = "/tmp/values.json";
const PROGRAM: &str = "/usr/bin/enforcer";

/// Everything that the chart makes has it.
const OWN: &str = "app.kubernetes.io/instance=enforcer";

/// What may be left of the release in the API. Its own records are secrets.
const KINDS: &str = "all,configmaps,secrets,serviceaccounts,networkpolicies,clusterroles,clusterrolebindings";

/// What a pod's network says of itself: an address that nobody has.
const NETWORK: &str = r#"#!/bin/sh
case $CNI_COMMAND in
ADD) echo '{"cniVersion": "0.4.0", "interfaces": [{"name": "'"$CNI_IFNAME"'", "sandbox": "'"$CNI_NETNS"'"}],
            "ips": [{"version": "4", "interface": 0, "address": "192.0.2.99/24"}]}' ;;
VERSION) echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.3.1", "0.4.0"]}' ;;
esac
"#;

/// Its programs: containerd asks the second one for the loopback device.
const NETWORK_PROGRAMS: [&str; 2] = ["/opt/cni/bin/nowhere", "/opt/cni/bin/loopback"];
const NETWORKS: &str = "/etc/cni/net.d";

fn said(program: &str, arguments: &[&str]) -> String {
    process::said(Command::new(program).args(arguments)).unwrap()
}

fn kubectl(arguments: &[&str]) -> String {
    said("kubectl", &[&["--namespace", NAMESPACE], arguments].concat())
}

/// Prints how long it takes.
fn helm(arguments: &[&str]) -> String {
    let begin = Instant::now();
    let out = said("helm", &[&["--namespace", NAMESPACE], arguments].concat());
    println!("helm {}: {:.1} s", arguments[0], begin.elapsed().as_secs_f64());
    out
}

/// Binds each pod that names no node to this one.
struct Scheduler {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Scheduler {
    fn start() -> Self {
        let cluster = Cluster::connect(Path::new("/tmp/kube/scheduler")).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let is_over = ended.clone();
        let bind = move || {
            let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
            while !is_over.load(Ordering::Relaxed) {
                // What fails is tried again: the pod may be gone by now.
                for pod in cluster.list(&format!("{pods}?fieldSelector=spec.nodeName%3D")).unwrap_or_default()
                {
                    let target = json!({"apiVersion": "v1", "kind": "Node", "name": NODE});
                    let name = kube::name(&pod);
                    let binding = json!({
                        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target
                    });
                    if let Err(error) = cluster.create(&format!("{pods}/{name}/binding"), &binding) {
                        println!("{name} is not bound: {error:#}");
                    }
                }
                thread::sleep(Duration::from_millis(500));
            }
        };
        Self { ended, thread: Some(thread::spawn(bind)) }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// The release and what it needs.
struct Release {
    scene: Scene,
    _scheduler: Scheduler,
    values: Value,
}

impl Release {
    /// Makes the node fit, and the namespace.
    fn prepare(name: &'static str) -> Self {
        // The chart's service account has the rights here.
        let mut scene = Scene::open(name, &[]);
        for program in NETWORK_PROGRAMS {
            let path = Path::new(program);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, NETWORK).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::create_dir_all(NETWORKS).unwrap();
        let network = json!({"cniVersion": "0.4.0", "name": "nowhere", "plugins": [{"type": "nowhere"}]});
        fs::write(format!("{NETWORKS}/10-nowhere.conflist"), network.to_string()).unwrap();

        let ctr =
            |arguments: &[&str]| said("ctr", &[&["--namespace", "k8s.io", "images"], arguments].concat());
        ctr(&["import", "--snapshotter", "native", IMAGE]);
        let images = ctr(&["list", "--quiet"]);
        let tag = images.lines().find_map(|image| image.strip_prefix(REPOSITORY)?.strip_prefix(':'));
        let tag = tag.unwrap_or_else(|| panic!("no image {REPOSITORY} in {images}"));

        // An earlier test may have left it behind, terminating.
        let namespaces = "/api/v1/namespaces";
        wait_for("the end of the namespace", || {
            Ok(scene.cluster.get(&format!("{namespaces}/{NAMESPACE}"))?.is_none().then_some(()))
        })
        .unwrap();
        let labels = json!({"pod-security.kubernetes.io/enforce": "privileged"});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}});
        scene.create(namespaces, &namespace);
        // A kubelet from OpenShift's sources mounts it beside each token.
        let authorities = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "openshift-service-ca.crt"},
            "data": {"service-ca.crt": ""},
        });
        scene.create(&format!("/api/v1/namespaces/{NAMESPACE}/configmaps"), &authorities);
        let values = json!({
            "image": {"repository": REPOSITORY, "tag": tag, "pullPolicy": "Never"},
            // By which it reaches the API server: pods have no other network here.
            "hostNetwork": true,
            "config": {
                "mode": "enforce",
                "configReload": "auto",
                "evictionPressureTransitionPeriod": "1ms",
                "evictionHard": {"memory.available": "100Mi"},
                "sinks": {"kubernetes": {"enabled": true}},
            },
        });
        Self { scene, _scheduler: Scheduler::start(), values }
    }

    /// `helm install` or `helm upgrade` with the values, until the pods are ready.
    fn apply(&self, verb: &str) {
        fs::write(VALUES, self.values.to_string()).unwrap();
        let arguments =
            ["--namespace", NAMESPACE, verb, RELEASE, CHART, "--values", VALUES, "--wait", "--timeout", "5m"];
        let begin = Instant::now();
        let output = Command::new("helm").args(arguments).stdin(Stdio::null()).output().unwrap();
        if !output.status.success() {
            println!("{}", kubectl(&["describe", "pods"]));
            panic!("helm {verb}: {}", String::from_utf8_lossy(&output.stderr));
        }
        println!("helm {verb}: {:.1} s", begin.elapsed().as_secs_f64());
    }

    /// The daemon's pod, once it is the only one and `holds` says so.
    fn pod(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let pods =
            format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io%2Fname%3Denforcer");
        wait_for(what, || {
            let mut pods = self.scene.cluster.list(&pods)?;
            pods.retain(|pod| pod["metadata"]["labels"]["app.kubernetes.io/component"] != "test");
            Ok((pods.len() == 1).then(|| pods.remove(0)).filter(&holds))
        })
        .unwrap()
    }
}

/// What a verb answers in the daemon's container, whatever its status.
fn ask(pod: &Value, arguments: &[&str]) -> Option<Value> {
    let mut kubectl = Command::new("kubectl");
    kubectl.args([
        "--namespace",
        NAMESPACE,
        "exec",
        kube::name(pod),
        "--container",
        "enforcer",
        "--",
        PROGRAM,
    ]);
    let output =
        kubectl.args(["--live", "-o", "json"]).args(arguments).stdin(Stdio::null()).output().unwrap();
    serde_json::from_slice(&output.stdout).ok()
}

/// The state of each facility.
fn facilities(doctor: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let all = doctor["facilities"].as_array().unwrap();
    all.iter().map(|one| (text(&one["name"]), text(&one["state"]))).collect()
}

/// Uninstalls it, after which the API server has nothing of it.
fn uninstall() {
    helm(&["uninstall", RELEASE, "--wait", "--timeout", "10m"]);
    wait_for("the end of all that helm made", || {
        let left = said("kubectl", &["get", KINDS, "--all-namespaces", "--selector", OWN, "--output=name"]);
        let records = kubectl(&["get", "secrets", "--selector", "owner=helm", "--output=name"]);
        Ok((left.is_empty() && records.is_empty()).then_some(()))
    })
    .unwrap();
}

#[guest_test(kube_current)]
fn helm_installs_it_and_it_evicts_is_changed_live_and_leaves_nothing() {
    let mut release = Release::prepare("chart");
    print!("{}{}", said("kubectl", &["version"]), said("helm", &["version", "--short"]));

    let manifests = "/tmp/chart.yaml";
    fs::write(manifests, helm(&["template", RELEASE, CHART, "--skip-tests"])).unwrap();
    let accepted = kubectl(&["apply", "--dry-run=server", "--filename", manifests]);
    print!("{accepted}");
    assert!(accepted.contains("daemonset.apps/enforcer created (server dry run)"), "{accepted}");

    release.apply("install");
    let pod = release.pod("the daemon's pod", kube::runs);
    let doctor = ask(&pod, &["doctor"]).unwrap();
    println!("{}", doctor["verdict"]);
    assert!(doctor["verdict"].as_str().unwrap().starts_with("READY"), "{doctor:#}");
    helm(&["test", RELEASE, "--timeout", "10m"]);

    // Another threshold, in the same daemon.
    let other_bytes = kernel::meminfo_bytes("MemAvailable").unwrap().saturating_sub(MARGIN_BYTES);
    release.values["config"]["evictionHard"]["memory.available"] = json!(other_bytes.to_string());
    let begin = Instant::now();
    release.apply("upgrade");
    wait_for("the other threshold", || {
        let headroom = ask(&pod, &["headroom"]).unwrap_or_default();
        let signals = headroom["signals"].as_array().into_iter().flatten();
        let mut thresholds = signals.filter_map(|signal| signal["thresholds"].as_array()).flatten();
        Ok(thresholds.any(|one| one["thresholdBytes"] == other_bytes).then_some(()))
    })
    .unwrap();
    println!("in force {:.1} s after the upgrade's start", begin.elapsed().as_secs_f64());
    let after = release.pod("the daemon's pod", kube::runs);
    assert_eq!((kube::uid(&after), kube::restarts(&after)), (kube::uid(&pod), 0), "the daemon began anew");

    // Evicted, and replaced.
    release.scene.begin("hog", &kube::deployment("hog", &two()));
    let victim = release.scene.running("hog");
    wait_for("the spec of the pod", || {
        let known = ask(&pod, &["pods"]).unwrap_or_default();
        let mut pods = known["items"].as_array().into_iter().flatten();
        Ok(pods.find(|one| one["name"] == kube::name(&victim) && !one["spec"].is_null()).cloned())
    })
    .unwrap();
    let begin = Instant::now();
    let mut load = hog(&victim);
    assert!(!load.wait_for_end(kube::PATIENCE).unwrap().success());
    println!("dead {:.1} s after the load's start", begin.elapsed().as_secs_f64());
    release.scene.wait_until_terminating(&victim);
    release.scene.wait_until_reported(&victim, "Evicted");
    let seen = said("kubectl", &["get", "events", "--field-selector", "reason=Evicted"]);
    assert!(seen.contains(kube::name(&victim)), "{seen}");
    wait_for("another pod in its place", || {
        let pods = release.scene.cluster.pods_of("hog")?;
        Ok(pods.iter().any(|pod| kube::uid(pod) != kube::uid(&victim) && kube::runs(pod)).then_some(()))
    })
    .unwrap();

    // What the node keeps is removed by pods that do nothing else.
    assert!(Path::new("/var/lib/enforcer").read_dir().unwrap().count() > 0, "it keeps nothing");
    release.values["cleanup"] = json!({"enabled": true});
    release.apply("upgrade");
    said("kubectl", &["--namespace", NAMESPACE, "rollout", "status", "daemonset/enforcer", "--timeout=10m"]);
    uninstall();
    for folder in ["/var/lib/enforcer", "/run/enforcer", "/sys/fs/bpf/enforcer"] {
        let left: Vec<_> =
            fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// What the log says of a capability for which `doctor` has no row.
const LOGGED: [(&str, &str); 3] = [
    ("SYS_NICE", "nice value"),
    ("SETUID", "cannot give up its user (CAP_SETUID and CAP_SETGID are needed)"),
    ("SETGID", "cannot give up its groups (CAP_SETUID and CAP_SETGID are needed)"),
];

/// The chart's capabilities, each with the rows of `doctor` that are not what they were without it, as documented.
fn documented_costs() -> Vec<(&'static str, BTreeSet<&'static str>)> {
    let page = include_str!("../../../docs/kubernetes-install.md");
    let (_, table) = page.split_once("| capability | for | without it").unwrap();
    let mut costs: Vec<(&str, BTreeSet<&str>)> = Vec::new();
    for line in table.lines().skip(2).take_while(|line| line.starts_with("| ")) {
        let [capability, _, without] = line.trim_matches(['|', ' ']).split(" | ").collect::<Vec<_>>()[..]
        else {
            panic!("not three columns: {line}")
        };
        let lost = match (without, costs.last()) {
            ("the same", Some((_, before))) => before.clone(),
            _ => without.split('`').skip(1).step_by(2).collect(),
        };
        costs.push((capability, lost));
    }
    costs
}

#[guest_test(kube_current)]
fn each_capability_withheld_costs_its_feature_and_no_other() {
    let release = Release::prepare("withheld");
    release.apply("install");
    let pod = release.pod("the daemon's pod", kube::runs);
    let whole = facilities(&ask(&pod, &["doctor"]).unwrap());
    let daemon_set = format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/enforcer");
    let is_granted =
        |pod: &Value| pod["spec"]["containers"][0]["securityContext"]["capabilities"]["add"].clone();
    let granted: Vec<String> = serde_json::from_value(is_granted(&pod)).unwrap();
    let costs = documented_costs();
    let named: Vec<&str> = costs.iter().map(|(name, _)| *name).collect();
    assert_eq!(granted, named);
    let mut wrong = Vec::new();
    for (withheld, documented) in costs {
        let left: Vec<&str> = named.iter().copied().filter(|name| *name != withheld).collect();
        let change = json!({"spec": {"template": {"spec": {"containers": [
            {"name": "enforcer", "securityContext": {"capabilities": {"add": left}}}
        ]}}}});
        release.scene.cluster.patch(&daemon_set, &change).unwrap();
        let pod = release.pod(&format!("a pod without {withheld}"), |pod| {
            kube::runs(pod) && is_granted(pod) == json!(left)
        });
        let doctor = wait_for("its answer", || Ok(ask(&pod, &["doctor"]))).unwrap();
        let found = facilities(&doctor);
        let changed = found.iter().filter(|(name, state)| whole[*name] != **state);
        let lost: BTreeSet<&str> = changed.map(|(name, _)| name.as_str()).collect();
        println!("without {withheld}: {lost:?}");
        if lost != documented {
            wrong.push(format!("{withheld}: {lost:?} and not {documented:?}"));
        }
        if let Some((_, words)) = LOGGED.iter().find(|(name, _)| *name == withheld) {
            let logged = || kubectl(&["logs", kube::name(&pod), "--container", "enforcer"]).contains(words);
            wait_for(&format!("{words} in the log"), || Ok(logged().then_some(()))).unwrap();
        }
    }
    uninstall();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
