//! Values as bytes: postcard's encoding.

use std::iter;

use postcard::ser_flavors::Flavor;
use serde::{Serialize, de::DeserializeOwned};

/// Appends a value, and allocates nothing itself.
pub fn encode<T: Serialize + ?Sized>(value: &T, into: &mut impl Extend<u8>) {
    // Fails only for sequences of unknown length, and no recorded type has one. Cut bytes would not be decoded.
    let _encoded = postcard::serialize_with_flavor(value, Appending(into));
}

/// The value that these bytes are, and nothing more.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(value)
}

/// Appends bytes with their length before them.
pub fn encode_bytes(bytes: &[u8], into: &mut Vec<u8>) {
    encode(&bytes.len(), into);
    into.extend_from_slice(bytes);
}

/// Splits off what [`encode_bytes`] has put first; `None` at the end, or if it is cut.
#[must_use]
pub fn split_bytes(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    postcard::take_from_bytes(bytes).ok()
}

struct Appending<'a, E>(&'a mut E);

impl<E: Extend<u8>> Flavor for Appending<'_, E> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.extend(iter::once(byte));
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend(bytes.iter().copied());
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::few::Few;

    proptest! {
        #[test]
        fn only_whole_values_are_decoded(number: u64, text: String, share: Option<f32>, few in prop::collection::vec(any::<i32>(), 0..4)) {
            let mut kept = Few::<i32, 3>::new();
            prop_assert!(few.iter().take(3).all(|value| kept.push(*value)));
            let value = (number, text, share.map(f32::to_bits), kept);
            let mut bytes = Vec::new();
            encode(&value, &mut bytes);
            prop_assert_eq!(decode(&bytes), Some(value.clone()));
            for end in 0..bytes.len() {
                prop_assert_eq!(decode::<(u64, String, Option<u32>, Few<i32, 3>)>(&bytes[..end]), None);
            }
            bytes.push(0);
            prop_assert_eq!(decode::<(u64, String, Option<u32>, Few<i32, 3>)>(&bytes), None);
        }

        #[test]
        fn more_values_than_there_is_room_for_are_refused(values in prop::collection::vec(any::<u16>(), 0..6)) {
            let mut bytes = Vec::new();
            encode(&values, &mut bytes);
            let few = decode::<Few<u16, 3>>(&bytes);
            prop_assert_eq!(few.map(|few| few.iter().copied().collect()), (values.len() <= 3).then_some(values));
        }

        #[test]
        fn bytes_are_split_as_they_were_put(first: Vec<u8>, second: Vec<u8>) {
            let mut bytes = Vec::new();
            encode_bytes(&first, &mut bytes);
            encode_bytes(&second, &mut bytes);
            let (one, rest) = split_bytes(&bytes).unwrap();
            let (two, end) = split_bytes(rest).unwrap();
            prop_assert_eq!((one, two, end), (&first[..], &second[..], &[][..]));
            prop_assert_eq!(split_bytes(end), None);
            prop_assert_eq!(split_bytes(&rest[..rest.len() - 1]), None);
        }
    }
}
