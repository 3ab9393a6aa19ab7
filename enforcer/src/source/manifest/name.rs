//! The names that the API server accepts: `staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go`.

/// What [`is_label`] requires of a name, for errors.
pub(super) const LABEL: &str =
    "a DNS label: at most 63 characters of a-z, 0-9 and -, with a letter or digit at both ends";

/// What [`is_subdomain`] requires of a name, for errors.
pub(super) const SUBDOMAIN: &str = "a DNS subdomain: at most 253 characters of a-z, 0-9, - and ., with a letter or digit at both ends of each part";

/// What [`crate::model::PodUid`] requires, for errors.
pub(super) const UID: &str = "a uid: 1 to 63 characters of A-Z, a-z, 0-9 and -";

/// Whether it is a DNS label (RFC 1123).
pub(super) fn is_label(name: &str) -> bool {
    name.len() <= 63 && is_part(name)
}

/// Whether it is a DNS subdomain (RFC 1123). Its parts may be longer than a label, as in the API server.
pub(super) fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_part)
}

fn is_part(part: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    part.bytes().all(|byte| is_alphanumeric(byte) || byte == b'-')
        && part.bytes().next().is_some_and(is_alphanumeric)
        && part.bytes().next_back().is_some_and(is_alphanumeric)
}

/// Whether it names a resource: one of Kubernetes, or one with a domain.
pub(super) fn is_resource(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage" | "storage" | "pids")
        || name.strip_prefix("hugepages-").is_some_and(|size| !size.is_empty())
        || name.split_once('/').is_some_and(|(domain, rest)| is_subdomain(domain) && !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_api_servers() {
        let (most, beyond) = ("a".repeat(63), "a".repeat(64));
        for name in ["a", "0", "web-1", most.as_str()] {
            assert!(is_label(name) && is_subdomain(name), "{name:?} was refused");
        }
        for name in ["", "-a", "a-", "A", "a_b", "a/b", "..", "a..b", ".a", "a.", "ü", "a\n"] {
            assert!(!is_label(name) && !is_subdomain(name), "{name:?} was accepted");
        }
        for name in ["a.b", beyond.as_str()] {
            assert!(!is_label(name) && is_subdomain(name), "{name:?}");
        }
        assert!(!is_subdomain(&"a".repeat(254)));
    }

    #[test]
    fn resources_are_known_or_have_a_domain() {
        for name in ["cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "example.com/gpu"] {
            assert!(is_resource(name), "{name:?} was refused");
        }
        for name in ["", "Memory", "mem", "hugepages-", "/gpu", "example.com/", "gpu"] {
            assert!(!is_resource(name), "{name:?} was accepted");
        }
    }
}
