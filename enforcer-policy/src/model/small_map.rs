//! Saves memory on the many maps of one or two entries that pods consist of.

use std::{borrow::Borrow, fmt, ops::Index};

/// A map of few entries, sorted by key.
///
/// A node has tens of thousands of maps with one or two entries, each of which would take up to half a KiB as a
/// `BTreeMap`. Here it takes what its entries need. An insertion is linear in their number.
#[derive(Clone, Eq, Hash, PartialEq)]
pub struct SmallMap<K, V>(Vec<(K, V)>);

/// Up to so many entries, an insertion allocates no more than it needs.
const EXACT: usize = 8;

type Iter<'a, K, V> = std::iter::Map<std::slice::Iter<'a, (K, V)>, fn(&(K, V)) -> (&K, &V)>;

impl<K, V> SmallMap<K, V> {
    /// An empty map.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Whether it has no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The entries, by key.
    pub fn iter(&self) -> Iter<'_, K, V> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    /// The values, by key.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }
}

impl<K: Ord, V> SmallMap<K, V> {
    fn place<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(held, _)| held.borrow().cmp(key))
    }

    /// The value of a key.
    #[must_use]
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(self.place(key).ok()?).map(|(_, value)| value)
    }

    /// The value of a key, to change it.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let place = self.place(key).ok()?;
        self.0.get_mut(place).map(|(_, value)| value)
    }

    /// Whether it has that key.
    #[must_use]
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.place(key).is_ok()
    }

    /// Sets the value of a key. Returns the one that it had.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(&key) {
            Ok(place) => self.0.get_mut(place).map(|(_, held)| std::mem::replace(held, value)),
            Err(place) => {
                if self.0.len() < EXACT {
                    self.0.reserve_exact(1);
                }
                self.0.insert(place, (key, value));
                None
            }
        }
    }

    /// Sets the value of a key to `change` of its present value.
    pub fn update(&mut self, key: K, change: impl FnOnce(Option<&V>) -> V) {
        let value = change(self.get(&key));
        self.insert(key, value);
    }

    /// Removes a key. Returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.place(key).ok().map(|place| self.0.remove(place).1)
    }
}

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SmallMap<K, V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self).finish()
    }
}

/// Panics if there is no such key.
impl<K: Ord + Borrow<Q>, Q: Ord + ?Sized, V> Index<&Q> for SmallMap<K, V> {
    type Output = V;

    #[expect(clippy::expect_used, reason = "as of every map; only tests index")]
    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("the map has the key")
    }
}

impl<K: Ord, V> Extend<(K, V)> for SmallMap<K, V> {
    fn extend<T: IntoIterator<Item = (K, V)>>(&mut self, entries: T) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SmallMap<K, V> {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(entries: T) -> Self {
        let mut entries: Vec<(K, V)> = entries.into_iter().collect();
        // As the sort is stable and of equal keys the first stays, the last one given does.
        entries.reverse();
        entries.sort_by(|(first, _), (second, _)| first.cmp(second));
        entries.dedup_by(|(second, _), (first, _)| first == second);
        entries.shrink_to_fit();
        Self(entries)
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SmallMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<'a, K, V> IntoIterator for &'a SmallMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<K, V> IntoIterator for SmallMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0_u8..8, 0_u8..3, any::<u8>()), 0..60)) {
            let (mut map, mut model) = (SmallMap::<u8, u8>::new(), BTreeMap::new());
            let mut collected = Vec::new();
            for (key, step, value) in steps {
                match step {
                    0 => prop_assert_eq!(map.remove(&key), model.remove(&key)),
                    1 => {
                        map.update(key, |held: Option<&u8>| held.map_or(value, |held| held.wrapping_add(value)));
                        model.entry(key).and_modify(|held| *held = held.wrapping_add(value)).or_insert(value);
                    }
                    _ => prop_assert_eq!(map.insert(key, value), model.insert(key, value)),
                }
                prop_assert!(map.iter().eq(&model));
                collected.push((key, value));
                prop_assert_eq!((map.get(&key), map.contains_key(&key)), (model.get(&key), model.contains_key(&key)));
                prop_assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
            }
            let map: SmallMap<u8, u8> = collected.iter().copied().collect();
            let model: BTreeMap<u8, u8> = collected.into_iter().collect();
            prop_assert!(map.iter().eq(&model));
        }
    }
}
