//! Whether a pod's manifest has changed: an evicted pod may start again only then.

use std::fmt::Write as _;

use super::{Container, Pod, Requirements, ResourceList};

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
            // Not read from manifests.
            labels: _,
            owners: _,
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
            put("container", &(name, kind.as_str(), requirements(resources)));
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
