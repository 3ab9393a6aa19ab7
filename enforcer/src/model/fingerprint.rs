use std::fmt::Write as _;

use super::{Container, ContainerKind, Pod, Requirements, ResourceList};

impl Pod {
    /// A hash of the manifest; another manifest of this pod most probably has another one. It is stored across
    /// restarts, so its input and encoding must not change: an evicted pod comes back when its fingerprint changes.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        // FNV-1a, 64 bits, over the fields' canonical texts.
        self.canonical()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    fn canonical(&self) -> String {
        let Self {
            name,
            uid,
            priority,
            priority_class_name,
            tolerations,
            annotations,
            termination_grace_period_seconds,
            overhead,
            resources,
            containers,
            // Follows from the annotations.
            adopts: _,
            stored_qos_class,
        } = self;
        let mut text = String::new();
        let mut put = |field: &str, value: &dyn std::fmt::Debug| {
            // Writing to a string does not fail.
            let _written = writeln!(text, "{field}={value:?}");
        };
        put("name", &(&name.namespace, &name.name, uid.as_str()));
        put("priority", priority);
        put("class", priority_class_name);
        put("grace", termination_grace_period_seconds);
        put("qos", &stored_qos_class.map(super::QosClass::as_str));
        put("annotations", annotations);
        for toleration in tolerations {
            put("toleration", toleration);
        }
        put("overhead", &amounts(overhead));
        put("resources", &resources.as_ref().map(requirements));
        for Container { name, kind, resources } in containers {
            let kind = match kind {
                ContainerKind::App => "app",
                ContainerKind::Init => "init",
                ContainerKind::Sidecar => "sidecar",
            };
            put("container", &(name, kind, requirements(resources)));
        }
        text
    }
}

/// Requests, and limits.
fn requirements(resources: &Requirements) -> [Vec<(String, String)>; 2] {
    [amounts(&resources.requests), amounts(&resources.limits)]
}

fn amounts(list: &ResourceList) -> Vec<(String, String)> {
    list.iter().map(|(name, quantity)| (name.to_string(), quantity.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use crate::source::manifest;

    fn pod(yaml: &str) -> crate::model::Pod {
        manifest::parse("x", yaml.as_bytes()).pods.remove(0)
    }

    #[test]
    fn another_manifest_has_another_fingerprint_and_this_one_keeps_it() {
        let web = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, uid: u}\nspec:\n  containers:\n  - {name: c, resources: {limits: {memory: 64Mi}}}\n";
        let print = pod(web).fingerprint();
        assert_eq!(
            pod(&web.replace("64Mi", "65536Ki")).fingerprint(),
            print,
            "the same, written differently"
        );
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
}
