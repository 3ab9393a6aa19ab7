//! Lines of several guests side by side: each has its guest's label, and none breaks another.
use std::io::{self, Write};

/// Forwards whole lines, each with its label in front; without a label everything unchanged.
#[derive(Debug)]
pub(crate) struct Labelled<W: Write> {
    label: String,
    line: Vec<u8>,
    out: W,
}

impl<W: Write> Labelled<W> {
    pub(crate) fn new(label: String, out: W) -> Self {
        Self { label, line: Vec::new(), out }
    }

    fn pass(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        // In one write, so that no other line comes in between.
        self.out.write_all(&[self.label.as_bytes(), &line].concat())
    }
}

impl<W: Write> Write for Labelled<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.label.is_empty() {
            return self.out.write(bytes);
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.pass()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Write> Drop for Labelled<W> {
    fn drop(&mut self) {
        if !self.line.is_empty() {
            self.line.push(b'\n');
            // The reader may be gone.
            let _passed = self.pass();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_passed_on_whole_and_says_whose_it_is() {
        let mut out = Vec::new();
        let mut labelled = Labelled::new("6.1: ".to_owned(), &mut out);
        for piece in ["test a ... ", "ok\ntest b ...", " ok\n\nend"] {
            labelled.write_all(piece.as_bytes()).unwrap();
        }
        drop(labelled);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "6.1: test a ... ok\n6.1: test b ... ok\n6.1: \n6.1: end\n"
        );
    }

    #[test]
    fn without_a_label_nothing_is_held_back() {
        let mut out = Vec::new();
        Labelled::new(String::new(), &mut out).write_all(b"half").unwrap();
        assert_eq!(out, b"half");
    }
}
