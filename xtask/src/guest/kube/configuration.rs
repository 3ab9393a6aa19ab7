//! The units, configurations and objects of a node. What depends on the release is asked of it here.
use serde_json::json;

use crate::{
    guest::kube::{CgroupDriver, Made, image::PAUSE},
    setup::kube::Release,
};

/// The node's address, and the first of the services' addresses, which is the API server's.
pub(super) const NODE_ADDRESS: &str = "192.0.2.2";
pub(super) const CLUSTER_ADDRESS: &str = "10.96.0.1";

/// Where the components have their files, relative to the root like all paths here.
pub(super) const FOLDER: &str = "etc/kubernetes";

/// The administrator's kubeconfig.
pub(super) const ADMIN: &str = "etc/kubernetes/admin.conf";

/// The images that `node-up` imports.
pub(super) const IMAGES: &str = "etc/kubernetes/images.tar";

/// The kubelet's manifests.
pub(super) const STATIC_PODS: &str = "etc/kubernetes/manifests";

/// The group and version of roles.
const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// The controllers that tests of pods and nodes need: each takes processor time that an emulated node has not.
const CONTROLLERS: &str = "daemonset,deployment,disruption,garbagecollector,job,namespace,nodelifecycle,podgc,replicaset,\
                           root-ca-cert-publisher,serviceaccount,serviceaccount-token,statefulset";

/// The first release whose kubelet has no other runtimes than those with a socket.
const REMOTE_ALONE: u32 = 24;

/// The one release whose kubelet has the Pods API and leaves it off.
const PODS_API_OFF: u32 = 36;

/// The first release whose kubelet asks for the right to `nodes/pods`, and not for that to `nodes/proxy`.
const FINE_GRAINED: u32 = 33;

/// All of them.
pub(super) fn files(release: &Release, driver: CgroupDriver) -> Vec<Made> {
    let units = [
        unit("etcd", "", "notify", &etcd(), ""),
        unit("containerd", "", "notify", &["containerd".to_owned()], RUNTIME),
        unit("kube-apiserver", "etcd.service", "notify", &api_server(), ""),
        unit("kube-controller-manager", "kube-apiserver.service", "exec", &controller_manager(), ""),
        unit("kubelet", "containerd.service kube-apiserver.service", "exec", &kubelet(release), ""),
    ];
    let texts = [
        ("etc/containerd/config.toml", containerd(driver)),
        ("etc/cni/net.d/10-loopback.conflist", CNI.to_owned()),
        ("etc/resolv.conf", format!("nameserver {NODE_ADDRESS}\n")),
        ("etc/kubernetes/kubelet.yaml", kubelet_configuration(release, driver)),
        ("etc/kubernetes/clusterroles.json", role(release)),
        ("etc/kubernetes/clusterrolebindings.json", role_binding()),
        ("etc/enforcer/config.yaml", ENFORCER.to_owned()),
    ];
    let texts = texts.into_iter().map(|(path, text)| Made::text(path, text));
    let up = Made { path: "usr/local/bin/node-up".into(), mode: 0o755, content: node_up().into() };
    units.into_iter().chain(texts).chain([up]).collect()
}

/// The runtime says that there is no network without one, though all pods use the host's.
const CNI: &str = r#"{"cniVersion": "0.3.1", "name": "loopback", "plugins": [{"type": "loopback"}]}
"#;

/// What the daemon finds in its usual place: credentials for the kubelet's HTTPS server.
const ENFORCER: &str = "apiVersion: enforcer.dev/v1alpha1\n\
                        kind: EnforcerConfiguration\n\
                        kubeconfig: /etc/kubernetes/enforcer.conf\n";

/// As in Debian's unit: containers outlive the runtime, have cgroups of their own, and die before it.
const RUNTIME: &str = "Delegate=yes\nKillMode=process\nTasksMax=infinity\nOOMScoreAdjust=-999\n";

/// A unit whose program is on the PATH, and which logs to a file of its own: the guest has no journal. Starting takes long
/// where each instruction is emulated. A restart of one is none of those after it, as on a host.
fn unit(name: &str, after: &str, kind: &str, command: &[String], further: &str) -> Made {
    let text = format!(
        "[Unit]\nWants={after}\nAfter={after}\n\
         [Service]\nType={kind}\nExecStart=/usr/local/bin/{}\nTimeoutStartSec=600\nRestart=always\nRestartSec=1\n\
         LimitNOFILE=524288\nStandardOutput=append:/var/log/kube/{name}.log\nStandardError=inherit\n{further}",
        command.join(" ")
    );
    Made::text(format!("etc/systemd/system/{name}.service"), text)
}

fn words(program: &str, options: &[&str]) -> Vec<String> {
    let options = options.iter().map(|option| format!("--{option}"));
    std::iter::once(program.to_owned()).chain(options).collect()
}

fn etcd() -> Vec<String> {
    words(
        "etcd",
        &[
            "data-dir=/var/lib/etcd",
            "unsafe-no-fsync",
            "listen-client-urls=http://127.0.0.1:2379",
            "advertise-client-urls=http://127.0.0.1:2379",
        ],
    )
}

fn api_server() -> Vec<String> {
    let mut command = words(
        "kube-apiserver",
        &[
            "etcd-servers=http://127.0.0.1:2379",
            "secure-port=443",
            "service-cluster-ip-range=10.96.0.0/24",
            "authorization-mode=Node,RBAC",
            "enable-admission-plugins=NodeRestriction",
            "allow-privileged=true",
            // It makes twenty objects at the start, and shares out what a few clients never use up.
            "enable-priority-and-fairness=false",
            "client-ca-file=/etc/kubernetes/pki/ca.crt",
            "tls-cert-file=/etc/kubernetes/pki/kube-apiserver.crt",
            "tls-private-key-file=/etc/kubernetes/pki/kube-apiserver.key",
            "kubelet-client-certificate=/etc/kubernetes/pki/admin.crt",
            "kubelet-client-key=/etc/kubernetes/pki/admin.key",
            "service-account-issuer=https://kubernetes.default.svc",
            "service-account-key-file=/etc/kubernetes/pki/service-accounts.pub",
            "service-account-signing-key-file=/etc/kubernetes/pki/service-accounts.key",
        ],
    );
    command.push(format!("--advertise-address={NODE_ADDRESS}"));
    command
}

fn controller_manager() -> Vec<String> {
    let mut command = words(
        "kube-controller-manager",
        &[
            "kubeconfig=/etc/kubernetes/kube-controller-manager.conf",
            "leader-elect=false",
            "root-ca-file=/etc/kubernetes/pki/ca.crt",
            "service-account-private-key-file=/etc/kubernetes/pki/service-accounts.key",
        ],
    );
    command.push(format!("--controllers={CONTROLLERS}"));
    command
}

fn kubelet(release: &Release) -> Vec<String> {
    let mut command = words(
        "kubelet",
        &[
            "config=/etc/kubernetes/kubelet.yaml",
            "kubeconfig=/etc/kubernetes/kubelet.conf",
            "container-runtime-endpoint=unix:///run/containerd/containerd.sock",
        ],
    );
    command.push(format!("--node-ip={NODE_ADDRESS}"));
    if release.minor < REMOTE_ALONE {
        command.push("--container-runtime=remote".to_owned());
    }
    command
}

fn kubelet_configuration(release: &Release, driver: CgroupDriver) -> String {
    let gates = if release.minor == PODS_API_OFF { "featureGates: {PodsAPI: true}\n" } else { "" };
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\n\
         kind: KubeletConfiguration\n\
         authentication:\n\
         \x20 anonymous: {{enabled: false}}\n\
         \x20 webhook: {{enabled: true}}\n\
         \x20 x509: {{clientCAFile: /etc/kubernetes/pki/ca.crt}}\n\
         authorization: {{mode: Webhook}}\n\
         cgroupDriver: {}\n\
         failSwapOn: false\n\
         staticPodPath: /{STATIC_PODS}\n{gates}",
        driver.word()
    )
}

/// The guest's root is the kernel's first one, which cannot be pivoted away from and is nothing to lay an overlay on.
fn containerd(driver: CgroupDriver) -> String {
    let plugin = r#"plugins."io.containerd.grpc.v1.cri""#;
    format!(
        "version = 2\n\
         [{plugin}]\n\
         sandbox_image = \"{PAUSE}\"\n\
         [{plugin}.containerd]\n\
         snapshotter = \"native\"\n\
         [{plugin}.containerd.runtimes.runc]\n\
         runtime_type = \"io.containerd.runc.v2\"\n\
         [{plugin}.containerd.runtimes.runc.options]\n\
         NoPivotRoot = true\n\
         SystemdCgroup = {}\n",
        driver == CgroupDriver::Systemd
    )
}

/// What the daemon's user may: read the node's pods from the kubelet.
fn role(release: &Release) -> String {
    let resource = if release.minor < FINE_GRAINED { "nodes/proxy" } else { "nodes/pods" };
    let rule = json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]});
    let (version, metadata) = (RBAC, json!({"name": "enforcer"}));
    json!({"apiVersion": version, "kind": "ClusterRole", "metadata": metadata, "rules": [rule]}).to_string()
}

fn role_binding() -> String {
    let group = "rbac.authorization.k8s.io";
    json!({
        "apiVersion": RBAC,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "enforcer"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "enforcer"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "enforcer"}],
    })
    .to_string()
}

/// Starts the units, and waits until the node is Ready and pods can be made. The kubelet and the runtime want a file system
/// that has a device and a size, which the root has not.
fn node_up() -> String {
    format!(
        r#"#!/bin/sh
# Brings the Kubernetes node up.
fail() {{
    echo "node-up: $1; the ends of the logs in /var/log/kube:" >&2
    tail -n 12 /var/log/kube/*.log >&2
    exit 1
}}
mkdir -p /var/log/kube
for folder in /var/lib/containerd /var/lib/kubelet; do
    mkdir -p $folder && mount -t tmpfs -o mode=0755 tmpfs $folder || fail "cannot mount $folder"
done
ip address add {NODE_ADDRESS}/24 dev lo && ip address add {CLUSTER_ADDRESS}/32 dev lo &&
    ip route add default dev lo || fail "cannot set the node's addresses"
systemctl start --no-block kubelet || fail "cannot start the kubelet"
systemctl start containerd || fail "containerd does not start"
ctr --namespace k8s.io images import --snapshotter native /{IMAGES} > /var/log/kube/import.log 2>&1 ||
    fail "cannot import the images"
systemctl start kube-apiserver || fail "the API server does not start"
systemctl start kubelet || fail "the kubelet does not start"
end=$(($(date +%s) + 600))
# Waits for an answer of the API server. Each request is raw: kubectl would ask for the whole API before another one.
wait_for() {{
    what="$1"
    shift
    until "$@" > /var/log/kube/wait.log 2>&1; do
        [ "$(date +%s)" -lt $end ] || fail "$what after 600 s"
        sleep 1
    done
}}
created() {{
    kubectl get --raw "/apis/{RBAC}/$1/enforcer" || kubectl create --raw "/apis/{RBAC}/$1" -f "/{FOLDER}/$1.json"
}}
ready() {{
    kubectl get --raw /api/v1/nodes/guest | grep '"type":"Ready","status":"True"'
}}
# The controller manager ends if it waits longer than 10 s for that.
wait_for "the API server is not healthy" kubectl get --raw /healthz
systemctl start kube-controller-manager || fail "the controller manager does not start"
wait_for "the daemon's user has no role" created clusterroles
wait_for "the daemon's user has no role" created clusterrolebindings
wait_for "the node is not Ready" ready
wait_for "there is no service account for pods" kubectl get --raw /api/v1/namespaces/default/serviceaccounts/default
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(minor: u32) -> Release {
        Release { version: format!("v1.{minor}.0"), minor }
    }

    fn text(minor: u32, path: &str) -> String {
        text_with(minor, CgroupDriver::Systemd, path)
    }

    fn text_with(minor: u32, driver: CgroupDriver, path: &str) -> String {
        let made = files(&release(minor), driver).into_iter().find(|made| made.path == path).unwrap();
        String::from_utf8(made.content).unwrap()
    }

    #[test]
    fn the_kubelet_gets_what_its_release_knows() {
        let unit = "etc/systemd/system/kubelet.service";
        assert!(text(20, unit).contains("--container-runtime=remote"));
        assert!(!text(24, unit).contains("--container-runtime="));
        let configuration = "etc/kubernetes/kubelet.yaml";
        assert!(text(36, configuration).ends_with("featureGates: {PodsAPI: true}\n"));
        assert!(!text(35, configuration).contains("featureGates"));
        assert!(!text(37, configuration).contains("featureGates"));
    }

    #[test]
    fn kubelet_and_runtime_have_one_driver() {
        for (driver, word, is_systemd) in
            [(CgroupDriver::Systemd, "systemd", "true"), (CgroupDriver::Cgroupfs, "cgroupfs", "false")]
        {
            let kubelet = text_with(20, driver, "etc/kubernetes/kubelet.yaml");
            assert!(kubelet.contains(&format!("\ncgroupDriver: {word}\n")), "{kubelet}");
            let containerd = text_with(20, driver, "etc/containerd/config.toml");
            assert!(containerd.ends_with(&format!("\nSystemdCgroup = {is_systemd}\n")), "{containerd}");
        }
    }

    #[test]
    fn the_daemon_may_read_pods_and_no_more() {
        let rules = |minor| text(minor, "etc/kubernetes/clusterroles.json");
        assert!(rules(32).contains(r#""resources":["nodes/proxy"],"verbs":["get"]"#), "{}", rules(32));
        assert!(rules(33).contains(r#""resources":["nodes/pods"],"verbs":["get"]"#), "{}", rules(33));
    }
}
