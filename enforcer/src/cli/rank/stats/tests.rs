use super::*;

fn pod(namespace: &str, name: &str) -> Pod {
    let manifest = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{namespace: {namespace}, name: {name}}}, spec: {{containers: [{{name: c}}]}}}}"
    );
    crate::source::manifest::parse("x", manifest.as_bytes()).pods.remove(0)
}

fn pods() -> Vec<Pod> {
    vec![pod("default", "web"), pod("shop", "db"), pod("shop", "same"), pod("other", "same")]
}

/// By name: bytes and processes.
fn read(text: &str) -> BTreeMap<String, (Option<u64>, Option<u64>)> {
    let stats = Stats::parse(text.as_bytes(), &pods()).unwrap_or_else(|error| panic!("{text}: {error:#}"));
    let usage = |stats: PodStats| (stats.working_set_bytes, stats.process_count);
    stats.pods.into_iter().map(|(name, stats)| (name, usage(stats))).collect()
}

fn expect(usages: &[(&str, Option<u64>, Option<u64>)]) -> BTreeMap<String, (Option<u64>, Option<u64>)> {
    usages.iter().map(|(name, bytes, count)| ((*name).to_owned(), (*bytes, *count))).collect()
}

#[test]
fn what_is_wrong_is_reported_with_its_place() {
    for (text, reported) in [
        ("", "EOF while parsing"),
        ("[]", "line 1 column"),
        ("{}", "missing field `pods`"),
        (r#"{"pods": {"a/b": {"workingSetBytes": -1}}}"#, "invalid value: integer `-1`"),
        (r#"{"pods": {"a/b": {"workingSetBytes": 1.5}}}"#, "invalid type: floating point"),
        (r#"{"pods": {"a/b": {"workingset": 1}}}"#, "unknown field `workingset`"),
        (r#"{"pods": {"a/b": {"workingSetBytes": 99999999999999999999}}}"#, "invalid type"),
        (r#"{"pods": {}} x"#, "trailing characters at line 1 column 14"),
        ("web 1m 20Mi\n", "leave --no-headers out"),
        ("NAME CPU(cores) MEMORY(bytes)\nweb 1m\n", "line 2 has 2 columns instead of 3"),
        ("NAME CPU(cores) MEMORY(bytes)\n\nweb 1m <unknown>\n", "line 3"),
        ("NAME CPU(cores) MEMORY(bytes)\nweb 1m -5Mi\n", "-5Mi is negative"),
        ("NAME CPU(cores) MEMORY(bytes)\nweb 1m 5Mi\nweb 1m 5Mi\n", "line 3: pod web is there already"),
        ("NAME CPU(cores) MEMORY(bytes)\nsame 1m 5Mi\n", "kubectl top pods -A"),
        (r#"{"kind": "PodMetricsList"}"#, "missing field `items`"),
        (
            r#"{"kind": "PodMetricsList", "items": [{"metadata": {"name": "a"}, "containers": [{"usage": {"memory": "1Q"}}]}]}"#,
            "pod a",
        ),
        (
            r#"{"kind": "List", "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "a"}}]}"#,
            "pod a is there twice",
        ),
        (r#"{"node": {}, "pods": [{}]}"#, "missing field `podRef`"),
    ] {
        let error = Stats::parse(text.as_bytes(), &pods()).unwrap_err();
        assert!(format!("{error:#}").contains(reported), "{text}: {error:#}");
    }
    let deep = format!("{{\"pods\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(Stats::parse(deep.as_bytes(), &[]).is_err());
}

#[test]
fn a_table_of_kubectl_is_read_with_and_without_namespaces_and_containers() {
    let expected = expect(&[("default/web", Some(20 << 20), None), ("shop/db", Some(2 << 30), None)]);
    let plain = "NAME   CPU(cores)   MEMORY(bytes)   \nweb    1m           20Mi            \ndb     250m         2Gi             \n";
    assert_eq!(read(plain), expected);
    let sum = "       ________     ________        \n       251m         2068Mi          \n";
    assert_eq!(read(&format!("{plain}{sum}")), expected);
    let all = "NAMESPACE   NAME   CPU(cores)   MEMORY(bytes)\ndefault     web    1m           20Mi\nshop        db     250m         2048Mi\n";
    assert_eq!(read(all), expected);
    let containers = "NAMESPACE   POD   NAME    CPU(cores)   MEMORY(bytes)\ndefault     web   app     1m           15Mi\ndefault     web   proxy   0m           5120Ki\nshop        db    db      250m         2Gi\n";
    assert_eq!(read(containers), expected);
    let of_one_namespace = "POD   NAME   CPU(cores)   MEMORY(bytes)\nweb   app   1m   15Mi\nweb   proxy   0m   5Mi\ndb   db   1m   2Gi\n";
    assert_eq!(read(of_one_namespace), expected);
    let swap = "NAME   CPU(cores)   MEMORY(bytes)   SWAP(bytes)\nweb    1m           20Mi            7Mi\ngone 1m 1Mi 0Mi\n";
    assert_eq!(read(swap), expect(&[("?/gone", Some(1 << 20), None), ("default/web", Some(20 << 20), None)]));
}

#[test]
fn metrics_are_read_in_their_units() {
    let items = r#"[
        {"metadata": {"name": "web", "namespace": "default", "creationTimestamp": "2026-01-31T12:00:00Z"}, "window": "15s",
         "containers": [{"name": "app", "usage": {"cpu": "1234567n", "memory": "1024Ki"}},
                        {"name": "proxy", "usage": {"cpu": "1m", "memory": "1Mi"}}]},
        {"metadata": {"name": "db", "namespace": "shop"}, "containers": [{"name": "db", "usage": {"cpu": "0", "memory": "1500m"}}]},
        {"metadata": {"name": "same", "namespace": "shop"}, "containers": [{"name": "a", "usage": {"memory": "3000000000n"}}]},
        {"metadata": {"name": "same", "namespace": "other"}, "containers": [{"name": "a", "usage": {}}]}]"#;
    let expected = expect(&[
        ("default/web", Some(2 << 20), None),
        ("other/same", None, None),
        // Upwards, as Kubernetes rounds.
        ("shop/db", Some(2), None),
        ("shop/same", Some(3), None),
    ]);
    for kind in ["PodMetricsList", "List"] {
        let list = format!(
            r#"{{"kind": "{kind}", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {{}}, "items": {items}}}"#
        );
        assert_eq!(read(&list), expected, "{kind}");
    }
    let one = r#"{"kind": "PodMetrics", "metadata": {"name": "web", "namespace": "default"},
        "containers": [{"name": "app", "usage": {"memory": "7"}}]}"#;
    assert_eq!(read(one), expect(&[("default/web", Some(7), None)]));
}

#[test]
fn a_summary_of_the_kubelet_gives_the_pods_own_working_set_and_its_processes() {
    let summary = r#"{"node": {"nodeName": "n", "memory": {"workingSetBytes": 9}}, "pods": [
        {"podRef": {"name": "web", "namespace": "default", "uid": "u"}, "startTime": "2026-01-31T12:00:00Z",
         "containers": [{"name": "app", "memory": {"workingSetBytes": 5, "usageBytes": 50}}],
         "memory": {"availableBytes": 1, "usageBytes": 70, "workingSetBytes": 7}, "process_stats": {"process_count": 4}},
        {"podRef": {"name": "db", "namespace": "shop", "uid": "v"},
         "containers": [{"name": "a", "memory": {"workingSetBytes": 5}}, {"name": "b"}, {"name": "c", "memory": {"workingSetBytes": 6}}]},
        {"podRef": {"name": "same", "namespace": "shop", "uid": "w"}}]}"#;
    assert_eq!(
        read(summary),
        expect(&[("default/web", Some(7), Some(4)), ("shop/db", Some(11), None), ("shop/same", None, None)])
    );
}

#[test]
fn our_own_form_says_the_same() {
    let own = r#"{"pods": {"default/web": {"workingSetBytes": 7, "processCount": 4}, "a/b": {}}}"#;
    assert_eq!(read(own), expect(&[("a/b", None, None), ("default/web", Some(7), Some(4))]));
    let stats = Stats::parse(own.as_bytes(), &[]).unwrap();
    assert_eq!(stats.unknown(&pods()), ["a/b"]);
    assert!(stats.has_processes());
}
