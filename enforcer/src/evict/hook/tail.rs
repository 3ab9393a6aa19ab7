//! The last of what the program wrote.

use std::io::{self, PipeReader, Read as _};

/// How much of it is kept.
const KEPT_BYTES: usize = 1024;

/// How many reads are made of it at a time: as much as a pipe holds. Who writes without end is not listened to without
/// end.
const MOST_READS: usize = 64;

/// The end of its output, and how long that was in all.
#[derive(Debug)]
pub(super) struct Tail {
    /// None once nobody can write any more.
    reader: Option<PipeReader>,
    kept: Vec<u8>,
    bytes: u64,
}

impl Tail {
    /// Of a pipe that is read without waiting.
    pub(super) fn new(reader: PipeReader) -> io::Result<Self> {
        rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self { reader: Some(reader), kept: Vec::with_capacity(2 * KEPT_BYTES), bytes: 0 })
    }

    /// What can be waited on for more; none if no more can come.
    pub(super) fn reader(&self) -> Option<&PipeReader> {
        self.reader.as_ref()
    }

    /// Takes what is there.
    pub(super) fn read(&mut self) {
        let mut buffer = [0_u8; KEPT_BYTES];
        for _ in 0..MOST_READS {
            let Some(reader) = &mut self.reader else { return };
            match reader.read(&mut buffer) {
                Ok(0) => self.reader = None,
                Ok(count) => self.keep(buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.reader = None,
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        self.kept.extend_from_slice(bytes);
        let surplus = self.kept.len().saturating_sub(KEPT_BYTES);
        self.kept.drain(..surplus);
    }

    /// The text, with what is none replaced, and how many bytes it was the end of.
    pub(super) fn finish(self) -> (String, u64) {
        (String::from_utf8_lossy(&self.kept).into_owned(), self.bytes)
    }
}
