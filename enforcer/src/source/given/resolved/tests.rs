use rstest::rstest;

use super::*;

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c}]}\n";

/// What comes of that file, of the pods of that node.
fn of(text: &str, node: Option<&str>) -> (Vec<Pod>, Vec<String>, Vec<String>) {
    let mut objects = Objects::default();
    let (errors, _warnings) = objects.read("f.yaml", text.as_bytes(), node);
    let resolved = resolve(objects, node);
    let errors = errors.iter().map(ToString::to_string);
    let errors = errors.chain(resolved.errors.into_iter().map(|wrong| wrong.message)).collect();
    (resolved.pods.into_iter().map(|(pod, _)| pod).collect(), errors, resolved.notes)
}

fn named(pods: &[Pod]) -> Vec<String> {
    pods.iter().map(|pod| pod.name.to_string()).collect()
}

/// The names of pods of a file that is all right.
fn names(text: &str) -> Vec<String> {
    let (pods, errors, _notes) = of(text, None);
    assert_eq!(errors, [""; 0], "{text}");
    named(&pods)
}

fn workload(kind: &str, spec: &str) -> String {
    let version = if kind.ends_with("Job") { "batch/v1" } else { "apps/v1" };
    let version = if kind == "ReplicationController" { "v1" } else { version };
    format!(
        "---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: w, namespace: shop}}\nspec: {{{spec}}}\n"
    )
}

const TEMPLATE: &str = "template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, resources: {requests: {cpu: 1}}}]}}";

#[rstest]
#[case("Deployment", "replicas: 2, ", &[0, 1])]
#[case("Deployment", "", &[0])]
#[case("Deployment", "replicas: 0, ", &[])]
#[case("ReplicaSet", "replicas: 3, ", &[0, 1, 2])]
#[case("ReplicationController", "replicas: 1, ", &[0])]
#[case("StatefulSet", "replicas: 2, ordinals: {start: 5}, ", &[5, 6])]
#[case("DaemonSet", "", &[0])]
#[case("Job", "", &[0])]
#[case("Job", "parallelism: 3, ", &[0, 1, 2])]
#[case("Job", "completions: 9, ", &[0])]
#[case("Job", "parallelism: 3, completions: 2, ", &[0, 1])]
#[case("Job", "parallelism: 2, completions: 5, ", &[0, 1])]
#[case("Job", "parallelism: 2, suspend: true, ", &[])]
fn a_workload_has_its_pods(#[case] kind: &str, #[case] spec: &str, #[case] numbers: &[u32]) {
    let text = workload(kind, &format!("{spec}{TEMPLATE}"));
    let expected: Vec<_> = numbers.iter().map(|number| format!("shop/w-{number}")).collect();
    assert_eq!(names(&text), expected);
    let (pods, ..) = of(&text, None);
    let mut uids: Vec<_> = pods.iter().map(|pod| pod.uid.as_str()).collect();
    uids.dedup();
    assert_eq!(uids.len(), pods.len());
    assert!(pods.iter().all(|pod| pod.containers[0].resources.requests.len() == 1));
}

#[test]
fn a_cron_job_has_the_pods_of_one_job() {
    let text = |more: &str| {
        workload("CronJob", &format!("{more}jobTemplate: {{spec: {{parallelism: 2, {TEMPLATE}}}}}"))
    };
    assert_eq!(names(&text("")), ["shop/w-0", "shop/w-1"]);
    assert_eq!(names(&text("suspend: true, ")), [""; 0]);
}

#[test]
fn a_job_of_the_cluster_that_has_ended_has_none() {
    let text = workload("Job", TEMPLATE);
    for (kind, pods) in [("Complete", 0), ("Failed", 0), ("Suspended", 1)] {
        let text = format!("{text}status: {{conditions: [{{type: {kind}, status: \"True\"}}]}}\n");
        assert_eq!(names(&text).len(), pods, "{kind}");
    }
}

#[rstest]
#[case("Deployment", "", "f.yaml:5: spec.template: is missing")]
#[case("CronJob", "", "f.yaml:5: spec.jobTemplate: is missing")]
#[case(
    "Deployment",
    "template: {spec: {}}",
    "f.yaml:5: spec.template.spec.containers: must have at least one container"
)]
#[case(
    "Job",
    "parallelism: -1, template: {spec: {containers: [{name: c}]}}",
    "f.yaml:5: spec.parallelism: must be a whole number, 0 or more"
)]
#[case(
    "Deployment",
    "replicas: two, template: {spec: {containers: [{name: c}]}}",
    "f.yaml:5: spec.replicas: must be a whole number, 0 or more"
)]
fn a_wrong_workload_is_reported_with_its_field(
    #[case] kind: &str,
    #[case] spec: &str,
    #[case] expected: &str,
) {
    let (pods, errors, _) = of(&workload(kind, spec), None);
    assert_eq!((pods.len(), errors), (0, vec![expected.to_owned()]));
}

#[test]
fn the_pods_of_workloads_are_bounded_together_and_the_bound_is_named() {
    let text = workload("Deployment", &format!("replicas: 10000000, {TEMPLATE}")) + "---\n" + POD;
    let (pods, errors, _) = of(&text, None);
    assert_eq!(named(&pods), ["default/web"]);
    assert_eq!(
        errors,
        [
            "f.yaml:2: 10000000 pods are too many: at most 10000 more can be made of the workloads given: plan for fewer"
        ]
    );
    let two = workload("Deployment", &format!("replicas: 6000, {TEMPLATE}"))
        + &workload("StatefulSet", &format!("replicas: 6000, {TEMPLATE}"));
    let (pods, errors, _) = of(&two, None);
    assert_eq!((pods.len(), errors.len()), (6_000, 1));
    assert!(errors[0].contains("at most 4000 more"), "{errors:?}");
    // Large ones are fewer.
    let large = TEMPLATE.replace("a: b", &format!("a: {}", "b".repeat(1 << 20)));
    let (pods, errors, _) = of(&workload("Deployment", &format!("replicas: 1000, {large}")), None);
    assert_eq!((pods.len(), errors.len()), (0, 1));
    assert!(errors[0].contains("at most 511 more"), "{errors:?}");
}

#[test]
fn what_helm_and_kustomize_print_is_read() {
    let text = format!(
        "---\n# Source: shop/templates/config.yaml\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{a: b}}\n\
         ---\n# Source: shop/templates/empty.yaml\n---\n\n---\n# Source: web\n{POD}---\nnull\n...\n{}---\napiVersion: v1\nkind: Pod\n\
         metadata: {{name: t, annotations: {{helm.sh/hook: test}}}}\nspec: {{containers: [{{name: c}}]}}\n\
         ---\napiVersion: apps.kruise.io/v1\nkind: StatefulSet\nspec: {{}}\n---\nkind: ConfigMap\n",
        workload("DaemonSet", TEMPLATE)
    );
    let (pods, errors, notes) = of(&text, None);
    assert_eq!(errors, [""; 0]);
    assert_eq!(named(&pods), ["default/web", "shop/w-0"]);
    assert_eq!(
        notes,
        [
            "left out: 1 of Helm's tests",
            "passed over, as no pods are made of them: 2 ConfigMap, 1 StatefulSet"
        ]
    );
}

#[test]
fn lists_of_all_kinds_are_read() {
    let item = |name: &str| {
        format!(
            "{{\"metadata\": {{\"name\": \"{name}\"}}, \"spec\": {{\"template\": {{\"spec\": {{\"containers\": [{{\"name\": \"c\"}}]}}}}}}}}"
        )
    };
    let text = format!(
        "{{\"kind\": \"DeploymentList\", \"apiVersion\": \"apps/v1\", \"items\": [{}, {}]}}",
        item("a"),
        item("b")
    );
    assert_eq!(names(&text), ["default/a-0", "default/b-0"]);
    let list = format!("apiVersion: v1\nkind: List\nitems: [{text}, {{apiVersion: v1, kind: Service}}]\n");
    assert_eq!(names(&list), ["default/a-0", "default/b-0"]);
    assert_eq!(names("{\"kind\": \"List\", \"apiVersion\": \"v1\", \"items\": []}"), [""; 0]);
    assert_eq!(names("{\"kind\": \"PodList\", \"apiVersion\": \"v1\", \"items\": null}"), [""; 0]);
}

#[rstest]
#[case(
    "apiVersion: v1\nkind: Deployment\n",
    "f.yaml:1: apiVersion: \"v1\" is not supported: it must be apps/v1"
)]
#[case(
    "apiVersion: apps/v1beta1\nkind: Deployment\n",
    "f.yaml:1: apiVersion: \"apps/v1beta1\" is not supported: it must be apps/v1"
)]
#[case("kind: Pod\n", "f.yaml:1: apiVersion: is missing")]
#[case("apiVersion: v1\n", "f.yaml:1: kind: is missing")]
fn a_version_that_is_not_read_is_an_error(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(of(text, None).1, [expected]);
}

#[test]
fn a_kind_that_is_nearly_one_is_passed_over_with_a_warning() {
    let mut objects = Objects::default();
    let (errors, warnings) = objects.read("f.yaml", b"apiVersion: apps/v1\nkind: Deploymnet\n", None);
    assert_eq!(errors, []);
    let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings, ["f.yaml:2: kind: \"Deploymnet\" is passed over: did you mean Deployment?"]);
}

fn class(name: &str, value: i64, more: &str) -> String {
    format!(
        "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {{name: {name}}}\nvalue: {value}\n{more}"
    )
}

#[test]
fn priority_classes_mean_what_they_do_in_the_cluster() {
    let pod = |name: &str, spec: &str| {
        POD.replace("web", name).replace("{containers", &format!("{{{spec}containers"))
    };
    let pods = [
        pod("a", "priorityClassName: high, "),
        pod("b", "priorityClassName: high, priority: 3, "),
        pod("c", "priorityClassName: system-node-critical, "),
        pod("d", "priorityClassName: system-cluster-critical, "),
        pod("e", ""),
        pod("f", "priorityClassName: '', "),
    ]
    .join("---\n");
    let priorities = |text: &str| {
        let (pods, errors, _) = of(text, None);
        assert_eq!(errors, [""; 0]);
        pods.iter().map(Pod::priority).collect::<Vec<_>>()
    };
    let high = class("high", 1000, "");
    // Before or after the pods.
    assert_eq!(priorities(&(pods.clone() + &high)), [1000, 3, 2_000_001_000, 2_000_000_000, 0, 0]);
    let defaults = class("low", -7, "globalDefault: true\n") + &class("mid", 5, "globalDefault: true\n");
    assert_eq!(
        priorities(&(high.clone() + &defaults + "---\n" + &pods)),
        [1000, 3, 2_000_001_000, 2_000_000_000, -7, -7]
    );
    let of_workload = TEMPLATE.replace("spec: {", "spec: {priorityClassName: high, ");
    assert_eq!(
        priorities(&(workload("Deployment", &format!("replicas: 2, {of_workload}")) + &high)),
        [1000, 1000]
    );
}

#[test]
fn a_class_that_is_not_given_is_an_error_and_no_priority_0() {
    let text = POD.replace("spec: {", "spec: {\n  priorityClassName: hihg, ") + &class("high", 1, "");
    let (pods, errors, _) = of(&text, None);
    assert_eq!(pods.len(), 0);
    assert_eq!(
        errors,
        [
            "f.yaml:5: spec.priorityClassName: pod default/web has the PriorityClass \"hihg\", which is not given: did you mean \
          high?: add it with -f (kubectl get priorityclasses -o yaml prints all), or set spec.priority"
        ]
    );
    let of_workload = TEMPLATE.replace("spec: {", "spec: {priorityClassName: other, ");
    let (_, errors, _) = of(&workload("Deployment", &format!("replicas: 20, {of_workload}")), None);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].starts_with("f.yaml:5: spec.template.spec.priorityClassName: pod shop/w-0 has"),
        "{errors:?}"
    );
}

#[test]
fn a_wrong_class_is_reported() {
    let twice = class("a", 1, "") + &class("a", 2, "");
    let without = class("a", 1, "").replace("value: 1", "x: 1");
    let large = class("a", 9_999_999_999, "");
    for (text, expected) in [
        (twice, "f.yaml:7: PriorityClass a is in f.yaml:2 already: remove one of the two"),
        (without, "f.yaml:2: value: is missing"),
        (large, "f.yaml:5: value: must be a whole number of 32 bits"),
    ] {
        assert_eq!(of(&text, None).1, [expected]);
    }
}

/// A pod as the API server has it.
fn stored(name: &str, node: &str, phase: &str, created: &str, owner: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, creationTimestamp: {created}, \
         ownerReferences: [{{apiVersion: v1, kind: X, name: x, uid: {owner}, controller: true}}]}}\n\
         spec: {{nodeName: {node}, containers: [{{name: c}}]}}\nstatus: {{phase: {phase}}}\n"
    )
}

#[test]
fn pods_come_in_the_order_of_their_creation_and_new_ones_last() {
    let text = [
        POD.to_owned(),
        stored("late", "n1", "Running", "2026-01-31T12:00:01Z", "o"),
        stored("early", "n1", "Running", "2025-12-31T12:00:00Z", "o"),
        stored("same", "n1", "Running", "2025-12-31T12:00:00Z", "o"),
        POD.replace("web", "aaa"),
    ]
    .join("---\n");
    let expected = ["early", "same", "late", "web", "aaa"].map(|name| format!("default/{name}"));
    assert_eq!(names(&text), expected);
    let (_, errors, _) = of(&stored("a", "n", "Running", "yesterday", "o"), None);
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].starts_with("f.yaml:4: metadata.creationTimestamp: \"yesterday\" is not"),
        "{errors:?}"
    );
}

#[test]
fn pods_that_have_ended_or_are_elsewhere_are_counted_and_not_taken() {
    let created = "2026-01-31T12:00:00Z";
    let text = [
        stored("here", "n1", "Running", created, "o"),
        stored("done", "n1", "Succeeded", created, "o"),
        stored("failed", "n2", "Failed", created, "o"),
        stored("there", "n2", "Running", created, "o"),
        stored("waiting", "''", "Pending", created, "o"),
        // Nothing is wrong with what is not taken.
        stored("wrong", "n2", "Running", "yesterday", "o"),
        POD.to_owned(),
    ]
    .join("---\n");
    let (pods, errors, notes) = of(&text, Some("n1"));
    assert_eq!((named(&pods), errors.len()), (vec!["default/here".to_owned(), "default/web".to_owned()], 0));
    assert_eq!(
        notes,
        [
            "left out: 2 pods in phase Succeeded or Failed",
            "left out: 2 pods of other nodes than n1",
            "left out: 1 pod on no node yet",
        ]
    );
    let (pods, _, notes) = of(&text, Some("n11"));
    assert_eq!(named(&pods), ["default/web"]);
    assert_eq!(notes.last().unwrap(), "no pod that is given is on node n11: did you mean n1?");
    let (pods, errors, notes) = of(&text, None);
    assert_eq!((pods.len(), errors.len()), (4, 1));
    assert_eq!(notes.last().unwrap(), "these pods are of several nodes (n1, n2): --node takes those of one");
}

/// As `kubectl get all -o json` prints them.
#[test]
fn what_a_workload_has_made_already_counts_once() {
    let uid = |kind: &str, uid: &str, owner: &str| {
        let owner = format!("[{{apiVersion: v1, kind: X, name: x, uid: {owner}, controller: true}}]");
        workload(kind, TEMPLATE)
            .replace("{name: w", &format!("{{name: {uid}, uid: {uid}, ownerReferences: {owner}"))
    };
    let workloads =
        uid("Deployment", "d", "none") + &uid("ReplicaSet", "r", "d") + &uid("DaemonSet", "s", "none");
    let text = stored("web", "n2", "Running", "2026-01-31T12:00:00Z", "r") + &workloads;
    let (pods, errors, notes) = of(&text, None);
    assert_eq!(errors, [""; 0]);
    assert_eq!(named(&pods), ["default/web", "shop/s-0"]);
    assert_eq!(notes, ["left out: 2 workloads whose own pods or workloads are given as well"]);
    // Its pod is on another node, and is its pod nevertheless.
    assert_eq!(named(&of(&text, Some("n1")).0), ["shop/s-0"]);
}

/// 32 MiB of it are read; what multiplies is not.
#[test]
fn hostile_documents_cost_only_themselves() {
    let mut aliases = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let below = vec![format!("*a{}", level - 1); 10].join(", ");
        aliases = format!("{aliases}a{level}: &a{level} [{below}]\n");
    }
    let nested = "{apiVersion: v1, kind: List, items: [".repeat(200) + &"]}".repeat(200) + "\n";
    let long = format!(
        "apiVersion: v1\nkind: List\nmetadata: {{a: &a {}}}\nitems: [{}]\n",
        "x".repeat(8 << 20),
        "*a,".repeat(100)
    );
    for bad in [aliases, nested, long] {
        let (pods, errors, _) = of(&format!("{POD}---\n{bad}---\n{}", POD.replace("web", "next")), None);
        assert_eq!(named(&pods), ["default/web", "default/next"]);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].len() < 500, "{}", errors[0]);
    }
    let many: Vec<_> = (0..30_000).map(|number| format!("{{apiVersion: v1, kind: K{number}}},")).collect();
    let many = many.concat();
    let (_, errors, notes) = of(&format!("apiVersion: v1\nkind: List\nitems: [{many}]\n"), None);
    assert_eq!(errors, [""; 0]);
    assert!(notes.len() == 1 && notes[0].ends_with(", 29980 of other kinds"), "{notes:?}");
}
