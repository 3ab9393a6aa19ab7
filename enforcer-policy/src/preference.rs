//! How early a pod is evicted by its own preference, within the limits of the administrator.

use crate::model::Pod;

/// The annotation: a whole number of 32 bits, which replaces the pod's priority in the eviction ranking, and nowhere
/// else.
pub const EVICTION_PRIORITY: &str = "enforcer.dev/eviction-priority";

/// The annotation's number; `None` if the text is not such a number.
#[must_use]
pub fn parse_preference(text: &str) -> Option<i32> {
    text.trim_ascii().parse().ok()
}

/// The priority that a pod is ranked by for eviction.
///
/// By its annotation a pod may come as early as it likes, and later than by its own priority up to `ceiling`
/// (`evictionPriorityCeiling`); without a ceiling, never. Whether a pod is critical does not depend on it.
#[must_use]
pub fn eviction_priority(pod: &Pod, ceiling: Option<i32>) -> i32 {
    let own = pod.priority();
    let most = ceiling.map_or(own, |ceiling| own.max(ceiling));
    let requested = pod.annotations.get(EVICTION_PRIORITY).and_then(|text| parse_preference(text));
    requested.map_or(own, |requested| requested.min(most))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;
    use crate::sample;

    fn pod(priority: Option<i32>, annotation: Option<&str>) -> Pod {
        let annotations = annotation.map(|text| (EVICTION_PRIORITY.to_owned(), text.to_owned()));
        Pod { priority, annotations: annotations.into_iter().collect(), ..sample::pod("p", Vec::new()) }
    }

    #[rstest]
    #[case(None, None, None, 0)]
    #[case(Some(100), None, Some(1_000), 100)]
    #[case(Some(100), Some("-5"), None, -5)]
    #[case(Some(100), Some("101"), None, 100)]
    #[case(Some(100), Some("500"), Some(300), 300)]
    #[case(Some(100), Some("200"), Some(300), 200)]
    // A ceiling below its own priority takes nothing away.
    #[case(Some(100), Some("100"), Some(0), 100)]
    #[case(Some(100), Some("never"), Some(300), 100)]
    fn within_what_is_allowed(
        #[case] priority: Option<i32>,
        #[case] annotation: Option<&str>,
        #[case] ceiling: Option<i32>,
        #[case] expected: i32,
    ) {
        assert_eq!(eviction_priority(&pod(priority, annotation), ceiling), expected);
    }

    proptest! {
        #[test]
        fn no_pod_goes_later_than_allowed(priority: i32, requested: i32, ceiling: Option<i32>) {
            let ranked = eviction_priority(&pod(Some(priority), Some(&requested.to_string())), ceiling);
            prop_assert!(ranked <= priority.max(ceiling.unwrap_or(priority)));
            // What is earlier than its own is granted as it is.
            prop_assert!(requested > priority || ranked == requested);
        }
    }
}
