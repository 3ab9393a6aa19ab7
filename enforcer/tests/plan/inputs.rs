//! What `enforcer plan` and `enforcer rank` take of what people have, on the real binary.

use std::fs;

use serde_json::{Value, json};

use super::{Answer, MACHINE, enforcer};

fn plan(more: &[&str], manifests: &str) -> Answer {
    let folder = tempfile::tempdir().unwrap();
    let args = [&["plan", "-f", "-", "--capacity", MACHINE][..], more].concat();
    enforcer(folder.path(), &args, manifests)
}

/// Names and whether they are admitted.
fn admitted(answer: &Answer) -> Vec<(String, bool)> {
    let document: Value = serde_json::from_str(&answer.out).unwrap();
    let of = |pod: &Value| {
        (pod["name"].as_str().unwrap().to_owned(), pod["admission"]["admitted"].as_bool().unwrap())
    };
    document["pods"].as_array().unwrap().iter().map(of).collect()
}

fn stored(name: &str, node: &str, created: &str, memory: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": format!("uid-{name}"), "creationTimestamp": created},
        "spec": {"nodeName": node, "priority": 0, "priorityClassName": "of-the-cluster",
            "containers": [{"name": "app", "resources": {"requests": {"memory": memory}}}]},
        "status": {"phase": "Running", "qosClass": "Burstable"}})
}

const TYPO: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: app\n    resources:\n      request: {memory: 1Gi}\n";
const SAID: &str = "stdin:8: spec.containers[0].resources.request: is ignored, as Kubernetes 1.37 has no such field: did you mean requests?";

/// `kubectl get pods -A -o json | enforcer plan -f - --node one`: the older pods hold what they have.
#[test]
fn the_list_of_a_cluster_is_planned_for_one_node_in_the_order_of_creation() {
    let mut ended = stored("ended", "one", "2026-01-01T00:00:00Z", "7Gi");
    ended["status"]["phase"] = json!("Failed");
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [
        stored("young", "one", "2026-03-01T00:00:00Z", "4Gi"),
        stored("old", "one", "2026-01-01T00:00:00Z", "4Gi"),
        stored("other", "two", "2025-01-01T00:00:00Z", "7Gi"),
        ended,
    ]});
    let answer = plan(&["--node", "one", "-o", "json"], &list.to_string());
    assert_eq!(answer.status, Some(0), "{}", answer.err);
    assert_eq!(admitted(&answer), [("old".to_owned(), true), ("young".to_owned(), false)]);
    assert_eq!(
        answer.err,
        "left out: 1 pod in phase Succeeded or Failed\nleft out: 1 pod of other nodes than one\n"
    );
    let all = plan(&["-o", "json"], &list.to_string());
    assert_eq!(admitted(&all).len(), 3);
    assert!(all.err.contains("these pods are of several nodes (one, two)"), "{}", all.err);
}

#[test]
fn a_mistyped_field_is_a_warning_and_with_strict_refused() {
    let answer = plan(&[], TYPO);
    assert_eq!((answer.status, answer.err.as_str()), (Some(0), format!("warning: {SAID}\n").as_str()));
    let answer = plan(&["-o", "json"], TYPO);
    assert_eq!((answer.status, answer.err.as_str()), (Some(0), ""));
    let document: Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(document["warnings"], json!([{"source": "stdin", "message": SAID}]));
    for format in ["table", "json"] {
        let answer = plan(&["--strict", "-o", format], TYPO);
        assert_eq!((answer.status, answer.out.as_str()), (Some(65), ""), "{format}: {}", answer.err);
        assert!(
            answer.err.contains(SAID) && answer.err.contains("1 thing is wrong"),
            "{format}: {}",
            answer.err
        );
        let right = plan(&["--strict", "-o", format], &TYPO.replace("request:", "requests:"));
        assert_eq!((right.status, right.err.as_str()), (Some(0), ""), "{format}");
    }
    let folder = tempfile::tempdir().unwrap();
    let stats = folder.path().join("stats.json");
    fs::write(&stats, "{\"pods\": {}}").unwrap();
    let args = ["rank", "-f", "-", "--strict", "--stats", stats.to_str().unwrap()];
    assert_eq!(enforcer(folder.path(), &args, TYPO).status, Some(65));
}

#[test]
fn a_chart_is_planned_with_its_priority_classes() {
    let chart = "---\n# Source: shop/templates/class.yaml\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata:\n  name: high\nvalue: 1000\n\
                 ---\n# Source: shop/templates/service.yaml\napiVersion: v1\nkind: Service\nmetadata:\n  name: shop\n\
                 ---\n# Source: shop/templates/web.yaml\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  replicas: 3\n  template:\n    spec:\n      priorityClassName: high\n      containers:\n      - name: app\n        resources: {limits: {cpu: 1, memory: 3Gi}}\n";
    let answer = plan(&["-o", "json"], chart);
    assert_eq!(answer.status, Some(0), "{}", answer.err);
    let expected = [("web-0", true), ("web-1", true), ("web-2", false)];
    assert_eq!(admitted(&answer), expected.map(|(name, is_admitted)| (name.to_owned(), is_admitted)));
    let document: Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(
        (&document["pods"][0]["priority"], &document["pods"][0]["qosClass"]),
        (&json!(1000), &json!("Guaranteed"))
    );
    assert_eq!(answer.err, "passed over, as no pods are made of them: 1 Service\n");
    let without = plan(&["-o", "json"], &chart.replace("name: high\nvalue", "name: low\nvalue"));
    assert_eq!(without.status, Some(1));
    assert!(admitted(&without).is_empty() && without.out.contains("which is not given"), "{}", without.out);
}

#[test]
fn ten_million_replicas_are_refused_at_once() {
    let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 10000000, template: {spec: {containers: [{name: c}]}}}\n";
    let answer = plan(&[], text);
    assert_eq!(answer.status, Some(1));
    assert!(answer.err.contains("10000000 pods are too many: at most 10000 more"), "{}", answer.err);
}

#[test]
fn standard_input_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    for args in [&["plan", "-f", "-", "-f", "-"][..], &["rank", "-f", "-", "--stats", "-"][..]] {
        let answer = enforcer(folder.path(), args, TYPO);
        assert_eq!(answer.status, Some(64), "{args:?}: {}", answer.err);
        assert!(answer.err.contains("standard input"), "{args:?}: {}", answer.err);
    }
    let answer = enforcer(folder.path(), &["plan", "--live", "--node", "a"], "");
    assert_eq!(answer.status, Some(64), "{}", answer.err);
}

/// The same order from our own form, from `kubectl top pods`, from the metrics API and from the kubelet.
#[test]
fn pods_are_ranked_by_what_kubernetes_prints_of_their_usage() {
    let folder = tempfile::tempdir().unwrap();
    let pods = folder.path().join("pods.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        stored("small", "one", "2026-01-01T00:00:00Z", "1Mi"),
        stored("large", "one", "2026-01-02T00:00:00Z", "1Mi"),
        stored("silent", "one", "2026-01-03T00:00:00Z", "1Mi"),
    ]});
    fs::write(&pods, list.to_string()).unwrap();
    let top = "NAMESPACE   NAME    CPU(cores)   MEMORY(bytes)\nshop        small   1m           2Mi\nshop        large   1m           3Mi\nshop        gone    1m           9Mi\n";
    let metrics = |name: &str, memory: &str| json!({"metadata": {"name": name, "namespace": "shop"}, "containers": [{"name": "app", "usage": {"memory": memory}}]});
    let summary = |name: &str, bytes: u64, count: u64| json!({"podRef": {"name": name, "namespace": "shop", "uid": "u"}, "memory": {"workingSetBytes": bytes}, "process_stats": {"process_count": count}});
    let forms = [
        json!({"pods": {"shop/small": {"workingSetBytes": 2_097_152}, "shop/large": {"workingSetBytes": 3_145_728}, "shop/gone": {}}}).to_string(),
        top.to_owned(),
        json!({"kind": "PodMetricsList", "items": [metrics("small", "2048Ki"), metrics("large", "3Mi"), metrics("gone", "1")]}).to_string(),
        json!({"node": {}, "pods": [summary("small", 2_097_152, 9), summary("large", 3_145_728, 3), summary("gone", 1, 1)]}).to_string(),
    ];
    let order = |answer: &Answer| {
        let document: Value = serde_json::from_str(&answer.out).unwrap();
        let order = document["order"].as_array().unwrap().iter();
        order
            .map(|row| (row["name"].as_str().unwrap().to_owned(), row["usageBytes"].as_u64()))
            .collect::<Vec<_>>()
    };
    let expected = [("silent", None), ("large", Some(3_145_728)), ("small", Some(2_097_152))];
    let expected = expected.map(|(name, bytes)| (name.to_owned(), bytes));
    for form in &forms {
        let args = ["rank", "-f", pods.to_str().unwrap(), "--stats", "-", "-o", "json"];
        let answer = enforcer(folder.path(), &args, form.as_str());
        assert_eq!(answer.status, Some(0), "{form}: {}", answer.err);
        assert_eq!(order(&answer), expected, "{form}");
        assert_eq!(
            answer.err,
            "-: 1 pod is not among the pods given, and ignored: shop/gone\n\
             -: 1 pod has no statistics there, and comes first: shop/silent\n"
        );
    }
    let by_processes = |form: &str| {
        let args =
            ["rank", "-f", pods.to_str().unwrap(), "--stats", "-", "-o", "json", "--signal", "pid.available"];
        enforcer(folder.path(), &args, form)
    };
    let names: Vec<_> = order(&by_processes(&forms[3])).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["silent", "small", "large"]);
    let answer = by_processes(&forms[1]);
    assert_eq!(answer.status, Some(64));
    assert!(answer.err.contains("no numbers of processes"), "{}", answer.err);
}
