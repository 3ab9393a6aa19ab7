//! A list of a few elements in place, without memory from the heap.

use std::{fmt, marker::PhantomData};

use postcard_schema::{Schema, schema::NamedType};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, SeqAccess, Visitor},
    ser::SerializeSeq as _,
};

/// At most `N` values, stored in place: the engine returns them without an allocation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Few<T, const N: usize> {
    items: [Option<T>; N],
    len: usize,
}

impl<T: Copy, const N: usize> Few<T, N> {
    /// No values.
    #[must_use]
    pub const fn new() -> Self {
        Self { items: [None; N], len: 0 }
    }

    /// Adds a value at the end; `false` if there is no room, and then nothing changes.
    #[must_use]
    pub fn push(&mut self, value: T) -> bool {
        match self.items.get_mut(self.len) {
            Some(slot) => {
                *slot = Some(value);
                self.len += 1;
                true
            }
            None => false,
        }
    }

    /// The values in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().take(self.len).flatten()
    }

    /// The same, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut().take(self.len).flatten()
    }

    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T: Copy + Serialize, const N: usize> Serialize for Few<T, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut values = serializer.serialize_seq(Some(self.len))?;
        for value in self.iter() {
            values.serialize_element(value)?;
        }
        values.end()
    }
}

impl<'de, T: Copy + Deserialize<'de>, const N: usize> Deserialize<'de> for Few<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Values(PhantomData))
    }
}

/// Refuses the first value too many, so that no input makes it take memory.
struct Values<T, const N: usize>(PhantomData<T>);

impl<'de, T: Copy + Deserialize<'de>, const N: usize> Visitor<'de> for Values<T, N> {
    type Value = Few<T, N>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "at most {N} values")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Few<T, N>, A::Error> {
        let mut few = Few::new();
        while let Some(value) = values.next_element()? {
            if !few.push(value) {
                return Err(A::Error::invalid_length(N.saturating_add(1), &self));
            }
        }
        Ok(few)
    }
}

impl<T: Schema, const N: usize> Schema for Few<T, N> {
    const SCHEMA: &'static NamedType = <Vec<T>>::SCHEMA;
}

impl<T: Copy, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::Few;

    #[test]
    fn keeps_the_first_n_in_order() {
        let mut few = Few::<u8, 2>::new();
        assert!(few.is_empty());
        assert!(few.push(1) && few.push(2) && !few.push(3));
        assert_eq!(few.iter().copied().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(few.len(), 2);
    }
}
