//! Bounds how many values a label can have where tenants or files choose them.

use std::sync::OnceLock;

/// The first `N` names from outside; all others share one place. Takes no lock and forgets no name, as a counter that
/// moved must stay.
#[derive(Debug)]
pub(super) struct Names<const N: usize>([OnceLock<Box<str>>; N]);

impl<const N: usize> Default for Names<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| OnceLock::new()))
    }
}

impl<const N: usize> Names<N> {
    /// The name for the others. An equal name counts with them.
    pub(super) const OTHER: &'static str = "other";

    /// The number of places.
    pub(super) const PLACES: usize = N + 1;

    /// The longest name that is kept; longer ones count with the others. No namespace is longer.
    const MAX_BYTES: usize = 63;

    /// The place of a name. A new name takes the first free place; without one it shares the last.
    pub(super) fn place(&self, name: &str) -> usize {
        if name.len() > Self::MAX_BYTES || name == Self::OTHER {
            return N;
        }
        let found = self.0.iter().position(|kept| &**kept.get_or_init(|| name.into()) == name);
        found.unwrap_or(N)
    }

    /// The kept names with their places, then the others.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, &str)> {
        let kept = self.0.iter().map_while(|kept| kept.get().map(|name| &**name)).enumerate();
        kept.chain(std::iter::once((N, Self::OTHER)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_kept_and_the_rest_are_one() {
        let names = Names::<2>::default();
        let places = ["a", "b", "a", "c", "other", "b"].map(|name| names.place(name));
        assert_eq!(places, [0, 1, 0, 2, 2, 1]);
        assert_eq!(names.place(&"x".repeat(64)), 2);
        assert_eq!(names.all().collect::<Vec<_>>(), [(0, "a"), (1, "b"), (2, "other")]);
    }
}
