//! On a Kubernetes node: `cargo xtask vm test kube::` runs this module in a guest of its own, once the node is Ready.
//!
//! The daemon's user has the roles that the documentation names, and no other right.
mod actions;
mod budget;
mod explained;
mod identity;
mod manifests;
mod node;
mod outage;
mod owners;
mod replaced;
mod roles;
mod scores;
mod soft;
mod standstill;
mod views;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use enforcer_tests::{
    cgroup::ROOT,
    daemon::Daemon,
    kernel,
    kube::{self, Cluster, NAMESPACE, PATIENCE, Role, wait_for},
    process::Process,
    stream::{Stream, is},
};
use serde_json::{Deserializer, Value, json};

const MIB: u64 = 1 << 20;

/// How far the threshold is below what is available: more than the node's components take meanwhile.
pub(super) const MARGIN_BYTES: u64 = 400 * MIB;

/// A load that crosses the threshold, also when a component of the node has given its memory back since.
const HOG: [&str; 6] = ["ramp", "--no-catch-up", "--rate", "100Mi", "--to", "1500Mi"];

/// Where the guest has the daemon's configuration.
const CONFIGURATION: &str = "/etc/enforcer/config.yaml";

/// The slice in which the package's unit runs the daemon.
const SLICE: &str = include_str!("../../packaging/systemd/enforcer.slice");

/// What a test puts into the cluster. It is deleted when this is dropped.
pub(super) struct Scene {
    name: &'static str,
    pub(super) cluster: Cluster,
    /// The paths of the objects.
    created: Vec<String>,
    /// The manifests of static pods.
    manifests: Vec<PathBuf>,
    /// The labels `app` of the pods.
    apps: Vec<String>,
}

impl Scene {
    /// Gives the daemon's user these roles.
    pub(super) fn open(name: &'static str, roles: &[Role]) -> Self {
        let cluster = Cluster::connect(&folder(name)).unwrap();
        cluster.grant(roles).unwrap();
        Self { name, cluster, created: Vec::new(), manifests: Vec::new(), apps: Vec::new() }
    }

    /// Creates an object in a list of objects.
    pub(super) fn create(&mut self, list: &str, object: &Value) -> Value {
        let created = self.cluster.create(list, object).unwrap();
        self.created.push(format!("{list}/{}", kube::name(&created)));
        created
    }

    /// Creates pods, or a controller and its one pod, with the label `app`, and does not wait for them.
    pub(super) fn begin(&mut self, app: &str, object: &Value) {
        let list = match object["kind"].as_str().unwrap() {
            "Pod" => format!("/api/v1/namespaces/{NAMESPACE}/pods"),
            "Deployment" => format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments"),
            "DaemonSet" => format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"),
            "Job" => format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs"),
            kind => panic!("no place for a {kind}"),
        };
        self.apps.push(app.to_owned());
        self.create(&list, object);
    }

    /// The one pod with a label `app`, once it runs.
    pub(super) fn running(&self, app: &str) -> Value {
        self.cluster.wait_for_pods("it runs", app, 1, kube::runs).unwrap().remove(0)
    }

    /// Makes a static pod, and waits until it runs.
    fn static_pod(&mut self, app: &str, containers: &[Value]) -> Value {
        let path = Path::new(kube::MANIFESTS).join(format!("{app}.json"));
        fs::write(&path, kube::pod(app, containers).to_string()).unwrap();
        self.manifests.push(path);
        self.apps.push(app.to_owned());
        self.running(app)
    }

    /// Creates a budget that allows no disruption of the one pod with a label `app`, and waits until it does not.
    fn allow_no_disruption(&mut self, app: &str) {
        let version = if self.cluster.get("/apis/policy/v1").unwrap().is_some() { "v1" } else { "v1beta1" };
        let list = format!("/apis/policy/{version}/namespaces/{NAMESPACE}/poddisruptionbudgets");
        let budget = json!({
            "apiVersion": format!("policy/{version}"),
            "kind": "PodDisruptionBudget",
            "metadata": {"name": app},
            // More than there are: with one, the API server may evict a pod that is not ready any more (`pods/eviction` since 1.20).
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": app}}},
        });
        self.create(&list, &budget);
        wait_for("the budget", || {
            let budget = self.cluster.get(&format!("{list}/{app}"))?.unwrap_or_default();
            let status = &budget["status"];
            Ok((status["currentHealthy"] == 1 && status["disruptionsAllowed"] == 0).then_some(()))
        })
        .unwrap();
    }

    /// Starts a daemon that evicts below a threshold, and waits until it has the pods' specs.
    pub(super) fn evicting(&self, pods: &[&Value], settings: &str) -> (Daemon, Stream) {
        let available_bytes = kernel::meminfo_bytes("MemAvailable").unwrap();
        let daemon = self.start(&format!(
            "mode: enforce\nevictionPressureTransitionPeriod: 1ms\n\
             evictionHard: {{memory.available: {}}}\nsinks: {{kubernetes: {{enabled: true}}}}\n{settings}",
            available_bytes.saturating_sub(MARGIN_BYTES)
        ));
        for pod in pods {
            wait_for(&format!("the spec of {}", kube::name(pod)), || {
                Ok(shown(&daemon, pod).filter(|pod| !pod["spec"].is_null()))
            })
            .unwrap();
        }
        let stream = daemon.follow().unwrap();
        (daemon, stream)
    }

    /// Starts a daemon with the guest's own configuration and some settings. It keeps the state of an earlier one of this
    /// scene.
    pub(super) fn start(&self, settings: &str) -> Daemon {
        let own = fs::read_to_string(CONFIGURATION).unwrap();
        let is_setting = |line: &&str| !line.starts_with("apiVersion:") && !line.starts_with("kind:");
        let own: Vec<&str> = own.lines().filter(is_setting).collect();
        let settings = format!("ownership: auto\n{}\n{settings}", own.join("\n"));
        let slice = slice();
        let inside = ["sh", "-c", "echo 0 > $0/cgroup.procs && exec \"$@\"", slice.to_str().unwrap()];
        let mut daemon = Daemon::launch(&folder(self.name), &settings, &inside).unwrap();
        daemon.wait_until_ready().unwrap();
        daemon
    }

    /// How many evictions of pods the API server has carried out since its start.
    fn evictions(&self) -> u64 {
        let labels = [r#"resource="pods""#, r#"subresource="eviction""#, r#"verb="POST""#, r#"code="201""#];
        self.cluster.metric("apiserver_request_total{", &labels).unwrap()
    }

    /// Waits until the API server was asked to delete a pod.
    pub(super) fn wait_until_terminating(&self, pod: &Value) {
        wait_for(&format!("the deletion of {}", kube::name(pod)), || {
            let present = self.cluster.pod(kube::name(pod))?.filter(|of| kube::uid(of) == kube::uid(pod));
            Ok(present.as_ref().is_none_or(kube::is_terminating).then_some(()))
        })
        .unwrap();
    }

    /// Waits until a pod that is being deleted has no container that runs, and deletes its object, which the kubelet does up to
    /// a minute later. Returns how often its containers were restarted.
    pub(super) fn end(&self, pod: &Value) -> u64 {
        let mut restarts = 0;
        wait_for(&format!("the end of {}", kube::name(pod)), || {
            let present = self.cluster.pod(kube::name(pod))?.filter(|of| kube::uid(of) == kube::uid(pod));
            restarts = present.as_ref().map_or(0, kube::restarts).max(restarts);
            Ok(present.as_ref().is_none_or(kube::has_ended).then_some(()))
        })
        .unwrap();
        self.cluster.delete_now(kube::name(pod)).unwrap();
        restarts
    }

    /// Waits until a pod is gone, or is replaced by another one of that name, which takes up to a minute: see
    /// [`Cluster::clear`]. Returns how often its containers were restarted until then.
    pub(super) fn wait_for_end(&self, pod: &Value) -> u64 {
        let mut restarts = 0;
        wait_for(&format!("the end of {}", kube::name(pod)), || {
            let present = self.cluster.pod(kube::name(pod))?.filter(|of| kube::uid(of) == kube::uid(pod));
            restarts = present.as_ref().map_or(0, kube::restarts).max(restarts);
            Ok(present.is_none().then_some(()))
        })
        .unwrap();
        restarts
    }

    /// Waits until the kubelet has restarted a container of a pod that nobody deletes. Returns the pod.
    fn wait_for_restart(&self, pod: &Value) -> Value {
        let name = kube::name(pod);
        let restarted = wait_for(&format!("the restart of {name}"), || {
            let present = self.cluster.pod(name)?.unwrap_or_default();
            assert_eq!(kube::uid(&present), kube::uid(pod), "another pod");
            assert!(!kube::is_terminating(&present), "{present}");
            Ok((kube::restarts(&present) > kube::restarts(pod) && kube::runs(&present)).then_some(present))
        });
        restarted.unwrap()
    }

    /// The Events that the daemon has created about a pod, with that reason.
    fn reported(&self, pod: &Value, reason: &str) -> Vec<Value> {
        own(self.cluster.events_of(kube::uid(pod)).unwrap(), reason)
    }

    /// The same about the node.
    fn reported_of_node(&self, reason: &str) -> Vec<Value> {
        own(self.cluster.system_events().unwrap(), reason)
    }

    pub(super) fn wait_until_reported(&self, pod: &Value, reason: &str) -> Value {
        wait_for(&format!("the Event {reason}"), || Ok(self.reported(pod, reason).pop())).unwrap()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // A scene that fails is unwinding here: another panic would end the whole run.
        if let Err(error) = self.cluster.clear(&self.manifests, &self.created, &self.apps) {
            eprintln!("the scene {} leaves something behind: {error:#}", self.name);
        }
    }
}

/// Those that the daemon has created, with that reason.
fn own(mut events: Vec<Value>, reason: &str) -> Vec<Value> {
    events
        .retain(|event| event["reportingComponent"] == "enforcer.dev/enforcer" && event["reason"] == reason);
    events
}

/// All states of a pod, as `kubectl` sees them.
pub(super) struct Seen {
    file: PathBuf,
    _kubectl: Process,
}

impl Seen {
    /// Watches from now on.
    pub(super) fn watch(scene: &Scene, pod: &Value) -> Self {
        let file = folder(scene.name).join("states.json");
        let kubectl = Command::new("kubectl")
            .args(["get", "pod", "--namespace", NAMESPACE, "--watch", "--output=json", kube::name(pod)])
            .stdin(Stdio::null())
            .stdout(File::create(&file).unwrap())
            .spawn();
        let seen = Self { file, _kubectl: Process::new(kubectl.unwrap()) };
        wait_for("the pod's first state", || Ok((!seen.states().is_empty()).then_some(()))).unwrap();
        seen
    }

    pub(super) fn states(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.file).unwrap();
        // The last one may still be written.
        Deserializer::from_str(&text).into_iter().map_while(Result::ok).collect()
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new("/tmp/kube").join(name)
}

/// The cgroup of the daemon, made if it is not there: on a busy node it has its share of the processors, as where it is
/// installed.
fn slice() -> PathBuf {
    let weight = SLICE.lines().find_map(|line| line.strip_prefix("CPUWeight=")).unwrap();
    let slice = Path::new(ROOT).join("enforcer.slice");
    fs::create_dir_all(&slice).unwrap();
    fs::write(slice.join("cpu.weight"), weight).unwrap();
    slice
}

/// A container that holds a little memory, which `requests` may say.
pub(super) fn small(name: &str, resources: &Value) -> Value {
    kube::container(name, &["hold", "--size", "2Mi", "--touch-every", "1s"], resources)
}

/// Two small containers of a pod that requests less than it will use.
pub(super) fn two() -> [Value; 2] {
    [small("app", &json!({"requests": {"memory": "16Mi"}})), small("side", &json!({}))]
}

/// Has a pod's container `app` take more memory than there is.
pub(super) fn hog(pod: &Value) -> Process {
    kube::exec(pod, "app", &HOG).unwrap()
}

/// The pod's name in events.
pub(super) fn subject(pod: &Value) -> String {
    format!("{NAMESPACE}/{}", kube::name(pod))
}

/// What the daemon says of the node and its pods.
fn view(daemon: &Daemon) -> Value {
    let answer = daemon.get("/v1/pods").unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap()
}

/// The pods that the daemon knows.
fn pods(daemon: &Daemon) -> Vec<Value> {
    view(daemon)["pods"].as_array().unwrap().clone()
}

/// What the daemon knows of a pod.
pub(super) fn shown(daemon: &Daemon, pod: &Value) -> Option<Value> {
    pods(daemon).into_iter().find(|known| known["name"] == kube::name(pod))
}

/// The folder of the cgroup of a pod's container.
fn container_folder(daemon: &Daemon, pod: &Value, container: &str) -> PathBuf {
    let cgroup = wait_for(&format!("the cgroup of {container} in {}", kube::name(pod)), || {
        let known = shown(daemon, pod).unwrap_or_default();
        let mut containers = known["containers"].as_array().into_iter().flatten();
        let of = containers.find(|of| of["name"] == container);
        Ok(of.and_then(|of| of["cgroup"].as_str()).map(str::to_owned))
    });
    Path::new(ROOT).join(cgroup.unwrap().trim_start_matches('/'))
}

/// The processes of a pod's sandbox: those below the pod's cgroup that are in none of its containers.
fn sandbox(daemon: &Daemon, pod: &Value) -> String {
    let known = shown(daemon, pod).unwrap();
    let folder = Path::new(ROOT).join(known["cgroup"].as_str().unwrap().trim_start_matches('/'));
    let containers: Vec<&str> =
        ["app", "side"].iter().filter_map(|name| kube::container_id(pod, name)).collect();
    let below = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let others = below.filter(|path| !containers.iter().any(|id| path.to_string_lossy().contains(id)));
    let processes = others.filter_map(|path| fs::read_to_string(path.join("cgroup.procs")).ok());
    processes.filter(|processes| !processes.is_empty()).collect()
}

/// Waits for the event of a missing feature.
fn degraded(stream: &mut Stream, what: &str) -> Value {
    let is_it = |event: &Value| is(event, "degraded.entered") && event["data"]["what"] == what;
    stream.wait_for(&format!("degraded: {what}"), PATIENCE, is_it).unwrap()
}

/// The `what` of what was degraded so far, as far as it is about the API server.
fn of_api_server(stream: &Stream) -> Vec<&str> {
    let all = stream.of("degraded.entered").filter_map(|event| event["data"]["what"].as_str());
    all.filter(|what| ["apiServer", "sink"].contains(what)).collect()
}

/// Waits until a pod's eviction is over here and at the API server, and returns what came of the request. The stream may begin
/// with evictions by earlier daemons of the scene; this one has decided on no other pod.
pub(super) fn wait_for_eviction(stream: &mut Stream, pod: &Value) -> Value {
    let of_pod = subject(pod);
    stream.wait_for_pod("eviction.completed", &of_pod, PATIENCE).unwrap();
    let mut decided = stream.since("config.loaded").iter().filter(|event| is(event, "eviction.decided"));
    assert!(decided.all(|decided| decided["subject"] == *of_pod), "another pod than {of_pod}");
    stream.wait_for_pod("eviction.requested", &of_pod, PATIENCE).unwrap()
}
