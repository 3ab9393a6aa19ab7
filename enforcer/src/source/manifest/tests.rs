use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::model::{
    ContainerKind, QosClass, Quantity, ResourceList, TaintEffect, Toleration, TolerationTaints,
};

fn list(entries: &[(&str, &str)]) -> ResourceList {
    entries
        .iter()
        .map(|(name, text)| (crate::model::ResourceName::new(name), text.parse().unwrap()))
        .collect()
}

fn errors(text: &str) -> Vec<String> {
    let parsed = parse("web.yaml", text.as_bytes());
    parsed.errors.iter().map(ToString::to_string).collect()
}

fn one(text: &str) -> Pod {
    let parsed = parse("web.yaml", text.as_bytes());
    assert_eq!(parsed.errors, []);
    assert_eq!(parsed.pods.len(), 1);
    parsed.pods.into_iter().next().unwrap()
}

const WEB: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: shop
  uid: 0001
  labels: {app: web}
  annotations:
    enforcer.dev/cgroup: /system.slice/web.service
spec:
  priority: -5
  priorityClassName: low
  terminationGracePeriodSeconds: 7
  overhead: {cpu: 10m}
  volumes: [{name: data, emptyDir: {}}]
  resources:
    limits: {memory: 1Gi}
  initContainers:
  - name: setup
    resources: {requests: {memory: 64Mi}}
  - name: proxy
    restartPolicy: Always
  containers:
  - name: app
    image: nginx:1.27
    env: [{name: A, value: \"1\"}]
    resources:
      requests:
        cpu: 0.1
        memory: 104857600
      limits:
        cpu: 2
        memory: \"2e8\"
        example.com/gpu: 1
";

#[test]
fn a_pod_is_read_whole() {
    let pod = one(WEB);
    assert_eq!(pod.name.to_string(), "shop/web");
    assert_eq!(pod.uid.as_str(), "0001");
    assert_eq!((pod.priority, pod.priority_class_name.as_deref()), (Some(-5), Some("low")));
    assert_eq!(pod.annotations["enforcer.dev/cgroup"], "/system.slice/web.service");
    assert_eq!(pod.termination_grace_period_seconds, 7);
    assert_eq!(pod.overhead, list(&[("cpu", "10m")]));
    assert_eq!(pod.stored_qos_class, None);
    let kinds: Vec<_> =
        pod.containers.iter().map(|container| (container.name.as_str(), container.kind)).collect();
    assert_eq!(
        kinds,
        [("setup", ContainerKind::Init), ("proxy", ContainerKind::Sidecar), ("app", ContainerKind::App)]
    );
    let app = &pod.containers[2].resources;
    assert_eq!(app.requests, list(&[("cpu", "100m"), ("memory", "100Mi"), ("example.com/gpu", "1")]));
    assert_eq!(app.limits, list(&[("cpu", "2"), ("memory", "200M"), ("example.com/gpu", "1")]));
}

#[rstest]
#[case("0.1", "100m")]
#[case("0.30000000000000004", "0.30000000000000004")]
#[case("1e3", "1000")]
#[case("9007199254740993", "9007199254740993")]
#[case("9223372036854775807", "9223372036854775807")]
#[case("0.000000001", "1n")]
#[case("+1", "1")]
#[case(".5", "500m")]
#[case("5.", "5")]
#[case("007", "7")]
#[case("100m", "100m")]
#[case("'0.1'", "100m")]
#[case("\"1.5Gi\"", "1.5Gi")]
#[case("0.1 # cores", "100m")]
#[case("&a 0.7", "700m")]
#[case("!!str 0.7", "700m")]
#[case("!!float 0.7", "700m")]
#[case(">-\n        250m", "250m")]
fn numbers_are_taken_as_written(#[case] written: &str, #[case] expected: &str) {
    let text = format!(
        "kind: Pod\napiVersion: v1\nmetadata: {{name: a}}\nspec:\n  containers:\n  - name: c\n    resources:\n     limits:\n      cpu: {written}\n"
    );
    assert_eq!(one(&text).containers[0].resources.limits, list(&[("cpu", expected)]));
    let alias = format!(
        "{text}  x: &n {}\n  overhead: {{cpu: *n}}\n",
        if written.contains('&') { "0.7" } else { written }
    );
    if !written.starts_with('>') {
        assert_eq!(one(&alias).overhead, list(&[("cpu", expected)]));
    }
}

#[test]
fn json_is_read_too() {
    let text = r#"{"apiVersion":"v1","kind":"List","items":[
        {"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":0.1,"memory":"1Gi"}}}]}},
        {"apiVersion":"v1","kind":"Service","metadata":{"name":"s"}},
        {"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"},"spec":{"containers":[{"name":"c"}]}}]}"#;
    let parsed = parse("pods.json", text.as_bytes());
    let names: Vec<_> = parsed.pods.iter().map(|pod| pod.name.to_string()).collect();
    assert_eq!(names, ["default/a", "default/b"]);
    assert_eq!(parsed.origins.iter().map(|origin| origin.line).collect::<Vec<_>>(), [2, 4]);
    assert_eq!(parsed.pods[0].containers[0].resources.requests, list(&[("cpu", "100m"), ("memory", "1Gi")]));
    let errors: Vec<_> = parsed.errors.iter().map(ToString::to_string).collect();
    assert_eq!(errors, ["pods.json:3: items[1].kind: \"Service\" is not supported: it must be Pod"]);
}

#[test]
fn items_of_a_pod_list_need_not_say_what_they_are() {
    let text =
        "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n  spec: {containers: [{name: c}]}\n";
    assert_eq!(one(text).name.to_string(), "default/a");
    assert_eq!(errors(&text.replace("PodList", "List")), ["web.yaml:4: items[0].kind: is missing"]);
}

#[test]
fn one_bad_document_leaves_the_others() {
    let good = |name: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c}}]}}\n"
        )
    };
    let text =
        format!("{}---\nkind: [\n---\n{}...\n---\na: 1\na: 2\n---\n{}", good("a"), good("b"), good("c"));
    let parsed = parse("all.yaml", text.as_bytes());
    let names: Vec<_> = parsed.pods.iter().map(|pod| pod.name.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let lines: Vec<_> = parsed
        .errors
        .iter()
        .map(|error| match error {
            ManifestError::Document { origin, problem: Problem::Syntax { .. } } => origin.to_string(),
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(lines, ["all.yaml:6", "all.yaml:15"]);
    assert_eq!(parsed.origins.iter().map(|origin| origin.line).collect::<Vec<_>>(), [1, 8, 17]);
}

#[test]
fn a_missing_uid_follows_from_the_name() {
    let text = |name: &str, image: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n"
        )
    };
    let uid = one(&text("web", "a")).uid;
    assert_eq!(uid, one(&text("web", "b")).uid);
    assert_ne!(uid, one(&text("web2", "a")).uid);
    assert_eq!(uid.as_str(), "3ad17846-0d2e-8a8a-96fd-14e214b038ab");
}

/// Each case replaces one piece of [`WEB`], and gives the one error that this must lead to.
#[rstest]
#[case("name: web\n", "nome: web\n", "4: metadata.name: is missing")]
#[case("name: web\n", "name: Web\n", "4: metadata.name: \"Web\" is not a DNS subdomain")]
#[case("name: web\n", "name: 12\n", "4: metadata.name: must be a text: put it in quotes")]
#[case("name: web\n", "name: [web]\n", "4: metadata.name: must be a text")]
#[case("namespace: shop", "namespace: a.b", "5: metadata.namespace: \"a.b\" is not a DNS label")]
#[case("uid: 0001", "uid: a/b", "6: metadata.uid: \"a/b\" is not a uid")]
#[case("uid: 0001", "uid: ''", "6: metadata.uid: \"\" is not a uid")]
#[case("uid: 0001", "uid: {}", "6: metadata.uid: \"\" is not a uid")]
#[case(
    "kind: Pod",
    "kind: Deployment",
    "2: kind: \"Deployment\" is not supported: it must be Pod, PodList or List"
)]
#[case("kind: Pod", "kinds: Pod", "1: kind: is missing")]
#[case("apiVersion: v1", "apiVersion: v2", "1: apiVersion: \"v2\" is not supported: it must be v1")]
#[case(
    "cgroup: /system.slice/web.service",
    "cgroup: true",
    "9: metadata.annotations[enforcer.dev/cgroup]: must be a text: put it in quotes"
)]
#[case("priority: -5", "priority: 3000000000", "11: spec.priority: must be a whole number of 32 bits")]
#[case("priority: -5", "priority: high", "11: spec.priority: must be a whole number of 32 bits")]
#[case("overhead: {cpu: 10m}", "overhead: 10m", "14: spec.overhead: must be a mapping")]
#[case(
    "  - name: proxy\n",
    "  - name: setup\n",
    "21: spec.initContainers[1].name: container \"setup\" is there already, on line 19: give each container of a pod its own name"
)]
#[case(
    "restartPolicy: Always",
    "restartPolicy: always",
    "22: spec.initContainers[1].restartPolicy: \"always\" is not supported: it must be Always, OnFailure or Never"
)]
#[case(
    "- name: app",
    "- name: setup",
    "24: spec.containers[0].name: container \"setup\" is there already, on line 19: give each container of a pod its own name"
)]
#[case("- name: app", "- name: a.b", "24: spec.containers[0].name: \"a.b\" is not a DNS label")]
#[case("cpu: 0.1", "cpu: 0.1c", "29: spec.containers[0].resources.requests.cpu: \"0.1c\" is not a quantity")]
#[case("cpu: 0.1", "cpu: -0.1", "29: spec.containers[0].resources.requests.cpu: -100m must not be negative")]
#[case("cpu: 0.1", "cpu:", "29: spec.containers[0].resources.requests.cpu: has no value")]
#[case("cpu: 0.1", "cpu: [1]", "29: spec.containers[0].resources.requests.cpu: must be a quantity")]
#[case("cpu: 0.1", "cpu: true", "29: spec.containers[0].resources.requests.cpu: \"true\" is not a quantity")]
#[case(
    "cpu: 0.1",
    "cpu: 1e99",
    "29: spec.containers[0].resources.requests.cpu: quantity \"1e99\" is too large"
)]
#[case("cpu: 0.1", "Cpu: 0.1", "29: spec.containers[0].resources.requests.Cpu: \"Cpu\" is not a resource")]
#[case(
    "cpu: 0.1",
    "cpu: 3",
    "32: spec.containers[0].resources.limits.cpu: the limit 2 is below the request 3"
)]
#[case(
    "limits: {memory: 1Gi}",
    "limits: {memory: 1Gi}\n    requests: {memory: 2Gi}",
    "17: spec.resources.limits.memory: the limit 1073741824 is below the request 2147483648"
)]
#[case(
    "limits: {memory: 1Gi}",
    "limits: {memory: 10Mi}",
    "17: spec.resources.limits.memory: the limit 10485760 is below the request 104857600"
)]
fn an_error_names_file_line_and_field(#[case] piece: &str, #[case] other: &str, #[case] expected: &str) {
    assert!(WEB.contains(piece));
    let errors = errors(&WEB.replacen(piece, other, 1));
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].starts_with(&format!("web.yaml:{expected}")), "{errors:?}");
}

#[test]
fn all_that_is_wrong_is_reported_at_once() {
    let text = WEB.replace("name: web\n", "name: W\n").replace("cpu: 0.1", "cpu: x").replace("1Gi", "1Q");
    assert_eq!(errors(&text).len(), 3);
}

#[rstest]
#[case("spec: {containers: []}", "3: spec.containers: must have at least one container")]
#[case("spec: {}", "3: spec.containers: must have at least one container")]
#[case("spec: {containers: {}}", "3: spec.containers: must be a list")]
#[case("spec: {containers: [c]}", "3: spec.containers[0]: must be a mapping")]
#[case("spec: {containers: [{image: a}]}", "3: spec.containers[0].name: is missing")]
#[case("spec: {initContainers: [{name: c}]}", "3: spec.containers: must have at least one container")]
#[case("spec: null", "1: spec: is missing")]
fn a_pod_has_containers(#[case] spec: &str, #[case] expected: &str) {
    let text = format!("{{apiVersion: v1, kind: Pod,\nmetadata: {{name: a}},\n{spec}}}\n");
    assert_eq!(errors(&text), [format!("web.yaml:{expected}")]);
}

#[rstest]
#[case("", "1: holds no manifest")]
#[case("# nothing\n", "1: holds no manifest")]
#[case("just a text\n", "1: must be a mapping")]
#[case("- a\n", "1: must be a mapping")]
fn a_file_holds_objects(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(errors(text), [format!("web.yaml:{expected}")]);
}

#[test]
fn a_key_is_given_once() {
    let errors = errors(&WEB.replace("  namespace: shop", "  name: shop"));
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with("web.yaml:5: ") && errors[0].contains("name"), "{errors:?}");
}

#[test]
fn what_is_no_text_is_refused() {
    let error = |bytes: &[u8]| parse("x", bytes).errors[0].to_string();
    assert_eq!(error(b"a: 1\nb: \xff\n"), "x:2: is not UTF-8 text");
    assert_eq!(error(&vec![b' '; MAX_BYTES + 1]), "x:1: is too large: a file may have 32 MiB; split it up");
    assert_eq!(one(&format!("\u{feff}{WEB}")).name.name, "web");
}

/// Bytes that are no text and a scalar of 10 MB cost their own document, and no other.
#[test]
fn a_document_that_cannot_be_read_leaves_the_others() {
    let pod = |name: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c}}]}}\n"
        )
    };
    let mut file = pod("first").into_bytes();
    file.extend_from_slice(b"---\nkind: Pod\nmetadata: {name: \xc3\x28}\n");
    file.extend_from_slice(pod("second").as_bytes());
    file.extend_from_slice(format!("---\nkind: Pod\nbig: {}\n", "x".repeat(10 << 20)).as_bytes());
    file.extend_from_slice(b"---\nkind: Pod\nnul: a\0b\n");
    file.extend_from_slice(pod("third").as_bytes());
    let parsed = parse("x", &file);
    let names: Vec<_> = parsed.pods.iter().map(|pod| pod.name.name.as_str()).collect();
    assert_eq!(names, ["first", "second", "third"]);
    let errors: Vec<_> = parsed.errors.iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert_eq!(errors[0], "x:8: is not UTF-8 text");
    assert_eq!(errors[1], "x:14: is too large: a document may have 4 MiB; split it up");
    assert!(errors[2].starts_with("x:19: "), "{errors:?}");
}

#[test]
fn a_file_that_grows_without_bound_is_refused() {
    let mut aliases = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let below = vec![format!("*a{}", level - 1); 10].join(", ");
        aliases = format!("{aliases}a{level}: &a{level} [{below}]\n");
    }
    let deep = format!("a: {}{}\n", "[".repeat(10_000), "]".repeat(10_000));
    let deep_block = (0..2_000).map(|depth| " ".repeat(depth) + "a:\n").collect::<Vec<_>>().concat();
    let wide = format!("a: [{}]\n", "1,".repeat(1 << 20));
    for text in [aliases, deep, deep_block, wide] {
        let errors = errors(&text);
        assert_eq!(errors.len(), 1);
        assert!(errors[0].len() < 400, "{}", errors[0]);
    }
}

#[rstest]
#[case("system-node-critical", Some(2_000_001_000))]
#[case("system-cluster-critical", Some(2_000_000_000))]
#[case("mine", None)]
fn a_system_class_has_its_priority(#[case] class: &str, #[case] priority: Option<i32>) {
    let text = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{priorityClassName: {class}, containers: [{{name: c}}]}}}}"
    );
    let pod = one(&text);
    assert_eq!((pod.priority, pod.priority()), (priority, priority.unwrap_or(0)));
}

fn with(extra: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\n{extra}\nspec: {{containers: [{{name: c}}]}}\n"
    )
}

/// What `kubectl get -o yaml` prints.
#[rstest]
#[case("status: {qosClass: Guaranteed, phase: Running}", Some(QosClass::Guaranteed))]
#[case("status: {qosClass: Burstable}", Some(QosClass::Burstable))]
#[case("status: {qosClass: BestEffort}", Some(QosClass::BestEffort))]
#[case("status: {}", None)]
#[case("status: null", None)]
fn the_stored_class_is_read(#[case] status: &str, #[case] expected: Option<QosClass>) {
    assert_eq!(one(&with(status)).stored_qos_class, expected);
}

#[rstest]
#[case(
    "status: {qosClass: guaranteed}",
    "4: status.qosClass: \"guaranteed\" is not supported: it must be Guaranteed, Burstable or BestEffort"
)]
#[case("status: {qosClass: 1}", "4: status.qosClass: must be a text: put it in quotes")]
#[case("status: Running", "4: status: must be a mapping")]
fn a_class_that_is_none_is_reported(#[case] status: &str, #[case] expected: &str) {
    assert_eq!(errors(&with(status)), [format!("web.yaml:{expected}")]);
}

fn tolerating(tolerations: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  containers: [{{name: c}}]\n  tolerations: {tolerations}\n"
    )
}

#[test]
fn tolerations_are_read() {
    let text = tolerating(
        "[{operator: Exists}, {key: a, operator: Exists, effect: NoSchedule, tolerationSeconds: 5}, \
         {key: b, value: c, effect: NoExecute}, {key: d, operator: Equal, effect: PreferNoSchedule}]",
    );
    let value = |key: &str, value: &str| TolerationTaints::KeyValue { key: key.into(), value: value.into() };
    let expected = [
        (TolerationTaints::Every, None),
        (TolerationTaints::Key("a".into()), Some(TaintEffect::NoSchedule)),
        (value("b", "c"), Some(TaintEffect::NoExecute)),
        (value("d", ""), Some(TaintEffect::PreferNoSchedule)),
    ];
    assert_eq!(one(&text).tolerations, expected.map(|(taints, effect)| Toleration { taints, effect }));
}

/// `validateTolerations` in `pkg/apis/core/validation/validation.go`.
#[rstest]
#[case(
    "[{key: a, operator: Like}]",
    "spec.tolerations[0].operator: \"Like\" is not supported: it must be Exists or Equal"
)]
#[case(
    "[{operator: Exists}, {operator: Equal, value: b}]",
    "spec.tolerations[1].operator: \"Equal\" is not supported: it must be Exists where there is no key"
)]
#[case(
    "[{key: a, operator: Exists, value: b}]",
    "spec.tolerations[0].value: \"b\" is not supported: it must be left out with operator Exists"
)]
#[case(
    "[{key: a, effect: Never}]",
    "spec.tolerations[0].effect: \"Never\" is not supported: it must be NoSchedule, PreferNoSchedule or NoExecute"
)]
#[case("[a]", "spec.tolerations[0]: must be a mapping")]
fn a_toleration_that_is_none_is_reported(#[case] tolerations: &str, #[case] expected: &str) {
    assert_eq!(errors(&tolerating(tolerations)), [format!("web.yaml:6: {expected}")]);
}

/// `pkg/apis/core/v1/defaults.go`: `defaultPodRequests`, `defaultHugePagePodLimits`.
#[rstest]
#[case("{limits: {cpu: 2, memory: 1Gi}}", "{}", &[("cpu", "2"), ("memory", "1Gi")], &[("cpu", "2"), ("memory", "1Gi")])]
#[case("{limits: {cpu: 2, memory: 1Gi}}", "{requests: {cpu: 100m}}", &[("cpu", "100m"), ("memory", "1Gi")], &[("cpu", "2"), ("memory", "1Gi")])]
#[case("{limits: {cpu: 2}}", "{limits: {memory: 1Gi}}", &[("cpu", "2"), ("memory", "1Gi")], &[("cpu", "2")])]
#[case("{requests: {cpu: 2}}", "{requests: {memory: 1Gi}}", &[("cpu", "2")], &[])]
#[case("{requests: {cpu: 2}}", "{limits: {hugepages-2Mi: 4Mi}}", &[("cpu", "2"), ("hugepages-2Mi", "4Mi")], &[("hugepages-2Mi", "4Mi")])]
#[case("{}", "{requests: {memory: 1Gi}, limits: {hugepages-2Mi: 4Mi}}", &[], &[])]
fn pod_level_resources_complete_each_other(
    #[case] pod_level: &str,
    #[case] container: &str,
    #[case] requests: &[(&str, &str)],
    #[case] limits: &[(&str, &str)],
) {
    let text = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{resources: {pod_level}, containers: [{{name: c, resources: {container}}}]}}}}"
    );
    let resources = one(&text).resources.unwrap();
    assert_eq!(resources.requests, list(requests));
    assert_eq!(resources.limits, list(limits));
}

#[test]
fn a_container_without_request_requests_its_limit() {
    let pod = one("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {\
        initContainers: [{name: i, resources: {limits: {cpu: 1}}}], \
        containers: [{name: c, resources: {requests: {cpu: 0}, limits: {cpu: 1, memory: 1Mi}}}]}}");
    assert_eq!(pod.resources, None);
    assert_eq!(pod.containers[0].resources.requests, list(&[("cpu", "1")]));
    assert_eq!(pod.containers[1].resources.requests, list(&[("cpu", "0"), ("memory", "1Mi")]));
}

proptest! {
    #[test]
    fn no_bytes_are_too_bad(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let parsed = parse("x", &bytes);
        prop_assert_eq!(parsed.pods.len(), parsed.origins.len());
        prop_assert!(!parsed.pods.is_empty() || !parsed.errors.is_empty());
    }

    #[test]
    fn no_edit_is_too_bad(start in 0_usize..WEB.len(), len in 0_usize..20, put in "[ \\n:{}\\[\\]&*!|>'\"#%-]{0,6}|\\PC{0,6}") {
        let mut bytes = WEB.as_bytes().to_vec();
        let end = (start + len).min(bytes.len());
        bytes.splice(start..end, put.bytes());
        let lines = u64::try_from(bytes.split(|&byte| byte == b'\n').count()).unwrap();
        for error in parse("x", &bytes).errors {
            let (ManifestError::Document { origin, .. } | ManifestError::Field { origin, .. }) = &error else {
                panic!("{error}");
            };
            prop_assert!((1..=lines + 1).contains(&origin.line), "{}", error);
        }
    }

    #[test]
    fn a_written_quantity_is_the_parsed_one(text in "[0-9]{1,9}(\\.[0-9]{1,12})?(|e[0-5]|m|Ki|Mi|Gi|k|M|G)") {
        let pod = one(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{containers: [{{name: c, resources: {{limits: {{memory: {text}}}}}}}]}}}}"
        ));
        let expected: Quantity = text.parse().unwrap();
        prop_assert_eq!(pod.containers[0].resources.limits.values().copied().collect::<Vec<_>>(), [expected]);
    }
}

/// The pod's limit comes from its containers then, and is not written where its request is.
#[test]
fn a_pod_request_above_what_the_containers_may_use_is_refused() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  resources:\n    requests:\n      hugepages-2Mi: 4Mi\n  containers:\n  - name: c\n    resources: {limits: {hugepages-2Mi: 2Mi}}\n";
    let parsed = parse("f.yaml", text.as_bytes());
    assert!(parsed.pods.is_empty());
    let errors: Vec<_> = parsed.errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        ["f.yaml:7: spec.resources.requests.hugepages-2Mi: the limit 2097152 is below the request 4194304"]
    );
}

#[test]
fn another_manifest_has_another_fingerprint_and_this_one_keeps_it() {
    let pod = one;
    let web = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, uid: u}\nspec:\n  containers:\n  - {name: c, resources: {limits: {memory: 64Mi}}}\n";
    let print = pod(web).fingerprint();
    assert_eq!(pod(&web.replace("64Mi", "65536Ki")).fingerprint(), print, "the same, written differently");
    for other in [
        web.replace("64Mi", "65Mi"),
        web.replace("name: c", "name: d"),
        web.replace("limits", "requests"),
        web.replace("spec:\n", "spec:\n  priority: 1\n"),
        web.replace("uid: u", "uid: u, annotations: {a: b}"),
    ] {
        assert_ne!(pod(&other).fingerprint(), print, "{other}");
    }
    // Kept on disks: it may not change.
    assert_eq!(print, 7_672_286_462_971_129_149);
}
