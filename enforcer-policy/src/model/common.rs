//! A value that clones have in common until one of them is changed.

use std::{
    hash::{Hash, Hasher},
    ops::{Deref, DerefMut},
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value of which clones are no copies: a view and those handed out before hold an unchanged part once, and cgroups of equal
/// values hold them once. It reads, writes and compares as the value itself.
#[derive(Clone, Debug, Default, Eq)]
pub struct Common<T>(Arc<T>);

impl<T> From<T> for Common<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<T> Deref for Common<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Common<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T: FromIterator<A>, A> FromIterator<A> for Common<T> {
    fn from_iter<I: IntoIterator<Item = A>>(items: I) -> Self {
        Self::from(T::from_iter(items))
    }
}

impl<T: PartialEq> PartialEq for Common<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl<T: Hash> Hash for Common<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<T: Serialize> Serialize for Common<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Common<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_one_clone_leaves_the_others() {
        let first = Common::from(vec![1, 2]);
        let mut second = first.clone();
        assert!(Arc::ptr_eq(&first.0, &second.0) && first == second);
        second.push(3);
        assert_eq!((first.len(), second.len()), (2, 3));
        assert!(first != second);
        assert!(first == Common::from(vec![1, 2]), "by value");
    }

    #[test]
    fn it_is_written_as_the_value_itself() {
        let written = postcard::to_stdvec(&[Common::from(7)]).unwrap();
        assert_eq!(written, postcard::to_stdvec(&[7]).unwrap());
        assert_eq!(postcard::from_bytes::<[Common<i32>; 1]>(&written).unwrap(), [Common::from(7)]);
    }
}
