//! Manifests: what comes out is whole, errors are reported with their line, and all of it can be planned.

use std::collections::HashSet;

use enforcer::{
    model::{ContainerKind, Pod, Quantity, Requirements, ResourceList},
    source::manifest::{self, ManifestError, Objects, Origin, Parsed},
};

use super::{
    plan,
    text::{check_message, line_count},
};

/// More objects than a file could hold of itself: aliases may repeat some.
const MOST_BY_ALIASES: usize = 20_000;

/// The bytes are a file.
pub fn check(bytes: &[u8]) {
    let parsed = manifest::parse("fuzz.yaml", bytes);
    assert_eq!(parsed, manifest::parse("fuzz.yaml", bytes), "read twice, it says two things");
    assert_eq!(parsed.pods.len(), parsed.origins.len());
    assert!(!parsed.pods.is_empty() || !parsed.errors.is_empty() || holds_an_empty_list(bytes));
    assert!(parsed.pods.len() + parsed.errors.len() <= bytes.len() + MOST_BY_ALIASES);
    let lines = line_count(bytes);
    let check_origin = |origin: &Origin| {
        assert!((1..=lines).contains(&origin.line), "line {} of {lines}", origin.line);
    };
    parsed.origins.iter().for_each(check_origin);
    for error in &parsed.errors {
        check_message(&error.to_string());
        match error {
            ManifestError::Document { origin, .. } | ManifestError::Field { origin, .. } => {
                check_origin(origin);
            }
            other => panic!("not for one file to say: {other}"),
        }
    }
    for warning in &parsed.warnings {
        check_message(&warning.to_string());
    }
    assert!(parsed.warnings.len() <= 21, "{} warnings", parsed.warnings.len());
    parsed.pods.iter().for_each(check_pod);
    check_size(bytes.len(), &parsed);

    check_objects(bytes);

    let (mut names, mut uids) = (HashSet::new(), HashSet::new());
    let is_first = |pod: &Pod| names.insert(pod.name.clone()) && uids.insert(pod.uid.clone());
    let mut pods = parsed.pods;
    pods.retain(is_first);
    for settings in &plan::settings() {
        plan::check(&plan::node(), settings, &pods);
    }
}

/// The same bytes as verbs read them: what is found is as sound, and is said in as few words.
fn check_objects(bytes: &[u8]) {
    let mut objects = Objects::default();
    let (errors, warnings) = objects.read("fuzz.yaml", bytes, Some("node"));
    for error in &errors {
        check_message(&error.to_string());
    }
    for warning in &warnings {
        check_message(&warning.to_string());
    }
    assert!(objects.made.len() + errors.len() <= bytes.len() + MOST_BY_ALIASES);
    objects.made.iter().for_each(|made| check_pod(&made.pod));
    assert!(objects.left_out.others.len() <= 20 && warnings.len() <= 21);
}

/// What is kept and what is said stay in proportion to the file, whatever its aliases repeat.
fn check_size(len: usize, parsed: &Parsed) {
    let kept: usize =
        parsed.pods.iter().flat_map(|pod| &pod.annotations).map(|(key, value)| key.len() + value.len()).sum();
    let most = 8 * len + 4_096 * parsed.pods.len();
    assert!(kept <= most, "annotations of {kept} bytes out of {len}");
    let said: usize = parsed.errors.iter().map(|error| error.to_string().len()).sum();
    assert!(said <= 256 * len + (256 << 10), "errors of {said} bytes about {len}");
}

/// A list without items is no error, and no pod.
fn holds_an_empty_list(bytes: &[u8]) -> bool {
    bytes.windows(4).any(|word| word == b"List")
}

fn check_pod(pod: &Pod) {
    assert!(is_subdomain(&pod.name.name), "{:?}", pod.name.name);
    assert!(is_label(&pod.name.namespace), "{:?}", pod.name.namespace);
    assert!(pod.containers.iter().any(|container| container.kind == ContainerKind::App), "no containers");
    let mut names = HashSet::new();
    for container in &pod.containers {
        assert!(is_label(&container.name), "{:?}", container.name);
        assert!(names.insert(&container.name), "two containers are {:?}", container.name);
        check_requirements(&container.resources);
    }
    pod.resources.iter().for_each(check_requirements);
    check_list(&pod.overhead);
}

fn check_requirements(resources: &Requirements) {
    check_list(&resources.requests);
    check_list(&resources.limits);
    for (name, limit) in &resources.limits {
        if let Some(request) = resources.requests.get(name) {
            assert!(request <= limit, "{name}: a limit of {limit}, a request of {request}");
        }
    }
}

fn check_list(list: &ResourceList) {
    for (name, quantity) in list {
        assert!(!name.as_str().is_empty());
        assert!(!quantity.is_negative(), "{name} is {quantity}");
        assert_eq!(quantity.to_string().parse::<Quantity>().as_ref(), Ok(quantity));
    }
}

fn is_label(name: &str) -> bool {
    name.len() <= 63 && is_part(name)
}

fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_part)
}

fn is_part(part: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    part.chars().all(|c| is_plain(c) || c == '-') && part.starts_with(is_plain) && part.ends_with(is_plain)
}
