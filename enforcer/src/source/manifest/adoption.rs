//! The annotations that name existing cgroups to adopt.

use std::collections::BTreeMap;

use super::{
    error::Problem,
    place::{Place, Report},
};
use crate::model::{Adoption, CgroupPath, Container};

/// The annotation that names the pod's cgroup.
const POD: &str = "enforcer.dev/cgroup";
/// Followed by a container's name, the annotation that names that container's.
const CONTAINER: &str = "cgroup.enforcer.dev/";

/// Reads which cgroups a pod adopts; `None` if it adopts none, or something is wrong with that.
pub(super) fn read(
    metadata: &Place<'_>,
    annotations: &BTreeMap<String, String>,
    containers: &[Container],
    report: &mut Report<'_>,
) -> Option<Adoption> {
    let place = metadata.get("annotations")?;
    let mut path = |key: &str, text: &str| {
        let parsed = CgroupPath::parse(text).ok().filter(|path| text.starts_with('/') && !path.is_root());
        if parsed.is_none() {
            let problem = Problem::Name {
                value: text.chars().take(300).collect(),
                form: "the path of a cgroup below the mount point, such as /system.slice/web.service",
            };
            report.fail_at(&place, key, problem);
        }
        parsed
    };
    let pod = annotations.get(POD).map(|text| path(POD, text));
    let mut named = BTreeMap::new();
    for (key, text) in annotations {
        if let Some(name) = key.strip_prefix(CONTAINER) {
            named.insert(name.to_owned(), (key, path(key, text)));
        }
    }
    let mut fail = |key: &str, message: &str| {
        report.fail_at(&place, key, Problem::Syntax { message: message.to_owned() });
    };
    let mut adopted = BTreeMap::new();
    for (name, (key, path)) in named {
        let path = path?;
        if !containers.iter().any(|container| container.name == name) {
            fail(key, "names a container that the pod does not have");
            return None;
        }
        if let Some((other, _)) = adopted.iter().find(|(_, other)| **other == path) {
            fail(key, &format!("names the cgroup of container {other} too: each needs its own"));
            return None;
        }
        adopted.insert(name, path);
    }
    let pod = match pod {
        Some(path) => Some(path?),
        None => None,
    };
    (pod.is_some() || !adopted.is_empty()).then_some(Adoption { pod, containers: adopted })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use crate::source::manifest;

    fn with(annotations: &str, containers: &str) -> manifest::Parsed {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  annotations: {{{annotations}}}\nspec:\n  containers: [{containers}]\n"
        );
        manifest::parse("web.yaml", text.as_bytes())
    }

    #[test]
    fn a_container_is_where_it_is_said_to_be_or_where_its_pod_is() {
        let both = "enforcer.dev/cgroup: /m.slice, cgroup.enforcer.dev/a: /m.slice/a.scope";
        let parsed = with(both, "{name: a}, {name: b}");
        let adopts = parsed.pods[0].adopts.as_ref().unwrap();
        assert_eq!(adopts.container("a").unwrap().as_str(), "/m.slice/a.scope");
        assert_eq!(adopts.container("b"), adopts.pod.as_ref());
        let parsed = with("cgroup.enforcer.dev/a: /m.slice/a.scope", "{name: a}, {name: b}");
        let adopts = parsed.pods[0].adopts.as_ref().unwrap();
        assert_eq!((&adopts.pod, adopts.container("b")), (&None, None));
        assert!(with("other: x", "{name: a}").pods[0].adopts.is_none());
    }

    #[rstest]
    #[case("enforcer.dev/cgroup: system.slice", "the path of a cgroup")]
    #[case("enforcer.dev/cgroup: /", "the path of a cgroup")]
    #[case("enforcer.dev/cgroup: /a/../b", "the path of a cgroup")]
    #[case("enforcer.dev/cgroup: /a, cgroup.enforcer.dev/c: /a/c", "a container that the pod does not have")]
    #[case("cgroup.enforcer.dev/a: /a/c, cgroup.enforcer.dev/b: /a/c", "of container a too")]
    fn what_cannot_be_meant_is_reported_with_its_line(#[case] annotations: &str, #[case] words: &str) {
        let parsed = with(annotations, "{name: a}, {name: b}");
        assert!(parsed.pods.is_empty());
        let reported: Vec<_> = parsed.errors.iter().map(ToString::to_string).collect();
        assert!(
            reported.len() == 1 && reported[0].starts_with("web.yaml:5: metadata.annotations["),
            "{reported:?}"
        );
        assert!(reported[0].contains(words), "{reported:?}");
    }
}
