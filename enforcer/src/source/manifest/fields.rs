//! Finds fields that Kubernetes does not have. As a rule they are mistyped, and the API server drops them.

mod table;

use std::{collections::BTreeMap, sync::LazyLock};

pub(super) use self::table::VERSION;
use super::place::{Place, Report};
use crate::{
    nearest::nearest,
    yaml::{Node, Value},
};

/// The fields of a type, each with the type of the objects in it, if that is looked at.
type Fields = BTreeMap<&'static str, Option<&'static str>>;

static TYPES: LazyLock<BTreeMap<&'static str, Fields>> = LazyLock::new(|| types(table::TABLE));

fn types(table: &'static str) -> BTreeMap<&'static str, Fields> {
    let mut types: BTreeMap<&str, Fields> = BTreeMap::new();
    let mut name = "";
    for line in table.lines() {
        let fields = if line.starts_with(' ') {
            line
        } else if let Some((begun, fields)) = line.split_once(": ") {
            name = begun;
            fields
        } else {
            continue;
        };
        let fields = fields.split_whitespace().map(|field| match field.split_once(':') {
            Some((field, inside)) => (field, Some(inside)),
            None => (field, None),
        });
        types.entry(name).or_default().extend(fields);
    }
    types
}

/// Warns of each field of the object at that place, and of all in it, that its type does not have.
pub(super) fn check(place: &Place<'_>, kind: &str, report: &mut Report<'_>) {
    Walk { root: place, steps: Vec::new(), report }.inside(place.node(), kind);
}

/// From one value to one in it.
#[derive(Clone, Copy)]
enum Step<'doc> {
    Key(&'doc str),
    Index(usize),
}

/// Paths are only made of what is reported: a file may have many fields.
struct Walk<'walk, 'doc, 'source> {
    root: &'walk Place<'doc>,
    steps: Vec<Step<'doc>>,
    report: &'walk mut Report<'source>,
}

impl<'doc> Walk<'_, 'doc, '_> {
    /// Objects of that type: one, or a list of them. The nesting ends with that of the types.
    fn inside(&mut self, node: &'doc Node, kind: &str) {
        let Some(fields) = TYPES.get(kind) else { return };
        match &node.value {
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.steps.push(Step::Index(index));
                    self.object(item, fields);
                    self.steps.pop();
                }
            }
            Value::Null | Value::Text(_) | Value::Plain(_) | Value::Map(_) => self.object(node, fields),
        }
    }

    fn object(&mut self, node: &'doc Node, fields: &'static Fields) {
        let Value::Map(entries) = &node.value else { return };
        for entry in entries {
            self.steps.push(Step::Key(&entry.key));
            match fields.get(entry.key.as_str()) {
                Some(Some(kind)) => self.inside(&entry.node, kind),
                Some(None) => {}
                None => {
                    let near = nearest(&entry.key, fields.keys().copied());
                    let (root, steps) = (self.root, &self.steps);
                    self.report.unknown_field(entry.line, near, || path(root, steps));
                }
            }
            self.steps.pop();
        }
    }
}

fn path(root: &Place<'_>, steps: &[Step<'_>]) -> String {
    let place = steps.iter().fold(root.clone(), |place, step| match step {
        Step::Key(key) => place.named(key),
        Step::Index(index) => place.numbered(*index),
    });
    place.path().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::manifest;

    #[test]
    fn every_type_that_a_field_names_is_in_the_table_and_none_besides() {
        let roots = ["Pod", "ReplicationController", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"];
        let mut named: Vec<&str> = roots.into_iter().chain(["Job", "CronJob", "PriorityClass"]).collect();
        named.extend(TYPES.values().flat_map(BTreeMap::values).flatten());
        named.sort_unstable();
        named.dedup();
        assert_eq!(TYPES.keys().copied().collect::<Vec<_>>(), named);
        assert!(TYPES["PodSpec"].contains_key("overhead") && TYPES["Container"].contains_key("tty"));
    }

    fn warnings(text: &str) -> Vec<String> {
        let parsed = manifest::parse("web.yaml", text.as_bytes());
        assert_eq!(parsed.errors, []);
        assert_eq!(parsed.pods.len(), 1);
        parsed.warnings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_mistyped_field_is_reported_with_its_path_and_the_nearest_name() {
        let text = "\
apiVersion: v1
kind: Pod
metadata: {name: web, label: {request: 1}}
spec:
  priorityClass: high
  nodeSelector: {anything: goes}
  containers:
  - name: app
    resources:
      request: {memory: 1Gi}
      limits: {example.com/gpu: 1}
    env: [{name: A, valu: b}]
    livenessProbe:
      httpGet: {path: /, port: 80, \"a b\": 1}
  overheads: {}
";
        let says = |line: u32, field: &str, near: &str| {
            format!("web.yaml:{line}: {field}: is ignored, as Kubernetes {VERSION} has no such field{near}")
        };
        assert_eq!(
            warnings(text),
            [
                says(3, "metadata.label", ": did you mean labels?"),
                says(5, "spec.priorityClass", ": did you mean priorityClassName?"),
                says(10, "spec.containers[0].resources.request", ": did you mean requests?"),
                says(12, "spec.containers[0].env[0].valu", ": did you mean value?"),
                says(14, "spec.containers[0].livenessProbe.httpGet[a b]", ""),
                says(15, "spec.overheads", ": did you mean overhead?"),
            ]
        );
    }

    #[test]
    fn of_many_the_first_are_named_and_the_rest_is_counted() {
        let unknown: Vec<_> = (0..50).map(|number| format!("  x-{number}: 1\n")).collect();
        let unknown = unknown.concat();
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers: [{{name: c}}]\n{unknown}"
        );
        let warnings = warnings(&text);
        assert_eq!(warnings.len(), 21, "{warnings:?}");
        assert!(warnings[0].starts_with("web.yaml:6: spec.x-0: "), "{warnings:?}");
        assert_eq!(warnings[20], "web.yaml:26: 30 further fields that Kubernetes does not have are ignored");
    }

    #[test]
    fn what_the_api_server_prints_is_all_known() {
        let text = r#"{"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [{
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "default", "uid": "u", "resourceVersion": "1", "generation": 1,
                "creationTimestamp": "2026-01-31T12:00:00Z", "generateName": "web-", "labels": {"app": "web"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r",
                    "controller": true, "blockOwnerDeletion": true}]},
            "spec": {"containers": [{"name": "app", "image": "a", "imagePullPolicy": "Always", "resources": {},
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                    "volumeMounts": [{"mountPath": "/var", "name": "token", "readOnly": true}]}],
                "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "nodeName": "n", "preemptionPolicy": "PreemptLowerPriority",
                "priority": 0, "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {},
                "serviceAccount": "default", "serviceAccountName": "default", "terminationGracePeriodSeconds": 30,
                "tolerations": [{"effect": "NoExecute", "key": "a", "operator": "Exists", "tolerationSeconds": 300}],
                "volumes": [{"name": "token", "projected": {"defaultMode": 420, "sources": [
                    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                    {"configMap": {"name": "root", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}}]},
            "status": {"phase": "Running", "qosClass": "BestEffort", "whatever": 1}}]}"#;
        assert_eq!(warnings(text), [""; 0]);
    }
}
