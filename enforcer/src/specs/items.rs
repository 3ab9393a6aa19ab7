//! The elements of `items` in a JSON document that comes in parts: a list of pods may be megabytes long, and none of it
//! is kept but the element that is being read.

use memchr::memchr2;

/// The largest element that is read. The largest object that a cluster stores has 1.5 MiB, and JSON may write a byte of it
/// as six.
const MOST_ITEM_BYTES: usize = 16 << 20;

/// The longest key that is compared with `items`.
const MOST_KEY_BYTES: usize = 16;

/// The longest rest of a document around its elements that is kept: what it is, and where the next part of the list is.
const MOST_AROUND_BYTES: usize = 64 << 10;

/// The document is not a list of objects.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum ListError {
    /// It ended in the middle.
    #[error("the list is cut off")]
    CutOff,
    /// Its elements are not objects, or it has none.
    #[error("the answer is not a list")]
    Shape,
}

/// Where the reader is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum At {
    /// Outside of `items`.
    Around,
    /// Between two elements.
    Between,
    /// In an element.
    Item,
    /// Behind `items`.
    Behind,
}

/// Takes a document in parts, and gives its elements.
#[derive(Debug)]
pub(super) struct Items {
    at: At,
    depth: u32,
    in_string: bool,
    is_escaped: bool,
    /// The last text at the top level.
    key: Vec<u8>,
    item: Vec<u8>,
    /// The document without its elements.
    around: Vec<u8>,
}

impl Default for Items {
    fn default() -> Self {
        Self {
            at: At::Around,
            depth: 0,
            in_string: false,
            is_escaped: false,
            key: Vec::new(),
            item: Vec::new(),
            around: Vec::new(),
        }
    }
}

impl Items {
    /// Takes the next part. Calls `each` with every element that ends in it; `None` is one that is too large.
    pub(super) fn add(&mut self, part: &[u8], mut each: impl FnMut(Option<&[u8]>)) -> Result<(), ListError> {
        let mut rest = part;
        while let Some((&byte, behind)) = rest.split_first() {
            if self.in_string && !self.is_escaped {
                // Most of a document is text in which only its end matters.
                let (text, behind) = rest.split_at(memchr2(b'"', b'\\', rest).unwrap_or(rest.len()));
                if !text.is_empty() {
                    self.keep(text);
                    self.note_key(text);
                    rest = behind;
                    continue;
                }
            }
            rest = behind;
            self.keep(&[byte]);
            if self.in_string {
                self.in_text(byte);
                continue;
            }
            match byte {
                b'"' => {
                    if self.at == At::Between {
                        return Err(ListError::Shape);
                    }
                    self.in_string = true;
                    if self.depth == 1 {
                        self.key.clear();
                    }
                }
                b'{' | b'[' => self.open(byte)?,
                b'}' | b']' => self.close(&mut each)?,
                b',' | b':' | b' ' | b'\n' | b'\r' | b'\t' => {}
                // Go writes `null` for an empty list.
                b'n' if self.at == At::Around && self.depth == 1 && self.key == b"items" => {
                    self.at = At::Behind;
                }
                _ if self.at == At::Between || self.depth == 0 => return Err(ListError::Shape),
                _ => {}
            }
        }
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) {
        let (into, most_bytes) = match self.at {
            At::Around | At::Behind => (&mut self.around, MOST_AROUND_BYTES),
            // One that is too large is passed over: it must not hide the others.
            At::Item => (&mut self.item, MOST_ITEM_BYTES + 1),
            At::Between => return,
        };
        add(into, bytes, most_bytes);
    }

    fn note_key(&mut self, text: &[u8]) {
        if self.depth == 1 {
            add(&mut self.key, text, MOST_KEY_BYTES);
        }
    }

    fn in_text(&mut self, byte: u8) {
        if self.is_escaped {
            self.is_escaped = false;
        } else if byte == b'\\' {
            self.is_escaped = true;
        } else if byte == b'"' {
            self.in_string = false;
            return;
        }
        self.note_key(&[byte]);
    }

    fn open(&mut self, byte: u8) -> Result<(), ListError> {
        match (self.at, self.depth) {
            (At::Around, 0) if byte == b'{' => {}
            (At::Around, 1) if byte == b'[' && self.key == b"items" => self.at = At::Between,
            (At::Between, _) if byte == b'{' => {
                self.at = At::Item;
                self.item.clear();
                self.item.push(byte);
            }
            (At::Between, _) | (_, 0) => return Err(ListError::Shape),
            (At::Around | At::Item | At::Behind, _) => {}
        }
        self.depth += 1;
        Ok(())
    }

    fn close(&mut self, each: &mut impl FnMut(Option<&[u8]>)) -> Result<(), ListError> {
        self.depth = self.depth.checked_sub(1).ok_or(ListError::Shape)?;
        match self.at {
            At::Item if self.depth == 2 => {
                each((self.item.len() <= MOST_ITEM_BYTES).then_some(&self.item));
                self.at = At::Between;
            }
            At::Between => {
                self.at = At::Behind;
                self.around.push(b']');
            }
            At::Around | At::Item | At::Behind => {}
        }
        Ok(())
    }

    /// Whether all of the document has come. Returns it without its elements; cut, if even that is too long.
    pub(super) fn end(self) -> Result<Vec<u8>, ListError> {
        match self {
            Self { depth: 0, in_string: false, at: At::Behind, around, .. } => Ok(around),
            Self { depth: 0, in_string: false, at: At::Around, .. } => Err(ListError::Shape),
            _ => Err(ListError::CutOff),
        }
    }
}

/// Adds as many of the bytes as there is room for.
fn add(into: &mut Vec<u8>, bytes: &[u8], most_bytes: usize) {
    let room = most_bytes.saturating_sub(into.len());
    into.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(parts: &[&[u8]]) -> Result<Vec<String>, ListError> {
        let mut items = Items::default();
        let mut found = Vec::new();
        for part in parts {
            let shown =
                |item: Option<&[u8]>| item.map_or("too large".into(), String::from_utf8_lossy).into_owned();
            items.add(part, |item| found.push(shown(item)))?;
        }
        items.end().map(|_around| found)
    }

    const LIST: &[u8] = br#"{"kind":"PodList", "metadata":{"items":[{"no":1}]},"items":[{"a":"}\"]"},
        {"b":{"items":[{}]}}, {}],"after":[{"c":0}]}"#;

    #[test]
    fn elements_are_found_however_the_document_is_cut() {
        let expected = [r#"{"a":"}\"]"}"#, r#"{"b":{"items":[{}]}}"#, "{}"];
        for at in 0..=LIST.len() {
            let (first, second) = LIST.split_at(at);
            assert_eq!(read(&[first, second]).unwrap(), expected, "{at}");
        }
        let bytes: Vec<&[u8]> = LIST.chunks(1).collect();
        assert_eq!(read(&bytes).unwrap(), expected);
        for empty in [r#"{"items":[]}"#, r#"{"kind":"items","items":null,"metadata":{}}"#] {
            assert_eq!(read(&[empty.as_bytes()]).unwrap(), [""; 0]);
        }
    }

    #[test]
    fn what_is_around_the_elements_is_kept_and_bounded() {
        let around = |text: &[u8]| {
            let mut items = Items::default();
            items.add(text, |_| {}).unwrap();
            items.end().unwrap()
        };
        let list = around(br#"{"metadata":{"continue":"c"},"items":[{"a":[1]},{}],"kind":"PodList"}"#);
        assert_eq!(
            String::from_utf8(list).unwrap(),
            r#"{"metadata":{"continue":"c"},"items":[],"kind":"PodList"}"#
        );
        let long = format!(r#"{{"a":"{}","items":[]}}"#, "x".repeat(2 * MOST_AROUND_BYTES));
        assert!(around(long.as_bytes()).len() < MOST_AROUND_BYTES + 2);
    }

    #[test]
    fn what_is_no_list_or_not_all_of_one_is_an_error() {
        for end in 0..LIST.len() {
            assert!(read(&[&LIST[..end]]).is_err(), "{end}");
        }
        for wrong in [r#"{"kind":"Status"}"#, r#"{"items":[1]}"#, r#"["items"]"#, "x", "}"] {
            assert_eq!(read(&[wrong.as_bytes()]), Err(ListError::Shape), "{wrong}");
        }
    }

    #[test]
    fn an_element_that_is_too_large_is_passed_over() {
        let large = vec![b' '; MOST_ITEM_BYTES];
        let parts: [&[u8]; 3] = [br#"{"items":[{},{"#, &large, br#"},{"a":1}]}"#];
        assert_eq!(read(&parts).unwrap(), ["{}", "too large", r#"{"a":1}"#]);
    }

    #[test]
    fn an_element_of_exactly_16_mib_is_taken_and_one_byte_more_is_passed_over() {
        for (bytes, is_taken) in [(16 << 20, true), ((16 << 20) + 1, false)] {
            let padding = vec![b' '; bytes - 2];
            let found = read(&[br#"{"items":[{"#, &padding, br#"},{"a":1}]}"#]).unwrap();
            let expected = if is_taken { bytes } else { "too large".len() };
            assert_eq!((found[0].len(), &*found[1]), (expected, r#"{"a":1}"#));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop(read(&[&bytes]));
        }
    }
}
