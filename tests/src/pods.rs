//! Manifests for the scenarios.

/// One container of a pod to write: its name, and its requests and limits as YAML flow mappings' contents.
#[derive(Clone, Copy, Debug)]
pub struct Container<'a> {
    /// Its name.
    pub name: &'a str,
    /// Such as `cpu: 100m, memory: 64Mi`.
    pub requests: &'a str,
    /// The same for its limits.
    pub limits: &'a str,
}

/// The manifest of a pod in the namespace `default`.
#[must_use]
pub fn pod(name: &str, priority: i32, containers: &[Container<'_>]) -> String {
    let mut manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  priority: {priority}\n  containers:\n"
    );
    for Container { name, requests, limits } in containers {
        manifest.push_str(&format!(
            "  - name: {name}\n    resources:\n      requests: {{{requests}}}\n      limits: {{{limits}}}\n"
        ));
    }
    manifest
}
