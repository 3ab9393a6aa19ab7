//! `enforcer plan` and `enforcer rank`, the real binary; they need no privileges and no daemon.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

mod inputs;

use std::{fs, path::Path};

use assert_cmd::Command;
use serde_json::{Value, json};

const WEB: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, uid: w1}\nspec:\n  containers:\n  - name: app\n    resources: {requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: 200m, memory: 200Mi}}\n";
const MACHINE: &str = "cpu=4,memory=8Gi,swap=0,pods=110";

struct Answer {
    status: Option<i32>,
    out: String,
    err: String,
}

/// With a configuration that has all defaults, wherever this runs.
fn enforcer(folder: &Path, args: &[&str], stdin: impl Into<Vec<u8>>) -> Answer {
    let config = folder.join("config.yaml");
    fs::write(&config, "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\n").unwrap();
    let output = Command::new(assert_cmd::cargo::cargo_bin!("enforcer"))
        .arg("--config")
        .arg(&config)
        .args(args)
        .env_remove("NO_COLOR")
        .write_stdin(stdin)
        .output()
        .unwrap();
    Answer {
        status: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn plan_of(manifests: &[u8]) -> (Answer, Value) {
    let folder = tempfile::tempdir().unwrap();
    let args = ["plan", "-f", "-", "--capacity", MACHINE, "-o", "json"];
    let answer = enforcer(folder.path(), &args, manifests);
    let document = serde_json::from_str(&answer.out).unwrap_or(Value::Null);
    (answer, document)
}

/// The contract's own example.
#[test]
fn the_document_has_exactly_the_contracts_shape() {
    let (answer, document) = plan_of(WEB.as_bytes());
    assert_eq!(answer.status, Some(0), "{}", answer.err);
    let pod = "/kubepods/burstable/podw1";
    let expected = json!({
        "node": {
            "capacity": {"cpuMilli": 4000, "memoryBytes": 8_589_934_592_u64, "swapBytes": 0, "pods": 110},
            "allocatable": {"cpuMilli": 4000, "memoryBytes": 8_485_076_992_u64},
            "cgroup": {"path": "/kubepods", "files": {"cpu.weight": "157", "memory.max": "8589934592"}},
        },
        "qosCgroups": [
            {"qosClass": "Burstable", "path": "/kubepods/burstable", "files": {"cpu.weight": "4"}},
            {"qosClass": "BestEffort", "path": "/kubepods/besteffort", "files": {"cpu.weight": "1"}},
        ],
        "pods": [{
            "namespace": "default", "name": "web", "uid": "w1", "qosClass": "Burstable", "priority": 0, "critical": false,
            "requests": {"cpuMilli": 100, "memoryBytes": 104_857_600},
            "limits": {"cpuMilli": 200, "memoryBytes": 209_715_200},
            "cgroup": {"path": pod, "files": {"cpu.weight": "4", "cpu.max": "20000 100000", "memory.max": "209715200"}},
            "containers": [{
                "name": "app", "kind": "app", "oomScoreAdj": 988,
                "cgroup": {"path": format!("{pod}/app"), "files": {
                    "cpu.weight": "17", "cpu.max": "20000 100000", "memory.max": "209715200", "memory.oom.group": "1"}},
            }],
            "admission": {"admitted": true},
        }],
        "errors": [],
    });
    assert_eq!(document, expected);
}

#[test]
fn yaml_says_the_same_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let args = |format| {
        ["plan", "-f", "-", "--capacity", "cpu=4,memory=8Gi,swap=1Gi,hugepages-2Mi=64Mi", "-o", format]
    };
    let json: Value =
        serde_json::from_str(&enforcer(folder.path(), &args("json"), WEB.as_bytes()).out).unwrap();
    let yaml = enforcer(folder.path(), &args("yaml"), WEB.as_bytes()).out;
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), json);
    assert_eq!(json["node"]["capacity"]["hugepages-2Mi"], 64 << 20);
    assert_eq!(json["pods"][0]["containers"][0]["cgroup"]["files"]["hugetlb.2MB.max"], "0");
    assert_eq!(json["pods"][0]["containers"][0]["cgroup"]["files"]["memory.swap.max"], "0");
    let line = enforcer(folder.path(), &args("jsonl"), WEB.as_bytes()).out;
    assert_eq!((line.lines().count(), serde_json::from_str::<Value>(&line).unwrap()), (1, json));
}

/// Each is an error that names its line and field; the pods before and after it are planned, and nothing takes long.
#[test]
fn bad_documents_cost_only_themselves() {
    let with = |resources: &str| {
        WEB.replace("{requests: {cpu: 100m, memory: 100Mi}, limits: {cpu: 200m, memory: 200Mi}}", resources)
            .replace("web, uid: w1", "bad")
    };
    let aliases = (1..12).fold(String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"), |text, level| {
        let below = vec![format!("*a{}", level - 1); 10].join(",");
        format!("{text}a{level}: &a{level} [{below}]\n")
    });
    let memory = "spec.containers[0].resources.requests.memory";
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (aliases.into_bytes(), ""),
        (format!("a: {}{}\n", "[".repeat(5_000), "]".repeat(5_000)).into_bytes(), ""),
        (format!("big: {}\n", "x".repeat(10 << 20)).into_bytes(), "kind: is missing"),
        (WEB.replace("kind: Pod", "kind: Pod\nkind: Pod").into_bytes(), "kind"),
        (b"kind: Pod\nname: a\0b\n".to_vec(), ""),
        (b"kind: Pod\nname: \xff\xfe\n".to_vec(), "not UTF-8"),
        (with("{requests: {memory: 1e400}}").into_bytes(), memory),
        (with("{requests: {memory: -1}}").into_bytes(), memory),
        (with("{requests: {memory: NaN}}").into_bytes(), memory),
        (with("{requests: {memory: .nan}}").into_bytes(), memory),
        (with("{requests: {memory: .inf}}").into_bytes(), memory),
        (with("{requests: {memory: \u{661}\u{660}}}").into_bytes(), memory),
        (
            with("{requests: {memory: 2Gi}, limits: {memory: 1Gi}}").into_bytes(),
            "spec.containers[0].resources.limits.memory",
        ),
        (WEB.replace("kind: Pod", "kind: Job").into_bytes(), "apiVersion"),
        (WEB.replace("v1\nkind: Pod", "batch/v1\nkind: Job").into_bytes(), "spec.template: is missing"),
    ];
    for (bad, reported) in cases {
        let mut manifests = WEB.as_bytes().to_vec();
        manifests.extend_from_slice(b"---\n");
        manifests.extend_from_slice(&bad);
        manifests.extend_from_slice(format!("---\n{}", WEB.replace("web, uid: w1", "after")).as_bytes());
        let shown = String::from_utf8_lossy(&bad[..bad.len().min(200)]).into_owned();
        let (answer, document) = plan_of(&manifests);
        assert_eq!(answer.status, Some(1), "{shown}: {}", answer.err);
        let names: Vec<_> =
            document["pods"].as_array().unwrap().iter().map(|pod| pod["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["web", "after"], "{shown}");
        let [error] = document["errors"].as_array().unwrap().as_slice() else {
            panic!("{shown}: {}", document["errors"])
        };
        assert_eq!(error["source"], "stdin");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with("stdin:") && message.contains(reported), "{shown}: {message}");
        assert!(message.len() < 1_000, "{message}");
        let line: u64 = message.split(':').nth(1).unwrap().parse().unwrap();
        assert!(line > 7, "{shown}: {message}");
    }
}

#[test]
fn a_request_above_capacity_is_planned_and_not_admitted() {
    let (answer, document) =
        plan_of(WEB.replace("memory: 100Mi", "memory: 100Gi").replace("200Mi", "100Gi").as_bytes());
    assert_eq!(answer.status, Some(0), "{}", answer.err);
    let pod = &document["pods"][0];
    assert_eq!(pod["cgroup"]["files"]["memory.max"], "107374182400");
    assert_eq!(
        pod["admission"],
        json!({"admitted": false, "reason": "OutOfmemory", "message": "Node didn't have enough resource: memory, requested: 107374182400, used: 0, capacity: 8485076992"})
    );
    assert_eq!(document["qosCgroups"][0]["files"]["cpu.weight"], "1", "what is not admitted weighs nothing");
}

#[test]
fn a_critical_pod_preempts() {
    let pod = |name: &str, more: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{{more}containers: [{{name: c, resources: {{requests: {{memory: 5Gi}}}}}}]}}\n"
        )
    };
    let manifests = pod("plain", "") + &pod("critical", "priorityClassName: system-node-critical, ");
    let (_, document) = plan_of(manifests.as_bytes());
    assert_eq!(
        document["pods"][0]["admission"],
        json!({"admitted": false, "reason": "Preempting", "message": "Preempted in order to admit critical pod"})
    );
    assert_eq!(document["pods"][1]["admission"], json!({"admitted": true, "preempt": ["default/plain"]}));
}

#[test]
fn the_table_answers_at_a_glance() {
    let folder = tempfile::tempdir().unwrap();
    let pod = |name: &str, spec: &str| {
        format!("---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {spec}\n")
    };
    let manifests = [
        WEB.to_owned(),
        pod("guaranteed", "{containers: [{name: c, resources: {limits: {cpu: 1, memory: 1Gi}}}]}"),
        pod("best-effort-with-quite-a-long-name", "{containers: [{name: c}]}"),
        pod(
            "two",
            "{containers: [{name: a, resources: {requests: {memory: 1Gi}}}, {name: b}], initContainers: [{name: s, restartPolicy: Always}]}",
        ),
        pod("large", "{containers: [{name: c, resources: {requests: {cpu: 5}}}]}"),
    ];
    let answer =
        enforcer(folder.path(), &["plan", "-f", "-", "--capacity", MACHINE], manifests.concat().as_bytes());
    assert_eq!(answer.status, Some(0), "{}", answer.err);
    // A name is whole in a pipe, and makes the lines as wide as it is.
    assert!(answer.out.contains("default/best-effort-with-quite-a-long-name "), "{}", answer.out);
    insta::assert_snapshot!(answer.out);
}

#[test]
fn wrong_usage_is_reported_with_64() {
    let folder = tempfile::tempdir().unwrap();
    let stats = folder.path().join("stats.json");
    fs::write(&stats, "{\"pods\": {\"a/b\": {\"workingSetBytes\": -1}}}").unwrap();
    let stats = stats.display().to_string();
    for (args, reported) in [
        (vec!["plan"], "--filename"),
        (vec!["plan", "-f", "-", "--capacity", "memory=8Q"], "memory"),
        (vec!["plan", "-f", "-", "--capacity", "disk=1"], "disk"),
        (vec!["rank", "-f", "-"], "--stats"),
        (vec!["rank", "-f", "-", "--stats", &stats], "line 1 column"),
        (vec!["rank", "-f", "-", "--stats", "/nowhere"], "/nowhere"),
        (
            vec!["rank", "-f", "-", "--stats", &stats, "--signal", "nodefs.available"],
            "memory.available or pid.available",
        ),
    ] {
        let answer = enforcer(folder.path(), &args, WEB.as_bytes());
        let expected = if reported == "/nowhere" { 66 } else { 64 };
        assert_eq!(answer.status, Some(expected), "{args:?}: {}", answer.err);
        assert!(answer.err.contains(reported), "{args:?}: {}", answer.err);
    }
}

#[test]
fn hostile_names_reach_no_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("pods");
    fs::create_dir(&dir).unwrap();
    let hostile = "kind: \"P\\e[2J\"\napiVersion: v1\n---\nkind: Pod\napiVersion: \"v\\e[2J\"\n";
    fs::write(dir.join("a\u{1b}[2Jb.yaml"), hostile).unwrap();
    let answer = enforcer(folder.path(), &["plan", "-f", dir.to_str().unwrap()], b"");
    assert_eq!(answer.status, Some(1));
    assert!(!answer.err.contains('\u{1b}') && !answer.out.contains('\u{1b}'), "{:?}", answer.err);
}

#[test]
fn the_order_has_exactly_the_contracts_shape() {
    let folder = tempfile::tempdir().unwrap();
    let manifests = folder.path().join("pods.yaml");
    let pod = |name: &str, more: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{{more}containers: [{{name: c, resources: {{requests: {{memory: 1Mi}}}}}}]}}\n"
        )
    };
    fs::write(
        &manifests,
        pod("within", "")
            + &pod("above", "priority: 5, ")
            + &pod("silent", "")
            + &pod("critical", "priority: 2000000000, "),
    )
    .unwrap();
    let stats = json!({"pods": {
        "default/within": {"workingSetBytes": 1_048_576, "processCount": 9},
        "default/above": {"workingSetBytes": 1_048_577, "processCount": 3},
        "default/critical": {"workingSetBytes": 9_000_000, "processCount": 3},
        "default/unknown": {},
    }});
    let rank = |signal: &str| {
        let args =
            ["rank", "-f", manifests.to_str().unwrap(), "--stats", "-", "--signal", signal, "-o", "json"];
        let answer = enforcer(folder.path(), &args, stats.to_string().as_bytes());
        assert_eq!(answer.status, Some(0), "{}", answer.err);
        assert!(answer.err.contains("default/unknown"), "{}", answer.err);
        serde_json::from_str::<Value>(&answer.out).unwrap()
    };
    let entry = |rank: u64, name: &str, evictable: bool, missing: bool, priority: i64, more: Value| {
        let mut entry = json!({"rank": rank, "namespace": "default", "name": name, "evictable": evictable, "statsMissing": missing, "priority": priority});
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        entry
    };
    let bytes = |exceeds: bool, usage: u64, above: i64| json!({"exceedsRequest": exceeds, "usageBytes": usage, "requestBytes": 1_048_576, "aboveRequestBytes": above});
    assert_eq!(
        rank("memory.available"),
        json!({"signal": "memory.available", "order": [
            entry(1, "silent", true, true, 0, json!({"requestBytes": 1_048_576})),
            entry(2, "above", true, false, 5, bytes(true, 1_048_577, 1)),
            entry(3, "critical", false, false, 2_000_000_000, bytes(true, 9_000_000, 7_951_424)),
            entry(4, "within", true, false, 0, bytes(false, 1_048_576, 0)),
        ]})
    );
    assert_eq!(
        rank("pid.available"),
        json!({"signal": "pid.available", "order": [
            entry(1, "silent", true, true, 0, json!({})),
            entry(2, "within", true, false, 0, json!({"processCount": 9})),
            entry(3, "above", true, false, 5, json!({"processCount": 3})),
            entry(4, "critical", false, false, 2_000_000_000, json!({"processCount": 3})),
        ]})
    );
}

#[test]
fn bad_manifests_leave_the_others_ranked() {
    let folder = tempfile::tempdir().unwrap();
    let stats = folder.path().join("stats.json");
    fs::write(&stats, "{\"pods\": {}}").unwrap();
    let manifests = format!("{WEB}---\nkind: Pod\napiVersion: v1\n");
    let args = ["rank", "-f", "-", "--stats", stats.to_str().unwrap(), "-o", "json"];
    let answer = enforcer(folder.path(), &args, manifests.as_bytes());
    assert_eq!(answer.status, Some(1));
    assert!(answer.err.contains("stdin:9: metadata: is missing"), "{}", answer.err);
    assert_eq!(serde_json::from_str::<Value>(&answer.out).unwrap()["order"].as_array().unwrap().len(), 1);
}
