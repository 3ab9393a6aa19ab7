//! Parses the daemon's event stream.

use anyhow::anyhow;

use crate::{cli::Failure, journal::Cursor};

/// The longest accepted event line, in bytes.
pub(in crate::cli) const MAX_LINE_BYTES: usize = 1 << 20;

/// The events of a response as they arrive: server-sent events with a cursor each, or plain lines.
#[derive(Debug)]
pub(super) struct Stream {
    has_cursors: bool,
    /// The part of an incomplete event that has arrived.
    pending: Vec<u8>,
}

/// Complete events.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Part {
    /// One line per event.
    pub(super) lines: Vec<u8>,
    /// The last cursor, if there is one. It also covers events that were filtered out.
    pub(super) cursor: Option<Cursor>,
}

impl Stream {
    pub(super) fn new(has_cursors: bool) -> Self {
        Self { has_cursors, pending: Vec::new() }
    }

    /// Adds a chunk, and returns the events that are complete now.
    pub(super) fn take(&mut self, chunk: &[u8]) -> Result<Part, Failure> {
        self.pending.extend_from_slice(chunk);
        // A cursor counts once its whole event has arrived.
        let end: &[u8] = if self.has_cursors { b"\n\n" } else { b"\n" };
        let last = self.pending.windows(end.len()).rposition(|window| window == end);
        let whole: Vec<u8> = self.pending.drain(..last.map_or(0, |last| last + end.len())).collect();
        if self.pending.len() > MAX_LINE_BYTES {
            return Err(anyhow!(
                "the daemon sent a line of more than {MAX_LINE_BYTES} bytes: is it of another version?"
            )
            .into());
        }
        Ok(if self.has_cursors { Part::of_fields(&whole) } else { Part { lines: whole, cursor: None } })
    }
}

impl Part {
    /// Parses server-sent events. A heartbeat has at most a cursor.
    fn of_fields(fields: &[u8]) -> Self {
        let mut part = Self::default();
        for line in fields.split_inclusive(|byte| *byte == b'\n') {
            if let Some(event) = line.strip_prefix(b"data: ") {
                part.lines.extend_from_slice(event);
            } else if let Some(cursor) = line.strip_prefix(b"id: ").and_then(cursor) {
                part.cursor = Some(cursor);
            }
        }
        part
    }
}

fn cursor(text: &[u8]) -> Option<Cursor> {
    std::str::from_utf8(text).ok()?.trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: &[u8] =
        b"retry: 2000\n\nid: E:1\nevent: dev.enforcer.pod.added\ndata: {\"a\":1}\n\n:\nid: E:7\n\n:\n\n\
                          id: E:8\ndata: {\"b\":2}\n\n";

    #[test]
    fn events_and_their_cursors_are_whole_however_they_come() {
        for most in [1, 2, 7, SENT.len()] {
            let (mut stream, mut lines, mut cursors) = (Stream::new(true), Vec::new(), Vec::new());
            for chunk in SENT.chunks(most) {
                let part = stream.take(chunk).unwrap();
                lines.extend(part.lines);
                cursors.extend(part.cursor.map(|cursor| cursor.sequence));
            }
            assert_eq!(lines, b"{\"a\":1}\n{\"b\":2}\n", "{most}");
            assert_eq!(cursors.last(), Some(&8), "{most}");
            assert!(most > 1 || cursors == [1, 7, 8], "{cursors:?}");
        }
    }

    /// It is not printed, so what stands behind it is not to be skipped.
    #[test]
    fn an_event_that_is_cut_short_has_no_cursor() {
        let mut stream = Stream::new(true);
        assert_eq!(stream.take(b"id: E:1\ndata: {\"a\":1}\n").unwrap(), Part::default());
        let whole = Part { lines: b"{\"a\":1}\n".to_vec(), cursor: "E:1".parse().ok() };
        assert_eq!(stream.take(b"\nid: E:2\ndata: {").unwrap(), whole);
    }

    #[test]
    fn plain_lines_have_none_and_no_line_is_endless() {
        let mut stream = Stream::new(false);
        let part = stream.take(b"{}\n\n{\"a").unwrap();
        assert_eq!(part, Part { lines: b"{}\n\n".to_vec(), cursor: None });
        for has_cursors in [true, false] {
            assert!(Stream::new(has_cursors).take(&vec![b'x'; 2 << 20]).is_err());
        }
    }
}
