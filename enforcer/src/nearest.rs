//! What somebody who mistyped may have meant.

/// The longest word that is compared: a DNS subdomain. The work grows with the square of it.
const MAX_CHARS: usize = 253;

/// The word that is nearest to what was written, if one is near enough to have been meant.
#[must_use]
pub(crate) fn nearest<'a>(written: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written: Vec<char> = written.chars().take(MAX_CHARS + 1).collect();
    if written.is_empty() || written.len() > MAX_CHARS {
        return None;
    }
    let far = |word: &str| {
        let word: Vec<char> = word.chars().take(MAX_CHARS).collect();
        // A third may be otherwise, and a letter of a short one.
        let allowed = (written.len().max(word.len()) / 3).max(1);
        Some(distance(&written, &word)).filter(|far| *far <= allowed)
    };
    words
        .into_iter()
        .filter_map(|word| far(word).map(|far| (far, word)))
        .min_by_key(|(far, _)| *far)
        .map(|(_, word)| word)
}

/// How many letters must be put in, taken out, changed or swapped with the next to make one of the other: the optimal
/// string alignment distance.
fn distance(one: &[char], other: &[char]) -> usize {
    let width = other.len() + 1;
    let (mut before, mut above): (Vec<usize>, Vec<usize>) = (vec![0; width], (0..width).collect());
    for (row, letter) in one.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, other_letter) in other.iter().enumerate() {
            let at = |row: &[usize], column: usize| row.get(column).copied().unwrap_or(usize::MAX - 1);
            let changed = at(&above, column) + usize::from(letter != other_letter);
            let mut least = changed.min(at(&above, column + 1) + 1).min(at(&current, column) + 1);
            let swapped = row > 0
                && column > 0
                && one.get(row - 1) == Some(other_letter)
                && other.get(column - 1) == Some(letter);
            if swapped {
                least = least.min(at(&before, column - 1) + 1);
            }
            current.push(least);
        }
        before = std::mem::replace(&mut above, current);
    }
    above.last().copied().unwrap_or(0)
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

    #[test]
    fn every_edit_counts_once() {
        let far = |one: &str, other: &str| {
            distance(&one.chars().collect::<Vec<_>>(), &other.chars().collect::<Vec<_>>())
        };
        assert_eq!(far("abc", "abc"), 0);
        assert_eq!(far("abc", "acb"), 1);
        assert_eq!(far("abc", "ab"), 1);
        assert_eq!(far("", "abc"), 3);
        assert_eq!(far("kitten", "sitting"), 3);
    }
}
