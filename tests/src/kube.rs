//! A Kubernetes node as a guest test uses it: the cluster as its administrator has it, the roles that the documentation
//! names, and objects to create.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};

use crate::process::Process;

/// The node's name.
pub const NODE: &str = "guest";

/// The namespace of the tests' pods.
pub const NAMESPACE: &str = "default";

/// The namespace of the daemon's Events about the node.
pub const SYSTEM_NAMESPACE: &str = "kube-system";

/// Where the kubelet finds static pods.
pub const MANIFESTS: &str = "/etc/kubernetes/manifests";

/// The kubelet's configuration.
pub const KUBELET: &str = "/etc/kubernetes/kubelet.yaml";

/// Where the kubelet says that it works.
const HEALTH: &str = "127.0.0.1:10248";

/// How long an emulated node may take for anything.
pub const PATIENCE: Duration = Duration::from_mins(10);

/// How long one answer may take.
const ANSWER: Duration = Duration::from_mins(1);

/// The pages that say what the daemon's user has to be allowed.
const PAGES: [&str; 2] = [include_str!("../../docs/kubernetes.md"), include_str!("../../docs/sinks.md")];

/// The group and version of roles.
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// The user of the daemon's certificate.
const USER: &str = "enforcer";

/// A role of the documentation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Role {
    /// Its name there.
    pub name: &'static str,
    /// All of it.
    pub yaml: &'static str,
}

/// Every role that the documentation names, in the order of its pages.
#[must_use]
pub fn documented_roles() -> Vec<Role> {
    let blocks = PAGES.into_iter().flat_map(|page| page.split("```yaml\n").skip(1));
    let blocks = blocks.filter_map(|block| Some(block.split_once("```")?.0));
    let roles = blocks.filter(|block| block.lines().any(|line| line == "kind: ClusterRole"));
    let named = roles.filter_map(|yaml| {
        let name = yaml.lines().find_map(|line| line.strip_prefix("metadata: {name: ")?.strip_suffix('}'))?;
        Some(Role { name, yaml })
    });
    named.collect()
}

/// The cluster, for its administrator: `kubectl proxy`, which asks the API server.
#[derive(Debug)]
pub struct Cluster {
    socket: PathBuf,
    _proxy: Process,
}

impl Cluster {
    /// Connects to it, through a socket in a folder, which is created.
    pub fn connect(folder: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let socket = folder.join("kubectl.sock");
        drop(fs::remove_file(&socket));
        let proxy = Command::new("kubectl")
            .arg("proxy")
            .arg(format!("--unix-socket={}", socket.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot run kubectl")?;
        let cluster = Self { socket, _proxy: Process::new(proxy) };
        wait_for("kubectl proxy", || {
            let found = UnixStream::connect(&cluster.socket);
            Ok(found.is_ok().then_some(()))
        })?;
        Ok(cluster)
    }

    /// An object, or a list of them; `None` if there is none.
    pub fn get(&self, path: &str) -> anyhow::Result<Option<Value>> {
        let (status, body) = self.ask("GET", path, "", "")?;
        match status {
            404 => Ok(None),
            200 => Ok(Some(serde_json::from_str(&body).with_context(|| format!("{path}: {body:?}"))?)),
            _ => bail!("GET {path}: status {status}: {body}"),
        }
    }

    /// The objects of a list.
    pub fn list(&self, path: &str) -> anyhow::Result<Vec<Value>> {
        let list = self.get(path)?.with_context(|| format!("there is no {path}"))?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Creates an object.
    pub fn create(&self, path: &str, object: &Value) -> anyhow::Result<Value> {
        self.post(path, "application/json", &object.to_string())
    }

    fn post(&self, path: &str, content: &str, body: &str) -> anyhow::Result<Value> {
        let (status, answer) = self.ask("POST", path, content, body)?;
        ensure!((200..300).contains(&status), "POST {path}: status {status}: {answer}; of {body}");
        serde_json::from_str(&answer).with_context(|| format!("{path}: {answer:?}"))
    }

    /// Changes an object, or a part of it, as a strategic merge does.
    pub fn patch(&self, path: &str, change: &Value) -> anyhow::Result<()> {
        let content = "application/strategic-merge-patch+json";
        let (status, answer) = self.ask("PATCH", path, content, &change.to_string())?;
        ensure!((200..300).contains(&status), "PATCH {path}: status {status}: {answer}; of {change}");
        Ok(())
    }

    /// Deletes an object and what it owns, and does not wait for their end. Fine if it is gone already.
    pub fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.delete_as(path, &json!({"propagationPolicy": "Background"}))
    }

    fn delete_as(&self, path: &str, options: &Value) -> anyhow::Result<()> {
        let (status, answer) = self.ask("DELETE", path, "application/json", &options.to_string())?;
        ensure!((200..300).contains(&status) || status == 404, "DELETE {path}: status {status}: {answer}");
        Ok(())
    }

    /// A number of the API server's metrics: the sum of all lines that begin with `metric` and contain each label.
    pub fn metric(&self, metric: &str, labels: &[&str]) -> anyhow::Result<u64> {
        let (status, page) = self.ask("GET", "/metrics", "", "")?;
        ensure!(status == 200, "GET /metrics: status {status}: {page}");
        let fits = |line: &&str| line.starts_with(metric) && labels.iter().all(|label| line.contains(label));
        let value = |line: &str| {
            let number = line.rsplit(' ').next().and_then(|number| number.parse::<u64>().ok());
            number.with_context(|| format!("the metric {line:?}"))
        };
        page.lines().filter(fits).map(value).sum()
    }

    /// A pod of the tests' namespace.
    pub fn pod(&self, name: &str) -> anyhow::Result<Option<Value>> {
        self.get(&format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}"))
    }

    /// The tests' pods with a label `app`.
    pub fn pods_of(&self, app: &str) -> anyhow::Result<Vec<Value>> {
        self.list(&format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app%3D{app}"))
    }

    /// Waits until each of so many pods with a label `app` is as `holds` says, and returns them.
    pub fn wait_for_pods(
        &self,
        what: &str,
        app: &str,
        count: usize,
        holds: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Vec<Value>> {
        let found = wait_for(&format!("{count} pods of {app}: {what}"), || {
            let pods = self.pods_of(app)?;
            Ok((pods.len() == count && pods.iter().all(&holds)).then_some(pods))
        });
        found.with_context(|| format!("there are {:?}", self.pods_of(app)))
    }

    /// Kubernetes' Events about a pod.
    pub fn events_of(&self, uid: &str) -> anyhow::Result<Vec<Value>> {
        self.list(&format!("/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=involvedObject.uid%3D{uid}"))
    }

    /// Kubernetes' Events in the namespace of those about the node.
    pub fn system_events(&self) -> anyhow::Result<Vec<Value>> {
        self.list(&format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/events"))
    }

    /// Deletes manifests of static pods and objects, the last one first, and then the pods with the labels `app`, until none
    /// is left.
    ///
    /// The kubelet itself removes a pod's object only once it has collected its sandbox, which it does each minute. Here it
    /// is not waited for.
    pub fn clear(&self, manifests: &[PathBuf], objects: &[String], apps: &[String]) -> anyhow::Result<()> {
        for manifest in manifests {
            fs::remove_file(manifest).with_context(|| format!("cannot remove {}", manifest.display()))?;
        }
        for path in objects.iter().rev() {
            self.delete(path)?;
        }
        for app in apps {
            wait_for(&format!("the end of {app}"), || {
                // A set that is left replaces what is deleted.
                let sets = self.list(&format!(
                    "/apis/apps/v1/namespaces/{NAMESPACE}/replicasets?labelSelector=app%3D{app}"
                ))?;
                let pods = self.pods_of(app)?;
                for pod in &pods {
                    self.delete_now(name(pod))?;
                }
                Ok((sets.is_empty() && pods.is_empty()).then_some(()))
            })?;
        }
        Ok(())
    }

    /// Deletes a pod's object at once. The kubelet ends its containers when it learns of it.
    pub fn delete_now(&self, pod: &str) -> anyhow::Result<()> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}");
        self.delete_as(&path, &json!({"gracePeriodSeconds": 0}))
    }

    /// Gives the daemon's user these roles, and waits until it has them and no other right.
    ///
    /// A guest's user `enforcer` has a role of its own, which is taken away.
    pub fn grant(&self, roles: &[Role]) -> anyhow::Result<()> {
        let names = documented_roles().into_iter().map(|role| role.name).chain([USER]);
        for name in names {
            for kind in ["clusterrolebindings", "clusterroles"] {
                self.delete(&format!("{RBAC}/{kind}/{name}"))?;
            }
        }
        for Role { name, yaml } in roles {
            self.post(&format!("{RBAC}/clusterroles"), "application/yaml", yaml)?;
            let group = "rbac.authorization.k8s.io";
            let binding = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": group, "kind": "User", "name": USER}],
            });
            self.create(&format!("{RBAC}/clusterrolebindings"), &binding)?;
        }
        let has = |name: &str| roles.iter().any(|role| role.name == name);
        for (role, group, resource, verb) in [
            ("enforcer-specs", "", "pods", "list"),
            ("enforcer-evictions", "", "pods", "delete"),
            ("enforcer-events", "events.k8s.io", "events", "create"),
            // Of the guest's own role.
            (USER, "", "nodes/proxy", "get"),
        ] {
            wait_for(&format!("{USER} may {verb} {resource}: {}", has(role)), || {
                Ok((self.may(group, resource, verb)? == has(role)).then_some(()))
            })?;
        }
        Ok(())
    }

    /// Whether the daemon's user may do this in the tests' namespace.
    fn may(&self, group: &str, resource: &str, verb: &str) -> anyhow::Result<bool> {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let attributes = json!({
            "namespace": NAMESPACE, "group": group, "resource": resource, "subresource": subresource, "verb": verb,
        });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": USER, "resourceAttributes": attributes},
        });
        let answer = self.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review)?;
        Ok(answer["status"]["allowed"] == true)
    }

    /// One request, and the status and body of its answer.
    fn ask(&self, method: &str, path: &str, content: &str, body: &str) -> anyhow::Result<(u16, String)> {
        let place = || format!("{method} {path}");
        let mut socket = UnixStream::connect(&self.socket).with_context(place)?;
        socket.set_read_timeout(Some(ANSWER))?;
        let head = if body.is_empty() {
            String::new()
        } else {
            format!("Content-Type: {content}\r\nContent-Length: {}\r\n", body.len())
        };
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nAccept: application/json\r\n{head}\r\n{body}"
        );
        socket.write_all(request.as_bytes()).with_context(place)?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).with_context(place)?;
        let answer = String::from_utf8(answer).with_context(place)?;
        let (head, body) = answer.split_once("\r\n\r\n").with_context(place)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok((status.with_context(|| format!("{method} {path}: {head:?}"))?, body.to_owned()))
    }
}

/// Waits until there is something.
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = found()? {
            return Ok(found);
        }
        ensure!(start.elapsed() < PATIENCE, "{what} does not come within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Starts the kubelet anew with a configuration, and waits until it works.
pub fn restart_kubelet(configuration: &str) -> anyhow::Result<()> {
    fs::write(KUBELET, configuration).with_context(|| format!("cannot write {KUBELET}"))?;
    let status = Command::new("systemctl").args(["restart", "kubelet.service"]).status()?;
    ensure!(status.success(), "systemctl restart kubelet: {status}");
    wait_for("the kubelet", || Ok(health().is_ok_and(|answer| answer.contains(" 200 ")).then_some(())))
        .with_context(|| format!("with {configuration}"))
}

/// The whole answer.
fn health() -> io::Result<String> {
    let mut socket = TcpStream::connect(HEALTH)?;
    socket.set_read_timeout(Some(ANSWER))?;
    socket.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A container that runs `workload` with these arguments.
#[must_use]
pub fn container(name: &str, arguments: &[&str], resources: &Value) -> Value {
    json!({
        "name": name,
        "image": "localhost/workload:latest",
        "imagePullPolicy": "Never",
        "args": arguments,
        "resources": resources,
    })
}

/// The spec of a pod with these containers: on this node, which has neither a scheduler nor a network for pods.
#[must_use]
pub fn spec(containers: &[Value]) -> Value {
    json!({
        "nodeName": NODE,
        "hostNetwork": true,
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 1,
        "containers": containers,
    })
}

/// The template of a controller's pods, with the label `app`.
fn template(app: &str, containers: &[Value]) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": spec(containers)})
}

/// A pod without a controller, whose name is its label `app`.
#[must_use]
pub fn pod(app: &str, containers: &[Value]) -> Value {
    let metadata = json!({"name": app, "namespace": NAMESPACE, "labels": {"app": app}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec(containers)})
}

/// A Deployment with one pod.
#[must_use]
pub fn deployment(app: &str, containers: &[Value]) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": app},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": app}},
            "template": template(app, containers),
        },
    })
}

/// A `DaemonSet`.
#[must_use]
pub fn daemon_set(app: &str, containers: &[Value]) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": app},
        "spec": {"selector": {"matchLabels": {"app": app}}, "template": template(app, containers)},
    })
}

/// A Job with one pod, which nothing replaces if it fails, unless it was disrupted.
#[must_use]
pub fn job(app: &str, containers: &[Value]) -> Value {
    let mut template = template(app, containers);
    template["spec"]["restartPolicy"] = json!("Never");
    let disrupted = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]});
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": app},
        "spec": {"backoffLimit": 0, "podFailurePolicy": {"rules": [disrupted]}, "template": template},
    })
}

/// Whether the pod is not being deleted and each of its containers runs.
#[must_use]
pub fn runs(pod: &Value) -> bool {
    let wanted = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
    let running = |status: &&Value| !status["state"]["running"].is_null();
    !is_terminating(pod) && statuses(pod).filter(running).count() == wanted
}

/// Whether the API server was asked to delete the pod.
#[must_use]
pub fn is_terminating(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null()
}

/// A pod's name.
#[must_use]
pub fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or_default()
}

/// A pod's uid.
#[must_use]
pub fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap_or_default()
}

/// How often the kubelet has restarted containers of a pod.
#[must_use]
pub fn restarts(pod: &Value) -> u64 {
    statuses(pod).filter_map(|status| status["restartCount"].as_u64()).sum()
}

/// Whether none of the pod's containers runs or is to run, after one has.
#[must_use]
pub fn has_ended(pod: &Value) -> bool {
    statuses(pod).next().is_some() && statuses(pod).all(|status| !status["state"]["terminated"].is_null())
}

fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    pod["status"]["containerStatuses"].as_array().into_iter().flatten()
}

/// The id that the runtime has given a pod's container, of whatever kind.
#[must_use]
pub fn container_id<'a>(pod: &'a Value, container: &str) -> Option<&'a str> {
    let kinds = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let statuses = kinds.into_iter().filter_map(|kind| pod["status"][kind].as_array()).flatten();
    let mut of_name = statuses.filter(|status| status["name"] == container);
    of_name.find_map(|status| status["containerID"].as_str()?.strip_prefix("containerd://"))
}

/// Runs `workload` with these arguments in a pod's container that runs, as `kubectl exec` does, but without the API server.
pub fn exec(pod: &Value, container: &str, arguments: &[&str]) -> anyhow::Result<Process> {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let id = container_id(pod, container).with_context(|| format!("no container {container} in {pod}"))?;
    let exec_id = format!("load-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let child = Command::new("ctr")
        .args(["--namespace", "k8s.io", "tasks", "exec", "--exec-id", &exec_id, id, "/bin/workload"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run ctr")?;
    Ok(Process::new(child))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_names_a_role_for_each_feature() {
        let roles = documented_roles();
        let names: Vec<_> = roles.iter().map(|role| role.name).collect();
        assert_eq!(names, ["enforcer-specs", "enforcer-evictions", "enforcer-node", "enforcer-events"]);
        for Role { name, yaml } in roles {
            assert!(yaml.starts_with("apiVersion: ") && yaml.contains("\nrules:\n"), "{name}: {yaml}");
        }
    }

    #[test]
    fn a_pod_runs_if_each_container_does_and_it_is_not_deleted() {
        let status = |state: &str| json!({"state": {state: {}}, "restartCount": 2});
        let mut pod = pod("a", &[container("x", &[], &json!({})), container("y", &[], &json!({}))]);
        pod["status"] = json!({"containerStatuses": [status("running"), status("waiting")]});
        assert!(!runs(&pod) && !has_ended(&pod));
        pod["status"] = json!({"containerStatuses": [status("running"), status("terminated")]});
        assert!(!has_ended(&pod));
        pod["status"] = json!({"containerStatuses": [status("terminated"), status("terminated")]});
        assert!(has_ended(&pod));
        pod["status"] = json!({"containerStatuses": [status("running"), status("running")]});
        assert!(runs(&pod));
        assert_eq!(restarts(&pod), 4);
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(!runs(&pod));
    }
}
