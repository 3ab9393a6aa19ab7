//! What Kubernetes clusters are given: the chart, the manifests that are made from it, and what both have from elsewhere.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use ring::digest::{Context, SHA256};
use serde_json::Value;

const CHART: &str = "packaging/helm/enforcer";
const MANIFESTS: &str = "packaging/kubernetes/enforcer.yaml";
const NAMESPACE: &str = "packaging/kubernetes/namespace.yaml";

/// The program; without it, it is looked for on the path.
const HELM: &str = "ENFORCER_HELM";

/// Says that there is no helm, and that its tests are to be passed over.
const WITHOUT_HELM: &str = "ENFORCER_WITHOUT_HELM";

/// Pages with a role for each feature, which are the contract.
const PAGES: [&str; 2] = ["docs/kubernetes.md", "docs/sinks.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents of a YAML file, without empty ones.
fn documents(text: &str) -> Vec<Value> {
    let documents = text.split("\n---").filter(|document| {
        document.lines().any(|line| !line.is_empty() && !line.starts_with('#') && line != "---")
    });
    documents
        .map(|document| serde_saphyr::from_str(document).unwrap_or_else(|e| panic!("{e}:\n{document}")))
        .collect()
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

/// The rules of each role, by its name.
fn roles(documents: &[Value]) -> BTreeMap<String, Value> {
    let role = |role: &&Value| (role["metadata"]["name"].as_str().unwrap().to_owned(), role["rules"].clone());
    of_kind(documents, "ClusterRole").iter().map(role).collect()
}

/// The roles that the documentation asks for.
fn documented_roles() -> BTreeMap<String, Value> {
    let pages = PAGES.map(read);
    let blocks = pages.iter().flat_map(|page| page.split("```yaml\n").skip(1));
    let blocks = blocks.map(|block| block.split("```").next().unwrap());
    let found: Vec<_> =
        blocks.filter(|block| block.contains("kind: ClusterRole\n")).flat_map(documents).collect();
    roles(&found)
}

/// The chart's templates that become manifests, in the order of their names.
fn templates() -> Vec<PathBuf> {
    let folder = root().join(CHART).join("templates");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|ext| ext == "yaml")).collect();
    files.sort();
    files
}

/// The digest that `packaging/kubernetes/digest.sh` prints.
fn digest() -> String {
    let chart = root().join(CHART);
    let mut files =
        vec![chart.join("Chart.yaml"), chart.join("values.yaml"), chart.join("templates/_helpers.tpl")];
    files.extend(templates());
    files.push(root().join(NAMESPACE));
    let mut context = Context::new(&SHA256);
    for file in files {
        context.update(&fs::read(file).unwrap());
    }
    context.finish().as_ref().iter().fold(String::new(), |so_far, byte| format!("{so_far}{byte:02x}"))
}

#[test]
fn the_manifests_are_made_from_the_chart_as_it_is() {
    let made = read(MANIFESTS);
    let from = made.lines().find_map(|line| line.strip_prefix("# chart-sha256: ")).unwrap();
    assert_eq!(from, digest(), "run packaging/kubernetes/generate.sh, which needs helm");
}

/// Runs helm, and returns what it prints, or why it refuses; `None` if whoever runs the tests says that there is none.
fn helm(arguments: &[&str]) -> Option<Result<String, String>> {
    if env::var_os(WITHOUT_HELM).is_some_and(|value| value == "1") {
        return None;
    }
    let program = env::var_os(HELM).unwrap_or_else(|| "helm".into());
    let output = Command::new(&program).args(arguments).current_dir(root()).output();
    let output = output.unwrap_or_else(|error| {
        panic!(
            "{}: {error}. `cargo xtask test` brings it; or {HELM} names it if it is not on the path; {WITHOUT_HELM}=1 \
             passes these tests over",
            program.display()
        )
    });
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    Some(if output.status.success() { Ok(out) } else { Err(format!("{out}{err}")) })
}

/// The digest alone cannot show that a file was edited by hand.
#[test]
fn helm_makes_the_manifests() {
    let arguments = ["--namespace", "enforcer-system", "--kube-version", "1.33.0", "--skip-tests"];
    let Some(made) = helm(&[&["template", "enforcer", CHART], &arguments[..]].concat()) else { return };
    let made = format!("{}{}", read(NAMESPACE), made.unwrap());
    // Versions of helm differ in the empty lines between documents.
    let lines = |text: &str| text.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    assert!(lines(&read(MANIFESTS)).ends_with(&lines(&made)), "run packaging/kubernetes/generate.sh");
}

/// What helm makes of the chart with these values, or why it refuses.
fn rendered(values: &[&str]) -> Option<Result<Vec<Value>, String>> {
    let mut arguments = vec!["template", "enforcer", CHART, "--kube-version", "1.33.0", "--skip-tests"];
    arguments.extend(values.iter().flat_map(|value| ["--set", value]));
    Some(helm(&arguments)?.map(|made| documents(&made)))
}

/// Whatever is turned on, `helm lint` has nothing to say of it, and the schema takes its values.
#[test]
fn helm_finds_nothing_to_correct_in_the_chart() {
    let metrics = [&METRICS[..], &["metrics.tokenSecret.name=token"]].concat();
    for values in [&[][..], &["cleanup.enabled=true"], &["canary.enabled=true"], &metrics] {
        let sets = values.iter().flat_map(|value| ["--set", value]);
        let arguments: Vec<&str> = ["lint", "--strict", "--quiet", CHART].into_iter().chain(sets).collect();
        let Some(said) = helm(&arguments) else { return };
        said.unwrap_or_else(|said| panic!("{values:?}: {said}"));
    }
    // The schema is asked: what it does not know is refused.
    let refused = helm(&["lint", "--strict", "--quiet", CHART, "--set", "cleanup.enabld=true"]).unwrap();
    assert!(refused.unwrap_err().contains("enabld"));
}

const METRICS: [&str; 2] = ["metrics.enabled=true", "metrics.tls.secretName=tls"];

#[test]
fn the_chart_serves_metrics_with_tls_to_those_alone_who_show_something() {
    for (more, why) in [
        (&[][..], "metrics.tokenSecret.name"),
        (&["metrics.tokenSecret.name=token", "hostNetwork=true"][..], "metrics.exposeOnHostNetwork"),
        (&["metrics.tokenSecret.name=token", "metrics.podMonitor.enabled=true"][..], "caSecret.name"),
    ] {
        let Some(made) = rendered(&[&METRICS[..], more].concat()) else { return };
        let refused = made.unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    let values = [
        "metrics.tokenSecret.name=token",
        "metrics.tls.clientCertificates=true",
        "metrics.podMonitor.enabled=true",
        "metrics.podMonitor.caSecret.name=ca",
        "metrics.podMonitor.clientSecret.name=client",
    ];
    let made = rendered(&[&METRICS[..], &values].concat()).unwrap().unwrap();
    let config = of_kind(&made, "ConfigMap")[0]["data"]["config.yaml"].as_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    fs::write(&file, config).unwrap();
    let mut enforcer = Command::new(env!("CARGO_BIN_EXE_enforcer"));
    let output = enforcer.args(["config", "effective", "--config"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{config}{}", String::from_utf8_lossy(&output.stderr));
    let config: Value = serde_saphyr::from_str(config).unwrap();
    let pod = &of_kind(&made, "DaemonSet")[0]["spec"]["template"]["spec"];
    let [container] = pod["containers"].as_array().unwrap().as_slice() else { panic!("no proxy") };
    // Each file of the configuration is in a mounted secret.
    let mounts = container["volumeMounts"].as_array().unwrap();
    let files = [
        &config["metricsTLS"]["certFile"],
        &config["metricsTLS"]["keyFile"],
        &config["metricsTLS"]["clientCAFile"],
        &config["metricsTokenFile"],
    ];
    for file in files {
        let file = file.as_str().unwrap();
        let holds = |mount: &&Value| {
            let folder = mount["mountPath"].as_str().unwrap();
            file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
        };
        let mount = mounts.iter().find(holds).unwrap();
        assert_eq!(mount["readOnly"], true, "{mount}");
        let volumes = pod["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        assert!(volume["secret"]["secretName"].is_string(), "{volume}");
    }
    let listen = config["metricsListen"].as_str().unwrap();
    let port = &container["ports"][0]["containerPort"];
    assert!(listen.ends_with(&format!(":{port}")), "{listen}");
    let endpoint = &of_kind(&made, "PodMonitor")[0]["spec"]["podMetricsEndpoints"][0];
    assert_eq!((&endpoint["scheme"], &endpoint["port"]), (&"https".into(), &container["ports"][0]["name"]));
    assert_eq!(endpoint["authorization"]["credentials"]["name"], "token");
    assert_eq!(endpoint["tlsConfig"]["cert"]["secret"]["name"], "client");
    let policy = &of_kind(&made, "NetworkPolicy")[0]["spec"]["ingress"];
    assert_eq!(&policy[0]["ports"][0]["port"], port);
    assert_eq!(policy.as_array().unwrap().len(), 1);
}

#[test]
fn with_reload_only_a_fixed_field_makes_another_pod() {
    let digest = |values: &[&str]| {
        let made = rendered(values)?.unwrap();
        let pod = &of_kind(&made, "DaemonSet")[0]["spec"]["template"];
        Some(pod["metadata"]["annotations"]["enforcer.dev/config-sha256"].as_str().unwrap().to_owned())
    };
    let (auto, other) = ("config.configReload=auto", "config.onDrift=report");
    let Some(plain) = digest(&[]) else { return };
    assert_ne!(digest(&[other]).unwrap(), plain);
    assert_eq!(digest(&[auto, other]), digest(&[auto]));
    assert_ne!(digest(&[auto, "config.mode=enforce"]), digest(&[auto]));
}

#[test]
fn pods_that_clean_up_run_no_daemon() {
    let Some(made) = rendered(&["cleanup.enabled=true", "config.mode=enforce"]) else { return };
    let pod = &of_kind(&made.unwrap(), "DaemonSet")[0]["spec"]["template"]["spec"]["containers"][0].clone();
    let command: Vec<_> = pod["command"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(command, ["/usr/bin/enforcer", "cleanup", "--state", "--stay"]);
    assert!(pod["readinessProbe"].is_null(), "no daemon answers");
    // Without it marks cannot even be looked for.
    let added = pod["securityContext"]["capabilities"]["add"].as_array().unwrap();
    assert!(added.iter().any(|capability| capability == "SYS_ADMIN"), "{added:?}");
}

#[test]
fn the_manifests_bind_only_what_the_default_mode_uses() {
    let manifests = documents(&read(MANIFESTS));
    let documented = documented_roles();
    let names: Vec<_> = documented.keys().map(String::as_str).collect();
    assert_eq!(names, ["enforcer-events", "enforcer-evictions", "enforcer-node", "enforcer-specs"]);
    let given = roles(&manifests);
    assert_eq!(
        given.keys().collect::<Vec<_>>(),
        ["enforcer-specs"],
        "dry-run evicts no pod and marks no node"
    );
    assert_eq!(given["enforcer-specs"], documented["enforcer-specs"]);
}

/// Each with the service accounts that it is bound to.
fn bound(documents: &[Value]) -> BTreeMap<String, Vec<String>> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let bindings = of_kind(documents, "ClusterRoleBinding");
    let accounts = |binding: &Value| -> Vec<String> {
        let subjects = binding["subjects"].as_array().unwrap();
        subjects.iter().map(|subject| text(&subject["name"])).collect()
    };
    bindings.into_iter().map(|binding| (text(&binding["roleRef"]["name"]), accounts(binding))).collect()
}

/// As the daemon does, and what it has set it removes in each mode.
#[test]
fn the_chart_binds_the_role_of_each_feature_that_the_configuration_uses() {
    let (enforce, no_action) = ("config.mode=enforce", "config.apiAction=none");
    for (values, expected) in [
        (&[enforce][..], &["evictions", "specs"][..]),
        (&[enforce, no_action], &["specs"]),
        (&[enforce, no_action, "config.barePods=killOnly"], &["specs"]),
        (&[enforce, no_action, "config.barePods=status"], &["evictions", "specs"]),
        (&[enforce, no_action, "config.daemonSetPods=evict"], &["evictions", "specs"]),
        (&["config.daemonSetPods=evict"], &["specs"]),
        (&[enforce, no_action, "config.nodeTaint=NoSchedule"], &["node", "specs"]),
        (&["config.nodeTaint=NoSchedule"], &["node", "specs"]),
        (&["config.mode=observe", "config.nodeCondition=true"], &["node", "specs"]),
        (&["config.nodeTaint=none"], &["specs"]),
        (&["rbac.nodeCleanup=true"], &["node", "specs"]),
        (&["rbac.nodeCleanup=true", "rbac.create=false"], &[]),
        (&["config.nodeTaint=NoSchedule", "cleanup.enabled=true"], &["node", "specs"]),
    ] {
        let Some(made) = rendered(values) else { return };
        let made = made.unwrap();
        let names: Vec<_> = expected.iter().map(|name| format!("enforcer-{name}")).collect();
        assert_eq!(roles(&made).into_keys().collect::<Vec<_>>(), names, "{values:?}");
        assert_eq!(bound(&made).into_keys().collect::<Vec<_>>(), names, "{values:?}");
    }
}

/// Where the canaries alone marked their nodes, the others may remove that.
#[test]
fn the_right_to_remove_what_is_on_the_node_can_be_kept() {
    let canary = ["canary.enabled=true", "canary.config.nodeTaint=NoSchedule"];
    let Some(made) = rendered(&canary) else { return };
    assert_eq!(bound(&made.unwrap())["enforcer-node"], ["enforcer-canary"]);
    let made = rendered(&["canary.enabled=true", "rbac.nodeCleanup=true"]).unwrap().unwrap();
    assert_eq!(bound(&made)["enforcer-node"], ["enforcer", "enforcer-canary"]);
    // The daemon shows a token, also if it needs one for nothing else.
    for (kept, shows_token) in [("rbac.nodeCleanup=true", true), ("rbac.nodeCleanup=false", false)] {
        let values = ["config.podSource=podsAPI", "mounts.podsAPI=true", kept];
        let made = rendered(&values).unwrap().unwrap();
        let pod = &of_kind(&made, "DaemonSet")[0]["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], shows_token, "{kept}");
    }
}

#[test]
fn each_role_of_the_chart_is_the_documented_one() {
    let template = read(&format!("{CHART}/templates/rbac.yaml"));
    for (name, rules) in documented_roles() {
        let feature = name.strip_prefix("enforcer-").unwrap();
        let branch = template.split(&format!("eq $feature \"{feature}\" }}}}\n")).nth(1).unwrap();
        let branch = branch.split("{{-").next().unwrap();
        let given: Value = serde_saphyr::from_str(branch).unwrap();
        assert_eq!(given["rules"], rules, "{name}");
    }
}

#[test]
fn the_daemon_takes_the_configuration_of_the_manifests() {
    let manifests = documents(&read(MANIFESTS));
    let config = of_kind(&manifests, "ConfigMap")[0]["data"]["config.yaml"].as_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    fs::write(&file, config).unwrap();
    let mut enforcer = Command::new(env!("CARGO_BIN_EXE_enforcer"));
    let output = enforcer.args(["config", "effective", "--config"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(config.contains("mode: dry-run"), "{config}");
}

/// The daemon has the same one configured: it sees only what is mounted.
#[test]
fn the_kubelets_root_directory_is_mounted_as_each_distribution_has_it() {
    for (values, root_dir) in [
        (&["runtime=containerd"][..], "/var/lib/kubelet"),
        (&["runtime=k3s"], "/var/lib/kubelet"),
        (&["runtime=k0s"], "/var/lib/k0s/kubelet"),
        (&["runtime=k0s", "config.kubeletRootDir=/k"], "/k"),
    ] {
        let mounts = ["mounts.podsAPI=true", "mounts.kubeletPki=true"];
        let Some(made) = rendered(&[values, &mounts].concat()) else { return };
        let made = made.unwrap();
        let [config] = of_kind(&made, "ConfigMap")[..] else { panic!("one ConfigMap") };
        let written = format!("kubeletRootDir: {root_dir}\n");
        assert!(config["data"]["config.yaml"].as_str().unwrap().contains(&written), "{values:?}: {config}");
        let [daemonset] = of_kind(&made, "DaemonSet")[..] else { panic!("one DaemonSet") };
        let pod = &daemonset["spec"]["template"]["spec"];
        for (name, folder) in [("pods-api", "pods-api"), ("kubelet-pki", "pki")] {
            let of =
                |list: &Value| list.as_array().unwrap().iter().find(|entry| entry["name"] == name).cloned();
            let expected = format!("{root_dir}/{folder}");
            assert_eq!(of(&pod["volumes"]).unwrap()["hostPath"]["path"], *expected, "{values:?}");
            assert_eq!(
                of(&pod["containers"][0]["volumeMounts"]).unwrap()["mountPath"],
                *expected,
                "{values:?}"
            );
        }
    }
}

#[test]
fn the_daemonset_is_as_safe_as_it_says() {
    let manifests = documents(&read(MANIFESTS));
    let [daemonset] = of_kind(&manifests, "DaemonSet")[..] else { panic!("one DaemonSet") };
    assert_eq!(daemonset["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"], 1);
    let pod = &daemonset["spec"]["template"]["spec"];
    assert_eq!(pod["nodeSelector"]["kubernetes.io/os"], "linux");
    assert_eq!((&pod["hostPID"], &pod["hostNetwork"]), (&Value::from(true), &Value::from(false)));
    // Critical by its priority: neither the kubelet nor enforcer evicts it.
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    let [container] = pod["containers"].as_array().unwrap().as_slice() else { panic!("one container") };
    assert_eq!(container["resources"]["requests"]["memory"], container["resources"]["limits"]["memory"]);
    assert!(container["ports"].is_null(), "nothing listens");
    let security = &container["securityContext"];
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert!(security["privileged"].is_null());
    assert_eq!(security["capabilities"]["drop"], serde_json::json!(["ALL"]));
    let added = security["capabilities"]["add"].as_array().unwrap();
    assert!(!added.iter().any(|capability| capability == "SYS_ADMIN"), "{added:?}");
    let volumes = pod["volumes"].as_array().unwrap();
    let hosts: Vec<_> = volumes.iter().filter_map(|volume| volume["hostPath"]["path"].as_str()).collect();
    assert!(
        hosts.iter().all(|path| !["/", "/run", "/proc", "/sys", "/var", "/etc", "/dev"].contains(path)),
        "{hosts:?}"
    );
    // Each is named in the documentation, with its reason.
    let page = read("docs/kubernetes-install.md");
    for path in hosts {
        assert!(page.contains(&format!("| `{path}`")), "{path}");
    }
    for capability in added {
        assert!(page.contains(&format!("| {} |", capability.as_str().unwrap())), "{capability}");
    }
}

#[test]
fn the_schema_knows_each_field_of_the_configuration() {
    let file = format!("{CHART}/values.schema.json");
    let mut schema: Value = serde_json::from_str(&read(&file)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_enforcer")).args(["config", "schema"]).output().unwrap();
    let mut fields: Value = serde_json::from_slice(&output.stdout).unwrap();
    let fields = fields["properties"].as_object_mut().unwrap();
    assert!(fields.remove("apiVersion").is_some() && fields.remove("kind").is_some());
    if env::var_os("ENFORCER_WRITE_SCHEMA").is_some() {
        schema["definitions"]["config"]["properties"] = Value::Object(fields.clone());
        fs::write(root().join(&file), serde_json::to_string_pretty(&schema).unwrap() + "\n").unwrap();
    }
    let known = schema["definitions"]["config"]["properties"].as_object().unwrap();
    for (name, field) in &*fields {
        assert_eq!(known.get(name), Some(field), "ENFORCER_WRITE_SCHEMA=1 writes it to values.schema.json");
    }
    assert_eq!(known.len(), fields.len());
    // And what values.yaml has at the top, the schema has too: it refuses what it does not know.
    let values: Value = serde_saphyr::from_str(&read(&format!("{CHART}/values.yaml"))).unwrap();
    for name in values.as_object().unwrap().keys() {
        assert!(!schema["properties"][name].is_null(), "{name}");
    }
}

#[test]
fn the_chart_has_the_version_and_the_files_of_the_repository() {
    let chart: Value = serde_saphyr::from_str(&read(&format!("{CHART}/Chart.yaml"))).unwrap();
    for key in ["version", "appVersion"] {
        assert_eq!(chart[key], env!("CARGO_PKG_VERSION"), "{key}");
    }
    for folder in ["packaging/prometheus", "packaging/grafana"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if [".rules.yaml", ".json"].iter().any(|end| name.ends_with(end)) {
                assert_eq!(
                    read(&format!("{folder}/{name}")),
                    read(&format!("{CHART}/files/{name}")),
                    "copy {name}"
                );
            }
        }
    }
}
