//! Finds the word that a mistyped one may have meant.

/// The longest compared word: a DNS subdomain. The cost grows with the square of the length.
const MAX_BYTES: usize = 253;

/// The word nearest to the written one, if any is near enough to have been meant.
#[must_use]
pub(crate) fn nearest<'a>(written: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if written.is_empty() || written.len() > MAX_BYTES {
        return None;
    }
    let far = |word: &str| {
        // A third of the characters may differ, at least one.
        let allowed = (written.chars().count().max(word.chars().count()) / 3).max(1);
        Some(strsim::osa_distance(written, word)).filter(|far| *far <= allowed)
    };
    words
        .into_iter()
        .filter_map(|word| far(word).map(|far| (far, word)))
        .min_by_key(|(far, _)| *far)
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_is_found_and_what_is_far_is_not() {
        let words = ["memory.available", "pid.available", "default/hog", "default/hog2"];
        let near = |written: &str| nearest(written, words);
        assert_eq!(near("memory.avialable"), Some("memory.available"));
        assert_eq!(near("default/hgo"), Some("default/hog"));
        assert_eq!(near("default/hog2"), Some("default/hog2"));
        assert_eq!(near("web"), None);
        assert_eq!(near(""), None);
        assert_eq!(near(&"a".repeat(100_000)), None);
        assert_eq!(nearest("a", []), None);
    }
}
