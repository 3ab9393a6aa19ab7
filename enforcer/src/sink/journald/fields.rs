//! The framing of journald's native protocol: `NAME=value` on a line. For a value with line ends: the name on a line,
//! the value's length in eight bytes, little endian, and the value.

/// The fields of one entry.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<u8>);

impl Fields {
    /// Adds a field. The name has capital letters, digits and underscores; the value may be any bytes.
    pub(super) fn add(&mut self, name: &str, value: &[u8]) {
        self.0.extend_from_slice(name.as_bytes());
        // Bytes that are not text get the length, too: then nothing depends on how a reader splits lines.
        let is_line = std::str::from_utf8(value).is_ok_and(|text| !text.contains(char::is_control));
        if is_line {
            self.0.push(b'=');
        } else {
            self.0.push(b'\n');
            let length = u64::try_from(value.len()).unwrap_or(u64::MAX);
            self.0.extend_from_slice(&length.to_le_bytes());
        }
        self.0.extend_from_slice(value);
        self.0.push(b'\n');
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_line_is_framed_by_its_length() {
        let mut fields = Fields::default();
        fields.add("A", b"one = two");
        fields.add("B", b"one\ntwo");
        fields.add("C", b"\xff\xfe");
        fields.add("D", b"");
        assert_eq!(
            fields.into_bytes(),
            b"A=one = two\nB\n\x07\0\0\0\0\0\0\0one\ntwo\nC\n\x02\0\0\0\0\0\0\0\xff\xfe\nD=\n"
        );
    }
}
